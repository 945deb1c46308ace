"""Predicates of streams evaluated by Spark, before rows are shuffled: what no input can use stays behind.

Late rows, early ones and rows without a time go on all the same, to be counted. The largest event time of rows that are not
early moves the watermark, also that of a row that stays behind: Spark observes it on the way.

Under an overload policy that sheds rows (`anabranch.plan.overload`), a share of the rows that are left is dropped here, too:
those whose hash over all packed columns of their stream, with a salt of the stream and the batch, is not below the share
that is kept. A batch that runs again drops the same rows, in whatever order they come, and all copies of a row that goes to
several slots. They are counted, and their times were observed before.

All of it is part of the streaming query; what differs from batch to batch, the watermark, from when on rows are early, which
predicates stand above a join, what share of rows is kept, and the salt, is among its `BatchVariables`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.control.records import SourceStatistics, Statistics
from anabranch.engine.shedding import salt_of
from anabranch.errors import StateError
from anabranch.plan.demand import Asked
from anabranch.plan.expression import Call, Column, Expr, Literal
from anabranch.plan.query import BEGINNING_US, Query, Stream
from anabranch.plan.workload import Workload
from anabranch.spark.batch_variables import VARIABLES, BatchVariables, variable_sql
from anabranch.spark.pack import COPY, SOURCE, Packing
from anabranch.spark.types import to_spark

OBSERVED = "anabranch"
SHED, OBSERVED_SHED = "_shed", "anabranch shed"
QUERY_ID = "sql.streaming.queryId"
"""Spark's property of a thread that runs a streaming query."""

