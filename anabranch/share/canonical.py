"""Which queries join the same streams by the same keys: these run one shared join (`anabranch.plan.shared_join`).

Two joins are the same up to the names of aliases, the order of FROM and of WHERE, the sides of a comparison, and equalities
that follow from others. Inputs over different streams can only stand for one another if the streams are the same; where a
stream stands in FROM twice, its aliases are matched by trying.

Whether queries run their common join together depends on what they do at the time: all must have the same plan for it, be
on the same way to the same other plan, and have their rows spread in the same way. A query that goes over to a plan of its
own runs by itself for as long as that plan is another one. So what is shared follows from the queries and their executions
alone, and no result depends on it. Not shared are the routes of queries with subqueries in FROM, stored tables, groups
below a join, selects above one, or FRESHNESS, and those of queries whose policy may lose results: these share logs and
indexes.

A query whose join is *contained* in that of a company (`anabranch.plan.contained`), one with further equalities, or over
some of its streams, is a member of that company too. Companies are looked through from the largest join to the smallest, and
from few equalities to many: so whoever asks for the most general join is there before those that it contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, permutations, product
from math import factorial, prod

from anabranch.plan.contained import is_as_narrow, narrowing, piles_up, ways_into
from anabranch.plan.distribution import Distribution, way_of
from anabranch.plan.expression import Expr
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan, part_of
from anabranch.plan.migration import Execution
from anabranch.plan.query import Derived, Query, Stream
from anabranch.plan.shared_join import SharedJoin, key_count, normal, renamed, shared_join

MOST_ORDERS = 720
"""Aliases of one stream are matched by trying as long as there are so many ways; else as they stand."""

MOST_MEMBERS = 1024
"""So many queries run one join together at most. A session refuses more by name (`anabranch.planning`); where more are there
nevertheless, those with the smallest windows make a second join."""

LONG_US = 1 << 50
"""A window without end counts as one of so many microseconds, when windows are compared."""


@dataclass(frozen=True)
class Shape:
    """What a query joins, as a text that all queries have which join the same; and its inputs in the order of that text."""

    text: str
    order: Aliases


@dataclass(frozen=True)
class Running:
    """A query as it runs."""

    query: Query
    execution: Execution
    distribution: Distribution
    since: int = 0
    """The first batch whose rows are its own."""
    may_lose: bool = False
    """Whether its policy may lose results: its join runs alone then."""

    @cached_property
    def shape(self) -> Shape | None:
        return None if self.may_lose else shape_of(self.query)

    @property
    def order(self) -> Aliases:
        assert self.shape is not None
        return self.shape.order

    @property
    def span_us(self) -> int:
        """The lengths of its windows, added up."""
        return sum(min(i.window.length_us, LONG_US) for i in self.query.inputs)

    @cached_property
    def way(self) -> tuple[object, ...] | None:
        """All that queries must have in common to run their join together, beyond the join; None if it must run alone."""
        execution, grid = self.execution, self.distribution.grid
        if execution.grouped_input is not None or execution.leaving is not None or execution.selects or execution.woken:
            return None
        names = {alias: f"i{place}" for place, alias in enumerate(self.order)}
        migration = execution.migration
        going = None if migration is None else replace(migration, target=renamed_plan(migration.target, names))
        ways = tuple(way_of(grid, alias) for alias in self.order)
        spread = grid.shares, ways, self.distribution.needs_no_exchange
        return renamed_plan(execution.plan, names), going, spread, execution.company

    @cached_property
    def key_count(self) -> int:
        return key_count(self.query)

    def goes_with(self, host: Running, names: Mapping[str, str]) -> bool:
        """Whether it takes its combinations where they arise on the routes of another query, in whose join it is contained:
        `names` are those that its inputs have there."""
        part = set(names.values())
        plan = part_of(host.execution.plan, part) if self.execution.company == host.execution.company else None
        if plan is None or renamed_plan(plan, _itself(part)) != renamed_plan(self.execution.plan, names):
            return False
        mine, theirs = self.execution.migration, host.execution.migration
        if mine is not None:
            # On the same way, or, if it is a part that stays as it is, on none.
            target = None if theirs is None else part_of(theirs.target, part)
            if theirs is None or target is None:
                return False
            if replace(theirs, target=renamed_plan(target, _itself(part))) != replace(
                mine, target=renamed_plan(mine.target, names)
            ):
                return False
        elif theirs is not None and part == host.execution.plan.aliases:
            return False
        return self._lies_with(host, names)

    def _lies_with(self, host: Running, names: Mapping[str, str]) -> bool:
        """Whether its rows are where those of another query are, and combinations of its inputs arise there once: in a
        dimension of the grid that none of its inputs has, it uses the first part alone."""
        mine, theirs = self.distribution, host.distribution
        if mine.grid.cells != theirs.grid.cells or mine.needs_no_exchange != theirs.needs_no_exchange:
            return False
        part = theirs.grid.part_of({its: own for own, its in names.items()})
        own = self.query.aliases
        return mine.grid.fixed == part.fixed and all(way_of(mine.grid, a) == way_of(part, a) for a in own)


@dataclass(frozen=True)
class Company:
    """Queries that run a join together. The first leads: it has all inputs, and the largest windows of those that join just
    that."""

    members: tuple[Running, ...]
    orders: tuple[Aliases, ...]
    """The inputs of each, those of one place for one another; nothing ("") where a query has none."""

    @property
    def lead(self) -> Running:
        return self.members[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.query.name for each in self.members)

    def names_of(self, place: int) -> dict[str, str]:
        """What a member calls the inputs of the lead, as far as it has them."""
        return {its: own for its, own in zip(self.orders[0], self.orders[place], strict=True) if own}


def shape_of(query: Query) -> Shape | None:
    """What a query joins; None if its join cannot be shared."""
    if len(query.inputs) < 2 or len(query.blocks) > 1 or query.statement is not None:
        return None
    if any(isinstance(i.source, Derived) or not isinstance(i.source, Stream) for i in query.inputs):
        return None
    if any(i.freshness_us is not None for i in query.inputs):
        return None  # what is too old for one query is not for another
    graph = JoinGraph(query)
    # Where keys do not connect all inputs, other predicates must: a common join without them would be far too large.
    also = () if _is_connected(graph) else query.residuals
    text, order = min((_text(graph, also, order), order) for order in _orders(query))
    return Shape(text, order)


def _is_connected(graph: JoinGraph) -> bool:
    first, *rest = graph.query.aliases
    bound = {first}
    while rest:
        alias = next((a for a in rest if graph.connected(bound, {a})), None)
        if alias is None:
            return False
        bound.add(alias)
        rest.remove(alias)
    return True


def _text(graph: JoinGraph, also: Iterable[Expr], order: Aliases) -> str:
    number = {alias: f"#{place}" for place, alias in enumerate(order)}

    def numbered(expr: Expr) -> str:
        return str(normal(renamed(expr, number)))

    classes = sorted(" = ".join(sorted(map(numbered, terms))) for terms in graph.classes)
    sources = [graph.query.input(alias).source.name for alias in order]
    return f"{', '.join(sources)} where {' and '.join([*classes, *sorted(map(numbered, also))])}"


def _orders(query: Query) -> Iterator[Aliases]:
    """The orders in which the inputs may be numbered: by their sources, and aliases of one source in every order."""

    def source(alias: str) -> str:
        return query.input(alias).source.name

    alike = [tuple(group) for _, group in groupby(sorted(query.aliases, key=source), key=source)]
    if prod(factorial(len(group)) for group in alike) > MOST_ORDERS:
        yield tuple(alias for group in alike for alias in group)
        return
    for way in product(*(permutations(group) for group in alike)):
        yield tuple(alias for group in way for alias in group)


def shared_joins(running: Iterable[Running]) -> tuple[SharedJoin, ...]:
    """The joins that two or more queries run together, as these run now."""
    return tuple(
        shared_join([each.query for each in company.members], company.orders, [each.since for each in company.members])
        for company in companies(running)
    )


def companies(running: Iterable[Running]) -> list[Company]:
    """The queries that run a join together, two or more."""
    if len(all_running := tuple(running)) < 2:
        return []  # what their shape is takes more than all else of a small batch
    found: dict[tuple[object, ...], list[Running]] = {}
    for each in all_running:
        if each.shape is not None and (way := each.way) is not None:
            found.setdefault((each.shape.text, way), []).append(each)
    hosts: list[_Host] = []
    for alike in sorted(found.values(), key=lambda some: (-len(some[0].query.inputs), some[0].key_count)):
        alike.sort(key=lambda each: each.span_us, reverse=True)
        left = [each for each in alike if not any(host.takes(each) for host in hosts)]
        hosts += [_Host(left[first : first + MOST_MEMBERS]) for first in range(0, len(left), MOST_MEMBERS)]
    return [host.company for host in hosts if len(host.orders) > 1]


class _Host:
    """Queries with the same join under the same plan, and those whose joins are contained in it."""

    def __init__(self, alike: Sequence[Running]) -> None:
        """The query with the largest windows stands first."""
        self.lead = alike[0]
        self.members, self.orders = list(alike), [each.order for each in alike]
        names = [dict(zip(each.order, self.lead.order, strict=True)) for each in alike]
        self._wholes = list(zip((each.query for each in alike), names, strict=True))
        self._common = narrowing(self._wholes)

    def takes(self, other: Running) -> bool:
        """Takes in a query whose join is contained, if it goes the same way."""
        join = self.lead.query
        if len(self.members) == MOST_MEMBERS or len(other.query.inputs) > len(join.inputs):
            return False
        for names in ways_into(other.query, join):
            if not other.goes_with(self.lead, names) or self._piles_up(other.query, names):
                continue
            if is_as_narrow(other.query, names, join, self._common):
                own = {there: here for here, there in names.items()}
                self.members.append(other)
                self.orders.append(tuple(own.get(alias, "") for alias in self.lead.order))
                return True
        return False

    def _piles_up(self, query: Query, names: Mapping[str, str]) -> bool:
        """Whether rows that only a query wants would pile up in views, under the plan that is or the one to come."""
        execution = self.lead.execution
        plans = [plan for plan in (execution.plan, execution.target) if plan is not None]
        parts = (part_of(plan, set(names.values())) for plan in plans)
        return any(part is not None and piles_up(query, names, part, self._wholes) for part in parts)

    @property
    def company(self) -> Company:
        return Company(tuple(self.members), tuple(self.orders))


def part_in_names(plan: Plan, names: Mapping[str, str]) -> Plan | None:
    """A plan as a query has it that calls its inputs by other names; of a query over some inputs the part that brings these
    together, None if there is none."""
    part = part_of(plan, names.keys())
    return None if part is None else renamed_plan(part, names)


def _itself(aliases: Iterable[str]) -> dict[str, str]:
    return {alias: alias for alias in aliases}


def renamed_plan(plan: Plan, names: Mapping[str, str]) -> Plan:
    """A plan in other names. The inputs of its joins stand in the order of the least name of each, so that two plans that
    do the same are equal.

    >>> swapped = Join((Leaf("b"), Leaf("a")), ((1,), (0,)))
    >>> str(renamed_plan(swapped, {"a": "i0", "b": "i1"}))
    '(i0 i1)'
    """
    if isinstance(plan, Leaf):
        return Leaf(names[plan.alias])
    inputs = [renamed_plan(child, names) for child in plan.inputs]
    order = sorted(range(len(inputs)), key=lambda place: min(inputs[place].aliases))
    place_of = {old: new for new, old in enumerate(order)}
    orders = tuple(tuple(place_of[other] for other in plan.orders[old]) for old in order)
    return Join(tuple(inputs[old] for old in order), orders)
