"""ON ERROR through Spark: bad rows and damaged files are left out, counted, named, and kept once each, whatever dies."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from anabranch.drive.delivery import Delivery
from anabranch.errors import FilesError, SchemaMismatchError, SessionError, UnsupportedFrameError
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.damaged import Mark, Marks, encoded, reasons_in
from anabranch.spark.file_list import FoundFile
from anabranch.spark.reader import FileOptions, FileSource, FileStreamReader, blobs
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.feeding import finish

SQL = "SELECT a.k, a.name, b.x FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k"
SECOND_US = 1_000_000
FILES = 4


class DiedError(Exception):
    """A driver that dies."""


def write(path: Path, content: bytes, number: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return path


def csv_of(number: int) -> bytes:
    """A file of a: two good rows, and two that are bad, one of them far ahead in time, one in a column that nobody reads."""
    time = f"1970-01-01 00:00:{number:02d}"
    lines = ["k,name,unread,ts", f"{number},n{number},1,{time}", f"x{number},,1,2999-01-01 00:00:00"]
    lines += [f"{number},bad,one,{time}", f"{number},m{number},,{time}"]
    return "".join(f"{line}\n" for line in lines).encode()


def feed(folder: Path, numbers: range) -> None:
    for number in numbers:
        write(folder / "a" / f"{number}.csv", csv_of(number), number)
        path = folder / "b" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        times = pa.array([number * SECOND_US], pa.timestamp("us"))
        pq.write_table(pa.table({"k": [number], "x": [number * 10], "ts": times}), path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def session(spark: Any, folder: Path, of_a: str, of_b: str = "") -> Session:
    made = Session(spark, str(folder / "checkpoint"), slots=2)
    made.script(
        f"""CREATE STREAM a (k BIGINT, name STRING, unread INT, ts TIMESTAMP) TIME ts FROM '{folder}/a/*.csv' {of_a};
            CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts FROM '{folder}/b/*.parquet' {of_b};
            CREATE QUERY q AS {SQL};""",
        sinks=lambda name: sinks.parquet(str(folder / "out")),
        max_files_per_trigger=1,
    )
    return made


def start(spark: SparkSession, folder: Path, of_a: str, of_b: str = "") -> Run:
    run = session(spark, folder, of_a, of_b).start(availableNow=True)
    finish(run)
    return run


def results(folder: Path) -> list[tuple[Any, ...]]:
    rows = sinks.read(str(folder / "out")).to_table().to_pylist()
    return sorted((row["k"], row["name"], row["x"]) for row in rows)


def expected(numbers: Any) -> list[tuple[Any, ...]]:
    return sorted((n, f"{name}{n}", n * 10) for n in numbers for name in "nm")


def kept(folder: Path) -> Counter[tuple[Any, ...]]:
    rows = sinks.read(str(folder / "bad")).to_table().to_pylist()
    return Counter((os.path.basename(row["file"]), row["row"], row["reason"], row["raw"]) for row in rows)


def bad_rows(numbers: Any) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for n in numbers:
        lines = csv_of(n).decode().splitlines()
        found[f"{n}.csv", 3, f"column k: 'x{n}' is no BIGINT", lines[2]] = 1
        found[f"{n}.csv", 4, "column unread: 'one' is no INT", lines[3]] = 1
    return found


def damage(path: Path) -> None:
    """A parquet file that begins and ends as it should, and has nothing in between."""
    status = path.stat()
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(40) + whole[44:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# -- rows ------------------------------------------------------------------------------------------------------------


def test_bad_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They fail the batch; where that is asked for, they are kept instead, once each. The first driver that keeps them dies
    in the second batch, when it is committed and nothing of it was delivered."""
    clause = f"ON ERROR INTO '{tmp_path}/bad'"
    feed(tmp_path, range(2))
    with pytest.raises(SchemaMismatchError, match=r"a/0\.csv, line 3: column k: 'x0' is no BIGINT: .*ON ERROR SKIP"):
        start(spark, tmp_path, "")

    offer = Delivery.offer

    def dying(self: Delivery, commit: Any) -> None:
        if commit.batch == 1:
            self.stop()
            raise DiedError
        offer(self, commit)

    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "offer", dying)
        with pytest.raises(DiedError):
            start(spark, tmp_path, clause)
    assert kept(tmp_path) == bad_rows(range(1))
    with pytest.raises(SessionError, match=r"rows of a that were set aside in batch 1 wait .* ON ERROR INTO that it had"):
        start(spark, tmp_path, "ON ERROR SKIP")

    feed(tmp_path, range(2, FILES))
    steps = start(spark, tmp_path, clause).progress["q"]
    assert results(tmp_path) == expected(range(FILES))
    assert kept(tmp_path) == bad_rows(range(FILES))
    assert sum(step.skipped_rows["a"] for step in steps) == 2 * (FILES - 2)
    assert sum(step.rows["a"] for step in steps) == 2 * (FILES - 2)
    assert steps[-1].watermark_us == (FILES - 1) * SECOND_US, "a row that is set aside moves no watermark"
    assert sum(step.early_rows["a"] for step in steps) == 0


