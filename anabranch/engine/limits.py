"""Where there is not CPU enough, only some rows look up their partners where results arise; and how much that loses.

A *direction* of a join is the route of one input. Its limit acts at the last stage of the route, the only one whose finds
are results: of the rows that come there, a share p looks up its partners, chosen by a hash of the whole row
(`anabranch.engine.row_hash`). What comes there is a row of the input, or, where the plan keeps views, a combined row. All
other work is done in full: every row is stored, indexed and kept in views. So nothing is wrong later because something was
left out now, and the first batch without limits is exact again.

Each result that is found stands for 1/π of them, where π is the share of the direction, times the shares of all rows in it
that were shed before they came (`anabranch.engine.shedding`): so many results all rows would have given, as far as can be
told (`Limited.estimated`; Horvitz and Thompson). Whether a row looks up decides about all that it finds at once, so its
standard error is that of a sample of *rows*: each row that looked up, with y results, adds (1 − p)/p² · y² to the variance,
where y counts what is shed of all its rows. With few rows that find very many partners, errors by result would be far too
small. Rows with equal hashes share their fate, so they count as one row that finds what all of them do: what is stored of
rows is often only their keys and times. A row that is in several slots looks up in each of them, or not, by another salt:
so slots are independent, and their variances add up. What rows that were shed add is told apart
(`anabranch.engine.shed_fates`).

Example: p is 0.25, and of four rows the third looks up and finds 3 partners. `probed` is 1, `results` 3, `estimated` 12, and
`variance` 0.75/0.0625 · 9 = 108: 12 results, give or take 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.control.records import Limit, Limited
from anabranch.engine.combination import Combination
from anabranch.engine.kernels.tally import add_up
from anabranch.engine.row_hash import chosen, combined_hash, salt_for
from anabranch.engine.shedding import Dropped

if TYPE_CHECKING:
    from anabranch.engine.box import Box

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Limits:
    """What a batch may lose in a slot, and has lost before it came there."""

    may_lose: bool = False
    """Whether what is found in each direction is counted, limited or not."""
    queries: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    """By query and input, which rows may look up their partners where results arise; of an input not named, all."""
    slot: int = 0
    salt: int = 0
    kept: Mapping[str, float] = field(default_factory=dict)
    """The share of the rows of each stream that was not shed."""
    dropped: Mapping[str, Dropped] = field(default_factory=dict)
    """What was shed, as far as it is to be counted in this slot."""

    def share(self, query: str, alias: str, rows: int) -> float:
        """The share of rows of an input that may look up, if it has brought so many.

        >>> limits = Limits(queries={"q": {"a": Limit(share=0.5), "b": Limit(rows={0: 30})}})
        >>> [limits.share("q", alias, 40) for alias in "abc"], limits.share("q", "b", 20)
        ([0.5, 0.75, 1.0], 1.0)
        """
        limit = self.queries.get(query, {}).get(alias)
        if limit is None:
            return 1.0
        if limit.share is not None:
            return limit.share
        allowed = limit.rows.get(self.slot)
        return 1.0 if allowed is None or allowed >= rows else allowed / rows


NO_LIMITS = Limits()
"""Nothing is lost."""


class Direction:
    """The rows of a route that have come to its last stage, in one piece: who of them looks up, and what they find."""

    def __init__(self, box: Box, alias: str, share: float, rows: Combination, arrived: int) -> None:
        self._box = box
        self._counts = box.statistics.limited.setdefault(alias, Limited())
        self._counts.rows += len(rows)
        self._counts.arrived = arrived
        self._hashes: npt.NDArray[np.uint64] | None = None
        self.probing: Mask | None = None
        """Who looks up; None if all do."""
        if share < 1:
            self._hashes = _hashes(box, rows)
            limits = box.arrival.limits
            self.probing = chosen(self._hashes, share, salt_for(limits.salt, f"probe {alias} {limits.slot}"))
        self._counts.probed += len(rows) if self.probing is None else int(np.count_nonzero(self.probing))
        self._share = share
        self._found: npt.NDArray[np.float64] | None = None
        """Of each row, where only some look up: how many results those stand for that it has found so far."""
        self.rows = rows
        if share < 1:
            self._found = np.zeros(len(rows))
            self.rows = replace(rows, finders=np.arange(len(rows)))

    def take(self, results: Combination) -> None:
        """Counts results."""
        self._counts.results += len(results)
        stand_for = self._box.fates.take(results, self._share)
        if stand_for is None:
            if self._found is None:
                self._counts.estimated += len(results)
                return
            stand_for = np.full(len(results), 1 / self._share)
        self._counts.estimated += float(stand_for.sum())
        if self._found is not None:
            assert results.finders is not None
            add_up(results.finders, stand_for, self._found)

    def end(self, cpu_ns: int) -> None:
        """All of them have looked up."""
        self._counts.cpu_ns += cpu_ns
        if self._found is None or not (places := np.flatnonzero(self._found)).size:
            return
        assert self._hashes is not None
        _, alike = np.unique(self._hashes[places], return_inverse=True)
        stands_for = np.bincount(alike, self._found[places])
        self._counts.variance += (1 - self._share) * float(np.square(stands_for).sum())


def _hashes(box: Box, rows: Combination) -> npt.NDArray[np.uint64]:
    """The hashes of rows, each of all that is stored of them; of combined rows by those of their parts."""
    parts = [box.log_of(alias).row_hashes(rows.ids[alias]) for alias in sorted(rows.ids)]
    return parts[0] if len(parts) == 1 else combined_hash(parts)
