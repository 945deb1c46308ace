"""Building and merging runs: rows of a state, sorted by the hash of their key, with a directory into them.

Three forms of a row occur, all of 64-bit words:

*sorted* (4 words): `hash, position, start, end`; what one batch brings, in memory only. It probes other states as it is.

*narrow entry* (2 words): `hash, id << 32 | start - base_start`; the usual form of a stored row, 16 bytes.

*wide entry* (3 words): `hash, id, start`; where 32 bits do not suffice for the ids or the starts of a run.

Entries of views carry their `end` as one more word. The id of an entry is local to its run: `(batch - base_batch) <<
offset_bits | offset`. Outside a run a row id is `batch << 32 | offset`.

A run covers the hashes whose top `prefix_bits` bits are its prefix. The next `bits` bits of a hash select a bucket of four
to eight entries. A bucket has two words in the directory: one in which the *suffixes* that occur in it are set (the six
bits of a hash behind those of the bucket), and one with its first entry (32 bits) and the *marks* that occur in it (the five
bits behind the suffix, 32 bits). Of the lookups that would find nothing, all but one or two in a hundred end there, after a
sequential load. Entries are sorted by hash, ties in order of arrival.

In an index by order the word in place of the hash is one that is in order as the values of its term are. Such words do not
spread over all bits: most buckets of the directory are empty and a few are large, and it is not asked (`probe_ranges`).
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from anabranch.storage.compiled import njit

SORTED_WORDS = 4

# Columns of a run table: how a probe or a merge sees the runs of a state.
ENTRIES, ROWS, DIRECTORY, BITS, PREFIX_BITS, LO, HI = range(7)
WORDS, NARROW, HAS_END, BASE_BATCH, OFFSET_BITS, BASE_START, NEWEST_START = range(7, 14)
TABLE_COLUMNS = 14

FINE_BITS = 3
"""Rows are scattered into buckets finer than the directory's by so many bits: little is left to sort in each."""

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


@njit(cache=True, nogil=True)
def directory_bits(rows):
    """Four to eight rows a bucket."""
    bits = 0
    while (np.int64(8) << bits) < rows and bits < 26:
        bits += 1
    return bits


@njit(inline="always")
def bucket_of(h, prefix_bits, bits):
    if bits == 0:
        return np.int64(0)
    return np.int64((h << np.uint64(prefix_bits)) >> np.uint64(64 - bits))


@njit(inline="always")
def suffix_of(h, prefix_bits, bits):
    """The six bits behind those that select the bucket."""
    return (h << np.uint64(prefix_bits + bits)) >> np.uint64(58)


@njit(inline="always")
def mark_of(h, prefix_bits, bits):
    """The five bits behind the suffix."""
    return (h << np.uint64(prefix_bits + bits + 6)) >> np.uint64(59)


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
    """The rows in sorted form. `positions` may be empty: then row i has position i."""
    n = len(hashes)
    bits = directory_bits(n) + FINE_BITS
    fine = np.zeros((np.int64(1) << bits) + 1, np.uint32)
    for i in range(n):
        fine[bucket_of(hashes[i], 0, bits) + 1] += np.uint32(1)
    for b in range(1, len(fine)):
        fine[b] += fine[b - 1]
    cursor = fine[:-1].copy()
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
    _sort_buckets(rows, SORTED_WORDS, fine)
    return rows


@njit(cache=True, nogil=True)
def directory_of(entries, prefix_bits):
    """The directory of entries (or sorted rows): two words a bucket, and one bucket more, where the last one ends."""
    n = len(entries)
    bits = directory_bits(n)
    buckets = np.int64(1) << bits
    directory = np.zeros(2 * (buckets + 1), np.uint64)
    at = np.int64(0)
    for b in range(buckets + 1):
        present, marks = np.uint64(0), np.uint64(0)
        first = at
        while at < n and bucket_of(entries[at, 0], prefix_bits, bits) == b:
            h = entries[at, 0]
            present |= np.uint64(1) << suffix_of(h, prefix_bits, bits)
            marks |= np.uint64(1) << mark_of(h, prefix_bits, bits)
            at += 1
        directory[2 * b] = present
        directory[2 * b + 1] = np.uint64(first) | (marks << np.uint64(32))
    return directory


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
def layout_of(table, r):
    """How the entries of a run are laid out, as plain values: a loop must not read the table again for each entry."""
    return (
        table[r, WORDS], table[r, NARROW] != 0, table[r, HAS_END] != 0, table[r, BASE_BATCH],
        np.uint64(table[r, OFFSET_BITS]), table[r, BASE_START],
    )  # fmt: skip


