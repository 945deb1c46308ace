"""Blocks that DuckDB runs over our windows give what DuckDB gives of each instant, whatever happens on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.control.progress import read_progress
from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.errors import QueryError
from anabranch.place.databases.embedded import open_embedded
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.duck_blocks import FAILS, FAULTS
from tests.support.faulty import Fault
from tests.support.placed import QUERIES, Placed, Shape, shapes
from tests.support.scenarios import properties
from tests.support.simulation import Simulation


def check(shape: Shape, stops: Sequence[int], turns: Sequence[int], slots: int) -> None:
    """Batches in several slots, with new processes after some of them, and workers that take turns."""
    case, disk = Placed(shape), MemoryFilesystem()
    run = LocalRun(case.query, disk, tables=case.tables, slots=slots)
    workers, found = defaultdict[int, Kept](Kept), Counter[tuple[object, ...]]()
    for number in range(len(case.batches) + 1):
        run.worker = workers[turns[number % len(turns)]]
        step = run.step(number, case.batches[number] if number < len(case.batches) else {})
        run.verify()
        found += oracle.bag(step.results)
        if number in stops:
            run, workers = LocalRun(case.query, disk, tables=case.tables, slots=slots), defaultdict(Kept)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, case.tables))
    assert not problem, f"{case.sql}\n{problem}"


test_blocks, test_blocks_long = properties(
    check, 40, 1_000, shape=shapes(), stops=st.lists(st.integers(0, 8), max_size=2),
    turns=st.lists(st.integers(0, 2), min_size=1, max_size=5), slots=st.sampled_from([1, 2, 3]),
)  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("query", QUERIES)
def test_each_query(query: str) -> None:
    shape = Shape(query, seed=3, batches=8, rows=8, a=4, b=6, slide=1, late=2, gap=False)
    assert oracle.expected(Placed(shape).query, Placed(shape).batches, Placed(shape).tables), "the case shows nothing"
    for slots in (1, 3):
        check(shape, stops=[3], turns=[0, 1, 0], slots=slots)


def check_crashes(
    shape: Shape, slots: int, to_files: bool, faults: Mapping[int, Fault], fails: Mapping[int, str], pauses: frozenset[int]
) -> None:
    case = Placed(shape)
    Simulation([case.query], case.batches, case.tables, (), slots, to_files, faults, fails=fails, pauses=pauses).check()


test_crashes, test_crashes_long = properties(
    check_crashes, 25, 800, shape=shapes(), slots=st.sampled_from([1, 2, 3]), to_files=st.booleans(), faults=FAULTS,
    fails=FAILS, pauses=st.frozensets(st.integers(0, 8), max_size=3),
)  # fmt: skip


def test_what_a_block_reads_and_gives_is_told() -> None:
    """Of each batch: the rows of all windows that DuckDB was run over, and what it gave, in all slots together."""
    case = Placed(Shape(next(iter(QUERIES)), seed=3, batches=8, rows=8, a=4, b=6, slide=1, late=2, gap=False))
    made = Simulation([case.query], case.batches, case.tables, (), 2, False, {})
    made.check()
    (steps,) = read_progress(made.checkpoint).values()
    borders = [border for step in steps for border in step.borders.values()]
    assert borders
    assert {border.database for border in borders} == {"duck"}
    assert all(border.calls and border.rows_sent and border.bytes_sent and border.seconds > 0 for border in borders)
    assert any(border.rows_back and border.bytes_back for border in borders)


TEXTS = [
    'SELECT "Odd ""1".x AS a, u.x AS a FROM "odd ""1" AS "Odd ""1" JOIN t AS u ON u.x = "Odd ""1".x -- the end',
    "WITH t2 AS (SELECT x FROM T WHERE x > 2), t AS (SELECT 1 AS x) SELECT count(*), (SELECT sum(x) FROM t2) FROM t",
    "SELECT x % 2 AS k, median(x) AS m, list(x ORDER BY x) AS l FROM t GROUP BY ALL HAVING count(*) > 0",
    'SELECT x FROM t UNION ALL SELECT x FROM "odd ""1" ORDER BY x LIMIT 3',
    "SELECT a.x FROM t a, t b WHERE a.x = b.x",
    "FROM t",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_statement_over_several_sets_of_relations_gives_what_it_gives_over_each(text: str) -> None:
    database = open_embedded("duck")
    numbers = pa.array(range(20))
    sets = [{"t": pa.table({"x": numbers[:n]}), 'odd "1': pa.table({"x": numbers[n : 2 * n]})} for n in (5, 0, 9)]
    for found, each in zip(database.run_all(text, sets), sets, strict=True):
        alone = database.run(text, each)
        assert found.schema.types == alone.schema.types
        rows, expected = (zip(*(c.to_pylist() for c in table.columns), strict=True) for table in (found, alone))
        assert sorted(rows, key=str) == sorted(expected, key=str)
    with pytest.raises(QueryError, match="Referenced column"):
        database.run_all("SELECT y FROM t", sets)
    database.close()


def test_what_a_statement_finds_comes_in_pieces_and_leaves_nothing_behind() -> None:
    database, rows = open_embedded("duck"), pa.table({"x": range(1000)})
    pieces = [*database.pieces("SELECT a.x FROM t a, t b WHERE a.x < 100", {"t": rows}, 5_000)]
    assert sum(piece.num_rows for piece in pieces) == 100_000
    assert max(piece.num_rows for piece in pieces) <= 5_000
    with pytest.raises(QueryError, match=r"DuckDB: .*Could not convert string"):
        [*database.pieces("SELECT CAST(CASE WHEN x = 999 THEN 'q' ELSE '1' END AS INT) FROM t", {"t": rows}, 10)]
    with pytest.raises(QueryError, match="Table with name t does not exist"):
        database.run("SELECT * FROM t", {})
    database.close()
