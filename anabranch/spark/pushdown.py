"""Predicates of streams evaluated by Spark, before rows are shuffled: what no input can use stays behind.

Late rows, early ones and rows without a time go on all the same, to be counted. The largest event time of rows that are not
early moves the watermark, also that of a row that stays behind: Spark observes it on the way.

All of it is part of the streaming query; what differs from batch to batch, the watermark, from when on rows are early, and
which predicates stand above a join, is among its `BatchVariables`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.control.records import SourceStatistics, Statistics
from anabranch.errors import StateError
from anabranch.plan.demand import Asked
from anabranch.plan.expression import Call, Column, Expr, Literal
from anabranch.plan.query import BEGINNING_US, Query, Stream
from anabranch.plan.workload import Workload
from anabranch.spark.pack import SOURCE, Packing
from anabranch.spark.types import to_spark

OBSERVED, VARIABLES = "anabranch", "_variables"
QUERY_ID = "sql.streaming.queryId"
"""Spark's property of a thread that runs a streaming query."""
ZERO = 1 << 61
"""This much is added to stored variables: only large numbers surely reach the JVM as long ones. Times are far smaller."""

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Pushdown:
    """The predicates of queries that Spark can evaluate on packed rows; sources of our own reader are not among them."""

    def __init__(self, workload: Workload, packing: Packing, filters: Mapping[str, Sequence[Asked]]) -> None:
        types = dict(packing.types)
        self.idle: dict[str, tuple[Stream, int, str, str]] = {}
        """For each source its number, the SQL that tells a row which is of no use, but for the watermark, and its time."""
        self._readers = {name: [query.name for query in workload.readers(name)] for name in workload.streams}
        self._sources = len(packing.sources)
        self._variables: BatchVariables | None = None
        self._switches: dict[int, frozenset[tuple[str, str]]] = {}
        """For each variable that says whether a predicate need not be asked, the predicate as queries write it that have it:
        it need not, if one of them has it above a join."""
        self._most_switches = 0
        """How many of these a source has at most."""
        self._raised: frozenset[tuple[str, str]] = frozenset()
        self._running: Any = None
        """What the JVM knows the streaming query as, once it has run a batch."""
        joins = [query for query in workload.queries if len(query.inputs) > 1]
        movable = frozenset((query.name, str(f)) for query in joins for i in query.inputs for f in i.filters)
        for source in workload.streams.values():
            number = packing.sources.index(source.name)
            places = dict(packing.places[number])
            if source.name not in filters or source.time not in places:
                continue
            # Times without a zone are no instants to Spark.
            if not isinstance(types[places[source.time]], T.TimestampType):
                continue
            instants = [p for p in places.values() if isinstance(types[p], T.TimestampType)]
            groups = [asked.predicates for asked in filters[source.name]]
            switches = self._switches_of(number, filters[source.name], movable)
            wanted = spark_filter(groups, places, instants, switches)
            if wanted is not None:
                instant = f"unix_micros(`{places[source.time]}`)"
                idle = f"{SOURCE} = {number} AND NOT coalesce({wanted}, FALSE) AND {instant}"
                self.idle[source.name] = source, number, idle, instant

    def _switches_of(
        self, number: int, asked: Sequence[Asked], movable: frozenset[tuple[str, str]]
    ) -> dict[tuple[int, int], str]:
        """SQL for whether predicates of a source need not be asked, by their places."""
        found: dict[tuple[int, int], str] = {}
        known: dict[frozenset[tuple[str, str]], str] = {}
        for group, each in enumerate(asked):
            for place in range(len(each.predicates)):
                texts = each.texts(place) & movable
                if not texts:
                    continue
                if texts not in known:
                    offset = self._sources * (len(known) + 2)
                    self._switches[number + offset] = texts
                    known[texts] = f"{variable_sql(f'CAST({SOURCE} AS INT) + {offset}')} = 1L"
                found[group, place] = known[texts]
        self._most_switches = max(self._most_switches, len(known))
        return found

    def add_reader(self, query: Query) -> None:
        """Has a query read streams, which comes while others run: rows that are late for it go on, to be counted."""
        for source in query.base_sources:
            if source.name in self._readers and query.name not in self._readers[source.name]:
                self._readers[source.name] = [*self._readers[source.name], query.name]

    def apply(self, frame: DataFrame) -> DataFrame:
        """The frame without the rows that are of no use, in all batches."""
        if not self.idle:
            return frame
        # As many for each source: Spark may look up the entry of a predicate for rows of other sources, too.
        self._variables = BatchVariables(frame.sparkSession, self._sources * (2 + self._most_switches))
        self._raised = frozenset()
        seen, kept = [], []
        for name, (source, number, idle, instant) in self.idle.items():
            # What Spark observes of a row costs more than to drop it: its time and number, whether or not it goes on.
            is_alone = self._sources == 1
            time = F.expr(instant if is_alone else f"CASE WHEN {SOURCE} = {number} THEN {instant} END")
            rows = "count(*)" if is_alone else f"count_if({SOURCE} = {number})"
            # Rows without a time go on, as late and early ones do.
            useless = f"{idle} >= {variable_sql(f'CAST({SOURCE} AS INT)')}"
            if source.ahead_us is not None:
                # The variables themselves, not the column that holds them: that would make every row longer.
                time = F.when(time <= self._variables.entry(F.col(SOURCE).cast("int") + self._sources), time)
                useless += f" AND {instant} <= {variable_sql(f'CAST({SOURCE} AS INT) + {self._sources}')}"
            seen += [F.max(time).alias(f"time {name}"), F.expr(f"{rows} AS `rows {name}`")]
            kept.append(f"NOT coalesce({useless}, FALSE)")
        watched = frame.observe(OBSERVED, *seen).withColumn(VARIABLES, self._variables.column)
        return watched.where(" AND ".join(kept)).drop(VARIABLES)

    def set(self, watermarks: Mapping[str, int], planned_us: int, raised: Collection[tuple[str, str]] = ()) -> None:
        """Tells the next batch the watermarks of the queries, when it was planned, and which predicates (of which query)
        stand above a join: Spark need not evaluate these. A row is late if it is for any of its readers."""
        if self._variables is None:
            return
        # One for each source, also of those that are not looked at: an optimiser may look up any.
        for entry in range(self._sources):
            self._variables.set(entry, max(watermarks.values()))
        for source, number, _, _ in self.idle.values():
            # Nobody may be left who reads a stream: its rows are of no use then, whenever they are.
            own = [us for name, us in watermarks.items() if name in self._readers[source.name]]
            self._variables.set(number, max(own, default=BEGINNING_US))
            self._variables.set(self._sources + number, source.early_after_us(planned_us))
        changed = self._raised ^ frozenset(raised)
        self._raised = frozenset(raised)
        for entry, texts in self._switches.items():
            if texts & changed:
                self._variables.set(entry, int(bool(texts & self._raised)))

    def seen(self, spark: SparkSession) -> Statistics | None:
        """Rows and the largest event time of each source that rows stay behind of, in the batch that the streaming query of
        this thread has computed."""
        if not self.idle:
            return None
        if self._running is None:
            query = spark.streams.get(str(spark.sparkContext.getLocalProperty(QUERY_ID)))
            assert query is not None, "a batch belongs to a query that runs"
            self._running = query._jsq.streamingQuery()
        metrics = self._running.lastExecution().observedMetrics()
        if not metrics.contains(OBSERVED):
            # Without the largest event time the watermark would not be what the rows say.
            raise StateError("Spark did not tell what it saw of the batch; start the query again")
        row, found = metrics.apply(OBSERVED), Statistics()
        for place, name in enumerate(self.idle):
            found.sources[name] = SourceStatistics(rows=row.get(2 * place + 1), largest_time_us=row.get(2 * place))
        return found


