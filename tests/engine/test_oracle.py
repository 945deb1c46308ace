"""The engine against DuckDB, for random queries, plans and batches: the law of the design, one check per promise.

Every check runs in `make test` on the same few hundred cases, and in `make test-long` on thousands of others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.drive.kept import Kept
from anabranch.drive.local import SLOT, LocalRun
from anabranch.engine.kernels.probing import probe
from anabranch.engine.keys import hash_keys, is_exact
from anabranch.engine.slot import Times
from anabranch.plan.identity import RowsKey, ViewKey
from anabranch.plan.query import BEGINNING_US, Stream
from anabranch.sql import parse_script
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, MemoryFilesystem
from tests.support import oracle
from tests.support.local_runs import assert_same, assert_swept, files, named, start, state_of, step
from tests.support.regressions import FAILED_ONCE
from tests.support.scenarios import Scenario, never_late, properties, recut, scenarios, then_far_later
from tests.support.small_pieces import SMALL, small_pieces

# Any plan gives the results of the oracle, turns away the rows that are late, and leaves no file that nobody names.


def check_any_plan(scenario: Scenario) -> None:
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    law = oracle.accepted(scenario.arrow_batches, scenario.streams)
    found: oracle.Bag = Counter()
    for batch, rows in enumerate(scenario.arrow_batches):
        done = step(run, scenario, batch)
        found += oracle.bag(done.results)
        watermark = law.watermarks[batch]
        assert done.watermark_us == (BEGINNING_US if watermark is None else watermark)
        for name in rows:
            counts = done.statistics.sources[name]
            counted = (counts.rows, counts.late_rows, counts.untimed_rows)
            assert counted == (rows[name].num_rows, law.late[batch][name], law.untimed[batch][name])
        assert_swept(run, disk)
        assert len(run.commits.numbers()) <= 2
    closing = step(run, scenario, len(scenario.batches))
    assert closing.results.num_rows == 0
    assert_same(found, scenario)


test_any_plan, test_any_plan_long = properties(
    check_any_plan, 120, 4_000, [{"scenario": s} for s in FAILED_ONCE], scenario=scenarios()
)
test_many_batches, test_many_batches_long = properties(
    check_any_plan, 15, 400, scenario=scenarios(batches=(70, 110, 150), inputs=(2, 3))
)
test_tight, test_tight_long = properties(
    check_any_plan, 50, 2_000, scenario=scenarios(tight=True, batches=(25, 17, 40), inputs=(3, 2, 3))
)


# What only size or bad luck would bring about: routes in many pieces, and keys whose hashes collide.


def check_small_pieces(scenario: Scenario, rows: int, size_bytes: int) -> None:
    with small_pieces(rows, size_bytes):
        check_any_plan(scenario)


test_small_pieces, test_small_pieces_long = properties(
    check_small_pieces, 50, 1_500, scenario=scenarios(inputs=(2, 3, 4)), rows=SMALL, size_bytes=SMALL
)


def test_a_lookup_is_cut_where_it_finds_too_much() -> None:
    """Every row of one batch meets every row of the other: no more pairs at once than are allowed."""
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    sql = "SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k WINDOW 9 SECONDS"
    query = parse_script(f"{streams} CREATE QUERY q AS {sql}").queries[0].query
    zeros = np.zeros(60, np.int64)
    rows = pa.table({"k": zeros, "x": np.arange(60), "ts": pa.array(zeros, pa.timestamp("us"))})
    found: list[int] = []

    def counting(*given: Any) -> Any:
        matches, lookups = probe(*given)
        found.append(matches.shape[1])
        return matches, lookups

    with (
        mock.patch("anabranch.engine.bounds.CHUNK_PAIRS", 350),
        mock.patch("anabranch.engine.lookup.probe_kernel", counting),
    ):
        run = LocalRun(query, MemoryFilesystem())
        run.step(0, {"a": rows})
        assert run.step(1, {"b": rows}).results.num_rows == 3600
    assert found == [*[350] * 10, 100], "there was nothing to look rows of a up in; the lookup of b was cut within a row"


def colliding_hashes(columns: Sequence[pa.Array], rows: int) -> Any:
    """As the engine's, but all keys that are not looked up by their exact value have one of two hashes."""
    hashes = hash_keys(columns, rows)
    return hashes if is_exact([c.type for c in columns]) else (hashes & np.uint64(1)) << np.uint64(63)


