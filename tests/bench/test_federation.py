"""Paper 004 again: what follows from the equations alone, whatever machine it runs on; and placements that run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from anabranch.cost import units
from anabranch.place.calibrate import FORMAT, Measured
from bench.papers.federation import figures, measured, placements, sustained, tables, verdicts
from bench.papers.federation.published import RATES
from bench.papers.federation.queries import CQ


@pytest.fixture(scope="module")
def model() -> list[dict[str, Any]]:
    return figures.model(RATES)


def test_plans_are_as_many_as_printed() -> None:
    assert [(row["plans"], row["operators"]) for row in tables.table_2(1)] == [(11, 6), (312, 15), (8411, 24)]
    assert all(row["plans"] == row["by the paper"] for row in tables.chains())


def test_the_choices_of_figure_5_that_one_set_of_costs_gives(model: list[dict[str, Any]]) -> None:
    told = {(row["query"], row["rate"]): row["as printed"] for row in model}
    assert all(told[name, rate] for name in ("CQ3", "CQ5") for rate in (1000, 5000, 15_000, 25_000, 40_000))
    assert told["CQ6", 5000]
    assert not told["CQ6", 15_000]


def test_every_claim_has_a_verdict(model: list[dict[str, Any]]) -> None:
    told = [
        *verdicts.of_table_2(tables.table_2(1), tables.chains()),
        *verdicts.of_table_3(tables.table_3(1)),
        *verdicts.of_figures(model),
    ]
    by_claim = {row["claim"]: row["verdict"] for row in told}
    assert len(by_claim) == len(told)
    assert by_claim["11, 312 and 8411 plans are looked at with pruning"] == "reproduced"
    assert by_claim["CQ5 moves to the engine above 10,000 rows/s, for C_u"] == "partly", "costs are fitted to it"


@pytest.fixture(scope="module")
def ran() -> list[dict[str, Any]]:
    """What the engine takes on this machine need not be measured for it: `tests/drive/test_calibrate.py` does."""
    with mock.patch.object(measured, "calibrate", return_value=units.DEFAULT):
        return measured.measured(measured.QUICK)


def test_all_placements_that_run_give_the_same(ran: list[dict[str, Any]]) -> None:
    """CQ2's mean is compared with loads, so that DuckDB must not make it: that is refused, and nothing else is."""
    assert {(row["query"], row["in DuckDB"]) for row in ran if "why not" in row} == {
        ("CQ2", "m"),
        ("CQ2", "m, the top"),
    }
    compared = [row for row in ran if "same" in row]
    assert len(compared) == 4 + 2 + 8 + 8 + 4 + 11
    assert all(row["same"] for row in compared), [
        (row["query"], row["in DuckDB"]) for row in compared if not row["same"]
    ]
    assert [row["query"] for row in ran if row["is chosen"]] == [*CQ]
    assert all(0 < row["asking, share"] < 1 for row in compared if row["in DuckDB"] != placements.ENGINE)


def test_what_was_measured_has_verdicts(ran: list[dict[str, Any]]) -> None:
    told = {row["claim"]: row["verdict"] for row in verdicts.of_measured(ran)}
    assert told["all placements give the same multiset"] == "reproduced"
    assert len(told) == 4
    assert [row["measured"] + row["left out"] for row in measured.summary(ran)] == [5, 5, 9, 9, 5, 12]


def test_a_placement_beats_the_chosen_one_only_surely_and_by_a_tenth() -> None:
    rows = [{"of chosen": ratio, "low": 0.1, "high": high}
            for ratio, high in ((0.8, 0.95), (0.8, 1.2), (0.95, 0.99), (0.5, None))]  # fmt: skip
    assert measured.beaten(rows) == rows[:1]


