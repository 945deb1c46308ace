"""Staged results: parquet, row group by row group, whole or not at all. Nothing here starts Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.spark.stage import ParquetStaging, staged_path
from anabranch.spark.task import Clocked
from anabranch.spark.types import zoned_schema
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, MemoryFilesystem

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string()), ("ts", pa.timestamp("us"))])


def stage(disk: Filesystem, name: str, results: Iterator[pa.RecordBatch]) -> int:
    return ParquetStaging(disk, zoned_schema(SCHEMA))(name, results)


def pieces(*counts: int, text: str = "") -> Iterator[pa.RecordBatch]:
    first = 0
    for count in counts:
        numbers = pa.array(range(first, first + count), pa.int64())
        times = numbers.cast(pa.timestamp("us"))
        yield pa.RecordBatch.from_arrays([numbers, pa.array([text] * count, pa.string()), times], schema=SCHEMA)
        first += count


def test_what_is_staged_is_what_was_found(tmp_path: Path) -> None:
    disk = LocalFilesystem(str(tmp_path))
    size, path = stage(disk, "one", pieces(3, 1, 5)), staged_path("one")
    assert (tmp_path / path).stat().st_size == size
    found = pq.read_table(tmp_path / path)
    assert found.column("x").to_pylist() == list(range(9))
    assert found.schema.field("ts").type == pa.timestamp("us", "UTC")


def test_small_pieces_go_together_into_row_groups() -> None:
    disk = MemoryFilesystem()
    with mock.patch("anabranch.engine.bounds.RESULT_ROWS", 4):
        stage(disk, "one", pieces(3, 1, 1, 6, 2, 1))
    about = pq.ParquetFile(disk.get(staged_path("one"))).metadata
    assert [about.row_group(i).num_rows for i in range(about.num_row_groups)] == [4, 7, 3]
    with mock.patch("anabranch.engine.bounds.RESULT_BYTES", 1000):
        stage(disk, "two", pieces(1, 1, 1, text="x" * 900))
    assert pq.ParquetFile(disk.get(staged_path("two"))).metadata.num_row_groups == 2


def test_no_results_no_file() -> None:
    disk = MemoryFilesystem()
    assert stage(disk, "none", pieces()) == 0
    assert disk.list("_staging") == []


def test_results_are_written_while_they_are_found(tmp_path: Path) -> None:
    """The file grows before the last results are there."""
    sizes = list[int]()

    def found() -> Iterator[pa.RecordBatch]:
        for piece in pieces(*[50] * 6, text="text"):
            yield piece
            sizes.append(sum(f.stat().st_size for f in (tmp_path / "_staging").glob(".put-*")))

    with mock.patch("anabranch.engine.bounds.RESULT_ROWS", 50):
        stage(LocalFilesystem(str(tmp_path)), "one", found())
    assert sizes[-1] > sizes[2] > 0


def test_results_that_end_with_an_error_leave_nothing(tmp_path: Path) -> None:
    def found() -> Iterator[pa.RecordBatch]:
        yield from pieces(50, 50)
        raise ValueError("the batch fails")

    with mock.patch("anabranch.engine.bounds.RESULT_ROWS", 50), pytest.raises(ValueError, match="the batch fails"):
        stage(LocalFilesystem(str(tmp_path)), "one", found())
    assert list((tmp_path / "_staging").iterdir()) == []


def test_the_clock_runs_while_results_are_found_and_not_between() -> None:
    now = 0

    def found() -> Iterator[int]:
        nonlocal now
        for number in range(3):
            now += 10
            yield number

    def clock() -> int:
        return now

    def cpu_clock() -> int:
        return 2 * now

    task = "anabranch.spark.task"
    with mock.patch(f"{task}.perf_counter_ns", clock), mock.patch(f"{task}.thread_time_ns", cpu_clock):
        clocked = Clocked(found())  # type: ignore[arg-type]
        for _ in clocked:
            now += 1000
    assert (clocked.spent_ns, clocked.cpu_ns) == (30, 60)
