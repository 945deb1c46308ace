"""Every error a user can meet, each its own class under one base.

An error says what was wrong, where, and what to do about it. Rooms raise these and nothing else for bad input; any other
exception that leaves the package is a defect.
"""

from __future__ import annotations


class AnabranchError(Exception):
    """The base of all errors that tell a user what to do."""


class SqlError(AnabranchError):
    """Something in a SQL text is wrong; carries the place, printed with a caret below the line.

    >>> print(SqlError("unknown column x", "SELECT x", line=1, column=8))
    line 1, column 8: unknown column x
      SELECT x
             ^
    """

    def __init__(self, message: str, sql: str, line: int, column: int, hint: str = "") -> None:
        self.message, self.sql, self.line, self.column, self.hint = message, sql, line, column, hint
        lines = sql.splitlines() or [""]
        shown = lines[min(max(line, 1), len(lines)) - 1].replace("\t", " ")
        text = f"line {line}, column {column}: {message}\n  {shown}\n  {' ' * (column - 1)}^"
        super().__init__(f"{text}\n{hint}" if hint else text)


class SyntaxSqlError(SqlError):
    """The text is not in the language."""


class UnsupportedSqlError(SqlError):
    """The construct is known SQL, but not supported (yet); the message names it."""


class UnknownStreamError(SqlError):
    """FROM names a stream or table that was not created."""


class UnknownColumnError(SqlError):
    """A column that no input of the query has."""


class AmbiguousColumnError(SqlError):
    """A column without an alias that several inputs have."""


class TypeMismatchError(SqlError):
    """The types of an expression do not go together."""


class DuplicateNameError(SqlError):
    """A name that is already taken: a stream, a query, an alias or an output column."""


class InvalidNameError(SqlError):
    """A text that cannot be the name of a stream, a table or a query."""


class MissingTimeColumnError(SqlError):
    """A stream without an event-time column, or with one that is not a timestamp."""


class MissingWindowError(SqlError):
    """A stream in a join without a window."""


class UnknownFormatError(AnabranchError):
    """A path of files whose ending does not tell how to read them."""

    def __init__(self, message: str, hint: str) -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message}: {hint}")


class SessionError(AnabranchError):
    """A session that is used in a way that cannot work."""


class PlanError(AnabranchError):
    """A plan that cannot be read, or does not fit its query."""


class SchemaMismatchError(AnabranchError):
    """Rows that do not have the columns or types their stream was declared with."""


class LocationError(AnabranchError):
    """A path or URI under which nothing can be kept."""


class StateError(AnabranchError):
    """State on disk cannot be used."""


class DamagedStateError(StateError):
    """A file that a commit names is missing, torn or changed."""


class MissingRowError(DamagedStateError):
    """An index or a view names a row that is not where it should be stored."""


class ForeignStateError(StateError):
    """A checkpoint that was written for something else: another query, another version, another program."""


class CheckpointBusyError(StateError):
    """Somebody else holds the checkpoint."""


class NotVisibleError(StateError):
    """A worker does not see a folder that the driver sees."""


class TooManyResultsError(AnabranchError):
    """A batch gives more results than `results_per_batch` allows."""


class ValueTooLargeError(AnabranchError):
    """Values that do not fit into one column: Arrow's strings and bytes end at 2 GiB."""


class MigrationError(AnabranchError):
    """A change of plan that cannot be made as asked."""


class SinkError(AnabranchError):
    """A sink that fails again and again: what waits for it is kept."""


class QueryFailedError(AnabranchError):
    """An error of a query's own expressions or rows: other queries of its pipeline go on without it."""

    def __init__(self, query: str, error: Exception) -> None:
        super().__init__(f"query {query}: {error}")
        self.query, self.error = query, error


class QueryError(AnabranchError):
    """An error in computing a query, of a kind that has no name of its own here."""
