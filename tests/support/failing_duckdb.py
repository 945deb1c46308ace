"""A DuckDB that fails when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from unittest import mock

import pyarrow as pa

from anabranch.errors import QueryError
from anabranch.place.databases.embedded import open_embedded
from anabranch.plan.query import Query
from anabranch.planning import Planning
from anabranch.sql import parse_script

SOURCE = "CREATE STREAM s (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;"


class Failing:
    """A database that fails as long as somebody says so."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        self.inner, self.fails = open_embedded("duck"), fails

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        if self.fails():
            raise QueryError("DuckDB: out of memory")
        return self.inner.run(sql, relations)

    def run_all(self, sql: str, given: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        if self.fails():
            raise QueryError("DuckDB: out of memory")
        return self.inner.run_all(sql, given)

    def pieces(self, sql: str, relations: Mapping[str, pa.Table], most_rows: int) -> Iterator[pa.RecordBatch]:
        """It fails when it has given a row."""
        if self.fails():
            with closing(self.inner.pieces(sql, relations, most_rows)) as found:
                yield from (piece.slice(0, 1) for piece in islice(found, 1))
            raise QueryError("DuckDB: out of memory")
        yield from self.inner.pieces(sql, relations, most_rows)

    def close(self) -> None:
        self.inner.close()


@contextmanager
def failing(fails: Callable[[], bool], pause: int = 2) -> Iterator[None]:
    """DuckDB fails, and the first pause is so many batches."""
    with (
        mock.patch("anabranch.drive.work.open_embedded", side_effect=lambda _: Failing(fails)),
        mock.patch("anabranch.drive.probation.FIRST_PAUSE_BATCHES", pause),
        mock.patch("anabranch.drive.probation.LONGEST_PAUSE_BATCHES", 4 * pause),
    ):
        yield


def declared(sql: str, failure: str = "engine") -> Query:
    planning = Planning(database_failure=failure)
    planning.add_script(parse_script(f"{SOURCE} CREATE QUERY q AS {sql};", planning.catalog))
    return planning.query("q").forms.written


def often(period: int) -> Callable[[], bool]:
    """Fails at all statements but every so many."""
    asked = [0]

    def fails() -> bool:
        asked[0] += 1
        return asked[0] % period != 0

    return fails
