"""Input pauses while a query runs on Spark: a closing step gives what the last rows have made final."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from anabranch.session import Run, Session, _positive_us
from anabranch.spark import sinks
from tests.support import oracle
from tests.support.feeding import Feed, bag, expected, wait_until
from tests.support.fixed_scenarios import groups_that_wait


def test_a_pause_closes(spark: SparkSession, tmp_path: Path) -> None:
    """Groups at the last instants are final, and arrive, although no more rows come; rows that come then still count. When
    all have arrived the sink stops the run, from a thread that nobody may wait for then."""
    scenario, kept, runs = groups_that_wait(), sinks.memory(), list[Run]()
    feed, wanted = Feed(scenario, str(tmp_path), "files"), expected(scenario)

    def sink(results: pa.Table, number: int) -> None:
        kept.deliver(results, number)
        if bag(kept.table(), scenario) == wanted:
            runs[0].stop()

    feed.write(range(2))
    run = paused(feed.session(spark, sinks.arrow(sink)), "300 milliseconds").start()
    runs.append(run)
    try:
        wait_until(lambda: is_closed(run, rows=32))
        assert run.pipeline("q").streaming.isActive
        feed.write(range(2, 3))  # file by file: Spark may find them in one trigger, or in two
        wait_until(lambda: run.stopped and not run.pipeline("q").streaming.isActive)
    finally:
        run.stop()
    assert run.pipeline("q").host.error is None
    assert not (wrong := oracle.difference(bag(kept.table(), scenario), wanted)), wrong


def is_closed(run: Run, rows: int) -> bool:
    """Whether so many rows have come, and then a closing step: it has the trigger of the batch before it."""
    steps = run.progress["q"]
    came = sum(count for step in steps for count in step.rows.values())
    return came == rows and len(steps) > 1 and steps[-1].trigger == steps[-2].trigger


def paused(session: Session, idle: str) -> Session:
    session._idle_us = _positive_us(idle, "idle_close")
    return session