def check_collisions(scenario: Scenario) -> None:
    rooms = [f"anabranch.engine.{room}.hash_keys" for room in ("arrival", "box", "lookup", "visibility")]
    with ExitStack() as stack:
        for room in rooms:
            stack.enter_context(mock.patch(room, colliding_hashes))
        check_any_plan(scenario)


test_collisions, test_collisions_long = properties(check_collisions, 30, 800, scenario=scenarios(inputs=(2, 3, 4)))


# Stopping and starting again changes nothing, with the same plan or another one.

WHAT_NEXT = st.lists(st.sampled_from(["go on", "same plan", "plan 0", "plan 1", "plan 2"]), min_size=1, max_size=6)


def check_restarts(scenario: Scenario, what_next: Sequence[str]) -> None:
    run_with_restarts(scenario, what_next, MemoryFilesystem())


def run_with_restarts(scenario: Scenario, what_next: Sequence[str], disk: Filesystem) -> None:
    plan = 0
    run = start(scenario, disk, plan)
    found: oracle.Bag = Counter()
    for batch in range(len(scenario.batches) + 1):
        found += oracle.bag(step(run, scenario, batch).results)
        action = what_next[batch % len(what_next)]
        if action != "go on":
            plan = plan if action == "same plan" else int(action[-1])
            run = start(scenario, disk, plan)
            assert run.last_batch == batch
    assert_same(found, scenario)


test_restarts, test_restarts_long = properties(
    check_restarts,
    80,
    3_000,
    [{"scenario": s, "what_next": [w]} for s in FAILED_ONCE for w in ("plan 0", "plan 1")],
    scenario=scenarios(),
    what_next=WHAT_NEXT,
)
test_restarts_between_merges, test_restarts_between_merges_long = properties(
    check_restarts,
    15,
    200,
    scenario=scenarios(batches=(25, 70, 110), inputs=(2, 3)),
    what_next=st.lists(st.sampled_from(["same plan", "go on", "same plan", "plan 1"]), min_size=1, max_size=6),
)


# Workers take turns with a slot, and each keeps the box it had.


def check_turns(scenario: Scenario, turns: Sequence[int]) -> None:
    """Several boxes of one slot, each of which stops and catches up with what the others committed."""
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    found: oracle.Bag = Counter()
    workers = defaultdict[int, Kept](Kept)
    for batch in range(len(scenario.batches) + 1):
        run.worker = workers[turns[batch % len(turns)]]
        found += oracle.bag(step(run, scenario, batch).results)
    assert_same(found, scenario)


test_turns, test_turns_long = properties(
    check_turns,
    60,
    2_000,
    [{"scenario": s, "turns": [0, 1]} for s in FAILED_ONCE],
    scenario=scenarios(),
    turns=st.lists(st.integers(0, 2), min_size=2, max_size=9),
)
test_turns_between_merges, test_turns_between_merges_long = properties(
    check_turns,
    10,
    200,
    scenario=scenarios(batches=(25, 70, 110), inputs=(2, 3)),
    turns=st.lists(st.integers(0, 2), min_size=2, max_size=40),
)


def check_lost_attempt(scenario: Scenario) -> None:
    """A box that ran a batch which another attempt committed is refused."""
    run = start(scenario, MemoryFilesystem())
    last = len(scenario.batches) - 1
    for batch in range(last + 1):
        step(run, scenario, batch)
    step(run, scenario, last)  # for its results alone: the commit stays
    loser = run.slot
    assert loser is not None
    assert run.commit is not None
    manifest, state = run.commit.slots[SLOT].manifest, state_of(run)
    if any(s.batch == last for s in (*state.logs, *state.views)):
        assert not loser.catch_up(manifest, {scenario.query.name: Times(BEGINNING_US)})


