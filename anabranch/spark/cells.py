"""The cells of a row as Spark expressions: the same numbers that `anabranch.engine.cells` computes on Arrow columns."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from anabranch.engine.cells import DECIMAL_PRIME
from anabranch.plan.distribution import QueryGrids, way_of
from anabranch.plan.expression import Call, Column, Expr
from anabranch.plan.grid import Grid
from anabranch.plan.query import Stream, Table
from anabranch.spark.types import to_spark

Fetch = Callable[[str], SparkColumn]


def cells(spread: QueryGrids, source: Stream | Table, fetch: Fetch) -> tuple[SparkColumn, bool]:
    """The slot of a row of a source, or the array of them; and whether it is an array. Equal expressions are written once:
    queries whose rows go the same way cost no more than one of them."""
    targets: dict[tuple[object, ...], SparkColumn] = {}
    for query, grid in spread:
        for i in query.inputs:
            if i.source != source:
                continue
            base = F.lit(0)
            for place in grid.own(i.alias):
                base = base + _coordinate(grid, place, i.alias, source, fetch) * F.lit(grid.stride(place))
            for offset in grid.offsets(i.alias):
                targets.setdefault((way_of(grid, i.alias), offset), (base + F.lit(offset)).cast("int"))
    if len(targets) == 1:
        return next(iter(targets.values())), False
    return F.array_distinct(F.array(*targets.values())), True


def _coordinate(grid: Grid, place: int, alias: str, source: Stream | Table, fetch: Fetch) -> SparkColumn:
    term = grid.dimensions[place].term_of(alias)
    if term is not None:
        word = _word(_spark(term, fetch), term.type)
    elif isinstance(source, Stream):
        word = fetch(source.time)
    else:
        # All rows of a stored table were always there: they share one coordinate, as they share one start.
        word = F.lit(-(2**63)).cast("bigint")
    return F.pmod(F.xxhash64(word), F.lit(grid.shares[place]).cast("bigint"))


def _spark(term: Expr, fetch: Fetch) -> SparkColumn:
    if isinstance(term, Column):
        return fetch(term.name)
    assert isinstance(term, Call)
    assert isinstance(term.args[0], Column), term
    return fetch(term.args[0].name).cast(to_spark(term.type))


def _word(value: SparkColumn, type: pa.DataType) -> SparkColumn:
    """What is hashed of a value (see `routing_words`)."""
    if pa.types.is_integer(type):
        return value.cast("bigint")
    if pa.types.is_boolean(type):
        return value.cast("int").cast("bigint")
    if pa.types.is_date(type):
        return F.unix_date(value).cast("bigint")
    if pa.types.is_floating(type):
        return F.when(value == F.lit(0.0), F.lit(0.0)).otherwise(value.cast("double"))
    if pa.types.is_decimal(type):
        return (value.cast("decimal(38,0)") % F.lit(DECIMAL_PRIME).cast("decimal(38,0)")).cast("bigint")
    return value
