"""Sums by row: what each of some rows has found."""

from __future__ import annotations

from anabranch.storage.compiled import njit


@njit(cache=True, nogil=True)
def add_up(places, weights, out):
    """Adds each weight to the sum at its place."""
    for i in range(len(places)):
        out[places[i]] += weights[i]
