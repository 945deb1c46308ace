"""Whether queries whose join is contained in a larger one take their combinations there: by what that costs.

    member    the larger join, with the queries among its members: the largest window of each stream, every pair told whose
              it is, combinations handed to the queries, which look at each for what they ask beyond the join
    apart     both joins: what is looked up is looked up twice; logs, and indexes that both keep, are there once

Mostly it pays to be a member: the larger join is run anyway, and a combination that is handed out costs a fraction of one
that is looked up. It does not where the queries make the join larger than it is (windows that are much longer), where they
ask for much more than it (of a thousand pairs by one key a few have a second one in common too: looked up by both keys, the
others are never found), or where nobody else shared it and pairs are many.

What is priced is what `anabranch.share.joint_budget` counts: costs of a plan, and states that are there once. Both ways are
priced by the same facts, those of the larger join with the queries in it: else keys of which nothing is known would find
fewer partners in a longer window. The join is priced with the largest windows: that combinations which only queries over
some of the streams want go no further, and are in no view, is not counted. So a member costs no more than is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anabranch.cost.facts import Given
from anabranch.cost.model import Cost, CostModel, UnitCosts
from anabranch.plan.contained import is_as_narrow, narrowing, piles_up, ways_into
from anabranch.plan.expression import aliases_of
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Plan, part_of
from anabranch.plan.query import Query, Stream
from anabranch.plan.shared_join import in_names_of, renamed, shared_join
from anabranch.share.canonical import part_in_names, renamed_plan
from anabranch.share.join_cost import Priced, handing_out, log_bytes, member_rate, option_of, shared_units
from anabranch.share.joint_budget import Company, total_of
from anabranch.share.source_chain import BYTE_CORES, worth


@dataclass(frozen=True)
class Pricing:
    """What costs are worked out from."""

    facts: Given
    units: UnitCosts
    byte_cores: float = BYTE_CORES


@dataclass(frozen=True)
class JoinMembers:
    """Queries that run one join, or a single query, and the plan of it."""

    queries: tuple[Query, ...]
    """The first has all inputs of the join."""
    orders: tuple[Aliases, ...]
    """The inputs of each, those of one place for one another; nothing ("") where a query has none."""
    plan: Plan
    """In the aliases of the first."""

    @property
    def lead(self) -> Query:
        return self.queries[0]

    def with_members(self, others: JoinMembers) -> JoinMembers | None:
        """The join with queries that are contained in it under its plan; None if one is not."""
        orders = []
        for query in others.queries:
            names = self.way_in(query)
            if names is None:
                return None
            own = {there: here for here, there in names.items()}
            orders.append(tuple(own.get(alias, "") for alias in self.orders[0]))
        return JoinMembers((*self.queries, *others.queries), (*self.orders, *orders), self.plan)

    def way_in(self, query: Query) -> dict[str, str] | None:
        """The names in the join of the inputs of a query whose combinations arise under its plan; None if they do not."""
        for way in ways_into(query, self.lead):
            part = part_of(self.plan, set(way.values()))
            if part is None or piles_up(query, way, part, self._wholes):
                continue
            if is_as_narrow(query, way, self.lead, self._common):
                return way
        return None

    def part_for(self, query: Query) -> Plan | None:
        """What such a query runs of the plan, in its own aliases."""
        way = self.way_in(query)
        return None if way is None else part_in_names(self.plan, {there: here for here, there in way.items()})

    @cached_property
    def _common(self) -> set[str]:
        """The predicates over several inputs that all members over all inputs have."""
        return narrowing(self._wholes)

    @cached_property
    def _wholes(self) -> list[tuple[Query, dict[str, str]]]:
        """The members over all inputs, with the names that their inputs have in the first."""
        whole = [(q, order) for q, order in zip(self.queries, self.orders, strict=True) if all(order)]
        return [(q, dict(zip(order, self.orders[0], strict=True))) for q, order in whole]


@dataclass(frozen=True)
class TakingIn:
    """Whether queries are to be members of a larger join, what it costs, and why."""

    host: str
    """A query that runs the larger join."""
    is_member: bool
    member: Cost
    """What the queries add as its members."""
    apart: Cost
    """What they add with a join of their own."""
    reason: str


def taking_in(host: JoinMembers, contained: JoinMembers, pricing: Pricing) -> TakingIn | None:
    """Whether some queries are to be members of a larger join; None if they cannot."""
    joint = host.with_members(contained)
    if joint is None:
        return None
    facts = _fixed(pricing.facts, joint)
    apart = _renamed(contained, joint, len(host.queries))
    own, other = priced_join(host, facts, pricing.units), priced_join(apart, facts, pricing.units)
    before = _total([(own, host.plan)])
    member = _total([(priced_join(joint, facts, pricing.units), joint.plan)]) - before
    alone = _total([(own, host.plan), (other, apart.plan)]) - before
    is_member = worth(member, pricing.byte_cores) <= worth(alone, pricing.byte_cores)
    return TakingIn(host.lead.name, is_member, member, alone, _reason(is_member, host, member, alone))


def priced_join(join: JoinMembers, facts: Given, units: UnitCosts) -> Priced:
    """The join of some queries, or of one."""
    if len(join.queries) == 1:
        graph = JoinGraph(join.lead)
        model = CostModel(facts.graph(graph), units)
        folded = model.graph.rate(model.graph.everything) if join.lead.grouping is not None else 0.0
        return Priced(join.lead.name, graph, model, Cost(folded * units.fold, 0.0))
    shared = shared_join(join.queries, join.orders)
    graph = JoinGraph(shared.join)
    model = CostModel(facts.graph(graph), shared_units(units))
    folded = sum(member_rate(shared, n, model.graph) for n, m in enumerate(shared.members) if m.grouping is not None)
    return Priced(join.lead.name, graph, model, handing_out(shared, model) + Cost(folded * units.fold, 0.0), True)


def _renamed(contained: JoinMembers, joint: JoinMembers, first: int) -> JoinMembers:
    """Queries as they are written in the names of the larger join, whose members they would be from a place on."""
    found, orders, plan = [], [], contained.plan
    for place, query in enumerate(contained.queries):
        names = {own: its for its, own in zip(joint.orders[0], joint.orders[first + place], strict=True) if own}
        found.append(in_names_of(joint.lead, query, names))
        orders.append(tuple(names[alias] for alias in contained.orders[place]))
        if not place:
            plan = renamed_plan(contained.plan, names)
    return JoinMembers(tuple(found), tuple(orders), plan)


def _fixed(facts: Given, joint: JoinMembers) -> Given:
    """What facts say of a join, as facts that say the same of any other over its inputs, in its names."""
    distinct, rates = dict[str, float](), dict[str, float]()
    for query, order in zip(joint.queries, joint.orders, strict=True):
        names = {own: its for its, own in zip(joint.orders[0], order, strict=True) if own}
        for term in (term for terms in JoinGraph(query).classes for term in terms):
            if (given := facts.distinct.get(str(term))) is not None:
                distinct.setdefault(str(renamed(term, names)), given)
    graph = JoinGraph(shared_join(joint.queries, joint.orders).join)
    known = replace(facts, distinct=distinct).graph(graph)
    classes = iter(known.classes)
    for terms in graph.classes:
        if len({alias for term in terms for alias in aliases_of(term)}) > 1:
            counts = dict(next(classes).distinct)
            for term in terms:
                for alias in aliases_of(term):
                    distinct[str(term)] = max(1.0, counts[graph.query.aliases.index(alias)])
    for i, stream in zip(graph.query.inputs, known.streams, strict=True):
        if isinstance(i.source, Stream):
            rates[i.source.name] = stream.rate
    return Given(rates, {}, distinct)


def _total(joins: Sequence[tuple[Priced, Plan]]) -> Cost:
    """What joins take together: every state once."""
    logs = log_bytes([priced] for priced, _ in joins)
    options = [option_of(priced, plan, kept) for (priced, plan), kept in zip(joins, logs, strict=True)]
    companies = [Company(priced.name, (option,)) for (priced, _), option in zip(joins, options, strict=True)]
    return total_of(companies, (0,) * len(companies))


def _reason(is_member: bool, host: JoinMembers, member: Cost, apart: Cost) -> str:
    if is_member:
        return "a combination that is handed out costs less than one that is looked up"
    if member.cpu <= apart.cpu:
        return "the larger join would keep more rows for its sake than a join of its own does"
    if len(host.queries) == 1:
        return "nobody else shares the larger join, and of each of its pairs it would have to be told whose it is"
    return "the larger join finds many combinations more than a join of its own does"
