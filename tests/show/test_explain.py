"""Plans explained, compared with the files in `golden/`; set ANABRANCH_REWRITE=1 to write those anew, then read the diff."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cost.facts import Given
from anabranch.optimize.planner import Bounds
from anabranch.plan.expression import Call, Column, Literal, ResultTime
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import joins_of, left_deep, parse
from anabranch.plan.lengths import window_text
from anabranch.plan.query import NOW, STORED, UNBOUNDED, Equality, Field, Input, Query, Table, range_window
from anabranch.show.as_json import priced_json
from anabranch.show.explain import PlanText, explained, reason, sentence, tree_text
from anabranch.show.routes import routes_json, routes_text, times_text
from anabranch.sql import parse_script
from tests.support.plans import chosen, priced
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
    own = parse(plan, found)
    compare(f"{case.__name__}.txt", explained(priced(own, found), [routes_text(own, found)]) + "\n")


@PLANS
def test_the_json_is_as_it_was(case):
    built, plan = case()
    found = JoinGraph(built)
    compare(f"{case.__name__}.json", json.dumps(routes_json(parse(plan, found), found), indent=2) + "\n")


def test_every_golden_file_is_used():
    names = {f"{case.__name__}.{kind}" for case in CASES for kind in ("txt", "json")}
    assert {path.name for path in GOLDEN.iterdir()} == names


@given(planned())
@settings(deadline=None, max_examples=50)
def test_every_plan_can_be_explained(case):
    """The text names every input; the JSON is plain values that name the plan as it can be read back."""
    found, plan = case
    text, values = routes_text(plan, found), routes_json(plan, found) | priced_json(priced(plan, found))
    assert text == routes_text(plan, found)
    assert json.loads(json.dumps(values)) == values
    assert parse(values["plan"], found) == plan
    assert [i["alias"] for i in values["inputs"]] == list(found.query.aliases)
    for route in values["routes"]:
        assert f"new rows of {route['alias']}" in text
        assert route["stages"][-1]["result"] == "results"
    known = [tuple(state["inputs"]) for state in values["states"]]
    assert len(known) == len(set(known))


@given(planned(), st.sampled_from([1.0, 1e3, 1e9, 1e-6]))
@settings(deadline=None, max_examples=50)
def test_columns_never_shift(case, rate):
    """Figures end where the heads of their columns end, whatever the names and the numbers are."""
    found, plan = case
    names = {a: f"{a.lower() * 40}" for a in found.query.aliases if a in "AB"}
    inputs = tuple(replace(i, source=stream(names.get(i.alias, i.source.name))) for i in found.query.inputs)
    longer = JoinGraph(replace(found.query, inputs=inputs))
    shown = priced(plan, longer, Given({i.source.name: rate for i in inputs}))
    head, *lines = tree_text(shown).splitlines()
    starts = [head.index(name) for name in ("rows/s", "rows kept", "bytes kept", "CPU")]
    ends = [start + len(name) for start, name in zip(starts, ("rows/s", "rows kept", "bytes kept", "CPU"), strict=True)]
    figures = [line for line in lines if not line.lstrip("│ ").startswith(("on ", "where "))]
    assert len(figures) == len(found.query.aliases) + len(list(joins_of(plan))) + 2
    known = head.index("known")
    for line in figures:
        assert line[known:] in ("assumed", "given", "")
        cells = line[:known].rstrip()
        assert all(line[end : end + 2] in ("  ", " ", "") for end in ends), line
        assert not line[known:] or not cells or len(cells) in (*ends, len(line[: ends[0]].rstrip()))


def test_the_sentence():
    on_two = chosen("SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS", Given({"a": 10.0, "b": 20.0}, {}, {"a.k": 5.0}))
    begin = "q joins a [RANGE 5 SECONDS] and b [RANGE 5 SECONDS] on a.k = b.k. Of 30 rows/s it makes "
    assert sentence(on_two).startswith(begin)
    assert sentence(on_two).endswith("by what you gave.")
    on_three = chosen("SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 5 SECONDS")
    assert "at once, in one join. Of 3,000 rows/s it makes 3,000 results/s" in sentence(on_three)
    assert sentence(on_three).endswith("by what is assumed.")
    one = chosen("SELECT a.j, COUNT(*) AS n FROM a [RANGE 5 SECONDS] GROUP BY a.j SLIDE 2 SECONDS")
    assert "q reads a [RANGE 5 SECONDS], and makes groups by a.j every 2 seconds" in sentence(one)
    assert "every pair is looked at" in sentence(chosen("SELECT a.k FROM a [NOW], b [NOW]"))


def test_figures_say_how_they_are_known():
    """A figure is as good as the worst that it is made of."""
    where = "SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.j = c.j AND c.v > 1 WINDOW 5 SECONDS"
    known = chosen(where, Given({"a": 10.0, "b": 20.0, "c": 1.0}, {}, {"a.k": 5.0}))
    basis = {node.aliases: str(node.basis) for node in known.tree.walk()}
    assert (basis["a",], basis["b",], basis["c",]) == ("given", "given", "assumed")
    assert str(known.basis) == "assumed"
    text = explained(known)
    assert "where c.v > 1.0 (how many rows pass is not known: all are taken to)" in text
    assert "distinct values of b.j = c.j. Give what you know" in " ".join(text.split())
    assert "Given: rows/s of a; rows/s of b; rows/s of c; distinct values of a.k = b.k." in " ".join(text.split())
    values = priced_json(known)
    assert values["costs"]["known"] == "assumed"
    assert {"source": "c", "unknown_selectivity": ["c.v > 1.0"]}.items() <= next(
        node for node in nodes_of(values["tree"]) if node["source"] == "c"
    ).items()


def nodes_of(node):
    return [node, *(below for child in node["children"] for below in nodes_of(child))]


def test_spark_comes_on_top():
    text = " ".join(explained(chosen("SELECT a.k FROM a [NOW], b [NOW] WHERE a.k = b.k")).split())
    assert "CPU is what joining takes of one core, by usual costs (anabranch calibrate measures this machine's)." in text
    assert "Spark's own work (reading, the exchange, scheduling, its log) comes on top: of 0.98 s" in text


SKEWED = Given({"a": 50.0, "b": 5_000.0, "c": 5_000.0}, {}, {"a.k": 1_000.0, "b.j": 1_000.0})
CHAIN = "SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 5 SECONDS"


def test_why():
    free = chosen(CHAIN, SKEWED)
    assert reason(free).startswith("of the plans it takes the least CPU. The next best is ")
    assert "All plans were considered" in reason(free)
    roomy = chosen(CHAIN, SKEWED, Bounds(2.0, 2**30))
    assert "of the plans that stay within the budget it takes the least CPU (" in reason(roomy)
    assert " of 2 cores and " in reason(roomy)
    tight = chosen(CHAIN, SKEWED, Bounds(memory=free.cost.memory * 0.998))
    assert tight.plan != free.plan
    assert "which is more than the budget allows" in reason(tight)
    assert "no plan within the budget: the least bad exceeds CPU" in reason(chosen(CHAIN, SKEWED, Bounds(cpu=0.0)))
    alone = reason(chosen("SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 5 SECONDS"))
    assert alone.startswith("no other plan takes less CPU, or keeps less. ((a b) c), say, takes ")
    assert reason(chosen("SELECT a.k FROM a [NOW], b [NOW] WHERE a.k = b.k")) == "it is the only one."
    assert reason(chosen("SELECT a.k FROM a [NOW]")) == "one input is not joined with anything."


def test_a_pinned_plan_is_set_beside_the_one_that_would_be_chosen():
    free = chosen(CHAIN, SKEWED)
    worse = next(plan for plan in (parse(p, free.graph) for p in ("((a b) c)", "(a b c)")) if plan != free.plan)
    told = reason(priced(worse, free.graph, SKEWED, Bounds(cpu=1e-9)))
    assert told.startswith("it is pinned, more than the budget (")
    assert f"Not pinned, {free.plan_text} would be chosen: it takes " in told
    assert reason(priced(free.plan, free.graph, SKEWED)) == "it is pinned; it would be chosen, too."


def test_joins_add_up():
    """What single joins cost is what the plan costs, but for rows that come in and go out."""
    found = chosen(CHAIN, SKEWED)
    values = priced_json(found)
    assert sum(j["memory"] for j in values["costs"]["joins"]) == pytest.approx(values["costs"]["memory"])
    assert sum(n["predicted"]["kept_bytes"] or 0 for n in nodes_of(values["tree"])) == pytest.approx(found.cost.memory)
    assert sum(n["cpu"] or 0 for n in nodes_of(values["tree"])) + found.model.fixed().cpu == pytest.approx(found.cost.cpu)


def test_windows_that_are_too_short_are_told():
    found = chosen("SELECT a.k FROM a, b WHERE a.k = b.k AND b.ts <= a.ts + INTERVAL 5 MINUTES WINDOW 1 MINUTE")
    assert "warning: the condition lets rows of b be up to 5 minutes later than rows of a" in explained(found)
    assert "where b.ts <= (a.ts + INTERVAL 5 MINUTES) (how many rows pass" in explained(found)
    (told,) = priced_json(found)["warnings"]
    assert (told["earlier"], told["needed"]) == ("a", "RANGE 301 SECONDS")


def test_an_explanation_in_a_notebook():
    found = explained(chosen("SELECT a.k FROM a, b WHERE a.k = b.k AND a.v < 3 WINDOW 5 SECONDS"))
    assert repr(found).startswith("<plan of q: (a b), ")
    assert len(repr(found)) < 80
    page = found._repr_html_()
    assert "<svg" in page
    assert "a.v &lt; 3.0" in page


def test_a_plan_that_runs_in_a_notebook():
    assert repr(PlanText("(a b)", "q")) == "'(a b)'"
    assert PlanText("(a b)", "q")._repr_html_() == "<figure><pre>(a b)</pre></figure>"
    assert PlanText("(a b)", "q", lambda name: f"<svg>{name}</svg>")._repr_html_() == "<figure><svg>q</svg></figure>"


def test_a_query_of_one_input():
    found = graph("A")
    assert "  new rows of A\n    results" in routes_text(left_deep(found), found)


def test_a_product_looks_up_every_row():
    found = graph("A B")
    assert "look up B (every row)" in routes_text(left_deep(found), found)


@pytest.mark.parametrize(
    ("length_us", "text"),
    [
        (1, "RANGE 1 MICROSECOND"),
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
