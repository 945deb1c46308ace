"""Queries that streams connect run in one streaming query of Spark's, and each gives what it would give alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.control.commands import Command, give
from anabranch.drive.staging import FOLDER as STAGED
from anabranch.errors import FilesError, SessionError, SinkError
from anabranch.session import Run, Session
from anabranch.share.ways import Way, push_down_way, unshared_way
from anabranch.spark.host import Host
from anabranch.spark.sinks import ParquetSink
from anabranch.storage.filesystem import LocalFilesystem
from tests.support import oracle
from tests.support.feeding import finish, wait_until
from tests.support.pipelines import SPANNING, Piped, Target
from tests.support.workloads import Workload


def steps_of(run: Run) -> int:
    return min(len(steps) for steps in run.progress.values())


def test_workload(spark: SparkSession, tmp_path: Path) -> None:
    """Random queries, a group that spans slots, sinks of all kinds; stopped in the middle, and started again."""
    piped = Piped(Workload(22, 5, batches=6), str(tmp_path), "mixed", {"spans": SPANNING}, {"slots": 2})
    piped.targets["spans"] = Target("parquet", str(tmp_path / "spans"))
    piped.write(range(2))
    run = piped.run(spark)
    piped.check(batches=2)
    assert run.queries["spans"].distribution.groups_span_slots
    together = [sorted(pipeline.members) for pipeline in run.pipelines]
    piped.write(range(2, 6))
    run = piped.session(spark).start()
    try:
        assert [sorted(pipeline.members) for pipeline in run.pipelines] == together, "each stays where it is"
        assert len(spark.streams.active) == len(together) < len(piped.texts), "one streaming query for each pipeline"
        wait_until(lambda: steps_of(run))
    finally:
        run.stop()
    piped.run(spark)
    piped.check()


QUERIES = {
    "pairs": "SELECT i0.x AS x0, i1.s AS s1 FROM a [RANGE 2 SECONDS] AS i0, b [RANGE 5 SECONDS] AS i1 WHERE i0.k = i1.k",
    "counts": "SELECT i0.k, COUNT(*) AS n FROM b [RANGE 3 SECONDS] AS i0 GROUP BY i0.k",
    "triples": """SELECT i0.x AS x0, i1.x AS x1, i2.x AS x2 FROM a [RANGE 2 SECONDS] AS i0, b [RANGE 2 SECONDS] AS i1,
                  c [RANGE 2 SECONDS] AS i2 WHERE i0.k = i1.k AND i1.k = i2.k""",
    "spans": SPANNING,
}
"""Each stream connects two of them at least; their lateness differs, so that watermarks do."""
SEED = 35
BATCHES = 4


def piped_in(folder: Path, names: str = "pairs counts triples spans", batches: int = BATCHES, **kinds: str) -> Piped:
    """Some queries, in this order; sinks are of the kinds that are given, others keep results in memory."""
    chosen = {name: QUERIES[name] for name in names.split()}
    piped = Piped(Workload(SEED, 0, batches), str(folder), "files", chosen)
    for name in chosen:
        piped.targets[name] = Target(kinds.get(name, "memory"), str(folder / "out" / name))
    return piped


# Queries that come and go


def test_a_query_that_fails_by_itself_leaves(spark: SparkSession, tmp_path: Path) -> None:
    """It was the only one to read a stream, a DataFrame with a filter that goes ahead of the exchange. The other one stays
    exact, here and after a restart, to which the one that has left is a new query."""
    many = """SELECT i0.x AS x0, i1.x AS x1 FROM a [RANGE 50 SECONDS] AS i0, c [RANGE 50 SECONDS] AS i1
              WHERE i0.k = i1.k AND i1.x > -1000"""
    few = QUERIES["pairs"] + " AND i0.x = i1.x"
    piped = Piped(Workload(SEED, 0, BATCHES), str(tmp_path), "mixed", {"few": few, "many": many})
    most, given = (max(later - before for before, later in pairwise(piped.expected(name, n).total() for n in range(BATCHES)))
                   for name in ("few", "many"))  # fmt: skip
    assert 0 < most < given
    piped.write(range(BATCHES - 1))
    run = piped.run(spark, results_per_batch=most)
    ended = run.failures["many"]
    assert "results_per_batch" in ended.reason
    assert piped.target("many").found() <= piped.expected("many", ended.batch)
    piped.check(["few"], batches=BATCHES - 1)
    piped.write([BATCHES - 1])
    piped.run(spark, ["few"])
    piped.check(["few"])


def dropped(folder: Path, name: str) -> None:
    """Has a query leave with the next start."""
    give(LocalFilesystem(str(folder / "checkpoint")), Command("drop", name))


def test_queries_come_and_go(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A new query reads from the beginning, in a pipeline of its own, while the others stay where they are and go on. One
    that was dropped stays so until it is asked to start anew; one that is no longer declared runs on."""
    piped = piped_in(tmp_path, "pairs counts triples", triples="parquet")
    piped.write(range(2))
    session = piped.session(spark, ["counts"], share=False)
    for name in ("pairs", "triples"):
        session.query(name, piped.texts[name], piped.target(name).sink, share=True)
    run = session.start(availableNow=True)
    finish(run)
    assert [list(p.members) for p in run.pipelines] == [["counts"], ["pairs", "triples"]]
    piped.check(batches=2)

    piped.write(range(2, 3))
    with pytest.raises(SessionError, match=r"the checkpoint runs counts, whose sink cannot be made again .*: declare"):
        piped.session(spark, ["pairs"]).start(availableNow=True)
    dropped(tmp_path, "counts")
    run = piped.run(spark, ["pairs"])
    assert "query triples is not declared, and runs on; to have it leave: anabranch drop triples" in capfd.readouterr().err
    assert [list(p.members) for p in run.pipelines] == [["pairs", "triples"]], "nothing is left of the other pipeline"
    piped.check(["pairs", "triples"], batches=3)

    piped.write(range(3, BATCHES))
    without_c = Session(spark, str(tmp_path / "checkpoint"), slots=2)
    for name in "ab":
        columns, late = piped.streams[name].fields, f"{piped.streams[name].lateness_us} microseconds"
        without_c.stream(name, f"{tmp_path}/{name}/*.parquet", "ts", late, columns=columns, max_files_per_trigger=1)
    without_c.query("pairs", piped.texts["pairs"], piped.target("pairs").sink)
    dropped(tmp_path, "triples")
    with pytest.raises(SessionError, match="has read the stream c, for a query that is gone: declare the stream"):
        without_c.start(availableNow=True)
    piped.targets["counts"] = Target("memory", "")
    run = piped.run(spark, ["counts", "pairs"])
    assert [list(p.members) for p in run.pipelines] == [["pairs"], ["counts"]]
    assert "resumed" in [entry.event for entry in run.journal["pairs"]]
    piped.check(["counts", "pairs"])
    piped.check(["triples"], batches=3)

    piped.targets["triples"] = Target("memory", "")
    run = piped.run(spark, ["counts", "pairs", "triples"])
    assert [list(p.members) for p in run.pipelines] == [["pairs"], ["counts"]], "it stays dropped"
    run = piped.run(spark, ["counts", "pairs", "triples"], fresh=["triples"])
    assert [list(p.members) for p in run.pipelines] == [["pairs"], ["counts"], ["triples"]]
    piped.check()


