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
from anabranch.control.ledger import controls_in
from anabranch.control.progress import read_progress
from anabranch.errors import (
    AnabranchError,
    DuplicateNameError,
    ForeignStateError,
    MissingTimeColumnError,
    SchemaMismatchError,
    StateError,
    TooManyResultsError,
    UnsupportedFrameError,
)
from anabranch.plan.query import Field
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.create import QUERY_SETTINGS
from anabranch.spark.host import set_for_a_moment
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


# What can be a stream or a table


STATEFUL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "Aggregate": lambda rate: rate.groupBy("value").count().withColumn("timestamp", F.current_timestamp()),
    "Deduplicate": lambda rate: rate.withWatermark("timestamp", "1 second").dropDuplicates(["value"]),
    "DeduplicateWithinWatermark": lambda rate: (
        rate.withWatermark("timestamp", "1 second").dropDuplicatesWithinWatermark(["value"]).select("*")
    ),
    "GlobalLimit": lambda rate: rate.limit(3),
    "Join": lambda rate: rate.join(rate.select("value"), "value"),
}


def test_which_frames_are_taken(spark: SparkSession) -> None:
    """What is no frame at all is refused without Spark (`tests/test_session.py`)."""
    session, rate = Session(spark), spark.readStream.format("rate").load()
    stored = spark.range(3).withColumnRenamed("id", "value")
    fine = rate.withWatermark("timestamp", "1 second").where("value > 0").join(stored, "value").unionByName(rate)
    Session(spark).stream("s", fine.select((F.col("value") + 1).alias("v"), "timestamp"), "timestamp")
    Session(spark).table("t", spark.range(10).groupBy("id").count().limit(3))
    for operator, kept in STATEFUL.items():
        with pytest.raises(UnsupportedFrameError, match=rf"s has a stateful operator \(.*{operator}.*\)"):
            session.stream("s", kept(rate), "timestamp")
    with pytest.raises(UnsupportedFrameError, match=r"s is a batch DataFrame: .*readStream.*table\(\)"):
        session.stream("s", spark.range(3), "ts")
    with pytest.raises(UnsupportedFrameError, match=r"t is a streaming DataFrame: declare it with stream\(\)"):
        session.table("t", rate)
    with pytest.raises(MissingTimeColumnError, match="the time column nope is not among the columns of s"):
        session.stream("s", rate, "nope")
    with pytest.raises(MissingTimeColumnError, match="is BIGINT, not TIMESTAMP"):
        session.stream("s", rate, "value")
    with pytest.raises(SchemaMismatchError, match=r"s\.i is interval, .* cast it, or leave the column out"):
        session.stream("s", rate.selectExpr("timestamp", "make_interval(1) AS i"), "timestamp")


# A run, and what it leaves alone


