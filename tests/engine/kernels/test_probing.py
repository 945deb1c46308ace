"""Probing equals its twin, by hashes and in ranges."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import probing, reference
from anabranch.engine.kernels.reference import ALL_HASHES, Entry, Match, SortedRow
from anabranch.engine.kernels.runs import LARGE_BUCKET
from anabranch.plan.query import BEGINNING_US, FOREVER_US
from tests.engine.kernels.stored import ANY_HASH, WINDOWS, Packed, Stored, run_table, states


def pieces_of(kernel, rows, given, window_us, expected, enough, reaches_us=()):
    """What a kernel finds, call by call until all rows are looked up: the matches as a multiset (kernels owe no order), and
    the number of lookups."""
    place, matches, lookups = probing.beginning(), Counter(), 0
    reaches = np.array(reaches_us, np.int64) if len(reaches_us) else None
    while place[probing.BLOCK] < len(rows):
        found, looked_up = kernel(*given, window_us, reaches, expected, place, enough)
        assert found.shape[1] == enough or (found.shape[1] < enough and place[probing.BLOCK] == len(rows))
        matches.update(Match(*column) for column in found.T.tolist())
        lookups += looked_up
    return matches, lookups


def words_of(rows):
    return np.array([[r.hash, r.position, r.start % 2**64, r.end % 2**64] for r in rows], np.uint64).reshape(-1, 4)


def probe(rows, stored_runs, window_us, expected, enough=2**62, reaches_us=()):
    given_rows = (words_of(rows), run_table(stored_runs))
    return pieces_of(probing.probe, rows, given_rows, window_us, expected, enough, reaches_us)


def twin(rows, plain_runs, window_us, reaches_us=()):
    matches, lookups = reference.probe(rows, plain_runs, window_us, reaches_us)
    return Counter(matches), lookups


@st.composite
def probing_rows(draw, pool):
    hashes = st.sampled_from(pool) | ANY_HASH
    starts = st.integers(-15, 40) | st.sampled_from([BEGINNING_US, -(2**40), 2**40])
    rows = draw(st.lists(st.tuples(hashes, starts, st.integers(1, 60) | st.just(None)), max_size=40))
    return reference.sort_by_hash(
        [r[0] for r in rows], [], [r[1] for r in rows], [FOREVER_US if r[2] is None else r[1] + r[2] for r in rows]
    )


ENOUGH = st.sampled_from([1, 2, 7, 2**62])


@st.composite
def reaches(draw, rows, runs):
    """How far back each row looks; or all as far as the window, as where some have always been valid."""
    began = [entry.start for run in runs for entry in run.entries]
    if draw(st.booleans()) or any(abs(start) > 2**41 for start in (*began, *(row.start for row in rows))):
        return []
    ages = [[max(0, row.start - start) for start in began] or [0] for row in rows]
    return [
        draw(st.integers(0, 20) | st.just(FOREVER_US) | st.sampled_from(own).flatmap(lambda us: st.integers(us, us + 1)))
        for own in ages
    ]


@given(states(), WINDOWS, st.sampled_from([0, 1, 1000]), ENOUGH, st.data())
@settings(deadline=None, max_examples=200)
def test_probe_equals_its_twin(state, window_us, expected, enough, data):
    pool, _, plain, stored = state
    rows = data.draw(probing_rows(pool))
    reaches_us = data.draw(reaches(rows, plain))
    found = probe(rows, stored, window_us, expected, enough, reaches_us)
    assert found == twin(rows, plain, window_us, reaches_us)


@pytest.mark.parametrize("rows", [1, LARGE_BUCKET, LARGE_BUCKET + 1, 400])
def test_large_buckets_and_more_matches_than_expected(rows):
    """Hashes that share a bucket: before, at and behind the one looked up."""
    entries = tuple(Entry(h, i, 10 * i) for h in (6, 7, 8) for i in range(rows))
    run = reference.PlainRun(entries)
    probing_with = [SortedRow(h, h, 5, 10 * rows) for h in (5, 6, 7, 7, 8, 9)]
    stored = Stored(run, Packed(True, False, 0, 32, 0))
    for window_us in (1, 5, 6, FOREVER_US):
        for enough in (1, 100, 2**62):
            found = probe(probing_with, [stored], window_us, 0, enough)
            assert found == twin(probing_with, [run], window_us)
            assert found[1] == len(probing_with)


AGES = (0, 1, 2, 5, 2**40)


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("age_us", AGES)
@pytest.mark.parametrize("reach_us", [0, *AGES, *(age_us + 1 for age_us in AGES), FOREVER_US])
def test_a_row_finds_what_began_less_than_its_reach_before_it(narrow, age_us, reach_us):
    """Beside an older one, in a run in which it is the newest. What begins later than the row has no age."""
    newest = Entry(7, 1, 2**41 - age_us)
    run = reference.PlainRun((Entry(7, 0, newest.start - 2**31), newest))
    stored = Stored(run, Packed(narrow, False, 0, 8 if narrow else 32, newest.start - 2**31))
    rows = [SortedRow(7, 0, 2**41, FOREVER_US), SortedRow(7, 1, newest.start - 3, FOREVER_US)]
    reaches_us = [reach_us, 1]
    found, lookups = probe(rows, [stored], FOREVER_US, 0, reaches_us=reaches_us)
    assert (found[Match(0, 1, 2**41, FOREVER_US)] == 1) == (age_us < reach_us)
    assert found[Match(1, 1, newest.start, FOREVER_US)] == 1
    assert (found, lookups) == twin(rows, [run], FOREVER_US, reaches_us)
    ranges = probe_ranges(rows, [7, 7], [stored], FOREVER_US, 0, reaches_us=reaches_us)
    assert ranges == range_twin(rows, [7, 7], [run], FOREVER_US, reaches_us)
    assert ranges[0] == found


def test_rows_go_on_where_they_were_although_some_before_them_reach_no_entry():
    """A lookup that ends within a block goes on at the same row, of those that reach as far as the run."""
    entries = tuple(Entry(h, h << 4 | i, 100 * h + i) for h in range(6) for i in range(5))
    plain = [reference.PlainRun(entries), reference.PlainRun(tuple(e._replace(start=e.start - 50) for e in entries))]
    stored = [Stored(run, Packed(True, False, 0, 16, -50)) for run in plain]
    rows = [SortedRow(h, 3 * h + n, 100 * h + 60, FOREVER_US) for h in range(6) for n in range(3)]
    reaches_us = [(10, 58, 300)[row.position % 3] * (row.hash % 2 or 9) for row in rows]
    for enough in range(1, 12):
        assert probe(rows, stored, FOREVER_US, 0, enough, reaches_us) == twin(rows, plain, FOREVER_US, reaches_us)


def test_validities_that_touch_do_not_intersect():
    run = reference.PlainRun((Entry(1, 0, 10, 20),))
    stored = Stored(run, Packed(False, True, 0, 32, 0))
    rows = [SortedRow(1, i, start, end) for i, (start, end) in enumerate([(0, 10), (0, 11), (19, 30), (20, 30)])]
    assert probe(rows, [stored], 0, 0)[0] == Counter([Match(1, 0, 10, 11), Match(2, 0, 19, 20)])


@pytest.mark.parametrize("lo", [0, 1, 2, 3])
@pytest.mark.parametrize("hi", [2, 3, ALL_HASHES - 1, ALL_HASHES])
def test_only_what_is_visible_is_found(lo, hi):
    if lo >= hi:
        return
    hashes = [0, 2**48 - 1, 2**48, 2 * 2**48, 3 * 2**48 - 1, 3 * 2**48, 2**64 - 1]
    run = reference.PlainRun(tuple(Entry(h, i, 0) for i, h in enumerate(hashes)), lo, hi)
    rows = [SortedRow(h, i, 0, 1) for i, h in enumerate(hashes)]
    visible = [i for i, h in enumerate(hashes) if lo <= h >> 48 < hi]
    found, lookups = probe(rows, [Stored(run, Packed(True, False, 0, 32, 0))], 1, 0)
    assert found == Counter(Match(i, i, 0, 1) for i in visible)
    assert lookups == len(visible)


def test_more_rows_than_a_block_over_runs_that_see_parts_of_them():
    """Rows are probed in blocks; runs begin and end anywhere in them."""
    random = np.random.default_rng(3)
    hashes = sorted(random.integers(0, 2**64, 700, dtype=np.uint64).tolist())
    rows = [SortedRow(h, i, 0, 10) for i, h in enumerate(h for h in hashes for _ in range(4))]
    assert len(rows) > 2 * probing.BLOCK_ROWS
    plain, stored = [], []
    for batch, (lo, hi) in enumerate([(0, ALL_HASHES), (1, 2), (20_000, 20_400), (30_000, ALL_HASHES), (0, 40_000)]):
        entries = tuple(Entry(h, batch << 32 | i, i % 12) for i, h in enumerate(hashes) if i % 3 or batch)
        plain.append(reference.PlainRun(entries, lo, hi))
        stored.append(Stored(plain[-1], Packed(True, False, batch, 32, 0)))
    for enough in (5, 1000, 2**62):
        assert probe(rows, stored, 3, 0, enough) == twin(rows, plain, 3)


def probe_ranges(rows, highs, stored_runs, window_us, expected, enough=2**62, reaches_us=()):
    given_rows = (words_of(rows), np.array(highs, np.uint64), run_table(stored_runs))
    return pieces_of(probing.probe_ranges, rows, given_rows, window_us, expected, enough, reaches_us)


def range_twin(rows, highs, plain_runs, window_us, reaches_us=()):
    matches, lookups = reference.probe_ranges(rows, highs, plain_runs, window_us, reaches_us)
    return Counter(matches), lookups


@given(states(), WINDOWS, st.sampled_from([0, 1, 1000]), ENOUGH, st.data())
@settings(deadline=None, max_examples=200)
def test_probe_ranges_equals_its_twin(state, window_us, expected, enough, data):
    """Ranges of one word, of some, of all, and empty ones."""
    pool, _, plain, stored = state
    rows = data.draw(probing_rows(pool))
    highs = [data.draw(st.just(r.hash) | st.sampled_from([*pool, 2**64 - 1]) | ANY_HASH) for r in rows]
    reaches_us = data.draw(reaches(rows, plain))
    found = probe_ranges(rows, highs, stored, window_us, expected, enough, reaches_us)
    assert found == range_twin(rows, highs, plain, window_us, reaches_us)


def test_ranges_in_many_blocks_over_words_that_lie_close_together():
    """Words that share their first 16 bits, in runs of which all or nothing is visible; lookups end when there is enough."""
    random = np.random.default_rng(5)
    words = sorted(2**63 + int(word) for word in random.integers(0, 500, 300))
    lows = sorted(2**63 + int(word) for word in random.integers(-20, 520, 3 * probing.RANGE_ROWS + 7))
    rows = [SortedRow(low, i, i % 9, 12) for i, low in enumerate(lows)]
    highs = [low + int(width) for low, width in zip(lows, random.integers(-1, 30, len(lows)), strict=True)]
    plain, stored = [], []
    for batch, (lo, hi) in enumerate([(0, ALL_HASHES), (0, 2**15), (2**15, 2**15 + 1), (2**15 + 1, ALL_HASHES)]):
        entries = tuple(Entry(h, batch << 32 | i, i % 12) for i, h in enumerate(words))
        plain.append(reference.PlainRun(entries, lo, hi))
        stored.append(Stored(plain[-1], Packed(True, False, batch, 32, 0)))
    for enough in (1, 100, 2**62):
        assert probe_ranges(rows, highs, stored, 3, 0, enough) == range_twin(rows, highs, plain, 3)


def test_no_rows_and_no_runs():
    run = reference.PlainRun((Entry(1, 0, 0),))
    empty = reference.PlainRun(())
    packed = Packed(True, False, 0, 32, 0)
    assert probe([], [Stored(run, packed)], 1, 0) == (Counter(), 0)
    assert probe([SortedRow(1, 0, 0, 1)], [], 1, 0) == (Counter(), 0)
    assert probe([SortedRow(1, 0, 0, 1)], [Stored(empty, packed)], 1, 0) == (Counter(), 0)
