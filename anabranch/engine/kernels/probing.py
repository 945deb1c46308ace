"""Looking up sorted rows in the runs of a state, by their hash or in a range of words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anabranch.engine.kernels.memory import load_u64, popcount, prefetch
from anabranch.engine.kernels.runs import (
    BITS,
    DIRECTORY,
    ENTRIES,
    HI,
    LARGE_BUCKET,
    LO,
    NEWEST_START,
    PREFIX_BITS,
    ROWS,
    WORDS,
    bucket_of,
    entry_end,
    entry_id,
    entry_start,
    hash_from,
    layout_of,
    suffix_of,
    visible_rows,
    words_at,
)
from anabranch.storage.compiled import njit

BLOCK_ROWS = 1024
"""Rows are probed in blocks that stay in the first-level cache while run after run is asked."""

AHEAD_ROWS = 16
"""So many rows ahead the directory is asked for."""

RANGE_ROWS = 64
"""Ranges are looked up in blocks of so many rows, which meet the same part of a run while it is in the cache."""

BLOCK, RUN, ROW, ENTRY = range(4)
"""Where a lookup goes on: in which block of rows, in which run, at which of the block's rows (for `probe`: at which of those
that the run's directory lets through), at which entry. The entry is -1 where the run is still to be begun."""


def beginning() -> npt.NDArray[np.int64]:
    """The place at which a lookup begins. Where all rows are looked up, its block is the number of rows."""
    return np.array([0, 0, 0, -1], np.int64)


@njit(cache=True, nogil=True)
def _first_probe(hashes, low, high, h):
    """The first of the hashes low … high that is not below h."""
    while low < high:
        middle = (low + high) >> 1
        if hashes[middle] < h:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def _candidates(hashes, first, last, directory, prefix_bits, bits, places):
    """The places of the hashes that the directory of a run lets through; without branches, for their outcome cannot be
    predicted. Whatever is the same for all of them is computed before the loop; what a later one will load is asked for
    early, for the directory of a large state is in no cache."""
    prefix, bucket_shift = np.uint64(prefix_bits), np.uint64(63 - bits)
    suffix_shift, mark_shift = np.uint64(bits), np.uint64(bits + 6)
    count, p, end = np.uint64(0), np.uint64(first), np.uint64(last)
    while p < end:
        ahead = hashes[(p + np.uint64(AHEAD_ROWS)) % np.uint64(BLOCK_ROWS)] << prefix
        prefetch(directory + np.int64(((ahead >> np.uint64(1)) >> bucket_shift) << np.uint64(4)))
        h = hashes[p] << prefix
        at = directory + np.int64(((h >> np.uint64(1)) >> bucket_shift) << np.uint64(4))
        present = load_u64(at) >> ((h << suffix_shift) >> np.uint64(58))
        marks = load_u64(at + 8) >> (np.uint64(32) + ((h << mark_shift) >> np.uint64(59)))
        places[count] = p
        count += present & marks & np.uint64(1)
        p += np.uint64(1)
    return np.int64(count)


@njit(inline="always")
def _reaching(rows, block, places, count, reaches_us, newest_us):
    """Of some rows of a block, by their places, those that look back as far as the newest entry of a run."""
    kept = np.int64(0)
    for c in range(count):
        row = block + np.int64(places[c])
        places[kept] = places[c]
        kept += np.int64(np.int64(rows[row, 2]) - newest_us < reaches_us[row])
    return kept


