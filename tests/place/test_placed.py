"""Blocks of ours that DuckDB runs: the same results as in the engine, and as in one batch of DuckDB's, whatever happens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.balance.partition import choose_distribution
from anabranch.control.progress import progress_of
from anabranch.control.records import Commit
from anabranch.cost.facts import EMPTY, Given
from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.engine import bounds
from anabranch.errors import ForeignStateError, MigrationError, QueryError, SessionError
from anabranch.place.calibrate import Measured
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.statement_of import placed
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.migration import Strategy
from anabranch.plan.query import SECOND_US, Query
from anabranch.plan.verify import verify_rewritten
from anabranch.planning import Planning
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.duck_blocks import FAILS, FAULTS, SEEDS, SLOTS, STOPS, TURNS, Mover, able, way
from tests.support.faulty import Fault
from tests.support.scenarios import properties
from tests.support.simulation import Simulation
from tests.support.together import Together
from tests.support.workloads import Workload, workloads


def some_placed(query: Query, seed: int) -> Query:
    """The query with some of the blocks in DuckDB that may be there: one at least, if there is one."""
    found, rng = able(query), np.random.default_rng(seed)
    if not found:
        return query
    chosen = rng.permutation(found)[: int(rng.integers(1, len(found) + 1))]
    made = placed(query, {str(name): "duck" for name in chosen})
    verify_rewritten(made)
    return made


def check(
    shape: Shape, seed: int, stops: Sequence[int], turns: Sequence[int], slots: int, moves: Sequence[int]
) -> None:
    """Batches in several slots, with new processes after some of them, and workers that take turns; before some of them
    blocks go to the engine, or back."""
    case, disk = Continuous(shape), MemoryFilesystem()
    query = some_placed(case.query, seed)
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in query.base_sources}}
    run = LocalRun(query, disk, tables=tables, slots=slots)
    workers, found = defaultdict[int, Kept](Kept), Counter[tuple[object, ...]]()
    for number in range(len(case.batches) + 1):
        run.worker = workers[turns[number % len(turns)]]
        if number in moves:
            moved(run, way(number))
        found += oracle.bag(run.step(number, case.batches[number] if number < len(case.batches) else {}).results)
        run.verify()
        if number in stops:
            run, workers = LocalRun(query, disk, tables=tables, slots=slots), defaultdict(Kept)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{query.places}\n{problem}"


def moved(run: LocalRun, way: Strategy) -> None:
    """Blocks that DuckDB may run go where they are not; those that are on their way home stay."""
    steering = run.driver.queries["q"]
    for block in steering.query.blocks:
        if block.name in steering.query.places:
            goes = block.name in steering.execution.home or steering.execution.folding_of(block.name) is not None
            run.place(block.name, "duck" if goes else "engine", way)


def check_woken(
    shape: Shape, block: int, stops: Sequence[int], turns: Sequence[int], slots: int, moves: Sequence[int]
) -> None:
    """Batches in several slots, with new processes after some of them, and workers that take turns. No block is in DuckDB at
    first; before some batches one of them is asked to go where it is not, while it is on its way as well."""
    case, disk = Continuous(shape), MemoryFilesystem()
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    names = able(case.query) or [case.query.name]
    name = names[block % len(names)]
    run = LocalRun(case.query, disk, tables=tables, slots=slots)
    workers, found = defaultdict[int, Kept](Kept), Counter[tuple[object, ...]]()
    for number in range(len(case.batches) + 1):
        run.worker = workers[turns[number % len(turns)]]
        if number in moves:
            with suppress(MigrationError):
                run.place(name, "engine" if is_there(run, name) else "duck", way(number))
        found += oracle.bag(run.step(number, case.batches[number] if number < len(case.batches) else {}).results)
        run.verify()
        if number in stops:
            run, workers = LocalRun(case.query, disk, tables=tables, slots=slots), defaultdict(Kept)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{name}\n{problem}"


def is_there(run: LocalRun, name: str) -> bool:
    """Whether a block that began in the engine is in DuckDB, or on its way there."""
    execution = run.driver.queries["q"].execution
    woken = execution.woken_as(name)
    is_coming = execution.folding_of(name) is not None
    return woken is not None and (woken.is_going or name not in execution.home) and not is_coming


NEVER = st.just(())
test_groups, test_groups_long = properties(
    check, 12, 1_000, shape=shapes(groups=True, tables=False), seed=SEEDS, stops=STOPS, turns=TURNS, slots=SLOTS,
    moves=NEVER,
)  # fmt: skip
test_subqueries, test_subqueries_long = properties(
    check, 10, 1_000, shape=shapes(subquery=True), seed=SEEDS, stops=STOPS, turns=TURNS, slots=SLOTS, moves=NEVER,
)  # fmt: skip

MOVES = st.lists(st.integers(0, 8), min_size=1, max_size=4)
test_moves, test_moves_long = properties(
    check, 8, 1_500, shape=shapes(groups=True, tables=False), seed=SEEDS, stops=STOPS, turns=TURNS, slots=SLOTS,
    moves=MOVES,
)  # fmt: skip
test_moves_below, test_moves_below_long = properties(
    check, 6, 1_000, shape=shapes(subquery=True), seed=SEEDS, stops=STOPS, turns=TURNS, slots=SLOTS, moves=MOVES,
)  # fmt: skip

test_joins, test_joins_long = properties(
    check, 8, 1_500, shape=shapes(groups=False, tables=False), seed=SEEDS, stops=STOPS, turns=TURNS, slots=SLOTS,
    moves=st.lists(st.integers(0, 8), max_size=3),
)  # fmt: skip

test_tables, test_tables_long = properties(
    check, 12, 1_500, shape=shapes(groups=True, tables=True, subquery=False), seed=SEEDS, stops=STOPS, turns=TURNS,
    slots=SLOTS, moves=st.lists(st.integers(0, 8), max_size=3),
)  # fmt: skip
test_tables_joined, test_tables_joined_long = properties(
    check, 8, 1_500, shape=shapes(groups=False, tables=True, subquery=False), seed=SEEDS, stops=STOPS, turns=TURNS,
    slots=SLOTS, moves=st.lists(st.integers(0, 8), max_size=3),
)  # fmt: skip

WAKES = st.lists(st.integers(0, 8), min_size=1, max_size=5)
test_woken_alone, test_woken_alone_long = properties(
    check_woken, 12, 1_500, shape=shapes(streams=1, tables=False), block=st.integers(0, 3), stops=STOPS, turns=TURNS,
    slots=SLOTS, moves=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)  # fmt: skip
test_woken, test_woken_long = properties(
    check_woken, 12, 1_500, shape=shapes(groups=True, tables=False), block=st.integers(0, 3), stops=STOPS, turns=TURNS,
    slots=SLOTS, moves=WAKES,
)  # fmt: skip
test_woken_below, test_woken_below_long = properties(
    check_woken, 8, 1_000, shape=shapes(subquery=True), block=st.integers(0, 3), stops=STOPS, turns=TURNS, slots=SLOTS,
    moves=WAKES,
)  # fmt: skip
test_woken_joins, test_woken_joins_long = properties(
    check_woken, 6, 1_000, shape=shapes(groups=False, tables=False), block=st.just(0), stops=STOPS, turns=TURNS, slots=SLOTS,
    moves=WAKES,
)  # fmt: skip


def check_beside(workload: Workload, seed: int, slots: int, restarts: frozenset[int], moves: frozenset[int]) -> None:
    """Queries in one pipeline, of which some have blocks in DuckDB: each gives in every batch what it gives alone in the
    engine."""
    queries = [some_placed(query, seed + n) if (seed + n) % 2 else query for n, query in enumerate(workload.queries)]
    together = Together(queries, workload.table, slots)
    alone = {query.name: Together([query], workload.table) for query in workload.queries}
    for number in range(workload.batches + 1):
        if number in restarts:
            together.restart()
        for query in queries if number in moves else ():
            for block in query.blocks:
                execution = together.pipeline.driver.queries[query.name].execution
                may_go = block.name in query.places or execution.woken_as(block.name) is not None
                is_there = may_go and block.name not in execution.home and execution.folding_of(block.name) is None
                with suppress(MigrationError):
                    together.pipeline.place(query.name, block.name, "engine" if is_there else "duck", way(number))
        rows = workload.batch(number) if number < workload.batches else {}
        for name, found in together.step(rows).items():
            problem = oracle.difference(found, alone[name].step(rows)[name])
            assert not problem, f"{name} in batch {number}, not as alone: {problem}\n{workload.script}"


test_beside, test_beside_long = properties(
    check_beside, 4, 800, workload=workloads(5), seed=SEEDS, slots=SLOTS,
    restarts=st.frozensets(st.integers(1, 9), max_size=2), moves=st.frozensets(st.integers(1, 9), max_size=3),
)  # fmt: skip


def check_crashes(
    shape: Shape, seed: int, slots: int, to_files: bool, faults: Mapping[int, Fault], fails: Mapping[int, str],
    pauses: frozenset[int], moves: frozenset[int],
) -> None:  # fmt: skip
    case = Continuous(shape)
    query = some_placed(case.query, seed) if seed else case.query
    if able(query):
        loop = partial(Mover, batches=moves)
        Simulation([query], case.batches, {}, (), slots, to_files, faults, fails=fails, pauses=pauses, loop=loop).check()


test_crashes, test_crashes_long = properties(
    check_crashes, 6, 500, shape=shapes(groups=True, tables=False), seed=SEEDS, slots=SLOTS, to_files=st.booleans(),
    faults=FAULTS, fails=FAILS, pauses=st.frozensets(st.integers(0, 8), max_size=3),
    moves=st.frozensets(st.integers(0, 8), max_size=5),
)  # fmt: skip
test_crashes_woken, test_crashes_woken_long = properties(
    check_crashes, 6, 500, shape=shapes(streams=1, tables=False), seed=st.just(0), slots=SLOTS, to_files=st.booleans(),
    faults=FAULTS, fails=FAILS, pauses=st.frozensets(st.integers(0, 8), max_size=3),
    moves=st.frozensets(st.integers(0, 8), min_size=1, max_size=5),
)  # fmt: skip


# What a query goes on with after a restart.

SOURCE = "CREATE STREAM s (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;"
SELECT = "SELECT {} x.k, x.n FROM (SELECT k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k) x"
ROWS = [
    {"s": pa.table({"k": [b % 2, 1, 2], "v": [b, 1, 2], "ts": pa.array([b * SECOND_US] * 3, pa.timestamp("us"))})}
    for b in range(6)
]


def declared(sql: str, facts: Given = EMPTY) -> Query:
    """A query as a session has it."""
    planning = Planning(facts=facts)
    planning.add_script(parse_script(f"{SOURCE} CREATE QUERY q AS {sql};", planning.catalog))
    return planning.query("q").forms.written


def after_restart(before: Query, then: Query) -> tuple[Query, str]:
    """What runs when a query goes on as another, and what its results lack."""
    disk, found = MemoryFilesystem(), Counter[tuple[object, ...]]()
    run = LocalRun(before, disk)
    for batch in range(3):
        found += oracle.bag(run.step(batch, ROWS[batch]).results)
    run = LocalRun(then, disk)
    for batch in range(3, len(ROWS) + 1):
        found += oracle.bag(run.step(batch, ROWS[batch] if batch < len(ROWS) else {}).results)
    return run.driver.queries["q"].query, oracle.difference(found, oracle.expected(before, ROWS, {}))


@pytest.mark.parametrize(("before", "then", "places"), [
    ("/*+ PLACE(x, duck) */", "/*+ PLACE(x, duckdb) */", {"q.x": "duck"}),
    ("/*+ PLACE(x, duck) */", "/*+ PLACE(x, database) */", {"q.x": "duck"}),
    ("/*+ PLACE(x, duck) */", "", {"q.x": "duck"}),
    ("/*+ PLACE(x, engine) */", "", {}),
    ("", "/*+ PLACE(x, engine) */", {}),
])  # fmt: skip
def test_a_block_that_no_hint_places_goes_on_where_it_ran(before: str, then: str, places: dict[str, str]) -> None:
    query, problem = after_restart(declared(SELECT.format(before)), declared(SELECT.format(then)))
    assert (query.places, problem) == (places, "")


@pytest.mark.parametrize(("before", "then"), [("duck", "engine"), ("engine", "duck")])
def test_a_hint_that_wants_a_block_elsewhere_is_refused_with_what_to_do(before: str, then: str) -> None:
    hints = [f"/*+ PLACE(x, {place}) */" for place in (before, then)]
    with pytest.raises(ForeignStateError) as caught:
        after_restart(*(declared(SELECT.format(hint)) for hint in hints))
    told = str(caught.value)
    assert f"block q.x ran in {before}, and PLACE({then}) wants it in {then}: leave that hint as it was" in told
    assert "--fresh q" in told


def test_another_select_list_over_a_block_of_a_database() -> None:
    """The state of a placed block is its rows: another select list goes on with them, as in the engine."""
    outermost = "SELECT /*+ PLACE(duck) */ {} FROM s [RANGE 3 SECONDS] GROUP BY k"
    before, then = (declared(outermost.format(what)) for what in ("k, COUNT(*) AS n, MAX(v) AS m", "MAX(v) AS m, k"))
    disk, found = MemoryFilesystem(), Counter[tuple[object, ...]]()
    run = LocalRun(before, disk)
    for batch in range(3):
        run.step(batch, ROWS[batch])
    run = LocalRun(then, disk)
    for batch in range(3, len(ROWS) + 1):
        found += oracle.bag(run.step(batch, ROWS[batch] if batch < len(ROWS) else {}).results)
    assert run.driver.queries["q"].query.places == {"q": "duck"}
    assert found
    assert not found - oracle.expected(then, ROWS, {})


# How rows are spread.


@pytest.mark.parametrize(("sql", "is_spread"), [
    ("SELECT /*+ PLACE(duck) */ k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k", True),
    ("SELECT /*+ PLACE(duck) */ COUNT(*) AS n FROM s [RANGE 3 SECONDS]", False),
    ("SELECT /*+ PLACE(duck) */ a.k, COUNT(*) AS n FROM s [NOW] a, s [NOW] b WHERE a.k = b.k GROUP BY a.k", True),
    ("SELECT /*+ PLACE(duck) */ a.v, COUNT(*) AS n FROM s [NOW] a, s [NOW] b WHERE a.k = b.k GROUP BY a.v", False),
    (SELECT.format("/*+ PLACE(x, duck) */") + ", s [NOW] t WHERE t.k = x.k", True),
    (SELECT.format("/*+ PLACE(x, duck) */") + ", s [NOW] t WHERE t.k = x.n", False),
])  # fmt: skip
def test_a_block_is_spread_by_a_key_of_its_groups_or_runs_in_one_slot(sql: str, is_spread: bool) -> None:
    found = choose_distribution(declared(sql), 3)
    assert (found.grid.cells > 1, found.groups_span_slots) == (is_spread, False)


# What is told of it.


def measured(seconds: float) -> Measured:
    return Measured(1, "here", True, seconds, {what: {1000: seconds} for what in ("in", "out", "group", "probe", "join")})


def test_without_a_calibration_nothing_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: None)
    assert declared(SELECT.format("")).places == {}


@pytest.mark.parametrize(("seconds", "places"), [(0.0, {"q.x": "duck"}), (1.0, {})])
def test_a_block_goes_where_it_is_cheaper(
    seconds: float, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: measured(seconds))
    joined = SELECT.replace("FROM s [RANGE 3 SECONDS] GROUP BY k", "FROM s [NOW] a, s [NOW] b WHERE a.k = b.k GROUP BY a.k")
    joined = joined.replace("(SELECT k,", "(SELECT a.k,")
    keys = Given(distinct={"a.k": 5.0, "b.k": 5.0})
    assert declared(joined.format(""), keys).places == places
    assert declared(joined.format("")).places == {}, "how many rows meet is not known"
    assert declared(joined.format("/*+ PLACE(x, duck) */")).places == {"q.x": "duck"}
    assert declared(joined.format("/*+ PLACE(x, engine) */")).places == {}


def test_explain_tells_places_statement_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: measured(1e-6))
    planning = Planning(facts=Given(distinct={"s.k": 5.0}))
    sql = SELECT.format("/*+ PLACE(x, duck) */")
    planning.add_script(parse_script(f"{SOURCE} CREATE QUERY q AS {sql}; CREATE QUERY r AS {SELECT.format('')};"))
    told = str(planning.explain("q"))
    assert "AGGREGATE x  duck" in told
    assert "PROJECT      engine: a block without groups" in told
    assert "plans looked at: 1" in told
    assert "C_b" in told
    assert "feasible" in told
    assert 'q.x in duck: SELECT "key0" AS "k", "agg0" AS "n" FROM' in told
    assert "next best: AGGREGATE x in duck" in str(planning.explain("r"))
    found = planning.explain_json("q")["placement"]
    assert found["chosen"]["in_database"] == ["AGGREGATE x"]
    assert list(found["statements"]) == ["q.x"]
    assert [each["place"] for each in found["operators"]] == ["duck", "engine"]


# What may go elsewhere while a query runs.


@pytest.mark.parametrize(("sql", "block", "place", "said"), [
    (SELECT.format("/*+ PLACE(x, duck) */"), "q.y", "engine", "query q has no block y: it has q.x, q"),
    (SELECT.format("/*+ PLACE(x, duck) */"), "q.x", "crm", "runs in engine or duck, not in crm"),
    (SELECT.format("/*+ PLACE(x, duck) */"), "q", "duck", "one block of a query may be in a database, and q.x is the one"),
    (SELECT.format(""), "q.y", "duck", "query q has no block y: it has q.x, q"),
    (SELECT.format(""), "q.x", "engine", "x runs in the engine already"),
    (SELECT.format(""), "q.x", "crm", "x runs in the engine, and there is no database crm that could run it"),
    (SELECT.format(""), "q", "duck", "q cannot run in duck: rows of one stream meet no others"),
    (SELECT.format("").replace("COUNT(*)", "STDDEV(v)"), "q.x", "duck", "x cannot run in duck: .*STDDEV"),
    (SELECT.format("").replace("RANGE 3 SECONDS", "UNBOUNDED"), "q.x", "duck", "rows of s are valid for ever"),
])  # fmt: skip
def test_what_cannot_go_elsewhere_is_refused_by_name(sql: str, block: str, place: str, said: str) -> None:
    run = LocalRun(declared(sql), MemoryFilesystem())
    with pytest.raises(MigrationError, match=said):
        run.place(block, place)


def test_a_block_that_joins_a_stored_table_goes_there_by_a_hint_alone() -> None:
    """Whether the table is read again is known when the query is declared."""
    script = SOURCE + "CREATE TABLE t (k BIGINT); CREATE QUERY q AS SELECT s.v FROM s [RANGE 3 SECONDS], t WHERE s.k = t.k"
    run = LocalRun(parse_script(script).queries[0].query, MemoryFilesystem(), tables={"t": pa.table({"k": [1]})})
    with pytest.raises(MigrationError, match="q joins the stored table t: place it by a hint, --fresh"):
        run.place("q", "duck")


@pytest.mark.parametrize(("sql", "slots", "may_go"), [
    ("SELECT k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k", 3, True),
    ("SELECT COUNT(*) AS n FROM s [RANGE 3 SECONDS]", 1, True),
    ("SELECT COUNT(*) AS n FROM s [RANGE 3 SECONDS]", 3, False),
    (SELECT.format("") + ", s [NOW] t WHERE t.k = x.k", 3, True),
    (SELECT.format("").replace("k, COUNT(*) AS n", "v AS k, COUNT(*) AS n").replace("GROUP BY k", "GROUP BY v")
     + ", s [NOW] t, s [NOW] u WHERE t.k = u.k AND t.v > x.k", 3, False),
])  # fmt: skip
def test_a_block_goes_to_a_database_if_its_groups_are_whole_in_each_slot(sql: str, slots: int, may_go: bool) -> None:
    run = LocalRun(declared(sql), MemoryFilesystem(), slots=slots)
    steering = run.driver.queries["q"]
    block = steering.query.blocks[0].name
    why = steering.why_not(PlaceBlock(block, "duck", steering.execution.plan))
    assert why is None if may_go else "are made in several slots" in str(why), why


MORE = [
    {"s": pa.table({"k": [b % 2, 1, 2], "v": [b, 1, 2], "ts": pa.array([b * SECOND_US] * 3, pa.timestamp("us"))})}
    for b in range(14)
]


def where(run: LocalRun) -> tuple[str, bool, bool]:
    """Who runs the block x now, whether it is on its way to DuckDB, and whether rows are kept for it."""
    execution = run.driver.queries["q"].execution
    woken = execution.woken_as("q.x")
    is_there = woken is not None and "q.x" not in execution.home
    return "duck" if is_there else "engine", woken is not None and woken.is_going, woken is not None


def test_a_block_goes_when_rows_that_were_not_kept_have_ended() -> None:
    """Rows up to second 3 came before batch 4, and their window is 3 seconds: they have ended when the watermark is at 6."""
    query, disk = declared(SELECT.format("")), MemoryFilesystem()
    run, found, asked = LocalRun(query, disk), Counter[tuple[object, ...]](), list[int]()
    for batch, rows in enumerate([*MORE, {}]):
        if batch == 4:
            assert where(run) == ("engine", False, False)
            run.place("q.x", "duck")
        step = run.step(batch, rows)
        found += oracle.bag(step.results)
        asked += [batch] if step.statistics.borders else []
        if 4 <= batch < 7:
            assert where(run) == ("engine", True, True), batch
            run = LocalRun(query, disk)  # what is on its way stands in the records
    assert (where(run), asked) == (("duck", False, True), [*range(8, len(MORE) + 1)])
    assert not oracle.difference(found, oracle.expected(query, MORE, {}))
    told = [entry.event for entry in run.driver.queries["q"].journal.entries()]
    assert told[-1] == "placed"


def test_a_block_on_its_way_may_stay_and_goes_later_at_once() -> None:
    query = declared(SELECT.format(""))
    run, found = LocalRun(query, MemoryFilesystem()), Counter[tuple[object, ...]]()
    said = {4: "duck", 6: "engine", 10: "duck", 12: "engine"}
    ran = {4: "engine", 6: "engine", 9: "engine", 10: "duck", 12: "engine", 13: "engine"}
    for batch, rows in enumerate([*MORE, {}]):
        if batch in said:
            run.place("q.x", said[batch], Strategy.MOVING_STATE)
        found += oracle.bag(run.step(batch, rows).results)
        if batch in ran:
            assert where(run)[0] == ran[batch], batch
    assert not oracle.difference(found, oracle.expected(query, MORE, {}))
    told = [(entry.event, entry.text) for entry in run.driver.queries["q"].journal.entries()]
    assert [event for event, _ in told] == ["started", "placing", "placed", "placed", "placed"]
    assert "its rows are kept from batch 4 on" in told[1][1]
    assert told[2][1] == "q.x stays in engine: by request"


def test_a_block_that_is_asked_for_and_stays_before_rows_came_keeps_them_all_the_same() -> None:
    query = declared(SELECT.format(""))
    run, found = LocalRun(query, MemoryFilesystem()), Counter[tuple[object, ...]]()
    for batch, rows in enumerate([{}, *MORE, {}]):
        if batch == 1:
            run.place("q.x", "duck")
            run.place("q.x", "engine")
        if batch == 6:
            run.place("q.x", "duck")
        found += oracle.bag(run.step(batch, rows).results)
        assert where(run)[0] == ("duck" if batch >= 6 else "engine"), batch
    assert not oracle.difference(found, oracle.expected(query, [{}, *MORE], {}))


def test_rows_that_others_kept_before_are_not_read() -> None:
    """Another query keeps rows of s for longer, without the column that the block filters by."""
    counts = SELECT.format("").replace("GROUP BY", "WHERE v > 1 GROUP BY")
    joins = "SELECT a.k FROM s [RANGE 20 SECONDS] a, s [NOW] b WHERE a.k = b.k"
    planning = Planning()
    planning.add_script(parse_script(f"{SOURCE} CREATE QUERY q AS {counts}; CREATE QUERY r AS {joins};"))
    queries = {name: planning.query(name).forms.written for name in "qr"}
    together, found = Together([*queries.values()], None), {name: Counter[tuple[object, ...]]() for name in "qr"}
    said = {4: "duck", 10: "engine", 11: "duck"}
    for batch, rows in enumerate([*MORE, {}]):
        if batch in said:
            together.pipeline.place("q", "q.x", said[batch])
        found = {name: found[name] + given for name, given in together.step(rows).items()}
    for name, query in queries.items():
        assert not oracle.difference(found[name], oracle.expected(query, MORE, {}))


def test_another_select_list_of_a_block_that_began_in_the_engine() -> None:
    """Records name the block and its database: what this is asked for follows from the query as it is written now."""
    selects = ("k, COUNT(*) AS n, MAX(v) AS m", "MAX(v) + 1 AS m, k")
    before, then = (declared(f"SELECT {what} FROM s [RANGE 3 SECONDS] GROUP BY k") for what in selects)
    disk, found = MemoryFilesystem(), Counter[tuple[object, ...]]()
    run = LocalRun(before, disk)
    for batch in range(10):
        if batch == 2:
            run.place("q", "duck")
        run.step(batch, MORE[batch])
    run = LocalRun(then, disk)
    for batch in range(10, len(MORE) + 1):
        step = run.step(batch, MORE[batch] if batch < len(MORE) else {})
        assert step.statistics.borders
        found += oracle.bag(step.results)
    assert found
    assert not found - oracle.expected(then, MORE, {})


def test_a_query_that_shares_its_join_stays_in_the_engine() -> None:
    sql = "SELECT a.k, b.v FROM s [RANGE {} SECONDS] a, s [RANGE 3 SECONDS] b WHERE a.k = b.k"
    planning = Planning()
    planning.add_script(parse_script(f"{SOURCE} CREATE QUERY q AS {sql.format(2)}; CREATE QUERY r AS {sql.format(3)};"))
    together = Together([planning.query(name).forms.written for name in "qr"], None)
    together.step(ROWS[0])
    for name in "qr":
        with pytest.raises(MigrationError, match="shares its join with others"):
            together.pipeline.place(name, name, "duck")


def newest(together: Together) -> Commit:
    assert together.pipeline.commit is not None
    return together.pipeline.commit


def test_a_query_that_goes_to_a_database_shares_its_join_with_nobody() -> None:
    sql = "SELECT a.k, b.v FROM s [RANGE {} SECONDS] a, s [RANGE 3 SECONDS] b WHERE a.k = b.k"
    planning = Planning()
    planning.add_script(parse_script(f"{SOURCE} CREATE QUERY q AS {sql.format(2)}; CREATE QUERY r AS {sql.format(3)};"))
    queries = {name: planning.query(name).forms.written for name in "qr"}
    together, found = Together([*queries.values()], None), {name: Counter[tuple[object, ...]]() for name in "qr"}
    asked = set[str]()
    together.pipeline.place("q", "q", "duck")
    for rows in [*MORE, {}]:
        found = {name: found[name] + given for name, given in together.step(rows).items()}
        asked |= {name for name, query in newest(together).queries.items() if query.statistics.borders}
    assert asked == {"q"}
    for name, query in queries.items():
        assert not oracle.difference(found[name], oracle.expected(query, MORE, {}))


def test_a_query_that_a_database_runs_keeps_its_plan() -> None:
    sql = "SELECT /*+ PLACE(duck) */ COUNT(*) AS n FROM s [NOW] a, s [NOW] b, s [NOW] c WHERE a.k = b.k AND b.k = c.k"
    run = LocalRun(declared(sql), MemoryFilesystem())
    with pytest.raises(MigrationError, match="duck may run the query"):
        run.migrate("(a b c)")


# All instants of a batch in one statement.


class Noting:
    """A database, and for how many instants it was asked, each time."""

    def __init__(self, together: list[int], fails: bool = False) -> None:
        self.inner, self.together, self.fails = open_embedded("duck"), together, fails

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        self.together.append(1)
        return self.inner.run(sql, relations)

    def run_all(self, sql: str, given: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        self.together.append(len(given))
        if self.fails:
            raise QueryError("DuckDB: out of memory")
        return self.inner.run_all(sql, given)

    def close(self) -> None:
        self.inner.close()


def given_in(
    query: Query, batches: Sequence[Mapping[str, pa.Table]], tables: Mapping[str, pa.Table], slots: int, **limits: int
) -> list[Counter[tuple[object, ...]]]:
    """What each batch gives; `limits` say what is asked for together."""
    with ExitStack() as stack:
        for name, value in limits.items():
            stack.enter_context(mock.patch.object(bounds, name, value))
        run = LocalRun(query, MemoryFilesystem(), tables=tables, slots=slots)
        return [oracle.bag(run.step(n, rows).results) for n, rows in enumerate([*batches, {}])]


def check_together(shape: Shape, seed: int, slots: int) -> None:
    """Asked for one instant at a time, for all of a batch, or for some of them, blocks give the same."""
    case = Continuous(shape)
    query = some_placed(case.query, seed)
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in query.base_sources}}
    alone = given_in(query, case.batches, tables, slots, TOGETHER_INSTANTS=1)
    for limits in ({}, {"TOGETHER_INSTANTS": 3}, {"TOGETHER_BYTES": 200}):
        for batch, found in enumerate(given_in(query, case.batches, tables, slots, **limits)):
            problem = oracle.difference(found, alone[batch])
            assert not problem, f"{case.sql}\n{query.places}\nbatch {batch}, {limits}: {problem}"


test_together, test_together_long = properties(
    check_together, 10, 1_000, shape=shapes(groups=True, tables=False), seed=SEEDS, slots=SLOTS
)
test_together_below, test_together_below_long = properties(
    check_together, 4, 500, shape=shapes(subquery=True), seed=SEEDS, slots=SLOTS
)

TWENTY = [
    {"s": pa.concat_tables(rows["s"] for rows in (*ROWS, *ROWS))},
    {"s": pa.table({"k": [7], "v": [0], "ts": pa.array([20 * SECOND_US], pa.timestamp("us"))})},
]
"""The watermark passes five instants that have rows in the second batch, and three in the last."""


@pytest.mark.parametrize(("limits", "fails", "together"), [
    ({}, False, [5, 3]),
    ({"TOGETHER_INSTANTS": 3}, False, [3, 2, 3]),
    ({"TOGETHER_INSTANTS": 1}, False, [1] * 8),
    ({"TOGETHER_BYTES": 1}, False, [1] * 8),
    ({}, True, [5, *[1] * 5, 3, *[1] * 3]),
])  # fmt: skip
def test_for_how_many_instants_a_database_is_asked(limits: dict[str, int], fails: bool, together: list[int]) -> None:
    """All of a batch, but no more than is said; and if it fails at them, for each."""
    query, asked = declared("SELECT /*+ PLACE(duck) */ k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k"), list[int]()
    with mock.patch("anabranch.drive.work.open_embedded", side_effect=lambda _: Noting(asked, fails)):
        found = sum(given_in(query, TWENTY, {}, 1, **limits), Counter[tuple[object, ...]]())
    assert asked == together
    assert not oracle.difference(found, oracle.expected(query, TWENTY, {}))


# When the database fails.


class Failing:
    """A database that fails at every other statement, and at all that are for several instants."""

    def __init__(self) -> None:
        self.inner, self.asked = open_embedded("duck"), 0

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        self.asked += 1
        if self.asked % 2:
            raise QueryError("DuckDB: out of memory")
        return self.inner.run(sql, relations)

    def run_all(self, sql: str, given: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        raise QueryError("DuckDB: out of memory")

    def close(self) -> None:
        self.inner.close()


def check_failing(shape: Shape, slots: int) -> None:
    """The engine makes what the database does not: the same results."""
    case = Continuous(shape)
    single = {b.name: "duck" for b in case.query.blocks if b.name in able(case.query) and len(b.inputs) == 1}
    run = LocalRun(placed(case.query, single, "engine"), MemoryFilesystem(), slots=slots)
    found, failed, asked = Counter[tuple[object, ...]](), 0, 0
    with mock.patch("anabranch.drive.work.open_embedded", side_effect=lambda _: Failing()):
        for number in range(len(case.batches) + 1):
            step = run.step(number, case.batches[number] if number < len(case.batches) else {})
            found += oracle.bag(step.results)
            for border in step.statistics.borders.values():
                asked, failed = asked + border.calls, failed + border.failed
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, {}))
    assert not problem, f"{case.sql}\n{single}\n{problem}"
    assert failed >= asked // 3, "it is asked for all instants of a batch, and then for one or two by themselves"


test_failing, test_failing_long = properties(
    check_failing, 8, 400, shape=shapes(streams=1, tables=False), slots=SLOTS
)


def test_a_query_ends_with_its_database_unless_the_engine_makes_up_for_it() -> None:
    query = declared("SELECT /*+ PLACE(duck) */ k, COUNT(*) AS n FROM s [RANGE 3 SECONDS] GROUP BY k")
    run = LocalRun(query, MemoryFilesystem())
    with mock.patch("anabranch.drive.work.open_embedded", side_effect=lambda _: Failing()):
        run.step(0, ROWS[0])
        run.step(1, ROWS[1])
        with pytest.raises(QueryError, match="out of memory"):
            run.step(2, ROWS[2])


def test_progress_tells_what_went_over_the_border() -> None:
    query = declared(SELECT.format("/*+ PLACE(x, duck) */"))
    run = LocalRun(query, MemoryFilesystem())
    for batch, rows in enumerate(ROWS):
        step = run.step(batch, rows)
    assert run.pipeline.commit is not None
    (told,) = progress_of(query, run.pipeline.commit, "x", {}).borders.values()
    assert (told.calls, told.rows_sent, told.rows_back, told.failed) == (1, 9, 3, 0), step.results
    assert told.bytes_sent > 0
    assert told.seconds > 0


def test_what_to_do_about_failures_is_checked() -> None:
    with pytest.raises(SessionError, match="fail or engine, not 'wait'"):
        Planning(database_failure="wait")


ODD = '''CREATE STREAM "odd one" ("a b" BIGINT, "q""u" STRING, "select" DOUBLE, "group" BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT /*+ PLACE("order", duck) */ "order".* FROM (SELECT "group"."a b" AS "x y",
    MAX("group"."q""u") AS "m""", COUNT("group"."select") AS "count(*)", "group"."group" AS "key0"
    FROM "odd one" [RANGE 2 SECONDS] AS "group"
    WHERE "group"."select" > 0 GROUP BY "group"."a b", "group"."group" HAVING COUNT(*) > 0) AS "order";
