"""The loop of one query: after each batch, is another plan worth it?

`step` is a function of a state and an observation; `AdaptiveLoop` keeps the state between batches. Three stages, as in 001
(section 4.4): *monitoring* averages over the latest batches, *analysis* asks the optimiser when the timing says so, and
*actuation* is a proposal. Keeping the plan is always allowed, and noise must not cause a change:

- what differs by chance is no drift (`monitor.CHANCE`);
- another plan must be worth it, and pay for the migration (`anabranch.adapt.arbiter`). Things are expected to stay as they
  are for as long as they have been so, and for `LIFE_WINDOWS` windows at least;
- while a migration is under way, no other is proposed.

Under overload the question is another one: not which plan needs the least CPU, but which gives most results with what there
is (`anabranch.adapt.limited_plans`). Who limits lookups says how much that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.adapt.arbiter import Change
from anabranch.adapt.library import PlanLibrary
from anabranch.adapt.limited_plans import MORE, best_given, feeding, given_by, needed_for
from anabranch.adapt.monitor import Monitor, Observation, Signal, observe
from anabranch.adapt.scope import Scope, aliases_in, best_part, smallest_part, with_part
from anabranch.adapt.timing import DataDriven, Timing
from anabranch.control.loop import Observed, Proposal, Remark, Wish
from anabranch.control.pace import Took
from anabranch.control.records import BlockFigures
from anabranch.cost.facts import EMPTY, HORIZON_S, Given, Measured
from anabranch.cost.model import Cost, CostModel, UnitCosts
from anabranch.cost.refine import refined
from anabranch.migrate.estimate import Estimate, Estimates, estimate, parallel_duration_s, with_filtering
from anabranch.optimize.planner import Bounds, decide, show_bytes
from anabranch.plan.actions import Action, ChangePlan, MoveSelects
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, show
from anabranch.plan.migration import Execution, Strategy

FIRST_BATCHES = 4
"""So many batches with rows are seen before a plan is first decided on by what was measured: a bad one costs too much."""

SURE_BATCHES = 8
"""And after so many it is decided on once more, by figures that are more certain and windows that are fuller."""

EFFECT_BATCHES = 5
"""After so many batches under a plan it is told what it needs, beside what was predicted."""

LIMITED_BATCHES = 8
"""While lookups are limited, it is asked every so many batches whether another plan gives more."""

LIFE_WINDOWS = 2.0
"""For so many windows at least things are expected to stay as they have become."""


@dataclass(frozen=True)
class Settings:
    """How a query adapts."""

    timing: Timing = field(default_factory=DataDriven)
    window: int = 8
    """Averages are over so many batches."""
    scope: Scope = Scope.WHOLE_PLAN
    pause_s: float = 0.5
    """No batch may wait longer than this for a migration."""
    strategy: Strategy | None = None
    """Always this one; None: the cheapest within the pause."""
    uses_library: bool = True


@dataclass(frozen=True)
class Knowledge:
    """What does not change while a query runs."""

    graph: JoinGraph
    units: UnitCosts
    bounds: Bounds = field(default_factory=Bounds)
    otherwise: Given = EMPTY
    slots: int = 1
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class LoopState:
    """What the loop remembers."""

    monitor: Monitor = field(default_factory=Monitor)
    reference: Mapping[str, Signal] | None = None
    """The signals that the plan was last decided on; None before the first time."""
    since_last: int = 0
    """Batches since then."""
    seen: int = 0
    """Batches with rows, in all."""
    is_sure: bool = False
    """Whether the plan was decided on after `SURE_BATCHES`."""
    steady_since_us: int | None = None
    """The event time since when nothing has drifted."""
    library: PlanLibrary = field(default_factory=PlanLibrary)
    promise: Promise | None = None
    """What the last proposal said, until it is clear whether it came true."""
    limited_for: int = 0
    """Batches since lookups are limited; 0 if they are not."""
    again_at_s: float | None = None
    """When things have been as they are for so long, a plan that was not worth its migration would be."""


@dataclass(frozen=True)
class Promise:
    """What a plan was proposed for."""

    plan: Plan
    cpu: float
    """Cores that it would need."""
    before: float
    """Cores that were measured under the plan before it."""
    rows_per_s: float = 0.0
    """What streams brought then."""
    old: Plan | None = None
    """The plan before it, if it is one of the same form."""
    batches: int = 0
    """Batches that ran under it so far."""


@dataclass(frozen=True)
class Found:
    """What an analysis came to."""

    plan: Plan
    cost: Cost
    now: Cost
    model: CostModel
    reason: str
    from_library: bool
    measured: float
    """Cores that were measured under the plan that runs."""

    @property
    def on_measured_scale(self) -> tuple[float, float]:
        """The cores that the plan found would need, and those that the plan that runs needs, both as tasks report them. The
        model also prices what they do not report (writing state, reading rows), and no plan changes that: so the
        difference of two plans is the model's, and what it is taken from is measured."""
        return max(0.0, self.measured + self.cost.cpu - self.now.cpu), self.measured


