"""Random queries whose placements change while they run, gradually, at once, or because DuckDB fails: in every batch the
same as the engine alone, and in all what DuckDB says of all rows as one batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hypothesis import strategies as st

from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.errors import MigrationError
from anabranch.place.statement_of import placed
from anabranch.plan.migration import Strategy
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.duck_blocks import SLOTS, TURNS, able
from tests.support.failing_duckdb import failing, often
from tests.support.scenarios import properties

BATCHES = 24
"""So many that a block has time to go, and to come home piece by piece."""


def check(
    shape: Shape, block: int, begins_there: bool, slots: int, stops: Sequence[int], turns: Sequence[int],
    moves: Mapping[int, Strategy], period: int,
) -> None:  # fmt: skip
    """A block that begins in the engine, or in DuckDB, goes where it is not before some batches; new processes after some,
    and workers that take turns. DuckDB fails at all statements but every so many, where the engine may make up for it."""
    case, disk = Continuous(shape), MemoryFilesystem()
    names = able(case.query) or [case.query.name]
    name = names[block % len(names)]
    query = placed(case.query, {name: "duck"}, "engine") if begins_there and able(case.query) else case.query
    alone, workers, found = LocalRun(case.query, MemoryFilesystem()), defaultdict[int, Kept](Kept), Counter[object]()
    with failing(often(period if begins_there else 1), pause=2):
        run = LocalRun(query, disk, slots=slots)
        for number in range(len(case.batches) + 1):
            run.worker, rows = workers[turns[number % len(turns)]], {} if number == BATCHES else case.batches[number]
            if number in moves:
                with suppress(MigrationError):
                    run.place(name, "engine" if is_there(run, name) else "duck", moves[number])
            given, wanted = oracle.bag(run.step(number, rows).results), oracle.bag(alone.step(number, rows).results)
            problem = oracle.difference(given, wanted)
            assert not problem, f"batch {number}, not as in the engine alone: {problem}\n{case.sql}\n{name}"
            found += given
            run.verify()
            if number in stops:
                run, workers = LocalRun(query, disk, slots=slots), defaultdict(Kept)
    problem = oracle.difference(found, oracle.expected(case.query, case.batches, {}))
    assert not problem, f"{case.sql}\n{name}\n{problem}"


def is_there(run: LocalRun, name: str) -> bool:
    """Whether DuckDB runs a block, or is to, and it is not on its way home."""
    execution = run.execution
    woken = execution.woken_as(name)
    if woken is not None and woken.is_going:
        return True
    may_go = woken is not None or name in run.steering.query.places
    return may_go and name not in execution.home and execution.folding_of(name) is None


DRAWN = {
    "block": st.integers(0, 3), "slots": SLOTS, "stops": st.lists(st.integers(2, BATCHES), max_size=3), "turns": TURNS,
    "moves": st.dictionaries(
        st.integers(2, BATCHES - 2), st.sampled_from([Strategy.GRADUAL, Strategy.GRADUAL, Strategy.MOVING_STATE]),
        min_size=2, max_size=7,
    ),
    "period": st.sampled_from([1, 1, 2, 3]),
}  # fmt: skip
test_begun_in_the_engine, test_begun_in_the_engine_long = properties(
    check, 16, 4_000, shape=shapes(streams=1, tables=False, rows=60, batches=BATCHES), begins_there=st.just(False), **DRAWN
)
test_begun_in_duckdb, test_begun_in_duckdb_long = properties(
    check, 16, 4_000, shape=shapes(groups=True, tables=False, rows=60, batches=BATCHES), begins_there=st.just(True), **DRAWN
)
test_any, test_any_long = properties(
    check, 16, 4_000, shape=shapes(tables=False, rows=40, batches=BATCHES), begins_there=st.booleans(), **DRAWN
)
