"""Anabranch beside Flink SQL's interval joins, on the same rows: `python -m bench.flink [--quick] [--repeat 3]`.

Q2 and Q3 of the design (200,000 rows per second and stream, window 4 s). Flink runs in an environment of its own, which
`python -m bench.flink --setup` makes (`.venv-flink`); where it is missing the benchmark says so, and does nothing. Flink's
wheel reads no parquet, so Flink reads CSV, and ours reads the same rows as CSV and as parquet (`bench/text_data.py`); what
Flink is given, and which of its ways are run, is told in `bench/rivals/flink_sql.py`.

Every run is a fresh process on two cores over a bounded input. `rows/s` is input rows over the whole run, from when the
first rows are read to when the last results are written, without the time to start; Java compiles what it runs during the
first seconds of it. `steady` leaves them out: for Flink it is the rate over the second half of the rows, for ours the
median over the batches after a window is full. CPU is that of all processes between the same two times, for a million rows;
`peak MB` is their resident memory. State is what Flink says of its largest checkpoint, and ours of its last batch. Figures
are those of the run with the median rate, and `times Flink` is beside the fastest of Flink's ways. Results must agree, as a
count and a checksum over all columns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from bench import report
from bench.hosted import HostedSpec
from bench.processes import cpu_between, watched
from bench.rivals.flink_sql import PYTHON, REQUIREMENTS, FlinkSpec, launch
from bench.text_data import write_text
from bench.workload import Workload

SHAPES = ("2-way", "3-way chain")
RATE_PER_S = 200_000
QUICK_RATE_PER_S = 20_000
WINDOW_S = 4
BATCHES = 40
"""So many seconds of event time: long enough that what Java takes to compile is little beside the run."""
QUICK_BATCHES = 12
LIMIT_S = 900.0
CHECKPOINT_S = 1.0
"""How often Flink writes a checkpoint, where it does: as often as ours commits at a batch of a second."""
SHOWN = [
    "join", "rate", "way", "rows/s", "steady", "times Flink", "CPU s/M rows", "state MB", "peak MB", "checkpoints",
    "results",
]  # fmt: skip


def setup() -> None:
    """Makes Flink's environment, or brings it up to date."""
    home = PYTHON.parents[1]
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(REQUIREMENTS)], check=True)
    print(f"Flink is in {home}")


def checksum(rows: str, workload: Workload) -> tuple[int, str]:
    """How many results there are, and a sum over the hashes of all their columns, which no order changes.

    >>> one = checksum("(VALUES (1, 0.5, 0.25), (2, 1.5, 1.25)) AS t(a_k1, a_v, b_v)", Workload("2-way", 10, 4, 1))
    >>> one == checksum("(VALUES (2, 1.5, 1.25), (1, 0.5, 0.25)) AS t(a_k1, a_v, b_v)", Workload("2-way", 10, 4, 1))
    True
    """
    columns = ", ".join(f"{c.replace('.', '_')}::{workload.columns[c.split('.')[1]]}" for c in workload.selected)
    with duckdb.connect() as connection:
        connection.execute(f"SELECT count(*), coalesce(sum(hash({columns})::HUGEINT), 0) FROM {rows}")
        ((count, total),) = connection.fetchall()
    return int(count), str(total)


