"""The engine alone, in one process on one core, beside a DuckDB loop on one thread: `python -m bench.engine [--quick]`.

Both get the same batches. State is filled to a whole window before the clock starts; the figures are input rows per second
of all streams over the measured batches, the median of several, and the results are counted and must agree. The engine
writes its state to files and commits every batch; the loop keeps everything in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from threading import Timer
from time import perf_counter
from typing import Any

import duckdb
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Leaf, Plan, join, left_deep
from anabranch.storage.filesystem import LocalFilesystem
from bench import report
from bench.rivals.duckdb_loop import DuckDbLoop
from bench.workload import SHAPES, Workload

MEASURED_BATCHES = 12
DUCKDB_LIMIT_S = 15.0
"""The loop is given so long for the measured batches; what it has not done by then it is not waited for."""


def plans(workload: Workload) -> dict[str, Plan]:
    """Plan shapes of a workload: binary as written, one n-ary join, and a mix where there is room for one."""
    graph = JoinGraph(workload.query)
    leaves = tuple(Leaf(a) for a in workload.streams)
    found: dict[str, Plan] = {"binary": left_deep(graph)}
    if len(leaves) > 2:
        found["n-ary"] = join(leaves, graph)
    if len(leaves) > 3:
        found["mixed"] = join((join(leaves[:2], graph), *leaves[2:]), graph)
    return found


def measure_engine(workload: Workload, plan: Plan) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = LocalRun(workload.query, LocalFilesystem(folder), plan)
        warm = warm_batches(workload)
        times, results = [], 0
        for number in range(warm + MEASURED_BATCHES):
            batch = workload.batch(number)
            began = perf_counter()
            step = run.step(number, batch)
            if number >= warm:
                times.append(perf_counter() - began)
                results += step.results.num_rows
        counted = step.statistics
        state_bytes = sum(s.state_bytes for s in counted.sources.values()) + sum(s.bytes for s in counted.states)
    return {"rows/s": rate(workload, times), "worst batch s": max(times), "results": results, "state MB": state_bytes / 1e6}


def measure_duckdb(workload: Workload, kind: str) -> dict[str, Any]:
    """The loop, until it has done all batches or `DUCKDB_LIMIT_S` are over: some of its plans end in no useful time."""
    loop = DuckDbLoop(workload, kind)
    warm = warm_batches(workload)
    times, results = [], 0
    for number in range(warm):
        loop.fill(workload.batch(number))
    timer = Timer(DUCKDB_LIMIT_S, loop.connection.interrupt)
    timer.start()
    for number in range(warm, warm + MEASURED_BATCHES):
        batch = workload.batch(number)
        began = perf_counter()
        try:
            loop.expire(round((number - 1) * workload.batch_s * 1e6))
            out = loop.step(batch)
        except duckdb.InterruptException:
            out = []
            times.append(perf_counter() - began)
            break
        times.append(perf_counter() - began)
        results += sum(t.num_rows for t in out)
        if not timer.is_alive():
            break
    timer.cancel()
    whole = len(times) == MEASURED_BATCHES
    return {"rows/s": rate(workload, times), "worst batch s": max(times), "results": results if whole else None}


def warm_batches(workload: Workload) -> int:
    return round(workload.window_s / workload.batch_s) + 2


def rate(workload: Workload, times: list[float]) -> float:
    return len(workload.streams) * workload.rows_per_batch / statistics.median(times)


def workloads(quick: bool) -> list[Workload]:
    rate_per_s = 200_000
    if quick:
        return [Workload("3-way chain", rate_per_s, 4, b) for b in (1, 0.1)]
    found = [Workload(shape, rate_per_s, 4, b) for shape in SHAPES for b in (1, 0.1)]
    found += [Workload(shape, rate_per_s, 60, b) for shape in ("2-way", "3-way chain") for b in (1, 0.1)]
    found += [Workload(shape, rate_per_s, 4, 1, wide=True) for shape in ("2-way", "3-way chain")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the three-way chain only")
    quick = parser.parse_args().quick
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    rows: list[dict[str, Any]] = []
    for workload in workloads(quick):
        about = {
            "join": workload.shape, "rows": "wide" if workload.wide else "narrow", "window s": workload.window_s,
            "batch s": workload.batch_s,
        }  # fmt: skip
        fresh: list[dict[str, Any]] = []
        for name, plan in plans(workload).items():
            measure_engine(workload, plan) if not rows and not fresh else None  # compiles the kernels
            fresh.append({**about, "way": f"anabranch {name}", **measure_engine(workload, plan)})
            print(report.table(fresh[-1:]).splitlines()[-1], flush=True)
        rivals = [measure_duckdb(workload, kind) for kind in ("tables", "arrow")]
        best = max(rivals, key=lambda r: r["rows/s"])
        kind = ("tables", "arrow")[rivals.index(best)]
        stalled = "" if best["results"] is not None else ", not finished"
        fresh.append({**about, "way": f"DuckDB loop ({kind}{stalled})", **best})
        print(report.table(fresh[-1:]).splitlines()[-1], flush=True)
        for row in fresh:
            row["times DuckDB"] = row["rows/s"] / best["rows/s"]
            if best["results"] is not None and row["results"] != best["results"]:
                raise SystemExit(f"{row['way']} found {row['results']} results, DuckDB {best['results']}: {about}")
        rows += fresh
    columns = [*about, "way", "rows/s", "times DuckDB", "worst batch s", "results", "state MB"]
    print(report.table(rows, columns))
    print(f"written to {report.write('engine', rows)}")


if __name__ == "__main__":
    main()
