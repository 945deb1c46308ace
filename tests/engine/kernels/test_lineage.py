"""Kernels of lineage equal their twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import gather as gathering
from anabranch.engine.kernels import lineage as kernels
from anabranch.engine.kernels import reference

WORDS = st.sampled_from([0, 1, 2**63, 2**64 - 1, 5, 2**32])


@given(st.lists(st.tuples(WORDS, WORDS), max_size=200), st.booleans())
@settings(deadline=None)
def test_number_rows(rows, is_wide):
    rows = rows if is_wide else [(first,) for first, _ in rows]
    words = np.array(rows, np.uint64).reshape(len(rows), 2 if is_wide else 1).T.copy()
    numbers, firsts = np.empty(len(rows), np.int32), np.empty(len(rows), np.int64)
    count = kernels.number_rows(words, numbers, firsts)
    assert (numbers.tolist(), firsts[:count].tolist()) == reference.number_rows(rows)


@given(st.lists(st.tuples(WORDS, st.booleans()), max_size=50), st.integers(0, 63))
@settings(deadline=None)
def test_add_bit(rows, place):
    words, mask = np.array([word for word, _ in rows], np.uint64), np.array([is_set for _, is_set in rows], np.bool_)
    expected = reference.add_bit(words.tolist(), place, mask.tolist())
    kernels.add_bit(words, place, mask)
    assert words.tolist() == expected


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(0, 5)),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60),
    st.sampled_from([np.int32, np.uint16, np.uint32]),
)
@settings(deadline=None)
def test_intersect(known, pairs, dtype):
    table = np.full((6, 6), -1, np.int32)
    for pair, number in known.items():
        table[pair] = number
    left, right = np.array([p for p, _ in pairs], np.int32), np.array([q for _, q in pairs], dtype)
    out = np.empty(len(pairs), np.int32)
    unknown = kernels.intersect(table, left, right, out)
    assert (out.tolist(), unknown) == reference.intersect(known, left.tolist(), right.tolist())


@given(st.lists(st.integers(-5, 40), max_size=60), st.lists(st.integers(0, 30), max_size=9, unique=True).map(sorted))
@settings(deadline=None)
def test_age_slices(ages, limits):
    out = np.empty(len(ages), np.int32)
    kernels.age_slices(np.array(ages, np.int64), np.array(limits, np.int64), out)
    assert out.tolist() == reference.age_slices(ages, limits)


@given(st.lists(st.integers(0, 6), max_size=80))
@settings(deadline=None)
def test_order_by_number(numbers):
    given_numbers = np.array(numbers, np.int32)
    begins = np.concatenate([[0], np.cumsum(np.bincount(given_numbers, minlength=7))])[:-1]
    order = np.empty(len(numbers), np.int64)
    kernels.order_by_number(given_numbers, begins, order)
    assert order.tolist() == reference.order_by_number(numbers)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=9))
@settings(deadline=None)
def test_expand(ranges):
    begins = np.array([begin for begin, _ in ranges], np.int64)
    ends = begins + np.array([count for _, count in ranges], np.int64)
    out = np.empty(int((ends - begins).sum()), np.int64)
    kernels.expand(begins, ends, out)
    assert out.tolist() == reference.expand([*zip(begins.tolist(), ends.tolist(), strict=True)])


@given(st.lists(st.integers(0, 2**70 - 1), max_size=40))
@settings(deadline=None)
def test_members_of_sets(sets):
    words = np.array([[bits & 2**64 - 1, bits >> 64] for bits in sets], np.uint64).reshape(len(sets), 2)
    counts = np.zeros(71, np.int64)
    there = np.empty(len(sets), np.bool_)
    kernels.has_members(words, there)
    assert there.tolist() == reference.has_members(sets)
    kernels.count_members(words, counts)
    begins = np.cumsum(counts)
    places, ends = np.empty(int(begins[-1]), np.int32), begins[:-1].copy()
    kernels.list_members(words, ends, places)
    found = [places[begins[member] : begins[member + 1]].tolist() for member in range(70)]
    assert found == reference.members_of(sets, 70)


@given(st.dictionaries(st.integers(0, 4), st.integers(1, 5)), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
@settings(deadline=None)
def test_inside(counts, rows):
    ids = [batch << 32 | position for batch, position in rows]
    table, out = np.array([counts.get(batch, 0) for batch in range(5)], np.int64), np.empty(len(ids), np.bool_)
    gathering.inside(table, 0, np.array(ids, np.int64), out)
    assert out.tolist() == reference.inside(counts, ids)