class BatchVariables:
    """Numbers in a plan of Spark's that are others in every batch.

    A literal would be part of the code that Spark makes, and have it compiled anew in every batch. These are entries of an
    array, which plans hold by reference and tasks get as it is when their batch starts. There is an entry for each source,
    looked up by the number of a row's, so that the optimiser does not put the number itself in its place.
    """

    def __init__(self, spark: SparkSession, entries: int) -> None:
        jvm, gateway = spark._jvm, spark.sparkContext._gateway
        assert jvm is not None, "the session has stopped"
        assert gateway is not None, "the session has stopped"
        types = jvm.org.apache.spark.sql.types.DataTypes
        self._values = gateway.new_array(jvm.java.lang.Object, entries)
        for entry in range(entries):
            self.set(entry, BEGINNING_US)
        data = jvm.org.apache.spark.sql.catalyst.util.GenericArrayData(self._values)
        array = jvm.org.apache.spark.sql.catalyst.expressions.Literal(data, types.createArrayType(types.LongType, False))
        self.column = SparkColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(array))

    def set(self, entry: int, value: int) -> None:
        self._values[entry] = min(max(value, -ZERO // 2), 2 * ZERO) + ZERO

    def entry(self, number: SparkColumn) -> SparkColumn:
        """The variable for a row that tells which entry it is."""
        return F.element_at(self.column, number + 1) - ZERO


def variable_sql(entry: str) -> str:
    """A variable, as SQL over the column `VARIABLES`."""
    return f"(element_at({VARIABLES}, {entry} + 1) - {ZERO}L)"


def spark_filter(
    groups: Sequence[Sequence[Expr]],
    places: Mapping[str, str],
    instants: Collection[str] = (),
    switches: Mapping[tuple[int, int], str] | None = None,
) -> str | None:
    """SQL for whether a row passes one of some sets of predicates, as far as Spark can tell: it may pass more. None if it
    cannot. `places` are the physical columns of the source's; `instants` are those of them that Spark knows as instants;
    `switches` are conditions under which predicates need not be asked, by the set and the place in it."""
    writer, skipped = _Writer(places, instants), switches or {}
    found = []
    for number, group in enumerate(groups):
        asked = [((number, place), writer.sql(predicate)) for place, predicate in enumerate(group)]
        known = [f"({skipped[p]} OR {t})" if p in skipped else t for p, t in asked if t is not None]
        if not known:
            return None
        found.append(f"({' AND '.join(known)})")
    return f"({' OR '.join(found)})" if found else None


class _Writer:
    """Writes expressions as Spark's SQL, where both surely mean the same."""

    def __init__(self, places: Mapping[str, str], instants: Collection[str]) -> None:
        self._places, self._instants = places, instants

    def sql(self, expr: Expr) -> str | None:
        if isinstance(expr, Column):
            return self._column(expr)
        if isinstance(expr, Literal):
            return _literal(expr) if _is_plain(expr.type) else None
        if not isinstance(expr, Call) or not _is_plain(expr.type) or not _means_the_same(expr):
            return None
        if expr.op == "is_null" and isinstance(expr.args[0], Column):
            return f"(`{self._places[expr.args[0].name]}` IS NULL)"
        args = [self.sql(arg) for arg in expr.args]
        known = [a for a in args if a is not None]
        return _call(expr, known) if len(known) == len(args) else None

    def _column(self, column: Column) -> str | None:
        place = self._places[column.name]
        if pa.types.is_timestamp(column.type):
            # As a number: what a literal of that type says to Spark depends on its time zone.
            return f"unix_micros(`{place}`)" if place in self._instants else None
        return f"`{place}`" if _is_plain(column.type) else None


def _call(call: Call, args: list[str]) -> str:
    op = call.op
    if op == "div":
        return f"({args[0]} / nullif({args[1]}, 0))"
    if op in COMPARISONS or op in ARITHMETIC:
        return f"({args[0]} {(COMPARISONS | ARITHMETIC)[op]} {args[1]})"
    if op in ("and", "or"):
        return f"({f' {op.upper()} '.join(args)})"
    if op == "in":
        return f"({args[0]} IN ({', '.join(args[1:])}))"
    if op == "like":
        return f"({args[0]} LIKE {args[1]})"
    if op == "cast":
        return f"CAST({args[0]} AS {to_spark(call.type).simpleString()})"
    if op == "case":
        whens = " ".join(f"WHEN {c} THEN {v}" for c, v in zip(args[:-1:2], args[1:-1:2], strict=True))
        return f"(CASE {whens} ELSE {args[-1]} END)"
    return {"not": "(NOT {})", "neg": "(- {})", "is_null": "({} IS NULL)"}.get(op, f"{op}({{}})").format(", ".join(args))


def _means_the_same(call: Call) -> bool:
    """Whether an operation on such operands gives in Spark what it gives here. (Integers do not: theirs do not wrap.)"""
    types = [arg.type for arg in call.args]
    if call.op in (*ARITHMETIC, "neg", "abs"):
        return all(map(pa.types.is_floating, types))
    if call.op == "cast":
        return _widens(types[0], call.type)
    if call.op == "like":
        # What a backslash or a character of several code units is to a pattern is not worth the risk.
        pattern = call.args[1]
        return isinstance(pattern, Literal) and isinstance(pattern.value, str) and not set(pattern.value) & set("_\\")
    if call.op in ("year", "month", "day"):
        return bool(pa.types.is_date(types[0]))
    return call.op in {*COMPARISONS, "and", "or", "not", "is_null", "in", "case", "coalesce", "length", "concat", "trim"}


def _literal(expr: Literal) -> str:
    """A literal of its own type. Strings are written as their bytes: nothing in them can be taken for syntax."""
    if isinstance(expr.value, str):
        return f"CAST(X'{expr.value.encode().hex()}' AS STRING)"
    value, type = expr.value, expr.type
    if pa.types.is_timestamp(type):
        value, type = pa.scalar(value, type).cast(pa.int64()).as_py(), pa.int64()
    written = "NULL" if value is None else f"'{value}'"
    return f"CAST({written} AS {to_spark(type).simpleString()})"


def _is_plain(type: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    is_time = pa.types.is_date(type) or pa.types.is_timestamp(type)
    return bool(is_number or is_time or pa.types.is_boolean(type) or pa.types.is_string(type))


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    integers = pa.types.is_integer(given) and pa.types.is_integer(wanted) and given.bit_width <= wanted.bit_width
    floats = pa.types.is_float64(wanted) and (pa.types.is_floating(given) or pa.types.is_integer(given))
    return bool(integers or floats)
