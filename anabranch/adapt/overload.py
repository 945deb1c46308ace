"""The loop of load: after each batch, does the pipeline keep up, and if not, which lookups get the CPU?

`step` is a function of a state and a load; `OverloadLoop` keeps the state between batches. Three stages, as in 001 (section
4.4): *monitoring* measures batches (`anabranch.adapt.load`), *analysis* works out what the next one takes and which
allowances fit (`anabranch.adapt.forecast`), *actuation* sets them. It runs after a batch was delivered and takes
milliseconds, so it needs no thread of its own. The rules:

- The *load* is what a batch takes of the time in which its rows arrived, or of the CPU that a user grants. Above 1 the
  pipeline falls behind.
- **Falling behind is allowed while results stay fresh.** FRESHNESS beyond the window is slack: with RANGE 10 MINUTES
  FRESHNESS 12 MINUTES the pipeline may be two minutes behind before a result is too old. Nothing is limited unless the lag
  would go beyond that, with the next batch as it is expected. So a burst that is shorter than the slack loses nothing.
- What is limited are lookups that give results, where they give least for their CPU; each slot by itself.
- Limits end when the load without them is below `LIFT`: lower than where they begin, so that a load that does not change
  does not have limits come and go. Between `LIFT` and 1 the slack keeps them apart: limits end when the pipeline has caught
  up, and begin when the slack is used again. Where it does not catch up, they end when the load was below 1 for long.

Where lookups are too small a part of a batch, limiting them is no use: that is told, once for each overload, and nothing is
limited. The first batches of a run, in which kernels are compiled and the JVM is cold, are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from anabranch.adapt.forecast import (
    Allowances,
    Capacity,
    Forecast,
    allocate,
    costs_after,
    forecast,
    in_all,
    kept_share,
    lookup_cores,
)
from anabranch.adapt.load import Before, Sample, Way, measured
from anabranch.adapt.overload_words import (
    cannot_help,
    failing,
    lifted,
    limiting,
    limiting_details,
    shedding,
    shedding_ends,
)
from anabranch.control.loop import Allowing, Limiter, Load, LoadRemark, Remark
from anabranch.control.records import Limit
from anabranch.errors import OverloadError
from anabranch.overload.by_cpu import Divide, by_results_per_cpu, uniform
from anabranch.plan.actions import SetAllowances, ShedRows
from anabranch.plan.overload import Algorithm, Clock, Overload, Policy
from anabranch.plan.query import FOREVER_US, Query, Stream

FIRST_BATCHES = 3
"""So many batches with rows of a run are not judged: kernels are compiled in them, workers start, the JVM is cold."""

LATEST_BATCHES = 3
"""Averages are over so many batches: one slow batch is no overload, and a load that falls is seen within as many."""

LIFT = 0.9
"""Limits end when the load without them is no more than this; they begin above 1."""

FITTING_BATCHES = 10
"""And after so many batches in a row whose load without them was below 1, if the pipeline has caught up."""

CAUGHT_UP = 0.2
"""It has if it is behind by no more than this share of the slack. Limits begin at `SLACK_USED` of it: before they do, a load
that is a little above what was measured has used what lies between."""

STEADY_BATCHES = 50
"""And after so many though it has not, or there is no slack: the source does not hand out more, and exact batches do fit."""

TARGET = 0.9
"""What a batch under limits may take of what there is: the rest is for what was not foreseen, and to catch up."""

CATCH_UP = 0.6
"""And if the pipeline is further behind than results stay fresh."""

SLACK_USED = 0.8
"""Limits begin when the lag would be more than this share of the slack: what is expected may be too little."""

GRACE_BATCHES = 2
"""A pipeline without FRESHNESS may be so many batches behind."""

CALM_BATCHES = 5
"""After so many batches with a load of `LIFT` or less limits end although the pipeline is behind: the source lags."""

LASTING_BATCHES = 10
"""An overload is failed for when it has lasted for so many batches."""

LEAST_SAVED = 0.1
"""Lookups that are a smaller share of what a batch takes are not worth limiting."""

TOLD = 0.1
"""What is told of limits is told again when the completeness that is expected has changed by so much."""

LEAST_KEPT = 0.02
"""So many rows are kept at least where rows are shed."""

DIVISIONS: Mapping[Algorithm, Divide] = {Algorithm.PATHS: by_results_per_cpu, Algorithm.UNIFORM: uniform}


@dataclass(frozen=True)
class OverloadKnowledge:
    """What does not change while a pipeline runs."""

    overload: Overload
    queries: tuple[str, ...]
    streams: tuple[str, ...]
    interval_s: float | None
    """Between triggers; None: the next batch begins when the last is over."""
    capacity: Capacity
    slack_s: float | None
    """By how much the pipeline may be behind while all results are fresh; None: no query asks for fresh ones."""
    pinned: Mapping[Way, float]

    @property
    def has_fixed_clock(self) -> bool:
        """Whether results become stale as the driver's clock goes on."""
        return self.overload.clock is Clock.WALL and self.slack_s is not None


