"""Spines against a plain dictionary of rows, and the promises of merging: every row once, few runs, no stall."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import reference
from anabranch.engine.kernels import runs as kernels
from anabranch.engine.run import ALL_HASHES, merge_runs, run_of_batch
from anabranch.engine.spine import FAN_IN, Spine, due_merges, parts_of
from anabranch.plan.query import BEGINNING_US, FOREVER_US


def batch_run(batch, hashes, starts, ends, has_end, retention_us, first_position=0):
    """The run of rows that arrive together."""
    positions = np.arange(first_position, first_position + len(hashes), dtype=np.int64)
    rows = kernels.sort_by_hash(
        np.array(hashes, np.uint64), positions, np.array(starts, np.int64), np.array(ends, np.int64)
    )
    return run_of_batch(batch, rows, has_end, retention_us)


def entries_of(run):
    """All entries of a run, visible or not."""
    return [
        reference.unpack(row, run.narrow, run.has_end, run.first_batch, run.offset_bits, run.base_start_us)
        for row in run.entries.tolist()
    ]


def visible(spine, watermark_us=BEGINNING_US):
    """How often each row that is alive can be seen."""
    return Counter(
        (e.hash, e.id, e.start)
        for run in spine.runs
        for e in entries_of(run)
        if e.is_within(run.lo, run.hi) and e.end_under(spine.retention_us) > watermark_us
    )


def random_hashes(random, rows, domain=1 << 30):
    return reference.hash_words(random.integers(0, domain, rows).tolist())


# -- when merges are due ---------------------------------------------------------------------------------------------


PHASES = pytest.mark.parametrize("phase", [0, 1, 3, 7])


def parts_by_group(batches, phase):
    """For each group (tier, first batch, last batch) the parts: batch after which it is merged, and hashes."""
    found = defaultdict(list)
    for batch in range(batches):
        for tier, first, last, lo, hi in due_merges(batch, phase):
            found[tier, first, last].append((batch, lo, hi))
    return found


@PHASES
def test_every_group_is_merged_in_parts_that_cover_all_hashes(phase):
    batches = 600
    groups = parts_by_group(batches, phase)
    for (tier, first, last), parts in groups.items():
        assert (first - phase) % FAN_IN**tier == 0
        assert last - first + 1 == FAN_IN**tier
        assert parts[0][0] >= last >= 0
        if len(parts) == parts_of(tier):
            assert [lo for _, lo, _ in parts] == [0, *(hi for _, _, hi in parts[:-1])]
            assert parts[-1][2] == ALL_HASHES
            assert [batch for batch, _, _ in parts] == list(range(parts[0][0], parts[0][0] + len(parts)))
        else:
            assert parts[-1][0] == batches - 1, "only the group at hand is unfinished"
    for tier in (1, 2, 3, 4):
        firsts = [first for t, first, _ in groups if t == tier]
        assert firsts[0] <= 0, "the first batches are in no group"
        assert firsts == [firsts[0] + FAN_IN**tier * i for i in range(len(firsts))], "a group was left out"


@PHASES
def test_a_group_is_merged_after_the_smaller_groups_in_it(phase):
    groups = parts_by_group(1500, phase)
    for (tier, first, last), parts in groups.items():
        for (smaller, inner_first, inner_last), inner in groups.items():
            if smaller == tier - 1 and first <= inner_first and inner_last <= last:
                assert inner[-1][0] < parts[0][0]


@PHASES
def test_at_most_one_part_of_a_tier_is_due(phase):
    for batch in range(2000):
        tiers = [tier for tier, *_ in due_merges(batch, phase)]
        assert tiers == sorted(set(tiers))


def test_no_group_begins_before_the_first_batch():
    assert [merge for batch in range(100) for merge in due_merges(batch) if merge[1] < 0] == []


def test_spines_of_different_phases_do_not_merge_small_groups_together():
    for batch in range(100):
        assert sum(any(tier == 1 for tier, *_ in due_merges(batch, phase)) for phase in range(FAN_IN)) <= 1


# -- the model -------------------------------------------------------------------------------------------------------


@st.composite
def histories(draw):
    """A retention, whether rows have ends of their own, what each batch brings (rows per arrival, and how far time goes on
    before it), a seed and a phase."""
    retention_us = draw(st.sampled_from([5, 40, 300, FOREVER_US]))
    has_end = draw(st.booleans())
    steps = st.sampled_from([0, 0, 1, 1, 1, 2, 5, 30, 200])
    arrivals = st.lists(st.integers(1, 12), max_size=3 if has_end else 1)
    # Long stretches of one pace make tiers grow, changes of pace let them come and go.
    stretches = draw(st.lists(st.tuples(st.integers(1, 40), steps, arrivals), min_size=1, max_size=6))
    batches = [(step, sizes) for length, step, sizes in stretches for _ in range(length)]
    return retention_us, has_end, batches, draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 5))


def follow(history, check_every=1, future=0.0):
    """Runs a history; after every batch the spine must show what the model does."""
    retention_us, has_end, batches, seed, phase = history
    random = np.random.default_rng(seed)
    spine = Spine("s", 0 if has_end else retention_us, has_end, phase)
    alive: dict[tuple[int, int, int], int] = {}
    watermark_us, now = BEGINNING_US, 0
    for batch, (step, sizes) in enumerate(batches):
        now += step
        watermark_us = now - 3 if batch else BEGINNING_US
        spine.purge(watermark_us)
        first = 0
        for size in sizes:
            hashes, starts = random_hashes(random, size, 50), (now + random.integers(-3, 4, size)).tolist()
            if random.random() < future:
                starts[0] += int(random.choice([70, 10**12]))
            ends = [FOREVER_US if retention_us == FOREVER_US else s + retention_us for s in starts]
            if has_end:
                ends = [
                    min(e, s + int(length))
                    for e, s, length in zip(ends, starts, random.integers(1, 60, size), strict=True)
                ]
            spine.arrive(batch_run(batch, hashes, starts, ends, has_end, spine.retention_us, first))
            for i, (h, start, end) in enumerate(zip(hashes, starts, ends, strict=True)):
                alive[h, batch << 32 | (first + i), start] = end
            first += size
        spine.settle(batch, watermark_us)
        alive = {row: end for row, end in alive.items() if end > watermark_us}
        if batch % check_every == 0:
            spine.verify()
            assert visible(spine, watermark_us) == dict.fromkeys(alive, 1), f"after batch {batch}"
    return spine


@given(histories(), st.sampled_from([0.0, 0.03, 0.3]))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_spine_shows_every_row_that_is_alive_exactly_once(history, future):
    follow(history, future=future)


@pytest.mark.parametrize("retention_us", [100, FOREVER_US])
@pytest.mark.parametrize("has_end", [False, True])
@pytest.mark.parametrize("future", [0.0, 0.02])
def test_a_long_life(retention_us, has_end, future):
    follow((retention_us, has_end, [(1, [5])] * 350, 1, 0), check_every=7, future=future)


@pytest.mark.parametrize("seed", range(6))
def test_a_watermark_that_stalls_and_jumps(seed):
    """The number of batches alive goes up and down, and with it the tiers that are merged."""
    random = np.random.default_rng(seed)
    steps = [0 if random.random() < 0.7 else int(random.integers(1, 40)) for _ in range(250)]
    follow((60, False, [(step, [3]) for step in steps], seed, seed % 4))


def test_a_tier_that_becomes_allowed_in_the_middle_of_a_group():
    """A lone run among sparse batches is whole, its neighbours are cut; then tier 3 is allowed from its ninth part on."""
    spine = Spine("s", 10**9, False)
    hashes = [(i << 60) + 1 for i in range(16)]
    for batch in range(276):
        if batch in (13, 192, 196, 220, 240, 244):
            spine.arrive(batch_run(batch, hashes, [batch] * 16, [batch + 10**9] * 16, False, 10**9))
        spine.settle(batch, 0)
        spine.verify()


# -- how much and how many -------------------------------------------------------------------------------------------


def grown(batches, rows, retention_us=FOREVER_US, measure=None):
    """A spine after so many batches of one size, one microsecond each; `measure` sees the runs that each settle merged."""
    random = np.random.default_rng(7)
    spine = Spine("s", retention_us, False)
    for batch in range(batches):
        spine.purge(batch)
        hashes = random.integers(0, 2**64, rows, dtype=np.uint64)
        starts = [batch] * rows
        spine.arrive(batch_run(batch, hashes, starts, [FOREVER_US] * rows, False, retention_us))
        before = list(spine.runs)
        spine.settle(batch, batch)
        if measure is not None:
            measure([r for r in spine.runs if r.tier > 0 and not any(r is b for b in before)])
    return spine


def most_runs_at_a_hash(spine):
    return max(sum(r.lo <= at < r.hi for r in spine.runs) for at in range(0, ALL_HASHES, 64))


@pytest.mark.parametrize("batches", [16, 64, 256, 500])
def test_the_number_of_runs_a_lookup_visits_is_logarithmic(batches):
    tiers = 1 + math.log(batches, FAN_IN)
    assert most_runs_at_a_hash(grown(batches, 20)) <= 2 * FAN_IN * tiers


@pytest.mark.parametrize("retention_us", [200, FOREVER_US])
def test_merging_one_batch_costs_a_few_batches(retention_us):
    """No settle merges more than about FAN_IN batches' worth of rows in each tier."""
    rows, batches = 300, 340
    tiers = math.ceil(math.log(batches, FAN_IN)) - 1
    merged = []
    grown(batches, rows, retention_us, lambda fresh: merged.append(sum(r.rows for r in fresh)))
    assert max(merged) <= 1.5 * FAN_IN * tiers * rows
    assert sum(merged) <= 1.1 * tiers * rows * batches, "each row is merged once a tier"


