"""From one execution to another, and to which places of the driver that is left."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

import anabranch.drive
from anabranch.control.execution import execution_record
from anabranch.control.records import QueryCommit, Statistics
from anabranch.drive.local import LocalRun
from anabranch.drive.transition import Refusal, placing_followed, transition, without_changes
from anabranch.plan.actions import ChangePlan, MoveGroups, MoveSelects
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Folding, Leaving, Migration, Strategy, Woken
from anabranch.plan.query import Query
from anabranch.plan.selects import raise_selects
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

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


# What follows from a commit, and at a restart.


def test_what_is_given_up_leaves_the_plan_and_its_form() -> None:
    forms = forms_of()
    plain = replace(execution_of(forms, "((a b) c)"), company="x", woken=(Woken("q.a", "duck"),))
    selects = raise_selects(forms.written, {"a": "a b"})
    migration = Migration(parse("(a b c)", forms.graphs[None]), Strategy.GRADUAL, 3)
    leaving = Leaving("a", plain.plan, 9_000_000, 3)
    assert without_changes(replace(plain, migration=migration, leaving=leaving, selects=selects)) == plain
    assert without_changes(plain) == plain


def test_a_block_is_followed_where_it_went_and_nothing_else_is() -> None:
    """All that the commit ends is over in one go only for the block: a migration may have been asked for since."""
    forms = forms_of()
    migration = Migration(parse("(a b c)", forms.graphs[None]), Strategy.GRADUAL, 3)
    going = Woken("q", "duck", since=2, until_us=5_000_000, is_going=True)
    ran = replace(execution_of(forms, "((a b) c)"), woken=(going,), home=frozenset({"q"}), migration=migration)
    before = replace(ran, migration=replace(migration, since=4), selects=raise_selects(forms.written, {"a": "a b"}))

    def commit(watermark_us: int, statistics: Statistics, execution: Execution = ran) -> QueryCommit:
        record = execution_record(execution, forms)
        return QueryCommit("", "", watermark_us, record, statistics=statistics)

    assert placing_followed(forms, before, commit(4_999_999, Statistics())) == before
    gone = placing_followed(forms, before, commit(5_000_000, Statistics()))
    assert (gone.home, [w.is_covered for w in gone.woken]) == (frozenset(), [True])
    assert replace(gone, home=before.home, woken=before.woken) == before
    folding = replace(before, woken=(replace(going, until_us=-(2**63), is_going=False),), home=frozenset(),
                      folding=(Folding("q", 4),))  # fmt: skip
    home = placing_followed(forms, folding, commit(0, Statistics(), replace(folding, selects=())))
    assert (home.home, home.folding) == ({"q"}, ())
    assert replace(home, home=folding.home, folding=folding.folding) == folding


@pytest.mark.parametrize("is_in_duck", [False, True])
def test_another_plan_that_is_pinned_at_a_restart(is_in_duck: bool) -> None:
    """It is gone over to like any other: what is refused while the query runs is refused then."""
    forms, disk = forms_of(), MemoryFilesystem()
    run = LocalRun(forms.written, disk, "((a b) c)")
    run.step(0, {})
    if is_in_duck:
        run.place("q", "duck")
        run.step(1, {})
    again = LocalRun(forms.written, disk, "(a b c)")
    told = again.steering.journal.entries()[-1]
    if is_in_duck:
        assert again.execution == run.execution
        assert told.event == "resumed"
        assert "(a b c) cannot be gone over to: duck may run the query: it keeps the plan that it has" in told.text
    else:
        assert again.execution == replace(run.execution, plan=parse("(a b c)", forms.graphs[None]))
        assert (told.event, told.text) == ("replanned", "plan (a b c) instead of ((a b) c), at a restart")


def test_executions_of_running_queries_are_made_nowhere_else_in_the_driver() -> None:
    """But for the statements of blocks, which no record has (`anabranch.drive.waking`)."""
    made, named = list[str](), {each.name for each in fields(Execution)} - {"plan"}
    for path in sorted(Path(anabranch.drive.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "replace":
                made += [path.stem] * bool(named & {each.arg for each in node.keywords})
    assert set(made) == {"transition", "waking"}
