"""New rows come in: once for each source and batch, whoever reads them.

The rows of a batch are brought into their declared types, and rows that no reader accepts are turned away. What some reader
will need later is appended to the log, and each index over the source gets a run of it. Each input of each reader gets a
*delta*: the rows that are new to it.

Example: q joins s and t, p joins s and u, and the watermark of p is ahead. A row of s that is late for p and not for q is
stored. Both find it in the index over s; p passes it over, for the segment tells p's watermark (`Stored.watermarks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from time import thread_time_ns
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import SourceStatistics
from anabranch.engine.accept import Rows, accept, conform
from anabranch.engine.blame import errors_of
from anabranch.engine.cells import member_mask
from anabranch.engine.combination import Delta
from anabranch.engine.expressions import predicate_mask
from anabranch.engine.freshness import count_between, useful_from_us
from anabranch.engine.kernels.runs import sort_by_hash
from anabranch.engine.keys import hash_keys
from anabranch.engine.limits import NO_LIMITS, Limits
from anabranch.engine.lineage import NOBODY, Numbers
from anabranch.engine.log import Stored, decode, encode, starts_of
from anabranch.engine.ordering import keyed_words, ordered_words, sort_by_word
from anabranch.engine.reader import InputState, Reader, values_of
from anabranch.engine.run import Words
from anabranch.engine.slices import BETWEEN, Unwanted, coarse_windows, cut, lagging
from anabranch.engine.store import Store, readers_of
from anabranch.plan.expression import Column, Expr
from anabranch.plan.identity import IndexKey, RowsKey
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Derived, Stream, Table

Mask = npt.NDArray[np.bool_]

MOST_COUNTED = 32
"""Rows are counted by at most so many lengths of time for which they are wanted."""


@dataclass
class Arrival:
    """What a batch brings to a slot."""

    batch: int
    planned_us: int = FOREVER_US
    """The driver's clock by which rows are early."""
    limits: Limits = NO_LIMITS
    clocks_us: Mapping[str, int] = field(default_factory=dict)
    """By query, the clock by which rows may be too old for its results."""
    deltas: dict[tuple[str, str], Delta] = field(default_factory=dict)
    """The new rows of each input, by its reader and its alias."""
    sorted_rows: dict[IndexKey, Words] = field(default_factory=dict)
    """New rows as indexes have them, in the order of their keys."""
    sorted_windows_us: dict[IndexKey, int] = field(default_factory=dict)
    """By which window their ends are told."""
    cpu_ns: dict[str, int] = field(default_factory=dict)
    counts: dict[tuple[str, str], SourceStatistics] = field(default_factory=dict)
    """What came of each source, by the query that counts it and the source."""
    brought: Mapping[str, Rows] = field(default_factory=dict)
    """The rows of sources as they came, where those that are taken in were made of them: these are counted, and their times
    move the watermark."""

    def take(self, store: Store, source: Stream | Table, rows: Rows, watermarks: Mapping[str, int]) -> None:
        """Takes in the rows of a source; `watermarks` has those of the queries: queries that share a join have the same."""
        began, readers = thread_time_ns(), [r for r in readers_of(store.readers, source.name) if r.is_open(source)]
        if not readers:
            return
        # Groups of a subquery are never late, nor early: they are results.
        is_timed = isinstance(source, Stream) and not isinstance(source, Derived)
        over = {q: r for r in readers[::-1] for q in r.queries_over(source.name)}
        limits = {q: watermarks[q] if is_timed else BEGINNING_US for q in over}
        early_us = source.early_after_us(self.planned_us) if is_timed and isinstance(source, Stream) else FOREVER_US
        least_us = min(limits.values())
        columns = store.read_columns(source)
        given = conform(source, rows, columns)
        accepted = came = accept(source, given, columns, least_us, early_us)
        starts, stored = starts_of(source, accepted.rows), accepted.rows
        came_starts = starts
        if (brought := self.brought.get(source.name)) is not None:
            given = conform(source, brought, tuple(brought.schema.names))
            came = accept(source, given, tuple(brought.schema.names), least_us, early_us)
            came_starts = starts_of(source, came.rows)
        useful_us = useful_from_us(source.name, readers, self.clocks_us) if is_timed else BEGINNING_US
        largest_us = None if isinstance(source, Derived) else came.largest_time_us
        known: dict[tuple[str, int], Seen] = {}
        for query, limit_us in limits.items():
            reader = over[query]
            if (key := (reader.name, limit_us)) not in known:  # members of a shared join over the same streams count alike
                late = came.late + (int((came_starts < limit_us).sum()) if limit_us > least_us else 0)
                own_us = useful_from_us(source.name, [reader], self.clocks_us) if is_timed else BEGINNING_US
                stale = count_between(came_starts, limit_us, own_us)
                seen = Seen(came.seen, late, came.early, came.untimed, stale)
                i = reader.inputs_over(source.name)[0]
                known[key] = own_rows(reader, i, given, seen, limit_us, early_us, own_us)
            counts = SourceStatistics(*known[key], largest_time_us=largest_us)
            if isinstance(source, Derived) and (before := self.counts.get((query, source.name))) is not None:
                counts.rows, counts.stored_rows = counts.rows + before.rows, before.stored_rows  # they come in pieces
            self.counts[query, source.name] = counts
        if useful_us > least_us and not (useful := starts >= useful_us).all():
            stored, starts = stored.filter(pa.array(useful)), starts[useful]
        self._admit(store, source, stored, starts, readers, limits, began)

    def count_dropped(self, store: Store) -> None:
        """Counts rows that were shed before they came."""
        for source, dropped in self.limits.dropped.items():
            for query in {q for reader in readers_of(store.readers, source) for q in reader.queries_over(source)}:
                counts = self.counts.setdefault((query, source), SourceStatistics())
                counts.rows += dropped.rows
                counts.shed_rows += dropped.rows
                times = [us for us in (counts.largest_time_us, dropped.largest_time_us) if us is not None]
                counts.largest_time_us = max(times, default=None)

    def _admit(
        self,
        store: Store,
        source: Stream | Table,
        rows: pa.RecordBatch,
        starts: npt.NDArray[np.int64],
        readers: list[Reader],
        limits: Mapping[str, int],
        began: int,
    ) -> None:
        """Stores what readers keep, and hands each what is new to it."""
        known: dict[tuple[frozenset[str], int], Mask | None] = {}
        least_us = min(limits.values())
        passing: list[tuple[Reader, InputState, Mask | None]] = []
        kept: list[tuple[Reader, InputState, Mask | None]] = []
        sets: dict[tuple[str, str], Numbers | None] = {}
        for reader in readers:
            for i in reader.inputs_over(source.name):
                asked = (frozenset(i.asked), least_us if has_late(reader, i) else limits[reader.query])
                if asked not in known:
                    with errors_of(reader.query):
                        mask = mask_of(tuple(i.asked.values()), rows)
                    if asked[1] > least_us:
                        mask = both(mask, starts >= asked[1])
                    known[asked] = None if mask is None or mask.all() else mask
                mask = known[asked]
                if reader.lineage is not None:
                    late_us = {by: limits[query] for query, by in reader.queries_over(source.name).items()}
                    numbers = reader.lineage.number(i.alias, self.batch, rows, (), starts, late_us)
                    sets[reader.name, i.alias] = numbers
                    if numbers is not None:
                        mask = both(mask, numbers != NOBODY)
                (kept if reader.keeps(i) else passing).append((reader, i, mask))
        for reader, i, mask in passing:
            self._pass(reader, i, rows if mask is None else rows.filter(pa.array(mask)))
        if kept:
            self._store(store, source, rows, starts, kept, limits, began, sets)
        else:
            self._spent("accept", began)

    def _store(
        self,
        store: Store,
        source: Stream | Table,
        rows: pa.RecordBatch,
        starts: npt.NDArray[np.int64],
        kept: list[tuple[Reader, InputState, Mask | None]],
        limits: Mapping[str, int],
        began: int,
        sets: Mapping[tuple[str, str], Numbers | None],
        is_new: bool = True,
    ) -> None:
        """`sets` are of rows of shared joins, by reader and input."""
        wanted: Mask | None = None
        for _, _, mask in kept:
            if mask is None:
                wanted = None
                break
            wanted = mask if wanted is None else wanted | mask
        if wanted is not None:
            rows, starts = rows.filter(pa.array(wanted)), starts[wanted]
        if not rows.num_rows:
            self._spent("accept", began)
            return
        log, limits_us = store.logs[source.name], store.slices[source.name]
        windows_us = store.windows[source.name]
        kept_us = self._kept_us(windows_us, kept, sets, wanted, len(starts)) if len(windows_us) > 1 else None
        if is_new and len(windows_us) > 1:
            self._count_wanted(source.name, kept[0][0].query, kept_us, windows_us, len(starts))
        unwanted = None
        if isinstance(source, Stream) and (ending_us := [us for us in windows_us if us != FOREVER_US]):
            by = {by: limits[q] for reader, _, _ in kept for q, by in reader.queries_over(source.name).items()}
            classes = lagging(by, int(starts.max()), ending_us[-1])
            unwanted = self._unwanted(classes, kept, sets, wanted, len(starts)) if classes else None
        order, slices = cut(kept_us, limits_us, starts, unwanted, partial(store.over_us, source.name))
        places = None if wanted is None else np.flatnonzero(wanted)
        if order is not None:
            rows, starts, places = rows.take(pa.array(order)), starts[order], order if places is None else places[order]
        self._spent("accept", began)
        began = thread_time_ns()
        data = encode(rows.select(log.schema.names))
        passed = frozenset.intersection(*(frozenset(i.asked) for _, i, _ in kept))
        late: dict[str, int] = {}
        if len(set(limits.values())) > 1:
            least_us = int(starts.min())
            for reader, _, _ in kept:
                for query, streams in reader.queries_over(source.name).items():
                    if least_us < (limit_us := limits[query]):
                        late[streams] = limit_us
        kept_share = self.limits.kept.get(source.name, 1.0)
        stored_rows = Stored(
            data, decode(data), int(starts.max()), passed=passed, watermarks=late, slices=slices, kept=kept_share
        )
        log.add(self.batch, stored_rows)
        for reader, i, _ in kept:
            if reader.lineage is not None:
                numbers = sets[reader.name, i.alias]
                stored = numbers if numbers is None or places is None else numbers[places]
                reader.lineage.learn(i.alias, self.batch, stored)
        if is_new:
            self.index(store, source, [(reader, i) for reader, i, _ in kept])
        self._spent("index", began)

    def _kept_us(
        self,
        windows_us: tuple[int, ...],
        kept: list[tuple[Reader, InputState, Mask | None]],
        sets: Mapping[tuple[str, str], Numbers | None],
        wanted: Mask | None,
        count: int,
    ) -> npt.NDArray[np.int64] | None:
        """For how long each of the rows that are `wanted` is of use to somebody; None: as long as any."""
        found = np.zeros(count, np.int64)
        for reader, i, mask in kept:
            numbers = sets.get((reader.name, i.alias))
            own = mask if mask is None or wanted is None else mask[wanted]
            if reader.lineage is not None and numbers is not None:
                windows = reader.lineage.longest_us(i.alias, numbers if wanted is None else numbers[wanted])
                np.maximum(found, windows if own is None else np.where(own, windows, 0), out=found)
            elif own is None and i.window_us >= windows_us[-1]:
                return None
            else:
                np.maximum(found, i.window_us, out=found, where=True if own is None else own)
        return found

    def _unwanted(
        self,
        classes: list[tuple[str, ...]],
        kept: list[tuple[Reader, InputState, Mask | None]],
        sets: Mapping[tuple[str, str], Numbers | None],
        wanted: Mask | None,
        count: int,
    ) -> Unwanted | None:
        """Which watermarks that lag each of the rows that are `wanted` need not wait for; None: they wait for all."""
        known = {streams: 1 << place for place, several in enumerate(classes) for streams in several}
        found = np.zeros(count, np.int64)
        for reader, i, mask in kept:
            numbers, own = sets.get((reader.name, i.alias)), mask if mask is None or wanted is None else mask[wanted]
            if reader.lineage is not None and numbers is not None:
                bits = reader.lineage.watermarks(i.alias, numbers if wanted is None else numbers[wanted], known)
            else:
                several = (known.get(each.streams, 0) for each in reader.keepers(i))
                bits = np.full(count, reduce(or_, several, 0), np.int64)
            found |= bits if own is None else np.where(own, bits, 0)  # what all members ask, sets do not tell
        first_of = [(bits & -bits).bit_length() - 1 if bits else len(classes) for bits in range(1 << len(classes))]
        places = np.array(first_of)[found]
        if not places.any():
            return None
        behind = [sorted(sum(classes[:place], ())) for place in range(len(classes) + 1)]
        return Unwanted(tuple(BETWEEN.join(each) for each in behind), places)

    def _count_wanted(
        self, source: str, query: str, kept_us: npt.NDArray[np.int64] | None, windows_us: tuple[int, ...], count: int
    ) -> None:
        """Counts rows of a source by how long somebody wants them: told of the query that counts the source first, by the
        shortest of `MOST_COUNTED` lengths that is as long."""
        told_us = windows_us if len(windows_us) <= MOST_COUNTED else coarse_windows(windows_us, MOST_COUNTED)
        if kept_us is None:
            found = {told_us[-1]: count}
        else:
            counts = np.bincount(np.searchsorted(np.array(told_us, np.int64), kept_us), minlength=len(told_us))
            found = {us: int(rows) for us, rows in zip(told_us, counts.tolist(), strict=True) if rows}
        self.counts[query, source].wanted_rows = found

    def store_table(self, store: Store, source: Stream | Table, rows: Rows) -> None:
        """Stores the rows of a table that was read again; nobody follows them, and indexes are derived from the log."""
        accepted = accept(source, rows, store.read_columns(source), BEGINNING_US)
        readers = readers_of(store.readers, source.name)
        for reader in readers:
            self.counts[reader.query, source.name] = SourceStatistics()
        kept = [
            (r, i, mask_of(tuple(i.asked.values()), accepted.rows)) for r in readers for i in r.inputs_over(source.name)
        ]
        starts = starts_of(source, accepted.rows)
        self._store(store, source, accepted.rows, starts, kept, {}, thread_time_ns(), {}, is_new=False)

    def _spent(self, what: str, began_ns: int) -> None:
        self.cpu_ns[what] = self.cpu_ns.get(what, 0) + thread_time_ns() - began_ns

    def index(self, store: Store, source: Stream | Table, readers: list[tuple[Reader, InputState]]) -> None:
        """Has indexes show the segment of this batch, and readers follow it."""
        log = store.logs[source.name]
        stored = log.segments[self.batch]
        starts = starts_of(source, stored.rows)
        members: dict[RowsKey, npt.NDArray[np.int64] | None] = {}
        for other in readers_of(store.readers, source.name):  # also those whose rows these are not, and who find them
            other.watch(source.name, self.batch, stored)
        for reader, i in readers:
            delta = self.deltas[reader.name, i.alias] = delta_of(reader, i, self.batch, stored, starts)
            for query, wanted in self._wanted(reader, delta).items():
                counts = self.counts[query, source.name]
                counts.stored_rows = max(counts.stored_rows, wanted)
        for key in store.source_indexes(source.name):
            assert isinstance(key.rows, RowsKey)
            bound = next(((r, r.by_key[key]) for r in store.readers if key in r.by_key and r.is_open(source)), None)
            if bound is None or (isinstance(source, Table) and key.rows.version != self.batch):
                continue
            reader, index = bound
            i = reader.input(index.aliases[0])
            if key.rows not in members:
                members[key.rows] = indexed_positions(reader, i, stored)
            ordered = order_rows(key, index.terms, i, stored.rows, starts, members[key.rows])
            store.indexes[key].arrive(self.batch, ordered, stored.slices)
            self.sorted_rows[key] = ordered
            self.sorted_windows_us[key] = i.window_us

    def _wanted(self, reader: Reader, delta: Delta) -> dict[str, int]:
        """How many new rows each query wants. A lead counts what its shared join wants: plans are chosen by that."""
        over = reader.queries_over(reader.input(delta.alias).source.name)
        found = dict.fromkeys(over, len(delta.starts))
        if reader.lineage is not None and delta.sets is not None:
            counts = np.bincount(delta.sets)
            there = np.flatnonzero(counts)
            rows = counts[there] @ reader.lineage.sets.members(there, len(reader.queries))
            found |= {q: n for q, n in zip(reader.queries[1:], rows[1:].tolist(), strict=True) if q in found}
        return found

    def _pass(self, reader: Reader, i: InputState, rows: pa.RecordBatch) -> None:
        """Rows that are of no use after their batch."""
        if i.source.name in reader.place.parted:
            rows = rows.filter(pa.array(members_of(reader, i, rows)))
        counts = self.counts[reader.query, i.source.name]
        counts.stored_rows = rows.num_rows + (counts.stored_rows if isinstance(i.source, Derived) else 0)
        if not rows.num_rows:
            return
        needed = reader.stored_columns(i.source) | ({i.source.time} if isinstance(i.source, Stream) else set())
        rows = rows.select([name for name in rows.schema.names if name in needed])
        if i.alias == reader.passing:
            rows = reader.keep_for_now(self.batch, rows)
        starts = starts_of(i.source, rows)
        self.deltas[reader.name, i.alias] = Delta(i.alias, rows, np.arange(len(starts)), starts, ends_of(i, starts))


