"""Sessions on Spark: which DataFrames are taken, what a session leaves alone, what a checkpoint goes on with."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from anabranch.control.lease import FOLDER
from anabranch.control.progress import read_progress
from anabranch.errors import (
    AnabranchError,
    DuplicateNameError,
    ForeignStateError,
    MissingTimeColumnError,
    SchemaMismatchError,
    SessionError,
    StateError,
    TooManyResultsError,
    UnsupportedFrameError,
)
from anabranch.plan.query import Field
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.create import QUERY_SETTINGS
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.feeding import finish
from tests.support.stream_files import write_rows

SQL = "SELECT a.k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two streams of one file each, with 2 × 2 results."""
    for stream in "ab":
        write_rows(tmp_path, stream, [1, 1])
    return tmp_path


def two_streams(spark: SparkSession, folder: Path, sink: Any, at: str = "checkpoint", **options: Any) -> Session:
    session = Session(spark, str(folder / at), **options)
    for stream in "ab":
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts")
    session.query("q", SQL, sink)
    return session


# What cannot be a stream or a table


@pytest.fixture(scope="module")
def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


STATEFUL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "Aggregate": lambda rate: rate.groupBy("value").count().withColumn("timestamp", F.current_timestamp()),
    "Deduplicate": lambda rate: rate.withWatermark("timestamp", "1 second").dropDuplicates(["value"]),
    "DeduplicateWithinWatermark": lambda rate: (
        rate.withWatermark("timestamp", "1 second").dropDuplicatesWithinWatermark(["value"]).select("*")
    ),
    "GlobalLimit": lambda rate: rate.limit(3),
    "Join": lambda rate: rate.join(rate.select("value"), "value"),
}


def test_stateful_operators_upstream(spark: SparkSession, rate: DataFrame) -> None:
    for operator, kept in STATEFUL.items():
        with pytest.raises(UnsupportedFrameError, match=rf"s has a stateful operator \(.*{operator}.*\)"):
            Session(spark).stream("s", kept(rate), "timestamp")


def test_what_a_stream_and_a_table_may_be_made_of(spark: SparkSession, rate: DataFrame) -> None:
    stored = spark.range(3).withColumnRenamed("id", "value")
    fine = rate.withWatermark("timestamp", "1 second").where("value > 0").join(stored, "value").unionByName(rate)
    Session(spark).stream("s", fine.select((F.col("value") + 1).alias("v"), "timestamp"), "timestamp")
    Session(spark).table("t", spark.range(10).groupBy("id").count().limit(3))


class ConnectFrame:
    """A DataFrame of Spark Connect is told by where its class lives."""


ConnectFrame.__module__ = "pyspark.sql.connect.dataframe"


def test_what_cannot_be_a_stream_or_a_table(spark: SparkSession, rate: DataFrame) -> None:
    session, connect = Session(spark), ConnectFrame()
    with pytest.raises(UnsupportedFrameError, match=r"s is a batch DataFrame: .*readStream.*table\(\)"):
        session.stream("s", spark.range(3), "ts")
    with pytest.raises(UnsupportedFrameError, match=r"t is a streaming DataFrame: declare it with stream\(\)"):
        session.table("t", rate)
    for thing in (None, [1], pa.table({"a": [1]})):
        with pytest.raises(UnsupportedFrameError, match=f"is a {type(thing).__name__}, not a Spark DataFrame"):
            session.table("t", thing)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedFrameError, match="not a Spark DataFrame"):
            session.stream("s", thing, "ts")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFrameError, match=r"Spark Connect.*use a classic SparkSession"):
        session.stream("s", connect, "ts")  # type: ignore[arg-type]
    with pytest.raises(MissingTimeColumnError, match="the time column nope is not among the columns of s"):
        session.stream("s", rate, "nope")
    with pytest.raises(MissingTimeColumnError, match="is BIGINT, not TIMESTAMP"):
        session.stream("s", rate, "value")
    with pytest.raises(SessionError, match="'soon' is no length of time"):
        session.stream("s", rate, "timestamp", "soon")
    with pytest.raises(SchemaMismatchError, match=r"s\.i is interval, .* cast it, or leave the column out"):
        session.stream("s", rate.selectExpr("timestamp", "make_interval(1) AS i"), "timestamp")
    with pytest.raises(SessionError, match="s is a DataFrame: only files of a path can be skipped"):
        session.stream("s", rate, "timestamp", skip=["a.parquet"])


# A run, and what it leaves alone


