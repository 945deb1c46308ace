"""Counts and sums that rows enter and leave again.

Sums of integers and decimals are 128-bit integers, with a count of how often they left these bits. Sums of floats are pairs
of doubles (hi + lo, the error of each addition kept: Knuth's TwoSum, Dekker's product), so that what left leaves nothing
behind. Doubles below `LARGE` never overflow their sum, nor do their squares. Those from `LARGE` on are added apart, times
`DOWN`, and do not overflow either: an overflow is never added, only shown, by `sums` and by `deviations`, while it lasts.

A pair has 106 bits. Where magnitudes within a window span more than 2^50, the last bits may depend on the order of rows.
"""

from __future__ import annotations

import numpy as np

from anabranch.storage.compiled import njit

LARGE = 2.0**120
DOWN, UP = 2.0**-540, 2.0**540
"""What is large becomes at least 2^-420 (its square 2^-840, whose error a double still holds) and less than 2^484 (its
square 2^968: 2^55 of them may be added)."""
SAFE = 2.0**400
"""A sum of large doubles below this, times `UP`, is far from an overflow also while it is computed with."""
SMALL = 2.0**-900
"""Below this the errors of products may be too small for a double."""


@njit(cache=True, nogil=True)
def add_counts(total, groups, values, sign):
    for i in range(len(groups)):
        total[groups[i]] += sign * values[i]


@njit(cache=True, nogil=True)
def add_wide(low, high, groups, value_low, value_high, sign):
    """128-bit sums: `low` unsigned, `high` signed; with sign -1 they are taken away."""
    for i in range(len(groups)):
        g = groups[i]
        if sign > 0:
            total = low[g] + value_low[i]
            high[g] += value_high[i] + np.int64(total < value_low[i])
        else:
            total = low[g] - value_low[i]
            high[g] -= value_high[i] + np.int64(low[g] < value_low[i])
        low[g] = total


@njit(cache=True, nogil=True)
def add_wider(low, high, wraps, groups, value_low, value_high, sign):
    """The same for sums that may have more bits: `wraps` counts how often they did, all of a sum is (high, low) + wraps ·
    2^128."""
    for i in range(len(groups)):
        g = groups[i]
        before, change = high[g], value_high[i]
        if sign > 0:
            total = low[g] + value_low[i]
            after = before + (change + np.int64(total < value_low[i]))
            wrapped = (before ^ after) & (change ^ after)
        else:
            total = low[g] - value_low[i]
            after = before - (change + np.int64(low[g] < value_low[i]))
            wrapped = (before ^ change) & (before ^ after)
        # Of bits only the sign counts: two of one sign have a sum of the other, or two of different signs a difference that
        # has not that of the first.
        if wrapped < 0:
            wraps[g] += np.int64(-1 if before < 0 else 1)
        low[g], high[g] = total, after


# -- floats --------------------------------------------------------------------------------------------------------------


@njit(inline="always")
def _two_sum(a, b):
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


@njit(inline="always")
def _add_double(hi, lo, x):
    total, error = _two_sum(hi, x)
    return _two_sum(total, error + lo)


@njit(inline="always")
def _add_pair(hi, lo, x_hi, x_lo):
    total, error = _two_sum(hi, x_hi)
    low, low_error = _two_sum(lo, x_lo)
    error += low
    hi, error = _two_sum(total, error)
    error += low_error
    return _two_sum(hi, error)


@njit(inline="always")
def _product(a, b):
    """a · b as a pair; exactly, if neither is near the largest nor the product near the least double."""
    product = a * b
    big = 134217729.0 * a
    a_head = big - (big - a)
    a_tail = a - a_head
    big = 134217729.0 * b
    b_head = big - (big - b)
    b_tail = b - b_head
    return product, ((a_head * b_head - product) + a_head * b_tail + a_tail * b_head) + a_tail * b_tail


@njit(cache=True, nogil=True)
def fold_doubles(ids, values, count, hi, lo):
    """Counts the values of each id, and adds those below `LARGE`; returns how many are not (large, infinite or NaN)."""
    others = 0
    for i in range(len(ids)):
        p, x = ids[i], values[i]
        count[p] += 1
        if abs(x) < LARGE:
            hi[p], lo[p] = _add_double(hi[p], lo[p], x)
        else:
            others += 1
    return others


@njit(cache=True, nogil=True)
def fold_pairs(ids, value_hi, value_lo, hi, lo):
    """Adds the pairs of each id."""
    for i in range(len(ids)):
        p = ids[i]
        hi[p], lo[p] = _add_pair(hi[p], lo[p], value_hi[i], value_lo[i])


