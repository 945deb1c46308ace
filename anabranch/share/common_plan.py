"""One plan for queries that have a join in common, so that they can run it together.

Alone, each query would start with the plan that is best for itself, and queries whose plans differ share logs and indexes,
not routes. So all start with one: with the plan that is pinned, if some query of them has a pinned plan and no two have
different ones; else with the plan of the query with the largest windows. Its windows are those of the shared join, so that
its plan is the best for what is run. Queries with other pinned plans run by themselves.

A query whose join is contained in another's (`anabranch.plan.contained`) starts with the plan of that one, or with the part
of it that brings its streams together, if there is one and it costs less than a join of its own
(`anabranch.share.taking_in`): then it runs with that one, too. Else it starts in a company of its own. So it is with a
query that comes while others run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anabranch.plan.contained import ways_into
from anabranch.plan.distribution import Distribution
from anabranch.plan.join_graph import Aliases
from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Execution, Migration
from anabranch.plan.query import Query
from anabranch.plan.shared_join import key_count, normal, renamed
from anabranch.share.canonical import MOST_MEMBERS, Running, companies, part_in_names, renamed_plan, shape_of
from anabranch.share.taking_in import JoinMembers, Pricing, TakingIn, taking_in


@dataclass(frozen=True)
class Starting:
    """A query that is about to start."""

    query: Query
    execution: Execution
    is_pinned: bool
    may_lose: bool = False
    """Whether its policy may lose results: it shares no join then."""

    @property
    def running(self) -> Running:
        """The query as it would run."""
        return Running(self.query, self.execution, Distribution(), 0, self.may_lose)


@dataclass(frozen=True)
class Taken:
    """What a query starts with, and whose plan that is."""

    execution: Execution
    lead: str
    """Nobody ("") if the plan is its own."""
    taking_in: TakingIn | None = None
    """What was decided about it, if its join is contained in a larger one."""


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

    @cached_property
    def shape(self) -> str:
        """What they join, as a text; nothing if the join cannot be shared."""
        found = shape_of(self.lead.query) if self.orders else None
        return "" if found is None else found.text

    @cached_property
    def join(self) -> JoinMembers:
        """The queries as those that run one join under the plan of the lead, which stands first."""
        several = sorted(zip(self.members, self.orders, strict=True), key=lambda one: one[0] is not self.lead)
        queries, orders = tuple(member.query for member, _ in several), tuple(order for _, order in several)
        return JoinMembers(queries, orders, self.lead.execution.plan)

    def in_numbers(self, plan: Plan, query: str) -> Plan:
        """A plan of a member in the names that all have in common."""
        return renamed_plan(plan, _numbers(self.orders[self.names.index(query)]))

    def in_names(self, common: Plan, query: str) -> Plan:
        """The common plan in the aliases of a member."""
        return renamed_plan(common, {n: alias for alias, n in _numbers(self.orders[self.names.index(query)]).items()})


def common_plans(starting: Mapping[str, Starting], pricing: Pricing) -> dict[str, Taken]:
    """The queries that start with something else than what each would by itself: with another query's plan, or in a company
    of their own although they could be members of a larger join."""
    found: dict[str, Taken] = {}
    hosts: list[_Host] = []
    for each in sorted((g for g in gathered(starting.values()) if g.orders), key=generality):
        join = each.join
        host, decided = _decided(hosts, each, join, pricing)
        if host is not None and decided is not None and decided.is_member:
            host.take(join)
        else:
            host = _Host(each, join, "" if decided is None else each.lead.query.name)
            hosts.append(host)
        for member, order in zip(each.members, each.orders, strict=True):
            plan, lead = host.plan_for(each, member, order)
            execution = replace(member.execution, plan=plan, company=host.company)
            if execution != member.execution or decided is not None:
                found[member.query.name] = Taken(execution, lead, decided)
    return found


def _decided(
    hosts: Iterable[_Host], gathering: Gathering, join: JoinMembers, pricing: Pricing
) -> tuple[_Host | None, TakingIn | None]:
    """The first join that queries are contained in, and whether they are to be its members."""
    for host in hosts:
        if host.may_take(gathering) and (decided := taking_in(host.join, join, pricing)) is not None:
            return host, decided
    return None, None


class _Host:
    """A join that others may be contained in, and the company that runs it."""

    def __init__(self, gathering: Gathering, join: JoinMembers, company: str) -> None:
        self.gathering, self.join, self.company = gathering, join, company

    def may_take(self, other: Gathering) -> bool:
        """Whether queries may be looked for in it: those with a plan that stands only if that is its part."""
        if len(self.join.queries) + len(other.members) > MOST_MEMBERS or self.gathering.shape == other.shape:
            return False
        query, plan = other.lead.query, other.lead.execution.plan
        return not other.is_pinned or self.join.part_for(query) == renamed_plan(plan, _itself(query.aliases))

    def take(self, others: JoinMembers) -> None:
        joined = self.join.with_members(others)
        assert joined is not None, "it was decided about"
        self.join = joined

    def plan_for(self, gathering: Gathering, member: Starting, order: Aliases) -> tuple[Plan, str]:
        """What a query of a gathering starts with, in its own aliases, and whose plan that is: nobody's if it is its own."""
        own = member.execution.plan
        if gathering is self.gathering:
            names = dict(zip(self.join.orders[0], order, strict=True))
            plan: Plan | None = renamed_plan(self.join.plan, names)
        else:
            plan = self.join.part_for(member.query)
        if plan is None or member.is_pinned or plan == renamed_plan(own, _itself(member.query.aliases)):
            return own, ""
        return plan, self.gathering.lead.query.name