def step(
    known: Knowledge, state: LoopState, execution: Execution, observation: Observation
) -> tuple[LoopState, Proposal | Remark | None]:
    """Takes note of a batch, and says what to do."""
    monitor = Monitor(known.settings.window, state.monitor.observations).after(observation)
    more = 1 if observation.rows else 0
    steady_since_us = observation.seen_us if state.steady_since_us is None else state.steady_since_us
    state = replace(
        state, monitor=monitor, since_last=state.since_last + more, seen=state.seen + more, steady_since_us=steady_since_us
    )
    if execution.migration is not None or monitor.span_s <= 0:
        return state, None
    if observation.limited_cores is not None:
        return _under_limits(known, state, execution.plan, observation.limited_cores)
    if state.limited_for:
        # What was decided on when there was too little CPU is decided on again.
        state = replace(state, limited_for=0, reference=None, is_sure=False)
    why, drifted = _due(known, state)
    if why is None:
        return _effect(known, state, execution, observation)
    if drifted:
        monitor = monitor.latest(known.settings.timing.recent)
        state = replace(state, monitor=monitor, steady_since_us=monitor.observations[0].seen_us)
    was, now = state.reference or {}, monitor.signals
    drift = {name: (was[name].mean, now[name].mean) for name in drifted if name in was and name in now}
    found, library = _analyse(known, state, execution.plan, drifted)
    is_sure = state.seen > SURE_BATCHES
    decided = replace(state, reference=monitor.signals, since_last=0, library=library, is_sure=is_sure)
    said = _actuate(known, decided, execution.plan, found, why, drift)
    again_at_s = said.details.get("worth_after_s") if isinstance(said, Remark) else None
    decided = replace(decided, again_at_s=again_at_s)
    if isinstance(said, Proposal):
        cpu, before = found.on_measured_scale
        decided = replace(decided, promise=Promise(said.action.plan, cpu, before, monitor.rows_per_s, execution.plan))
    return decided, said


def _under_limits(
    known: Knowledge, state: LoopState, plan: Plan, cores: float
) -> tuple[LoopState, Proposal | Remark | None]:  # fmt: skip
    """While lookups are limited: the plan that gives most results, if it gives enough more, or all with enough less CPU, and
    that pays for the way."""
    state = replace(state, limited_for=state.limited_for + 1, promise=None)
    if state.limited_for % LIMITED_BATCHES != min(FIRST_BATCHES, known.settings.window):
        return state, None
    model, graph = _model(known, plan, state.monitor), known.graph
    facts = Measured(plan, state.monitor.batches, state.monitor.span_s, known.otherwise)
    front = decide(graph, facts, model.units, known.bounds).front
    now = given_by(model, plan, plan, cores)
    found = best_given(model, [plan, *(p for p, c in front if c.memory <= known.bounds.memory)], plan, cores)
    # What the plan that runs would need for as many results, beside what there is; for all of them, beside what that needs.
    change = Change(needed_for(model, plan, found.results_per_s), feeding(model, plan) + cores, becomes_qualified=False)
    if found.is_exact:
        change = Change(model.cost(plan).cpu, model.cost(found.plan).cpu, becomes_qualified=False)
    is_enough = found.results_per_s > MORE * now.results_per_s or (found.is_exact and change.is_better)
    if found.plan == plan or not is_enough:
        return state, None
    batch_s = state.monitor.span_s / max(1, len(state.monitor.batches))
    way = estimate(model, graph, plan, found.plan, known.slots, batch_s, known.settings.pause_s)
    cost_s = way.possible[Strategy.MOVING_STATE].total_cpu_s
    life_s, more = expected_life_s(known, state), found.results_per_s - now.results_per_s
    details = {
        "why": "there is too little CPU", "from": show(plan, graph), "results_per_s": found.results_per_s,
        "results_per_s_before": now.results_per_s, "completeness": found.completeness, "limited_cores": cores,
        "expected_life_s": life_s, "migration_cpu_s": cost_s,
    }  # fmt: skip
    gives = f"{show(found.plan, graph)} gives {found.completeness * 100:.0f} % of the results with the CPU there is"
    text = f"there is too little CPU: {gives}, {show(plan, graph)} {now.completeness * 100:.0f} %"
    if not change.pays(cost_s, life_s):
        text += f"; getting there costs {cost_s:.3g} s of CPU, which {more:.3g} results/s more do not pay for"
        return state, Remark("kept", text, details)
    return state, Proposal(ChangePlan(found.plan, Strategy.MOVING_STATE), text, details)


