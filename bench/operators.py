"""Operators beside Spark's own, on the same files: `python -m bench.operators [--repeat 3] [--rows 200000]`; and the
smart-plug queries: `python -m bench.operators --plugs [--rates 1000 10000 100000]`.

*Operators*: filter and project, groups over tumbling windows of 10 s, AVG and MAX over 5 minutes sliding by 1 s, and a join
of a stream with a stored table. A batch of the sliding one has a tenth of the rows: Spark's own makes 300 of
each. Every run is a fresh process on two cores; results are written as parquet. Figures are input rows per second in steady
state (the median over batches of a second, by Spark's own clock of a trigger, after those in which the JVM compiles most of
its code), medians of the repetitions. Through our reader, and through a DataFrame. *Spark's own, tuned* writes its logs as
our sessions do, without starting processes (`anabranch.spark.create.FILE_MANAGER`): a setting that is not documented.

*Plugs*: CQ1 to CQ6 (`bench.smart_plugs`; *Optimization of continuous queries in federated database and stream processing
systems*, section 8.1) over the smart plugs of ../shared/data, repeated and re-timed to a rate. Windows of 5 minutes are
filled before anything is measured. A rate is sustained if nine of ten batches of ten seconds take less than ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench import report
from bench.data import EARLIEST_MTIME_S, FIRST_EVENT_US
from bench.processes import ROOT
from bench.rivals.spark_native import Spec as NativeSpec
from bench.rivals.spark_native import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND_US = 1_000_000
KEYS, TABLE_ROWS, BATCHES, WARM = 1_000, 100_000, 40, 25
QUERIES = {
    "filter, project": "SELECT s.k AS k, s.x * 2.0e0 AS y FROM s [NOW] WHERE s.x > 0.9e0 AND s.g <> 'a'",
    "tumbling groups": "SELECT k, COUNT(*) AS n, AVG(x) AS a FROM s [RANGE 10 SECONDS] GROUP BY k SLIDE 10 SECONDS",
    "sliding AVG, MAX": "SELECT k, AVG(x) AS a, MAX(x) AS m FROM s [RANGE 5 MINUTES] GROUP BY k SLIDE 1 SECOND",
    "stream, table": "SELECT s.j AS j, s.x AS x, t.name AS name FROM s [NOW], t WHERE s.j = t.j",
}
SHARES = {"sliding AVG, MAX": 0.1}
"""Of the rows of a batch, where it takes fewer to see the difference."""
OWN, TUNED = "Spark's own", "Spark's own, tuned"
WAYS = (OWN, TUNED, "reader", "frame")
PLUG_RATES = (1_000, 10_000, 100_000)
PLUG_BATCH_S, PLUG_MEASURED = 10, 8
PLUG_FILL_S = (60, 60, 60, 60, 60, 10, 10)
"""The seconds of the batches before those that are measured: they fill the windows, and two are as the measured ones."""
PLUG_LIMIT_S = 240
"""A run is given up after so long: all its batches together are of 390 s."""
PLUGS = ROOT.parent / "shared" / "data" / "debs2014_house0_plugs_1min.csv.gz"


# -- files -----------------------------------------------------------------------------------------------------------


def write_stream(folder: Path, rows: int, batches: int) -> None:
    """A file per batch of a second."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True)
    for number in range(batches):
        times = FIRST_EVENT_US + number * SECOND_US + np.arange(rows) * SECOND_US // rows
        table = pa.table({
            "k": rng.integers(0, KEYS, rows), "j": rng.integers(0, TABLE_ROWS, rows), "x": rng.random(rows),
            "g": pa.array(np.array(["a", "b", "c"])[rng.integers(0, 3, rows)]),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
        })  # fmt: skip
        write_file(folder / f"{number:06d}.parquet", table, number)


