"""Predicates of streams evaluated by Spark, before rows are shuffled: what no input can use stays behind.

Late rows and rows without a time go on all the same, to be counted. The largest event time moves the watermark, also that of
a row that stays behind: Spark observes it on the way.

Predicates are written as SQL: one call to the JVM instead of one for every node of an expression, in each batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
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

COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Push:
    """The predicates of a query that Spark can evaluate on packed rows; sources of our own reader are not among them."""

    def __init__(self, query: Query, packing: Packing, filters: Mapping[str, Sequence[Sequence[Expr]]]) -> None:
        types = dict(packing.types)
        self.idle: dict[str, tuple[int, str, str]] = {}
        """For each source its number, the SQL that tells a row which is of no use, but for the watermark, and its time."""
        self._sources = len(packing.sources)
        for source in query.base_sources:
            number = packing.sources.index(source.name)
            places = dict(packing.places[number])
            if not isinstance(source, Stream) or source.name not in filters or source.time not in places:
                continue
            # Times without a zone are no instants to Spark.
            if not isinstance(types[places[source.time]], T.TimestampType):
                continue
            wanted = spark_filter(filters[source.name], places)
            if wanted is not None:
                instant = f"unix_micros(`{places[source.time]}`)"
                idle = f"{SOURCE} = {number} AND NOT coalesce({wanted}, FALSE) AND {instant}"
                self.idle[source.name] = number, idle, instant

    def apply(self, frame: DataFrame, watermark_us: int) -> tuple[DataFrame, Observed | None]:
        """The frame without the rows that are of no use, and what will tell of them."""
        if not self.idle:
            return frame, None
        # A number in an expression would become part of the code that Spark generates, and have it compiled in every batch;
        # an array is handed to the code. It has an entry for each source, so that the lookup is not folded to a number.
        known = ", ".join([f"CAST('{watermark_us}' AS BIGINT)"] * self._sources)
        watermark = f"element_at(array({known}), CAST({SOURCE} AS INT) + 1)"
        seen, kept = [], []
        for name, (number, idle, instant) in self.idle.items():
            # What Spark observes of a row costs more than to drop it: its time and number, whether or not it goes on.
            is_alone = self._sources == 1
            time = instant if is_alone else f"CASE WHEN {SOURCE} = {number} THEN {instant} END"
            rows = "count(*)" if is_alone else f"count_if({SOURCE} = {number})"
            seen += [F.expr(f"max({time}) AS `time {name}`"), F.expr(f"{rows} AS `rows {name}`")]
            # Rows without a time go on, as late ones do.
            kept.append(f"NOT coalesce({idle} >= {watermark}, FALSE)")
        observation = Observation()
        return frame.observe(observation, *seen).where(" AND ".join(kept)), Observed(observation)


class Observed:
    """What Spark observed of the rows that some stayed behind of."""

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


def spark_filter(groups: Sequence[Sequence[Expr]], places: Mapping[str, str]) -> str | None:
    """SQL for whether a row passes one of some sets of predicates, as far as Spark can tell: it may pass more. None if it
    cannot. `places` are the physical columns of the source's."""
    found = []
    for group in groups:
        known = [t for t in (_sql(e, places) for e in group) if t is not None]
        if not known:
            return None
        found.append(f"({' AND '.join(known)})")
    return f"({' OR '.join(found)})" if found else None


def _sql(expr: Expr, places: Mapping[str, str]) -> str | None:
    """An expression as Spark's SQL, where both surely mean the same."""
    if isinstance(expr, Column):
        return f"`{places[expr.name]}`" if _is_plain(expr.type) else None
    if isinstance(expr, Literal):
        return _literal(expr) if _is_plain(expr.type) and expr.value is not None else None
    if not isinstance(expr, Call):
        return None
    if expr.op == "is_null" and isinstance(expr.args[0], Column):
        return f"(`{places[expr.args[0].name]}` IS NULL)"
    if expr.op == "cast" and not _widens(expr.args[0].type, expr.type):
        return None
    args = [_sql(arg, places) for arg in expr.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    if expr.op in COMPARISONS:
        return f"({known[0]} {COMPARISONS[expr.op]} {known[1]})"
    if expr.op in ("and", "or"):
        return f"({f' {expr.op.upper()} '.join(known)})"
    if expr.op == "not":
        return f"(NOT {known[0]})"
    if expr.op == "cast":
        return f"CAST({known[0]} AS {to_spark(expr.type).simpleString()})"
    return f"({known[0]} IN ({', '.join(known[1:])}))" if expr.op == "in" else None


def _literal(expr: Literal) -> str:
    """A literal of its own type. Strings are written as their bytes: nothing in them can be taken for syntax."""
    if isinstance(expr.value, str):
        return f"CAST(X'{expr.value.encode().hex()}' AS STRING)"
    return f"CAST('{expr.value}' AS {to_spark(expr.type).simpleString()})"


def _is_plain(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type) or pa.types.is_string(type)
    )


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    integers = pa.types.is_integer(given) and pa.types.is_integer(wanted) and given.bit_width <= wanted.bit_width
    return bool(integers or (pa.types.is_floating(given) and pa.types.is_float64(wanted)))
