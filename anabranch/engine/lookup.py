"""Lookups: rows on a route find their partners in one state, by the hash of a key, in a range of values, or all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from time import thread_time_ns
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import StepStatistics
from anabranch.engine import bounds
from anabranch.engine.combination import NONE, Combination, Delta, result_times
from anabranch.engine.expressions import predicate_mask
from anabranch.engine.kernels.gather import take
from anabranch.engine.kernels.probing import BLOCK, beginning, probe_ranges
from anabranch.engine.kernels.probing import probe as probe_kernel
from anabranch.engine.kernels.runs import sort_by_hash
from anabranch.engine.keys import equal_keys, hash_keys
from anabranch.engine.ordering import EVERY_WORD, keyed_words, limit_words, may_wrap, sort_by_word
from anabranch.engine.pieces import cuts
from anabranch.engine.run import Words
from anabranch.engine.states import BoxState, IndexState
from anabranch.plan.query import FOREVER_US
from anabranch.plan.ranges import Range
from anabranch.plan.routes import Probe, Route, Stage

if TYPE_CHECKING:
    from anabranch.engine.box import Box


class Lookup:
    """The lookups of a box."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def probe(self, route: Route, stage: Stage, step: int, rows: Combination) -> Iterator[Combination]:
        """Looks up one state: rows with what they find there, in pieces. It goes on where it was cut when the next is asked
        for."""
        began = thread_time_ns()
        probe = stage.probes[step]
        index = self.box.state.index_of(probe)
        counts = self._counts(route, stage, probe)
        counts.probes += len(rows)
        window_us = self.box.state.input(probe.target[0]).window_us if len(probe.target) == 1 else 0
        visible = len(probe.target) > 1 or probe.target[0] in self.box.visible
        table, keys = index.spine.table(visible), _Keys(self.box.state, probe, rows)
        if probe.between is not None:
            ordered, highs = self._ranges(index, probe, probe.between, keys, rows, visible)
            kernel, is_exact = partial(probe_ranges, ordered, highs), not probe.keys
        else:
            ordered = self._ordered(route, stage, step, keys, rows)
            kernel, is_exact = partial(probe_kernel, ordered), index.is_exact
        place = beginning()
        while place[BLOCK] < len(ordered):
            matches, lookups = kernel(table, window_us, len(ordered), place, bounds.CHUNK_PAIRS)
            counts.lookups += int(lookups)
            counts.candidates += matches.shape[1]
            found = self._combined(probe, rows, matches)
            for first, last in cuts(self.box.state, found, len(found), bounds.CHUNK_BYTES):
                combined = found if last - first == len(found) else found.slice(first, last)
                if not is_exact:
                    combined = self._same_keys(probe, keys, matches[0, first:last], combined)
                combined = self._allowed(probe, combined)
                counts.matches += len(combined)
                counts.cpu_ns += thread_time_ns() - began
                if len(combined):
                    yield combined
                began = thread_time_ns()
        counts.cpu_ns += thread_time_ns() - began

    def _combined(self, probe: Probe, rows: Combination, matches: npt.NDArray[np.int64]) -> Combination:
        """Rows with what they have found."""
        positions, found, starts, ends = matches
        ids = {alias: take(values, positions) for alias, values in rows.ids.items()}
        if len(probe.target) == 1:
            ids[probe.target[0]] = found
        elif not len(found):
            ids |= dict.fromkeys(probe.target, NONE)
        else:
            view = self.box.state.views[probe.target]
            view.check(found)
            ids |= {alias: view.part(alias, found) for alias in probe.target}
        for alias in probe.target:
            self.box.state.log_of(alias).check(ids[alias])
        return Combination(ids, starts, ends)

    def _same_keys(
        self, probe: Probe, keys: _Keys, positions: npt.NDArray[np.int64], combined: Combination
    ) -> Combination:
        """What rows have found that has their key, and not only its hash."""
        if not len(combined):
            return combined
        taken = pa.array(positions)
        theirs = self.box.state.keys(tuple(k.target for k in probe.keys), combined)
        same = equal_keys([k.take(taken) for k in keys.columns], theirs)
        return combined if same.all() else combined.where(same)

    def _allowed(self, probe: Probe, combined: Combination) -> Combination:
        """What the residual predicates of a probe leave."""
        if probe.residuals and len(combined):
            columns = self.box.state.fetch(combined)
            mask = predicate_mask(probe.residuals, columns, len(combined), lambda: result_times(combined))
            if mask is not None and not mask.all():
                combined = combined.where(mask)
        return combined

    def _ranges(
        self, index: IndexState, probe: Probe, between: Range, keys: _Keys, rows: Combination, visible: bool
    ) -> tuple[Words, Words]:
        """The rows in the order of the least word of their range, and its largest; without those that find nothing."""
        if not probe.keys and may_wrap(between, *index.spine.extent(visible)):
            lows, highs = np.full(len(rows), EVERY_WORD[0]), np.full(len(rows), EVERY_WORD[1])
            return sort_by_word(lows, NONE, rows.starts, rows.ends), highs
        limits = self.box.state.keys(tuple(b.bound for b in between.limits), rows)
        lows, highs, valid = limit_words(between, limits, len(rows))
        positions = np.flatnonzero(valid & (lows <= highs))
        if probe.keys:
            hashes = hash_keys(keys.columns, len(rows))
            lows, highs = (keyed_words(hashes, words, between.term.type) for words in (lows, highs))
        ordered = sort_by_word(lows[positions], positions, rows.starts[positions], rows.ends[positions])
        return ordered, highs[ordered[:, 1].view(np.int64)]

    def _ordered(self, route: Route, stage: Stage, step: int, keys: _Keys, rows: Combination) -> Words:
        """The rows in the order of the hash of their key. Rows that are themselves indexed by the same key were sorted when
        they were indexed."""
        delta = self.box.deltas.get(route.alias)
        if step == 0 and stage is route.stages[0] and delta is not None and len(rows) == len(delta.starts):
            own = self.box.state.own_index(route.alias, keys.terms)
            if own is not None and own.name in self.box.sorted_rows:
                ordered = self.box.sorted_rows[own.name]
                if own.aliases[0] != route.alias and self.box.state.input(own.aliases[0]).window_us != (
                    window_us := self.box.state.input(route.alias).window_us
                ):
                    ordered = ordered.copy()
                    starts = ordered[:, 2].view(np.int64)
                    ordered[:, 3] = (
                        np.uint64(FOREVER_US) if window_us == FOREVER_US else (starts + window_us).view(np.uint64)
                    )
                return self._as_positions(ordered, delta)
        if keys.terms in rows.ordered:
            return rows.ordered[keys.terms]
        by_hash: Words = sort_by_hash(hash_keys(keys.columns, len(rows)), NONE, rows.starts, rows.ends)
        return by_hash

    def _as_positions(self, ordered: Words, delta: Delta) -> Words:
        """Sorted rows name offsets in the segment; a probe wants places in the combination."""
        if len(delta.positions) == 0 or delta.positions[-1] == len(delta.positions) - 1:
            return ordered
        ordered = ordered.copy()
        ordered[:, 1] = np.searchsorted(delta.positions, ordered[:, 1].view(np.int64)).astype(np.uint64)
        return ordered

    def _counts(self, route: Route, stage: Stage, probe: Probe) -> StepStatistics:
        target = " ".join(probe.target)
        for counts in self.box.statistics.steps:
            if counts.route == route.alias and counts.target == target:
                return counts
        counts = StepStatistics(route.alias, target)
        self.box.statistics.steps.append(counts)
        return counts


class _Keys:
    """The key that rows look up another state by; computed when it is first asked for."""

    def __init__(self, state: BoxState, probe: Probe, rows: Combination) -> None:
        self.terms, self._state, self._rows = tuple(k.bound for k in probe.keys), state, rows

    @cached_property
    def columns(self) -> list[pa.Array]:
        return self._state.keys(self.terms, self._rows)
