"""The slices of the streams of a query, and the ways to share its join, in words and as plain values.

Rows of a slice are kept for one length of time (`anabranch.engine.slices`). A query reads the slices that are kept at least
as long as its own window: in a shorter one there is no row that it wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from anabranch.adapt.slicing import Seen, length
from anabranch.control.holding import Holding, held_back
from anabranch.control.ledger import commits_in
from anabranch.cost.model import Cost, UnitCosts
from anabranch.engine.slices import limits_of
from anabranch.plan.query import Query
from anabranch.share.join_load import JoinLoad
from anabranch.share.pipeline_chains import Known, source_loads
from anabranch.share.slice_cost import SourceLoad
from anabranch.share.source_chain import SourceChain, chain_of, readers_of, told_chain
from anabranch.share.ways import CHEAPER, UNSHARED, WAYS, SharingDecision, as_cut
from anabranch.show.draw import NOTHING_SHARED, SharingLines
from anabranch.show.figures import aligned, cores_text, count_text, listed, show_bytes, versus
from anabranch.storage.location import Folder

MOST_READERS = 4
"""So many queries that read a slice are told by name."""

SLICES = "slices, for all who read it:"
"""What stands above them in the box of a stream, which has the rows of its own query before."""


@dataclass(frozen=True)
class ShownSlice:
    """A slice of a stream."""

    limit_us: int
    rows_per_s: float
    kept_rows: float
    kept_bytes: float
    measured_rows: float | None
    readers: tuple[str, ...]


@dataclass(frozen=True)
class ShownChain:
    """How the rows of a stream are cut."""

    source: str
    slices: tuple[ShownSlice, ...]
    way: str
    reason: str
    batches: int
    """So many batches measured for how long rows are wanted; 0: that is assumed."""


@dataclass(frozen=True)
class ShownSharing:
    """How the join of a query is shared."""

    chains: tuple[ShownChain, ...]
    """Of its streams that are wanted for different times."""
    members: tuple[str, ...]
    """The queries that run its join together; nothing, if it runs it alone."""
    runs: SharingDecision | None
    """What the join takes with the slices that it has."""
    ways: tuple[SharingDecision, ...]
    """What it would take in each of the ways."""
    held: tuple[Holding, ...] = ()
    """Rows of its streams that wait for a watermark which lags."""


@dataclass(frozen=True)
class PipelineShown:
    """What there is to be told of the sharing of the queries of a pipeline."""

    joins: Sequence[JoinLoad]
    queries: Sequence[Query]
    units: UnitCosts
    byte_cores: float
    known: Known
    slices: Mapping[str, tuple[int, ...]] | None
    """How rows are cut; None: the pipeline has not run, and they are to be cut as is decided now."""
    started: Mapping[str, SharingDecision] = field(default_factory=dict)
    """How the join of each query is run that has it in common with others."""
    held: Sequence[Holding] = ()
    """Rows that wait for a watermark which lags, as the last batch has left them."""

    @cached_property
    def loads(self) -> dict[str, SourceLoad]:
        return source_loads(self.joins, self.known)

    @cached_property
    def chains(self) -> dict[str, SourceChain]:
        """Of the streams that are wanted for different times."""
        found = {}
        for source, load in self.loads.items():
            if len(load.windows_us) > 1 and self.slices is None:
                found[source] = chain_of(load, self.units, self.byte_cores)
            elif len(load.windows_us) > 1 and self.slices is not None:
                limits_us = limits_of(load.windows_us, self.slices.get(source))
                found[source] = told_chain(load, self.units, limits_us)
        return found

    @cached_property
    def ways(self) -> dict[tuple[str, ...], tuple[SharingDecision, ...]]:
        """For each shared join, by its members, what it takes as it runs, and in each of the ways."""
        cut, found = [(source, chain.limits_us) for source, chain in self.chains.items()], {}
        for join in self.joins:
            if len(join.members) > 1:
                runs, started = as_cut(join, cut, "as it runs", "the slices above"), self.started.get(join.members[0].name)
                if started is not None and started.joins > 1:
                    runs = started
                found[tuple(member.name for member in join.members)] = (runs, *(way(join) for way in WAYS))
        return found

    def of(self, query: Query) -> ShownSharing | None:
        """What is to be told of a query."""
        read = [source.name for source in query.base_sources if source.name in self.chains and len(query.inputs) > 1]
        chains = tuple(self._chain(source) for source in read)
        members = next((names for names in self.ways if query.name in names), ())
        sources = {source.name for source in query.base_sources}
        held = tuple(each for each in self.held if each.source in sources)
        if not chains and not members and not held:
            return None
        runs, *ways = self.ways.get(members, (None,))
        return ShownSharing(chains, members, runs, tuple(way for way in ways if way is not None), held)

    def _chain(self, source: str) -> ShownChain:
        """A chain with what its slices hold, and who reads them."""
        chain, measured = self.chains[source], self.known.kept_rows.get(source)
        found = [
            ShownSlice(
                each.limit_us, each.rows_per_s, each.rows, each.bytes,
                None if measured is None else measured.get(each.limit_us, 0.0), readers,
            )
            for each, readers in zip(chain.slices, readers_of(source, chain.limits_us, self.queries), strict=True)
        ]  # fmt: skip
        return ShownChain(source, tuple(found), chain.way, chain.reason, self.known.batches)


def sharing_text(shown: ShownSharing, verbose: bool) -> str:
    """The paragraph of `explain`: the slices of each stream, why, and what sharing saves; with `verbose` all ways."""
    lines = ["slices"] if shown.chains else ["sharing"]
    for chain in shown.chains:
        lines += [f"  {line}" for line in _table(chain)]
        known = f"by what {chain.batches} batches measured" if chain.batches else "if half of the rows pass a predicate"
        lines.append(f"    {chain.way}, {known}: {chain.reason}")
    lines += [f"  {each}" for each in shown.held]
    if shown.runs is not None:
        alone = _alone(shown)
        lines.append(
            f"  by itself each of {len(shown.members)} queries would take, together, {cores_text(alone.cpu)} and "
            f"{show_bytes(alone.memory)}: {_more(alone, shown.runs.cost)}"
        )
        best = min(shown.ways, key=lambda way: way.cost.cpu)
        if best.cost.cpu < CHEAPER * shown.runs.cost.cpu:
            less = versus(best.cost.cpu, shown.runs.cost.cpu)
            anew = "" if best.joins == 1 else "; queries that have run go over to that only if they start anew"
            lines.append(f"  by these figures {best.way} would take {less} CPU: {best.reason}{anew}")
        if verbose:
            rows = [["way", "CPU", "bytes kept", "joins", ""]]
            rows += [
                [way.way, cores_text(way.cost.cpu), show_bytes(way.cost.memory), str(way.joins), way.reason]
                for way in (shown.runs, *shown.ways)
            ]
            lines += [f"  {line}" for line in aligned(rows, (0, 4))]
    return "\n".join(lines)


def started_with(way: SharingDecision | None) -> dict[str, Any] | None:
    """For the journal of a query that starts: how it runs the join that it has in common with others, and what that saves;
    None if it has none in common."""
    if way is None or way.alone is None:
        return None
    names, alone = [name for group in way.groups for name in group], way.alone
    text = (
        f"{_joins(way)} for {_names(names)}, {way.reason}: {cores_text(way.cost.cpu)} and {show_bytes(way.cost.memory)} are "
        f"expected; each by itself would take, together, {cores_text(alone.cpu)} and {show_bytes(alone.memory)}, "
        f"{_more(alone, way.cost)}"
    )
    return {
        "way": way.way, "joins": way.joins, "queries": len(names), "cpu": way.cost.cpu, "memory": way.cost.memory,
        "cpu_alone": alone.cpu, "memory_alone": alone.memory, "text": text,
    }  # fmt: skip


def way_text(way: SharingDecision, query: str) -> str:
    """How a join that several queries have in common is run, if not once for all."""
    others = [name for group in way.groups for name in group if name != query]
    what = "has a pipeline of its own" if way.way == UNSHARED else "runs its join with those that have its filters alone"
    return (
        f"it {what}, although {listed(others) if len(others) <= MOST_READERS else f'{len(others)} others'} "
        f"{'has' if len(others) == 1 else 'have'} the join in common: {way.way}, {way.reason}. That stays so while they run"
    )


def _alone(shown: ShownSharing) -> Cost:
    """What the queries of a join would take by themselves."""
    return next(way for way in shown.ways if way.way == UNSHARED).cost


def _joins(way: SharingDecision) -> str:
    return "one join" if way.joins == 1 else f"{way.joins} joins"


def _more(alone: Cost, runs: Cost) -> str:
    return f"{versus(alone.cpu, runs.cpu)} CPU and {versus(alone.memory, runs.memory)} state"


def _table(chain: ShownChain) -> list[str]:
    has_measured = any(each.measured_rows is not None for each in chain.slices)
    head = [f"rows of {chain.source} are kept", "rows/s", "rows kept", "measured", "bytes kept", "by whom they are read"]
    rows = [head if has_measured else [*head[:3], *head[4:]]]
    for each in chain.slices:
        there = "" if each.measured_rows is None else count_text(each.measured_rows)
        cells = [f"  for {length(each.limit_us)}", count_text(each.rows_per_s), count_text(each.kept_rows), there,
                 show_bytes(each.kept_bytes), _names(each.readers)]  # fmt: skip
        rows.append(cells if has_measured else [*cells[:3], *cells[4:]])
    return aligned(rows, (0, len(rows[0]) - 1))


def _names(readers: Sequence[str]) -> str:
    if len(readers) <= MOST_READERS:
        return listed(readers) if readers else "nobody"
    return f"{', '.join(readers[: MOST_READERS - 1])} and {len(readers) - MOST_READERS + 1} others"


def sharing_lines(shown: ShownSharing | None) -> SharingLines:
    """For the drawing: in the box of each stream what its slices hold and who reads them, and below the plan what sharing
    saves."""
    if shown is None:
        return NOTHING_SHARED
    slices = {chain.source: [SLICES, *(text for each in chain.slices for text in _drawn(each))] for chain in shown.chains}
    for held in shown.held:
        slices.setdefault(held.source, []).extend(_drawn_held(held))
    if shown.runs is None:
        return SharingLines(slices)
    alone = _alone(shown)
    would = f"each by itself, together: {cores_text(alone.cpu)}, {show_bytes(alone.memory)}"
    return SharingLines(slices, [f"{_joins(shown.runs)} for {_names(shown.members)}", would, _more(alone, shown.runs.cost)])


def _drawn(each: ShownSlice) -> list[str]:
    """A slice in the box of its stream, as it was measured or else predicted."""
    rows = each.kept_rows if each.measured_rows is None else each.measured_rows
    size = f", {show_bytes(rows * each.kept_bytes / each.kept_rows)}" if each.kept_rows else ""
    return [f"{length(each.limit_us)}: {count_text(rows)} rows{size}", f"read by {_names(each.readers)}"]


def _drawn_held(held: Holding) -> list[str]:
    """What waits for a watermark that lags, and what is kept apart from that, in the box of its stream."""
    names = _names(held.queries)
    waiting = f"{count_text(held.rows)} rows, {show_bytes(held.bytes)}, wait for {names}: {held.stream} is behind"
    return [waiting, *([f"{count_text(held.free_rows)} rows do not"] if held.free_rows else [])]


def sharing_json(shown: ShownSharing | None) -> dict[str, Any] | None:
    """The same as plain values."""
    if shown is None:
        return None
    return {
        "members": list(shown.members),
        "chains": [
            {"source": chain.source, "way": chain.way, "reason": chain.reason, "measured_batches": chain.batches, "slices": [
                {"kept_us": each.limit_us, "rows_per_s": each.rows_per_s, "rows": each.kept_rows, "bytes": each.kept_bytes,
                 "measured_rows": each.measured_rows, "read_by": list(each.readers)}
                for each in chain.slices]}
            for chain in shown.chains
        ],
        "runs": None if shown.runs is None else _way_json(shown.runs),
        "ways": [_way_json(way) for way in shown.ways],
        "held_back": [msgspec.to_builtins(each) for each in shown.held],
    }  # fmt: skip


def way_json(way: SharingDecision | None) -> dict[str, Any] | None:
    """A way to run a join that several queries have in common."""
    return None if way is None else _way_json(way)


def _way_json(way: SharingDecision) -> dict[str, Any]:
    return {
        "way": way.way, "cpu": way.cost.cpu, "memory": way.cost.memory, "joins": way.joins, "reason": way.reason,
        "groups": [list(group) for group in way.groups],
        "slices_us": {source: list(limits) for source, limits in way.limits_us},
    }  # fmt: skip


# -- what was measured -----------------------------------------------------------------------------------------------------


def held_in(pipeline: Folder, queries: Iterable[Query]) -> list[Holding]:
    """What the newest commit of a pipeline has left behind that waits for a watermark which lags."""
    latest = commits_in(pipeline).latest()
    return [] if latest is None else held_back(queries, latest[1])


def seen_in(pipeline: Folder) -> tuple[list[Seen], dict[str, tuple[int, ...]]]:
    """What the commits of a pipeline tell of its batches, oldest first, and how the newest cut rows."""
    found, slices = list[Seen](), dict[str, tuple[int, ...]]()
    for _, commit in commits_in(pipeline).whole():
        slices = dict(commit.slices)
        own = {name: query.statistics for name, query in commit.queries.items()}
        if commit.largest_time_us and any(s.rows for each in own.values() for s in each.sources.values()):
            found.append(Seen(min(commit.largest_time_us.values()), own))
    return found, slices


def known_of(seen: Sequence[Seen]) -> Known | None:
    """What batches tell of how rows are wanted; None if there are too few."""
    span_s = (seen[-1].seen_us - seen[0].seen_us) / 1e6 if seen else 0.0
    if span_s <= 0:
        return None
    batches, rows, passed = seen[1:], dict[str, float](), dict[tuple[str, str], float]()
    wanted: dict[str, dict[int, float]] = {}
    for batch in batches:
        came: dict[str, int] = {}
        for name, own in batch.queries.items():
            for source, counted in own.sources.items():
                came[source] = max(came.get(source, 0), counted.rows)
                passed[name, source] = passed.get((name, source), 0.0) + counted.stored_rows
                for us, count in counted.wanted_rows.items():
                    rates = wanted.setdefault(source, {})
                    rates[us] = rates.get(us, 0.0) + count / span_s
        for source, count in came.items():
            rows[source] = rows.get(source, 0.0) + count
    passing = {key: min(1.0, count / rows[key[1]]) for key, count in passed.items() if rows.get(key[1])}
    newest = [own.sources for own in seen[-1].queries.values()]
    kept = {
        source: {us: float(count) for us, count in counted.slice_rows.items()}
        for sources in newest
        for source, counted in sources.items()
        if counted.slice_rows
    }
    return Known(passing, {source: count / span_s for source, count in rows.items()}, wanted, kept, len(batches))
