"""Where in a SQL text something stands: the one place that turns character offsets into lines, columns and errors."""

from __future__ import annotations

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
