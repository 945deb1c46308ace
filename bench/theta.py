"""Joins without equal keys, in one process on one core: `python -m bench.theta [--quick]`.

A band join of two streams, `a.x BETWEEN b.x - w AND b.x + w`, in which a row finds about one partner. Ranges are looked up
in indexes by order; beside them stands the same engine with ranges switched off, which looks up every row, and the DuckDB
loop of `bench.engine`. State is filled to a whole window before the clock starts. Where every row is looked up, state is
filled by lookups of ranges, for nobody could wait; batches are small, and it is measured until `LIMIT_S` have passed.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.plan.join_graph import JoinGraph
from anabranch.storage.filesystem import LocalFilesystem
from bench import report
from bench.engine import MEASURED_BATCHES, measure_duckdb, rate, warm_batches
from bench.workload import POOL, Workload

WIDTH = 0.5
"""The `w` of the band."""

LIMIT_S = 15.0

FEW_ROWS = 500
"""Where every row is looked up, a batch has so many rows of each stream: one of a second would take an hour."""


@dataclass(frozen=True)
class Band(Workload):
    """Two streams with a number each, uniform over as wide a domain as gives `matches` partners in the band."""

    @property
    def where(self) -> str:
        # What BETWEEN means, in two comparisons: of BETWEEN DuckDB takes only one half into its inequality join, and is a
        # hundred times slower.
        return f"a.x >= b.x - {WIDTH} AND a.x <= b.x + {WIDTH}"

    @property
    def selected(self) -> tuple[str, ...]:
        return ("a.x", "b.x", "a.v", "b.v")

    @cached_property
    def columns(self) -> dict[str, str]:
        return {"x": "DOUBLE", "v": "DOUBLE", "ts": "TIMESTAMP"}

    @cached_property
    def _pool(self) -> list[dict[str, pa.Table]]:
        rng = np.random.default_rng(7)
        domain, n = 2 * WIDTH * self.rate_per_s * self.window_s / self.matches, self.rows_per_batch
        return [
            {stream: pa.table({"x": rng.random(n) * domain, "v": rng.random(n)}) for stream in self.streams}
            for _ in range(POOL)
        ]


def measure(workload: Band, with_ranges: bool) -> dict[str, Any]:
    """Rows per second, and how many pairs of rows were looked at for the results."""
    with tempfile.TemporaryDirectory() as folder:
        run = LocalRun(workload.query, LocalFilesystem(folder))
        warm, times, results, candidates = warm_batches(workload), [], 0, 0
        for number in range(warm):
            run.step(number, workload.batch(number))
        if not with_ranges:
            run = LocalRun(workload.query, LocalFilesystem(folder))
        with nullcontext() if with_ranges else mock.patch.object(JoinGraph, "range_between", return_value=None):
            for number in range(warm, warm + MEASURED_BATCHES):
                batch, began = workload.batch(number), perf_counter()
                step = run.step(number, batch)
                times.append(perf_counter() - began)
                results += step.results.num_rows
                candidates += sum(s.candidates for s in step.statistics.steps)
                if sum(times) > LIMIT_S:
                    break
    rows = 2 * workload.rows_per_batch * len(times)
    return {
        "rows/s": rate(workload, times), "worst batch s": max(times), "batches": len(times), "results": results,
        "candidates/row": candidates / rows,
    }  # fmt: skip


def measure_rival(workload: Band) -> dict[str, Any]:
    """The faster of the two DuckDB loops."""
    found = [{"way": f"DuckDB loop ({kind})", **measure_duckdb(workload, kind)} for kind in ("tables", "arrow")]
    return max(found, key=lambda figures: figures["rows/s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller rate only")
    quick = parser.parse_args().quick
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    measure(Band("2-way", 100, 4, 1), with_ranges=True)  # compiles the kernels
    measure(Band("2-way", 100, 4, 1), with_ranges=False)
    rows: list[dict[str, Any]] = []
    for rate_per_s in (5_000,) if quick else (5_000, 50_000):
        for batch_s in (1.0, 0.1):
            workload = Band("2-way", rate_per_s, 4, batch_s)
            ours, rival = measure(workload, with_ranges=True), measure_rival(workload)
            if rival["results"] not in (None, ours["results"]):
                raise SystemExit(f"{ours['results']} results in ranges, {rival['results']} in DuckDB: {workload}")
            for figures in ({"way": "anabranch, ranges", **ours}, rival):
                rows.append({"rate": rate_per_s, "batch s": batch_s, **figures})
                print(report.table(rows[-1:]).splitlines()[-1], flush=True)
        few = Band("2-way", rate_per_s, 4, FEW_ROWS / rate_per_s)
        rows.append({"rate": rate_per_s, "batch s": few.batch_s, "way": "anabranch, every row", **measure(few, False)})
        print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    print(report.table(rows, list(rows[0])))
    for rate_per_s in sorted({row["rate"] for row in rows}):
        best = {row["way"]: row["rows/s"] for row in rows if row["rate"] == rate_per_s}
        gain = best["anabranch, ranges"] / best["anabranch, every row"]
        print(f"{rate_per_s:,} rows/s: ranges, in batches of 0.1 s, are {gain:,.0f} times as fast as every row")
    print(f"written to {report.write('theta', rows)}")


if __name__ == "__main__":
    main()
