"""Sessions: what is refused and how, what a session leaves alone, where tables come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from anabranch.control.lease import FOLDER
from anabranch.errors import (
    AnabranchError,
    DuplicateNameError,
    ForeignStateError,
    MissingTimeColumnError,
    SchemaMismatchError,
    SessionError,
    StateError,
    SyntaxSqlError,
    UnknownStreamError,
)
from anabranch.plan.query import Field
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.frames import UnsupportedFrameError
from anabranch.spark.host import SETTINGS, Host
from anabranch.storage.filesystem import LocalFilesystem
from tests.spark.feeding import finish

SQL = "SELECT a.k FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"


def write_rows(folder: Path, stream: str, keys: list[int], number: int = 0) -> None:
    """Rows of one instant each, one file."""
    (folder / stream).mkdir(parents=True, exist_ok=True)
    times = pa.array([number * 1_000_000] * len(keys), pa.timestamp("us", "UTC"))
    path = folder / stream / f"{number}.parquet"
    pq.write_table(pa.table({"k": pa.array(keys, pa.int64()), "ts": times}), path)
    os.utime(path, (1000 + number, 1000 + number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two streams of one file each, with 2 × 2 results."""
    for stream in "ab":
        write_rows(tmp_path, stream, [1, 1])
    return tmp_path


def two_streams(spark: SparkSession, folder: Path, sink: Any = None, sql: str = SQL, **options: Any) -> Session:
    session = Session(spark, str(folder / "checkpoint"), **options)
    for stream in "ab":
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts")
    session.query("q", sql, sink)
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


@pytest.mark.parametrize("operator", STATEFUL)
def test_stateful_operators_upstream(spark: SparkSession, rate: DataFrame, operator: str) -> None:
    with pytest.raises(UnsupportedFrameError, match=rf"s has a stateful operator \(.*{operator}.*\)"):
        Session(spark).stream("s", STATEFUL[operator](rate), "timestamp")


def test_stateless_operators_upstream(spark: SparkSession, rate: DataFrame) -> None:
    stored = spark.range(3).withColumnRenamed("id", "value")
    fine = rate.withWatermark("timestamp", "1 second").where("value > 0").join(stored, "value").unionByName(rate)
    Session(spark).stream("s", fine.select((F.col("value") + 1).alias("v"), "timestamp"), "timestamp")


def test_a_table_may_be_aggregated(spark: SparkSession) -> None:
    Session(spark).table("t", spark.range(10).groupBy("id").count().limit(3))


def test_a_batch_frame_is_no_stream(spark: SparkSession) -> None:
    with pytest.raises(UnsupportedFrameError, match=r"s is a batch DataFrame: .*readStream.*table\(\)"):
        Session(spark).stream("s", spark.range(3), "ts")


def test_a_streaming_frame_is_no_table(spark: SparkSession, rate: DataFrame) -> None:
    with pytest.raises(UnsupportedFrameError, match=r"t is a streaming DataFrame: declare it with stream\(\)"):
        Session(spark).table("t", rate)


@pytest.mark.parametrize("thing", [None, [1], pa.table({"a": [1]})])
def test_what_is_no_frame(spark: SparkSession, thing: Any) -> None:
    with pytest.raises(UnsupportedFrameError, match=f"is a {type(thing).__name__}, not a Spark DataFrame"):
        Session(spark).table("t", thing)
    with pytest.raises(UnsupportedFrameError, match="not a Spark DataFrame"):
        Session(spark).stream("s", thing, "ts")


def test_connect_frames_are_refused(spark: SparkSession) -> None:
    class ConnectFrame:
        """A DataFrame of Spark Connect is told by where its class lives."""

    ConnectFrame.__module__ = "pyspark.sql.connect.dataframe"
    with pytest.raises(UnsupportedFrameError, match=r"Spark Connect.*use a classic SparkSession"):
        Session(spark).stream("s", ConnectFrame(), "ts")  # type: ignore[arg-type]


def test_columns_of_a_stream(spark: SparkSession, rate: DataFrame) -> None:
    session = Session(spark)
    with pytest.raises(MissingTimeColumnError, match="the time column nope is not among the columns of s"):
        session.stream("s", rate, "nope")
    with pytest.raises(MissingTimeColumnError, match="is BIGINT, not TIMESTAMP"):
        session.stream("s", rate, "value")
    with pytest.raises(SyntaxSqlError, match="'soon' is not a length of time"):
        session.stream("s", rate, "timestamp", "soon")
    with pytest.raises(SchemaMismatchError, match=r"s\.i is interval, .* cast it, or leave the column out"):
        session.stream("s", rate.selectExpr("timestamp", "make_interval(1) AS i"), "timestamp")


