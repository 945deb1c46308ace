"""What sessions are told of overload, on Spark: pipelines by policy, policies that change, freshness by the wall clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import anabranch as ab
from anabranch.control.overload_notes import read_overload
from anabranch.errors import SessionError
from anabranch.plan.overload import Clock, Overload, Policy
from anabranch.run import Run
from anabranch.spark import host
from anabranch.spark.backlog import batches_waiting
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.feeding import wait_until

PAIRS = "SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS"
ADAPTING = Overload(Policy.ADAPT_JOINS, allowances={"a": 0.5})
COLUMNS = {"k": "BIGINT", "ts": "TIMESTAMP"}


def write(folder: Path, number: int, us: int = 0) -> None:
    for name in "ab":
        (folder / name).mkdir(exist_ok=True)
        times = pa.array([us + number * 1_000_000] * 4, pa.timestamp("us"))
        pq.write_table(pa.table({"k": [0, 1, 2, 3], "ts": times}), folder / name / f"{number}.parquet")


def session(spark: SparkSession, folder: Path, **options: Any) -> ab.Session:
    made = ab.Session(spark, str(folder / "c"), slots=2, **options)
    for name in "ab":
        made.stream(name, f"{folder}/{name}/*.parquet", "ts", columns=COLUMNS, max_files_per_trigger=1)
    return made


def run_to_end(made: ab.Session, **options: Any) -> Run:
    run = made.start(availableNow=True, **options)
    run.await_termination()
    return run


def policies(run: Run, name: str) -> list[str]:
    return [entry.text for entry in run.journal[name] if entry.event == "policy"]


def test_queries_have_pipelines_by_their_policies(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path, number)
    made = session(spark, tmp_path)
    out = {name: ab.sinks.memory() for name in ("exact", "lossy", "other")}
    none_of_a = Overload(Policy.ADAPT_JOINS, allowances={"a": 0})
    for name, sink in out.items():
        made.query(name, PAIRS, sink, overload=none_of_a if name == "lossy" else None)
    run = run_to_end(made)
    # Rows of a that come with the second batch do not look up, and so do not find those of b in the first.
    assert {name: sink.table().num_rows for name, sink in out.items()} == {"exact": 16, "lossy": 12, "other": 16}
    assert [[*pipeline.members] for pipeline in run.pipelines] == [["exact", "other"], ["lossy"]]
    assert [pipeline.host.driver.limiting.may_lose for pipeline in run.pipelines] == [False, True]
    assert run.pipelines[1].host.driver.limiting.clock is Clock.EVENT, "batches do not come by the clock"
    assert policies(run, "exact") == []
    assert policies(run, "lossy") == [
        "overload policy adapt joins, allowances a 0 instead of fall behind: results may be missing from now on, as many "
        "as progress tells"
    ]
    noted = [read_overload(LocalFilesystem(f"{tmp_path}/c/{pipeline.name}")) for pipeline in run.pipelines]
    assert noted == [Overload(), none_of_a]


def test_a_policy_changes_between_runs(spark: SparkSession, tmp_path: Path) -> None:
    """It is told in the journal; all queries of a pipeline must have the same; one that nobody declares has that of the
    others, or else keeps its own."""
    write(tmp_path, 0)
    made = session(spark, tmp_path)
    for name in ("one", "two"):
        made.query(name, PAIRS, ab.sinks.parquet(str(tmp_path / name)))
    run_to_end(made)

    mixed = session(spark, tmp_path)
    mixed.query("one", PAIRS, ab.sinks.parquet(str(tmp_path / "one")), overload=ADAPTING)
    mixed.query("two", PAIRS, ab.sinks.parquet(str(tmp_path / "two")))
    with pytest.raises(SessionError, match="one and two run in one pipeline, which has one overload policy"):
        run_to_end(mixed)

    write(tmp_path, 1)
    one = session(spark, tmp_path)
    one.query("one", PAIRS, ab.sinks.parquet(str(tmp_path / "one")), overload=ADAPTING)
    run = run_to_end(one)
    assert [*run.queries] == ["one", "two"]
    for name in ("one", "two"):
        assert policies(run, name)[-1].startswith("overload policy adapt joins, allowances a 0.5 instead of fall behind")

    nobody = session(spark, tmp_path)
    nobody.query("three", PAIRS, ab.sinks.memory())
    again = run_to_end(nobody)
    assert len(policies(again, "one")) == 1, "nothing has changed"
    assert [p.overload for p in again.pipelines] == [ADAPTING, Overload()]


def test_queries_that_come_have_their_policy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in the sources is known by Spark's own progress: of four files of each, a batch takes one."""
    waiting: list[float | None] = []
    monkeypatch.setattr(host, "batches_waiting", lambda told: waiting.append(batches_waiting(told)) or waiting[-1])
    for number in range(4):
        write(tmp_path, number)
    made = session(spark, tmp_path, overload=ADAPTING)
    made.query("first", PAIRS, ab.sinks.memory())
    run = made.start(processingTime="100 milliseconds")
    try:
        wait_until(lambda: bool(run.progress["first"]))
        assert run.pipelines[0].host.driver.limiting.clock is Clock.WALL
        with pytest.raises(SessionError, match="late cannot have history: the overload policy of first may lose results"):
            run.add_query("late", PAIRS, ab.sinks.memory(), history=True)
        with pytest.raises(SessionError, match="policy of first may lose results"):
            run.alter_query("first", PAIRS + " FRESHNESS 5 SECONDS")
        assert run.add_query("same", PAIRS, ab.sinks.memory()) == "same comes with the next batch"
        told = run.add_query("exact", PAIRS, ab.sinks.memory(), overload=Overload())
        assert told.startswith("exact has a pipeline of its own, from the beginning of its streams: under overload it is to")
        write(tmp_path, 4)
        wait_until(lambda: bool(run.progress.get("same")))
        wait_until(lambda: {2.0, 3.0} & {*waiting})  # when two were taken; the fifth is among them, or not yet
        assert [p.overload for p in run.pipelines] == [ADAPTING, Overload()]
    finally:
        run.stop()


def test_event_times_years_away_fail_with_both_times(spark: SparkSession, tmp_path: Path) -> None:
    """The same checkpoint goes on by event times then."""
    write(tmp_path, 0)
    sql = PAIRS + " FRESHNESS 5 SECONDS"
    made = session(spark, tmp_path)
    made.query("q", sql, ab.sinks.memory())
    run = made.start(processingTime="0 seconds")
    with pytest.raises(SessionError, match="the rows of a are of 1970-01-01 00:00:00 UTC at most, and the clock says 20"):
        run.await_termination()
    again = session(spark, tmp_path, overload=Overload(clock=Clock.EVENT))
    sink = ab.sinks.memory()
    again.query("q", sql, sink)
    run_to_end(again)
    assert sink.table().num_rows == 4
