"""The file reader: what is found and in which order, how rows are split by cell, formats, and the whole through Spark."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from anabranch.balance.shares import choose_grid
from anabranch.engine.cells import source_mask
from anabranch.errors import DamagedStateError, SchemaMismatchError, StateError
from anabranch.plan.demand import read_columns, source_filters
from anabranch.plan.formats import COMPRESSIONS, format_of
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Field, Query, Stream, Table
from anabranch.plan.workload import Workload
from anabranch.spark import file_list, reader
from anabranch.spark.file_formats import FilesError, read_rows
from anabranch.spark.file_list import FileList, FileListing, FoundFile
from anabranch.spark.reader import (
    CellRouter,
    FileOptions,
    FilePartition,
    FileSource,
    FileStreamReader,
    blobs,
    file_stream,
    grouped,
    infer_fields,
    read_table,
)
from anabranch.spark.waiting import Waiting, read_waiting
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem

OLD = time.time() - 1000

STREAM = """
    CREATE STREAM s (k BIGINT, j BIGINT, i INT, name STRING, x DOUBLE, flag BOOLEAN, price DECIMAL(12,2), day DATE,
                     ts TIMESTAMP) TIME ts;
    CREATE STREAM r (k BIGINT, ts TIMESTAMP) TIME ts;
