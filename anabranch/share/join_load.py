"""A join that several queries have in common, as what its members ask of it: windows, filters, and how many rows pass.

How many rows pass a filter is measured once queries run. Before that a predicate is taken to let `ASSUMED_PASS` of the rows
through, whatever the others do. Of members with different filters on a stream a row is wanted by some with

    1 − Π (1 − p)        over the sets of filters that no other one contains

which is exact where these have no predicate in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anabranch.cost.model import Cost, CostModel
from anabranch.cost.streams import Mask, StreamGraph
from anabranch.plan.join_graph import Aliases
from anabranch.plan.jtree import Leaf, Plan, joins_of
from anabranch.plan.shared_join import SharedJoin
from anabranch.share.slice_cost import SourceLoad

ASSUMED_PASS = 0.5
"""The share of the rows that pass a predicate of which nothing is known."""


@dataclass(frozen=True)
class Wants:
    """What a member wants of a stream: rows that pass its filters, for so long."""

    window_us: int
    filters: frozenset[str] = frozenset()
    passing: float = 1.0
    """The share of the stream's rows that pass."""


@dataclass(frozen=True)
class MemberLoad:
    """A query of a shared join."""

    name: str
    wants: tuple[Wants, ...]
    """By stream, in the order of the join's model."""


def shares_by_window(wants: Iterable[Wants]) -> dict[int, float]:
    """Which share of a stream's rows is wanted for each window and no longer.

    >>> shares_by_window([Wants(5), Wants(60, frozenset({"x > 1"}), 0.25)])
    {60: 0.25, 5: 0.75}
    """
    found, least, before = dict[int, float](), list[Wants](), 0.0
    for each in sorted(wants, key=lambda each: -each.window_us):
        if any(other.filters <= each.filters for other in least):
            continue
        least = [*(other for other in least if not each.filters <= other.filters), each]
        unwanted = 1.0
        for other in least:
            unwanted *= 1.0 - other.passing
        found[each.window_us] = found.get(each.window_us, 0.0) + 1.0 - unwanted - before
        before = 1.0 - unwanted
    return {us: share for us, share in found.items() if share > 0}


@dataclass(frozen=True)
class JoinLoad:
    """A shared join under a plan."""

    model: CostModel
    """Of the join with the largest windows, and the rows that any member wants."""
    plan: Plan
    sources: tuple[str, ...]
    """Of the streams of the model."""
    rates_per_s: tuple[float, ...]
    """Rows of each that come, before any filter."""
    members: tuple[MemberLoad, ...]

    def of(self, members: Sequence[MemberLoad]) -> JoinLoad:
        """The join of some members, under the same plan."""
        streams = []
        for place, facts in enumerate(self.model.graph.streams):
            wants = [member.wants[place] for member in members]
            longest_us = max(want.window_us for want in wants)
            rate = self.rates_per_s[place] * sum(shares_by_window(wants).values())
            own_us = max(member.wants[place].window_us for member in self.members)
            window_s = facts.rows / facts.rate if facts.rate else 0.0
            if longest_us != own_us:
                window_s = longest_us / 1e6
            streams.append(replace(facts, rate=rate, rows=rate * window_s))
        model = CostModel(StreamGraph(streams, self.model.graph.classes), self.model.units)
        return replace(self, model=model, members=tuple(members))

    @cached_property
    def results_per_s(self) -> float:
        """What all members get."""
        alone = self.members if len(self.members) > 1 else ()
        graphs = [self.of([member]).model.graph for member in alone] or [self.model.graph]
        return sum(graph.rate(graph.everything) for graph in graphs)

    @property
    def predicates_per_s(self) -> float:
        """Distinct predicates that are evaluated for rows that come."""
        counts = [len({f for m in self.members for f in m.wants[s].filters}) for s in range(len(self.sources))]
        return sum(rate * count for rate, count in zip(self.rates_per_s, counts, strict=True))

    def wanted_per_s(self, place: int) -> dict[int, float]:
        """Rows of a stream per second by how long they are wanted."""
        shares = shares_by_window(member.wants[place] for member in self.members)
        return {us: share * self.rates_per_s[place] for us, share in shares.items()}

    def probes_into(self, place: int) -> list[tuple[Mask, float, float]]:
        """Who looks up a stream: the streams that rows come from, how many do per second, and how many pairs they find."""
        graph, alias, found = self.model.graph, self.model.graph.streams[place].name, list[tuple[Mask, float, float]]()
        for node in joins_of(self.plan):
            inputs = [graph.mask(child.aliases) for child in node.inputs]
            for streams, order in zip(inputs, node.orders, strict=True):
                rows, bound = graph.rate(streams), streams
                per_row = rows / base if (base := graph.rows(streams)) else 0.0
                for other in order:
                    bound |= inputs[other]
                    matches, child = per_row * graph.rows(bound), node.inputs[other]
                    if isinstance(child, Leaf) and child.alias == alias:
                        found.append((streams, rows, matches))
                    rows = matches
        return found

    def looks_back(self, streams: Mask, place: int) -> dict[int, float]:
        """Which share of the rows of some streams looks no further back into another than each window."""
        places = [p for p in range(len(self.sources)) if streams >> p & 1]
        wants = []
        for member in self.members:
            passing, filters = 1.0, set[str]()
            for p in places:
                passing *= member.wants[p].passing
                filters |= {f"{p} {text}" for text in member.wants[p].filters}
            wants.append(Wants(member.wants[place].window_us, frozenset(filters), passing))
        shares = shares_by_window(wants)
        whole = sum(shares.values())
        return {us: share / whole for us, share in shares.items()}

    def source_load(self, place: int) -> SourceLoad:
        """How one of its streams is wanted and looked up, by its members."""
        graph, wanted, probes, pairs, made = self.model.graph, self.wanted_per_s(place), dict[int, float](), 0.0, 0.0
        windows = sorted({member.wants[place].window_us for member in self.members})
        for streams, rows, matches in self.probes_into(place):
            for us, share in self.looks_back(streams, place).items():
                probes[us] = probes.get(us, 0.0) + share * rows
            pairs, made = pairs + matches, made + rows
        kept, mask = graph.streams[place].rows, 1 << place
        node = next(node for node in joins_of(self.plan) if Leaf(graph.streams[place].name) in node.inputs)
        others = graph.mask(node.aliases) & ~mask
        return SourceLoad(
            self.sources[place], tuple(windows), tuple(wanted.get(us, 0.0) for us in windows),
            tuple(probes.get(us, 0.0) for us in windows), pairs / (made * kept) if made * kept else 0.0,
            graph.streams[place].row_bytes, self.model.keys(mask, others),
        )  # fmt: skip

    @property
    def whole(self) -> tuple[SourceLoad, ...]:
        """Its streams as the model has them: all rows are wanted for the longest window."""
        loads = (self.source_load(place) for place in range(len(self.sources)))
        return tuple(
            replace(load, windows_us=load.windows_us[-1:], wanted_per_s=(sum(load.wanted_per_s),),
                    probes_per_s=(sum(load.probes_per_s),))
            for load in loads
        )  # fmt: skip

    @cached_property
    def cost(self) -> Cost:
        """What the model says of it."""
        return self.model.cost(self.plan)