def theirs(spec: FlinkSpec) -> dict[str, Any]:
    """Runs Flink once."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as results:
        found = launch(spec, results)
        names = [c.replace(".", "_") for c in spec.workload.selected]
        written = f"read_csv('{results}/**', header = false, names = {names})"
        told = found["whole"] and spec.sink == "files"
        count, total = checksum(written, spec.workload) if told else (None, None)
    return {
        "rows/s": found["rows_per_s"], "steady": found["steady_rows_per_s"], "CPU s/M rows": found["cpu_s_per_million_rows"],
        "state MB": found["state_bytes"] / 1e6 if found["state_bytes"] else None, "peak MB": found["peak_rss_bytes"] / 1e6,
        "checkpoints": found["checkpoints"], "results": count, "checksum": total, "whole": found["whole"],
        "run s": found["run_s"], "plan": found["plan"],
    }  # fmt: skip


def ours(spec: HostedSpec, limit_s: float) -> dict[str, Any]:
    """Runs Anabranch once."""
    rows = len(spec.workload.streams) * spec.workload.rows_per_batch * spec.batches
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        results = os.path.join(folder, "results")
        found = watched(replace(spec, results=results).command(), limit_s)
        written = f"read_parquet('{results}/**/*.parquet', hive_partitioning = false)"
        count, total = checksum(written, spec.workload)
    run_s = found["ended_s"] - found["began_s"]
    return {
        "rows/s": rows / run_s, "steady": found["rows/s"],
        "CPU s/M rows": cpu_between(found["cpu_by_time"], found["began_s"], found["ended_s"]) / rows * 1e6,
        "state MB": found["state_bytes"] / 1e6, "peak MB": found["peak_rss_bytes"] / 1e6, "checkpoints": spec.batches,
        "results": count, "checksum": total, "whole": True, "run s": run_s, "plan": found["plan"],
    }  # fmt: skip


def median_of(repeat: int, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The run with the median rate, with the rates of all; all must have found the same."""
    found = sorted((run() for _ in range(repeat)), key=lambda one: one["rows/s"])
    told = {(one["results"], one["checksum"]) for one in found if one["checksum"] is not None}
    if len(told) > 1:
        raise SystemExit(f"runs of the same way differ in results: {sorted(told)}")
    return {**found[len(found) // 2], "rates": [one["rows/s"] for one in found]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setup", action="store_true", help="make Flink's environment, .venv-flink (0.4 GB), and end")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rate, one run of each, fewer ways")
    parser.add_argument("--join", action="append", choices=SHAPES, help="only this one (may be given again)")
    parser.add_argument("--rate", type=int, help=f"rows per second and stream (default: {RATE_PER_S:,}; quick: a tenth)")
    parser.add_argument("--batches", type=int, help=f"seconds of event time (default: {BATCHES}; quick: {QUICK_BATCHES})")
    parser.add_argument("--repeat", type=int, help="runs of each way (default: 3; quick: 1)")
    parser.add_argument("--rocksdb-repeat", type=int, help="runs with RocksDB, slow ones (default: 1; quick: none)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a run may take (default: %(default)s)")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "anabranch-bench"), help="where files are kept")
    given = parser.parse_args()
    if given.setup:
        setup()
        return
    if not PYTHON.exists():
        print(f"SKIPPED: Flink is not installed, there is no {PYTHON}: `python -m bench.flink --setup` installs it (0.4 GB)")
        return
    rate = given.rate or (QUICK_RATE_PER_S if given.quick else RATE_PER_S)
    batches = given.batches or (QUICK_BATCHES if given.quick else BATCHES)
    repeat = given.repeat or (1 if given.quick else 3)
    rocksdb_repeat = given.rocksdb_repeat if given.rocksdb_repeat is not None else int(not given.quick)
    rows: list[dict[str, Any]] = []
    for shape in given.join or SHAPES:
        workload = Workload(shape, rate, WINDOW_S, 1)
        folder = os.path.join(given.data, f"text-{shape.replace(' ', '-')}-{rate}")
        flink = FlinkSpec(shape, rate, WINDOW_S, 1, batches, folder, limit_s=given.limit)
        write_text(workload, folder, batches, flink.parallelism)
        dropped, safe = replace(flink, sink="blackhole"), replace(flink, checkpoint_s=CHECKPOINT_S)
        rocksdb, one = replace(safe, backend="rocksdb"), replace(flink, sources="one")
        few = 0 if given.quick else repeat
        ways: list[tuple[str, int, Callable[[], dict[str, Any]]]] = [
            ("Flink, heap, files", repeat, partial(theirs, flink)),
            ("Flink, heap, files, one source", few if len(workload.streams) > 2 else 0, partial(theirs, one)),
            ("Flink, heap, results dropped", few, partial(theirs, dropped)),
            ("Flink, heap, files, a checkpoint a second", repeat, partial(theirs, safe)),
            ("Flink, RocksDB, files, a checkpoint a second", rocksdb_repeat, partial(theirs, rocksdb)),
        ]
        for format in ("csv", "parquet"):
            for way, text in (("reader", "our reader"), ("frame", "DataFrame")):
                spec = HostedSpec(shape, rate, WINDOW_S, 1, batches, os.path.join(folder, format), way, format=format)
                ways.append((f"anabranch, {text}, {format}", repeat, partial(ours, spec, given.limit)))
        fresh: list[dict[str, Any]] = []
        for way, runs, run in ways:
            if runs:
                fresh.append({"join": shape, "rate": rate, "way": way, **median_of(runs, run)})
                print(report.table(fresh[-1:], ["join", "way", "rows/s", "steady", "CPU s/M rows", "results"]), flush=True)
        best = max(row["rows/s"] for row in fresh if row["way"].startswith("Flink"))
        for row in fresh:
            row["times Flink"] = row["rows/s"] / best
        told = {(row["results"], row["checksum"]) for row in fresh if row["checksum"] is not None}
        if len(told) != 1:
            raise SystemExit(f"results differ on {shape}: {[(r['way'], r['results'], r['checksum']) for r in fresh]}")
        rows += fresh
    print(report.table(rows, SHOWN))
    for row in rows:
        if not row["whole"]:
            print(f"{row['join']}, {row['way']}: cancelled after {row['run s']:,.0f} s; figures are of the rows until then")
    print(f"written to {report.write('-'.join(['flink', *(given.join or [])]).replace(' ', '-'), rows)}")


if __name__ == "__main__":
    main()
