"""DuckDB in the worker of a slot: it scans the Arrow segments of the slot's logs where they lie.

Nothing is inserted, and nothing is read but the relations that are handed over: access to files and to the network is off,
no extension is loaded, the configuration is locked. One thread, because a slot has one; a limit of memory, because a slot
shares a machine with others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import QueryError
from anabranch.place.databases.deadlines import DEADLINES
from anabranch.place.databases.duckdb_functions import CATALOGUED, NOT_CATALOGUED
from anabranch.place.databases.duckdb_words import char_of, words_of
from anabranch.plan.statement import StatementError, Words

Given = TypeVar("Given")

MEMORY_LIMIT = "1GiB"
"""What a statement may use in a slot; one that needs more fails."""

TIMEOUT_S = 300.0
"""A statement that takes longer is ended, and its query fails."""

CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {
    "threads": "1",
    "memory_limit": MEMORY_LIMIT,
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}

LOCKS = (
    "SET errors_as_json = true",
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""Said when the rest is configured, in this order: each of the last two ends what can be changed."""


class DuckDb:
    """One DuckDB in memory."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._connection = duckdb.connect(":memory:", config=CONFIGURATION)
        for each in LOCKS:
            self._connection.execute(each)

    def words(self, sql: str) -> Words:
        text = self._connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()[0][0]
        return words_of(sql, json.loads(text), _unstable())

    def describe(self, sql: str, relations: Mapping[str, pa.Schema]) -> pa.Schema:
        empty = {name: schema.empty_table() for name, schema in relations.items()}
        try:
            return self._over(empty, lambda: self._connection.sql(sql).to_arrow_table().schema)
        except duckdb.Error as error:
            raise _told(sql, self._in_full(sql, empty) or error) from None

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        try:
            return self._over(relations, lambda: self._connection.sql(sql).to_arrow_table())
        except duckdb.Error as error:
            raise _failed(sql, error) from None

    def run_all(self, sql: str, given: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        text, relations = over_all(sql, given)
        found = self.run(text, relations)
        numbers, rows = found.column(0), found.drop_columns(found.column_names[:1])
        return [rows.filter(pc.equal(numbers, n)) for n in range(len(given))]

    def pieces(self, sql: str, relations: Mapping[str, pa.Table], most_rows: int) -> Iterator[pa.RecordBatch]:
        """`TIMEOUT_S` is for a piece: what is done with it between two of them takes its own time."""
        try:
            with self._registered(relations):
                with self._in_time():
                    found = self._connection.sql(sql).to_arrow_reader(most_rows)
                with found:  # whoever takes no more of it has the next statement run all the same
                    while (piece := self._next(found)) is not None:
                        yield piece
        except (duckdb.Error, OSError, pa.ArrowException) as error:  # a reader hands on errors of DuckDB as Arrow's
            raise _failed(sql, error) from None

    def _next(self, found: pa.RecordBatchReader) -> pa.RecordBatch | None:
        with self._in_time():
            return next(found, None)

    def close(self) -> None:
        self._connection.close()

    def _in_full(self, sql: str, relations: Mapping[str, pa.Table]) -> Exception | None:
        """The error of a statement with its place: a relation tells its own without."""
        try:
            self._over(relations, lambda: self._connection.execute(sql).fetchall())
        except duckdb.Error as error:
            return error
        return None

    def _over(self, relations: Mapping[str, pa.Table], ask: Callable[[], Given]) -> Given:
        with self._registered(relations), self._in_time():
            return ask()

    @contextmanager
    def _registered(self, relations: Mapping[str, pa.Table]) -> Iterator[None]:
        for name, rows in relations.items():
            self._connection.register(name, rows)
        try:
            yield
        finally:
            for name in relations:
                self._connection.unregister(name)

    def _in_time(self) -> AbstractContextManager[None]:
        return DEADLINES.within(self._timeout_s, self._connection.interrupt)


@cache
def _unstable() -> frozenset[str]:
    """The functions whose result is not one of their arguments alone."""
    with duckdb.connect(":memory:") as connection:
        return NOT_CATALOGUED | {name for (name,) in connection.execute(CATALOGUED).fetchall()}


def over_all(sql: str, given: Sequence[Mapping[str, pa.Table]]) -> tuple[str, dict[str, pa.Table]]:
    """One statement for another one over several sets of relations, and what it reads: a branch for each set, which calls
    relations of its own by the names that the text knows. Rows begin with the number of their set.

    >>> text, relations = over_all("SELECT x FROM r", [{"r": pa.table({"x": [1]})}, {"r": pa.table({"x": [2]})}])
    >>> print(text)
    SELECT 0, given.* FROM (WITH "r" AS NOT MATERIALIZED (FROM "__0 0") SELECT * FROM (SELECT x FROM r
    )) AS given
    UNION ALL
    SELECT 1, given.* FROM (WITH "r" AS NOT MATERIALIZED (FROM "__1 0") SELECT * FROM (SELECT x FROM r
    )) AS given
    >>> [*relations]
    ['__0 0', '__1 0']
    """
    prefix = "_" * (1 + max((len(name) for each in given for name in each), default=0))  # longer than any name
    branches, relations = list[str](), dict[str, pa.Table]()
    for n, each in enumerate(given):
        named = {name: f"{prefix}{n} {place}" for place, name in enumerate(each)}
        relations |= {named[name]: rows for name, rows in each.items()}
        known = ", ".join(f"{_quoted(name)} AS NOT MATERIALIZED (FROM {_quoted(named[name])})" for name in each)
        branches.append(f"SELECT {n}, given.* FROM (WITH {known} SELECT * FROM ({sql}\n)) AS given")
    return "\nUNION ALL\n".join(branches), relations


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _failed(sql: str, error: Exception) -> QueryError:
    told = _told(sql, error)
    return QueryError(f"DuckDB: {told.message}" + (f": {told.hint}" if told.hint else ""))


def _told(sql: str, error: Exception) -> StatementError:
    """What an error of DuckDB says, without its noise."""
    text = str(error)
    if isinstance(error, duckdb.InterruptException):
        return StatementError(f"the statement took longer than {TIMEOUT_S:g} s", hint="shorten its windows, or split it")
    try:
        known: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        return StatementError(text.splitlines()[0])
    message, *more = str(known.get("exception_message", text)).strip().splitlines() or [text]
    return StatementError(message.rstrip("!"), char_of(sql, known.get("position")), " ".join(m.strip() for m in more if m))
