"""The box of a shared join: it takes new rows along their routes once for all members, and hands each its own results.

A new row looks up the states of the join, which hold what any member wants. A combination carries the set of members that
want it (`anabranch.engine.lineage`), and is dropped where that is empty. What passes the root is put in the order of its
sets, its columns are fetched once, and a member takes the ranges of the sets that it is in (`anabranch.engine.shares`). No
result is compared with all members. (State-Slice, fig. 12 and 13, has a union of the slices for each query, or a router:
here the order of sets is both.)

A member over some of the inputs takes its combinations on the way: as soon as a route has joined just these
(`SharedBox.on_way`). What only such members want goes no further. The plan of the join is one in which rows of each of these
inputs meet the others first (`anabranch.plan.jtree.part_of`), so all of its combinations pass there, each once.

Example: of five combinations three have the set {q, p}, one {q}, one {p}. In the order {q}, {q, p}, {p} the columns are
fetched once; q takes rows 0 to 3, p rows 1 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import thread_time_ns

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import Statistics
from anabranch.engine import bounds
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.arrival import Arrival
from anabranch.engine.blame import errors_of
from anabranch.engine.box import Box, Fetch
from anabranch.engine.combination import Combination
from anabranch.engine.kernels.lineage import count_members, list_members, order_by_number
from anabranch.engine.limits import Direction
from anabranch.engine.lineage import Lineage, Numbers, wanted
from anabranch.engine.log import Log
from anabranch.engine.pieces import pieces
from anabranch.engine.reader import Reader
from anabranch.engine.results import Found, advance, results_of, selected
from anabranch.engine.shares import Kind, Places, Share, Shares, TimesUs, all_of, in_ranges, kinds_of
from anabranch.engine.store import Store
from anabranch.plan.expression import Expr
from anabranch.plan.query import FOREVER_US, Query, Stream
from anabranch.plan.routes import Route


@dataclass
class Member:
    """A query of a shared join: what it does with the combinations that are its own."""

    query: Query
    """In the aliases of the join."""
    left: tuple[Expr, ...]
    """Its predicates over several inputs that the join does not have."""
    aggregator: Aggregator | None = None
    gives_parts: bool = False
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def name(self) -> str:
        return self.query.name


class SharedBox(Box):
    """The routes of a shared join in one slot."""

    def __init__(self, reader: Reader, store: Store) -> None:
        super().__init__(reader, store)
        self.members: dict[str, Member] = {}
        self.watermarks: Mapping[str, int] = {}
        """Of the members, in this batch."""
        self._in_order: tuple[Member, ...] = ()
        self._kinds: tuple[Kind, ...] = ()
        """Members that select the same."""
        self._alone: list[int] = []
        """The places of the members that have groups, or predicates of their own over several inputs."""
        self._parts: dict[frozenset[str], int] = {}
        """The members that have some inputs only, as bits, by their inputs."""
        self._waiting: dict[frozenset[str], list[Combination]] = {}
        """Combinations that are members' results, by their inputs: a piece of them is handed out at once."""

    def serve(self, members: Mapping[str, tuple[Aggregator | None, bool]]) -> None:
        """Has the groups of each member, and whether they have rows elsewhere too."""
        shared = self.lineage.shared
        self.members = {
            query.name: Member(query, left, *members[query.name])
            for query, left in zip(shared.members, shared.own_residuals, strict=True)
        }
        self._parts = {}
        for place, query in enumerate(shared.members):
            if len(query.inputs) < len(shared.join.inputs):
                inputs = frozenset(query.aliases)
                self._parts[inputs] = self._parts.get(inputs, 0) | 1 << place
        self._in_order = tuple(self.members.values())
        places = enumerate(self._in_order)
        alone = {place for place, member in places if member.aggregator is not None or member.left}
        self._alone = sorted(alone)
        alike = [(n, m.query.select, m.query.output_schema) for n, m in enumerate(self._in_order) if n not in alone]
        self._kinds = kinds_of(alike)

    @property
    def lineage(self) -> Lineage:
        assert self.reader.lineage is not None
        return self.reader.lineage

    def begin(self, arrival: Arrival) -> None:
        super().begin(arrival)
        for member in self.members.values():
            member.statistics = Statistics()

    def step(self, watermark_us: int) -> Iterator[Found]:
        """Takes the rows of a batch along their routes, and gives the results of all members as they are found: groups by
        the `watermarks` of each."""
        yield from self._run(emit=True)
        for member in self.members.values():
            if member.aggregator is not None:
                with errors_of(member.name):
                    pieces = advance(
                        member.aggregator, member.statistics, self.arrival.batch, self.watermarks[member.name],
                        member.gives_parts,
                    )  # fmt: skip
                    for piece in pieces:
                        yield member.name, piece
        self.lineage.settle()

    def _run(self, emit: bool) -> Iterator[Found]:
        yield from super()._run(emit)
        yield from self._routed()

    def _follow(self, route: Route, place: int, rows: Combination, emit: bool) -> Iterator[Found]:
        yield from super()._follow(route, place, rows, emit)
        if self.is_full:
            yield from self._routed()

    @property
    def is_full(self) -> bool:
        return sum(len(rows) for several in self._waiting.values() for rows in several) >= bounds.RESULT_ROWS

    def on_way(self, rows: Combination, emit: bool) -> Combination:
        """Combinations of the inputs of some members, to these; what others want too goes on. A view gets no combinations
        that are nobody's by the windows of those who want them."""
        inputs = frozenset(rows.ids)
        here, is_kept = self._parts.get(inputs, 0), inputs in self.reader.viewed
        if not len(rows) or not (here or is_kept):
            return rows
        began, lineage = thread_time_ns(), self.lineage
        if here and emit:
            self._wait(rows, lineage.of_members(rows.sets, here, len(rows)))
        if here and (is_kept or rows.sets is not None):
            rows.sets = lineage.of_members(rows.sets, lineage.members_beyond(inputs), len(rows))
        if is_kept:
            rows.sets = lineage.in_time(rows, self._logs_of(rows))
        if rows.sets is not None and not (kept := wanted(rows.sets)).all():
            rows = rows.where(kept)
        self._spent("route", began)
        return rows

    def kept_ends(self, rows: Combination) -> npt.NDArray[np.int64]:
        return self.lineage.ends_us(rows, self._logs_of(rows))

    def _logs_of(self, rows: Combination) -> dict[str, Log]:
        return {alias: self.log_of(alias) for alias in rows.ids}

    def emit(self, rows: Combination, emit: bool, direction: Direction | None = None) -> Iterator[Found]:
        """Combinations that passed the root, each to the members that want it. Queries that may lose results are no
        members."""
        if not emit or not len(rows):
            return
        began = thread_time_ns()
        self._wait(rows, rows.sets)
        self._spent("route", began)
        if self.is_full:
            yield from self._routed()

    def _wait(self, rows: Combination, sets: Numbers | None) -> None:
        """Has combinations wait that are handed out to the members that want them, by their sets and windows."""
        rows = Combination(rows.ids, rows.starts, rows.ends, sets=sets)
        sets = rows.sets = self.lineage.in_time(rows, self._logs_of(rows))
        if sets is not None and not (kept := wanted(sets)).all():
            rows = rows.where(kept)
        if len(rows):
            self._waiting.setdefault(frozenset(rows.ids), []).append(rows)

    def _routed(self) -> Iterator[Found]:
        """Hands out what waits."""
        waiting, self._waiting = self._waiting, {}
        for alike in waiting.values():
            for rows in self._joined(alike):
                for piece in pieces(self, rows, bounds.RESULT_ROWS, bounds.RESULT_BYTES):
                    yield from self._handed_out(piece)

    def _handed_out(self, piece: Combination) -> Iterator[Found]:
        began = thread_time_ns()
        rows, shares = self._by_bits(piece) if piece.sets is not None and piece.sets.ndim == 2 else self._by_sets(piece)
        fetch, ends = self.fetch(rows), dict[tuple[int, ...], TimesUs]()
        self._spent("route", began)
        alone = self._alone
        for kind in self._kinds:
            if not shares.counts[kind.members].any():
                continue  # they may have other inputs than the piece has
            if not kind.is_worth(fetch, shares):
                alone = [*alone, *kind.members.tolist()]
                continue
            began = thread_time_ns()
            try:
                whole = kind.whole(fetch)
            except Exception:  # whose error it is, if it is one of a row that some member has, is told below
                alone = [*alone, *kind.members.tolist()]
                continue
            for taken in kind.taken(whole, shares):
                self._share_out("emit", thread_time_ns() - began, taken)
                for place, results in taken:
                    member = self._in_order[place]
                    member.statistics.results += results.num_rows
                    yield member.name, results
                began = thread_time_ns()
        for place in alone:
            if shares.counts[place]:
                yield from self._handed_alone(self._in_order[place], rows, fetch, shares.places(np.array([place])), ends)

    def _share_out(self, what: str, spent_ns: int, taken: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Counts CPU as that of the members that have results, by how many they have."""
        each_ns = spent_ns / sum(results.num_rows for _, results in taken)
        for place, results in taken:
            self._in_order[place].statistics.spent(what, int(each_ns * results.num_rows))

    def _handed_alone(
        self, member: Member, rows: Combination, fetch: Fetch, places: Places, ends: dict[tuple[int, ...], TimesUs]
    ) -> Iterator[Found]:
        """What a member makes of its rows by itself."""
        began = thread_time_ns()
        own_ends = None if member.aggregator is None else self._member_ends(rows, member, ends)
        share = Share(fetch, places, own_ends)
        member.statistics.spent("route", thread_time_ns() - began)
        with errors_of(member.name):
            if member.aggregator is not None:
                began = thread_time_ns()
                member.aggregator.take(*selected(member.query, share, member.left))
                member.statistics.spent("emit", thread_time_ns() - began)
                return
            for results in results_of(member.query, share, member.statistics, member.left):
                member.statistics.results += results.num_rows
                yield member.name, results

    def _by_bits(self, piece: Combination) -> tuple[Combination, Shares]:
        """The piece as it is, and where the rows of each member stand."""
        assert piece.sets is not None
        offsets = np.zeros(len(self.members) + 1, np.int64)
        count_members(piece.sets, offsets)
        offsets = np.cumsum(offsets)
        places, ends = np.empty(int(offsets[-1]), np.int32), offsets[:-1].copy()
        list_members(piece.sets, ends, places)
        return piece, Shares(places, None, offsets, np.diff(offsets))

    def _by_sets(self, piece: Combination) -> tuple[Combination, Shares]:
        """The piece in the order of its sets, and in which ranges the rows of each member stand."""
        count, lineage = len(self.members), self.lineage
        if piece.sets is None:
            return piece, all_of(len(piece), count)
        counts = np.bincount(piece.sets)
        there = np.flatnonzero(counts)
        # Sets with many members in common stand side by side.
        there = np.array(sorted(there.tolist(), key=lambda number: lineage.sets.masks[number]), np.int64)
        begins = np.concatenate([[0], np.cumsum(counts[there])])
        if len(there) > 1:
            places = np.zeros(len(counts), np.int64)
            places[there] = begins[:-1]
            order = np.empty(len(piece), np.int64)
            order_by_number(piece.sets, places, order)
            ids = {alias: values[order] for alias, values in piece.ids.items()}
            piece = Combination(ids, piece.starts[order], piece.ends[order])
        in_set, outside = lineage.sets.members(there, count), np.zeros((1, count), np.bool_)
        changes = np.concatenate([in_set, outside]) != np.concatenate([outside, in_set])
        # Where the ranges of each member's sets begin, and end, in turn: neighbours are one range.
        members, edges = np.nonzero(np.ascontiguousarray(changes.T))
        return piece, in_ranges(begins[edges[::2]], begins[edges[1::2]], members[::2], count)

    def _joined(self, several: list[Combination]) -> Iterator[Combination]:
        """Combinations of the same inputs as one; those that all members want are told apart from others."""
        if any(rows.sets is not None and rows.sets.ndim == 2 for rows in several):
            for rows in several:
                rows.sets = None if rows.sets is None else self.lineage.bits(rows.sets)
        return _joined(several)

    def _member_ends(self, rows: Combination, member: Member, known: dict[tuple[int, ...], TimesUs]) -> TimesUs:
        """Until when combinations are valid for a member: its groups count them so long."""
        windows = tuple(i.window.length_us for i in member.query.inputs)
        if windows not in known:
            ends = np.full(len(rows), FOREVER_US, np.int64)
            for i in member.query.inputs:
                if isinstance(i.source, Stream) and i.window.length_us != FOREVER_US:
                    times = self.log_of(i.alias).times(rows.ids[i.alias])
                    np.minimum(ends, times + i.window.length_us, out=ends)
            known[windows] = ends
        return known[windows]


def _joined(several: list[Combination]) -> Iterator[Combination]:
    """Combinations of the same inputs as one; those that all members want are told apart from others."""
    for has_sets in (True, False):
        alike = [rows for rows in several if (rows.sets is not None) is has_sets and len(rows)]
        if len(alike) < 2:
            yield from alike
            continue
        ids = {alias: np.concatenate([rows.ids[alias] for rows in alike]) for alias in alike[0].ids}
        starts, ends = (np.concatenate([getattr(rows, name) for rows in alike]) for name in ("starts", "ends"))
        sets = np.concatenate([rows.sets for rows in alike]) if has_sets else None
        yield Combination(ids, starts, ends, sets=sets)