"""
QUERIES = {
    "one key": "SELECT a.k FROM s a, r b WHERE a.k = b.k WINDOW 1 SECOND",
    "same key": "SELECT a.k FROM s a, s b WHERE a.k = b.k WINDOW 1 SECOND",
    "two keys": "SELECT a.k FROM s a, s b WHERE a.k = b.j WINDOW 1 SECOND",
    "widened key": "SELECT a.k FROM s a, s b WHERE a.k = b.i WINDOW 1 SECOND",
    "text": "SELECT a.k FROM s a, s b WHERE a.name = b.name WINDOW 1 SECOND",
    "double": "SELECT a.k FROM s a, s b WHERE a.x = b.x WINDOW 1 SECOND",
    "boolean": "SELECT a.k FROM s a, s b WHERE a.flag = b.flag WINDOW 1 SECOND",
    "decimal": "SELECT a.k FROM s a, s b WHERE a.price = b.price WINDOW 1 SECOND",
    "date": "SELECT a.k FROM s a, s b WHERE a.day = b.day WINDOW 1 SECOND",
    "chain": "SELECT a.k FROM s a, s b, s c WHERE a.k = b.k AND b.j = c.j WINDOW 1 SECOND",
    "theta": "SELECT a.k FROM s a, s b WHERE a.k < b.k WINDOW 1 SECOND",
}


def query_of(name: str) -> tuple[Query, Stream]:
    query = parse_script(STREAM + QUERIES[name]).queries[0].query
    source = query.sources[0]
    assert isinstance(source, Stream)
    return query, source


def random_rows(count: int, seed: int = 0) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)

    def some(values: Any, type: pa.DataType) -> pa.Array:
        return pa.array(list(values), type, mask=rng.random(count) < 0.1)

    return pa.RecordBatch.from_arrays(
        [
            some(rng.integers(-50, 50, count), pa.int64()),
            some(rng.integers(-50, 50, count), pa.int64()),
            some(rng.integers(-50, 50, count), pa.int32()),
            some((f"name-{'x' * (n % 40)}{n}" for n in rng.integers(0, 60, count)), pa.string()),
            some(rng.choice([0.0, -0.0, 1.5, float("nan"), -7.25, 1e300], count), pa.float64()),
            some((bool(b) for b in rng.integers(0, 2, count)), pa.bool_()),
            some((Decimal(int(n)) / 100 for n in rng.integers(-9999, 9999, count)), pa.decimal128(12, 2)),
            some(rng.integers(0, 20000, count), pa.int32()).cast(pa.int32()).view(pa.date32()),
            pa.array(rng.integers(0, 2_000_000, count)).view(pa.timestamp("us")),
        ],
        names=["k", "j", "i", "name", "x", "flag", "price", "day", "ts"],
    )


def multiset(rows: pa.Table | pa.RecordBatch) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


def put(path: Path, content: bytes = b"x\n", modified: float = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified, modified))
    os.utime(path.parent, (modified, modified))
    return path


def names(files: list[FoundFile]) -> list[str]:
    return [os.path.basename(f.path) for f in files]


# -- which files there are -------------------------------------------------------------------------------------------


def test_files_are_ordered_by_time_then_path(tmp_path: Path) -> None:
    put(tmp_path / "b.csv", modified=OLD)
    put(tmp_path / "a.csv", modified=OLD)
    put(tmp_path / "z.csv", modified=OLD - 5)
    assert names(FileListing(str(tmp_path), "csv").new(frozenset())) == ["z.csv", "a.csv", "b.csv"]


def test_work_in_progress_is_ignored(tmp_path: Path) -> None:
    for name in (".a.csv", "_a.csv", "a.csv.tmp", "a.crc", "a.csv.inprogress", "ok.csv"):
        put(tmp_path / name)
    assert names(FileListing(f"{tmp_path}/*", "csv").new(frozenset())) == ["ok.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["top.csv"]),
        ("*.csv", ["top.csv"]),
        ("top.csv", ["top.csv"]),
        ("day-*/*.csv", ["one.csv", "two.csv"]),
        ("day-?", ["one.csv", "two.csv"]),
        ("day-1/*", ["one.csv"]),
        ("*/deep/*.csv", ["three.csv"]),
        ("**/*.csv", ["one.csv", "three.csv", "top.csv", "two.csv"]),
        ("day-[2]/**/*.csv", ["three.csv", "two.csv"]),
        ("nothing/*.csv", []),
    ],
)
def test_globs(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    put(tmp_path / "top.csv")
    put(tmp_path / "day-1" / "one.csv")
    put(tmp_path / "day-2" / "two.csv")
    put(tmp_path / "day-2" / "deep" / "three.csv")
    put(tmp_path / "_temporary" / "four.csv")
    assert sorted(names(FileListing(f"{tmp_path}/{pattern}".rstrip("/"), "csv").new(frozenset()))) == expected


def test_a_folder_with_brackets_in_its_name_is_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "run[1]" / "a.csv")
    assert names(FileListing(str(tmp_path / "run[1]"), "csv").new(frozenset())) == ["a.csv"]
    assert names(FileListing(str(tmp_path / "run[1]" / "*.csv"), "csv").new(frozenset())) == ["a.csv"]


def test_an_unchanged_folder_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = put(tmp_path / "a.csv")
    listing = FileListing(str(tmp_path), "csv")
    known = {f.path for f in listing.new(frozenset())}
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda _: pytest.fail("listed again"))
        assert listing.new(known) == []
    put(tmp_path / "b.csv", modified=OLD + 1)
    assert names(listing.new(known)) == ["b.csv"]
    assert known == {str(first)}


def test_a_folder_that_changed_just_now_is_listed_again(tmp_path: Path) -> None:
    listing = FileListing(str(tmp_path), "csv")
    found: list[str] = []
    for n in range(20):
        (tmp_path / f"{n:02d}.csv").write_bytes(b"x\n")
        found += names(listing.new({str(tmp_path / name) for name in found}))
    assert found == [f"{n:02d}.csv" for n in range(20)]


def arrow_bytes(kind: str) -> bytes:
    """A complete file of few rows. The last column ends with the bytes that end a stream."""
    rows = pa.table({"k": pa.array([5, 6], pa.int64()), "e": pa.array([-1, 0], pa.int32())})
    made = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(rows, made)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(made, rows.schema) as writer:
            writer.write_table(rows)
            writer.write_table(rows)
    return bytes(made.getvalue().to_pybytes())


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_a_file_without_its_end_is_not_there_yet(tmp_path: Path, kind: str) -> None:
    """However old it is, and wherever it is cut."""
    whole, path = arrow_bytes(kind), tmp_path / "a"
    listing = FileListing(str(tmp_path), "parquet" if kind == "parquet" else "arrow")
    for cut in sorted({*range(0, len(whole), 8), *range(len(whole) - 40, len(whole))}):
        put(path, whole[:cut], modified=OLD + cut)
        assert listing.new(frozenset()) == [], f"cut at {cut} of {len(whole)}"
        assert listing.waiting == {str(path): False}
    put(path, whole)
    assert names(listing.new(frozenset())) == ["a"]
    assert not listing.waiting


def test_an_end_that_describes_nothing_is_no_end(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", b"PAR1....PAR1")
    put(tmp_path / "b.parquet", b"PAR1" + bytes(20) + b"PAR1")
    listing = FileListing(str(tmp_path), "parquet")
    assert listing.new(frozenset()) == []
    assert len(listing.waiting) == 2


def test_what_waits_is_looked_at_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def ends_whole(path: str, format: str, size_bytes: int) -> bool:
        looked.append(os.path.basename(path))
        return False

    monkeypatch.setattr(file_list, "ends_whole", ends_whole)
    put(tmp_path / "young.parquet", modified=time.time() + 1)
    put(tmp_path / "old.parquet")
    monkeypatch.setattr(file_list, "SETTLE_S", 1000 - 10)
    listing = FileListing(str(tmp_path), "parquet")
    for _ in range(3):
        assert listing.new(frozenset()) == []
        assert len(listing.waiting) == 2
    assert Counter(looked) == {"young.parquet": 3, "old.parquet": 1}
    put(tmp_path / "old.parquet", b"more")
    listing.new(frozenset())
    assert Counter(looked)["old.parquet"] == 2
    (tmp_path / "old.parquet").unlink()
    listing.new(frozenset())
    assert list(listing.waiting) == [str(tmp_path / "young.parquet")]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_text_that_shows_no_end_is_taken_when_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = put(tmp_path / name, gzip.compress(b"x\n") if name.endswith("gz") else b"x", modified=time.time())
    monkeypatch.setattr(file_list, "SETTLE_S", 500.0)
    listing = FileListing(str(tmp_path), "csv")
    assert listing.new(frozenset()) == []
    assert listing.waiting == {str(path): True}
    os.utime(path, (OLD, OLD))
    assert names(listing.new(frozenset())) == [name]


def test_files_that_are_being_written_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that nobody has touched for a while."""
    put(tmp_path / "torn.parquet", b"PAR1")
    path = put(tmp_path / "young.parquet", b"PAR1", modified=time.time() + 1)
    monkeypatch.setattr(file_list, "SETTLE_S", 500.0)
    naps: list[float] = []

    def finish(nap_s: float) -> None:
        naps.append(nap_s)
        if len(naps) == 3:
            put(path, arrow_bytes("parquet"), modified=time.time())

    monkeypatch.setattr(file_list.time, "sleep", finish)
    listing = FileListing(str(tmp_path), "parquet")
    assert names(listing.settled(frozenset())) == ["young.parquet"]
    assert len(naps) == 3
    assert list(listing.waiting) == [str(tmp_path / "torn.parquet")]


