"""BestHJP: all resources to the more productive direction of a join, what is left to the other (JAQPOT, section 2,
definition 1, after Kang, Naughton, Viglas, ICDE 2003). Optimal for one join.

    µ_⋈      `capacity`       what the join may spend
    ρ_h      `HalfWayJoin.productivity`
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.overload.allocation import Allocation, Limits, allocation
from anabranch.overload.half_way import HalfWayJoin, Plan


def best_first(plan: Plan, directions: Sequence[HalfWayJoin], capacity: float) -> dict[str, float]:
    """Rows per second for each direction of one join, the most productive first, none above what can arrive."""
    found: dict[str, float] = {}
    for each in sorted(directions, key=lambda e: (-e.productivity, e.input)):
        rate = plan.full_rates[each.input]
        found[each.input] = min(rate, capacity / each.cost_per_row) if each.cost_per_row else rate
        capacity = max(0.0, capacity - found[each.input] * each.cost_per_row)
    return found


def best_hjp(plan: Plan, limits: Limits) -> Allocation:
    """BestHJP on a plan of one join. On a plan of several it is applied to all their half-way joins at once, as if they
    did not feed each other; section 3 says why that starves joins."""
    limits.verify(plan)
    return allocation(plan, best_first(plan, plan.half_way_joins, limits.capacity))
