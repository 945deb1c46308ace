"""Anabranch beside Spark's own stream-stream join, on the same files: `python -m bench.native [--quick] [--repeat 3]`.

Q2 and Q3 of the design (200,000 rows per second and stream, window 4 s, batches of 1 s), a 4-way star, a 5-way chain, and a
5-way chain of skewed selectivities written in the worst order (`--rate` gives another rate: Spark's own takes long).
Every run is a fresh process on two cores; both write their results as parquet. Figures are input rows per second in steady
state (median over batches after a whole window has filled, by Spark's own clock of a trigger), the median of the
repetitions; results must agree. Spark's joins run left-deep as written, with the default and the RocksDB state store; where
Spark refuses the query (MULTIPLE_EVENT_TIME_COLUMNS) the way around it is told in `bench/rivals/spark_native.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.adapt.loop import SURE_BATCHES
from bench import report
from bench.data import write_files
from bench.hosted import HostedSpec
from bench.processes import watched
from bench.rivals.spark_native import Spec, launch, settings
from bench.workload import PARTNERS, Workload

RATE_PER_S = 200_000
WINDOW_S = 4
MEASURED = 6
TIMEOUT_S = 1800.0
WARM_BATCHES = (WINDOW_S + 2, SURE_BATCHES + 3)
"""Until a window is full; and until a query has been planned again on facts, which matters where keys differ."""
AS_WRITTEN = {
    "2-way": "(a b)", "3-way chain": "((a b) c)", "4-way star": "(((a b) c) d)", "5-way chain": "((((a b) c) d) e)",
    "5-way worst order": "((((a b) c) d) e)",
}  # fmt: skip


def hosted(spec: HostedSpec) -> dict[str, Any]:
    """Runs Anabranch in a fresh process; returns its figures, with the peak memory of all its processes."""
    write_files(spec.workload, spec.folder, spec.batches)
    return watched(spec.command(), TIMEOUT_S)


def ours(spec: HostedSpec) -> dict[str, Any]:
    found = hosted(spec)
    return {
        "rows/s": found["rows/s"], "results": found["results"], "state MB": found["state_bytes"] / 1e6,
        "peak MB": found["peak_rss_bytes"] / 1e6, "plan": found["plan"], "phases": found["phases_s"],
    }  # fmt: skip


def theirs(spec: Spec) -> dict[str, Any]:
    found = launch(spec)
    if found["status"] == "failed":
        raise SystemExit(f"Spark's own join failed on {spec.shape}: {found['error']}")
    whole = found["status"] == "ok"
    return {
        "rows/s": found["rows_per_s"], "results": found["results"] if whole else None,
        "state MB": (found["state_memory_bytes"] or 0) / 1e6, "peak MB": found["peak_rss_bytes"] / 1e6,
        "disk MB": found["state_disk_bytes"] / 1e6,
    }  # fmt: skip


def median_of(repeat: int, run: Callable[[Any], dict[str, Any]], spec: Spec | HostedSpec) -> dict[str, Any]:
    """The run with the median rate, with the rates of all."""
    found = sorted((run(spec) for _ in range(repeat)), key=lambda r: r["rows/s"] or 0.0)
    rates = [r["rows/s"] for r in found]
    return {**found[len(found) // 2], "rates": rates, "rows/s": statistics.median(rates) if None not in rates else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Q2 and Q3 with the default store only")
    parser.add_argument("--join", action="append", choices=tuple(AS_WRITTEN), help="only this one (may be given again)")
    parser.add_argument("--rate", type=int, default=RATE_PER_S, help="rows per second and stream (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--rocksdb-repeat", type=int, default=1, help="runs with RocksDB, slow ones (default: %(default)s)")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "anabranch-bench"), help="where files are kept")
    given = parser.parse_args()
    shapes = given.join or (("2-way", "3-way chain") if given.quick else tuple(AS_WRITTEN))
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        workload = Workload(shape, given.rate, WINDOW_S, 1)
        batches = WARM_BATCHES[shape in PARTNERS] + MEASURED
        folder = os.path.join(given.data, f"{shape.replace(' ', '-')}-{given.rate}")
        write_files(workload, folder, batches)

        def add(way: str, found: dict[str, Any], shape: str = shape) -> None:
            rows.append({"join": shape, "rate": given.rate, "way": way, **found})
            print(report.table(rows[-1:], ["join", "way", "rows/s", "results", "state MB", "peak MB"]), flush=True)

        for store, repeat in (("default", given.repeat), *((("rocksdb", given.rocksdb_repeat),) if not given.quick else ())):
            if repeat:
                theirs_spec = Spec(shape, given.rate, WINDOW_S, 1, batches, folder, store=store, timeout_s=TIMEOUT_S)
                add(f"Spark's own, {store} store", median_of(repeat, theirs, theirs_spec))
        for way, text in (("frame", "DataFrame"), ("reader", "our reader")):
            for plan in (None, AS_WRITTEN[shape]) if len(workload.streams) > 2 else (None,):
                name = f"anabranch, {text}, {'as written' if plan else 'plan of its own'}"
                spec = HostedSpec(shape, given.rate, WINDOW_S, 1, batches, folder, way, plan, warm=batches - MEASURED)
                add(name, median_of(given.repeat, ours, spec))
        fresh = [r for r in rows if r["join"] == shape]
        base = fresh[0]
        for row in fresh:
            row["times Spark"] = row["rows/s"] / base["rows/s"] if base["rows/s"] and row["rows/s"] else None
            row["state of Spark's"] = row["state MB"] / base["state MB"] if base["state MB"] else None
        counts = {r["results"] for r in fresh if r["results"] is not None}
        if len(counts) != 1:
            raise SystemExit(f"results differ on {shape}: {[(r['way'], r['results']) for r in fresh]}")
    print(json.dumps(settings(Spec("2-way", given.rate, WINDOW_S, 1, 1, ""))), file=sys.stderr)
    shown = ["join", "rate", "way", "rows/s", "times Spark", "results", "state MB", "state of Spark's", "peak MB"]
    print(report.table(rows, shown))
    print(f"written to {report.write('-'.join(['native', *(given.join or [])]).replace(' ', '-'), rows)}")


if __name__ == "__main__":
    main()
