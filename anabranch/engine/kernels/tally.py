"""Sums by row: what each of some rows has found, or was found in."""

from __future__ import annotations

import numpy as np

from anabranch.storage.compiled import njit

LOW = np.int64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def add_up(places, weights, out):
    """Adds each weight to the sum at its place."""
    for i in range(len(places)):
        out[places[i]] += weights[i]


@njit(cache=True, nogil=True)
def place_rows(ids, first_batch, segments, firsts, shares, places_out, shares_out):
    """For each row id its place among the rows of some segments, which stand one after the other, and the share of its
    segment. `segments` has the number of the segment of each batch from the first on, and of those without one that behind
    the last, whose first place is that of all rows of no segment."""
    nowhere = len(firsts) - 1
    for i in range(len(ids)):
        batch = (ids[i] >> 32) - first_batch
        segment = segments[batch] if 0 <= batch < len(segments) else nowhere
        places_out[i] = firsts[segment] + (ids[i] & LOW if segment < nowhere else 0)
        shares_out[i] = shares[segment]
