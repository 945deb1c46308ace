"""Random plans: no algorithm beats the linear programme, and GrePP equals it."""

import random
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch.overload.algorithms import ALGORITHMS, HEURISTICS
from anabranch.overload.allocation import Limits
from anabranch.overload.freshness import refresh_rates, window_s
from anabranch.overload.gh_wmscp import gh_wmscp
from anabranch.overload.grepp import grepp
from anabranch.overload.jaqpot import jaqpot
from anabranch.overload.jda_knapsack import PathItem, by_dynamic_programming, in_order
from anabranch.overload.paths import input_paths
from bench.papers.jaqpot.optimum import least_cover, most_results
from tests.overload.plans import plans

SHARES = st.floats(0.0, 1.2)
WITHIN = 1e-5
"""HiGHS keeps constraints within 1e-7 of numbers near 1."""


def freshness_of(plan, factor):
    return {stream.name: factor * window_s(stream) for stream in plan.streams}


@given(plans(widest=3), SHARES)
def test_grepp_is_the_linear_programme(plan, share):
    limits = Limits(share * plan.saturation)
    best = most_results(plan, limits)
    assert grepp(plan, limits).results_per_s == pytest.approx(best, rel=WITHIN, abs=WITHIN * plan.saturation_results_per_s)


@given(plans(widest=3), SHARES)
def test_every_algorithm_stays_within_rates_and_capacity(plan, share):
    limits = Limits(share * plan.saturation, freshness_of(plan, 3.0))
    best = grepp(plan, limits).results_per_s
    for name, algorithm in ALGORITHMS.items():
        found = algorithm(plan, limits)
        for each, rows in zip(plan.half_way_joins, found.allowances, strict=True):
            assert 0 <= rows <= plan.full_rates[each.input] * (1 + 1e-9), (name, each.input)
        asked = sum(rows * e.cost_per_row for rows, e in zip(found.allowances, plan.half_way_joins, strict=True))
        assert found.cost_per_s <= asked * (1 + 1e-9) <= limits.capacity * (1 + 1e-6) + 1e-9, name
        assert found.results_per_s <= best * (1 + 1e-6) + 1e-9, name
        assert found.results_per_s <= plan.saturation_results_per_s * (1 + 1e-9), name
        if found.is_exact:
            assert found.results_per_s == pytest.approx(plan.saturation_results_per_s)


@given(plans(widest=3))
def test_with_enough_for_all_paths_nothing_is_limited(plan):
    found = grepp(plan, Limits(plan.saturation * 1.0001))
    assert found.is_exact
    assert found.cost_per_s == pytest.approx(plan.saturation)


@given(plans(widest=3), st.floats(0.05, 1.0), st.floats(1.1, 20.0))
def test_jaqpot_is_between_freshness_and_its_optimum(plan, share, factor):
    limits = Limits(share * plan.saturation, freshness_of(plan, factor))
    found = jaqpot(plan, limits)
    assume(found.freshness_factor == 1.0)
    best = most_results(plan, limits, keeps_freshness=True)
    scale = plan.saturation_results_per_s
    assert best is not None, "what greed keeps can be kept"
    assert found.results_per_s <= best + WITHIN * scale
    assert best <= grepp(plan, limits).results_per_s + WITHIN * scale
    assert found.for_freshness <= found.cost_per_s * (1 + 1e-6)


@given(plans(widest=3), SHARES, st.floats(1.1, 20.0))
def test_jaqpot_leaves_nothing_unspent(plan, share, factor):
    limits = Limits(share * plan.saturation, freshness_of(plan, factor))
    assert jaqpot(plan, limits).cost_per_s == pytest.approx(min(limits.capacity, plan.saturation), rel=1e-6, abs=1e-9)


@given(plans(widest=3), st.floats(0.05, 1.0), st.floats(1.1, 20.0))
def test_what_jaqpot_promises_its_allowances_bring(plan, share, factor):
    """Rows that come into each state are those that the freshness asks for, or that the tightest one does."""
    limits = Limits(share * plan.saturation, freshness_of(plan, factor))
    found = jaqpot(plan, limits)
    assume(found.freshness_factor < 1e6)
    for name, rate in refresh_rates(plan, limits, found.freshness_factor).items():
        inflow = sum(found.of(one) * plan.by_input[one].results_per_row for one in plan.by_input[name].producers)
        assert inflow >= rate * (1 - 1e-6)


@given(plans(widest=3), st.floats(0.05, 1.0), st.floats(1.1, 5.0))
def test_the_freshness_told_is_the_tightest(plan, share, factor):
    limits = Limits(share * plan.saturation, freshness_of(plan, factor))
    told = jaqpot(plan, limits).freshness_factor
    assume(1.0 < told < 1e6)
    rates = refresh_rates(plan, limits, told * 0.99)
    assert gh_wmscp(input_paths(plan), rates).cost_per_s > limits.capacity * (1 - 1e-6)


@given(plans(), st.floats(1.1, 20.0))
def test_greed_covers_at_no_less_than_the_optimum(plan, factor):
    paths = input_paths(plan)
    rates = refresh_rates(plan, Limits(1.0, freshness_of(plan, factor)))
    greedy, best = gh_wmscp(paths, rates), least_cover(paths, rates)
    if best is None:
        assert greedy.cost_per_s == float("inf")
    else:
        assert greedy.cost_per_s >= best * (1 - WITHIN) - WITHIN
        assert greedy.cost_per_s < float("inf")


@given(st.integers(0, 10_000))
def test_dynamic_programming_finds_the_best_multiples(seed):
    chosen = random.Random(seed)
    items = [
        PathItem(str(n), chosen.randint(1, 12), chosen.randint(0, 9), chosen.choice([None, 0, 1, 2, 3])) for n in range(3)
    ]
    capacity = chosen.randint(0, 30)
    counts = [range((capacity // i.resources if i.most is None else i.most) + 1) for i in items]
    totals = [
        sum(count * item.results for count, item in zip(choice, items, strict=True))
        for choice in product(*counts)
        if sum(count * item.resources for count, item in zip(choice, items, strict=True)) <= capacity
    ]
    found = by_dynamic_programming(items, capacity)
    taken = dict(found.by_stream)
    assert found.results == max(totals)
    assert sum(taken[item.stream] * item.resources for item in items) <= capacity
    assert all(item.most is None or taken[item.stream] <= item.most for item in items)
    assert in_order(items, capacity).results <= found.results


def test_heuristics_have_names():
    assert [*HEURISTICS] == ["EqualHJ", "GlobalHJPR", "EBestHJP", "SBestHJP"]