def _effect(
    known: Knowledge, state: LoopState, execution: Execution, observation: Observation
) -> tuple[LoopState, Remark | None]:
    """Whether the last proposal has come true: told once, when enough batches ran under its plan."""
    promise = state.promise
    if promise is None or execution.plan != promise.plan or not observation.rows:
        return state, None
    promise = replace(promise, batches=promise.batches + 1)
    if promise.batches < EFFECT_BATCHES:
        return replace(state, promise=promise), None
    since = state.monitor.latest(EFFECT_BATCHES - 1)
    text = (
        f"{show(promise.plan, known.graph)} needs {since.cores:.3g} cores, {promise.cpu:.3g} were predicted; "
        f"it was {promise.before:.3g} when it was proposed"
    )
    details = {
        "cpu": since.cores, "cpu_predicted": promise.cpu, "cpu_before": promise.before,
        "rows_per_s": since.rows_per_s, "rows_per_s_before": promise.rows_per_s,
    }  # fmt: skip
    if promise.old is not None:
        # Streams go on changing: what the plan itself saves is told by what the old one would take now.
        model = _model(known, promise.plan, since)
        old = since.cores + model.cost(promise.old).cpu - model.cost(promise.plan).cpu
        details |= {"cpu_old_plan": old}
        text += f"; by now {show(promise.old, known.graph)} would need {old:.3g}"
    return replace(state, promise=None), Remark("effect", text, details)


def _model(known: Knowledge, plan: Plan, monitor: Monitor) -> CostModel:
    """What plans cost by what was measured under one of them."""
    graph = Measured(plan, monitor.batches, monitor.span_s, known.otherwise).graph(known.graph)
    return CostModel(graph, refined(CostModel(graph, known.units), plan, monitor.batches, monitor.span_s))


def _due(known: Knowledge, state: LoopState) -> tuple[str | None, list[str]]:
    """Why to think about the plan now, and the signals that have drifted."""
    measured = max(0, len(state.monitor.observations) - 1)
    if state.reference is None or (state.seen > SURE_BATCHES and not state.is_sure):
        return (f"{measured} batches are measured" if measured >= min(FIRST_BATCHES, known.settings.window) else None), []
    timing = known.settings.timing
    why = timing.due(state.monitor, state.reference, state.since_last)
    if why is None:
        if state.again_at_s is not None and steady_s(state) >= state.again_at_s:
            return f"nothing has changed for {steady_s(state):.3g} s", []
        return None, []
    return why, state.monitor.latest(timing.recent).drifted(state.reference, timing.threshold)


def _analyse(known: Knowledge, state: LoopState, plan: Plan, drifted: list[str]) -> tuple[Found, PlanLibrary]:
    """The best plan there is for what was measured."""
    monitor, graph, model = state.monitor, known.graph, _model(known, plan, state.monitor)
    facts, units = Measured(plan, monitor.batches, monitor.span_s, known.otherwise), model.units
    now, library = model.cost(plan), state.library
    filed = library.find(model.graph) if known.settings.uses_library else None
    if filed is not None:
        cost = model.cost(filed)
        if cost.within(known.bounds.cpu, known.bounds.memory):
            reason = "it was the best when statistics were like these"
            return Found(filed, cost, now, model, reason, True, monitor.cores), library
    part = smallest_part(plan, aliases_in(drifted, graph)) if known.settings.scope is Scope.PART and drifted else None
    if part is not None and part.aliases != plan.aliases:
        changed = with_part(plan, part, best_part(part, model.graph, units))
        cost = model.cost(changed)
        if cost.within(known.bounds.cpu, known.bounds.memory):
            return Found(changed, cost, now, model, f"it joins {part} better", False, monitor.cores), library
    decision = decide(graph, facts, units, known.bounds)
    if known.settings.uses_library:
        library = library.add(model.graph, decision.plan)
    return Found(decision.plan, decision.cost, now, model, decision.reason, False, monitor.cores), library