@njit(cache=True, nogil=True)
def add_pairs(count, hi, lo, groups, rows, part_hi, part_lo, sign):
    """Some rows of partial sums begin to count for their groups, or (sign -1) end. A group that has no values any more, by
    `count`, has the sum 0: what was rounded in it is forgotten."""
    for i in range(len(groups)):
        g, r = groups[i], rows[i]
        if count[g] == 0:
            hi[g], lo[g] = 0.0, 0.0
        else:
            hi[g], lo[g] = _add_pair(hi[g], lo[g], sign * part_hi[r], sign * part_lo[r])


@njit(inline="always")
def _whole(hi, lo, large_hi, large_lo):
    """The sum of all values: a pair, and the power of two that it is to be multiplied with."""
    if large_hi == 0.0:
        return hi, lo, 1.0
    small = hi
    if abs(large_hi) < SAFE:
        large_hi, large_lo, scale = large_hi * UP, large_lo * UP, 1.0
    else:
        hi, lo, scale = hi * DOWN, lo * DOWN, UP
    hi, lo = _add_pair(hi, lo, large_hi, large_lo)
    if small != 0.0 and hi == large_hi and lo == large_lo:
        # Too small to change a bit of the pair, it still says on which side of a tie the sum is.
        lo = np.nextafter(lo, np.inf if small > 0.0 else -np.inf)
    return hi, lo, scale


@njit(inline="always")
def _mean(hi, lo, n):
    """(hi + lo) / n, rounded once: q + r / n with q = hi / n, and r what is left: hi - q · n, exactly, and lo."""
    if lo == 0.0:
        return hi / n
    scale = 1.0
    if abs(hi) < SMALL:
        hi, lo, scale = hi * UP, lo * UP, DOWN
    q = hi / n
    p, error = _product(q, n)
    return (q + (((hi - p) - error) + lo) / n) * scale


@njit(cache=True, nogil=True, error_model="numpy")
def sums(groups, hi, lo, large_hi, large_lo, out):
    """The sums of some groups: infinite where they are out of range. Without large values the last two may be empty."""
    for i in range(len(groups)):
        g = groups[i]
        if len(large_hi) == 0:
            out[i] = hi[g] + lo[g]
            continue
        whole_hi, whole_lo, scale = _whole(hi[g], lo[g], large_hi[g], large_lo[g])
        out[i] = (whole_hi + whole_lo) * scale


@njit(cache=True, nogil=True, error_model="numpy")
def means(groups, count, hi, lo, large_hi, large_lo, out):
    """The means of some groups, also where the sum is out of range; of no values, NaN."""
    for i in range(len(groups)):
        g = groups[i]
        n = np.float64(count[g])
        if n == 0.0:
            out[i] = np.nan
        elif len(large_hi) == 0:
            out[i] = _mean(hi[g], lo[g], n)
        else:
            whole_hi, whole_lo, scale = _whole(hi[g], lo[g], large_hi[g], large_lo[g])
            out[i] = _mean(whole_hi, whole_lo, n) * scale


@njit(cache=True, nogil=True)
def squares(values, hi, lo):
    """The squares of doubles that are not large, as pairs."""
    for i in range(len(values)):
        hi[i], lo[i] = _product(values[i], values[i])


@njit(cache=True, nogil=True, error_model="numpy")
def deviations(groups, count, hi, lo, square_hi, square_lo, large_hi, large_lo, large_square_hi, large_square_lo, out):
    """The sample standard deviations of some groups from their sums: NaN where there are fewer than two values, infinite
    where they are out of range. Without large values the last four sums may be empty."""
    for i in range(len(groups)):
        g = groups[i]
        n = np.float64(count[g])
        if n < 2.0:
            out[i] = np.nan
        elif len(large_hi) == 0 or large_square_hi[g] == 0.0:
            out[i] = _deviation(n, hi[g], lo[g], square_hi[g], square_lo[g])
        else:
            sum_hi, sum_lo = _add_pair(hi[g] * DOWN, lo[g] * DOWN, large_hi[g], large_lo[g])
            small_hi, small_lo = square_hi[g] * DOWN * DOWN, square_lo[g] * DOWN * DOWN
            both_hi, both_lo = _add_pair(small_hi, small_lo, large_square_hi[g], large_square_lo[g])
            out[i] = _deviation(n, sum_hi, sum_lo, both_hi, both_lo) * UP


@njit(inline="always")
def _deviation(n, hi, lo, square_hi, square_lo):
    # mean = sum / n as a pair, then squares - sum * mean
    mean = hi / n
    p, e = _product(mean, n)
    rest = ((hi - p) - e + lo) / n
    a, b = _product(hi, mean)
    b += hi * rest + lo * mean
    spread_hi, spread_lo = _add_pair(square_hi, square_lo, -a, -b)
    spread = spread_hi + spread_lo
    # Equal values spread by nothing but what pairs of doubles round.
    return np.sqrt(spread / (n - 1.0)) if spread > 1e-30 * square_hi else 0.0
