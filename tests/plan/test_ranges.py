"""Which comparisons make a range, and of which term."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.query import Query
from anabranch.plan.ranges import has_ordered_words
from anabranch.plan.routes import indexes, routes
from anabranch.sql import parse_script
from tests.support.queries import graph, less, planned

COLUMNS = "k BIGINT, h INT, x DOUBLE, f FLOAT, d DECIMAL(9,2), e DECIMAL(30,2), g STRING, day DATE, ts TIMESTAMP"


def bound_query(where: str, streams: str = "a b") -> Query:
    sources = ", ".join(f"s AS {alias}" for alias in streams.split())
    select = f"SELECT a.k FROM {sources} WHERE {where} WINDOW 4 SECONDS"
    return parse_script(f"CREATE STREAM s ({COLUMNS}) TIME ts; CREATE QUERY q AS {select}").queries[0].query


def ranges(where: str) -> tuple[str, str]:
    """The range of b for rows of a, and that of a for rows of b."""
    found = JoinGraph(bound_query(where))
    return str(found.range_between({"a"}, {"b"})), str(found.range_between({"b"}, {"a"}))


@pytest.mark.parametrize(
    ("where", "of_b", "of_a"),
    [
        ("a.x < b.x", "b.x > a.x", "a.x < b.x"),
        ("a.x >= b.x", "b.x <= a.x", "a.x >= b.x"),
        (
            "a.x BETWEEN b.x - 1 AND b.x + 1",
            "b.x <= a.x + 1.0 and b.x >= a.x - 1.0",
            "a.x >= (b.x - 1.0) and a.x <= (b.x + 1.0)",
        ),
        ("a.k > 2 + b.k - 3", "b.k <= a.k + 3 - 2", "a.k > ((2 + b.k) - 3)"),
        ("a.h < b.h + 1", "b.h >= CAST(a.h AS int64) - 1", "a.h < (CAST(b.h AS int64) + 1)"),
        ("a.f < b.f + 1", "b.f >= CAST(a.f AS double) - 1.0", "a.f < (CAST(b.f AS double) + 1.0)"),
        ("a.d <= b.d - 0.5", "b.d >= CAST(a.d AS decimal128(10, 2)) + 0.5", "a.d <= (b.d - 0.5)"),
        ("a.ts > b.ts - INTERVAL 2 SECONDS", "b.ts <= a.ts + 0:00:02", "a.ts > (b.ts - 0:00:02)"),
        ("a.day < b.day", "b.day > a.day", "a.day < b.day"),
        ("a.x * 2 < b.x / 3", "(b.x / 3.0) > (a.x * 2.0)", "(a.x * 2.0) < (b.x / 3.0)"),
        ("a.k < 10 - b.k", "(10 - b.k) > a.k", "a.k < (10 - b.k)"),
    ],
)
def test_comparisons_limit_what_is_looked_up(where, of_b, of_a):
    assert ranges(where) == (of_b, of_a)


@pytest.mark.parametrize(
    "where", ["a.x <> b.x", "a.x + b.k > 3", "a.g < b.g", "a.e < b.e", "ABS(a.x - b.x) <= 1", "a.x < b.x OR a.k < b.k"]
)
def test_other_predicates_do_not(where):
    assert ranges(where) == ("None", "None")


def test_of_several_terms_the_one_with_both_limits_is_taken():
    where = "a.k < b.k AND a.x < b.x AND a.x > b.x - 2"
    assert ranges(where) == ("b.x > a.x and b.x <= a.x + 2.0", "a.x < b.x and a.x > (b.x - 2.0)")
    assert ranges("a.k < b.k AND a.x < b.x") == ("b.k > a.k", "a.k < b.k")


def test_keys_come_before_ranges():
    found = JoinGraph(bound_query("a.k = b.k AND a.x < b.x"))
    probes = [p for r in routes(parse("(a b)", found), found) for s in r.stages for p in s.probes]
    assert [p.between for p in probes] == [None, None]
    assert not any(i.is_ordered for i in indexes(routes(parse("(a b)", found), found)))


def test_a_view_is_looked_up_by_terms_over_several_inputs():
    found = JoinGraph(bound_query("a.x < b.x AND a.x + b.x < c.x", "a b c"))
    probe = routes(parse("((a b) c)", found), found)[2].stages[0].probes[0]
    assert str(probe.between) == "(a.x + b.x) < c.x"
    assert probe.index.state == ("a", "b")
    assert probe.index.is_ordered


def test_inputs_with_a_range_are_looked_up_before_products():
    found = graph("A B C", "", (less("A.x", "B.x"), less("B.y", "C.y")))
    for route in routes(parse("(A B C)", found), found):
        assert all(probe.between is not None for stage in route.stages for probe in stage.probes)


@given(planned())
@settings(deadline=None)
def test_ranges_read_what_is_there(case):
    """Terms are of the state, limits of what is bound, and no lookup by keys has a range."""
    found, plan = case
    for route in routes(plan, found):
        bound = {route.alias}
        for stage in route.stages:
            bound |= set(stage.joined) - {a for probe in stage.probes for a in probe.target}
            for probe in stage.probes:
                if probe.between is not None:
                    assert not probe.keys
                    assert found.range_between(bound, set(probe.target)) == probe.between
                bound |= set(probe.target)


def test_types_with_words():
    for kind in (pa.int8(), pa.float32(), pa.decimal128(18, 3), pa.date32(), pa.timestamp("us"), pa.bool_()):
        assert has_ordered_words(kind)
    for kind in (pa.string(), pa.decimal128(19, 3), pa.binary()):
        assert not has_ordered_words(kind)