class Seen(NamedTuple):
    """How many rows of a source came, and how many of these were turned away, and why."""

    rows: int
    late: int
    early: int
    untimed: int
    stale: int


def own_rows(
    reader: Reader,
    i: InputState,
    rows: pa.RecordBatch,
    seen: Seen,
    watermark_us: int,
    early_after_us: int,
    useful_us: int = BEGINNING_US,
) -> Seen:
    """What a slot counts of the rows that came to it: a row that goes to several slots is counted in the first of those that
    it goes to for the sake of an input."""
    grid, cell = reader.place.grid, reader.place.cell
    if isinstance(i.source, Derived):
        return seen
    if not grid.is_first(cell, i.alias):
        return Seen(0, 0, 0, 0, 0)
    if i.source.name not in reader.place.parted:
        return seen
    mine = members_of(reader, i, rows)
    if not isinstance(i.source, Stream):
        return Seen(int(mine.sum()), 0, 0, 0, 0)
    times = rows.column(rows.schema.get_field_index(i.source.time)).filter(pa.array(mine))
    times_us = times.drop_null().view(pa.int64()).to_numpy()
    early = int((times_us > early_after_us).sum())
    stale = count_between(times_us, watermark_us, useful_us)
    return Seen(len(times), int((times_us < watermark_us).sum()), early, times.null_count, stale)


