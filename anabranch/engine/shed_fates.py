"""What hangs on rows of batches that shed others: a row that was kept brings all its results, a shed one none of them.

So the number of results that is told where rows are shed (`anabranch.engine.limits`) is uncertain by row, too, and not by
result. With s the share that was kept of the rows that came with row j, and X_j the results with row j in them, each for as
many as it stands for, row j adds (1 − s) · X_j² to the variance. A result has several rows, and may have been found by a row
that was one of few to look up: each of these *factors* counts its own part. What results with two factors in common are
counted for twice is left so (that is a little too much), but for each result with itself, where it is taken back.

A row that is stored brings results in later batches as well, and is missing in all of them if it was shed: estimates of
batches are not independent. With S_j the sum of X_j over the batches before, the sum of all batches varies by
2(1 − s) · S_j · X_j more than the batches do by themselves (`Limited.covariance`). Rows with equal hashes that came in one
batch have one fate: where a result of a self-join has two of them, they were kept together, as a row is that meets itself.
(Rows are shed by the hash of all columns that are read. If one of these is not stored, as one that only predicates read,
rows may be equal by what is stored and not by their hashes. They count as one for the variance, which is never too little,
and each for itself for what a result stands for.) A row that is in ρ slots has one fate, too, and each slot knows its own
results with it alone: as if all slots had as many, what it adds counts ρ times, which is never too little. A worker that
takes a slot over begins with no S_j, so that what is told of many batches may be a little too small then.

Example: half of the rows of a were kept. One row of b finds four of them: that stands for eight results, with a variance of
4 · 0.5 · 2² = 8. If it is one row of a that four rows of b find, that stands for eight results, too, with a variance of
0.5 · 8² = 32. If four more rows of b find it in the next batch, the sum of both batches varies by 0.5 · 16² = 128: by 32 for
each of them, and by 64 because it is the same row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.engine.columns import AddressTables, Ids
from anabranch.engine.combination import Combination
from anabranch.engine.kernels.hashing import combine
from anabranch.engine.kernels.tally import add_to_rows, fold_rows, kept_shares
from anabranch.engine.keys import Hashes
from anabranch.engine.log import Log
from anabranch.plan.lookups import brought_columns
from anabranch.plan.query import Enriched

if TYPE_CHECKING:
    from anabranch.engine.box import Box

Floats = npt.NDArray[np.float64]
Fates = Ids | Hashes


class ShedFates:
    """The results of a block, by the rows in them of batches that shed others."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._logs: dict[str, ShedLog] = {}
        """By source."""
        self._current: set[str] = set()
        """The sources that know the segments of this batch."""
        self._again = 0.0
        """What results of this batch have been counted for several times."""

    def begin(self) -> None:
        """Before a batch."""
        logs = self._box.store.logs
        self._logs = {name: log for name, log in self._logs.items() if log.is_of(logs.get(name))}
        self._current, self._again = set(), 0.0

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
        for log, ids, shares in kept:
            log.add(ids, np.where(shares < 1, stand_for, 0.0))
        self._again += float((np.square(stand_for) * (factors - (1 - likely))).sum())
        return stand_for

    def end(self) -> tuple[float, float]:
        """The variance of what was told in this batch, and how much more its sum with all before varies."""
        variance = covariance = 0.0
        for source in self._current:
            (own, common), copies = self._logs[source].variances(), self._copies(source)
            variance, covariance = variance + copies * own, covariance + copies * common
        return max(0.0, variance - self._again), covariance

    def _copies(self, source: str) -> int:
        """In how many slots a row of a source is."""
        reader = self._box.reader
        return max(len(reader.place.grid.offsets(i.alias)) for i in reader.inputs if i.source.name == source)

    def _kept(self, results: Combination) -> Iterator[tuple[ShedLog, Ids, Floats]]:
        """Of each input with such rows: its log, the rows, and how likely each was to be kept. A row that meets itself, or
        one of the same fate, was kept once."""
        seen: dict[str, list[Fates]] = {}
        for alias, ids in results.ids.items():
            log = self._box.log_of(alias)
            if not log.shed or not len(ids) or (source := log.source.name) not in self._box.store.logs:
                continue
            shares = self._log_of(log).shares(ids)
            if len(self._box.reader.inputs_over(source)) > 1:
                fates = self._fates(log, ids)
                for others in seen.setdefault(source, []):
                    shares = np.where(fates == others, 1.0, shares)
                seen[source].append(fates)
            if (shares < 1).any():
                yield self._logs[source], ids, shares

    def _fates(self, log: Log, ids: Ids) -> Fates:
        """Equal for rows of one fate, as far as that is known."""
        source, read = log.source, self._box.store.read_columns(log.source)
        hashed = brought_columns(source, read) if isinstance(source, Enriched) else read
        return self._log_of(log).fates(ids) if {*hashed} <= {*log.schema.names} else ids

    def _log_of(self, log: Log) -> ShedLog:
        if (source := log.source.name) not in self._current:
            self._logs.setdefault(source, ShedLog(log)).learn()
            self._current.add(source)
        return self._logs[source]


