"""Looking up sorted rows in the runs of a state."""

from __future__ import annotations

import numpy as np
from numba import njit

from anabranch.engine.kernels.memory import popcount, prefetch
from anabranch.engine.kernels.runs import (
    BITS,
    DIRECTORY,
    ENTRIES,
    HI,
    LARGE_BUCKET,
    LO,
    PREFIX_BITS,
    ROWS,
    WORDS,
    bucket_of,
    entry_end,
    entry_id,
    entry_start,
    hash_from,
    layout_of,
    mark_of,
    suffix_of,
    words_at,
)

BLOCK_ROWS = 1024
"""Rows are probed in blocks that stay in the first-level cache while run after run is asked."""


@njit(cache=True, nogil=True)
def _first_probe(rows, low, high, h):
    """The first of the rows low … high whose hash is not below h."""
    while low < high:
        middle = (low + high) >> 1
        if rows[middle, 0] < h:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def _candidates(rows, first, last, directory, prefix_bits, bits, places, entries):
    """The rows that the directory of a run lets through, and where their entries begin; without branches, for their
    outcome cannot be predicted.

    As many suffixes as a bucket has below that of a row, at least so many entries stand before: mostly exactly so many.
    """
    count = np.int64(0)
    for p in range(first, last):
        h = rows[p, 0]
        at = 2 * bucket_of(h, prefix_bits, bits)
        suffix = suffix_of(h, prefix_bits, bits)
        present, second = directory[at], directory[at + 1]
        places[count] = p
        below = present & ((np.uint64(1) << suffix) - np.uint64(1))
        entries[count] = np.int64(second & np.uint64(0xFFFFFFFF)) + popcount(below)
        mark = second >> (np.uint64(32) + mark_of(h, prefix_bits, bits))
        count += np.int64((present >> suffix) & mark & np.uint64(1))
    return count


@njit(inline="always")
def _first_equal(entries, words, low, high, h):
    """The first entry from `low` on whose hash is not below h."""
    if high - low > LARGE_BUCKET:
        top = high
        while low < top:
            middle = (low + top) >> 1
            if entries[middle * words] < h:
                low = middle + 1
            else:
                top = middle
    while low < high and entries[low * words] < h:
        low += 1
    return low


@njit(cache=True, nogil=True)
def probe(rows, table, window_us, expected):
    """All pairs of a sorted row and an entry with the same hash and intersecting validity.

    `rows` are in sorted form, so every run is read from its beginning to its end. Returns an array of 4 × matches words
    (position of the row, id of the entry, start and end of the pair), and how many lookups were made: one for each row and
    each run whose hashes it falls into.
    """
    capacity = max(np.int64(expected), np.int64(64))
    out = np.empty((4, capacity), np.int64)
    places, begins = np.empty(BLOCK_ROWS + 1, np.int64), np.empty(BLOCK_ROWS + 1, np.int64)
    found = np.int64(0)
    lookups = np.int64(0)
    for block in range(0, len(rows), BLOCK_ROWS):
        block_end = min(block + BLOCK_ROWS, len(rows))
        for r in range(len(table)):
            if table[r, ROWS] == 0:
                continue
            first, last = block, block_end
            if table[r, LO] > 0:
                first = _first_probe(rows, block, block_end, hash_from(table[r, LO]))
            if table[r, HI] < 65536:
                last = _first_probe(rows, first, block_end, hash_from(table[r, HI]))
            if first == last:
                continue
            lookups += last - first
            words, bits, prefix_bits = table[r, WORDS], table[r, BITS], table[r, PREFIX_BITS]
            entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
            directory = words_at(table[r, DIRECTORY], 2 * ((np.int64(1) << bits) + 1))
            layout = layout_of(table, r)
            count = _candidates(rows, first, last, directory, prefix_bits, bits, places, begins)
            for c in range(count):
                prefetch(table[r, ENTRIES] + begins[c] * words * 8)
            for c in range(count):
                p = places[c]
                h = rows[p, 0]
                bucket = bucket_of(h, prefix_bits, bits)
                high = np.int64(directory[2 * bucket + 3] & np.uint64(0xFFFFFFFF))
                low = _first_equal(entries, words, begins[c], high, h)
                while low < high and entries[low * words] == h:
                    start = entry_start(entries, low, layout)
                    end = entry_end(entries, low, layout, start, window_us)
                    start = max(start, np.int64(rows[p, 2]))
                    end = min(end, np.int64(rows[p, 3]))
                    if start < end:
                        if found == capacity:
                            capacity *= 2
                            grown = np.empty((4, capacity), np.int64)
                            grown[:, :found] = out[:, :found]
                            out = grown
                        out[0, found] = np.int64(rows[p, 1])
                        out[1, found] = entry_id(entries, low, layout)
                        out[2, found] = start
                        out[3, found] = end
                        found += 1
                    low += 1
    return out[:, :found], lookups