@dataclass(frozen=True)
class OverloadState:
    """What the loop remembers."""

    before: Before | None = None
    seen: int = 0
    """Batches with rows, in this run."""
    samples: tuple[Sample, ...] = ()
    """The latest of them."""
    lag_s: float = 0.0
    """How far event times are behind the clock when the next batch is planned."""
    least_lag_s: float | None = None
    """The least that it was: what the source takes by itself."""
    debt_s: float = 0.0
    """How far behind a machine would be that has the CPU which a user grants."""
    allowances: Allowances = field(default_factory=dict)
    kept: float = 1.0
    """The share of rows that is not shed."""
    overloaded: int = 0
    """Batches in a row that were too much."""
    calm: int = 0
    """Batches in a row with a load of `LIFT` or less."""
    fitting: int = 0
    """Batches in a row that would have fitted without limits."""
    stretch: float = 1.0
    """How much longer than their CPU tasks ran when that was last told."""
    costs: Mapping[Way, float] = field(default_factory=dict)
    """What a lookup of each input costs (`anabranch.adapt.forecast.costs_after`)."""
    cores: Mapping[str, float] = field(default_factory=dict)
    """By query, what lookups that give results may take while there is too little; nothing if there is enough."""
    has_told: bool = False
    """Whether it was told that limits are of no use in this overload."""
    told: Mapping[str, float] = field(default_factory=dict)
    """The completeness of each query that was last told."""

    @property
    def is_limited(self) -> bool:
        return bool(self.allowances) or self.kept < 1


@dataclass(frozen=True)
class Standing:
    """Where a pipeline stands: what is expected of the next batch, and how far it is behind."""

    expected: Forecast
    load: float
    """With nothing limited."""
    behind_s: float
    slack_s: float
    grace_s: float

    @property
    def is_too_much(self) -> bool:
        """Whether the lag would go beyond the slack if the next batch were exact."""
        would_be_s = self.behind_s + (self.load - 1) * self.expected.arrival_s
        return self.load > 1 and would_be_s > SLACK_USED * self.slack_s

    @property
    def is_late(self) -> bool:
        """Whether results are not fresh any more."""
        return self.behind_s > max(self.slack_s, self.grace_s)

    @property
    def has_caught_up(self) -> bool:
        """Whether the slack is there again; without any, it cannot tell."""
        return self.slack_s > 0 and self.behind_s <= CAUGHT_UP * self.slack_s

    @property
    def target(self) -> float:
        return CATCH_UP if self.is_late else TARGET


Said = list[Allowing | LoadRemark]
T = TypeVar("T")


def step(known: OverloadKnowledge, state: OverloadState, load: Load, now_s: float) -> tuple[OverloadState, Said]:
    """Takes note of a batch, and says what to do."""
    sample, before = measured(load, state.before, known.interval_s, known.capacity.is_live)
    state = replace(state, before=before)
    if sample is None:
        return state, []
    state = _noted(known, state, sample, now_s)
    if state.seen <= FIRST_BATCHES:
        return replace(state, samples=(), debt_s=0.0), []
    standing = _standing(known, state, now_s)
    overloaded = state.overloaded + 1 if standing.is_too_much else 0
    calm = state.calm + 1 if standing.load <= LIFT else 0
    fitting = state.fitting + 1 if standing.load < 1 else 0
    has_told = state.has_told and standing.load > LIFT
    state = replace(state, overloaded=overloaded, calm=calm, fitting=fitting, has_told=has_told)
    if known.overload.policy is Policy.FAIL:
        if overloaded >= LASTING_BATCHES:
            raise OverloadError(failing(standing.load, standing.behind_s, overloaded, standing.slack_s))
        return state, []
    if state.is_limited and _is_over(state, standing):
        return _lift(known, state, standing)
    if not state.is_limited and not standing.is_too_much:
        return replace(state, cores={}), []
    if known.overload.policy is Policy.SHED:
        return _shed(known, state, standing, [each.full_s for each in standing.expected.slots.values()])
    state, said = _limit(known, state, standing)
    return replace(state, cores=lookup_cores(standing.expected, state.allowances, standing.target)), said


