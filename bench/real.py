"""Real ticks, faster than real: `python -m bench.real [--data ../shared/data]`.

Trades of BAC and IBM, 7 to 11 October 2013, joined with the bids at their exchange and price and the asks of that exchange,
all within a second. The files are replayed: at a speed-up of s a batch is due every five seconds and brings 5·s seconds of
trading. A speed is *sustained* if nine of ten batches, after the first three, are done by then. Ours (our reader) beside
Spark's own join (left-deep as written), each run in a fresh process on two cores, with parquet sinks. Results must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import report
from bench.processes import ROOT
from bench.rivals.spark_native import STORES, written_rows

DATA = ROOT.parent / "shared" / "data"
FIRST_US = 1_381_138_200_000_000
"""7 October 2013, half past nine: the market opens."""
SPEEDS = (1, 3, 10, 30, 100, 300, 1000)
BATCHES, WARM, BATCH_S = 13, 3, 5
WINDOW = "INTERVAL 1 SECOND"
WAYS = ("anabranch", "Spark's own")
QUERY = """
    SELECT t.symbol AS symbol, t.price AS price, t.size AS size, b.bid_size AS bid_size, a.ask AS ask
    FROM t, b, a
    WHERE t.symbol = b.symbol AND t.exchange = b.exchange AND t.price = b.bid
      AND b.symbol = a.symbol AND b.exchange = a.exchange
    WINDOW 1 SECOND"""
COLUMNS = {
    "t": ("symbol", "exchange", "price", "size"), "b": ("symbol", "exchange", "bid", "bid_size"),
    "a": ("symbol", "exchange", "ask"),
}  # fmt: skip


def streams(data: Path) -> dict[str, pa.Table]:
    """Trades, bids and asks of the two symbols that have quotes, with event times in UTC."""

    def read(name: str) -> pa.Table:
        rows = pq.read_table(data / f"us_equity_ticks_{name}.parquet")
        return rows.set_column(0, "ts", rows["ts"].cast(pa.timestamp("us", "UTC")))

    trades = read("trades")
    quotes = pa.concat_tables([read("quotes_bac"), read("quotes_ibm")]).sort_by("ts")
    found = {
        "t": trades.filter(pc.is_in(trades["symbol"], pa.array(["BAC", "IBM"]))),
        "b": quotes.filter(pc.greater(quotes["bid"], 0.0)),
        "a": quotes.filter(pc.greater(quotes["ask"], 0.0)),
    }
    return {name: rows.select([*COLUMNS[name], "ts"]) for name, rows in found.items()}


def write_replay(rows: dict[str, pa.Table], speed: int, folder: Path) -> int:
    """A file per stream and batch; returns the number of rows."""
    count = 0
    for stream, table in rows.items():
        (folder / stream).mkdir(parents=True)
        times = table["ts"].cast(pa.int64()).to_numpy()
        for number in range(BATCHES):
            low, high = (int(times.searchsorted(FIRST_US + n * speed * BATCH_S * 1_000_000)) for n in (number, number + 1))
            path = folder / stream / f"{number:06d}.parquet"
            pq.write_table(table.slice(low, high - low), path)
            os.utime(path, (1_600_000_000 + number,) * 2)
            count += high - low
    return count


def run_ours(folder: Path) -> dict[str, Any]:
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session

    warm_up()
    session = ab.Session(create_session("local[2]", {"spark.driver.memory": "4g"}), str(folder / "checkpoint"))
    for stream in COLUMNS:
        session.stream(stream, f"{folder / 'in' / stream}/*.parquet", time="ts", max_files_per_trigger=1)
    session.query("q", QUERY, sink=ab.sinks.parquet(str(folder / "out")))
    run = session.start(availableNow=True)
    run.await_termination()
    progress = run.pipeline("q").streaming.recentProgress
    return {
        "times": [p["durationMs"]["triggerExecution"] / 1e3 for p in progress if p["numInputRows"]],
        "results": sum(p.results for p in run.progress["q"]),
    }


def run_theirs(folder: Path) -> dict[str, Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    settings = {
        "spark.master": "local[2]", "spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC", "spark.ui.enabled": "false", "spark.log.level": "ERROR",
        "spark.sql.streaming.stateStore.providerClass": STORES["default"],
        "spark.sql.streaming.statefulOperator.allowMultiple": "false", "spark.local.dir": str(folder / "local"),
        "spark.sql.parquet.compression.codec": "lz4_raw", "spark.sql.streaming.pollingDelay": "5ms",
    }  # fmt: skip
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def stream(name: str) -> Any:
        path = str(folder / "in" / name)
        rows = spark.readStream.schema(spark.read.parquet(path).schema).option("maxFilesPerTrigger", 1).parquet(path)
        renamed = rows.select(*(F.col(c).alias(f"{name}_{c}") for c in (*COLUMNS[name], "ts")))
        return renamed.withWatermark(f"{name}_ts", "0 seconds")

    first = stream("t").join(
        stream("b"),
        F.expr(
            "t_symbol = b_symbol AND t_exchange = b_exchange AND t_price = b_bid "
            f"AND b_ts < t_ts + {WINDOW} AND t_ts < b_ts + {WINDOW}"
        ),
    )
    pairs = first.selectExpr("*", "least(t_ts, b_ts) AS earliest", "greatest(t_ts, b_ts) AS latest")
    whole = pairs.withWatermark("latest", "0 seconds").join(
        stream("a"),
        F.expr(
            "b_symbol = a_symbol AND b_exchange = a_exchange "
            f"AND a_ts < earliest + {WINDOW} AND latest < a_ts + {WINDOW}"
        ),
    )
    writer = whole.selectExpr("t_symbol", "t_price", "t_size", "b_bid_size", "a_ask").writeStream.format("parquet")
    query = writer.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    times = [p["durationMs"]["triggerExecution"] / 1e3 for p in running.recentProgress if p["numInputRows"]]
    return {"times": times, "results": sum(written_rows(folder / "out").values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(DATA), help="where the ticks are")
    parser.add_argument("--way", choices=WAYS, help="run this one in this process")
    parser.add_argument("--folder", help="with --way: a replay")
    given = parser.parse_args()
    if given.way:
        run = run_ours if given.way == WAYS[0] else run_theirs
        print(json.dumps(run(Path(given.folder))))
        return
    if not (Path(given.data) / "us_equity_ticks_trades.parquet").exists():
        print(f"SKIPPED: no ticks in {given.data}: this benchmark measures nothing without them", file=sys.stderr)
        return
    rows, table = streams(Path(given.data)), []
    falling = dict.fromkeys(WAYS, False)
    for speed in SPEEDS:
        results = set()
        for way in WAYS:
            if falling[way]:
                continue
            folder = Path(tempfile.mkdtemp())
            try:
                count = write_replay(rows, speed, folder / "in")
                found = report.in_fresh_process("bench.real", "--way", way, "--folder", str(folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            times = sorted(found["times"][WARM:])
            slow = times[int(0.9 * (len(times) - 1))]
            falling[way] = slow >= BATCH_S
            results.add(found["results"])
            table.append({
                "way": way, "speed": speed, "rows/batch": count / BATCHES, "results": found["results"],
                "median batch s": statistics.median(times), "90 % of batches s": slow, "sustained": str(slow < BATCH_S),
            })  # fmt: skip
            print(report.table(table[-1:]), flush=True)
        if len(results) > 1:
            raise SystemExit(f"results differ at speed {speed}: {results}")
    print(report.table(table))
    for way in WAYS:
        best = max((r["speed"] for r in table if r["way"] == way and r["sustained"] == "True"), default=0)
        print(f"{way}: sustained up to {best} times real time, of {SPEEDS[-1]} tried")
    print(f"written to {report.write('real', table)}")


if __name__ == "__main__":
    main()