class ShedLog:
    """What the rows of a source bring that came in batches that shed others: in this batch, and in those before.

    Each segment of such a batch has an array for it, made once. A batch goes to the rows that its results have, and to no
    others: what it takes follows from these, and not from how many rows are stored.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._brought: dict[int, Floats] = {}
        """By batch: of each row what it brings now, and what it has brought before."""
        self._tables = AddressTables(2)
        """Of these arrays, 0 for batches that shed nothing; and of the shares that were kept, the bits of a float."""
        self._touched: list[Ids] = []
        """The rows that bring something now."""

    def is_of(self, log: Log | None) -> bool:
        """Whether there is any use for it in another batch."""
        return log is self._log and bool(log.shed)

    def learn(self) -> None:
        """Takes note of the segments that have come, and of those that have gone."""
        segments, known = self._log.segments, self._tables.known
        for batch in known - segments.keys():
            self._tables.drop(batch)
            self._brought.pop(batch, None)
        for batch in sorted(segments.keys() - known):
            if (share := self._log.shed.get(batch)) is None:
                self._tables.set(batch, 0, 0)
                continue
            self._brought[batch] = array = np.zeros((segments[batch].rows.num_rows, 2))
            self._tables.set(batch, array.ctypes.data, int(np.float64(share).view(np.int64)))

    def shares(self, ids: Ids) -> Floats:
        """How likely each row was to be kept."""
        found, (addresses, shares) = np.empty(len(ids)), self._tables.addresses
        kept_shares(addresses, shares.view(np.float64), self._tables.base, self._tables.renumbered(ids), found)
        return found

    def fates(self, ids: Ids) -> Hashes:
        """Equal for rows that came in one batch and are equal."""
        found = self._log.row_hashes(ids).copy()
        combine((ids >> 32).view(np.uint64), found)
        return found

    def add(self, ids: Ids, weights: Floats) -> None:
        """Counts what rows bring."""
        places = np.empty(len(ids), np.int64)
        numbers = self._tables.renumbered(ids)
        count = add_to_rows(self._tables.addresses[0], self._tables.base, numbers, weights, places)
        self._touched.append(ids[places[:count]])

    def variances(self) -> tuple[float, float]:
        """What these rows add to the variance of a batch, and to that of its sum with those before; rows of one batch with
        equal hashes as one. The batch is over then."""
        ids = np.concatenate([*self._touched, np.empty(0, np.int64)])
        self._touched = []
        now, before = np.empty(len(ids)), np.empty(len(ids))
        fold_rows(self._tables.addresses[0], self._tables.base, self._tables.renumbered(ids), now, before)
        _, first, alike = np.unique(self.fates(ids), return_index=True, return_inverse=True)
        missed = 1 - self.shares(ids[first])
        own, earlier = np.bincount(alike, now), np.bincount(alike, before)
        return float((missed * np.square(own)).sum()), 2 * float((missed * own * earlier).sum())
