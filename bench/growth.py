"""How the cost of a batch and the size of the state grow: `python -m bench.growth [--quick]`.

One process, one core, a three-way chain unless said otherwise. Key domains grow with the window, so that the results stay
the same. CPU per input row is process time of the steps; "p99 / median" is over the wall times of the batches of one row.
State is counted per stored row, and set beside the size of the row itself plus 16 bytes for each key it is indexed by.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa

from anabranch.control.records import Statistics
from anabranch.engine.local import LocalRun
from anabranch.storage.filesystem import LocalFilesystem
from bench import report
from bench.engine import plans, warm_batches
from bench.workload import SHAPES, Workload

INDEXED_KEY_BYTES = 16
PAIRS = 3


def measure(workload: Workload, plan_name: str, batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = LocalRun(workload.query, LocalFilesystem(folder), plans(workload)[plan_name])
        warm, cpu, walls = warm_batches(workload), 0.0, []
        files, written, results = 0, 0, 0
        for number in range(warm + batches):
            rows = workload.batch(number)
            cpu_before, wall_before = process_time(), perf_counter()
            step = run.step(number, rows)
            if number < warm:
                continue
            cpu += process_time() - cpu_before
            walls.append(perf_counter() - wall_before)
            files += step.statistics.files_written
            written += step.statistics.bytes_written
            results += step.results.num_rows
        state = state_of(workload, step.statistics)
    rows_in = batches * len(workload.streams) * workload.rows_per_batch
    return {
        "join": workload.shape, "plan": plan_name, "rows/s": workload.rate_per_s, "window s": workload.window_s,
        "batch s": workload.batch_s, "results/row": results / rows_in, "CPU ns/row": cpu / rows_in * 1e9,
        "median batch ms": statistics.median(walls) * 1e3,
        "p99 / median": sorted(walls)[int(0.99 * len(walls))] / statistics.median(walls),
        "files/batch": files / batches, "written B/row": written / rows_in, **state,
    }  # fmt: skip


def state_of(workload: Workload, counted: Statistics) -> dict[str, Any]:
    """Bytes per stored row, as a multiple of what the row and its keys take at least; and rows kept beyond their end."""
    row_bytes = {name: 8 * len(_stored_columns(workload, name)) for name in counted.sources}
    needed = sum(s.state_rows * row_bytes[name] for name, s in counted.sources.items())
    used = sum(s.state_bytes for s in counted.sources.values())
    streams_bytes = used
    for state in counted.states:
        used += state.bytes
        if " by (" in state.name:
            needed += state.rows * (INDEXED_KEY_BYTES + (8 if state.name.startswith("(") else 0))
        else:
            needed += state.rows * 8 * len(state.name.split())
    alive = len(workload.streams) * workload.rate_per_s * (workload.window_s + workload.batch_s)
    kept = sum(s.state_rows for s in counted.sources.values())
    return {
        "log B/row": streams_bytes / kept, "state B/row": used / kept, "state / needed": used / needed,
        "purge lag %": (kept / alive - 1) * 100,
    }  # fmt: skip


def _stored_columns(workload: Workload, stream: str) -> set[str]:
    read = {c for pair in SHAPES[workload.shape] for c in pair} | set(workload.selected)
    return {c.split(".")[1] for c in read if c.startswith(f"{stream}.")} | {"ts"}


def ends_of_the_window(plan_name: str, times: int, batches: int, rows: list[dict[str, Any]]) -> float:
    """How much the largest window costs beside the smallest: the median over pairs that ran one after the other, for the
    speed of the machine changes in between."""
    ratios: list[float] = []
    for _ in range(PAIRS):
        pair = [measure(Workload("3-way chain", 20_000, 4 * t, 1), plan_name, batches) for t in (1, times)]
        rows += [{"series": "ends", **row} for row in pair]
        ratios.append(pair[1]["CPU ns/row"] / pair[0]["CPU ns/row"])
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches, smaller windows")
    quick = parser.parse_args().quick
    pa.set_cpu_count(1)
    batches = 24 if quick else 120
    measure(Workload("3-way chain", 2_000, 8, 1), "n-ary", 4)  # compiles the kernels
    measure(Workload("3-way chain", 2_000, 8, 1), "binary", 4)
    rows: list[dict[str, Any]] = []

    def add(series: str, workload: Workload, plan_name: str) -> None:
        rows.append({"series": series, **measure(workload, plan_name, batches)})
        print(report.table(rows[-1:]).splitlines()[-1], flush=True)

    for plan_name in ("n-ary", "binary"):
        for times in (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64):
            add("window", Workload("3-way chain", 20_000, 4 * times, 1), plan_name)
    for rate_per_s in (2_000, 20_000, 200_000):
        add("rate", Workload("3-way chain", rate_per_s, 8, 1), "n-ary")
    for shape in SHAPES:
        add("streams", Workload(shape, 20_000, 8, 1), "n-ary" if shape != "2-way" else "binary")
    print(report.table(rows))
    for plan_name in ("n-ary", "binary"):
        grows = ends_of_the_window(plan_name, 16 if quick else 64, batches, rows)
        print(f"window ({plan_name}): CPU per row at the largest is {grows:.2f} times that at the smallest")
    costs = [r["CPU ns/row"] for r in rows if r["series"] == "rate"]
    print(f"rate: CPU per row at the largest is {costs[-1] / costs[0]:.2f} times that at the smallest")
    worst = {(r["series"], r["join"], r["plan"], r["rows/s"], r["window s"]): [] for r in rows}  # type: ignore[var-annotated]
    for r in rows:
        worst[r["series"], r["join"], r["plan"], r["rows/s"], r["window s"]].append(r["p99 / median"])
    print(f"worst p99 / median of a batch: {max(statistics.median(found) for found in worst.values()):.2f}")
    print(f"worst state / needed: {max(r['state / needed'] for r in rows):.2f}")
    print(f"written to {report.write('growth', rows)}")


if __name__ == "__main__":
    main()
