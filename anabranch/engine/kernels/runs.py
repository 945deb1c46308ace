"""Building and merging runs: rows of a state, sorted by the hash of their key, with a directory into them.

Three forms of a row occur, all of 64-bit words:

*sorted* (4 words): `hash, position, start, end`; what one batch brings, in memory only. It probes other states as it is.

*narrow entry* (2 words): `hash, id << 32 | start - base_start`; the usual form of a stored row, 16 bytes.

*wide entry* (3 words): `hash, id, start`; where 32 bits do not suffice for the ids or the starts of a run.

Entries of views carry their `end` as one more word. The id of an entry is local to its run: `(batch - base_batch) <<
offset_bits | offset`. Outside a run a row id is `batch << 32 | offset`.

A run covers the hashes whose top `prefix_bits` bits are its prefix. The next `bits` bits of a hash select a bucket;
`directory[b]` is the first entry of bucket b. Entries are sorted by hash, ties in order of arrival.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

SORTED_WORDS = 4

# Columns of a run table: how a probe or a merge sees the runs of a state.
ENTRIES, ROWS, DIRECTORY, BITS, PREFIX_BITS, LO, HI, WORDS, NARROW, HAS_END, BASE_BATCH, OFFSET_BITS, BASE_START = (
    range(13)
)
TABLE_COLUMNS = 13

LARGE_BUCKET = 24
"""Buckets above this size are sorted and searched with an algorithm that is not quadratic."""


@intrinsic
def _as_pointer(typing_context, address):
    signature = types.voidptr(types.int64)

    def generate(context, builder, sig, args):
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return signature, generate


@njit(inline="always")
def words_at(address, length):
    return carray(_as_pointer(address), length, np.uint64)


@njit(inline="always")
def directory_at(address, length):
    return carray(_as_pointer(address), length, np.uint32)


@njit(cache=True, nogil=True)
def directory_bits(rows):
    """Between one and two rows a bucket."""
    bits = 0
    while (np.int64(1) << (bits + 1)) <= rows and bits < 28:
        bits += 1
    return bits


@njit(inline="always")
def bucket_of(h, prefix_bits, bits):
    if bits == 0:
        return np.int64(0)
    return np.int64((h << np.uint64(prefix_bits)) >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _sort_buckets(rows, words, directory):
    """Sorts each bucket of `rows` (n × words) by hash, keeping the order of equal ones."""
    saved = np.empty(words, np.uint64)
    for b in range(len(directory) - 1):
        first, last = np.int64(directory[b]), np.int64(directory[b + 1])
        if last - first < 2:
            continue
        if last - first > LARGE_BUCKET:
            ordered = True
            for i in range(first + 1, last):
                if rows[i, 0] < rows[i - 1, 0]:
                    ordered = False
                    break
            if not ordered:
                permutation = np.argsort(rows[first:last, 0].copy(), kind="mergesort")
                part = rows[first:last].copy()
                for i in range(last - first):
                    rows[first + i] = part[permutation[i]]
            continue
        for i in range(first + 1, last):
            h = rows[i, 0]
            j = i - 1
            if rows[j, 0] <= h:
                continue
            for w in range(words):
                saved[w] = rows[i, w]
            while j >= first and rows[j, 0] > h:
                for w in range(words):
                    rows[j + 1, w] = rows[j, w]
                j -= 1
            for w in range(words):
                rows[j + 1, w] = saved[w]


@njit(cache=True, nogil=True)
def sort_by_hash(hashes, positions, starts, ends):
    """The rows in sorted form, and their directory. `positions` may be empty: then row i has position i."""
    n = len(hashes)
    bits = directory_bits(n)
    directory = np.zeros((np.int64(1) << bits) + 1, np.uint32)
    for i in range(n):
        directory[bucket_of(hashes[i], 0, bits) + 1] += np.uint32(1)
    for b in range(1, len(directory)):
        directory[b] += directory[b - 1]
    cursor = directory[:-1].copy()
    rows = np.empty((n, SORTED_WORDS), np.uint64)
    given = len(positions) > 0
    for i in range(n):
        b = bucket_of(hashes[i], 0, bits)
        at = cursor[b]
        cursor[b] = at + np.uint32(1)
        rows[at, 0] = hashes[i]
        rows[at, 1] = np.uint64(positions[i]) if given else np.uint64(i)
        rows[at, 2] = np.uint64(starts[i])
        rows[at, 3] = np.uint64(ends[i])
    _sort_buckets(rows, SORTED_WORDS, directory)
    return rows, directory


@njit(cache=True, nogil=True)
def compact(rows, narrow, has_end, base_start):
    """Sorted rows of one batch as entries of a run (ids are positions: the run's base batch is the batch)."""
    n = len(rows)
    words = (2 if narrow else 3) + (1 if has_end else 0)
    out = np.empty((n, words), np.uint64)
    for i in range(n):
        out[i, 0] = rows[i, 0]
        if narrow:
            out[i, 1] = (rows[i, 1] << np.uint64(32)) | np.uint64(np.int64(rows[i, 2]) - base_start)
        else:
            out[i, 1] = rows[i, 1]
            out[i, 2] = rows[i, 2]
        if has_end:
            out[i, words - 1] = rows[i, 3]
    return out


@njit(inline="always")
def entry_id(entries, i, table, r):
    """The row id of entry i of run r."""
    word = entries[i * table[r, WORDS] + 1]
    if table[r, NARROW]:
        word >>= np.uint64(32)
    bits = np.uint64(table[r, OFFSET_BITS])
    batch = np.int64(word >> bits) + table[r, BASE_BATCH]
    return (batch << np.int64(32)) | np.int64(word & ((np.uint64(1) << bits) - np.uint64(1)))


@njit(inline="always")
def entry_start(entries, i, table, r):
    at = i * table[r, WORDS]
    if table[r, NARROW]:
        return np.int64(entries[at + 1] & np.uint64(0xFFFFFFFF)) + table[r, BASE_START]
    return np.int64(entries[at + 2])


@njit(inline="always")
def entry_end(entries, i, table, r, start, window_us):
    """The end of an entry: its own in a view, else start + window (a window without end saturates)."""
    if table[r, HAS_END]:
        return np.int64(entries[(i + 1) * table[r, WORDS] - 1])
    if window_us == np.int64(0x7FFFFFFFFFFFFFFF):
        return window_us
    return start + window_us


@njit(cache=True, nogil=True)
def first_at_or_after(entries, words, rows, h):
    """The first entry whose hash is not below h."""
    low, high = np.int64(0), np.int64(rows)
    while low < high:
        middle = (low + high) >> 1
        if entries[middle * words] < h:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def hash_from(lo):
    """The first hash of the range that begins at `lo`, in units of 1/65536 of all hashes."""
    return np.uint64(lo) << np.uint64(48)


@njit(cache=True, nogil=True)
def _visible(entries, table, r, lo, hi):
    """The entries of run r with hashes in [lo, hi), as far as the run is visible there."""
    low, high = max(lo, table[r, LO]), min(hi, table[r, HI])
    if low >= high:
        return np.int64(0), np.int64(0)
    first = first_at_or_after(entries, table[r, WORDS], table[r, ROWS], hash_from(low)) if low > 0 else np.int64(0)
    last = table[r, ROWS]
    if high < 65536:
        last = first_at_or_after(entries, table[r, WORDS], table[r, ROWS], hash_from(high))
    return first, last


@njit(cache=True, nogil=True)
def survey(table, lo, hi, watermark_us, window_us):
    """What a merge of the hashes [lo, hi) will find alive: rows, least and greatest start, greatest end, greatest offset."""
    alive, offset_max = np.int64(0), np.int64(0)
    start_min, start_max = np.int64(0x7FFFFFFFFFFFFFFF), np.int64(-0x7FFFFFFFFFFFFFFF)
    end_max = np.int64(-0x7FFFFFFFFFFFFFFF)
    for r in range(len(table)):
        words = table[r, WORDS]
        entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
        first, last = _visible(entries, table, r, lo, hi)
        for i in range(first, last):
            start = entry_start(entries, i, table, r)
            end = entry_end(entries, i, table, r, start, window_us)
            if end <= watermark_us:
                continue
            alive += 1
            start_min = min(start_min, start)
            start_max = max(start_max, start)
            end_max = max(end_max, end)
            offset_max = max(offset_max, entry_id(entries, i, table, r) & np.int64(0xFFFFFFFF))
    return alive, start_min, start_max, end_max, offset_max


@njit(cache=True, nogil=True)
def merge(
    table, lo, hi, watermark_us, window_us, alive, prefix_bits, narrow, has_end, base_batch, offset_bits, base_start
):
    """One run of the rows of several runs with hashes in [lo, hi) that are alive; `alive` counts them (see `survey`)."""
    bits = directory_bits(alive)
    directory = np.zeros((np.int64(1) << bits) + 1, np.uint32)
    out_words = (2 if narrow else 3) + (1 if has_end else 0)
    out = np.empty((alive, out_words), np.uint64)
    for pass_ in range(2):
        cursor = directory[:-1].copy()
        for r in range(len(table)):
            words = table[r, WORDS]
            entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
            first, last = _visible(entries, table, r, lo, hi)
            for i in range(first, last):
                start = entry_start(entries, i, table, r)
                end = entry_end(entries, i, table, r, start, window_us)
                if end <= watermark_us:
                    continue
                h = entries[i * words]
                b = bucket_of(h, prefix_bits, bits)
                if pass_ == 0:
                    directory[b + 1] += np.uint32(1)
                    continue
                at = cursor[b]
                cursor[b] = at + np.uint32(1)
                row_id = entry_id(entries, i, table, r)
                local = (np.uint64((row_id >> np.int64(32)) - base_batch) << np.uint64(offset_bits)) | np.uint64(
                    row_id & np.int64(0xFFFFFFFF)
                )
                out[at, 0] = h
                if narrow:
                    out[at, 1] = (local << np.uint64(32)) | np.uint64(start - base_start)
                else:
                    out[at, 1] = local
                    out[at, 2] = np.uint64(start)
                if has_end:
                    out[at, out_words - 1] = np.uint64(end)
        if pass_ == 0:
            for b in range(1, len(directory)):
                directory[b] += directory[b - 1]
    _sort_buckets(out, out_words, directory)
    return out, directory
