"""What the product allocates by: the best there is, with pilots and pins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import PlanError
from anabranch.overload.by_cpu import Direction, by_results_per_cpu, uniform
from bench.papers.jaqpot.optimum import most_by_cpu

NUMBERS = st.floats(0.0, 1000.0, allow_subnormal=False).map(lambda value: 0.0 if value < 1e-3 else value)
PINS = st.one_of(st.none(), st.none(), st.floats(0.0, 1.0))


@st.composite
def directions(draw):
    count = draw(st.integers(1, 8))
    return [Direction(f"d{n}", draw(NUMBERS), draw(NUMBERS) * 1e-6, draw(NUMBERS), draw(PINS)) for n in range(count)]


@given(directions(), st.floats(0.0, 1.5), st.floats(0.0, 0.1))
def test_it_is_the_linear_programme(given_directions, share, pilot):
    needed = sum(each.cpu_s for each in given_directions)
    pinned = sum(each.cpu_s * each.pinned_share for each in given_directions if each.pinned_share is not None)
    pilots = pilot * sum(each.cpu_s for each in given_directions if each.pinned_share is None)
    capacity = max(share * needed, pinned + pilots)
    found = by_results_per_cpu(given_directions, capacity, pilot)
    best = most_by_cpu(given_directions, capacity * (1 + 1e-9), pilot)
    everything = sum(each.rows * each.results_per_row for each in given_directions)
    free = all(each.cpu_s == 0 for each in given_directions)
    if not free:
        assert best is not None
        assert found.results == pytest.approx(best, rel=1e-5, abs=1e-5 * everything)


@given(directions(), st.floats(0.0, 1.5), st.floats(0.0, 0.1))
def test_bounds_pins_and_pilots(given_directions, share, pilot):
    needed = sum(each.cpu_s for each in given_directions)
    pinned = sum(each.cpu_s * each.pinned_share for each in given_directions if each.pinned_share is not None)
    capacity = share * needed
    for divide in (by_results_per_cpu, uniform):
        found = divide(given_directions, capacity, pilot)
        assert found.cpu_s <= max(capacity, pinned) * (1 + 1e-9) + 1e-12
        for rows, each in zip(found.rows, given_directions, strict=True):
            assert 0 <= rows <= each.rows * (1 + 1e-12)
            if each.pinned_share is not None:
                assert rows == pytest.approx(each.rows * each.pinned_share)
        assert 0 <= found.completeness <= 1 + 1e-9
    found, even = by_results_per_cpu(given_directions, capacity, 0.0), uniform(given_directions, capacity, 0.0)
    assert found.results >= even.results * (1 - 1e-9) - 1e-9


def test_every_direction_keeps_its_pilot_share():
    good, poor = Direction("good", 1000, 1e-6, 50), Direction("poor", 1000, 1e-6, 0)
    assert by_results_per_cpu([good, poor], 0.0005, 0.02).rows == pytest.approx((480, 20))
    assert by_results_per_cpu([good, poor], 0.00001, 0.02).rows == pytest.approx((5, 5)), "pilots alone take too much"
    assert by_results_per_cpu([good, poor], 0.0, 0.02).rows == (0, 0)


def test_enough_for_all_is_exact():
    two = [Direction("a", 10, 1e-3, 1), Direction("b", 20, 1e-3, 3)]
    found = by_results_per_cpu(two, 0.03)
    assert found.is_exact
    assert (found.completeness, found.rows) == (1.0, (10.0, 20.0))
    assert not by_results_per_cpu(two, 0.0299).is_exact
    assert by_results_per_cpu([], 1.0).completeness == 1.0
    assert uniform(two, 1.0).is_exact


def test_a_direction_that_costs_nothing_is_never_limited():
    found = by_results_per_cpu([Direction("free", 10, 0.0, 1), Direction("dear", 10, 1.0, 1)], 5.0, 0.0)
    assert found.rows == pytest.approx((10, 5))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Direction("a", -1, 0, 0), "rows of a"),
        (lambda: Direction("a", 1, float("nan"), 0), "cpu_s_per_row of a"),
        (lambda: Direction("a", 1, 1, float("inf")), "results_per_row of a"),
        (lambda: Direction("a", 1, 1, 1, 1.5), "allowance of a"),
        (lambda: Direction("a", 1, 1, 1, float("nan")), "allowance of a"),
        (lambda: by_results_per_cpu([], -1.0), "capacity"),
        (lambda: by_results_per_cpu([], float("nan")), "capacity"),
        (lambda: by_results_per_cpu([], 1.0, 2.0), "pilot share"),
        (lambda: uniform([Direction("a", 1, 1, 1), Direction("a", 1, 1, 1)], 1.0), "twice"),
    ],
)
def test_bad_input_is_told(build, text):
    with pytest.raises(PlanError, match=text):
        build()
