"""Anabranch on Spark over the files of a workload, in a process of its own: `python -m bench.hosted --spec '{…}'`.

Prints one line of JSON: input rows per second of each batch (by Spark's own clock, triggerExecution), the phases of a batch,
results, and state. `way` is "frame" (a streaming DataFrame over Spark's source of files) or "reader" (our own reader).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from bench.workload import Workload


@dataclass(frozen=True)
class HostedSpec:
    """What to run."""

    shape: str
    rate_per_s: int
    window_s: float
    batch_s: float
    batches: int
    folder: str
    way: str = "frame"
    plan: str | None = None
    cores: int = 2
    matches: float = 1.0
    warm: int = 0
    """Batches that are not measured; at least until a window is full."""
    format: str = "parquet"
    """Of the files: parquet or csv."""
    results: str | None = None
    """The folder that gets the results; without it they are dropped after the run."""

    @property
    def workload(self) -> Workload:
        return Workload(self.shape, self.rate_per_s, self.window_s, self.batch_s, self.matches)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.hosted", "--spec", json.dumps(asdict(self))]


def run(spec: HostedSpec) -> dict[str, Any]:
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session

    workload = spec.workload
    warm_up()
    work = tempfile.mkdtemp()
    try:
        spark = create_session(f"local[{spec.cores}]", {"spark.driver.memory": "4g"})
        session = ab.Session(spark, os.path.join(work, "checkpoint"))
        for stream in workload.streams:
            path = os.path.join(spec.folder, stream)
            if spec.way == "reader":
                session.stream(stream, f"{path}/*.{spec.format}", time="ts", max_files_per_trigger=1)
            else:
                options = {"header": True, "inferSchema": True} if spec.format == "csv" else {}
                schema = spark.read.format(spec.format).options(**options).load(path).schema
                reader = spark.readStream.format(spec.format).options(**options).schema(schema)
                frame = reader.option("maxFilesPerTrigger", 1).load(path)
                session.stream(stream, frame, time="ts")
        results = spec.results or os.path.join(work, "out")
        session.query("q", workload.query.sql, sink=ab.sinks.parquet(results), plan=spec.plan)
        began = time.perf_counter()
        started = session.start(availableNow=True)
        started.await_termination()
        wall_s = time.perf_counter() - began
        steps = {step.trigger: step for step in reversed(started.progress["q"])}
        rows = len(workload.streams) * workload.rows_per_batch
        triggers = {p["batchId"]: p for p in started.pipeline("q").streaming.recentProgress if p["batchId"] in steps}
        rates = {n: rows / (p["durationMs"]["triggerExecution"] / 1e3) for n, p in triggers.items()}
        warm = max(spec.warm, round(workload.window_s / workload.batch_s) + 1)
        steady = [rate for n, rate in rates.items() if n >= warm]
        phases: dict[str, float] = {}
        for n in rates:
            if n >= warm:
                for name, spent in {**steps[n].wall_s, **_spark(triggers[n])}.items():
                    phases[name] = phases.get(name, 0.0) + spent / len(steady)
        last = steps[max(steps)]
        return {
            "rows/s": statistics.median(steady) if steady else None,
            "batch_rows_per_s": [round(r) for r in rates.values()],
            "plan": started.plans["q"],
            "results": sum(s.results for s in started.progress["q"]),
            "state_bytes": last.state_bytes,
            "state_rows": last.state_rows,
            "wall_s": wall_s,
            "began_s": min(_began_s(p) for p in triggers.values()),
            "ended_s": max(_began_s(p) + p["durationMs"]["triggerExecution"] / 1e3 for p in triggers.values()),
            "phases_s": {name: round(spent, 4) for name, spent in sorted(phases.items(), key=lambda p: -p[1])},
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _began_s(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def _spark(progress: Any) -> dict[str, float]:
    return {f"spark {name}": spent / 1e3 for name, spent in progress["durationMs"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True)
    print(json.dumps(run(HostedSpec(**json.loads(parser.parse_args().spec)))))


if __name__ == "__main__":
    main()
