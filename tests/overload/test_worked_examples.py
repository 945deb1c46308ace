"""The numbers of the paper's own examples, and of the places where they contradict its text."""

import pytest

from anabranch.overload.allocation import Limits, allocation
from anabranch.overload.best_hjp import best_hjp
from anabranch.overload.grepp import fill, grepp
from anabranch.overload.heuristics import e_best_hjp, equal_hj, global_hjpr, s_best_hjp
from anabranch.overload.jda_knapsack import PathItem, by_dynamic_programming, in_order
from anabranch.overload.paths import allowances_of, input_paths
from bench.papers.jaqpot.examples import FIGURE_2A, FIGURE_4, FIGURE_10, TABLE_2

TABLE_4 = Limits(300.0)


def test_figure_2a_gives_all_to_the_more_productive_direction():
    assert [each.productivity for each in FIGURE_2A.half_way_joins] == pytest.approx([2.5, 5])
    found = best_hjp(FIGURE_2A, Limits(300.0))
    assert found.by_input == {"a": 0.0, "b": 300.0}
    assert found.results_per_s == pytest.approx(1500)


def test_best_hjp_goes_on_with_the_other_direction_when_a_stream_has_no_more_rows():
    found = best_hjp(FIGURE_2A, Limits(1000.0))
    assert found.by_input == pytest.approx({"a": 300.0, "b": 700.0})
    assert found.results_per_s == pytest.approx(300 * 2.5 + 700 * 5)
    assert not found.is_exact
    assert best_hjp(FIGURE_2A, Limits(1200.0)).is_exact


def test_a_path_divides_what_it_gets_as_in_section_4_1():
    path = input_paths(FIGURE_10)[1]
    assert path.divide(600.0) == pytest.approx((100, 500))
    assert path.rows == pytest.approx((1, 5, 25))


def test_table_2_path_productivities():
    paths = input_paths(FIGURE_4)
    assert [path.productivity for path in paths] == pytest.approx([4 / 15, 5 / 16, 1 / 10])
    assert [path.cost_per_row * path.rate_per_s for path in paths] == pytest.approx([15, 16, 10])
    assert [path.results_per_row * path.rate_per_s for path in paths] == pytest.approx([4, 5, 1])


def test_table_2_in_whole_multiples():
    assert in_order(TABLE_2, 30).results == 6
    assert dict(in_order(TABLE_2, 30).by_stream) == {"a": 0, "b": 1, "c": 1}
    best = by_dynamic_programming(TABLE_2, 30)
    assert best.results == 8
    assert dict(best.by_stream) == {"a": 2, "b": 0, "c": 0}


def test_table_2_in_whole_multiples_with_the_rows_that_streams_have():
    once = [PathItem(item.stream, item.resources, item.results, most=1) for item in TABLE_2]
    assert by_dynamic_programming(once, 30).results == 6
    assert by_dynamic_programming(once, 31).results == 9
    assert by_dynamic_programming(once, 1000).results == 10


def test_table_2_in_fractions_as_published_and_within_rates():
    paths = input_paths(FIGURE_4)
    published = fill(paths, {"a": 1e9, "b": 1e9, "c": 1e9}, 30.0)
    assert allowances_of(paths, published)["b"] == pytest.approx(20.625)
    assert allowances_of(paths, published)["(a b)"] == pytest.approx(9.375)
    found = grepp(FIGURE_4, Limits(30.0))
    assert found.results_per_s == pytest.approx(8.7333, abs=1e-4)
    assert found.of("b") == pytest.approx(11)
    assert found.cost_per_s == pytest.approx(30)


@pytest.mark.parametrize(
    ("algorithm", "allowances", "results"),
    [
        (equal_hj, (75, 75, 75, 75), 450),
        (global_hjpr, (13.04, 130.43, 130.43, 26.09), 678.26),
        (e_best_hjp, (0, 150, 150, 0), 750),
        (s_best_hjp, (0, 50, 250, 0), 1250),
        (grepp, (0, 50, 250, 0), 1250),
    ],
)
def test_table_4(algorithm, allowances, results):
    found = algorithm(FIGURE_10, TABLE_4)
    assert [found.of(name) for name in ("a", "b", "(a b)", "c")] == pytest.approx(allowances, abs=0.005)
    assert found.results_per_s == pytest.approx(results, abs=0.005)


def test_table_4_rounded_as_published():
    rounded = {"a": 13, "b": 130, "(a b)": 130, "c": 27}
    assert allocation(FIGURE_10, rounded).results_per_s == pytest.approx(677)


def test_table_4_published_results_of_s_best_hjp_need_150_rows_where_250_are_found():
    assert allocation(FIGURE_10, {"b": 30, "(a b)": 250}).results_per_s == pytest.approx(750)
    assert FIGURE_10.by_input["b"].results_per_row * 50 == pytest.approx(250)
