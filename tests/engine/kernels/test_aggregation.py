"""Aggregation kernels against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.aggregates import from_ordered_words, has_ordered_words, ordered_words
from anabranch.engine.kernels import aggregation as kernels


@given(st.lists(st.integers(0, 30), max_size=60), st.lists(st.integers(0, 40), max_size=60))
@settings(deadline=None)
def test_assign_numbers_hashes_in_order_of_appearance(first, second):
    table, known, count, numbers = np.full(256, -1, np.int64), np.empty(256, np.uint64), 0, {}
    for values in (first, second):
        hashes = np.array(values, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        out, brought_by = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
        before = len(numbers)
        for value in values:
            numbers.setdefault(value, len(numbers))
        count = kernels.assign(hashes, table, known, count, out, brought_by)
        assert count == len(numbers)
        assert out.tolist() == [numbers[v] for v in values]
        fresh = [v for v, n in numbers.items() if n >= before]
        assert [values[i] for i in brought_by[: count - before]] == fresh
    larger = np.full(1024, -1, np.int64)
    kernels.rehash(known, count, larger)
    again, rows = np.empty(count, np.int64), np.empty(count, np.int64)
    assert kernels.assign(known[:count].copy(), larger, known, count, again, rows) == count
    assert again.tolist() == list(range(count))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=60))
@settings(deadline=None)
def test_fold_numbers_triples(rows):
    groups, firsts, lasts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    n = len(rows)
    out, g, f, z = (np.empty(n, np.int64) for _ in range(4))
    count = kernels.fold(groups, firsts, lasts, np.full(256, -1, np.int64), out, g, f, z)
    distinct = list(dict.fromkeys(rows))
    assert list(zip(g[:count].tolist(), f[:count].tolist(), z[:count].tolist(), strict=True)) == distinct
    assert [distinct[i] for i in out] == rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 8)), max_size=60), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_a_staircase_knows_the_least_of_those_that_are_left(rows, stride):
    """Rows enter in any order of when they leave; at every instant the head is the least of those still there."""
    heads, tails = np.full(3, -1, np.int64), np.full(3, -1, np.int64)
    size = max(1, len(rows))
    word, last = np.empty(size, np.uint64), np.empty(size, np.int64)
    before, after = np.empty(size, np.int64), np.append(np.arange(1, size), -1)
    free = np.array([0, size], np.int64)
    alive = []
    for now, first in enumerate(range(0, len(rows), stride)):
        entering = rows[first : first + stride]
        groups, words, lengths = (np.array(c, np.int64) for c in zip(*entering, strict=True))
        kernels.climb(groups, words.astype(np.uint64), lengths + now, heads, tails, word, last, before, after, free)
        alive += [(g, w, now + length) for g, w, length in entering]
        alive = [row for row in alive if row[2] > now]
        found = np.empty(3, np.int64)
        kernels.descend(np.arange(3), now, heads, tails, last, before, after, free, found)
        least = [min((w for g, w, _ in alive if g == group), default=None) for group in range(3)]
        assert [None if node < 0 else int(word[node]) for node in found] == least
    nodes = sum(1 for group in range(3) for _ in _walk(heads[group], after))
    assert free[1] + nodes == size


def _walk(node, after):
    while node >= 0:
        yield node
        node = after[node]


@pytest.mark.parametrize("type_name", ["int8", "int64", "float64", "float32", "decimal", "date", "timestamp", "bool"])
def test_ordered_words_are_in_order_and_come_back(type_name):
    from datetime import date, datetime
    from decimal import Decimal

    import pyarrow as pa

    values, type = {
        "int8": ([-128, -1, 0, 1, 127], pa.int8()), "int64": ([-(2**63), -1, 0, 5, 2**63 - 1], pa.int64()),
        "float64": ([-math.inf, -1.5, -1e-300, 0.0, 2.5, math.inf, math.nan], pa.float64()),
        "float32": ([-1.5, 0.0, 2.5, math.nan], pa.float32()),
        "decimal": ([Decimal("-9.99"), Decimal("0.00"), Decimal("123.45")], pa.decimal128(9, 2)),
        "date": ([date(1960, 1, 1), date(1970, 1, 1), date(2024, 2, 29)], pa.date32()),
        "timestamp": ([datetime(1960, 1, 1), datetime(2024, 2, 29, 12)], pa.timestamp("us")),
        "bool": ([False, True], pa.bool_()),
    }[type_name]  # fmt: skip
    column = pa.array(values, type)
    assert has_ordered_words(type)
    words = ordered_words(column)
    assert (np.diff(words.astype(object)) > 0).all()
    assert from_ordered_words(words, np.zeros(len(values), np.bool_), type).equals(column) or type_name.startswith("float")
    missing = np.ones(len(values), np.bool_)
    assert from_ordered_words(words, missing, type).null_count == len(values)


def test_values_without_ordered_words():
    import pyarrow as pa

    assert not has_ordered_words(pa.string())
    assert not has_ordered_words(pa.decimal128(30, 2))
