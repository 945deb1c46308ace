"""The loop of one query: after each batch, is another plan worth it?

`step` is a function of a state and an observation; `AdaptiveLoop` keeps the state between batches. Three stages, as in 001
(section 4.4): *monitoring* averages over the latest batches, *analysis* asks the optimiser when the timing says so, and
*actuation* is a proposal. Keeping the plan is always allowed, and noise must not cause a change:

- what differs by chance is no drift (`monitor.CHANCE`);
- another plan must be worth it, and pay for the migration (`anabranch.adapt.arbiter`). Things are expected to stay as they
  are for as long as they have been so, and for `LIFE_WINDOWS` windows at least;
- while a migration is under way, no other is proposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.adapt.arbiter import Change
from anabranch.adapt.library import PlanLibrary
from anabranch.adapt.monitor import Monitor, Observation, Signal, observe
from anabranch.adapt.scope import Scope, aliases_in, best_part, smallest_part, with_part
from anabranch.adapt.timing import DataDriven, Timing
from anabranch.control.loop import Observed, Proposal, Remark, Wish
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

LIFE_WINDOWS = 2.0
"""For so many windows at least things are expected to stay as they have become."""


@dataclass(frozen=True)
class Settings:
    """How a query adapts."""

    timing: Timing = field(default_factory=DataDriven)
    window: int = 8
    """Averages are over so many batches."""
    scope: Scope = Scope.WHOLE
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
    why, drifted = _due(known, state)
    if why is None:
        return _effect(known, state, execution, observation)
    if drifted:
        monitor = monitor.latest(known.settings.timing.recent)
        state = replace(state, monitor=monitor, steady_since_us=monitor.observations[0].seen_us)
    found, library = _analyse(known, state, execution.plan, drifted)
    is_sure = state.seen > SURE_BATCHES
    decided = replace(state, reference=monitor.signals, since_last=0, library=library, is_sure=is_sure)
    said = _actuate(known, decided, execution.plan, found, why)
    again_at_s = said.details.get("worth_after_s") if isinstance(said, Remark) else None
    decided = replace(decided, again_at_s=again_at_s)
    if isinstance(said, Proposal):
        decided = replace(decided, promise=Promise(said.action.plan, found.cost.cpu, monitor.cores))
    return decided, said


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
    now = state.monitor.latest(EFFECT_BATCHES - 1).cores
    text = (
        f"{show(promise.plan, known.graph)} needs {now:.3g} cores, {promise.cpu:.3g} were predicted; "
        f"it was {promise.before:.3g} when it was proposed"
    )
    details = {"cpu": now, "cpu_predicted": promise.cpu, "cpu_before": promise.before}
    return replace(state, promise=None), Remark("effect", text, details)


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
    monitor, graph = state.monitor, known.graph
    facts = Measured(plan, monitor.batches, monitor.span_s, known.otherwise)
    units = refined(CostModel(facts.graph(graph), known.units), plan, monitor.batches, monitor.span_s)
    model = CostModel(facts.graph(graph), units)
    now, library = model.cost(plan), state.library
    filed = library.find(model.graph) if known.settings.uses_library else None
    if filed is not None:
        cost = model.cost(filed)
        if cost.within(known.bounds.cpu, known.bounds.memory):
            return Found(filed, cost, now, model, "it was the best when statistics were like these", True), library
    part = smallest_part(plan, aliases_in(drifted, graph)) if known.settings.scope is Scope.PART and drifted else None
    if part is not None and part.aliases != plan.aliases:
        changed = with_part(plan, part, best_part(part, model.graph, units))
        cost = model.cost(changed)
        if cost.within(known.bounds.cpu, known.bounds.memory):
            return Found(changed, cost, now, model, f"it joins {part} better", False), library
    decision = decide(graph, facts, units, known.bounds)
    if known.settings.uses_library:
        library = library.add(model.graph, decision.plan)
    return Found(decision.plan, decision.cost, now, model, decision.reason, False), library


def _actuate(known: Knowledge, state: LoopState, plan: Plan, found: Found, why: str) -> Proposal | Remark:
    """A proposal, if the plan found is worth it."""
    graph, settings = known.graph, known.settings
    details: dict[str, Any] = {
        "why": why, "cpu": found.cost.cpu, "memory": found.cost.memory, "cpu_before": found.now.cpu,
        "memory_before": found.now.memory, "rates": {s.name: s.rate for s in found.model.graph.streams},
        "measured_batches": len(state.monitor.batches), "from_library": found.from_library, "from": show(plan, graph),
    }  # fmt: skip
    qualifies = found.cost.within(known.bounds.cpu, known.bounds.memory)
    becomes_qualified = qualifies and not found.now.within(known.bounds.cpu, known.bounds.memory)
    change = Change(found.now.cpu, found.cost.cpu, becomes_qualified)
    if found.plan == plan or not change.is_better:
        text = f"{why}; no plan is better by enough: this one needs {found.now.cpu:.3g} cores, the best {found.cost.cpu:.3g}"
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
        f"{why}; {found.cost.cpu:.3g} cores instead of {found.now.cpu:.3g}, {show_bytes(found.cost.memory)} instead of "
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
