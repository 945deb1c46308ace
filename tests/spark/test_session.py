"""Sessions: what is refused and how, what a session leaves alone, where tables come from."""

from __future__ import annotations

import gzip
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
from anabranch.errors import (
    AnabranchError,
    DuplicateNameError,
    ForeignStateError,
    InvalidNameError,
    MissingTimeColumnError,
    SchemaMismatchError,
    SessionError,
    StateError,
    SyntaxSqlError,
    TooManyResultsError,
    UnknownFormatError,
    UnknownStreamError,
)
from anabranch.plan.query import Field
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.create import QUERY_SETTINGS
from anabranch.spark.frames import UnsupportedFrameError
from anabranch.spark.host import Host
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.feeding import finish

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
    assert "over 4 slots (as asked)" in text
    assert "a.k = b.k in 4 parts" in text
    assert "replication 1.00" in text
    assert "rows of c go to 2 slots each" in session.explain("product")
    assert "replication 2.00" in session.explain("product")
    in_use = two_streams(spark, folder)
    assert f"over {spark.sparkContext.defaultParallelism} slots (Spark's parallelism)" in in_use.explain("q")


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


def test_the_session_of_the_user_stays_the_active_one(spark: SparkSession, folder: Path) -> None:
    """Results and closing steps have sessions of their own, which nobody is to be handed who asks for the one there is."""
    finish(two_streams(spark, folder, lambda results, number: results.count()).start(availableNow=True))
    assert SparkSession.builder.getOrCreate()._jsparkSession.equals(spark._jsparkSession)


def test_settings_of_the_session_stay(spark: SparkSession, folder: Path) -> None:
    names = list(QUERY_SETTINGS)
    before = [spark.conf.get(name) for name in names]
    spark.conf.set(names[0], "true")
    spark.conf.set(names[1], "1234")
    seen = []
    try:
        watch = lambda results, number: seen.append([results.sparkSession.conf.get(name) for name in names])  # noqa: E731
        finish(two_streams(spark, folder, watch).start(availableNow=True))
        assert [spark.conf.get(name) for name in names] == ["true", "1234"]
        assert seen == [list(QUERY_SETTINGS.values())], "results come in a session of their own"
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


@pytest.mark.parametrize("sink", ["parquet", "memory"])
def test_more_results_than_allowed(spark: SparkSession, folder: Path, sink: str) -> None:
    """Over all slots of a batch. Nothing of it is delivered or committed; with more allowed, all of it is."""
    for stream in "ab":
        write_rows(folder, stream, [1, 1, 2, 2, 3, 3, 4, 4])

    def target() -> Any:
        return sinks.parquet(str(folder / "out")) if sink == "parquet" else sinks.memory()

    for most in (3, 15):
        too_few = target()
        with pytest.raises(TooManyResultsError, match=f"query q gives more than {most} results in batch 0"):
            finish(two_streams(spark, folder, too_few, slots=2, results_per_batch=most).start(availableNow=True))
        assert not LocalFilesystem(str(folder / "checkpoint" / "pipeline-0")).list("commit")
        if sink == "parquet":
            assert not list((folder / "out").glob("batch=*"))
        else:
            assert not too_few.batches
    enough = target()
    finish(two_streams(spark, folder, enough, slots=2, results_per_batch=16).start(availableNow=True))
    found = pq.read_table(folder / "out") if sink == "parquet" else enough.table()
    assert sorted(found.column("k").to_pylist()) == [k for k in (1, 2, 3, 4) for _ in range(4)]


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "many"])
def test_a_bound_of_results_that_is_none(most: Any) -> None:
    with pytest.raises(SessionError, match="results_per_batch is a number of rows"):
        Session(results_per_batch=most)


def test_other_slots_are_refused(spark: SparkSession, folder: Path) -> None:
    finish(two_streams(spark, folder, sinks.memory(), slots=2).start(availableNow=True))
    with pytest.raises(StateError, match="start it with the same number of slots"):
        two_streams(spark, folder, sinks.memory(), slots=3).start(availableNow=True)
    assert not LocalFilesystem(str(folder / "checkpoint" / "pipeline-0")).list(FOLDER), "a refused start holds nothing"


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