def generality(gathering: Gathering) -> tuple[int, int]:
    """Whoever asks for the most general join comes first."""
    return -len(gathering.lead.query.inputs), key_count(gathering.lead.query)


def gathered(starting: Iterable[Starting]) -> list[Gathering]:
    """The queries that start with one plan each, in the order of the first of each."""
    alike: dict[object, list[tuple[Starting, Aliases, int]]] = {}
    found: dict[str, Gathering] = {}
    place: dict[str, int] = {}
    for each in starting:
        place[each.query.name] = len(place)
        running = each.running
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


@dataclass(frozen=True)
class Alone:
    """What a query that comes would run by itself, and what is known of costs."""

    plan: Plan
    pricing: Pricing


def joined_execution(
    query: Query, running: Iterable[Running], alone: Alone | None = None
) -> tuple[str, Execution] | None:
    """What a query starts with that comes while others run, to run its join with one of them, and whose plan that is: the
    plan, and the way to another one, that the query with the largest windows has which joins the same (of those with its
    filters, where the join is run once for each set of filters); else one of those whose join contains its own, or nobody's
    ("") if it costs less to run apart. None if there is none, or none that shares its routes."""
    shape = shape_of(query)
    if shape is None:
        return None
    others = [each for each in running if each.shape is not None and each.way is not None]
    alike = [each for each in others if each.shape is not None and each.shape.text == shape.text]
    if not alike:
        return _contained_execution(query, others, alone)
    own, company = alike, None
    if len({each.execution.company for each in alike}) > 1:
        # They run the join once for each set of filters.
        own = [each for each in alike if _filters(each.query, each.order) == _filters(query, shape.order)]
        company = None if own else query.name
    lead = max(own or alike, key=lambda each: each.span_us)
    names = dict(zip(lead.order, shape.order, strict=True))
    execution = replace(lead.execution, plan=renamed_plan(lead.execution.plan, names), migration=_going(lead, names))
    return lead.query.name, execution if company is None else replace(execution, company=company)


def _filters(query: Query, order: Aliases) -> list[set[str]]:
    """The predicates on each input, as texts without aliases."""
    return [{str(normal(renamed(f, {alias: ""}))) for f in query.input(alias).filters} for alias in order]


def _contained_execution(
    query: Query, running: Sequence[Running], alone: Alone | None
) -> tuple[str, Execution] | None:
    for lead in sorted(running, key=lambda each: (-len(each.query.inputs), each.key_count, -each.span_us)):
        for way in ways_into(query, lead.query):
            names = {there: here for here, there in way.items()}
            if (plan := part_in_names(lead.execution.plan, names)) is None:
                continue
            if alone is not None and not _is_worth(query, alone, _join_of(lead, running)):
                return "", Execution(alone.plan, company=query.name)
            return lead.query.name, replace(lead.execution, plan=plan, migration=_going(lead, names))
    return None


def _is_worth(query: Query, alone: Alone, host: JoinMembers) -> bool:
    """Whether a query that comes is to be a member of a larger join, by what that costs."""
    decided = taking_in(host, JoinMembers((query,), (query.aliases,), alone.plan), alone.pricing)
    return decided is None or decided.is_member


def _join_of(lead: Running, running: Sequence[Running]) -> JoinMembers:
    """The join that a query runs, with all who run it together."""
    for company in companies(running):
        if lead in company.members:
            queries = tuple(each.query for each in company.members)
            return JoinMembers(queries, company.orders, company.lead.execution.plan)
    return JoinMembers((lead.query,), (lead.query.aliases,), lead.execution.plan)


def _going(lead: Running, names: Mapping[str, str]) -> Migration | None:
    """The way to another plan that a query is on, for one that goes with it; none, if the other one stays as it is, or has
    no part in the plan to come."""
    migration = lead.execution.migration
    target = None if migration is None else part_in_names(migration.target, names)
    if migration is None or target is None or target == part_in_names(lead.execution.plan, names):
        return None
    return replace(migration, target=target)


def _itself(aliases: Aliases) -> dict[str, str]:
    return {alias: alias for alias in aliases}


def _numbers(order: Aliases) -> dict[str, str]:
    return {alias: f"i{place}" for place, alias in enumerate(order)}
