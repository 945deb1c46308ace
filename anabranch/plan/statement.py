"""A block of a query in the words of a database: text that it runs over windows of ours.

The rows of the windows, and those alone, are the relations that the text reads. What a database must be able to do for that
is a protocol here (`Embedded`), so that the rooms that bind and run queries know no database: the room that starts them
hands one to them (`anabranch.place.databases.embedded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

VALID = ("valid from µs", "valid until µs")
"""The columns of a relation that have the validity of its rows, where a join without groups is asked for."""

FAIL, IN_ENGINE = "fail", "engine"
FAILURES = (FAIL, IN_ENGINE)
"""What may be done about a statement that fails."""


@dataclass(frozen=True)
class Statement:
    """One SELECT of a database, over relations that are called as the inputs of its query are."""

    database: str
    sql: str
    types: tuple[pa.DataType, ...]
    """Those of its columns, as the database told them."""
    is_printed: bool = False
    """Whether it says in the words of the database what the block says in ours (`anabranch.place.statement_of`): the block
    has its keys, aggregates and predicates then, and state does not depend on the text. Else it is a user's."""
    failure: str = FAIL
    """What becomes of a statement that fails: `FAIL`, its query does; `IN_ENGINE`, the engine does what it was to do, of
    a block of ours."""
    combinations: str = ""
    """Of a block of ours that joins and groups: what gives all rows that are grouped, with their validity. The engine folds
    them when it takes the block over."""
    is_idle: bool = False
    """Whether the engine runs the block at the time, although the database may: rows are kept for it all the same."""


@dataclass(frozen=True)
class NameAt:
    """A name in a statement, and where it stands in it, in characters."""

    text: str
    at: int


@dataclass(frozen=True)
class Words:
    """What a statement reads, as the parser of its database sees it."""

    tables: tuple[NameAt, ...]
    """What FROM names, but for what the statement itself defines."""
    columns: frozenset[str] | None
    """Every name that may be one of a column, in lower case; None: all columns of what it reads may be meant."""


class StatementError(Exception):
    """What a database says against a statement, and where; whoever knows the whole text tells the user."""

    def __init__(self, message: str, at: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.at, self.hint = message, at, hint


class Embedded(Protocol):
    """A database that runs in the process that asks it, over rows that stay where they are. One with tables of its own
    speaks another protocol (`anabranch.place.databases.protocol`)."""

    def words(self, sql: str) -> Words:
        """Reads a statement; StatementError, if it is not one SELECT, or reads what is none of its business."""
        ...

    def describe(self, sql: str, relations: Mapping[str, pa.Schema]) -> pa.Schema:
        """The columns of a statement; StatementError, if the database does not take it."""
        ...

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        """The rows that a statement gives; `QueryError`, if it fails."""
        ...

    def run_all(self, sql: str, given: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        """The same over several sets of relations, of the same names and columns, at once: what `run` gives over each.
        `QueryError`, if it fails, although it may not over each of them alone."""
        ...

    def pieces(self, sql: str, relations: Mapping[str, pa.Table], most_rows: int) -> Iterator[pa.RecordBatch]:
        """The same in pieces of at most so many rows, as they are found: nobody holds all of them. The database is asked
        nothing else before the last was taken."""
        ...

    def close(self) -> None:
        """Ends it, and frees what it has."""
        ...


Open = Callable[[str], Embedded]
"""Opens an embedded database by its name; StatementError, if there is none that runs text."""


def no_database(name: str) -> Embedded:
    """What opens databases where nobody was told how."""
    raise StatementError(f"there is no database {name}")
