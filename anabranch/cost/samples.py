"""Selectivities from samples of keys that all inputs take by the same hash (`anabranch.control.records.KeySample`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anabranch.control.records import KeySample

ENOUGH_MATCHES = 16.0
"""Fewer pairs of sampled rows that match say nothing."""


@dataclass(frozen=True)
class SampledKeys:
    """The rows of an input with the least hashes of a key, over some batches."""

    limit: int
    rows: int
    """All rows, sampled or not."""
    hashes: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.float64]

    def below(self, limit: int) -> SampledKeys:
        kept = self.hashes.searchsorted(np.uint64(limit)) if limit < 2**64 else len(self.hashes)
        return SampledKeys(min(limit, self.limit), self.rows, self.hashes[:kept], self.counts[:kept])


def gathered(samples: Iterable[KeySample]) -> dict[str, SampledKeys]:
    """The samples of several batches and slots as one for each key."""
    parts: dict[str, list[KeySample]] = {}
    for found in samples:
        if found.rows:
            parts.setdefault(found.term, []).append(found)
    whole = {}
    for term, many in parts.items():
        limit = min(s.limit for s in many)
        hashes = np.concatenate([np.frombuffer(s.hashes, np.uint64) for s in many])
        counts = np.concatenate([np.frombuffer(s.counts, np.uint32) for s in many]).astype(np.float64)
        distinct, places = np.unique(hashes, return_inverse=True)
        summed = np.bincount(places, counts, len(distinct)).astype(np.float64)
        rows = sum(s.rows for s in many)
        whole[term] = SampledKeys(2**64, rows, distinct, summed).below(limit)
    return whole


def selectivity(left: SampledKeys, right: SampledKeys) -> float | None:
    """Which share of all pairs of rows have equal keys; None if the samples are too small to tell.

    >>> left = SampledKeys(2**63, 200, np.array([1, 7], np.uint64), np.array([50.0, 50.0]))
    >>> right = SampledKeys(2**64, 10, np.array([7, 2**63 + 5], np.uint64), np.array([5.0, 5.0]))
    >>> selectivity(left, right)
    0.25
    """
    limit = min(left.limit, right.limit)
    left, right = left.below(limit), right.below(limit)
    _, ours, theirs = np.intersect1d(left.hashes, right.hashes, assume_unique=True, return_indices=True)
    matches = float(left.counts[ours] @ right.counts[theirs])
    if matches < ENOUGH_MATCHES:
        return None
    return min(1.0, matches / (limit / 2**64) / (left.rows * right.rows))