def _is_over(state: OverloadState, standing: Standing) -> bool:
    """Whether all rows may look up again."""
    if standing.load <= LIFT:
        return state.calm >= CALM_BATCHES or not standing.is_late
    if standing.has_caught_up:
        return state.fitting >= FITTING_BATCHES
    return state.fitting >= STEADY_BATCHES and not standing.is_late


# -- monitoring ------------------------------------------------------------------------------------------------------


def _noted(known: OverloadKnowledge, state: OverloadState, sample: Sample, now_s: float) -> OverloadState:
    lag_s = max(now_s, sample.planned_s + (known.interval_s or 0.0)) - sample.seen_s
    if sample.backlog_rows is not None:
        lag_s = max(lag_s, sample.backlog_rows / max(sample.rows_per_s, 1e-9))
    least_s = lag_s if state.least_lag_s is None else min(lag_s, state.least_lag_s)
    debt_s = state.debt_s
    if known.capacity.cpu is not None:
        expected = forecast([sample], sample.arrival_s, known.capacity, known.pinned, state.stretch)
        took_s = expected.other_s + sum(slot.cpu_s for slot in sample.slots.values())
        debt_s = max(0.0, debt_s + took_s / known.capacity.cpu - sample.arrival_s)
    # Batches of which another share of rows was shed tell nothing of this one.
    alike = [each for each in state.samples if each.kept == sample.kept]
    samples = (*alike, sample)[-LATEST_BATCHES:]
    return replace(
        state, seen=state.seen + 1, samples=samples, lag_s=lag_s, least_lag_s=least_s, debt_s=debt_s,
        stretch=sample.stretch or state.stretch, costs=costs_after(state.costs, sample),
    )  # fmt: skip


def _standing(known: OverloadKnowledge, state: OverloadState, now_s: float) -> Standing:
    latest, samples = state.samples[-1], state.samples
    arrival_s = sum(each.arrival_s for each in samples) / len(samples)
    if known.capacity.is_live:
        gap_s = max(known.interval_s or 0.0, now_s - latest.planned_s)
        shown = sum(each.arrival_s for each in samples) / sum(each.gap_s for each in samples)
        arrival_s = max(known.interval_s or 0.0, gap_s * min(1.0, shown))
    expected = forecast(samples, arrival_s, known.capacity, known.pinned, state.stretch, state.costs)
    least_s = state.least_lag_s or 0.0
    behind_s = state.debt_s
    if known.capacity.is_live:
        behind_s = max(behind_s, state.lag_s - least_s)
    grace_s = GRACE_BATCHES * (known.interval_s or latest.arrival_s)
    slack_s = known.slack_s if known.slack_s is not None else grace_s
    if known.has_fixed_clock:
        slack_s = max(0.0, slack_s - least_s)
    return Standing(expected, expected.exact_load, behind_s, slack_s, grace_s)


# -- actuation -------------------------------------------------------------------------------------------------------


