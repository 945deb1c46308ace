"""Words are in order as values are; ranges have all partners in them, whatever rounds or wraps."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.engine.expressions import evaluate
from anabranch.engine.kernels import reference
from anabranch.engine.ordering import (
    from_ordered_words,
    keyed_words,
    limit_words,
    may_wrap,
    ordered_words,
    sort_by_word,
)
from anabranch.plan.expression import Call, Column, Literal
from anabranch.plan.ranges import range_of

INT, FLOAT, BOOL = pa.int64(), pa.float64(), pa.bool_()
nan, inf = float("nan"), float("inf")
IN_ORDER = {
    INT: [-(2**63), -(2**40), -1, 0, 1, 2**63 - 1],
    pa.int16(): [-(2**15), -1, 0, 7],
    FLOAT: [-inf, -1.5, -5e-324, 0.0, 5e-324, 1e300, inf, nan],
    pa.float32(): [-inf, -1.5, 0.0, 0.25, inf, nan],
    pa.decimal128(18, 2): [Decimal("-9999999999999999.99"), Decimal("-0.01"), Decimal(0), Decimal("0.01")],
    pa.date32(): [date(1600, 1, 1), date(1970, 1, 1), date(2200, 1, 1)],
    pa.timestamp("us"): [datetime(1600, 1, 1), datetime(1970, 1, 1), datetime(2200, 1, 1)],
    BOOL: [False, True],
}


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
def test_words_are_in_order_and_stand_for_the_values(kind):
    values = pa.array(IN_ORDER[kind], kind)
    words = ordered_words(values)
    assert bool(np.all(words[:-1] < words[1:]))
    assert str(from_ordered_words(words, np.zeros(len(values), np.bool_), kind)) == str(values)
    assert ordered_words(values.slice(1)).tolist() == words[1:].tolist()


def test_zeros_are_one_word():
    words = ordered_words(pa.array([0.0, -0.0]))
    assert words[0] == words[1]


FLOATS = st.floats() | st.sampled_from([0.1, 0.3, 1e16, 1e16 + 2, -0.0, 2**53 + 1.0, 1.7976931348623157e308, nan, inf, -inf])
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5) | st.sampled_from([2**63 - 1, -(2**63), 2**63 - 3])
OPS = st.sampled_from(["lt", "le", "gt", "ge"])


def assert_partners_are_in_range(kind, theirs, ours, shift, op, subtracted):
    """Every value of the state that satisfies `a.x op (b.x ± shift)` lies in the range for the row of a."""
    a, b = Column(kind, "a", "x"), Column(kind, "b", "x")
    term = Call(kind, "sub" if subtracted else "add", (b, Literal(kind, shift)))
    predicate = Call(BOOL, op, (a, term))
    between = range_of([predicate], {"a"}, {"b"})
    assert between is not None
    if len(between.limits[0].shifts) == 1:
        assert between.term == b
    columns = {a: pa.array([x for x in ours for _ in theirs], kind), b: pa.array(theirs * len(ours), kind)}
    true = evaluate(predicate, columns.__getitem__, len(columns[a])).to_numpy(zero_copy_only=False)
    lows, highs, valid = limit_words(between, [columns[a]], len(columns[a]))
    words = ordered_words(evaluate(between.term, columns.__getitem__, len(columns[a])))
    inside = (lows <= words) & (words <= highs) & valid
    if not may_wrap(between, int(words.min()), int(words.max())):
        assert bool(np.all(inside | ~true))


@given(st.lists(FLOATS, min_size=1, max_size=8), st.lists(FLOATS, min_size=1, max_size=8), FLOATS, OPS, st.booleans())
@example([0.1], [0.4], 0.3, "le", False)
@example([1.0, 3.0], [1e16], 1e16, "ge", False)
@settings(deadline=None, max_examples=400)
def test_floats_that_round(theirs, ours, shift, op, subtracted):
    near = [x + shift for x in theirs] + [x - shift for x in theirs]
    near += [math.nextafter(x, inf) for x in near] + [math.nextafter(x, -inf) for x in near]
    assert_partners_are_in_range(FLOAT, theirs, ours + near, shift, op, subtracted)


@given(st.lists(INTS, min_size=1, max_size=8), st.lists(INTS, min_size=1, max_size=8), INTS, OPS, st.booleans())
@example([2**63 - 1], [-(2**63)], 1, "ge", False)
@settings(deadline=None, max_examples=300)
def test_integers_that_wrap(theirs, ours, shift, op, subtracted):
    """A wrapped one is told from the words of the state."""
    assert_partners_are_in_range(INT, theirs, ours, shift, op, subtracted)


def test_what_has_no_null_has_a_range():
    a, b = Column(INT, "a", "x"), Column(INT, "b", "x")
    between = range_of([Call(BOOL, "lt", (b, a))], {"a"}, {"b"})
    assert between is not None
    assert limit_words(between, [pa.array([1, None, 3], INT)], 3)[2].tolist() == [True, False, True]


@given(st.lists(st.tuples(INTS, st.integers(0, 99)), max_size=60), st.booleans())
@settings(deadline=None)
def test_sorting_by_words_equals_the_twin_of_sorting_by_hashes(rows, placed):
    words = [word + 2**63 for word, _ in rows]
    starts, ends = [start for _, start in rows], [start + 1 for _, start in rows]
    positions = list(range(100, 100 + len(rows))) if placed else []
    found = sort_by_word(
        np.array(words, np.uint64), np.array(positions, np.int64), np.array(starts, np.int64), np.array(ends, np.int64)
    )
    assert found.tolist() == [list(row) for row in reference.sort_by_hash(words, positions, starts, ends)]


@pytest.mark.parametrize("kind", IN_ORDER, ids=str)
def test_words_with_a_hash_are_never_against_the_order(kind):
    words = ordered_words(pa.array(IN_ORDER[kind], kind))
    hashes = np.array([0, 5 << 40, 2**64 - 1], np.uint64)
    for hash in hashes:
        keyed = keyed_words(np.full(len(words), hash), words, kind)
        assert bool(np.all(keyed[:-1] <= keyed[1:]))
        assert set((keyed >> np.uint64(40)).tolist()) == {int(hash) >> 40}
        assert keyed[0] < keyed[-1]
