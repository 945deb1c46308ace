"""SUM, AVG and STDDEV of rows that enter and leave: overflow, infinities, NaN, and partial values on all their ways.

Values are drawn so that within a window the small ones span less than 2^50, and the large ones too: then sums and means are
those of fractions, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.aggregates import Accumulator, accumulator
from anabranch.engine.kernels import reference
from anabranch.engine.sums import Deviation, ExactSum, FloatSum, Mean, Sum
from anabranch.plan.query import PARTS, Aggregate

QUARTERS = st.integers(-(2**20), 2**20).map(lambda units: units / 4.0)
HUGE = st.sampled_from([1e308, -1e308, 1.7976931348623157e308, -1.7976931348623157e308, 1e300, -3e299])
ODD = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, None])
TINY = st.integers(-(2**20), 2**20).map(lambda units: math.ldexp(units, -1074))
VALUES = st.one_of(
    st.lists(QUARTERS | HUGE | ODD, max_size=10), st.lists(QUARTERS | HUGE, max_size=10), st.lists(TINY | HUGE, max_size=10),
    st.lists(QUARTERS | ODD, max_size=10),
)  # fmt: skip
FUNCTIONS = ("sum", "avg", "stddev")


def made(function: str, type: pa.DataType = pa.float64(), argument: pa.DataType = pa.float64()) -> Accumulator:  # noqa: B008
    return accumulator(Aggregate(function, 0, type), argument)


def wanted(function: str, given: Sequence[float | None]) -> float | None:
    """What the law says of the values that are left."""
    values = [v for v in given if v is not None]
    if len(values) < (2 if function == "stddev" else 1):
        return None
    if not all(map(math.isfinite, values)):
        return math.nan if function == "stddev" else sum(v for v in values if not math.isfinite(v))
    found = {"sum": reference.total, "avg": reference.mean, "stddev": reference.deviation}[function](values)
    # Squares of what is below 1e-150 are 0.
    return 0.0 if function == "stddev" and max(map(abs, values)) < 1e-150 else found


def same(
    function: str,
    ours: float | None,
    theirs: float | None,
    values: Sequence[float | None],
    gone: Sequence[float | None] = (),
) -> bool:
    """Whether results are equal. A deviation follows from squares in 106 bits: that of what is left tells no less than
    2^-50 of the largest value that was there."""
    if ours is None or theirs is None or function != "stddev" or not math.isfinite(theirs):
        return ours == theirs or (ours is not None and theirs is not None and math.isnan(ours) and math.isnan(theirs))
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    before = max((abs(v) for v in gone if v is not None and math.isfinite(v)), default=0.0)
    return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=max(largest * 1e-14, before * 2.0**-50))


def values_of(each: Accumulator, groups: int = 1) -> list[Any]:
    return each.value(np.arange(groups), 0).to_pylist()  # type: ignore[no-any-return]


def one_by_one(each: Accumulator, values: Sequence[Any], type: pa.DataType) -> dict[str, Any]:
    """Partial values of one value each."""
    return each.fold(np.arange(len(values)), len(values), pa.array(values, type))


@pytest.mark.parametrize("function", FUNCTIONS)
@given(values=VALUES, data=st.data())
@settings(deadline=None, max_examples=60)
def test_what_is_left_is_right_again(function: str, values: list[float | None], data: st.DataObject) -> None:
    """Values enter and leave one by one, in any order; at each step the result is that of the values which are there."""
    each, places = made(function), np.arange(max(1, len(values)))
    each.grow(1)
    group = np.zeros(1, np.int64)
    parts = one_by_one(each, values, pa.float64())
    there: list[int] = []
    steps = data.draw(st.permutations([*range(len(values)), *range(len(values))]))
    for row in steps:
        if row in there:
            there.remove(row)
            each.drop(group, parts, places[row : row + 1])
        else:
            there.append(row)
            each.take(group, parts, places[row : row + 1], places[:1])
        left = [values[i] for i in there]
        assert same(function, values_of(each)[0], wanted(function, left), left, values), left
    assert values_of(each) == [None]


@pytest.mark.parametrize("function", ["sum", "avg"])
@pytest.mark.parametrize("small", [0.25, -0.25, 2.0**-1074])
@pytest.mark.parametrize("large", [(2.0**1000, 2.0**947), (1e308, 1.7976931348623157e308, 0.0), (2.0**900, 2.0**847)])
def test_a_small_value_decides_a_tie(function: str, small: float, large: tuple[float, ...]) -> None:
    """Two large values whose sum is halfway between two doubles, and a value too small to change a bit of the pair."""
    values = [*large, small]
    each, zero = made(function), np.zeros(1, np.int64)
    each.grow(1)
    each.take(zero, each.fold(np.zeros(len(values), np.int64), 1, pa.array(values, pa.float64())), zero, zero)
    assert values_of(each)[0] == wanted(function, values)


@pytest.mark.parametrize("function", FUNCTIONS)
@given(values=VALUES, cuts=st.lists(st.integers(0, 10), max_size=3), order=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_folding_in_parts_and_in_any_order(
    function: str, values: list[float | None], cuts: list[int], order: Any
) -> None:
    """Rows are folded together, in parts, in another order, across slots: the result is the same."""
    shuffled = order.sample(values, len(values))
    edges = [0, *sorted(min(c, len(values)) for c in cuts), len(values)]
    pieces = [shuffled[a:b] for a, b in pairwise(edges)]
    each, zero = made(function), np.zeros(1, np.int64)
    each.grow(1)
    for piece in pieces:
        slot = made(function)
        slot.grow(1)
        slot.take(zero, slot.fold(np.zeros(len(piece), np.int64), 1, pa.array(piece, pa.float64())), zero, zero)
        each.take(zero, slot.parts(zero, 0), zero, zero)
    assert same(function, values_of(each)[0], wanted(function, values), values)


@pytest.mark.parametrize("function", ["sum", "avg"])
@given(groups=st.lists(VALUES, min_size=1, max_size=5))
@settings(deadline=None, max_examples=60)
def test_partial_values_in_bytes(function: str, groups: list[list[float | None]]) -> None:
    """Groups below a join hand on bytes; what is made of these is what is made of the rows."""
    ids = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    values = [v for g in groups for v in g]
    below = made(function, PARTS)
    below.grow(len(groups))
    rows = np.arange(len(groups))
    below.take(rows, below.fold(ids, len(groups), pa.array(values, pa.float64())), rows, rows)
    handed_on = below.value(rows, 0)
    assert handed_on.type == PARTS
    above, zero = made(function, argument=PARTS), np.zeros(1, np.int64)
    above.grow(1)
    # A slice, since rows that are looked up are rarely the first of their buffer.
    for piece in (handed_on.slice(0, 1), handed_on.slice(1)):
        if len(piece):
            above.take(zero, above.fold(np.zeros(len(piece), np.int64), 1, piece), zero, zero)
    assert same(function, values_of(above)[0], wanted(function, values), values)


DIGITS_38 = st.integers(-(10**38) + 1, 10**38 - 1) | st.sampled_from([10**38 - 1, -(10**38) + 1, 6 * 10**37, 0, 1])


@given(values=st.lists(DIGITS_38, max_size=12), data=st.data(), in_bytes=st.booleans())
@settings(deadline=None, max_examples=80)
def test_sums_of_decimals_are_null_while_they_are_too_long(values: list[int], data: st.DataObject, in_bytes: bool) -> None:
    type_ = pa.decimal128(38, 0)
    numbers = [Decimal(v) for v in values]
    each = made("sum", type_, PARTS if in_bytes else type_)
    each.grow(1)
    group, places = np.zeros(1, np.int64), np.arange(max(1, len(values)))
    if in_bytes:
        below = made("sum", PARTS, type_)
        below.grow(len(values))
        below.take(places[: len(values)], one_by_one(below, numbers, type_), places[: len(values)], places[: len(values)])
        parts = one_by_one(each, below.value(places[: len(values)], 0).to_pylist(), PARTS) if values else {}
    else:
        parts = one_by_one(each, numbers, type_)
    there: list[int] = []
    for row in data.draw(st.permutations([*range(len(values)), *range(len(values))])):
        if row in there:
            there.remove(row)
            each.drop(group, parts, places[row : row + 1])
        else:
            there.append(row)
            each.take(group, parts, places[row : row + 1], places[:1])
        left = sum(values[i] for i in there)
        fits = there and abs(left) < 10**38
        assert values_of(each) == [Decimal(left) if fits else None]


@given(values=st.lists(DIGITS_38, min_size=1, max_size=12))
@settings(deadline=None)
def test_decimals_folded_together(values: list[int]) -> None:
    type_ = pa.decimal128(38, 0)
    each, zero = made("sum", type_, type_), np.zeros(1, np.int64)
    each.grow(1)
    column = pa.array([Decimal(v) for v in values], type_)
    each.take(zero, each.fold(np.zeros(len(values), np.int64), 1, column), zero, zero)
    assert values_of(each) == [Decimal(sum(values)) if abs(sum(values)) < 10**38 else None]


def test_a_sum_has_no_more_digits_than_its_type() -> None:
    each, zero = ExactSum(pa.decimal128(12, 0)), np.zeros(1, np.int64)
    each.grow(1)
    for value, shown in ((10**12 - 1, 10**12 - 1), (1, None), (-(10**12), 0), (-(10**12) + 1, -(10**12) + 1), (-1, None)):
        column = pa.array([Decimal(value)], pa.decimal128(38, 0))
        each.take(zero, each.fold(zero, 1, column), zero, zero)
        assert values_of(each) == [None if shown is None else Decimal(shown)]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_has_left_its_bits_is_null(sign: int) -> None:
    """Four times the largest decimal, less 2^128, has 38 digits again."""
    each, zero = ExactSum(pa.decimal128(38, 0)), np.zeros(1, np.int64)
    each.grow(1)
    column = pa.array([Decimal(sign * (10**38 - 1))] * 4, pa.decimal128(38, 0))
    each.take(zero, each.fold(np.zeros(4, np.int64), 1, column), zero, zero)
    assert values_of(each) == [None]


@pytest.mark.parametrize("kind", [FloatSum, Mean, Deviation])
def test_common_values_have_no_rare_parts(kind: Callable[[], Sum]) -> None:
    """They cost neither state nor time where there are none."""
    each = kind()
    parts = each.fold(np.zeros(3, np.int64), 1, pa.array([1.0, None, 2.5]))
    assert not {*parts} & {*each.RARE}
    each.grow(1)
    each.take(np.zeros(1, np.int64), parts, np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert list(each.parts(np.zeros(1, np.int64), 0))[-len(each.RARE) :] == list(each.RARE)
    assert {*each.fold(np.zeros(1, np.int64), 1, pa.array([1e308]))} > {*each.RARE}
