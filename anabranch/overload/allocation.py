"""The contract of all algorithms: a plan and its limits in, allowances out; and what allowances give (JAQPOT, eq. 2 and
4).

    µ       `Limits.capacity`            units of probe cost per second; probes per second in the paper
    ∮^I     `Limits.freshness_s`         how old a row of a stream may be in a result (definition 2), in seconds
    λ'_i    `Allocation.allowances`      rows per second that may probe

A half-way join never has more rows to probe with than arrive: an allowance above the rate of its stream, or above what
the join below finds, is wasted (*producer-consumer mismatch*, section 4.1). So expected results count the rows that are
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isnan

from anabranch.errors import PlanError
from anabranch.overload.half_way import Plan

CLOSE = 1e-9
"""Two rates that differ by less than this share of the larger are the same: sums of floats."""


@dataclass(frozen=True)
class Limits:
    """What an algorithm may spend, and what it must keep. A stream without a freshness may be as old as it likes."""

    capacity: float
    freshness_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isnan(self.capacity) or self.capacity < 0:
            raise PlanError(f"the capacity is {self.capacity}: it must be 0 or more")
        for name, value in self.freshness_s.items():
            if isnan(value) or value <= 0:
                raise PlanError(f"the freshness of {name} is {value} s: it must be above 0")

    def verify(self, plan: Plan) -> None:
        """Every stream with a freshness is one of the plan's."""
        unknown = set(self.freshness_s) - {stream.name for stream in plan.streams}
        if unknown:
            raise PlanError(f"freshness is asked of {', '.join(sorted(unknown))}, not an input of {plan.root.name}")


@dataclass(frozen=True)
class Allocation:
    """Rows per second that may probe, for each half-way join of a plan, and what is expected of them."""

    plan: Plan = field(repr=False)
    allowances: tuple[float, ...]
    """In the order of `Plan.half_way_joins`."""
    results_per_s: float
    cost_per_s: float
    """What the probes that have rows take of the capacity."""
    is_exact: bool
    """Every row that arrives probes: no result is missing."""
    for_freshness: float = 0.0
    """Δµ: what of the capacity keeps states fresh."""
    freshness_factor: float = 1.0
    """What is kept is the freshness that was asked for, times this. Above 1 the freshness that was asked for is
    infeasible, and this is the tightest that is not; infinite if none is."""

    def of(self, input_name: str) -> float:
        """The allowance of the rows of an input."""
        names = [each.input for each in self.plan.half_way_joins]
        return self.allowances[names.index(input_name)]

    @property
    def by_input(self) -> dict[str, float]:
        return {e.input: value for e, value in zip(self.plan.half_way_joins, self.allowances, strict=True)}


Algorithm = Callable[[Plan, Limits], Allocation]


def probing_rates(plan: Plan, allowances: Mapping[str, float]) -> dict[str, float]:
    """Rows per second that probe: the lesser of what is allowed and what arrives from below."""
    found: dict[str, float] = {}
    for each in plan.half_way_joins:
        arriving = plan.full_rates[each.input]
        if each.producers:
            arriving = sum(found[name] * plan.by_input[name].results_per_row for name in each.producers)
        found[each.input] = min(allowances[each.input], arriving)
    return found


def allocation(
    plan: Plan, allowances: Mapping[str, float], for_freshness: float = 0.0, freshness_factor: float = 1.0
) -> Allocation:  # fmt: skip
    """Allowances, none above what arrives when nothing is limited, and what is expected of them."""
    bounded = {e.input: min(allowances.get(e.input, 0.0), plan.full_rates[e.input]) for e in plan.half_way_joins}
    probing = probing_rates(plan, bounded)
    is_exact = all(probing[name] >= rate * (1 - CLOSE) for name, rate in plan.full_rates.items())
    return Allocation(
        plan,
        tuple(bounded.values()),
        sum(probing[e.input] * e.results_per_row for e in plan.half_way_joins if e.is_root),
        sum(probing[e.input] * e.cost_per_row for e in plan.half_way_joins),
        is_exact, for_freshness, freshness_factor,
    )  # fmt: skip
