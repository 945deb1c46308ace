"""Spark's own join over files that come, in a process of its own: `python -m bench.overload.spark_own --spec '{…}'`.

The joins are those of `bench.rivals.spark_native`, left-deep as written, each batch as soon as the one before is done or its
second is over. Prints results per second, how far event time is behind, and CPU, over the last seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.overload.hosted import CPU_EVERY_S, OUT
from bench.overload.traffic import GO
from bench.processes import TreeCpu
from bench.rivals.spark_native import Spec, results_query, settings, written_rows


@dataclass(frozen=True)
class SparkOwn:
    """What to run."""

    folder: str
    shape: str
    window_s: float
    seconds: float
    measured_s: float

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.overload.spark_own", "--spec", json.dumps(asdict(self))]


def run(given: SparkOwn) -> dict[str, Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    root = Path(given.folder)
    spec = Spec(given.shape, 1, given.window_s, 1, 0, given.folder, memory="4g")
    builder = SparkSession.builder.config("spark.local.dir", str(root / "local"))
    for name, value in settings(spec).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    writer = results_query(spark, spec, None).writeStream.outputMode("append").trigger(processingTime="1 second")
    writer = writer.format("parquet").option("checkpointLocation", str(root / "checkpoint")).option("path", str(root / OUT))
    query = writer.start()
    cpu, cpu_s = TreeCpu(os.getpid()), list[tuple[float, float]]()
    while query.isActive and not query.recentProgress:
        time.sleep(0.1)
    (root / GO).touch()
    ends_s = time.time() + given.seconds
    while time.time() < ends_s and query.isActive:
        cpu_s.append((time.time(), sum(cpu.look().values())))
        time.sleep(CPU_EVERY_S)
    now_s = time.time()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    query.stop()
    written = written_rows(root / OUT)
    ended = {p["batchId"]: _at_s(p["timestamp"]) + p["durationMs"]["triggerExecution"] / 1e3 for p in progress}
    results = sum(n for batch, n in written.items() if ended.get(batch, 0.0) >= now_s - given.measured_s)
    seen = [_at_s(p["eventTime"]["max"]) for p in progress if "max" in p.get("eventTime", {})]
    within = [each for each in cpu_s if each[0] >= now_s - given.measured_s]
    return {
        "results/s": results / given.measured_s, "lag s": now_s - max(seen, default=ends_s - given.seconds),
        "CPU s/s": (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0]) if len(within) > 1 else None,
        "batches": len(progress),
    }  # fmt: skip


def _at_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True)
    print(json.dumps(run(SparkOwn(**json.loads(parser.parse_args().spec)))))


if __name__ == "__main__":
    main()