def test_run(spark: SparkSession, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Results go to memory, to a table of Spark's and to the console; a declaration that was refused has changed nothing."""
    kept = sinks.memory()
    session = two_streams(spark, folder, kept)
    assert f"over {spark.sparkContext.defaultParallelism} slots (Spark's parallelism)" in session.explain("q", verbose=True)
    write_rows(folder, "other", [1, 1, 1])
    with pytest.raises(DuplicateNameError):
        session.stream("a", f"{folder}/other/*.parquet", "ts")
    with pytest.raises(DuplicateNameError):
        session.table("b", spark.range(1))
    session.query("stored", SQL, sinks.table("results_of_q"))
    session.query("shown", SQL)
    spark.sql(f"CREATE TABLE results_of_q (k BIGINT) USING parquet LOCATION '{folder}/table'")
    try:
        run = session.start(availableNow=True)
        finish(run)
        assert spark.table("results_of_q").count() == kept.table().num_rows == 4
    finally:
        spark.sql("DROP TABLE results_of_q")
    printed = capfd.readouterr().out
    assert "shown, batch 0: 4 results\nk\n-\n1\n1\n1\n1\n\n" in printed
    assert run.plans == dict.fromkeys(("q", "stored", "shown"), "(a b)")
    assert repr(session).startswith(f"<Session on {session.checkpoint}; sources: a, b; queries: q")
    assert "<td>(a b)</td>" in session._repr_html_()
    assert repr(run).startswith("<Run, stopped>\n  q: batch 1: 0 rows, 0 results, ")
    assert "<b>q</b>" in run._repr_html_()
    assert [e.event for e in run.journal["q"]] == ["started", "ended"]
    assert run.journal["q"][0].details["plan"] == run.plans["q"]
    first, closing = run.progress["q"]
    assert (first.batch, first.trigger, first.rows, first.results) == (0, 0, {"a": 2, "b": 2}, 4)
    assert (closing.batch, closing.trigger, closing.rows, closing.results) == (1, 0, {"a": 0, "b": 0}, 0)
    assert first.state_rows == 4
    assert first.state_bytes > 0
    assert first.wall_s["trigger"] > first.wall_s["tasks"], "what Spark says of its trigger, which the batch is a part of"
    assert "trigger" not in closing.wall_s
    assert 0 < first.spark_s < first.seconds
    assert read_progress(session.checkpoint.below("pipeline-0")) == run.progress, "others can see the same"


def test_what_the_user_has_set_stays(spark: SparkSession, folder: Path) -> None:
    """Results come in a session of their own, which nobody is to be handed who asks for the one there is. Times do not
    depend on the zone of the user's."""
    names, zone = list(QUERY_SETTINGS), "spark.sql.session.timeZone"
    before = {name: spark.conf.get(name) for name in (*names, zone)}
    mine = {names[0]: "true", names[1]: "1234", zone: "America/New_York"}
    seen, kept = [], sinks.memory()
    try:
        for name, value in mine.items():
            spark.conf.set(name, value)
        session = Session(spark, str(folder / "checkpoint"))
        for stream in "ab":
            frame = spark.readStream.schema("k bigint, ts timestamp").parquet(f"{folder}/{stream}")
            session.stream(stream, frame, "ts")
        session.table("t", spark.sql("SELECT 1L AS k, timestamp '1970-01-01 00:00:00 UTC' AS at"))
        sql = "SELECT a.ts, t.at, RESULT_TIME AS r FROM a [NOW], b [NOW], t WHERE a.k = b.k AND t.k = a.k"
        session.query("times", f"{sql} AND a.ts = t.at", kept)
        watch = lambda results, number: seen.append([results.sparkSession.conf.get(name) for name in names])  # noqa: E731
        session.query("q", SQL, watch)
        finish(session.start(availableNow=True))
        assert {name: spark.conf.get(name) for name in mine} == mine
        assert seen == [list(QUERY_SETTINGS.values())]
        assert kept.table().num_rows == 4
        assert {v.as_py().timestamp() for c in kept.table().columns for v in c} == {0.0}
        assert SparkSession.builder.getOrCreate()._jsparkSession.equals(spark._jsparkSession)
    finally:
        for name, given in before.items():
            spark.conf.set(name, given or "")


# Tables


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


def test_tables_of_a_script(spark: SparkSession, folder: Path) -> None:
    """A table is read like a stream of the same format, in its declared types."""
    formats = ("parquet", "csv", "json", "arrow")
    for format in formats:
        write_table(folder / f"t.{format}", format)
    create = "".join(
        f"CREATE TABLE of_{f} (k BIGINT, name STRING, day DATE) FROM '{folder}/t.{f}';" for f in formats
    )
    columns = ", ".join(f"of_{f}.name AS name_{f}, of_{f}.day AS day_{f}" for f in formats)
    joined, where = ", ".join(f"of_{f}" for f in formats), " AND ".join(f"a.k = of_{f}.k" for f in formats)
    kept, session = sinks.memory(), Session(spark, str(folder / "checkpoint"))
    session.script(
        f"""CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts FROM '{folder}/a/*.parquet'; {create}
        CREATE QUERY q AS SELECT {columns} FROM a [NOW], {joined} WHERE {where}""",
        lambda name: kept,
    )
    finish(session.start(availableNow=True))
    one = {"name": "one", "day": TABLE["day"][0].as_py()}
    assert kept.table().to_pylist() == [{f"{column}_{f}": v for f in formats for column, v in one.items()}] * 2


# Types


STRUCTS = [
    ("struct(1 AS x, 2 AS y)", "struct(1 AS x_int_y)"),
    ("named_struct('x y', 1, 'ü-z', 2)", "named_struct('x y', 3, 'ü-z', 4)"),
    ("named_struct('x y', 1)", "7"),
    ("map('a', array(1, NULL))", "array(timestamp_seconds(1))"),
]


def test_types_and_columns_of_any_names(spark: SparkSession, tmp_path: Path) -> None:
    session, kept = Session(spark, str(tmp_path / "checkpoint")), sinks.memory()
    for place, name in enumerate("ab"):
        path, columns = str(tmp_path / name), ", ".join(f"{pair[place]} AS `c.{n}`" for n, pair in enumerate(STRUCTS))
        spark.sql(f"SELECT 0L AS `the key`, {columns}, timestamp_seconds(5) AS ts").write.parquet(path)
        session.stream(name, spark.readStream.schema(spark.read.parquet(path).schema).parquet(path), "ts")
    select = ", ".join(f'a."c.{n}" AS x{n}, b."c.{n}" AS y{n}' for n in range(len(STRUCTS)))
    session.query("q", f'SELECT {select} FROM a [NOW], b [NOW] WHERE a."the key" = b."the key"', kept)
    finish(session.start(availableNow=True))
    wanted = ", ".join(f"{left} AS x{n}, {right} AS y{n}" for n, (left, right) in enumerate(STRUCTS))
    assert kept.table().to_pylist() == spark.sql(f"SELECT {wanted}").toArrow().to_pylist()


# Checkpoints and outputs of something else


def with_a_table(
    spark: SparkSession, folder: Path, version: int, window: str = "5 SECONDS", slots: int = 2, **b: Any
) -> Session:
    session = Session(spark, str(folder / "checkpoint"), slots=slots)
    session.stream("a", f"{folder}/a/*.parquet", "ts")
    session.stream("b", f"{folder}/b/*.parquet", "ts", **b)
    session.table("t", spark.sql(f"SELECT 1L AS k, {version}L AS v"))
    sql = f"SELECT t.v FROM a [RANGE {window}], b [RANGE 5 SECONDS], t WHERE a.k = b.k AND a.k = t.k"
    session.query("q", sql, sinks.parquet(str(folder / "out")))
    return session


def test_what_a_checkpoint_goes_on_with(spark: SparkSession, folder: Path) -> None:
    """The same query, over as many slots, into the same folder; with the table as it was read when it first started."""
    umask = os.umask(0o022)
    try:
        finish(with_a_table(spark, folder, version=5).start(availableNow=True))
    finally:
        os.umask(umask)
    check_who_may_read(folder)
    with pytest.raises(ForeignStateError) as refused:
        with_a_table(spark, folder, 6, window="6 SECONDS").start(availableNow=True)
    assert "-input a: a by ts [RANGE 5000000 us]" in str(refused.value)
    assert "+input a: a by ts [RANGE 6000000 us]" in str(refused.value)
    assert "use another checkpoint" in str(refused.value)
    columns = (Field("k", pa.int32()), Field("ts", pa.timestamp("us")))
    with pytest.raises(ForeignStateError, match=r"\+  keeps k int32"):
        with_a_table(spark, folder, 6, columns=columns).start(availableNow=True)
    with pytest.raises(StateError, match="start it with the same number of slots"):
        with_a_table(spark, folder, 6, slots=3).start(availableNow=True)
    # Batches are numbered by the checkpoint: those of another one must not be taken for its own.
    with pytest.raises(AnabranchError, match="holds the results of another run"):
        two_streams(spark, folder, sinks.parquet(str(folder / "out")), at="a new checkpoint").start(availableNow=True)
    assert not LocalFilesystem(str(folder / "checkpoint")).list(FOLDER), "a refused start holds nothing"
    write_rows(folder, "a", [1], 1)
    finish(with_a_table(spark, folder, version=6).start(availableNow=True))
    assert pq.read_table(folder / "out")["v"].to_pylist() == [5] * 6
    for path in [*(folder / "checkpoint").glob("*/commit/*"), *(folder / "checkpoint").glob("*/control/*")]:
        path.unlink()
    # Nothing is known of that pipeline any more: another would begin, with numbers from 0.
    with pytest.raises(AnabranchError, match="holds the results of another run"):
        with_a_table(spark, folder, version=6).start(availableNow=True)


def check_who_may_read(folder: Path) -> None:
    """State is for its owner alone; Spark's own files are below a folder that nobody else may enter. Results follow the
    umask."""
    checkpoint = folder / "checkpoint"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (checkpoint, checkpoint / "pipeline-0")] == [0o700, 0o700]
    ours = [p for p in (checkpoint / "pipeline-0").rglob("*") if "spark" not in p.parts and p.name != "files"]
    assert {"commit", "control", "state", "a"} <= {p.name for p in ours}
    assert not [p for p in ours if stat.S_IMODE(p.stat().st_mode) != (0o700 if p.is_dir() else 0o600)]
    results = [p for p in (folder / "out").rglob("*.parquet") if "batch=0" in p.parts]
    assert results
    assert {stat.S_IMODE(p.stat().st_mode) & 0o044 for p in results} == {0o044}


