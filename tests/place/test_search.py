"""Placements: the paper's counts, the paper's search where it is exact, and ours where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import PlanError
from anabranch.place.cost import OURS, PAPER, Corrections, Costs, DatabaseCosts, EngineCosts, size_of
from anabranch.place.operators import ANYWHERE, Kind, Operator, Place, Window
from anabranch.place.parts import by_parts, parts_of
from anabranch.place.placement import Decision, Use, bottleneck_of, exhaustive, rank, use_of
from anabranch.place.search import by_front, pruned
from bench.papers.federation.shapes import EIGHT_WAY, FIVE_WAY, TWO_WAY, Shape, comparing_means
from tests.place.trees import costs, trees

SOME = Costs(
    EngineCosts(dict.fromkeys(Kind, 1e-5)),
    DatabaseCosts(1e-3, 1e-6, 1e-6, dict.fromkeys(Kind, 2e-8)),
    corrections=PAPER,
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "plans", "operators"), [(TWO_WAY, 11, 6), (FIVE_WAY, 312, 15), (EIGHT_WAY, 8411, 24)]
)
def test_table_2_has_as_many_plans_as_are_printed(shape: Shape, plans: int, operators: int) -> None:
    root = comparing_means(shape)
    assert (len(root), pruned(root, SOME).examined) == (operators, plans)


def chain(length: int) -> Operator:
    found: Operator | Window = Window("w", 100.0, 1000.0)
    for n in range(length):
        found = Operator(f"o{n}", Kind.SELECT, (found,), selectivity=0.5)
    assert isinstance(found, Operator)
    return found


@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_a_chain_of_n_operators_has_n_plus_1_plans(length: int) -> None:
    assert pruned(chain(length), SOME).examined == length + 1


def complete(height: int, name: str = "") -> Operator | Window:
    if not height:
        return Window(f"w{name}", 10.0, 100.0)
    sides = complete(height - 1, name + "l"), complete(height - 1, name + "r")
    return Operator(f"o{name}", Kind.JOIN, sides, selectivity=0.001)


@pytest.mark.parametrize(("height", "plans"), [(1, 2), (2, 5), (3, 26), (4, 677)])
def test_a_complete_tree_has_as_many_plans_as_its_bound_says(height: int, plans: int) -> None:
    root = complete(height)
    assert isinstance(root, Operator)
    assert pruned(root, SOME).examined == plans


@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize("corrections", [PAPER, Corrections(True, False)])
def test_the_papers_pruning_is_exact_where_operators_share_no_cores(
    corrections: Corrections, data: st.DataObject
) -> None:
    root, some = data.draw(trees(most=14)), data.draw(costs(corrections))
    same(pruned(root, some).use, exhaustive(root, some).use, some)


@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize("corrections", [PAPER, OURS, Corrections(True, False), Corrections(False, True)])
def test_the_front_is_exact(corrections: Corrections, data: st.DataObject) -> None:
    root, some = data.draw(trees(most=14)), data.draw(costs(corrections))
    found = by_front(root, some)
    same(found.use, exhaustive(root, some).use, some)
    same(found.use, use_of(root, found.in_database, some), some)
    assert found.bottleneck == bottleneck_of(found.use, some)


def same(one: Use, other: Use, some: Costs) -> None:
    """Two uses are as good as each other by definition 1; sums are made in different orders."""
    assert rank(one, some)[:2] == pytest.approx(rank(other, some)[:2])


SHORT_OF_ENGINE = Costs(
    EngineCosts({Kind.SELECT: 6e-4, Kind.AGGREGATE: 1e-3}),
    DatabaseCosts(0.1, 6e-4, 0.0, {Kind.SELECT: 0.0, Kind.AGGREGATE: 0.0}, is_embedded=False),
)  # fmt: skip
"""A SELECT takes 0.6 of the engine, or 0.1 + 0.6 = 0.7 of the server; the AGGREGATE above it takes 0.5 of the engine."""


def test_the_papers_pruning_is_not_exact_where_operators_share_cores() -> None:
    half = Operator("half", Kind.SELECT, (Window("w", 1000.0, 1000.0),), selectivity=0.5)
    top = Operator("top", Kind.AGGREGATE, (half,), groups=10.0, places=frozenset({Place.ENGINE}))
    missed, found = pruned(top, SHORT_OF_ENGINE), by_front(top, SHORT_OF_ENGINE)
    assert (missed.in_database, missed.is_feasible, missed.bottleneck) == (frozenset(), False, pytest.approx(1.1))
    assert (found.in_database, found.is_feasible, found.bottleneck) == (frozenset({"half"}), True, pytest.approx(0.7))
    assert not missed.is_exact
    by_operator = replace(SHORT_OF_ENGINE, corrections=PAPER)
    assert pruned(top, by_operator).in_database == exhaustive(top, by_operator).in_database == frozenset()


@pytest.mark.parametrize("is_embedded", [True, False])
def test_an_embedded_database_uses_the_cores_of_the_engine(is_embedded: bool) -> None:
    some = replace(SHORT_OF_ENGINE, database=replace(SHORT_OF_ENGINE.database, is_embedded=is_embedded))
    assert bottleneck_of(Use(engine=0.6, database=0.7), some) == pytest.approx(1.3 if is_embedded else 0.7)


def test_without_the_check_of_feasibility_the_plan_that_uses_least_is_best() -> None:
    half = Operator("half", Kind.SELECT, (Window("w", 1000.0, 1000.0),), selectivity=0.5)
    top = Operator("top", Kind.AGGREGATE, (half,), groups=10.0, places=frozenset({Place.ENGINE}))
    assert by_front(top, replace(SHORT_OF_ENGINE, checks_feasibility=False)).in_database == frozenset()


@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize("corrections", [PAPER, OURS])
def test_parts_are_small_have_every_operator_once_and_change_no_size(
    corrections: Corrections, data: st.DataObject
) -> None:
    root, most = data.draw(trees(most=14)), data.draw(st.integers(1, 14))
    parts = parts_of(root, most, corrections)
    assert all(len(part) <= most for part in parts)
    assert sorted(o.name for part in parts for o in part) == sorted(o.name for o in root)
    whole = {o.name: size_of(o, corrections) for o in root}
    for part in parts:
        for each in part:
            assert size_of(each, corrections) == whole[each.name]


@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize("corrections", [PAPER, OURS])
def test_parts_are_placed_no_better_than_the_whole(corrections: Corrections, data: st.DataObject) -> None:
    root, some, most = data.draw(trees(most=11)), data.draw(costs(corrections)), data.draw(st.integers(1, 12))
    found, exact = by_parts(root, some, most, by_front), by_front(root, some)
    allowed = {o.name: o.places for o in root}
    assert all((Place.DATABASE if o in found.in_database else Place.ENGINE) in allowed[o] for o in allowed)
    same(found.use, use_of(root, found.in_database, some), some)
    (is_infeasible, spent, _), (is_least_infeasible, least, _) = rank(found.use, some), rank(exact.use, some)
    assert (is_infeasible, spent * (1 + 1e-9)) >= (is_least_infeasible, least)
    assert found.is_exact == (len(root) <= most)


def test_the_8_way_join_in_two_parts_has_far_fewer_plans() -> None:
    root = comparing_means(EIGHT_WAY)
    parts: Decision = by_parts(root, SOME, 15, pruned)
    assert len(parts_of(root, 15, PAPER)) == 2
    assert parts.examined < pruned(root, SOME).examined / 10


def test_a_tree_may_have_more_operators_than_a_word_has_bits() -> None:
    found: Operator | Window = Window("w", 1000.0, 9000.0)
    for n in range(75):
        may = ANYWHERE if 60 <= n < 70 else frozenset({Place.ENGINE})
        kind = Kind.SELECT if n in (62, 64) else Kind.PROJECT
        found = Operator(f"o{n}", kind, (found,), selectivity=0.9, places=may)
    assert isinstance(found, Operator)
    some = replace(SOME, engine=EngineCosts({Kind.SELECT: 1e-2, Kind.PROJECT: 1e-9}), corrections=OURS)
    ranges = [frozenset(f"o{n}" for n in range(a, b)) for a in range(60, 70) for b in range(a + 1, 71)]
    best = min([frozenset[str](), *ranges], key=lambda each: rank(use_of(found, each, some), some))
    assert by_front(found, some, 1).in_database == best
    assert best == {"o62", "o63", "o64"}


def test_an_operator_that_may_run_nowhere_is_refused() -> None:
    with pytest.raises(PlanError, match="may run nowhere"):
        Operator("o", Kind.SELECT, (Window("w", 1.0, 1.0),), places=frozenset())
    assert Operator("o", Kind.SELECT, (Window("w", 1.0, 1.0),)).places == ANYWHERE
