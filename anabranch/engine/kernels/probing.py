"""Looking up sorted rows in the runs of a state."""

from __future__ import annotations

import numpy as np
from numba import njit

from anabranch.engine.kernels.runs import (
    BITS,
    DIRECTORY,
    ENTRIES,
    HI,
    LARGE_BUCKET,
    LO,
    PREFIX_BITS,
    ROWS,
    SORTED_WORDS,
    WORDS,
    bucket_of,
    directory_at,
    entry_end,
    entry_id,
    entry_start,
    hash_from,
    words_at,
)


@njit(cache=True, nogil=True)
def _first_probe(rows, h):
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) >> 1
        if rows[middle, 0] < h:
            low = middle + 1
        else:
            high = middle
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
    found = np.int64(0)
    lookups = np.int64(0)
    for r in range(len(table)):
        if table[r, ROWS] == 0:
            continue
        words, bits, prefix_bits = table[r, WORDS], table[r, BITS], table[r, PREFIX_BITS]
        entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
        directory = directory_at(table[r, DIRECTORY], (np.int64(1) << bits) + 1)
        first = 0 if table[r, LO] == 0 else _first_probe(rows, hash_from(table[r, LO]))
        last = len(rows) if table[r, HI] >= 65536 else _first_probe(rows, hash_from(table[r, HI]))
        lookups += last - first
        for p in range(first, last):
            h = rows[p, 0]
            bucket = bucket_of(h, prefix_bits, bits)
            low, high = np.int64(directory[bucket]), np.int64(directory[bucket + 1])
            if high - low > LARGE_BUCKET:
                top = high
                while low < top:
                    middle = (low + top) >> 1
                    if entries[middle * words] < h:
                        low = middle + 1
                    else:
                        top = middle
            for i in range(low, high):
                eh = entries[i * words]
                if eh < h:
                    continue
                if eh > h:
                    break
                start = entry_start(entries, i, table, r)
                end = entry_end(entries, i, table, r, start, window_us)
                start = max(start, np.int64(rows[p, 2]))
                end = min(end, np.int64(rows[p, 3]))
                if start >= end:
                    continue
                if found == capacity:
                    capacity *= 2
                    grown = np.empty((SORTED_WORDS, capacity), np.int64)
                    grown[:, :found] = out[:, :found]
                    out = grown
                out[0, found] = np.int64(rows[p, 1])
                out[1, found] = entry_id(entries, i, table, r)
                out[2, found] = start
                out[3, found] = end
                found += 1
    return out[:, :found], lookups
