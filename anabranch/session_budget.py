"""Plans for all queries of a session within one budget (`anabranch.share.joint_budget`).

Queries with a join in common make a company (`anabranch.share.common_plan.gathered`), every other query one of its own. A
company of one may have the plans of each of its forms; a pinned plan is the only one of its company, and counts with what it
takes. Every plan is priced by what is its own and by the states that it keeps (`anabranch.share.join_cost`). So what all
take together is known, and what is left for one of them if the others take what they are planned for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from anabranch.cost.facts import Given
from anabranch.cost.model import Cost, CostModel, UnitCosts
from anabranch.optimize.group_placement import priced_forms
from anabranch.optimize.planner import Bounds, Decision, decide, show_bytes
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Execution
from anabranch.plan.shared_join import shared_join
from anabranch.share.canonical import LONG_US, MOST_MEMBERS
from anabranch.share.common_plan import Gathering, Starting, gathered
from anabranch.share.join_cost import Priced, handing_out, log_bytes, member_rate, option_of
from anabranch.share.joint_budget import Company, Joint, choose_jointly
from anabranch.show.figures import listed

MOST_OPTIONS = 24
"""So many plans of a company are looked at, from least memory to least CPU, evenly."""

MOST_NAMES = 6
"""So many queries are told by name."""


@dataclass(frozen=True)
class Declared:
    """A query of the session, with the plan that it would have by itself."""

    forms: Forms
    execution: Execution
    decision: Decision | None
    """None: the plan is pinned."""

    @property
    def name(self) -> str:
        return self.forms.written.name


@dataclass(frozen=True)
class Chosen:
    """A plan that a company may have, or has."""

    plan: Plan
    """In the aliases of the query that is named."""
    query: str
    grouped_input: str | None = None


@dataclass(frozen=True)
class Start:
    """What a query starts with, and what that takes."""

    execution: Execution
    company: tuple[str, ...]
    """The queries that run one join with it, and itself."""
    lead: str
    """The query of its company whose plan it is."""
    charged: Cost
    """What its company adds to what those before it take."""
    alone: Cost
    """What its company would take if nobody shared a state with it."""


@dataclass(frozen=True)
class SessionPlans:
    """What all queries of a session start with."""

    starts: Mapping[str, Start]
    joint: Joint
    bounds: Bounds

    def left_for(self, query: str) -> Bounds:
        """What the company of a query may take if the others take what they are planned for; at least what it is planned
        for itself. States that it shares with others count with it, for it is priced with them."""
        start, total = self.starts[query], self.joint.total
        others = Cost(max(0.0, total.cpu - start.alone.cpu), max(0.0, total.memory - start.alone.memory))
        left = Cost(self.bounds.cpu, self.bounds.memory) - others
        return Bounds(max(left.cpu, start.alone.cpu), max(left.memory, start.alone.memory))

    @cached_property
    def broken(self) -> str:
        """Which bound breaks, with which query and by how much, and what would help; nothing if none does."""
        texts = []
        for each in self.joint.breaks:
            over = f"{each.over:.3g} cores" if each.resource == "CPU" else show_bytes(each.over)
            most = "" if each.largest == each.company else f", and {each.largest} takes the most"
            texts.append(f"{each.resource} is exceeded by {over}: {each.company} is the first that does not fit{most}")
        if not texts:
            return ""
        taken = f"{self.joint.total.cpu:.3g} cores and {show_bytes(self.joint.total.memory)}"
        return (
            f"no plans of all {len(self.starts)} queries are within the budget: the least bad take {taken}; "
            f"{'; '.join(texts)}: shorten windows, filter earlier, or allow more"
        )


def plan_together(
    pipelines: Sequence[Iterable[Declared]], facts: Given, units: UnitCosts, bounds: Bounds
) -> SessionPlans:
    """Plans for the queries of some pipelines."""
    companies: list[Company] = []
    own: list[tuple[Gathering, list[tuple[Priced, Chosen]]]] = []
    for number, queries in enumerate(pipelines):
        declared = {query.name: query for query in queries}
        starting = [Starting(d.forms.written, d.execution, d.decision is None) for d in declared.values()]
        parts = [part for each in gathered(starting) for part in _parts(each)]
        joins = [_priced(part, declared, facts, units, bounds) for part in parts]
        logs = log_bytes([priced for priced, _, _ in several] for several in joins)
        for part, several, kept in zip(parts, joins, logs, strict=True):
            found = [(priced, chosen) for priced, plans, _ in several for chosen in plans]
            options = tuple(option_of(priced, chosen.plan, kept, str(number)) for priced, chosen in found)
            companies.append(Company(part.lead.query.name, options, all(is_whole for _, _, is_whole in several)))
            own.append((part, found))
    joint = choose_jointly(companies, Cost(bounds.cpu, bounds.memory))
    starts = {}
    for (part, found), place, charged in zip(own, joint.chosen, joint.charged, strict=True):
        priced, chosen = found[place]
        alone = priced.model.cost(chosen.plan) + priced.extra
        for member in part.members:
            execution = member.execution if member.is_pinned else _execution(part, chosen, member)
            starts[member.query.name] = Start(execution, part.names, part.lead.query.name, charged, alone)
    return SessionPlans(starts, joint, bounds)


def _parts(each: Gathering) -> Iterable[Gathering]:
    """A join is run by so many queries at most, those with the largest windows first."""
    if not each.orders:
        yield each
        return
    several = sorted(zip(each.members, each.orders, strict=True), key=lambda one: -_span_us(one[0]))
    for first in range(0, len(several), MOST_MEMBERS):
        part = several[first : first + MOST_MEMBERS]
        lead = each.lead if any(member is each.lead for member, _ in part) else part[0][0]
        yield replace(each, lead=lead, members=tuple(m for m, _ in part), orders=tuple(order for _, order in part))


def _span_us(member: Starting) -> int:
    return sum(min(i.window.length_us, LONG_US) for i in member.query.inputs)


def _priced(
    part: Gathering, declared: Mapping[str, Declared], facts: Given, units: UnitCosts, bounds: Bounds
) -> list[tuple[Priced, list[Chosen], bool]]:
    """The joins that a company may run, one for each form, with their plans, and whether these are all that may be best."""
    if len(part.members) > 1:
        return [_shared(part, facts, units, bounds)]
    (member,) = part.members
    own, query = declared[member.query.name], member.query
    if own.decision is None:
        graph = own.forms.graphs[member.execution.grouped_input]
        model = CostModel(facts.graph(graph), units)
        folded = model.graph.rate(model.graph.everything) * units.fold if query.grouping is not None else 0.0
        pinned = Chosen(member.execution.plan, query.name, member.execution.grouped_input)
        return [(Priced(query.name, graph, model, Cost(folded, 0.0)), [pinned], True)]
    forms: list[tuple[Decision, str | None, float]] = [(own.decision, None, own.decision.cost.cpu)]
    if query.grouping is not None:
        forms = [(g.decision, g.grouped_input, g.cpu) for g in priced_forms(own.forms, facts, units, bounds)]
    found = []
    for decision, grouped_input, cpu in forms:
        plans = [Chosen(plan, query.name, grouped_input) for plan, _ in _few(decision)]
        extra = Cost(cpu - decision.cost.cpu, 0.0)
        priced = Priced(query.name, own.forms.graphs[grouped_input], decision.model, extra)
        found.append((priced, plans, _is_whole(decision)))
    return found


def _shared(part: Gathering, facts: Given, units: UnitCosts, bounds: Bounds) -> tuple[Priced, list[Chosen], bool]:
    shared = shared_join([member.query for member in part.members], part.orders)
    graph, first = JoinGraph(shared.join), part.members[0].query.name
    if part.is_pinned:
        model = CostModel(facts.graph(graph), units)
        plan = part.in_names(part.in_numbers(part.lead.execution.plan, part.lead.query.name), first)
        plans, is_whole = [Chosen(plan, first)], True
    else:
        decision = decide(graph, facts, units, bounds)
        model, is_whole = decision.model, _is_whole(decision)
        plans = [Chosen(plan, first) for plan, _ in _few(decision)]
    folded = [member_rate(shared, place, model.graph) for place, m in enumerate(shared.members) if m.grouping is not None]
    extra = handing_out(shared, model) + Cost(sum(folded) * units.fold, 0.0)
    return Priced(first, graph, model, extra, has_own_views=True), plans, is_whole


def _few(decision: Decision) -> list[tuple[Plan, Cost]]:
    """The plans of a front, or some of them. The plan that was chosen is among them."""
    front = list(decision.front)
    if len(front) > MOST_OPTIONS:
        step = (len(front) - 1) / (MOST_OPTIONS - 1)
        few = [front[round(place * step)] for place in range(MOST_OPTIONS)]
        front = few if any(plan == decision.plan for plan, _ in few) else [*few, (decision.plan, decision.cost)]
    return front


def _is_whole(decision: Decision) -> bool:
    return decision.is_exact and len(decision.front) <= MOST_OPTIONS


def _execution(part: Gathering, chosen: Chosen, member: Starting) -> Execution:
    """What a member starts with under the plan of its company: its own, if that does the same."""
    name = member.query.name
    if len(part.members) == 1:
        return Execution(chosen.plan, grouped_input=chosen.grouped_input)
    common = part.in_numbers(chosen.plan, chosen.query)
    if part.in_numbers(member.execution.plan, name) == common:
        return member.execution
    return replace(member.execution, plan=part.in_names(common, name))


# -- in words --------------------------------------------------------------------------------------------------------


def budget_text(plans: SessionPlans, query: str) -> str:
    """What a query takes of the budget, and what all queries take together."""
    start, bounds, total = plans.starts[query], plans.bounds, plans.joint.total
    others = [name for name in start.company if name != query]
    with_ = ""
    if others:
        named = listed(others) if len(others) <= MOST_NAMES else f"{len(others)} others"
        with_ = f" with {named}, who run its join too,"
    of_cpu = "" if bounds.cpu == float("inf") else f" of {bounds.cpu:.3g}"
    of_memory = "" if bounds.memory == float("inf") else f" of {show_bytes(bounds.memory)}"
    taken = f"{total.cpu:.3g}{of_cpu} cores and {show_bytes(total.memory)}{of_memory}"
    lines = [
        f"it takes{with_} {start.charged.cpu:.3g} cores and {show_bytes(start.charged.memory)}, without states that queries "
        "before it keep",
        f"{'the query of' if len(plans.starts) == 1 else f'all {len(plans.starts)} queries of'} the session: {taken}",
        *([plans.broken] if plans.broken else []),
    ]
    return "\n  ".join(["budget", *lines])


def budget_json(plans: SessionPlans, query: str) -> dict[str, Any]:
    """The same as plain values; a bound that there is not is None."""
    start, joint = plans.starts[query], plans.joint
    bounds = {"cpu": plans.bounds.cpu, "memory": plans.bounds.memory}
    return {
        "company": list(start.company), "cpu": start.charged.cpu, "memory": start.charged.memory,
        "all": {"cpu": joint.total.cpu, "memory": joint.total.memory},
        "bounds": {name: None if bound == float("inf") else bound for name, bound in bounds.items()},
        "exact": joint.is_exact, "considered": joint.considered,
        "breaks": [{"resource": b.resource, "over": b.over, "query": b.company, "most": b.largest} for b in joint.breaks],
    }  # fmt: skip
