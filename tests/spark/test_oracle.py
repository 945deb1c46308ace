"""The law through Spark: random scenarios give what DuckDB gives, whichever way rows come in and results go out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.session import Run
from anabranch.spark import sinks
from tests.support import oracle
from tests.support.feeding import WAIT_S, Feed, assert_same, read_parquet
from tests.support.fixed_scenarios import scenario_of
from tests.support.scenarios import Scenario

CASES, RESTARTS = (5, 7, 9), (1001,)
"""Among them: each route, two to six slots, a row in several of them, no exchange, stored tables, a self-join, times with a
zone and without. Those that failed once run without Spark (`tests/engine/test_oracle.py`)."""
LONG_CASES = [n for n in range(212) if n not in CASES]
LONG_RESTARTS = [n for n in range(1000, 1105) if n not in RESTARTS]

ROUTES = ("frames", "files", "mixed")


def feed_of(scenario: Scenario, seed: int, folder: Path) -> Feed:
    return Feed(scenario, str(folder), ROUTES[seed % len(ROUTES)], zoned=seed % 4 != 1)


def check_scenario(spark: SparkSession, seed: int, folder: Path) -> None:
    scenario = scenario_of(seed)
    feed = feed_of(scenario, seed, folder)
    feed.write(range(len(scenario.batches)))
    slots = (2, 1, 3, 4, 6)[seed % 5]
    if seed % 2:
        run = feed.run(spark, sinks.parquet(str(folder / "out")), seed, slots)
        assert_same(read_parquet(str(folder / "out"), scenario), scenario)
    else:
        kept = sinks.memory()
        run = feed.run(spark, kept, seed, slots)
        assert_same(kept.table(), scenario)
    assert_counts_are_right(run, scenario)


def assert_counts_are_right(run: Run, scenario: Scenario) -> None:
    """Watermarks, and the rows of streams that go to one slot each, are those of the law."""
    law = oracle.accepted(scenario.arrow_batches, scenario.streams)
    steps = run.progress["q"]
    distribution = run.queries["q"].distribution
    grid, closing = distribution.grid, 0 if distribution.needs_no_exchange else 1
    assert len(steps) == len(scenario.batches) + closing, "a batch per trigger, and a closing step if anything is kept"
    assert not closing or steps[-1].results == 0
    once = [s for s in scenario.streams
            if [len(grid.offsets(i.alias)) for i in scenario.query.inputs if i.source == s] == [1]]  # fmt: skip
    for number, step in enumerate(steps[: len(scenario.batches)]):
        watermark = law.watermarks[number]
        assert step.watermark_us == (-(2**63) if watermark is None else watermark)
        for stream in once:
            given = scenario.arrow_batches[number].get(stream.name)
            assert step.rows[stream.name] == (given.num_rows if given is not None else 0)
            assert step.late_rows[stream.name] == law.late[number].get(stream.name, 0)


@pytest.mark.parametrize("seed", CASES)
def test_scenario(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    check_scenario(spark, seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_CASES)
def test_scenario_long(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    check_scenario(spark, seed, tmp_path)


# Stopping and starting again, with another plan.


def check_restart(spark: SparkSession, seed: int, folder: Path) -> None:
    """One run up to some batch, one that is stopped in the middle of whatever it does, and one to the end."""
    scenario = scenario_of(seed)
    feed = feed_of(scenario, seed, folder)
    half = len(scenario.batches) // 2
    kept, out = sinks.memory(), str(folder / "out")
    sink = kept if seed % 2 else sinks.parquet(out)
    feed.write(range(half))
    if half and seed % 3:
        feed.run(spark, sink, 0)
    feed.write(range(half, len(scenario.batches)))
    run = feed.session(spark, sink, 1).start()
    try:
        wait_for_a_step(run)
    finally:
        run.stop()
    feed.run(spark, sink, 2)
    assert_same(kept.table() if sink is kept else read_parquet(out, scenario), scenario)


def wait_for_a_step(run: Run) -> None:
    deadline = time.monotonic() + WAIT_S
    while not run.progress["q"] and time.monotonic() < deadline:
        if not run.pipeline("q").streaming.isActive:
            run.await_termination(1.0)
        time.sleep(0.01)


@pytest.mark.parametrize("seed", RESTARTS)
def test_restart(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    check_restart(spark, seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_RESTARTS)
def test_restart_long(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    check_restart(spark, seed, tmp_path)
