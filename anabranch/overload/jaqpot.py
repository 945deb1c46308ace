"""JAQPOT: as much as keeps states fresh, and the most results for the rest (JAQPOT, section 4.3, algorithm 1).

    PathAssign     `allowances_of(paths, leaf_rows)`
    Δµ             `Allocation.for_freshness`

Line 1 covers the states by GH-WMSCP, line 2 sums what that takes, line 3 gives the rest of the capacity to GrePP. The
paths of the cover reach the root, so what they find counts as results, too.

What the paper leaves open: what happens where freshness cannot be kept. Here the tightest freshness is kept that can
be, all streams' multiplied by one factor, which `Allocation.freshness_factor` tells. The paper says that a solution is
found if one exists; a greedy cover may cost more than the capacity where another one does not, so this tightest
freshness is that of the greedy cover.
"""

from __future__ import annotations

from math import inf

from anabranch.overload.allocation import Allocation, Limits, allocation
from anabranch.overload.freshness import refresh_rates
from anabranch.overload.gh_wmscp import Cover, gh_wmscp
from anabranch.overload.grepp import fill
from anabranch.overload.half_way import Plan
from anabranch.overload.paths import allowances_of, input_paths

FACTOR_WITHIN = 1e-3
"""The tightest freshness is told up to this share of it."""
LARGEST_FACTOR = 1e6
"""A freshness a million times as long as the one asked for is none."""


def jaqpot(plan: Plan, limits: Limits) -> Allocation:
    """Algorithm 1."""
    paths = input_paths(plan)
    factor, cover = _tightest(plan, limits)
    covered = dict(cover.leaf_rows)
    rates = {path.stream: max(0.0, path.rate_per_s - covered[path.stream]) for path in paths}
    rest = fill(paths, rates, limits.capacity - cover.cost_per_s)
    leaf_rows = {path.stream: covered[path.stream] + rest[path.stream] for path in paths}
    return allocation(plan, allowances_of(paths, leaf_rows), cover.cost_per_s, factor)


def _tightest(plan: Plan, limits: Limits) -> tuple[float, Cover]:
    """The least factor of freshness, 1 or more, that the capacity suffices for, and the cover for it. An infinite
    factor has an empty cover: freshness is given up."""
    paths = input_paths(plan)

    def cover(factor: float) -> Cover:
        return gh_wmscp(paths, refresh_rates(plan, limits, factor))

    asked = cover(1.0)
    if asked.cost_per_s <= limits.capacity:
        return 1.0, asked
    low, high = 1.0, 2.0
    while (found := cover(high)).cost_per_s > limits.capacity:
        low, high = high, high * 2
        if high > LARGEST_FACTOR:
            return inf, gh_wmscp(paths, {})
    while high - low > FACTOR_WITHIN * low:
        middle = (low + high) / 2
        if (tried := cover(middle)).cost_per_s <= limits.capacity:
            high, found = middle, tried
        else:
            low = middle
    return high, found