CREATE QUERY r AS SELECT /*+ PLACE(duck) */ "Group"."a b" AS "x y", "order"."q""u" AS "y;--", RESULT_TIME AS "at 1"
    FROM "odd one" [RANGE 2 SECONDS] AS "Group", "odd one" [RANGE 1 SECOND] AS "order"
    WHERE "Group"."group" = "order"."group" AND "Group"."q""u" <> 'it''s';'''


@pytest.mark.parametrize("name", ["q", "r"])
def test_names_that_need_quotes(name: str) -> None:
    planning = Planning()
    planning.add_script(parse_script(ODD, planning.catalog))
    query, found = planning.query(name).forms.written, list[Counter[tuple[object, ...]]]()
    rows = {"a b": [1, 2, None], 'q"u': ["it's", 'x"', None], "select": [0.5, 1.5, -1], "group": [1, 1, None]}
    assert query.places
    for each in (query, placed(query, {})):
        run = LocalRun(each, MemoryFilesystem())
        found.append(Counter())
        for batch in range(5):
            at = pa.array([batch * SECOND_US] * 3, pa.timestamp("us"))
            found[-1] += oracle.bag(run.step(batch, {"odd one": pa.table({**rows, "ts": at})} if batch < 4 else {}).results)
    assert found[0] == found[1]
    assert found[0]
