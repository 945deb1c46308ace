"""The oracle: the same query as one batch join in DuckDB over all accepted rows.

It shares with the engine the bound `Query` and nothing else. Which rows are accepted is computed here from the batch
cuts; validities are columns `start_us` and `end_us` of the rows; the join asks of every pair of inputs that their
validities intersect, which on a line is the same as asking it of all of them at once. Results are compared as
multisets of tuples (`bag`).

A mean is computed here with fractions, and is the double nearest to it: DuckDB's `avg` and `favg` are both something else.
A predicate that reads a mean may go either way where the mean is no double and is compared with one next to it: `bounds`
gives the results that there are in any case, and those that there may be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction
from itertools import combinations
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime
from anabranch.plan.query import GROUP, LATEST_US, PARTS, Aggregate, Grouping, Input, Query, Stream, Table

ALWAYS_US, FOREVER_US = -(2**63), 2**63 - 1
DOUBT_ULPS = 2
"""So close to a mean that is no double, a predicate may go either way."""

Bag = Counter[tuple[Any, ...]]
Batch = Mapping[str, pa.Table]

CONNECTION = duckdb.connect()
CONNECTION.execute("SET threads = 1")


# Acceptance


@dataclass
class Acceptance:
    """What the law says of a sequence of batches: per batch the watermark, per batch and stream what was turned away.

    A watermark of None is one that some silent stream still holds back."""

    rows: dict[str, pa.Table]
    watermarks: list[int | None] = field(default_factory=list)
    late: list[dict[str, int]] = field(default_factory=list)
    untimed: list[dict[str, int]] = field(default_factory=list)
    early: list[dict[str, int]] = field(default_factory=list)

    @property
    def final_watermark(self) -> int:
        """The watermark of the last batch."""
        last = self.watermarks[-1]
        return ALWAYS_US if last is None else last


def accepted(
    batches: Sequence[Batch], streams: Sequence[Stream], clocks: Sequence[int] = (), since: int = 0
) -> Acceptance:
    """The rows of each stream that count: those that came in batch `since` or later. `clocks` has for each batch the time at
    which it was first planned; if it has more, batches without rows follow. Without clocks no row is early, and no stream
    idle."""
    found = Acceptance({})
    kept: dict[str, list[pa.Table]] = {s.name: [] for s in streams}
    largest: dict[str, int] = {}
    times_seen: dict[str, list[int]] = {s.name: list(clocks[:1]) for s in streams}
    watermark: int | None = None
    for number in range(max(len(batches), len(clocks))):
        batch = batches[number] if number < len(batches) else {}
        awake = [
            s for s in streams
            if not clocks or s.idle_us is None or clocks[number] - times_seen[s.name][-1] <= s.idle_us
        ] or [s for s in streams if s.name in largest]  # fmt: skip
        if awake and all(s.name in largest for s in awake):
            least = min(largest[s.name] - s.lateness_us for s in awake)
            watermark = least if watermark is None else max(watermark, least)
        found.watermarks.append(watermark)
        found.late.append({})
        found.untimed.append({})
        found.early.append({})
        seen: dict[str, list[int]] = {}
        for stream in streams:
            if stream.name not in batch:
                continue
            rows = batch[stream.name]
            limit = clocks[number] + stream.ahead_us if clocks and stream.ahead_us is not None else LATEST_US
            fates = [_fate(t, watermark, limit) for t in times_us(rows, stream)]
            found.untimed[-1][stream.name] = fates.count("untimed")
            found.late[-1][stream.name] = fates.count("late")
            found.early[-1][stream.name] = fates.count("early")
            if number >= since:
                kept[stream.name].append(rows.filter(pa.array([f == "accepted" for f in fates], pa.bool_())))
            seen[stream.name] = [t for t in times_us(rows, stream) if t is not None and t <= limit]
        for name, times in seen.items():
            if times:
                largest[name] = max(*times, largest.get(name, ALWAYS_US))
                times_seen[name] += clocks[number : number + 1]
    found.rows = {s.name: _concat(kept[s.name], s) for s in streams}
    return found


def _fate(time_us: int | None, watermark: int | None, limit_us: float) -> str:
    if time_us is None:
        return "untimed"
    if time_us > limit_us:
        return "early"
    return "late" if watermark is not None and time_us < watermark else "accepted"


def times_us(rows: pa.Table, stream: Stream) -> list[int | None]:
    """Event times as integers."""
    times: list[int | None] = rows.column(stream.time).cast(pa.int64()).to_pylist()
    return times


def _concat(tables: list[pa.Table], source: Stream | Table) -> pa.Table:
    schema = pa.schema([pa.field(f.name, f.type) for f in source.fields])
    return pa.concat_tables([t.cast(schema) for t in tables]) if tables else schema.empty_table()


# The join


def expected(
    query: Query, batches: Sequence[Batch], tables: Batch, clocks: Sequence[int] = (), ulps: int = 0
) -> Bag:
    """All results of a query over batches of its streams and over stored tables. The last of `clocks`, if they are given, is
    that of the last closing step. Means that are no doubles are moved by so many `ulps`."""
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    known = accepted(batches if clocks else [*batches, {}], streams, clocks)
    return bag(results_of(query, {**known.rows, **tables}, known.final_watermark, ulps))


def expected_of_stay(
    query: Query, batches: Sequence[Batch], tables: Batch, first: int, since: int, closes: bool = True
) -> Bag:
    """All results of a query that came in batch `first`, and left after the last of `batches`, if not all came to their end
    (`closes`). It has the combinations of rows that came in batch `since` or later, of which one at least came in batch
    `first` or later; `since` is less than that only with history, which groups cannot have."""
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    steps = [*batches, {}] if closes else batches
    known = accepted(steps, streams, since=since)
    found = bag(results_of(query, {**known.rows, **tables}, known.final_watermark))
    if since < first:
        before = {**accepted(batches[:first], streams, since=since).rows, **tables}
        found -= bag(results_of(query, before, ALWAYS_US))
    return found


def bounds(query: Query, batches: Sequence[Batch], tables: Batch) -> tuple[Bag, Bag]:
    """The results that are certain, and all that are possible, where predicates read means (`coarse`). For a query whose
    predicates over means stand above all groups."""
    several = [coarse(expected(query, batches, tables, ulps=ulps)) for ulps in (0, -DOUBT_ULPS, DOUBT_ULPS)]
    return several[0] & several[1] & several[2], several[0] | several[1] | several[2]


def coarse(results: Bag) -> Bag:
    """Results with their floats rounded to ten digits."""
    rounded: Bag = Counter()
    for row, count in results.items():
        rounded[tuple(float(f"{v:.10g}") if isinstance(v, float) else v for v in row)] += count
    return rounded


def final_watermark(batches: Sequence[Batch], streams: Sequence[Stream], clocks: Sequence[int] = ()) -> int:
    """The watermark of a closing step after all batches."""
    return accepted(batches if clocks else [*batches, {}], streams, clocks).final_watermark


def results_of(query: Query, rows: Mapping[str, pa.Table], watermark_us: int, ulps: int = 0) -> pa.Table:
    """The results of a query, after those of its subqueries, at all instants before a watermark."""
    known = dict(rows)
    for inner in query.subqueries:
        known[inner.name] = results_of(inner, known, watermark_us, ulps)
    if query.statement is not None and not query.statement.is_printed:
        return by_database(query, known, watermark_us)
    for i in query.inputs:
        CONNECTION.register(f"rows_of_{i.alias}", _with_validity(i, known[i.source.name]))
    try:
        if query.grouping is None:
            return CONNECTION.sql(to_duckdb(query)).to_arrow_table()
        groups = CONNECTION.sql(groups_to_duckdb(query, watermark_us)).to_arrow_table()
        return _selected(query, _with_means(groups, query.grouping, ulps))
    finally:
        for i in query.inputs:
            CONNECTION.unregister(f"rows_of_{i.alias}")


def by_database(query: Query, rows: Mapping[str, pa.Table], watermark_us: int) -> pa.Table:
    """The rows of a block in the words of a database: its text, at every instant before a watermark, over the rows that are
    valid then; nothing where no stream has any."""
    grouping, statement = query.grouping, query.statement
    assert grouping is not None
    assert statement is not None
    found, streams = [query.output_schema.empty_table()], [i for i in query.inputs if isinstance(i.source, Stream)]
    valid = {i.alias: _with_validity(i, rows[i.source.name]) for i in query.inputs}
    starts = [s for i in streams for s in valid[i.alias].column("start_us").to_pylist()]
    ends = [s for i in streams for s in valid[i.alias].column("end_us").to_pylist()]
    slide = grouping.slide_us
    last = min(watermark_us, max(ends, default=ALWAYS_US))
    for instant in range(-(-min(starts) // slide) * slide, last, slide) if starts else ():
        CONNECTION.execute(f"SET VARIABLE instant = CAST({instant} AS BIGINT)")
        there = 0
        for i in query.inputs:
            CONNECTION.register("all_rows", valid[i.alias])
            now = "SELECT * EXCLUDE (start_us, end_us) FROM all_rows"
            now += " WHERE start_us <= getvariable('instant') AND getvariable('instant') < end_us"
            CONNECTION.execute(f'CREATE OR REPLACE TEMP TABLE "{i.alias}" AS {now}')
            there += CONNECTION.sql(f'FROM "{i.alias}"').count("*").fetchall()[0][0] if i in streams else 0
            CONNECTION.unregister("all_rows")
        if there:
            given = CONNECTION.sql(statement.sql).to_arrow_table()
            times = pa.array([instant] * given.num_rows, pa.timestamp("us"))
            found.append(pa.Table.from_arrays([*given.columns, times], query.output_schema.names).cast(query.output_schema))
        for i in query.inputs:
            CONNECTION.execute(f'DROP TABLE "{i.alias}"')
    return pa.concat_tables(found)


def joined(query: Query, rows: Mapping[str, pa.Table]) -> Bag:
    """All results of a query without groups over accepted rows."""
    return bag(results_of(query, rows, FOREVER_US))


def groups_to_duckdb(query: Query, watermark_us: int) -> str:
    """The groups of a query in DuckDB's SQL: the joined rows, met with the instants at which they are valid."""
    grouping = query.grouping
    assert grouping is not None
    starts = ", ".join(f"{a}.start_us" for a in query.aliases)
    ends = ", ".join(f"{a}.end_us" for a in query.aliases)
    rows = to_duckdb(query, f"greatest({starts}) AS start_us, least({ends}) AS end_us")
    slide = grouping.slide_us
    # Without a watermark there are no instants; below the least integer DuckDB could not even count none.
    last = max(-(-watermark_us // slide) * slide - slide, ALWAYS_US)
    keys = [f"key{i}" for i in range(grouping.keys)]
    names = [name for name, _ in query.select]
    aggregates = []
    for place, a in enumerate(grouping.aggregates):
        operand = "*" if a.argument is None else names[a.argument]
        parts = a.argument is not None and query.select[a.argument][1].type == PARTS
        aggregates.append(f"{_aggregate(a, operand, parts)} AS agg{place}")
    first = f"CAST(floor((SELECT min(start_us) FROM rows) / {slide}) AS BIGINT) * {slide} - {slide}"
    return f"""
        WITH rows AS MATERIALIZED ({rows}),
        instants AS (
            SELECT unnest(generate_series({first}, {last}, {slide})) AS t
            WHERE {watermark_us} > {ALWAYS_US}
        )
        SELECT {", ".join(["t", *keys, *aggregates])} FROM rows JOIN instants ON start_us <= t AND t < end_us
        GROUP BY {", ".join(["t", *keys])}"""


def _aggregate(a: Aggregate, operand: str, parts: bool) -> str:
    """An aggregate in DuckDB's SQL. A mean is the list of its values, and so are partial values (`PARTS`)."""
    if a.function == "avg" or a.type == PARTS:
        return f"flatten(list({operand}))" if parts else f"list({operand}) FILTER ({operand} IS NOT NULL)"
    if parts:
        return f"CAST(list_aggregate(flatten(list({operand})), 'sum') AS {_type(a.type)})"
    call = {
        "count": f"count({operand})", "count_distinct": f"count(DISTINCT {operand})", "sum": f"sum({operand})",
        "min": f"min({operand})", "max": f"max({operand})", "stddev": f"stddev_samp({operand})",
    }[a.function]  # fmt: skip
    return f"CAST({call} AS {_type(a.type)})"


def _with_means(groups: pa.Table, grouping: Grouping, ulps: int) -> pa.Table:
    for place, a in enumerate(grouping.aggregates):
        if a.function == "avg" and a.type != PARTS:
            at = groups.schema.get_field_index(f"agg{place}")
            means = [mean(values, ulps) for values in groups.column(at).to_pylist()]
            groups = groups.set_column(at, f"agg{place}", pa.array(means, pa.float64()))
    return groups


def mean(values: Sequence[float] | None, ulps: int = 0) -> float | None:
    """The double that is nearest to the mean; one that is no double is moved by some units in the last place.

    >>> mean([0.1, 0.1, 0.1]), mean([0.1, 0.2, 0.3]), mean([0.1, 0.2, 0.3], 2), mean([1.0, 2.0], 2)
    (0.1, 0.2, 0.20000000000000007, 1.5)
    """
    if not values:
        return None
    if not all(math.isfinite(v) for v in values):
        return sum(v for v in values if not math.isfinite(v))
    exact = sum((Fraction(v) * n for v, n in Counter(values).items()), Fraction(0)) / len(values)
    nearest = float(exact)
    for _ in range(abs(ulps) if Fraction(nearest) != exact else 0):
        nearest = math.nextafter(nearest, math.copysign(math.inf, ulps))
    return nearest


def _selected(query: Query, groups: pa.Table) -> pa.Table:
    """What is selected of groups."""
    grouping = query.grouping
    assert grouping is not None
    select = ", ".join(f'{_sql(expr, query)} AS "{name}"' for name, expr in grouping.select)
    having = f" WHERE {_sql(grouping.having, query)}" if grouping.having is not None else ""
    CONNECTION.register("groups", groups)
    try:
        found = CONNECTION.sql(f"SELECT {select} FROM groups{having}").to_arrow_table()
    finally:
        CONNECTION.unregister("groups")
    schema = [pa.field(f.name, f.type if f.type != PARTS else found.field(f.name).type) for f in query.output_schema]
    return found.cast(pa.schema(schema))


def _with_validity(i: Input, rows: pa.Table) -> pa.Table:
    if isinstance(i.source, Table):
        validity = [(ALWAYS_US, FOREVER_US)] * rows.num_rows
    else:
        unbounded = i.window.kind == "unbounded"
        starts = [t for t in times_us(rows, i.source) if t is not None]
        validity = [(t, FOREVER_US if unbounded else t + i.window.length_us) for t in starts]
    rows = rows.append_column("start_us", pa.array([start for start, _ in validity], pa.int64()))
    return rows.append_column("end_us", pa.array([end for _, end in validity], pa.int64()))


def to_duckdb(query: Query, more: str = "") -> str:
    """The join of the query in DuckDB's SQL."""
    query = replace(query, grouping=None)  # RESULT_TIME is here that of a joined row
    conditions = [f"{a}.start_us < {b}.end_us AND {b}.start_us < {a}.end_us" for a, b in combinations(query.aliases, 2)]
    conditions += [f"{_sql(e.left, query)} = {_sql(e.right, query)}" for e in query.equalities]
    conditions += [_sql(f, query) for i in query.inputs for f in i.filters]
    conditions += [_sql(r, query) for r in query.residuals]
    columns = [f'{_sql(expr, query)} AS "{name}"' for name, expr in query.select]
    select = ", ".join([*columns, more] if more else columns)
    inputs = ", ".join(f"rows_of_{alias} AS {alias}" for alias in query.aliases)
    return f"SELECT {select} FROM {inputs}" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")


INFIX = {"add": "+", "sub": "-", "mul": "*", "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
         "and": "AND", "or": "OR"}  # fmt: skip
FUNCTIONS = ("abs", "coalesce", "greatest", "least", "upper", "lower", "length")


def _sql(expr: Expr, query: Query) -> str:
    if isinstance(expr, Column):
        return f'{expr.alias}."{expr.name}"' if expr.alias != GROUP else expr.name
    if isinstance(expr, ResultTime) and query.grouping is not None:
        return "make_timestamp(t)"
    if isinstance(expr, ResultTime):
        starts = [f"{i.alias}.start_us" for i in query.inputs if isinstance(i.source, Stream)]
        return f"make_timestamp(greatest({', '.join(starts)}))"
    if isinstance(expr, Literal):
        return _literal(expr)
    assert isinstance(expr, Call)
    args = [_sql(arg, query) for arg in expr.args]
    if expr.op in INFIX:
        return f"({args[0]} {INFIX[expr.op]} {args[1]})"
    if expr.op in FUNCTIONS:
        return f"{expr.op}({', '.join(args)})"
    if expr.op == "case":
        branches = zip(args[:-1:2], args[1:-1:2], strict=True)
        return f"CASE {' '.join(f'WHEN {test} THEN {value}' for test, value in branches)} ELSE {args[-1]} END"
    special = {
        "mod": f"({args[0]} % NULLIF({args[-1]}, 0))",
        "neg": f"(-{args[0]})",
        "not": f"(NOT {args[0]})",
        "is_null": f"({args[0]} IS NULL)",
        "in": f"({args[0]} IN ({', '.join(args[1:])}))",
        "concat": f"({' || '.join(args)})",
        "cast": _cast(args[0], expr.args[0].type, expr.type),
        "div": f"({args[0]} / NULLIF({args[-1]}, 0))",
        "round": f"round({args[0]}, CAST({args[-1]} AS INTEGER))",
        "like": f"({args[0]} LIKE {args[-1]})",
        "trim": f"trim({args[0]}, ' ')",
        "substring": f"substring({', '.join(args)})",
        "floor": f"TRY_CAST(floor({args[0]}) AS BIGINT)",
        "ceil": f"TRY_CAST(ceil({args[0]}) AS BIGINT)",
        "sqrt": f"CASE WHEN {args[0]} >= 0 THEN sqrt({args[0]}) END",
        **{part: f"{part}({args[0]})" for part in ("year", "month", "day", "hour", "minute", "second")},
    }
    return special[expr.op]


def _cast(value: str, source: pa.DataType, target: pa.DataType) -> str:
    """NULL for what cannot be converted. DuckDB would round on the way to an integer, write 0.5 as .5 at times, and take
    years of fewer digits than four."""
    if pa.types.is_integer(target):
        if pa.types.is_string(source):
            value, source = f"TRY_CAST({value} AS DECIMAL(38,10))", pa.decimal128(38, 10)
        if pa.types.is_floating(source) or pa.types.is_decimal(source):
            value = f"trunc({value})"
    if pa.types.is_decimal(source) and pa.types.is_string(target) and source.precision == source.scale < 38:
        value = f"CAST({value} AS DECIMAL({source.precision + 1},{source.scale}))"
    if pa.types.is_string(source) and (pa.types.is_date(target) or pa.types.is_timestamp(target)):
        value = f"CASE WHEN regexp_matches({value}, '^\\s*[0-9]{{4}}-') THEN {value} END"
    return f"TRY_CAST({value} AS {_type(target)})"


def _literal(expr: Literal) -> str:
    if isinstance(expr.value, timedelta):
        return f"to_microseconds({expr.value // timedelta(microseconds=1)})"
    quoted = f"'{expr.value}'" if not isinstance(expr.value, str | int | None) else str(expr)
    return f"CAST({quoted} AS {_type(expr.type)})"


SQL_TYPES = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.float32(): "REAL", pa.float64(): "DOUBLE", pa.string(): "VARCHAR", pa.binary(): "BLOB", pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP", pa.null(): '"NULL"',
    pa.duration("us"): "INTERVAL",
}  # fmt: skip


def _type(type_: pa.DataType) -> str:
    return f"DECIMAL({type_.precision},{type_.scale})" if pa.types.is_decimal(type_) else SQL_TYPES[type_]


# Comparing


def bag(rows: pa.Table) -> Bag:
    """The rows as a multiset."""
    columns = [_values(column) for column in rows.columns]
    return Counter(zip(*columns, strict=True)) if columns else Counter({(): rows.num_rows})


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column, as `_plain` has each: by way of numpy where that gives the same, much faster."""
    kind = column.type
    if pa.types.is_string(kind) or (pa.types.is_boolean(kind) and not column.null_count):
        return list(column.to_numpy().tolist())
    if (pa.types.is_integer(kind) or kind == pa.timestamp("us")) and not column.null_count:
        return list(column.to_numpy().tolist())
    if pa.types.is_floating(kind) and not column.null_count:
        values = column.to_numpy() + 0.0
        return list(values.tolist()) if not np.isnan(values).any() else [_plain(value) for value in values.tolist()]
    is_plain = not (pa.types.is_floating(kind) or pa.types.is_nested(kind))
    return list(column.to_pylist()) if is_plain else [_plain(value) for value in column.to_pylist()]


def _plain(value: Any) -> Any:
    """A value that can be hashed, the same for what is equal in SQL (NaN equals NaN, 0.0 equals -0.0)."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, _plain(item)) for name, item in value.items())
    return value


def difference(ours: Bag, theirs: Bag, shown: int = 5) -> str:
    """What is wrong, in a few lines; empty if nothing is."""
    extra, missing = ours - theirs, theirs - ours
    if not extra and not missing:
        return ""
    lines = [f"{ours.total()} results instead of {theirs.total()}"]
    for name, rows in (("wrong or repeated", extra), ("missing", missing)):
        lines += [f"  {name}: {rows.total()}"] + [f"    {count} × {row}" for row, count in rows.most_common(shown)]
    return "\n".join(lines)


# Freshness


def event_clocks(batches: Sequence[Batch], streams: Sequence[Stream]) -> list[int | None]:
    """The clock of each batch: the least of the largest times that streams have shown before it; None before all have."""
    largest: dict[str, int] = {}
    found: list[int | None] = []
    for batch in batches:
        found.append(min(largest.values()) if len(largest) == len(streams) else None)
        for stream in streams:
            times = [t for t in times_us(batch[stream.name], stream) if t is not None] if stream.name in batch else []
            if times:
                largest[stream.name] = max(*times, largest.get(stream.name, ALWAYS_US))
    return found


def fresh_by_batch(
    query: Query, batches: Sequence[Batch], tables: Batch, clocks: Sequence[int | None], planned: Sequence[int] = ()
) -> list[Bag]:
    """The results of each batch, by its last row, in which no row is older by the clock of the batch than its freshness
    allows. `planned` are the times at which batches were planned, where rows may be early."""
    found: list[Bag] = []
    for number in range(len(batches)):
        before, after = (
            fresh_of(query, batches[:upto], tables, clocks[number], planned[:upto]) for upto in (number, number + 1)
        )
        found.append(after - before)
    return found


def fresh_of(
    query: Query, batches: Sequence[Batch], tables: Batch, clock_us: int | None, planned: Sequence[int] = (), since: int = 0
) -> Bag:
    """The results of some batches in which no row is too old by a clock, or came before batch `since`."""
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    law = accepted(batches, streams, planned, since)
    return joined(_fresh(query, clock_us), {**law.rows, **tables})


def _fresh(query: Query, clock_us: int | None) -> Query:
    """A query over rows that are not too old."""
    inputs = []
    for i in query.inputs:
        if clock_us is not None and i.freshness_us is not None and isinstance(i.source, Stream):
            column = Column(pa.timestamp("us"), i.alias, i.source.time)
            limit = Literal(pa.timestamp("us"), pa.scalar(clock_us - i.freshness_us, pa.timestamp("us")).as_py())
            i = replace(i, filters=(*i.filters, Call(pa.bool_(), "ge", (column, limit))))
        inputs.append(i)
    return replace(query, inputs=tuple(inputs))
