"""The rewrites of a query: what each does, and that the query is consistent after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.errors import AnabranchError, PlanError
from anabranch.plan.eager import Forms
from anabranch.plan.expression import Call, Column, Literal, ResultTime
from anabranch.plan.predicates import equalities_to_keys, predicates_to_filters
from anabranch.plan.query import GROUP, Aggregate, Equality, Field, Grouping, Query
from anabranch.plan.rewrites import REWRITES, Rewrite, rewritten, without
from anabranch.plan.verify import verify, verify_rewritten
from anabranch.sql import bind_query, parse_script
from tests.sql.grammar import Grammar
from tests.sql.sources import CATALOG
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.queries import BOOL, INT, TIME, column, less, query
from tests.support.scenarios import properties

OPTIONAL = tuple(r.name for r in REWRITES if not r.is_needed)
SUBSETS = [names for count in range(len(OPTIONAL) + 1) for names in combinations(OPTIONAL, count)]


def checked(rewrites: Sequence[Rewrite] = REWRITES) -> tuple[Rewrite, ...]:
    """The same rewrites, with all that must hold checked before and after each."""

    def check(rewrite: Rewrite) -> Rewrite:
        def apply(before: Query) -> Query:
            verify(before)
            after = rewrite.apply(before)
            verify(after)
            assert after.output_schema == before.output_schema, rewrite.name
            assert (after.name, after.sql, after.grouping) == (before.name, before.sql, before.grouping)
            assert rewrite.apply(after) == after, f"{rewrite.name} does more when it is applied again"
            return after

        return replace(rewrite, apply=apply)

    return tuple(map(check, rewrites))


def bound(sql: str, rewrites: Sequence[Rewrite] = REWRITES) -> Query:
    return bind_query("q", sql, CATALOG, rewrites)


def equal(left: str, right: str) -> Call:
    return Call(BOOL, "eq", (column(left), column(right)))


# Each of them


def test_names_and_reasons():
    assert [r.name for r in REWRITES] == [
        "subqueries_to_inputs", "predicates_to_filters", "equalities_to_keys", "lookups_to_streams"
    ]  # fmt: skip
    assert all(r.reason.endswith(".") for r in REWRITES)
    assert len({r.name for r in REWRITES}) == len(REWRITES)
    with pytest.raises(PlanError, match="there is no rewrite flat; there are: subqueries_to_inputs, "):
        without("flat")
    assert without() == REWRITES


def test_predicates_go_where_they_are_decided():
    late = Call(BOOL, "gt", (ResultTime(TIME), column("A.ts")))
    nothing = Literal(BOOL, True)
    written = (equal("A.x", "A.y"), late, equal("A.x", "B.x"), nothing, less("A.x", "B.x"), less("B.x", "B.y"))
    filtered = predicates_to_filters(query("A B", residuals=written))
    assert [i.filters for i in filtered.inputs] == [(equal("A.x", "A.y"),), (less("B.x", "B.y"),)]
    assert filtered.residuals == (late, equal("A.x", "B.x"), nothing, less("A.x", "B.x"))
    keyed = equalities_to_keys(filtered)
    assert keyed.equalities == (Equality(column("A.x"), column("B.x")),)
    assert keyed.residuals == (late, nothing, less("A.x", "B.x"))


def test_what_is_there_stays_before_what_comes():
    given = query("A B", "A.x = B.x", (less("A.y", "A.z"), equal("A.y", "B.y")), filters={"A": (less("A.x", "A.y"),)})
    found = rewritten(given)
    assert found.input("A").filters == (less("A.x", "A.y"), less("A.y", "A.z"))
    assert [str(e) for e in found.equalities] == ["A.x = B.x", "A.y = B.y"]
    assert found.residuals == ()


@pytest.mark.parametrize(
    "residual",
    [
        Call(BOOL, "eq", (ResultTime(TIME), column("A.ts"))),
        Call(BOOL, "eq", (column("A.x"), Call(INT, "add", (column("B.x"), column("C.x"))))),
        Call(BOOL, "eq", (Literal(INT, 1), Literal(INT, 1))),
    ],
)
def test_equalities_that_are_no_keys(residual):
    given = query("A B C", residuals=(residual,))
    assert rewritten(given) == given


def test_an_equality_in_a_subquery_that_is_taken_apart_is_a_key():
    inner = "SELECT t.symbol AS p, u.symbol AS q, 3 AS three FROM trades [NOW] t, quotes [NOW] u"
    found = bound(f"SELECT x.p FROM ({inner}) x, quotes [NOW] z WHERE x.p = x.q AND x.q = z.symbol AND x.three = z.n")
    assert found.aliases == ("x_t", "x_u", "z")
    assert [str(e) for e in found.equalities] == ["x_t.symbol = x_u.symbol", "x_u.symbol = z.symbol"]
    assert len(found.input("z").filters) == 1
    assert found.residuals == ()


def test_without_keys():
    sql = "SELECT t.symbol FROM trades [NOW] t, quotes [NOW] u WHERE t.symbol = u.symbol AND t.ok"
    found = bound(sql, without("equalities_to_keys"))
    assert found.equalities == ()
    assert [str(r) for r in found.residuals] == ["(t.symbol = u.symbol)"]
    assert [str(f) for f in found.input("t").filters] == ["t.ok"]


# After each of them


def check_texts(seed: int) -> None:
    """Whatever text is accepted, it is consistent after each rewrite, and accepted with fewer of them too."""
    sql = Grammar(Random(seed), 0.01).script()
    try:
        queries = [b.query for b in parse_script(sql, CATALOG, checked()).queries]
    except AnabranchError as refused:
        if isinstance(refused, PlanError):
            raise
        return
    for names in SUBSETS:
        others = [b.query for b in parse_script(sql, CATALOG, checked(without(*names))).queries]
        for one, other in zip(queries, others, strict=True):
            verify_rewritten(other)
            assert other.output_schema == one.output_schema
            assert other.aliases == one.aliases


test_texts, test_texts_long = properties(check_texts, 300, 4_000, seed=st.integers(0, 2**32 - 1))


def check_forms(shape: Shape) -> None:
    """Queries with groups below the join are consistent, too."""
    for block in Forms(Continuous(shape).query).graphs.values():
        verify_rewritten(block.query)


test_forms, test_forms_long = properties(check_forms, 100, 1_000, shape=shapes(groups=True, rows=0, batches=1))


# What `verify` finds

X = Column(INT, GROUP, "key0")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (query("A B", residuals=(Call(BOOL, "lt", (Column(INT, "A", "w"), column("B.x"))),)), "there is no column A.w"),
        (query("A", select=(("x", Column(pa.int32(), "A", "x")),)), "A.x is int64, and is read as int32"),
        (query("A B", filters={"A": (less("A.x", "B.x"),)}), "filter of A, and does not read it alone"),
        (query("A B", residuals=(Call(INT, "add", (column("A.x"), column("B.x"))),)), "cannot be a predicate"),
        (replace(query("A"), grouping=Grouping(2, (), (("x", X),))), "2 keys of groups, but 1 columns"),
        (
            replace(query("A"), grouping=Grouping(1, (Aggregate("sum", 0, INT),), ())),
            "reads a column that is no argument",
        ),
        (replace(query("A"), grouping=Grouping(0, (), (("x", X),))), "there is no column .key0"),
        (replace(query("A"), grouping=Grouping(1, (), (("x", column("A.x")),))), "there is no column A.x"),
    ],
)
def test_contradictions(wrong, told):
    with pytest.raises(PlanError, match=told):
        verify(wrong)


def test_subqueries_give_what_they_are_declared_to():
    found = bound("SELECT x.n FROM (SELECT COUNT(*) AS n FROM trades [NOW]) x")
    verify_rewritten(found)
    (only,) = found.inputs
    wrong = replace(only, source=replace(only.source, fields=(*only.source.fields, Field("more", INT))))
    with pytest.raises(PlanError, match="the fields of x are not those that its subquery gives"):
        verify(replace(found, inputs=(wrong,)))


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("subqueries_to_inputs", "x is a subquery without groups"),
        ("predicates_to_filters", "reads one input, and is no filter"),
    ],
)
def test_what_was_not_rewritten(left_out, told):
    sql = "SELECT x.n FROM (SELECT n, bid FROM quotes [NOW] WHERE n > 3) x, quotes [NOW] y WHERE x.bid > 2"
    verify_rewritten(bound(sql))
    with pytest.raises(PlanError, match=told):
        verify_rewritten(bound(sql, [r for r in REWRITES if r.name != left_out]))
    with pytest.raises(PlanError, match=f"{left_out} cannot be left out"):
        without(left_out)