@njit(inline="always")
def entry_id(entries, i, layout):
    """The row id of entry i."""
    words, narrow, _, base_batch, offset_bits, _ = layout
    word = entries[i * words + 1]
    if narrow:
        word >>= np.uint64(32)
    batch = np.int64(word >> offset_bits) + base_batch
    return (batch << np.int64(32)) | np.int64(word & ((np.uint64(1) << offset_bits) - np.uint64(1)))


@njit(inline="always")
def entry_start(entries, i, layout):
    words, narrow, _, _, _, base_start = layout
    if narrow:
        return np.int64(entries[i * words + 1] & np.uint64(0xFFFFFFFF)) + base_start
    return np.int64(entries[i * words + 2])


@njit(inline="always")
def entry_end(entries, i, layout, start, window_us):
    """The end of an entry: its own in a view, else start + window (a window without end saturates)."""
    words, _, has_end, _, _, _ = layout
    if has_end:
        return np.int64(entries[(i + 1) * words - 1])
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
def _recode(table, r, first, last, out, at, watermark_us, window_us, all_alive, target):
    """Copies the entries first … last of run r to `out` in the layout of the merged run; returns where they end.

    Without a row that has ended, and with ids that are cut alike, one addition changes the base of an id and of a start.
    """
    layout = layout_of(table, r)
    words, narrow, _, base_batch, offset_bits, base_start = layout
    out_words, to_narrow, to_end, to_batch, to_bits, to_start = target
    entries = words_at(table[r, ENTRIES], table[r, ROWS] * words)
    if all_alive and narrow and to_narrow and words == out_words and offset_bits == to_bits:
        batches = np.uint64(base_batch - to_batch) << (to_bits + np.uint64(32))
        moved = batches + np.uint64(base_start - to_start)
        for i in range(first, last):
            out[at * out_words] = entries[i * words]
            out[at * out_words + 1] = entries[i * words + 1] + moved
            if words == 3:
                out[at * out_words + 2] = entries[i * words + 2]
            at += 1
        return at
    for i in range(first, last):
        start = entry_start(entries, i, layout)
        end = entry_end(entries, i, layout, start, window_us)
        row_id = entry_id(entries, i, layout)
        batch, offset = np.uint64((row_id >> np.int64(32)) - to_batch), np.uint64(row_id & np.int64(0xFFFFFFFF))
        local = (batch << to_bits) | offset
        out[at * out_words] = entries[i * words]
        if to_narrow:
            out[at * out_words + 1] = (local << np.uint64(32)) | np.uint64(start - to_start)
        else:
            out[at * out_words + 1] = local
            out[at * out_words + 2] = np.uint64(start)
        if to_end:
            out[(at + 1) * out_words - 1] = np.uint64(end)
        at += np.int64(end > watermark_us)
    return at


TWO_WORDS, THREE_WORDS, FOUR_WORDS = (0, 0), (0, 0, 0), (0, 0, 0, 0)
"""The size of an entry as a type: what is compiled for one size merges faster than what is told the size."""


