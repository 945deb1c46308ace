"""Where a block runs follows the rates of its stream, and does not flutter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import pytest

from anabranch.adapt.placing import STAYS_BATCHES, PlacingKnowledge, PlacingLoop
from anabranch.control.loop import Observed, Proposal
from anabranch.control.records import SourceStatistics, Statistics
from anabranch.cost.facts import EMPTY
from anabranch.cost.model import UnitCosts
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import Steady
from anabranch.drive.transition import transition
from anabranch.place.calibrate import FORMAT, Measured
from anabranch.place.statement_of import placed
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.query import SECOND_US
from anabranch.planning import Planning
from anabranch.sql import parse_script

FOLD = DEFAULT.fold
DUCK = Measured(
    FORMAT, "here", True, 1000 * FOLD,
    {"in": {1: 0.0}, "out": {1: 0.0}, "group": {1: FOLD / 2}, "probe": {1: FOLD}, "join": {1: FOLD}},
)  # fmt: skip
SQL = "SELECT {} x.n FROM (SELECT COUNT(*) AS n FROM s [RANGE 1 SECOND]) x"


def forms(hint: str = "", places: Mapping[str, str] = MappingProxyType({"q.x": "duck"})) -> Forms:
    script = parse_script(f"CREATE STREAM s (k BIGINT, ts TIMESTAMP) TIME ts; CREATE QUERY q AS {SQL.format(hint)};")
    return Forms(placed(script.queries[0].query, places))


def moves(
    found: Forms, rates: Sequence[int], monkeypatch: pytest.MonkeyPatch, units: UnitCosts = DEFAULT
) -> Iterator[tuple[int, str]]:
    """When the block goes where, over batches of a second that bring so many rows."""
    monkeypatch.setattr("anabranch.planning.remembered", lambda name: DUCK)
    planning = Planning(slots=1)
    planning.units = units
    known = PlacingKnowledge(planning.choose_places, units, EMPTY)
    loop, execution = PlacingLoop(Steady(), found, known), Execution(left_deep(found.graphs[None]))
    for batch, rows in enumerate(rates):
        counted = SourceStatistics(rows=rows, stored_rows=rows)
        said = loop.after(execution, Observed(batch, {"s": batch * SECOND_US}, Statistics(sources={"s": counted})))
        if isinstance(said, Proposal):
            after = transition(found, execution, said.action, batch + 1, {})
            assert isinstance(after, Execution)
            assert isinstance(said.action, PlaceBlock)
            assert said.details["c_u"] < said.details["c_u_before"]
            # Whatever there is to fold is folded in the next batch.
            execution = replace(after, folding=(), home=after.home | {each.block for each in after.folding})
            yield batch, said.action.place


def test_a_block_goes_where_its_rates_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [100_000] * 50 + [10] * 50 + [100_000] * 60
    (first, home), (second, back) = moves(forms(), rates, monkeypatch)
    assert (home, back) == ("engine", "duck")
    assert 50 < first < 80
    assert 100 < second < 140


def test_rates_that_change_all_the_time_move_nothing_often(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = ([100_000] * 12 + [10] * 12) * 12
    found = list(moves(forms(), rates, monkeypatch))
    assert all(later - earlier >= STAYS_BATCHES for (earlier, _), (later, _) in pairwise(found))


def test_a_block_that_began_in_the_engine_goes_if_its_log_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [10] * 50 + [100_000] * 60 + [10] * 60
    (first, there), (second, back) = moves(forms(places={}), rates, monkeypatch, replace(DEFAULT, accept=FOLD / 100))
    assert (there, back) == ("duck", "engine")
    assert 50 < first < 90
    assert 110 < second < 150
    assert not list(moves(forms(places={}), rates, monkeypatch, replace(DEFAULT, accept=FOLD)))
    kept = forms("/*+ PLACE(x, engine) */", places={})
    assert not list(moves(kept, rates, monkeypatch, replace(DEFAULT, accept=FOLD / 100)))


def test_a_hint_keeps_a_block_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(moves(forms("/*+ PLACE(x, duck) */"), [10] * 100, monkeypatch))


def test_what_is_nearly_as_good_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement costs as much as folding a thousand rows: at 1,900 rows a second both take nearly the same."""
    assert not list(moves(forms(), [1_900] * 100, monkeypatch))
