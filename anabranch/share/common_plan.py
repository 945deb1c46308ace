"""One plan for queries that have a join in common, so that they can run it together.

Alone, each query would start with the plan that is best for itself, and queries whose plans differ share logs and indexes,
not routes. So all start with one: with the plan that is pinned, if some query of them has a pinned plan and no two have
different ones; else with the plan of the query with the largest windows. Its windows are those of the shared join, so that
its plan is the best for what is run. Queries with other pinned plans run by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.plan.distribution import Distribution
from anabranch.plan.migration import Execution
from anabranch.plan.query import Query
from anabranch.share.canonical import Running, Shape, renamed_plan


@dataclass(frozen=True)
class Starting:
    """A query that is about to start."""

    query: Query
    execution: Execution
    is_pinned: bool


@dataclass(frozen=True)
class Taken:
    """What a query starts with, and whose plan that is."""

    execution: Execution
    lead: str


def common_plans(starting: Mapping[str, Starting]) -> dict[str, Taken]:
    """The queries that start with another query's plan."""
    alike: dict[str, list[tuple[Starting, Shape, int]]] = {}
    for each in starting.values():
        running = Running(each.query, each.execution, Distribution())
        if running.shape is not None and running.way is not None:
            alike.setdefault(running.shape.text, []).append((each, running.shape, running.span_us))
    found = {}
    for several in alike.values():
        pinned = [one for one in several if one[0].is_pinned]
        plans = {renamed_plan(each.execution.plan, _numbers(shape)) for each, shape, _ in pinned}
        free = [one for one in several if not one[0].is_pinned]
        lead, shape, _ = pinned[0] if len(plans) == 1 else max(free, key=lambda one: one[2], default=several[0])
        common = renamed_plan(lead.execution.plan, _numbers(shape))
        for each, own, _ in free:
            names = {number: alias for alias, number in _numbers(own).items()}
            plan = renamed_plan(common, names)
            if renamed_plan(each.execution.plan, _numbers(own)) != common:
                found[each.query.name] = Taken(replace(each.execution, plan=plan), lead.query.name)
    return found


def _numbers(shape: Shape) -> dict[str, str]:
    return {alias: f"i{place}" for place, alias in enumerate(shape.order)}