def delta_of(reader: Reader, i: InputState, batch: int, stored: Stored, starts: npt.NDArray[np.int64]) -> Delta:
    """The rows of the segment of a batch that are those of an input."""
    if not reader.is_shown(i, batch):
        return Delta(i.alias, stored.rows, np.empty(0, np.int64), starts[:0], starts[:0])
    mask = mask_of(tuple(f for text, f in i.seen.items() if text not in stored.passed), stored.rows)
    if i.source.name in reader.place.parted:
        mask = both(mask, members_of(reader, i, stored.rows))
    if (limit_us := reader.late_us(i.alias, stored)) is not None:
        mask = both(mask, starts >= limit_us)
    sets = reader.lineage.of_segment(i.alias, batch, stored) if reader.lineage is not None else None
    if sets is not None:
        mask = both(mask, sets != NOBODY)
    positions = np.arange(stored.rows.num_rows, dtype=np.int64)
    if mask is not None and not mask.all():
        positions = np.flatnonzero(mask)
        starts, sets = starts[positions], None if sets is None else sets[positions]
    return Delta(i.alias, stored.rows, positions, starts, ends_of(i, starts), sets)


def has_late(reader: Reader, i: InputState) -> bool:
    """Whether sets tell for which members of a shared join rows of an input are late."""
    return reader.lineage is not None and reader.lineage.tells_late(i.alias)