test_lost_attempt, test_lost_attempt_long = properties(check_lost_attempt, 20, 200, scenario=scenarios())


# On a real disk files are mapped, and deleted while they are.


def check_on_disk(scenario: Scenario, what_next: Sequence[str]) -> None:
    with TemporaryDirectory() as folder:
        run_with_restarts(scenario, what_next, LocalFilesystem(folder))


test_on_disk, test_on_disk_long = properties(
    check_on_disk, 15, 200, scenario=scenarios(inputs=(2, 3, 4)), what_next=WHAT_NEXT
)


# A batch that runs again after its commit supersedes it, with the same results whatever the plan.


def check_again(scenario: Scenario, what_next: Sequence[str]) -> None:
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    found: oracle.Bag = Counter()
    for batch in range(len(scenario.batches) + 1):
        results = oracle.bag(step(run, scenario, batch).results)
        for attempt in range(1 + batch % 2):
            action = what_next[(batch + attempt) % len(what_next)]
            if action == "go on":
                continue
            if action != "same plan":
                run = start(scenario, disk, int(action[-1]))
            again = oracle.bag(step(run, scenario, batch).results)
            assert not (wrong := oracle.difference(again, results)), wrong
        found += results
    assert_same(found, scenario)


test_again, test_again_long = properties(
    check_again,
    40,
    2_000,
    [{"scenario": s, "what_next": [w]} for s in FAILED_ONCE for w in ("plan 0", "plan 1")],
    scenario=scenarios(),
    what_next=WHAT_NEXT,
)


# The results depend on the accepted rows alone: other cuts of the same rows give the same.


def check_cuts(scenario: Scenario, seed: int, batches: int) -> None:
    scenario = never_late(scenario)
    cut = recut(scenario, seed, batches)
    found: list[oracle.Bag] = []
    for version in (scenario, cut):
        run = start(version, MemoryFilesystem(), len(found))
        results = [oracle.bag(step(run, version, batch).results) for batch in range(len(version.batches))]
        found.append(sum(results, Counter()))
    assert not (wrong := oracle.difference(found[0], found[1])), wrong
    assert_same(found[0], scenario)


test_cuts, test_cuts_long = properties(
    check_cuts, 30, 1_000, scenario=scenarios(), seed=st.integers(0, 2**32 - 1), batches=st.integers(1, 20)
)


# State goes away: once the watermark has passed everything, only stored tables and the newest rows are left.


def sources_of(key: RowsKey | ViewKey) -> set[str]:
    return {key.source} if isinstance(key, RowsKey) else {rows.source for rows, _ in key.inputs}


def check_state_goes_away(scenario: Scenario) -> None:
    disk = MemoryFilesystem()
    first_new = len(scenario.batches)
    scenario = then_far_later(scenario)
    run = start(scenario, disk)
    for batch in range(len(scenario.batches) + 2):
        step(run, scenario, batch)
    assert run.slot is not None
    store = run.slot.store
    timed = {i.source.name for i in scenario.query.inputs if isinstance(i.source, Stream)}
    for log in store.logs.values():
        assert not isinstance(log.source, Stream) or all(batch >= first_new for batch in log.segments)
    for view in store.views:
        assert not timed & sources_of(view) or all(batch >= first_new for batch in store.views[view].segments)
    for index in store.indexes:
        assert not timed & sources_of(index.rows) or all(r.first_batch >= first_new for r in store.indexes[index].runs)
    assert files(disk) == named(run)
    if not scenario.tables:
        # A whole manifest is kept for the differences from it, and with it what else is in its file.
        bases = [slot.manifest.base for n in run.commits.numbers() for slot in run.commits.read(n).slots.values()]
        others = files(disk) - {base.file for base in bases if base is not None}
        assert all(int(name.rpartition("/")[2].split("-")[0]) >= first_new for name in others)


test_state_goes_away, test_state_goes_away_long = properties(
    check_state_goes_away, 30, 1_000, scenario=scenarios(finite=True)
)
