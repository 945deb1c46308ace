"""Aggregates by hand: their types, and what NULLs do to them. (The oracle has the bound query from the same binder.)"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.drive.local import LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

STREAM = "CREATE STREAM s (k INT, x DOUBLE, d DECIMAL(10,2), e DECIMAL(38,3), g STRING, ts TIMESTAMP) TIME ts;"
ROWS = [
    (1, 1.0, Decimal("0.10"), Decimal("1.000"), "a", 0),
    (None, None, None, None, None, 0),
    (3, 4.0, Decimal("0.20"), Decimal("2.000"), "b", 0),
    (3, 4.0, Decimal("0.20"), Decimal("2.000"), "a", 0),
]


def only_result(expression: str) -> tuple[Any, str]:
    """The value at the one instant at which the rows count, and its type."""
    script = f"{STREAM} CREATE QUERY q AS SELECT {expression} AS v FROM s [RANGE 1 SECOND]"
    query = parse_script(script).queries[0].query
    (stream,) = query.base_sources
    columns = dict(zip([f.name for f in stream.fields], zip(*ROWS, strict=True), strict=True))
    rows = pa.table([pa.array(columns[f.name], f.type) for f in stream.fields], names=[f.name for f in stream.fields])
    later = pa.table([pa.array([None if f.name != "ts" else 10**9], f.type) for f in stream.fields], names=rows.schema.names)
    run = LocalRun(query, MemoryFilesystem())
    found = [run.step(n, {"s": r} if r is not None else {}).results for n, r in enumerate((rows, later, None))]
    values = [value for table in found for value in table.column("v").to_pylist()]
    return values[0], str(query.output_schema.field("v").type)


@pytest.mark.parametrize(("expression", "value", "type"), [
    ("COUNT(*)", 4, "int64"), ("COUNT(x)", 3, "int64"), ("COUNT(DISTINCT k)", 2, "int64"), ("COUNT(DISTINCT g)", 2, "int64"),
    ("SUM(k)", 7, "int64"), ("SUM(x)", 9.0, "double"), ("AVG(x)", 3.0, "double"), ("AVG(k)", 7 / 3, "double"),
    ("MIN(x)", 1.0, "double"), ("MAX(g)", "b", "string"), ("MIN(k)", 1, "int32"),
    ("SUM(d)", Decimal("0.50"), "decimal128(20, 2)"), ("SUM(e)", Decimal("5.000"), "decimal128(38, 3)"),
    ("SUM(x) / COUNT(x)", 3.0, "double"), ("SUM(CASE WHEN k > 5 THEN x END)", None, "double"),
    ("AVG(CASE WHEN k > 5 THEN x END)", None, "double"), ("MAX(CASE WHEN k > 5 THEN g END)", None, "string"),
    ("COUNT(CASE WHEN k > 5 THEN x END)", 0, "int64"),
])  # fmt: skip
def test_values_and_types(expression: str, value: object, type: str) -> None:
    found, found_type = only_result(expression)
    assert found == (pytest.approx(value) if isinstance(value, float) else value)
    assert found_type == type