@pytest.mark.parametrize("most", [300, 12_345, 39_000, 41_000, 150_000, 199_000])
@pytest.mark.parametrize("power", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("knows", [True, False])
def test_the_largest_sustained_rate_lies_between_two_that_are_near(most: int, power: float, knows: bool) -> None:
    tried: list[int] = []

    def seconds_at(rate: int) -> float:
        tried.append(rate)
        return float((rate / most) ** power)

    over = next(rate for rate in measured.RATES if rate >= most)
    below = [rate for rate in measured.RATES if rate < most]
    kept = (below[-1], (below[-1] / most) ** power) if below and knows else None
    found = sustained.largest_sustained(seconds_at, (over, (over / most) ** power), kept)
    assert found.over is not None
    assert found.kept <= most <= found.over
    assert found.over <= sustained.APART * found.kept
    assert len(tried) <= sustained.STEPS + 5 * (kept is None)


def test_a_rate_that_is_never_kept_up_with_is_told_so() -> None:
    found = sustained.largest_sustained(lambda rate: 2.0, (1_000, 3.0))
    assert (found.kept, found.over) == (0.0, sustained.LEAST_RATE)


def test_who_does_not_keep_up_is_compared_by_the_largest_sustained_rate() -> None:
    """The chosen one keeps up with 200, and nobody knows how far that goes; the other with no more than 50. Or the other way
    round: then the chosen one is beaten, by more than a tenth and surely."""
    far, near = sustained.Sustained(200.0), sustained.Sustained(48.0, 50.0)
    told = {**sustained.compared(far, near), "in DuckDB": "x", "query": "CQ1", "rate": 200}
    assert (told["low"], told["high"]) == (4.0, None)
    assert not measured.beaten([told])
    lost = {**sustained.compared(near, far), "in DuckDB": "x", "query": "CQ1", "rate": 200}
    assert (lost["low"], lost["high"]) == (0.0, 0.25)
    assert measured.beaten([lost]) == [lost]
    nearly = sustained.compared(sustained.Sustained(48.0, 50.0), sustained.Sustained(49.0, 51.0))
    assert not measured.beaten([nearly])


def test_placements_that_do_not_keep_up_are_measured_at_lower_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are said to take as long as the rate has it: 150 rows/s are kept up with in DuckDB, 350 in the engine."""
    inner = measured.Measuring.measure

    def timed(self: measured.Measuring) -> float:
        spent = inner(self)
        is_there = any(block.statement is not None for block in self.run.steering.query.blocks)
        self.wall_s[-1] = self.source.rate_per_s / (150 if is_there else 350)
        return spent

    monkeypatch.setattr(measured.Measuring, "measure", timed)
    monkeypatch.setattr(measured, "calibrated", lambda _: nullcontext())
    monkeypatch.setattr(measured, "chosen_at", lambda *_, **__: (frozenset(), None))
    sizes = measured.Sizes((100, 200, 400), 2, (1_000,), gives_up=False, names=("CQ5",), filling_s=(19, 1))
    rows = measured.measured(sizes)
    told = {(row["rate"], row["in DuckDB"]): row for row in rows}
    assert told[100, "the top"]["compared by"] == sustained.BY_CPU
    beside = told[200, "the top"]
    assert beside["compared by"] == sustained.BY_RATE
    assert beside["sustains"] <= 150 <= beside["not"]
    assert (beside["low"], beside["high"]) == (200 / beside["not"], None)
    most, chosen = told[400, "the top"], told[400, placements.ENGINE]
    assert chosen["sustains"] <= 350 <= chosen["not"]
    assert most["low"] <= 350 / 150 <= most["high"]
    assert [row["compared by rate"] for row in measured.summary(rows)] == [0, 4, 4]
    assert "of 12 compared 8 by the largest sustained rate" in verdicts.of_measured(rows)[0]["measured"]


@pytest.mark.parametrize("name", CQ)
def test_what_is_chosen_goes_through_the_check_of_facts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing told all stays in the engine, also beside a database that takes nothing."""
    free = Measured(FORMAT, "here", True, 0.0, {each: {1: 0.0} for each in ("in", "out", "group", "probe", "join")})
    monkeypatch.setattr("anabranch.planning.remembered", lambda _: free)
    assert measured.chosen_at(name, 100, measured.NOTHING)[0] == frozenset()
    there, choice = measured.chosen_at(name, 100)
    assert choice is not None
    assert choice.blocks == there
    if name == "CQ1":
        assert "CQ1" not in measured.chosen_at(name, 100, measured.NO_SHARES)[0]


def test_rows_that_differ_are_seen() -> None:
    one = pa.table({"k": [1, 2], "n": [3, 4]})
    assert not measured.same_rows(one, pa.table({"k": [1, 2], "n": [3, 5]}))
    assert not measured.same_rows(one, one.slice(1))
