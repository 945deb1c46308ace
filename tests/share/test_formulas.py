"""The equations of the paper, and what they contradict."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from anabranch.share.formulas import (
    TwoQueries,
    crossover_with_pull_up,
    crossover_with_push_down,
    merging_saves,
    pull_up,
    push_down,
    savings,
    state_slice,
)
from anabranch.share.mem_opt import mem_opt
from anabranch.share.nested_loop import NestedLoopModel
from anabranch.share.window_queries import WindowQuery

RATIOS = (Fraction(1, 10), Fraction(1, 3), Fraction(9, 10))
SELECTIVITIES = (Fraction(1, 100), Fraction(1, 2), Fraction(1))
JOINS = (Fraction(1, 40), Fraction(2, 5))


def given(rate: Fraction, ratio: Fraction, selectivity: Fraction, joins: Fraction) -> TwoQueries:
    return TwoQueries(rate, 30 * ratio, Fraction(30), selectivity, joins, Fraction(3, 2))


@pytest.mark.parametrize(("ratio", "selectivity", "joins"), list(product(RATIOS, SELECTIVITIES, JOINS)))
def test_equation_4_follows_from_1_2_and_3_without_linear_terms(ratio, selectivity, joins):
    """Exactly, in fractions: so equation 2 is what was lost, and the left sides of rows 3 and 4 are those we read."""
    case = given(Fraction(20), ratio, selectivity, joins)
    up, down, slices = pull_up(case), push_down(case), state_slice(case)
    said = savings(ratio, selectivity, joins)
    assert (up.memory_kb - slices.memory_kb) / up.memory_kb == said.memory_of_pull_up
    assert (down.memory_kb - slices.memory_kb) / down.memory_kb == said.memory_of_push_down
    assert (up.quadratic_per_s - slices.quadratic_per_s) / up.quadratic_per_s == said.cpu_of_pull_up
    assert (down.quadratic_per_s - slices.quadratic_per_s) / down.quadratic_per_s == said.cpu_of_push_down
    assert (up.comparisons_per_s - slices.comparisons_per_s) / up.comparisons_per_s != said.cpu_of_pull_up


@pytest.mark.parametrize(("ratio", "selectivity", "joins"), list(product(RATIOS, SELECTIVITIES, JOINS)))
def test_state_slice_needs_more_cpu_at_low_rates(ratio, selectivity, joins):
    """Against "all the savings are positive": at the crossover both need the same, below it state-slice needs more."""
    for crossover, other in (
        (crossover_with_pull_up(ratio, selectivity, joins), pull_up),
        (crossover_with_push_down(selectivity, joins), push_down),
    ):
        for factor, sign in ((Fraction(1), 0), (Fraction(9, 10), 1), (Fraction(11, 10), -1)):
            case = given(factor * crossover / 30, ratio, selectivity, joins)
            more = state_slice(case).comparisons_per_s - other(case).comparisons_per_s
            assert (more > 0) - (more < 0) == sign


def test_the_naive_plan_is_twice_the_state_of_q2_not_a_hundred_times():
    """Section 1: windows of 1 and 60 minutes, σ of 1 %. The 60 times of Q1 hold; B is not filtered, so Q2 keeps half."""
    naive = pull_up(TwoQueries(1.0, 60.0, 3600.0, 0.01, 0.1)).memory_kb
    alone = [NestedLoopModel((query,), 1.0, 1.0, 0.1, {"σ": 0.01}).unshared().stored_rows
             for query in (WindowQuery("q1", 60.0), WindowQuery("q2", 3600.0, "σ"))]  # fmt: skip
    assert naive / alone[0] == 60
    assert naive / alone[1] == pytest.approx(2 / 1.01)


def test_memory_savings_of_figure_17_are_3_to_33_percent():
    """Against "20 % to 30 %": by table 3, with three queries, of which the second and third have σ. The windows W1 and W3
    alone count, so equations 1 to 3 apply with W3 as the longer one."""
    saved = []
    for windows, selectivity in product(((5, 30), (10, 30), (20, 30)), (0.2, 0.5, 0.8)):
        case = TwoQueries(20.0, *map(float, windows), selectivity, 0.1)
        others = pull_up(case).memory_kb, push_down(case).memory_kb
        saved += [1 - state_slice(case).memory_kb / other for other in others]
    assert (round(min(saved), 3), round(max(saved), 3)) == (0.033, 0.333)


def test_without_selections_memory_is_the_same_and_cpu_saved_is_not_proportional_to_the_join():
    """Against "proportional to the join selectivity": (2 − ρ)S / (1 + 2S) flattens."""
    assert savings(0.5, 1.0, 0.1).memory_of_pull_up == 0
    low, high = (savings(0.5, 1.0, joins).cpu_of_pull_up for joins in (0.1, 0.4))
    assert low == pytest.approx(0.125)
    assert high == pytest.approx(1 / 3) != pytest.approx(4 * low)


def test_extreme_savings():
    """Section 4.3: up to 50 % of memory, 100 % of CPU, against pull-up."""
    said = savings(1e-9, 1e-9, 0.1)
    assert said.memory_of_pull_up == pytest.approx(0.5)
    assert said.cpu_of_pull_up == pytest.approx(1.0)
    assert savings(1e-9, 1.0, 0.4).cpu_of_push_down == pytest.approx(0.4 / 1.4), "the most against push-down: J/(1+J)"


@pytest.mark.parametrize(("selectivity", "joins"), list(product((0.2, 0.5, 1.0), (0.025, 0.4))))
def test_the_model_of_many_queries_has_equations_1_2_and_3(selectivity, joins):
    """But for rows that fail σ, which purge and punctuate nothing in the second slice: 2(1 − S)λ of equation 3."""
    case = TwoQueries(20.0, 10.0, 30.0, selectivity, joins)
    name = None if selectivity == 1.0 else "σ"
    queries = (WindowQuery("q1", 10.0), WindowQuery("q2", 30.0, name))
    model = NestedLoopModel(queries, 20.0, 20.0, joins, {"σ": selectivity})
    chain = model.chain(mem_opt((10.0, 30.0)).chain)
    if name is not None:
        up, down = model.pull_up(), model.push_down()
        said = pull_up(case)
        assert (up.stored_rows, up.comparisons_per_s) == pytest.approx((said.memory_kb, said.comparisons_per_s))
        said = push_down(case)
        assert (down.stored_rows, down.comparisons_per_s) == pytest.approx((said.memory_kb, said.comparisons_per_s))
        unpaid = 2 * (1 - selectivity) * 20.0
    else:
        unpaid = 20.0 + 2 * 20.0**2 * joins * 10.0
        """There is no σ to filter by, on rows or on results."""
    said = state_slice(case)
    assert chain.stored_rows == pytest.approx(said.memory_kb)
    assert chain.comparisons_per_s == pytest.approx(said.comparisons_per_s - unpaid)


@pytest.mark.parametrize("overhead", [0.0, 7.0])
def test_what_merging_saves_is_what_the_edges_say(overhead):
    """Section 5.2, with C_sys(j − i); as printed, C_sys(j − i + 1), one slice would save by being merged with nothing."""
    windows = (1.0, 2.0, 5.0, 9.0)
    queries = tuple(WindowQuery(f"q{w}", w) for w in windows)
    model = NestedLoopModel(queries, 20.0, 30.0, 0.025, overhead=overhead)
    for i, j in ((0, 1), (0, 4), (1, 3), (2, 4)):
        apart = sum(model.edge_cost(k, k + 1) for k in range(i, j))
        span_s = windows[j - 1] - (windows[i - 1] if i else 0.0)
        saved = merging_saves(j - i, span_s, (20.0, 30.0), 0.025, overhead)
        assert apart - model.edge_cost(i, j) == pytest.approx(saved)
