"""Spark's expressions send rows to the cells that the engine computes on Arrow columns, for every type that routes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from anabranch.engine.cells import base_cells
from anabranch.plan.distribution import QueryGrids
from anabranch.plan.expression import Call, Column, Expr
from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.query import Field, Input, Query, Stream, Table, range_window
from anabranch.spark.cells import cells
from anabranch.spark.host import set_for_a_moment
from anabranch.spark.pack import CELL, pack, packing_of
from anabranch.spark.types import zoned_schema

ROWS = 300
SHARE = 97
"""A prime larger than any grid: cells that agree by chance are rare."""

EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "yes": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [0, 1, -1, 127, -128]),
    "i16": (pa.int16(), [0, -1, 2**15 - 1, -(2**15)]),
    "i32": (pa.int32(), [0, -1, 2**31 - 1, -(2**31)]),
    "i64": (pa.int64(), [0, -1, 2**63 - 1, -(2**63), 2**40]),
    "f32": (pa.float32(), [0.0, -0.0, 1.5, -1.5, 0.1, float("nan"), float("inf"), -float("inf"), 1e-45]),
    "f64": (pa.float64(), [0.0, -0.0, 1.5, -1.5, 0.1, float("nan"), float("inf"), -float("inf"), 5e-324, 1e308]),
    "text": (pa.string(), ["", "a", "A", "é€", "\0", "😀", "x" * 31, "x" * 32, "x" * 33, "x" * 100]),
    "raw": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff" * 7, bytes(range(64))]),
    "day": (pa.date32(), [0, 1, -1, 19000, -20000, -141427]),
    "at": (pa.timestamp("us"), [0, 1, -1, 1_700_000_000_123_456, -(10**14), -(10**16)]),
    "d10": (pa.decimal128(10, 2), [Decimal(x) for x in ("0", "0.49", "0.50", "-0.50", "-1.25", "99999999.99", "1.5")]),
    "d30": (
        pa.decimal128(30, 4),
        [Decimal(x) for x in ("0", "0.5000", "-0.5000", "1.2500", "1000000007", "-99999999999999999999999999.9999")],
    ),
    "d38": (pa.decimal128(38, 0), [Decimal(0), Decimal(10**38 - 1), Decimal(-(10**38 - 1)), Decimal(10**18)]),
    "dsmall": (pa.decimal128(38, 38), [Decimal("0.5"), Decimal("-0.5"), Decimal("0.49"), Decimal("1e-38")]),
}


def random_value(rng: np.random.Generator, type_: pa.DataType) -> Any:
    if pa.types.is_boolean(type_):
        return bool(rng.integers(2))
    if pa.types.is_integer(type_):
        return int(rng.integers(-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1)))
    if pa.types.is_float32(type_):
        return struct.unpack("<f", rng.bytes(4))[0]
    if pa.types.is_floating(type_):
        return struct.unpack("<d", rng.bytes(8))[0]
    if pa.types.is_string(type_):
        return "".join(chr(int(c)) for c in rng.choice([65, 97, 0xE9, 0x20AC, 0x1F600, 32], int(rng.integers(0, 50))))
    if pa.types.is_binary(type_):
        return rng.bytes(int(rng.integers(0, 80)))
    if pa.types.is_date(type_):
        return int(rng.integers(-700_000, 2_900_000))
    if pa.types.is_timestamp(type_):
        return int(rng.integers(-6 * 10**16, 25 * 10**16))
    digits = int(rng.integers(1, type_.precision + 1))
    return Decimal((int(rng.integers(2)), tuple(rng.integers(0, 10, digits).tolist()), -type_.scale))


def column_of(name: str) -> pa.Array:
    """Edge cases, random values, and a NULL at the end."""
    type_, edges = EDGES[name]
    rng = np.random.default_rng(len(name) + type_.id)
    values = [*edges, *(random_value(rng, type_) for _ in range(ROWS - len(edges) - 1)), None]
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int64() if type_.bit_width == 64 else pa.int32()).view(type_)
    return pa.array(values, type_)


TABLE = pa.table({name: column_of(name) for name in EDGES})
SOURCE = Stream("s", tuple(Field(f.name, f.type) for f in TABLE.schema), "at")


def query_of(*inputs: Input) -> Query:
    return Query("q", inputs, (), (), (("x", Column(pa.int64(), inputs[0].alias, "i64")),))


QUERY = query_of(Input("a", SOURCE, range_window(1)))


def engine_cells(grid: Grid, alias: str = "a") -> list[set[int]]:
    times = TABLE["at"].combine_chunks().view(pa.int64())
    bases = base_cells(grid, alias, lambda c: TABLE[c.name].combine_chunks(), times, ROWS)
    return [{int(base) + offset for offset in grid.offsets(alias)} for base in bases]


def spark_cells(spark: SparkSession, grids: dict[str, Grid], query: Query = QUERY, ntz: bool = False) -> pa.Table:
    rows = TABLE if ntz else TABLE.cast(zoned_schema(TABLE.schema))
    frame = spark.createDataFrame(rows).coalesce(1)
    columns = []
    for name, grid in grids.items():
        target, several = cells([(query, grid)], query.inputs[0].source, lambda c: F.col(f"`{c}`"))
        columns.append((target if several else F.array(target)).alias(name))
    return frame.select(*columns).toArrow()


def assert_alike(found: pa.Table, grids: dict[str, Grid], nulls: dict[str, list[str]]) -> None:
    for name, grid in grids.items():
        ours, theirs = engine_cells(grid), [set(row) for row in found[name].to_pylist()]
        assert all(0 <= cell < grid.cells for row in theirs for cell in row), "a row without a key has a cell, too"
        known = [all(TABLE[c][i].is_valid for c in nulls[name]) for i in range(ROWS)]
        wrong = [
            (TABLE.select(nulls[name]).slice(i, 1).to_pylist(), ours[i], theirs[i])
            for i in range(ROWS)
            if known[i] and ours[i] != theirs[i]
        ]
        assert not wrong, f"{name}: {len(wrong)} rows, such as {wrong[:3]}"


def one(*terms: Expr, share: int = SHARE) -> Grid:
    return Grid(tuple(Dimension((term,)) for term in terms), (share,) * len(terms))


def plain(name: str) -> Column:
    return Column(EDGES[name][0], "a", name)


def test_cells_are_those_of_the_engine(spark: SparkSession) -> None:
    """For columns of all types; for keys of different widths that meet, by the widened value; in grids of several
    dimensions, some of which an input does not tell; and for the rows of an input."""
    grids, keys = {name: one(plain(name)) for name in EDGES}, {name: [name] for name in EDGES}
    for name, wide in (("i8", pa.int64()), ("i16", pa.int64()), ("i32", pa.int64()), ("f32", pa.float64())):
        grids[f"wide {name}"], keys[f"wide {name}"] = one(Call(wide, "cast", (plain(name),))), [name]
    with_free = Grid(
        (Dimension((plain("i64"),)), Dimension((Column(pa.int64(), "b", "i64"),)), Dimension((plain("text"),))),
        (3, 2, 5),
    )
    grids |= {"two": one(plain("i64"), plain("d10"), share=7), "free": with_free, "whole": Grid()}
    grids["rows"] = Grid((Dimension((), "a"),), (SHARE,))
    keys |= {"two": ["i64", "d10"], "free": ["i64", "text"], "whole": [], "rows": ["at"]}
    found = spark_cells(spark, grids)
    assert_alike(found, grids, keys)
    assert {len(row) for row in found["free"].to_pylist()} == {2}
    # Zones do not matter: neither whether a timestamp has one, nor that of the session.
    assert_alike(spark_cells(spark, timed := {name: grids[name] for name in ("at", "rows")}, ntz=True), timed, keys)
    with set_for_a_moment(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        assert_alike(spark_cells(spark, timed := {name: grids[name] for name in ("at", "day")}), timed, keys)


def check_a_self_join(spark: SparkSession) -> None:
    """Rows go where either alias needs them; where both do, once."""
    query = query_of(Input("a", SOURCE, range_window(1)), Input("b", SOURCE, range_window(2)))
    grid = Grid((Dimension((plain("i64"), Column(pa.int32(), "b", "i32"))),), (4,))
    found = spark_cells(spark, {"cells": grid}, query)["cells"].to_pylist()
    ours = [a | b for a, b in zip(engine_cells(grid, "a"), engine_cells(grid, "b"), strict=True)]
    for i, row in enumerate(found[:-1]):
        assert sorted(row) == sorted(ours[i])


def check_a_table(spark: SparkSession) -> None:
    """Rows of a table share one coordinate."""
    table = Table("t", (Field("v", pa.int64()),))
    query = Query("q", (QUERY.inputs[0], Input("t", table, range_window(1))), (), (), QUERY.select)
    target, several = cells([(query, Grid((Dimension((), "t"),), (SHARE,)))], table, lambda c: F.col(c))
    found = spark.range(5).select(target.alias("cell")).distinct().collect()
    expected = base_cells(
        Grid((Dimension((), "t"),), (SHARE,)), "t", lambda c: None, pa.array([-(2**63)] * 2, pa.int64()), 2
    )
    assert not several
    assert [row["cell"] for row in found] == sorted(set(expected.tolist()))


# Several queries


def named(name: str, *aliases: str) -> Query:
    inputs = tuple(Input(alias, SOURCE, range_window(1)) for alias in aliases)
    return Query(name, inputs, (), (), (("x", Column(pa.int64(), aliases[0], "i64")),))


def by(alias: str, column: str, share: int = 4) -> Grid:
    return Grid((Dimension((Column(EDGES[column][0], alias, column),)),), (share,))


OTHER = Dimension((Column(pa.int64(), "elsewhere", "i64"),))
SPREADS: dict[str, QueryGrids] = {
    "the same way": [(named("q", "a"), by("a", "i64")), (named("r", "z"), by("z", "i64"))],
    "two ways": [(named("q", "a"), by("a", "i64")), (named("r", "z"), by("z", "text"))],
    "three ways": [
        (named("q", "a"), by("a", "i64")), (named("r", "z", "y"), by("z", "text")),
        (named("s", "a"), Grid((Dimension((), "a"),), (4,))),
    ],
    "two by two": [
        (named("q", "a"), by("a", "i64")), (named("r", "a"), Grid((by("a", "i64").dimensions[0], OTHER), (2, 2))),
        (named("s", "a"), Grid((OTHER, by("a", "i64").dimensions[0]), (2, 2))),
    ],
    "all in one slot, and each in all": [(named("q", "a"), Grid()), (named("r", "z"), Grid((OTHER,), (4,)))],
    "each in all, and all in one slot": [(named("r", "z"), Grid((OTHER,), (4,))), (named("q", "a"), Grid())],
}  # fmt: skip


def test_rows_go_to_the_slots_of_all_queries_once(spark: SparkSession) -> None:
    """A row goes to each slot that wants it for any query, or for any alias, and to none twice; also when it is packed."""
    check_a_self_join(spark)
    check_a_table(spark)
    frame = spark.createDataFrame(TABLE.cast(zoned_schema(TABLE.schema))).coalesce(1)
    packing = packing_of({"s": ("i64", "at")}, {"s": frame.schema})
    for name, spread in SPREADS.items():
        wanted = [
            set().union(*of_row)
            for of_row in zip(*(engine_cells(g, i.alias) for q, g in spread for i in q.inputs), strict=True)
        ]
        target, several = cells(spread, SOURCE, lambda c: F.col(f"`{c}`"))
        assert several == (name != "the same way"), "equal expressions are written once"
        found = frame.select((target if several else F.array(target)).alias("cells")).toArrow()["cells"].to_pylist()
        assert [sorted(row) for row in found[:-1]] == [sorted(row) for row in wanted[:-1]], name
        packed = pack(frame, packing, spread, SOURCE).toArrow()
        assert packed.num_rows == sum(map(len, found)), name
        assert sorted(packed[CELL].to_pylist()) == sorted(cell for row in found for cell in row), name
