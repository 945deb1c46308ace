"""The protocol of a batch, cut between any two of its writes: every result arrives, exactly once where that is promised.

A small model of Spark brings the triggers: it remembers which one it has planned before its batch runs, and that it is done
after it; one that is not done it brings again. The host, the tasks, the records and the sinks are the real ones. Without
Spark the driver dies at every put (`tests/drive/test_driver.py`); here it does where tasks of Spark's come after it, and
within what the sink does.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.control.ledger import Ledger, commits_in, controls_in
from anabranch.errors import AnabranchError, CheckpointBusyError, SinkError, StateError
from anabranch.plan.distribution import all_inputs
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.host import Host
from anabranch.spark.pack import pack
from anabranch.spark.types import zoned_schema
from anabranch.storage.filesystem import LocalFilesystem
from tests.support import oracle
from tests.support.feeding import Feed, bag, expected, read_parquet, wait_until
from tests.support.scenarios import Scenario


class Cut(BaseException):
    """The driver dies here."""


class Died(AnabranchError):  # noqa: N818
    """What a driver that died looks like from outside."""


@dataclass
class NoQuery:
    """In the place of Spark's streaming query: the model brings the triggers."""

    isActive: bool = False  # noqa: N815

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        pass


@dataclass
class Model:
    """Spark's contract, and what a driver does on top of it."""

    spark: SparkSession
    feed: Feed
    sink: Any
    planned: int = -1
    done: int = -1
    computed: list[int] = field(default_factory=list)
    """The batches whose tasks ran."""

    @property
    def scenario(self) -> Scenario:
        return self.feed.scenario

    def run(self, triggers: int, closes: bool = True, plan: int = 0) -> None:
        """A driver from its start to the end of the input there is; or to where it dies."""
        try:
            run = self.feed.session(self.spark, self.sink, plan, slots=2).start(availableNow=True)
        except Cut:
            raise Died from None
        host, held = run.pipeline("q").host, run.holder
        try:
            for trigger in range(self.done + 1, triggers):
                self.planned = trigger
                self._step(host, trigger)
                self.done = trigger
            if closes:
                host.close(self.spark)
        except Cut:
            raise Died from None
        finally:
            held.release()

    def _step(self, host: Host, trigger: int) -> None:
        frames, query = [], host.driver.queries["q"]
        spread = [(all_inputs(query.query), query.distribution.exchange)]
        for source in query.query.base_sources:
            rows = self.scenario.arrow_batches[trigger][source.name]
            frame = self.spark.createDataFrame(rows.cast(zoned_schema(rows.schema)))
            frames.append(pack(frame, host.task.packing, spread, source))
        try:
            # Nothing is pushed down: the rows are not those of a streaming query.
            host.step(host.dataflow(reduce(DataFrame.unionByName, frames), has_rows=False), trigger)
        except RuntimeError:
            assert host.error is not None
            raise host.error from None