KIN = {
    "every": "SELECT a.x AS x0, b.s AS s1 FROM a, b WHERE a.k = b.k WINDOW 4 SECONDS",
    "few": "SELECT a.x AS x0, b.x AS x1 FROM a, b WHERE a.k = b.k AND a.x > 3 WINDOW 2 SECONDS",
    "same": "SELECT b.x AS x1 FROM a, b WHERE a.k = b.k AND a.x > 3 WINDOW 3 SECONDS",
}


@pytest.mark.parametrize(("way", "apart"), [(push_down_way, 1), (unshared_way, 3)])
def test_queries_start_with_several_joins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, apart: int
) -> None:
    """A join for each set of filters, or pipelines of their own. They go on so when other figures are at hand."""
    case = Piped(Workload(5, 0, 4), str(tmp_path), "files", KIN)
    case.write(range(2))
    with monkeypatch.context() as patch:
        patch.setattr("anabranch.session_sharing.chosen_way", lambda load, *given: way(load))
        case.run(spark)
    case.check(batches=2)
    case.write(range(2, 4))
    run = case.run(spark)
    assert len(run.pipelines) == apart
    companies = {name: steering.execution.company for name, steering in run.queries.items()}
    assert companies == ({"every": "every", "few": "same", "same": "same"} if apart == 1 else dict.fromkeys(KIN, ""))
    case.check()


