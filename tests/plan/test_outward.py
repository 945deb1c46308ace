"""The types under which results leave."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.plan.outward import outward_schema
from anabranch.sql import parse_script

STREAMS = """
CREATE STREAM a (k INT, t TIMESTAMP, n TIMESTAMP_NTZ, s STRUCT<t: TIMESTAMP, n: TIMESTAMP_NTZ>, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k INT, n TIMESTAMP_NTZ, ts TIMESTAMP_NTZ) TIME ts;
"""
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def type_of(select: str, rest: str = "FROM a [NOW], b [NOW] WHERE a.k = b.k") -> pa.DataType:
    script = parse_script(f"{STREAMS} SELECT {select} AS x {rest}")
    return outward_schema(script.queries[0].query).field("x").type


@pytest.mark.parametrize(("select", "type"), [
    ("a.t", INSTANT), ("a.n", LOCAL), ("b.ts", LOCAL), ("a.ts", INSTANT), ("RESULT_TIME", INSTANT), ("a.k", pa.int32()),
    ("a.s", pa.struct([("t", INSTANT), ("n", LOCAL)])),
    ("a.n + INTERVAL 1 DAY", LOCAL), ("a.t - INTERVAL 1 DAY", INSTANT),
    ("COALESCE(a.n, b.n)", LOCAL), ("COALESCE(a.n, a.t)", INSTANT), ("COALESCE(a.n, TIMESTAMP '2024-01-31')", LOCAL),
    ("CASE WHEN a.k = 1 THEN a.n ELSE b.ts END", LOCAL), ("GREATEST(a.t, b.n)", INSTANT),
    ("CAST('2024-01-31' AS TIMESTAMP)", INSTANT),
])  # fmt: skip
def test_a_result_has_the_type_of_its_columns(select: str, type: pa.DataType) -> None:
    assert type_of(select) == type


def test_groups_and_subqueries() -> None:
    assert type_of("MAX(n)", "FROM a [NOW] GROUP BY k") == LOCAL
    assert type_of("MAX(t)", "FROM a [NOW] GROUP BY k") == INSTANT
    assert type_of("n", "FROM a [NOW] GROUP BY n") == LOCAL
    for inner in ("SELECT n AS m, k FROM a [NOW]", "SELECT MIN(n) AS m, k FROM a [NOW] GROUP BY k"):
        assert type_of("g.m", f"FROM b [NOW], ({inner}) g WHERE g.k = b.k") == LOCAL
