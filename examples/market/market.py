"""Trades at prices that no quote of their time allows, and the spread of each symbol: `python market.py`."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import anabranch as ab

SYMBOLS, SECONDS, START_US = np.array(["BAC", "IBM", "XOM"]), 60, 1_772_442_600_000_000
"""The streams begin on 2 March 2026 at 09:10 UTC."""


def write_files(folder: str) -> None:
    """One minute of trades and quotes, one file for each five seconds of a stream."""
    rng = np.random.default_rng(7)
    middle = {"BAC": 41.0, "IBM": 262.0, "XOM": 118.0}
    for first in range(0, SECONDS, 5):
        for name, rows in (("quotes", 3_000), ("trades", 1_000)):
            symbols = rng.choice(SYMBOLS, rows)
            fair = np.array([middle[s] for s in symbols]) * (1 + rng.normal(0, 0.0005, rows))
            times = np.sort(START_US + first * 1_000_000 + rng.integers(0, 5_000_000, rows))
            columns = {"symbol": symbols, "ts": pa.array(times, pa.timestamp("us", "UTC"))}
            if name == "quotes":
                half = fair * rng.uniform(0.0002, 0.0008, rows)
                columns |= {"bid": (fair - half).round(2), "ask": (fair + half).round(2)}
            else:
                columns |= {"price": fair.round(2), "shares": rng.integers(1, 10, rows) * 100}
            os.makedirs(f"{folder}/{name}", exist_ok=True)
            pq.write_table(pa.table(columns), f"{folder}/{name}/{first:03d}.parquet")


def main(folder: str = "data") -> None:
    shutil.rmtree(folder, ignore_errors=True)
    write_files(folder)
    s = ab.Session(checkpoint=f"{folder}/checkpoint", budget=ab.Budget(memory="1 GiB"))
    s.stream("trades", f"{folder}/trades/*.parquet", time="ts", lateness="1 second", max_files_per_trigger=1)
    s.stream("quotes", f"{folder}/quotes/*.parquet", time="ts", lateness="1 second", max_files_per_trigger=1)
    outside, spread = ab.sinks.memory(), ab.sinks.memory()
    s.query("outside", """
        SELECT t.symbol, t.price, q.bid, q.ask, t.ts AS traded
        FROM trades [RANGE 10 MILLISECONDS] AS t, quotes [RANGE 10 MILLISECONDS] AS q
        WHERE t.symbol = q.symbol AND (t.price < 0.999 * q.bid OR t.price > 1.001 * q.ask)""", outside)
    s.query("spread", """
        SELECT RESULT_TIME AS at, symbol, COUNT(*) AS quotes, AVG(ask - bid) AS spread
        FROM quotes [RANGE 10 SECONDS] GROUP BY symbol SLIDE 10 SECONDS""", spread)
    s.start(availableNow=True).await_termination()
    found = outside.table().sort_by("traded")
    print(f"{found.num_rows:,} pairs of a trade and a quote within 10 ms that do not go together, the first of them:")
    for row in found.slice(0, 3).to_pylist():
        print(f"  {row['traded']:%H:%M:%S.%f} {row['symbol']} at {row['price']}, quoted {row['bid']} to {row['ask']}")
    print("the spread of ten seconds:")
    for row in spread.table().sort_by([("at", "ascending"), ("symbol", "ascending")]).slice(0, 6).to_pylist():
        print(f"  until {row['at']:%H:%M:%S} {row['symbol']}: {row['spread']:.3f}, over {row['quotes']:,} quotes")


if __name__ == "__main__":
    main()