def test_more_results_than_allowed(spark: SparkSession, folder: Path) -> None:
    """Over all slots of a batch. Nothing of it is delivered or committed; with more allowed, all of it is."""
    for stream in "ab":
        write_rows(folder, stream, [1, 1, 2, 2, 3, 3, 4, 4])
    out = sinks.parquet(str(folder / "out"))
    for most in (3, 15):
        with pytest.raises(TooManyResultsError, match=f"query q gives more than {most} results in batch 0"):
            finish(two_streams(spark, folder, out, slots=2, results_per_batch=most).start(availableNow=True))
        assert not LocalFilesystem(str(folder / "checkpoint" / "pipeline-0")).list("commit")
        assert not list((folder / "out").glob("batch=*"))
    finish(two_streams(spark, folder, out, slots=2, results_per_batch=16).start(availableNow=True))
    found = pq.read_table(folder / "out")
    assert sorted(found.column("k").to_pylist()) == [k for k in (1, 2, 3, 4) for _ in range(4)]


# Files that are not complete, or have changed


def test_files_that_are_not_complete_or_have_changed(spark: SparkSession, folder: Path) -> None:
    """Of a the second file changes after it was found and counted, and is skipped; the third is torn, and waits. A damaged
    journal is no matter for going on."""
    for stream, numbers in (("a", (1, 2)), ("b", (1,))):
        for number in numbers:
            write_rows(folder, stream, [1], number)
    kept, changed, torn = sinks.memory(), folder / "a" / "1.parquet", folder / "a" / "2.parquet"
    whole = torn.read_bytes()

    def put(content: bytes) -> None:
        torn.write_bytes(content)
        os.utime(torn, (1002, 1002))

    def changing(results: DataFrame, number: int) -> None:
        kept.deliver(results.toArrow(), number)
        if number == 0:
            os.utime(changed, (1005, 1005))

    def start(skip: Sequence[str] = ()) -> Run:
        session = Session(spark, str(folder / "checkpoint"))
        session.stream("a", f"{folder}/a/*.parquet", "ts", max_files_per_trigger=1, skip=skip)
        session.stream("b", f"{folder}/b/*.parquet", "ts", max_files_per_trigger=1)
        session.query("q", SQL, changing)
        run = session.start(availableNow=True)
        finish(run)
        return run

    put(whole[:-4])
    with pytest.raises(Exception, match=r"a/1\.parquet has changed since it was found"):
        start()
    for entry in (folder / "checkpoint" / "journal" / "q").iterdir():
        entry.write_bytes(b"damaged")
    run = start(skip="1.parquet")
    assert kept.table().num_rows == 2 * 2 + 2 * 1, "the file of b is joined with what came before"
    told = next(e for e in run.journal["q"] if e.event == "skipping")
    assert told.text == "files of a are left out, as asked: 1.parquet; what was read of them before stays"
    assert [(stream, w.paths) for stream, w in run.waiting_files["q"].items()] == [("a", [str(torn)])]
    assert run.progress["q"][-1].waiting == run.waiting_files["q"]
    assert f"is processed; a: 1 file waits to be complete: {torn}" in run.journal["q"][-1].text
    put(whole)
    run = start(skip="1.parquet")
    assert kept.table().num_rows == 6 + 3
    assert run.waiting_files == {"q": {}}
    assert run.journal["q"][-1].text == "all input there was is processed"