def join_load(
    shared: SharedJoin,
    order: Aliases,
    plan: Plan,
    model: CostModel,
    rates_per_s: Mapping[str, float],
    passing: Mapping[tuple[str, str], float],
) -> JoinLoad:
    """A shared join, its streams in the `order` of its model. `passing` has the share of rows that pass the filters of a
    member on a stream (by name and alias), as far as that is measured."""
    members = []
    for place, member in enumerate(shared.members):
        wants = []
        for alias in order:
            filters = frozenset(shared.own_filters[alias][place])
            share = passing.get((member.name, alias), ASSUMED_PASS ** len(filters))
            wants.append(Wants(member.input(alias).window.length_us, filters, share))
        members.append(MemberLoad(member.name, tuple(wants)))
    sources = tuple(shared.join.input(alias).source.name for alias in order)
    rates = tuple(rates_per_s[source] for source in sources)
    whole = JoinLoad(model, plan, sources, rates, tuple(members))
    return replace(whole, model=whole.of(members).model)


def merged(loads: Iterable[SourceLoad], wanted_per_s: Mapping[int, float] | None = None) -> SourceLoad:
    """How a source is wanted and looked up by several joins. Who wants which rows is not known across joins, but where it is
    measured (`wanted_per_s`): a row is taken to be wanted by all joins or by none."""
    several = list(loads)
    windows = sorted({us for load in several for us in load.windows_us} | set(wanted_per_s or {}))
    wanted, probes = dict.fromkeys(windows, 0.0), dict.fromkeys(windows, 0.0)
    for load in several:
        for us, rate in zip(load.windows_us, load.probes_per_s, strict=True):
            probes[us] += rate
    if wanted_per_s is not None:
        wanted |= wanted_per_s
    else:
        reached = 0.0
        for us in reversed(windows):
            # So many rows are wanted for as long, or longer, by the join that wants most.
            rates = [dict(zip(load.windows_us, load.wanted_per_s, strict=True)) for load in several]
            most = max(sum(rate for window_us, rate in own.items() if window_us >= us) for own in rates)
            wanted[us], reached = max(0.0, most - reached), max(most, reached)
    made = sum(probes.values())
    match = sum(load.match * sum(load.probes_per_s) for load in several) / made if made else 0.0
    first = several[0]
    return SourceLoad(
        first.source, tuple(windows), tuple(wanted[us] for us in windows), tuple(probes[us] for us in windows), match,
        max(load.row_bytes for load in several), sum(load.indexes for load in several),
    )  # fmt: skip
