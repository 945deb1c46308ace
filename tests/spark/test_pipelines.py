"""Queries that streams connect run in one streaming query of Spark's, and each gives what it would give alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.records import Commit, Control
from anabranch.drive import delivery
from anabranch.drive.delivery import Delivery
from anabranch.drive.runner import Computed
from anabranch.drive.staging import FOLDER as STAGED
from anabranch.errors import SessionError, SinkError
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.host import Host
from anabranch.storage.filesystem import LocalFilesystem
from tests.support import oracle
from tests.support.feeding import finish, wait_until
from tests.support.pipelines import SPANNING, Piped, Target
from tests.support.workloads import Workload

# Random workloads: the seed, how many queries it has, how streams are read, over how many slots.
CASES = [(25, 4, "frames", 2), (7, 6, "files", 3), (22, 5, "mixed", 2)]


def steps_of(run: Run) -> int:
    return min(len(steps) for steps in run.progress.values())


@pytest.mark.parametrize(("seed", "count", "route", "slots"), CASES)
def test_workload(spark: SparkSession, tmp_path: Path, seed: int, count: int, route: str, slots: int) -> None:
    """Random queries, a group that spans slots, sinks of all kinds; stopped in the middle, and started again."""
    piped = Piped(Workload(seed, count, batches=6), str(tmp_path), route, {"spans": SPANNING}, {"slots": slots})
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


def test_queries_that_do_not_share_give_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """With `share=False` each has a pipeline of its own, but for those of which the session is told otherwise."""
    piped = piped_in(tmp_path)
    piped.write(range(BATCHES))
    session = piped.session(spark, ["pairs", "counts"], share=False)
    for name in ("triples", "spans"):
        session.query(name, piped.texts[name], piped.target(name).sink, share=True)
    run = session.start(availableNow=True)
    finish(run)
    assert [list(p.members) for p in run.pipelines] == [["pairs"], ["counts"], ["triples", "spans"]]
    piped.check()


# Queries that come and go


def test_a_new_query_reads_from_the_beginning(spark: SparkSession, tmp_path: Path) -> None:
    """In a pipeline of its own, while the others stay where they are and go on."""
    piped = piped_in(tmp_path)
    piped.write(range(2))
    piped.run(spark, ["pairs", "counts"])
    piped.write(range(2, 4))
    run = piped.run(spark, ["triples", "pairs", "counts"])
    members = {pipeline.name: list(pipeline.members) for pipeline in run.pipelines}
    assert members == {"pipeline-0": ["pairs", "counts"], "pipeline-1": ["triples"]}
    assert [entry.event for entry in run.journal["pairs"]].count("resumed") == 1
    piped.check(["triples", "pairs", "counts"])


def test_a_query_that_is_no_longer_declared(spark: SparkSession, tmp_path: Path) -> None:
    """It is refused by name. Dropped, it is gone, and the others go on exactly."""
    piped = piped_in(tmp_path, triples="parquet")
    piped.write(range(2))
    piped.run(spark)
    piped.write(range(2, 3))
    with pytest.raises(SessionError, match=r"runs triples, spans too: .*start\(drop=\['triples', 'spans'\]\)"):
        piped.session(spark, ["pairs", "counts"]).start(availableNow=True)
    with pytest.raises(SessionError, match=r"other cannot be dropped: .* it runs pairs, counts, triples, spans"):
        piped.session(spark, ["pairs"]).start(drop=["other"], availableNow=True)
    left = ["pairs", "counts"]
    run = piped.run(spark, left, drop=["triples", "spans"])
    assert [list(p.members) for p in run.pipelines] == [left]
    piped.check(left, batches=3)
    piped.check(["triples"], batches=2)
    piped.write(range(3, 4))
    with pytest.raises(SessionError, match="quadruples cannot be dropped: the checkpoint runs no such query"):
        piped.session(spark, left).start(drop=["quadruples"], availableNow=True)
    piped.run(spark, left, drop=["triples"])  # it may be said again
    piped.check(left)


def test_a_query_that_is_dropped_is_gone_for_good(spark: SparkSession, tmp_path: Path) -> None:
    """Declared again it is a new one: it reads from the beginning, in a pipeline of its own."""
    piped = piped_in(tmp_path, "pairs triples")
    piped.write(range(2))
    piped.run(spark)
    piped.run(spark, ["pairs"], drop=["triples"])
    piped.write(range(2, BATCHES))
    piped.targets["triples"] = Target("memory", "")
    run = piped.run(spark)
    assert [list(p.members) for p in run.pipelines] == [["pairs"], ["triples"]]
    piped.check()


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
    piped.run(spark, ["second"], drop=["first"])
    piped.run(spark, ["second"])
    cuts = [{n: given[n][0] for n in "ab"}, {n: given[n][1] for n in "ab"}, {"a": given["a"][2]},
            {"a": given["a"][3], "b": given["b"][2]}, {"b": given["b"][3]}]  # fmt: skip
    wanted = oracle.expected(piped.queries["second"], cuts, {})
    assert wanted
    assert not (wrong := oracle.difference(piped.target("second").found(), wanted)), wrong


def test_a_stream_of_a_query_that_was_dropped_must_be_declared(spark: SparkSession, tmp_path: Path) -> None:
    piped = piped_in(tmp_path, "pairs triples")
    piped.write(range(1))
    piped.run(spark)
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2)
    for name in "ab":
        columns = piped.streams[name].fields
        session.stream(name, f"{tmp_path}/{name}/*.parquet", "ts", columns=columns, max_files_per_trigger=1)
    session.query("pairs", piped.texts["pairs"], sinks.memory())
    with pytest.raises(SessionError, match="has read the stream c, for a query that is gone: declare the stream"):
        session.start(drop=["triples"], availableNow=True)


def test_all_queries_of_a_pipeline_are_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """The next start is not asked about them again, and may declare them anew."""
    piped = piped_in(tmp_path, "pairs counts")
    piped.settings["share"] = False
    piped.write(range(2))
    piped.run(spark)
    piped.run(spark, ["counts"], drop=["pairs"])
    piped.write(range(2, BATCHES))
    piped.run(spark, ["counts"])
    piped.check(["counts"])
    piped.targets["pairs"] = Target("memory", "")
    piped.run(spark)
    piped.check()


# Migration


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
def test_one_query_migrates_while_others_run(spark: SparkSession, tmp_path: Path, strategy: str) -> None:
    piped = piped_in(tmp_path, batches=6)
    piped.write(range(3))
    run = piped.session(spark).start()
    try:
        wait_until(lambda: steps_of(run) >= 3)
        target = "((i1 i2) i0)" if run.plans["triples"] != "((i1 i2) i0)" else "((i0 i1) i2)"
        run.migrate("triples", target, strategy)
        piped.write(range(3, 6))
        wait_until(lambda: steps_of(run) >= 6)
    finally:
        run.stop()
    run = piped.run(spark)
    events = {name: [entry.event for entry in entries] for name, entries in run.journal.items()}
    assert "migrating" in events["triples"]
    assert not any("migrating" in events[name] for name in ("pairs", "counts", "spans"))
    piped.check()


# Sinks that fail or are slow


def fails_until(works: threading.Event, target: Target) -> Callable[[DataFrame, int], None]:
    def deliver(results: DataFrame, number: int) -> None:
        if not works.is_set():
            raise OSError("the database is down")
        target.brought.take(results, number)

    return deliver


def test_a_failing_callable_holds_up_nobody(spark: SparkSession, tmp_path: Path) -> None:
    """When it works again it gets what waits, in order and once."""
    piped, works = piped_in(tmp_path, pairs="callable", counts="arrow", triples="parquet"), threading.Event()
    piped.targets["pairs"].sink = fails_until(works, piped.targets["pairs"])
    piped.write(range(BATCHES))
    run = piped.session(spark).start()
    try:
        wait_until(lambda: steps_of(run) >= BATCHES)
        assert list(run.failing) == ["pairs"]
        assert "the database is down" in str(run.failing["pairs"])
        assert not piped.targets["pairs"].brought.order
        works.set()
        wait_until(lambda: not run.pipeline("pairs").host.delivery.lines["pairs"].waiting)
        assert not run.failing
    finally:
        run.stop()
    order = piped.targets["pairs"].brought.order
    assert order == sorted(set(order))
    assert len(order) > 1
    piped.run(spark)
    piped.check()


def test_a_sink_that_fails_to_the_end(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When input has ended retries end, too, with the sink's error. The next start delivers what waits, first."""
    monkeypatch.setattr(delivery, "FINISH_S", 0.5)
    piped, works = piped_in(tmp_path, pairs="callable", triples="parquet"), threading.Event()
    piped.targets["pairs"].sink = fails_until(works, piped.targets["pairs"])
    piped.write(range(2))
    with pytest.raises(SinkError, match=r"sink of query pairs fails in batch 0, .* OSError: the database is down") as error:
        piped.run(spark)
    assert isinstance(error.value.__cause__, OSError)
    piped.check(["counts", "triples", "spans"], batches=2)
    assert not piped.targets["pairs"].found()
    works.set()
    piped.write(range(2, BATCHES))
    run = piped.run(spark)
    assert not run.failing
    assert not LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0")).list(STAGED)
    order = piped.targets["pairs"].brought.order
    assert order == sorted(set(order))
    assert order[0] == 0
    piped.check()


