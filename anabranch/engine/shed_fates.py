"""What hangs on rows of batches that shed others: a row that was kept brings all its results, a shed one none of them.

So the number of results that is told where rows are shed (`anabranch.engine.limits`) is uncertain by row, too, and not by
result. With s the share that was kept of the rows that came with row j, and X_j the results with row j in them, each for as
many as it stands for, row j adds (1 − s) · X_j² to the variance. A result has several rows, and may have been found by a row
that was one of few to look up: each of these *factors* counts its own part. What results with two factors in common are
counted for twice is left so (that is a little too much), but for each result with itself, where it is taken back.

A row that is stored brings results in later batches as well, and is missing in all of them if it was shed: estimates of
batches are not independent. With S_j the sum of X_j over the batches before, the sum of all batches varies by
2(1 − s) · S_j · X_j more than the batches do by themselves (`Limited.covariance`). Rows with equal hashes that came in one
batch have one fate. A row that is in ρ slots has one fate, too, and each slot knows its own results with it alone: as if all
slots had as many, what it adds counts ρ times, which is never too little. A worker that takes a slot over begins with no
S_j, so that what is told of many batches may be a little too small then.

Example: half of the rows of a were kept. One row of b finds four of them: that stands for eight results, with a variance of
4 · 0.5 · 2² = 8. If it is one row of a that four rows of b find, that stands for eight results, too, with a variance of
0.5 · 8² = 32. If four more rows of b find it in the next batch, the sum of both batches varies by 0.5 · 16² = 128: by 32 for
each of them, and by 64 because it is the same row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.engine.columns import Ids
from anabranch.engine.combination import Combination
from anabranch.engine.kernels.tally import add_up, place_rows
from anabranch.engine.log import Log

if TYPE_CHECKING:
    from anabranch.engine.box import Box

Floats = npt.NDArray[np.float64]


class ShedFates:
    """The results of a block, by the rows in them of batches that shed others."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._logs: dict[str, ShedLog] = {}
        """Of this batch, by source."""
        self._before: dict[str, dict[int, Floats]] = {}
        """By source and batch of the rows: what they have brought in the batches before."""
        self._again = 0.0
        """What results have been counted for several times."""

    def begin(self) -> None:
        """Before a batch."""
        self._logs, self._again = {}, 0.0

    def take(self, results: Combination, share: float) -> Floats | None:
        """Counts results by their rows, if only a share of rows looked up: for how many each of them stands; None where no
        row was shed that could have come with theirs."""
        if not (kept := [*self._kept(results)]):
            return None
        likely, factors = np.full(len(results), share), np.full(len(results), 1 - share)
        for _, _, shares in kept:
            likely *= shares
            factors += 1 - shares
        stand_for = 1 / likely
        for log, places, shares in kept:
            add_up(places, np.where(shares < 1, stand_for, 0.0), log.sums)
        self._again += float((np.square(stand_for) * (factors - (1 - likely))).sum())
        return stand_for

    def end(self) -> tuple[float, float]:
        """The variance of what was told in this batch, and how much more its sum with all before varies."""
        variance = covariance = 0.0
        for source, log in self._logs.items():
            before = self._before.setdefault(source, {})
            (own, common), copies = log.variances(before), self._copies(source)
            variance, covariance = variance + copies * own, covariance + copies * common
            for batch, sums in log.by_batch():
                before[batch] = sums + (before[batch][: len(sums)] if batch in before else 0.0)
        for source, before in self._before.items():
            segments = self._box.store.logs[source].segments
            self._before[source] = {batch: sums for batch, sums in before.items() if batch in segments}
        return max(0.0, variance - self._again), covariance

    def _copies(self, source: str) -> int:
        """In how many slots a row of a source is."""
        reader = self._box.reader
        return max(len(reader.place.grid.offsets(i.alias)) for i in reader.inputs if i.source.name == source)

    def _kept(self, results: Combination) -> Iterator[tuple[ShedLog, npt.NDArray[np.int64], Floats]]:
        """Of each input with such rows: its log, where its rows stand there, and how likely each was to be kept. A row that
        meets itself was kept once."""
        seen: dict[str, list[Ids]] = {}
        for alias, ids in results.ids.items():
            log = self._box.log_of(alias)
            if not log.shed or not len(ids) or (source := log.source.name) not in self._box.store.logs:
                continue
            if source not in self._logs:
                self._logs[source] = ShedLog(log)
            places, shares = self._logs[source].places(ids)
            for others in seen.setdefault(source, []):
                shares = np.where(ids == others, 1.0, shares)
            seen[source].append(ids)
            if (shares < 1).any():
                yield self._logs[source], places, shares


class ShedLog:
    """The rows of a source that came in batches that shed others, and what they bring in one batch."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._batches = sorted(log.shed)
        self._kept = np.array([*(log.shed[batch] for batch in self._batches), 1.0])
        rows = [log.segments[batch].rows.num_rows for batch in self._batches]
        self._firsts = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
        self._segments = np.full(self._batches[-1] - self._batches[0] + 1, len(rows), np.int64)
        self._segments[np.array(self._batches) - self._batches[0]] = np.arange(len(rows))
        self.sums = np.zeros(self._firsts[-1] + 1)
        """What rows bring, batch by batch; at last, where all others have a place."""

    def places(self, ids: Ids) -> tuple[npt.NDArray[np.int64], Floats]:
        """Where the sums of rows stand, and how likely each row was to be kept."""
        places, shares = np.empty(len(ids), np.int64), np.empty(len(ids))
        place_rows(ids, self._batches[0], self._segments, self._firsts, self._kept, places, shares)
        return places, shares

    def by_batch(self) -> Iterator[tuple[int, Floats]]:
        for place, batch in enumerate(self._batches):
            sums = self.sums[self._firsts[place] : self._firsts[place + 1]]
            if sums.any():
                yield batch, sums

    def variances(self, before: Mapping[int, Floats]) -> tuple[float, float]:
        """What these rows add to the variance of a batch, and to that of its sum with those before; rows of one batch with
        equal hashes as one."""
        variance = covariance = 0.0
        for batch, sums in self.by_batch():
            places, missed = np.flatnonzero(sums), 1 - self._log.shed[batch]
            _, alike = np.unique(self._log.row_hashes(places + (batch << 32)), return_inverse=True)
            own = np.bincount(alike, sums[places])
            variance += missed * float(np.square(own).sum())
            if batch in before:
                covariance += 2 * missed * float((own * np.bincount(alike, before[batch][places])).sum())
        return variance, covariance
