"""What hints want of databases: who can have it, and what is told to whoever cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.errors import PlanError
from anabranch.place.capabilities import DUCKDB, Abilities
from anabranch.place.tree import operators_of
from anabranch.place.wishes import Databases, wished_places
from anabranch.plan.expression import Call, Expr, walk
from anabranch.plan.query import Aggregate
from anabranch.planning import Planning
from anabranch.sql import parse_script

SOURCES = """CREATE STREAM plugs (plug BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;
CREATE TABLE homes (plug BIGINT, name STRING) FROM 'homes.csv';"""
MEANS = "(SELECT plug, AVG(load) AS mean, SUM(plug + 1) AS s FROM plugs [RANGE 1 MINUTE] GROUP BY plug)"


def no_sums(aggregate: Aggregate, argument: Expr | None) -> str | None:
    added = argument is not None and any(isinstance(each, Call) and each.op == "add" for each in walk(argument))
    return "it adds" if added else None


EVERYTHING = Abilities(lambda _: None, lambda *_: None)
WEAK = Abilities(lambda _: None, no_sums)
DUCK: Databases = {"duck": EVERYTHING}


def places(select: str, databases: Databases) -> dict[str, str]:
    script = parse_script(f"{SOURCES} CREATE QUERY q AS {select};", Planning().catalog)
    return dict(wished_places(script.queries[0].query, databases))


def hinted(place: str, where: str = "TRUE") -> str:
    return f"SELECT /*+ PLACE(m, {place}) */ m.plug, m.mean FROM {MEANS} m, plugs [NOW] p WHERE m.plug = p.plug AND {where}"


@pytest.mark.parametrize(("place", "found"), [
    ("duck", {"q.m": "duck"}), ("DuckDB", {"q.m": "duck"}), ("database", {"q.m": "duck"}), ("engine", {}),
])  # fmt: skip
def test_a_block_runs_where_a_hint_wants_it(place: str, found: dict[str, str]) -> None:
    assert places(hinted(place), DUCK) == found
    assert places(hinted(place), {"weak": WEAK, **DUCK}) == found


def test_the_outermost_block_may_be_placed() -> None:
    assert places("SELECT /*+ PLACE(duck) */ COUNT(*) AS n FROM plugs [NOW]", DUCK) == {"q": "duck"}
    joined = "SELECT /*+ PLACE(duck) */ a.plug, RESULT_TIME AS at FROM plugs [NOW] a, plugs [NOW] b WHERE a.plug = b.plug"
    assert places(joined, {"duck": DUCKDB}) == {"q": "duck"}
    assert places(joined.replace("duck", "engine"), DUCK) == {}


TEXT = "DATABASE duck (SELECT median(load) AS m FROM plugs [RANGE 1 MINUTE]) x"


def test_a_block_in_the_words_of_a_database_is_there_already() -> None:
    assert places(f"SELECT /*+ PLACE(x, duckdb) */ x.m FROM {TEXT}", DUCK) == {}


@pytest.mark.parametrize(("select", "databases", "said"), [
    (hinted("duck"), {}, "no database here runs blocks"),
    (hinted("database"), {}, "no database here runs blocks"),
    (hinted("dukc"), DUCK, "did you mean duck"),
    (hinted("weak"), {"weak": WEAK}, "m cannot run in weak: it adds; leave out PLACE(m, weak)"),
    (hinted("duck").replace("SUM(plug + 1)", "STDDEV(load)"), {"duck": DUCKDB}, "STDDEV of double is not computed there"),
    (hinted("duck", "p.load > m.mean"), DUCK, "AVG of floats is more than shown"),
    (f"SELECT /*+ PLACE(m, duck) PLACE(n, duck) */ m.plug FROM {MEANS} m, {MEANS} n WHERE m.plug = n.plug", DUCK,
     "places m and n"),
    (f"SELECT /*+ PLACE(duck) PLACE(m, duck) */ COUNT(*) AS n FROM {MEANS} m", DUCK, "places its outermost block and m"),
    ("SELECT /*+ PLACE(duck) */ STDDEV(load) AS s FROM plugs [NOW]", {"duck": DUCKDB}, "its outermost block cannot run"),
    ("SELECT /*+ PLACE(duck) */ plug FROM plugs [NOW]", DUCK, "rows of one stream meet no others"),
    (f"SELECT /*+ PLACE(x, engine) */ x.m FROM {TEXT}", DUCK, "x is in the words of duck, and runs nowhere else"),
])  # fmt: skip
def test_what_a_database_cannot_run_is_refused_when_it_is_declared(
    select: str, databases: Databases, said: str
) -> None:
    with pytest.raises(PlanError) as caught:
        places(select, databases)
    assert said in str(caught.value)


OVER_A_TABLE = [
    "SELECT /*+ PLACE(duck) */ COUNT(*) AS n FROM plugs [NOW] p, homes h WHERE p.plug = h.plug",
    "SELECT /*+ PLACE(duck) */ h.name FROM plugs [NOW] p, homes h WHERE p.plug = h.plug",
    "SELECT /*+ PLACE(x, duck) */ x.n FROM (SELECT h.name, COUNT(*) AS n FROM plugs [NOW] p, homes h "
    "WHERE p.plug = h.plug GROUP BY h.name) x",
]


@pytest.mark.parametrize("select", OVER_A_TABLE)
def test_a_stored_table_is_joined_there_if_a_hint_wants_it_and_it_is_read_once(select: str) -> None:
    planning = Planning()
    planning.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {select};"))
    (block,) = planning.query("q").forms.written.places
    assert '"h"."plug"' in planning.explain_json("q")["placement"]["statements"][block]
    unwished = parse_script(f"{SOURCES} CREATE QUERY q AS {select};").queries[0].query
    unwished = replace(unwished, place=None, inputs=tuple(replace(i, place=None) for i in unwished.inputs))
    told = {each.why_engine for each in operators_of(unwished, abilities=DUCKDB)}
    assert told & {"it joins the stored table homes: a hint alone places it",
                   "a block without groups goes to a database by a hint of its own alone"}  # fmt: skip
    again = SOURCES.replace("FROM 'homes.csv'", "FROM 'homes.csv' REFRESH 1 MINUTE")
    with pytest.raises(PlanError, match="cannot run in duck: it joins homes, which is read again while queries run; leave"):
        Planning().add_script(parse_script(f"{again} CREATE QUERY q AS {select};"))


def test_a_session_refuses_the_query_and_declares_nothing() -> None:
    planning = Planning()
    odd = hinted("duck").replace("SUM(plug + 1)", "STDDEV(load)")
    with pytest.raises(PlanError, match="STDDEV of double"):
        planning.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {odd};"))
    assert not planning.queries
