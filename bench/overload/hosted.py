"""One run on Spark, in a process of its own, while files come: `python -m bench.overload.hosted --spec '{…}'`.

Prints one line of JSON: for each batch when it was committed, its clock, how many files of each stream it took, results,
what it told of its completeness, CPU; and what the journal says. Results are left in the folder, one directory for a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.overload.traffic import GO
from bench.processes import TreeCpu

POLL_S = 0.05
CPU_EVERY_S = 1.0
OUT = "out"
COLUMNS = {"k1": "BIGINT", "k2": "BIGINT", "v": "DOUBLE", "ts": "TIMESTAMP"}
"""Of each stream: they start before their first files come."""


@dataclass(frozen=True)
class Hosted:
    """What to run: `policy` is one of Anabranch's."""

    folder: str
    sql: str
    streams: str
    policy: str
    seconds: float
    """After files begin to come; 0: until all that is there is processed."""
    plan: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further ones of `Overload`."""
    trigger: str = "1 second"
    files_per_batch: int | None = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.overload.hosted", "--spec", json.dumps(asdict(self))]


class Watch(threading.Thread):
    """Looks at what the driver commits, and at the CPU of all processes."""

    def __init__(self, driver: Any) -> None:
        super().__init__(daemon=True)
        self._driver, self._ends, self._cpu = driver, threading.Event(), TreeCpu(os.getpid())
        self.batches: dict[int, dict[str, Any]] = {}
        self.cpu_s: list[tuple[float, float]] = []
        """CPU seconds so far, at some instants."""

    def run(self) -> None:
        while not self._ends.wait(POLL_S):
            self.look()

    def look(self) -> None:
        now = time.time()
        commit = self._driver.newest
        if commit is not None and commit.batch not in self.batches:
            self.batches[commit.batch] = {"at_s": now, **_told(commit)}
        if not self.cpu_s or now >= self.cpu_s[-1][0] + CPU_EVERY_S:
            self.cpu_s.append((now, sum(self._cpu.look().values())))

    def end(self) -> None:
        self._ends.set()
        self.join()
        self.look()


def _told(commit: Any) -> dict[str, Any]:
    own = commit.queries["q"]
    counted = own.statistics
    return {
        "batch": commit.batch, "trigger": commit.trigger, "clock_us": own.clock_us, "results": counted.results,
        "stale": counted.stale_results, "largest_us": dict(commit.largest_time_us),
        "probing_s": sum(step.cpu_ns for step in counted.steps) / 1e9, "engine_s": counted.engine_cpu_ns / 1e9,
        "limits": {alias: _limit(limit) for alias, limit in own.limits.items()}, "shed": dict(commit.shed),
        "rows": {name: source.rows for name, source in counted.sources.items()},
        "shed_rows": {name: source.shed_rows for name, source in counted.sources.items()},
        "limited": {
            alias: {"rows": each.rows, "probed": each.probed, "results": each.results, "estimated": each.estimated,
                    "variance": each.variance, "covariance": each.covariance} for alias, each in counted.limited.items()
        },
        "slot_cpu_s": [slot.cpu_ns / 1e9 for slot in commit.slots.values()],
    }  # fmt: skip


def _limit(limit: Any) -> Any:
    return limit.share if limit.share is not None else dict(limit.rows)


def run(spec: Hosted) -> dict[str, Any]:
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.plan.overload import Policy
    from anabranch.spark.create import create_session

    warm_up()
    root = Path(spec.folder)
    spark = create_session("local[2]", {"spark.driver.memory": "2g"})
    checkpoint = root / "checkpoint"
    overload = ab.Overload(Policy(spec.policy), **spec.options)
    session = ab.Session(spark, str(checkpoint), overload=overload)
    for stream in spec.streams:
        options: dict[str, Any] = {"max_files_per_trigger": spec.files_per_batch} if spec.files_per_batch else {}
        session.stream(stream, f"{root}/{stream}/*.parquet", time="ts", columns=COLUMNS, **options)
    session.query("q", spec.sql, sink=ab.sinks.parquet(str(root / OUT)), plan=spec.plan)
    started = session.start(**({"processingTime": spec.trigger} if spec.seconds else {"availableNow": True}))
    pipeline = started.pipeline("q")
    watch = Watch(pipeline.host.driver)
    watch.start()
    while spec.seconds and not watch.batches:
        time.sleep(POLL_S)
    began_s = time.time()
    (root / GO).touch()
    if spec.seconds:
        time.sleep(spec.seconds)
    else:
        started.await_termination()
    ended_s = time.time()
    watch.end()
    progress = [_files(p) for p in pipeline.streaming.recentProgress]
    journal = [{"batch": e.batch, "event": e.event, "text": e.text} for e in started.journal["q"]]
    seconds = {step.batch: step.seconds for step in started.progress["q"]}
    started.stop()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return {
        "began_s": began_s, "ended_s": ended_s, "batches": [*watch.batches.values()], "cpu_s": watch.cpu_s,
        "files": {p["trigger"]: p["files"] for p in progress}, "journal": journal, "seconds": seconds,
        "plan": started.plans["q"],
    }  # fmt: skip


def _files(progress: Any) -> dict[str, Any]:
    """How many files of each stream were taken, by the end of a trigger."""
    found = []
    for source in progress["sources"]:
        end = source["endOffset"]
        end = json.loads(end) if isinstance(end, str) else end
        found.append(end["files"] if end else 0)
    return {"trigger": progress["batchId"], "files": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True)
    print(json.dumps(run(Hosted(**json.loads(parser.parse_args().spec)))))


if __name__ == "__main__":
    main()
