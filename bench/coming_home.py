"""What a block that joins takes when it comes home from DuckDB: `python -m bench.coming_home [--quick]`.

Its groups are folded piece by piece, within the pause of each batch (`anabranch.engine.homecoming`); the indexes that the
engine looks up by are derived in the batch in which it goes over. Two streams with windows of 10,000 to 1,000,000 rows each,
of which each finds one partner, are joined and grouped. Told are the CPU seconds of the batch in which the block goes over,
beside the median of the five batches after it, in which the engine joins: the difference is what the indexes take, once.
Everything is engine-local, in one slot.
"""

from __future__ import annotations

import argparse
import statistics
from time import process_time

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.drive.warm import warm_up
from anabranch.place.statement_of import placed
from anabranch.plan.query import SECOND_US
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

SQL = """CREATE STREAM a (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.v, COUNT(*) AS n FROM a [RANGE 10 MINUTES], b [RANGE 10 MINUTES] WHERE a.k = b.k
GROUP BY a.v SLIDE 10 MINUTES"""
WINDOWS = (10_000, 100_000, 1_000_000)
BATCHES, AFTER, FRESH = 20, 5, 1_000
"""The windows are filled in so many batches; so many follow the one in which the block goes over, with so many rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small: whether it runs at all")
    given = parser.parse_args()
    warm_up()
    rows = [measure(rows) for rows in (WINDOWS[:1] if given.quick else WINDOWS)]
    print(report.table(rows))
    print(f"written to {report.write('coming_home', rows)}")


def measure(window_rows: int) -> dict[str, object]:
    """The batch in which the block goes over, and those after it; windows have so many rows each."""
    query = placed(parse_script(SQL).queries[0].query, {"q": "duck"})
    run, rng, spent = LocalRun(query, MemoryFilesystem()), np.random.default_rng(18), list[float]()

    def step(batch: int, count: int) -> None:
        us = batch * SECOND_US + np.arange(count) * SECOND_US // count
        rows = {
            name: pa.table({
                "k": rng.integers(0, window_rows, count), "v": rng.integers(0, 100, count),
                "ts": pa.array(us, pa.timestamp("us")),
            })
            for name in ("a", "b")
        }  # fmt: skip
        began = process_time()
        run.step(batch, rows)
        spent.append(process_time() - began)

    for batch in range(BATCHES):
        step(batch, window_rows // BATCHES)
    run.place("q", "engine", pause_us=50_000)
    while "q" not in run.execution.home:
        step(len(spent), FRESH)
    before = spent[-1]
    for _ in range(AFTER + 1):
        step(len(spent), FRESH)
    over, *after = spent[-AFTER - 1 :]
    usual = statistics.median(after)
    return {
        "rows of the windows": 2 * window_rows, "batches on the way": len(spent) - BATCHES - AFTER - 1,
        "last on the way, s": before, "goes over, s": over, "after, s": usual, "indexes, s": over - usual,
        "µs a row": (over - usual) / (2 * window_rows) * 1e6,
    }  # fmt: skip


if __name__ == "__main__":
    main()
