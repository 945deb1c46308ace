"""Which queries join the same streams by the same keys: these run one shared join (`anabranch.plan.shared_join`).

Two joins are the same up to the names of aliases, the order of FROM and of WHERE, the sides of a comparison, and equalities
that follow from others. Inputs over different streams can only stand for one another if the streams are the same; where a
stream stands in FROM twice, its aliases are matched by trying.

Whether queries run their common join together depends on what they do at the time: all must have the same plan for it, be
on the same way to the same other plan, and have their rows spread in the same way. A query that goes over to a plan of its
own runs by itself for as long as that plan is another one. So what is shared follows from the queries and their executions
alone, and no result depends on it. Not shared are the routes of queries with subqueries in FROM, stored tables, groups
below a join, or selects above one: these share logs and indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, permutations, product
from math import factorial, prod

from anabranch.plan.distribution import Distribution, way_of
from anabranch.plan.expression import Expr
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan
from anabranch.plan.migration import Execution
from anabranch.plan.query import Derived, Query, Stream
from anabranch.plan.shared_join import SharedJoin, normal, renamed, shared_join

MOST_ORDERS = 720
"""Aliases of one stream are matched by trying as long as there are so many ways; else as they stand."""

MOST_MEMBERS = 1024
"""So many queries run one join together at most; more make a second one."""

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

    @cached_property
    def shape(self) -> Shape | None:
        return shape_of(self.query)

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
        if execution.grouped_input is not None or execution.leaving is not None or execution.selects:
            return None
        names = {alias: f"i{place}" for place, alias in enumerate(self.order)}
        migration = execution.migration
        going = None if migration is None else replace(migration, target=renamed_plan(migration.target, names))
        ways = tuple(way_of(grid, alias) for alias in self.order)
        return renamed_plan(execution.plan, names), going, (grid.shares, ways, self.distribution.needs_no_exchange)


def shape_of(query: Query) -> Shape | None:
    """What a query joins; None if its join cannot be shared."""
    if len(query.inputs) < 2 or len(query.blocks) > 1:
        return None
    if any(isinstance(i.source, Derived) or not isinstance(i.source, Stream) for i in query.inputs):
        return None
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
        shared_join([each.query for each in company], [each.order for each in company], [each.since for each in company])
        for company in companies(running)
    )


def companies(running: Iterable[Running]) -> list[list[Running]]:
    """The queries that run a join together, two or more. The one with the largest windows leads, and stands first."""
    found: dict[tuple[object, ...], list[Running]] = {}
    for each in running:
        if each.shape is not None and (way := each.way) is not None:
            found.setdefault((each.shape.text, way), []).append(each)
    parts = []
    for alike in found.values():
        alike.sort(key=lambda each: each.span_us, reverse=True)
        parts += [alike[first : first + MOST_MEMBERS] for first in range(0, len(alike), MOST_MEMBERS)]
    return [part for part in parts if len(part) > 1]


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
