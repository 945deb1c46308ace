"""Spark's own stream-stream joins, one streaming query for each query: `bench.rivals.spark_native` says how they are made.

Each case is run twice, with results in parquet and with none: Spark encodes and writes results in the tasks that join, and
cannot tell the two apart. What the run without results takes is the CPU that counts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.many.case import Case, steady, told
from bench.many.queries import LONGEST_S, Asked, asked
from bench.rivals.spark_native import Spec, results_query, settings
from bench.workload import SECOND_US

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SINKS = ("parquet", "noop")
SETTINGS = {"spark.sql.parquet.filterPushdown": "false"}
"""Spark fails to decode dictionaries of lz4 files ahead of a filter; values are random, so the filter could skip nothing."""


def run(case: Case, work: Path) -> dict[str, Any]:
    """Runs a case in this process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("many queries").config("spark.local.dir", str(work / "local"))
    for name, value in {**settings(_spec(case, LONGEST_S)), **SETTINGS}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for place in range(case.warm_ups):
        folder = work / f"warm-up-{place}"
        for query in started(case, spark, asked(1), folder):
            query.awaitTermination()
        shutil.rmtree(folder)
    running = started(case, spark, case.asked, work)

    def done() -> list[int]:
        # Spark is not asked: an answer takes it a millisecond of CPU.
        return [_committed(work / "checkpoint" / query.name / "commits") for query in case.asked]

    def look() -> None:
        for query in running:
            if (error := query.exception()) is not None:
                raise error

    found = steady(case, done, look)
    for query in running:
        query.awaitTermination()
    held = [_last_with_rows(query)["stateOperators"] for query in running]
    state = sum(operator["memoryUsedBytes"] for operators in held for operator in operators)
    results = told(work / "out", case.asked) if case.variant == "parquet" else {}
    return {**found, "left_out_s": {}, "state_bytes": {"Spark's": state}, **results}


def merged(parquet: Mapping[str, Any], noop: Mapping[str, Any]) -> dict[str, Any]:
    """The run with results, and how much of its CPU goes into them by the run without."""
    beside = sum(parquet["cpu_s"].values()) - sum(noop["cpu_s"].values())
    return {**parquet, "left_out_s": {"results": max(0.0, beside)}}


def started(case: Case, spark: SparkSession, queries: Sequence[Asked], work: Path) -> list[StreamingQuery]:
    """Streaming queries that read all files, one of each stream a batch, and end."""
    found = []
    for query in queries:
        filters = {query.stream: query.predicate.partition(".")[2]} if query.stream else {}
        joined = results_query(spark, _spec(case, query.window_us / SECOND_US), filters=filters)
        writer = joined.writeStream.outputMode("append").trigger(availableNow=True).format(case.variant)
        writer = writer.option("checkpointLocation", str(work / "checkpoint" / query.name))
        if case.variant == "parquet":
            writer = writer.option("path", str(work / "out" / query.name))
        found.append(writer.start())
    return found


def _spec(case: Case, window_s: float) -> Spec:
    return Spec(
        case.workload.shape, case.rate_per_s, window_s, 1, case.batches, case.folder, sink=case.variant, cores=case.cores
    )  # fmt: skip


def _committed(commits: Path) -> int:
    """How many batches are done, by Spark's log of commits."""
    return sum(entry.name.isdigit() for entry in commits.glob("*"))


def _last_with_rows(query: StreamingQuery) -> Any:
    """What Spark tells of the last batch that had rows."""
    return [progress for progress in query.recentProgress if progress["numInputRows"]][-1]
