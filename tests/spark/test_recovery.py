"""Whatever fails, every result arrives, and once: sinks, tasks, workers, drivers, local disks."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.control.ledger import named_epochs
from anabranch.errors import SinkError
from anabranch.spark import sinks
from anabranch.spark.create import use_java
from tests.spark.alone import ROOT, START_S, run_alone
from tests.spark.failing import KILLS
from tests.support.cases import Part
from tests.support.collector import Collector
from tests.support.feeding import WAIT_S, Feed, assert_same, bag, finish, read_parquet, wait_until
from tests.support.fixed_scenarios import many_batches, scenario_of

# Sinks that are slow


class Slow:
    """A sink in which a batch can be caught."""

    def __init__(self, inner: sinks.MemorySink, caught: int) -> None:
        self.inner, self.caught = inner, caught
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, results: DataFrame, number: int) -> None:
        if number == self.caught:
            self.entered.set()
            assert self.go_on.wait(WAIT_S)
            raise OSError("the run was stopped")
        self.inner.deliver(results.toArrow(), number)


def test_stopped_in_the_middle_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """It is committed here, and not by Spark, whose log is in another folder, which is lost. The run does not wait for the
    sink, not even if the pipeline does, because too much is staged. The next one brings what waits; each action on it brings
    the same, also if it must be computed again. Places are named by URIs."""
    scenario, spark_log = many_batches(3), tmp_path / "spark"
    settings = {"most_staged": 1, "sink_patience": "700 ms", "spark_checkpoint": spark_log.as_uri()}
    feed = Feed(scenario, str(tmp_path), "mixed", checkpoint=(tmp_path / "state").as_uri(), settings=settings)
    feed.write(range(3))
    kept = sinks.memory()
    slow = Slow(kept, caught=1)
    run = feed.session(spark, slow).start(availableNow=True)
    try:
        assert slow.entered.wait(WAIT_S)
        assert run.pipeline("q").host.delivery.most_bytes == 1
        assert run.pipeline("q").host.delivery.patience_s == 0.7
        stopping = threading.Thread(target=run.stop)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive(), "it waits for the sink"
    finally:
        slow.go_on.set()
    assert run.await_termination(WAIT_S), "what has been stopped has ended, and without an error"
    wait_until(lambda: not run.pipeline("q").host.delivery.lines["q"].is_served)
    assert kept.batches.keys() == {0}
    assert (spark_log / "pipeline-0").is_dir()
    shutil.rmtree(spark_log)

    def several_actions(results: DataFrame, number: int) -> None:
        first = bag(results.toArrow(), scenario)
        assert results.count() == first.total()
        spark.catalog.clearCache()
        assert bag(results.toArrow(), scenario) == first
        assert len(results.where("a_id >= 0").collect()) == first.total()
        kept.deliver(results.toArrow(), number)

    feed.run(spark, several_actions)  # type: ignore[arg-type]
    assert_same(kept.table(), scenario)
    assert (tmp_path / "state" / "pipeline-0" / "commit").is_dir()
    assert not [name for name in os.listdir() if name.startswith("file:")]


# Tasks that fail, workers that are killed, attempts that lose: in a cluster


CLUSTER, LONG_CLUSTER = ("2001", "w26", "l6"), range(2005, 2065)
"""Scenarios of one query, of several, and of one under limits."""


@pytest.mark.spark
def test_troubled_tasks_on_a_cluster(tmp_path: Path) -> None:
    said = run_alone("cluster", str(tmp_path), *CLUSTER)
    assert said.count(": right") == len(CLUSTER), said
    assert all(f" {trouble}-" in said for trouble in ("before", "after", "halfway", "twice", "killed")), said


@pytest.mark.spark
@pytest.mark.long
def test_troubled_tasks_on_a_cluster_long(tmp_path: Path, part: Part) -> None:
    cases = [f"w{seed}" if seed % 3 == 0 else str(seed) for seed in part.of(LONG_CLUSTER)]
    said = run_alone("cluster", str(tmp_path), *cases, timeout_s=3600.0)
    assert said.count(": right") == len(cases), said


@pytest.mark.spark
def test_killed_executors(tmp_path: Path) -> None:
    """Executors that are killed with -9 in the middle of batches: others take over, and every result arrives once."""
    said = run_alone("executors", str(tmp_path), "6", "mixed")
    assert "right" in said.splitlines(), said
    killed = dict(kill.split("-") for kill in said.split("killed ")[1].split())
    assert killed.keys() == set(KILLS.values()), said
    assert len(set(killed.values())) == len(killed), "three were killed, and there are two at a time"


@contextlib.contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and a worker with two cores, each a process of its own; the address of the master."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spark_class = os.path.join(pyspark.__path__[0], "bin", "spark-class")
    url, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "3g", "--webui-port", "0",
         "--work-dir", str(folder / "work"), url],
    ]  # fmt: skip
    use_java()
    started = []
    try:
        for place, command in enumerate(commands):
            log = open(folder / f"{place}.log", "w")  # noqa: SIM115
            started.append(subprocess.Popen([spark_class, *command], stdout=log, stderr=log, start_new_session=True))
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.spark
@pytest.mark.long
def test_a_standalone_cluster_long(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with standalone_cluster(tmp_path) as master:
        said = run_alone("standalone", str(tmp_path / "data"), master, *map(str, CLUSTER))
    assert said.count(": right") == len(CLUSTER), said


# Drivers that are killed


def check_killed_drivers(folder: Path, kills: int, batches: int, route: str, seed: int) -> None:
    """Kills the driver and all its processes at random moments; the next one goes on at once."""
    rng = random.Random(seed)
    scenario = many_batches(batches)
    Feed(scenario, str(folder), route).write(range(batches))
    survived, killed = False, 0
    for attempt in range(kills + 1):
        local = folder / f"local-{attempt}"
        command = [sys.executable, "-m", "tests.spark.alone", "drain", str(folder), str(batches), route, str(local)]
        with open(folder / f"stderr-{attempt}", "wb") as errors:
            driver = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors, start_new_session=True)
            try:
                survived = wait_or_kill(driver, folder, rng) if attempt < kills else driver.wait(START_S) is not None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
        if survived:
            said = (folder / f"stderr-{attempt}").read_text(errors="replace")
            assert driver.returncode == 0, "\n".join(said.splitlines()[-40:])
            break
        killed += 1
        shutil.rmtree(local, ignore_errors=True)
    assert survived
    assert killed
    assert_same(read_parquet(str(folder / "out"), scenario), scenario)


def wait_or_kill(driver: subprocess.Popen[bytes], folder: Path, rng: random.Random) -> bool:
    """Waits for some new batches and a random moment more; whether the driver has ended by itself before."""
    commits = folder / "checkpoint" / "pipeline-0" / "commit"
    newest = max(numbers(commits), default=-1)
    target, grace_s = newest + rng.randint(0, 4), rng.choice([0.0, 0.02, 0.1, 0.3, 1.0]) * rng.random()
    deadline = time.monotonic() + START_S
    while driver.poll() is None and max(numbers(commits), default=-1) < target and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(grace_s)
    return driver.poll() is not None


def numbers(folder: Path) -> list[int]:
    return [number for number, _ in named_epochs(os.listdir(folder))] if folder.is_dir() else []


@pytest.mark.spark
@pytest.mark.parametrize("route", ["mixed"])
def test_killed_drivers(tmp_path: Path, route: str) -> None:
    check_killed_drivers(tmp_path, kills=2, batches=12, route=route, seed=1)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_drivers_long(tmp_path: Path, seed: int) -> None:
    check_killed_drivers(tmp_path, 10, batches=60, route=("files", "frames", "mixed")[seed], seed=seed)


# Random scenarios with sinks that fail


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3000, 3060))
def test_failing_sinks_long(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    scenario = scenario_of(seed)
    feed = Feed(scenario, str(tmp_path), ("frames", "files", "mixed")[seed % 3])
    feed.write(range(len(scenario.batches)))
    rng = random.Random(seed)
    fails = {n: rng.choice(["before", "after"]) for n in range(len(scenario.batches)) if rng.random() < 0.5}
    sink = Collector(scenario, fails)
    for plan in range(len(fails)):
        run = feed.session(spark, sink, plan).start(availableNow=True)
        with contextlib.suppress(SinkError):  # batches without results are not brought
            finish(run)
        sink.mend()
    feed.run(spark, sink)
    sink.assert_right()
