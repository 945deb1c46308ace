"""A spine: the runs of one index, few of them, because small ones are merged into larger ones.

Every batch adds a run of tier 0. A run of tier t spans an aligned group of 4^t batches. Merging must not stall a batch, so
a group of tier t is merged in 4^(t-1) parts, one per batch, each a range of hashes that holds about four batches' worth of
rows. While that goes on, the parts done are served by the new runs and the rest by the old ones, which are visible only
from `lo` on. When each part is merged follows from the number of the batch alone (`due_merges`).

The invariant (`verify`): for every batch and every hash at most one run is visible, and every row that is alive is in it.

Tiers end where a group would span more than a third of what is alive (a run is dropped only when its last row has ended,
so a larger one would waste memory); an index without an end has no such bound. Where a run outlives later ones for the sake
of a few rows (one from the future among those of today), the others are taken out of it. Only runs of the last tier are
written to disk, for the smaller ones are soon replaced: about a third of an index at most is derived again when a box is
attached (`lacking`, `restore`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from anabranch.engine.run import ALL_HASHES, SortedRun, merge_runs, run_table
from anabranch.plan.query import FOREVER_US

FAN_IN = 4
"""How many runs of one tier make one of the next."""

MAX_TIER = 8
"""Parts are ranges of 1/65536 of the hashes: more tiers than these cannot be cut."""

WASTE = 3
"""A run may span at most 1/WASTE of the batches that are alive."""

STRAGGLING = 16
"""The oldest runs that hold less than 1/STRAGGLING of all rows do not tell how many batches are alive."""

WRITTEN = 2
"""A batch writes at most so many times the index entries that it brought."""


def due_merges(batch: int, phase: int = 0) -> Iterator[tuple[int, int, int, int, int]]:
    """The merges due after a batch: tier, first and last batch of the group, and the range of hashes.

    Groups of a spine begin `phase` batches late: spines of different phases do not merge in the same batch.

    >>> list(due_merges(3))
    [(1, 0, 3, 0, 65536)]
    >>> list(due_merges(16))
    [(2, 0, 15, 0, 16384)]
    """
    delay = phase
    for tier in range(1, MAX_TIER):
        span, parts = FAN_IN**tier, parts_of(tier)
        ended = (batch - delay + 1) // span * span
        part = batch - delay + 1 - ended
        if part < parts and ended + phase > 0:
            width = ALL_HASHES // parts
            yield tier, ended - span + phase, ended - 1 + phase, part * width, (part + 1) * width
        delay += parts


def parts_of(tier: int) -> int:
    """In how many parts a group of a tier is merged."""
    return int(FAN_IN ** (tier - 1))


class Spine:
    """The runs of one index over a source or a view."""

    def __init__(self, name: str, retention_us: int, has_end: bool, phase: int = 0) -> None:
        self.name, self.retention_us, self.has_end, self.phase = name, retention_us, has_end, phase
        self.runs: list[SortedRun] = []
        self.gap: tuple[int, int] | None = None
        """The first and the last batch whose rows are still to be derived, if there are any. Nothing is merged across it: a
        run shows all batches that it spans."""
        self.arriving: list[SortedRun] = []
        self._settled_table: npt.NDArray[np.int64] | None = None
        self._arrived_bytes = 0
        self._ended = -1
        """The newest batch with which a run began that has ended."""

    def table(self, with_arriving: bool) -> npt.NDArray[np.int64]:
        """What a probe sees: the runs of earlier batches, and those of this batch if its rows are already visible."""
        if self._settled_table is None:
            self._settled_table = run_table(self.runs)
        if with_arriving and self.arriving:
            return np.concatenate([self._settled_table, run_table(self.arriving)])
        return self._settled_table

    def extent(self, with_arriving: bool) -> tuple[int, int]:
        """The least and the largest hash that a probe may see; (2^64, -1) if there is none."""
        seen = [run for run in self.runs + (self.arriving if with_arriving else []) if run.rows]
        ends = [(int(run.entries[0, 0]), int(run.entries[-1, 0])) for run in seen]
        return min((least for least, _ in ends), default=2**64), max((largest for _, largest in ends), default=-1)

    def moved(self) -> None:
        """Runs lie at other addresses now."""
        self._settled_table = None

    def clear(self) -> None:
        self.runs, self.arriving, self._settled_table, self.gap, self._ended = [], [], None, None, -1

    def arrive(self, run: SortedRun) -> None:
        """Adds rows of the batch that is being processed."""
        self.arriving.append(run)

    def settle(self, batch: int, watermark_us: int) -> None:
        """Ends a batch: what arrived becomes one run of tier 0, and the merges that are due are made."""
        if len(self.arriving) > 1:
            merged = merge_runs(self.arriving, 0, 0, ALL_HASHES, watermark_us, self.retention_us, self.has_end)
            self.arriving = [merged] if merged else []
        self._arrived_bytes = sum(r.bytes for r in self.arriving)
        self.runs += self.arriving
        self.arriving = []
        last_tier = self.last_tier(batch)
        for tier, first, last, lo, hi in due_merges(batch, self.phase):
            if tier <= last_tier:
                self._merge(tier, first, last, lo, hi, watermark_us)
        self._settled_table = None

    def last_tier(self, batch: int) -> int:
        """The tier whose runs are not merged any further, as things are at a batch."""
        if self.retention_us == FOREVER_US:
            return MAX_TIER
        alive = batch - self._oldest(batch) + 1
        return max((tier for tier in range(1, MAX_TIER) if FAN_IN**tier * WASTE <= alive), default=0)

    def _oldest(self, batch: int) -> int:
        """The first batch of the oldest run, but for stragglers."""
        spare = self.rows // STRAGGLING
        for run in sorted(self.runs, key=lambda r: r.first_batch):
            spare -= run.rows
            if spare < 0:
                return run.first_batch
        return batch

    def lasting_runs(self, batch: int) -> list[SortedRun]:
        """The runs to be kept on disk: those of the last tier, and whatever is on disk already. An index without an end
        is kept as it is. Not more is written in a batch than `WRITTEN` times what it brought, or else a single run: the
        rest has time."""
        if self.retention_us == FOREVER_US:
            return self.runs
        tier, allowed, found = max(1, self.last_tier(batch)), WRITTEN * self._arrived_bytes, []
        for run in self.runs:
            if run.record is None:
                if run.tier < tier or allowed <= 0:
                    continue
                allowed -= run.bytes
            found.append(run)
        return found

    def lacking(self, batch: int) -> list[tuple[int, int]]:
        """The ranges of hashes in which no run shows the rows of a batch."""
        found, covered = [], 0
        for lo, hi in sorted((r.lo, r.hi) for r in self.runs if r.first_batch <= batch <= r.last_batch):
            if covered < lo:
                found.append((covered, lo))
            covered = max(covered, hi)
        return [*found, (covered, ALL_HASHES)] if covered < ALL_HASHES else found

    def restore(self, run: SortedRun) -> None:
        """Adds a run of one batch that was derived again, as far as no other shows its rows."""
        self.runs += [replace(run, lo=lo, hi=hi) for lo, hi in self.lacking(run.first_batch)]

    def _merge(self, tier: int, first: int, last: int, lo: int, hi: int, watermark_us: int) -> None:
        group = [
            r
            for r in self.runs
            if r.tier < tier and first <= r.first_batch and r.last_batch <= last and r.lo < hi and lo < r.hi
        ]
        # A run that reaches beyond the part on both sides could not be cut: its group waits for a larger tier.
        if len(group) < 2 or any(r.lo < lo and r.hi > hi for r in group):
            return
        if self.gap is not None and _overlap(group, *self.gap):
            return
        # So does a group that others, restored before it, show in part: what is visible of a run is one range.
        shown_lo, shown_hi = max(lo, min(r.lo for r in group)), min(hi, max(r.hi for r in group))
        members = {id(r) for r in group}
        if any(
            r.first_batch <= last and first <= r.last_batch and r.lo < shown_hi and shown_lo < r.hi
            for r in self.runs
            if id(r) not in members
        ):
            return
        merged = merge_runs(group, tier, lo, hi, watermark_us, self.retention_us, self.has_end)
        for run in group:
            if run.lo >= lo:
                run.lo = min(hi, run.hi)
            else:
                run.hi = lo
        self.runs = [r for r in self.runs if r.lo < r.hi]
        if merged is not None:
            merged.lo, merged.hi = shown_lo, shown_hi
            self.runs.append(merged)

    def purge(self, watermark_us: int) -> None:
        """Drops runs of which no row is valid at or after the watermark. A run that has outlived a later one loses the rows
        that have ended, if they are most of it."""
        self._ended = max(self._ended, *(r.first_batch for r in self.runs if r.end_max_us <= watermark_us), -1)
        kept: list[SortedRun] = []
        for run in self.runs:
            left: SortedRun | None = run if run.end_max_us > watermark_us else None
            if left is not None and run.last_batch < self._ended and run.overdue_us(self.retention_us) <= watermark_us:
                left = run.without_ended(watermark_us, self.retention_us)
            kept += [left] if left is not None else []
        if len(kept) != len(self.runs) or any(r is not s for r, s in zip(kept, self.runs, strict=True)):
            self.runs, self._settled_table = kept, None

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.runs)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.runs)

    def verify(self) -> None:
        """Checks the invariant: no batch and hash is visible twice, and every run is sorted."""
        for place, run in enumerate(self.runs):
            assert 0 <= run.lo < run.hi <= ALL_HASHES, run
            assert len(run.entries) == run.rows, run
            assert run.directory[-1] == run.rows, run
            hashes = run.entries[:, 0]
            assert bool(np.all(hashes[:-1] <= hashes[1:])), f"{self.name}: run is not sorted"
            for other in self.runs[place + 1 :]:
                apart = run.last_batch < other.first_batch or other.last_batch < run.first_batch
                assert apart or run.hi <= other.lo or other.hi <= run.lo, f"{self.name}: {run} overlaps {other}"


def _overlap(group: list[SortedRun], first: int, last: int) -> bool:
    """Whether some of these batches lie among those that a group of runs spans."""
    return min(r.first_batch for r in group) <= last and first <= max(r.last_batch for r in group)
