"""Lookups: rows on a route find their partners in one state, by the hash of a key, in a range of values, or all of them."""

from __future__ import annotations

from time import thread_time_ns
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import StepStatistics
from anabranch.engine.combination import NONE, Combination, Delta, joined, result_times
from anabranch.engine.expressions import predicate_mask
from anabranch.engine.kernels.gather import take
from anabranch.engine.kernels.probing import probe as probe_kernel
from anabranch.engine.kernels.probing import probe_ranges
from anabranch.engine.kernels.runs import sort_by_hash
from anabranch.engine.keys import equal_keys, hash_keys
from anabranch.engine.ordering import EVERY_WORD, keyed_words, limit_words, may_wrap, sort_by_word
from anabranch.engine.run import Words
from anabranch.engine.states import IndexState
from anabranch.plan.join_graph import Aliases
from anabranch.plan.query import FOREVER_US
from anabranch.plan.ranges import Range
from anabranch.plan.routes import Probe, Route, Stage

if TYPE_CHECKING:
    from anabranch.engine.box import Box

CHUNK_ROWS = 1 << 20
"""At most so many combined rows go along a route at once: bounds the memory of a step, not its results."""

CHUNK_PAIRS = 1 << 22
"""A lookup is cut where it has found about so many pairs, before predicates are checked."""

PILOT_ROWS = 1 << 10
"""So many rows are looked up at first, where they may find too many partners."""


class Lookup:
    """The lookups of a box."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.partners: dict[tuple[str, Aliases], float] = {}
        """How many partners a row found in a state, lately."""

    def chunk_rows(self, alias: str, probe: Probe, rows: int) -> int:
        """How many rows are looked up at once: fewer where each of them meets many. A few show how many, at first."""
        if probe.between is not None:
            return CHUNK_ROWS
        known = self.partners.get((alias, probe.target)) if probe.keys else float(self.box.state.index_of(probe).spine.rows)
        if known is None:
            return PILOT_ROWS if rows * self.box.state.index_of(probe).spine.rows > CHUNK_PAIRS else CHUNK_ROWS
        return max(1, min(CHUNK_ROWS, int(CHUNK_PAIRS / max(1.0, known))))

    def probe(self, route: Route, stage: Stage, step: int, rows: Combination) -> Combination:
        """Looks up one state."""
        began = thread_time_ns()
        probe = stage.probes[step]
        index = self.box.state.index_of(probe)
        counts = self._counts(route, stage, probe)
        counts.probes += len(rows)
        window_us = self.box.state.input(probe.target[0]).window_us if len(probe.target) == 1 else 0
        visible = len(probe.target) > 1 or probe.target[0] in self.box.visible
        table = index.spine.table(visible)
        if probe.between is not None:
            parts, done = [], 0
            ordered, highs = self._ranges(index, probe, probe.between, rows, visible)
            while done < len(ordered):
                left = ordered[done:], highs[done:]
                matches, lookups, looked_up = probe_ranges(*left, table, window_us, len(left[1]), CHUNK_PAIRS)
                counts.lookups += int(lookups)
                counts.candidates += matches.shape[1]
                found = self._combined(probe, rows, matches)
                parts.append(self._allowed(probe, self._same_keys(probe, rows, matches, found) if probe.keys else found))
                done += int(looked_up)
            combined = joined(parts, (*rows.ids, *probe.target))
        else:
            ordered, keys = self._ordered(route, stage, step, probe, rows)
            matches, lookups = probe_kernel(ordered, table, window_us, len(ordered))
            # What a row met before is remembered for a while: it says how many rows can be looked up at once.
            way = route.alias, probe.target
            self.partners[way] = max(matches.shape[1] / len(rows), 0.5 * self.partners.get(way, 0.0))
            counts.lookups += int(lookups)
            counts.candidates += matches.shape[1]
            combined = self._combined(probe, rows, matches)
            if not index.is_exact:
                combined = self._same_keys(probe, rows, matches, combined, keys)
            combined = self._allowed(probe, combined)
        counts.matches += len(combined)
        counts.cpu_ns += thread_time_ns() - began
        return combined

    def _combined(self, probe: Probe, rows: Combination, matches: npt.NDArray[np.int64]) -> Combination:
        """Rows with what they have found."""
        positions, found, starts, ends = matches
        ids = {alias: take(values, positions) for alias, values in rows.ids.items()}
        if len(probe.target) == 1:
            ids[probe.target[0]] = found
        else:
            view = self.box.state.views[probe.target]
            ids |= {alias: view.part(alias, found) if len(found) else NONE for alias in probe.target}
        return Combination(ids, starts, ends)

    def _same_keys(
        self,
        probe: Probe,
        rows: Combination,
        matches: npt.NDArray[np.int64],
        combined: Combination,
        keys: list[pa.Array] | None = None,
    ) -> Combination:
        """What rows have found that has their key, and not only its hash."""
        if not len(combined):
            return combined
        bound = keys if keys is not None else self.box.state.keys(tuple(k.bound for k in probe.keys), rows)
        taken = pa.array(matches[0])
        same = equal_keys([k.take(taken) for k in bound], self.box.state.keys(tuple(k.target for k in probe.keys), combined))
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
        self, index: IndexState, probe: Probe, between: Range, rows: Combination, visible: bool
    ) -> tuple[Words, Words]:
        """The rows in the order of the least word of their range, and its largest; without those that find nothing."""
        if not probe.keys and may_wrap(between, *index.spine.extent(visible)):
            lows, highs = np.full(len(rows), EVERY_WORD[0]), np.full(len(rows), EVERY_WORD[1])
            return sort_by_word(lows, NONE, rows.starts, rows.ends), highs
        limits = self.box.state.keys(tuple(b.bound for b in between.limits), rows)
        lows, highs, valid = limit_words(between, limits, len(rows))
        positions = np.flatnonzero(valid & (lows <= highs))
        if probe.keys:
            hashes = hash_keys(self.box.state.keys(tuple(k.bound for k in probe.keys), rows), len(rows))
            lows, highs = (keyed_words(hashes, words, between.term.type) for words in (lows, highs))
        ordered = sort_by_word(lows[positions], positions, rows.starts[positions], rows.ends[positions])
        return ordered, highs[ordered[:, 1].view(np.int64)]

    def _ordered(
        self, route: Route, stage: Stage, step: int, probe: Probe, rows: Combination
    ) -> tuple[Words, list[pa.Array] | None]:
        """The rows in the order of the hash of their key, and the columns of the key if they had to be computed.

        Rows that are themselves indexed by the same key were sorted when they were indexed.
        """
        delta = self.box.deltas.get(route.alias)
        if step == 0 and stage is route.stages[0] and delta is not None and len(rows) == len(delta.starts):
            own = self.box.state.own_index(route.alias, tuple(k.bound for k in probe.keys))
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
                return self._as_positions(ordered, delta), None
        bound = tuple(k.bound for k in probe.keys)
        if bound in rows.ordered:
            return rows.ordered[bound], None
        keys = self.box.state.keys(bound, rows)
        ordered = sort_by_hash(hash_keys(keys, len(rows)), NONE, rows.starts, rows.ends)
        return ordered, keys

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
