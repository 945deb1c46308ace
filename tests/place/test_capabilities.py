"""What is on the list of what DuckDB computes, engine and DuckDB compute alike: over hostile values, bit by bit."""

from __future__ import annotations

import struct
from datetime import date, datetime
from decimal import Decimal
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

DECIMAL = pa.decimal128(10, 2)
TEXTS = ["", " ", "  a ", "it's", '"', "a\0b", "\0", "é", "e\u0301", "🤦🏼‍♂️", "%_\\", "Z", "a" * 300, "\n\t"]
HOSTILE: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{kind: [0, 1, -1, 7, 2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1))] for kind in INTEGERS},
    **{kind: [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf"), 3e38, 1e-45, 0.1] for kind in FLOATS},
    pa.string(): TEXTS,
    pa.binary(): [b"", b"\0", b"\xff\xfe", b"it's", b"\\x41"],
    pa.date32(): [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(2000, 2, 29), date(1969, 12, 31)],
    pa.timestamp("us"): [datetime(1970, 1, 1), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
                         datetime(1969, 12, 31, 23, 59, 59, 999999), 2**63 - 1, -(2**63) + 1, 2**62],
    DECIMAL: [Decimal("0.00"), Decimal("-0.01"), Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("1.10")],
}  # fmt: skip
HOSTILE[pa.int64()] += [2**53 + 1, -(2**53) - 1, 2**53 + 3, 2**62 + 2**8, 2**62 + 2**8 + 1, 2**62 + 3 * 2**8, -(2**60) + 65]
HOSTILE[pa.float64()] += [1.7976931348623157e308, 5e-324, 2.0**53 + 1]
DUCK = open_embedded("duck")
KINDS = [*TYPES, DECIMAL]


def values(kind: pa.DataType, count: int, seed: int) -> pa.Array:
    """Hostile values of a type, NULLs among them, in some order: any two meet somewhere."""
    rng, is_time = np.random.default_rng(seed), pa.types.is_timestamp(kind)
    known = [pa.scalar(v, pa.int64()).cast(kind) if is_time and isinstance(v, int) else pa.scalar(v, kind)
             for v in (*HOSTILE[kind], None)]  # fmt: skip
    drawn = [known[n] for n in rng.integers(0, len(known), count)]
    if is_time:  # the ends of its range are no times to Python
        return pa.array([v.cast(pa.int64()).as_py() for v in drawn], pa.int64()).cast(kind)
    return pa.array([v.as_py() for v in drawn], kind)


def rows(count: int = 400) -> pa.Table:
    places = [(n, kind, place) for n, kind in enumerate(KINDS) for place in range(3)]
    return pa.table({f"c{n} {place}": values(kind, count, 17 * n + place) for n, kind, place in places})


ROWS = rows()


def column(kind: pa.DataType, place: int = 0) -> Column:
    return Column(kind, "t", f"c{KINDS.index(kind)} {place}")


def bits(array: pa.Array) -> list[Any]:
    """Values to the bit; all NaNs are one."""
    if pa.types.is_floating(array.type):
        return [None if v is None else "nan" if v != v else struct.pack("d", v) for v in array.to_pylist()]
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return list(array.to_pylist())


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
