"""Plan and allowances together: what a plan gives where there is not CPU enough for all its lookups (beyond 001, whose
allocation takes the plan as given).

Only lookups at the root of a plan are limited; everything below it is fed in full. So with a capacity of µ cores for lookups
under the plan that runs, another plan has µ, and what feeding it takes less: a plan with fewer views has more left for
results. An n-ary join has no views at all. It may take more CPU than a binary tree when all is looked up, and give more
results when not all is. A plan that gives all results with the CPU there is ends the overload: it is taken as one that
needs less CPU is (`anabranch.adapt.arbiter`), however few more results these are.

Rows that come to the root from one of its inputs are one direction here: whichever of their parts came last, they find as
many partners, at the same cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.cost.model import CostModel
from anabranch.overload.by_cpu import Direction, by_results_per_cpu
from anabranch.plan.jtree import Join, Plan

MORE = 1.1
"""A plan must give so many times the results of the one that runs, under limits, unless it gives all there are."""

BY_CHANCE = 1e-9
"""Shares that differ by less are the same: sums of floats."""


@dataclass(frozen=True)
class Limited:
    """What a plan gives under limits."""

    plan: Plan
    results_per_s: float
    completeness: float
    feeding: float
    """Cores of all that is never limited."""

    @property
    def is_exact(self) -> bool:
        return self.completeness > 1 - BY_CHANCE


def given_by(model: CostModel, plan: Plan, running: Plan, cores: float) -> Limited:
    """What a plan gives, if lookups at the root of the one that runs have so many cores; below 0: feeding its views takes so
    much more than there is."""
    left = cores + feeding(model, running) - feeding(model, plan)
    shares = by_results_per_cpu(directions(model, plan), max(0.0, left))
    return Limited(plan, shares.results, shares.completeness, feeding(model, plan))


def best_given(model: CostModel, plans: Iterable[Plan], running: Plan, cores: float) -> Limited:
    """The plan that gives most results; of those that give all, the one that needs least CPU, and of others that give as
    many the one that is fed with less."""
    found = [given_by(model, plan, running, cores) for plan in plans]
    if exact := [each for each in found if each.is_exact]:
        return min(exact, key=lambda each: model.cost(each.plan).cpu)
    return max(found, key=lambda each: (each.results_per_s, -each.feeding))


def directions(model: CostModel, plan: Plan) -> list[Direction]:
    """The lookups at the root of a plan, per second."""
    if not isinstance(plan, Join):
        return []
    graph, found = model.graph, []
    inputs = [graph.mask(child.aliases) for child in plan.inputs]
    for child, streams, order in zip(plan.inputs, inputs, plan.orders, strict=True):
        rows, kept = graph.rate(streams), graph.rows(streams)
        gives = graph.rows(graph.everything) / kept if kept else 0.0
        spent = model.probe(streams, [inputs[place] for place in order])
        cost = (spent / rows if rows else 0.0) + gives * model.units.result
        found.append(Direction(" ".join(sorted(child.aliases)), rows, cost, gives))
    return found


def feeding(model: CostModel, plan: Plan) -> float:
    """Cores of everything but lookups at the root: rows taken in, indexes, and all that views need."""
    return model.cost(plan).cpu - sum(each.cpu_s for each in directions(model, plan))


def needed_for(model: CostModel, plan: Plan, results_per_s: float) -> float:
    """Cores with which a plan gives so many results, or all there are."""
    cores, left = feeding(model, plan), results_per_s
    for each in sorted(directions(model, plan), key=lambda each: -each.results_per_cpu_s):
        found = each.rows * each.results_per_row
        share = min(1.0, left / found) if found else 0.0
        cores, left = cores + share * each.cpu_s, left - share * found
    return cores
