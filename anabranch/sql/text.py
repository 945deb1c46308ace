"""Where in a SQL text something stands: the one place that turns character offsets into lines, columns and errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from anabranch.errors import SqlError

Error = TypeVar("Error", bound=SqlError)


@dataclass(frozen=True)
class SqlText:
    """A text that a user wrote. Everything the parser produces carries offsets into it.

    >>> SqlText("SELECT a,\\n  b").line_and_column(12)
    (2, 3)
    """

    sql: str

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Both counted from 1."""
        lines = (self.sql[:offset] + "^").splitlines()
        return len(lines), len(lines[-1])

    def error(self, kind: type[Error], message: str, offset: int, hint: str = "") -> Error:
        """An error of a kind at an offset; to be raised by the caller."""
        line, column = self.line_and_column(min(max(offset, 0), len(self.sql)))
        return kind(message, self.sql, line, column, hint)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a word nobody knows, or nothing.

    >>> did_you_mean("prize", ["price", "symbol"])
    'did you mean price?'
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]}?" if close else ""