def test_what_waits_is_named_beside_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LocalFilesystem(str(tmp_path / "log"))
    assert not read_waiting(log)
    torn = [put(tmp_path / "data" / f"{n:02d}.parquet", b"PAR1") for n in range(12)]
    files = FileList(FileListing(str(tmp_path / "data"), "parquet"), log.root)
    assert files.discover() == 0
    assert read_waiting(log) == Waiting(12, [str(p) for p in torn[:10]])
    assert str(read_waiting(log)).startswith(f"12 files wait to be complete: {torn[0]}, ")
    assert str(read_waiting(log)).endswith("09.parquet and 2 more")
    with monkeypatch.context() as patch:
        patch.setattr(LocalFilesystem, "put", lambda *_: pytest.fail("nothing has changed"))
        assert files.discover() == 0
    for path in torn:
        put(path, arrow_bytes("parquet"))
    assert files.discover(wait=True) == 12
    assert not read_waiting(log)
    (tmp_path / "log" / "waiting").write_bytes(b"torn")
    assert not read_waiting(log)
    assert FileList(files.listing, log.root).discover() == 12
    assert not read_waiting(log)


def test_a_file_that_is_not_complete_gives_no_columns_and_no_table(tmp_path: Path) -> None:
    put(tmp_path / "torn.parquet", b"PAR1")
    with pytest.raises(FilesError, match=r"no parquet file with rows.*; 1 file waits to be complete: .*torn\.parquet"):
        infer_fields(str(tmp_path), "parquet")
    put(tmp_path / "whole.parquet", arrow_bytes("parquet"))
    assert [f.name for f in infer_fields(str(tmp_path), "parquet")] == ["k", "e"]
    table = Table("t", (Field("k", pa.int64()),))
    with pytest.raises(FilesError, match=r"the table t cannot be read .* 1 file waits to be complete: .*torn\.parquet"):
        read_table(str(tmp_path), "parquet", table, ("k",))
    (tmp_path / "torn.parquet").unlink()
    assert read_table(str(tmp_path), "parquet", table, ("k",)).num_rows == 2


def test_the_list_survives_a_restart_and_takes_late_files_once(tmp_path: Path) -> None:
    data, log = tmp_path / "data", str(tmp_path / "log")
    put(data / "m.csv")
    put(data / "n.csv", modified=OLD + 5)
    files = FileList(FileListing(str(data), "csv"), log)
    assert files.discover() == 2
    put(data / "older.csv", modified=OLD - 500)
    assert files.discover() == 3
    put(data / "a.csv", modified=OLD - 900)
    again = FileList(FileListing(str(data), "csv"), log)
    assert len(again) == 3
    assert again.discover() == 4
    assert names(again.between(0, 4)) == ["m.csv", "n.csv", "older.csv", "a.csv"]
    assert again.discover() == 4


def test_the_list_is_merged_and_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "LIST_FAN_IN", 3)
    data, log = tmp_path / "data", tmp_path / "log"
    data.mkdir()
    files = FileList(FileListing(str(data), "csv"), str(log))
    for n in range(30):
        put(data / f"{n:02d}.csv", modified=OLD + n)
        files.discover()
        assert names(FileList(files.listing, str(log)).between(0, n + 1)) == [f"{m:02d}.csv" for m in range(n + 1)]
    assert len(os.listdir(log / "found")) < 7
    # What a crash between merging and deleting leaves behind.
    segment = sorted((log / "found").iterdir())[0]
    (log / "found" / f"{1:020d}-{0:010d}").write_bytes(segment.read_bytes())
    assert len(FileList(files.listing, str(log))) == 30


