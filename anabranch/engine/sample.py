"""Samples of keys, alike in all inputs: what tells how selective a predicate is that no probe takes by itself."""

from __future__ import annotations

import numpy as np

from anabranch.control.records import KeySample
from anabranch.engine.keys import Hashes

SAMPLED_KEYS = 256
"""So many keys of a batch are in a sample, or a few more, or all there are."""

FIRST_SHARE = 2
"""A sample is first looked for among the rows with the least hashes, this many times as many as keys are wanted."""

ALL = 2**64


def sample(term: str, hashes: Hashes, is_sorted: bool) -> KeySample:
    """The rows of a batch whose key has one of the least hashes.

    >>> found = sample("a.k", np.array([3, 5, 3], np.uint64), False)
    >>> np.frombuffer(found.hashes, np.uint64).tolist(), np.frombuffer(found.counts, np.uint32).tolist()
    ([3, 5], [2, 1])
    """
    limit = ALL * FIRST_SHARE * SAMPLED_KEYS // max(FIRST_SHARE * SAMPLED_KEYS, len(hashes))
    while True:
        below = np.uint64(min(limit, ALL - 1))
        part = hashes[: int(np.searchsorted(hashes, below))] if is_sorted else hashes[hashes < below]
        found, counts = np.unique(part if limit < ALL else hashes, return_counts=True)
        if len(found) >= SAMPLED_KEYS or limit >= ALL:
            break
        limit = min(ALL, 8 * limit)
    if len(found) > SAMPLED_KEYS:
        limit, found, counts = int(found[SAMPLED_KEYS]), found[:SAMPLED_KEYS], counts[:SAMPLED_KEYS]
    return KeySample(term, limit, len(hashes), found.tobytes(), counts.astype(np.uint32).tobytes())
