"""What hints want of databases: who can have it, and what is told to whoever cannot."""

from __future__ import annotations

import pytest

from anabranch.errors import PlanError
from anabranch.place.wishes import Databases, check_wishes
from anabranch.plan.expression import Call, Expr, walk
from anabranch.planning import Planning
from anabranch.sql import parse_script

SOURCES = "CREATE STREAM plugs (plug BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;"
MEANS = "(SELECT plug, AVG(load) AS mean, SUM(plug + 1) AS s FROM plugs [RANGE 1 MINUTE] GROUP BY plug)"


def everything(_: Expr) -> bool:
    return True


def no_sums(expr: Expr) -> bool:
    return not any(isinstance(each, Call) and each.op == "add" for each in walk(expr))


DUCK: Databases = {"duck": everything}


def check(select: str, databases: Databases) -> None:
    check_wishes(parse_script(f"{SOURCES} CREATE QUERY q AS {select};").queries[0].query, databases)


def hinted(place: str, where: str = "TRUE") -> str:
    return f"SELECT /*+ PLACE(m, {place}) */ m.plug, m.mean FROM {MEANS} m, plugs [NOW] p WHERE m.plug = p.plug AND {where}"


@pytest.mark.parametrize("place", ["duck", "database", "engine"])
def test_a_block_runs_where_a_hint_wants_it(place: str) -> None:
    check(hinted(place), DUCK)
    check(hinted(place), {"weak": no_sums, **DUCK} if place == "database" else DUCK)


@pytest.mark.parametrize(("select", "databases", "said"), [
    (hinted("duck"), {}, "no database here runs blocks"),
    (hinted("database"), {}, "no database here runs blocks"),
    (hinted("dukc"), DUCK, "did you mean duck"),
    (hinted("weak"), {"weak": no_sums}, "its AGGREGATE would not mean the same there"),
    (hinted("duck", "p.load > m.mean"), DUCK, "its AGGREGATE would not mean the same there"),
    (f"SELECT /*+ PLACE(m, duck) PLACE(n, duck) */ m.plug FROM {MEANS} m, {MEANS} n WHERE m.plug = n.plug", DUCK,
     "places m and n"),
])  # fmt: skip
def test_what_a_database_cannot_run_is_refused_when_it_is_declared(
    select: str, databases: Databases, said: str
) -> None:
    with pytest.raises(PlanError) as caught:
        check(select, databases)
    assert said in str(caught.value)


def test_a_session_refuses_the_query_and_declares_nothing() -> None:
    planning = Planning()
    with pytest.raises(PlanError, match="no database here runs blocks"):
        planning.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {hinted('duck')};"))
    assert not planning.queries