class Collector:
    """A sink of at least once."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.brought = scenario, defaultdict[int, list[oracle.Bag]](list)

    def __call__(self, results: DataFrame, number: int) -> None:
        self.brought[number].append(bag(results.toArrow(), self.scenario))

    def total(self) -> oracle.Bag:
        assert all(again == first for first, *others in self.brought.values() for again in others), "a batch is another"
        return sum((bags[-1] for bags in self.brought.values()), oracle.Bag())


@dataclass
class Scissors:
    """Kills the driver at one place of one batch, once."""

    place: str
    batch: int
    is_used: bool = False

    def cut(self, place: str, batch: int) -> None:
        if (place, batch) == (self.place, self.batch) and not self.is_used:
            self.is_used = True
            raise Cut(f"{place} of batch {batch}")


PLACES = ("commit torn", "commit after", "publish halfway", "publish gathered", "deliver after")
PLACES_OF_A_FUNCTION = ("commit torn", "commit after", "delivered before")


@pytest.fixture
def model(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Model]:
    monkeypatch.setattr(Host, "start", lambda self, rows, name, folder, trigger: NoQuery())
    # Calls of sinks are made by the driver itself, which may die in them.
    monkeypatch.setattr("anabranch.session._patience_s", lambda trigger: None)
    scenario = groups_that_wait()

    def made(sink: Any) -> Model:
        feed = Feed(scenario, str(tmp_path), "frames")
        feed.write(range(len(scenario.batches)))
        return Model(spark, feed, sink)

    return made


def groups_that_wait() -> Scenario:
    """Groups of a join: those at the last instants are final in the closing step alone."""
    return Scenario(
        """
    CREATE STREAM a (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k AS k, sum(a.v) AS s, count(*) AS n, RESULT_TIME AS at
    FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k GROUP BY a.k
    """,
        plans=("(a b)", "(b a)"),
        batches=tuple(
            {
                "a": [(i % 3, 10 * n + i, n * 1_000_000 + i * 90_000) for i in range(8)],
                "b": [(i % 3, n * 1_000_000 + i * 110_000) for i in range(8)],
            }
            for n in range(3)
        ),
    )


@contextlib.contextmanager
def cutting(scissors: Scissors) -> Iterator[None]:
    """Has the driver die at a place."""
    write, publish, rename = Ledger.write, sinks.ParquetSink.publish, os.rename

    def cut_write(ledger: Any, number: int, record: Any) -> None:
        kind = ledger._folder.partition("/")[0]
        if kind not in ("control", "commit", "delivered"):
            write(ledger, number, record)
            return
        scissors.cut(f"{kind} before", number)
        write(ledger, number, record)
        try:
            scissors.cut(f"{kind} torn", number)
        except Cut:
            whole = ledger._filesystem.get(ledger.path(number)).to_pybytes()
            ledger._filesystem.put(ledger.path(number), [whole[: len(whole) // 2]])
            raise
        scissors.cut(f"{kind} after", number)

    def cut_publish(sink: Any, files: Any, number: int, token: str) -> None:
        scissors.cut("deliver before", number)
        moves = []

        def cut_rename(old: Any, new: Any) -> None:
            is_last = os.path.basename(str(new)).startswith("batch=")
            if is_last:
                scissors.cut("publish gathered", number)
            rename(old, new)
            moves.append(new)
            if not is_last:
                scissors.cut("publish halfway", number)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "rename", cut_rename)
            publish(sink, files, number, token)
        scissors.cut("deliver after", number)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "write", cut_write)
        patched.setattr(sinks.ParquetSink, "publish", cut_publish)
        yield


BATCH, CLOSING = 1, 3
"""The batch of a trigger, and the closing step."""


@pytest.mark.parametrize("batch", [BATCH, CLOSING])
def test_a_parquet_sink_gets_everything_once(model: Callable[[Any], Model], tmp_path: Path, batch: int) -> None:
    """One checkpoint after the other is cut at each place, then goes on."""
    for place in PLACES:
        folder = tmp_path / place.replace(" ", "-")
        run = model(sinks.parquet(str(folder / "out")))
        run.feed = Feed(run.scenario, str(folder), "frames")
        run.feed.write(range(1))
        scissors = Scissors(place, batch)
        with cutting(scissors), pytest.raises((Cut, Died)):
            run.run(3)
        assert scissors.is_used, place
        run.run(3, closes=batch != CLOSING)
        found = bag(read_parquet(str(folder / "out"), run.scenario), run.scenario)
        assert not (wrong := oracle.difference(found, expected(run.scenario))), f"{place}: {wrong}"
        assert not leftovers(folder / "out"), place


def leftovers(out: Path) -> list[str]:
    """Staged files that nobody will publish any more."""
    folder = out / "_staging"
    return os.listdir(folder) if folder.is_dir() else []


@pytest.mark.parametrize("batch", [BATCH, CLOSING])
def test_a_function_gets_everything(model: Callable[[Any], Model], tmp_path: Path, batch: int) -> None:
    """At least once, with the same number and the same multiset each time; a closing step too."""
    for place in PLACES_OF_A_FUNCTION:
        folder = tmp_path / place.replace(" ", "-")
        run = model(None)
        sink = run.sink = Collector(run.scenario)
        run.feed = Feed(run.scenario, str(folder), "frames")
        run.feed.write(range(1))
        with cutting(Scissors(place, batch)), pytest.raises((Cut, Died)):
            run.run(3)
        run.run(3, closes=batch != CLOSING)
        assert not (wrong := oracle.difference(sink.total(), expected(run.scenario))), f"{place}: {wrong}"
        again = [number for number, brought in sink.brought.items() if len(brought) > 1]
        assert again == ([batch] if place == "delivered before" else []), place


def test_a_sink_that_fails_in_the_closing_step(model: Callable[[Any], Model]) -> None:
    run = model(None)
    inner, fails = Collector(run.scenario), [True]

    def sink(results: DataFrame, number: int) -> None:
        if number == CLOSING and fails:
            raise OSError("the disk is full")
        inner(results, number)

    run.sink = sink
    with pytest.raises(SinkError, match=r"the sink of query q fails in batch 3, .*the disk is full"):
        run.run(3)
    assert oracle.difference(inner.total(), expected(run.scenario)), "the closing step has results of its own"
    fails.clear()
    run.run(3, closes=False)
    assert not (wrong := oracle.difference(inner.total(), expected(run.scenario))), wrong


# What a checkpoint goes on with


def test_a_commit_is_never_superseded(model: Callable[[Any], Model], tmp_path: Path) -> None:
    """A batch whose results a function has not got is delivered from its files, and its commit stays as it is."""
    run = model(Collector(groups_that_wait()))
    with cutting(Scissors("commit after", BATCH)), pytest.raises((Cut, Died)):
        run.run(3)
    commits = tmp_path / "checkpoint" / "pipeline-0" / "commit"
    before = {path.name: path.read_bytes() for path in commits.iterdir()}
    run.run(2, closes=False)
    assert before.items() <= {path.name: path.read_bytes() for path in commits.iterdir()}.items()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def newest(folder: Path) -> Path:
    return max(path for path in folder.iterdir())


def test_a_flipped_bit_in_the_newest_commit_is_refused(model: Callable[[Any], Model], tmp_path: Path) -> None:
    run = model(sinks.parquet(str(tmp_path / "out")))
    run.run(2, closes=False)
    damaged = newest(tmp_path / "checkpoint" / "pipeline-0" / "commit")
    published = read_parquet(str(tmp_path / "out"), run.scenario)
    flipped(damaged)
    with pytest.raises(StateError, match=f"trigger 2, but the newest whole commit is that of batch 0.*{damaged.name} torn"):
        run.run(3)
    assert read_parquet(str(tmp_path / "out"), run.scenario) == published


def test_a_flipped_bit_in_a_commit_that_spark_brings_again(model: Callable[[Any], Model], tmp_path: Path) -> None:
    """Its control record is there: the batch runs again, under the same token, and what is published is published."""
    run = model(sinks.parquet(str(tmp_path / "out")))
    run.run(2, closes=False)
    flipped(newest(tmp_path / "checkpoint" / "pipeline-0" / "commit"))
    run.done = 0
    run.run(3)
    found = bag(read_parquet(str(tmp_path / "out"), run.scenario), run.scenario)
    assert not (wrong := oracle.difference(found, expected(run.scenario))), wrong


def test_lost_commits_are_refused(model: Callable[[Any], Model], tmp_path: Path) -> None:
    run = model(sinks.parquet(str(tmp_path / "out")))
    run.run(2, closes=False)
    for path in (tmp_path / "checkpoint" / "pipeline-0" / "commit").iterdir():
        path.unlink()
    with pytest.raises(StateError, match="there is no whole commit"):
        run.run(3)
    for path in (tmp_path / "checkpoint" / "pipeline-0" / "control").iterdir():
        path.unlink()
    # Nothing is known of that pipeline any more: another would begin, with numbers from 0.
    with pytest.raises(AnabranchError, match="holds the results of another run"):
        run.run(3)


def test_a_published_folder_has_its_token(model: Callable[[Any], Model], tmp_path: Path) -> None:
    run = model(sinks.parquet(str(tmp_path / "out")))
    run.run(3, closes=False)
    for path in (tmp_path / "out").glob("batch=*"):
        marker = json.loads((path / sinks.MARKER).read_text())
        number = int(path.name.removeprefix("batch="))
        disk = LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0"))
        assert sorted(marker["files"]) == sorted(p.name for p in path.glob("*.parquet"))
        if number in commits_in(disk).numbers():
            assert marker["token"] == commits_in(disk).read(number).token == controls_in(disk).read(number).token


def test_the_watermark_of_a_batch_that_was_begun_stays(model: Callable[[Any], Model], tmp_path: Path) -> None:
    """Results depend on the control record that is there, not on what the driver would decide now."""
    run = model(Collector(groups_that_wait()))
    with cutting(Scissors("control after", BATCH)), pytest.raises((Cut, Died)):
        run.run(3)
    disk = LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0"))
    begun = controls_in(disk).read(BATCH)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("anabranch.drive.driver.next_watermark", lambda *_: 10**15)
        run.run(2, closes=False)
    again = controls_in(disk).read(BATCH)
    assert (again.queries, again.token, again.runs) == (begun.queries, begun.token, 2)
    assert again.epoch > begun.epoch
    run.run(3)
    assert not (wrong := oracle.difference(run.sink.total(), expected(run.scenario))), wrong


def test_a_driver_that_lost_its_lease_delivers_nothing(model: Callable[[Any], Model], tmp_path: Path) -> None:
    """It sleeps in the middle of a batch; another one comes, finishes its batch, and goes on."""
    run = model(sinks.parquet(str(tmp_path / "out")))
    run.run(1, closes=False)
    other = Model(run.spark, run.feed, run.sink, planned=1, done=0)
    write, slept = Ledger.write, []

    def sleepy(ledger: Any, number: int, record: Any) -> None:
        if ledger._folder == "commit" and number == BATCH and not slept:
            slept.append(True)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("anabranch.control.lease.Holder._is_free", lambda self, claim: True)
                other.run(3)
        write(ledger, number, record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "write", sleepy)
        with pytest.raises(CheckpointBusyError, match="another run has taken the checkpoint over"):
            run.run(3)
    assert slept
    found = bag(read_parquet(str(tmp_path / "out"), run.scenario), run.scenario)
    assert not (wrong := oracle.difference(found, expected(run.scenario))), wrong
    latest = commits_in(LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0"))).latest()
    assert latest is not None
    assert latest[0] == CLOSING


def test_another_sink_after_a_failure(model: Callable[[Any], Model], tmp_path: Path) -> None:
    """Results that waited for a function go to the files of a parquet sink. Those that are in such files wait for that
    sink."""
    run = model(None)
    run.sink = kept = Collector(run.scenario)
    with cutting(Scissors("commit after", BATCH)), pytest.raises((Cut, Died)):
        run.run(3)
    run.sink = sinks.parquet(str(tmp_path / "out"))
    run.run(3)
    found = bag(read_parquet(str(tmp_path / "out"), run.scenario), run.scenario) + kept.total()
    assert not (wrong := oracle.difference(found, expected(run.scenario))), wrong


def test_files_of_a_parquet_sink_wait_for_it(model: Callable[[Any], Model], tmp_path: Path) -> None:
    run = model(sinks.parquet(str(tmp_path / "out")))
    with cutting(Scissors("commit after", BATCH)), pytest.raises((Cut, Died)):
        run.run(3)
    run.sink = Collector(run.scenario)
    with pytest.raises(StateError, match="query q in batch 1 are in files that were written for a parquet sink"):
        run.run(3)
    run.sink = sinks.parquet(str(tmp_path / "out"))
    run.run(3)
    found = bag(read_parquet(str(tmp_path / "out"), run.scenario), run.scenario)
    assert not (wrong := oracle.difference(found, expected(run.scenario))), wrong


# A pause


def test_a_pause_closes(spark: SparkSession, tmp_path: Path) -> None:
    """Groups at the last instants are final, and arrive, although no more rows come; rows that come then still count."""
    scenario = groups_that_wait()
    feed, kept = Feed(scenario, str(tmp_path), "files"), sinks.memory()
    feed.write(range(2))
    session = feed.session(spark, kept)
    session = paused(session, "300 milliseconds")
    run = session.start()
    try:
        wait_until(lambda: is_closed(run, rows=32))
        feed.write(range(2, 3))  # file by file: Spark may find them in one trigger, or in two
        wait_until(lambda: is_closed(run, rows=48))
        assert run.pipeline("q").streaming.isActive
    finally:
        run.stop()
    final = pa.concat_tables([kept.table()])
    assert not (wrong := oracle.difference(bag(final, scenario), expected(scenario))), wrong


def test_a_sink_may_stop_the_run_in_a_pause(spark: SparkSession, tmp_path: Path) -> None:
    """It is called from a thread that nobody may wait for then."""
    scenario = groups_that_wait()
    feed, kept, runs = Feed(scenario, str(tmp_path), "files"), sinks.memory(), list[Run]()

    def sink(results: pa.Table, number: int) -> None:
        kept.deliver(results, number)
        if number == 2:
            runs[0].stop()

    feed.write(range(2))
    run = paused(feed.session(spark, sinks.arrow(sink)), "300 milliseconds").start()
    runs.append(run)
    wait_until(lambda: run.stopped and not run.pipeline("q").streaming.isActive)
    assert run.pipeline("q").host.error is None
    assert sorted(kept.batches) == [1, 2]


def is_closed(run: Run, rows: int) -> bool:
    """Whether so many rows have come, and then a closing step: it has the trigger of the batch before it."""
    steps = run.progress["q"]
    came = sum(count for step in steps for count in step.rows.values())
    return came == rows and len(steps) > 1 and steps[-1].trigger == steps[-2].trigger


def paused(session: Session, idle: str) -> Session:
    session._idle_us = session._positive_us(idle, "idle_close")
    return session