@njit(inline="always")
def _merge_one(rows, out, entry, i, i_end, j, j_end, at):
    """Moves the lesser of two heads to `out`, that of the first list if they are equal; without branches, for which is
    the lesser cannot be predicted. The word behind a list that is at its end may be read, its value is not used.

    Places are counted in words and unsigned: a signed one would be asked each time whether it counts from the end.
    """
    second = np.uint64(((rows[j] < rows[i]) | (i == i_end)) & (j < j_end))
    head = i ^ ((i ^ j) & (np.uint64(0) - second))
    out[at] = rows[head]
    out[at + np.uint64(1)] = rows[head + np.uint64(1)]
    if len(entry) > 2:
        out[at + np.uint64(2)] = rows[head + np.uint64(2)]
    if len(entry) > 3:
        out[at + np.uint64(3)] = rows[head + np.uint64(3)]
    step = second * np.uint64(len(entry))
    return i + np.uint64(len(entry)) - step, j + step


@njit(cache=True, nogil=True)
def _merge_lists(rows, out, entry, i, i_end, j, j_end, at):
    """Merges two lists that lie in `rows` to `out` from `at` on.

    They are cut in two at the middle of the first, and both halves go on side by side: each waits for its own loads.
    """
    middle, cut = (i + i_end) >> 1, j_end
    if middle < i_end:
        words = len(entry)
        cut = j + first_at_or_after(rows[j * words :], words, j_end - j, rows[middle * words])
    size = np.uint64(len(entry))
    a, b, c, d = np.uint64(i) * size, np.uint64(j) * size, np.uint64(middle) * size, np.uint64(cut) * size
    a_end, b_end, c_end, d_end = c, d, np.uint64(i_end) * size, np.uint64(j_end) * size
    left, right = (a_end - a) + (b_end - b), (c_end - c) + (d_end - d)
    to_left = np.uint64(at) * size
    to_right = to_left + left
    both, done = min(left, right), np.uint64(0)
    while done < both:
        a, b = _merge_one(rows, out, entry, a, a_end, b, b_end, to_left + done)
        c, d = _merge_one(rows, out, entry, c, c_end, d, d_end, to_right + done)
        done += size
    while done < left:
        a, b = _merge_one(rows, out, entry, a, a_end, b, b_end, to_left + done)
        done += size
    while both < right:
        c, d = _merge_one(rows, out, entry, c, c_end, d, d_end, to_right + both)
        both += size


@njit(cache=True, nogil=True)
def _merge_all(rows, out, entry, bounds):
    """Merges neighbouring lists until one is left; returns the array that holds it."""
    lists = len(bounds) - 1
    while lists > 1:
        pairs = 0
        for first in range(0, lists, 2):
            second, third = first + 1, min(first + 2, lists)
            _merge_lists(rows, out, entry, bounds[first], bounds[second], bounds[second], bounds[third], bounds[first])
            pairs += 1
            bounds[pairs] = bounds[third]
        lists = pairs
        rows, out = out, rows
    return rows


@njit(cache=True, nogil=True)
def visible_rows(table, lo, hi):
    """How many entries each run shows with hashes in [lo, hi): the first and the one after the last."""
    bounds = np.empty((len(table), 2), np.int64)
    for r in range(len(table)):
        entries = words_at(table[r, ENTRIES], table[r, ROWS] * table[r, WORDS])
        bounds[r, 0], bounds[r, 1] = _visible(entries, table, r, lo, hi)
    return bounds


@njit(cache=True, nogil=True)
def merge(table, bounds, watermark_us, window_us, all_alive, target, rows, out):
    """The entries of one run: those of several within `bounds` that are still valid at the watermark.

    `all_alive` promises that all of them are; `target` is the layout of the merged run; `rows` and `out` are memory to work
    in, for one word more than all the entries take. Of rows with equal hashes, those of the run that stands first in the
    table come first.
    """
    words, lists = target[0], np.zeros(len(table) + 1, np.int64)
    for r in range(len(table)):
        lists[r + 1] = _recode(
            table, r, bounds[r, 0], bounds[r, 1], rows, lists[r], watermark_us, window_us, all_alive, target
        )
    kept = lists[len(table)]
    if words == 2:
        rows = _merge_all(rows, out, TWO_WORDS, lists)
    elif words == 3:
        rows = _merge_all(rows, out, THREE_WORDS, lists)
    else:
        rows = _merge_all(rows, out, FOUR_WORDS, lists)
    return rows[: kept * words].copy().reshape(kept, words)
