"""What is counted of blocks while they run says where they belong: how many groups there are, and how many rows meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.placing import STAYS_BATCHES, PlacingKnowledge, PlacingLoop
from anabranch.control.records import BlockFigures
from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalRun, Steady
from anabranch.errors import FactsError
from anabranch.place.calibrate import FORMAT, Measured
from anabranch.place.statement_of import placed
from anabranch.plan.query import SECOND_US, Query
from anabranch.planning import Planning
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle

SOURCES = "CREATE STREAM s (k BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM t (k BIGINT, ts TIMESTAMP) TIME ts;"
GROUPS = "SELECT k, COUNT(*) AS n FROM s [RANGE 1 SECOND] GROUP BY k"
JOINS = "SELECT s.k, COUNT(*) AS n FROM s [RANGE 2 SECONDS], t [RANGE 2 SECONDS] WHERE s.k = t.k GROUP BY s.k"
KEYS = 5


def calibrated(seconds: float) -> Measured:
    return Measured(
        FORMAT, "here", True, seconds, {each: {1: seconds} for each in ("in", "out", "group", "probe", "join")}
    )  # fmt: skip


CHEAP, DEAR = calibrated(1e-15), calibrated(10.0)


def bound(sql: str) -> Query:
    return parse_script(f"{SOURCES} CREATE QUERY q AS {sql};").queries[0].query


def batch_of(second: int, rows: int = 20) -> dict[str, pa.Table]:
    us = second * SECOND_US + np.arange(rows) * (SECOND_US // rows)
    table = pa.table({"k": np.arange(rows) % KEYS, "ts": pa.array(us, pa.timestamp("us"))})
    return {"s": table, "t": table}


def planning(facts: Given = EMPTY) -> Planning:
    found = Planning(facts=facts, slots=1)
    found.units = replace(DEFAULT, accept=0.0)
    return found


def went(
    sql: str, known: Measured, batches: int, place: dict[int, str] | None = None, restarts: Collection[int] = (),
    facts: Given = EMPTY,
) -> tuple[list[int], LocalRun]:  # fmt: skip
    """The batches in which DuckDB runs the query itself, which starts where it is cheapest; results are right."""
    plans, disk, found, there = planning(facts), MemoryFilesystem(), Counter[tuple[object, ...]](), list[int]()
    given = [{name: rows for name, rows in batch_of(n).items() if f"{name} [" in sql} for n in range(batches)]

    def opened(query: Query) -> LocalRun:
        run = LocalRun(query, disk)
        choose, costs = plans.choose_places, lambda _: known.costs()
        if plans.moving_places(query):
            knowledge = PlacingKnowledge(choose, plans.units, facts, database_costs=costs)
            run.steering.loop = PlacingLoop(Steady(), run.forms, knowledge)
        return run

    with mock.patch("anabranch.planning.remembered", return_value=known):
        query = plans.placed(bound(sql))
        run = opened(query)
        for batch, rows in enumerate(given):
            if batch in (place or {}):
                run.place("q", (place or {})[batch])
            found += oracle.bag(run.step(batch, rows).results)
            may_go = {*query.places, *(each.block for each in run.execution.woken)}
            there += [batch] if may_go - run.execution.home else []
            if batch in restarts:
                run = opened(query)
        found += oracle.bag(run.step(batches, {}).results)
    assert not oracle.difference(found, oracle.expected(query, given, {}))
    return there, run


@pytest.mark.parametrize("sql", [GROUPS, JOINS, f"{GROUPS} HAVING COUNT(*) > 400"])
@pytest.mark.parametrize("slots", [1, 2])
def test_groups_are_counted_wherever_they_are_made(sql: str, slots: int) -> None:
    """A slot makes some of them, at the same instants; a batch has three."""
    query, passes = bound(sql), "HAVING" not in sql
    runs = [LocalRun(each, MemoryFilesystem(), slots=slots) for each in (query, placed(query, {"q": "duck"}))]
    for batch in range(4):
        parts = [batch_of(3 * batch + n, 500) for n in range(3)]
        rows = {name: pa.concat_tables(part[name] for part in parts) for name in ("s", "t") if f"{name} [" in sql}
        engine, duck = (run.step(batch, rows).statistics for run in runs)
        if batch < 2:
            continue  # at second 0 there is one row
        assert not engine.borders
        assert not duck.grouped
        counted, border = engine.grouped["q"], duck.borders["q"]
        assert (counted.instants, counted.groups) == (3, 3 * KEYS), "before HAVING"
        assert (border.instants, border.rows_back) == (3, 3 * KEYS if passes else 0)


def test_a_block_starts_in_the_engine_and_goes_when_its_groups_are_counted() -> None:
    there, run = went(GROUPS, CHEAP, STAYS_BATCHES + 12)
    assert there
    assert there[0] >= STAYS_BATCHES
    assert there[-1] == STAYS_BATCHES + 11
    assert run.steering.figures == {"q": BlockFigures(groups=KEYS)}
    there, _ = went(GROUPS, CHEAP, 4, facts=Given(distinct={"s.k": KEYS}))
    assert there == [*range(4)], "it is told how many there are"
    assert went(GROUPS, DEAR, STAYS_BATCHES + 12)[0] == []


def test_a_block_that_was_sent_there_comes_home_when_its_groups_are_counted() -> None:
    """DuckDB takes more than calibrated for nothing: its cost is known as soon as it has handed groups out."""
    there, run = went(GROUPS, DEAR, STAYS_BATCHES + 20, place={0: "duck"})
    assert there
    assert there[-1] < STAYS_BATCHES + 16
    assert run.steering.figures["q"].groups == KEYS


@pytest.mark.few(1)
@pytest.mark.parametrize("restarts", [(22,), (), (21, 22, 25)])
def test_a_join_that_was_sent_there_comes_home_by_what_its_lookups_found_before(restarts: Collection[int]) -> None:
    """While DuckDB joins nobody counts how many rows meet: records remember it, over a restart."""
    there, run = went(JOINS, DEAR, 2 * STAYS_BATCHES, place={20: "duck"}, restarts=restarts)
    assert 21 in there
    assert there[-1] < 2 * STAYS_BATCHES - 1
    figures = run.steering.figures["q"]
    assert figures.groups == KEYS
    assert figures.distinct == {"s.k": pytest.approx(KEYS, rel=0.2), "t.k": pytest.approx(KEYS, rel=0.2)}


def test_figures_of_blocks_that_are_gone_are_forgotten() -> None:
    _, run = went(GROUPS, DEAR, 12)
    run.steering.figures = {"gone": BlockFigures(groups=3.0), "q": BlockFigures(groups=KEYS)}
    loop = PlacingLoop(Steady(), run.forms, PlacingKnowledge(planning().choose_places, DEFAULT, EMPTY))
    assert run.commit is not None
    loop.after(run.execution, run.steering.observed(run.commit))
    assert loop.figures.keys() == {"q"}


def test_facts_of_keys_that_groups_are_made_by() -> None:
    found = planning(Given(distinct={"s.k": 5.0, "(s.k % 3)": 3.0}, passing={"r": 0.5}))
    groups = "SELECT s.k, s.k % 3 AS m, COUNT(*) AS n FROM s [RANGE 1 SECOND] GROUP BY s.k, s.k % 3;"
    script = f"{SOURCES} CREATE QUERY q AS {groups}"
    joins = "CREATE QUERY r AS SELECT s.ts FROM s [NOW], t [NOW] WHERE s.k = t.k AND s.ts < t.ts;"
    found.add_script(parse_script(f"{script} {joins}"))
    found.check_facts()
    found.facts = Given(distinct={"s.kk": 5.0})
    with pytest.raises(FactsError, match=r"distinct s\.kk: no query joins or groups by such a key; .*did you mean s\.k"):
        found.check_facts()
    found.facts = Given(passing={"q": 0.5})
    with pytest.raises(FactsError, match="passing q: there is no such block that joins"):
        found.check_facts()
