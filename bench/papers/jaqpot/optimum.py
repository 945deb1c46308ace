"""The most that any allocation can give, as linear programmes, solved by HiGHS.

Variables are shares of the rows that arrive at each half-way join when nothing is limited, so that all numbers are near 1,
whatever the rates are. A half-way join above another probes with no more rows than those below find; it may leave some of
them, as heuristics do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import highspy
import numpy as np

from anabranch.overload.allocation import Limits
from anabranch.overload.by_cpu import Direction
from anabranch.overload.freshness import refresh_rates
from anabranch.overload.half_way import Plan
from anabranch.overload.paths import InputPath


@dataclass(frozen=True)
class Solution:
    value: float
    variables: tuple[float, ...]


def solve(
    worth: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    rows: Sequence[tuple[Mapping[int, float], float]],
) -> Solution | None:  # fmt: skip
    """The largest Σ worth·x within the bounds, with Σ a·x ≤ b for each row (a, b); None if nothing fulfils all."""
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = len(worth), len(rows)
    programme.sense_ = highspy.ObjSense.kMaximize
    programme.col_cost_ = np.array(worth, dtype=float)
    programme.col_lower_ = np.array([low for low, _ in bounds], dtype=float)
    programme.col_upper_ = np.array([high for _, high in bounds], dtype=float)
    programme.row_lower_ = np.full(len(rows), -inf)
    programme.row_upper_ = np.array([most for _, most in rows], dtype=float)
    programme.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    programme.a_matrix_.start_ = np.cumsum([0, *(len(row) for row, _ in rows)])
    programme.a_matrix_.index_ = np.array([place for row, _ in rows for place in row], dtype=np.int32)
    programme.a_matrix_.value_ = np.array([value for row, _ in rows for value in row.values()], dtype=float)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(programme)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return Solution(solver.getInfo().objective_function_value, tuple(solver.getSolution().col_value))


def most_results(plan: Plan, limits: Limits, keeps_freshness: bool = False) -> float | None:
    """Results per second of the best allocation; with freshness, of the best that brings as many rows into each state as
    `refresh_rates` asks for. None if none does."""
    rates, everything = plan.full_rates, plan.saturation_results_per_s
    names = [each.input for each in plan.half_way_joins]
    if not everything:
        return 0.0
    rows: list[tuple[dict[int, float], float]] = []
    costs = {n: rates[e.input] * e.cost_per_row / plan.saturation for n, e in enumerate(plan.half_way_joins)}
    rows.append((costs, limits.capacity / plan.saturation))
    needed = refresh_rates(plan, limits) if keeps_freshness else {}
    for place, each in enumerate(plan.half_way_joins):
        if not each.producers or not rates[each.input]:
            continue
        inflow = {
            names.index(one): rates[one] * plan.by_input[one].results_per_row / rates[each.input] for one in each.producers
        }
        rows.append(({place: 1.0, **{n: -share for n, share in inflow.items()}}, 0.0))
        if rate := needed.get(each.input, 0.0):
            if rate > rates[each.input]:
                return None
            rows.append(({n: -share for n, share in inflow.items()}, -rate / rates[each.input]))
    worth = [
        rates[e.input] * e.results_per_row / everything if e.is_root else 0.0 for e in plan.half_way_joins
    ]
    found = solve(worth, [(0.0, 1.0)] * len(names), rows)
    return None if found is None else found.value * everything


def least_cover(paths: Sequence[InputPath], rates: Mapping[str, float]) -> float | None:
    """Δµ at its least: problem 2 with multiples that need not be whole. None if the streams bring too little."""
    if not all(np.isfinite(rate) for rate in rates.values()):
        return None
    full = [path.cost_per_row * path.rate_per_s for path in paths]
    scale = max(full, default=0.0) or 1.0
    rows = []
    for name, rate in rates.items():
        if rate:
            inflow = {
                n: -path.rate_per_s * path.rows[path.states.index(name) + 1] / rate
                for n, path in enumerate(paths) if name in path.states
            }  # fmt: skip
            rows.append((inflow, -1.0))
    found = solve([-cost / scale for cost in full], [(0.0, 1.0)] * len(paths), rows)
    return None if found is None else -found.value * scale


def most_by_cpu(directions: Sequence[Direction], capacity_cpu_s: float, pilot_share: float) -> float | None:
    """Results of the best shares of directions with a pilot share each; None if pilots and pins take too much."""
    everything = sum(each.rows * each.results_per_row for each in directions)
    needed = sum(each.cpu_s for each in directions)
    if not everything or not needed:
        return everything
    bounds = [(pilot_share, 1.0) if e.pinned_share is None else (e.pinned_share, e.pinned_share) for e in directions]
    worth = [each.rows * each.results_per_row / everything for each in directions]
    row = {n: each.cpu_s / needed for n, each in enumerate(directions)}
    found = solve(worth, bounds, [(row, capacity_cpu_s / needed)])
    return None if found is None else found.value * everything
