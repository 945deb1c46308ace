"""Plans change while a query runs, again and again, in all ways, with crashes in between: results stay those of the oracle,
and come in the batches in which they would have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st

from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.engine.slices import Index
from anabranch.engine.spine import FAN_IN
from anabranch.errors import MigrationError
from anabranch.plan.identity import IndexKey
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import show
from anabranch.plan.migration import Strategy
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.local_runs import assert_same, assert_swept, start, step
from tests.support.migrating import PREDICATES, busy, random_selects
from tests.support.regressions import FAILED_ONCE
from tests.support.scenarios import Scenario, properties, random_plan, scenarios
from tests.support.small_pieces import SMALL, small_pieces

Action = tuple[str, int, str, int]
"""What happens before a batch ("go on", "migrate", "raise", "crash", "again" or "turn"), the plan to go to, the strategy,
and the pause."""


def actions_of(*what: str) -> st.SearchStrategy[list[Action]]:
    plans, pauses = st.integers(0, 3), st.sampled_from([0, 0, 1_000_000_000])
    action = st.tuples(st.sampled_from(what), plans, st.sampled_from([s.value for s in Strategy]), pauses)
    return st.lists(action, min_size=1, max_size=9)


ACTIONS = actions_of("go on", "migrate", "migrate", "crash", "again", "turn")


def check_migrations(scenario: Scenario, actions: Sequence[Action], piece_rows: int) -> None:
    """Compares each batch with what a run that never migrates gives."""
    disk = MemoryFilesystem()
    run, steady = start(scenario, disk), start(scenario, MemoryFilesystem())
    found: oracle.Bag = Counter()
    other: Any = None
    with mock.patch("anabranch.engine.rebuild.PIECE_ROWS", piece_rows):
        for batch in range(len(scenario.batches) + 1):
            what, plan, strategy, pause_us = actions[batch % len(actions)]
            if what in ("migrate", "raise"):
                selects = random_selects(scenario.query, batch + 100 * plan) if what == "raise" else None
                migrate(run, scenario.plans[plan % len(scenario.plans)], Strategy(strategy), pause_us, selects)
            elif what == "crash":
                run = LocalRun(scenario.query, disk, None, scenario.arrow_tables, release_every=1, sweep_grace_s=0.0)
            elif what == "turn":
                other = take_turn(run, other)
            results = oracle.bag(step(run, scenario, batch).results)
            if what == "again":
                run = LocalRun(scenario.query, disk, None, scenario.arrow_tables, release_every=1, sweep_grace_s=0.0)
                again = oracle.bag(step(run, scenario, batch).results)
                assert not (wrong := oracle.difference(again, results)), wrong
            wanted = oracle.bag(step(steady, scenario, batch).results)
            assert not (wrong := oracle.difference(results, wanted)), f"in batch {batch}: {wrong}"
            assert_swept(run, disk)
            found += results
    assert_same(found, scenario)


def test_a_gradual_migration_ends_although_other_workers_have_the_slot() -> None:
    """What was prepared in a batch is not lost when the next one attaches to its commit."""
    scenario = busy(1, inputs=3, batches=30, lasting=True)
    disk = MemoryFilesystem()
    run = start(scenario, disk)
    for batch in range(len(scenario.batches)):
        if batch == 3:
            run.migrate("(a (b c))", Strategy.GRADUAL, pause_us=0)
        elif batch > 3:
            run = LocalRun(scenario.query, disk, None, scenario.arrow_tables, release_every=1, sweep_grace_s=0.0)
        step(run, scenario, batch)
    assert show(run.plan, JoinGraph(scenario.query)) == "(a (b c))"


def migrate(
    run: LocalRun, plan: str, strategy: Strategy, pause_us: int, selects: Mapping[str, str] | None = None
) -> None:
    try:
        run.migrate(plan, strategy, pause_us, selects=selects)
    except MigrationError:
        assert strategy is Strategy.PARALLEL_TRACK
        run.migrate(plan, Strategy.GRADUAL, pause_us, selects=selects)


def take_turn(run: LocalRun, other: Kept | None) -> Kept:
    """Another worker goes on with the slot, with the boxes it has from earlier, if it can; returns this worker."""
    mine, run.worker = run.worker, other or Kept()
    return mine


test_migrations, test_migrations_long = properties(
    check_migrations,
    80,
    4_000,
    [{"scenario": s, "actions": [("migrate", 1, "gradual", 0)], "piece_rows": 1} for s in FAILED_ONCE],
    scenario=scenarios(inputs=(3, 4, 5, 2)),
    actions=ACTIONS,
    piece_rows=st.sampled_from([1, 2, 5]),
)
GO_ON: Action = ("go on", 0, "gradual", 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", range(FAN_IN))
def test_nothing_is_merged_across_batches_that_are_still_to_be_derived(phase: int) -> None:
    """The index that only the target looks up has batch 0 and the new ones when a merge of the first four is due. In which
    batch a merge is due follows from the phase of the index, which is a part of its digest: here it is each in turn."""
    cut = [{s: [(n, b, b * 1_000_000) for n in range(2)] for s in "abc"} for b in range(9)]
    create = "".join(f"CREATE STREAM {s} (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    select = "SELECT a.v, b.v AS w, c.v AS x FROM a [RANGE 1 HOUR], b [UNBOUNDED], c [UNBOUNDED] WHERE b.k = c.k"
    scenario = Scenario(f"{create} CREATE QUERY q AS {select}", ("(c b a){a: b c}", "((c a) b)"), tuple(cut))
    with mock.patch.object(IndexKey, "phase", phase):
        for after in ("go on", "crash"):
            check_migrations(scenario, [*[GO_ON] * 3, ("migrate", 1, "gradual", 0), (after, 0, "", 0), *[GO_ON] * 4], 1)
        check_migrations(scenario, [*[GO_ON] * 3, ("migrate", 1, "gradual", 0), ("migrate", 1, "moving-state", 0)], 1)


def test_a_view_that_another_target_joins_otherwise_is_begun_anew() -> None:
    """(a b c) is complete when the target changes to one that keeps it by way of (b c), which is not."""
    scenario = replace(busy(7, 4, 30), plans=("(a b c d)", "(((a b) c) d)", "((a (b c)) d)"))
    actions = [GO_ON] * 8 + [("migrate", 1, "gradual", 10**9), ("migrate", 2, "gradual", 0)] + [GO_ON] * 25
    check_migrations(scenario, actions, 1)


@pytest.mark.few(4)
@pytest.mark.parametrize("what", ["crash", "again", "turn"])
@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("inputs", [3, 4])
def test_every_step_of_a_migration_is_survived(what: str, strategy: Strategy, inputs: int, part: Part) -> None:
    """After every batch there is a new process, or another worker, or the batch runs again."""
    plans = {3: ("((a b) c)", "(a (b c))"), 4: ("(((a b) c) d)", "(a ((b c) d))")}[inputs]
    scenario = replace(busy(11, inputs, 30), plans=plans)
    steps = part.of(range(24))
    after = [(what, 0, "", 0) if step in steps else GO_ON for step in range(24)]
    actions = [GO_ON] * 6 + [("migrate", 1, strategy.value, 0)] + after
    check_migrations(scenario, actions, 2)


def test_a_parallel_track_ends_when_the_last_old_row_has() -> None:
    scenario = busy(5, 4, 24)
    run = start(scenario, MemoryFilesystem())
    for batch in range(10):
        step(run, scenario, batch)
    run.migrate("(a ((b c) d))", Strategy.PARALLEL_TRACK)
    lasted = 0
    while run.execution.migration is not None:
        step(run, scenario, 10 + lasted)
        lasted += 1
    longest = max(i.window.length_us for i in scenario.query.inputs) // 1_000_000
    assert longest - 1 <= lasted <= longest + 3, "the largest window, lateness, and the batches the watermark lags behind"


def check_small_pieces(scenario: Scenario, actions: Sequence[Action], rows: int, size_bytes: int) -> None:
    """Both tracks of a migration give their results in many pieces."""
    with small_pieces(rows, size_bytes):
        check_migrations(scenario, actions, rows)


test_migrations_in_small_pieces, test_migrations_in_small_pieces_long = properties(
    check_small_pieces,
    25,
    1_000,
    scenario=scenarios(inputs=(3, 4)),
    actions=ACTIONS,
    rows=SMALL,
    size_bytes=SMALL,
)
test_migrations_of_busy_streams, test_migrations_of_busy_streams_long = properties(
    check_migrations,
    30,
    4_000,
    scenario=st.builds(busy, st.integers(0, 2**32 - 1), st.sampled_from([3, 4, 5]), st.sampled_from([12, 24])),
    actions=ACTIONS,
    piece_rows=st.sampled_from([1, 3]),
)
test_migrations_of_lasting_rows, test_migrations_of_lasting_rows_long = properties(
    check_migrations,
    30,
    800,
    scenario=st.builds(
        busy,
        st.integers(0, 2**32 - 1),
        st.sampled_from([3, 2]),
        st.sampled_from([12, 20, 32]),
        st.sampled_from([(), PREDICATES]),
        st.just(True),
    ),
    actions=actions_of("go on", "go on", "migrate", "raise", "crash", "again", "turn"),
    piece_rows=st.sampled_from([1, 3]),
)
test_migrations_of_many_batches, test_migrations_of_many_batches_long = properties(
    check_migrations,
    15,
    400,
    scenario=scenarios(tight=True, batches=(25, 17, 40), inputs=(3, 4, 3)),
    actions=ACTIONS,
    piece_rows=st.sampled_from([3, 50]),
)


def check_continuous(shape: Shape, seed: int, actions: Sequence[Action]) -> None:
    """Queries with groups, subqueries and tables: what is above a join is the same for all plans."""
    case = Continuous(shape)
    graph, rng, disk = JoinGraph(case.query), np.random.default_rng(seed), MemoryFilesystem()
    plans = [show(random_plan(rng, graph), graph) if len(graph.query.inputs) > 1 else None for _ in range(4)]
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    run = LocalRun(case.query, disk, tables=tables)
    found: oracle.Bag = Counter()
    with mock.patch("anabranch.engine.rebuild.PIECE_ROWS", 2):
        for number in range(len(case.batches) + 1):
            what, place, strategy, pause_us = actions[number % len(actions)]
            if what == "migrate" and (plan := plans[place]) is not None:
                migrate(run, plan, Strategy(strategy), pause_us)
            elif what in ("crash", "again", "turn"):
                run = LocalRun(case.query, disk, tables=tables)
            found += oracle.bag(run.step(number, case.batches[number] if number < len(case.batches) else {}).results)
            run.verify()
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{problem}"


test_migrations_of_continuous_queries, test_migrations_of_continuous_queries_long = properties(
    check_continuous, 40, 2_000, shape=shapes(), seed=st.integers(0, 2**32 - 1), actions=ACTIONS
)


# -- selects and projects --------------------------------------------------------------------------------------------------

def test_a_parallel_track_goes_on_when_a_select_is_down() -> None:
    """Selects that wait are down soon after another migration has begun: what that has done so far stays."""
    actions = [*[GO_ON] * 4, ("migrate", 1, "parallel-track", 0), *[GO_ON] * 3, ("raise", 0, "parallel-track", 0)]
    check_migrations(busy(0, 4, 24, PREDICATES), actions, 1)


SELECTING = """
CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, y BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT b.y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k AND a.x < 5
"""


def selecting(batches: int) -> Scenario:
    """Twenty rows of each stream every second, half of those of a with x below 5."""
    cut = [{s: [(n % 4, (n + i) % 10, i * 1_000_000) for n in range(20)] for s in "ab"} for i in range(batches)]
    return Scenario(SELECTING, ("(a b)",), tuple(cut))


def index_of_a(run: LocalRun) -> Index:
    (found,) = [index for key, index in run.slot.store.indexes.items() if key.rows.source == "a"]
    return found


def test_upwards_runs_are_shared_and_columns_stuffed() -> None:
    scenario = selecting(8)
    run = start(scenario, MemoryFilesystem())
    for batch in range(4):
        step(run, scenario, batch)
    spine, runs = index_of_a(run), list(index_of_a(run).runs)
    run.migrate("(a b)", selects={"a": "a b"})
    results = step(run, scenario, 4).results.num_rows
    log = run.slot.store.logs["a"]
    stored = {b: " ".join(s.rows.schema.names) for b, s in log.segments.items()}
    assert stored == {1: "k ts", 2: "k ts", 3: "k ts", 4: "k x ts"}, "a project goes with its select"
    assert log.column("x", np.array([3 << 32, 4 << 32 | 6])).to_pylist() == [None, 0]
    assert index_of_a(run) is spine
    assert any(new is old for new in spine.runs for old in runs), "taken over, not built anew"
    assert spine.name == "a by (a.k)"
    steady = start(scenario, MemoryFilesystem())
    assert results == [step(steady, scenario, batch).results.num_rows for batch in range(5)][-1]


def test_an_index_that_another_input_will_look_up_too_is_not_taken_over() -> None:
    """x and y are rows of one stream. Once x lets all of them pass one index serves both: that of x lacks some of y."""
    create = "".join(f"CREATE STREAM {s} (k BIGINT, l BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;" for s in "scd")
    select = """SELECT x.v, y.v AS w FROM s [RANGE 9 SECONDS] AS x, s [RANGE 9 SECONDS] AS y, d [RANGE 9 SECONDS],
                c [RANGE 9 SECONDS] WHERE x.k = d.k AND x.l = c.l AND y.k = c.k AND y.l = d.l AND x.v < 5"""
    rng = np.random.default_rng(2)
    rows = lambda b: [(*map(int, row), b * 1_000_000) for row in rng.integers(0, (3, 3, 10), (4, 3))]  # noqa: E731
    cut = [{s: rows(b) for s in "scd"} for b in range(8)]
    scenario = Scenario(f"{create} CREATE QUERY q AS {select}", ("(((x d) c) y)",), tuple(cut))
    run, steady = start(scenario, MemoryFilesystem()), start(scenario, MemoryFilesystem())
    for batch in range(8):
        if batch == 4:
            run.migrate("((x d) (c y))", selects={"x": "x d"})
        results, wanted = (oracle.bag(step(each, scenario, batch).results) for each in (run, steady))
        assert not (wrong := oracle.difference(results, wanted)), f"in batch {batch}: {wrong}"


@pytest.mark.parametrize("strategy", [Strategy.MOVING_STATE, Strategy.PARALLEL_TRACK])
def test_downwards_state_is_filtered_or_waited_for(strategy: Strategy) -> None:
    scenario = selecting(12)
    run = start(scenario, MemoryFilesystem())
    run.migrate("(a b)", selects={"a": "a b"})
    for batch in range(5):
        step(run, scenario, batch)
    spine = index_of_a(run)
    assert spine.rows == 80, "four batches are alive"
    run.migrate("(a b)", strategy, selects={})
    names, rows = [], []
    for batch in range(5, 12):
        step(run, scenario, batch)
        names.append("x" in index_of_a(run).name)
        rows.append(index_of_a(run).rows)
    if strategy is Strategy.MOVING_STATE:
        assert names == [True] * 7
        assert rows == [40] * 7
        assert index_of_a(run) is not spine
    else:
        assert names == [False] * 4 + [True] * 3, "until the last row that was stored unfiltered has ended"
        assert rows == [70, 60, 50, *[40] * 4]
        assert index_of_a(run) is spine, "then it is what it would have been"
    assert run.execution.is_settled


RAISING = actions_of("go on", "migrate", "raise", "raise", "raise", "crash", "again", "turn")

test_selects_that_move, test_selects_that_move_long = properties(
    check_migrations,
    60,
    4_000,
    scenario=st.builds(
        busy, st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 4]), st.sampled_from([8, 16, 24]), st.just(PREDICATES)
    ),
    actions=RAISING,
    piece_rows=st.sampled_from([1, 3]),
)
test_selects_of_any_query, test_selects_of_any_query_long = properties(
    check_migrations,
    80,
    4_000,
    scenario=scenarios(inputs=(3, 4, 2), batches=(6, 9, 17)),
    actions=RAISING,
    piece_rows=st.sampled_from([1, 5]),
)


def test_sets_of_predicates_are_numbered_anew() -> None:
    """A select goes up and down: segments have passed different predicates, whose sets are numbered again every batch."""
    scenario = selecting(12)
    disk, steady = MemoryFilesystem(), start(scenario, MemoryFilesystem())
    run = start(scenario, disk)
    for batch in range(12):
        if batch % 3 == 2:
            run.migrate("(a b)", Strategy.MOVING_STATE, selects={"a": "a b"} if batch % 2 else {})
        elif batch % 3 == 1:
            run = start(scenario, disk)
        results, wanted = (oracle.bag(step(each, scenario, batch).results) for each in (run, steady))
        assert not (wrong := oracle.difference(results, wanted)), f"in batch {batch}: {wrong}"
        assert run.slot is not None
        run.slot.checkpoint._most_predicates = 0
        assert len(run.slot.checkpoint._predicates) <= 4
