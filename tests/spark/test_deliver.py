"""Groups that span slots, put together in a worker portion by portion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import SparkSession

from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.drive.delivery import Results
from anabranch.drive.queries import Readings
from anabranch.drive.staging import Staging, staged_name
from anabranch.engine.aggregation import Aggregator
from anabranch.plan.outward import outward_schema
from anabranch.plan.query import INSTANT, Query
from anabranch.spark import deliver
from anabranch.spark.deliver import NAME, ROWS, Combine, Destination, Frames, whole_instants
from anabranch.spark.remote_parquet import RemoteParquetSink
from anabranch.spark.sinks import arrow
from anabranch.spark.stage import ParquetStaging, staged_path
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem
from tests.support import oracle
from tests.support.faulty import Crash

STREAM = "CREATE STREAM s (k STRING, x DOUBLE, ts TIMESTAMP) TIME ts;"
SQL = "SELECT k, SUM(x) AS s, COUNT(DISTINCT x) AS n, MAX(x) AS m FROM s [RANGE 3 SECONDS] GROUP BY k HAVING COUNT(*) > 1"
INSTANTS = 200


def query() -> Query:
    return parse_script(f"{STREAM} CREATE QUERY q AS {SQL}").queries[0].query


def parts_by_slot(slots: int = 3) -> list[list[pa.RecordBatch]]:
    """Partial values that slots have of the same groups at many instants."""
    random, found = np.random.default_rng(3), list[list[pa.RecordBatch]]()
    made = query()
    assert made.grouping is not None
    for _ in range(slots):
        slot, count = Aggregator(made.grouping, made.row_schema), 500
        starts = np.sort(random.integers(0, INSTANTS * 1_000_000, count))
        keys, values = random.choice(["x", "y", "z"], count), random.integers(0, 5, count).astype(np.float64)
        slot.take([pa.array(keys), *[pa.array(values)] * (len(made.row_schema) - 1)], starts, starts + 3_000_000)
        slot.settle(0)
        found.append([*slot.advance_parts((INSTANTS + 9) * 1_000_000)])
    return found


def parts_of() -> pa.Table:
    """The same of all slots together, in the order of the instants."""
    return pa.Table.from_batches([piece for pieces in parts_by_slot() for piece in pieces]).sort_by(INSTANT)


def combined(parts: pa.Table) -> oracle.Bag:
    made = query()
    assert made.grouping is not None
    return oracle.bag(pa.Table.from_batches(Aggregator(made.grouping, made.row_schema).combine(parts.to_batches())))


def batches_of(parts: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    yield from parts.combine_chunks().to_batches(max_chunksize=rows)


@pytest.mark.parametrize("has_files", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_groups_of_many_instants_are_never_held_together(tmp_path: Path, rows: int, has_files: bool) -> None:
    made, parts, held = query(), parts_of(), list[int]()
    whole, combine = combined(parts), Aggregator.combine

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


class Looked(MemoryFilesystem):
    """A folder of results whose reader goes by no marker, and looks after each copy."""

    seen: list[oracle.Bag]
    dies_after = 99

    def copy(self, path: str, target: str) -> None:
        super().copy(path, target)
        found = [pq.read_table(pa.BufferReader(self.get(f"batch=0/{name}"))) for name in self.list("batch=0")]
        self.seen.append(oracle.bag(pa.concat_tables(found)))
        self.dies_after -= 1
        if not self.dies_after:
            raise Crash("the driver dies")


@pytest.mark.parametrize("copies", [1, 2])
def test_another_try_gives_nothing_twice_on_a_store(copies: int) -> None:
    """The job that puts groups together runs again when the driver died between copies: its tasks draw other names."""
    made, disk, parts = query(), Looked(), parts_of()
    disk.seen = []
    keys = parts.column("key0")
    partitions = [parts.filter(pc.equal(keys, key)) for key in ("x", "none", "y", "z")]

    def publish(drawn: str) -> None:
        write, names = ParquetStaging(disk, outward_schema(made)), list[str]()
        for number, rows in enumerate(partitions):
            task = mock.Mock(return_value=mock.Mock(**{"partitionId.return_value": number}))
            named = mock.Mock(**{"uuid4.return_value.hex": drawn[number] * 32})
            with mock.patch.object(TaskContext, "get", task), mock.patch.object(deliver, "uuid", named):
                found = [*Combine(made, write, "0-token")(batches_of(rows, 99))]
            names += [name for told in found for name in told.column(NAME).to_pylist()]
        RemoteParquetSink(disk).publish([staged_path(name) for name in names], 0, "token")

    disk.dies_after = copies
    with pytest.raises(Crash):
        publish("1234")
    publish("9078")
    whole = combined(parts)
    assert disk.seen[-1] == whole
    assert all(seen <= whole for seen in disk.seen), "a result is seen twice"


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


def test_a_job_brings_them_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    """Each slot has a file with all instants; tasks get those of several files, one file after the other, until sorted."""
    made, disk, slots = query(), LocalFilesystem(str(tmp_path)), parts_by_slot()
    names = tuple(staged_name(0, "token", slot, "a") for slot in range(len(slots)))
    for name, pieces in zip(names, slots, strict=True):
        Staging(disk).stage(name, [("q", piece) for piece in pieces])
    destination = Destination(Readings(made, QueryTexts(disk)), True, arrow(print), disk, slots=2)
    results = Results("q", 0, "token", names, 1, text=text_of(made).digest)
    found = Frames(destination, spark).frame(results).toArrow()
    assert oracle.bag(found.cast(made.output_schema)) == combined(parts_of())
