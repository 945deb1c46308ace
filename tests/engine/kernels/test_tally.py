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


@given(ROWS, st.lists(st.tuples(st.integers(0, 15), st.integers(0, 4)), max_size=40))
@settings(deadline=None)
def test_place_rows(rows, drawn):
    shares = {batch: 1 / (2 + batch) for batch in rows}
    ids = [batch << 32 | place % rows.get(batch, 5) for batch, place in drawn]
    batches = sorted(rows)
    segments = np.full(batches[-1] - batches[0] + 1, len(batches), np.int64)
    for number, batch in enumerate(batches):
        segments[batch - batches[0]] = number
    firsts = np.cumsum([0, *(rows[batch] for batch in batches)], dtype=np.int64)
    found = np.empty(len(ids), np.int64), np.empty(len(ids))
    kept = np.array([*(shares[batch] for batch in batches), 1.0])
    tally.place_rows(np.array(ids, np.int64), batches[0], segments, firsts, kept, *found)
    assert tuple(each.tolist() for each in found) == reference.place_rows(ids, rows, shares)
