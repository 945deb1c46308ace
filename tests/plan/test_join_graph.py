"""Join graphs: classes of equal terms, keys, implied filters, and where residual predicates are decided."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from anabranch.errors import PlanError
from anabranch.plan.expression import Call, Column, Literal, ResultTime, aliases_of
from anabranch.plan.join_graph import JoinGraph, Key
from anabranch.plan.query import Equality, Input, Query
from tests.support.queries import BOOL, INT, SECOND, TIME, column, components, equal, graph, graphs, less, query, stream


def classes(equalities, aliases="A B C D"):
    return [[str(t) for t in terms] for terms in graph(aliases, equalities).classes]


def keys(found):
    return [f"{k.bound} = {k.target}" for k in found]


def test_equalities_are_closed_transitively():
    assert classes("A.x = B.x, B.x = C.x") == [["A.x", "B.x", "C.x"]]
    assert classes("A.x = B.x, C.x = D.x, D.x = A.x") == [["A.x", "B.x", "C.x", "D.x"]]
    assert classes("A.x = B.x, A.y = B.y") == [["A.x", "B.x"], ["A.y", "B.y"]]
    assert classes("A.x = B.y, B.y = A.z") == [["A.x", "B.y", "A.z"]]
    assert classes("") == []


def test_classes_stand_in_the_order_of_their_first_equality():
    assert classes("A.x = B.x, C.y = D.y, C.z = D.z, B.x = C.z") == [["A.x", "B.x", "C.z", "D.z"], ["C.y", "D.y"]]


def test_an_expression_is_a_term_of_its_own():
    plus = Call(INT, "add", (column("A.x"), Literal(INT, 1)))
    built = Query(
        "q", query("A B C").inputs, (Equality(plus, column("B.x")), Equality(column("A.x"), column("C.x"))), (), ()
    )
    found = JoinGraph(built)
    assert [[str(t) for t in c] for c in found.classes] == [["(A.x + 1)", "B.x"], ["A.x", "C.x"]]
    assert found.keys_between({"B"}, {"C"}) == ()


def test_keys_reach_over_inputs_that_are_not_there():
    found = graph("A B C", "A.x = B.x, B.x = C.x, A.y = C.y")
    assert keys(found.keys_between({"A"}, {"C"})) == ["A.x = C.x", "A.y = C.y"]
    assert keys(found.keys_between({"B"}, {"C"})) == ["B.x = C.x"]
    assert keys(found.keys_between({"A", "B"}, {"C"})) == ["A.x = C.x", "A.y = C.y"]
    assert found.keys_between({"C"}, {"A"}) == (
        Key(column("C.x"), column("A.x")),
        Key(column("C.y"), column("A.y")),
    )
    assert found.connected({"A"}, {"C"})


def test_inputs_without_a_common_class_are_not_connected():
    found = graph("A B C D", "A.x = B.x, C.x = D.x")
    assert found.keys_between({"A", "B"}, {"C"}) == ()
    assert not found.connected({"A", "B"}, {"C", "D"})


def test_implied_filters():
    found = graph("A B", "A.x = B.x, A.y = B.x, A.s = B.s")
    assert [str(f) for f in found.implied_filters("A")] == [
        "not(is_null(A.x))",
        "(A.x = A.y)",
        "not(is_null(A.s))",
    ]
    assert [str(f) for f in found.implied_filters("B")] == ["not(is_null(B.x))", "not(is_null(B.s))"]
    assert graph("A B").implied_filters("A") == ()


def test_aliases_are_named_in_the_order_of_the_query():
    assert graph("C A B").ordered({"A", "B", "C"}) == ("C", "A", "B")
    assert graph("C A B").ordered(frozenset("B")) == ("B",)


def test_residuals_are_decided_where_their_inputs_meet():
    residual = less("A.x", "C.x")
    found = graph("A B C", "", (residual,))
    assert found.residuals_at({"A"}, {"B"}) == ()
    assert found.residuals_at({"A", "B"}, {"C"}) == (residual,)
    assert found.residuals_at({"C"}, {"A"}) == (residual,)
    assert found.residuals_at({"A", "C"}, {"B"}) == ()
    assert found.residuals_at({"B"}, {"A", "C"}) == ()


@pytest.mark.parametrize(
    "residual",
    [
        Call(BOOL, "lt", (Literal(INT, 2), Literal(INT, 1))),
        Call(BOOL, "lt", (ResultTime(TIME), column("A.ts"))),
        Call(BOOL, "not", (Call(BOOL, "is_null", (ResultTime(TIME),)),)),
    ],
    ids=str,
)
def test_predicates_on_the_result_are_decided_on_whole_results(residual):
    found = graph("A B C", "", (residual,))
    assert found.residuals_at({"A"}, {"B"}) == ()
    assert found.residuals_at({"A", "B"}, {"C"}) == (residual,)
    assert found.residuals_at({"A"}, {"B", "C"}) == (residual,)


@given(graphs())
@settings(deadline=None)
def test_classes_are_the_components_of_the_equalities(found):
    terms = [term for terms in found.classes for term in terms]
    assert len(terms) == len(set(terms))
    assert {frozenset(c) for c in found.classes} == components([(e.left, e.right) for e in found.query.equalities])


@given(graphs())
@settings(deadline=None)
def test_keys_have_one_pair_for_each_class_that_both_sides_have(found):
    aliases = found.query.aliases
    for cut in range(1, len(aliases)):
        bound, target = set(aliases[:cut]), set(aliases[cut:])
        pairs = found.keys_between(bound, target)
        shared = [
            c
            for c in found.classes
            if any(aliases_of(t) <= bound for t in c) and any(aliases_of(t) <= target for t in c)
        ]
        assert len(pairs) == len(shared)
        for pair, terms in zip(pairs, shared, strict=True):
            assert {pair.bound, pair.target} <= set(terms)
            assert aliases_of(pair.bound) <= bound
            assert aliases_of(pair.target) <= target
            assert pair.bound.type == pair.target.type
        mirrored = found.keys_between(target, bound)
        assert [(k.target, k.bound) for k in mirrored] == [(k.bound, k.target) for k in pairs]


# -- queries are checked when built ----------------------------------------------------------------------------------


def test_an_alias_that_stands_twice():
    with pytest.raises(PlanError, match="query q: an alias stands twice in FROM"):
        query("A A")


def test_a_predicate_over_an_unknown_input():
    with pytest.raises(PlanError, match=r"query q: \(A.x < C.x\) reads an input that is not in FROM"):
        query("A B", "", (less("A.x", "C.x"),))
    with pytest.raises(PlanError, match=r"C.x reads an input that is not in FROM"):
        query("A B", select=(("x", column("C.x")),))


def test_an_equality_within_one_input():
    with pytest.raises(PlanError, match=r"query q: A.x = A.y does not connect two inputs"):
        query("A B", "A.x = A.y")


def test_an_equality_with_an_unknown_input():
    with pytest.raises(PlanError, match=r"A.x = C.x does not connect two inputs"):
        query("A B", "A.x = C.x")


def test_an_equality_of_a_constant():
    with pytest.raises(PlanError, match="does not connect two inputs"):
        Query("q", query("A B").inputs, (Equality(column("A.x"), Literal(INT, 1)),), (), ())


def test_an_equality_of_two_types():
    with pytest.raises(PlanError, match=r"A.x = B.s compares int64 with string"):
        query("A B", "A.x = B.s")


def test_what_a_query_reads():
    found = query("A B", "A.x = B.y", (less("A.z", "B.z"),), select=(("s", column("A.s")),))
    assert found.needed_columns("A") == ("x", "z", "s")
    assert found.needed_columns("B") == ("y", "z")
    assert found.output_schema == pa.schema([("s", pa.string())])
    assert str(found.equalities[0]) == "A.x = B.y"


def test_a_self_join_reads_one_source():
    shared = stream("t")
    found = Query("q", (Input("A", shared, SECOND), Input("B", shared, SECOND)), (equal("A.x = B.y"),), (), ())
    assert found.sources == (shared,)
    assert found.input("B").source is shared
    assert found.equalities[0].left == Column(INT, "A", "x")
