"""Sets of queries by number: which rows have the same, what two have in common, and rows in the order of their sets."""

from __future__ import annotations

import numpy as np

from anabranch.engine.kernels.memory import popcount
from anabranch.storage.compiled import njit


@njit(cache=True, nogil=True)
def add_bit(words, place, mask):
    """Sets the bit `place` in the word of each row for which `mask` is true."""
    bit = np.uint64(1) << np.uint64(place)
    for i in range(len(words)):
        if mask[i]:
            words[i] |= bit


@njit(cache=True, nogil=True)
def number_rows(words, numbers, firsts):
    """Numbers rows so that those with equal words (a column of `words` each) have one number, in order of appearance:
    into `numbers`; the first row of each number into `firsts`. Returns how many numbers there are."""
    rows = words.shape[1]
    capacity = 16
    while capacity < 2 * rows:
        capacity *= 2
    table = np.full(capacity, -1, np.int32)
    found = 0
    for i in range(rows):
        h = np.uint64(0x9E3779B97F4A7C15)
        for w in range(words.shape[0]):
            h = (h ^ words[w, i]) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
        slot = np.int64(h & np.uint64(capacity - 1))
        while True:
            known = table[slot]
            if known < 0:
                table[slot] = found
                firsts[found] = i
                numbers[i] = found
                found += 1
                break
            first = firsts[known]
            same = True
            for w in range(words.shape[0]):
                if words[w, i] != words[w, first]:
                    same = False
                    break
            if same:
                numbers[i] = known
                break
            slot = (slot + 1) & (capacity - 1)
    return found


@njit(cache=True, nogil=True)
def intersect(table, left, right, out):
    """`out[i] = table[left[i], right[i]]`, the number of the set that two sets have in common. Returns how many the table
    does not know: these are -1."""
    unknown = 0
    for i in range(len(out)):
        found = table[left[i], right[i]]
        out[i] = found
        if found < 0:
            unknown += 1
    return unknown


@njit(cache=True, nogil=True)
def age_slices(ages, limits, out):
    """For each age how many limits it has reached; limits are sorted."""
    for i in range(len(ages)):
        low, high = 0, len(limits)
        while low < high:
            middle = (low + high) // 2
            if limits[middle] <= ages[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@njit(cache=True, nogil=True)
def order_by_number(numbers, begins, order):
    """Rows in the order of their numbers, rows of one number as they stood: `begins` has where each number begins (it is
    moved to where each ends)."""
    for i in range(len(numbers)):
        place = begins[numbers[i]]
        order[place] = i
        begins[numbers[i]] = place + 1


@njit(cache=True, nogil=True)
def expand(begins, ends, out):
    """The places of several ranges, one after the other."""
    at = 0
    for r in range(len(begins)):
        for place in range(begins[r], ends[r]):
            out[at] = place
            at += 1


@njit(cache=True, nogil=True)
def has_members(words, out):
    """For each of the sets, given as the words of their bits, whether it has a member."""
    for i in range(words.shape[0]):
        found = False
        for w in range(words.shape[1]):
            if words[i, w]:
                found = True
                break
        out[i] = found


@njit(cache=True, nogil=True)
def longest_windows(words, order, windows, out):
    """For each of the sets, given as the words of their bits, the longest window of a member; `order` has the members with
    the longest windows first."""
    for i in range(words.shape[0]):
        out[i] = 0
        for m in order:
            if words[i, m >> 6] >> np.uint64(m & 63) & np.uint64(1):
                out[i] = windows[m]
                break


@njit(cache=True, nogil=True)
def count_members(words, counts):
    """Adds to `counts[m + 1]` in how many of the sets, given as the words of their bits, member m is."""
    for i in range(words.shape[0]):
        for w in range(words.shape[1]):
            word = words[i, w]
            while word:
                low = word & (~word + np.uint64(1))
                counts[64 * w + popcount(low - np.uint64(1)) + 1] += 1
                word ^= low


@njit(cache=True, nogil=True)
def list_members(words, ends, out):
    """For each member the places of the sets that it is in: from `ends[m]` on, which is moved to where they end."""
    for i in range(words.shape[0]):
        for w in range(words.shape[1]):
            word = words[i, w]
            while word:
                low = word & (~word + np.uint64(1))
                member = 64 * w + popcount(low - np.uint64(1))
                out[ends[member]] = i
                ends[member] += 1
                word ^= low
