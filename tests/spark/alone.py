"""Scenarios in a driver of their own: `python -m tests.spark.alone <mode> <folder> <scenario> …`.

`cluster` runs several scenarios, in halves, on `local-cluster` with troubled tasks and speculation, and says what is wrong;
a number with a `w` before it is that of a workload: several queries in a pipeline; with an `l` before it, it is that of the
batches of a query under limits, rows of which are shed, too: its results are those of a run without Spark and trouble,
batch by batch.
`standalone` does so on a master that is named first.
`executors` runs one scenario on `local-cluster`, whose executors are killed on the way.
`machines` runs a query on workers that share no disk with the driver or with each other.
`drain` processes what is in the folders of one scenario: a driver to be killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch import session_start
from anabranch.control.records import Limit
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalRun
from anabranch.plan.overload import Overload, Policy
from anabranch.spark import pipeline, sinks
from anabranch.spark.create import create_session
from anabranch.storage.cache import Cache
from anabranch.storage.filesystem import MemoryFilesystem
from anabranch.storage.location import located
from tests.spark.failing import LethalTask, TroubledTask
from tests.support import oracle
from tests.support.feeding import Feed, bag, expected, read_parquet
from tests.support.fixed_scenarios import many_batches, scenario_of
from tests.support.pipelines import SPANNING, Piped
from tests.support.scenarios import Scenario
from tests.support.workloads import Workload

ROOT = Path(__file__).parents[2]
START_S = 300.0
"""How long a driver of its own may take, on a busy machine."""

ROUTES = ("files", "frames", "mixed")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "20ms",
}


def run_alone(*arguments: str, timeout_s: float = START_S) -> str:
    """Runs this module in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.alone", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + "\n".join(done.stderr.splitlines()[-40:])
    return done.stdout


def cluster(folder: str, cases: list[str], master: str = "local-cluster[2,1,1024]") -> int:
    pipeline.Task = TroubledTask  # type: ignore[misc]
    wrong = 0
    here = os.getcwd()
    settings = {**SPECULATION, "spark.executorEnv.PYTHONPATH": here, "spark.task.maxFailures": "4"}
    if master.startswith("spark:"):
        settings |= {"spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1"}
    spark = create_session(master, settings)
    for case in cases:
        own = os.path.join(folder, case)
        run = {"w": _workload, "l": _limited}.get(case[0], _scenario)
        difference = run(spark, own, int(case.lstrip("wl")))
        troubles = [name for name in os.listdir(os.path.join(own, "checkpoint")) if name.startswith("pipeline-")]
        met = [name for p in troubles for name in os.listdir(os.path.join(own, "checkpoint", p, "troubles"))]
        print(f"scenario {case}: {difference or 'right'}\nmet {' '.join(sorted(met))}", flush=True)
        wrong += bool(difference)
    spark.stop()
    return wrong


def _scenario(spark: SparkSession, folder: str, seed: int) -> str:
    """Runs one query; what is wrong with its results."""
    scenario = scenario_of(seed)
    feed = Feed(scenario, folder, ROUTES[seed % 3])
    kept, out = sinks.memory(), os.path.join(folder, "out")
    sink = kept if seed % 2 else sinks.parquet(out)
    half = len(scenario.batches) // 2
    for batches in (range(half), range(half, len(scenario.batches))):
        feed.write(batches)
        if batches:
            feed.run(spark, sink, plan=seed + len(batches), slots=2)
    found = kept.table() if sink is kept else read_parquet(out, scenario)
    return oracle.difference(bag(found, scenario), expected(scenario))


def _workload(spark: SparkSession, folder: str, seed: int) -> str:
    """Runs several queries; what is wrong with the results of any."""
    piped = Piped(Workload(seed, 4, batches=6), folder, ROUTES[seed % 3], {"spans": SPANNING})
    for batches in (range(3), range(3, 6)):
        piped.write(batches)
        piped.run(spark)
    wrong = {name: oracle.difference(piped.target(name).found(), piped.expected(name)) for name in piped.texts}
    return "; ".join(f"{name}: {difference}" for name, difference in wrong.items() if difference)


LIMITED = Overload(Policy.ADAPT_JOINS, allowances={"a": 0.4, "b": 0.6, "c": 0.8}, may_shed=True)


