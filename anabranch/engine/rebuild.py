"""States that a box lacks: they are recomputed from their parts (002, algorithm 6), at once where the plan that gives the
results needs them, and piece by piece where only the target of a migration does.

A view holds every combination of rows of its inputs, whatever plan keeps it. So views and indexes that two plans share are
kept once, and a view that is new is completed from two sides: from the batch on in which it is begun, combinations with a
new row are kept as they arise; those of old rows alone are found by looking up, for the rows of one of its inputs (the
*seed*), the others, newest rows first: what ends before its turn comes is never recomputed. They are kept as rows of the
batch that found them. A view is begun when all that its lookups need is complete, smaller views first.

Example: batches 0 … 7 are stored, and in batch 8 a plan comes that keeps the view (a b). It is begun with `since` 8 and the
smaller input, say a, as its seed. In batch 8 the rows of a that batch 7 brought look up b, then those of batch 6, until the
pause of the migration is over. Batch 8 then brings new rows of a and b: what they find is kept as it always is. In batch 9
the seed goes on with batch 5. A combination of a row of batch 3 and one of batch 8 was found by the latter, so the seed
keeps only combinations all of whose rows came before batch 8.

On a parallel track nothing is recomputed. Views of the new plan that the old one lacks begin empty and hold combinations of
new rows alone, which is all there is when the last old row has ended. But where a shared join loses a member on the way, and
with it the window that its views were for, they are recomputed; what has old rows in it is passed over when it is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.control.records import Preparing
from anabranch.engine.arrival import delta_of, indexed_positions, order_keys, order_rows
from anabranch.engine.combination import Combination
from anabranch.engine.lineage import wanted
from anabranch.engine.log import starts_of
from anabranch.engine.reader import BoundIndex, InputState, Reader
from anabranch.engine.results import Found
from anabranch.engine.run import Words
from anabranch.engine.slices import Slice
from anabranch.engine.store import Build, Store
from anabranch.plan.identity import IndexKey, ViewKey
from anabranch.plan.join_graph import Aliases
from anabranch.plan.migration import Strategy
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Stream, Table
from anabranch.plan.routes import Index, Route, Stage

if TYPE_CHECKING:
    from anabranch.engine.box import Box

PIECE_ROWS = 1 << 14
"""So many rows of the seed are looked up at once."""


class Pause:
    """How long a batch may work at a migration: what was begun is finished, then no more is begun."""

    def __init__(self, pause_us: int | None) -> None:
        self.deadline_ns = None if pause_us is None else perf_counter_ns() + pause_us * 1000

    @property
    def is_endless(self) -> bool:
        return self.deadline_ns is None

    @property
    def is_spent(self) -> bool:
        return self.deadline_ns is not None and perf_counter_ns() >= self.deadline_ns


class Rebuild:
    """The states of a box that are not complete, and the work at them."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.done = Preparing()
        self._piece: tuple[ViewKey, Aliases, int, Combination, npt.NDArray[np.int64]] | None = None

    @property
    def _reader(self) -> Reader:
        return self.box.reader

    @property
    def _store(self) -> Store:
        return self.box.store

    # -- what is complete --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Begins anew what cannot be gone on with: a view that only the target has can be kept up to date only if what its
        lookups need is complete. Where another target came in between, that may not be so."""
        store, reader = self._store, self._reader
        served = {r.views[aliases] for r in store.readers for aliases in r.served_views}
        for aliases, key in reader.views.items():
            below = [reader.views[part] for part in _ways(self._reader, aliases) if len(part) > 1]
            if key not in served and any(part in store.waiting or part in store.builds for part in below):
                store.waiting.add(key)
            if key in store.waiting:
                store.forget_view(key)
                store.builds.pop(key, None)

    def complete_needed(self) -> None:
        """Completes the indexes that results need, and those of views that are begun, by what the reader may see. What
        others lack of them that may see more is told after that, when all have what they need (`begin_thin`)."""
        for key, index in self._reader.by_key.items():
            self._store.thin.pop(key, None)
            if self.is_needed(index):
                self.derive_index(index)

    def begin_thin(self, since: int = -1, prepared: Mapping[IndexKey, int] | None = None) -> None:
        """The other indexes are thin: they get what came after batch `since`, and the rest in time. What a gradual migration
        has come to (`prepared`) is derived at once: it is not lost when another worker gets the slot. On a parallel track
        thin indexes need no old rows, but for those of tables.

        Example: rows of s of batches 0 to 9 are stored for q, which looks them up by k. A query that came in batch 5 looks
        up those since then by j. Now q goes over to a plan that looks up s by j, too. The index is there, and lacks the
        rows of batches 0 to 4, which the other query has no use for: it is thin until they are derived."""
        store, reader, migration = self._store, self._reader, self._reader.execution.migration
        if migration is not None and (reader.execution.is_parallel or since < 0):
            # Rows that came since it began were added to thin indexes as they came.
            since = migration.since - 1
        for key, index in reader.by_key.items():
            if self.is_needed(index):
                continue
            if since >= 0:
                self.derive_index(index, after=since)
            known = (prepared or {}).get(key, -1)
            if known >= 0:
                self.derive_index(index, until=known)
            if missing := [b for b in self.missing(index) if b > known]:
                store.indexes[key].gap = missing[0], missing[-1]
                if not reader.execution.is_parallel:
                    store.thin[key] = min(known, store.thin.get(key, known))

    def is_needed(self, index: BoundIndex) -> bool:
        """Whether an index must be complete: results need it, or a view that is begun. Those of stored tables always are."""
        store, reader = self._store, self._reader
        if index.key in reader.served_indexes:
            return True
        if len(index.aliases) == 1 and isinstance(reader.input(index.aliases[0]).source, Table):
            return True
        begun = {a for a, key in reader.views.items() if key not in store.waiting and not key.since}
        stages = (stage for route in reader.target_routes for stage in route.stages)
        asked = (stage for stage in stages if stage.joined in begun - reader.served_views)
        return any(reader.index_of(probe).key == index.key for stage in asked for probe in stage.probes)

    def derive_index(
        self,
        index: BoundIndex,
        pause: Pause | None = None,
        after: int = -1,
        known: int = -1,
        until: int | None = None,
    ) -> int | None:
        """Completes an index: what no run shows of batches later than `after`, and up to `until`, is derived from the log or
        the view, batch by batch, for as long as is allowed. The batch that it came to, None if it is done. Batches up to
        `known` were derived before."""
        state = self._store.indexes[index.key]
        missing = [b for b in self.missing(index) if b > known]
        left = [b for b in missing if b > after and (until is None or b <= until)]
        state.gap = (missing[0], missing[-1]) if missing else None
        batches = [b for b in self._batches(index) if left and b >= left[0] and (until is None or b <= until)]
        for batch in batches:
            if left and batch == left[0]:
                state.restore(batch, self._ordered(index, batch), self._slices(index, batch))
                missing.remove(left.pop(0))
                state.gap = (missing[0], missing[-1]) if missing else None
            state.settle(batch, partial(self._store.ended_us, index.key))
            if pause is not None and pause.is_spent and batch != batches[-1]:
                return batch
        return None

    def missing(self, index: BoundIndex) -> list[int]:
        """The batches that an index should show and does not. (One without rows of it has no run, and is among them.)"""
        state = self._store.indexes[index.key]
        return [b for b in self._batches(index) if state.lacks(b, self._slices(index, b))]

    def _slices(self, index: BoundIndex, batch: int) -> tuple[Slice, ...]:
        """The slices of a segment that an index is over; none, if that is one of a view."""
        if len(index.aliases) > 1:
            return ()
        return self._store.logs[self._reader.input(index.aliases[0]).source.name].segments[batch].slices

    def _batches(self, index: BoundIndex) -> list[int]:
        """The batches of which an index shows rows, in order."""
        if len(index.aliases) > 1:
            return sorted(self.box.view_of(index.aliases).segments)
        i = self._reader.input(index.aliases[0])
        readers = [(self._reader, i)] if self.is_needed(index) else self._lookers(index.key)
        segments = self._store.logs[i.source.name].segments
        return sorted(b for b in segments if any(reader.is_shown(its, b) for reader, its in readers))

    def _lookers(self, key: IndexKey) -> list[tuple[Reader, InputState]]:
        """Who reads an index over a source, and as which input: a thin one is complete when it is so for all of them."""
        readers = (reader for reader in self._store.readers if key in reader.by_key)
        return [(reader, reader.input(reader.by_key[key].aliases[0])) for reader in readers]

    def _ordered(self, index: BoundIndex, batch: int) -> Words:
        """What an index shows of a batch."""
        if len(index.aliases) > 1:
            rows, positions = self.rows_in(index.aliases, batch)
            ends = self.box.kept_ends(rows)
            return order_keys(index.is_ordered, self.box.keys(index.terms, rows), positions, rows.starts, ends)
        i = self._reader.input(index.aliases[0])
        stored = self._store.logs[i.source.name].segments[batch]
        starts, positions_ = starts_of(i.source, stored.rows), indexed_positions(self._reader, i, stored)
        return order_rows(index.key, index.terms, i, stored.rows, starts, positions_)

    def rows_in(self, inputs: Aliases, batch: int) -> tuple[Combination, npt.NDArray[np.int64]]:
        """The rows of an input, or of a view, in the segment of a batch, and their positions there."""
        if len(inputs) > 1:
            return self._combined_rows(inputs, batch)
        i = self._reader.input(inputs[0])
        stored = self._store.logs[i.source.name].segments[batch]
        delta = delta_of(self._reader, i, batch, stored, starts_of(i.source, stored.rows))
        return delta.combination(batch), delta.positions

    def _combined_rows(self, inputs: Aliases, batch: int) -> tuple[Combination, npt.NDArray[np.int64]]:
        """What a batch added to a view, as far as all parts are still in their logs: the rest has ended."""
        reader, view = self._reader, self.box.view_of(inputs)
        ids = dict(zip(reader.orders[inputs], view.segments[batch].parts, strict=True))
        kept = np.ones(view.segments[batch].parts.shape[1], np.bool_)
        for alias, values in ids.items():
            if (there := self.box.log_of(alias).inside(values)) is not None:
                kept &= there
        starts, ends = np.full(int(kept.sum()), BEGINNING_US, np.int64), np.full(int(kept.sum()), FOREVER_US, np.int64)
        rows = Combination({alias: values[kept] for alias, values in ids.items()}, starts, ends)
        for alias in inputs if len(rows) else ():
            i, log = reader.input(alias), self.box.log_of(alias)
            log.check(rows.ids[alias])
            if isinstance(i.source, Stream):
                part = log.times(rows.ids[alias])
                np.maximum(starts, part, out=starts)
                if i.window_us != FOREVER_US:
                    np.minimum(ends, part + i.window_us, out=ends)
        places, passing = np.flatnonzero(kept), self.box.passing(reader.passed(inputs), rows)
        if (lineage := reader.lineage) is not None and len(rows):
            logs = {alias: self.box.log_of(alias) for alias in inputs}
            sets = lineage.combined(None, rows.ids, logs, starts, ends)
            rows.sets = lineage.of_members(sets, lineage.members_beyond(frozenset(inputs)), len(rows))
            rows.sets = lineage.in_time(rows, logs)
            if rows.sets is not None:
                passing = wanted(rows.sets) if passing is None else passing & wanted(rows.sets)
        return (rows, places) if passing is None else (rows.where(passing), places[passing])

    # -- work at what is not -----------------------------------------------------------------------------------------

    def advance(self, batch: int) -> None:
        """Completes what the plan needs to give results, and works at what its target needs for as long as is allowed."""
        began, store, reader = thread_time_ns(), self._store, self._reader
        self.done, self._piece = Preparing(), None
        steps, self.box.statistics.steps = self.box.statistics.steps, []
        missing = {a for a, key in reader.views.items() if key in store.waiting or key in store.builds}
        if missing & reader.served_views or (missing and reader.execution.is_parallel):
            wanted = frozenset(reader.views) if reader.execution.is_parallel else reader.served_views
            self._complete(batch, Pause(None), wanted)
        elif (migration := reader.execution.migration) is not None and migration.strategy is Strategy.GRADUAL:
            pause = Pause(migration.pause_us)
            if self._complete_thin(pause):
                self._complete(batch, pause, frozenset(reader.views))
        self.box.statistics.steps = steps
        self.done.cpu_ns = thread_time_ns() - began

    def left(self) -> int:
        """What must still be done, or end, before the target can take over: views, indexes, or segments of old rows."""
        store, reader, migration = self._store, self._reader, self._reader.execution.migration
        if migration is not None and migration.strategy is Strategy.PARALLEL_TRACK:
            return store.old_segments(reader, migration.since)
        views = sum(key in store.waiting or key in store.builds for key in reader.views.values())
        return views + sum(key in store.thin for key in reader.by_key)

    def _complete_thin(self, pause: Pause) -> bool:
        thin = self._store.thin
        for key in sorted((key for key in self._reader.by_key if key in thin), key=str):
            self.done.pieces += 1
            came_to = self.derive_index(self._reader.by_key[key], pause, thin[key], thin[key])
            if came_to is not None:
                thin[key] = came_to
                return False
            del thin[key]
            if pause.is_spent:
                return False
        return True

    def _complete(self, batch: int, pause: Pause, wanted: frozenset[Aliases]) -> None:
        store = self._store
        for aliases, key in self._reader.views.items():
            if aliases not in wanted:
                continue
            if key in store.waiting:
                store.builds[key] = self._begin(aliases, batch)
                store.waiting.discard(key)
            if key in store.builds:
                self._recompute(aliases, batch, pause)
                if key in store.builds or pause.is_spent:
                    return

    def _begin(self, aliases: Aliases, batch: int) -> Build:
        """The rows of the smallest input look up the others."""
        seed = min(_ways(self._reader, aliases), key=lambda inputs: (self._rows(inputs), inputs))
        # A view that was completed just now has what was recomputed in the segment of this batch; and so has a table that
        # was read just now.
        is_old = len(seed) == 1 and isinstance(self._reader.input(seed[0]).source, Stream)
        return Build(batch, _places(self._reader, aliases, seed), batch - 1 if is_old else batch)

    def _rows(self, inputs: Aliases) -> int:
        return self.box.view_of(inputs).rows if len(inputs) > 1 else self.box.log_of(inputs[0]).rows

    def _recompute(self, aliases: Aliases, batch: int, pause: Pause) -> None:
        """Finds combinations of old rows (002, algorithm 6), piece by piece, until all are found or time is up."""
        store, key = self._store, self._reader.views[aliases]
        build, horizon_us = store.builds[key], store.least_us(self._reader.viewers(aliases))
        seeds = {_places(self._reader, aliases, inputs): inputs for inputs in _ways(self._reader, aliases)}
        if build.seed not in seeds:
            # The view was begun for another plan, which joins its inputs in another way: a reader that goes to that plan
            # completes it; if there is none, it is begun anew.
            if not pause.is_endless and self._is_of_another(key, build):
                return
            store.forget_view(key)
            build = store.builds[key] = self._begin(aliases, batch)
        seed = seeds[build.seed]
        route, stage = _ways(self._reader, aliases)[seed]
        while (rows := self._next_piece(key, build, seed)) is not None:
            # What has ended is of no use, and may be gone from its log: rows meet only what is still valid.
            rows = rows.where(rows.ends > horizon_us)
            rows.starts = np.maximum(rows.starts, horizon_us)
            for combined in self.box.stage(route, stage, rows):
                old = ~self._is_new(combined, build.since, np.logical_or)
                kept = combined if old.all() else combined.where(old)
                # Several readers may work at one view, also in one batch; each piece is one's alone.
                self.box.add(batch, stage, kept)
                self.done.rows += len(kept)
            self.done.pieces += 1
            if pause.is_spent:
                break
        if not self._segments(build, seed):
            del store.builds[key]

    def _is_of_another(self, key: ViewKey, build: Build) -> bool:
        """Whether another reader of a view goes on with what was begun. Two that each began anew would never end."""
        others = (reader for reader in self._store.readers if reader is not self._reader)
        return any(
            own == key and build.seed in (_places(reader, aliases, inputs) for inputs in _ways(reader, aliases))
            for reader in others
            for aliases, own in reader.views.items()
        )

    def _segments(self, build: Build, seed: Aliases) -> list[int]:
        """The segments of the seed that have rows to be looked up, the newest first."""
        if len(seed) > 1:
            known = list(self.box.view_of(seed).segments)
        else:
            i = self._reader.input(seed[0])
            known = [b for b in self._store.logs[i.source.name].segments if self._reader.is_shown(i, b)]
        return sorted((b for b in known if b < build.batch or (b == build.batch and build.row != 0)), reverse=True)

    def _next_piece(self, key: ViewKey, build: Build, seed: Aliases) -> Combination | None:
        segments = self._segments(build, seed)
        if not segments:
            return None
        if segments[0] != build.batch:
            build.batch, build.row = segments[0], -1
        if self._piece is None or self._piece[:3] != (key, seed, build.batch):
            self._piece = (key, seed, build.batch, *self.rows_in(seed, build.batch))
        rows, positions = self._piece[3:]
        last = len(rows) if build.row < 0 else int(np.searchsorted(positions, build.row))
        first = max(0, last - PIECE_ROWS)
        build.row = int(positions[first]) if first else 0
        return rows.slice(first, last)

    # -- new rows ----------------------------------------------------------------------------------------------------

    def follow(
        self, route: Route, rows: Combination, known: dict[Aliases, list[Combination]], emit: bool
    ) -> Iterator[Found]:
        """Takes new rows of an input along their route in the target: its views are kept, and on a parallel track results
        are given. `known` is what the plan that serves found for these rows, by the view it stands in: from there the route
        goes on."""
        migration = self._reader.execution.migration
        assert migration is not None
        since = migration.since if self._reader.execution.is_parallel else None
        yield from self._follow(route, 0, rows, since, emit)
        for place, stage in enumerate(route.stages):
            if stage.joined in self._reader.served_views:
                for part in known.get(stage.joined, []):
                    yield from self._follow(route, place + 1, self.new_only(part, since), since, emit)

    def _follow(
        self, route: Route, place: int, rows: Combination, since: int | None, emit: bool
    ) -> Iterator[Found]:
        """Takes rows through the stages of a route from `place` on, up to one whose rows are known or not kept yet."""
        if place == len(route.stages):
            return
        stage, reader = route.stages[place], self._reader
        if stage.joined in reader.served_views or reader.views.get(stage.joined) in self._store.waiting:
            return
        if stage.is_root and (since is None or not emit):
            return
        if stage.is_root and self.box.counts(route):
            yield from self.box.directed(route, stage, rows, since)
            return
        for combined in self.box.stage(route, stage, rows, since):
            if stage.is_root:
                yield from self.box.emit(combined, emit)
            else:
                self.box.keep(self.box.arrival.batch, stage, combined)
                yield from self._follow(route, place + 1, combined, since, emit)

    def new_only(self, rows: Combination, since: int | None) -> Combination:
        """The combinations of rows that came since a migration began."""
        if since is None or not len(rows):
            return rows
        new = self._is_new(rows, since, np.logical_and)
        return rows if new.all() else rows.where(new)

    def old_at_root(self, rows: Combination) -> Combination:
        """What the old plan of a parallel track gives: combinations that have an old row. Those of new rows alone are found
        by the new one too; before the root they cannot be told from those that will meet an old row (002, section
        12.2.2)."""
        migration = self._reader.execution.migration
        if migration is None or not self._reader.execution.is_parallel or not len(rows):
            return rows
        old = ~self._is_new(rows, migration.since, np.logical_and)
        return rows if old.all() else rows.where(old)

    def _is_new(self, rows: Combination, since: int, how: np.ufunc) -> npt.NDArray[np.bool_]:
        """Whether all (or any) rows of streams came in batch `since` or later. Rows of stored tables count for neither."""
        limit, found = since << 32, None
        for alias, ids in rows.ids.items():
            if isinstance(self._reader.input(alias).source, Stream):
                found = ids >= limit if found is None else how(found, ids >= limit)
        return np.full(len(rows), how is np.logical_and) if found is None else found


def _ways(reader: Reader, aliases: Aliases) -> dict[Aliases, tuple[Route, Stage]]:
    """From which inputs of a view its rows can be found, and by which lookups."""
    found = dict[Aliases, tuple[Route, Stage]]()
    for route in reader.routes if aliases in reader.served_views else reader.target_routes:
        bound: Aliases = (route.alias,)
        for stage in route.stages:
            if stage.joined == aliases:
                found[bound] = (route, stage)
            bound = stage.joined
    return found


def _places(reader: Reader, aliases: Aliases, inputs: Aliases) -> tuple[int, ...]:
    """Inputs of a view as places in its key."""
    return tuple(sorted(reader.orders[aliases].index(alias) for alias in inputs))


def hand_over(store: Store, old: Reader, new: Reader) -> dict[ViewKey, ViewKey]:
    """Has states of one execution serve the next where only their keys differ (*state moving*: 002, section 12.1.2): views
    whose parallel track has ended, or whose selects stand elsewhere now; and indexes over these. The new keys of views, and
    the old ones."""
    found: dict[ViewKey, ViewKey] = {}
    for aliases, key in new.views.items():
        before = old.views.get(aliases)
        if key in store.views or before is None or before not in store.views:
            continue
        is_same = replace(before, owner=key.owner, since=key.since, wanted=key.wanted) == key
        # Of a member that comes now, no row is stored yet.
        wanted = {each for each in key.wanted if each.since <= store.newest}
        has_all = not before.wanted or (bool(key.wanted) and set(before.wanted) >= wanted)
        if not is_same or not has_all:
            continue
        least_us = store.least_us(new.viewers(aliases))
        if before.since == key.since or (not key.since and store.is_over(before, least_us)):
            store.inherit_view(before, key)
            found[key] = before
    for index, bound in new.indexes.items():
        if bound.key not in store.indexes and (known := _like(store, index, old, new, found)) is not None:
            is_shared = any(known in reader.by_key for reader in store.readers if reader is not old)
            store.take_over(known, bound.key, is_shared)
    return found


def _like(
    store: Store, index: Index, old: Reader, new: Reader, views: Mapping[ViewKey, ViewKey]
) -> IndexKey | None:
    """The index of another execution that can be taken over: one whose rows have passed the same selects; or more, for rows
    that are missing would not pass them later (002, section 13.3.2). All that is stored and has not ended at the horizon has
    passed the selects that are down by then. An index over a source must have served this input alone, and one over a view
    must be of the same view, or of one whose rows serve as those of the new one (`views`): not where somebody else has
    that."""
    bound = old.indexes.get(index)
    if bound is None or bound.key not in store.indexes or bound.key in new.by_key:
        return None
    is_down = {s.predicate for s in old.selects if s.until_us is not None and s.until_us <= store.horizons[new.name]}
    if not old.open_selects(index.state) - is_down <= new.open_selects(index.state):
        return None
    if len(index.state) > 1:
        view, before = new.views[index.state], old.views[index.state]
        return bound.key if view in store.views and views.get(view, view) == before else None
    if old.lineage is not None or new.lineage is not None:
        return None  # a shared join indexes rows that some of its members would not
    source = new.input(index.state[0]).source.name
    others = [i for reader in store.readers if reader is not old for i in reader.inputs_over(source)]
    return None if others or len(new.inputs_over(source)) > 1 else bound.key
