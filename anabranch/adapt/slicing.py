"""The loop of the slices of a pipeline: after each batch, are rows of a source worth cutting in another way?

The chain of slices was decided on before anything was measured (`anabranch.share.source_chain`). Tasks count for how long
new rows are wanted (`SourceStatistics.wanted_rows`) and how many lookups are made and what they find. By these the chain is
decided on again after `FIRST_BATCHES` batches, and then every few batches: filters that begin to let more rows through move
it towards one slice, those that let fewer through towards a slice for each window (State-Slice, VLDB 2006, section 5.3: (3)
runtime statistic collection invokes plan adaptation). Keeping it is always allowed:

- another chain must be worth it by more than a twentieth (`anabranch.adapt.arbiter`), with what its bytes are worth, or
  bring the state into its budget; it costs nothing to go there, for no row is rewritten. One that keeps more must stay
  within the budget by what it is predicted to keep;
- it must be so by two looks in a row.

When no row is left that was cut in the old way, it is told what the new slices keep, beside what was predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.adapt.arbiter import FREE_WORTH, Change
from anabranch.control.loop import Joining, Observed, Recut, Remark, SliceRemark, Slices
from anabranch.control.records import Statistics
from anabranch.cost.facts import HORIZON_S
from anabranch.cost.model import Cost, UnitCosts
from anabranch.engine.slices import limits_of
from anabranch.optimize.planner import show_bytes
from anabranch.plan.actions import CutSlices
from anabranch.plan.lengths import length_text
from anabranch.plan.query import FOREVER_US
from anabranch.share.chain import Chain
from anabranch.share.slice_cost import SourceLoad, slice_cost
from anabranch.share.source_chain import BYTE_CORES, SourceChain, chain_of, priced, worth

FIRST_BATCHES = 4
"""So many batches with rows are seen before slices are first decided on by what was measured."""

EVERY_BATCHES = 4
"""And so many between two looks."""

LATEST_BATCHES = 8
"""Averages are over so many batches."""

LOOKS = 2
"""So many looks in a row must find that another chain is worth it."""


@dataclass(frozen=True)
class SlicingKnowledge:
    """What does not change while a pipeline runs."""

    units: UnitCosts
    byte_cores: float = BYTE_CORES
    most_bytes: float = float("inf")
    """What all state may take."""


@dataclass(frozen=True)
class Seen:
    """What a batch has shown of a pipeline."""

    seen_us: int
    queries: Mapping[str, Statistics]


@dataclass(frozen=True)
class Promise:
    """What a chain was proposed for."""

    limits_us: tuple[int, ...]
    memory: float
    """Bytes that its slices would keep."""
    before_bytes: int
    """Bytes that were kept then."""
    ends_us: int
    """The event time at which no row is left that was cut in the old way."""


@dataclass(frozen=True)
class SlicingState:
    """What the loop remembers."""

    seen: tuple[Seen, ...] = ()
    """The latest batches with rows, oldest first. The first of them only tells where time begins."""
    since_last: int = 0
    """Batches since slices were last thought about."""
    found: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """The chain that the last looks found to be worth it, by source, and how many looks did."""
    promises: Mapping[str, Promise] = field(default_factory=dict)
    is_told: bool = False
    """Whether it was told what the first look found."""


class SlicingLoop:
    """The loop with its state."""

    def __init__(self, known: SlicingKnowledge, first: Sequence[SourceChain] = (), adapts: bool = True) -> None:
        """`first` are the chains to begin with, which stay if it does not adapt."""
        self.known, self.first, self.adapts, self.state = known, tuple(first), adapts, SlicingState()

    def at_start(self) -> Sequence[Recut]:
        return [
            Recut(CutSlices(chain.source, chain.limits_us), told(chain), details_of(chain)) for chain in self.first
        ]

    def after(
        self, joins: Sequence[Joining], slices: Slices, observed: Mapping[str, Observed]
    ) -> Sequence[Recut | SliceRemark]:
        if not self.adapts:
            return ()
        self.state, said = step(self.known, self.state, joins, slices, observed)
        return said


def step(
    known: SlicingKnowledge,
    state: SlicingState,
    joins: Sequence[Joining],
    slices: Slices,
    observed: Mapping[str, Observed],
) -> tuple[SlicingState, Sequence[Recut | SliceRemark]]:
    """Takes note of a batch, and says what to do."""
    times = [us for each in observed.values() for us in each.largest_time_us.values()]
    if not times or not any(source.rows for each in observed.values() for source in each.statistics.sources.values()):
        return state, ()
    batch = Seen(min(times), {name: each.statistics for name, each in observed.items()})
    seen = (*state.seen, batch)[-LATEST_BATCHES - 1 :]
    state = replace(state, seen=seen, since_last=state.since_last + 1)
    state, said = _effects(state, batch, slices)
    if len(seen) <= FIRST_BATCHES or state.since_last < EVERY_BATCHES:
        return state, said
    state, found = _look(known, state, joins, slices)
    return state, (*said, *found)


def _look(
    known: SlicingKnowledge, state: SlicingState, joins: Sequence[Joining], slices: Slices
) -> tuple[SlicingState, list[Recut | SliceRemark]]:
    said: list[Recut | SliceRemark] = []
    better, promises = dict[str, tuple[int, tuple[int, ...]]](), dict(state.promises)
    loads = measured_loads(state.seen, joins, known.units)
    room = known.most_bytes - state_bytes(state.seen[-1])
    for source, (load, units) in loads.items():
        limits_us = limits_of(load.windows_us, slices.get(source))
        runs = Chain(load.windows_s, load.ends(limits_us))
        now = priced(runs, slice_cost(load, units))
        chain = chain_of(load, units, known.byte_cores, now.memory + room)
        saves_room = room < 0 and chain.cost.memory < now.memory
        change = Change(worth(now, known.byte_cores), chain.worth(known.byte_cores), saves_room, FREE_WORTH)
        is_other = load.ends(chain.limits_us) != runs.ends
        details = {**details_of(chain), **_rates(load), "memory_before": now.memory, "cpu_before": now.cpu}
        if not is_other or not change.is_better:
            if not state.is_told:
                text = f"slices of {source} stay as they are: {_lengths(runs, load)}; by what {len(state.seen) - 1} batches "
                said.append(SliceRemark(source, Remark("kept", f"{text}measured no others are better by enough", details)))
            continue
        looks, _ = state.found.get(source, (0, ()))
        better[source] = looks + 1, chain.limits_us
        if looks + 1 < LOOKS:
            continue
        del better[source]
        text = f"{told(chain)}; {_beside(chain.cost, now)}"
        said.append(Recut(CutSlices(source, chain.limits_us), text, details))
        oldest_us = min(limits_us[-1], round(HORIZON_S * 1e6))
        bytes_kept = kept_bytes(state.seen[-1], source)
        promises[source] = Promise(chain.limits_us, chain.cost.memory, bytes_kept, state.seen[-1].seen_us + oldest_us)
    return replace(state, since_last=0, found=better, promises=promises, is_told=True), said


def _effects(
    state: SlicingState, batch: Seen, slices: Slices
) -> tuple[SlicingState, list[Recut | SliceRemark]]:
    """What came of chains that were proposed: told when no row is left that was cut in the old way, of those that run."""
    running = {source: each for source, each in state.promises.items() if slices.get(source) == each.limits_us}
    if running != state.promises:
        state = replace(state, promises=running)
    over = {source: each for source, each in running.items() if batch.seen_us >= each.ends_us}
    said: list[Recut | SliceRemark] = []
    for source, promise in over.items():
        now = kept_bytes(batch, source)
        text = (
            f"rows of {source} keep {show_bytes(now)}, {show_bytes(promise.memory)} were predicted; it was "
            f"{show_bytes(promise.before_bytes)} when slices were cut anew"
        )
        details = {
            "source": source, "memory": now, "memory_predicted": promise.memory, "memory_before": promise.before_bytes,
        }  # fmt: skip
        said.append(SliceRemark(source, Remark("sliced", text, details)))
    left = {source: each for source, each in state.promises.items() if source not in over}
    return (replace(state, promises=left) if over else state), said


# -- what was measured -----------------------------------------------------------------------------------------------------


def measured_loads(
    seen: Sequence[Seen], joins: Sequence[Joining], units: UnitCosts
) -> dict[str, tuple[SourceLoad, UnitCosts]]:
    """How sources with several windows are wanted and looked up, by what batches have shown; with unit costs for the span of
    these batches."""
    span_s, batches = (seen[-1].seen_us - seen[0].seen_us) / 1e6, seen[1:]
    if span_s <= 0:
        return {}
    units = replace(units, batch_s=span_s / len(batches))
    wanted = {source: _wanted(source, batches, joins, span_s) for source in _sources(joins)}
    found: dict[str, tuple[SourceLoad, UnitCosts]] = {}
    for source, rates in wanted.items():
        windows = sorted({us for join in joins for alias, us in _over(join, source)} | set(rates))
        newest = [own for own in batches[-1].queries.values() if source in own.sources]
        state_rows = max((own.sources[source].state_rows for own in newest), default=0)
        if len(windows) < 2 or not sum(rates.values()) or not state_rows:
            continue
        probes, candidates = dict.fromkeys(windows, 0.0), 0.0
        for join in joins:
            for alias in [a for a, name in join.sources.items() if name == source]:
                for route, (made, hits) in _probes(join, alias, batches).items():
                    candidates += hits / span_s
                    for us, share in _looks_back(join, route, alias, wanted).items():
                        probes[us] += made * share / span_s
        row_bytes = max(own.sources[source].state_bytes for own in newest) / state_rows
        load = SourceLoad(
            source, tuple(windows), tuple(rates.get(us, 0.0) for us in windows),
            tuple(probes[us] for us in windows), 0.0, row_bytes, max(1, _indexes(source, batches[-1])),
        )  # fmt: skip
        found[source] = replace(load, match=_match(load, batches, candidates, units.slack_s)), units
    return found


def _sources(joins: Sequence[Joining]) -> set[str]:
    return {source for join in joins for source in join.sources.values()}


def _over(join: Joining, source: str) -> list[tuple[str, int]]:
    return [(alias, us) for alias, name in join.sources.items() if name == source for us in join.windows_us[alias] if us]


def _wanted(source: str, batches: Sequence[Seen], joins: Sequence[Joining], span_s: float) -> dict[int, float]:
    """Rows per second by how long they are wanted; all for the longest window, where nobody counts them."""
    found: dict[int, float] = {}
    for batch in batches:
        for own in batch.queries.values():
            if source in own.sources:
                for us, rows in own.sources[source].wanted_rows.items():
                    found[us] = found.get(us, 0.0) + rows / span_s
    if found:
        return found
    counted = [[own.sources[source].stored_rows for own in b.queries.values() if source in own.sources] for b in batches]
    rows = sum(max(each, default=0) for each in counted)
    return {max(us for join in joins for _, us in _over(join, source)): rows / span_s}


def _probes(join: Joining, alias: str, batches: Sequence[Seen]) -> dict[str, tuple[float, float]]:
    """The lookups in an input, by where rows came from: how many rows, and how many pairs were looked at."""
    found: dict[str, tuple[float, float]] = {}
    for batch in batches:
        for each in batch.queries[join.query].steps if join.query in batch.queries else ():
            if each.target == alias:
                made, hits = found.get(each.route, (0.0, 0.0))
                found[each.route] = made + each.probes, hits + each.candidates
    return found


def _looks_back(
    join: Joining, route: str, alias: str, wanted: Mapping[str, Mapping[int, float]]
) -> dict[int, float]:
    """Which share of the new rows of an input looks no further back into another than each window: a row that is wanted for
    some time is taken to be one of the members with that window."""
    own, theirs = join.windows_us.get(route, ()), join.windows_us[alias]
    rates, found = wanted.get(join.sources.get(route, ""), {}), dict[int, float]()
    if not own or not rates:
        return {max(theirs): 1.0}
    for us, rate in rates.items():
        members = [place for place, window_us in enumerate(own) if window_us == us]
        members = members or [place for place, window_us in enumerate(own) if window_us <= us] or [*range(len(own))]
        back_us = max(theirs[place] for place in members)
        found[back_us] = found.get(back_us, 0.0) + rate
    whole = sum(found.values())
    return {us: rate / whole for us, rate in found.items()}


def _indexes(source: str, batch: Seen) -> int:
    own = (state for each in batch.queries.values() for state in each.states)
    return len({state.name for state in own if state.is_index_over(source)})


def _match(load: SourceLoad, batches: Sequence[Seen], candidates_per_s: float, slack_s: float) -> float:
    """σ: the pairs that were looked at, as a share of those that rows could have made with what was kept and valid."""
    pairs = 0.0
    for batch in batches:
        for own in batch.queries.values():
            for us, rows in own.sources[load.source].slice_rows.items() if load.source in own.sources else ():
                kept_s = load.windows_s[-1] if us >= load.windows_us[-1] else us / 1e6
                back = sum(g * min(w, kept_s) for g, w in zip(load.probes_per_s, load.windows_s, strict=True))
                pairs += rows * back / (kept_s + slack_s) / len(batches)
    return candidates_per_s / pairs if pairs else 0.0


def state_bytes(batch: Seen) -> int:
    """What all state takes: logs and states that queries share count once."""
    logs, states = dict[str, int](), dict[tuple[str, str], int]()
    for own in batch.queries.values():
        logs |= {name: source.state_bytes for name, source in own.sources.items()}
        states |= {(state.kind, state.name): state.bytes for state in own.states}
    return sum(logs.values()) + sum(states.values())


def kept_bytes(batch: Seen, source: str) -> int:
    """What the log of a source and the indexes over it take."""
    own = [each for each in batch.queries.values() if source in each.sources]
    states = {state.name: state.bytes for each in own for state in each.states if state.is_index_over(source)}
    return max((each.sources[source].state_bytes for each in own), default=0) + sum(states.values())


# -- in words --------------------------------------------------------------------------------------------------------------


def told(chain: SourceChain) -> str:
    """A chain in words."""
    kept = [f"{length(each.limit_us)} ({each.rows:,.0f} rows, {show_bytes(each.bytes)})" for each in chain.slices]
    return f"rows of {chain.source} are kept for {' or '.join(kept)}, {chain.way}: {chain.reason}"


def length(window_us: int) -> str:
    return "ever" if window_us == FOREVER_US else length_text(window_us)


def details_of(chain: SourceChain) -> dict[str, object]:
    return {
        "source": chain.source, "slices_us": list(chain.limits_us), "rows": [each.rows for each in chain.slices],
        "bytes": [each.bytes for each in chain.slices], "way": chain.way, "cpu": chain.cost.cpu, "memory": chain.cost.memory,
        "one_slice": {"cpu": chain.one.cpu, "memory": chain.one.memory},
        "each_window": {"cpu": chain.finest.cpu, "memory": chain.finest.memory},
    }  # fmt: skip


def _rates(load: SourceLoad) -> dict[str, object]:
    wanted = {str(us): rate for us, rate in zip(load.windows_us, load.wanted_per_s, strict=True) if rate}
    return {"wanted_per_s": wanted, "lookups_per_s": sum(load.probes_per_s), "match": load.match}


def _lengths(chain: Chain, load: SourceLoad) -> str:
    return " and ".join(length(load.windows_us[end - 1]) for end in chain.ends)


def _beside(cost: Cost, now: Cost) -> str:
    return (
        f"{show_bytes(cost.memory)} instead of {show_bytes(now.memory)}, {cost.cpu:.3g} cores to look up instead of "
        f"{now.cpu:.3g}"
    )
