"""What went wrong in a worker, told as what it was.

An error of ours that a task raises comes back through Java as text, with the stacks of two languages around it. The text of
the error is all that is needed to make it again (`AnabranchError.from_text`).
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from anabranch import errors
from anabranch.errors import AnabranchError

_OURS = re.compile(
    r"^anabranch\.(?:\w+\.)*(\w+): (.*?)"
    r"(?=\n*^(?:\s+at [\w.$/<>]+\(|Caused by: |\s*\.\.\. \d+ more|The above exception was|During handling of the above"
    r"|Driver stacktrace:|JVM stacktrace:|== )|\s*\Z)",
    re.MULTILINE | re.DOTALL,
)  # fmt: skip
"""The last line of a Python traceback, with the lines that the message has besides, up to what Java or Python say next."""


def told(error: Exception) -> Exception:
    """The error of ours that is behind an error, or the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AnabranchError):
            return seen
        seen = seen.__cause__
    return from_worker(str(error)) or error


def from_worker(text: str) -> AnabranchError | None:
    """The error of ours that a worker's stack trace ends with.

    >>> from_worker("PythonException: Traceback …\\nanabranch.errors.PlanError: no\\n\\tat java.base/x.Y(Z.java:1)")
    PlanError('no')
    """
    for name, message in _OURS.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AnabranchError):
            return kind.from_text(message)
    return None


def in_a_line(error: BaseException) -> str:
    """An error in one line: its kind, unless it is one of ours, and how its text begins.

    >>> in_a_line(OSError("disk full\\nand more")), in_a_line(errors.PlanError("no"))
    ('OSError: disk full', 'no')
    """
    if isinstance(error, Py4JJavaError):
        return _first_line(str(error.java_exception))
    shown = _first_line(str(error))
    return shown if isinstance(error, AnabranchError) and shown else f"{type(error).__name__}: {shown}".removesuffix(": ")


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]