def test_a_list_that_does_not_fit_the_checkpoint_is_refused(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    for n in range(2):
        put(data / f"{n}.csv")
        files = FileList(FileListing(str(data), "csv"), str(log))
        files.discover()
    with pytest.raises(StateError, match=r"counts 3 files, the list in .* has 2"):
        files.between(0, 3)
    (log / "found" / f"{0:020d}-{0:010d}").unlink()
    with pytest.raises(DamagedStateError, match="missing"):
        FileList(FileListing(str(data), "csv"), str(log))


def a_reader(folder: Path, **options: Any) -> FileStreamReader:
    query, source = query_of("one key")
    settings = FileOptions(log_path=str(folder / "log"), **options)
    return FileStreamReader(FileSource(source, str(folder / "data"), "csv", [(query, Grid())], ("k", "ts"), settings))


def test_offsets_count_files_and_respect_the_limit(tmp_path: Path) -> None:
    for n in range(5):
        put(tmp_path / "data" / f"{n}.csv")
    stream = a_reader(tmp_path, max_files_per_trigger=2)
    assert stream.getDefaultReadLimit() == ReadMaxFiles(2)
    assert stream.latestOffset(stream.initialOffset(), ReadMaxFiles(2)) == {"files": 2}
    assert stream.latestOffset({"files": 4}, ReadMaxFiles(2)) == {"files": 5}
    assert stream.latestOffset({"files": 5}, ReadMaxFiles(2)) == {"files": 5}
    assert stream.latestOffset({"files": 0}, ReadAllAvailable()) == {"files": 5}
    assert stream.reportLatestOffset() == {"files": 5}


def test_available_now_ends_at_what_was_there(tmp_path: Path) -> None:
    put(tmp_path / "data" / "0.csv")
    stream = a_reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    put(tmp_path / "data" / "1.csv")
    assert stream.latestOffset({"files": 0}, ReadAllAvailable()) == {"files": 1}
    assert stream.latestOffset({"files": 1}, ReadAllAvailable()) == {"files": 1}


def test_the_same_offsets_give_the_same_files_in_another_process(tmp_path: Path) -> None:
    for n in range(3):
        put(tmp_path / "data" / f"{n}.csv", modified=OLD - n)
    stream = a_reader(tmp_path)
    stream.latestOffset({"files": 0}, ReadAllAvailable())
    put(tmp_path / "data" / "early.csv", modified=OLD - 99)
    again = pickle.loads(pickle.dumps(a_reader(tmp_path)))
    for one in (stream, again):
        (partition,) = one.partitions({"files": 1}, {"files": 3})
        assert isinstance(partition, FilePartition)
        assert names(list(partition.files)) == ["1.csv", "0.csv"]


def test_files_that_went_away_or_changed_are_named(tmp_path: Path) -> None:
    put(tmp_path / "data" / "0.csv")
    changed = put(tmp_path / "data" / "1.csv")
    stream = a_reader(tmp_path)
    stream.latestOffset({"files": 0}, ReadAllAvailable())
    put(changed, b"something else\n")
    with pytest.raises(FilesError, match=r"1\.csv has changed since .* had 2 bytes of .*, now 15 bytes of "):
        stream.partitions({"files": 0}, {"files": 2})
    (file,) = stream.found.between(1, 2)
    assert len(stream.partitions({"files": 0}, {"files": 1})) == 1
    put(changed, b"y\n")
    os.utime(changed, ns=(file.modified_ns, file.modified_ns + 1))
    with pytest.raises(FilesError, match=r"1\.csv has changed since it was found") as caught:
        stream.partitions({"files": 0}, {"files": 2})
    assert f"stream('s', …, skip=['{changed}'])" in str(caught.value)
    assert f"--skip s={changed}" in str(caught.value)
    with pytest.raises(FilesError, match=r"1\.csv has changed since it was found"):
        list(blobs(stream.files, [file]))
    changed.unlink()
    with pytest.raises(FilesError, match=r"1\.csv was found earlier and is gone"):
        stream.partitions({"files": 0}, {"files": 2})
    assert len(stream.partitions({"files": 0}, {"files": 1})) == 1
    assert not stream.partitions({"files": 1}, {"files": 1})


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "data" / "0.csv", b"k,ts\n1,\n")
    stream = a_reader(tmp_path)
    stream.latestOffset({"files": 0}, ReadAllAvailable())
    read = reader.read_rows

    def meddled(*arguments: Any) -> pa.RecordBatch:
        rows = read(*arguments)
        path.write_bytes(b"k,ts\n2,\n")
        return rows

    monkeypatch.setattr(reader, "read_rows", meddled)
    with pytest.raises(FilesError, match=r"0\.csv has changed since it was found"):
        list(blobs(stream.files, stream.found.between(0, 1)))


