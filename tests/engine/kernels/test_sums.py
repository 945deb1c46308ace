"""Kernels of sums against their slow twins."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import reference
from anabranch.engine.kernels import sums as kernels

FLOATS = st.floats(-1e30, 1e30, allow_nan=False)
WIDE = st.integers(-(2**127), 2**127 - 1)
NOTHING = np.zeros(0)


def folded(groups):
    """Counts and sums of groups of doubles below `LARGE`."""
    count, hi, lo = np.zeros(len(groups), np.int64), np.zeros(len(groups)), np.zeros(len(groups))
    ids = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    values = np.array([v for g in groups for v in g], np.float64)
    assert kernels.fold_doubles(ids, values, count, hi, lo) == 0
    return count, hi, lo


def means_of(groups):
    count, hi, lo = folded(groups)
    out = np.empty(len(groups))
    kernels.means(np.arange(len(groups)), count, hi, lo, NOTHING, NOTHING, out)
    return out.tolist()


@given(st.lists(FLOATS, max_size=40), st.lists(FLOATS, max_size=40))
@settings(deadline=None)
def test_what_left_a_sum_of_floats_leaves_nothing_behind(stays, leaves):
    count, hi, lo = folded([[*stays, *leaves]])
    gone = np.array(leaves, np.float64)
    count[0] -= len(leaves)
    rows, ids = np.arange(len(leaves)), np.zeros(len(leaves), np.int64)
    kernels.add_pairs(count, hi, lo, ids, rows, gone, np.zeros(len(gone)), -1.0)
    exact = sum((Fraction(v) for v in stays), Fraction(0))
    # Pairs have twice the digits of a double: what is lost is that share of the largest sum there was.
    largest = sum(abs(v) for v in (*stays, *leaves)) if stays else 0.0
    assert abs(Fraction(float(hi[0])) + Fraction(float(lo[0])) - exact) <= Fraction(largest) / 2**95


def test_a_group_without_values_forgets_what_was_rounded():
    values = np.array([1e35, 1e17, 1.0, 1e-17, 1e-35])
    count, hi, lo = folded([values.tolist()])
    count[0] = 0
    kernels.add_pairs(count, hi, lo, np.zeros(5, np.int64), np.arange(5), values, np.zeros(5), -1.0)
    assert (hi[0], lo[0]) == (0.0, 0.0)


def test_what_is_not_small_is_counted_and_not_added():
    count, hi, lo = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    values = [1.0, -kernels.LARGE, math.inf, math.nan, -math.inf, math.nextafter(kernels.LARGE, 0.0), 1e308]
    assert kernels.fold_doubles(np.zeros(7, np.int64), np.array(values), count, hi, lo) == 5
    assert (count[0], hi[0] + lo[0]) == (7, values[5])


@given(st.lists(WIDE, max_size=40), st.lists(WIDE, max_size=40))
@example([], [2**127 - 1, 1, -(2**127), -(2**127), -1])
@settings(deadline=None)
def test_sums_of_integers_have_128_bits_and_more(stays, leaves):
    low, high, wraps = np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    so_far = 0
    for values, sign in (([*stays, *leaves], 1), (leaves, -1)):
        for value in values:
            words = np.array([value % 2**64], np.uint64), np.array([value >> 64], np.int64)
            kernels.add_wider(low, high, wraps, np.zeros(1, np.int64), *words, sign)
            so_far += sign * value
            assert reference.wide(int(low[0]), int(high[0]), int(wraps[0])) == so_far
    assert so_far == sum(stays)
    assert so_far or (low[0], high[0], wraps[0]) == (0, 0, 0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
@settings(deadline=None)
def test_sums_of_integers_have_128_bits(stays, leaves):
    low, high = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    for values, sign in (([*stays, *leaves], 1), (leaves, -1)):
        array = np.array(values, np.int64)
        kernels.add_wide(low, high, np.zeros(len(array), np.int64), array.view(np.uint64), array >> 63, sign)
    assert reference.wide(int(low[0]), int(high[0]), 0) == sum(stays)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["uniform", "decimals", "close", "signs", "magnitudes", "tiny"])
def test_means_are_the_nearest_doubles(kind):
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 40, 4_000)

    def drawn(n):
        return {
            "uniform": lambda: rng.random(n), "decimals": lambda: rng.integers(0, 5_000, n) / 10.0,
            "close": lambda: 230.0 + rng.random(n) * 1e-9, "signs": lambda: rng.standard_normal(n),
            "magnitudes": lambda: rng.random(n) * 2.0 ** rng.integers(-25, 25, n),
            "tiny": lambda: rng.random(n) * 2.0**-960,
        }[kind]()  # fmt: skip

    groups = [drawn(n).tolist() for n in sizes]
    assert means_of(groups) == [reference.mean(g) for g in groups]


@given(st.floats(-(2.0**119), 2.0**119), st.integers(1, 3_000))
@example(0.1, 10)
@example(5e-324, 3)
@settings(deadline=None)
def test_the_mean_of_equal_values_is_their_value(value, rows):
    assert means_of([[value] * rows]) == [value]


@given(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=30))
@settings(deadline=None)
def test_means_below_the_least_normal_double(units):
    """A sum that has no rest is divided once; another may be rounded twice."""
    values = [math.ldexp(u, -1074) for u in units]
    found, wanted = means_of([values])[0], reference.mean(values)
    assert abs(found - wanted) <= (5e-324 if abs(sum(units)) >= 2**53 else 0.0)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
@example([1.7976931348623157e308] * 3)
@example([1.7976931348623157e308, 9.9792015476736e291, -1.0])
@settings(deadline=None, max_examples=300)
def test_sums_and_means_of_all_magnitudes(values):
    """Each value is taken as what it is, small or large; sums are off by no more than what pairs round."""
    small = [v for v in values if abs(v) < kernels.LARGE]
    large = [v for v in values if abs(v) >= kernels.LARGE]
    _, hi, lo = folded([small])
    large_hi, large_lo = np.zeros(1), np.zeros(1)
    scaled = np.array(large, np.float64) * kernels.DOWN
    kernels.fold_pairs(np.zeros(len(large), np.int64), scaled, np.zeros(len(large)), large_hi, large_lo)
    total, mean, one = np.empty(1), np.empty(1), np.zeros(1, np.int64)
    kernels.sums(one, hi, lo, large_hi, large_lo, total)
    kernels.means(one, np.array([len(values)]), hi, lo, large_hi, large_lo, mean)
    slack = sum((abs(Fraction(v)) for v in values), Fraction(0)) / 2**95
    for found, wanted, exact in (
        (float(total[0]), reference.total(values), sum(map(Fraction, values), Fraction(0))),
        (float(mean[0]), reference.mean(values), sum(map(Fraction, values), Fraction(0)) / len(values)),
    ):
        if math.isinf(found) or math.isinf(wanted):
            assert found == wanted or abs(exact) >= Fraction(2) ** 1024 * (1 - Fraction(1, 2**52))
        else:
            assert found == wanted or abs(Fraction(found) - exact) <= slack + Fraction(math.ulp(found))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.sampled_from([0.0, 1e6, 1e9]))
@example([0.0, 1.1e-07], 1e9)  # one unit in the last place apart: less than the sums of squares can tell
@settings(deadline=None)
def test_deviations_survive_a_large_mean(values, shift):
    shifted = np.array(values) + shift
    count, hi, lo = folded([shifted.tolist()])
    products, errors = np.empty(len(values)), np.empty(len(values))
    kernels.squares(shifted, products, errors)
    assert all(
        Fraction(float(p)) + Fraction(float(e)) == Fraction(float(v)) ** 2
        for p, e, v in zip(products, errors, shifted, strict=True)
        if abs(v) > 1e-100
    )
    square_hi, square_lo, out = np.zeros(1), np.zeros(1), np.empty(1)
    kernels.fold_pairs(np.zeros(len(values), np.int64), products, errors, square_hi, square_lo)
    one = np.zeros(1, np.int64)
    kernels.deviations(one, count, hi, lo, square_hi, square_lo, NOTHING, NOTHING, NOTHING, NOTHING, out)
    wanted = float(statistics.variance([Fraction(float(v)) for v in shifted]))
    # A pair of doubles has 106 bits; and none has less than the least double.
    resolution = max(float(np.sum(shifted**2)) * 2.0**-102, 1e-320)
    assert out[0] ** 2 == pytest.approx(wanted, rel=1e-9, abs=resolution)