def test_a_query_is_dropped_while_it_runs(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It shares its join with another one, which stays exact. The last query of a pipeline cannot be dropped."""
    texts = {"long": QUERIES["pairs"], "short": QUERIES["pairs"].replace("5 SECONDS", "1 SECOND") + " AND i0.x > 2"}
    piped = Piped(Workload(SEED, 0, BATCHES), str(tmp_path), "files", texts)
    piped.write(range(BATCHES))
    run = piped.session(spark, ["long", "short"]).start(availableNow=True)
    with pytest.raises(SessionError, match="long cannot be dropped yet"):
        run.drop_query("long")
    while not run.progress["long"]:
        sleep(0.01)
    run.drop_query("long")
    with pytest.raises(SessionError, match="short is the last query of its pipeline: stop the run instead"):
        run.drop_query("short")
    finish(run)
    ended = run.failures["long"]
    assert ended.reason == "by request"
    assert piped.target("long").found() == piped.expected("long", ended.batch)
    piped.check(["short"])
    with pytest.raises(SessionError, match="query long has left its pipeline"):
        run.drop_query("long")
    run = piped.run(spark, ["long", "short"])
    assert [list(p.members) for p in run.pipelines] == [["short"]]
    assert "query long was dropped, and stays so; to have it start anew" in capfd.readouterr().err
    shared = {entry.event: entry.details.get("sharing") for entry in run.journal["short"]}
    assert shared["started"]["text"].startswith("one join for long and short, ")
    assert shared["resumed"] is None, "figures of the first start"


@pytest.mark.parametrize(("route", "first"), [("frames", "triples"), ("files", "pairs")])
def test_streams_keep_their_places_when_a_query_is_dropped(
    spark: SparkSession, tmp_path: Path, route: str, first: str
) -> None:
    """Spark counts sources by their places. With the first query gone b comes before a, and nobody reads c, if anybody did;
    Spark has read more of a than of b."""
    texts = {"first": QUERIES[first], "second": "SELECT i0.x AS x0, i1.x AS x1 FROM b [RANGE 5 SECONDS] AS i0, "
             "a [RANGE 5 SECONDS] AS i1 WHERE i0.k = i1.k"}  # fmt: skip
    piped = Piped(Workload(SEED, 0, 4), str(tmp_path), route, texts)
    given = {name: [batch.get(name, schema.empty_table()) for batch in piped.batches]
             for name, schema in piped.drawn.sources.items() if name in piped.streams}  # fmt: skip
    piped.write(range(2))
    piped.write([2], "ac")
    piped.run(spark)
    piped.write([2], "b")
    piped.write([3])
    dropped(tmp_path, "first")
    piped.run(spark, ["second"])
    piped.run(spark, ["second"])
    cuts = [{n: given[n][0] for n in "ab"}, {n: given[n][1] for n in "ab"}, {"a": given["a"][2]},
            {"a": given["a"][3], "b": given["b"][2]}, {"b": given["b"][3]}]  # fmt: skip
    wanted = oracle.expected(piped.queries["second"], cuts, {})
    assert wanted
    assert not (wrong := oracle.difference(piped.target("second").found(), wanted)), wrong


# Sinks that fail


def the_disk_is_full(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise FilesError("the disk is full")
    yield from rows


class Failing:
    """A function that fails, by itself or in a job that it runs, until it works."""

    def __init__(self, target: Target) -> None:
        self.target, self.way = target, "in a job"

    def deliver(self, results: DataFrame, number: int) -> None:
        if self.way == "in a job":
            results.mapInArrow(the_disk_is_full, results.schema).collect()
        if self.way == "by itself":
            raise OSError("the database is down")
        self.target.brought.take(results, number)


def test_what_waits_for_a_query_that_is_dropped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is noted: it is delivered to at the next start, which does not declare the query."""
    monkeypatch.setattr("anabranch.drive.delivery.FINISH_S", 0.5)
    piped = piped_in(tmp_path, pairs="parquet", counts="arrow")
    piped.write(range(2))
    publish = ParquetSink.publish

    def full(sink: ParquetSink, *given: Any) -> None:
        if sink.path.endswith("pairs"):
            raise OSError("the disk is full")
        publish(sink, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "publish", full)
        with pytest.raises(SinkError, match="the disk is full"):
            piped.run(spark, ["pairs", "counts"])
    assert not piped.target("pairs").found()
    dropped(tmp_path, "pairs")
    piped.write(range(2, BATCHES))
    run = piped.run(spark, ["counts"])
    assert [list(p.members) for p in run.pipelines] == [["counts"]]
    assert piped.target("pairs").found() == piped.expected("pairs", 2)
    piped.check(["counts"])


def test_a_sink_that_fails(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up nobody. When input has ended retries end, too, with its error. What waits is delivered at the next start
    that comes about, while others run, in order and once."""
    monkeypatch.setattr("anabranch.drive.delivery.LONGEST_PAUSE_S", 0.5)
    piped = piped_in(tmp_path, pairs="callable", counts="arrow", triples="parquet")
    failing = Failing(piped.targets["pairs"])
    piped.targets["pairs"].sink = failing.deliver
    piped.write(range(2))
    with pytest.raises(SinkError) as told:
        piped.run(spark)
    first, second = str(told.value).splitlines()
    assert first.startswith("the sink of query pairs (the function deliver) has failed ")
    assert first.endswith(" in batch 0: the disk is full"), "without the stacks of two languages"
    assert second == "what waits for it is delivered at the next start"
    assert isinstance(told.value.__cause__, FilesError)
    piped.check(["counts", "triples", "spans"], batches=2)

    def cannot_start(*given: Any) -> None:
        raise RuntimeError("Spark cannot start")

    # What waits is on its way when Spark cannot start: the session has failed then, and calls no sink any more.
    with monkeypatch.context() as patch:
        patch.setattr(Host, "start", cannot_start)
        with pytest.raises(RuntimeError, match="Spark cannot start"):
            piped.session(spark).start(availableNow=True)
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "deliver"])

    failing.way = "by itself"
    piped.write(range(2, BATCHES))
    run = piped.session(spark).start()
    try:
        wait_until(lambda: steps_of(run) >= BATCHES - 2)
        assert list(run.failing) == ["pairs"]
        assert "the database is down" in str(run.failing["pairs"])
        assert not piped.targets["pairs"].brought.order
        failing.way = ""
        wait_until(lambda: not run.pipeline("pairs").host.delivery.lines["pairs"].waiting)
        assert not run.failing
    finally:
        run.stop()
    piped.run(spark)
    piped.check()
    order = piped.targets["pairs"].brought.order
    assert order == sorted(set(order))
    assert order[0] == 0
    assert len(order) > 1
    assert not LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0")).list(STAGED)
