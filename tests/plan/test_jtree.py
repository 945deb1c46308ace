"""The notation of plans: what is printed is read back, and what cannot be read is shown with a caret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import PlanError
from anabranch.plan.jtree import Join, Leaf, check, default_orders, join, joins_of, left_deep, parse, show
from tests.support.queries import graph, graphs, planned, plans_for

CHAIN = graph("A B C D", "A.x = B.x, B.y = C.y, C.z = D.z")
STAR = graph("A B C", "A.x = B.x, A.y = C.y")


@given(planned())
@settings(deadline=None)
def test_what_is_shown_is_read_back(case):
    found, plan = case
    assert parse(show(plan, found), found) == plan


@given(planned(max_inputs=4), st.data())
@settings(deadline=None)
def test_layout_and_case_do_not_matter(case, data):
    found, plan = case
    text = show(plan, found)
    gaps = st.sampled_from([" ", "  ", "\t", "\n", ", ", " ,"])
    spaced = "".join(f" {c} " if c in "(){}:;" else (data.draw(gaps) if c == " " else c) for c in text)
    assert parse(spaced, found) == plan
    assert parse(text.lower(), found) == plan


@given(graphs())
@settings(deadline=None)
def test_default_orders_are_not_written(found):
    leaves = tuple(Leaf(a) for a in found.query.aliases)
    assert show(join(leaves, found), found) == f"({' '.join(found.query.aliases)})"
    assert "{" not in show(left_deep(found), found)


@given(planned())
@settings(deadline=None)
def test_default_orders_make_no_product_that_can_be_avoided(case):
    """At every step the input chosen is connected, unless none that is left is; among those the first as written."""
    found, plan = case
    for node in joins_of(plan):
        for start, order in enumerate(default_orders(node.inputs, found)):
            bound, left = node.inputs[start].aliases, set(range(len(node.inputs))) - {start}
            assert set(order) == left
            for chosen in order:
                good = {j for j in left if found.connected(bound, node.inputs[j].aliases)} or left
                assert chosen == min(good)
                left.remove(chosen)
                bound |= node.inputs[chosen].aliases


def test_default_orders_of_a_chain():
    assert default_orders(tuple(map(Leaf, "ACBD")), CHAIN) == ((2, 1, 3), (2, 0, 3), (0, 1, 3), (1, 2, 0))


def test_left_deep():
    assert show(left_deep(CHAIN), CHAIN) == "(((A B) C) D)"
    assert left_deep(graph("A")) == Leaf("A")


def test_a_plan_of_one_input():
    assert parse("A", graph("A")) == Leaf("A")
    assert show(Leaf("A"), graph("A")) == "A"


def test_orders_name_views_by_their_inputs_in_any_order():
    plan = parse("((B A) C D){(A B): D C; C: D (A B)}", CHAIN)
    assert plan == parse("((B A) C D){(B A): D C; C: D (B A)}", CHAIN)
    assert isinstance(plan, Join)
    assert plan.orders == ((2, 1), (2, 0), default_orders(plan.inputs, CHAIN)[2])
    assert show(plan, CHAIN) == "((B A) C D){(A B): D C; C: D (A B)}"


def test_an_order_that_is_the_default_is_not_shown():
    assert show(parse("(A B C){A: B C; B: A C}", STAR), STAR) == "(A B C)"
    assert show(parse("(A B C){A: C B}", STAR), STAR) == "(A B C){A: C B}"


def test_aliases_that_differ_only_in_case():
    found = graph("a A b", "a.x = A.x, A.x = b.x")
    assert parse("((A a) B)", found).inputs[0].inputs == (Leaf("A"), Leaf("a"))


def test_joins_of_a_plan_come_children_first():
    plan = parse("((A B) (C D))", CHAIN)
    assert [str(j) for j in joins_of(plan)] == ["(A B)", "(C D)", "((A B) (C D))"]
    assert list(joins_of(Leaf("A"))) == []


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "caret"),
    [
        ("", "expected an input, found the end", 0),
        ("(A B", "expected an input, found the end", 4),
        ("((A B)", "expected an input, found the end", 6),
        (")", "expected an input, found )", 0),
        ("(A {B})", "expected an input, found {", 3),
        ("(A : B)", "expected an input, found :", 3),
        ("()", "a join needs two or more inputs", 2),
        ("(A)", "a join needs two or more inputs", 3),
        ("((A) B)", "a join needs two or more inputs", 5),
        ("(A B) C", "unexpected C after the plan", 6),
        ("(A B))", "unexpected ) after the plan", 5),
        ("A B", "unexpected B after the plan", 2),
        ("(A B C){A B: C}", "expected :, found B", 10),
        ("(A B C){A: B}", "the probe order of A must list every other input of the join once", 12),
        ("(A B C){A: B B}", "the probe order of A must list every other input of the join once", 14),
        ("(A B C){A: A B}", "the probe order of A must list every other input of the join once", 14),
        ("(A B C){A:}", "the probe order of A must list every other input of the join once", 10),
        ("((A B) C){(A B): A}", "(A) is not an input of ((A B) C)", 18),
        ("((A B) C){A: C}", "(A) is not an input of ((A B) C)", 11),
        ("((A B) C){(A C): B}", "(A C) is not an input of ((A B) C)", 15),
        ("(A B C){X: A B}", "query q has no input X; there are: A, B, C", 8),
        ("(A B D)", "query q has no input D; there are: A, B, C", 5),
        ("(A BB C)", "query q has no input BB; there are: A, B, C; did you mean B?", 3),
        ("(A B C){A: B C", "expected an input, found the end", 14),
        ("(A B C){A: B C; (B", "expected an input, found the end", 18),
        ("(A B C){;}", "expected an input, found ;", 8),
    ],
)
def test_what_cannot_be_read_is_shown_with_a_caret(text, message, caret):
    with pytest.raises(PlanError) as error:
        parse(text, graph("A B C"))
    assert str(error.value) == f"{message}\n  {text}\n  {' ' * caret}^\nwrite a plan like ((A B) C)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(A B)", "plan (A B) of query q lacks C"),
        ("A", "plan A of query q lacks B, C"),
        ("(A B A)", "an input stands twice in (A B A)"),
        ("((A B) (C A))", "an input stands twice in ((A B) (C A))"),
    ],
)
def test_plans_that_do_not_fit_the_query(text, message):
    with pytest.raises(PlanError) as error:
        parse(text, graph("A B C"))
    assert str(error.value) == message


@given(st.text(alphabet="ABC(){}:; ,", max_size=20))
@settings(deadline=None, max_examples=300)
def test_any_text_is_a_plan_or_an_error(text):
    found = graph("A B C")
    try:
        plan = parse(text, found)
    except PlanError:
        return
    assert parse(show(plan, found), found) == plan


def test_joins_are_checked_when_built():
    with pytest.raises(PlanError, match="two or more"):
        Join((Leaf("A"),), ((),))
    with pytest.raises(PlanError, match="an input stands twice in"):
        Join((Leaf("A"), Leaf("A")), ((1,), (0,)))
    for orders in [((1,),), ((0,), (1,)), ((1, 1), (0,)), ((), (0,)), ((1,), (0,), ())]:
        with pytest.raises(PlanError, match="does not list every other input once"):
            Join((Leaf("A"), Leaf("B")), orders)


def test_check_of_a_plan_that_was_not_parsed():
    check(Leaf("A"), graph("A"))
    with pytest.raises(PlanError, match="lacks B"):
        check(Leaf("A"), graph("A B"))
    with pytest.raises(PlanError, match="names B"):
        check(Join((Leaf("A"), Leaf("B")), ((1,), (0,))), graph("A"))


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_plans_are_values(data):
    """Equal plans are equal keys."""
    found = data.draw(graphs())
    plan = data.draw(plans_for(found.query.aliases))
    assert {plan: 1}[parse(show(plan, found), found)] == 1