# Formats of files


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


# Files that are not complete, or have changed


def test_files_that_are_not_complete_wait(spark: SparkSession, folder: Path) -> None:
    torn = folder / "a" / "1.parquet"
    write_rows(folder, "a", [1], number=1)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-4])
    os.utime(torn, (1001, 1001))
    kept = sinks.memory()
    run = two_streams(spark, folder, kept).start(availableNow=True)
    finish(run)
    assert len(kept.table()) == 4
    assert [(stream, w.paths) for stream, w in run.waiting_files["q"].items()] == [("a", [str(torn)])]
    assert run.progress["q"][-1].waiting == run.waiting_files["q"]
    assert f"is processed; a: 1 file waits to be complete: {torn}" in run.journal["q"][-1].text
    torn.write_bytes(whole)
    os.utime(torn, (1001, 1001))
    run = two_streams(spark, folder, kept).start(availableNow=True)
    finish(run)
    assert len(kept.table()) == 6
    assert run.waiting_files == {"q": {}}
    assert run.journal["q"][-1].text == "all input there was is processed"


def test_a_file_that_changed_can_be_skipped(spark: SparkSession, folder: Path) -> None:
    """The file was found and counted when its batch was yet to come. A damaged journal is no matter for going on."""
    for stream in "ab":
        write_rows(folder, stream, [1], number=1)
    kept, changed = sinks.memory(), folder / "a" / "1.parquet"

    def changing(results: DataFrame, number: int) -> None:
        kept.deliver(results.toArrow(), number)
        if number == 0:
            os.utime(changed, (1002, 1002))

    def start(skip: Sequence[str] = ()) -> Run:
        session = Session(spark, str(folder / "checkpoint"))
        session.stream("a", f"{folder}/a/*.parquet", "ts", max_files_per_trigger=1, skip=skip)
        session.stream("b", f"{folder}/b/*.parquet", "ts", max_files_per_trigger=1)
        session.query("q", SQL, changing)
        run = session.start(availableNow=True)
        finish(run)
        return run

    with pytest.raises(Exception, match=r"a/1\.parquet has changed since it was found"):
        start()
    for entry in (folder / "checkpoint" / "journal" / "q").iterdir():
        entry.write_bytes(b"damaged")
    run = start(skip="1.parquet")
    assert kept.table().num_rows == 2 * 2 + 2 * 1, "the file of b is joined with what came before"
    told = next(e for e in run.journal["q"] if e.event == "skipping")
    assert told.text == "files of a are left out, as asked: 1.parquet; what was read of them before stays"


def test_only_files_can_be_skipped(spark: SparkSession, rate: DataFrame) -> None:
    with pytest.raises(SessionError, match="s is a DataFrame: only files of a path can be skipped"):
        Session(spark).stream("s", rate, "timestamp", skip=["a.parquet"])


# Who may read


def test_state_is_for_its_owner_alone(spark: SparkSession, folder: Path) -> None:
    """Spark's own files are below a folder that nobody else may enter. Results follow the umask."""
    umask = os.umask(0o022)
    try:
        finish(two_streams(spark, folder, sinks.parquet(str(folder / "out"))).start(availableNow=True))
    finally:
        os.umask(umask)
    checkpoint = folder / "checkpoint"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (checkpoint, checkpoint / "pipeline-0")] == [0o700, 0o700]
    ours = [p for p in (checkpoint / "pipeline-0").rglob("*") if "spark" not in p.parts and p.name != "files"]
    assert {"commit", "control", "state", "a"} <= {p.name for p in ours}
    assert not [p for p in ours if stat.S_IMODE(p.stat().st_mode) != (0o700 if p.is_dir() else 0o600)]
    results = [p for p in (folder / "out").rglob("*.parquet") if "batch=0" in p.parts]
    assert results
    assert {stat.S_IMODE(p.stat().st_mode) & 0o044 for p in results} == {0o044}


# Names


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
