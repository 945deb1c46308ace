"""One plan for queries that have a join in common, so that they can run it together.

Alone, each query would start with the plan that is best for itself, and queries whose plans differ share logs and indexes,
not routes. So all start with one: with the plan that is pinned, if some query of them has a pinned plan and no two have
different ones; else with the plan of the query with the largest windows. Its windows are those of the shared join, so that
its plan is the best for what is run. Queries with other pinned plans run by themselves.

A query whose join is contained in another's (`anabranch.plan.contained`) starts with the plan of that one, or with the part
of it that brings its streams together, if there is one: then it runs with that one, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.plan.contained import ways_into
from anabranch.plan.distribution import Distribution
from anabranch.plan.join_graph import Aliases
from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Execution, Migration
from anabranch.plan.query import Query
from anabranch.share.canonical import Running, part_in_names, renamed_plan, shape_of


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
    found, leads = {}, list[Starting]()
    for each in gathered(starting.values()):
        if not each.orders:
            continue
        common = each.in_numbers(each.lead.execution.plan, each.lead.query.name)
        leads.append(each.lead)
        for member, order in zip(each.members, each.orders, strict=True):
            name, numbers = member.query.name, _numbers(order)
            if not member.is_pinned and renamed_plan(member.execution.plan, numbers) != common:
                plan = renamed_plan(common, {number: alias for alias, number in numbers.items()})
                found[name] = Taken(replace(member.execution, plan=plan), each.lead.query.name)
    return found | _contained(starting, found, leads)


def _contained(
    starting: Mapping[str, Starting], taken: Mapping[str, Taken], leads: Sequence[Starting]
) -> dict[str, Taken]:
    """The queries that start with the plan of one in whose join theirs is contained, or with a part of it."""
    found: dict[str, Taken] = {}
    running = [Running(lead.query, lead.execution, Distribution()) for lead in leads]
    order = sorted(running, key=lambda each: (-len(each.query.inputs), each.key_count))
    for name, each in starting.items():
        own = taken[name].execution if name in taken else each.execution
        mine = Running(each.query, own, Distribution())
        if each.is_pinned or mine.shape is None or mine.way is None:
            continue
        for lead in order:
            is_other = lead.shape is not None and lead.shape.text != mine.shape.text
            if is_other and lead.query.name not in found and (plan := contained_plan(each.query, lead)) is not None:
                if not any(mine.goes_with(lead, names) for names in ways_into(each.query, lead.query)):
                    found[name] = Taken(replace(own, plan=plan), lead.query.name)
                break
    return found


def contained_plan(query: Query, lead: Running) -> Plan | None:
    """The plan by which combinations of a query arise that is contained in the join of another; None if it is not, or they
    do not arise by themselves."""
    for names in ways_into(query, lead.query):
        plan = part_in_names(lead.execution.plan, {there: here for here, there in names.items()})
        if plan is not None:
            return plan
    return None


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
    plan, and the way to another one, that the query with the largest windows has which joins the same; else one of those
    whose join contains its own. None if there is none, or none that shares its routes."""
    shape = shape_of(query)
    if shape is None:
        return None
    others = [each for each in running if each.shape is not None and each.way is not None]
    alike = [each for each in others if each.shape is not None and each.shape.text == shape.text]
    if not alike:
        return _contained_execution(query, others)
    lead = max(alike, key=lambda each: each.span_us)
    names = dict(zip(lead.order, shape.order, strict=True))
    plan = renamed_plan(lead.execution.plan, names)
    return lead.query.name, replace(lead.execution, plan=plan, migration=_going(lead, names))


def _contained_execution(query: Query, running: Iterable[Running]) -> tuple[str, Execution] | None:
    for lead in sorted(running, key=lambda each: (-len(each.query.inputs), each.key_count, -each.span_us)):
        for way in ways_into(query, lead.query):
            names = {there: here for here, there in way.items()}
            if (plan := part_in_names(lead.execution.plan, names)) is not None:
                return lead.query.name, replace(lead.execution, plan=plan, migration=_going(lead, names))
    return None


def _going(lead: Running, names: Mapping[str, str]) -> Migration | None:
    """The way to another plan that a query is on, for one that goes with it; none, if the other one stays as it is, or has
    no part in the plan to come."""
    migration = lead.execution.migration
    target = None if migration is None else part_in_names(migration.target, names)
    if migration is None or target is None or target == part_in_names(lead.execution.plan, names):
        return None
    return replace(migration, target=target)


def _numbers(order: Aliases) -> dict[str, str]:
    return {alias: f"i{place}" for place, alias in enumerate(order)}
