"""States that can become stale, refresh rates, what is told when freshness cannot be kept, and windows in time."""

from math import inf

import pytest
from hypothesis import given

from anabranch.cost.streams import edges, stream
from anabranch.errors import PlanError
from anabranch.overload.algorithms import ALGORITHMS
from anabranch.overload.allocation import Limits
from anabranch.overload.freshness import refresh_rates, staleness_susceptible, window_s
from anabranch.overload.gh_wmscp import gh_wmscp
from anabranch.overload.half_way import Join, Plan, ProbeCost, Stream, join
from anabranch.overload.jaqpot import jaqpot
from anabranch.overload.paths import input_paths
from anabranch.overload.time_windows import with_time_windows
from tests.overload.plans import bushy, linear, plans


@given(plans())
def test_binary_plans_have_two_states_fewer_than_streams(plan):
    """Lemma 2."""
    assert len(staleness_susceptible(plan)) == len(plan.streams) - 2


def test_one_path_of_a_linear_plan_covers_all_states_and_no_path_of_a_bushy_one_does():
    assert set(input_paths(linear())[0].states) == set(staleness_susceptible(linear())) == {"(a b)", "((a b) c)"}
    assert all(len(path.states) == 1 for path in input_paths(bushy()))


def test_the_slack_of_a_stream_is_split_over_the_states_of_its_path():
    plan = linear(rates=(100,) * 4, rows=1000, state_rows=200)
    rates = refresh_rates(plan, Limits(1.0, {"a": 15.0}))
    assert rates == {"(a b)": pytest.approx(80), "((a b) c)": pytest.approx(80)}, "5 s of slack, 2.5 s for each of 200 rows"
    assert refresh_rates(plan, Limits(1.0, {"c": 15.0})) == {"(a b)": 0.0, "((a b) c)": pytest.approx(40)}
    assert refresh_rates(plan, Limits(1.0, {"d": 15.0})) == {"(a b)": 0.0, "((a b) c)": 0.0}
    assert refresh_rates(plan, Limits(1.0, {"a": 15.0, "b": 12.5}))["(a b)"] == pytest.approx(160), "the stricter one"


def test_lemma_1_holds_for_what_is_split():
    plan = linear(rates=(100, 150, 200, 50), rows=700, state_rows=300)
    asked = {each.name: 2.0 * window_s(each) for each in plan.streams}
    rates = refresh_rates(plan, Limits(1.0, asked))
    for path in input_paths(plan):
        own = next(each for each in plan.streams if each.name == path.stream)
        stay = window_s(own) + sum(plan.inputs[name].state_rows / rates[name] for name in path.states)
        assert stay <= asked[path.stream] * (1 + 1e-9)


def test_a_freshness_of_one_window_is_infeasible_in_any_plan_of_several_joins():
    plan = linear()
    asked = {each.name: window_s(each) for each in plan.streams}
    assert set(refresh_rates(plan, Limits(1.0, asked)).values()) == {inf}
    found = jaqpot(plan, Limits(2 * plan.saturation, asked))
    assert 1.0 < found.freshness_factor < 2.0
    assert found.is_exact


def test_what_is_infeasible_is_told_with_the_tightest_that_is_not():
    plan = bushy(rates=(100,) * 4, rows=500, state_rows=500, selectivities=(0.01, 0.01, 0.01))
    asked = {each.name: 1.5 * window_s(each) for each in plan.streams}
    found = jaqpot(plan, Limits(300.0, asked))
    assert found.freshness_factor > 1
    assert found.for_freshness == pytest.approx(300, rel=0.01), "all there is goes to freshness"
    told = {name: value * found.freshness_factor for name, value in asked.items()}
    assert jaqpot(plan, Limits(300.0, told)).freshness_factor == 1.0
    tighter = {name: value * found.freshness_factor * 0.99 for name, value in asked.items()}
    assert jaqpot(plan, Limits(300.0, tighter)).freshness_factor > 1.0


def test_freshness_that_nothing_can_keep_is_given_up():
    plan = linear(selectivities=(0.0, 0.01, 0.05))
    found = jaqpot(plan, Limits(500.0, {"a": 1e3}))
    assert found.freshness_factor == inf
    assert found.for_freshness == 0
    assert found.results_per_s > 0, "rows of d still find what the state has"


def test_the_cover_takes_the_path_that_refreshes_several_states_at_once():
    plan = linear(rates=(400,) * 4)
    cover = gh_wmscp(input_paths(plan), {"(a b)": 100.0, "((a b) c)": 1000.0})
    taken = dict(cover.leaf_rows)
    assert taken["a"] + taken["b"] == pytest.approx(10)
    assert taken["c"] == taken["d"] == 0
    assert cover.cost_per_s == pytest.approx(10 * (1 + 10 + 100))