def test_files_that_are_skipped(tmp_path: Path) -> None:
    paths = [put(tmp_path / "data" / f"{n}.csv", b"k,ts\n1,\n", modified=OLD + n) for n in range(3)]
    a_reader(tmp_path).latestOffset({"files": 0}, ReadAllAvailable())
    paths[0].write_bytes(b"changed\n")
    paths[2].unlink()
    put(tmp_path / "data" / "3.csv")
    put(tmp_path / "data" / "13.csv")
    stream = a_reader(tmp_path, skip=("0.csv", str(paths[2]), "data/3.csv"))
    assert stream.latestOffset({"files": 0}, ReadAllAvailable()) == {"files": 4}, "3.csv was not listed yet, 13.csv is new"
    assert names(stream.found.between(3, 4)) == ["13.csv"]
    partitions = stream.partitions({"files": 0}, {"files": 3})
    assert [names(list(p.files)) for p in partitions if isinstance(p, FilePartition)] == [["1.csv"]]
    (empty,) = stream.partitions({"files": 2}, {"files": 3})
    assert list(stream.read(empty)) == []
    with pytest.raises(FilesError, match="the name of a file to skip is missing"):
        FileOptions(skip=("",))


def test_small_files_share_a_task_and_large_ones_are_spread() -> None:
    def sizes(*megabytes: float, most: int) -> list[list[float]]:
        files = [FoundFile(str(n), n, int(m * 2**20)) for n, m in enumerate(megabytes)]
        groups = grouped(files, most)
        assert sorted(f.path for g in groups for f in g) == sorted(f.path for f in files)
        return [[f.size_bytes / 2**20 for f in g] for g in groups]

    assert sizes(0.25, 0.25, 0.25, most=4) == [[0.25, 0.25, 0.25]]
    assert sizes(8, 8, 8, 8, most=2) == [[8, 8], [8, 8]]
    assert sizes(9, 1, 1, 7, most=2) == [[9], [1, 1, 7]]
    assert sizes(5, most=4) == [[5]]
    assert sizes(most=4) == []


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(FilesError, match="max_files_per_trigger must be at least 1"):
        FileOptions(max_files_per_trigger=0)


# -- rows to blobs ---------------------------------------------------------------------------------------------------


def by_cell(parts: Iterator[pa.RecordBatch]) -> dict[int, pa.Table]:
    found: dict[int, list[pa.RecordBatch]] = {}
    for part in parts:
        assert part.schema == pa.schema([("cell", pa.int32()), ("blob", pa.binary())])
        for cell, blob in zip(part.column(0).to_pylist(), part.column(1), strict=True):
            found.setdefault(cell, []).extend(pa.ipc.open_stream(blob.as_buffer()))
    return {cell: pa.Table.from_batches(pieces) for cell, pieces in found.items()}


@pytest.mark.parametrize("cells", [1, 2, 4, 12])
@pytest.mark.parametrize("name", QUERIES)
def test_rows_go_where_the_engine_expects_them(name: str, cells: int) -> None:
    query, source = query_of(name)
    grid = choose_grid(JoinGraph(query), cells)
    rows = random_rows(700).slice(13, 600)
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for targets, piece in CellRouter([(query, grid)], source).split(rows):
        for cell in targets:
            pieces.setdefault(cell, []).append(piece)
    for cell in range(grid.cells):
        mask = source_mask(grid, cell, query, source, pa.Table.from_batches([rows]))
        expected = rows.filter(pa.array(mask))
        assert [repr(r) for p in pieces.get(cell, []) for r in p.to_pylist()] == list(map(repr, expected.to_pylist()))


def test_inputs_that_differ_in_their_alias_alone_are_routed_once() -> None:
    query, source = query_of("same key")
    assert len(CellRouter([(query, choose_grid(JoinGraph(query), 4))], source).ways) == 1
    query, source = query_of("two keys")
    assert len(CellRouter([(query, choose_grid(JoinGraph(query), 4))], source).ways) == 2


TOGETHER = [
    ["one key", "same key"], ["one key", "text"], ["two keys", "chain", "decimal"], ["theta", "one key"],
    ["all in one slot", "theta"], ["theta", "all in one slot"], ["all in one slot", "one key", "chain"],
]  # fmt: skip


def spread_of(names: list[str], cells: int) -> tuple[list[tuple[Query, Grid]], Stream]:
    """Queries, and the grids that they have alone; some have all rows in one slot."""
    _, source = query_of("one key")
    found = []
    for name in names:
        query, _ = query_of(name if name in QUERIES else "one key")
        found.append((query, choose_grid(JoinGraph(query), cells) if name in QUERIES else Grid()))
    return found, source


@pytest.mark.parametrize("cells", [2, 4, 6])
@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_rows_go_to_the_slots_of_all_queries_once(names: list[str], cells: int) -> None:
    """Each slot gets the rows that any query wants there, in order, and none twice."""
    spread, source = spread_of(names, cells)
    rows = random_rows(300)
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for targets, piece in CellRouter(spread, source).split(rows):
        for cell in targets:
            pieces.setdefault(cell, []).append(piece)
    for cell in range(cells):
        masks = [
            source_mask(grid, cell, query, source, pa.Table.from_batches([rows]))
            for query, grid in spread
            if cell < grid.cells
        ]
        expected = rows.filter(pa.array(np.logical_or.reduce(masks)))
        assert [repr(r) for p in pieces.get(cell, []) for r in p.to_pylist()] == list(map(repr, expected.to_pylist()))