def write_plugs(folder: Path, rate: int) -> None:
    """The plugs' readings, over and over, at a rate of event time: a file per batch."""
    given = pa.csv.read_csv(PLUGS)
    plug = given["household_id"].to_numpy().astype(np.int64) * 100 + given["plug_id"].to_numpy()
    load, household = given["value"].to_numpy().astype(np.float64), given["household_id"].to_numpy().astype(np.int64)
    folder.mkdir(parents=True)
    first, begin_us = 0, FIRST_EVENT_US
    for number, seconds in enumerate((*PLUG_FILL_S, *[PLUG_BATCH_S] * PLUG_MEASURED)):
        rows = rate * seconds
        places = (np.arange(rows) + first) % len(plug)
        times = begin_us + np.arange(rows) * seconds * SECOND_US // rows
        first, begin_us = first + rows, begin_us + seconds * SECOND_US
        table = pa.table({"plug": plug[places], "household": household[places], "load": load[places],
                          "ts": pa.array(times, pa.timestamp("us", "UTC"))})  # fmt: skip
        write_file(folder / f"{number:06d}.parquet", table, number)


def write_file(path: Path, table: pa.Table, number: int) -> None:
    pq.write_table(table, path, compression="snappy", row_group_size=100_000)
    os.utime(path, (EARLIEST_MTIME_S + number, EARLIEST_MTIME_S + number))


# -- one run, in a process of its own --------------------------------------------------------------------------------


def run(spec: dict[str, Any]) -> dict[str, Any]:
    work = tempfile.mkdtemp()
    try:
        return native(spec, work) if spec["way"] in (OWN, TUNED) else ours(spec, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def ours(spec: dict[str, Any], work: str) -> dict[str, Any]:
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session

    warm_up()
    spark = create_session("local[2]", {"spark.driver.memory": "6g"})
    session = ab.Session(spark, os.path.join(work, "checkpoint"))
    path = spec["folder"]
    if spec["way"] == "reader":
        session.stream(spec["stream"], f"{path}/*.parquet", time="ts", max_files_per_trigger=1)
    else:
        frame = spark.readStream.schema(spark.read.parquet(path).schema).option("maxFilesPerTrigger", 1).parquet(path)
        session.stream(spec["stream"], frame, time="ts")
    if spec["name"] == "stream, table":
        session.table("t", _table(spark))
    session.query("q", spec["sql"], sink=ab.sinks.parquet(os.path.join(work, "out")))
    started = session.start(availableNow=True)
    started.await_termination()
    steps = {step.trigger: step for step in reversed(started.progress["q"])}
    spent = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1e3
             for p in started.pipeline("q").streaming.recentProgress if p["batchId"] in steps}  # fmt: skip
    measured = [s for n, s in spent.items() if n >= spec["warm"]]
    triggers = [p for p in started.pipeline("q").streaming.recentProgress if p["batchId"] in steps]
    phases = [
        {**steps[p["batchId"]].wall_s, **{f"spark {k}": v / 1e3 for k, v in p["durationMs"].items()}}
        for p in triggers
        if p["batchId"] >= spec["warm"]
    ]
    named = {name: statistics.median(p.get(name, 0.0) for p in phases) for name in phases[0]}
    return {"batch_s": measured, "results": sum(s.results for s in started.progress["q"]),
            "state MB": steps[max(steps)].state_bytes / 1e6,
            "phases_s": {n: round(s, 4) for n, s in sorted(named.items(), key=lambda p: -p[1])}}  # fmt: skip