def test_rows_are_kept_for_one_pipeline(tmp_path: Path) -> None:
    """Nothing is asked of Spark before that is known."""
    feed(tmp_path, range(1))
    made = session(SimpleNamespace, tmp_path, f"ON ERROR INTO '{tmp_path}/bad'")
    made.query("alone", "SELECT k FROM a [NOW]", sinks.memory(), share=False)
    with pytest.raises(SessionError, match=r"bad rows of a cannot be kept in .*/bad: q and alone read the stream by them"):
        made.start(availableNow=True)


# -- files -----------------------------------------------------------------------------------------------------------


def test_damaged_files(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file of b fails the batch. Where it is to be left out, a driver dies before it has marked the file, and one
    after that; the fourth is marked by the driver that comes to the end. Of a bad rows are left out, and not kept."""
    of_a, of_b = "ON ERROR SKIP", f"ON ERROR INTO '{tmp_path}/bad'"
    feed(tmp_path, range(4))
    second, fourth = (tmp_path / "b" / f"{number}.parquet" for number in (1, 3))
    damage(second)
    damage(fourth)
    with pytest.raises(FilesError) as told:
        start(spark, tmp_path, of_a)
    assert str(told.value).startswith(f"{second} cannot be read as parquet: ")
    assert "\n" not in str(told.value)

    add = Marks.add
    for is_marked in (False, True):

        def dying(self: Marks, mark: Mark, is_marked: bool = is_marked) -> None:
            if is_marked:
                add(self, mark)
            raise DiedError

        with monkeypatch.context() as patch:
            patch.setattr(Marks, "add", dying)
            with pytest.raises(DiedError):
                start(spark, tmp_path, of_a, of_b)
    second.unlink()  # who is told of a mark does not open the file

    run = start(spark, tmp_path, of_a, of_b)
    assert results(tmp_path) == expected([0, 2])
    (entry,) = [entry for entry in run.journal["q"] if entry.event == "damaged"]
    assert f"a file of b is left out: {fourth} cannot be read as parquet" in entry.text
    steps = run.progress["q"]
    assert {step.batch for step in steps if step.skipped_files["b"]} == {1, 3}
    assert sum(step.skipped_files["b"] for step in steps) == 2
    assert sum(step.skipped_rows["b"] for step in steps) == 0
    assert sum(step.skipped_rows["a"] for step in steps) == 2 * 3
    about = {file: (row, raw, reason) for file, row, reason, raw in kept(tmp_path).elements()}
    assert about.keys() == {"1.parquet", "3.parquet"}
    for file, (row, raw, reason) in about.items():
        assert (row, raw) == (None, None)
        assert f"{file} cannot be read as parquet" in reason


def found(path: Path) -> FoundFile:
    status = path.stat()
    return FoundFile(str(path), status.st_mtime_ns, status.st_size)


def test_a_task_names_all_files_that_are_damaged_and_opens_none_that_is_marked(tmp_path: Path) -> None:
    from anabranch.errors import FilesToMarkError
    from anabranch.plan.grid import Grid
    from anabranch.plan.on_error import SKIP
    from anabranch.spark.damaged import told_in

    script = parse_script("CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; SELECT k FROM b [NOW]")
    query = script.queries[0].query
    feed(tmp_path, range(3))
    for number in (0, 2):
        damage(tmp_path / "b" / f"{number}.parquet")
    log = str(tmp_path / "list")
    options = FileOptions(log_path=log, on_error=SKIP)
    source = query.base_sources[0]
    given = FileSource(source, str(tmp_path / "b"), "parquet", ((query, Grid()),), ("k", "ts"), options)  # type: ignore[arg-type]
    reader = FileStreamReader(given)
    end = reader.latestOffset({"files": 0}, reader.getDefaultReadLimit())
    (partition,) = reader.partitions({"files": 0}, end)
    with pytest.raises(FilesToMarkError) as caught:
        list(reader.read(partition))
    marks = told_in(RuntimeError(f"Traceback\nanabranch.errors.FilesToMarkError: {caught.value}\n\tat x"))
    assert [os.path.basename(mark.path) for mark in marks] == ["0.parquet", "2.parquet"]
    for mark in marks:
        Marks(reader.found._filesystem, epoch=1).add(mark)
        os.unlink(mark.path)
    again = FileStreamReader(given)
    (partition,) = again.partitions({"files": 0}, end)
    sizes = [pa.ipc.open_stream(blob.as_buffer()).read_all() for b in again.read(partition) for blob in b.column("blob")]
    assert [(rows.num_rows, rows.column_names) for rows in sizes] == [(1, ["k", "ts"]), (2, ["row"])]
    changed = found(tmp_path / "b" / "1.parquet")
    damage(tmp_path / "b" / "1.parquet")
    os.utime(changed.path, (5, 5))
    with pytest.raises(FilesError, match="has changed since it was found"):
        list(blobs(given, [changed]))


def test_marks_of_batches_that_are_over_go() -> None:
    """A batch may have several, and be begun by several drivers."""
    disk = MemoryFilesystem()
    for batch, path, epoch in ((3, "a", 1), (3, "b", 2), (5, "c", 2), (5, "d", 3)):
        Marks(disk, epoch).add(Mark("s", path, "torn", batch))
        there = [(mark.batch, mark.path) for mark in Marks(disk).all()]
        assert there == [each for each in [(3, "a"), (3, "b"), (5, "c"), (5, "d")] if each[0] == batch and each[1] <= path]
    assert len(disk.list("damaged")) == 2


def test_a_mark_is_for_its_stream_alone() -> None:
    """Two streams may read one file, in other ways."""
    told = encoded([Mark("s", "/a", "torn"), Mark("r", "/a", "no columns"), Mark("r", "/b", "torn")])
    assert [reasons_in(told, stream) for stream in "srq"] == [{"/a": "torn"}, {"/a": "no columns", "/b": "torn"}, {}]


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["skpi", "into", ("into",), ("into", ""), ("skip", "x"), None, ("into", 7), True])
def test_what_on_error_cannot_be(tmp_path: Path, given: Any) -> None:
    with pytest.raises(SessionError, match=r"on_error=.* of the stream a: it is .fail., .skip. or \(") as caught:
        Session(None, str(tmp_path)).stream("a", f"{tmp_path}/*.csv", "ts", on_error=given)
    assert ("did you mean skip?" in str(caught.value)) == (given == "skpi")


def test_a_frame_has_options_of_spark(tmp_path: Path) -> None:
    """What is asked for is looked at first, and only then whether the frame is one."""
    session, frame = Session(None, str(tmp_path)), object()
    with pytest.raises(SessionError, match=r"a is a DataFrame: on_error='skip' is for files .*DROPMALFORMED"):
        session.stream("a", frame, "timestamp", on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFrameError, match="a is a object, not a Spark DataFrame"):
        session.stream("a", frame, "timestamp", on_error="fail")  # type: ignore[arg-type]
