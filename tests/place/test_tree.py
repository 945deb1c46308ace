"""The operators of bound queries: the shapes of figure 4, what facts say of their sizes, and what may leave the engine."""

from __future__ import annotations

import pytest

from anabranch.control.records import BlockFigures
from anabranch.cost.facts import Given
from anabranch.cost.units import DEFAULT
from anabranch.place.capabilities import Abilities
from anabranch.place.cost import size_of
from anabranch.place.operators import Kind, Operator, Place, Window
from anabranch.place.tree import engine_costs, operators_of
from anabranch.plan.query import Query
from anabranch.planning import Planning
from anabranch.sql import parse_script
from bench.papers.federation.queries import CQ, PLUGS

FACTS = Given(rates={"plugs": 2000.0}, distinct={"plugs.plug": 2125.0, "plugs.household": 40.0, "p.plug": 2125.0})


EVERYTHING = Abilities(lambda _: None, lambda *_: None)


def bound(sql: str) -> Query:
    script = parse_script(f"{PLUGS} CREATE QUERY q AS {sql};")
    return script.queries[0].query


def tree(sql: str) -> Operator:
    return operators_of(bound(sql), FACTS, EVERYTHING)


BRANCH = "AGGREGATE(SELECT({}))"


@pytest.mark.parametrize(("name", "shape"), [
    ("CQ1", "AGGREGATE(JOIN(SELECT(p), AGGREGATE(SELECT(m.plugs))))"),
    ("CQ2", "AGGREGATE(JOIN(SELECT(p), AGGREGATE(SELECT(m.plugs))))"),
    ("CQ3", "PROJECT(JOIN(AGGREGATE(SELECT(f.plugs)), AGGREGATE(SELECT(o.plugs))))"),
    ("CQ4", "PROJECT(JOIN(AGGREGATE(SELECT(f.plugs)), AGGREGATE(SELECT(o.plugs))))"),
    ("CQ5", "AGGREGATE(AGGREGATE(SELECT(t.plugs)))"),
    ("CQ6", "PROJECT(JOIN(AGGREGATE(SELECT(o.plugs)), AGGREGATE(SELECT(t.plugs)), AGGREGATE(SELECT(f.plugs))))"),
])  # fmt: skip
def test_figure_4(name: str, shape: str) -> None:
    assert str(tree(CQ[name])) == shape


def names(root: Operator) -> list[str]:
    return [each.name for each in root]


def test_operators_are_named_by_the_aliases_that_lead_to_them() -> None:
    assert names(tree(CQ["CQ1"])) == ["SELECT p", "SELECT m.plugs", "AGGREGATE m", "JOIN", "AGGREGATE"]


def test_sizes_follow_from_facts() -> None:
    found = {each.name: each for each in tree(CQ["CQ4"])}
    window = found["SELECT f.plugs"].inputs[0]
    assert isinstance(window, Window)
    assert (window.rate_per_s, window.rows, window.slides_per_s) == (2000.0, 2000.0 * 300, 1.0)
    assert found["AGGREGATE f"].groups == 2125.0
    assert found["JOIN"].selectivity == pytest.approx(1 / 2125)
    assert size_of(found["JOIN"]).rate_per_s == pytest.approx(2125.0)


@pytest.mark.parametrize("told", [{}, {"f.plug": 9e9, "o.plug": 9e9}])
def test_a_key_of_groups_that_are_counted_is_known(told: dict[str, float]) -> None:
    """Whatever was assumed of it before."""
    facts = Given({"plugs": 2000.0}, distinct=told, estimated=frozenset(told))
    found = {each.name: each for each in operators_of(bound(CQ["CQ4"]), facts, EVERYTHING)}
    assert "--distinct f.plug=VALUES" in found["JOIN"].assumed
    counted = facts.with_figures({f"q.{alias}": BlockFigures(groups=50.0) for alias in "fo"})
    found = {each.name: each for each in operators_of(bound(CQ["CQ4"]), counted, EVERYTHING)}
    assert found["JOIN"].assumed == ""
    assert found["JOIN"].selectivity == pytest.approx(1 / 50)
    assert found["AGGREGATE f"].groups == 50.0


def test_a_key_that_equals_a_known_one_has_as_many_values() -> None:
    sql = "SELECT b.plug, COUNT(*) AS n FROM plugs a, plugs b WHERE a.plug = b.plug GROUP BY b.plug WINDOW 1 MINUTE"
    facts = Given({"plugs": 2000.0}, distinct={"a.plug": 7.0})
    assert operators_of(bound(sql), facts, EVERYTHING).groups == 7.0
    assert not operators_of(bound(sql), facts, EVERYTHING).assumptions