def native(spec: dict[str, Any], work: str) -> dict[str, Any]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from anabranch.spark.create import log_settings

    builder = SparkSession.builder.master("local[2]")
    for name, value in {**settings(NativeSpec("2-way", 1, 1, 1, 1, "")), "spark.driver.memory": "6g"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for name, value in log_settings(spark).items() if spec["way"] == TUNED else ():
        spark.conf.set(name, value)
    path = spec["folder"]
    frame = spark.readStream.schema(spark.read.parquet(path).schema).option("maxFilesPerTrigger", 1).parquet(path)
    if spec["name"] == "filter, project":
        out = frame.where("x > 0.9 AND g <> 'a'").select("k", (F.col("x") * 2).alias("y"))
    elif spec["name"] == "stream, table":
        out = frame.join(_table(spark), "j").select("j", "x", "name")
    else:
        sliding = spec["name"] == "sliding AVG, MAX"
        window = F.window("ts", "5 minutes", "1 second") if sliding else F.window("ts", "10 seconds")
        groups = frame.withWatermark("ts", "0 seconds").groupBy(window, "k")
        out = groups.agg(F.avg("x").alias("a"), F.max("x").alias("m")) if sliding else groups.agg(
            F.count("*").alias("n"), F.avg("x").alias("a"))  # fmt: skip
    query = (
        out.writeStream.format("parquet").option("path", os.path.join(work, "out"))
        .option("checkpointLocation", os.path.join(work, "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    spent = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress if p["numInputRows"]}
    return {"batch_s": [s for n, s in spent.items() if n >= spec["warm"]], "results": None, "state MB": None}


def _table(spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as F

    return spark.range(TABLE_ROWS).select(F.col("id").alias("j"), F.concat(F.lit("name "), F.col("id")).alias("name"))


# -- comparisons -----------------------------------------------------------------------------------------------------


def operators(rows: int, repeat: int, names: list[str], folder: Path) -> list[dict[str, Any]]:
    whole, found = rows, []
    for number, name in enumerate(names):
        rows = int(whole * SHARES.get(name, 1.0))
        path = folder / str(number)
        write_stream(path, rows, BATCHES)
        rates: dict[str, float] = {}
        for way in WAYS:
            spec = {"name": name, "way": way, "sql": QUERIES[name], "stream": "s", "folder": str(path), "warm": WARM}
            runs = [report.in_fresh_process("bench.operators", "--spec", json.dumps(spec)) for _ in range(repeat)]
            each = [rows / statistics.median(r["batch_s"]) for r in runs]
            rates[way] = statistics.median(each)
            found.append({"operator": name, "way": way, "rows": rows, "rows/s": rates[way],
                          "times Spark": rates[way] / rates[OWN], "times tuned": rates[way] / rates.get(TUNED, rates[OWN]),
                          "batch s": rows / rates[way],
                          "least rows/s": min(each), "most rows/s": max(each)})  # fmt: skip
            print(report.table(found[-1:]).splitlines()[-1], flush=True)
            if phases := runs[-1].get("phases_s"):
                print("  seconds of a batch of the last run:", phases, flush=True)
    return found


def plugs(rates: list[int], names: list[str], folder: Path) -> list[dict[str, Any]]:
    from bench.smart_plugs import QUERIES as PLUG_QUERIES

    if not PLUGS.exists():
        raise SystemExit(f"SKIPPED: {PLUGS} is not here")
    found: list[dict[str, Any]] = []
    for rate in rates:
        write_plugs(folder / str(rate), rate)
        for name in names or list(PLUG_QUERIES):
            if any(r["query"] == name and r["sustained"] != "yes" for r in found):
                continue
            spec = {"name": name, "way": "reader", "sql": PLUG_QUERIES[name], "stream": "plugs",
                    "folder": str(folder / str(rate)), "warm": len(PLUG_FILL_S)}  # fmt: skip
            try:
                done = report.in_fresh_process("bench.operators", "--spec", json.dumps(spec), limit_s=PLUG_LIMIT_S)
            except subprocess.TimeoutExpired:
                found.append({"query": name, "rows/s": rate, "batch s": None, "sustained": f"no, {PLUG_LIMIT_S} s are over",
                              "results": None, "state MB": None})  # fmt: skip
                print(report.table(found[-1:]).splitlines()[-1], flush=True)
                continue
            spent = sorted(done["batch_s"])
            in_time = spent[int(0.9 * (len(spent) - 1))] < PLUG_BATCH_S
            found.append({"query": name, "rows/s": rate, "batch s": statistics.median(spent),
                          "sustained": "yes" if in_time else "no", "results": done["results"],
                          "state MB": done["state MB"]})  # fmt: skip
            print(report.table(found[-1:]).splitlines()[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    parser.add_argument("--plugs", action="store_true", help="CQ1 to CQ6 instead of single operators")
    parser.add_argument("--rates", type=int, nargs="*", default=list(PLUG_RATES))
    parser.add_argument("--only", action="append", help="an operator, or a query of the plugs (may be given again)")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    if given.spec:
        print(json.dumps(run(json.loads(given.spec))))
        return
    with tempfile.TemporaryDirectory() as folder:
        if given.plugs:
            found = plugs(given.rates, given.only or [], Path(folder))
        else:
            found = operators(given.rows, given.repeat, given.only or list(QUERIES), Path(folder))
    print(report.table(found))
    print(f"written to {report.write('smart_plugs' if given.plugs else 'operators', found)}")


if __name__ == "__main__":
    main()
