"""The oracle: the same query as one batch join in DuckDB over all accepted rows.

It shares with the engine the bound `Query` and nothing else. Which rows are accepted is computed here from the batch
cuts; validities are columns `start_us` and `end_us` of the rows; the join asks of every pair of inputs that their
validities intersect, which on a line is the same as asking it of all of them at once. Results are compared as
multisets of tuples (`bag`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import duckdb
import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime
from anabranch.plan.query import GROUP, Input, Query, Stream, Table

ALWAYS_US, FOREVER_US = -(2**63), 2**63 - 1

Bag = Counter[tuple[Any, ...]]
Batch = Mapping[str, pa.Table]

CONNECTION = duckdb.connect()
CONNECTION.execute("SET threads = 1")


# Acceptance


@dataclass
class Acceptance:
    """What the law says of a sequence of batches: per batch the watermark, per batch and stream what was turned away."""

    rows: dict[str, pa.Table]
    watermarks: list[int | None] = field(default_factory=list)
    late: list[dict[str, int]] = field(default_factory=list)
    untimed: list[dict[str, int]] = field(default_factory=list)


def accepted(batches: Sequence[Batch], streams: Sequence[Stream]) -> Acceptance:
    """The rows of each stream that count. A watermark of None is one that some silent stream still holds back."""
    found = Acceptance({})
    kept: dict[str, list[pa.Table]] = {s.name: [] for s in streams}
    largest: dict[str, int] = {}
    for batch in batches:
        known = all(s.name in largest for s in streams)
        watermark = min((largest[s.name] - s.lateness_us for s in streams), default=None) if known else None
        found.watermarks.append(watermark)
        found.late.append({})
        found.untimed.append({})
        for stream in streams:
            if stream.name not in batch:
                continue
            rows = batch[stream.name]
            times = times_us(rows, stream)
            on_time = [t is not None and (watermark is None or t >= watermark) for t in times]
            found.untimed[-1][stream.name] = times.count(None)
            found.late[-1][stream.name] = len(times) - sum(on_time) - times.count(None)
            kept[stream.name].append(rows.filter(pa.array(on_time, pa.bool_())))
        for stream in streams:
            seen = [t for t in times_us(batch[stream.name], stream) if t is not None] if stream.name in batch else []
            if seen:
                largest[stream.name] = max(*seen, largest.get(stream.name, ALWAYS_US))
    found.rows = {s.name: _concat(kept[s.name], s) for s in streams}
    return found


def times_us(rows: pa.Table, stream: Stream) -> list[int | None]:
    """Event times as integers."""
    times: list[int | None] = rows.column(stream.time).cast(pa.int64()).to_pylist()
    return times


def _concat(tables: list[pa.Table], source: Stream | Table) -> pa.Table:
    schema = pa.schema([pa.field(f.name, f.type) for f in source.fields])
    return pa.concat_tables([t.cast(schema) for t in tables]) if tables else schema.empty_table()


# The join


def expected(query: Query, batches: Sequence[Batch], tables: Batch) -> Bag:
    """All results of a query over batches of its streams and over stored tables."""
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    rows: dict[str, pa.Table] = {**accepted(batches, streams).rows, **tables}
    return bag(results_of(query, rows, final_watermark(batches, streams)))


def final_watermark(batches: Sequence[Batch], streams: Sequence[Stream]) -> int:
    """The watermark of a closing step after all batches."""
    seen = {s.name: [t for b in batches if s.name in b for t in times_us(b[s.name], s) if t is not None] for s in streams}
    return min((max(times) - s.lateness_us if (times := seen[s.name]) else ALWAYS_US) for s in streams)


def results_of(query: Query, rows: Mapping[str, pa.Table], watermark_us: int) -> pa.Table:
    """The results of a query, after those of its subqueries, at all instants before a watermark."""
    known = dict(rows)
    for inner in query.subqueries:
        known[inner.name] = results_of(inner, known, watermark_us)
    for i in query.inputs:
        CONNECTION.register(f"rows_of_{i.alias}", _with_validity(i, known[i.source.name]))
    try:
        sql = to_duckdb(query) if query.grouping is None else grouped_to_duckdb(query, watermark_us)
        found = CONNECTION.sql(sql).to_arrow_table()
        return found if query.grouping is None else found.cast(query.output_schema)
    finally:
        for i in query.inputs:
            CONNECTION.unregister(f"rows_of_{i.alias}")


def joined(query: Query, rows: Mapping[str, pa.Table]) -> Bag:
    """All results of a query without groups over accepted rows."""
    return bag(results_of(query, rows, FOREVER_US))


def grouped_to_duckdb(query: Query, watermark_us: int) -> str:
    """A query with groups in DuckDB's SQL: the joined rows, met with the instants at which they are valid."""
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
        call = {
            "count": f"count({operand})", "count_distinct": f"count(DISTINCT {operand})", "sum": f"sum({operand})",
            "min": f"min({operand})", "max": f"max({operand})", "stddev": f"stddev_samp({operand})",
        }[a.function]  # fmt: skip
        aggregates.append(f"CAST({call} AS {_type(a.type)}) AS agg{place}")
    first = f"CAST(floor((SELECT min(start_us) FROM rows) / {slide}) AS BIGINT) * {slide} - {slide}"
    select = ", ".join(f'{_sql(expr, query)} AS "{name}"' for name, expr in grouping.select)
    having = f"WHERE {_sql(grouping.having, query)}" if grouping.having is not None else ""
    return f"""
        WITH rows AS MATERIALIZED ({rows}),
        instants AS (
            SELECT unnest(generate_series({first}, {last}, {slide})) AS t
            WHERE {watermark_us} > {ALWAYS_US}
        ),
        groups AS (
            SELECT {", ".join(["t", *keys, *aggregates])} FROM rows JOIN instants ON start_us <= t AND t < end_us
            GROUP BY {", ".join(["t", *keys])}
        )
        SELECT {select} FROM groups {having}"""


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
        "floor": f"CAST(floor({args[0]}) AS BIGINT)",
        "ceil": f"CAST(ceil({args[0]}) AS BIGINT)",
        "sqrt": f"CASE WHEN {args[0]} >= 0 THEN sqrt({args[0]}) END",
        **{part: f"{part}({args[0]})" for part in ("year", "month", "day", "hour", "minute", "second")},
    }
    return special[expr.op]


def _cast(value: str, source: pa.DataType, target: pa.DataType) -> str:
    """NULL for what cannot be converted. DuckDB would round on the way to an integer, and write 0.5 as .5 at times."""
    if pa.types.is_integer(target):
        if pa.types.is_string(source):
            value, source = f"TRY_CAST({value} AS DECIMAL(38,10))", pa.decimal128(38, 10)
        if pa.types.is_floating(source) or pa.types.is_decimal(source):
            value = f"trunc({value})"
    if pa.types.is_decimal(source) and pa.types.is_string(target) and source.precision == source.scale < 38:
        value = f"CAST({value} AS DECIMAL({source.precision + 1},{source.scale}))"
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
    columns = [[_plain(value) for value in column.to_pylist()] for column in rows.columns]
    return Counter(zip(*columns, strict=True)) if columns else Counter({(): rows.num_rows})


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
