"""Lookups: rows on a route find their partners in one state, by the hash of a key, in a range of values, or all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import StepStatistics
from anabranch.engine import bounds
from anabranch.engine.arrival import order_keys
from anabranch.engine.combination import NONE, Combination, Delta, result_times
from anabranch.engine.expressions import predicate_mask
from anabranch.engine.kernels.gather import take
from anabranch.engine.kernels.probing import BLOCK, beginning, probe_ranges
from anabranch.engine.kernels.probing import probe as probe_kernel
from anabranch.engine.kernels.runs import sort_by_hash
from anabranch.engine.keys import equal_keys, hash_keys
from anabranch.engine.lineage import Numbers, wanted
from anabranch.engine.log import Log
from anabranch.engine.ordering import EVERY_WORD, keyed_words, limit_words, may_wrap, sort_by_word
from anabranch.engine.pieces import cuts
from anabranch.engine.run import Words
from anabranch.engine.slices import Index, Keeping
from anabranch.plan.join_graph import Aliases
from anabranch.plan.query import FOREVER_US
from anabranch.plan.ranges import Range
from anabranch.plan.routes import Probe, Route, Stage

if TYPE_CHECKING:
    from anabranch.engine.box import Box

Matches = npt.NDArray[np.int64]
"""For each row found: the place of the row that found it, its id, and from when to when both are valid."""
Parts = dict[str, npt.NDArray[np.int64]]
"""The row ids of each input in what was found."""


class Lookup:
    """The lookups of a box."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def probe(
        self, route: Route, stage: Stage, step: int, rows: Combination, probing: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[Combination]:
        """Looks up one state: rows with what they find there, in pieces. It goes on where it was cut when the next is asked
        for. If only some rows may look up, they are those that are `probing`."""
        began = thread_time_ns()
        box, probe = self.box, stage.probes[step]
        index = box.reader.index_of(probe)
        state = box.store.indexes[index.key]
        counts = self._counts(route, stage, probe)
        visible, keys = len(probe.target) > 1 or probe.target[0] in box.visible, _Keys(box, probe, rows)
        known = self._known_order(route, stage, step, keys, rows) if probe.between is None else None
        if probing is not None:
            if known is not None:
                known = known[probing[known[:, 1].view(np.int64)]]
            else:  # they must be sorted anyway, and fewer are sorted sooner
                rows = rows.where(probing)
                keys = _Keys(box, probe, rows)
        counts.probes += len(rows) if probing is None else int(np.count_nonzero(probing))
        highs: Words | None = None
        if probe.between is not None:
            ordered, highs = self._ranges(state, probe, probe.between, keys, rows, visible)
            is_exact = not probe.keys
        else:
            ordered = known if known is not None else self._ordered(keys, rows)
            is_exact = index.is_exact
        for matches, lookups in self.matches(probe.target, state, ordered, highs, rows, visible):
            counts.lookups += lookups
            counts.candidates += matches.shape[1]
            matches, found = self.combined(probe.target, rows, matches)
            for first, last in cuts(box, found, len(found), bounds.CHUNK_BYTES):
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

    def matches(
        self, target: Aliases, state: Index, ordered: Words, highs: Words | None, rows: Combination, visible: bool
    ) -> Iterator[tuple[Matches, int]]:
        """What sorted rows find in an index, in pieces, each with the number of lookups that it took; with `highs` in ranges
        from the word of a row up to that."""
        kernel = probe_kernel if highs is None else partial(_in_ranges, highs)
        longest_us = 0 if len(target) > 1 else self._longest_us(target)
        for table, window_us in state.tables(visible, partial(self._window_us, target)):
            reaches_us, place = self._reaches_us(ordered, rows, target, window_us), beginning()
            while place[BLOCK] < len(ordered):
                matches, lookups = kernel(
                    ordered, table, longest_us, reaches_us, len(ordered), place, bounds.CHUNK_PAIRS
                )  # fmt: skip
                yield matches, int(lookups)

    def _longest_us(self, target: Aliases) -> int:
        """The window of an input."""
        return self.box.reader.input(target[0]).window_us

    def _reaches_us(
        self, ordered: Words, rows: Combination, target: Aliases, window_us: int
    ) -> npt.NDArray[np.int64] | None:
        """How far back each of the sorted rows looks in a slice: no further than rows of the slice are valid for the box,
        and in a shared join no further than the longest window of the members that want the row. None, if that is as far
        as the window of the input."""
        lineage, sets = self.box.reader.lineage, rows.sets
        if len(target) > 1:
            return None
        longest_us = self._longest_us(target)
        if lineage is None or sets is None or sets.ndim == 2:
            return None if window_us >= longest_us else np.full(len(ordered), window_us)
        reaches_us = np.minimum(lineage.longest_us(target[0], sets), window_us)
        if not len(reaches_us) or reaches_us.min() >= longest_us:
            return None
        found: npt.NDArray[np.int64] = reaches_us[ordered[:, 1].view(np.int64)]
        return found

    def _window_us(self, target: Aliases, keeping: Keeping) -> int | None:
        """For how long rows of a slice are valid for the box; None if no row of it is the box's."""
        if len(target) > 1:
            return 0  # combined rows have ends of their own
        reader = self.box.reader
        return reader.window_us(reader.input(target[0]), keeping)

    def combined(self, target: Aliases, rows: Combination, matches: Matches) -> tuple[Matches, Combination]:
        """Rows with what they have found and may see."""
        matches, parts = self._parts(target, matches)
        shown = self._shown(target, parts)
        if shown is not None:
            matches, parts = _where(shown, matches, parts)
        lineage = self.box.reader.lineage
        if lineage is not None and len(target) > 1 and lineage.tells_ages_by_ends:
            matches[3] = lineage.ends_in_join(rows.ends.take(matches[0]), parts, self._logs_of(parts))
        sets = self._sets(rows, matches, parts)
        if sets is not None and not (kept := wanted(sets)).all():
            matches, parts = _where(kept, matches, parts)
            sets = sets.take(np.flatnonzero(kept), axis=0)
        positions, _, starts, ends = matches
        ids = {alias: take(values, positions) for alias, values in rows.ids.items()}
        finders = None if rows.finders is None else take(rows.finders, positions)
        return matches, Combination(ids | parts, starts, ends, sets=sets, finders=finders)

    def _sets(self, rows: Combination, matches: Matches, parts: Parts) -> Numbers | None:
        """Which members of a shared join want what was found; None if all do, or the join is one query's."""
        lineage, (positions, _, starts, ends) = self.box.reader.lineage, matches
        if lineage is None:
            return None
        sets = rows.sets
        if sets is not None:
            sets = take(sets, positions) if sets.ndim == 1 else sets[positions]
        return lineage.combined(sets, parts, self._logs_of(parts), starts, ends)

    def _logs_of(self, parts: Parts) -> dict[str, Log]:
        return {alias: self.box.log_of(alias) for alias in parts}

    def _parts(self, target: Aliases, matches: Matches) -> tuple[Matches, Parts]:
        """What was found, and the row ids of each input in it."""
        box, found = self.box, matches[1]
        if not len(found):
            return matches, dict.fromkeys(target, NONE)
        if len(target) == 1:
            parts = {target[0]: found}
        else:
            view = box.view_of(target)
            view.check(found)
            parts = {alias: view.part(place, found) for place, alias in enumerate(box.reader.orders[target])}
        lineage = box.reader.lineage
        for alias in target:
            # A combination of a shared join is in a view for the longest windows of the members that wanted it. By their own
            # watermarks these may be past it, and its rows be gone. So it is with a row in an index of members with several
            # watermarks: that those who want it are past it does not hold for who looks it up.
            log, may_be_over = box.log_of(alias), lineage is not None and (len(target) > 1 or lineage.tells_late(alias))
            if not may_be_over or (there := log.inside(parts[alias])) is None:
                log.check(parts[alias])
                continue
            matches, parts = _where(there, matches, parts)
        return matches, parts

    def _shown(self, target: Aliases, parts: Parts) -> npt.NDArray[np.bool_] | None:
        """What the box may see of what was found; None if all. An index over a source may hold rows of other readers; a view
        that another reader keeps may have rows of this batch that are not visible here yet."""
        box = self.box
        if len(target) == 1:
            return box.reader.seen(target[0], parts[target[0]], box.log_of(target[0]))
        if box.store.kept.get(box.reader.views[target], (-1, box.name))[1] == box.name:
            return None
        found: npt.NDArray[np.bool_] | None = None
        for alias, ids in parts.items():
            if alias not in box.visible:
                old = ids < box.arrival.batch << 32
                found = old if found is None else found & old
        return None if found is None or found.all() else found

    def _same_keys(
        self, probe: Probe, keys: _Keys, positions: npt.NDArray[np.int64], combined: Combination
    ) -> Combination:
        """What rows have found that has their key, and not only its hash."""
        if not len(combined):
            return combined
        taken = pa.array(positions)
        theirs = self.box.keys(tuple(k.target for k in probe.keys), combined)
        same = equal_keys([k.take(taken) for k in keys.columns], theirs)
        return combined if same.all() else combined.where(same)

    def _allowed(self, probe: Probe, combined: Combination) -> Combination:
        """What the residual predicates of a probe leave."""
        if probe.residuals and len(combined):
            columns = self.box.fetch(combined)
            mask = predicate_mask(probe.residuals, columns, len(combined), lambda: result_times(combined.starts))
            if mask is not None and not mask.all():
                combined = combined.where(mask)
        return combined

    def _ranges(
        self, state: Index, probe: Probe, between: Range, keys: _Keys, rows: Combination, visible: bool
    ) -> tuple[Words, Words]:
        """The rows in the order of the least word of their range, and its largest; without those that find nothing."""
        if not probe.keys and may_wrap(between, *state.extent(visible)):
            lows, highs = np.full(len(rows), EVERY_WORD[0]), np.full(len(rows), EVERY_WORD[1])
            return sort_by_word(lows, NONE, rows.starts, rows.ends), highs
        limits = self.box.keys(tuple(b.bound for b in between.limits), rows)
        lows, highs, valid = limit_words(between, limits, len(rows))
        if (with_key := keys.valid) is not None:
            valid = valid & with_key
        positions = np.flatnonzero(valid & (lows <= highs))
        if probe.keys:
            hashes = hash_keys(keys.columns, len(rows))
            lows, highs = (keyed_words(hashes, words, between.term.type) for words in (lows, highs))
        ordered = sort_by_word(lows[positions], positions, rows.starts[positions], rows.ends[positions])
        return ordered, highs[ordered[:, 1].view(np.int64)]

    def _known_order(self, route: Route, stage: Stage, step: int, keys: _Keys, rows: Combination) -> Words | None:
        """The rows in the order of the hash of their key, if they are in it already: rows that are themselves indexed by
        the same key were sorted when they were indexed."""
        delta, box = self.box.delta(route.alias), self.box
        if step == 0 and stage is route.stages[0] and delta is not None and len(rows) == len(delta.starts):
            own = box.reader.own_index(route.alias, keys.terms)
            ordered = box.arrival.sorted_rows.get(own) if own is not None else None
            # An index may hold more rows of the segment, for other readers; and it holds none without a key.
            is_same = own is not None and ordered is not None and len(ordered) == len(rows)
            if is_same and (box.reader.has_keys(route.alias, keys.terms) or keys.valid is None):
                assert own is not None
                assert ordered is not None
                window_us = box.reader.input(route.alias).window_us
                if box.arrival.sorted_windows_us[own] != window_us:
                    ordered = ordered.copy()
                    starts = ordered[:, 2].view(np.int64)
                    ordered[:, 3] = (
                        np.uint64(FOREVER_US) if window_us == FOREVER_US else (starts + window_us).view(np.uint64)
                    )
                return self._as_positions(ordered, delta)
        return rows.ordered.get(keys.terms)

    def _ordered(self, keys: _Keys, rows: Combination) -> Words:
        """The rows in the order of the hash of their key."""
        if (valid := keys.valid) is not None:
            places = np.flatnonzero(valid)
            columns = [column.take(pa.array(places)) for column in keys.columns]
            return order_keys(False, columns, places, rows.starts[places], rows.ends[places])
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


def _where(mask: npt.NDArray[np.bool_], matches: Matches, parts: Parts) -> tuple[Matches, Parts]:
    """What a mask leaves of what was found."""
    places = np.flatnonzero(mask)
    return matches.take(places, axis=1), {alias: ids.take(places) for alias, ids in parts.items()}


def _in_ranges(highs: Words, sought: Words, *given: Any) -> Any:
    lookup: Any = probe_ranges
    return lookup(sought, highs, *given)


class _Keys:
    """The key that rows look up another state by; computed when it is first asked for."""

    def __init__(self, box: Box, probe: Probe, rows: Combination) -> None:
        self.terms, self._box, self._rows = tuple(k.bound for k in probe.keys), box, rows

    @cached_property
    def columns(self) -> list[pa.Array]:
        return self._box.keys(self.terms, self._rows)

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_] | None:
        """Which rows have a key: NULL finds nothing. None if all have."""
        if not any(column.null_count for column in self.columns):
            return None
        valid = [column.is_valid().to_numpy(zero_copy_only=False) for column in self.columns]
        found: npt.NDArray[np.bool_] = np.logical_and.reduce(valid)
        return found
