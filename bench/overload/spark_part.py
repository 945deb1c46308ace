"""Overload on Spark: two cores, a batch each second, files of streams that come by the clock.

The workload is a 3-way chain, `a.k1 = b.k1 AND b.k2 = c.k2`, in which a row of `a` meets hundreds of rows of `b`, and few of
the pairs a row of `c`. It runs by the n-ary plan, which is pinned: the plan that joins `b` and `c` first hardly probes, and
would not be overloaded (at load 2 it is shown, as well). Keys are drawn from domains that do not change, so CPU grows faster
than rows.

*Capacity* is the rate at which a batch of a second takes a second when nothing is limited, found by runs over files that are
there already, at three rates, and a parabola through them; *load* 2 is the rate at which the exact run takes twice the CPU
of that. Each run is a process of its own; rows begin at half the capacity and go to the load after `Size.warm_s`. Figures
are over the last `Size.measured_s`. Completeness told is what commits estimate, true is by DuckDB over the files that were
read (`bench.overload.truth`). The writer is a process of its own, on the same cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import report
from bench.overload.cases import (
    BEHIND,
    LOADS,
    PARTS,
    QUICK,
    SHAPE,
    SPARK,
    WINDOW_S,
    Capacity,
    Case,
    Size,
    cases,
    growing_parabola,
)
from bench.overload.spark_own import SparkOwn
from bench.overload.traffic import STOP
from bench.overload.truth import Truth, truth
from bench.overload.verdicts import goals
from bench.processes import ROOT


def ended(command: list[str]) -> dict[str, Any]:
    """What a process prints last, as JSON."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def calibrate(size: Size) -> Capacity:
    """What exact batches of a second take, at some rates."""
    seconds, cpu_s, probing = [], [], 0.0
    for rate in size.calibration_rates:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            case = Case("calibration", BEHIND, ((size.calibration_s, rate),))
            case.traffic(folder).write_all()
            found = ended(replace(case.hosted(folder, 0), files_per_batch=2).command())
        steady = [b for b in found["batches"] if WINDOW_S + 2 <= b["batch"] < size.calibration_s - 1]
        first, last = steady[0], steady[-1]
        spent = np.interp([first["at_s"], last["at_s"]], *np.array(found["cpu_s"]).T)
        batches = last["batch"] - first["batch"]
        cpu_s.append(float(spent[1] - spent[0]) / batches)
        seconds.append((last["at_s"] - first["at_s"]) / batches)
        probing = sum(b["probing_s"] for b in steady[1:]) / len(steady[1:]) / cpu_s[-1]
        took = f"a batch takes {seconds[-1]:.2f} s, CPU {cpu_s[-1]:.2f} s, {probing:.0%} of it probing"
        print(f"{rate:,} rows/s: {took}", flush=True)
    fits = [growing_parabola(size.calibration_rates, each) for each in (seconds, cpu_s)]
    return Capacity(fits[0], fits[1], probing)