LATE, EARLY, KEPT, SALT, SWITCHES = range(5)
"""The variables of a source, in groups of as many as there are sources: before when rows are late, after when they are
early, below which hash they are kept, the salt of that, and whether predicates need not be asked."""
HASH_BITS = 60
"""Of a hash, so many bits are looked at: a variable holds no more."""

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Pushdown:
    """The predicates of queries that Spark can evaluate on packed rows; sources of our own reader are not among them."""

    def __init__(
        self, workload: Workload, packing: Packing, filters: Mapping[str, Sequence[Asked]], sheds: bool = False
    ) -> None:
        """`sheds` says whether rows may be shed."""
        types = dict(packing.types)
        self.watched: dict[str, Watched] = {}
        """The sources of which rows may stay behind."""
        self._readers = {name: [query.name for query in workload.readers(name)] for name in workload.streams}
        self._sources, self._sheds = len(packing.sources), sheds
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
            if source.time not in places:
                continue
            is_instant = isinstance(types[places[source.time]], T.TimestampType)
            instants = [p for p in places.values() if isinstance(types[p], T.TimestampType)]
            asked, wanted = filters.get(source.name, ()) if is_instant else (), None
            if asked:
                switches = self._switches_of(number, asked, movable)
                wanted = spark_filter([each.predicates for each in asked], places, instants, switches)
            if wanted is not None or sheds:
                instant = micros_sql(places[source.time], is_instant)
                hashed = tuple(_hashable(place, types[place]) for _, place in sorted(places.items())) if sheds else ()
                self.watched[source.name] = Watched(source, number, instant, wanted, hashed)

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
                    offset = self._sources * (len(known) + SWITCHES)
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

    def remove_reader(self, name: str) -> None:
        """Has a query read nothing any more, which has gone."""
        self._readers = {source: [each for each in own if each != name] for source, own in self._readers.items()}

    def apply(self, frame: DataFrame) -> DataFrame:
        """The frame without the rows that are of no use, or shed, in all batches."""
        if not self.watched:
            return frame.drop(COPY)
        # As many for each source: Spark may look up the entry of a predicate for rows of other sources, too.
        self._variables = BatchVariables(frame.sparkSession, self._sources * (SWITCHES + self._most_switches))
        self._raised = frozenset()
        seen, kept = [], []
        for name, each in self.watched.items():
            # What Spark observes of a row costs more than to drop it: its time and number, whether or not it goes on.
            is_alone = self._sources == 1
            time = F.expr(each.instant if is_alone else f"CASE WHEN {each.is_own} THEN {each.instant} END")
            rows = f"count_if({COPY} = 0)" if is_alone else f"count_if({each.is_own} AND {COPY} = 0)"
            # The variables themselves, not the column that holds them: that would make every row longer.
            time = F.when(time <= self._variables.entry(self._entry(EARLY)), time)
            seen += [F.max(time).alias(f"time {name}"), F.expr(f"{rows} AS `rows {name}`")]
            if each.wanted is not None:
                useless = f"{each.is_own} AND NOT coalesce({each.wanted}, FALSE) AND {self._in_time(each)}"
                kept.append(f"NOT coalesce({useless}, FALSE)")
        watched = frame.observe(OBSERVED, *seen).withColumn(VARIABLES, self._variables.column)
        return self._without_shed(watched.where(" AND ".join(kept)) if kept else watched).drop(VARIABLES, COPY)

    def _entry(self, group: int) -> SparkColumn:
        """Which variable of a group is that of a row's source."""
        return F.col(SOURCE).cast("int") + group * self._sources

    def _in_time(self, each: Watched) -> str:
        """SQL for whether a row is in time; NULL, if it has none. Others go on, to be counted."""
        least, most = (variable_sql(f"CAST({SOURCE} AS INT) + {group * self._sources}") for group in (LATE, EARLY))
        return f"{each.instant} BETWEEN {least} AND {most}"

    def _without_shed(self, frame: DataFrame) -> DataFrame:
        """The rows that are not shed; those that are, are counted."""
        own = {name: each for name, each in self.watched.items() if each.hashed}
        if not own:
            return frame
        below, salt = (variable_sql(f"CAST({SOURCE} AS INT) + {group * self._sources}") for group in (KEPT, SALT))
        told = " ".join(
            f"WHEN {each.is_own} THEN {self._in_time(each)} AND "
            f"shiftrightunsigned(xxhash64({', '.join((*each.hashed, salt))}), {64 - HASH_BITS}) >= {below}"
            for each in own.values()
        )
        # Where nothing is shed no hash is computed.
        is_shed = f"CASE WHEN {below} >= {1 << HASH_BITS}L THEN FALSE ELSE coalesce(CASE {told} END, FALSE) END"
        counts = [F.expr(f"count_if({SHED} AND {each.is_own} AND {COPY} = 0)").alias(name) for name, each in own.items()]
        return frame.withColumn(SHED, F.expr(is_shed)).observe(OBSERVED_SHED, *counts).where(f"NOT {SHED}").drop(SHED)

    def set(
        self,
        watermarks: Mapping[str, int],
        planned_us: int,
        raised: Collection[tuple[str, str]] = (),
        shed: Mapping[str, float] | None = None,
        salt: int = 0,
    ) -> None:
        """Tells the next batch the watermarks of the queries, when it was planned, which predicates (of which query) stand
        above a join, so that Spark need not evaluate these, the share that is kept of streams that rows are shed of, and by
        what salt. A row is late if it is for any of its readers."""
        if self._variables is None:
            return
        # One for each source, also of those that are not looked at: an optimiser may look up any.
        for entry in range(self._sources):
            self._variables.set(entry, max(watermarks.values()))
            if self._sheds:
                self._variables.set(KEPT * self._sources + entry, 1 << HASH_BITS)
        for name, each in self.watched.items():
            # Nobody may be left who reads a stream: its rows are of no use then, whenever they are.
            own = [us for query, us in watermarks.items() if query in self._readers[name]]
            self._variables.set(each.number, max(own, default=BEGINNING_US))
            self._variables.set(EARLY * self._sources + each.number, each.source.early_after_us(planned_us))
            if shed and name in shed:
                self._variables.set(KEPT * self._sources + each.number, round(shed[name] * (1 << HASH_BITS)))
                self._variables.set(SALT * self._sources + each.number, salt_of(name, salt) % (1 << HASH_BITS))
        changed = self._raised ^ frozenset(raised)
        self._raised = frozenset(raised)
        for entry, texts in self._switches.items():
            if texts & changed:
                self._variables.set(entry, int(bool(texts & self._raised)))

    def seen(self, spark: SparkSession) -> Statistics | None:
        """Rows and the largest event time of each source that rows stay behind of, in the batch that the streaming query of
        this thread has computed."""
        if not self.watched:
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
        for place, name in enumerate(self.watched):
            found.sources[name] = SourceStatistics(rows=row.get(2 * place + 1), largest_time_us=row.get(2 * place))
        shed_of = [name for name, each in self.watched.items() if each.hashed]
        for place, name in enumerate(shed_of):
            found.sources[name].shed_rows = metrics.apply(OBSERVED_SHED).get(place)
        return found


@dataclass(frozen=True)
class Watched:
    """A source whose rows may stay behind, as SQL over packed rows."""

    source: Stream
    number: int
    instant: str
    """The time of a row, in microseconds."""
    wanted: str | None
    """Whether some input can use a row; None: that is not asked here."""
    hashed: tuple[str, ...] = ()
    """By what rows are told that are shed; nothing: none are."""

    @property
    def is_own(self) -> str:
        return f"{SOURCE} = {self.number}"


def micros_sql(column: str, is_instant: bool) -> str:
    """A time in microseconds. Spark knows that of an instant; one without a zone is taken apart, or it would be read in the
    zone of the session."""
    if is_instant:
        return f"unix_micros(`{column}`)"
    seconds = f"unix_date(CAST(`{column}` AS DATE)) * 86400L + hour(`{column}`) * 3600 + minute(`{column}`) * 60"
    return f"(({seconds}) * 1000000L + CAST(extract(SECOND FROM `{column}`) * 1000000 AS BIGINT))"


def _hashable(column: str, type: T.DataType) -> str:
    """What is hashed of a column. Spark hashes no map."""
    return f"to_json(`{column}`)" if _has_map(type) else f"`{column}`"


def _has_map(type: T.DataType) -> bool:
    if isinstance(type, T.ArrayType):
        return _has_map(type.elementType)
    return isinstance(type, T.MapType) or (isinstance(type, T.StructType) and any(_has_map(f.dataType) for f in type.fields))


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
