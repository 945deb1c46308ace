"""Continuous queries of all kinds on the engine, against the oracle."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import strategies as st

from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.continuous_runs import check
from tests.support.scenarios import properties
from tests.support.small_pieces import SMALL, small_pieces

test_queries, test_queries_long = properties(
    check, 100, 2_000, shape=shapes(), stops=st.lists(st.integers(0, 7), max_size=3)
)


def check_small_pieces(shape: Shape, rows: int, size_bytes: int) -> None:
    """Rows go their way, are folded and leave in many pieces."""
    with small_pieces(rows, size_bytes):
        check(shape, [])


test_small_pieces, test_small_pieces_long = properties(
    check_small_pieces, 30, 800, shape=shapes(nulls=True), rows=SMALL, size_bytes=SMALL
)
test_small_folds, test_small_folds_long = properties(
    check_small_pieces, 60, 800, shape=shapes(groups=True, nulls=True), rows=SMALL, size_bytes=SMALL
)


def check_turns(shape: Shape, turns: Sequence[int]) -> None:
    """Workers take turns, and each keeps the boxes it had."""
    case = Continuous(shape)
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    run = LocalRun(case.query, MemoryFilesystem(), tables=tables)
    found: oracle.Bag = Counter()
    workers = defaultdict[int, Kept](Kept)
    for number in range(len(case.batches) + 1):
        run.worker = workers[turns[number % len(turns)]]
        found += oracle.bag(run.step(number, case.batches[number] if number < len(case.batches) else {}).results)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, tables))
    assert not problem, f"{case.sql}\n{problem}"


test_turns, test_turns_long = properties(
    check_turns, 40, 800, shape=shapes(groups=True), turns=st.lists(st.integers(0, 2), min_size=2, max_size=9)
)
