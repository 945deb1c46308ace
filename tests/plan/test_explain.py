"""Plans explained, compared with the files in `golden/`; set ANABRANCH_REWRITE=1 to write those anew, then read the diff."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings

from anabranch.plan.explain import explain_json, explain_text, times_text, window_text
from anabranch.plan.expression import Call, Column, Literal, ResultTime
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.query import NOW, STORED, UNBOUNDED, Equality, Field, Input, Query, Table, range_window
from anabranch.sql import parse_script
from tests.support.queries import BOOL, INT, TIME, column, graph, less, planned, query, stream

GOLDEN = Path(__file__).parent / "golden"
SECOND_US = 1_000_000


def two_way():
    """The smallest join: one key, one filter."""
    positive = Call(BOOL, "gt", (column("A.y"), Literal(INT, 0)))
    return query("A B", "A.x = B.x", filters={"A": (positive,)}), "(A B)"


def three_way_nary():
    """No views: each input looks up the two others, by keys that nobody wrote where need be."""
    return query("A B C", "A.x = B.x, B.x = C.x", windows={"B": range_window(90 * SECOND_US)}), "(A B C){C: B A}"


def binary():
    """A left-deep tree over a self-join, with a composite key."""
    shared = stream("events")
    return (
        query(
            "first next last",
            "first.x = next.x, first.s = next.s, next.x = last.x",
            (less("first.ts", "next.ts"), less("next.ts", "last.ts")),
            sources={"first": shared, "next": shared, "last": shared},
        ),
        "((first next) last)",
    )


def groups():
    """Groups of a join with groups of the same stream, as written in SQL."""
    script = parse_script("""
        CREATE STREAM plugs (plug BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;
        CREATE QUERY q AS
        SELECT p.plug, COUNT(*) + 1 AS n, RESULT_TIME AS at
        FROM plugs [RANGE 5 MINUTES] p, (SELECT plug, MAX(load) AS m FROM plugs [RANGE 5 MINUTES] GROUP BY plug) x
        WHERE p.plug = x.plug AND p.load > x.m - 1
        GROUP BY p.plug HAVING COUNT(*) > 2 SLIDE 30 SECONDS""")
    return script.queries[0].query, "(p x)"


def mixed_five_way():
    """A view inside a four-way join, windows of every kind, a stored table, an expression as key, and the result's time."""
    aliases = "A B C D t"
    built = query(
        aliases,
        "A.x = B.x, B.y = C.y, A.x = D.x",
        (less("A.z", "D.z"), Call(BOOL, "lt", (column("C.ts"), ResultTime(TIME)))),
        windows={"A": NOW, "B": UNBOUNDED, "C": range_window(7200 * SECOND_US), "D": range_window(1500)},
        select=(("key", column("A.x")), ("at", ResultTime(TIME)), ("name", column("t.s"))),
    )
    table = Input("t", Table("names", (Field("k", pa.float64()), Field("s", pa.string()))), STORED)
    cast = Call(pa.float64(), "cast", (column("D.y"),))
    by_name = Equality(cast, Column(pa.float64(), "t", "k"))
    return (
        Query("q", (*built.inputs[:4], table), (*built.equalities, by_name), built.residuals, built.select),
        "((A B) C D t){C: (A B) t D}",
    )


def cyclic():
    """A triangle: the third edge becomes part of a composite key, and a predicate over all three is decided last."""
    total = Call(INT, "add", (column("A.z"), column("B.z")))
    return (
        query("A B C", "A.x = B.x, B.y = C.y, C.z = A.z", (Call(BOOL, "ge", (total, column("C.x"))),)),
        "((A B) C)",
    )


def bands():
    """Comparisons alone: a band, in which both inputs are looked up by a column, and a range that is open on one side."""
    one, second = Literal(INT, 1), Literal(pa.duration("us"), timedelta(seconds=1))
    return (
        query(
            "A B C",
            residuals=(
                Call(BOOL, "ge", (column("A.x"), Call(INT, "sub", (column("B.x"), one)))),
                Call(BOOL, "le", (column("A.x"), Call(INT, "add", (column("B.x"), one)))),
                Call(BOOL, "gt", (Call(TIME, "add", (column("B.ts"), second)), column("C.ts"))),
            ),
        ),
        "(A B C)",
    )


CASES = (two_way, three_way_nary, binary, mixed_five_way, cyclic, bands, groups)
PLANS = pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)