def _actuate(
    known: Knowledge, state: LoopState, plan: Plan, found: Found, why: str, drift: Mapping[str, tuple[float, float]]
) -> Proposal | Remark:
    """A proposal, if the plan found is worth it."""
    graph, settings = known.graph, known.settings
    cpu, cpu_before = found.on_measured_scale
    details: dict[str, Any] = {
        "why": why, "drifted": drift, "cpu": cpu, "memory": found.cost.memory, "cpu_before": cpu_before,
        "memory_before": found.now.memory, "rates": {s.name: s.rate for s in found.model.graph.streams},
        "measured_batches": len(state.monitor.batches), "from_library": found.from_library, "from": show(plan, graph),
    }  # fmt: skip
    qualifies = found.cost.within(known.bounds.cpu, known.bounds.memory)
    becomes_qualified = qualifies and not found.now.within(known.bounds.cpu, known.bounds.memory)
    change = Change(found.now.cpu, found.cost.cpu, becomes_qualified)
    if found.plan == plan or not change.is_better:
        text = f"{why}; no plan is better by enough: this one needs {cpu_before:.3g} cores, the best {cpu:.3g}"
        return Remark("kept", text, details)
    batch_s = state.monitor.span_s / max(1, len(state.monitor.batches))
    estimates = estimate(found.model, graph, plan, found.plan, known.slots, batch_s, settings.pause_s)
    chosen = _chosen(estimates, settings)
    life_s = expected_life_s(known, state)
    gain_s = change.gain_s(life_s)
    details |= {
        "estimates": {s.value: _figures(e) for s, e in estimates.possible.items()}, "expected_life_s": life_s,
        "refused": {s.value: reason for s, reason in estimates.refused.items()}, "gain_cpu_s": gain_s,
    }  # fmt: skip
    if not change.pays(chosen.total_cpu_s, life_s):
        text = (
            f"{why}; {show(found.plan, graph)} would save {gain_s:.3g} s of CPU in the {life_s:.3g} s it may be good for, "
            f"and getting there costs {chosen.total_cpu_s:.3g}"
        )
        worth_after_s = change.pays_after_s(chosen.total_cpu_s)
        return Remark("kept", text, details if worth_after_s is None else details | {"worth_after_s": worth_after_s})
    text = (
        f"{why}; {cpu:.3g} cores instead of {cpu_before:.3g}, {show_bytes(found.cost.memory)} instead of "
        f"{show_bytes(found.now.memory)}; {found.reason}"
    )
    return Proposal(ChangePlan(found.plan, chosen.strategy, round(settings.pause_s * 1e6)), text, details)


def _chosen(estimates: Estimates, settings: Settings) -> Estimate:
    wanted = settings.strategy
    return estimates.possible[wanted] if wanted in estimates.possible else estimates.best(settings.pause_s)


def _figures(e: Estimate) -> dict[str, float]:
    return {"cpu_s": e.cpu_s, "pause_s": e.pause_s, "duration_s": e.duration_s, "delay_cpu_s": e.delay_cpu_s}


def expected_life_s(known: Knowledge, state: LoopState) -> float:
    """What has lasted for long will last for as long again."""
    return max(steady_s(state), LIFE_WINDOWS * min(HORIZON_S, parallel_duration_s(known.graph)))


def steady_s(state: LoopState) -> float:
    """For how long nothing has drifted."""
    assert state.steady_since_us is not None
    return (state.monitor.observations[-1].seen_us - state.steady_since_us) / 1e6


class AdaptiveLoop:
    """The loop with its state."""

    def __init__(self, known: Knowledge) -> None:
        self.known, self.state = known, LoopState()

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        """Takes note of a batch, and says what to do."""
        observation = observe(observed)
        if observation is None:
            return None
        self.state, said = step(self.known, self.state, execution, observation)
        return said

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        """The action that a user asks for: by the cheapest strategy within a pause unless one is given."""
        monitor, known, pause_s = self.state.monitor, self.known, wish.pause_us / 1e6
        facts = Measured(execution.plan, monitor.batches, monitor.span_s, known.otherwise)
        model = CostModel(facts.graph(known.graph), known.units)
        batch_s = monitor.span_s / max(1, len(monitor.batches)) or known.units.batch_s
        found = estimate(model, known.graph, execution.plan, wish.plan, known.slots, batch_s, pause_s)
        if wish.selects is not None:
            found = with_filtering(found, model, known.graph, execution, wish.plan, wish.selects, known.slots)
        details = {
            "estimates": {s.value: _figures(e) for s, e in found.possible.items()},
            "from": show(execution.plan, known.graph),
        }
        way = wish.strategy or found.best(pause_s).strategy
        action: Action = ChangePlan(wish.plan, way, wish.pause_us)
        if wish.selects is not None:
            action = MoveSelects(wish.selects, wish.plan, way, wish.pause_us)
        return Proposal(action, "by request", details)

    def took(self, observed: Observed) -> Mapping[str, Took]:
        """Nothing: where blocks run is not its business."""
        return {}

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        """Nothing, as `took`."""
        return {}
