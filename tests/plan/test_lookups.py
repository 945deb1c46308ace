"""What a query becomes that looks up tables in databases: golden cases, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.errors import SessionError, UnsupportedSqlError
from anabranch.plan.history import why_no_history
from anabranch.plan.lookups import brought_columns, looked_up, reads_found
from anabranch.plan.overload import Overload
from anabranch.plan.partial import check_overload
from anabranch.plan.query import Query
from anabranch.plan.rewrites import rewritten
from anabranch.sql import parse_script

CREATE = """
CREATE STREAM s (k INT, name STRING, v DOUBLE, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
CREATE STREAM u (k INT, name STRING, ts TIMESTAMP) TIME ts;
CREATE TABLE t FROM DATABASE d TABLE 't';
"""
COLUMNS = (("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC")))


def bound(sql: str) -> Query:
    return parse_script(f"{CREATE} CREATE QUERY q AS {sql}", describe=lambda *_: COLUMNS).queries[0].query


def test_a_stream_and_its_table_are_one_input() -> None:
    query = bound(
        "SELECT s.k, t.name AS found, t.at FROM t, s [RANGE 1 SECOND], u [NOW] WHERE t.id = s.k AND s.v > 1 AND t.price > 2 "
        "AND u.name = t.name AND s.v > t.price"
    )
    assert query.aliases == ("s", "u")
    (source,) = looked_up(query)
    assert source.name.startswith("s+t.")
    assert (source.root.name, source.time, source.lateness_us) == ("s", "ts", 1_000_000)
    assert [(column, str(term)) for column, term in source.keys] == [("id", "CAST(.k AS int64)")]
    assert [str(f) for f in query.input("s").filters] == [
        "(s.v > 1.0)", "(s.t.price > 2)", "(s.v > CAST(s.t.price AS double))"
    ]  # fmt: skip
    assert [str(e) for e in query.equalities] == ["u.name = s.t.name"]
    assert [reads_found(query, f) for f in query.input("s").filters] == [False, True, True]
    assert brought_columns(source, ["t.name", "v"]) == ("k", "v", "ts")
    assert [s.name for s in query.declared_sources] == ["s", "t", "u"]
    assert rewritten(query) == query


def test_other_keys_and_other_databases_are_other_streams() -> None:
    one = bound("SELECT t.id FROM s [NOW], t WHERE s.k = t.id")
    same = bound("SELECT x.k, y.price FROM t y, s [NOW] x WHERE y.id = x.k AND y.price > 3")
    other = bound("SELECT t.id FROM s [NOW], t WHERE s.name = t.name")
    assert looked_up(one) == looked_up(same)
    assert looked_up(one)[0].name != looked_up(other)[0].name


def test_a_table_that_is_looked_up_twice_has_columns_of_two_names() -> None:
    query = bound("SELECT a.price, b.price AS other FROM s [NOW], t a, t b WHERE s.k = a.id AND a.name = b.name")
    assert [str(e) for _, e in query.select] == ["s.t.price", "s.t.price'"]


def test_what_must_not_be_a_part_is_refused() -> None:
    join = "FROM s {} , u [RANGE 1 SECOND], t WHERE s.k = t.id AND s.k = u.k"
    query = bound("SELECT s.k " + join.format("[RANGE 1 SECOND]"))
    with pytest.raises(SessionError, match="the table t is looked up in its database"):
        check_overload(query, Overload("adapt joins"))
    with pytest.raises(UnsupportedSqlError, match="the table t is looked up in its database"):
        bound("SELECT s.k " + join.format("[RANGE 1 SECOND FRESHNESS 2 SECONDS]"))
    assert why_no_history(query) == "a row meets a stored table as its own batch finds it"