def test_names_are_taken_once(spark: SparkSession, folder: Path) -> None:
    session = two_streams(spark, folder)
    with pytest.raises(DuplicateNameError, match="a exists already"):
        session.stream("a", f"{folder}/b/*.parquet", "ts")
    with pytest.raises(DuplicateNameError, match="b exists already"):
        session.table("b", spark.range(1))
    with pytest.raises(SessionError, match="there is a query q already"):
        session.query("q", SQL)


def test_a_refused_declaration_changes_nothing(spark: SparkSession, folder: Path) -> None:
    kept = sinks.memory()
    session = two_streams(spark, folder, kept)
    write_rows(folder, "other", [1, 1, 1])
    with pytest.raises(DuplicateNameError):
        session.stream("a", f"{folder}/other/*.parquet", "ts")
    with pytest.raises(DuplicateNameError):
        session.table("b", spark.range(1))
    finish(session.start(availableNow=True))
    assert kept.table().num_rows == 4


def test_queries_that_are_not_there(spark: SparkSession) -> None:
    session = Session(spark)
    with pytest.raises(SessionError, match="no query to start"):
        session.start()
    with pytest.raises(SessionError, match="there is no query q; declared are: none"):
        session.explain("q")
    with pytest.raises(UnknownStreamError, match="no stream or table a"):
        session.query("q", SQL)
    with pytest.raises(SessionError, match="s has no FROM path"):
        session.script("CREATE STREAM s (ts TIMESTAMP) TIME ts; SELECT s.ts FROM s [NOW]")


def test_a_path_without_files(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnabranchError, match="no parquet file with rows"):
        Session(spark).stream("s", f"{tmp_path}/*.parquet", "ts")


# What a session says


def test_explain(spark: SparkSession, folder: Path) -> None:
    session = two_streams(spark, folder, slots=4)
    write_rows(folder, "c", [1])
    session.stream("c", f"{folder}/c/*.parquet", "ts")
    session.query("product", "SELECT a.k FROM a [NOW], c [NOW]", plan="(c a)")
    text = session.explain("q")
    assert "over 4 slots" in text
    assert "a.k = b.k in 4 parts" in text
    assert "replication 1.00" in text
    assert "rows of c go to 2 slots each" in session.explain("product")
    assert "replication 2.00" in session.explain("product")


def test_run(spark: SparkSession, folder: Path) -> None:
    run = two_streams(spark, folder, sinks.memory()).start(availableNow=True)
    finish(run)
    assert run.plans == {"q": "(a b)"}
    assert [e.event for e in run.journal["q"]] == ["started", "ended"]
    assert run.journal["q"][0].details["plan"] == run.plans["q"]
    first, closing = run.progress["q"]
    assert (first.batch, first.trigger, first.rows, first.results) == (0, 0, {"a": 2, "b": 2}, 4)
    assert (closing.batch, closing.trigger, closing.rows, closing.results) == (1, 0, {"a": 0, "b": 0}, 0)
    assert first.state_rows == 4
    assert first.state_bytes > 0


def test_settings_of_the_session_stay(spark: SparkSession, folder: Path) -> None:
    names = list(SETTINGS)
    before = [spark.conf.get(name) for name in names]
    spark.conf.set(names[0], "true")
    spark.conf.set(names[1], "1234")
    seen = []
    try:
        watch = lambda results, number: seen.append([results.sparkSession.conf.get(name) for name in names])  # noqa: E731
        finish(two_streams(spark, folder, watch).start(availableNow=True))
        assert [spark.conf.get(name) for name in names] == ["true", "1234"]
        assert seen == [list(SETTINGS.values())] * 2, "a query has its own, in batches and in its closing step"
    finally:
        for name, value in zip(names, before, strict=True):
            spark.conf.set(name, value or "")