def test_a_cover_uses_another_stream_when_one_has_no_more_rows():
    plan = linear(rates=(5, 6, 400, 400))
    cover = gh_wmscp(input_paths(plan), {"(a b)": 100.0})
    assert dict(cover.leaf_rows) == pytest.approx({"a": 5, "b": 5, "c": 0, "d": 0})
    assert gh_wmscp(input_paths(plan), {"(a b)": 111.0}).cost_per_s == inf


def test_windows_in_time_give_the_sizes_of_the_law():
    """N(s) and R(s) of `anabranch.cost.streams`, for windows that differ."""
    graph = edges([stream("a", 10, 2), stream("b", 5, 3), stream("c", 7, 4)], {("a", "b"): 0.1, ("b", "c"): 0.2})
    plan = Plan(join(join(Stream("a", 10, 0, 0), Stream("b", 5, 0, 0), 0.1), Stream("c", 7, 0, 0), 0.2))
    sized = with_time_windows(plan, {"a": 2, "b": 3, "c": 4}, is_law=True)
    assert sized.inputs["(a b)"].state_rows == pytest.approx(graph.rows(0b011))
    assert sized.full_rates["(a b)"] == pytest.approx(graph.rate(0b011))
    assert sized.saturation_results_per_s == pytest.approx(graph.rate(0b111))


def test_probe_costs_change_what_is_productive():
    """b finds ten times as much, and where pairs cost something that is no gain for the CPU."""
    root = Join((Stream("a", 100, 100, 0.5), Stream("b", 100, 50, 0.1)))
    a, b = Plan(root).half_way_joins
    assert (a.productivity, b.productivity) == pytest.approx((5, 50))
    a, b = Plan(root, ProbeCost(1.0, 1.0)).half_way_joins
    assert (a.productivity, b.productivity) == pytest.approx((5 / 6, 50 / 51))
    below = Plan(Join((Join(root.inputs, 10, 0.1), Stream("c", 1, 1, 1))), ProbeCost(1.0, 1.0, 2.0))
    assert below.by_input["a"].cost_per_row == pytest.approx(1 + 5 * (1 + 2)), "what is found below the root is stored"


def test_a_row_of_a_wide_join_pays_for_each_of_its_probes():
    plan = Plan(Join((Stream("a", 10, 4, 0.5), Stream("b", 10, 6, 0.5), Stream("c", 10, 8, 0.5))), ProbeCost(1.0, 0.1))
    a = plan.by_input["a"]
    assert a.results_per_row == pytest.approx(3 * 4)
    assert a.cost_per_row == pytest.approx(1 + 3 * 0.1 + 3 + 12 * 0.1)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Plan(Join((Stream("a", 1, 1, 1), Stream("a", 1, 1, 1)))), "stands twice"),
        (lambda: Plan(Join((Stream("a", 1, 1, 1),))), "two or more"),
        (lambda: Plan(Join((Stream("a", -1, 1, 1), Stream("b", 1, 1, 1)))), "rate of a"),
        (lambda: Plan(Join((Stream("a", 1, 1, float("nan")), Stream("b", 1, 1, 1)))), "selectivity of a"),
        (lambda: Limits(float("nan")), "capacity"),
        (lambda: Limits(-1.0), "capacity"),
        (lambda: Limits(1.0, {"a": 0.0}), "freshness of a"),
        (lambda: jaqpot(linear(), Limits(1.0, {"x": 5.0})), "freshness is asked of x"),
        (lambda: with_time_windows(linear(), {"a": 1.0}), "no window is given for b, c, d"),
    ],
)
def test_bad_input_is_told(build, text):
    with pytest.raises(PlanError, match=text):
        build()


@pytest.mark.parametrize("share", [0.0001, 0.5])
def test_long_plans_have_allocations(share):
    """The longest plan of twenty streams, also where the tightest freshness must be found. (How long that takes is measured
    by `python -m bench.papers.jaqpot`.)"""
    node = Stream("s0", 100, 100, 0.01)
    for n in range(1, 20):
        node = join(node, Stream(f"s{n}", 100, 100, 0.01), 0.012, 100)
    plan = Plan(node)
    limits = Limits(share * plan.saturation, {each.name: 1.5 * window_s(each) for each in plan.streams})
    for algorithm in ALGORITHMS.values():
        assert 0 < algorithm(plan, limits).cost_per_s <= limits.capacity * (1 + 1e-6)
