"""The file reader, without Spark: offsets, files that change, rows as blobs."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from anabranch.balance.shares import choose_grid
from anabranch.control.records import SourceStatistics
from anabranch.engine.cells import source_mask
from anabranch.engine.shedding import kept_mask
from anabranch.errors import FilesError
from anabranch.plan.demand import read_columns, source_filters
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Stream
from anabranch.plan.workload import Workload
from anabranch.spark import reader
from anabranch.spark.file_list import FileListing, FoundFile
from anabranch.spark.reader import (
    DROPPED,
    SHED,
    FileOptions,
    FilePartition,
    FileSource,
    FileStreamReader,
    blobs,
    file_stream,
    grouped,
    shed_text,
)
from anabranch.spark.task import count_passed_over
from anabranch.sql import parse_script
from tests.support.reading import (
    OLD,
    STREAM,
    multiset,
    names,
    put,
    query_of,
    random_rows,
)


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
    with pytest.raises(FilesError, match="max_files_per_trigger is a number of 1 or more, or None: not 0"):
        FileOptions(max_files_per_trigger=0)


def by_cell(parts: Iterator[pa.RecordBatch]) -> dict[int, pa.Table]:
    found: dict[int, list[pa.RecordBatch]] = {}
    for part in parts:
        assert part.schema == pa.schema([("cell", pa.int32()), ("blob", pa.binary())])
        for cell, blob in zip(part.column(0).to_pylist(), part.column(1), strict=True):
            found.setdefault(cell, []).extend(pa.ipc.open_stream(blob.as_buffer()))
    return {cell: pa.Table.from_batches(pieces) for cell, pieces in found.items()}


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


def test_of_rows_that_are_shed_the_times_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, whatever their cells; in whatever files and order rows come, the same are shed. Of each that is shed it is
    counted whether it is late, early or without a time, as if it were not."""
    query, source = query_of("chain")
    grid, whole = choose_grid(JoinGraph(query), 4), pa.Table.from_batches([random_rows(400)]).select(["k", "j", "ts"])
    times = whole["ts"].combine_chunks().to_numpy().copy()
    untimed = np.arange(400) % 10 == 0
    whole = whole.set_column(2, "ts", pa.array(times, pa.timestamp("us"), mask=untimed))
    kept = kept_mask("s", whole, 0.3, 5)
    monkeypatch.setattr(reader, "_property", lambda name: shed_text({"s": 0.3, "r": 0.0}, 5) if name == SHED else None)
    for folder, rows in (("one", [whole]), ("two", [whole.take(np.arange(399, 200, -1)), whole.slice(0, 201)])):
        (tmp_path / folder).mkdir()
        for number, part in enumerate(rows):
            pq.write_table(part, tmp_path / folder / f"{number}.parquet")
        files = FileSource(
            source, str(tmp_path / folder), "parquet", [(query, grid)], ("k", "j", "ts"), FileOptions(log_path="unused")
        )
        found: dict[bytes, list[pa.RecordBatch]] = {b"": [], DROPPED: []}
        for part in blobs(files, FileListing(str(tmp_path / folder), "parquet").settled(frozenset())):
            stream = pa.ipc.open_stream(part.column(1)[0].as_buffer())
            found[DROPPED if DROPPED in (stream.schema.metadata or {}) else b""] += list(stream)
        assert set(multiset(pa.Table.from_batches(found[b""]))) == set(multiset(whole.filter(pa.array(kept))))
        sent = pa.Table.from_batches(found[DROPPED])
        assert multiset(sent) == multiset(whole.filter(pa.array(~kept)).select(["ts"]))
        counts = SourceStatistics()
        accepted = count_passed_over(counts, [batch.column(0) for batch in found[DROPPED]], 500_000, 1_500_000)
        known = times.astype("datetime64[us]").astype(np.int64)[~kept & ~untimed]
        assert counts.rows == (~kept).sum() == accepted + counts.late_rows + counts.early_rows + counts.untimed_rows
        assert (counts.late_rows, counts.early_rows) == ((known < 500_000).sum(), (known > 1_500_000).sum())
        assert counts.largest_time_us == known[known <= 1_500_000].max()


def test_a_row_at_the_watermark_is_not_late() -> None:
    """Nor is one early that is as far ahead as it may be; and the largest time of a batch may be in any part of it."""
    counts = SourceStatistics()
    parts = [pa.array(times, pa.timestamp("us")) for times in ([4, 5, None], [9, 10], [6])]
    assert count_passed_over(counts, parts, watermark_us=5, early_after_us=9) == 3
    told = (counts.rows, counts.late_rows, counts.early_rows, counts.untimed_rows, counts.largest_time_us)
    assert told == (6, 1, 1, 1, 9)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """What is wrong with a file reaches the user through Spark (`tests/test_cli.py`, `tests/spark/test_on_error.py`); that
    there is no folder, before Spark is asked for anything."""
    query, source = query_of("one key")
    options = FileOptions(log_path=str(tmp_path / "log"))
    with pytest.raises(FilesError, match="s: there is no folder"):
        file_stream(None, source, f"{tmp_path}/none/*.csv", "csv", [(query, Grid())], ("k", "ts"), options)  # type: ignore[arg-type]