def test_times_do_not_depend_on_the_zone_of_the_session(spark: SparkSession, folder: Path) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        kept = sinks.memory()
        session = Session(spark, str(folder / "checkpoint"))
        for stream in "ab":
            frame = spark.readStream.schema("k bigint, ts timestamp").parquet(f"{folder}/{stream}")
            session.stream(stream, frame, "ts")
        session.table("t", spark.sql("SELECT 1L AS k, timestamp '1970-01-01 00:00:00 UTC' AS at"))
        sql = "SELECT a.ts, t.at, RESULT_TIME AS r FROM a [NOW], b [NOW], t WHERE a.k = b.k AND t.k = a.k"
        session.query("q", f"{sql} AND a.ts = t.at", kept)
        finish(session.start(availableNow=True))
        found = kept.table()
        assert found.num_rows == 4
        assert {v.as_py().timestamp() for c in found.columns for v in c} == {0.0}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


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


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "arrow"])
def test_tables_of_a_script(spark: SparkSession, folder: Path, format: str) -> None:
    """A table is read like a stream of the same format, in its declared types."""
    write_table(folder / f"t.{format}", format)
    kept, session = sinks.memory(), Session(spark, str(folder / "checkpoint"))
    session.script(
        f"""CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts FROM '{folder}/a/*.parquet';
        CREATE TABLE t (k BIGINT, name STRING, day DATE) FROM '{folder}/t.{format}';
        CREATE QUERY q AS SELECT a.k, t.name, t.day FROM a [NOW], t WHERE a.k = t.k""",
        lambda name: kept,
    )
    finish(session.start(availableNow=True))
    assert kept.table().to_pylist() == [{"k": 1, "name": "one", "day": TABLE["day"][0].as_py()}] * 2


