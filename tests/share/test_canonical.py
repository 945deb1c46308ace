"""Which joins are the same, and who runs them together."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.cost.facts import EMPTY
from anabranch.cost.units import DEFAULT
from anabranch.plan.distribution import Distribution
from anabranch.plan.expression import Column
from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.migration import Execution, Migration, Strategy
from anabranch.plan.query import Query
from anabranch.plan.shared_join import shared_join
from anabranch.share.canonical import Running, companies, shape_of, shared_joins
from anabranch.share.common_plan import Starting, common_plans
from anabranch.share.taking_in import JoinMembers, Pricing
from anabranch.sql import parse_script

CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
CREATE += "CREATE TABLE t (k BIGINT);"
PRICING = Pricing(EMPTY, DEFAULT)


def queries(*selects: str) -> list[Query]:
    script = CREATE + "".join(f"CREATE QUERY q{n} AS {select};" for n, select in enumerate(selects))
    return [declared.query for declared in parse_script(script).queries]


def query(from_where: str) -> Query:
    (found,) = queries(f"SELECT 1 AS one FROM {from_where} WINDOW 2 SECONDS")
    return found


ALIKE = [
    ("a, b WHERE a.k = b.k", "b AS p, a AS q WHERE p.k = q.k"),
    ("a, b, c WHERE a.k = b.k AND b.k = c.k", "c, b, a WHERE a.k = c.k AND c.k = b.k"),
    ("a, b WHERE a.k = b.k AND a.x > 3", "a, b WHERE b.k = a.k AND b.x < 5 AND a.x < b.x"),
    ("a AS m, a AS n WHERE m.k = n.j", "a AS n, a AS m WHERE m.j = n.k"),
    ("a, b WHERE a.x < b.x", "b AS y, a AS z WHERE y.x > z.x"),
    ("a AS m, a AS n, b WHERE m.k = n.j AND n.k = b.k", "b, a AS u, a AS v WHERE b.k = u.k AND v.k = u.j"),
]
OTHERS = [
    ("a, b WHERE a.k = b.k", "a, b WHERE a.k = b.j"),
    ("a, b WHERE a.k = b.k", "a, c WHERE a.k = c.k"),
    ("a, b WHERE a.k = b.k", "a, b WHERE a.k = b.k AND a.j = b.j"),
    ("a, b, c WHERE a.k = b.k AND b.j = c.j", "a, b, c WHERE a.k = b.k AND a.j = c.j"),
    ("a, b WHERE a.x < b.x", "a, b WHERE a.x > b.x"),
    ("a AS m, a AS n WHERE m.k = n.k", "a AS m, a AS n WHERE m.k = n.j"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_joins_that_are_the_same(one: str, other: str) -> None:
    mine, theirs = query(one), query(other)
    first, second = shape_of(mine), shape_of(theirs)
    assert first is not None
    assert second is not None
    assert first.text == second.text
    for a, b in zip(first.order, second.order, strict=True):
        assert mine.input(a).source == theirs.input(b).source


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_joins_that_are_not(one: str, other: str) -> None:
    first, second = shape_of(query(one)), shape_of(query(other))
    assert first is not None
    assert second is not None
    assert first.text != second.text


@pytest.mark.parametrize("alone", [
    "a", "a, t WHERE a.k = t.k", "a, b, t WHERE a.k = b.k AND a.k = t.k",
    "a, (SELECT k, COUNT(*) AS n FROM b [NOW] GROUP BY k) AS g WHERE a.k = g.k",
])  # fmt: skip
def test_joins_that_no_other_query_can_share(alone: str) -> None:
    assert shape_of(query(alone)) is None


def running(found: Query, plan: str | None = None, **changes: object) -> Running:
    graph = JoinGraph(found)
    chosen = left_deep(graph) if plan is None else parse(plan, graph)
    return Running(found, Execution(chosen, **changes), Distribution())  # type: ignore[arg-type]


WHERE = "WHERE a.k = b.k AND b.k = c.k"


def kin(*windows: int) -> list[Query]:
    return queries(*(f"SELECT a.x FROM a, b, c {WHERE} WINDOW {us} SECONDS" for us in windows))


def test_the_largest_windows_lead() -> None:
    (company,) = companies(map(running, kin(1, 60, 5)))
    assert company.names == ("q1", "q2", "q0")
    (shared,) = shared_joins(map(running, kin(1, 60, 5)))
    assert shared.names[0] == "q1"
    assert {i.window.length_us for i in shared.join.inputs} == {60_000_000}


def test_plans_that_do_the_same_are_shared_whatever_their_aliases() -> None:
    one, two = queries(
        f"SELECT a.x FROM a, b, c {WHERE} WINDOW 2 SECONDS",
        "SELECT r.x FROM c AS p, b AS q, a AS r WHERE p.k = q.k AND q.k = r.k WINDOW 3 SECONDS",
    )
    assert companies([running(one, "((a b) c)"), running(two, "(p (r q))")])
    assert not companies([running(one, "((a b) c)"), running(two, "((p q) r)")])


def test_who_is_on_another_way_runs_alone() -> None:
    one, two = kin(1, 2)
    target = parse("((b c) a)", JoinGraph(one))
    going = Migration(target, Strategy.GRADUAL, 7)
    assert companies([running(one, migration=going), running(two, migration=going)])
    assert not companies([running(one, migration=going), running(two)])
    assert not companies([running(one, migration=going), running(two, migration=Migration(target, Strategy.GRADUAL, 8))])
    assert not companies([running(one, grouped_input="a"), running(two, grouped_input="a")])


def test_queries_whose_rows_are_spread_in_other_ways_run_alone() -> None:
    one, two = kin(1, 2)
    spread = [Distribution(Grid((Dimension((Column(pa.int64(), "a", name),)),), (2,))) for name in ("k", "j")]
    cases = ((one, spread[0]), (two, spread[0]), (two, spread[1]))
    first, same, other = (Running(query, running(query).execution, each) for query, each in cases)
    assert companies([first, same])
    assert not companies([first, other])


def test_what_a_shared_join_has_in_common() -> None:
    one, two = queries(
        "SELECT a.x FROM a [RANGE 5 SECONDS], b [RANGE 1 SECOND] WHERE a.k = b.k AND a.x > 3 AND b.x < a.x AND b.j = 1",
        "SELECT n.j FROM b [RANGE 2 SECONDS] AS n, a [NOW] AS m WHERE m.k = n.k AND n.j = 1 AND m.x > n.x AND m.x < n.j",
    )
    (shared,) = shared_joins([running(one), running(two)])
    join = shared.join
    assert [(i.alias, i.window.length_us) for i in join.inputs] == [("a", 5_000_000), ("b", 2_000_000)]
    assert [str(f) for f in join.input("b").filters] == ["(b.j = 1)"]
    assert not join.input("a").filters
    assert [str(r) for r in join.residuals] == ["(b.x < a.x)"]
    assert [list(own) for own in shared.own_filters["a"]] == [["(3 < a.x)"], []]
    assert [[str(r) for r in own] for own in shared.own_residuals] == [[], ["(a.x < b.j)"]]
    assert {str(c) for c in join.kept} == {"a.k", "a.x", "b.k", "b.x", "b.j"}


def test_what_is_kept_in_a_view_of_a_shared_join() -> None:
    """What some member wants: all, if one of them has the largest windows and no filter of its own."""
    wheres = ("a.x > 3 WINDOW 9 SECONDS", "b.x > 5 WINDOW 9 SECONDS", "a.j = 1 WINDOW 2 SECONDS")
    found = queries(*(f"SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.k = c.k AND {where}" for where in wheres))
    (shared,) = shared_joins(map(running, found))
    assert {str(each) for each in shared.wanted(("a", "b"))} == {
        "[9000000] and (.x > 3); [9000000]", "[9000000]; [9000000] and (.x > 5)", "[2000000] and (.j = 1); [2000000]",
    }  # fmt: skip
    (shared,) = shared_joins(map(running, [*found[:1], *kin_of_two()]))
    assert shared.wanted(("a", "b")) == ()


def kin_of_two() -> list[Query]:
    (found,) = queries("SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 9 SECONDS")
    return [found]


# One plan for all.


def starting(found: Query, plan: str, is_pinned: bool = False) -> Starting:
    return Starting(found, Execution(parse(plan, JoinGraph(found))), is_pinned)


def test_all_start_with_the_plan_of_the_largest_windows() -> None:
    one, two, three = kin(1, 60, 5)
    plans = {"q1": starting(two, "((a b) c)"), "q2": starting(three, "((a b) c)")}
    taken = common_plans({"q0": starting(one, "(a b c)"), **plans}, PRICING)
    assert {name: (str(each.execution.plan), each.lead) for name, each in taken.items()} == {"q0": ("((a b) c)", "q1")}


def test_all_start_with_the_plan_that_is_pinned() -> None:
    one, two, three = kin(1, 60, 5)
    taken = common_plans(
        {"q0": starting(one, "(a b c)", True), "q1": starting(two, "((a b) c)"), "q2": starting(three, "(a (b c))")},
        PRICING,
    )
    assert {name: str(each.execution.plan) for name, each in taken.items()} == {"q1": "(a b c)", "q2": "(a b c)"}


def test_queries_with_different_pins_keep_them() -> None:
    one, two, three = kin(1, 60, 5)
    pinned = {"q0": starting(one, "(a b c)", True), "q1": starting(two, "((a b) c)", True)}
    assert not common_plans({**pinned, "q2": starting(three, "(a (b c))")}, PRICING)


# Joins that are contained in others.

CHAIN = "a, b, c WHERE a.k = b.k AND b.j = c.j"
CONTAINED = [
    (CHAIN, "a, b, c WHERE a.k = b.k AND b.j = c.j AND a.x = c.x", "((a b) c)", "((a b) c)"),
    (CHAIN, "a, b WHERE a.k = b.k", "((a b) c)", "(a b)"),
    (CHAIN, "b AS p, a AS q WHERE q.k = p.k AND p.x = q.x", "((a b) c)", "(p q)"),
    (CHAIN, "b, c WHERE b.j = c.j", "(a (b c))", "(b c)"),
    (CHAIN, "a, b WHERE a.k = b.k", "(a b c){a: b c; b: a c}", "(a b)"),
    (CHAIN, "b, c WHERE b.j = c.j", "(a b c){a: b c; b: c a; c: b a}", "(b c)"),
    ("a, b, c WHERE a.k = b.k AND b.k = c.k", "a, b WHERE b.k = a.k", "((a b) c)", "(a b)"),
    ("a AS m, a AS n, b WHERE m.k = n.j AND n.k = b.k", "a AS x, a AS y WHERE x.j = y.k", "((m n) b)", "(x y)"),
    ("a, b WHERE a.k = b.k", "a, b WHERE a.k = b.k AND a.j = b.k", "(a b)", "(a b)"),
    ("a, b, c, a AS d WHERE a.k = b.k AND b.k = c.k AND c.j = d.j", CHAIN.replace("b.j = c.j", "b.k = c.k"),
     "(((a b) c) d)", "((a b) c)"),
]  # fmt: skip
NOT_CONTAINED = [
    (CHAIN, "b, c WHERE b.j = c.j", "((a b) c)", "(b c)"),
    (CHAIN, "a, b WHERE a.k = b.k", "(a b c){a: b c; b: c a}", "(a b)"),
    (CHAIN, "a, b, c WHERE a.k = b.k AND b.j = c.j AND a.x = c.x", "((a b) c)", "((b c) a)"),
    (CHAIN, "a, c WHERE a.k = c.k", "((a b) c)", "(a c)"),
    (CHAIN, "a, b WHERE a.k = b.j", "((a b) c)", "(a b)"),
    ("a, b, c WHERE a.k = b.k AND b.j = c.j AND a.x < b.x", "a, b WHERE a.k = b.k", "((a b) c)", "(a b)"),
    ("a, b WHERE a.k = b.k AND a.j = b.j", "a, b WHERE a.k = b.k AND a.x = b.x", "(a b)", "(a b)"),
]


@pytest.mark.parametrize(("whole", "other", "plan", "its"), CONTAINED)
def test_a_join_that_is_contained_in_another_runs_with_it(whole: str, other: str, plan: str, its: str) -> None:
    one, two = queries(*(f"SELECT 1 AS one FROM {each} WINDOW {n} SECONDS" for n, each in enumerate((whole, other), 2)))
    for given in ([running(one, plan), running(two, its)], [running(two, its), running(one, plan)]):
        (company,) = companies(given)
        assert company.names == ("q0", "q1"), "the larger join leads"
        (shared,) = shared_joins(given)
        assert shared.join.equalities == one.equalities
        assert len(shared.members[1].inputs) == len(two.inputs)


@pytest.mark.parametrize(("whole", "other", "plan", "its"), CONTAINED)
def test_a_join_in_a_company_of_its_own_runs_apart(whole: str, other: str, plan: str, its: str) -> None:
    one, two = queries(*(f"SELECT 1 AS one FROM {each} WINDOW {n} SECONDS" for n, each in enumerate((whole, other), 2)))
    assert not companies([running(one, plan), running(two, its, company="q1")])
    (company,) = companies([running(one, plan, company="x"), running(two, its, company="x")])
    assert company.names == ("q0", "q1")


@pytest.mark.parametrize(("whole", "other", "plan", "its"), NOT_CONTAINED)
def test_a_join_that_is_not_contained_in_another_runs_by_itself(whole: str, other: str, plan: str, its: str) -> None:
    one, two = queries(*(f"SELECT 1 AS one FROM {each} WINDOW {n} SECONDS" for n, each in enumerate((whole, other), 2)))
    assert not companies([running(one, plan), running(two, its)])


def test_what_a_member_asks_for_more_than_the_join() -> None:
    found = queries(*(f"SELECT a.x FROM {each} WINDOW 2 SECONDS" for each in (
        CHAIN, f"{CHAIN} AND a.x = c.x AND a.j = b.k", "a, b WHERE a.k = b.k AND b.x = 1",
    )))  # fmt: skip
    (shared,) = shared_joins([running(each) for each in found])
    assert [[str(r) for r in own] for own in shared.own_residuals] == [[], ["(a.x = c.x)", "(a.j = b.k)"], []]
    assert [sorted(own) for own in shared.own_filters["a"]] == [[], ["(a.j = a.k)", "not(is_null(a.x))"], []]
    assert [sorted(own) for own in shared.own_filters["b"]] == [["not(is_null(b.j))"], ["not(is_null(b.j))"], ["(1 = b.x)"]]
    assert [str(f) for f in shared.asked["b"]] == ["not(is_null(b.k))"]
    assert shared.windows_us("c") == (2_000_000, 2_000_000, 0)
    assert shared.members_over("c") == (0, 1)
    assert shared.wanted(("a", "b")) == (), "what only the part wants is not kept"
    assert [str(f) for f in shared.filters_in("b", ("a", "b"))] == ["not(is_null(b.k))", "not(is_null(b.j))"]


def test_predicates_over_several_inputs_of_a_whole_and_its_part() -> None:
    """The join asks what all ask who have the inputs. A predicate on the time of a result is decided on whole results, of
    which those of a part are others: the part asks it for itself."""
    inside, timed = "AND a.x < b.x", "AND RESULT_TIME > TIMESTAMP '2026-01-01 00:00:00'"
    for whole, part, common, own in (
        (inside, inside, 1, [0, 0]), (inside, "", 0, [1, 0]), ("", inside, 0, [0, 1]), (timed, timed, 1, [0, 1]),
        (timed, "", 1, [0, 0]),
    ):  # fmt: skip
        texts = f"{CHAIN} {whole}", f"a, b WHERE a.k = b.k {part}"
        selects = (f"SELECT a.x FROM {each} WINDOW 2 SECONDS" for each in texts)
        shared = shared_join(queries(*selects), [("a", "b", "c"), ("a", "b", "")])
        assert (len(shared.join.residuals), [len(each) for each in shared.own_residuals]) == (common, own), (whole, part)


def test_a_view_tells_by_whose_watermark_rows_are_in_it() -> None:
    """Also if the lead wants all: what was late for it may be there for a part that has other streams."""
    four = "a, b, c, d WHERE a.k = b.k AND b.k = c.k AND c.j = d.j"
    create = CREATE + "CREATE STREAM d (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;"
    texts = [f"SELECT a.x FROM {each} WINDOW 2 SECONDS" for each in (four, "a, b, c WHERE a.k = b.k AND b.k = c.k")]
    script = create + "".join(f"CREATE QUERY q{n} AS {text};" for n, text in enumerate(texts))
    one, two = (declared.query for declared in parse_script(script).queries)
    (shared,) = shared_joins([running(one, "(((a b) c) d)"), running(two, "((a b) c)")])
    assert [each.asked for each in shared.wanted(("a", "b"))] == [
        "[2000000]; [2000000]", "[2000000]; [2000000] accepted by (a, b, c)",
    ]  # fmt: skip
    assert shared.wanted(("a", "b", "c")) == ()


@pytest.mark.parametrize(
    ("more", "window_s", "plan", "its", "is_member"),
    [
        ("", 3, "(((a b) c) d)", "((a b) c)", True), (" AND d.x > 1", 3, "(((a b) c) d)", "((a b) c)", True),
        (" AND c.x > 1", 3, "(((a b) c) d)", "((a b) c)", True), (" AND a.x > 1", 3, "(((a b) c) d)", "((a b) c)", False),
        ("", 1, "(((a b) c) d)", "((a b) c)", False), (" AND b.x > 1", 3, "((a (b c)) d)", "(a (b c))", False),
        (" AND a.x > 1", 1, "((a b c) d)", "(a b c)", True), (" AND a.x > 1", 1, "(a b c d)", "(a b c)", True),
    ],
)  # fmt: skip
def test_a_part_whose_rows_would_pile_up_in_a_view_runs_by_itself(
    more: str, window_s: int, plan: str, its: str, is_member: bool
) -> None:
    """While the fourth stream is silent: where nobody who waits for it wants all that the part wants of a view."""
    create = CREATE + "CREATE STREAM d (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;"
    three = "a.k = b.k AND b.k = c.k"
    whole = f"SELECT a.x FROM a, b, c, d WHERE {three} AND c.j = d.j{more} WINDOW {window_s} SECONDS"
    part = f"SELECT a.x FROM a, b, c WHERE {three} WINDOW 2 SECONDS"
    wide = whole.replace(more, "").replace(f"{window_s} SECONDS", "2 SECONDS")
    script = create + "".join(f"CREATE QUERY q{n} AS {text};" for n, text in enumerate((whole, part, wide)))
    one, two, other = (declared.query for declared in parse_script(script).queries)
    assert [c.names for c in companies([running(one, plan), running(two, its)])] == ([("q0", "q1")] if is_member else [])
    host = JoinMembers((one,), (("a", "b", "c", "d"),), parse(plan, JoinGraph(one)))
    assert (host.part_for(two) is not None) == is_member
    (company,) = companies([running(one, plan), running(other, plan), running(two, its)])
    # One that wants all is enough; of c nobody who waits for d wants a row without j.
    assert ("q1" in company.names) == ("(b c)" not in plan)


def test_a_part_goes_with_a_join_that_goes_over_to_another_plan() -> None:
    """As long as the plan that gives the results brings it together; one of three streams goes over to its part."""
    four = "a, b, c, a AS d WHERE a.k = b.k AND b.k = c.k AND c.j = d.j"
    one, two, three = queries(*(f"SELECT 1 AS one FROM {each} WINDOW 2 SECONDS" for each in (
        four, "a, b WHERE a.k = b.k", "a, b, c WHERE a.k = b.k AND b.k = c.k"
    )))  # fmt: skip
    target, its = parse("(((b c) a) d)", JoinGraph(one)), parse("((b c) a)", JoinGraph(three))
    whole = running(one, "(((a b) c) d)", migration=Migration(target, Strategy.GRADUAL, 7))
    (company,) = companies([whole, running(two), running(three, "((a b) c)")])
    assert set(company.names) == {"q0", "q1", "q2"}
    going = running(three, "((a b) c)", migration=Migration(its, Strategy.GRADUAL, 7))
    assert companies([whole, going])
    assert not companies([whole, running(three, "((a b) c)", migration=Migration(its, Strategy.GRADUAL, 8))])
    assert not companies([running(one, "(((a b) c) d)"), going])
    assert not companies([running(one, "(((b c) a) d)"), running(two)])


def test_queries_that_are_contained_start_with_the_plan_of_the_larger_join() -> None:
    four = "a, b, c, a AS d WHERE a.k = b.k AND b.k = c.k AND c.j = d.j"
    one, two, three = queries(*(f"SELECT 1 AS one FROM {each} WINDOW 2 SECONDS" for each in (
        four, f"{four} AND a.x = d.x", "c AS n, b AS m, a WHERE a.k = m.k AND m.k = n.k"
    )))  # fmt: skip
    plans = {"q0": starting(one, "(((b c) a) d)"), "q1": starting(two, "(a b c d)"), "q2": starting(three, "(a m n)")}
    taken = common_plans(plans, PRICING)
    assert {name: (str(each.execution.plan), each.lead) for name, each in taken.items()} == {
        "q1": ("((a (b c)) d)", "q0"), "q2": ("(a (m n))", "q0"),
    }  # fmt: skip
    pinned = {**plans, "q1": starting(two, "(a b c d)", True), "q2": starting(three, "(a m n)", True)}
    assert all(each.execution == pinned[name].execution for name, each in common_plans(pinned, PRICING).items())


def test_a_query_with_freshness_shares_no_routes() -> None:
    """Each suppresses results by its own freshness, and by a clock of its own."""
    plain, fresh, twice = queries(*(
        f"SELECT 1 AS one FROM a, b WHERE a.k = b.k WINDOW 2 SECONDS{more}"
        for more in ("", " FRESHNESS 3 SECONDS", " FRESHNESS 3 SECONDS")
    ))  # fmt: skip
    assert shape_of(plain) is not None
    assert shape_of(fresh) is None
    running = [Running(q, Execution(left_deep(JoinGraph(q))), Distribution()) for q in (plain, fresh, twice)]
    assert companies(running) == []
