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


def merge(stored_runs, lo, hi, watermark_us, window_us, packed):
    """The merged entries, unpacked, their greatest start and end, and the directory that a run of them gets."""
    words, start_max, end_max = kernels.merge(
        run_table(stored_runs), lo, hi, watermark_us, window_us, packed.narrow, packed.has_end, packed.base_batch,
        packed.offset_bits, packed.base_start,
    )  # fmt: skip
    prefix_bits = (ALL_HASHES // (hi - lo)).bit_length() - 1
    directory = kernels.directory_of(words, prefix_bits).tolist()
    return packed.entries(words), start_max, end_max, directory


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
    wanted, start_max, end_max = reference.merge(plain, lo, hi, watermark_us, window_us, has_end)

    ids, starts = [e.id for e in wanted], [e.start for e in wanted]
    base_batch, last_batch = min((i >> 32 for i in ids), default=0), max((i >> 32 for i in ids), default=0)
    offset_bits = max((i & LOW for i in ids), default=1).bit_length() or 1
    fits = (last_batch - base_batch).bit_length() + offset_bits <= 32 and max(starts, default=0) - min(
        starts, default=0
    ) <= LOW
    narrow = fits and data.draw(st.booleans())
    packed = Packed(narrow, has_end, base_batch, offset_bits, min(starts, default=0))
    found, found_start_max, found_end_max, directory = merge(stored, lo, hi, watermark_us, window_us, packed)
    assert found == wanted
    assert directory == reference.directory([e.hash for e in wanted], range_bits)
    if wanted:
        # The kernel says BEGINNING_US + 1 where all rows were always there: one more does not make a run wide.
        assert found_start_max == max(start_max, BEGINNING_US + 1)
        assert found_end_max == end_max


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
        plain.append(reference.Run(tuple(entries)))
        stored.append(Stored(plain[-1], Packed(True, has_end, batch, 16, 0)))
    packed = Packed(True, has_end, 0, 16, 0)
    assert merge(stored, 0, ALL_HASHES, 50, 100, packed)[:3] == reference.merge(plain, 0, ALL_HASHES, 50, 100, has_end)


def test_merge_of_runs_with_different_bases():
    """Ids and starts are relative in each run, and to something else in the merged one."""
    plain = [
        reference.Run((Entry(1, 7 << 32 | 5, -1000), Entry(2, 9 << 32, -990))),
        reference.Run((Entry(1, 1000 << 32 | 2**31, BEGINNING_US),)),
    ]
    stored = [
        Stored(plain[0], Packed(True, False, 7, 3, -1000)),
        Stored(plain[1], Packed(False, False, 1000, 32, 0)),
    ]
    entries, *_, directory = merge(stored, 0, ALL_HASHES, 0, FOREVER_US, Packed(False, False, 7, 32, BEGINNING_US))
    assert entries == [plain[0].entries[0], plain[1].entries[0], plain[0].entries[1]]
    assert directory == [1, 1 << 32, 0, 3]


def test_a_row_ends_with_its_window():
    run, packed = reference.Run((Entry(1, 0, 5),)), Packed(True, False, 0, 1, 5)
    assert merge([Stored(run, packed)], 0, ALL_HASHES, 14, 10, packed)[:3] == ([Entry(1, 0, 5)], 5, 15)
    assert merge([Stored(run, packed)], 0, ALL_HASHES, 15, 10, packed)[0] == []
    assert merge([], 0, ALL_HASHES, BEGINNING_US, FOREVER_US, packed)[0] == []
