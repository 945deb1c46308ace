"""The streams and tables that the tests of this room share."""

from __future__ import annotations

from anabranch.plan.query import Query
from anabranch.sql import bind_query, parse_script

SOURCES = """
CREATE STREAM trades (
    symbol STRING, price DOUBLE, qty INT, amount DECIMAL(10,2), day DATE, ok BOOLEAN,
    tags ARRAY<STRUCT<a: INT, b STRING>>, ts TIMESTAMP
) TIME ts LATENESS 5 SECONDS FROM 'trades/*.csv';
CREATE STREAM quotes (symbol STRING, bid FLOAT, n BIGINT, raw BINARY, ts TIMESTAMP) TIME TS;
CREATE TABLE symbols (symbol VARCHAR(10), name TEXT, Kind SMALLINT) FROM 'symbols' FORMAT json;
"""

CATALOG = parse_script(SOURCES).catalog

FROM = "FROM trades [RANGE 10 SECONDS] AS t, quotes [NOW] q"


def bind(sql: str) -> Query:
    return bind_query("test", sql, CATALOG)


def selected(expression: str) -> str:
    """The bound form and the type of one expression over trades t and quotes q."""
    _, expr = bind(f"SELECT {expression} AS x {FROM}").select[0]
    return f"{expr}: {expr.type}"


def where(condition: str) -> dict[str, list[str]]:
    """Where the conjuncts of a condition over trades t and quotes q went."""
    query = bind(f"SELECT 1 AS one {FROM} WHERE {condition}")
    found = {i.alias: [str(f) for f in i.filters] for i in query.inputs}
    found["="] = [str(e) for e in query.equalities]
    found["residual"] = [str(e) for e in query.residuals]
    return {key: value for key, value in found.items() if value}