def compare(name, text):
    path = GOLDEN / name
    if os.environ.get("ANABRANCH_REWRITE") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"{name} has changed; if it should, run with ANABRANCH_REWRITE=1"


@PLANS
def test_the_text_is_as_it_was(case):
    built, plan = case()
    found = JoinGraph(built)
    compare(f"{case.__name__}.txt", explain_text(parse(plan, found), found) + "\n")


@PLANS
def test_the_json_is_as_it_was(case):
    built, plan = case()
    found = JoinGraph(built)
    compare(f"{case.__name__}.json", json.dumps(explain_json(parse(plan, found), found), indent=2) + "\n")


def test_every_golden_file_is_used():
    names = {f"{case.__name__}.{kind}" for case in CASES for kind in ("txt", "json")}
    assert {path.name for path in GOLDEN.iterdir()} == names


@given(planned())
@settings(deadline=None, max_examples=50)
def test_every_plan_can_be_explained(case):
    """The text names every input; the JSON is plain values that name the plan as it can be read back."""
    found, plan = case
    text, values = explain_text(plan, found), explain_json(plan, found)
    assert text == explain_text(plan, found)
    assert json.loads(json.dumps(values)) == values
    assert parse(values["plan"], found) == plan
    assert [i["alias"] for i in values["inputs"]] == list(found.query.aliases)
    for route in values["routes"]:
        assert f"new rows of {route['alias']}" in text
        assert route["stages"][-1]["result"] == "results"
    known = [tuple(state["inputs"]) for state in values["states"]]
    assert len(known) == len(set(known))


def test_a_query_of_one_input():
    found = graph("A")
    assert "  new rows of A\n    results" in explain_text(left_deep(found), found)


def test_a_product_looks_up_every_row():
    found = graph("A B")
    assert "look up B (every row)" in explain_text(left_deep(found), found)


@pytest.mark.parametrize(
    ("length_us", "text"),
    [
        (1, "RANGE 1 MICROSECONDS"),
        (1500, "RANGE 1500 MICROSECONDS"),
        (SECOND_US, "RANGE 1 SECOND"),
        (90 * SECOND_US, "RANGE 90 SECONDS"),
        (120 * SECOND_US, "RANGE 2 MINUTES"),
        (3600 * SECOND_US, "RANGE 1 HOUR"),
        (86_400 * SECOND_US, "RANGE 1 DAY"),
        (36 * 3600 * SECOND_US, "RANGE 36 HOURS"),
    ],
)
def test_windows_are_written_in_the_largest_unit_that_fits(length_us, text):
    assert window_text(Input("A", stream("a"), range_window(length_us))) == text


def test_windows_without_a_length():
    assert window_text(Input("A", stream("a"), NOW)) == "NOW"
    assert window_text(Input("A", stream("a"), UNBOUNDED)) == "UNBOUNDED"
    assert window_text(Input("A", Table("t", ()), STORED)) == "STORED"


def test_times():
    script = parse_script("""
        CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts LATENESS 5 SECONDS IDLE 1 MINUTE;
        CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts AHEAD NONE;
        CREATE TABLE t (k BIGINT);
        CREATE QUERY q AS SELECT a.k FROM a [NOW], b [NOW], t WHERE a.k = b.k AND b.k = t.k""")
    assert times_text(script.queries[0].query).splitlines() == [
        "times",
        "  a: rows come up to 5 seconds late, at most 1 day ahead of the clock; idle after 1 minute",
        "  b: rows come in order, any time ahead of the clock; holds the watermark back if silent",
    ]
