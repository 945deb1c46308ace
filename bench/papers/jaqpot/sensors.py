"""Figures 8 and 9c: five groups of sensors of the Intel lab, ((A B) (C D)) E, states of 1,000 rows.

The paper has 36 days; it says neither how fast they are replayed nor what groups are joined on, nor the freshness. Here
five days are replayed as if they were a hundred minutes, and ten of them are run; groups are fifths of the motes by their
x. Every `REVIEW_S` seconds selectivities are measured anew where there were probes, and the algorithm allocates again
(section 4.4, with ε = p = 0); at the start they are those of a run with `WARM_ROWS_PER_S` for each half-way join.

The model has it that a row finds σ·|S| partners in a state, whatever their age. Rows of one epoch come together, so a state
that starves soon has no row that matches a new one: what is starved gives *no* results, where the model expects as many as
ever. So it is, if less, with temperatures, in hundredths of a degree. With the same temperatures shuffled over the rows of
each group a match has nothing to do with age, as in the model: that is the control.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from anabranch.overload.algorithms import ALGORITHMS
from anabranch.overload.allocation import Limits
from anabranch.overload.half_way import Join, Plan, Stream
from bench.papers.jaqpot.count_windows import Counted, CountWindows
from bench.papers.jaqpot.matching import Equality, Rows
from bench.papers.jaqpot.settings import FRESHNESS, Size, freshness_s

GROUPS = ("A", "B", "C", "D", "E")
STATE_ROWS = 1000
CAPACITIES = (300.0, 600.0, 900.0)
SCALES = {"epoch": 1.0, "temperature": 100.0}
"""By what a column is multiplied before it is rounded."""
KEYS = (*SCALES, "shuffled temperature")
REPLAY_S = 6000.0
"""Five days go by in this time."""
TICK_S, REVIEW_S, WARM_S, WARM_ROWS_PER_S = 0.2, 10.0, 80.0, 1000.0
FRESHNESS_8 = 5.0


def streams(data: Path) -> dict[str, Rows] | None:
    """The rows of each group, at the times when they are replayed; None where the files are not."""
    readings, places = data / "intel_lab_5days.parquet", data / "intel_lab_mote_locs.csv"
    if not (readings.exists() and places.exists()):
        return None
    rows = pq.read_table(readings, columns=["ts", "epoch", "moteid", "temperature", "humidity", "light", "voltage"])
    for column in ("temperature", "humidity", "light", "voltage"):
        rows = rows.filter(pc.greater_equal(rows[column], 0.0))
    rows = rows.sort_by("ts")
    located = pa_csv.read_csv(places)
    motes, x = located["moteid"].to_numpy(), located["x_m"].to_numpy()
    group_of = np.full(int(motes.max()) + 1, -1)
    group_of[motes] = np.argsort(np.argsort(x, kind="stable"), kind="stable") * len(GROUPS) // len(motes)
    times_us = rows["ts"].cast(pa.int64()).to_numpy()
    times_s = (times_us - times_us[0]) / (times_us[-1] - times_us[0]) * REPLAY_S
    group = group_of[rows["moteid"].to_numpy()]
    keys = {key: np.rint(rows[key].to_numpy() * scale).astype(np.int16) for key, scale in SCALES.items()}
    found = {}
    for place, name in enumerate(GROUPS):
        mine = group == place
        columns = {key: values[mine] for key, values in keys.items()}
        columns["shuffled temperature"] = np.random.default_rng(place).permutation(columns["temperature"])
        found[name] = Rows(times_s[mine], columns)
    return found


def plan_of(rates_per_s: dict[str, float], selectivities: dict[str, float]) -> Plan:
    """(((A B) (C D)) E); a selectivity by the input whose state is probed."""

    def stream(name: str) -> Stream:
        return Stream(name, rates_per_s[name], STATE_ROWS, selectivities.get(name, 0.0))

    def view(*inputs: Stream | Join) -> Join:
        found = Join(inputs, STATE_ROWS)
        return Join(inputs, STATE_ROWS, selectivities.get(found.name, 0.0))

    a, b, c, d, e = (stream(name) for name in GROUPS)
    return Plan(Join((view(view(a, b), view(c, d)), e)))


def figure_8(rows: dict[str, Rows], key: str, size: Size, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each µ and algorithm: results per minute, and stale ones by freshness."""
    equalities = tuple(Equality((one, key), (other, key)) for one, other in pairwise(GROUPS))
    ends_s = WARM_S + 60 * size.sensor_minutes
    rates = {name: float((each.times_s < ends_s).sum()) / ends_s for name, each in rows.items()}
    unknown = plan_of(rates, {})
    asked = [freshness_s(unknown, times) for times in FRESHNESS]
    begun = CountWindows(unknown, rows, equalities, TICK_S, asked)
    measured = _selectivities(unknown, begun.run(WARM_S, dict.fromkeys(unknown.inputs, WARM_ROWS_PER_S)), {})
    table = []
    for capacity in CAPACITIES:
        for name, algorithm in ALGORITHMS.items():
            run = CountWindows(unknown, rows, equalities, TICK_S, asked, states=dict(begun.states), clock_s=WARM_S)
            known, counts, factors = dict(measured), [], []
            while run.clock_s < ends_s - TICK_S:
                limits = Limits(capacity, freshness_s(unknown, FRESHNESS_8))
                allocated = algorithm(plan_of(rates, known), limits)
                counts.append(run.run(min(ends_s, run.clock_s + REVIEW_S), allocated.by_input))
                known = _selectivities(unknown, counts[-1], known)
                factors.append(allocated.freshness_factor)
            results = sum(int(each.results.sum()) for each in counts)
            stale = sum(each.stale.sum(axis=0) for each in counts)
            seconds = ends_s - WARM_S
            table.append({
                "key": key, "µ": capacity, "algorithm": name, "results/min": 60 * results / seconds,
                **{f"stale % at {times:g}": 100 * float(stale[n]) / max(1, results) for n, times in enumerate(FRESHNESS)},
                "fresh results/min": 60 * (results - float(stale[0])) / seconds,
                "probes % of µ": 100 * sum(sum(each.probes.values()) for each in counts) / (capacity * seconds),
                "reviews with freshness kept %": 100 * sum(factor == 1 for factor in factors) / len(factors),
                "by review": [int(each.results.sum()) for each in counts],
            })  # fmt: skip
        tell(f"figure 8, {key}, µ {capacity:.0f}")
    return table


def _selectivities(plan: Plan, counted: Counted, known: dict[str, float]) -> dict[str, float]:
    """Of the states that were probed, by what probes found; of others what was known."""
    found = dict(known)
    for each in plan.joins:
        for one, other in (each.inputs, each.inputs[::-1]):
            if counted.states[one.name]:
                found[other.name] = counted.finds[one.name] / counted.states[one.name]
    return found
