"""What batches measure of a database corrects what was calibrated: a block goes where that has it, and a restart goes on
with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.placing import STAYS_BATCHES, PlacingKnowledge, PlacingLoop
from anabranch.control.loop import Observed
from anabranch.control.pace import Pace
from anabranch.control.progress import progress_of
from anabranch.control.records import Border, Statistics
from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalRun, Steady
from anabranch.errors import QueryError
from anabranch.place.calibrate import FORMAT, Measured
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.statement_of import placed
from anabranch.plan.query import SECOND_US, Query
from anabranch.planning import Planning
from anabranch.show.placement import placement_json, placement_text
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle

FOLD = 1e-3
"""So slow is the engine here: what it takes is what the model says, whatever it really takes."""
RATE = 20
"""Rows a second, each a batch: folding them takes RATE · FOLD."""
SQL = "SELECT x.n FROM (SELECT COUNT(*) AS n FROM s [RANGE 1 SECOND]) x"
SOURCES = "CREATE STREAM s (k BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM t (k BIGINT, ts TIMESTAMP) TIME ts;"


def calibrated(share: float) -> Measured:
    """A database that takes such a share of what the engine takes, a tenth of it for the round trip."""
    row_s = {"in": 0.0, "out": 0.0, "group": 0.9 * share * FOLD, "probe": share * FOLD, "join": share * FOLD}
    return Measured(FORMAT, "here", True, 0.1 * share * RATE * FOLD, {what: {1: s} for what, s in row_s.items()})


@dataclass
class Paced:
    """DuckDB, which takes as long as somebody says, by a clock of its own."""

    a_call_s: Callable[[int], float]
    now_s: float = 0.0
    calls: int = 0
    fails: Collection[int] = ()
    inner: object = field(default_factory=lambda: open_embedded("duck"))

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        self.now_s += self.a_call_s(sum(rows.num_rows for rows in relations.values()))
        self.calls += 1
        if self.calls in self.fails:
            raise QueryError("DuckDB: out of memory")
        return self.inner.run(sql, relations)  # type: ignore[attr-defined]

    def run_all(self, sql: str, given: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        self.now_s += self.a_call_s(sum(rows.num_rows for each in given for rows in each.values()))
        self.calls += 1
        return self.inner.run_all(sql, given)  # type: ignore[attr-defined]

    def close(self) -> None:
        """It goes on."""


@contextmanager
def paced(database: Paced, known: Measured | None) -> Iterator[None]:
    with (
        mock.patch("anabranch.drive.work.open_embedded", side_effect=lambda _: database),
        mock.patch("anabranch.engine.mig_box.perf_counter", side_effect=lambda: database.now_s),
        mock.patch("anabranch.planning.remembered", side_effect=lambda _: known),
    ):
        yield


def bound(sql: str) -> Query:
    return parse_script(f"{SOURCES} CREATE QUERY q AS {sql};").queries[0].query


def planning() -> Planning:
    found = Planning(slots=1)
    found.units = replace(DEFAULT, fold=FOLD, accept=0.0)
    return found


def opened(query: Query, disk: MemoryFilesystem) -> LocalRun:
    run, plans = LocalRun(query, disk), planning()
    run.steering.loop = PlacingLoop(Steady(), run.forms, PlacingKnowledge(plans.choose_places, plans.units, EMPTY))
    return run


def batch_of(second: int) -> dict[str, pa.Table]:
    us = second * SECOND_US + np.arange(RATE) * (SECOND_US // RATE)
    return {"s": pa.table({"k": np.arange(RATE), "ts": pa.array(us, pa.timestamp("us"))})}


@dataclass
class Went:
    """What became of a run."""

    run: LocalRun
    there: list[int]
    """The batches in which DuckDB gave the results."""
    said: list[str]
    paces: list[Mapping[str, float]]
    """As progress tells them."""


def went(
    batches: int, share: float | None, ratio: Callable[[], float], restarts: Collection[int] = (),
    asks: Mapping[int, str] | None = None, fails: Collection[int] = (), failure: str = "fail",
) -> Went:  # fmt: skip
    """Has a block run in DuckDB that takes so many times what was calibrated; results are right."""
    known = None if share is None else calibrated(share)
    costs = calibrated(1.0 if share is None else share)
    database = Paced(lambda rows: ratio() * (costs.round_trip_s + rows * costs.row_s["group"][1]), fails=fails)
    query, disk, found = placed(bound(SQL), {"q.x": "duck"}, failure), MemoryFilesystem(), Counter[tuple[object, ...]]()
    given, there, told = [batch_of(second) for second in range(batches)], list[int](), list[Mapping[str, float]]()
    with paced(database, known):
        run = opened(query, disk)
        for batch, rows in enumerate([*given, {}]):
            if batch in (asks or {}):
                run.place("q.x", (asks or {})[batch])
            if "q.x" not in run.execution.home:
                there.append(batch)
            found += oracle.bag(run.step(batch, rows).results)
            assert run.commit is not None
            told.append(progress_of(query, run.commit, "", {}).paces)
            if batch in restarts:
                run = opened(query, disk)
    assert not oracle.difference(found, oracle.expected(query, given, {}))
    return Went(run, there, [e.text for e in run.steering.journal.entries() if e.event == "placing"], told)


def test_a_block_whose_database_is_much_slower_than_calibrated_comes_home_and_stays() -> None:
    found = went(130, 0.6, lambda: 4.0)
    assert STAYS_BATCHES <= found.there[-1] < 60
    assert found.there == [*range(len(found.there))], "it does not go back"
    (said,) = found.said
    assert "q.x is to run in engine" in said
    assert "duck takes 4 times as long as calibrated" in said
    assert found.paces[0] == {}
    assert found.paces[-1] == {"q.x": pytest.approx(4.0)}


def test_one_that_is_as_calibrated_stays() -> None:
    found = went(100, 0.6, lambda: 1.0)
    assert found.there == [*range(101)]
    assert found.said == []


def test_a_call_for_many_instants_is_priced_as_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has twenty seconds, whose instants are asked for in one statement, which takes as long as 200 round trips: an
    instant is priced as 10 of them, not as 200."""
    known, query, seconds = calibrated(0.6), placed(bound(SQL), {"q.x": "duck"}), 20
    monkeypatch.setattr("anabranch.adapt.placing.STAYS_BATCHES", 1000)
    trip_s = known.round_trip_s
    database, counted = Paced(lambda rows: 200 * trip_s + rows * known.row_s["group"][1]), list[Border]()
    with paced(database, known):
        run = opened(query, MemoryFilesystem())
        for batch in range(40):
            rows = pa.concat_tables(batch_of(batch * seconds + n)["s"] for n in range(seconds))
            counted += run.step(batch, {"s": rows}).statistics.borders.values()
        pace, facts, there = run.steering.paces, Given(rates={"s": float(RATE)}), frozenset({"q.x"})
        choice = planning().choose_places(query, facts, there, there, pace)
    assert choice is not None
    assert choice.decision is not None
    assert {(border.calls, border.instants) for border in counted[1:]} == {(1, seconds)}
    assert pace["q.x"].counts
    assert choice.decision.use.database == pytest.approx(counted[-1].seconds / seconds, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_what_scatters_moves_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = went(120, 0.85, lambda: float(np.exp(rng.normal(0.0, 0.4))))
    assert found.there == [*range(121)]
    assert all(each == {} for each in found.paces)


@pytest.mark.few(1)
@pytest.mark.parametrize("restarts", [(60,), range(55, 130)])
def test_a_restart_knows_what_was_measured(restarts: Collection[int]) -> None:
    """Else the block would go back by what was calibrated."""
    found = went(130, 0.6, lambda: 4.0, restarts)
    assert found.there == [*range(len(found.there))]
    assert found.there[-1] < 60
    assert found.run.steering.paces["q.x"].ratio == pytest.approx(4.0)


def test_one_that_is_faster_than_calibrated_stays_and_goes() -> None:
    """By what was calibrated the engine takes less."""
    slow = went(70, 1.5, lambda: 1.0)
    assert slow.there[-1] < 60
    found = went(70, 1.5, lambda: 0.2)
    assert found.there == [*range(71)]
    assert found.paces[-1] == {"q.x": pytest.approx(0.2)}
    sent_home = went(130, 1.5, lambda: 0.2, asks={40: "engine"})
    assert 40 not in sent_home.there[-20:]
    assert sent_home.there[-1] == 130, "it goes back"
    assert len(sent_home.there) < 130


def test_what_was_never_calibrated_is_not_trusted_however_fast_it_is() -> None:
    found = went(130, None, lambda: 0.01, asks={40: "engine"})
    assert found.there[-1] <= 41, "all is folded"
    assert found.run.steering.paces == {}


def test_calls_that_fail_tell_nothing() -> None:
    """Each takes a hundred times as long, and the engine makes up for it."""
    with mock.patch("anabranch.drive.probation.FIRST_PAUSE_BATCHES", 1):
        database_calls = range(10, 60, 3)
        slow = iter(range(1, 10_000))
        found = went(
            60, 0.6, lambda: 100.0 if next(slow) in database_calls else 1.0, fails=database_calls, failure="engine"
        )
    assert all(each == {} for each in found.paces)


def test_explain_says_what_was_measured() -> None:
    found, plans = went(60, 0.6, lambda: 4.0), planning()
    query, paces = found.run.steering.query, found.run.steering.paces
    with mock.patch("anabranch.planning.remembered", return_value=calibrated(0.6)):
        facts = Given(rates={"s": float(RATE)})
        choice = plans.choose_places(query, facts, frozenset(), frozenset({"q.x"}))
    text = " ".join((placement_text(choice, query, paces=paces) or "").split())
    assert f"measured: q.x in duck takes {paces['q.x']}" in text
    assert "chance" not in text
    assert (placement_json(choice, query, paces=paces) or {})["paces"] == {
        "q.x": {"ratio": pytest.approx(4.0), "batches": paces["q.x"].batches, "counts": True}
    }
    few = {"q.x": Pace(0.1, 0.0, 1, 0, calibrated(0.6).round_trip_s)}
    text = " ".join((placement_text(choice, query, paces=few) or "").split())
    assert "1.1 times as long as calibrated, 1 batch, which may be chance: what was calibrated stands" in text


@pytest.mark.parametrize(("sql", "block"), [
    (SQL, "q.x"), (SQL.replace("[RANGE 1 SECOND]", "[RANGE 30 SECONDS] WHERE k > 3"), "q.x"),
    ("SELECT COUNT(*) AS n FROM s [RANGE 9 SECONDS], t [RANGE 4 SECONDS] WHERE s.k = t.k SLIDE 2 SECONDS", "q"),
    ("SELECT s.k, COUNT(*) AS n FROM s [RANGE 9 SECONDS], t [RANGE 4 SECONDS] WHERE s.k = t.k GROUP BY s.k "
     "HAVING COUNT(*) > 1", "q"),
])  # fmt: skip
def test_what_calls_are_expected_to_take_is_what_the_placement_uses(sql: str, block: str) -> None:
    """Of a second of calls, over windows that are full."""
    query = placed(bound(sql), {block: "duck"})
    facts = Given(rates={"s": 50.0, "t": 20.0}, distinct={"s.k": 7.0, "t.k": 7.0})
    measured = Measured(FORMAT, "here", True, 0.02, {
        "in": {1: 1e-6}, "out": {1: 2e-6}, "group": {1: 3e-6}, "probe": {1: 4e-6}, "join": {1: 5e-6},
    })  # fmt: skip
    with mock.patch("anabranch.planning.remembered", return_value=measured):
        choice = planning().choose_places(query, facts, frozenset({block}), frozenset({block}))
    assert choice is not None
    assert choice.decision is not None
    (asked,) = (each for each in query.blocks if each.name == block)
    calls, rows = 2, 0.0
    for i in asked.inputs:
        assert i.window.length_us is not None
        rows += facts.rates[i.source.name] * i.window.length_us / 1e6
    slides = 1e6 / asked.grouping.slide_us  # type: ignore[union-attr]
    expected = choice.calls[block].seconds(calls, round(calls * rows))
    assert expected == pytest.approx(calls / slides * choice.decision.use.database)


def test_no_other_block_goes_while_the_rows_of_one_are_kept_for_a_database() -> None:
    """The next best placement is then one that can be had."""
    block = "(SELECT k, COUNT(*) AS n FROM s [RANGE {} SECONDS] GROUP BY k)"
    query = bound(f"SELECT x.n FROM {block.format(1)} x, {block.format(2)} y WHERE x.k = y.k")
    query, facts = placed(query, {"q.x": "duck"}), Given(distinct={"s.k": 5.0})
    with mock.patch("anabranch.planning.remembered", return_value=calibrated(0.6)):
        choice = planning().choose_places(query, facts, frozenset({"q.x"}), frozenset({"q.x"}))
        free = planning().choose_places(query, facts, frozenset(), frozenset())
    assert choice is not None
    assert choice.other is not None
    assert choice.other.in_database == frozenset()
    assert choice.calls.keys() == {"q.x"}
    assert free is not None
    assert free.calls.keys() == {"q.x", "q.y"}


def test_nothing_is_told_of_what_did_not_run() -> None:
    loop = went(60, 0.6, lambda: 4.0).run.steering.loop
    assert loop.took(Observed(60, {}, Statistics(borders={"other": Border("duck", 1, 5, 5)}))) == {}
    assert loop.took(Observed(60, {}, Statistics(borders={"q.x": Border("duck", 1, 5, 5)}))).keys() == {"q.x"}
    assert loop.took(Observed(60, {}, Statistics(borders={"q.x": Border("duck", 1, 5, 5, failed=1)}))) == {}


def test_what_was_measured_beside_another_calibration_is_forgotten() -> None:
    """The database was calibrated anew since: its costs are multiplied with nothing."""
    query, paces = placed(bound(SQL), {"q.x": "duck"}), went(60, 0.6, lambda: 4.0).run.steering.paces
    facts, there = Given(rates={"s": float(RATE)}), frozenset({"q.x"})

    def uses(share: float, given: Mapping[str, Pace]) -> float:
        with mock.patch("anabranch.planning.remembered", return_value=calibrated(share)):
            choice = planning().choose_places(query, facts, there, there, given)
        assert choice is not None
        assert choice.decision is not None
        assert ("measured:" in (placement_text(choice, query, paces=paces) or "")) == (share == 0.6)
        return choice.decision.use.database

    assert uses(0.6, paces) == pytest.approx(4 * uses(0.6, {}))
    assert uses(0.9, paces) == uses(0.9, {})


@pytest.mark.parametrize("slots", [1, 2])
def test_slots_tell_what_lookups_of_a_subquery_find(slots: int) -> None:
    """So that one that joins may go to a database by itself: nobody else tells how many of its rows meet."""
    sql = "SELECT x.k, x.n FROM (SELECT s.k, COUNT(*) AS n FROM s [RANGE 2 SECONDS], t [RANGE 2 SECONDS] WHERE s.k = t.k "
    query = bound(f"{sql} GROUP BY s.k) x")
    run, found = LocalRun(query, MemoryFilesystem(), slots=slots), list[tuple[int, int]]()
    for second in range(4):
        rows = batch_of(second)["s"]
        step = run.step(second, {"s": rows, "t": rows.slice(0, 5)})
        probed = step.statistics.blocks
        assert probed.keys() == {"q.x"}
        assert step.statistics.steps == []
        found.append((sum(each.probes for each in probed["q.x"].steps), sum(each.matches for each in probed["q.x"].steps)))
    assert found[0] == (RATE + 5, 5)
    assert all(probes == RATE + 5 and matches > 5 for probes, matches in found[1:])
    placed_run = LocalRun(placed(query, {"q.x": "duck"}), MemoryFilesystem())
    assert placed_run.step(0, {"s": batch_of(0)["s"], "t": batch_of(0)["s"]}).statistics.blocks == {}
