"""Which joins are contained in others: a query can take its combinations from a larger join if every combination that it
wants arises there.

Query q is *contained* in a join by a way to give its inputs those of the join, such that whatever the join requires of these
inputs, q requires too. It may require more: further equalities and predicates are checked on what the join gives. It may
have fewer inputs, a *part* of the join, if the plan of the join brings these together before any other comes to them
(`anabranch.plan.jtree.part_of`).

    a, b, c WHERE a.k = b.k AND b.j = c.j       by the plan ((a b) c)
    a, b WHERE a.k = b.k                        is contained: it takes what goes into the view (a b)
    a, b, c WHERE a.k = b.k AND b.j = c.j AND a.i = c.i     is contained: it takes results with a.i = c.i
    b, c WHERE b.j = c.j                        is contained, but under this plan b and c never meet without a

A part that is brought together in several steps has views on its way, whose rows go by the least watermark of all members
that have the inputs of the view and others.
Where the part wants rows that nobody wants who waits for further streams, they would pile up while one of these is silent
(`piles_up`): such a part runs by itself.

Whether it pays: the join is run for the query that asks for it anyway. What is handed out more costs less than what is found
twice: a result that is handed out is a twentieth of the price of a pair that is looked up (`anabranch.share.join_cost`). But
a query may not make the join larger for the others: where these have a predicate over several inputs that narrows the join,
it must have it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import product
from math import prod

from anabranch.plan.demand import asked_of
from anabranch.plan.expression import aliases_of
from anabranch.plan.identity import named
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, joins_of
from anabranch.plan.query import Query
from anabranch.plan.shared_join import normal, renamed

MOST_WAYS = 720
"""A query is not looked for in a join if there are more ways to give its inputs those of the join."""


def ways_into(query: Query, join: Query) -> Iterator[dict[str, str]]:
    """The ways in which a query is contained in a join, as names that its inputs have there."""
    choices = [[j.alias for j in join.inputs if j.source == i.source] for i in query.inputs]
    if not all(choices) or prod(map(len, choices)) > MOST_WAYS:
        return
    graph, whole = JoinGraph(query), JoinGraph(join)
    for way in product(*choices):
        if len(set(way)) == len(way):
            names = dict(zip(query.aliases, way, strict=True))
            if _requires_as_much(graph, whole, names):
                yield names


def _requires_as_much(graph: JoinGraph, whole: JoinGraph, names: Mapping[str, str]) -> bool:
    """Whether all that must be equal of some inputs of a join must be so in a query, under other names."""
    own = {there: here for here, there in names.items()}
    classes = [set(terms) for terms in graph.classes]
    for terms in whole.classes:
        inside = [term for term in terms if aliases_of(term) <= own.keys()]
        if len({alias for term in inside for alias in aliases_of(term)}) > 1:
            equal = {renamed(term, own) for term in inside}
            if not any(equal <= each for each in classes):
                return False
    return True


def narrowing(members: Iterable[tuple[Query, Mapping[str, str]]]) -> set[str]:
    """The predicates over several inputs that all of some queries have, as texts; each query with the names that its inputs
    have in common with the others."""
    found: set[str] | None = None
    for query, names in members:
        own = {str(normal(renamed(r, names))) for r in query.residuals}
        found = own if found is None else found & own
    return found or set()


def is_as_narrow(query: Query, names: Mapping[str, str], join: Query, common: Set[str]) -> bool:
    """Whether a query has all of the predicates `common` that its inputs decide: else the join would have to do without."""
    graph, inside = JoinGraph(join), set(names.values())
    decided = {str(normal(r)) for r in join.residuals if graph.inputs_needed(r) <= inside}
    return decided & common <= {str(normal(renamed(r, names))) for r in query.residuals}


def piles_up(
    query: Query, names: Mapping[str, str], plan: Plan, wholes: Iterable[tuple[Query, Mapping[str, str]]]
) -> bool:
    """Whether combinations that only a query over some of the streams wants would stand in a view until the watermark of a
    larger join has passed them, by the part `plan` of its plan. None do if one of the `wholes`, the queries over all inputs,
    wants whatever the query wants of each view. Each query has the names that its inputs have in the plan.

    Example: whole joins a, b, c and d, and wants rows of a with a negative x; part joins a, b and c. By (((a b) c) d) the
    view of a and b is kept for both. While d is silent, what whole wants must be kept, and all else would be kept with it.
    """
    views, joins = [join.aliases for join in joins_of(plan) if join.aliases != plan.aliases], list(wholes)
    if not views or all(_streams(whole) == _streams(query) for whole, _ in joins):
        return False
    graph, own = JoinGraph(query), {there: here for here, there in names.items()}
    for whole, its_names in joins:
        larger, its = JoinGraph(whole), {there: here for here, there in its_names.items()}
        views = [view for view in views if not all(_wants_all(larger, its[a], graph, own[a]) for a in view)]
    return bool(views)


def _streams(query: Query) -> set[str]:
    return {source.name for source in query.base_sources}


def _wants_all(larger: JoinGraph, its: str, graph: JoinGraph, own: str) -> bool:
    """Whether a query wants all rows of an input that another one wants, for as long."""
    j, i = larger.query.input(its), graph.query.input(own)
    asked, required = ({named(f, j.source.name) for f in asked_of(*of)} for of in ((larger, its), (graph, own)))
    return asked <= required and j.window.length_us >= i.window.length_us
