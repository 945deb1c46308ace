"""What operators take: the paper's equations, and where we leave them."""

from __future__ import annotations

import pytest

from anabranch.errors import PlanError
from anabranch.place.cost import OURS, PAPER, Costs, DatabaseCosts, EngineCosts, prices_of, size_of
from anabranch.place.operators import Kind, Operator, Window, row_slides, time_slides


def mean(name: str, slides_per_s: float, groups: float) -> Operator:
    return Operator(name, Kind.AGGREGATE, (Window(f"w {name}", 1000.0, 60_000.0, slides_per_s),), groups=groups)


def test_two_aggregates_of_one_slide_meet_once_an_instant() -> None:
    join = Operator("join", Kind.JOIN, (mean("a", 0.5, 40.0), mean("b", 0.5, 20.0)), selectivity=0.1)
    assert size_of(join, OURS).rate_per_s == pytest.approx(0.5 * 40 * 20 * 0.1)
    assert size_of(join, PAPER).rate_per_s == pytest.approx(2 * size_of(join, OURS).rate_per_s)
    assert size_of(join, OURS).rows == size_of(join, PAPER).rows == pytest.approx(80.0)


def test_a_join_of_such_joins_changes_at_one_instant_too() -> None:
    join = Operator("join", Kind.JOIN, (mean("a", 1.0, 10.0), mean("b", 1.0, 10.0)), selectivity=0.1)
    top = Operator("top", Kind.JOIN, (join, mean("c", 1.0, 10.0)), selectivity=0.1)
    assert size_of(top, OURS).rate_per_s == pytest.approx(10.0)
    assert size_of(top, PAPER).rate_per_s == pytest.approx(0.1 * (20 * 10 + 10 * 10))


def test_a_join_of_three_is_that_of_two_and_the_third() -> None:
    sides = mean("a", 1.0, 10.0), mean("b", 1.0, 20.0), Window("w", 100.0, 600.0)
    first = Operator("first", Kind.JOIN, sides[:2], selectivity=0.1)
    nested = Operator("top", Kind.JOIN, (first, sides[2]), selectivity=0.2)
    at_once = Operator("top", Kind.JOIN, sides, selectivity=0.1 * 0.2)
    for corrections in (OURS, PAPER):
        one, other = size_of(nested, corrections), size_of(at_once, corrections)
        assert (one.rate_per_s, one.rows) == pytest.approx((other.rate_per_s, other.rows))


def test_two_inputs_alike_are_two_sides() -> None:
    join = Operator("join", Kind.JOIN, (Window("a", 10.0, 100.0), Window("b", 10.0, 100.0)), selectivity=0.1)
    assert size_of(join, OURS).rate_per_s == pytest.approx(0.1 * 2 * 10 * 100)


def test_aggregates_of_two_slides_and_plain_streams_follow_equation_2() -> None:
    apart = Operator("join", Kind.JOIN, (mean("a", 1.0, 10.0), mean("b", 0.5, 20.0)), selectivity=0.1)
    assert size_of(apart, OURS) == size_of(apart, PAPER)
    assert size_of(apart, OURS).rate_per_s == pytest.approx(0.1 * (10 * 20 + 10 * 10))
    streams = Operator("join", Kind.JOIN, (Window("l", 10.0, 100.0), Window("r", 5.0, 20.0)), selectivity=0.1)
    assert size_of(streams, OURS).rate_per_s == pytest.approx(0.1 * (10 * 20 + 5 * 100))


def test_slides_by_time_and_by_rows() -> None:
    assert (time_slides(2.0), row_slides(1000.0, 50.0)) == (0.5, 20.0)


def test_what_an_operator_takes_in_either_place() -> None:
    root = mean("a", 0.5, 40.0)
    some = Costs(
        EngineCosts({Kind.AGGREGATE: 1e-4}, {"b": 7.0}), DatabaseCosts(0.01, 1e-5, 1e-3, {Kind.AGGREGATE: 1e-6})
    )  # fmt: skip
    price = prices_of(root, some)["a"]
    assert price.engine_u == pytest.approx(1000 * 1e-4)
    assert price.entering_u == pytest.approx((1000 * 1e-5,))
    assert price.statement_u == pytest.approx(0.5 * 60_000 * 1e-6)
    assert price.leaving_u == pytest.approx(0.5 * 0.01 + 0.5 * 40 * 1e-3)
    assert prices_of(mean("b", 1.0, 1.0), some)["b"].engine_u == 7.0


def test_costs_below_zero_are_refused() -> None:
    with pytest.raises(PlanError, match="0 seconds or more"):
        DatabaseCosts(-1.0, 0.0, 0.0, {})
    with pytest.raises(PlanError, match="0 or more"):
        Window("w", -1.0, 0.0)


def test_a_join_keeps_its_lesser_inputs_and_looks_the_rows_of_the_largest_up() -> None:
    inputs = tuple(Window(name, rows, rows) for name, rows in (("few", 10.0), ("many", 1000.0)))
    join = Operator("join", Kind.JOIN, inputs, selectivity=0.1)
    for build_s, wanted in ((None, 1010e-8), (5e-7, 1000e-8 + 10 * 5e-7)):
        database = DatabaseCosts(0.0, 0.0, 0.0, {Kind.JOIN: 1e-8}, build_s=build_s)
        price = prices_of(join, Costs(EngineCosts({Kind.JOIN: 1e-6}), database))["join"]
        assert price.statement_u == pytest.approx(wanted)
