"""From one execution to another: the only place where what a query runs changes."""

from __future__ import annotations

from dataclasses import replace

from anabranch.drive.transition import Refusal, transition
from anabranch.plan.actions import ChangePlan, MoveGroups, MoveSelects
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Migration, Strategy
from anabranch.plan.query import Query
from anabranch.plan.selects import raise_selects
from anabranch.sql import parse_script

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
JOIN = "SELECT a.x FROM a [RANGE 5 SECONDS], b {}, c [RANGE 5 SECONDS] WHERE a.k = b.k AND b.k = c.k AND a.x > 3"
SEEN = {"a": 7_000_000, "b": 9_000_000}


def forms_of(window: str = "[RANGE 5 SECONDS]", sql: str = JOIN) -> Forms:
    query: Query = parse_script(f"{STREAMS} CREATE QUERY q AS {sql.format(window)}").queries[0].query
    return Forms(query)


def execution_of(forms: Forms, plan: str) -> Execution:
    return Execution(parse(plan, forms.graphs[None]))


def asked(forms: Forms, plan: str, strategy: Strategy = Strategy.MOVING_STATE) -> ChangePlan:
    return ChangePlan(parse(plan, forms.graphs[None]), strategy, pause_us=20)


def test_moving_state_is_over_at_once() -> None:
    forms = forms_of()
    after = transition(forms, execution_of(forms, "((a b) c)"), asked(forms, "(a b c)"), 4, SEEN)
    assert after == execution_of(forms, "(a b c)")


def test_others_are_under_way() -> None:
    forms = forms_of()
    before = execution_of(forms, "((a b) c)")
    for strategy in (Strategy.PARALLEL_TRACK, Strategy.GRADUAL):
        action = asked(forms, "(a b c)", strategy)
        after = transition(forms, before, action, 4, SEEN)
        assert after == replace(before, migration=Migration(action.plan, strategy, 4, 20))
        # Whoever asks for the plan that still gives the results gives the migration up, by whatever strategy.
        assert isinstance(after, Execution)
        for way in Strategy:
            assert transition(forms, after, asked(forms, "((a b) c)", way), 6, SEEN) == before


def test_a_parallel_track_that_would_never_end_is_refused() -> None:
    forms = forms_of("[UNBOUNDED]")
    before = execution_of(forms, "((a b) c)")
    refused = transition(forms, before, asked(forms, "(a b c)", Strategy.PARALLEL_TRACK), 4, SEEN)
    assert isinstance(refused, Refusal)
    assert "rows of b [UNBOUNDED] never do" in refused.reason
    assert isinstance(transition(forms, before, asked(forms, "(a b c)", Strategy.GRADUAL), 4, SEEN), Execution)


def test_a_select_moves_beside_the_plan_that_stays() -> None:
    forms = forms_of()
    before = execution_of(forms, "((a b) c)")
    selects = raise_selects(forms.written, {"a": "a b"})
    after = transition(forms, before, MoveSelects(selects, before.plan, Strategy.PARALLEL_TRACK), 4, SEEN)
    assert after == replace(before, selects=selects), "no migration: the plan is the same"


def test_groups_move_to_another_form() -> None:
    sql = "SELECT b.x, COUNT(*) AS n FROM a {}, b [RANGE 5 SECONDS] WHERE a.k = b.k GROUP BY b.x"
    forms = forms_of(sql=sql)
    before = execution_of(forms, "(a b)")
    below = MoveGroups("a", parse("(a b)", forms.graphs["a"]), Strategy.MOVING_STATE)
    after = transition(forms, before, below, 4, SEEN)
    assert isinstance(after, Execution)
    assert (after.grouped_input, after.leaving) == ("a", None)
    tracks = transition(forms, before, replace(below, strategy=Strategy.PARALLEL_TRACK), 4, SEEN)
    assert isinstance(tracks, Execution)
    assert tracks.leaving is not None
    assert tracks.leaving.until_us == SEEN["a"] + 5_000_000
    assert isinstance(transition(forms, before, replace(below, strategy=Strategy.GRADUAL), 4, SEEN), Refusal)


def test_while_results_may_be_lost_state_is_moved_and_nothing_else() -> None:
    """One join gives the results, of which it is said how many rows look up: no parallel track, no groups or selects on
    their way."""
    forms = forms_of()
    before = execution_of(forms, "((a b) c)")
    for strategy in (Strategy.MOVING_STATE, Strategy.GRADUAL):
        assert isinstance(transition(forms, before, asked(forms, "(a b c)", strategy), 4, SEEN, True), Execution)
    selects = raise_selects(forms.written, {"a": "a b"})
    for action, reason in (
        (asked(forms, "(a b c)", Strategy.PARALLEL_TRACK), "take moving-state or gradual"),
        (MoveSelects(selects, before.plan, Strategy.MOVING_STATE), "selects stay where they are"),
        (MoveGroups("a", before.plan, Strategy.MOVING_STATE), "groups stay where they are"),
    ):
        refused = transition(forms, before, action, 4, SEEN, True)
        assert isinstance(refused, Refusal)
        assert refused.reason.startswith("the overload policy of the query may lose results")
        assert reason in refused.reason
