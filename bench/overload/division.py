"""How CPU is divided among the directions of a join: ours, and the paper's algorithms.

The paper's algorithms divide probes among the half-way joins of a binary plan, at 1 for each. What they give an input's rows
on their way to the root is taken as the share of its direction in the n-ary plan, which is the only thing that the engine
limits; and they are given as many probes as make the same CPU there. So all ways are compared at equal CPU, on one plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from anabranch.overload.algorithms import ALGORITHMS
from anabranch.overload.allocation import Algorithm, Limits, probing_rates
from anabranch.overload.by_cpu import Direction, Divide, by_results_per_cpu, uniform
from anabranch.overload.half_way import Plan
from anabranch.overload.paths import input_paths
from anabranch.plan.overload import Overload

OURS, UNIFORM = "paths (ours)", "uniform"
STEPS = 40
"""Halvings until the capacity of an algorithm makes the CPU that is asked for."""

Shares = dict[str, float]


def divided(way: str, directions: Sequence[Direction], capacity_s: float, plan: Plan) -> Shares:
    """The share of rows of each direction that look up, for so many CPU seconds."""
    if way in (OURS, UNIFORM):
        divide: Divide = by_results_per_cpu if way == OURS else uniform
        found = divide(directions, capacity_s, Overload().pilot)
        return {d.alias: rows / d.rows if d.rows else 1.0 for d, rows in zip(directions, found.rows, strict=True)}
    return at_cpu(partial(path_shares, ALGORITHMS[way], plan), directions, capacity_s, plan.saturation)


def path_shares(algorithm: Algorithm, plan: Plan, capacity: float, freshness_s: Mapping[str, float] | None = None) -> Shares:
    """What an algorithm lets through of the rows of each stream, over all half-way joins to the root."""
    allowed = algorithm(plan, Limits(capacity, freshness_s or {})).by_input
    probing, found = probing_rates(plan, allowed), Shares()
    for path in input_paths(plan):
        share = 1.0
        for hop in path.hops:
            arriving = plan.full_rates[hop.input]
            if hop.producers:
                arriving = sum(probing[name] * plan.by_input[name].results_per_row for name in hop.producers)
            share *= min(1.0, probing[hop.input] / arriving) if arriving else 1.0
        found[path.stream] = share
    return found


def at_cpu(shares_at: partial[Shares], directions: Sequence[Direction], capacity_s: float, most: float) -> Shares:
    """The shares of an algorithm with the capacity that makes so many CPU seconds of these directions."""
    low, high = 0.0, most
    for _ in range(STEPS):
        middle = (low + high) / 2
        shares = shares_at(middle)
        if sum(d.cpu_s * shares[d.alias] for d in directions) > capacity_s:
            high = middle
        else:
            low = middle
    return shares_at(low)


def by_the_paper(plan: Plan, part: float) -> dict[str, float]:
    """The share of all results that each algorithm gives by the paper's model, with a part of the capacity at which nothing
    is limited, in the binary plan itself."""
    limits = Limits(part * plan.saturation)
    return {name: found(plan, limits).results_per_s / plan.saturation_results_per_s for name, found in ALGORITHMS.items()}
