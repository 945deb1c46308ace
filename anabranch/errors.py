"""Every error a user can meet, each its own class under one base.

An error says what was wrong, where, and what to do about it. Rooms raise these and nothing else for bad input; any other
exception that leaves the package is a defect. All of them are in this module, so that an error that a worker raised is found
by its name (`anabranch.spark.failures`), and `exit_code` can say of each whether the input or the run was at fault.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Self


class AnabranchError(Exception):
    """The base of all errors that tell a user what to do."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The error of this class that says a text: what an error is made from that came back from a worker as text."""
        return cls(text)


class UsageError(AnabranchError):
    """Options of a command that cannot be read."""


class SqlError(AnabranchError):
    """Something in a SQL text is wrong; carries the place, printed with a caret below the line. What was given in Python has
    no place: its line is 0.

    >>> print(SqlError("unknown column x", "SELECT x", line=1, column=8))
    line 1, column 8: unknown column x
      SELECT x
             ^
    """

    def __init__(self, message: str, sql: str, line: int, column: int, hint: str = "") -> None:
        self.message, self.sql, self.line, self.column, self.hint = message, sql, line, column, hint
        if not line:
            super().__init__(f"{message}: {hint}" if hint else message)
            return
        lines = sql.splitlines() or [""]
        shown = lines[min(max(line, 1), len(lines)) - 1].replace("\t", " ")
        text = f"line {line}, column {column}: {message}\n  {shown}\n  {' ' * (column - 1)}^"
        super().__init__(f"{text}\n{hint}" if hint else text)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """
        >>> SqlError.from_text(str(SqlError("no", "a\\nb c", line=2, column=3, hint="yes"))).hint
        'yes'
        """
        found = re.fullmatch(r"line (\d+), column (\d+): (.*)\n  (.*)\n +\^(?:\n(.*))?", text, re.DOTALL)
        if found is None:
            return cls(text, "", 0, 0)
        line, column, message, shown, hint = found.groups()
        return cls(message, "\n" * (int(line) - 1) + shown, int(line), int(column), hint or "")


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
        super().__init__(f"{message}: {hint}" if hint else message)

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(text, "")


class FilesError(AnabranchError):
    """Files of a stream that are not there, have changed, or cannot be read."""


class DamagedFileError(FilesError):
    """A file that cannot be read as a whole, whoever reads it."""


class SessionError(AnabranchError):
    """A session that is used in a way that cannot work."""


class CommandError(AnabranchError):
    """What was asked of a run from outside, and is not done."""


class UnsupportedFrameError(AnabranchError):
    """A DataFrame that cannot be a stream or a table here."""


class UnsupportedSinkError(AnabranchError):
    """A sink that cannot take the results of this query."""


class FactsError(AnabranchError):
    """Facts that cannot be used."""


class PlanError(AnabranchError):
    """A plan that cannot be read, or does not fit its query."""


class DisconnectedError(PlanError):
    """Streams that only a cartesian product can bring together, where none is allowed."""


class NoQualifiedPlanError(PlanError):
    """No plan stays within the budget."""


class SchemaMismatchError(AnabranchError):
    """Rows that do not have the columns or types their stream was declared with."""


class FilesToMarkError(AnabranchError):
    """Files of a stream that a task found damaged: they are marked, and the batch runs again without them."""


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


class OverloadError(AnabranchError):
    """Streams bring more than can be joined in time, and the policy is to fail."""


class MigrationError(AnabranchError):
    """A change of plan that cannot be made as asked."""


class SinkError(AnabranchError):
    """A sink that fails again and again: what waits for it is kept."""


class QueryFailedError(AnabranchError):
    """An error of a query's own expressions or rows: other queries of its pipeline go on without it."""

    def __init__(self, query: str, error: Exception) -> None:
        super().__init__(f"query {query}: {error}")
        self.query, self.error = query, error

    @classmethod
    def from_text(cls, text: str) -> Self:
        found = re.fullmatch(r"query ([^:]*): (.*)", text, re.DOTALL)
        return cls(found[1], QueryError(found[2])) if found is not None else cls("", QueryError(text))


class QueryError(AnabranchError):
    """An error in computing a query, of a kind that has no name of its own here."""


class DatabaseError(AnabranchError):
    """A database that cannot be reached, or does not do what it is asked; says which one, and never how to log in there."""


class DatabaseGoneError(DatabaseError):
    """A database that cannot be reached for the time being, or is too slow: it may be there again later."""


class JavaNotFoundError(AnabranchError):
    """No Java that Spark can run on."""


class SparkStartError(AnabranchError):
    """A Spark of our own that does not start."""


class SourcePathError(SqlError):
    """A FROM path from which nothing can be read."""


USAGE, BAD_INPUT, FAILED, INTERRUPTED = 2, 65, 1, 130
"""How a command ends that does not end with 0: its arguments were wrong; the SQL, a path, a file or a setting was; the run
failed; it was interrupted."""

FAILED_RUNS = (
    CheckpointBusyError, DamagedStateError, DatabaseError, JavaNotFoundError, MigrationError, NotVisibleError, QueryError,
    QueryFailedError, SinkError, SparkStartError, TooManyResultsError, ValueTooLargeError,
)  # fmt: skip
"""What may happen to a run whose input is right. Every other error of ours says that something given is wrong."""


def exit_code(error: BaseException) -> int:
    """What a command that met an error ends with.

    >>> exit_code(SinkError("full")), exit_code(PlanError("no")), exit_code(UsageError("no")), exit_code(OSError())
    (1, 65, 2, 1)
    """
    if isinstance(error, UsageError):
        return USAGE
    has_failed = isinstance(error, FAILED_RUNS) or type(error) in (AnabranchError, StateError)
    return FAILED if has_failed or not isinstance(error, AnabranchError) else BAD_INPUT


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a word nobody knows, or nothing.

    >>> did_you_mean("prize", ["price", "symbol"])
    'did you mean price?'
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]}?" if close else ""


def known_names(word: str, known: Iterable[str]) -> str:
    """What there is instead of a word that nobody knows.

    >>> known_names("prize", ["price", "symbol"]), known_names("x", [])
    ('there are: price, symbol; did you mean price?', 'there are: none')
    """
    names = list(known)
    return "; ".join(filter(None, [f"there are: {', '.join(names) or 'none'}", did_you_mean(word, names)]))
