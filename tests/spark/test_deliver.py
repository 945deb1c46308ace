"""Groups that span slots, put together in a worker portion by portion. Nothing here starts Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine.aggregation import Aggregator
from anabranch.plan.outward import outward_schema
from anabranch.plan.query import INSTANT, Query
from anabranch.spark.deliver import NAME, ROWS, Combine, whole_instants
from anabranch.spark.stage import ParquetStaging, staged_path
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem
from tests.support import oracle

STREAM = "CREATE STREAM s (k STRING, x DOUBLE, ts TIMESTAMP) TIME ts;"
SQL = "SELECT k, SUM(x) AS s, COUNT(DISTINCT x) AS n, MAX(x) AS m FROM s [RANGE 3 SECONDS] GROUP BY k HAVING COUNT(*) > 1"
INSTANTS = 200


def query() -> Query:
    return parse_script(f"{STREAM} CREATE QUERY q AS {SQL}").queries[0].query


def parts_of(slots: int = 3) -> pa.Table:
    """Partial values that slots have of the same groups at many instants, in the order of these."""
    random, found = np.random.default_rng(3), list[pa.RecordBatch]()
    made = query()
    assert made.grouping is not None
    for _ in range(slots):
        slot, count = Aggregator(made.grouping, made.row_schema), 500
        starts = np.sort(random.integers(0, INSTANTS * 1_000_000, count))
        keys, values = random.choice(["x", "y", "z"], count), random.integers(0, 5, count).astype(np.float64)
        slot.take([pa.array(keys), *[pa.array(values)] * (len(made.row_schema) - 1)], starts, starts + 3_000_000)
        slot.settle(0)
        found += slot.advance_parts((INSTANTS + 9) * 1_000_000)
    return pa.Table.from_batches(found).sort_by(INSTANT)


def batches_of(parts: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    yield from parts.combine_chunks().to_batches(max_chunksize=rows)


@pytest.mark.parametrize("has_files", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_groups_of_many_instants_are_never_held_together(tmp_path: Path, rows: int, has_files: bool) -> None:
    made, parts, held = query(), parts_of(), list[int]()
    assert made.grouping is not None
    whole = oracle.bag(pa.Table.from_batches(Aggregator(made.grouping, made.row_schema).combine(parts.to_batches())))
    combine = Aggregator.combine

    def watched(self: Aggregator, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        held.append(sum(batch.num_rows for batch in batches))
        return combine(self, batches)

    write = ParquetStaging(LocalFilesystem(str(tmp_path)), outward_schema(made)) if has_files else None
    with mock.patch("anabranch.engine.bounds.RESULT_ROWS", 50), mock.patch.object(Aggregator, "combine", watched):
        found = [*Combine(made, write, "0-token")(batches_of(parts, rows))]
    if has_files:
        (told,) = found
        table = pq.read_table(tmp_path / staged_path(told.column(NAME)[0].as_py()))
        assert told.column(ROWS).to_pylist() == [table.num_rows]
    else:
        table = pa.Table.from_batches(found)
    assert oracle.bag(table.cast(made.output_schema)) == whole
    assert sum(held) == parts.num_rows > 1000
    assert max(held) <= 50 + 3 * 3 + rows, "a portion, the groups of an instant in each slot, and what came last"


def test_nothing_gives_nothing(tmp_path: Path) -> None:
    made = query()
    write = ParquetStaging(LocalFilesystem(str(tmp_path)), outward_schema(made))
    assert [*Combine(made, write, "0-token")(batches_of(parts_of().slice(0, 0), 5))] == []
    assert not (tmp_path / staged_path("x")).parent.exists()


@given(st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=9), st.integers(1, 12))
def test_portions_have_all_rows_of_their_instants(drawn: list[list[int]], most: int) -> None:
    ordered = iter(sorted(instant for instants in drawn for instant in instants))
    rows = [pa.RecordBatch.from_pydict({INSTANT: pa.array([next(ordered) for _ in each], pa.int64())}) for each in drawn]
    with mock.patch("anabranch.engine.bounds.RESULT_ROWS", most):
        portions = [Counter(i for b in p for i in b.column(INSTANT).to_pylist()) for p in whole_instants(rows)]
    assert sum(portions, Counter[int]()) == Counter(instant for instants in drawn for instant in instants)
    assert sum(len(portion) for portion in portions) == len({instant for instants in drawn for instant in instants})
    for earlier, later in pairwise(portions):
        assert max(earlier) < min(later)
