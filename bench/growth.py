"""How the cost of a batch and the size of the state grow: `python -m bench.growth [--quick]`.

One process, one core, a three-way chain unless said otherwise. Key domains grow with the window, so that the results stay
the same. CPU per input row is process time of the steps; "p99 / median" is over the wall times of the batches of one row.
Every case runs in three rounds, and the medians over the rounds are shown.
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
from anabranch.drive.local import LocalRun
from anabranch.storage.filesystem import LocalFilesystem
from bench import report
from bench.engine import plans, warm_batches
from bench.workload import SHAPES, Workload

INDEXED_KEY_BYTES = 16
ROUNDS = 3


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
        if state.kind == "index":
            needed += state.rows * (INDEXED_KEY_BYTES + (8 if state.inputs > 1 else 0))
        else:
            needed += state.rows * 8 * state.inputs
    alive = len(workload.streams) * workload.rate_per_s * (workload.window_s + workload.batch_s)
    kept = sum(s.state_rows for s in counted.sources.values())
    return {
        "log B/row": streams_bytes / kept, "state B/row": used / kept, "state / needed": used / needed,
        "purge lag %": (kept / alive - 1) * 100,
    }  # fmt: skip


def _stored_columns(workload: Workload, stream: str) -> set[str]:
    read = {c for pair in SHAPES[workload.shape] for c in pair} | set(workload.selected)
    return {c.split(".")[1] for c in read if c.startswith(f"{stream}.")} | {"ts"}


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median over the rounds of every figure of one case."""
    return {k: statistics.median(r[k] for r in rounds) if isinstance(v, float) else v for k, v in rounds[0].items()}


def growth(small: list[dict[str, Any]], large: list[dict[str, Any]]) -> float:
    """How much CPU a row costs in one case beside another: the median over rounds, for the machine's speed changes."""
    return statistics.median(float(b["CPU ns/row"] / a["CPU ns/row"]) for a, b in zip(small, large, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, fewer batches, smaller windows")
    quick = parser.parse_args().quick
    pa.set_cpu_count(1)
    batches = 24 if quick else 120
    measure(Workload("3-way chain", 2_000, 8, 1), "n-ary", 4)  # compiles the kernels
    measure(Workload("3-way chain", 2_000, 8, 1), "binary", 4)
    times = (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64)
    cases = [
        *(("window", Workload("3-way chain", 20_000, 4 * t, 1), plan) for plan in ("n-ary", "binary") for t in times),
        *(("rate", Workload("3-way chain", rate_per_s, 8, 1), "n-ary") for rate_per_s in (2_000, 20_000, 200_000)),
        *(("streams", Workload(shape, 20_000, 8, 1), "n-ary" if shape != "2-way" else "binary") for shape in SHAPES),
    ]
    found: list[list[dict[str, Any]]] = [[] for _ in cases]
    for number in range(1 if quick else ROUNDS):
        for place, (series, workload, plan_name) in enumerate(cases):
            found[place].append({"series": series, **measure(workload, plan_name, batches)})
            print(f"round {number + 1}: {report.table(found[place][-1:]).splitlines()[-1]}", flush=True)
    rows = [middle(rounds) for rounds in found]
    print(report.table(rows))
    for first, plan_name in ((0, "n-ary"), (len(times), "binary")):
        grows = growth(found[first], found[first + len(times) - 1])
        print(f"window ({plan_name}): CPU per row at the largest is {grows:.2f} times that at the smallest")
    slow, fast = (next(p for p, c in enumerate(cases) if c[0] == "rate" and c[1].rate_per_s == r) for r in (20_000, 200_000))
    print(f"rate x 10: CPU per row is {growth(found[slow], found[fast]):.2f} times that at the smaller rate")
    print(f"worst p99 / median of a batch: {max(r['p99 / median'] for r in rows):.2f}")
    print(f"worst state / needed: {max(r['state / needed'] for r in rows):.2f}")
    print(f"written to {report.write('growth', rows)}")


if __name__ == "__main__":
    main()