def test_little_of_what_is_stored_has_ended():
    """A run may span a third of the batches that are alive, so about that much more than is alive is kept."""
    rows, retention_us = 20, 128
    spine = grown(600, rows, retention_us)
    assert spine.rows <= 1.5 * rows * retention_us


@pytest.mark.parametrize("has_end", [False, True])
@pytest.mark.parametrize("window_us", [3, 60, 200])
def test_one_row_from_the_future_keeps_no_others(has_end, window_us):
    """The row is in some run for ever; those that came with it end with their window, in every part of every merge."""
    random = np.random.default_rng(3)
    spine, rows, batches, far_us = Spine("s", 0 if has_end else window_us, has_end), 40, 700, 10**15
    usual = Spine("s", 0 if has_end else window_us, has_end)
    for batch in range(batches):
        for each in (spine, usual):
            each.purge(batch)
            starts = [batch] * rows
            if batch in (5, 300) and each is spine:
                starts[7] = far_us
            hashes = random.integers(0, 2**64, rows, dtype=np.uint64)
            ends = [s + window_us for s in starts]
            each.arrive(batch_run(batch, hashes, starts, ends, has_end, each.retention_us))
            each.settle(batch, batch)
        spine.verify()
    assert spine.rows <= usual.rows + 2 * 40
    assert len(spine.runs) <= len(usual.runs) + 2
    assert spine.last_tier(batches) == usual.last_tier(batches)
    assert sum(n for (_, _, start), n in visible(spine, batches).items() if start == far_us) == 2


