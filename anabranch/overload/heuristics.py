"""The four heuristics for plans of several joins that go by half-way productivity (JAQPOT, appendix B, table 4).

    m          half-way joins of the plan
    n          joins
    µ_⋉i       what half-way join i may spend
    µ_⋈j       what join j may spend

Each is applied as written: what a half-way join cannot use (its stream brings less) is not handed to another one, but
in EBestHJP and SBestHJP to the other direction of the same join, as BestHJP does. None looks at what the join below
finds, which is why they waste probes (*producer-consumer mismatch*). Table 4 says that SBestHJP gives 750 results: from
50 rows that find 5 partners it makes 150 rows where there are 250. With 250 it gives 1,250.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.overload.allocation import Allocation, Limits, allocation
from anabranch.overload.best_hjp import best_first
from anabranch.overload.half_way import Join, Plan


def equal_hj(plan: Plan, limits: Limits) -> Allocation:
    """EqualHJ: µ/m for each half-way join."""
    return _by_weights(plan, limits, [1.0] * len(plan.half_way_joins))


def global_hjpr(plan: Plan, limits: Limits) -> Allocation:
    """GlobalHJPR: µ in the ratio of half-way productivities."""
    return _by_weights(plan, limits, [each.productivity for each in plan.half_way_joins])


def e_best_hjp(plan: Plan, limits: Limits) -> Allocation:
    """EBestHJP: µ/n for each join, within it BestHJP."""
    return _by_joins(plan, limits, [1.0] * len(plan.joins))


def s_best_hjp(plan: Plan, limits: Limits) -> Allocation:
    """SBestHJP: µ in the ratio of the selectivities of joins, within each BestHJP."""
    return _by_joins(plan, limits, [_selectivity(each) for each in plan.joins])


def _selectivity(join: Join) -> float:
    """σ of a join: the mean of its directions, where they differ."""
    return sum(each.selectivity for each in join.inputs) / len(join.inputs)


def _shares(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def _by_weights(plan: Plan, limits: Limits, weights: Sequence[float]) -> Allocation:
    limits.verify(plan)
    found = {
        each.input: limits.capacity * share / each.cost_per_row
        for each, share in zip(plan.half_way_joins, _shares(weights), strict=True)
        if each.cost_per_row
    }
    return allocation(plan, found)


def _by_joins(plan: Plan, limits: Limits, weights: Sequence[float]) -> Allocation:
    limits.verify(plan)
    found: dict[str, float] = {}
    for each, share in zip(plan.joins, _shares(weights), strict=True):
        directions = [plan.by_input[one.name] for one in each.inputs]
        found |= best_first(plan, directions, limits.capacity * share)
    return allocation(plan, found)
