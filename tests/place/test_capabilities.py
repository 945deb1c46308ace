"""What is on the list of what DuckDB computes, engine and DuckDB compute alike: over hostile values, bit by bit."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.aggregation import Aggregator
from anabranch.engine.expressions import evaluate
from anabranch.place.capabilities import (
    AGGREGATED,
    COMPUTED,
    FLOATS,
    INTEGERS,
    TYPES,
    WIDER,
    why_not_aggregated,
    why_not_computed,
)
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.sql_text import expression_text
from anabranch.place.statement_of import statement_text
from anabranch.plan.expression import Call, Column, Expr, Literal
from anabranch.plan.query import (
    GROUP,
    SECOND_US,
    Aggregate,
    Field,
    Grouping,
    Input,
    Query,
    Stream,
    range_window,
)
from tests.support.hostile import DECIMAL, HOSTILE, bits, column_of

DUCK = open_embedded("duck")
KINDS = [*TYPES, DECIMAL]


def rows(count: int = 400) -> pa.Table:
    places = [(n, kind, place) for n, kind in enumerate(KINDS) for place in range(3)]
    return pa.table({f"c{n} {place}": column_of(kind, count, 17 * n + place) for n, kind, place in places})


ROWS = rows()


def column(kind: pa.DataType, place: int = 0) -> Column:
    return Column(kind, "t", f"c{KINDS.index(kind)} {place}")


def assert_alike(expr: Expr) -> None:
    assert why_not_computed(expr) is None, why_not_computed(expr)
    ours = evaluate(expr, lambda c: ROWS.column(c.name).combine_chunks(), ROWS.num_rows)
    sql = f"SELECT {expression_text(expr)} AS x FROM t"
    given = DUCK.run(sql, {"t": ROWS}).column("x").combine_chunks()
    assert given.type == expr.type, sql
    wrong = [(n, a, b) for n, (a, b) in enumerate(zip(bits(ours), bits(given), strict=True)) if a != b]
    assert not wrong, (sql, wrong[:3], ROWS.slice(wrong[0][0], 1).to_pylist())


def made(op: str) -> list[Expr]:
    """An operation over all types that it is listed for."""
    boolean = pa.bool_()
    if op in ("eq", "ne", "lt", "le", "gt", "ge"):
        return [Call(boolean, op, (column(k), column(k, 1))) for k in KINDS]
    if op in ("and", "or"):
        return [Call(boolean, op, (column(boolean), column(boolean, 1)))]
    if op == "not":
        return [Call(boolean, op, (column(boolean),))]
    if op == "is_null":
        return [Call(boolean, op, (column(k),)) for k in KINDS]
    if op == "in":
        return [Call(boolean, op, (column(k), column(k, 1), column(k, 2), *constants(k)[:2])) for k in KINDS]
    if op == "case":
        test = column(boolean)
        return [Call(k, op, (test, column(k), column(boolean, 1), column(k, 1), constants(k)[-1])) for k in KINDS]
    if op == "coalesce":
        return [Call(k, op, (column(k), column(k, 1), constants(k)[0])) for k in KINDS]
    if op in ("add", "sub", "mul"):
        return [Call(k, op, (column(k), column(k, 1))) for k in (*FLOATS, pa.int64())]
    if op == "mod":
        return [Call(pa.int64(), op, (column(pa.int64()), column(pa.int64(), 1)))]
    if op in ("neg", "abs"):
        return [Call(k, op, (column(k),)) for k in (*FLOATS, pa.int64())]
    if op == "div":
        return [Call(pa.float64(), op, (column(pa.float64()), column(pa.float64(), 1)))]
    if op == "cast":
        return [Call(large, op, (column(small),)) for small, large in WIDER]
    if op == "concat":
        return [Call(pa.string(), op, (column(pa.string()), column(pa.string(), 1), constants(pa.string())[3]))]
    if op == "length":
        return [Call(pa.int64(), op, (column(pa.string()),))]
    if op == "trim":
        return [Call(pa.string(), op, (column(pa.string()),))]
    if op == "substring":
        starts = [(1,), (2, 1), (3, 0), (1, 300), (400,)]
        return [Call(pa.string(), op, (column(pa.string()), *(Literal(pa.int64(), n) for n in each))) for each in starts]
    assert op in ("greatest", "least"), f"{op} is on the list, and nothing here tests it"
    kinds = [*INTEGERS, pa.string(), pa.date32(), pa.timestamp("us")]
    return [Call(k, op, (column(k), column(k, 1), column(k, 2))) for k in kinds]


def constants(kind: pa.DataType) -> list[Literal]:
    return [Literal(kind, v) for v in (*HOSTILE[kind], None) if not (isinstance(v, int) and pa.types.is_timestamp(kind))]


@pytest.mark.parametrize("op", COMPUTED)
def test_operations_on_the_list(op: str) -> None:
    for expr in made(op):
        assert_alike(expr)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_constants_and_columns(kind: pa.DataType) -> None:
    assert_alike(column(kind))
    for literal in constants(kind):
        assert_alike(literal)


@st.composite
def expressions(draw: st.DrawFn, kind: pa.DataType | None = None, depth: int = 0) -> Expr:
    """Expressions of listed operations, one within the other."""
    wanted = draw(st.sampled_from(KINDS)) if kind is None else kind
    ops = [op for op in COMPUTED if any(e.type == wanted for e in made(op))]
    if depth == 3 or not ops or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([column(wanted, n) for n in range(3)] + constants(wanted)))  # type: ignore[list-item]
    call = draw(st.sampled_from([e for op in ops for e in made(op) if e.type == wanted]))
    assert isinstance(call, Call)
    keeps = call.op == "substring"  # its places are constants
    args = [a if keeps and n else draw(expressions(kind=a.type, depth=depth + 1)) for n, a in enumerate(call.args)]
    return Call(call.type, call.op, tuple(args))


@given(expr=expressions())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_expressions(expr: Expr) -> None:
    assert_alike(expr)


@pytest.mark.parametrize(
    "expr",
    [
        Call(DECIMAL, "add", (column(DECIMAL), column(DECIMAL, 1))),
        Call(pa.float64(), "mod", (column(pa.float64()), column(pa.float64(), 1))),
        Call(pa.string(), "upper", (column(pa.string()),)),
        Call(pa.int32(), "cast", (column(pa.int64()),)),
        Call(pa.float64(), "greatest", (column(pa.float64()), column(pa.float64(), 1))),
        Call(pa.int64(), "year", (column(pa.timestamp("us")),)),
    ],
    ids=str,
)
def test_what_differs_is_not_on_the_list(expr: Expr) -> None:
    assert why_not_computed(expr) is not None


# Aggregates, by keys of all types.


def grouped(key: pa.DataType, aggregates: list[tuple[str, Expr | None, pa.DataType]]) -> Query:
    """A block over the rows, grouped by a column."""
    fields = tuple(Field(f.name, f.type) for f in ROWS.schema)
    stream = Stream("t", (*fields, Field("ts", pa.timestamp("us"))), "ts")
    select: list[tuple[str, Expr]] = [("key0", column(key))]
    made: list[Aggregate] = []
    for function, argument, kind in aggregates:
        if argument is not None:
            select.append((f"arg{len(select)}", argument))
        made.append(Aggregate(function, None if argument is None else len(select) - 1, kind))
    shown: list[tuple[str, Expr]] = [("k", Column(key, GROUP, "key0"))]
    shown += [(f"a{n}", Column(a.type, GROUP, f"agg{n}")) for n, a in enumerate(made)]
    grouping = Grouping(1, tuple(made), tuple(shown))
    return Query("q", (Input("t", stream, range_window(1)),), (), (), tuple(select), grouping=grouping)


def listed(kind: pa.DataType) -> list[tuple[str, Expr | None, pa.DataType]]:
    """The aggregates of a type that are on the list, but for those whose last bits differ."""
    inexact = ("sum", "avg") if pa.types.is_floating(kind) else ()
    types = {"count": pa.int64(), "count_distinct": pa.int64(), "sum": kind}
    if pa.types.is_decimal(kind):
        types["sum"] = pa.decimal128(kind.precision + 10, kind.scale)
    found = [f for f in AGGREGATED if AGGREGATED[f](kind) and f not in inexact]
    return [("count", None, pa.int64()), *((f, column(kind, 1), types.get(f, kind)) for f in found)]


def groups_here(query: Query) -> list[tuple[Any, ...]]:
    assert query.grouping is not None
    columns = [evaluate(e, lambda c: ROWS.column(c.name).combine_chunks(), ROWS.num_rows) for _, e in query.select]
    groups, starts = Aggregator(query.grouping, query.row_schema), np.zeros(ROWS.num_rows, np.int64)
    groups.take(columns, starts, starts + 1)
    groups.settle(0)
    return as_rows(pa.Table.from_batches(list(groups.advance(SECOND_US)), query.output_schema))


def as_rows(found: pa.Table) -> list[tuple[Any, ...]]:
    """Rows to the bit, in some order; of a key that is 0 or −0 either may stand for both."""
    columns = [bits(found.column(n).combine_chunks()) for n in range(found.num_columns)]
    nought = {struct.pack("d", -0.0): struct.pack("d", 0.0)}
    columns[0] = [nought.get(v, v) if isinstance(v, bytes) else v for v in columns[0]]
    return sorted(zip(*columns, strict=True), key=repr)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_aggregates_on_the_list(kind: pa.DataType) -> None:
    for key in KINDS if kind == pa.int64() else (pa.string(), kind):
        query = grouped(key, listed(kind))
        assert query.grouping is not None
        for each in query.grouping.aggregates:
            argument = None if each.argument is None else query.select[each.argument][1]
            assert why_not_aggregated(each, argument) is None
        given = DUCK.run(statement_text(query), {"t": ROWS})
        assert given.schema.types == query.output_schema.types
        assert as_rows(given) == groups_here(query), statement_text(query)


@given(arguments=st.lists(expressions(), min_size=1, max_size=3), key=st.sampled_from(KINDS))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_aggregates_of_random_expressions(arguments: list[Expr], key: pa.DataType) -> None:
    functions = ("min", "max", "count")
    query = grouped(key, [(f, e, pa.int64() if f == "count" else e.type) for e in arguments for f in functions])
    assert as_rows(DUCK.run(statement_text(query), {"t": ROWS})) == groups_here(query), statement_text(query)


def test_sums_of_integers_wrap_as_ours_do() -> None:
    """Sums of extremes leave the range upwards and downwards, by some groups more than once."""
    query = grouped(pa.bool_(), [("sum", column(pa.int64(), n), pa.int64()) for n in range(3)])
    found = groups_here(query)
    assert as_rows(DUCK.run(statement_text(query), {"t": ROWS})) == found
    exact = [sum(v for v in ROWS.column(f"c{KINDS.index(pa.int64())} {n}").to_pylist() if v is not None) for n in range(3)]
    assert any(not -(2**63) <= each < 2**63 for each in exact)


@pytest.mark.parametrize(("function", "kind"), [
    ("stddev", pa.float64()), ("sum", pa.decimal128(30, 2)), ("avg", pa.int64()), ("max", pa.binary(4)),
])  # fmt: skip
def test_aggregates_that_differ_are_not_on_the_list(function: str, kind: pa.DataType) -> None:
    assert why_not_aggregated(Aggregate(function, 0, kind), Column(kind, "t", "x")) is not None