def test_queries_of_the_same_way_are_routed_once() -> None:
    spread, source = spread_of(["one key", "same key"], 4)
    assert len(CellRouter(spread, source).ways) == 1


def filtered(*wheres: str) -> tuple[Workload, Stream]:
    """Joins q0, q1, … of s, each under an alias of its own, with r."""
    texts = [
        f"CREATE QUERY q{n} AS SELECT s{n}.k FROM s s{n}, r WHERE s{n}.k = r.k AND {w.format(s=f's{n}')} WINDOW 1 SECOND;"
        for n, w in enumerate(wheres)
    ]
    workload = Workload(tuple(bound.query for bound in parse_script(STREAM + "\n".join(texts)).queries))
    return workload, workload.streams["s"]


def passed(workload: Workload, source: Stream, folder: Path) -> pa.Table:
    """The rows that reach a slot, and not just with their times."""
    spread = [(query, Grid()) for query in workload.queries]
    files = FileSource(
        source, str(folder), "parquet", spread, read_columns(workload)["s"], FileOptions(log_path="unused"),
        source_filters(workload)["s"],
    )  # fmt: skip
    found = []
    for part in blobs(files, FileListing(str(folder), "parquet").settled(frozenset())):
        stream = pa.ipc.open_stream(part.column(1)[0].as_buffer())
        found += [] if reader.PASSED_OVER in (stream.schema.metadata or {}) else list(stream)
    return pa.Table.from_batches(found)


