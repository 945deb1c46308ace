"""What went wrong in a worker, told as what it was.

An error of ours that a task raises comes back through Java as text, with the stacks of two languages around it.
"""

from __future__ import annotations

import re

from anabranch import errors
from anabranch.errors import AnabranchError

_OURS = re.compile(r"^(?:[\w.]*\.)?(\w+Error): (.*?)(?=^\s*(?:at |Caused by|\tat )|\Z)", re.MULTILINE | re.DOTALL)


def told(error: Exception) -> Exception:
    """The error of ours that is behind an error, or the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AnabranchError):
            return seen
        seen = seen.__cause__
    text = str(error)
    if "anabranch." not in text:
        return error
    for name, message in _OURS.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AnabranchError) and not issubclass(kind, errors.SqlError):
            return kind(message.strip())
    return error
