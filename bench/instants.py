"""The instants of a batch, asked for one at a time or together: `python -m bench.instants [--pairs 9] [--quick]`.

DuckDB groups windows of 100 to 300,000 rows at 1, 5 and 20 instants, a second apart, by up to 2,000 plugs: SUM with COUNT,
and MEDIAN. Three ways, which give the same:

- `one`: a statement for each instant (`DuckDb.run`);
- `together`: one statement with a branch for each, over the rows of its window where they lie (`DuckDb.run_all`): what a
  block is asked with (`anabranch.engine.mig_box`), up to 32 instants and 64 MiB of rows;
- `joined`: one statement over all rows, joined with the instants at which each is valid. A row is copied for each of these,
  and text of a user cannot be asked so: only one that is made for it.

Each way is run once uncounted. Then they take turns; a figure is the median over the turns of its CPU by that of `one` in
the same turn, and beside it the least and the most of these.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from time import process_time

import numpy as np
import pyarrow as pa

from anabranch.place.databases.duckdb import DuckDb
from bench import report

SECOND_US = 1_000_000
WINDOWS = ((10, 10), (10, 100), (300, 10), (300, 100), (10, 10_000), (300, 1_000))
"""Seconds, and rows a second."""
INSTANTS = (1, 5, 20)
MOST_PLUGS = 2_000
AGGREGATES = {"SUM, COUNT": "sum(load) AS a, count(*) AS b", "MEDIAN": "median(load) AS a"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small: whether it runs at all")
    given = parser.parse_args()
    windows, pairs = (WINDOWS[:1], 2) if given.quick else (WINDOWS, given.pairs)
    rows = [
        measure(what, window_s, rate, instants, pairs)
        for window_s, rate in windows for what in AGGREGATES for instants in INSTANTS
    ]  # fmt: skip
    print(report.table(rows))
    print(f"written to {report.write('instants', rows)}")


def measure(what: str, window_s: int, rate: int, instants: int, pairs: int) -> dict[str, object]:
    """What the ways take for so many instants whose windows are full."""
    database, rng = DuckDb(), np.random.default_rng(18)
    count = rate * (window_s + instants)
    starts = np.arange(count) * SECOND_US // rate
    rows = pa.table({"plug": rng.integers(0, min(rate, MOST_PLUGS), count), "load": rng.random(count), "start": starts})
    at = [(window_s + n) * SECOND_US for n in range(instants)]
    ends = [np.searchsorted(starts, [us - window_s * SECOND_US, us], side="right").tolist() for us in at]
    windows = [{"plugs": rows.slice(first, last - first)} for first, last in ends]
    numbers = pa.table({"n": range(instants), "us": at})
    every = {"plugs": rows.slice(ends[0][0], ends[-1][1] - ends[0][0]), "instants": numbers}
    text = f"SELECT plug, {AGGREGATES[what]} FROM plugs GROUP BY plug"
    joined = (
        f"SELECT n, plug, {AGGREGATES[what]} FROM plugs JOIN instants ON start <= us AND us < start + "
        f"{window_s * SECOND_US} GROUP BY n, plug"
    )
    ways: dict[str, Callable[[], list[pa.Table]]] = {
        "one": lambda: [database.run(text, each) for each in windows],
        "together": lambda: database.run_all(text, windows),
        "joined": lambda: [database.run(joined, every)],
    }
    expected = groups(ways["one"]())
    assert groups(ways["together"]()) == expected
    assert {row[1:] for row in groups(ways["joined"]())} == expected
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(pairs):
        for name, ask in ways.items():
            began = process_time()
            ask()
            spent[name].append(process_time() - began)
    database.close()
    ratios = {name: [b / a for a, b in zip(spent["one"], spent[name], strict=True)] for name in ("together", "joined")}
    return {
        "rows of a window": window_s * rate, "what": what, "instants": instants,
        "one, ms": round(statistics.median(spent["one"]) * 1e3, 1),
        **{name: f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for name, each in ratios.items()},
    }  # fmt: skip


def groups(found: Sequence[pa.Table]) -> set[tuple[object, ...]]:
    """All groups, with the numbers of their tables. Sums are rounded: their rows are added in any order."""
    return {
        (n, *(round(each, 6) if isinstance(each, float) else each for each in row))
        for n, table in enumerate(found) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    }  # fmt: skip


if __name__ == "__main__":
    main()