def measure(case: Case, measured_s: float) -> dict[str, Any]:
    """Runs a case, while its files come."""
    folder = tempfile.mkdtemp()
    traffic = case.traffic(folder)
    writer = traffic.start()
    try:
        about = {"part": case.part, "load": case.load, "way": case.way, "rows/s": case.schedule[1][1]}
        if case.way == SPARK:
            return {**about, **ended(SparkOwn(folder, SHAPE, WINDOW_S, traffic.seconds, measured_s).command())}
        found = ended(case.hosted(folder, traffic.seconds).command())
        # Of the last one Spark has not told yet which files it took.
        found["batches"] = [b for b in found["batches"] if str(b["trigger"]) in found["files"]]
        files = {b["batch"]: found["files"][str(b["trigger"])] for b in found["batches"]}
        # What promises no freshness has no clock: results are as old as they are when they are committed.
        clocks = {b["batch"]: round(b["at_s"] * 1e6) if case.way == BEHIND else b["clock_us"] for b in found["batches"]}
        right = truth(folder, case.streams, case.edges, WINDOW_S, case.freshness_s or 1e9, files, clocks)
        return {**about, **_figures(case, found, right, measured_s)}
    finally:
        Path(folder, STOP).touch()
        writer.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _figures(case: Case, found: Mapping[str, Any], right: Truth, measured_s: float) -> dict[str, Any]:
    from_s = found["ended_s"] - measured_s
    batches = [b for b in found["batches"] if b["at_s"] >= from_s]
    series = [_point(b, found["began_s"], right) for b in found["batches"]]
    could = right.exact if case.way == BEHIND else right.fresh
    given = sum(right.given.get(b["batch"], 0) for b in batches)
    estimated = sum(d["estimated"] for b in batches for d in b["limited"].values())
    # With batches before the measured ones, too: that is too much rather than too little.
    variance = sum(d["variance"] + d["covariance"] for b in batches for d in b["limited"].values())
    told = sum(b["results"] for b in batches) / estimated if estimated else None
    cpu = [each for each in found["cpu_s"] if each[0] >= from_s]
    cpu_s = (cpu[-1][1] - cpu[0][1]) / (cpu[-1][0] - cpu[0][0]) if len(cpu) > 1 else 0.0
    probing_s = sum(b["probing_s"] for b in batches) / measured_s
    return {
        "results/s": given / measured_s,
        "true %": 100 * given / max(1, sum(could.get(b["batch"], 0) for b in batches)),
        "told %": 100 * told if told is not None else None,
        "± %": 100 * told * variance**0.5 / estimated if told is not None else None,
        "lag s": max((_lag_s(b) for b in batches), default=None),
        "oldest s": right.oldest_s, "stale": right.stale, "wrong": right.wrong,
        "CPU s/s": cpu_s, "probing %": 100 * probing_s / cpu_s if cpu_s else None,
        "batches": len(batches), "batch s": median(found["seconds"].values()) if found["seconds"] else None,
        "plan": found["plan"], "series": series, "slot CPU s": [b["slot_cpu_s"] for b in batches[-1:]],
        "journal": [e for e in found["journal"] if e["event"] not in ("started", "stopped")][-40:],
    }  # fmt: skip


def _lag_s(batch: Mapping[str, Any]) -> float:
    """How far results were behind when a batch was committed."""
    return float(batch["at_s"]) - min(batch["largest_us"].values(), default=0) / 1e6


def _point(batch: Mapping[str, Any], began_s: float, right: Truth) -> dict[str, Any]:
    number = batch["batch"]
    return {
        "batch": number, "second": batch["at_s"] - began_s, "lag s": _lag_s(batch), "rows": sum(batch["rows"].values()),
        "given": right.given.get(number, 0), "fresh": right.fresh.get(number, 0), "exact": right.exact.get(number, 0),
        "limits": batch["limits"], "shed": batch["shed"],
    }  # fmt: skip


SHOWN = (
    "part", "load", "way", "rows/s", "results/s", "true %", "told %", "± %", "lag s", "oldest s", "stale", "CPU s/s",
    "probing %", "batches",
)


def main(parts: Sequence[str], is_quick: bool, loads: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Measures, prints and writes."""
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    size = QUICK if is_quick else Size()
    size = replace(size, loads=tuple(loads)) if loads else size
    capacity = calibrate(size)
    at = {load: capacity.rate_at(load) for load in LOADS}
    probing = f"probing is {capacity.probing_share:.0%} of all CPU of the exact run"
    print(f"capacity: {capacity.rate_per_s:,.0f} rows/s and stream; rates by load {at}; {probing}", flush=True)
    rows: list[dict[str, Any]] = []
    for case in cases(parts, capacity, size, is_quick):
        times = {"falls_s": size.warm_s + size.burst_s, "burst s": size.burst_s, "freshness s": case.freshness_s}
        row = {**measure(case, size.measured_s), **times}
        rows.append(row)
        print(report.table(rows[-1:], SHOWN).splitlines()[-1], flush=True)
    kept = goals(rows, capacity)
    print(report.table(rows, SHOWN))
    print(report.table(kept))
    print(report.markdown(rows, SHOWN), report.markdown(kept), sep="\n\n")
    name = "-".join(["overload", *([] if set(parts) == set(PARTS) else parts)])
    print(f"written to {report.write(name, [*rows, *kept])}")
    return rows
