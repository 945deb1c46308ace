"""How long a row waits for its results, and what a batch costs: `python -m bench.latency [--seconds 60]`.

*Latency*: streams of 1,000 rows per second are written as files, ten a second, while the query runs; every row carries the
time at which its file appeared. A result is as old as the youngest of its rows; its age is taken when the sink has it. Ours
(through our reader, and through a DataFrame) beside Spark's own join, each in a fresh process, a batch as
soon as the one before is done.

*Batches*: the time of a batch through our reader against its size, with a line through it: the fixed cost of a batch, and
the cost of a row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import report
from bench.hosted import HostedSpec
from bench.native import hosted
from bench.rivals.spark_native import Spec, results_query, settings
from bench.workload import SECOND_US, Workload

SHAPE, RATE_PER_S, WINDOW_S, EVERY_S = "3-way chain", 1_000, 4, 0.1
WARM_S = 15
WAYS = ("reader", "frame", "Spark's own")
Ages = np.ndarray[Any, np.dtype[np.float64]]
SIZES = (1_000, 10_000, 50_000, 100_000, 200_000, 400_000)


def workload() -> Workload:
    return Workload(SHAPE, RATE_PER_S, WINDOW_S, EVERY_S)


class Producer(threading.Thread):
    """Writes a file of each stream every tenth of a second; `v` is the moment at which the file appears."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.seconds, self.made = folder, seconds, workload()

    def write(self, number: int) -> None:
        now_us = time.time_ns() // 1000
        for stream, rows in self.made.batch(number).items():
            place = rows.schema.get_field_index("v")
            times = pc.add(rows["ts"].cast(pa.int64()), now_us - int(number * EVERY_S * SECOND_US))
            rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", times.cast(pa.timestamp("us", "UTC")))
            hidden, shown = self.folder / stream / f".{number:06d}", self.folder / stream / f"{number:06d}.parquet"
            pq.write_table(rows.set_column(place, "v", pa.array(np.full(len(rows), time.time()))), hidden)
            hidden.rename(shown)

    def run(self) -> None:
        began, number = time.time(), 1
        while time.time() - began < self.seconds:
            time.sleep(max(0.0, began + number * EVERY_S - time.time()))
            self.write(number)
            number += 1


def measure(way: str, seconds: float) -> dict[str, Any]:
    """The ages of results, in this process."""
    work = Path(tempfile.mkdtemp())
    producer = Producer(work / "in", WARM_S + seconds)
    for stream in producer.made.streams:
        (work / "in" / stream).mkdir(parents=True)
    producer.write(0)
    ages: list[tuple[float, Ages]] = []

    def sink(frame: Any, _: int) -> None:
        rows = frame.select("a_v", "b_v", "c_v").toArrow()
        newest = np.maximum.reduce([rows[c].to_numpy() for c in ("a_v", "b_v", "c_v")])
        ages.append((time.time(), time.time() - newest))

    try:
        stop = _start_ours(way, work, sink) if way != WAYS[-1] else _start_theirs(work, sink)
        began = time.time()
        producer.start()
        producer.join()
        time.sleep(2)
        stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    measured = np.concatenate([a for at, a in ages if at > began + WARM_S])
    batches = [at for at, _ in ages if at > began + WARM_S]
    return {
        "way": way, "results": len(measured), "median s": float(np.median(measured)),
        "p99 s": float(np.quantile(measured, 0.99)), "worst s": float(measured.max()),
        "batches/s": len(batches) / (batches[-1] - batches[0]),
    }  # fmt: skip


def _start_ours(way: str, work: Path, sink: Any) -> Any:
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session

    warm_up()
    spark = create_session("local[2]")
    session = ab.Session(spark, str(work / "checkpoint"))
    for stream in workload().streams:
        path = str(work / "in" / stream)
        if way == "reader":
            session.stream(stream, f"{path}/*.parquet", time="ts")
        else:
            schema = spark.read.parquet(path).schema
            session.stream(stream, spark.readStream.schema(schema).parquet(path), time="ts")
    session.query("q", workload().query.sql, sink=sink, plan="(a b c)")
    return session.start(processingTime="0 seconds").stop


def _start_theirs(work: Path, sink: Any) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spec = Spec(SHAPE, RATE_PER_S, WINDOW_S, EVERY_S, 0, str(work / "in"))
    builder = SparkSession.builder.config("spark.local.dir", str(work / "local"))
    for name, value in settings(spec).items():
        builder = builder.config(name, value)
    frame = results_query(builder.getOrCreate(), spec, files_per_batch=None)
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(processingTime="0 seconds").start().stop


def batch_costs(data: str) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        folder = os.path.join(data, f"batch-{size}")
        found = hosted(HostedSpec(SHAPE, size, WINDOW_S, 1, WINDOW_S + 10, folder, "reader", "(a b c)"))
        sizes = 3 * size
        rows.append({"way": "batch", "rows": sizes, "batch s": sizes / found["rows/s"]})
        shutil.rmtree(folder)
    cost, fixed = np.polyfit([r["rows"] for r in rows], [r["batch s"] for r in rows], 1)
    rows.append({"way": "line", "fixed s per batch": float(fixed), "ns per row": float(cost) * 1e9})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--way", choices=WAYS, help="measure this one in this process")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "anabranch-bench"))
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measure(given.way, given.seconds)))
        return
    ages = [report.in_fresh_process("bench.latency", "--way", way, "--seconds", str(given.seconds)) for way in WAYS]
    print(report.table(ages))
    theirs = statistics.median(r["median s"] for r in ages if r["way"] == WAYS[-1])
    for row in ages:
        row["of Spark's median"] = row["median s"] / theirs
    costs = batch_costs(given.data)
    print(report.table(costs[:-1]))
    print(f"a batch costs {costs[-1]['fixed s per batch']:.3f} s and {costs[-1]['ns per row']:.0f} ns for each row")
    print(f"written to {report.write('latency', [*ages, *costs])}")


if __name__ == "__main__":
    main()
