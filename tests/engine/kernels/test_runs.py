"""Sorting, compacting and merging equal their twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import reference
from anabranch.engine.kernels import runs as kernels
from anabranch.engine.kernels.reference import ALL_HASHES, LOW, Entry, SortedRow
from anabranch.plan.query import BEGINNING_US, FOREVER_US
from tests.engine.kernels.stored import (
    ANY_HASH,
    WATERMARKS,
    WINDOWS,
    Packed,
    Stored,
    hash_pools,
    hash_ranges,
    run_table,
    states,
)

TIMES = st.integers(-50, 50) | st.sampled_from([BEGINNING_US, -(2**40), 2**40, FOREVER_US])


def sort_by_hash(hashes, positions, starts, ends):
    words = kernels.sort_by_hash(
        np.array(hashes, np.uint64), np.array(positions, np.int64), np.array(starts, np.int64), np.array(ends, np.int64)
    )
    return [SortedRow(h, p, reference.signed(s), reference.signed(e)) for h, p, s, e in words.tolist()]


def sorted_words(rows):
    words = [[r.hash, r.position, r.start % 2**64, r.end % 2**64] for r in rows]
    return np.array(words, np.uint64).reshape(-1, 4)


def directory_of(rows, prefix_bits):
    return kernels.directory_of(sorted_words(rows), prefix_bits).tolist()


def compact(rows, narrow, has_end, base_start):
    out = kernels.compact(sorted_words(rows), narrow, has_end, base_start)
    return [tuple(row) for row in out.tolist()]


def merge(stored_runs, lo, hi, watermark_us, window_us, packed, all_alive=False):
    """The merged entries, unpacked, and the directory that a run of them gets."""
    table, words = run_table(stored_runs), (2 if packed.narrow else 3) + packed.has_end
    bounds = kernels.visible_rows(table, lo, hi)
    size = (int((bounds[:, 1] - bounds[:, 0]).sum()) + 1) * words
    layout = (words, packed.narrow, packed.has_end, packed.base_batch, np.uint64(packed.offset_bits), packed.base_start)
    memory = np.full(size, 2**64 - 1, np.uint64), np.full(size, 2**64 - 1, np.uint64)
    found = kernels.merge(table, bounds, watermark_us, window_us, all_alive, layout, *memory)
    prefix_bits = (ALL_HASHES // (hi - lo)).bit_length() - 1
    return packed.entries(found), kernels.directory_of(found, prefix_bits).tolist()


@st.composite
def batches(draw):
    """Hashes, positions, starts and ends of a batch; at times few hashes for many rows."""
    pool = st.sampled_from(draw(hash_pools())) if draw(st.booleans()) else ANY_HASH
    rows = draw(st.lists(st.tuples(pool, st.integers(0, 2**32 - 1), TIMES, TIMES), max_size=120))
    return tuple([row[place] for row in rows] for place in range(4))


def one_bucket(rows):
    """Two interleaved hashes that only their last bits tell apart."""
    return [5 + i % 2 for i in range(rows)], [], list(range(rows)), [FOREVER_US] * rows


@given(batches(), st.booleans())
@example(([], [], [], []), False)
@example(([7], [], [-1], [0]), False)
@example(one_bucket(kernels.LARGE_BUCKET), False)
@example(one_bucket(kernels.LARGE_BUCKET + 1), False)
@example(one_bucket(500), False)
@settings(deadline=None)
def test_sort_by_hash_equals_its_twin(batch, with_positions):
    hashes, positions, starts, ends = batch
    positions = positions if with_positions else []
    assert sort_by_hash(hashes, positions, starts, ends) == reference.sort_by_hash(hashes, positions, starts, ends)


@given(st.integers(0, 2**40))
@settings(deadline=None)
def test_directory_bits_equals_its_twin(rows):
    bits = kernels.directory_bits(rows)
    assert bits == reference.directory_bits(rows)
    assert bits in (0, 26) or 4 < rows / 2**bits <= 8


@given(batches())
@example(([], [], [], []))
@example(one_bucket(500))
@settings(deadline=None)
def test_directory_of_equals_its_twin(batch):
    rows = reference.sort_by_hash(*batch)
    assert directory_of(rows, 0) == reference.directory([r.hash for r in rows], 0)


@given(batches(), st.booleans(), st.booleans())
@example(([], [], [], []), True, True)
@settings(deadline=None)
def test_compact_equals_its_twin(batch, narrow, has_end):
    rows = reference.sort_by_hash(*batch)
    base_start = min((r.start for r in rows), default=0)
    rows = [r for r in rows if not narrow or r.start - base_start <= LOW]
    assert compact(rows, narrow, has_end, base_start) == reference.compact(rows, narrow, has_end, base_start)


@given(states(), st.sampled_from([0, 2, 14]), WATERMARKS, WINDOWS, st.data())
@settings(deadline=None, max_examples=200)
def test_merge_equals_its_twin(state, range_bits, watermark_us, window_us, data):
    pool, has_end, plain, stored = state
    lo, hi = data.draw(hash_ranges(range_bits, pool))
    wanted = reference.merge(plain, lo, hi, watermark_us, window_us, has_end)

    ids, starts = [e.id for e in wanted], [e.start for e in wanted]
    base_batch, last_batch = min((i >> 32 for i in ids), default=0), max((i >> 32 for i in ids), default=0)
    offset_bits = max((i & LOW for i in ids), default=1).bit_length() or 1
    fits = (last_batch - base_batch).bit_length() + offset_bits <= 32 and max(starts, default=0) - min(
        starts, default=0
    ) <= LOW
    narrow = fits and data.draw(st.booleans())
    packed = Packed(narrow, has_end, base_batch, offset_bits, min(starts, default=0))
    all_alive = len(wanted) == len(reference.merge(plain, lo, hi, BEGINNING_US, FOREVER_US, has_end))
    found, directory = merge(stored, lo, hi, watermark_us, window_us, packed, all_alive and data.draw(st.booleans()))
    assert found == wanted
    assert directory == reference.directory([e.hash for e in wanted], range_bits)


@pytest.mark.parametrize("rows", [kernels.LARGE_BUCKET, kernels.LARGE_BUCKET + 1, 300])
@pytest.mark.parametrize("has_end", [False, True])
def test_merging_large_buckets_keeps_the_order_of_arrival(rows, has_end):
    """Equal hashes keep the order of their runs, whichever way a bucket is sorted."""
    plain, stored = [], []
    for batch in range(3):
        entries = sorted(
            (Entry(9 + i % 3, batch << 32 | i, i, i + 100 if has_end else None) for i in range(rows)),
            key=lambda e: e.hash,
        )
        plain.append(reference.PlainRun(tuple(entries)))
        stored.append(Stored(plain[-1], Packed(True, has_end, batch, 16, 0)))
    packed = Packed(True, has_end, 0, 16, 0)
    assert merge(stored, 0, ALL_HASHES, 50, 100, packed)[0] == reference.merge(plain, 0, ALL_HASHES, 50, 100, has_end)


def test_merge_of_runs_with_different_bases():
    """Ids and starts are relative in each run, and to something else in the merged one."""
    plain = [
        reference.PlainRun((Entry(1, 7 << 32 | 5, -1000), Entry(2, 9 << 32, -990))),
        reference.PlainRun((Entry(1, 1000 << 32 | 2**31, BEGINNING_US),)),
    ]
    stored = [
        Stored(plain[0], Packed(True, False, 7, 3, -1000)),
        Stored(plain[1], Packed(False, False, 1000, 32, 0)),
    ]
    entries, directory = merge(stored, 0, ALL_HASHES, 0, FOREVER_US, Packed(False, False, 7, 32, BEGINNING_US))
    assert entries == [plain[0].entries[0], plain[1].entries[0], plain[0].entries[1]]
    assert directory == [1, 1 << 32, 0, 3]


def test_a_row_ends_with_its_window():
    run, packed = reference.PlainRun((Entry(1, 0, 5),)), Packed(True, False, 0, 1, 5)
    assert merge([Stored(run, packed)], 0, ALL_HASHES, 14, 10, packed)[0] == [Entry(1, 0, 5)]
    assert merge([Stored(run, packed)], 0, ALL_HASHES, 15, 10, packed)[0] == []
    assert merge([], 0, ALL_HASHES, BEGINNING_US, FOREVER_US, packed)[0] == []
