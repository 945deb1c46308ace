"""Runs at the edge of their narrow form: two words an entry, of which one holds the start and the row in 32 bits each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from anabranch.engine.kernels.probing import beginning, probe
from anabranch.engine.kernels.runs import sort_by_hash
from anabranch.engine.run import ALL_HASHES, SortedRun, merge_runs, run_of_batch, run_table
from anabranch.plan.query import FOREVER_US

HASHES = np.array([5 << 40, 9 << 50], np.uint64)
Int64 = npt.NDArray[np.int64]


def run_of(batch: int, offsets: list[int], starts_us: list[int]) -> SortedRun:
    """A run of two rows, at these places of their batch."""
    starts = np.array(starts_us, np.int64)
    rows = sort_by_hash(HASHES, np.array(offsets, np.int64), starts, starts + 10)
    return run_of_batch(batch, rows, False)


def found_in(run: SortedRun) -> list[tuple[int, int]]:
    """Ids and starts of all entries of a run, as lookups find them."""
    always = np.full(2, -(2**62), np.int64)
    rows = sort_by_hash(HASHES, np.arange(2), always, np.full(2, FOREVER_US, np.int64))
    matches, _ = probe(rows, run_table([run]), FOREVER_US, None, 4, beginning(), 2**62)
    return sorted(zip(matches[1].tolist(), matches[2].tolist(), strict=True))


@pytest.mark.parametrize(("later_us", "narrow"), [(0, True), (2**32 - 1, True), (2**32, False), (2**40, False)])
def test_starts_that_lie_far_apart_need_a_word_each(later_us: int, narrow: bool) -> None:
    run = run_of(3, [0, 7], [1000, 1000 + later_us])
    assert run.narrow is narrow
    assert found_in(run) == [(3 << 32, 1000), (3 << 32 | 7, 1000 + later_us)]


@pytest.mark.parametrize(("batches", "offset", "narrow"), [
    ((4, 5), 2**31 - 1, True), ((4, 5), 2**31, False),  # one bit for two batches, and 31 or 32 for the row
    ((4, 7), 2**30 - 1, True), ((4, 7), 2**30, False),
    ((4, 4 + 2**20), 2**11 - 1, True), ((4, 4 + 2**20), 2**11, False),
])  # fmt: skip
def test_batches_and_rows_that_need_more_than_32_bits_get_one(batches: tuple[int, int], offset: int, narrow: bool) -> None:
    runs = [run_of(batch, [0, offset], [50, 60]) for batch in batches]
    merged = merge_runs(runs, 1, 0, ALL_HASHES, 0, FOREVER_US, False)
    assert merged is not None
    assert merged.narrow is narrow
    wanted = [(batch << 32 | at, start) for batch in batches for at, start in ((0, 50), (offset, 60))]
    assert found_in(merged) == sorted(wanted)


@pytest.mark.parametrize(("watermark_us", "left"), [(149, 2), (150, 1), (159, 1), (160, 0)])
def test_rows_that_have_ended_are_left_out_of_a_merge(watermark_us: int, left: int) -> None:
    """Rows from 50 and 60 on, valid for 100: of what ends at the watermark nothing is needed any more."""
    runs = [run_of(batch, [0, 1], [50, 60]) for batch in (0, 1)]
    merged = merge_runs(runs, 1, 0, ALL_HASHES, watermark_us, 100, False)
    assert (merged.rows if merged is not None else 0) == 2 * left


def test_what_is_left_of_a_run_is_found_by_rows_that_look_back_as_far_as_its_newest() -> None:
    """The oldest of three rows has ended."""
    starts = np.array([100, 150, 190], np.int64)
    rows = sort_by_hash(np.full(3, HASHES[0]), np.arange(3), starts, starts + 60)
    run = run_of_batch(4, rows, False, 60).without_ended(160, 60)
    assert run is not None
    assert (run.rows, run.start_max_us) == (2, 190)
    seeking = sort_by_hash(HASHES[:1], np.arange(1), np.array([195], np.int64), np.array([FOREVER_US]))
    matches, _ = probe(seeking, run_table([run]), 60, np.array([10], np.int64), 4, beginning(), 2**62)
    assert matches[2].tolist() == [195]
    assert matches[1].tolist() == [4 << 32 | 2]