def test_table_is_read_again_until_the_first_commit(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that came to nothing leaves nothing behind: the next one may read other columns of other rows."""

    def session(column: str, rows: DataFrame, sink: Any) -> Session:
        made = Session(spark, str(folder / "checkpoint"))
        made.stream("a", f"{folder}/a/*.parquet", "ts")
        made.table("t", rows)
        made.query("q", f"SELECT t.{column} FROM a [NOW], t WHERE a.k = t.k", sink)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(Host, "_attempts", lambda self, reports: 1 / 0)
        run = session("name", spark.createDataFrame([(1, "one")], "k bigint, name string"), None).start(
            availableNow=True
        )
        with pytest.raises(Exception, match="division by zero"):
            run.await_termination()
        run.stop()
    kept = sinks.memory()
    rows = spark.createDataFrame([(1, "new", 5)], "k bigint, name string, v bigint")
    finish(session("v", rows, kept).start(availableNow=True))
    assert kept.table().to_pylist() == [{"v": 5}] * 2


def test_a_table_keeps_its_first_rows(spark: SparkSession, folder: Path) -> None:
    """It was read when the query first started."""

    def run(rows: str, sink: Any) -> None:
        session = Session(spark, str(folder / "checkpoint"))
        session.stream("a", f"{folder}/a/*.parquet", "ts")
        session.table("t", spark.sql(rows))
        session.query("q", "SELECT t.v FROM a [RANGE 1 DAY], t WHERE a.k = t.k", sink)
        finish(session.start(availableNow=True))

    kept = sinks.memory()
    run("SELECT 1L AS k, 5L AS v", kept)
    write_rows(folder, "a", [1], 1)
    run("SELECT 1L AS k, 6L AS v", kept)
    assert kept.table()["v"].to_pylist() == [5, 5, 5]


# Types


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("struct(1 AS x, 2 AS y)", "struct(1 AS x_int_y)"),
        ("named_struct('x y', 1, 'ü-z', 2)", "named_struct('x y', 3, 'ü-z', 4)"),
        ("named_struct('x y', 1)", "7"),
        ("map('a', array(1, NULL))", "array(timestamp_seconds(1))"),
    ],
)
def test_structs_of_any_names(spark: SparkSession, tmp_path: Path, left: str, right: str) -> None:
    session, kept = Session(spark, str(tmp_path / "checkpoint")), sinks.memory()
    for name, column in (("a", left), ("b", right)):
        path = str(tmp_path / name)
        spark.sql(f"SELECT 0L AS k, {column} AS c, timestamp_seconds(5) AS ts").write.parquet(path)
        session.stream(name, spark.readStream.schema(spark.read.parquet(path).schema).parquet(path), "ts")
    session.query("q", "SELECT a.c AS x, b.c AS y FROM a [NOW], b [NOW] WHERE a.k = b.k", kept)
    finish(session.start(availableNow=True))
    assert kept.table().to_pylist() == spark.sql(f"SELECT {left} AS x, {right} AS y").toArrow().to_pylist()


def test_columns_with_odd_names(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    spark.sql("SELECT 0L AS `the key`, 7 AS `odd.name`, timestamp_seconds(5) AS ts").write.parquet(path)
    session, kept = Session(spark, str(tmp_path / "checkpoint")), sinks.memory()
    session.stream("a", spark.readStream.schema(spark.read.parquet(path).schema).parquet(path), "ts")
    sql = 'SELECT x."odd.name" AS n FROM a [NOW] AS x, a [NOW] AS y WHERE x."the key" = y."the key"'
    session.query("q", sql, kept)
    finish(session.start(availableNow=True))
    assert kept.table().to_pylist() == [{"n": 7}]


# Checkpoints and outputs of something else


def test_a_changed_query_is_refused_with_the_difference(spark: SparkSession, folder: Path) -> None:
    finish(two_streams(spark, folder, sinks.memory()).start(availableNow=True))
    with pytest.raises(ForeignStateError) as refused:
        two_streams(spark, folder, sinks.memory(), SQL.replace("a [RANGE 5", "a [RANGE 6")).start(availableNow=True)
    assert "-input a: a (k int64, ts timestamp[us]) [RANGE 5000000 us]" in str(refused.value)
    assert "+input a: a (k int64, ts timestamp[us]) [RANGE 6000000 us]" in str(refused.value)
    assert "use another checkpoint" in str(refused.value)
    finish(two_streams(spark, folder, sinks.memory()).start(availableNow=True))


def test_a_changed_schema_is_refused_with_the_difference(spark: SparkSession, folder: Path) -> None:
    finish(two_streams(spark, folder, sinks.memory()).start(availableNow=True))
    session = Session(spark, str(folder / "checkpoint"))
    session.stream("a", f"{folder}/a/*.parquet", "ts")
    columns = (Field("k", pa.int64()), Field("extra", pa.string()), Field("ts", pa.timestamp("us")))
    session.stream("b", f"{folder}/b/*.parquet", "ts", columns=columns)
    session.query("q", SQL, sinks.memory())
    with pytest.raises(ForeignStateError, match=r"\+input b: b \(k int64, extra string"):
        session.start(availableNow=True)


def test_other_slots_are_refused(spark: SparkSession, folder: Path) -> None:
    finish(two_streams(spark, folder, sinks.memory(), slots=2).start(availableNow=True))
    with pytest.raises(StateError, match="start it with the same number of slots"):
        two_streams(spark, folder, sinks.memory(), slots=3).start(availableNow=True)
    assert not LocalFilesystem(str(folder / "checkpoint" / "q")).list(FOLDER), "a refused start holds nothing"


def test_output_of_another_run_is_refused(spark: SparkSession, folder: Path) -> None:
    """Batches are numbered by the checkpoint: those of another one must not be taken for its own."""
    out = sinks.parquet(str(folder / "out"))
    finish(two_streams(spark, folder, out).start(availableNow=True))
    session = Session(spark, str(folder / "a new checkpoint"))
    for stream in "ab":
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts")
    session.query("q", SQL, out)
    with pytest.raises(AnabranchError, match="out"):
        session.start(availableNow=True)


# Sinks


def test_each_sink_says_its_guarantee(tmp_path: Path) -> None:
    every = [sinks.memory(), sinks.parquet(str(tmp_path)), sinks.console(), sinks.table("t"), sinks.as_sink(print)]
    said = [sink.guarantee for sink in every]
    assert ["exactly once" in s for s in said] == [True, True, False, False, False]
    assert all("at least once" in s for s in said[2:])


def test_console(spark: SparkSession, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    finish(two_streams(spark, folder).start(availableNow=True))
    printed = capfd.readouterr().out
    assert "batch 0" in printed
    assert printed.count("|1  |") == 4


def test_table_sink(spark: SparkSession, folder: Path) -> None:
    spark.sql(f"CREATE TABLE results_of_q (k BIGINT) USING parquet LOCATION '{folder}/table'")
    try:
        finish(two_streams(spark, folder, sinks.table("results_of_q")).start(availableNow=True))
        assert spark.table("results_of_q").count() == 4
    finally:
        spark.sql("DROP TABLE results_of_q")