# -- what is derived again -------------------------------------------------------------------------------------------


@given(st.integers(1, 90), st.sampled_from([30, 80, FOREVER_US]), st.integers(0, 100), st.data())
@settings(deadline=None, max_examples=60)
def test_whatever_is_lost_can_be_restored_from_the_batches(batches, retention_us, phase, data):
    random = np.random.default_rng(batches)
    spine, brought = Spine("s", retention_us, False, phase), {}
    for batch in range(batches):
        spine.purge(batch)
        brought[batch] = random_hashes(random, 20)
        spine.arrive(batch_run(batch, brought[batch], [batch] * 20, [FOREVER_US] * 20, False, retention_us))
        spine.settle(batch, batch)
    wanted = visible(spine, batches)
    kept = data.draw(st.sets(st.integers(0, len(spine.runs) - 1)))
    spine.runs = [run for place, run in enumerate(spine.runs) if place in kept]
    for batch in range(batches):
        if spine.lacking(batch):
            spine.restore(batch_run(batch, brought[batch], [batch] * 20, [FOREVER_US] * 20, False, retention_us))
        spine.settle(batch, batches)
        assert all(spine.lacking(b) == [] for b in range(batch + 1) if retention_us == FOREVER_US)
    spine.verify()
    assert visible(spine, batches) == wanted


