"""Sessions without Spark: what is declared and refused, before anything is started."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.control.lease import Holder
from anabranch.cost.facts import Given
from anabranch.errors import (
    AnabranchError,
    CheckpointBusyError,
    DuplicateNameError,
    InvalidNameError,
    NoQualifiedPlanError,
    SessionError,
    UnknownFormatError,
    UnknownStreamError,
    UnsupportedFrameError,
)
from anabranch.plan.query import Stream, Table
from anabranch.session import Budget, Session
from anabranch.session_start import patience_s
from anabranch.spark import sinks
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.stream_files import write_rows
from tests.support.uneven_streams import session_of, write_streams

SQL = "SELECT a.k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three streams of one file each."""
    for stream in "abc":
        write_rows(tmp_path, stream, [1, 1])
    return tmp_path


def two_streams(folder: Path, **options: Any) -> Session:
    session = Session(None, str(folder / "checkpoint"), **options)
    for stream in "ab":
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts")
    session.query("q", SQL, sinks.memory())
    return session


# What is declared


def test_names_are_taken_once(folder: Path) -> None:
    session = two_streams(folder)
    with pytest.raises(DuplicateNameError, match="a exists already"):
        session.stream("a", f"{folder}/b/*.parquet", "ts")
    with pytest.raises(DuplicateNameError, match="b exists already"):
        session.table("b", f"{folder}/c/*.parquet")
    with pytest.raises(SessionError, match="there is a query q already"):
        session.query("q", SQL)


def test_queries_that_are_not_there() -> None:
    session = Session(None)
    with pytest.raises(SessionError, match="no query to start"):
        session.start()
    with pytest.raises(SessionError, match="there is no query q; there are: none"):
        session.explain("q")
    with pytest.raises(UnknownStreamError, match="no stream or table a"):
        session.query("q", SQL)
    with pytest.raises(SessionError, match="s has no FROM path"):
        session.script("CREATE STREAM s (ts TIMESTAMP) TIME ts; SELECT s.ts FROM s [NOW]")


def test_a_path_without_files(tmp_path: Path) -> None:
    with pytest.raises(AnabranchError, match="no parquet file with rows"):
        Session(None).stream("s", f"{tmp_path}/*.parquet", "ts")


def test_how_late_rows_may_be_how_far_ahead_and_how_long_streams_may_be_idle(folder: Path) -> None:
    session = Session(None, str(folder / "checkpoint"))
    session.stream("a", f"{folder}/a/*.parquet", "ts", "2 seconds", ahead=None, idle="12 seconds")
    session.stream("b", f"{folder}/b/*.parquet", "ts", ahead="1 hour")
    a, b = (session.catalog.source(name) for name in "ab")
    assert isinstance(a, Stream)
    assert isinstance(b, Stream)
    assert (a.lateness_us, a.ahead_us, a.idle_us) == (2_000_000, None, 12_000_000)
    assert (b.lateness_us, b.ahead_us, b.idle_us) == (0, 3_600_000_000, None)


def test_a_refresh_needs_a_length(folder: Path) -> None:
    with pytest.raises(SessionError, match="give a longer time"):
        Session(None).table("t", f"{folder}/a/*.parquet", refresh="0 seconds")


@pytest.mark.parametrize("name", ["", "..", "../../x", "a/b", "a\x00", "x" * 200])
def test_what_cannot_be_a_name(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path, "a", [1])
    session = Session(checkpoint=str(tmp_path / "checkpoint"))
    session.stream("a", f"{tmp_path}/a/*.parquet", "ts")
    for declare in (
        lambda: session.stream(name, f"{tmp_path}/a/*.parquet", "ts"),
        lambda: session.table(name, f"{tmp_path}/a/*.parquet"),
        lambda: session.query(name, "SELECT k FROM a [NOW]"),
    ):
        with pytest.raises(InvalidNameError, match="a name has letters and digits"):
            declare()
    assert [s.name for s in session.catalog] == ["a"]
    assert os.listdir(tmp_path) == ["a"]


def test_queries_that_differ_in_case_share_a_folder_somewhere(tmp_path: Path) -> None:
    write_rows(tmp_path, "a", [1])
    session = Session(checkpoint=str(tmp_path / "checkpoint"))
    session.stream("a", f"{tmp_path}/a/*.parquet", "ts")
    session.query("q", "SELECT k FROM a [NOW]")
    with pytest.raises(SessionError, match="there is a query q already: give this one another name than Q"):
        session.query("Q", "SELECT k FROM a [NOW]")


def test_the_ending_of_a_path_tells_the_format(tmp_path: Path) -> None:
    """In Python as in SQL, for streams and tables."""
    row = b'{"k": 1, "ts": "2024-01-01 00:00:00"}\n'
    for name, content in (("a.ndjson", row), ("a.jsonl.gz", gzip.compress(row))):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (1000, 1000))
        session = Session(checkpoint=str(tmp_path / "checkpoint"))
        session.stream("s", str(tmp_path / name), "ts")
        session.table("t", str(tmp_path / name))
        for source in session.catalog:
            assert [f.name for f in source.fields] == ["k", "ts"]
    for declare in (lambda path: session.stream("u", path, "ts"), lambda path: session.table("u", path)):
        with pytest.raises(UnknownFormatError, match=r'the ending \.txt .* format="csv"'):
            declare(str(tmp_path / "a.txt"))


class ConnectFrame:
    """A DataFrame of Spark Connect is told by where its class lives."""


ConnectFrame.__module__ = "pyspark.sql.connect.dataframe"