def _limit(known: OverloadKnowledge, state: OverloadState, standing: Standing) -> tuple[OverloadState, Said]:
    """Allowances that fit; where none do, rows are shed if that is allowed, or it is told that nothing helps."""
    expected, pilot = standing.expected, known.overload.pilot
    said: Said = []
    least = expected.least_load(pilot)
    if known.overload.may_shed and (least > standing.target or state.kept < 1):
        state, said = _shed(known, state, standing, [each.least_s(pilot) for each in expected.slots.values()])
    if not state.allowances and least > (1 - LEAST_SAVED) * expected.full_load:
        return _of_no_use(known, state, standing, least, said)
    if least > 1 and not known.overload.may_shed:
        state, said = _of_no_use(known, state, standing, least, said)
    found = allocate(expected, standing.target, DIVISIONS[known.overload.algorithm], pilot)
    if not found and not state.allowances:
        return state, said
    held, then = in_all(expected.under(state.allowances)), in_all(expected.under(found))
    fits = expected.load_of(expected.under(state.allowances)) <= standing.target * (1 + known.overload.epsilon)
    if state.allowances and fits and then.all_results <= (1 + known.overload.p) * held.all_results:
        return state, said
    told: dict[str, float] = {}
    for name in _limited(found, state.allowances):
        told[name] = then.completeness(name)
        is_news = name not in state.told or abs(state.told[name] - told[name]) > TOLD
        details = limiting_details(name, standing.load, standing.behind_s, standing.slack_s, expected, found, told[name])
        text = limiting(details) if is_news else ""
        said.append(Allowing(_action(known, name, found), text, details))
        told[name] = told[name] if is_news else state.told[name]
    return replace(state, allowances=found, told={**state.told, **told}), said


def _of_no_use(
    known: OverloadKnowledge, state: OverloadState, standing: Standing, least: float, said: Said
) -> tuple[OverloadState, Said]:
    """Tells once that limiting lookups does not help, or not enough."""
    if state.has_told:
        return state, said
    text = cannot_help(standing.load, least, known.overload.may_shed)
    details = {"load": standing.load, "least_load": least, "behind_s": standing.behind_s}
    remarks = [LoadRemark(name, Remark("cannot help", text, details)) for name in known.queries]
    return replace(state, has_told=True), [*said, *remarks]


def _shed(
    known: OverloadKnowledge, state: OverloadState, standing: Standing, slots_s: Sequence[float]
) -> tuple[OverloadState, Said]:
    """The share of rows with which tasks that take so much would fit."""
    share = state.kept * kept_share(standing.expected, standing.target, slots_s)
    kept = min(1.0, max(LEAST_KEPT, share))
    if kept == state.kept or (kept < 1 and abs(kept - state.kept) <= known.overload.epsilon * state.kept):
        return state, []
    is_news = state.kept == 1 or kept == 1 or abs(kept - state.told.get("", 1.0)) > TOLD
    text = (shedding_ends(standing.load) if kept == 1 else shedding(standing.load, kept)) if is_news else ""
    told = {**state.told, "": kept} if is_news else state.told
    details = {"load": standing.load, "kept": kept, "behind_s": standing.behind_s}
    action = ShedRows(dict.fromkeys(known.streams, kept) if kept < 1 else {})
    return replace(state, kept=kept, told=told), [Allowing(action, text, details)]


def _lift(known: OverloadKnowledge, state: OverloadState, standing: Standing) -> tuple[OverloadState, Said]:
    """All rows again."""
    details, said = {"load": standing.load, "behind_s": standing.behind_s}, Said()
    for name in _limited(state.allowances):
        said.append(Allowing(_action(known, name, {}), lifted(standing.load), details))
    if state.kept < 1:
        said.append(Allowing(ShedRows({}), shedding_ends(standing.load), details))
    return replace(state, allowances={}, kept=1.0, told={}, has_told=False, cores={}), said


def _limited(*allowances: Allowances) -> list[str]:
    """The queries that are limited, also one that came to the pipeline while it runs."""
    return [*dict.fromkeys(query for each in allowances for query, _ in each)]


def _own(allowances: Allowances, query: str) -> dict[str, Mapping[int, int]]:
    return {alias: rows for (name, alias), rows in allowances.items() if name == query}


def _action(known: OverloadKnowledge, query: str, allowances: Allowances) -> SetAllowances:
    pinned = {alias: share for (name, alias), share in known.pinned.items() if name == query}
    return SetAllowances(query, _own(allowances, query), pinned)


# -- the loop with its state -----------------------------------------------------------------------------------------