def test_rows_that_any_query_can_use_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predicate that two queries write under different aliases is one set; if one of them has it above a join in a
    batch, rows pass it in the reader."""
    pq.write_table(pa.Table.from_batches([random_rows(300)]), tmp_path / "0.parquet")
    workload, source = filtered("{s}.j > 1", "{s}.j > 1", "{s}.x < 0")
    asked = source_filters(workload)["s"]
    assert [[owner for owner, _ in each.owners] for each in asked] == [["q0", "q1"], ["q2"]]
    whole = pq.read_table(tmp_path / "0.parquet")
    keyed = pc.is_valid(whole["k"])
    above, below = pc.greater(whole["j"], 1), pc.less(whole["x"], 0)
    wanted = pc.and_(keyed, pc.or_(pc.fill_null(above, False), pc.fill_null(below, False)))
    sent = passed(workload, source, tmp_path)
    assert sent.num_rows == pc.sum(wanted).as_py() < whole.num_rows
    text = next(t for place in range(2) for _, t in asked[0].texts(place) if "s1.j" in t)
    monkeypatch.setattr(reader, "_raised", lambda: frozenset({("q1", text)}))
    assert passed(workload, source, tmp_path).num_rows == pc.sum(keyed).as_py(), "q0 passes them over by itself"
    monkeypatch.setattr(reader, "_raised", lambda: frozenset({("q9", text)}))
    assert passed(workload, source, tmp_path).num_rows == sent.num_rows


def test_rows_of_one_cell_are_not_copied() -> None:
    query, source = query_of("one key")
    rows = random_rows(50)
    ((cells, piece),) = CellRouter([(query, Grid())], source).split(rows)
    assert cells == (0,)
    assert piece is rows


def test_rows_without_a_time_arrive_too() -> None:
    query, source = query_of("theta")
    grid = choose_grid(JoinGraph(query), 4)
    rows = random_rows(100)
    times = pa.array([None if n % 3 == 0 else n for n in range(100)], pa.timestamp("us"))
    rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", times)
    arrived = [multiset(piece) for _, piece in CellRouter([(query, grid)], source).split(rows)]
    assert set().union(*arrived) == set(multiset(rows))


@pytest.mark.parametrize("flush_bytes", [1 << 26, 20_000, 1])
def test_blobs_hold_the_rows_of_all_files_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_bytes: int
) -> None:
    monkeypatch.setattr(reader, "FLUSH_BYTES", flush_bytes)
    query, source = query_of("one key")
    grid = choose_grid(JoinGraph(query), 2)
    count = 500 if flush_bytes > 1 else 5
    rows = [random_rows(count, seed) for seed in range(3)] + [random_rows(0)]
    for n, batch in enumerate(rows):
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"{n}.parquet")
    options = FileOptions(log_path="unused")
    files = FileSource(source, str(tmp_path), "parquet", [(query, grid)], ("k", "ts"), options)
    parts = list(blobs(files, FileListing(str(tmp_path), "parquet").settled(frozenset())))
    assert (len(parts) == 2) == (flush_bytes == 1 << 26)
    found = by_cell(iter(parts))
    whole = pa.Table.from_batches(rows).select(["k", "ts"])
    for cell in range(2):
        mask = source_mask(grid, cell, query, source, whole)
        assert multiset(found[cell]) == multiset(whole.filter(pa.array(mask)))


# -- formats ---------------------------------------------------------------------------------------------------------


def write(path: Path, rows: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(rows, path)
    elif path.suffix == ".json":
        lines = [json.dumps({k: v for k, v in row.items() if v is not None}, default=str) for row in rows.to_pylist()]
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        new = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression="lz4") if path.suffix == ".lz4" else None
        with new(path, rows.schema, options=options) as writer:
            for batch in rows.to_batches(max_chunksize=40):
                writer.write_batch(batch)


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "arrow", "arrows", "lz4"])
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str) -> None:
    _, source = query_of("one key")
    rows = pa.Table.from_batches([random_rows(100)])
    columns = tuple(rows.column_names)
    path = tmp_path / f"a.{ending}"
    write(path, rows)
    format = ending if ending in ("parquet", "csv", "json") else "arrow"
    read = read_rows(str(path), format, source, columns)
    assert read.schema == pa.schema([(f.name, f.type) for f in source.fields])
    assert multiset(read) == multiset(rows)
    some = read_rows(str(path), format, source, ("ts", "k"))
    assert multiset(some) == multiset(rows.select(["ts", "k"]))


@pytest.mark.parametrize("packed", [*COMPRESSIONS, ".GZ"])
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_compressed_text(tmp_path: Path, ending: str, packed: str) -> None:
    _, source = query_of("one key")
    rows = pa.Table.from_batches([random_rows(100)])
    plain, path = tmp_path / f"a.{ending}", tmp_path / f"a.{ending}{packed}"
    write(plain, rows)
    compression = COMPRESSIONS[packed.lower()]
    with pa.output_stream(path, compression=compression) as file:
        file.write(plain.read_bytes())
    assert path.read_bytes() != plain.read_bytes()
    assert multiset(read_rows(str(path), ending, source, ("k", "ts"))) == multiset(rows.select(["k", "ts"]))
    put(path, path.read_bytes())
    assert {f.name for f in infer_fields(str(path), format_of(str(path)))} == set(rows.column_names)
    with pa.output_stream(path, compression=compression):
        pass
    assert read_rows(str(path), ending, source, ("k", "ts")).num_rows == 0


def test_several_members_of_a_compressed_file(tmp_path: Path) -> None:
    _, source = query_of("one key")
    path = put(tmp_path / "a.csv.gz", gzip.compress(b"k,ts\n1,\n") + gzip.compress(b"2,\n"))
    assert read_rows(str(path), "csv", source, ("k",)).column(0).to_pylist() == [1, 2]


@pytest.mark.parametrize("name", ["a.tsv", "a.TSV.gz"])
def test_tabs_between_columns(tmp_path: Path, name: str) -> None:
    _, source = query_of("one key")
    content = b"name\tk\na,b\t7\n"
    path = str(put(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content))
    assert read_rows(path, format_of(path), source, ("name", "k")).to_pylist() == [{"name": "a,b", "k": 7}]
    assert [f.name for f in infer_fields(path, format_of(path))] == ["name", "k"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2024-03-01 12:00:00", (12, 0)),
        ("2024-03-01T12:00:00.000001", (12, 1)),
        ("2024-03-01T12:00:00.000001Z", (12, 1)),
        ("2024-03-01 14:00:00+02:00", (12, 0)),
        ("2024-03-01 12:00:00.000001999", (12, 1)),
    ],
)
@pytest.mark.parametrize("format", ["csv", "json"])
def test_times_in_text(tmp_path: Path, format: str, written: str, expected: tuple[int, int]) -> None:
    source = Stream("s", (Field("k", pa.int64()), Field("ts", pa.timestamp("us"))), "ts")
    path = put(
        tmp_path / "a", (f"k,ts\n1,{written}\n" if format == "csv" else f'{{"k":1,"ts":"{written}"}}\n').encode()
    )
    hour, microsecond = expected
    rows = read_rows(str(path), format, source, ("k", "ts"))
    assert rows.column(1).to_pylist() == [dt.datetime(2024, 3, 1, hour, 0, 0, microsecond)]
    assert infer_fields(str(tmp_path), format) == source.fields


def test_types_are_widened_and_times_are_microseconds(tmp_path: Path) -> None:
    instant = dt.datetime(2024, 3, 1, 12)
    rows = pa.table(
        {
            "small": pa.array([1], pa.uint16()),
            "name": pa.array(["a"]).dictionary_encode(),
            "long": pa.array(["a"], pa.large_string()),
            "zoned": pa.array([instant], pa.timestamp("ns")).cast(pa.timestamp("ns", "America/New_York")),
            "ts": pa.array([1_709_294_400_000_000_999]).view(pa.timestamp("ns")),
        }
    )
    write(tmp_path / "a.arrow", rows)
    fields = infer_fields(f"{tmp_path}/*.arrow", "arrow")
    assert [f.type for f in fields] == [pa.int32(), pa.string(), pa.string(), pa.timestamp("us"), pa.timestamp("us")]
    (row,) = read_rows(
        str(tmp_path / "a.arrow"), "arrow", Stream("s", fields, "ts"), tuple(f.name for f in fields)
    ).to_pylist()
    assert row == {"small": 1, "name": "a", "long": "a", "zoned": instant, "ts": instant}


def test_errors_name_the_file_and_the_column(tmp_path: Path) -> None:
    _, source = query_of("one key")
    for format in ("parquet", "csv", "arrow"):
        path = tmp_path / f"a.{format}"
        write(path, pa.table({"other": [1], "ts": ["2024-01-01"]}))
        with pytest.raises(SchemaMismatchError, match=rf"a\.{format}: .* no column k \(int64\); it has other, ts"):
            read_rows(str(path), format, source, ("k", "ts"))
    write(tmp_path / "text.parquet", pa.table({"k": ["one"], "ts": [dt.datetime(2024, 1, 1)]}))
    with pytest.raises(SchemaMismatchError, match=r"text\.parquet: column k of s is string, declared as int64"):
        read_rows(str(tmp_path / "text.parquet"), "parquet", source, ("k", "ts"))
    with pytest.raises(SchemaMismatchError, match=r"bad\.csv .*invalid value 'one'"):
        read_rows(str(put(tmp_path / "bad.csv", b"k,ts\none,\n")), "csv", source, ("k", "ts"))
    with pytest.raises(FilesError, match=r"torn\.parquet cannot be read as parquet"):
        read_rows(str(put(tmp_path / "torn.parquet")), "parquet", source, ("k", "ts"))
    with pytest.raises(FilesError, match=r"gone\.csv was found earlier and is gone"):
        read_rows(str(tmp_path / "gone.csv"), "csv", source, ("k", "ts"))


def test_an_empty_text_file_has_no_rows(tmp_path: Path) -> None:
    _, source = query_of("one key")
    for format in ("csv", "json"):
        assert read_rows(str(put(tmp_path / "a", b"")), format, source, ("k", "ts")).num_rows == 0


def test_nothing_to_infer_from(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=r"no csv file with rows matches .*\*\.csv: .* declare the columns"):
        infer_fields(f"{tmp_path}/*.csv", "csv")
    with pytest.raises(FilesError, match="no reader for orc files: use one of parquet, csv, json, arrow"):
        infer_fields(str(tmp_path), "orc")
    with pytest.raises(FilesError, match=r"use spark\.readStream for s3"):
        infer_fields("s3://bucket/a", "csv")
    write(tmp_path / "a.arrow", pa.table({"t": pa.array([1], pa.time64("us"))}))
    with pytest.raises(SchemaMismatchError, match="column t is time64"):
        infer_fields(str(tmp_path), "arrow")


# -- through Spark ---------------------------------------------------------------------------------------------------


class Collected:
    """Runs a stream of blobs to its end, and keeps what each batch brought."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.batches: list[list[tuple[int, pa.Table]]] = []
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination(120)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.batches.append([(row.cell, pa.ipc.open_stream(bytes(row.blob)).read_all()) for row in frame.collect()])

    def rows(self) -> list[Counter[str]]:
        return [sum((multiset(rows) for _, rows in batch), Counter()) for batch in self.batches]


