"""Aggregates that rows enter and leave: groups by hash, sums that can be taken back exactly, least values without a scan.

Sums of integers and decimals are 128-bit integers. Sums of floats are pairs of doubles (hi + lo, the error of each addition
kept: Knuth's TwoSum, Dekker's product), so that what left leaves nothing behind. The least value of a group is the head of a
*staircase*: of its rows those that no row lasting longer undercuts, in order of when they leave. A row that arrives cuts off
the steps it makes useless; each is removed once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NONE = -1


@njit(cache=True, nogil=True)
def assign(hashes, table, known, count, out, brought_by):
    """Gives every hash its number: that of `known`, or the next one. `table` (a power of two, NONE where empty) and `known`
    have room for all. Returns how many numbers there are now; `brought_by` gets the row of each new one."""
    before = count
    mask = np.uint64(len(table) - 1)
    for i in range(len(hashes)):
        h = hashes[i]
        place = (h ^ (h >> np.uint64(32))) & mask
        while True:
            found = table[np.int64(place)]
            if found < 0:
                table[np.int64(place)] = count
                known[count] = h
                brought_by[count - before] = i
                out[i] = count
                count += 1
                break
            if known[found] == h:
                out[i] = found
                break
            place = (place + np.uint64(1)) & mask
    return count


@njit(cache=True, nogil=True)
def rehash(known, count, table):
    """Fills a larger table with the first `count` hashes."""
    mask = np.uint64(len(table) - 1)
    for number in range(count):
        h = known[number]
        place = (h ^ (h >> np.uint64(32))) & mask
        while table[np.int64(place)] >= 0:
            place = (place + np.uint64(1)) & mask
        table[np.int64(place)] = number


@njit(cache=True, nogil=True)
def fold(groups, firsts, lasts, table, out, group, first, last):
    """Numbers the distinct (group, first, last) of rows: `out` for each row, the triples themselves in the last three."""
    mask = np.uint64(len(table) - 1)
    count = 0
    for i in range(len(groups)):
        g, f, z = groups[i], firsts[i], lasts[i]
        h = np.uint64(g) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(f) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h + np.uint64(z) * np.uint64(0x94D049BB133111EB)) & np.uint64(0xFFFFFFFFFFFFFFFF)
        place = (h ^ (h >> np.uint64(29))) & mask
        while True:
            found = table[np.int64(place)]
            if found < 0:
                table[np.int64(place)] = count
                group[count], first[count], last[count] = g, f, z
                out[i] = count
                count += 1
                break
            if group[found] == g and first[found] == f and last[found] == z:
                out[i] = found
                break
            place = (place + np.uint64(1)) & mask
    return count


# -- counts and sums -------------------------------------------------------------------------------------------------


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


@njit(inline="always")
def _two_sum(a, b):
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


@njit(inline="always")
def _add_pair(hi, lo, x_hi, x_lo):
    total, error = _two_sum(hi, x_hi)
    low, low_error = _two_sum(lo, x_lo)
    error += low
    hi, error = _two_sum(total, error)
    error += low_error
    return _two_sum(hi, error)


@njit(cache=True, nogil=True)
def add_pairs(hi, lo, groups, value_hi, value_lo, sign):
    """Sums of floats as pairs."""
    for i in range(len(groups)):
        g = groups[i]
        hi[g], lo[g] = _add_pair(hi[g], lo[g], sign * value_hi[i], sign * value_lo[i])


@njit(cache=True, nogil=True)
def squares(values, hi, lo):
    """The squares of floats, exactly, as pairs (0 where they are out of range)."""
    for i in range(len(values)):
        x = values[i]
        square = x * x
        if not np.isfinite(square) or abs(x) > 1e150:
            hi[i], lo[i] = square, 0.0
            continue
        big = 134217729.0 * x
        head = big - (big - x)
        tail = x - head
        hi[i] = square
        lo[i] = ((head * head - square) + 2.0 * head * tail) + tail * tail


@njit(cache=True, nogil=True)
def deviations(count, sum_hi, sum_lo, square_hi, square_lo, out):
    """The sample standard deviation of groups from their sums; NaN where there are fewer than two rows."""
    for i in range(len(count)):
        n = np.float64(count[i])
        if n < 2:
            out[i] = np.nan
            continue
        # mean = sum / n as a pair, then squares - sum * mean
        mean = sum_hi[i] / n
        p, e = _product(mean, n)
        rest = ((sum_hi[i] - p) - e + sum_lo[i]) / n
        a, b = _product(sum_hi[i], mean)
        b += sum_hi[i] * rest + sum_lo[i] * mean
        hi, lo = _add_pair(square_hi[i], square_lo[i], -a, -b)
        spread = hi + lo
        # Equal values spread by nothing but what pairs of doubles round.
        out[i] = np.sqrt(spread / (n - 1)) if spread > 1e-30 * square_hi[i] else 0.0


@njit(inline="always")
def _product(a, b):
    product = a * b
    big = 134217729.0 * a
    a_head = big - (big - a)
    a_tail = a - a_head
    big = 134217729.0 * b
    b_head = big - (big - b)
    b_tail = b - b_head
    return product, ((a_head * b_head - product) + a_head * b_tail + a_tail * b_head) + a_tail * b_tail


# -- least values ----------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def least_of_each(ids, words, valid, least, seen):
    """The least word of the rows with each id, and how many rows have one."""
    for i in range(len(ids)):
        if valid[i]:
            p = ids[i]
            if seen[p] == 0 or words[i] < least[p]:
                least[p] = words[i]
            seen[p] += 1


@njit(cache=True, nogil=True)
def climb(groups, words, lasts, heads, tails, word, last, before, after, free):
    """Rows enter the staircases of their groups. Nodes come from a list that starts at `free[0]`, linked by `after`, of
    `free[1]` nodes; it has enough."""
    for i in range(len(groups)):
        g, w, until = groups[i], words[i], lasts[i]
        right, left = np.int64(NONE), tails[g]
        while left != NONE and last[left] > until:
            right = left
            left = before[left]
        if right != NONE and word[right] <= w:
            continue
        if left != NONE and last[left] == until and word[left] <= w:
            continue
        while left != NONE and word[left] >= w:
            gone = left
            left = before[left]
            after[gone] = free[0]
            free[0] = gone
            free[1] += 1
        node = free[0]
        free[0] = after[node]
        free[1] -= 1
        word[node], last[node], before[node], after[node] = w, until, left, right
        if left == NONE:
            heads[g] = node
        else:
            after[left] = node
        if right == NONE:
            tails[g] = node
        else:
            before[right] = node


@njit(cache=True, nogil=True)
def descend(groups, now, heads, tails, last, before, after, free, found):
    """Takes what has left by `now` from the staircases of some groups; `found` gets the node of the least value, or NONE."""
    for i in range(len(groups)):
        g = groups[i]
        node = heads[g]
        while node != NONE and last[node] <= now:
            following = after[node]
            after[node] = free[0]
            free[0] = node
            free[1] += 1
            node = following
        heads[g] = node
        if node == NONE:
            tails[g] = NONE
        else:
            before[node] = NONE
        found[i] = node


@njit(cache=True, nogil=True)
def cross(pairs, parents, rows, change, distinct):
    """Rows of (group, value) pairs enter or leave: a pair that begins or ends to have rows counts for its group."""
    for i in range(len(pairs)):
        p = pairs[i]
        before = rows[p]
        rows[p] = before + change[i]
        if before == 0:
            distinct[parents[p]] += 1
        elif rows[p] == 0:
            distinct[parents[p]] -= 1
