"""What the next batch is expected to take, and allowances that fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.adapt.forecast import (
    Capacity,
    Forecast,
    SlotForecast,
    allocate,
    costs_after,
    forecast,
    in_all,
    level,
    lookup_cores,
)
from anabranch.adapt.load import Probing, Sample, SlotLoad
from anabranch.overload.by_cpu import Direction, by_results_per_cpu, uniform

LIVE = Capacity(2.0)
WAYS = [("q", "a"), ("q", "b"), ("r", "a")]


def slot(own_s: float, *costs: tuple[float, float, float]) -> SlotForecast:
    """A slot whose directions have so many rows, that cost and give so much."""
    found = {way: Direction(".".join(way), *cost) for way, cost in zip(WAYS, costs, strict=False)}
    return SlotForecast(own_s, found, {way: each.rows for way, each in found.items()})


def expected(*slots: SlotForecast, capacity: Capacity = LIVE, other_s: float = 0.2, kept: float = 1.0) -> Forecast:
    return Forecast(1.0, other_s, dict(enumerate(slots)), capacity, kept)


costs = st.tuples(st.integers(1, 5000).map(float), st.floats(1e-7, 1e-3), st.floats(0, 100))
slots = st.builds(lambda own, ways: slot(own, *ways), st.floats(0, 0.5), st.lists(costs, min_size=3, max_size=3))


@given(st.lists(slots, min_size=1, max_size=6), st.floats(0.1, 1.0), st.sampled_from([None, 0.5, 3.0]), st.booleans())
def test_allowances_fit_wherever_pilots_do(made: list[SlotForecast], target: float, cpu: float | None, live: bool) -> None:
    found = expected(*made, capacity=Capacity(2.0, cpu, live))
    for divide in (by_results_per_cpu, uniform):
        allowances = allocate(found, target, divide, 0.01)
        load = found.load_of(found.under(allowances))
        if found.full_load <= target:
            assert not allowances
        # What is shared may be too much for a slot whose own work alone is above its part: then the next batch corrects it.
        rows = sum(len(each.directions) for each in made)
        if all(each.own_s <= 0.01 for each in made):
            worst = max(d.cpu_s_per_row for each in made for d in each.directions.values())
            room = max(target, found.least_load(0.01))
            assert load <= room + (rows + 1) * worst * (1 + 1 / (cpu or 1)) + 0.03 * (1 + 1 / (cpu or 1))


def test_a_hot_slot_has_allowances_of_its_own() -> None:
    found = expected(slot(0.1, (1000, 1e-4, 5)), slot(0.1, (9000, 1e-4, 5)))
    allowances = allocate(found, 0.9, by_results_per_cpu, 0.05)
    assert allowances == {("q", "a"): {1: 6000}}
    assert found.load_of(found.under(allowances)) == pytest.approx(0.9)
    assert in_all(found.under(allowances)).completeness("q") == pytest.approx(0.7)


def test_more_slots_than_cores_share_these() -> None:
    found = expected(*(slot(0.0, (1000, 5e-4, 1)) for _ in range(4)), other_s=0.0)
    assert found.full_load == pytest.approx(1.0), "two seconds of CPU on two cores"
    allowances = allocate(found, 0.5, by_results_per_cpu, 0.0)
    assert allowances == {("q", "a"): dict.fromkeys(range(4), 500)}


def test_rows_that_are_not_shed_any_more_find_partners_that_are_not_either() -> None:
    found = expected(slot(0.1, (1000, 1e-4, 5)), kept=0.5, other_s=0.0)
    assert found.full_load == pytest.approx(0.2)
    assert found.exact_load == pytest.approx(0.1 / 0.5 + 0.1 / 0.25)


def test_cores_of_lookups_are_below_zero_where_all_else_takes_too_much() -> None:
    within = expected(slot(0.2, (1000, 1e-4, 5)), other_s=0.0)
    assert lookup_cores(within, {}, 0.9) == {"q": pytest.approx(0.1)}
    beyond = expected(slot(1.2, (1000, 1e-4, 5)), other_s=0.0)
    assert lookup_cores(beyond, {}, 0.9) == {"q": pytest.approx(0.1 - 0.4)}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0, 300))
def test_the_level_shares_out_all_there_is(needs: list[float], together: float) -> None:
    found = level(needs, together)
    assert sum(min(need, found) for need in needs) == pytest.approx(min(together, sum(needs)))
    assert found == math.inf or found <= max(needs)


def test_what_spark_takes_is_no_more_than_it_was_in_a_longer_batch() -> None:
    """A batch after a long one is short again: what the long one took must not look like an overload."""

    def sample(seconds: float, arrival_s: float) -> Sample:
        return Sample(1, 0.0, seconds, arrival_s, arrival_s, 0.0, 100, {0: SlotLoad(0.1)})

    cold = [sample(4.1, 8.0), sample(3.1, 4.1), sample(2.1, 3.1)]
    assert forecast(cold, 2.1, LIVE, {}).other_s == pytest.approx(2.0)
    assert forecast([sample(1.1, 1.0), sample(0.9, 1.0)], 1.0, LIVE, {}).other_s == pytest.approx(0.9)
    assert forecast([sample(1.1, 1.0)], 3.0, LIVE, {}).other_s == pytest.approx(3.0), "in proportion to its rows"


def test_tasks_that_run_longer_than_their_cpu_have_less_room() -> None:
    """Other processes have the same cores: a second of CPU takes two."""

    def sample(seconds: float, cpu_s: float, stretch: float | None) -> Sample:
        ways = {("q", "a"): Probing(1000, 1000, 1000, 5000, cpu_s / 2)}
        return Sample(1, 0.0, seconds, 1.0, 1.0, 0.0, 100, {0: SlotLoad(cpu_s, ways)}, stretch=stretch)

    found = forecast([sample(1.2, 0.5, 2.0)], 1.0, LIVE, {})
    assert (found.other_s, found.stretch) == (pytest.approx(0.2), 2.0)
    assert found.full_load == pytest.approx(1.2)
    allowances = allocate(found, 0.9, by_results_per_cpu, 0.05)
    assert allowances["q", "a"][0] == pytest.approx(400, abs=1), "0.35 s of CPU, a quarter of a second of it fixed"
    assert found.load_of(found.under(allowances)) == pytest.approx(0.9, abs=0.001)
    told_before = forecast([sample(1.2, 0.5, None)], 1.0, LIVE, {}, stretch=2.0)
    assert told_before.full_load == pytest.approx(1.2)


def test_pilots_look_up_where_there_is_no_room_for_them() -> None:
    found = expected(slot(2.0, (1000, 1e-3, 5)))
    assert allocate(found, 0.9, by_results_per_cpu, 0.05) == {("q", "a"): {0: 50}}


def test_what_a_lookup_costs_is_told_by_batches_in_which_many_look_up() -> None:
    way = ("q", "a")

    def sample(probed: int, cpu_s: float) -> Sample:
        return Sample(1, 0.0, 1.0, 1.0, 1.0, 0.0, 100, {0: SlotLoad(cpu_s, {way: Probing(1000, 1000, probed, 0, cpu_s)})})

    costs = costs_after({}, sample(1000, 0.5))
    assert costs == {way: 5e-4}
    pilots = sample(50, 0.1)
    costs = costs_after(costs, pilots)
    assert costs == {way: pytest.approx(5e-4 * 1.05)}, "not the 2 ms of a row that pays for the whole lookup"
    assert forecast([pilots], 1.0, LIVE, {}, costs=costs).slots[0].full_s == pytest.approx(0.525)
    assert costs_after(costs, sample(500, 0.5)) == {way: 1e-3}
