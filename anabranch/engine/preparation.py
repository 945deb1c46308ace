"""What a box does for the states that a plan lacks: they are recomputed from their parts (002, algorithm 6), at once where
the plan that gives the results needs them, and piece by piece where only the target of a migration does.

A view holds every combination of rows of its inputs, whatever plan keeps it. So views and indexes that two plans share are
kept once, and a view that is new is completed from two sides: from the batch on in which it is begun, combinations with a
new row are kept as they arise; those of old rows alone are found by looking up, for the rows of one of its inputs, the
others, newest rows first: what ends before its turn comes is never recomputed. They are kept as rows of the batch that
found them. A view is begun when all that its lookups need is complete, smaller views first.

On a parallel track nothing is recomputed. Views of the new plan that the old one lacks begin empty and hold combinations of
new rows alone, which is all there is when the last old row has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import Preparing, ViewBuild
from anabranch.engine.combination import Combination
from anabranch.plan.join_graph import Aliases
from anabranch.plan.migration import Strategy
from anabranch.plan.query import Stream, Table
from anabranch.plan.routes import Route, Stage

if TYPE_CHECKING:
    from anabranch.engine.box import Box

PIECE_ROWS = 1 << 14
"""So many rows of the seed are looked up at once."""


class Allowance:
    """How long a batch may work at a migration: what was begun is finished, then no more is begun."""

    def __init__(self, pause_us: int | None) -> None:
        self.deadline_ns = None if pause_us is None else perf_counter_ns() + pause_us * 1000

    @property
    def is_spent(self) -> bool:
        return self.deadline_ns is not None and perf_counter_ns() >= self.deadline_ns


@dataclass
class Build:
    """How far a view is recomputed: see `ViewBuild`."""

    since: int
    seed: Aliases
    """The inputs whose rows look up the others."""
    batch: int
    row: int = -1

    def record(self, view: Aliases) -> ViewBuild:
        return ViewBuild(" ".join(view), self.since, " ".join(self.seed), self.batch, self.row)


class Preparation:
    """The states of a box that are not complete, and the work at them."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.waiting: set[Aliases] = set()
        """Views that are not begun: they are empty, and nothing is kept in them."""
        self.builds: dict[Aliases, Build] = {}
        self.thin: dict[str, int] = {}
        """Indexes that only the target needs and that show old rows up to some batch; rows that come are added to them."""
        self.done = Preparing()
        self._piece: tuple[Aliases, int, Combination, npt.NDArray[np.int64]] | None = None

    # -- what is complete --------------------------------------------------------------------------------------------

    def lacks(self, views: set[Aliases], builds: dict[Aliases, Build]) -> None:
        """Says which views are not there, and which are in part. The others are complete.

        A view that only the target has can be kept up to date only if what its lookups need is complete. Where another
        target came in between, that may not be so: then it is begun anew."""
        state = self.box.state
        self.waiting, self.builds = set(views), dict(builds)
        for aliases in state.views:
            if aliases not in state.served_views and any(
                below in self.waiting or below in self.builds for below in self._ways(aliases)
            ):
                self.waiting.add(aliases)
        for aliases in self.waiting:
            state.forget_view(aliases)
            self.builds.pop(aliases, None)

    def kept_views(self) -> list[Aliases]:
        return [aliases for aliases in self.box.state.views if aliases not in self.waiting]

    def records(self) -> tuple[ViewBuild, ...]:
        """What a commit must name beside the views."""
        migration, found = self.box.execution.migration, [b.record(v) for v, b in self.builds.items()]
        if migration is not None:
            found += [ViewBuild(" ".join(v), migration.since) for v in sorted(self.parallel_views())]
        return tuple(found)

    def all_derived(self) -> None:
        """All state was derived from the logs."""
        self.waiting, self.builds, self.thin, self._piece = set(), {}, {}, None

    def prepared_indexes(self, batch: int) -> dict[str, int]:
        """The indexes that only the target of a gradual migration needs, and the batch up to which each has been derived."""
        migration, state = self.box.execution.migration, self.box.state
        if migration is None or migration.strategy is not Strategy.GRADUAL:
            return {}
        found = {name: self.thin.get(name, batch) for name in state.indexes if name not in state.served_indexes}
        return {name: known for name, known in found.items() if known >= 0}

    def complete_indexes(self, horizon_us: int, since: int = -1, prepared: Mapping[str, int] | None = None) -> None:
        """Completes the indexes that results need, and those of views that are begun. Others are thin: they get what came
        after batch `since`, and the rest in time. What a gradual migration has come to (`prepared`) is derived at once: it
        is not lost when another worker gets the slot. On a parallel track thin indexes need no old rows, but for those of
        tables."""
        state, migration = self.box.state, self.box.execution.migration
        begun = set(state.views) - self.waiting - self.parallel_views()
        needed = state.served_indexes | {
            state.index_of(probe).name
            for route in state.target_routes
            for stage in route.stages
            if stage.joined in begun - state.served_views
            for probe in stage.probes
        }
        if migration is not None and (self.box.execution.is_parallel or since < 0):
            # Rows that came since it began were added to thin indexes as they came.
            since = migration.since - 1
        self.thin = {}
        for name, index in state.indexes.items():
            if name in needed or isinstance(index.source, Table):
                self.box.derive_index(index, horizon_us)
                continue
            if since >= 0:
                self.box.derive_index(index, horizon_us, after=since)
            known = (prepared or {}).get(name, -1)
            if known >= 0:
                self.box.derive_index(index, horizon_us, until=known)
            if missing := [b for b in self.box.missing(index) if b > known]:
                index.spine.gap = missing[0], missing[-1]
                if not self.box.execution.is_parallel:
                    self.thin[name] = known

    def parallel_views(self) -> set[Aliases]:
        """The views of a parallel track that the old plan does not have."""
        state = self.box.state
        return set(state.views) - state.served_views if self.box.execution.is_parallel else set()

    # -- work at what is not -----------------------------------------------------------------------------------------

    def advance(self, batch: int, horizon_us: int) -> None:
        """Completes what the plan needs to give results, and works at what its target needs for as long as is allowed."""
        began, state, migration = thread_time_ns(), self.box.state, self.box.execution.migration
        self.done, self._piece = Preparing(), None
        steps, self.box.statistics.steps = self.box.statistics.steps, []
        missing = self.waiting | self.builds.keys()
        if missing & state.served_views or (missing and self.box.execution.is_parallel):
            wanted = state.served_views if not self.box.execution.is_parallel else frozenset(state.views)
            self._complete(batch, horizon_us, Allowance(None), wanted)
        elif migration is not None and migration.strategy is Strategy.GRADUAL:
            allowance = Allowance(migration.pause_us)
            if self._complete_thin(horizon_us, allowance):
                self._complete(batch, horizon_us, allowance, frozenset(state.views))
        self.box.statistics.steps = steps
        self.done.cpu_ns = thread_time_ns() - began

    def left(self) -> int:
        """What must still be done, or end, before the target can take over: views, indexes, or segments of old rows."""
        migration = self.box.execution.migration
        if migration is not None and migration.strategy is Strategy.PARALLEL_TRACK:
            logs = [log for log in self.box.state.logs.values() if isinstance(log.source, Stream)]
            return sum(1 for log in logs for batch in log.segments if batch < migration.since)
        return len(self.thin) + len(self.waiting) + len(self.builds)

    def _complete_thin(self, horizon_us: int, allowance: Allowance) -> bool:
        for name in sorted(self.thin):
            self.done.pieces += 1
            index, known = self.box.state.indexes[name], self.thin[name]
            came_to = self.box.derive_index(index, horizon_us, allowance, known, known)
            if came_to is not None:
                self.thin[name] = came_to
                return False
            del self.thin[name]
            if allowance.is_spent:
                return False
        return True

    def _complete(self, batch: int, horizon_us: int, allowance: Allowance, wanted: frozenset[Aliases]) -> None:
        for aliases in self.box.state.views:
            if aliases not in wanted:
                continue
            if aliases in self.waiting:
                self.builds[aliases] = self._begin(aliases, batch)
                self.waiting.discard(aliases)
            if aliases in self.builds:
                self._recompute(aliases, batch, horizon_us, allowance)
                if aliases in self.builds or allowance.is_spent:
                    return

    def _begin(self, aliases: Aliases, batch: int) -> Build:
        """The rows of the smallest input, the seed, look up the others."""
        seed = min(self._ways(aliases), key=lambda inputs: (self._rows(inputs), inputs))
        # A view that was completed just now has what was recomputed in the segment of this batch.
        return Build(batch, seed, batch if len(seed) > 1 else batch - 1)

    def _ways(self, aliases: Aliases) -> dict[Aliases, tuple[Route, Stage]]:
        """From which inputs of a view its rows can be found, and by which lookups."""
        state, found = self.box.state, dict[Aliases, tuple[Route, Stage]]()
        for route in state.routes if aliases in state.served_views else state.target_routes:
            bound: Aliases = (route.alias,)
            for stage in route.stages:
                if stage.joined == aliases:
                    found[bound] = (route, stage)
                bound = stage.joined
        return found

    def _rows(self, inputs: Aliases) -> int:
        state = self.box.state
        return state.views[inputs].rows if len(inputs) > 1 else state.logs[state.input(inputs[0]).source.name].rows

    def _recompute(self, aliases: Aliases, batch: int, horizon_us: int, allowance: Allowance) -> None:
        """Finds combinations of old rows (002, algorithm 6), piece by piece, until all are found or time is up."""
        build = self.builds[aliases]
        ways = self._ways(aliases)
        if build.seed not in ways:
            # The view was begun for another plan, which joins its inputs in another way: from the beginning again.
            self.box.state.forget_view(aliases)
            build = self.builds[aliases] = self._begin(aliases, batch)
        route, stage = ways[build.seed]
        while (rows := self._next_piece(build)) is not None:
            # What has ended is of no use, and may be gone from its log: rows meet only what is still valid.
            rows = rows.where(rows.ends > horizon_us)
            rows.starts = np.maximum(rows.starts, horizon_us)
            for combined in self.box.stage(route, stage, rows):
                old = ~self._is_new(combined, build.since, np.logical_or)
                kept = combined if old.all() else combined.where(old)
                self.box.keep(batch, stage, kept)
                self.done.rows += len(kept)
            self.done.pieces += 1
            if allowance.is_spent:
                break
        if not self._has_more(build):
            del self.builds[aliases]

    def _segments(self, build: Build) -> list[int]:
        """The segments of the seed that have rows to be looked up, the newest first."""
        state = self.box.state
        if len(build.seed) > 1:
            known = list(state.views[build.seed].segments)
        else:
            known = list(state.logs[state.input(build.seed[0]).source.name].segments)
        return sorted((b for b in known if b < build.batch or (b == build.batch and build.row != 0)), reverse=True)

    def _has_more(self, build: Build) -> bool:
        return bool(self._segments(build))

    def _next_piece(self, build: Build) -> Combination | None:
        segments = self._segments(build)
        if not segments:
            return None
        if segments[0] != build.batch:
            build.batch, build.row = segments[0], -1
        if self._piece is None or self._piece[:2] != (build.seed, build.batch):
            self._piece = (build.seed, build.batch, *self.box.rows_in(build.seed, build.batch))
        rows, positions = self._piece[2:]
        last = len(rows) if build.row < 0 else int(np.searchsorted(positions, build.row))
        first = max(0, last - PIECE_ROWS)
        build.row = int(positions[first]) if first else 0
        return rows.slice(first, last)

    # -- new rows ----------------------------------------------------------------------------------------------------

    def follow(
        self, batch: int, route: Route, rows: Combination, known: dict[Aliases, list[Combination]], emit: bool
    ) -> Iterator[pa.RecordBatch]:
        """Takes new rows of an input along their route in the target: its views are kept, and on a parallel track results
        are given. `known` is what the plan that serves found for these rows, by the view it stands in: from there the route
        goes on."""
        migration = self.box.execution.migration
        assert migration is not None
        since = migration.since if self.box.execution.is_parallel else None
        yield from self._follow(batch, route, 0, rows, since, emit)
        for place, stage in enumerate(route.stages):
            if stage.joined in self.box.state.served_views:
                for part in known.get(stage.joined, []):
                    yield from self._follow(batch, route, place + 1, self.new_only(part, since), since, emit)

    def _follow(
        self, batch: int, route: Route, place: int, rows: Combination, since: int | None, emit: bool
    ) -> Iterator[pa.RecordBatch]:
        """Takes rows through the stages of a route from `place` on, up to one whose rows are known or not kept yet."""
        if place == len(route.stages):
            return
        stage = route.stages[place]
        if stage.joined in self.box.state.served_views or stage.joined in self.waiting:
            return
        if stage.is_root and (since is None or not emit):
            return
        for combined in self.box.stage(route, stage, rows, since):
            if stage.is_root:
                yield from self.box.emit(combined, emit)
            else:
                self.box.keep(batch, stage, combined)
                yield from self._follow(batch, route, place + 1, combined, since, emit)

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
        migration = self.box.execution.migration
        if migration is None or not self.box.execution.is_parallel or not len(rows):
            return rows
        old = ~self._is_new(rows, migration.since, np.logical_and)
        return rows if old.all() else rows.where(old)

    def _is_new(self, rows: Combination, since: int, how: np.ufunc) -> npt.NDArray[np.bool_]:
        """Whether all (or any) rows of streams came in batch `since` or later. Rows of stored tables count for neither."""
        limit, found = since << 32, None
        for alias, ids in rows.ids.items():
            if isinstance(self.box.state.input(alias).source, Stream):
                found = ids >= limit if found is None else how(found, ids >= limit)
        return np.full(len(rows), how is np.logical_and) if found is None else found
