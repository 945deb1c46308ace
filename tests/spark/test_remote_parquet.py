"""Batches of results on an object store, without Spark: whole or not there for who goes by the marker, and never twice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.errors import StateError, UnsupportedSinkError
from anabranch.spark.published import MARKER, OWNER, published_in, read
from anabranch.spark.remote_parquet import RemoteParquetSink
from anabranch.spark.stage import STAGING
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, MemoryFilesystem
from anabranch.storage.location import located
from tests.support.faulty import Crash, Fault, FaultyFilesystem
from tests.support.s3 import Bucket

ROWS = {0: [1, 2], 1: [3], 2: [4, 5, 6]}
"""The results of a batch by slot."""


def stage(disk: Filesystem, batch: int, attempt: str, rows: dict[int, list[int]] = ROWS) -> list[str]:
    """What the tasks of a batch write."""
    paths = []
    for slot, values in rows.items():
        content = pa.BufferOutputStream()
        pq.write_table(pa.table({"x": values}), content)
        paths.append(f"{STAGING}/{batch:010d}-token-{slot}-{attempt}.parquet")
        disk.put(paths[-1], [content.getvalue()])
    return paths


def visible(disk: Filesystem, batch: int) -> list[int]:
    """What a reader sees that does not go by the marker."""
    names = [name for name in disk.list(f"batch={batch}") if not name.startswith("_")]
    return sorted(x for n in names for x in pq.read_table(pa.BufferReader(disk.get(f"batch={batch}/{n}")))["x"].to_pylist())


def published(disk: Filesystem, batch: int) -> list[int] | None:
    """What a reader sees that goes by the marker."""
    found = published_in(disk, f"batch={batch}")
    if found is None:
        return None
    tables = [pq.read_table(pa.BufferReader(disk.get(f"batch={batch}/{name}"))) for name in found.files]
    return sorted(x for table in tables for x in table["x"].to_pylist())


def test_batches_on_a_store(bucket: Bucket) -> None:
    disk = located(bucket.uri("out"))
    sink = RemoteParquetSink(disk)
    sink.open("me")
    assert read(bucket.uri("out")).to_table().num_rows == 0
    for batch in (0, 2, 10):
        sink.publish(stage(disk, batch, "a"), batch, f"token {batch}")
    sink.publish([], 11, "token 11")
    found = read(bucket.uri("out")).to_table().sort_by([("batch", "ascending"), ("x", "ascending")])
    assert found.to_pydict() == {"x": [1, 2, 3, 4, 5, 6] * 3, "batch": [0] * 6 + [2] * 6 + [10] * 6}
    assert disk.list(STAGING) == []
    assert bucket.paths("out/batch=2") == ["00000.parquet", "00001.parquet", "00002.parquet", MARKER]


def test_a_batch_without_its_marker_is_not_read(bucket: Bucket) -> None:
    disk = located(bucket.uri("out"))
    sink = RemoteParquetSink(disk)
    sink.publish(stage(disk, 0, "a"), 0, "t0")
    sink.publish(stage(disk, 1, "a"), 1, "t1")
    disk.delete(f"batch=1/{MARKER}")
    assert sorted(read(bucket.uri("out")).to_table()["x"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_local_batches_are_read_the_same_way(tmp_path: Path) -> None:
    disk = LocalFilesystem(str(tmp_path))
    RemoteParquetSink(disk).publish(stage(disk, 3, "a"), 3, "t3")
    disk.copy("batch=3/00000.parquet", "batch=3/stray.parquet")
    assert sorted(read(tmp_path).to_table()["x"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    assert set(read(tmp_path).to_table()["batch"].to_pylist()) == {3}


@pytest.mark.parametrize("kind", ["lose", "crash_after"])
def test_every_crash_point(kind: str) -> None:
    """The driver dies in each operation of a publication; the next one publishes the same files again."""
    probe = FaultyFilesystem(MemoryFilesystem())
    RemoteParquetSink(probe).publish(stage(probe.inner, 7, "a"), 7, "t")
    assert len(probe.puts) == 4
    for point in range(len(probe.puts)):
        disk = FaultyFilesystem(MemoryFilesystem(), {point: Fault(kind)})
        files = stage(disk.inner, 7, "a")
        with pytest.raises(Crash):
            RemoteParquetSink(disk).publish(files, 7, "t")
        seen = visible(disk, 7)
        assert len(seen) == len(set(seen)), "a result is seen twice"
        assert published(disk, 7) in (None, [1, 2, 3, 4, 5, 6])
        RemoteParquetSink(disk).publish(files, 7, "t")
        assert visible(disk, 7) == published(disk, 7) == [1, 2, 3, 4, 5, 6]
        assert disk.list(STAGING) == []


def test_another_try_of_a_batch_replaces_what_one_left() -> None:
    """Groups that span slots are staged again after a crash, in other pieces."""
    disk = FaultyFilesystem(MemoryFilesystem(), {2: Fault("crash_after")})
    with pytest.raises(Crash):
        RemoteParquetSink(disk).publish(stage(disk.inner, 7, "a"), 7, "t")
    assert visible(disk, 7) == [1, 2, 3, 4, 5, 6]
    again = stage(disk.inner, 7, "b", {0: [1, 2, 3], 1: [4, 5, 6]})
    RemoteParquetSink(disk).publish(again, 7, "t")
    assert visible(disk, 7) == published(disk, 7) == [1, 2, 3, 4, 5, 6]


def test_pieces_go_before_the_marker_comes() -> None:
    """The driver dies when it writes the marker: what the marker would not have named is gone already."""
    disk = FaultyFilesystem(MemoryFilesystem(), {4: Fault("lose")})
    disk.put("batch=7/00005.parquet", [disk.inner.get(stage(disk.inner, 7, "left")[0])])
    with pytest.raises(Crash):
        RemoteParquetSink(disk).publish(stage(disk.inner, 7, "a"), 7, "t")
    assert visible(disk, 7) == [1, 2, 3, 4, 5, 6]


def test_published_again_is_nothing_new() -> None:
    disk = MemoryFilesystem()
    sink = RemoteParquetSink(disk)
    files = stage(disk, 7, "a")
    sink.publish(files, 7, "t")
    sink.publish(files, 7, "t")  # the staged files are gone
    assert published(disk, 7) == [1, 2, 3, 4, 5, 6]


def test_other_results_are_refused() -> None:
    disk = MemoryFilesystem()
    sink = RemoteParquetSink(disk)
    sink.publish(stage(disk, 7, "a"), 7, "t")
    with pytest.raises(UnsupportedSinkError, match="batch=7 holds other results"):
        sink.publish(stage(disk, 7, "b", {0: [9]}), 7, "u")
    assert published(disk, 7) == [1, 2, 3, 4, 5, 6]


def test_a_staged_file_that_is_missing() -> None:
    disk = MemoryFilesystem()
    files = stage(disk, 7, "a")
    disk.delete(files[1])
    with pytest.raises(StateError, match="is missing"):
        RemoteParquetSink(disk).publish(files, 7, "t")
    assert published(disk, 7) is None


def test_batches_to_come_stay_staged() -> None:
    disk = MemoryFilesystem()
    sink = RemoteParquetSink(disk)
    later, files = stage(disk, 8, "a"), stage(disk, 7, "a")
    sink.publish(files, 7, "t")
    assert [f"{STAGING}/{name}" for name in disk.list(STAGING)] == later


def test_the_owner(bucket: Bucket) -> None:
    disk = located(bucket.uri("out"))
    sink = RemoteParquetSink(disk)
    sink.open("me")
    sink.open("me")
    with pytest.raises(UnsupportedSinkError, match="another run"):
        sink.open("you")
    sink.publish(stage(disk, 0, "a"), 0, "t")
    disk.delete(OWNER)
    with pytest.raises(UnsupportedSinkError, match=f"s3://{bucket.name}/out holds the results of another run"):
        sink.open("me")
