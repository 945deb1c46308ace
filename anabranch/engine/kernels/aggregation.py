"""Aggregates that rows enter and leave: groups by hash, least values without a scan. Sums are in `kernels.sums`.

The least value of a group is the head of a *staircase*: of its rows those that no row lasting longer undercuts, in order of
when they leave. A row that arrives cuts off the steps it makes useless; each is removed once.
"""

from __future__ import annotations

import numpy as np

from anabranch.storage.compiled import njit

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
