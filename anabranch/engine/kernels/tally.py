"""Sums by row: what each of some rows has found, or was found in.

Rows that are in many segments have two sums each in an array of the segment; `addresses[batch - base]` is where it lies, 0
if the rows of a batch have none.
"""

from __future__ import annotations

import numpy as np

from anabranch.engine.kernels.memory import load_f64, store_f64
from anabranch.storage.compiled import njit

LOW = np.int64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def add_up(places, weights, out):
    """Adds each weight to the sum at its place."""
    for i in range(len(places)):
        out[places[i]] += weights[i]


@njit(cache=True, nogil=True)
def kept_shares(addresses, shares, base, ids, out):
    """For each row id the share of the rows of its batch that was kept: 1 where the batch has no sums."""
    for i in range(len(ids)):
        batch = (ids[i] >> 32) - base
        out[i] = shares[batch] if addresses[batch] else 1.0


@njit(cache=True, nogil=True)
def add_to_rows(addresses, base, ids, weights, touched):
    """Adds each weight, 0 or more, to the first sum of its row, of two; rows of batches without sums are passed over. Notes
    the places of rows whose sum was 0, and returns how many there are."""
    count = 0
    for i in range(len(ids)):
        at = addresses[(ids[i] >> 32) - base]
        if at == 0 or weights[i] == 0:
            continue
        at += (ids[i] & LOW) * 16
        before = load_f64(at)
        if before == 0:
            touched[count] = i
            count += 1
        store_f64(at, before + weights[i])
    return count


@njit(cache=True, nogil=True)
def fold_rows(addresses, base, ids, firsts, seconds):
    """Takes the first sum of each of some rows, which becomes part of the second, and what that was before."""
    for i in range(len(ids)):
        at = addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 16
        firsts[i], seconds[i] = load_f64(at), load_f64(at + 8)
        store_f64(at, 0.0)
        store_f64(at + 8, firsts[i] + seconds[i])