def test_only_lasting_runs_are_kept_on_disk():
    spine = grown(200, 20, retention_us=100)
    lasting = spine.lasting_runs(199)
    assert {r.tier for r in lasting} == {spine.last_tier(199)} == {2}
    assert {r.tier for r in spine.runs} > {2}
    assert spine.lasting_runs(199)[0].rows <= sum(r.rows for r in lasting) <= 2 * 20 + 320, "little is written at once"
    endless = grown(30, 20)
    assert endless.lasting_runs(29) is endless.runs


# -- details ---------------------------------------------------------------------------------------------------------


def test_what_arrives_is_visible_only_when_asked_for():
    spine = Spine("s", 10, False)
    spine.arrive(batch_run(0, [1, 2], [0, 0], [10, 10], False, 10))
    assert len(spine.table(with_arriving=False)) == 0
    assert len(spine.table(with_arriving=True)) == 1
    spine.settle(0, BEGINNING_US)
    assert len(spine.table(with_arriving=False)) == len(spine.table(with_arriving=True)) == 1
    spine.arrive(batch_run(1, [3], [5], [15], False, 10))
    assert len(spine.table(with_arriving=False)) == 1
    assert len(spine.table(with_arriving=True)) == 2


def test_rows_that_ended_while_they_arrived_leave_no_run():
    spine = Spine("v", 0, True)
    for first in (0, 1):
        spine.arrive(batch_run(0, [7], [0], [5], True, 0, first))
    spine.settle(0, 5)
    assert spine.runs == []


def test_purge_drops_a_run_with_its_last_row():
    spine = Spine("s", 10, False)
    spine.arrive(batch_run(0, [1, 2], [0, 5], [10, 15], False, 10))
    spine.settle(0, BEGINNING_US)
    spine.purge(14)
    assert spine.rows == 2
    spine.purge(15)
    assert (spine.runs, spine.rows, spine.bytes) == ([], 0, 0)
    assert len(spine.table(with_arriving=True)) == 0


def test_an_index_of_a_stored_table_never_ends():
    spine = Spine("t", FOREVER_US, False)
    for batch in range(8):
        spine.arrive(batch_run(batch, [batch], [BEGINNING_US], [FOREVER_US], False, FOREVER_US))
        spine.settle(batch, 2**60)
        spine.purge(2**60)
    spine.verify()
    assert visible(spine, 2**60) == Counter((b, b << 32, BEGINNING_US) for b in range(8))


def test_verify_sees_what_is_visible_twice():
    spine = Spine("s", 10, False)
    for _ in range(2):
        spine.runs.append(batch_run(0, [1], [0], [10], False, 10))
    with pytest.raises(AssertionError, match="overlaps"):
        spine.verify()


def test_verify_sees_what_is_not_sorted():
    spine = Spine("s", 10, False)
    run = batch_run(0, [1, 2], [0, 0], [10, 10], False, 10)
    run.entries = run.entries[::-1].copy()
    spine.runs.append(run)
    with pytest.raises(AssertionError, match="not sorted"):
        spine.verify()


@given(st.lists(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from([BEGINNING_US, -(2**50), -7, 0, 9, 2**50])),
                         min_size=1, max_size=20), min_size=1, max_size=5),
       st.integers(0, 16), st.booleans())  # fmt: skip
@example([[(0, 0)], [(0, 2**33)]], 0, False)
@settings(deadline=None, max_examples=50)
def test_merge_runs_chooses_a_form_that_holds_its_rows(rows_by_batch, parts_bits, far_apart):
    """Narrow where 32 bits suffice, wide where they do not; and every part of a merge keeps the rows of its hashes."""
    runs = [
        batch_run(batch * (2**28 if far_apart else 1), [h for h, _ in rows], [s for _, s in rows],
                  [FOREVER_US] * len(rows), False, FOREVER_US)
        for batch, rows in enumerate(rows_by_batch)
    ]  # fmt: skip
    wanted = Counter(entry for run in runs for entry in entries_of(run))
    width = ALL_HASHES >> parts_bits
    touched = sorted({(entry.hash >> 48) // width * width for entry in wanted})
    merged = [merge_runs(runs, 1, lo, lo + width, BEGINNING_US, FOREVER_US, False) for lo in touched]
    assert all(run is not None for run in merged)
    assert Counter(entry for run in merged for entry in entries_of(run)) == wanted