def test_groups_are_no_more_than_rows_and_one_without_keys() -> None:
    few = operators_of(
        bound("SELECT plug, COUNT(*) AS n FROM plugs [RANGE 1 SECOND] GROUP BY plug"), Given({"plugs": 7.0})
    )
    assert few.groups == 7.0
    assert tree("SELECT COUNT(*) AS n FROM plugs [RANGE 1 SECOND]").groups == 1.0


def test_a_slide_says_how_often_groups_come() -> None:
    root = tree("SELECT plug, COUNT(*) AS n FROM plugs [RANGE 1 MINUTE] GROUP BY plug SLIDE 5 SECONDS")
    assert size_of(root).rate_per_s == pytest.approx(2125 / 5)


def test_what_stands_on_a_stream_stays_with_its_source() -> None:
    root = tree("SELECT plug FROM plugs [NOW] WHERE load > 3")
    assert str(root) == "PROJECT(SELECT(plugs))"
    assert all(each.places == {Place.ENGINE} for each in root)


def movable(sql: str) -> set[str]:
    return {each.name for each in tree(sql) if Place.DATABASE in each.places}


MEANS = "(SELECT plug, AVG(load) AS mean, MAX(load) AS most FROM plugs [RANGE 1 MINUTE] GROUP BY plug)"


@pytest.mark.parametrize(("sql", "moves"), [
    (f"SELECT m.plug, m.mean FROM {MEANS} m, plugs [NOW] p WHERE m.plug = p.plug", True),
    (f"SELECT m.plug FROM {MEANS} m, plugs [NOW] p WHERE m.plug = p.plug AND p.load > m.mean", False),
    (f"SELECT m.plug, ROUND(m.mean, 1) AS r FROM {MEANS} m, plugs [NOW] p WHERE m.plug = p.plug", False),
    (f"SELECT m.mean, COUNT(*) AS n FROM {MEANS} m GROUP BY m.mean", False),
    (f"SELECT MAX(m.mean) AS n FROM {MEANS} m", True),
    (f"SELECT COUNT(DISTINCT m.mean) AS n FROM {MEANS} m", False),
    (f"SELECT MAX(m.mean) AS n FROM {MEANS} m HAVING MAX(m.mean) > 3", False),
])  # fmt: skip
def test_a_mean_of_floats_leaves_the_engine_only_if_it_is_just_shown(sql: str, moves: bool) -> None:
    assert ("AGGREGATE m" in movable(sql)) is moves


@pytest.mark.parametrize(("aggregate", "moves"), [
    ("AVG(load)", True), ("ROUND(AVG(load), 1)", False), ("MAX(load) * 2", True), ("SUM(household) * 2", True),
])  # fmt: skip
def test_an_expression_over_a_sum_of_floats_is_more_than_showing_it(aggregate: str, moves: bool) -> None:
    sql = f"SELECT plug, {aggregate} AS x FROM plugs [RANGE 1 MINUTE] GROUP BY plug"
    assert ("AGGREGATE" in movable(sql)) is moves


def test_having_is_a_select_above_the_groups() -> None:
    sql = "SELECT plug, COUNT(*) AS n FROM plugs [RANGE 1 MINUTE] GROUP BY plug HAVING {} > 3"
    assert names(tree(sql.format("COUNT(*)"))) == ["AGGREGATE", "HAVING"]
    assert "AGGREGATE" in movable(sql.format("COUNT(*)"))
    assert "AGGREGATE" not in movable(sql.format("SUM(load)"))


def test_a_block_in_the_words_of_a_database_runs_nowhere_else() -> None:
    text = "DATABASE duck (SELECT plug, median(load) AS m FROM plugs [RANGE 1 MINUTE] GROUP BY plug SLIDE 10 SECONDS) x"
    script = parse_script(f"{PLUGS} CREATE QUERY q AS SELECT x.plug FROM {text};", Planning().catalog)
    found = {each.name: each.places for each in operators_of(script.queries[0].query)}
    assert found == {"AGGREGATE x": {Place.DATABASE}, "PROJECT": {Place.ENGINE}}


def test_nothing_moves_that_no_database_says_it_can_run() -> None:
    assert all(each.places == {Place.ENGINE} for each in operators_of(bound(CQ["CQ3"]), FACTS))


def test_what_the_engine_takes() -> None:
    root = tree(CQ["CQ4"])
    costs = engine_costs(root, DEFAULT, {"JOIN": 0.25})
    found = {each.name: each for each in root}
    assert costs.u(found["JOIN"], 1.0) == 0.25
    assert costs.u(found["AGGREGATE f"], 1.0) == pytest.approx(2000 * DEFAULT.fold + 2125 * DEFAULT.result)
    assert costs.u(found["PROJECT"], 10.0) == pytest.approx(10 * costs.per_row_s[Kind.PROJECT])