@njit(inline="always")
def _begin(h, directory, prefix_bits, bits):
    """Where the entries with a hash begin at the earliest: as many suffixes as its bucket has below that of the hash, at
    least so many entries stand before; mostly exactly so many."""
    at = directory + 16 * bucket_of(h, prefix_bits, bits)
    below = load_u64(at) & ((np.uint64(1) << suffix_of(h, prefix_bits, bits)) - np.uint64(1))
    return np.int64(load_u64(at + 8) & np.uint64(0xFFFFFFFF)) + popcount(below)


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
def probe(rows, table, window_us, reaches_us, expected, place, enough):
    """Pairs of a sorted row and an entry with the same hash and intersecting validity: from a place on, at most `enough`.

    `rows` are in sorted form, so every run is read from its beginning to its end. Returns an array of 4 × matches words
    (position of the row, id of the entry, start and end of the pair), and how many lookups were made: one for each row and
    each run whose hashes it falls into. `place` says where to begin and is set to where to go on (`beginning`). A row finds
    no entry that began `reaches_us` before it, or earlier; None if all reach as far as the window: for that the kernel is
    compiled apart, and asks nothing of a pair. Where it is given, rows and entries are of streams: what has always been
    valid has no age.
    """
    capacity = min(max(np.int64(expected), np.int64(64)), np.int64(enough))
    out = np.empty((4, capacity), np.int64)
    hashes, places = np.empty(BLOCK_ROWS, np.uint64), np.empty(BLOCK_ROWS + 1, np.uint64)
    begins = np.empty(BLOCK_ROWS, np.int64)
    found = np.int64(0)
    lookups = np.int64(0)
    for block in range(place[BLOCK], len(rows), BLOCK_ROWS):
        size = min(BLOCK_ROWS, len(rows) - block)
        for p in range(size):
            hashes[p] = rows[block + p, 0]
        for r in range(place[RUN], len(table)):
            if table[r, ROWS] == 0:
                continue
            first, last = np.int64(0), size
            if table[r, LO] > 0:
                first = _first_probe(hashes, first, size, hash_from(table[r, LO]))
            if table[r, HI] < 65536:
                last = _first_probe(hashes, first, size, hash_from(table[r, HI]))
            if first == last:
                continue
            words, bits, prefix_bits = table[r, WORDS], table[r, BITS], table[r, PREFIX_BITS]
            directory = table[r, DIRECTORY]
            entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
            layout = layout_of(table, r)
            count = _candidates(hashes, first, last, directory, prefix_bits, bits, places)
            if reaches_us is not None:
                count = _reaching(rows, block, places, count, reaches_us, table[r, NEWEST_START])
            for c in range(count):
                begins[c] = _begin(hashes[places[c]], directory, prefix_bits, bits)
                prefetch(table[r, ENTRIES] + begins[c] * words * 8)
            begun = np.int64(0)
            if place[ENTRY] >= 0:
                begun = place[ROW]
                begins[begun] = place[ENTRY]
                place[ROW], place[ENTRY] = 0, -1
            else:
                lookups += last - first
            for c in range(begun, count):
                h, row = hashes[places[c]], block + np.int64(places[c])
                bucket = bucket_of(h, prefix_bits, bits)
                high = np.int64(load_u64(directory + 16 * bucket + 24) & np.uint64(0xFFFFFFFF))
                low = _first_equal(entries, words, begins[c], high, h)
                while low < high and entries[low * words] == h:
                    begun_us = entry_start(entries, low, layout)
                    end = entry_end(entries, low, layout, begun_us, window_us)
                    start = max(begun_us, np.int64(rows[row, 2]))
                    end = min(end, np.int64(rows[row, 3]))
                    is_pair = start < end
                    if reaches_us is not None:
                        is_pair = is_pair and start - begun_us < reaches_us[row]
                    if is_pair:
                        if found == capacity:
                            if capacity == enough:
                                place[BLOCK], place[RUN], place[ROW], place[ENTRY] = block, r, c, low
                                return out[:, :found], lookups
                            capacity = min(2 * capacity, np.int64(enough))
                            grown = np.empty((4, capacity), np.int64)
                            grown[:, :found] = out[:, :found]
                            out = grown
                        out[0, found] = np.int64(rows[row, 1])
                        out[1, found] = entry_id(entries, low, layout)
                        out[2, found] = start
                        out[3, found] = end
                        found += 1
                    low += 1
        place[RUN] = 0
    place[BLOCK] = len(rows)
    return out[:, :found], lookups


@njit(inline="always")
def _advance(entries, words, low, high, word):
    """The first entry from `low` on whose word is not below a given one: in steps that double, then by halves."""
    step, below = np.int64(1), low
    while below < high and entries[below * words] < word:
        low = below + 1
        below += step
        step *= 2
    below = min(below, high)
    while low < below:
        middle = (low + below) >> 1
        if entries[middle * words] < word:
            low = middle + 1
        else:
            below = middle
    return low


@njit(cache=True, nogil=True)
def probe_ranges(rows, highs, table, window_us, reaches_us, expected, place, enough):
    """Pairs of a sorted row and an entry whose word lies between that of the row and the row's `highs`, both included, with
    intersecting validity: from a place on, at most `enough`.

    Returns what `probe` does. Rows are sorted by the beginning of their range, so that in every run a lookup begins where
    the one before it began.
    """
    capacity = min(max(np.int64(expected), np.int64(64)), np.int64(enough))
    out = np.empty((4, capacity), np.int64)
    shown = visible_rows(table, 0, 65536)
    begins = shown[:, 0].copy()
    found, lookups = np.int64(0), np.int64(0)
    for block in range(place[BLOCK], len(rows), RANGE_ROWS):
        done = min(block + RANGE_ROWS, len(rows))
        for r in range(place[RUN], len(table)):
            begin, last = begins[r], shown[r, 1]
            if shown[r, 0] == last:
                continue
            words, layout = table[r, WORDS], layout_of(table, r)
            entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
            begun, within = np.int64(block), np.int64(-1)
            if place[ENTRY] >= 0:
                begun, within = place[ROW], place[ENTRY]
                place[ROW], place[ENTRY] = 0, -1
            else:
                lookups += done - block
            for row in range(begun, done):
                begin = _advance(entries, words, begin, last, rows[row, 0])
                at = max(begin, within)
                within = np.int64(-1)
                while at < last and entries[at * words] <= highs[row]:
                    begun_us = entry_start(entries, at, layout)
                    end = entry_end(entries, at, layout, begun_us, window_us)
                    start = max(begun_us, np.int64(rows[row, 2]))
                    end = min(end, np.int64(rows[row, 3]))
                    is_pair = start < end
                    if reaches_us is not None:
                        is_pair = is_pair and start - begun_us < reaches_us[row]
                    if is_pair:
                        if found == capacity:
                            if capacity == enough:
                                place[BLOCK], place[RUN], place[ROW], place[ENTRY] = block, r, row, at
                                return out[:, :found], lookups
                            capacity = min(2 * capacity, np.int64(enough))
                            grown = np.empty((4, capacity), np.int64)
                            grown[:, :found] = out[:, :found]
                            out = grown
                        out[0, found] = np.int64(rows[row, 1])
                        out[1, found] = entry_id(entries, at, layout)
                        out[2, found] = start
                        out[3, found] = end
                        found += 1
                    at += 1
            begins[r] = begin
        place[RUN] = 0
    place[BLOCK] = len(rows)
    return out[:, :found], lookups
