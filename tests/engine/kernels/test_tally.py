"""Kernels of sums by row equal their twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import reference, tally

ROWS = st.dictionaries(st.integers(3, 12), st.integers(1, 5), min_size=1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40))
@settings(deadline=None)
def test_add_up(given_weights):
    places, weights = np.array(given_weights, np.int64).reshape(-1, 2).T.copy()
    sums = np.arange(6, dtype=np.float64)
    expected = reference.add_up(places.tolist(), weights.tolist(), sums.tolist())
    tally.add_up(places, weights.astype(np.float64), sums)
    assert sums.tolist() == expected


BASE, BATCHES = 3, 13
"""The batches that tables tell of: some of them have sums."""


@given(ROWS, st.lists(st.tuples(st.integers(BASE, BASE + BATCHES - 1), st.integers(0, 4), st.integers(0, 3)), max_size=40))
@settings(deadline=None)
def test_sums_of_rows_of_batches(rows, drawn):
    """Weights are added, and all that have some are folded, twice; rows stand for themselves, in any order."""
    arrays = {batch: np.zeros((count, 2)) for batch, count in rows.items()}
    sums = {batch << 32 | place: (0.0, 0.0) for batch, count in rows.items() for place in range(count)}
    shares = {batch: 1 / (2 + batch) for batch in rows}
    addresses = np.array([arrays[b].ctypes.data if b in arrays else 0 for b in range(BASE, BASE + BATCHES)])
    table = np.array([shares.get(b, 0.0) for b in range(BASE, BASE + BATCHES)])
    ids = np.array([batch << 32 | place % rows.get(batch, 5) for batch, place, _ in drawn], np.int64)
    weights = np.array([weight for *_, weight in drawn], np.float64)
    found = np.empty(len(ids))
    tally.kept_shares(addresses, table, BASE, ids, found)
    assert found.tolist() == reference.kept_shares(ids.tolist(), shares)
    for _ in range(2):
        touched = np.empty(len(ids), np.int64)
        count = tally.add_to_rows(addresses, BASE, ids, weights, touched)
        sums, expected = reference.add_to_rows(ids.tolist(), weights.tolist(), sums)
        assert touched[:count].tolist() == expected
        assert as_sums(arrays) == sums
        firsts, seconds = np.empty(count), np.empty(count)
        tally.fold_rows(addresses, BASE, ids[touched[:count]], firsts, seconds)
        sums, *given_back = reference.fold_rows(ids[touched[:count]].tolist(), sums)
        assert [firsts.tolist(), seconds.tolist()] == given_back
        assert as_sums(arrays) == sums


def as_sums(arrays):
    return {b << 32 | place: tuple(row) for b, array in arrays.items() for place, row in enumerate(array.tolist())}
