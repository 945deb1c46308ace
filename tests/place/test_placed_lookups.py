"""Blocks that DuckDB runs over streams whose rows have looked up tables of a server: what a batch found is what both see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalPipeline
from anabranch.errors import MigrationError
from anabranch.place.statement_of import placed
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.duck_blocks import SLOTS, able, way
from tests.support.failing_duckdb import failing, often
from tests.support.fake_database import FakeDatabase
from tests.support.lookups import CASES, Case, batches, bound, expected, feed, select_all, table_rows
from tests.support.scenarios import properties

PLACED = {name: case for name, case in CASES.items() if able(bound(select_all(case)))}


def check(
    name: str, seed: int, slots: int, begins_there: bool, moves: Mapping[int, str], stops: Sequence[int], period: int
) -> None:
    """The tables change between all batches. The block goes there and back, new processes take over, and DuckDB fails at all
    statements but every so many."""
    case, rng = select_all(PLACED[name]), np.random.default_rng([seed, slots])
    query, given = bound(case), batches(rng, 8, 14)
    block = able(query)[0]
    if begins_there:
        query = placed(query, {block: "duck"}, "engine")
    database, disk, versions = FakeDatabase("crm", {}), MemoryFilesystem(), list[dict[str, pa.Table]]()
    found = Counter[tuple[object, ...]]()

    def started() -> LocalPipeline:
        return LocalPipeline([query], disk, slots=slots, databases=database)

    with failing(often(period if begins_there else 1), pause=2):
        pipeline = started()
        for batch, rows in enumerate([*given, {}, {}]):
            if batch in stops:
                pipeline = started()
            if batch in moves:
                with suppress(MigrationError):
                    pipeline.place("q", block, moves[batch], way(batch))
            database.tables = table_rows(rng)
            versions.append(dict(database.tables))
            found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
    assert (theirs := expected(case, given, versions)) == found, oracle.difference(found, theirs)


test_any, test_any_long = properties(
    check, 20, 3_000, name=st.sampled_from(list(PLACED)), seed=st.integers(0, 1000), slots=SLOTS, begins_there=st.booleans(),
    moves=st.dictionaries(st.integers(1, 8), st.sampled_from(["engine", "duck"]), max_size=4),
    stops=st.lists(st.integers(1, 8), max_size=3), period=st.sampled_from([1, 1, 2, 3]),
)  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_duckdb_is_asked_and_finds_something(name: str) -> None:
    case, rng = select_all(PLACED[name]), np.random.default_rng(3)
    query, given = bound(case), batches(rng, 5, 60)
    database = FakeDatabase("crm", table_rows(rng))
    block, calls, results = able(query)[0], 0, 0
    pipeline = LocalPipeline([placed(query, {block: "duck"})], MemoryFilesystem(), databases=database)
    for batch, rows in enumerate([*given, {}]):
        step = pipeline.step(batch, feed(query, rows))["q"]
        results += step.results.num_rows
        calls += sum(each.calls for each in step.statistics.borders.values() if each.database == "duck")
    assert calls
    assert results


def test_what_is_looked_up_is_placed_by_a_hint() -> None:
    sql = CASES["groups of a join"].sql.replace("SELECT", "SELECT /*+ PLACE(duck) */", 1)
    assert bound(Case(sql, {"c": "o"})).hinted == {"q": "duck"}
    assert len(PLACED) > 6