def indexed_positions(reader: Reader, i: InputState, stored: Stored) -> npt.NDArray[np.int64] | None:
    """Where the rows of a segment stand that an index over an input shows; None if all are."""
    mask = mask_of(tuple(f for text, f in i.indexed.items() if text not in stored.passed), stored.rows)
    if i.source.name in reader.place.parted:
        mask = both(mask, members_of(reader, i, stored.rows))
    return None if mask is None or mask.all() else np.flatnonzero(mask)


def order_rows(
    key: IndexKey,
    terms: tuple[Expr, ...],
    i: InputState,
    rows: pa.RecordBatch,
    starts: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64] | None,
) -> Words:
    """Rows of a segment in the order of an index; they end as those of an input do."""
    if positions is not None:
        rows, starts = rows.take(pa.array(positions)), starts[positions]
    else:
        positions = np.arange(rows.num_rows, dtype=np.int64)
    return order_keys(key.is_ordered, values_of(terms, rows), positions, starts, ends_of(i, starts))


def order_keys(
    is_ordered: bool,
    keys: list[pa.Array],
    positions: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> Words:
    """Rows in the order of the hash of their key; or of the key itself. Those with a NULL in it are left out."""
    if any(k.null_count for k in keys):
        valid = np.logical_and.reduce([k.is_valid().to_numpy(zero_copy_only=False) for k in keys])
        keys = [k.filter(pa.array(valid)) for k in keys]
        positions, starts, ends = positions[valid], starts[valid], ends[valid]
    ordered: Words
    if is_ordered:
        *others, term = keys
        words = ordered_words(term)
        if others:
            words = keyed_words(hash_keys(others, len(starts)), words, term.type)
        ordered = sort_by_word(words, positions, starts, ends)
    else:
        ordered = sort_by_hash(hash_keys(keys, len(starts)), positions, starts, ends)
    return ordered


def mask_of(filters: tuple[Expr, ...], rows: pa.RecordBatch) -> Mask | None:
    return predicate_mask(filters, lambda c: rows.column(rows.schema.get_field_index(c.name)), rows.num_rows)


def members_of(reader: Reader, i: InputState, rows: pa.RecordBatch) -> Mask:
    """Which rows are in this cell for the sake of an input: others came for another input over the same source."""

    def fetch(column: Column) -> pa.Array:
        return rows.column(rows.schema.get_field_index(column.name))

    times = pa.array(starts_of(i.source, rows))
    return member_mask(reader.place.grid, reader.place.cell, i.alias, fetch, times, rows.num_rows)


def both(one: Mask | None, other: Mask) -> Mask:
    return other if one is None else one & other


def ends_of(i: InputState, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.full(len(starts), FOREVER_US, np.int64) if i.window_us == FOREVER_US else starts + i.window_us
