"""A database that fails is not asked again and again: the engine takes the block over, and gives it back after a while."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.control.execution import execution_of, execution_record
from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.drive.probation import pause_batches
from anabranch.engine import bounds
from anabranch.errors import QueryError
from anabranch.place.statement_of import placed
from anabranch.plan.migration import Strategy
from anabranch.plan.query import SECOND_US
from anabranch.plan.statement import Embedded, StatementError
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.duck_blocks import FAILS, FAULTS, SLOTS, STOPS, TURNS, Mover, able
from tests.support.failing_duckdb import declared, failing, often
from tests.support.faulty import Fault
from tests.support.scenarios import properties
from tests.support.simulation import Simulation

SQL = "SELECT /*+ PLACE(x, duck) */ x.k, x.n FROM (SELECT k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k) x"
ROWS = [
    {"s": pa.table({"k": [b % 2, 1, 2], "v": [b, 1, 2], "ts": pa.array([b * SECOND_US] * 3, pa.timestamp("us"))})}
    for b in range(40)
]


JOINS = {
    "groups": "SELECT /*+ PLACE(x, duck) */ x.k, x.n, x.m FROM (SELECT a.k, COUNT(*) AS n, MAX(b.v) AS m "
              "FROM s [RANGE 3 SECONDS] a, s [RANGE 2 SECONDS] b WHERE a.k = b.k AND a.v <= b.v GROUP BY a.k) x",
    "of three": "SELECT /*+ PLACE(duck) */ a.k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] a, s [NOW] b, s [RANGE 5 SECONDS] c "
                "WHERE a.k = b.k AND b.v < c.v GROUP BY a.k",
    "no groups": "SELECT /*+ PLACE(duck) */ a.k, b.v, RESULT_TIME AS at FROM s [RANGE 3 SECONDS] a, s [NOW] b "
                 "WHERE a.k = b.k",
    "no keys": "SELECT /*+ PLACE(duck) */ a.k, b.v FROM s [RANGE 2 SECONDS] a, s [RANGE 3 SECONDS] b WHERE a.v > b.v",
}  # fmt: skip


@pytest.mark.parametrize("restarts", [(), range(len(ROWS)), (10, 12, 13)])
@pytest.mark.parametrize("name", JOINS)
def test_a_block_that_joins_is_joined_by_the_engine(name: str, restarts: Sequence[int]) -> None:
    """As it is with one stream: pauses of 2 and 4 batches; the engine makes up for what fails in 10, 13 and 30."""
    run = LocalRun(declared(JOINS[name]), MemoryFilesystem())
    block = next(iter(run.steering.query.places))
    asked, failed, said = asked_in(run, (10, 13, 30), restarts)
    assert sorted(set(failed)) == [10, 13, 30]
    assert not {11, 12, 14, 15, 16, 17, 31, 32} & set(asked)
    assert {18, 19, 33} <= set(asked)
    assert said[0] == f"{block} in engine from batch 11 on: duck has failed; it is asked again from batch 13 on"
    assert len(said) == 6


@pytest.mark.parametrize("name", JOINS)
def test_what_the_database_never_gives_of_a_join_is_what_the_engine_finds(name: str) -> None:
    asked_in(LocalRun(declared(JOINS[name]), MemoryFilesystem()), range(len(ROWS) + 1))


def test_what_waits_for_its_end_may_be_more_than_memory_is_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "TOGETHER_BYTES", 10)
    monkeypatch.setattr(bounds, "RESULT_ROWS", 3)
    _, failed, _ = asked_in(LocalRun(declared(JOINS["no keys"]), MemoryFilesystem()), (10,))
    assert set(failed) == {10}


def asked_in(
    run: LocalRun, fails_in: Sequence[int], restarts: Sequence[int] = (), before: Mapping[int, str] | None = None
) -> tuple[list[int], list[int], list[str]]:
    """The batches in which DuckDB is asked, those in which it fails, if it fails in some, and what is told; results are
    right."""
    query, found, now = run.steering.query, Counter[tuple[object, ...]](), [0]
    asked, failed, said = list[int](), list[int](), list[str]()
    with failing(lambda: now[0] in fails_in):
        for batch, rows in enumerate([*ROWS, {}]):
            now[0] = batch
            if batch in (before or {}):
                run.place("q.x", (before or {})[batch], Strategy.MOVING_STATE)
            step = run.step(batch, rows)
            found += oracle.bag(step.results)
            for border in step.statistics.borders.values():
                asked += [batch]
                failed += [batch] * border.failed
            said += [entry.text for entry in run.steering.journal.entries() if entry.event == "placed"]
            if batch in restarts:
                run = LocalRun(query, run.filesystem)
    assert not oracle.difference(found, oracle.expected(query, ROWS, {}))
    return asked, failed, list(dict.fromkeys(said))


@pytest.mark.parametrize("restarts", [(), range(len(ROWS)), (10, 12, 13)])
def test_pauses_grow_while_it_goes_on_failing_and_begin_anew_when_it_has_not_failed_for_one(
    restarts: Sequence[int],
) -> None:
    """It fails in 10, at once when it is asked again in 13, and in 18: pauses of 2, 4 and 8 batches. It is asked from 27 on;
    that it fails in 37 is the first time again."""
    run = LocalRun(declared(SQL), MemoryFilesystem())
    asked, failed, said = asked_in(run, (10, 13, 18, 37), restarts)
    assert failed == [10, 13, 18, 37]
    assert asked == [*range(2, 11), 13, 18, *range(27, 38), 40]
    assert said[0] == "q.x in engine from batch 11 on: duck has failed; it is asked again from batch 13 on"
    assert said[1] == "q.x in duck from batch 13 on: duck had failed, and the engine has run the block for 2 batches"
    assert said[2] == "q.x in engine from batch 14 on: duck has failed, 2 times in a row; it is asked again from batch 18 on"
    assert said[4].startswith("q.x in engine from batch 19 on: duck has failed, 3 times in a row; it is asked again from")
    assert said[6] == "q.x in engine from batch 38 on: duck has failed; it is asked again from batch 40 on"
    assert len(said) == 8


def test_pauses_are_bounded() -> None:
    run = LocalRun(declared(SQL), MemoryFilesystem())
    asked, failed, _ = asked_in(run, range(len(ROWS) + 1))
    assert asked == failed == [2, 5, 10, 19, 28, 37]
    assert [pause_batches(times) for times in (1, 2, 7, 60)] == [16, 32, 1024, 1024]


def test_who_says_where_the_block_is_to_run_ends_the_probation() -> None:
    run = LocalRun(declared(SQL), MemoryFilesystem())
    asked, _, _ = asked_in(run, (10,), before={12: "duck", 20: "engine", 30: "duck"})
    assert asked == [*range(2, 11), *range(12, 20), *range(30, 41)]
    run = LocalRun(declared(SQL), MemoryFilesystem())
    asked, _, _ = asked_in(run, (10,), before={12: "duck", 13: "engine"})
    assert asked == [*range(2, 11), 12]
    assert run.execution.probation == ()


def test_a_database_that_fails_is_asked_for_all_instants_of_a_batch_and_for_one() -> None:
    """A batch in which the watermark passes twenty instants."""
    late = {"s": pa.table({"k": [7], "v": [0], "ts": pa.array([40 * SECOND_US], pa.timestamp("us"))})}
    query, disk, found = declared(SQL), MemoryFilesystem(), Counter[tuple[object, ...]]()
    whole = {"s": pa.concat_tables(rows["s"] for rows in ROWS[:20])}
    with failing(lambda: True):
        run = LocalRun(query, disk)
        for batch, rows in enumerate([whole, late, {}]):
            step = run.step(batch, rows)
            found += oracle.bag(step.results)
            counted = [(border.calls, border.failed) for border in step.statistics.borders.values()]
            assert counted == ([(2, 1)] if batch == 1 else [])
    assert not oracle.difference(found, oracle.expected(query, [whole, late], {}))


@pytest.mark.parametrize("sql", [
    "SELECT x.n FROM DATABASE duck (SELECT COUNT(*) AS n FROM s [RANGE 3 SECONDS]) x",
    "SELECT x.n FROM DATABASE duck (SELECT COUNT(*) AS n FROM s AS a [RANGE 3 SECONDS], s AS b [NOW] WHERE a.k = b.k) x",
])  # fmt: skip
def test_what_only_the_database_can_do_fails_with_it(sql: str) -> None:
    run = LocalRun(declared(sql), MemoryFilesystem())
    with failing(lambda: True), pytest.raises(QueryError, match="out of memory"):
        _ = [run.step(batch, rows) for batch, rows in enumerate(ROWS)]


def missing(_: str) -> Embedded:
    raise StatementError("DuckDB is not installed", hint="install it: pip install 'anabranch[duckdb]'")


@pytest.mark.parametrize("name", ["groups", "no groups"])
def test_the_engine_makes_up_for_a_database_that_a_worker_does_not_have(name: str) -> None:
    query, found = declared(JOINS[name]), Counter[tuple[object, ...]]()
    with mock.patch("anabranch.drive.work.open_embedded", missing):
        run = LocalRun(query, MemoryFilesystem())
        for batch, rows in enumerate([*ROWS, {}]):
            found += oracle.bag(run.step(batch, rows).results)
    assert not oracle.difference(found, oracle.expected(query, ROWS, {}))
    assert [entry.text for entry in run.steering.journal.entries() if entry.event == "placed"]


def test_a_database_that_a_worker_does_not_have_ends_its_query_and_no_other() -> None:
    run = LocalRun(declared(SQL, "fail"), MemoryFilesystem())
    with mock.patch("anabranch.drive.work.open_embedded", missing), pytest.raises(QueryError, match=r"anabranch\[duckdb\]"):
        _ = [run.step(batch, rows) for batch, rows in enumerate(ROWS)]


def test_records_have_it() -> None:
    run = LocalRun(declared(SQL), MemoryFilesystem())
    with failing(lambda: True):
        for batch in range(3):
            run.step(batch, ROWS[batch])
    (noted,) = run.execution.probation
    assert (noted.block, noted.times, noted.until) == ("q.x", 1, 5)
    assert execution_of(execution_record(run.execution, run.forms), run.forms) == run.execution


# At random.


def check(shape: Shape, slots: int, stops: Sequence[int], turns: Sequence[int], period: int) -> None:
    """In several slots, with new processes after some batches, and workers that take turns."""
    case, disk = Continuous(shape), MemoryFilesystem()
    blocks = dict.fromkeys(able(case.query)[:1], "duck")
    query = placed(case.query, blocks, "engine")
    workers, found = defaultdict[int, Kept](Kept), Counter[tuple[object, ...]]()
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in query.base_sources}}
    with failing(often(period), pause=1):
        run = LocalRun(query, disk, tables=tables, slots=slots)
        for number in range(len(case.batches) + 1):
            run.worker = workers[turns[number % len(turns)]]
            found += oracle.bag(run.step(number, case.batches[number] if number < len(case.batches) else {}).results)
            run.verify()
            if number in stops:
                run, workers = LocalRun(query, disk, tables=tables, slots=slots), defaultdict(Kept)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{blocks}\n{problem}"


test_any, test_any_long = properties(
    check, 20, 2_000, shape=shapes(), slots=SLOTS, stops=STOPS, turns=TURNS,
    period=st.sampled_from([2, 3, 100]),
)  # fmt: skip


def check_crashes(
    shape: Shape, slots: int, to_files: bool, faults: Mapping[int, Fault], fails: Mapping[int, str], pauses: frozenset[int],
    moves: frozenset[int], period: int,
) -> None:  # fmt: skip
    case = Continuous(shape)
    if names := able(case.query):
        query, loop = placed(case.query, {names[0]: "duck"}, "engine"), partial(Mover, batches=moves)
        with failing(often(period), pause=1):
            Simulation([query], case.batches, {}, (), slots, to_files, faults, fails=fails, pauses=pauses, loop=loop).check()


test_crashes, test_crashes_long = properties(
    check_crashes, 12, 1_500, shape=shapes(tables=False), slots=SLOTS, to_files=st.booleans(), faults=FAULTS,
    fails=FAILS, pauses=st.frozensets(st.integers(0, 8), max_size=3), moves=st.frozensets(st.integers(0, 8), max_size=3),
    period=st.sampled_from([2, 3, 100]),
)  # fmt: skip
