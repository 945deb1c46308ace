"""MEDIAN over five minutes by plug, in DuckDB over our windows: `python -m bench.median [--rate 100000] [--plugs 2125]`.

One slot in one process, without Spark: batches of a second of event time go through the whole protocol, state is written to
a folder. The window is filled first, in a few large batches. Then a batch lasts as long as it takes, and the rate that is
sustained is its rows by that time. Beside it: the engine's own AVG over the same windows, which folds a row once; and the
share of the time that is spent in DuckDB.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.place.databases.embedded import open_embedded
from anabranch.sql import Catalog, parse_script
from anabranch.storage.filesystem import LocalFilesystem
from bench import report
from bench.smart_plugs import PLUGS

SECOND_US = 1_000_000
FILLING = 5
"""The window is filled in so many batches."""

WAYS = {
    "MEDIAN in DuckDB": """SELECT x.plug, x.m FROM DATABASE duck (
        SELECT plug, median(load) AS m FROM plugs [RANGE {window} SECONDS] GROUP BY plug SLIDE {slide} SECONDS) x""",
    "AVG in DuckDB": """SELECT x.plug, x.m FROM DATABASE duck (
        SELECT plug, avg(load) AS m FROM plugs [RANGE {window} SECONDS] GROUP BY plug SLIDE {slide} SECONDS) x""",
    "AVG in the engine": """SELECT plug, AVG(load) AS m FROM plugs [RANGE {window} SECONDS] GROUP BY plug
        SLIDE {slide} SECONDS""",
}


def rows_of(rng: np.random.Generator, first_s: int, seconds: int, rate: int, plugs: int) -> pa.Table:
    """The rows of some seconds, in order of time."""
    count = rate * seconds
    times = first_s * SECOND_US + np.arange(count) * SECOND_US // rate
    return pa.table({
        "plug": rng.integers(0, plugs, count), "household": np.zeros(count, np.int64),
        "load": np.round(rng.gamma(2.0, 40.0, count), 3), "ts": pa.array(times).cast(pa.timestamp("us")),
    })  # fmt: skip


def measure(way: str, rate: int, plugs: int, window_s: int, slide_s: int, batches: int) -> dict[str, object]:
    sql = f"{PLUGS} CREATE QUERY q AS {WAYS[way].format(window=window_s, slide=slide_s)}"
    query = parse_script(sql, Catalog(databases=open_embedded)).queries[0].query
    rng, walls, shares, results = np.random.default_rng(5), list[float](), list[float](), 0
    with tempfile.TemporaryDirectory() as folder:
        run, second = LocalRun(query, LocalFilesystem(folder)), 0
        for number in range(FILLING + batches):
            seconds = -(-window_s // FILLING) if number < FILLING else slide_s
            rows = rows_of(rng, second, seconds, rate, plugs)
            second += seconds
            began = time.perf_counter()
            step = run.step(number, {"plugs": rows})
            if number > FILLING:  # the first one has the instants of those that filled the window
                walls.append(time.perf_counter() - began)
                asked_s = step.statistics.cpu_ns.get("database", 0) / 1e9
                shares.append(asked_s / walls[-1])
                results += step.results.num_rows
    wall = statistics.median(walls)
    return {
        "way": way, "rows/s in": rate, "rows in the window": rate * window_s, "plugs": plugs, "batch": f"{slide_s} s",
        "seconds a batch": round(wall, 4), "rows/s sustained": round(rate * slide_s / wall),
        "in DuckDB": f"{statistics.median(shares):.0%}", "results": results,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--plugs", type=int, default=2_125)
    parser.add_argument("--window", type=int, default=300, help="seconds")
    parser.add_argument("--slide", type=int, default=1, help="seconds; a batch has as many")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="small: whether it runs at all")
    given = parser.parse_args()
    rate, window, batches = (1_000, 20, 4) if given.quick else (given.rate, given.window, given.batches)
    rows = [measure(way, rate, given.plugs, window, given.slide, batches) for way in WAYS]
    print(report.table(rows))
    print(f"written to {report.write('median', rows)}")


if __name__ == "__main__":
    main()
