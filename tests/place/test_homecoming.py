"""A block that comes home from a database piece by piece: the database gives its results until all is folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import pytest

from anabranch.control.execution import execution_of, execution_record
from anabranch.control.journal import Journal
from anabranch.drive.kept import Kept
from anabranch.drive.local import LocalRun
from anabranch.plan.migration import Strategy
from anabranch.plan.query import Query
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.failing_duckdb import declared, failing
from tests.support.homeward import ALONE, JOINED, ROWS, Homeward
from tests.support.simulation import Simulation


def went(
    run: LocalRun, asks: Mapping[int, tuple[str, int | None]], restarts: Collection[int] = ()
) -> tuple[list[int], list[int], list[tuple[str, str]]]:
    """The batches in which DuckDB gives results, those in which there is something left to fold after it, and what is told;
    results are right. A place is asked for with a pause, or to be gone to at once."""
    query, found, said = run.steering.query, Counter[tuple[object, ...]](), dict[tuple[str, str], None]()
    asked, left = list[int](), list[int]()
    for batch, rows in enumerate([*ROWS, {}]):
        if batch in asks:
            place, pause_us = asks[batch]
            run.place("q.x", place, Strategy.MOVING_STATE if pause_us is None else Strategy.GRADUAL, pause_us or 0)
        is_there = "q.x" not in run.execution.home
        step = run.step(batch, rows)
        found += oracle.bag(step.results)
        assert bool(step.statistics.borders) <= is_there
        asked += [batch] if is_there else []
        left += [batch] if step.statistics.preparing.unfolded else []
        said |= dict.fromkeys((e.event, e.text) for e in run.steering.journal.entries() if e.event in ("placing", "placed"))
        assert execution_of(execution_record(run.execution, run.forms), run.forms) == run.execution
        run.verify()
        if batch in restarts:
            run = LocalRun(query, run.filesystem)
    assert not oracle.difference(found, oracle.expected(query, ROWS, {}))
    return asked, left, list(said)


@pytest.mark.few(3)
@pytest.mark.parametrize("restarts", [(), range(len(ROWS)), (10, 11), (12,)])
@pytest.mark.parametrize("sql", [ALONE, JOINED])
def test_it_folds_a_segment_in_each_batch_while_the_database_goes_on(sql: str, restarts: Collection[int]) -> None:
    """Of the segments of the window each batch folds one, and the watermark ends another."""
    asked, left, said = went(LocalRun(declared(sql, "fail"), MemoryFilesystem()), {10: ("engine", 0)}, restarts)
    assert left == [10, 11, 12]
    assert asked == [*range(14)]
    assert said == [
        ("placing", "q.x is to run in engine: by request; its rows are folded from batch 10 on, "
                    "0 ms of a batch, or a segment"),
        ("placed", "q.x in engine from batch 14 on: all rows of its window are folded"),
    ]  # fmt: skip


@pytest.mark.parametrize("sql", [ALONE, JOINED])
def test_a_pause_that_is_long_is_over_in_one_batch(sql: str) -> None:
    asked, left, _ = went(LocalRun(declared(sql, "fail"), MemoryFilesystem()), {10: ("engine", 1 << 40)})
    assert (asked, left) == ([*range(11)], [])


@pytest.mark.few(5)
@pytest.mark.parametrize("restarts", [(), range(len(ROWS))])
@pytest.mark.parametrize("sql", [ALONE, JOINED])
@pytest.mark.parametrize(("asks", "asked"), [
    ({10: ("engine", 0), 12: ("duck", 0)}, [*range(31)]),
    ({10: ("engine", 0), 12: ("duck", 0), 13: ("engine", 0)}, [*range(17)]),
    ({10: ("engine", 0), 12: ("engine", None)}, [*range(12)]),
    ({10: ("engine", 0), 12: ("engine", 0)}, [*range(14)]),
    ({10: ("engine", None), 12: ("duck", 0), 14: ("engine", 0)}, [*range(10), *range(12, 18)]),
])  # fmt: skip
def test_who_asks_for_something_else_on_the_way_gets_it(
    sql: str, asks: Mapping[int, tuple[str, int | None]], asked: list[int], restarts: Collection[int]
) -> None:
    assert went(LocalRun(declared(sql, "fail"), MemoryFilesystem()), asks, restarts)[0] == asked


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [1, 2, 99])
@pytest.mark.parametrize("sql", [ALONE, JOINED])
def test_it_may_be_asked_to_stay_and_to_come_between_two_batches(sql: str, workers: int) -> None:
    """What it has folded on the first way is of no use for the second."""
    query, found = declared(sql, "fail"), Counter[tuple[object, ...]]()
    run, kept = LocalRun(query, MemoryFilesystem()), [Kept() for _ in range(workers)]
    for batch, rows in enumerate([*ROWS, {}]):
        run.worker = kept[batch % workers]
        for place in {10: ["engine"], 12: ["duck", "engine"], 20: ["duck", "engine", "duck", "engine"]}.get(batch, []):
            run.place("q.x", place)
        found += oracle.bag(run.step(batch, rows).results)
    assert not oracle.difference(found, oracle.expected(query, ROWS, {}))
    assert "q.x" in run.execution.home


@pytest.mark.parametrize("sql", [ALONE, JOINED])
def test_a_database_that_fails_on_the_way_has_the_rest_folded_at_once(sql: str) -> None:
    run, now = LocalRun(declared(sql), MemoryFilesystem()), [0]
    query, found, homes = run.steering.query, Counter[tuple[object, ...]](), list[bool]()
    with failing(lambda: now[0] in (12, 13), pause=4):
        for batch, rows in enumerate([*ROWS, {}]):
            now[0] = batch
            if batch == 10:
                run.place("q.x", "engine")
            found += oracle.bag(run.step(batch, rows).results)
            homes.append("q.x" in run.execution.home)
    assert not oracle.difference(found, oracle.expected(query, ROWS, {}))
    assert homes.index(True) in (12, 13)
    assert False in homes[homes.index(True) :], "it goes back when its probation is over"


def on_its_way(query: Query, slots: int, workers: int, back: int = 99, **more: Any) -> Simulation:
    loop = partial(Homeward, home=5, back=back)
    return Simulation([query], ROWS[:12], {}, (), slots, to_files=False, loop=loop, workers=workers, **more)


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "slots", "workers"), [("lose", 1, 1), ("tear", 2, 2), ("crash_after", 3, 2)])
@pytest.mark.parametrize("sql", [ALONE, JOINED])
def test_a_driver_that_dies_at_any_put_on_the_way(kind: Any, sql: str, slots: int, workers: int, part: Part) -> None:
    query = declared(sql, "fail")
    whole = on_its_way(query, slots, workers)
    deaths = [left for left in whole.deaths(kind) if left.beside["done"] in range(4, 9)]
    assert any(left.path.startswith("checkpoint/control") for left in deaths)
    events = [entry.event for entry in Journal(whole.checkpoint, "q").entries()]
    assert events.count("placing") == 1
    for left in part.of(deaths):
        again = on_its_way(query, slots, workers)
        again.go_on(left)
        found = again.run()["q"]
        problem = oracle.difference(found, oracle.expected(query, ROWS[:12], {}))
        assert not problem, f"{left}: {problem}"


@pytest.mark.few(2)
@pytest.mark.parametrize("sql", [ALONE, JOINED])
@pytest.mark.parametrize("back", [6, 7, 9])
def test_attempts_that_nobody_hears_of(sql: str, back: int) -> None:
    query = declared(sql, "fail")
    found = on_its_way(query, 2, 2, back, zombies=range(12)).run()["q"]
    assert not oracle.difference(found, oracle.expected(query, ROWS[:12], {}))
