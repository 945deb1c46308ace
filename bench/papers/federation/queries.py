"""CQ1 to CQ6 (section 8.1) with the SELECT of figure 4: a measurement is a load if its property says so."""

from __future__ import annotations

from bench import smart_plugs

PLUGS = "CREATE STREAM plugs (plug BIGINT, household BIGINT, property BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;"

IS_LOAD = "property = 1"


def _chosen(sql: str) -> str:
    """A query of `bench.smart_plugs` that reads loads alone."""
    inner = sql.replace("MINUTES] GROUP", f"MINUTES] WHERE {IS_LOAD} GROUP")
    inner = inner.replace("MINUTE] GROUP", f"MINUTE] WHERE {IS_LOAD} GROUP")
    return inner.replace("WHERE p.load", f"WHERE p.{IS_LOAD} AND p.load")


CQ: dict[str, str] = {name: _chosen(sql) for name, sql in smart_plugs.QUERIES.items()}
