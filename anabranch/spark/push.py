"""Predicates of streams evaluated by Spark, before rows are shuffled: what no input can use stays behind.

Late rows and rows without a time go on all the same, to be counted. The largest event time moves the watermark, also that of
a row that stays behind: Spark observes it on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.control.records import SourceStatistics, Statistics
from anabranch.errors import StateError
from anabranch.plan.expression import Call, Column, Expr, Literal
from anabranch.plan.query import Query, Stream
from anabranch.spark.pack import SOURCE, Packing
from anabranch.spark.types import to_spark

WAIT_S = 30.0
"""Spark tells what it observed a moment after the batch is done. If it does not, the batch is run again."""

COMPARISONS: dict[str, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


class Push:
    """The predicates of a query that Spark can evaluate on packed rows; sources of our own reader are not among them."""

    def __init__(self, query: Query, packing: Packing, filters: Mapping[str, Sequence[Sequence[Expr]]]) -> None:
        types = dict(packing.types)
        self.sources: list[tuple[str, int, str, Sequence[Sequence[Expr]]]] = []
        self._places: list[dict[str, str]] = [dict(places) for places in packing.places]
        for source in query.base_sources:
            number = packing.sources.index(source.name)
            places = self._places[number]
            if not isinstance(source, Stream) or source.name not in filters or source.time not in places:
                continue
            # Times without a zone are no instants to Spark.
            if isinstance(types[places[source.time]], T.TimestampType):
                self.sources.append((source.name, number, places[source.time], filters[source.name]))

    def apply(self, frame: DataFrame, watermark_us: int) -> tuple[DataFrame, Observed | None]:
        """The frame without the rows that are of no use, and what will tell of them."""
        kept: SparkColumn | None = None
        seen: list[SparkColumn] = []
        for name, number, time_column, groups in self.sources:
            places = self._places[number]
            wanted = spark_filter(groups, lambda column, places=places: F.col(places[column]))  # type: ignore[misc]
            if wanted is None:
                continue
            mine, instant = F.col(SOURCE) == F.lit(number), F.unix_micros(F.col(time_column))
            idle = mine & instant.isNotNull() & (instant >= F.lit(watermark_us)) & ~F.coalesce(wanted, F.lit(False))
            kept = ~idle if kept is None else kept & ~idle
            seen += [F.max(F.when(idle, instant)).alias(f"time {name}"), F.count(F.when(idle, 1)).alias(f"rows {name}")]
        if kept is None:
            return frame, None
        observation = Observation()
        return frame.observe(observation, *seen).where(F.coalesce(kept, F.lit(True))), Observed(observation)


class Observed:
    """What Spark observed of rows that stayed behind."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation

    def statistics(self) -> Statistics:
        """Rows and the largest event time of each source; of use once the batch is done."""
        deadline = time.monotonic() + WAIT_S
        future: Any = self._observation._jo.future()  # type: ignore[union-attr]
        while not future.isCompleted():
            if time.monotonic() > deadline:
                # Without the largest event time the watermark would not be what the rows say.
                raise StateError(f"Spark did not tell within {WAIT_S:.0f} s what it saw of the batch; start the query again")
            time.sleep(0.002)
        found = Statistics()
        for name, value in self._observation.get.items():
            what, _, source = name.partition(" ")
            counts = found.sources.setdefault(source, SourceStatistics())
            if what == "time":
                counts.largest_time_us = value
            else:
                counts.rows = int(value or 0)
        return found


def spark_filter(groups: Sequence[Sequence[Expr]], fetch: Callable[[str], SparkColumn]) -> SparkColumn | None:
    """Whether a row passes one of some sets of predicates, as far as Spark can tell: it may pass more. None if it cannot."""
    found = []
    for group in groups:
        known = [t for t in (_translated(e, fetch) for e in group) if t is not None]
        if not known:
            return None
        found.append(reduce(lambda a, b: a & b, known))
    return reduce(lambda a, b: a | b, found) if found else None


def _translated(expr: Expr, fetch: Callable[[str], SparkColumn]) -> SparkColumn | None:
    """An expression in Spark's terms, where both surely mean the same."""
    if isinstance(expr, Column):
        return fetch(expr.name) if _is_plain(expr.type) else None
    if isinstance(expr, Literal):
        return F.lit(expr.value).cast(to_spark(expr.type)) if _is_plain(expr.type) and expr.value is not None else None
    if not isinstance(expr, Call):
        return None
    if expr.op == "is_null" and isinstance(expr.args[0], Column):
        return fetch(expr.args[0].name).isNull()
    if expr.op == "cast" and not _widens(expr.args[0].type, expr.type):
        return None
    args = [_translated(arg, fetch) for arg in expr.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    if expr.op in COMPARISONS:
        return COMPARISONS[expr.op](*known)
    if expr.op in ("and", "or"):
        return reduce(lambda a, b: a & b if expr.op == "and" else a | b, known)
    if expr.op == "not":
        return ~known[0]
    if expr.op == "cast":
        return known[0].cast(to_spark(expr.type))
    return known[0].isin(*known[1:]) if expr.op == "in" else None


def _is_plain(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type) or pa.types.is_string(type)
    )


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    integers = pa.types.is_integer(given) and pa.types.is_integer(wanted) and given.bit_width <= wanted.bit_width
    return bool(integers or (pa.types.is_floating(given) and pa.types.is_float64(wanted)))
