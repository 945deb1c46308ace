"""One plan for queries that have a join in common, so that they can run it together.

Alone, each query would start with the plan that is best for itself, and queries whose plans differ share logs and indexes,
not routes. So all start with one: with the plan that is pinned, if some query of them has a pinned plan and no two have
different ones; else with the plan of the query with the largest windows. Its windows are those of the shared join, so that
its plan is the best for what is run. Queries with other pinned plans run by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from anabranch.plan.distribution import Distribution
from anabranch.plan.join_graph import Aliases
from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Execution
from anabranch.plan.query import Query
from anabranch.share.canonical import Running, renamed_plan, shape_of


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


@dataclass(frozen=True)
class Gathering:
    """Queries that are to start with one plan, because they have a join in common; or a single query."""

    lead: Starting
    """The query whose plan it is."""
    members: tuple[Starting, ...]
    orders: tuple[Aliases, ...] = ()
    """The inputs of each, those of one place for one another; nothing if the join cannot be shared."""
    is_pinned: bool = False
    """Whether the plan stands."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.query.name for member in self.members)

    def in_numbers(self, plan: Plan, query: str) -> Plan:
        """A plan of a member in the names that all have in common."""
        return renamed_plan(plan, _numbers(self.orders[self.names.index(query)]))

    def in_names(self, common: Plan, query: str) -> Plan:
        """The common plan in the aliases of a member."""
        return renamed_plan(common, {n: alias for alias, n in _numbers(self.orders[self.names.index(query)]).items()})


def common_plans(starting: Mapping[str, Starting]) -> dict[str, Taken]:
    """The queries that start with another query's plan."""
    found = {}
    for each in gathered(starting.values()):
        if len(each.members) < 2:
            continue
        common = each.in_numbers(each.lead.execution.plan, each.lead.query.name)
        for member, order in zip(each.members, each.orders, strict=True):
            name, numbers = member.query.name, _numbers(order)
            if not member.is_pinned and renamed_plan(member.execution.plan, numbers) != common:
                plan = renamed_plan(common, {number: alias for alias, number in numbers.items()})
                found[name] = Taken(replace(member.execution, plan=plan), each.lead.query.name)
    return found


def gathered(starting: Iterable[Starting]) -> list[Gathering]:
    """The queries that start with one plan each, in the order of the first of each."""
    alike: dict[object, list[tuple[Starting, Aliases, int]]] = {}
    found: dict[str, Gathering] = {}
    place: dict[str, int] = {}
    for each in starting:
        place[each.query.name] = len(place)
        running = Running(each.query, each.execution, Distribution())
        if running.shape is not None and running.way is not None:
            alike.setdefault(running.shape.text, []).append((each, running.shape.order, running.span_us))
        else:
            found[each.query.name] = Gathering(each, (each,), (), each.is_pinned)
    for several in alike.values():
        pins: dict[Plan, list[tuple[Starting, Aliases, int]]] = {}
        for one in several:
            if one[0].is_pinned:
                pins.setdefault(renamed_plan(one[0].execution.plan, _numbers(one[1])), []).append(one)
        free = [one for one in several if not one[0].is_pinned]
        parts = [several] if len(pins) == 1 else [*pins.values(), *([free] if free else [])]
        for part in parts:
            first = [one for one in part if one[0].is_pinned]
            lead = first[0] if first else max(part, key=lambda one: one[2])
            members, orders = tuple(one[0] for one in part), tuple(one[1] for one in part)
            found[members[0].query.name] = Gathering(lead[0], members, orders, bool(first))
    return sorted(found.values(), key=lambda gathering: place[gathering.names[0]])


def joined_execution(query: Query, running: Iterable[Running]) -> tuple[str, Execution] | None:
    """What a query starts with that comes while others run, to run its join with one of them, and whose plan that is: the
    plan, and the way to another one, that the query with the largest windows has which joins the same. None if there is
    none, or none that shares its routes."""
    shape = shape_of(query)
    if shape is None:
        return None
    alike = [each for each in running if each.shape is not None and each.shape.text == shape.text and each.way is not None]
    if not alike:
        return None
    lead = max(alike, key=lambda each: each.span_us)
    names = dict(zip(lead.order, shape.order, strict=True))
    execution, migration = lead.execution, lead.execution.migration
    going = None if migration is None else replace(migration, target=renamed_plan(migration.target, names))
    return lead.query.name, replace(execution, plan=renamed_plan(execution.plan, names), migration=going)


def _numbers(order: Aliases) -> dict[str, str]:
    return {alias: f"i{place}" for place, alias in enumerate(order)}
