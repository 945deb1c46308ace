"""Hints: where they stand, what they say, and what is told of those that say nothing we know."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.errors import DuplicateNameError, SqlError, SyntaxSqlError, UnknownStreamError, UnsupportedSqlError
from anabranch.plan.lookups import looked_up
from anabranch.plan.query import Query
from anabranch.sql import parse_script

SOURCES = """
CREATE STREAM plugs (plug BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;
CREATE TABLE homes (plug BIGINT, name STRING) FROM 'homes.csv';
"""
MEANS = "(SELECT {} plug, AVG(load) AS mean FROM plugs [RANGE 1 MINUTE] GROUP BY plug)"


def bound(select: str) -> Query:
    return parse_script(f"{SOURCES} CREATE QUERY q AS {select};").queries[0].query


def joined(hint: str) -> str:
    inputs = f"{MEANS.format('')} m, plugs [NOW] p, homes h"
    return f"SELECT {hint} m.plug, h.name FROM {inputs} WHERE m.plug = p.plug AND h.plug = p.plug"


@pytest.mark.parametrize(("hint", "places"), [
    ("", (None, None, None)),
    ("/*+ PLACE(m, duck) */", ("duck", None, None)),
    ("/*+ place ( M , Database ) */", ("database", None, None)),
    ("/*+ PLACE(m, engine) PLACE(h, engine) */", ("engine", None, "engine")),
    ("/*+ PLACE(m, engine) */ /* a comment */ /*+ PLACE(p, ENGINE) */", ("engine", "engine", None)),
    ('/*+ PLACE(m, "My Db") */', ("My Db", None, None)),
    ("/* + PLACE(m, duck) */ -- /*+ PLACE(m, duck) */\n", (None, None, None)),
    ("/* a /*+ PLACE(m, duck) */ b */", (None, None, None)),
])  # fmt: skip
def test_a_hint_says_where_an_input_is_computed(hint: str, places: tuple[str | None, ...]) -> None:
    assert tuple(i.place for i in bound(joined(hint)).inputs) == places


@pytest.mark.parametrize(("place", "wanted"), [("engine", "engine"), ("database", "database"), ("CRM", "database")])
def test_a_hint_says_how_the_rows_of_a_table_in_a_database_come(place: str, wanted: str) -> None:
    (source,) = looked_up(looking_up(place))
    assert source.place == wanted


def test_a_table_cannot_be_looked_up_in_another_database() -> None:
    with pytest.raises(UnsupportedSqlError, match="owners is in crm, not in shop") as caught:
        looking_up("shop")
    assert caught.value.hint == "write crm, database or engine"


def looking_up(place: str) -> Query:
    sql = f"SELECT /*+ PLACE(o, {place}) */ p.plug, o.name FROM plugs [NOW] p, owners o WHERE o.plug = p.plug"
    script = f"{SOURCES} CREATE TABLE owners FROM DATABASE crm TABLE 'owners'; CREATE QUERY q AS {sql};"
    columns = (("plug", pa.int64()), ("name", pa.string()))
    return parse_script(script, describe=lambda *_: columns).queries[0].query


def test_each_select_has_hints_of_its_own() -> None:
    inner = MEANS.format("/*+ PLACE(plugs, engine) */")
    query = bound(f"SELECT /*+ PLACE(m, duck) */ m.plug FROM {inner} m")
    assert query.input("m").place == "duck"
    assert [i.place for block in query.subqueries for i in block.inputs] == ["engine"]


def test_a_hint_without_an_alias_is_for_the_select_that_it_stands_in() -> None:
    query = bound(f"SELECT m.plug FROM {MEANS.format('/*+ PLACE(Duck) */')} m")
    assert (query.place, query.input("m").place, query.hinted) == (None, "Duck", {"q.m": "Duck"})
    query = bound("SELECT /*+ PLACE(DATABASE) */ COUNT(*) AS n FROM plugs [NOW]")
    assert (query.place, query.hinted) == ("database", {"q": "database"})


@pytest.mark.parametrize("sql", [
    f"SELECT /*+ PLACE(m, duck) */ m.plug FROM {MEANS.format('/*+ PLACE(engine) */')} m",
])  # fmt: skip
def test_a_select_is_placed_once(sql: str) -> None:
    with pytest.raises(DuplicateNameError, match="is placed twice"):
        bound(sql)


@pytest.mark.parametrize(("hint", "kind", "said", "under"), [
    ("/*+ PLAC(m, duck) */", UnsupportedSqlError, "there is no hint PLAC", "PLAC("),
    ("/*+ BROADCAST(m) */", UnsupportedSqlError, "there is no hint BROADCAST", "BROADCAST"),
    ("/*+ */", SyntaxSqlError, "expected PLACE", " */"),
    ("/*+ PLACE(m n) */", SyntaxSqlError, "expected ','", "n) */"),
    ("/*+ PLACE(duck) PLACE(engine) */", DuplicateNameError, "the SELECT is placed twice", "engine"),
    ("/*+ PLACE(m, */", SyntaxSqlError, "the hint ends here", " */"),
    ("/*+ PLACE(m, 'duck') */", SyntaxSqlError, "expected engine, database", "'duck'"),
    ("/*+ PLACE(m, ' */", SyntaxSqlError, "cannot be read", " PLACE(m, '"),
    ("/*+ PLACE(n, duck) */", UnknownStreamError, "there is no n in FROM", "n, duck"),
    ("/*+ PLACE(h, crm) */", UnsupportedSqlError, "homes is not looked up in a database: its rows are here", "crm"),
    ("/*+ PLACE(m, duck), PLACE(h, crm) */", SyntaxSqlError, "expected PLACE", ", PLACE"),
    ("/*+ PLACE(m, duck) PLACE(M, engine) */", DuplicateNameError, "M is placed twice", "M, engine"),
    ("/*+ PLACE(p, duck) */", UnsupportedSqlError, "placing a stream in a database is not supported", "duck"),
])  # fmt: skip
def test_what_is_no_hint_of_ours_is_an_error_where_it_stands(
    hint: str, kind: type[SqlError], said: str, under: str
) -> None:
    with pytest.raises(kind) as caught:
        bound(joined(hint))
    error = caught.value
    assert said in error.message
    line = f"{SOURCES} CREATE QUERY q AS {joined(hint)};".splitlines()[error.line - 1]
    assert line[error.column - 1 :].startswith(under)


@pytest.mark.parametrize("sql", [
    "SELECT plug FROM /*+ PLACE(plugs, engine) */ plugs [NOW]",
    "/*+ PLACE(plugs, engine) */ SELECT plug FROM plugs [NOW]",
    "SELECT plug FROM plugs [NOW] /*+ PLACE(plugs, engine) */",
])  # fmt: skip
def test_a_hint_stands_right_after_select(sql: str) -> None:
    with pytest.raises(UnsupportedSqlError, match="a hint here is not supported"):
        bound(sql)


def test_a_subquery_that_is_taken_apart_cannot_be_placed() -> None:
    with pytest.raises(UnsupportedSqlError, match="placing a subquery without groups is not supported"):
        bound("SELECT x.plug FROM (SELECT /*+ PLACE(duck) */ plug FROM plugs [NOW]) x")
    with pytest.raises(UnsupportedSqlError, match="a subquery without groups"):
        bound("SELECT /*+ PLACE(x, duck) */ x.plug FROM (SELECT plug FROM plugs [NOW]) x")


@pytest.mark.parametrize(("text", "under"), [
    ("SELECT /*+ PLACE(zzz, nowhere) */ plug FROM plugs [NOW]", "zzz"),
    ("SELECT plug FROM (SELECT /*+ PLACE(engine) */ * FROM plugs [NOW])", "engine"),
])  # fmt: skip
def test_a_block_in_the_words_of_a_database_has_no_hints_inside(text: str, under: str) -> None:
    sql = f"SELECT x.plug FROM DATABASE duck ({text}) x"
    with pytest.raises(UnsupportedSqlError, match="a hint in the words of a database is not supported") as caught:
        bound(sql)
    error = caught.value
    line = f"{SOURCES} CREATE QUERY q AS {sql};".splitlines()[error.line - 1]
    assert line[error.column - 1 :].startswith(under)
