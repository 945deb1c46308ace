"""Where selects stand in a plan, and where they cannot."""

from __future__ import annotations

import pytest

from anabranch.errors import MigrationError
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy, switched, why_not_raise, with_selects
from anabranch.plan.query import Query
from anabranch.plan.routes import routes
from anabranch.plan.selects import Selects, raise_selects, shown_selects
from anabranch.sql import parse_script

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, y BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
CHAIN = """SELECT a.k FROM a [RANGE 9 SECONDS], b [UNBOUNDED], c [RANGE 3 SECONDS], d [RANGE 3 SECONDS]
           WHERE a.k = b.k AND b.k = c.k AND c.k = d.k AND a.x > 1 AND a.y > 2 AND b.x > 3"""


def query_of(select: str = CHAIN) -> Query:
    return parse_script(f"{STREAMS} CREATE QUERY q AS {select}").queries[0].query


QUERY = query_of()
GRAPH = JoinGraph(QUERY)


def places(plan: str, selects: Selects) -> dict[str, dict[str, list[str]]]:
    """For each input, the stages on whose combined rows a predicate is evaluated."""
    return {
        route.alias: {" ".join(s.joined): [str(p) for p in s.selects] for s in route.stages if s.selects}
        for route in routes(parse(plan, GRAPH), GRAPH, selects)
    }


@pytest.mark.parametrize(
    ("plan", "above", "stands_at"),
    [
        ("(((a b) c) d)", "a b", "a b"),
        ("(((a b) c) d)", "a c", "a b c"),
        ("(((a b) c) d)", "a b c d", "a b c d"),
        ("((a b) (c d))", "a b", "a b"),
        ("((a b) (c d))", "a d", "a b c d"),
        ("(a b c d)", "a b", "a b c d"),
        ("((a b c) d)", "b a", "a b c"),
    ],
)
def test_a_select_stands_at_the_first_join_that_has_its_inputs(plan: str, above: str, stands_at: str) -> None:
    for alias, found in places(plan, raise_selects(QUERY, {"a.x": above})).items():
        assert found == ({stands_at: ["(a.x > 1)"]} if alias in stands_at.split() else {})


def test_selects_are_named_by_input_column_or_text() -> None:
    texts = lambda given: [str(s.predicate) for s in raise_selects(QUERY, given)]  # noqa: E731
    assert texts({"a": "a b"}) == ["(a.x > 1)", "(a.y > 2)"]
    assert texts({"a.y": "a, b"}) == texts({"(a.y > 2)": "b a"}) == ["(a.y > 2)"]
    assert texts({"b": "b c", "a.x": "a b"}) == ["(a.x > 1)", "(b.x > 3)"], "in the order of the query"
    assert texts({}) == []
    assert shown_selects(raise_selects(QUERY, {"a.y": "c b a"}), QUERY) == ", (a.y > 2) above (a b c)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": "a e"}, "there is no input e to put a above; there are: a, b, c, d"),
        ({"e": "a b"}, r"e names no predicate of one input; there are: \(a.x > 1\), \(a.y > 2\), \(b.x > 3\)"),
        ({"c": "c d"}, "c names no predicate of one input"),
        ({"a.x": "b c"}, r"\(a.x > 1\) cannot stand above b c: name a and the inputs it is joined with"),
        ({"a.x": "a"}, r"\(a.x > 1\) cannot stand above a: name a and"),
        ({"a.x": ""}, r"\(a.x > 1\) cannot stand above nothing"),
    ],
)
def test_what_cannot_be_asked_for(given: dict[str, str], message: str) -> None:
    with pytest.raises(MigrationError, match=message):
        raise_selects(QUERY, given)


# On the way down

RAISED = Execution(parse("(((a b) c) d)", GRAPH), selects=raise_selects(QUERY, {"a": "a b c", "b": "a b"}))


def test_down_by_moving_state_or_by_waiting() -> None:
    kept = raise_selects(QUERY, {"b": "a b"})
    moved = with_selects(RAISED, GRAPH, kept, Strategy.MOVING_STATE, {"a": 5})
    assert moved.selects == kept
    assert moved.is_settled
    waiting = with_selects(RAISED, GRAPH, kept, Strategy.PARALLEL_TRACK, {"a": 5})
    assert [(str(s.predicate), s.until_us) for s in waiting.selects] == [
        ("(a.x > 1)", 9_000_005), ("(a.y > 2)", 9_000_005), ("(b.x > 3)", None),
    ]  # fmt: skip
    assert not waiting.is_settled
    later = with_selects(waiting, GRAPH, kept, Strategy.GRADUAL, {"a": 7})
    assert later.selects == waiting.selects, "what waits, waits no longer than before"
    up_again = with_selects(waiting, GRAPH, RAISED.selects, Strategy.GRADUAL, {"a": 7})
    assert up_again == RAISED


def test_what_cannot_wait() -> None:
    none = raise_selects(QUERY, {})
    assert "rows of b never do: take moving-state" in (why_not_raise(RAISED, GRAPH, none, Strategy.PARALLEL_TRACK) or "")
    with pytest.raises(MigrationError, match="never do"):
        with_selects(RAISED, GRAPH, none, Strategy.PARALLEL_TRACK, {})
    gradual = with_selects(RAISED, GRAPH, none, Strategy.GRADUAL, {})
    assert [str(s.predicate) for s in gradual.selects] == ["(a.x > 1)", "(a.y > 2)"], "that of b is down at once"
    lower = raise_selects(QUERY, {"a": "a b", "b": "a b"})
    reason = why_not_raise(RAISED, GRAPH, lower, Strategy.PARALLEL_TRACK)
    assert reason == "(a.x > 1) can wait on its way to its stream only: take moving-state"
    assert why_not_raise(RAISED, GRAPH, lower, Strategy.GRADUAL) is None
    twice = query_of("SELECT a.k FROM a [NOW], a [NOW] AS b WHERE a.k = b.k AND a.x > 1")
    raised = Execution(parse("(a b)", JoinGraph(twice)), selects=raise_selects(twice, {"a": "a b"}))
    assert "a stands in FROM twice" in (why_not_raise(raised, JoinGraph(twice), (), Strategy.PARALLEL_TRACK) or "")


GROUPED = """SELECT a.k, COUNT(*) AS n FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS]
             WHERE a.k = b.k AND a.x > 1 GROUP BY a.k"""


def test_selects_and_groups_do_not_move_together() -> None:
    grouped = query_of(GROUPED)
    forms = Forms(grouped)
    graph, above = forms.graphs[None], raise_selects(grouped, {"a": "a b"})
    below = Execution(parse("(a b)", forms.graphs["b"]), grouped_input="b")
    assert "have groups above the join" in (why_not_raise(below, graph, above, Strategy.MOVING_STATE) or "")
    raised = Execution(parse("(a b)", graph), selects=above)
    with pytest.raises(MigrationError, match="have it evaluated at its stream before groups go elsewhere"):
        switched(forms, raised, below.plan, "b", Strategy.MOVING_STATE, {}, 1)


@pytest.mark.parametrize("strategy", [Strategy.MOVING_STATE, Strategy.PARALLEL_TRACK])
def test_a_query_whose_groups_move_stays_in_its_company(strategy: Strategy) -> None:
    forms = Forms(query_of(GROUPED))
    execution, below = Execution(parse("(a b)", forms.graphs[None]), company="few"), parse("(a b)", forms.graphs["b"])
    moved = switched(forms, execution, below, "b", strategy, {}, 1)
    assert (moved.grouped_input, moved.company) == ("b", "few")
