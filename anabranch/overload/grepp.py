"""GrePP: the most productive paths first, in fractions (JAQPOT, section 4.1, *the greedy knapsack solver*). O(k log k).

    τ_p        `input_paths(plan)`, the path productivity table
    λ'_i ≤ λ_i `rates_per_s`: rows per second that a path may still take

Over many cycles a path may take any share of the capacity, so filling the knapsack by productivity is optimal: paths
compete for nothing but the capacity, for what a half-way join finds all goes on. The linear programme over half-way
joins agrees (tests/overload/test_optimum.py).

Deviation: no path gets more rows than its stream brings (table 1: λ' ≤ λ). The paper's example gives 20.62 rows per
second to a stream of 11, and so 9.38 results; with the bound the next path gets what is left, and they give 8.73
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.overload.allocation import Allocation, Limits, allocation
from anabranch.overload.half_way import Plan
from anabranch.overload.paths import InputPath, allowances_of, input_paths


def fill(paths: Sequence[InputPath], rates_per_s: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Rows per second that each stream sends all the way, the most productive path first."""
    found: dict[str, float] = {}
    for path in sorted(paths, key=lambda each: (-each.productivity, each.stream)):
        rate = rates_per_s[path.stream]
        found[path.stream] = min(rate, capacity / path.cost_per_row) if path.cost_per_row else rate
        capacity = max(0.0, capacity - found[path.stream] * path.cost_per_row)
    return found


def grepp(plan: Plan, limits: Limits) -> Allocation:
    """The most results for the capacity. It does not look at freshness."""
    limits.verify(plan)
    paths = input_paths(plan)
    leaf_rows = fill(paths, {path.stream: path.rate_per_s for path in paths}, limits.capacity)
    return allocation(plan, allowances_of(paths, leaf_rows))
