"""Groups go below a join and above it again while a query runs: nothing is lost, repeated or wrong (002, chapter 14)."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.errors import MigrationError
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.local_runs import assert_swept
from tests.support.migrating import random_selects
from tests.support.scenarios import properties, random_plan
from tests.support.small_pieces import SMALL, small_pieces

SECOND_US = 1_000_000
Action = tuple[str, int, Strategy]
KINDS = st.sampled_from(["go on", "switch", "restart", "again", "plan", "select"])
ACTIONS = st.lists(st.tuples(KINDS, st.integers(0, 99), st.sampled_from(Strategy)), min_size=1, max_size=9)


def check(shape: Shape, actions: Sequence[Action]) -> None:
    """Forms, plans and places of selects change before some batches; others run again, or in a new process; two workers
    share the batches, each of which has to catch up with the other."""
    case = Continuous(shape)
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    disk = MemoryFilesystem()
    run = LocalRun(case.query, disk, tables=tables, release_every=1, sweep_grace_s=0.0)
    found: oracle.Bag = Counter()
    workers = [Kept(), Kept()]
    for number, rows in enumerate([*case.batches, {}]):
        what, which, strategy = actions[number % len(actions)]
        change(run, what, which, strategy)
        if what == "restart":
            run = LocalRun(case.query, disk, tables=tables, release_every=1, sweep_grace_s=0.0)
        run.worker = workers[which % 2]
        done = run.step(number, rows)
        results = oracle.bag(done.results)
        assert done.statistics.results == done.results.num_rows
        run.verify()
        if what == "again":
            run = LocalRun(case.query, disk, tables=tables, release_every=1, sweep_grace_s=0.0)
            again = oracle.bag(run.step(number, rows).results)
            assert not (wrong := oracle.difference(again, results)), f"{case.sql}\n{wrong}"
        assert_swept(run, disk)
        found += results
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{problem}"


def change(run: LocalRun, what: str, which: int, strategy: Strategy) -> None:
    if what not in ("switch", "plan", "select"):
        return
    names = list(run.forms.graphs) if what == "switch" else [run.execution.grouped_input]
    grouped_input = names[which % len(names)]
    graph = run.forms.graphs[grouped_input]
    plan = random_plan(np.random.default_rng(which), graph)
    selects = None
    if what == "select":
        selects = random_selects(run.forms.written, which) if which % 3 else {}
    for way in (strategy, Strategy.PARALLEL_TRACK, Strategy.MOVING_STATE):
        with contextlib.suppress(MigrationError):
            run.migrate(plan, way, 0, grouped_input or "", selects)
            return


def check_small_pieces(shape: Shape, actions: Sequence[Action], rows: int, size_bytes: int) -> None:
    with small_pieces(rows, size_bytes):
        check(shape, actions)


test_small_pieces, test_small_pieces_long = properties(
    check_small_pieces, 25, 1_000, shape=shapes(groups=True), actions=ACTIONS, rows=SMALL, size_bytes=SMALL
)
test_switches, test_switches_long = properties(check, 100, 2_000, shape=shapes(groups=True, subquery=False), actions=ACTIONS)
test_switches_among_subqueries, test_switches_among_subqueries_long = properties(
    check, 25, 800, shape=shapes(groups=True, subquery=True), actions=ACTIONS
)

STREAMS = """CREATE STREAM a (k BIGINT, g BIGINT, ts TIMESTAMP) TIME ts;
             CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
             CREATE TABLE t (k BIGINT, name STRING);"""
SQL = """SELECT a.g, COUNT(*) AS n, SUM(b.x) AS s, MIN(b.x) AS low, AVG(b.x) AS m
         FROM a [RANGE 3 SECONDS], b [RANGE 4 SECONDS] WHERE a.k = b.k GROUP BY a.g"""

COUNTED = "SELECT COUNT(*) AS n FROM a [NOW],"


def rows_of(second: int, column: str) -> pa.Table:
    """A row of each of three keys every 250 ms."""
    times = np.repeat(np.arange(4) * 250_000 + second * 1_000_000, 3)
    return pa.table({"k": np.tile([0, 1, 2], 4), column: np.arange(12) + second, "ts": pa.array(times, pa.timestamp("us"))})


def busy(sql: str = SQL) -> tuple[LocalRun, list[dict[str, pa.Table]]]:
    query = parse_script(f"{STREAMS} CREATE QUERY q AS {sql}").queries[0].query
    batches = [{"a": rows_of(second, "g"), "b": rows_of(second, "x")} for second in range(16)]
    return LocalRun(query, MemoryFilesystem()), batches


@pytest.mark.parametrize(
    ("down", "up"),
    [(Strategy.MOVING_STATE, Strategy.PARALLEL_TRACK), (Strategy.PARALLEL_TRACK, Strategy.PARALLEL_TRACK)],
)
def test_down_and_up_again(down: Strategy, up: Strategy) -> None:
    """The old form serves the rows it has for a window, and no longer."""
    run, batches = busy()
    found: oracle.Bag = Counter()
    leaving = []
    for number, rows in enumerate([*batches, {}]):
        if number == 4:
            run.migrate("(a b)", down, groups_below="b")
        if number == 11:
            run.migrate("(a b)", up, groups_below="")
        found += oracle.bag(run.step(number, rows).results)
        leaving.append(run.execution.leaving is not None)
    problem = oracle.difference(found, oracle.expected(run.forms.written, batches, {}))
    assert not problem, problem
    assert leaving[4:9] == [down is Strategy.PARALLEL_TRACK] * 4 + [False]
    assert leaving[11:] == [True] * 4 + [False] * 2
    assert run.execution.grouped_input is None


WIDE = """CREATE STREAM a (k BIGINT, g BIGINT, ts TIMESTAMP) TIME ts;
          CREATE STREAM b (k BIGINT, x DOUBLE, d DECIMAL(38), ts TIMESTAMP) TIME ts;
          CREATE QUERY q AS SELECT a.g, SUM(b.x) AS s, AVG(b.x) AS m, SUM(b.d) AS d, RESULT_TIME AS at
          FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k GROUP BY a.g"""


def wide_rows(second: int) -> dict[str, pa.Table]:
    """Groups whose sums go out of range and come back, in parts and as a whole; and sums that no double holds."""
    rng = np.random.default_rng(second)
    odd = [1e308, -1e308, 1.5e308, -1.5e308, *([float("inf"), float("nan")] if second % 7 == 3 else [])]
    x = np.where(rng.random(12) < (0.0, 0.7)[second // 4 % 2], rng.choice(odd, 12), rng.random(12))
    units = [Decimal(sign * (10**38 - 1 - place)) for place, sign in enumerate(rng.choice([-1, 0, 1], 12).tolist())]
    times = pa.array(np.repeat(np.arange(4) * 250_000 + second * 1_000_000, 3), pa.timestamp("us"))
    keys = np.tile([0, 1, 2], 4)
    return {
        "a": pa.table({"k": keys[:3], "g": np.array([0, 0, 1]), "ts": times[:3]}),
        "b": pa.table({"k": keys, "x": x, "d": pa.array(units, pa.decimal128(38, 0)), "ts": times}),
    }


@pytest.mark.parametrize("below", [4, 0, None], ids=["switched", "from the start", "moved"])
def test_sums_are_the_same_wherever_groups_stand(below: int | None) -> None:
    """Groups below the join hand on all they know of a sum: above nothing is rounded twice, nor out of range too soon."""
    query, batches = parse_script(WIDE).queries[0].query, [wide_rows(second) for second in range(20)]
    as_written, run = LocalRun(query, MemoryFilesystem()), LocalRun(query, MemoryFilesystem())
    found: list[dict[str, Any]] = []
    wanted: list[dict[str, Any]] = []
    for number, rows in enumerate([*batches, {}]):
        if number == (below or 0):
            run.migrate("(a b)", Strategy.MOVING_STATE if below is None else Strategy.PARALLEL_TRACK, groups_below="b")
        if number == 11:
            run.migrate("(a b)", Strategy.PARALLEL_TRACK, groups_below="")
        wanted += as_written.step(number, rows).results.to_pylist()
        found += run.step(number, rows).results.to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    sums = [row["s"] for row in wanted]
    assert {math.isfinite(s) for s in sums} == {True, False}
    assert 0 < sum(row["d"] is None for row in wanted) < len(wanted)


def test_rows_of_the_grouped_input_are_not_kept_below() -> None:
    run, batches = busy()
    kept = []
    for number, rows in enumerate(batches[:12]):
        if number == 6:
            run.migrate("(a b)", Strategy.MOVING_STATE, groups_below="b")
        done = run.step(number, rows)
        kept.append(done.statistics.sources["b"].state_rows)
    assert kept[5] > 0
    assert set(kept[6:]) == {0}


@pytest.mark.parametrize("other", ["a [RANGE 3 SECONDS]", "t"])
def test_a_foreign_key(other: str) -> None:
    """Section 14.2: every group below the join has one partner above it, in a stream or in a stored table."""
    alias = other[0]
    sql = f"SELECT b.k, SUM(b.x) AS s, COUNT(*) AS n FROM {other}, b [RANGE 4 SECONDS] WHERE {alias}.k = b.k GROUP BY b.k"
    query = parse_script(f"{STREAMS} CREATE QUERY q AS {sql}").queries[0].query
    tables = {"t": pa.table({"k": [0, 2, 5], "name": ["x", "y", "z"]})} if other == "t" else {}
    run, found = LocalRun(query, MemoryFilesystem(), tables=tables), Counter[tuple[object, ...]]()
    batches = [{"b": rows_of(second, "x")} for second in range(14)]
    if alias == "a":
        for second, batch in enumerate(batches):
            times = pa.array([second * 1_000_000], pa.timestamp("us"))
            batch["a"] = pa.table({"k": [second // 4], "g": [0], "ts": times})
    for number, rows in enumerate([*batches, {}]):
        if number in (3, 9):
            run.migrate(f"({alias} b)", Strategy.PARALLEL_TRACK, groups_below="b" if number == 3 else "")
        found += oracle.bag(run.step(number, rows).results)
    assert not (wrong := oracle.difference(found, oracle.expected(query, batches, tables))), wrong


@pytest.mark.parametrize(
    ("sql", "start", "groups_below", "strategy", "told"),
    [
        (SQL, "", "a", Strategy.MOVING_STATE, "inputs of which that is possible: b"),
        (SQL, "b", "", Strategy.MOVING_STATE, "keep no rows of b to move: take parallel-track"),
        (SQL.replace("b [RANGE 4 SECONDS]", "b [UNBOUNDED]"), "", "b", Strategy.PARALLEL_TRACK, "take moving-state"),
        (SQL, "", "b", Strategy.GRADUAL, "not piece by piece"),
        (SQL.replace("AVG", "STDDEV"), "", "b", Strategy.PARALLEL_TRACK, "possible: none"),
        (f"{COUNTED} b [RANGE 4 SECONDS] WHERE a.k = b.k", "a", "b", Strategy.PARALLEL_TRACK, "take them above it before"),
        (f"{COUNTED} a [RANGE 4 SECONDS] b WHERE a.k = b.k", "", "b", Strategy.PARALLEL_TRACK, "more than once"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(sql: str, start: str, groups_below: str, strategy: Strategy, told: str) -> None:
    run, _ = busy(sql)
    if start:
        run.migrate("(a b)", Strategy.PARALLEL_TRACK, groups_below=start)
        run.step(0, {})
    with pytest.raises(MigrationError, match=told):
        run.migrate("(a b)", strategy, groups_below=groups_below)


def test_a_form_is_left_before_another_is() -> None:
    run, batches = busy()
    run.step(0, batches[0])
    run.migrate("(a b)", Strategy.PARALLEL_TRACK, groups_below="b")
    run.step(1, batches[1])
    with pytest.raises(MigrationError, match="on their way already"):
        run.migrate("(a b)", Strategy.PARALLEL_TRACK, groups_below="")


def test_groups_go_below_after_a_select_was_above() -> None:
    """Rows that were stored while it was are not folded unless they pass it."""
    run, batches = busy(SQL.replace("WHERE", "WHERE b.x < 9 AND"))
    found: oracle.Bag = Counter()
    for number, rows in enumerate([*batches, {}]):
        if number == 2:
            run.migrate("(a b)", selects={"b": "a b"})
        if number == 6:
            with pytest.raises(MigrationError, match="have it evaluated at its stream before groups go elsewhere"):
                run.migrate("(a b)", Strategy.MOVING_STATE, groups_below="b")
            run.migrate("(a b)", Strategy.MOVING_STATE, selects={})
        if number == 7:
            assert run.slot is not None
            assert run.slot.store.logs["b"].rows > sum(np.sum(np.arange(12) + n < 9) for n in range(2, 7))
            run.migrate("(a b)", Strategy.MOVING_STATE, groups_below="b")
        found += oracle.bag(run.step(number, rows).results)
    problem = oracle.difference(found, oracle.expected(run.forms.written, batches, {}))
    assert not problem, problem


def test_a_switch_that_was_over_at_once_is_made_again_with_its_batch() -> None:
    """No row of b has come, so that there is nothing to wait for on the way up; then the batch runs again."""
    run, batches = busy()
    without_b = [{"a": rows["a"]} for rows in batches[:3]]
    found: oracle.Bag = Counter()
    for number, rows in enumerate([*without_b, *batches[3:], {}]):
        if number == 1:
            run.migrate("(a b)", Strategy.MOVING_STATE, groups_below="b")
        if number == 2:
            run.migrate("(a b)", Strategy.PARALLEL_TRACK, groups_below="")
        results = oracle.bag(run.step(number, rows).results)
        if number == 2:
            assert (run.execution.grouped_input, run.execution.leaving) == (None, None)
            assert oracle.bag(run.step(number, rows).results) == results
            assert (run.execution.grouped_input, run.execution.leaving) == (None, None)
        found += results
    problem = oracle.difference(found, oracle.expected(run.forms.written, [*without_b, *batches[3:]], {}))
    assert not problem, problem


@pytest.mark.parametrize("turns", [(0, 0, 1, 0), (0, 1, 0, 0), (0, 0, 0, 0)])
def test_groups_go_below_a_join_in_a_worker_that_has_to_catch_up(turns: Sequence[int]) -> None:
    """Rows of b that have ended when batch 3 begins still count at instants that the watermark passes in it."""
    query = parse_script(
        "CREATE STREAM a (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;"
        "CREATE STREAM b (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;"
        "CREATE QUERY q AS SELECT a.l, COUNT(*) AS n, MAX(b.l) AS m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]"
        "WHERE a.k = b.k GROUP BY a.l"
    ).queries[0].query
    workers, run, found = [Kept(), Kept()], LocalRun(query, MemoryFilesystem(), slots=2), Counter[tuple[object, ...]]()
    batches = []
    for number in range(6):
        times = pa.array([number * SECOND_US + n * 90_000 for n in range(10)], pa.timestamp("us"))
        rows = pa.table({"k": [n % 3 for n in range(10)], "l": [number + n for n in range(10)], "ts": times})
        batches.append({"a": rows, "b": rows})
        if number == 3:
            run.migrate("(a b)", Strategy.MOVING_STATE, groups_below="b")
        run.worker = workers[turns[number % len(turns)]]
        found += oracle.bag(run.step(number, batches[-1]).results)
    found += oracle.bag(run.step(6, {}).results)
    assert not (wrong := oracle.difference(found, oracle.expected(query, batches, {}))), wrong
