"""The simulators beside plain loops, and beside what the formulas expect."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import PlanError
from anabranch.overload.allocation import Limits
from anabranch.overload.freshness import window_s
from anabranch.overload.grepp import grepp
from anabranch.overload.half_way import Join, Plan, Stream
from anabranch.overload.heuristics import equal_hj
from anabranch.overload.jaqpot import jaqpot
from anabranch.overload.time_windows import with_time_windows
from bench.papers.jaqpot.count_windows import CountWindows
from bench.papers.jaqpot.matching import Rows
from bench.papers.jaqpot.time_windows import TimeWindows, result_tuples
from tests.overload.plans import bushy, linear
from tests.support.simulated_chain import CHAIN, NAMES, tree

SHAPES = ("(((a b) c) d)", "((a b) (c d))", "(a b c d)", "((a b) c d)", "(a (b c d))")


def rows_of(seed, count, domain, until_s=10.0):
    chosen = np.random.default_rng(seed)
    return {
        name: Rows(
            np.sort(chosen.uniform(0, until_s, count)),
            {column: chosen.integers(0, domain, count) for column in ("ab", "bc", "cd")},
        )
        for name in NAMES
    }


def by_loops(rows, windows_s):
    """The law, row by row."""
    found = []
    for ids in product(*(range(len(rows[name].times_s)) for name in NAMES)):
        at = dict(zip(NAMES, ids, strict=True))
        if all(rows[e.left[0]].columns[e.left[1]][at[e.left[0]]] == rows[e.right[0]].columns[e.right[1]][at[e.right[0]]]
               for e in CHAIN):  # fmt: skip
            starts = [rows[name].times_s[at[name]] for name in NAMES]
            if max(starts) < min(start + windows_s[name] for start, name in zip(starts, NAMES, strict=True)):
                found.append(ids)
    return sorted(found)


@pytest.mark.parametrize("shape", SHAPES)
@given(seed=st.integers(0, 1000), batch_s=st.sampled_from([0.3, 1.0, 4.0, 10.0]))
def test_windows_in_time_give_what_the_law_says_by_any_plan_and_any_cut(shape, seed, batch_s):
    rows, windows_s = rows_of(seed, 6, 2), {"a": 2.0, "b": 3.0, "c": 5.0, "d": 1.0}
    found = TimeWindows(tree(shape), rows, CHAIN, windows_s, {}, keeps_results=True).run(10.0, batch_s)
    assert result_tuples(found, NAMES) == by_loops(rows, windows_s)


def test_shares_of_the_root_lose_that_share_and_those_below_compound():
    rows, windows_s = rows_of(1, 4000, 130, 20.0), dict.fromkeys(NAMES, 2.0)

    def count(shape, shares):
        return TimeWindows(tree(shape), rows, CHAIN, windows_s, shares, seed=5).run(20.0, 0.5).count

    exact = count("(a b c d)", {})
    assert exact == count("(((a b) c) d)", {}) == count("((a b) (c d))", {}) > 2_000
    assert count("(a b c d)", dict.fromkeys(NAMES, 0.5)) / exact == pytest.approx(0.5, abs=0.05)
    every = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5, "(a b)": 0.5, "((a b) c)": 0.5}
    assert count("(((a b) c) d)", every) / exact < 0.25
    one = TimeWindows(tree("(a b c d)"), rows, CHAIN, windows_s, {"b": 0.0, "c": 0.0, "d": 0.0}).run(20.0, 0.5)
    assert one.results["a"] == one.count > 0


def test_counts_of_windows_in_time_are_what_the_formulas_expect():
    rows, window = rows_of(2, 8_000, 100, 40.0), 1.0
    plan = Plan(Join((Join((Join((Stream("a", 200, 0, 0.01), Stream("b", 200, 0, 0.01)), selectivity=0.01),
                            Stream("c", 200, 0, 0.01)), selectivity=0.01), Stream("d", 200, 0, 0.01))))  # fmt: skip
    sized = with_time_windows(plan, dict.fromkeys(NAMES, window), is_law=True)
    found = TimeWindows(sized, rows, CHAIN, dict.fromkeys(NAMES, window), {}).run(40.0, 0.5)
    assert found.count / 40 == pytest.approx(sized.saturation_results_per_s, rel=0.1)
    for name, rate in sized.full_rates.items():
        assert found.probes[name] / 40 == pytest.approx(rate, rel=0.1), name


def counting(plan, seconds, selectivity, freshness=(), seed=3):
    chosen = np.random.default_rng(seed)
    rows = {}
    for stream in plan.streams:
        count = chosen.poisson(stream.rate_per_s * seconds)
        columns = {column: chosen.integers(0, round(1 / selectivity), count) for column in ("ab", "bc", "cd")}
        rows[stream.name] = Rows(np.sort(chosen.uniform(0, seconds, count)), columns)
    return CountWindows(plan, rows, CHAIN, 0.1, freshness)


SMALL = {"rates": (300, 300, 300, 300), "rows": 300, "selectivities": (0.01, 0.01, 0.01), "state_rows": 300}


@pytest.mark.parametrize("shape", [linear, bushy])
@pytest.mark.parametrize("algorithm", [grepp, jaqpot, equal_hj])
def test_counted_rows_are_what_the_formulas_expect(shape, algorithm):
    plan = shape(**SMALL)
    limits = Limits(0.5 * plan.saturation, {each.name: 5 * window_s(each) for each in plan.streams})
    allocated = algorithm(plan, limits)
    run = counting(plan, 40.0, 0.01, [limits.freshness_s])
    run.fill(10.0)
    counted = run.run(40.0, allocated.by_input)
    assert sum(counted.probes.values()) / 30 <= limits.capacity * 1.05
    assert counted.results.sum() / 30 == pytest.approx(allocated.results_per_s, rel=0.1)
    if algorithm is jaqpot:
        assert allocated.freshness_factor == 1.0
        assert counted.stale.sum() < 0.05 * counted.results.sum(), "states are refreshed as often as they must be"


def test_a_state_that_starves_keeps_its_rows_and_becomes_stale():
    plan = linear(**SMALL)
    run = counting(plan, 40.0, 0.01, [{each.name: 3 * window_s(each) for each in plan.streams}])
    run.fill(10.0)
    allowances = dict.fromkeys(plan.inputs, 0.0) | {"d": 300.0}
    before = {name: ids.copy() for name, ids in run.states["((a b) c)"].items()}
    counted = run.run(40.0, allowances)
    assert all((run.states["((a b) c)"][name] == before[name]).all() for name in "abc")
    late = counted.results[100:].sum(), counted.stale[100:].sum()
    assert late[0] == late[1] > 0
    assert counted.stale[:5].sum() == 0


def test_nothing_limited_and_nothing_stale_when_states_turn_over():
    plan = linear(**SMALL)
    run = counting(plan, 30.0, 0.01, [{each.name: 9 * window_s(each) for each in plan.streams}])
    run.fill(5.0)
    counted = run.run(30.0, None)
    assert counted.results.sum() / 25 == pytest.approx(plan.saturation_results_per_s, rel=0.1)
    assert counted.stale.sum() == 0
    for name in plan.inputs:
        assert counted.finds[name] / counted.states[name] == pytest.approx(0.01, rel=0.1)


def test_only_binary_plans_count_rows():
    with pytest.raises(PlanError, match="more than two"):
        CountWindows(tree("(a b c d)"), {}, CHAIN, 0.1, [])