class Shedding(Limiting):
    """Sheds rows of the stream that our own reader reads, whatever the load, by salts that count."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given, draw_salt=count().__next__)
        self.shed = {"b": 0.7}

    def after(self, *given: Any) -> None:
        """Nobody is asked."""


def _limited(spark: SparkSession, folder: str, batches: int) -> str:
    """Runs a query some rows of which are shed, and some others look up, and whose results are to be fresh; what is wrong
    with those of any batch."""
    plain = many_batches(batches)
    scenario = replace(plain, script=plain.script.replace("[RANGE 2 SECONDS]", "[RANGE 2 SECONDS FRESHNESS 2 SECONDS]"))
    found: dict[int, oracle.Bag] = {}

    def sink(results: DataFrame, batch: int) -> None:
        found[batch] = bag(results.toArrow(), scenario)

    session_start.Limiting = Shedding  # type: ignore[misc]
    feed = Feed(scenario, folder, "mixed", settings={"overload": LIMITED})
    feed.write(range(batches))
    feed.run(spark, sink, plan=1, slots=2)  # type: ignore[arg-type]
    session_start.Limiting = Limiting  # type: ignore[misc]
    limiting = Shedding(LIMITED)
    twin = LocalRun(scenario.query, MemoryFilesystem(), scenario.plans[1], slots=2, limiting=limiting)
    limiting.limits = {twin.name: {alias: Limit(share=share) for alias, share in LIMITED.allowances.items()}}
    told, dropped = [], 0
    for number in range(batches):
        step = twin.step(number, scenario.feed(number))
        wanted, dropped = oracle.bag(step.results), dropped + step.statistics.sources["b"].shed_rows
        if difference := oracle.difference(found.pop(number, Counter()), wanted):
            told.append(f"batch {number}: {difference}")
    told += [] if dropped else ["no row was shed"]
    return "; ".join([*told, *(f"batch {number} has results" for number, more in found.items() if more)])


def executors(folder: str, scenario: Scenario, route: str) -> int:
    pipeline.Task = LethalTask  # type: ignore[misc]
    spark = create_session("local-cluster[2,1,1024]", {"spark.executorEnv.PYTHONPATH": os.getcwd()})
    feed, out = Feed(scenario, folder, route), os.path.join(folder, "out")
    feed.write(range(len(scenario.batches)))
    feed.run(spark, sinks.parquet(out), slots=2)
    difference = oracle.difference(bag(read_parquet(out, scenario), scenario), expected(scenario))
    killed = os.path.join(folder, "checkpoint", "pipeline-0", "killed")
    met = sorted(name for kill in os.listdir(killed) for name in os.listdir(os.path.join(killed, kill)))
    print(f"{difference or 'right'}\nkilled {' '.join(met)}", flush=True)
    spark.stop()
    return bool(difference)


def machines(folder: str, master: str, private: str, checkpoint: str, out: str) -> int:
    """Says what is told about a checkpoint and an output folder that workers do not see; then runs from a remote one."""
    settings = {"spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1",
                "spark.executorEnv.PYTHONPATH": os.getcwd(), "spark.executorEnv.TMPDIR": private,
                "spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.cores.max": "2",
                "spark.shuffle.readHostLocalDisk": "false"}  # fmt: skip
    spark = create_session(master, settings)
    namespaces = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.readlink("/proc/self/ns/mnt")).collect()
    print("machines:", len({*namespaces, os.readlink("/proc/self/ns/mnt")}), flush=True)
    scenario = many_batches(3)
    local = {"cache": Cache(f"{private}/cache"), "spark_checkpoint": f"{private}/spark"}
    unseen: list[tuple[str, Any]] = [
        (f"{private}/checkpoint", sinks.memory()),
        (checkpoint, sinks.parquet(f"{private}/out")),
    ]
    for place, sink in unseen:
        feed = Feed(scenario, folder, "frames", checkpoint=place, settings=local)
        feed.write(range(3))
        try:
            feed.session(spark, sink, slots=2).start(availableNow=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        print("batches before:", len(located(place).below("pipeline-0").list("control")), flush=True)
    feed = Feed(scenario, folder, "frames", checkpoint=checkpoint, settings=local)
    feed.run(spark, sinks.parquet(out), slots=2)
    found = sinks.read(out).to_table().select(scenario.query.output_schema.names)
    difference = oracle.difference(bag(found, scenario), expected(scenario))
    print(f"from {len(os.listdir(f'{private}/spark'))} log: {difference or 'right'}", flush=True)
    spark.stop()
    return bool(difference)


def drain(folder: str, scenario: Scenario, route: str, local: str) -> int:
    spark = create_session("local[2]", {"spark.local.dir": local})
    Feed(scenario, folder, route).run(spark, sinks.parquet(os.path.join(folder, "out")))
    return 0


def main() -> int:
    mode, folder, *rest = sys.argv[1:]
    if mode == "cluster":
        return cluster(folder, rest)
    if mode == "standalone":
        return cluster(folder, rest[1:], rest[0])
    if mode == "executors":
        return executors(folder, many_batches(int(rest[0])), rest[1])
    if mode == "machines":
        return machines(folder, *rest)
    return drain(folder, many_batches(int(rest[0])), rest[1], rest[2])


if __name__ == "__main__":
    sys.exit(main())
