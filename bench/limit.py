"""How far from one process in memory: `python -m bench.limit`: Q3 through our reader beside a DuckDB loop without Spark.

The loop keeps all state in memory, writes nothing, and runs on two threads; ours goes through Spark's scheduler and shuffle,
writes state and results to files, and commits every batch. Prints both rates and where the time of a batch goes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import report
from bench.hosted import HostedSpec
from bench.native import MEASURED, RATE_PER_S, WINDOW_S, hosted
from bench.rivals.duckdb_loop import DuckDbLoop
from bench.workload import Workload

SHAPE = "3-way chain"


def duckdb_rate(workload: Workload, kind: str, threads: int) -> float:
    """Input rows per second of the loop, a whole window filled before the clock starts; median over batches."""
    loop, warm, times = DuckDbLoop(workload, kind, threads), WINDOW_S + 2, []
    for number in range(warm):
        loop.fill(workload.batch(number))
    for number in range(warm, warm + MEASURED):
        rows = workload.batch(number)
        began = perf_counter()
        loop.expire(round((number - 1) * 1e6))
        loop.step(rows)
        times.append(perf_counter() - began)
    return len(workload.streams) * workload.rows_per_batch / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "anabranch-bench"))
    given = parser.parse_args()
    workload = Workload(SHAPE, RATE_PER_S, WINDOW_S, 1)
    spec = HostedSpec(
        SHAPE, RATE_PER_S, WINDOW_S, 1, WINDOW_S + 2 + MEASURED, os.path.join(given.data, "3-way-chain"), "reader", "(a b c)"
    )
    loop = max(duckdb_rate(workload, kind, threads=2) for kind in ("tables", "arrow"))
    runs = sorted((hosted(spec) for _ in range(given.repeat)), key=lambda r: r["rows/s"])
    ours = runs[len(runs) // 2]
    rows: list[dict[str, Any]] = [
        {"way": "DuckDB loop, two threads, in memory", "rows/s": loop, "of DuckDB": 1.0},
        {"way": "anabranch on Spark, our reader", "rows/s": ours["rows/s"], "of DuckDB": ours["rows/s"] / loop},
    ]
    print(report.table(rows))
    phases = [{"phase": name, "s per batch": spent} for name, spent in ours["phases_s"].items() if spent >= 0.001]
    print(report.table(phases))
    print(f"written to {report.write('limit', [*rows, *phases])}")


if __name__ == "__main__":
    main()