class OverloadLoop(Limiter):
    """The loop with its state. `interval_s` is the time between triggers (None: the next batch begins when the last is
    over), `slots` the tasks of a batch, `cores` how many of them run at a time."""

    def __init__(
        self,
        overload: Overload,
        queries: Mapping[str, Query],
        interval_s: float | None,
        slots: int,
        cores: float,
        clock: Callable[[], float],
    ) -> None:
        is_live = interval_s is not None or overload.clock is Clock.WALL
        capacity = Capacity(min(cores, float(slots)), overload.cpu, is_live)
        self.known = known_of(overload, queries, interval_s, capacity)
        self.state, self._clock, self._queries = OverloadState(), clock, dict(queries)

    def at_start(self, limits: Mapping[str, Mapping[str, Limit]], kept: Mapping[str, float]) -> Sequence[Allowing]:
        """Goes on with what was limited, as far as it may be; what a user pinned holds from now on."""
        known, said = self.known, list[Allowing]()
        adapts, sheds = known.overload.limits_lookups, known.overload.sheds
        rows = {
            (name, alias): dict(limit.rows)
            for name, own in limits.items()
            for alias, limit in own.items()
            if adapts and limit.rows and name in known.queries and (name, alias) not in known.pinned
        }
        share = min(kept.values(), default=1.0) if sheds else 1.0
        self.state = replace(self.state, allowances=rows, kept=share)
        for name in known.queries:
            action = _action(known, name, rows)
            if pins := self._pins_text(name):
                said.append(Allowing(action, pins, {"pinned": action.shares}))
            elif limits.get(name) and not action.rows:
                said.append(Allowing(action, "nothing is limited any more, as asked"))
        if kept and not sheds:
            said.append(Allowing(ShedRows({}), "no rows are shed any more, as asked"))
        return said

    def serve(self, queries: Mapping[str, Query]) -> Sequence[Allowing]:
        """Goes on with what it remembers of the queries that stay as they are: the pipeline has run all the time."""
        known, new = self.known, [name for name, query in queries.items() if self._queries.get(name) != query]
        self.known = known_of(known.overload, queries, known.interval_s, known.capacity)
        self.state, self._queries = _only(self.state, queries.keys() - new), dict(queries)
        return [Allowing(_action(self.known, name, {}), self._pins_text(name)) for name in new]

    @property
    def cores(self) -> Mapping[str, float]:
        return self.state.cores

    def _pins_text(self, name: str) -> str:
        """What is told of the shares that a user has pinned for a query; "" if there are none."""
        shares = _action(self.known, name, {}).shares
        pins = ", ".join(f"{share * 100:.3g} % of rows of {alias}" for alias, share in shares.items())
        return f"as asked, {pins} look up their partners" if pins else ""

    def after(self, load: Load) -> Sequence[Allowing | LoadRemark]:
        if self.known.overload.policy is Policy.FALL_BEHIND:
            return ()
        self.state, said = step(self.known, self.state, load, self._clock())
        return said


def known_of(
    overload: Overload, queries: Mapping[str, Query], interval_s: float | None, capacity: Capacity
) -> OverloadKnowledge:
    """What is known of a pipeline that has some queries."""
    pinned = {
        (name, i.alias): overload.allowances[i.alias]
        for name, query in queries.items()
        for i in query.inputs
        if i.alias in overload.allowances
    }
    streams = dict.fromkeys(s.name for q in queries.values() for s in q.base_sources if isinstance(s, Stream))
    slack_s = least_slack_s(queries.values())
    return OverloadKnowledge(overload, tuple(queries), tuple(streams), interval_s, capacity, slack_s, pinned)


def _only(state: OverloadState, queries: Collection[str]) -> OverloadState:
    """What is remembered, as far as it is of the pipeline, or of some of its queries."""
    return replace(
        state, samples=tuple(each.only(queries) for each in state.samples), allowances=_of(state.allowances, queries),
        costs=_of(state.costs, queries), cores={name: cores for name, cores in state.cores.items() if name in queries},
        told={name: share for name, share in state.told.items() if not name or name in queries},
    )  # fmt: skip


def _of(ways: Mapping[Way, T], queries: Collection[str]) -> dict[Way, T]:
    return {way: each for way, each in ways.items() if way[0] in queries}


def least_slack_s(queries: Iterable[Query]) -> float | None:
    """By how much a pipeline may be behind the clock while no result is too old: the least that FRESHNESS is beyond the
    window, over the inputs of its queries; None if none has FRESHNESS."""
    found = [
        (i.freshness_us - i.window.length_us) / 1e6
        for query in queries
        for i in query.inputs
        if i.freshness_us is not None and i.window.length_us < FOREVER_US
    ]
    return max(0.0, min(found)) if found else None