def test_a_start_that_fails_delivers_no_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is on its way when Spark cannot start: the session has failed then, and calls no sink any more."""
    monkeypatch.setattr(delivery, "FINISH_S", 0.2)
    piped = piped_in(tmp_path, "pairs counts", pairs="callable")
    piped.targets["pairs"].sink = fails_until(threading.Event(), piped.targets["pairs"])
    piped.write(range(1))
    with pytest.raises(SinkError):
        piped.run(spark)

    def cannot_start(*given: Any) -> None:
        raise RuntimeError("Spark cannot start")

    monkeypatch.setattr(Host, "start", cannot_start)
    with pytest.raises(RuntimeError, match="Spark cannot start"):
        piped.session(spark).start(availableNow=True)
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "deliver-pairs"])


def test_a_slow_sink_delays_nobody(spark: SparkSession, tmp_path: Path) -> None:
    """It is called once; the others have everything before it returns."""
    piped, go_on, calls = piped_in(tmp_path, "pairs counts", counts="parquet"), threading.Event(), []

    def slow(results: pa.Table, number: int) -> None:
        calls.append(number)
        assert go_on.wait(60)
        piped.targets["pairs"].brought.take(results, number)

    piped.targets["pairs"] = Target("arrow", "")
    piped.targets["pairs"].sink = sinks.arrow(slow)
    piped.write(range(BATCHES))
    run = piped.session(spark).start(processingTime="50 milliseconds")
    try:
        wait_until(lambda: steps_of(run) >= BATCHES)
        assert calls == [min(calls)]
        waits = run.pipeline("pairs").host.delivery
        wait_until(lambda: not waits.lines["counts"].waiting)
        go_on.set()
        wait_until(lambda: not waits.lines["pairs"].waiting)
    finally:
        go_on.set()
        run.stop()
    piped.run(spark)
    piped.check()


def test_stop_does_not_wait_for_a_slow_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Not even if the pipeline does, because too much is staged. The next start delivers what waits."""
    piped, go_on, calls = piped_in(tmp_path, "pairs counts"), threading.Event(), []

    def slow(results: pa.Table, number: int) -> None:
        calls.append(number)
        go_on.wait(60)

    kept = piped.targets["pairs"].sink
    piped.targets["pairs"].sink = sinks.arrow(slow)
    piped.write(range(BATCHES))
    run = piped.session(spark, most_staged=1).start()
    try:
        wait_until(lambda: calls)
        stopping = threading.Thread(target=run.stop)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive(), "it waits for the sink"
    finally:
        go_on.set()
    piped.targets["pairs"].sink = kept
    wait_until(lambda: not run.pipelines[0].host.delivery.lines["pairs"].is_served)
    piped.run(spark)
    piped.check(["counts"])