def test_run(spark: SparkSession, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Results go to memory, to a table of Spark's, to a function and to the console; a declaration that was refused has
    changed nothing, and neither has the run anything that the user has set."""
    kept, seen, names = sinks.memory(), [], list(QUERY_SETTINGS)
    session = two_streams(spark, folder, kept)
    assert f"over {spark.sparkContext.defaultParallelism} slots (Spark's parallelism)" in session.explain("q", verbose=True)
    write_rows(folder, "other", [1, 1, 1])
    with pytest.raises(DuplicateNameError):
        session.stream("a", f"{folder}/other/*.parquet", "ts")
    with pytest.raises(DuplicateNameError):
        session.table("b", spark.range(1))
    session.query("stored", SQL, sinks.table("results_of_q"))
    session.query("shown", SQL)
    session.query("seen", SQL, lambda results, number: seen.append([results.sparkSession.conf.get(n) for n in names]))
    spark.sql(f"CREATE TABLE results_of_q (k BIGINT) USING parquet LOCATION '{folder}/table'")
    mine = dict(zip(names, ("true", "1234"), strict=True))
    try:
        with set_for_a_moment(spark, mine):
            run = session.start(availableNow=True)
            finish(run)
            assert {name: spark.conf.get(name) for name in mine} == mine
        assert spark.table("results_of_q").count() == kept.table().num_rows == 4
    finally:
        spark.sql("DROP TABLE results_of_q")
    assert seen == [list(QUERY_SETTINGS.values())], "results come in a session of their own"
    assert SparkSession.builder.getOrCreate()._jsparkSession.equals(spark._jsparkSession), "which nobody else is handed"
    printed = capfd.readouterr().out
    assert "shown, batch 0: 4 results\nk\n-\n1\n1\n1\n1\n\n" in printed
    assert run.plans == dict.fromkeys(("q", "stored", "shown", "seen"), "(a b)")
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


# Checkpoints and outputs of something else


def with_a_table(
    spark: SparkSession,
    folder: Path,
    version: int,
    window: str = "5 SECONDS",
    column: str = "v",
    columns_of_b: tuple[Field, ...] | None = None,
    **settings: Any,
) -> Session:
    """Two streams, and a table of four keys, each with the same version."""
    session = Session(spark, str(folder / "checkpoint"), **{"slots": 2, **settings})
    session.stream("a", f"{folder}/a/*.parquet", "ts")
    session.stream("b", f"{folder}/b/*.parquet", "ts", columns=columns_of_b)
    session.table("t", spark.sql(f"SELECT id AS k, {version}L AS {column} FROM range(1, 5)"))
    sql = f"SELECT t.{column} FROM a [RANGE {window}], b [RANGE 5 SECONDS], t WHERE a.k = b.k AND a.k = t.k"
    session.query("q", sql, sinks.parquet(str(folder / "out")) if column == "v" else sinks.memory())
    return session


def test_what_a_checkpoint_goes_on_with(spark: SparkSession, folder: Path) -> None:
    """The same query, over as many slots, into the same folder; with the table as it was read when it first started. A first
    batch that was never committed, because it gave more results than are allowed over all its slots, is no other query's:
    that one begins anew, in a folder of its own, and its table may have other columns and other rows."""
    checkpoint = folder / "checkpoint"
    for stream in "ab":
        write_rows(folder, stream, [1, 1, 2, 2, 3, 3, 4, 4])
    with pytest.raises(TooManyResultsError, match="query q gives more than 15 results in batch 0"):
        finish(with_a_table(spark, folder, 4, column="w", results_per_batch=15).start(availableNow=True))
    begun = LocalFilesystem(str(checkpoint / "pipeline-0"))
    assert controls_in(begun).find(0) is not None
    assert not begun.list("commit")
    umask = os.umask(0o022)
    try:
        run = with_a_table(spark, folder, version=5, results_per_batch=16).start(availableNow=True)
        finish(run)
    finally:
        os.umask(umask)
    assert [pipeline.name for pipeline in run.pipelines] == ["pipeline-1"]
    assert not (checkpoint / "pipeline-0").exists()
    assert pq.read_table(folder / "out")["v"].to_pylist() == [5] * 16
    check_who_may_read(folder)

    with pytest.raises(ForeignStateError) as refused:
        with_a_table(spark, folder, 6, window="6 SECONDS").start(availableNow=True)
    assert "-input a: a by ts [RANGE 5000000 us]" in str(refused.value)
    assert "+input a: a by ts [RANGE 6000000 us]" in str(refused.value)
    assert "use another checkpoint" in str(refused.value)
    columns = (Field("k", pa.int32()), Field("ts", pa.timestamp("us")))
    with pytest.raises(ForeignStateError, match=r"\+  keeps k int32"):
        with_a_table(spark, folder, 6, columns_of_b=columns).start(availableNow=True)
    with pytest.raises(StateError, match="start it with the same number of slots"):
        with_a_table(spark, folder, 6, slots=3).start(availableNow=True)
    # Batches are numbered by the checkpoint: those of another one must not be taken for its own.
    with pytest.raises(AnabranchError, match="holds the results of another run"):
        two_streams(spark, folder, sinks.parquet(str(folder / "out")), at="a new checkpoint").start(availableNow=True)
    assert not LocalFilesystem(str(checkpoint)).list(FOLDER), "a refused start holds nothing"

    write_rows(folder, "a", [1], 1)
    finish(with_a_table(spark, folder, version=6).start(availableNow=True))
    assert pq.read_table(folder / "out")["v"].to_pylist() == [5] * 18
    for path in [*checkpoint.glob("*/commit/*"), *checkpoint.glob("*/control/*")]:
        path.unlink()
    # Nothing is known of that pipeline's batches any more: it does not begin anew, with numbers from 0.
    with pytest.raises(AnabranchError, match=r"results of q have arrived .* but there is no whole commit"):
        with_a_table(spark, folder, version=6).start(availableNow=True)


def check_who_may_read(folder: Path) -> None:
    """State is for its owner alone; Spark's own files are below a folder that nobody else may enter. Results follow the
    umask."""
    checkpoint = folder / "checkpoint"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (checkpoint, checkpoint / "pipeline-1")] == [0o700, 0o700]
    ours = [p for p in (checkpoint / "pipeline-1").rglob("*") if "spark" not in p.parts and p.name != "files"]
    assert {"commit", "control", "state", "a"} <= {p.name for p in ours}
    assert not [p for p in ours if stat.S_IMODE(p.stat().st_mode) != (0o700 if p.is_dir() else 0o600)]
    results = [p for p in (folder / "out").rglob("*.parquet") if "batch=0" in p.parts]
    assert results
    assert {stat.S_IMODE(p.stat().st_mode) & 0o044 for p in results} == {0o044}


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
