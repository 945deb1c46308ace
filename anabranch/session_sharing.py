"""Who runs with whom: what follows from all queries of a session for what each of them starts with.

    pipelines    queries that streams connect and that do the same under overload (`anabranch.balance.together`)
    plans        within a budget those of all queries together (`anabranch.session_budget`); else each has its own, but for
                 queries that run one join, which have one plan (`anabranch.share.common_plan`)
    ways         whether queries with one join run it once, once for each set of filters, or each in a pipeline of its own
                 (`anabranch.share.ways`): by those plans. Where it is the last, all is worked out again with these apart
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from anabranch.balance.together import pipelines_of
from anabranch.cost.model import Cost
from anabranch.errors import NoQualifiedPlanError
from anabranch.optimize.planner import Bounds, Decision
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.migration import Execution
from anabranch.plan.overload import Overload
from anabranch.plan.query import Query
from anabranch.plan.workload import Workload
from anabranch.session_budget import Declared, SessionPlans, plan_together
from anabranch.share.canonical import Running, companies, shape_of
from anabranch.share.common_plan import Starting, Taken, common_plans
from anabranch.share.joint_budget import NOTHING
from anabranch.share.pipeline_chains import pipeline_joins
from anabranch.share.taking_in import Pricing, TakingIn
from anabranch.share.ways import PUSH_DOWN, UNSHARED, SharingDecision, chosen_way


@dataclass(frozen=True)
class Planned:
    """A declared query and what it starts with."""

    forms: Forms
    execution: Execution
    decision: Decision | None = None
    """Why the plan is what it is; None: the plan is pinned."""
    lead: str = ""
    """The query whose plan it starts with, because it runs its join together with that one."""
    is_joint: bool = False
    """Whether the plan was chosen together with those of all other queries, within one budget."""
    taking_in: TakingIn | None = None
    """What was decided about it, if its join is contained in a larger one."""

    @property
    def name(self) -> str:
        return self.forms.written.name

    @property
    def is_pinned(self) -> bool:
        return self.decision is None

    @cached_property
    def join_text(self) -> str | None:
        """What it joins, as a text that all queries have with which it can run one join; None if it runs its own."""
        shape = shape_of(self.forms.written)
        return None if shape is None else shape.text

    @property
    def graph(self) -> JoinGraph:
        """Of the form that the query starts with."""
        return self.forms.graphs[self.execution.grouped_input]

    @property
    def query(self) -> Query:
        """In the form that it starts with."""
        return self.graph.query


@dataclass(frozen=True)
class Together:
    """The queries of a session beside one another."""

    queries: tuple[Planned, ...]
    """Each as it would start by itself."""
    alone: frozenset[str]
    """Those that are not to share a pipeline with others."""
    overloads: tuple[Overload, ...]
    """What each query does under overload."""
    pipelines: list[Workload]
    taken: Mapping[str, Taken]
    """The queries that start with the plan of another, without a budget."""
    plans: SessionPlans | None
    """What each query starts with, within a budget."""
    ways: Mapping[str, SharingDecision] = field(default_factory=dict)
    """How the join of each query is run that has it in common with others."""

    @property
    def unshared(self) -> frozenset[str]:
        """The queries that run by themselves although they have a join in common."""
        return frozenset(name for name, way in self.ways.items() if way.way == UNSHARED)

    @cached_property
    def companies(self) -> dict[str, str]:
        """The company of each query whose join is run once for each set of filters."""
        groups = [group for way in self.ways.values() if way.way == PUSH_DOWN for group in way.groups]
        return {name: group[0] for group in groups for name in group}

    def query(self, name: str) -> Planned:
        """A query with what it starts with."""
        planned = self._beside(name)
        company = self.companies.get(name, planned.execution.company)
        return replace(planned, execution=replace(planned.execution, company=company))

    def _beside(self, name: str) -> Planned:
        """A query with what it starts with beside the others, before it is decided how joins are run."""
        planned = self._by_name[name][0]
        if self.plans is None:
            taken = self.taken.get(name)
            if taken is None:
                return planned
            return replace(planned, execution=taken.execution, lead=taken.lead, taking_in=taken.taking_in)
        start = self.plans.starts[name]
        is_led = start.lead != name and start.execution.plan != planned.execution.plan
        lead, decided = start.lead if is_led else "", start.taking_in
        return replace(planned, execution=start.execution, lead=lead, is_joint=True, taking_in=decided)

    def running(self, names: Iterable[str]) -> list[Running]:
        """Queries of a pipeline as they start."""
        return [self._running(self.query(name)) for name in names]

    def _running(self, start: Planned) -> Running:
        may_lose = self._by_name[start.name][1].policy.may_lose
        return Running(start.forms.written, start.execution, Distribution(), 0, may_lose)

    @cached_property
    def _by_name(self) -> dict[str, tuple[Planned, Overload]]:
        return {each.name: (each, overload) for each, overload in zip(self.queries, self.overloads, strict=True)}

    def chosen_ways(self, pricing: Pricing, bounds: Bounds) -> dict[str, SharingDecision]:
        """How the joins are run that several queries have in common. Where some of these join less than the others, or have
        pinned plans, they are run as one."""
        found: dict[str, SharingDecision] = {}
        for workload in self.pipelines:
            running = [self._running(self._beside(query.name)) for query in workload.queries]
            sizes = {company.lead.query.name: len(company.members) for company in companies(running)}
            for join in pipeline_joins(running, lambda _: pricing.facts, pricing.units):
                lead, names = join.members[0].name, [member.name for member in join.members]
                if sizes.get(lead) == len(names):
                    left = bounds if self.plans is None else self.plans.left_for(lead)
                    way = chosen_way(join, pricing.byte_cores, Cost(left.cpu, left.memory))
                    found |= dict.fromkeys(names, way)
        return found

    def require_fit(self) -> Cost:
        """What all queries of a session with a strict budget take. Pinned plans alone are not refused."""
        if self.plans is None:
            return NOTHING
        if not self.plans.joint.fits and not all(each.is_pinned for each in self.queries):
            raise NoQualifiedPlanError(f"query {self.plans.joint.breaks[0].company}: {self.plans.broken}")
        return self.plans.joint.total


def plan_session(
    queries: Sequence[Planned], alone: frozenset[str], overloads: Sequence[Overload], pricing: Pricing, bounds: Bounds
) -> Together:
    """Who runs with whom, and what each starts with."""
    found = plan_beside(queries, alone, overloads, pricing, bounds)
    found = replace(found, ways=found.chosen_ways(pricing, bounds))
    if not found.unshared:
        return found
    again = plan_beside(queries, alone | found.unshared, overloads, pricing, bounds)
    return replace(again, alone=alone, ways=found.ways)


def plan_beside(
    queries: Sequence[Planned], alone: frozenset[str], overloads: Sequence[Overload], pricing: Pricing, bounds: Bounds
) -> Together:
    """The pipelines and plans of queries, all of whose common joins are run once."""
    policies = {each.name: overload for each, overload in zip(queries, overloads, strict=True)}
    pipelines = pipelines_of([each.forms.written for each in queries], alone, policies)
    by_name = {each.name: each for each in queries}
    own = [[by_name[query.name] for query in workload.queries] for workload in pipelines]
    taken, plans = dict[str, Taken](), None
    if bounds != Bounds() and queries:
        declared = [
            [Declared(p.forms, p.execution, p.decision, policies[p.name].policy.may_lose) for p in several]
            for several in own
        ]
        plans = plan_together(declared, pricing.facts, pricing.units, bounds, pricing.byte_cores)
    else:
        for several in own:
            if not policies[several[0].name].policy.may_lose:
                starting = {p.name: Starting(p.forms.written, p.execution, p.is_pinned) for p in several}
                taken |= common_plans(starting, pricing)
    return Together(tuple(queries), alone, tuple(overloads), pipelines, taken, plans)
