"""Planning without Spark: the declared sources and queries, a plan for each query, and `explain`.

`Session` and `anabranch explain` plan and explain by this. Nothing here, nor in what it imports, needs pyspark (`make lint`
checks it), so that plans can be looked at where there is no Spark, and before one is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anabranch.balance.together import choose_together, pipelines_of, restored
from anabranch.control.journal import Journal
from anabranch.control.pipelines import KnownPipeline, known_pipelines
from anabranch.control.query_texts import text_of
from anabranch.cost.facts import EMPTY, Facts, Given
from anabranch.cost.model import Cost
from anabranch.cost.units import DEFAULT, unit_costs
from anabranch.errors import FactsError, LocationError, NoQualifiedPlanError, SessionError, known_names
from anabranch.optimize.group_placement import choose_groups
from anabranch.optimize.planner import Bounds, Decision, decide
from anabranch.plan.defeated import defeated
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution
from anabranch.plan.names import same_name
from anabranch.plan.query import Derived, Query, Stream, Table
from anabranch.plan.workload import Workload
from anabranch.session_budget import Declared, SessionPlans, budget_json, budget_text, plan_together
from anabranch.settings import Budget
from anabranch.share.canonical import Running, companies
from anabranch.share.common_plan import Starting, Taken, common_plans
from anabranch.share.join_load import JoinLoad
from anabranch.share.joint_budget import NOTHING
from anabranch.share.pipeline_chains import ASSUMED, Known, first_chains, pipeline_joins
from anabranch.share.source_chain import BYTE_CORES, SourceChain
from anabranch.show.as_json import priced_json
from anabranch.show.chains import (
    PipelineShown,
    ShownSharing,
    known_of,
    seen_in,
    sharing_json,
    sharing_text,
    slice_notes,
)
from anabranch.show.explain import Explanation, PricedPlan, explained
from anabranch.show.figures import listed
from anabranch.show.measured import Batches, batches_of
from anabranch.show.routes import routes_json, routes_text, times_json, times_text
from anabranch.show.spread import Origin, Slots, spread_json, spread_text
from anabranch.sql import BoundQuery, Catalog, Script
from anabranch.storage.location import Folder


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

    @property
    def is_pinned(self) -> bool:
        return self.decision is None

    @property
    def graph(self) -> JoinGraph:
        """Of the form that the query starts with."""
        return self.forms.graphs[self.execution.grouped_input]

    @property
    def query(self) -> Query:
        """In the form that it starts with."""
        return self.graph.query


@dataclass(frozen=True)
class _Together:
    """What follows from all queries of a session."""

    queries: tuple[Planned, ...]
    alone: frozenset[str]
    pipelines: list[Workload]
    taken: Mapping[str, Taken]
    """The queries that start with the plan of another, without a budget."""
    plans: SessionPlans | None
    """What each query starts with, within a budget."""


class Planning:
    """The declared sources and queries of a session, each query with its plan.

    Plans are chosen by `facts`, unless they are pinned: those of all queries together within `budget`, if there is one.
    `slots` is how many were asked for, and `checkpoint` where queries keep their state, once they have run.

    >>> from anabranch.sql import parse_script
    >>> planning = Planning(slots=4)
    >>> planning.add_script(parse_script('''
    ...     CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE QUERY pairs AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;
    ... '''))
    >>> planning.explain("pairs")  # doctest: +ELLIPSIS
    <plan of pairs: (a b), ... cores, ... kept (assumed)>
    """

    def __init__(
        self,
        budget: Budget | None = None,
        facts: Given = EMPTY,
        slots: int | None = None,
        checkpoint: Folder | None = None,
    ) -> None:
        if slots is not None and (type(slots) is not int or slots < 1):
            raise SessionError(f"slots is a number of tasks, 1 or more: not {slots!r}")
        self.budget, self.facts, self.units = budget or Budget(), facts, unit_costs()
        self.slots, self.checkpoint = slots, checkpoint
        self.catalog = Catalog()
        self.queries: dict[str, Planned] = {}
        self.alone: set[str] = set()
        """The queries that are not to share a pipeline with others."""
        self._known_together: _Together | None = None
        self._shown: tuple[_Together | None, dict[tuple[str, ...], PipelineShown]] = None, {}
        """How pipelines share what they read, by their queries, as long as these stay as they are."""
        self._at_most = NOTHING
        """No more is taken by all queries, if none of them shares a state that was not shared when it was last looked at."""

    def add_script(self, script: Script) -> None:
        """Declares what a script creates, over the catalog that it was read with: all of it or, with an error, nothing."""
        planned = [self._plan(bound) for bound in script.queries]
        self._require_fit(planned)
        self.catalog = script.catalog
        self.queries |= {p.forms.written.name: p for p in planned}

    def add_query(self, bound: BoundQuery) -> None:
        """Declares a query over the sources of the catalog."""
        planned = self._plan(bound)
        self._require_fit([planned])
        self.queries[bound.query.name] = planned

    def check_facts(self, rates: str = "rates", table_rows: str = "table_rows", distinct: str = "distinct") -> None:
        """Refuses facts of what nobody declared: with a name mistyped, a plan would be one for assumed rates. The words are
        what errors call the facts."""
        blocks = [block for planned in self.queries.values() for block in planned.forms.written.blocks]
        sources = [*self.catalog, *(i.source for block in blocks for i in block.inputs if isinstance(i.source, Derived))]
        streams = [source.name for source in sources if isinstance(source, Stream)]
        tables = [source.name for source in sources if isinstance(source, Table)]
        keys = [str(term) for block in blocks for terms in JoinGraph(block).classes for term in terms]
        for option, given, known, what in (
            (rates, self.facts.rates, streams, "there is no such stream"),
            (table_rows, self.facts.table_rows, tables, "there is no such table"),
            (distinct, self.facts.distinct, keys, "no query joins by such a key"),
        ):
            for name in given:
                if name not in known:
                    raise FactsError(f"{option} {name}: {what}; {known_names(name, dict.fromkeys(known))}")

    def query(self, name: str) -> Planned:
        """A query that was declared, with what it starts with: the plan of another query, if both run one join."""
        if name not in self.queries:
            raise SessionError(f"there is no query {name}; {known_names(name, self.queries)}")
        planned, together = self.queries[name], self._together()
        if together.plans is None:
            taken = together.taken.get(name)
            return planned if taken is None else replace(planned, execution=taken.execution, lead=taken.lead)
        start = together.plans.starts[name]
        is_led = start.lead != name and start.execution.plan != planned.execution.plan
        return replace(planned, execution=start.execution, lead=start.lead if is_led else "", is_joint=True)

    def left_for(self, name: str) -> Bounds:
        """What a query may take, with those that run its join, if all others take what they are planned for."""
        plans = self._together().plans
        return self.budget.bounds if plans is None else plans.left_for(name)

    def _together(self) -> _Together:
        known, queries, alone = self._known_together, tuple(self.queries.values()), frozenset(self.alone)
        if known is None or known.queries != queries or known.alone != alone:
            known = self._planned_together(queries, alone)
            if self.budget.strict:
                _required(known)
            self._known_together = known
        return known

    def _planned_together(self, queries: tuple[Planned, ...], alone: frozenset[str]) -> _Together:
        pipelines, taken = pipelines_of([planned.forms.written for planned in queries], alone), dict[str, Taken]()
        by_name = {planned.forms.written.name: planned for planned in queries}
        own = [[by_name[query.name] for query in workload.queries] for workload in pipelines]
        if self.budget.bounds != Bounds() and queries:
            declared = [[Declared(p.forms, p.execution, p.decision) for p in several] for several in own]
            plans = plan_together(declared, self.facts, self.units, self.budget.bounds)
            return _Together(queries, alone, pipelines, taken, plans)
        for several in own:
            starting = {p.forms.written.name: Starting(p.forms.written, p.execution, p.is_pinned) for p in several}
            taken |= common_plans(starting)
        return _Together(queries, alone, pipelines, taken, None)

    def _require_fit(self, planned: Sequence[Planned]) -> None:
        """Refuses queries that do not fit into a strict budget beside those that there are. Where each could have states of
        its own beside what is known to be taken, that need not be looked at: it is when plans are first asked for."""
        if not self.budget.strict:
            return
        added = sum((each.decision.cost for each in planned if each.decision is not None), NOTHING)
        self._at_most += added
        is_sure = all(each.decision is not None for each in planned)
        if not is_sure or not self._at_most.within(self.budget.bounds.cpu, self.budget.bounds.memory):
            try:
                found = self._planned_together((*self.queries.values(), *planned), frozenset(self.alone))
                self._at_most = _required(found)
            except NoQualifiedPlanError:
                self._at_most -= added
                raise

    def _plan(self, bound: BoundQuery) -> Planned:
        if taken := next((name for name in self.queries if same_name(name, bound.query.name)), None):
            raise SessionError(f"there is a query {taken} already: give this one another name than {bound.query.name}")
        forms = Forms(bound.query)
        if bound.plan:
            return Planned(forms, Execution(parse(bound.plan, forms.graphs[None])))
        chosen = choose_groups(forms, self.facts, self.units, self.budget.bounds, self.budget.strict)
        execution = Execution(chosen.decision.plan, grouped_input=chosen.grouped_input)
        return Planned(forms, execution, chosen.decision)

    def explain(self, name: str, parallelism: Slots | None = None, verbose: bool = False) -> Explanation:
        """What a query does and costs under its plan, and why it has that plan; with `verbose`, what rows of each input do,
        when they are late, and how they are spread.

        The slots are those that were asked for, else those of the checkpoint, if it holds a commit of the query, else
        `parallelism`, which is this machine's cores where nothing else is known."""
        priced, written = self.priced(name), self.query(name).forms.written
        shown = self.sharing(name)
        more = [*self._company(name), *([sharing_text(shown, verbose)] if shown is not None else []), *self._budgeted(name)]
        if verbose:
            distribution, slots = self._spread(written, parallelism)
            more += [routes_text(priced.plan, priced.graph), times_text(written), spread_text(written, distribution, slots)]
        return explained(priced, more, slice_notes(shown))

    def explain_json(self, name: str, parallelism: Slots | None = None) -> dict[str, Any]:
        """What `explain` shows as plain values."""
        priced, written = self.priced(name), self.query(name).forms.written
        return {
            **routes_json(priced.plan, priced.graph),
            **priced_json(priced),
            "times": times_json(written),
            "spread": spread_json(written, *self._spread(written, parallelism)),
            "together": self._others(name),
            "sharing": sharing_json(self.sharing(name)),
            "budget": self._budget_json(name),
        }

    def draw(self, name: str) -> str:
        """The plan of a query as SVG."""
        return self.priced(name).draw(slice_notes(self.sharing(name)))

    def priced(self, name: str) -> PricedPlan:
        """The plan that a query starts with, or goes on with, and its costs: by what its batches measured, else by what is
        given or assumed."""
        found, bounds = self.query(name), self.budget.bounds
        plan, graph, decision, batches = found.execution.plan, found.graph, found.decision, self._batches(found)
        if batches is not None:
            graph = found.forms.graphs[batches.execution.grouped_input]
            plan = parse(batches.execution.plan, graph)
            decision = decide(graph, batches.facts(plan, self.facts), self.units, bounds)
        if decision is None:
            decision = decide(graph, self.facts, self.units, bounds)
        warnings = tuple(defeated(found.forms.written))
        return PricedPlan(
            plan, graph, decision, found.is_pinned, batches, self.units != DEFAULT, warnings, found.lead, found.is_joint
        )

    def _batches(self, planned: Planned) -> Batches | None:
        """What a query measured under the plan that it would go on with; None if it has not run, or not under that one."""
        written = planned.forms.written
        if self.checkpoint is None or (known := self._known(written.name)) is None:
            return None
        found = batches_of(self.checkpoint.below(known.name), written.name, text_of(written).state_digest)
        if found is None or not planned.is_pinned:
            return found
        ran = found.execution
        is_pinned = ran.grouped_input is None and parse(ran.plan, planned.graph) == planned.execution.plan
        return found if is_pinned else None

    def warn(self) -> None:
        """Tells on the terminal, and once in its journal, which windows of a query are too short for its conditions."""
        for name, planned in self.queries.items():
            if not (texts := [str(found) for found in defeated(planned.forms.written)]):
                continue
            print(*(f"anabranch: warning: query {name}: {text}" for text in texts), sep="\n", file=sys.stderr)
            if self.checkpoint is not None:
                journal, told = Journal(self.checkpoint, name), ". ".join(texts)
                if (before := journal.last_of("warned")) is None or before.text != told:
                    journal.note(-1, "warned", told)

    def pipelines(self) -> list[Workload]:
        """Which queries run together, if none has run yet."""
        return self._together().pipelines

    def _others(self, name: str) -> list[str]:
        """The queries that run together with one."""
        known = self._known(name)
        if known is not None:
            return [other for other in known.layouts if other != name]
        (own,) = [each for each in self.pipelines() if any(query.name == name for query in each.queries)]
        return [query.name for query in own.queries if query.name != name]

    def _company(self, name: str) -> list[str]:
        others, joining = self._others(name), self._joining(name)
        shown = f"together\n  with {', '.join(others)}: one scan of each stream, and one state. A batch lasts as long as its"
        shared = f"\n  its join is run once for it and {listed(joining)}" if joining else ""
        return [f"{shown} slowest query{shared}"] if others else []

    def sharing(self, name: str) -> ShownSharing | None:
        """How the streams of a query are cut into slices, and its join is shared: by what its pipeline measured, if it has
        run; None if there is nothing to share."""
        together = self._together()
        if self._shown[0] is not together:
            self._shown = together, {}
        names = (name, *self._others(name))
        others = tuple(sorted(n for n in names if n in self.queries))
        if others not in self._shown[1]:
            self._shown[1][others] = self._pipeline_shown(others)
        return self._shown[1][others].of(self.query(name).forms.written)

    def _pipeline_shown(self, names: Sequence[str]) -> PipelineShown:
        slices, known = None, ASSUMED
        if self.checkpoint is not None and (pipeline := self._known(names[0])) is not None:
            seen, slices = seen_in(self.checkpoint.below(pipeline.name))
            known = known_of(seen) or ASSUMED
        joins = self.joins(names, known, is_measured=known is not ASSUMED)
        return PipelineShown(joins, [self.query(n).forms.written for n in names], self.units, self.byte_cores, known, slices)

    @property
    def byte_cores(self) -> float:
        """What a byte of state is worth in cores: by the budget, if it bounds both."""
        bounds = self.budget.bounds
        return BYTE_CORES if float("inf") in (bounds.cpu, bounds.memory) else bounds.cpu / bounds.memory

    def joins(self, queries: Sequence[str], known: Known = ASSUMED, is_measured: bool = False) -> list[JoinLoad]:
        """The joins that some queries of a pipeline run when they start; by what they measured, if that is asked."""
        starts = [self.query(name) for name in queries]
        running = [Running(planned.forms.written, planned.execution, Distribution()) for planned in starts]

        def facts_of(query: str) -> Facts:
            planned = self.query(query)
            batches = self._batches(planned) if is_measured else None
            return self.facts if batches is None else batches.facts(planned.execution.plan, self.facts)

        return pipeline_joins(running, facts_of, self.units, known)

    def first_chains(self, queries: Sequence[str]) -> list[SourceChain]:
        """How rows of the streams of some queries of a pipeline are cut before anything is measured."""
        return first_chains(self.joins(queries), self.units, self.byte_cores)

    def _budgeted(self, name: str) -> list[str]:
        """What a query takes of the budget of its session, and what all take."""
        plans = self._together().plans
        return [] if plans is None else [budget_text(plans, name)]

    def _budget_json(self, name: str) -> dict[str, Any] | None:
        plans = self._together().plans
        return None if plans is None else budget_json(plans, name)

    def _joining(self, name: str) -> list[str]:
        """The queries that start with the same join as one, and so run it together."""
        own = next(each for each in self.pipelines() if any(query.name == name for query in each.queries))
        starts = [self.query(query.name) for query in own.queries]
        running = [Running(planned.forms.written, planned.execution, Distribution()) for planned in starts]
        for company in companies(running):
            if name in company.names:
                return [other for other in company.names if other != name]
        return []

    def _spread(self, written: Query, parallelism: Slots | None) -> tuple[Distribution, Slots]:
        """How rows of a query are spread, beside those of the queries that run with it."""
        known = self._known(written.name)
        committed = None if known is None else max(len(layout.slots) for layout in known.layouts.values())
        if self.slots is not None:
            slots = Slots(self.slots, Origin.ASKED, committed)
        elif committed is not None:
            slots = Slots(committed, Origin.CHECKPOINT, committed)
        else:
            slots = parallelism or machine_slots()
        if known is not None and slots.count == committed:
            return restored(Workload((written,)), known.layouts, slots.count)[written.name], slots
        workload = next(each for each in self.pipelines() if written in each.queries)
        return choose_together(workload, slots.count)[written.name], slots

    def _known(self, name: str) -> KnownPipeline | None:
        """The pipeline of the checkpoint that a query runs in, if it has a commit."""
        if self.checkpoint is None:
            return None
        try:
            known = known_pipelines(self.checkpoint)
        except OSError as error:
            raise LocationError(f"the checkpoint {self.checkpoint} cannot be used: {error}") from error
        return next((each for each in known if each.is_committed and name in each.layouts), None)


def _required(together: _Together) -> Cost:
    """What all queries of a session with a strict budget take. Pinned plans alone are not refused."""
    plans = together.plans
    if plans is None:
        return NOTHING
    if not plans.joint.fits and not all(each.is_pinned for each in together.queries):
        raise NoQualifiedPlanError(f"query {plans.joint.breaks[0].company}: {plans.broken}")
    return plans.joint.total


def machine_slots() -> Slots:
    """A slot for each core that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return Slots(len(os.sched_getaffinity(0)), Origin.MACHINE)
    return Slots(os.cpu_count() or 1, Origin.MACHINE)