def test_batches_and_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    query, source = query_of("one key")
    grid = choose_grid(JoinGraph(query), 2)
    data = tmp_path / "data"
    data.mkdir()
    options = FileOptions(max_files_per_trigger=1, log_path=str(tmp_path / "log"))

    def add(name: str, seed: int, modified: float) -> Counter[str]:
        rows = pa.Table.from_batches([random_rows(200, seed)])
        pq.write_table(rows, data / name)
        os.utime(data / name, (modified, modified))
        return multiset(rows.select(["k", "ts"]))

    def run() -> Collected:
        path = f"{data}/*.parquet"
        frame = file_stream(spark, source, path, "parquet", [(query, grid)], ("k", "ts"), options)
        assert frame.isStreaming
        assert frame.dtypes == [("cell", "int"), ("blob", "binary")]
        return Collected(frame, tmp_path / "checkpoint")

    expected = [add(f"{9 - n}.parquet", n, OLD + n) for n in range(3)]
    first = run()
    assert first.rows() == expected
    for cell, rows in (pair for batch in first.batches for pair in batch):
        assert source_mask(grid, cell, query, source, rows).all()

    # Files of committed batches may go; one that is older than all of them is still new.
    (data / "9.parquet").unlink()
    assert run().rows() == []
    late = add("0.parquet", 7, OLD - 100)
    assert run().rows() == [late]


def test_errors_of_files_reach_the_user(spark: SparkSession, tmp_path: Path) -> None:
    query, source = query_of("one key")
    put(tmp_path / "data" / "a.csv", b"other,ts\n1,2024-01-01\n")
    options = FileOptions(log_path=str(tmp_path / "log"))
    frame = file_stream(spark, source, str(tmp_path / "data"), "csv", [(query, Grid())], ("k", "ts"), options)
    with pytest.raises(Exception, match=r"a\.csv: the file has no column k"):
        Collected(frame, tmp_path / "checkpoint")
    with pytest.raises(FilesError, match="s: there is no folder"):
        file_stream(spark, source, f"{tmp_path}/none/*.csv", "csv", [(query, Grid())], ("k", "ts"), options)
