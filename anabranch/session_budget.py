"""Plans for all queries of a session within one budget (`anabranch.share.joint_budget`).

Queries with a join in common make a company (`anabranch.share.common_plan.gathered`), every other query one of its own. A
company of one may have the plans of each of its forms; a pinned plan is the only one of its company, and counts with what it
takes. Every plan is priced by what is its own and by the states that it keeps (`anabranch.share.join_cost`). So what all
take together is known, and what is left for one of them if the others take what they are planned for. A query whose join is
contained in that of others is priced as one of their company, under the plans by which its combinations arise there.
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
from anabranch.share.common_plan import Gathering, Starting, gathered, generality
from anabranch.share.join_cost import Priced, log_bytes, option_of, shared_units
from anabranch.share.joint_budget import Company, Joint, choose_jointly, rank
from anabranch.share.source_chain import BYTE_CORES
from anabranch.share.taking_in import Pricing, TakingIn, priced_join, taking_in
from anabranch.show.figures import listed

MOST_OPTIONS = 24
"""So many plans of a company are looked at, from least memory to least CPU, evenly."""

TOGETHER_LESS = "all queries of the session take less so, or keep to their budget"
"""Why queries run apart that would be better off in a larger join by themselves."""

MOST_NAMES = 6
"""So many queries are told by name."""


@dataclass(frozen=True)
class Declared:
    """A query of the session, with the plan that it would have by itself."""

    forms: Forms
    execution: Execution
    decision: Decision | None
    """None: the plan is pinned."""
    may_lose: bool = False
    """Whether its policy may lose results: it shares no join then."""

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
    taking_in: TakingIn | None = None
    """What was decided about it, if its join is contained in a larger one."""


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


@dataclass(frozen=True)
class _Sharing:
    """What one company of the budget may run: queries with a join in common, and those that are members of it although
    theirs is a smaller one."""

    part: Gathering
    contained: tuple[Gathering, ...] = ()
    taken: tuple[TakingIn, ...] = ()
    """What was decided about each of these."""
    company: str = ""
    apart: TakingIn | None = None
    """Why it is not a member of a larger join itself."""


@dataclass(frozen=True)
class _Choice:
    """A plan for each company."""

    companies: tuple[tuple[_Sharing, list[tuple[Priced, Chosen]]], ...]
    joint: Joint


def plan_together(
    pipelines: Sequence[Iterable[Declared]], facts: Given, units: UnitCosts, bounds: Bounds, byte_cores: float = BYTE_CORES
) -> SessionPlans:
    """Plans for the queries of some pipelines. First each join is taken by itself. Then those that are contained in another
    under its plan, and better off there, are members of it; that holds, unless all together take less without."""
    declared = [{query.name: query for query in queries} for queries in pipelines]
    sharing = []
    for queries in declared:
        starting = [Starting(d.forms.written, d.execution, d.decision is None, d.may_lose) for d in queries.values()]
        sharing.append([_Sharing(part) for each in gathered(starting) for part in _parts(each)])
    pricing, budget = Pricing(facts, units, byte_cores), Cost(bounds.cpu, bounds.memory)
    chosen = _chosen(declared, sharing, facts, units, bounds)
    plans = {sharing.part.lead.query.name: _lead_plan(sharing, found, place)
             for (sharing, found), place in zip(chosen.companies, chosen.joint.chosen, strict=True)}  # fmt: skip
    nested = [_nested(several, plans, pricing) for several in sharing]
    if any(each.contained for several in nested for each in several):
        within = _chosen(declared, nested, facts, units, bounds)
        if rank(within.joint.total, budget) <= rank(chosen.joint.total, budget):
            return SessionPlans(_starts(within), within.joint, bounds)
    return SessionPlans(_starts(_apart(chosen, [each for several in nested for each in several])), chosen.joint, bounds)


def _apart(choice: _Choice, nested: Iterable[_Sharing]) -> _Choice:
    """The same plans, with queries in companies of their own that could be members of a larger join."""
    decided: dict[str, TakingIn] = {}
    for each in nested:
        inner = zip((part.lead.query.name for part in each.contained), each.taken, strict=True)
        decided |= {name: replace(taken, is_member=False, reason=TOGETHER_LESS) for name, taken in inner}
        decided |= {each.part.lead.query.name: each.apart} if each.apart is not None else {}
    found = []
    for sharing, plans in choice.companies:
        name = sharing.part.lead.query.name
        found.append((replace(sharing, company=name, apart=decided[name]) if name in decided else sharing, plans))
    return _Choice(tuple(found), choice.joint)


def _chosen(
    declared: Sequence[Mapping[str, Declared]], sharing: Sequence[Sequence[_Sharing]], facts: Given, units: UnitCosts,
    bounds: Bounds,
) -> _Choice:  # fmt: skip
    """The plans that are best for all together, for who is to run joins with whom."""
    companies: list[Company] = []
    own: list[tuple[_Sharing, list[tuple[Priced, Chosen]]]] = []
    for number, (queries, several) in enumerate(zip(declared, sharing, strict=True)):
        joins = [_priced(each, queries, facts, units, bounds) for each in several]
        logs = log_bytes([priced for priced, _, _ in options] for options in joins)
        for each, forms, kept in zip(several, joins, logs, strict=True):
            found = [(priced, chosen) for priced, plans, _ in forms for chosen in plans]
            options = tuple(option_of(priced, chosen.plan, kept, str(number)) for priced, chosen in found)
            companies.append(Company(each.part.lead.query.name, options, all(is_whole for _, _, is_whole in forms)))
            own.append((each, found))
    return _Choice(tuple(own), choose_jointly(companies, Cost(bounds.cpu, bounds.memory)))


def _nested(several: Sequence[_Sharing], plans: Mapping[str, Plan], pricing: Pricing) -> list[_Sharing]:
    """Who is to run joins with whom, once joins have plans: a join that is contained in a larger one goes there, or is told
    to stay apart."""
    hosts: list[_Sharing] = []
    order = sorted((each for each in several if each.part.orders), key=lambda each: generality(each.part))
    for each in order:
        own = replace(each.part.join, plan=plans[each.part.lead.query.name])
        for place, host in enumerate(hosts):
            larger = replace(host.part.join, plan=plans[host.part.lead.query.name])
            members = len(host.part.members) + sum(len(part.members) for part in host.contained)
            if each.part.is_pinned or host.part.shape == each.part.shape or members + len(own.queries) > MOST_MEMBERS:
                continue
            if (decided := taking_in(larger, own, pricing)) is None:
                continue
            if decided.is_member:
                hosts[place] = replace(host, contained=(*host.contained, each.part), taken=(*host.taken, decided))
            else:
                hosts.append(replace(each, company=each.part.lead.query.name, apart=decided))
            break
        else:
            hosts.append(each)
    alone = [each for each in several if not each.part.orders]
    place_of = {each.part.lead.query.name: place for place, each in enumerate(several)}
    return sorted([*hosts, *alone], key=lambda each: place_of[each.part.lead.query.name])


def _lead_plan(sharing: _Sharing, found: Sequence[tuple[Priced, Chosen]], place: int) -> Plan:
    """The plan that was chosen, in the aliases of the lead."""
    part, chosen = sharing.part, found[place][1]
    if not part.orders:
        return chosen.plan
    return part.in_names(part.in_numbers(chosen.plan, chosen.query), part.lead.query.name)


def _starts(choice: _Choice) -> dict[str, Start]:
    starts = {}
    for (each, found), place, charged in zip(choice.companies, choice.joint.chosen, choice.joint.charged, strict=True):
        part, (priced, chosen) = each.part, found[place]
        alone, lead = priced.model.cost(chosen.plan) + priced.extra, part.lead.query.name
        names = (*part.names, *(name for inner in each.contained for name in inner.names))
        for member in part.members:
            execution = member.execution if member.is_pinned else _execution(part, chosen, member)
            execution = replace(execution, company=each.company)
            starts[member.query.name] = Start(execution, names, lead, charged, alone, each.apart)
        join = replace(part.join, plan=_lead_plan(each, found, place)) if each.contained else None
        for inner, decided in zip(each.contained, each.taken, strict=True):
            for member in inner.members:
                assert join is not None
                plan = join.part_for(member.query)
                assert plan is not None, "options are plans that have the part"
                execution = replace(member.execution, plan=plan, company=each.company)
                starts[member.query.name] = Start(execution, names, lead, charged, alone, decided)
    return starts


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
    sharing: _Sharing, declared: Mapping[str, Declared], facts: Given, units: UnitCosts, bounds: Bounds
) -> list[tuple[Priced, list[Chosen], bool]]:
    """The joins that a company may run, one for each form, with their plans, and whether these are all that may be best."""
    if len(sharing.part.members) > 1 or sharing.contained:
        return [_shared(sharing, facts, units, bounds)]
    (member,) = sharing.part.members
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


def _shared(sharing: _Sharing, facts: Given, units: UnitCosts, bounds: Bounds) -> tuple[Priced, list[Chosen], bool]:
    """A join that several queries run: under plans by which the combinations of all of them arise."""
    part, join, several = sharing.part, sharing.part.join, shared_units(units)
    for inner in sharing.contained:
        joined = join.with_members(inner.join)
        assert joined is not None, "it was decided about"
        join = joined
    graph, first = JoinGraph(shared_join(join.queries, join.orders).join), join.lead.name
    if part.is_pinned:
        plans, is_whole = [Chosen(join.plan, first)], True
    else:
        decision = decide(graph, facts, several, bounds)
        is_whole, front = _is_whole(decision), [plan for plan, _ in _few(decision)]
        inside = [query for inner in sharing.contained for query in inner.join.queries]
        fitting = [plan for plan in front if all(replace(join, plan=plan).way_in(query) for query in inside)]
        plans = [Chosen(plan, first) for plan in fitting or [join.plan]]
        is_whole = is_whole and len(fitting) == len(front)
    return priced_join(join, facts, units), plans, is_whole


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