def test_what_is_no_frame(tmp_path: Path) -> None:
    """Which frames are taken is tested on Spark (`tests/spark/test_session.py`)."""
    session: Any = Session(None, str(tmp_path / "checkpoint"))
    for thing in (None, [1], pa.table({"a": [1]})):
        with pytest.raises(UnsupportedFrameError, match=f"is a {type(thing).__name__}, not a Spark DataFrame"):
            session.table("t", thing)
        with pytest.raises(UnsupportedFrameError, match="not a Spark DataFrame"):
            session.stream("s", thing, "ts")
    with pytest.raises(UnsupportedFrameError, match=r"Spark Connect.*use a classic SparkSession"):
        session.stream("s", ConnectFrame(), "ts")
    with pytest.raises(SessionError, match="'soon' is no length of time"):
        session.stream("s", ConnectFrame(), "timestamp", "soon")
    with pytest.raises(SessionError, match="s is a DataFrame: only files of a path can be skipped"):
        session.stream("s", ConnectFrame(), "timestamp", skip=["a.parquet"])


TABLE = pa.table({"k": [1, 2], "name": ["one", "two"], "day": pa.array([0, 1], pa.int32()).view(pa.date32())})


def write_table(path: Path, format: str) -> None:
    if format == "csv":
        path.write_text("k,name,day\n1,one,1970-01-01\n2,two,1970-01-02\n")
    elif format == "json":
        path.write_text('{"k": 1, "name": "one", "day": "1970-01-01"}\n{"k": 2, "name": "two", "day": "1970-01-02"}\n')
    elif format == "arrow":
        with pa.ipc.new_file(str(path), TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        pq.write_table(TABLE, path)


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "arrow"])
def test_tables_of_a_script(tmp_path: Path, format: str) -> None:
    """A table is read like a stream of the same format, in its declared types; columns that nobody asks for are not."""
    write_table(tmp_path / f"t.{format}", format)
    session = Session(None, str(tmp_path / "checkpoint"))
    session.script(f"CREATE TABLE t (k BIGINT, name STRING, day DATE) FROM '{tmp_path}/t.{format}'")
    declared = session.catalog.source("t")
    assert isinstance(declared, Table)
    for columns in (("k", "name", "day"), ("day", "k")):
        with pa.ipc.open_stream(session._sources.read(declared, columns)) as read:
            assert read.read_all().to_pylist() == TABLE.select(list(columns)).to_pylist()


# What a session says


def test_explain(folder: Path) -> None:
    session = two_streams(folder, slots=4)
    session.stream("c", f"{folder}/c/*.parquet", "ts")
    session.query("product", "SELECT a.k FROM a [NOW], c [NOW]", plan="(c a)")
    text = session.explain("q", verbose=True)
    assert "over 4 slots (as asked)" in text
    assert "a.k = b.k in 4 parts" in text
    assert "replication 1.00" in text
    assert "rows of c go to 2 slots each" in session.explain("product", verbose=True)
    assert "replication 2.00" in session.explain("product", verbose=True)


def test_facts_and_budgets(tmp_path: Path) -> None:
    streams, checkpoint = write_streams(tmp_path), tmp_path / "checkpoint"
    known = Given({"a": 60.0, "b": 60.0, "c": 6.0}, {}, {"a.k": 5.0, "b.l": 400.0})
    text = session_of(None, streams, checkpoint, facts=known, budget=Budget(1.0, "1 GiB")).explain("q")
    assert "of 1 cores" in text
    assert "of 1 GiB" in text
    with pytest.raises(NoQualifiedPlanError, match="memory"):
        session_of(None, streams, checkpoint, budget=Budget(memory=10, strict=True))
    with pytest.raises(SessionError, match="a number of cores above 0"):
        session_of(None, streams, checkpoint, budget=Budget(cpu=-1))


# Starting


def test_a_busy_checkpoint(folder: Path) -> None:
    """Nothing is started, no Spark either, and whoever has the checkpoint keeps it."""
    holder = Holder(LocalFilesystem(str(folder / "checkpoint")))
    holder.acquire()
    try:
        session = two_streams(folder)
        with pytest.raises(CheckpointBusyError, match=f"in use by process {os.getpid()}"):
            session.start(availableNow=True)
        assert session._spark is None
        holder.require_held()
    finally:
        holder.release()


def test_a_batch_waits_for_its_sinks_as_long_as_its_trigger() -> None:
    assert patience_s({"processingTime": "50 milliseconds"}) == 0.05
    assert patience_s({"processingTime": "50 milliseconds"}, 2_000_000) == 2.0
    assert patience_s({"processingTime": "0 seconds"}) == patience_s({"availableNow": True}) == 1.0


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "many"])
def test_a_bound_of_results_that_is_none(most: Any) -> None:
    with pytest.raises(SessionError, match="results_per_batch is a number of rows"):
        Session(results_per_batch=most)


def test_a_query_that_has_left_holds_up_nobody_at_the_next_start_either(folder: Path) -> None:
    session = two_streams(folder)
    session.query("r", SQL, sinks.memory(), on_failure="leave")
    queries = session._queries
    found = {name: queries.leaver(queries.bind(name, SQL)).leaves for name in "qr"}
    assert found == {"q": False, "r": True}


def test_each_sink_says_its_guarantee(tmp_path: Path) -> None:
    every = [sinks.memory(), sinks.parquet(str(tmp_path)), sinks.console(), sinks.table("t"), sinks.as_sink(print, "q")]
    said = [sink.guarantee for sink in every]
    assert ["exactly once" in s for s in said] == [True, True, False, False, False]
    assert all("at least once" in s for s in said[2:])