# The driver dies


def test_a_driver_that_dies_before_it_delivers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one delivers from the staged files: the batch is not begun again, and no task runs for it."""
    piped = piped_in(tmp_path, pairs="callable", counts="parquet", triples="arrow")
    piped.write(range(2))
    offer: Any = Delivery.offer
    died: list[Commit] = []

    def dies(self: Delivery, commit: Commit) -> None:
        if commit.batch == 1 and not died:
            died.append(commit)
            raise RuntimeError("the driver dies")
        offer(self, commit)

    monkeypatch.setattr(Delivery, "offer", dies)
    with pytest.raises(RuntimeError, match="the driver dies"):
        piped.run(spark)
    folder = LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0"))
    assert max(commits_in(folder).numbers()) == 1
    assert folder.list(STAGED)
    begun = controls_in(folder).read(1)
    computed: list[int] = []
    compute: Any = Host._computed

    def counted(self: Host, out: DataFrame, pushed_in: Any, control: Control) -> Computed:
        computed.append(control.batch)
        return compute(self, out, pushed_in, control)  # type: ignore[no-any-return]

    monkeypatch.setattr(Host, "_computed", counted)
    piped.run(spark)
    assert computed == [2], "the closing step alone"
    assert controls_in(folder).read(1) == begun
    assert not folder.list(STAGED)
    piped.check(batches=2)


# Tables that change


def test_each_query_sees_the_table_that_its_own_watermark_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """The table is another one each time it is read, and says in which batch that was; the watermarks of the queries
    differ. Together they see what each sees alone."""
    texts = {
        "fast": "SELECT i0.x, t.version FROM a [RANGE 2 SECONDS] AS i0, a [NOW] AS i1, t WHERE i0.k = i1.k AND i0.j = t.k",
        "slow": "SELECT i0.x, t.version FROM a [RANGE 2 SECONDS] AS i0, c [NOW] AS i1, t WHERE i0.k = i1.k AND i0.j = t.k",
    }
    found: dict[str, dict[str, oracle.Bag]] = {}
    for names in (["fast", "slow"], ["fast"], ["slow"]):
        piped = Piped(Workload(SEED, 0, 8), str(tmp_path / "-".join(names)), "files", texts)
        piped.write(range(8))
        now: list[Run] = []

        def versions(now: list[Run] = now) -> DataFrame:
            batch = now[0].pipelines[0].host.driver.standing.batch + 1 if now and now[0].pipelines else 0
            return spark.createDataFrame([(k, batch) for k in range(4)], "k bigint, version bigint")

        session = Session(spark, str(tmp_path / "-".join(names) / "checkpoint"), slots=2)
        for stream in piped.streams.values():
            path, late = f"{piped.folder}/{stream.name}/*.parquet", f"{stream.lateness_us} microseconds"
            session.stream(stream.name, path, "ts", late, columns=stream.fields, max_files_per_trigger=1)
        session.table("t", versions, refresh="2 seconds")
        kept = {name: sinks.memory() for name in names}
        for name in names:
            session.query(name, texts[name], kept[name])
        run = session.start(availableNow=True)
        now.append(run)
        finish(run)
        assert len(run.pipelines) == 1
        found["-".join(names)] = {name: oracle.bag(kept[name].table()) for name in names}
    assert found["fast-slow"] == {**found["fast"], **found["slow"]}
    seen = {name: {row[1] for row in bag} for name, bag in found["fast-slow"].items()}
    assert all(len(versions) > 2 for versions in seen.values())
    assert seen["fast"] != seen["slow"]
