"""Expressions: each operation on edge values, then random trees against DuckDB, decimals against Python's, and casts
one row at a time against casts of the whole batch."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from anabranch.engine.casts import CASTS, UnsupportedOperationError, cast
from anabranch.engine.expressions import OPERATIONS, evaluate, predicate_mask
from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime

BOOL, INT, FLOAT, TEXT, DATE, TIME = pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us")
NAN, INF, MIN, MAX = math.nan, math.inf, -(2**63), 2**63 - 1


def run(op: str, type_: pa.DataType, *operands: pa.Array | Literal) -> list[Any]:
    """The operation on the operands (arrays become columns), as Python values."""
    arrays = {f"c{i}": operand for i, operand in enumerate(operands) if isinstance(operand, pa.Array)}
    args = tuple(x if isinstance(x, Literal) else Column(x.type, "t", f"c{i}") for i, x in enumerate(operands))
    rows = len(next(iter(arrays.values()))) if arrays else 1
    result = evaluate(Call(type_, op, args), lambda column: arrays[column.name], rows)
    assert isinstance(result, pa.Array)
    assert result.type == type_
    assert len(result) == rows
    result.validate(full=True)
    return result.to_pylist()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and left == right


def floats(*values: float | None) -> pa.Array:
    return pa.array(values, FLOAT)


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, INT)


def bools(*values: bool | None) -> pa.Array:
    return pa.array(values, BOOL)


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, TEXT)


def lit(value: Any, type_: pa.DataType = INT) -> Literal:
    return Literal(type_, value)


INSTANT = datetime(2024, 2, 29, 23, 58, 59, 999_999)
T, F, N = True, False, None
CASES: list[tuple[str, pa.DataType, list[pa.Array | Literal], list[Any]]] = [
    ("add", INT, [ints(MAX, 1, N), ints(1, 2, 3)], [MIN, 3, N]),
    ("add", pa.int8(), [pa.array([127], pa.int8()), lit(1, pa.int8())], [-128]),
    ("sub", INT, [ints(MIN, 5), lit(1)], [MAX, 4]),
    ("mul", INT, [ints(MAX, -3), lit(2)], [-2, -6]),
    ("mul", FLOAT, [floats(1e308, NAN), lit(10.0, FLOAT)], [INF, NAN]),
    ("div", FLOAT, [floats(1, 0, NAN, 1, N), floats(0, -0.0, 0, 4, 1)], [N, N, N, 0.25, N]),
    ("div", FLOAT, [floats(1, 2), lit(0.0, FLOAT)], [N, N]),
    ("div", FLOAT, [lit(1.0, FLOAT), floats(2, 0, N)], [0.5, N, N]),
    ("mod", INT, [ints(-7, 7, -7, 7, MIN, MIN, 5, N), ints(2, -2, -2, 2, -1, 3, 0, 1)], [-1, 1, -1, 1, 0, -2, N, N]),
    ("mod", FLOAT, [floats(-5.5, 5.5, INF, 1, N), floats(2, -2, 2, 0, 1)], [-1.5, 1.5, NAN, N, N]),
    ("neg", INT, [ints(MIN, 5, N)], [MIN, -5, N]),
    ("abs", FLOAT, [floats(-1.5, -INF, NAN, N)], [1.5, INF, NAN, N]),
    ("eq", BOOL, [floats(NAN, NAN, 1, N), floats(NAN, 1, 1, NAN)], [T, F, T, N]),
    ("ne", BOOL, [floats(NAN, NAN, 1, N), floats(NAN, 1, NAN, NAN)], [F, T, T, N]),
    ("lt", BOOL, [floats(1, NAN, NAN, INF, 1), floats(NAN, 1, NAN, NAN, N)], [T, F, F, T, N]),
    ("le", BOOL, [floats(1, NAN, NAN, 2), floats(NAN, 1, NAN, 1)], [T, F, T, F]),
    ("gt", BOOL, [floats(1, NAN, NAN, 2, N), floats(NAN, 1, NAN, 1, 1)], [F, T, F, T, N]),
    ("ge", BOOL, [floats(1, NAN, NAN, 1), floats(NAN, 1, NAN, 1)], [F, T, T, T]),
    ("gt", BOOL, [floats(NAN, 6, 5, N), lit(5.0, FLOAT)], [T, T, F, N]),
    ("lt", BOOL, [lit(5.0, FLOAT), floats(NAN, 6, 5, N)], [T, T, F, N]),
    ("lt", BOOL, [floats(1, NAN, N), lit(NAN, FLOAT)], [T, F, N]),
    ("gt", BOOL, [floats(1, NAN, N), lit(NAN, FLOAT)], [F, F, N]),
    ("gt", BOOL, [lit(NAN, FLOAT), floats(1, NAN, N)], [T, F, N]),
    ("ge", BOOL, [floats(1, NAN, N), lit(NAN, FLOAT)], [F, T, N]),
    ("lt", BOOL, [bools(F, T, N), bools(T, T, T)], [T, F, N]),
    ("eq", BOOL, [pa.array([b"a", b"b", N]), lit(b"a", pa.binary())], [T, F, N]),
    ("eq", BOOL, [pa.nulls(2), lit(N, pa.null())], [N, N]),
    ("and", BOOL, [bools(T, T, F, N, N), bools(T, N, N, N, F)], [T, N, F, N, F]),
    ("or", BOOL, [bools(F, F, T, N), bools(F, N, N, N)], [F, N, T, N]),
    ("not", BOOL, [bools(T, F, N)], [F, T, N]),
    ("is_null", BOOL, [floats(NAN, N)], [F, T]),
    ("is_null", BOOL, [pa.array([[1], N])], [F, T]),
    ("in", BOOL, [ints(1, 3, N), lit(1), lit(2)], [T, F, N]),
    ("in", BOOL, [ints(1, 3, N), lit(1), lit(N)], [T, N, N]),
    ("in", BOOL, [ints(1, 3), lit(N)], [N, N]),
    ("in", BOOL, [ints(1, 3, 4), ints(1, N, 5), lit(9)], [T, N, F]),
    ("in", BOOL, [floats(NAN, 0.0, N), lit(NAN, FLOAT), lit(-0.0, FLOAT)], [T, T, N]),
    ("case", TEXT, [bools(T, F, N), lit("a", TEXT), bools(T, T, F), lit("b", TEXT), texts("x", "y", "z")],
     ["a", "b", "z"]),
    ("case", INT, [lit(T, BOOL), ints(1, 2), lit(N)], [1, 2]),
    ("case", pa.list_(INT), [bools(F, T), pa.array([[1], [2]]), lit(N, pa.list_(INT))], [N, [2]]),
    ("coalesce", INT, [ints(N, 1, N), ints(2, 3, N), lit(9)], [2, 1, 9]),
    ("coalesce", pa.binary(), [pa.array([b"a", N]), lit(b"z", pa.binary())], [b"a", b"z"]),
    ("like", BOOL, [texts("a\nb", "ab", "a.b", "b", N), lit("a%b", TEXT)], [T, T, T, F, N]),
    ("like", BOOL, [texts("é", "ab", "", "\n"), lit("_", TEXT)], [T, F, F, T]),
    ("like", BOOL, [texts("a"), lit(N, TEXT)], [N]),
    ("upper", TEXT, [texts("aé", N)], ["AÉ", N]),
    ("lower", TEXT, [texts("AÉ", N)], ["aé", N]),
    ("trim", TEXT, [texts("  a b ", "\ta ", N)], ["a b", "\ta", N]),
    ("length", INT, [texts("é€𝄞", "", N)], [3, 0, N]),
    ("concat", TEXT, [texts("a", N), lit("-", TEXT), texts("b", "c")], ["a-b", N]),
    ("substring", TEXT, [texts("é€𝄞x", "a", N), lit(2), lit(2)], ["€𝄞", "", N]),
    ("substring", TEXT, [texts("abc"), lit(2)], ["bc"]),
    ("substring", TEXT, [texts("abc"), lit(0), lit(2)], ["ab"]),
    ("substring", TEXT, [texts("abc"), lit(-2), lit(1)], ["b"]),
    ("substring", TEXT, [texts("abc"), lit(-2), lit(9)], ["bc"]),
    ("substring", TEXT, [texts("abc"), lit(2), lit(-1)], [""]),
    ("substring", TEXT, [texts("abc"), lit(N)], [N]),
    ("floor", INT, [floats(-1.5, 1.5, NAN, INF, 1e300, -(2.0**63), 2.0**63, N)], [-2, 1, N, N, N, MIN, N, N]),
    ("ceil", INT, [floats(-1.5, 1.2, N)], [-1, 2, N]),
    ("ceil", INT, [pa.array([Decimal("9.5"), N], pa.decimal128(2, 1))], [10, N]),
    ("round", FLOAT, [floats(2.5, -2.5, 0.49999999999999994, NAN, -INF, 1e300, N), lit(0)],
     [3, -3, 0, NAN, -INF, 1e300, N]),
    ("round", FLOAT, [floats(2.675, 1.005, -0.285, 0.29), lit(2)], [2.68, 1.01, -0.29, 0.29]),
    ("round", FLOAT, [floats(25, -14.9, 0), lit(-1)], [30, -10, 0]),
    ("round", INT, [ints(25, -25, 24, N), lit(-1)], [30, -30, 20, N]),
    ("round", INT, [ints(25, MAX), lit(2)], [25, MAX]),
    ("round", INT, [ints(25, MAX), lit(-30)], [0, 0]),
    ("sqrt", FLOAT, [floats(4, -1, NAN, N, -0.0)], [2, N, NAN, N, 0]),
    ("greatest", FLOAT, [floats(1, NAN, N, N), floats(2, 1, 3, N), lit(N, FLOAT)], [2, NAN, 3, N]),
    ("least", FLOAT, [floats(1, NAN, N, NAN), floats(2, 1, 3, N)], [1, 1, 3, NAN]),
    ("greatest", TEXT, [lit("b", TEXT), lit("c", TEXT), texts("a", "d", N)], ["c", "d", "c"]),
    ("year", INT, [pa.array([INSTANT, N], TIME)], [2024, N]),
    ("month", INT, [pa.array([date(1969, 12, 31), N], DATE)], [12, N]),
    ("day", INT, [pa.array([INSTANT], TIME)], [29]),
    ("hour", INT, [pa.array([INSTANT, datetime(1969, 12, 31, 23)], TIME)], [23, 23]),
    ("minute", INT, [pa.array([INSTANT], TIME)], [58]),
    ("second", INT, [pa.array([INSTANT], TIME)], [59]),
    ("add", INT, [lit(1), lit(2)], [3]),
    ("cast", INT, [texts("1", "x")], [1, N]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "type_", "operands", "expected"), CASES)
def test_operation(op: str, type_: pa.DataType, operands: list[Any], expected: list[Any]) -> None:
    result = run(op, type_, *operands)
    expected = [float(x) if x is not None and type_ == FLOAT else x for x in expected]
    assert len(result) == len(expected)
    assert all(map(same, result, expected)), result


def test_every_operation_has_a_case() -> None:
    assert {op for op, *_ in CASES} == set(OPERATIONS)


DEC = pa.decimal128(5, 2)
CAST_CASES: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (texts("12", " -7.9 ", "+3", "0x1F", "", "1e3", "007", str(MAX), str(MAX + 1), "9" * 50, N), INT,
     [12, -7, 3, N, N, N, 7, MAX, N, N, N]),
    (texts("127", "128", "-128"), pa.int8(), [127, N, -128]),
    (texts("1.5", "+1e2", ".5", "1.", "inf", "-Infinity", "NaN", "1e999", "-", "0x1", "1 2", N), FLOAT,
     [1.5, 100.0, 0.5, 1.0, INF, -INF, NAN, INF, N, N, N, N]),
    (texts("1.005", "-1.005", "999.995", "-.5", "1.", "+2", "1e2", "x", "0" * 60 + "1", "1" + "0" * 90, N), DEC,
     [Decimal("1.01"), Decimal("-1.01"), N, Decimal("-0.50"), Decimal("1.00"), Decimal("2.00"), Decimal("100.00"), N,
      Decimal("1.00"), N, N]),
    (texts("true", " T ", "yes", "1", "FALSE", "n", "0", "maybe", "", N), BOOL, [T, T, T, T, F, F, F, N, N, N]),
    (texts("2024-02-29", "2023-02-29", "2024-2-9", "2024-13-01", "2024-00-01", "2024-02-29 10:00:00", "x", N), DATE,
     [date(2024, 2, 29), N, date(2024, 2, 9), N, N, date(2024, 2, 29), N, N]),
    (texts("2024-02-29", "2024-02-29 23:58:59.999999", "1969-12-31T23:59", "2024-01-01T01:00:00.5+01:00",
           "2024-01-01 00:00:00Z", "2024-01-01 24:00:00", "2024-01-01 00:00:61", "2024-01-01 00:00:00.1234567",
           "2023-12-31 23:30:00 -00:30", "noon", N), TIME,
     [datetime(2024, 2, 29), INSTANT, datetime(1969, 12, 31, 23, 59), datetime(2024, 1, 1, 0, 0, 0, 500_000),
      datetime(2024, 1, 1), N, N, datetime(2024, 1, 1, 0, 0, 0, 123_456), datetime(2024, 1, 1), N, N]),
    (floats(1.9, -1.9, NAN, INF, 2.0**63, -(2.0**63), N), INT, [1, -1, N, N, N, MIN, N]),
    (floats(127.9, 128, -128.9, -129), pa.int8(), [127, N, -128, N]),
    (floats(2.675, 999.995, -999.994, NAN, INF, N), DEC, [Decimal("2.68"), N, Decimal("-999.99"), N, N, N]),
    (floats(1, -0.5, 1e22, NAN, N), TEXT, ["1.0", "-0.5", "1e+22", "nan", N]),
    (floats(0, 2, N), BOOL, [F, T, N]),
    (floats(1e300, 0.5), pa.float32(), [INF, 0.5]),
    (ints(127, 128, -128, -129, N), pa.int8(), [127, N, -128, N, N]),
    (ints(MAX, 1), FLOAT, [float(MAX), 1.0]),
    (ints(999, 1000, -999, N), DEC, [Decimal("999.00"), N, Decimal("-999.00"), N]),
    (ints(MAX, N), TEXT, [str(MAX), N]),
    (ints(0, 5, N), BOOL, [F, T, N]),
    (bools(T, F, N), TEXT, ["true", "false", N]),
    (bools(T, F, N), INT, [1, 0, N]),
    (bools(T, F, N), FLOAT, [1.0, 0.0, N]),
    (bools(T, N), DEC, [Decimal("1.00"), N]),
    (pa.array([Decimal("1.005"), Decimal("-1.005"), Decimal("999.995"), N], pa.decimal128(6, 3)), DEC,
     [Decimal("1.01"), Decimal("-1.01"), N, N]),
    (pa.array([Decimal("9" * 38), N], pa.decimal128(38, 0)), pa.decimal128(38, 38), [N, N]),
    (pa.array([Decimal("-1.99"), Decimal("1.99"), N], DEC), INT, [-1, 1, N]),
    (pa.array([Decimal("9" * 38), N], pa.decimal128(38, 0)), INT, [N, N]),
    (pa.array([Decimal("1.25"), N], DEC), FLOAT, [1.25, N]),
    (pa.array([Decimal("0.00000010"), Decimal("-0.5"), N], pa.decimal128(10, 8)), TEXT,
     ["0.00000010", "-0.50000000", N]),
    (pa.array([Decimal("0"), Decimal("0.01"), N], DEC), BOOL, [F, T, N]),
    (pa.array([date(1969, 12, 31), N], DATE), TIME, [datetime(1969, 12, 31), N]),
    (pa.array([2**31 - 1], pa.int32()).cast(DATE), TIME, [N]),
    (pa.array([date(2024, 2, 9), N], DATE), TEXT, ["2024-02-09", N]),
    (pa.array([datetime(1969, 12, 31, 23, 59, 59, 1), INSTANT, N], TIME), DATE,
     [date(1969, 12, 31), date(2024, 2, 29), N]),
    (pa.array([datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 10, 120_000), INSTANT, N], TIME), TEXT,
     ["2024-01-01 00:00:00", "2024-01-01 00:00:10.12", "2024-02-29 23:58:59.999999", N]),
    (texts("é", N), pa.binary(), ["é".encode(), N]),
    (pa.array(["é€𝄞".encode(), b"\xff", b"\xed\xa0\x80", b"", N]), TEXT, ["é€𝄞", N, N, "", N]),
    (pa.nulls(2), DEC, [N, N]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "target", "expected"), CAST_CASES)
def test_cast(values: pa.Array, target: pa.DataType, expected: list[Any]) -> None:
    result = run("cast", target, values)
    assert all(map(same, result, expected)), result
    assert len(result) == len(expected)


def test_sliced_operands_are_read_from_their_offset() -> None:
    for values, target, expected in CAST_CASES:
        assert all(map(same, cast(values.slice(1), target).to_pylist(), expected[1:]))


def test_columns_are_fetched_once_and_only_when_read() -> None:
    fetched: list[str] = []
    values = {"x": ints(1, 7, N), "y": ints(1, 1, 1)}

    def columns(column: Column) -> pa.Array:
        fetched.append(column.name)
        return values[column.name]

    x, y = Column(INT, "t", "x"), Column(INT, "t", "y")
    over, twice = Call(BOOL, "gt", (x, lit(5))), Call(BOOL, "ne", (Call(INT, "add", (x, x)), y))
    mask = predicate_mask([over, twice, lit(True, BOOL)], columns, 3)
    assert mask is not None
    assert mask.dtype == np.bool_
    assert mask.tolist() == [False, True, False]
    assert fetched == ["x", "y"]


def test_masks_of_nothing_and_of_literals() -> None:
    assert predicate_mask([], lambda _: pa.nulls(0), 3) is None
    for value in (True, False, None):
        mask = predicate_mask([lit(value, BOOL)], lambda _: pa.nulls(0), 2)
        assert mask is not None
        assert mask.tolist() == [value is True] * 2


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 65])
def test_masks_of_sliced_columns(rows: int) -> None:
    values = [True, None, False, True, True] * 20
    flag = Column(BOOL, "t", "flag")
    mask = predicate_mask([flag], lambda _: pa.array(values).slice(3, rows), rows)
    assert mask is not None
    assert mask.tolist() == [value is True for value in values[3 : 3 + rows]]


def test_literals_and_result_time_fill_all_rows() -> None:
    assert evaluate(lit("a", TEXT), lambda _: pa.nulls(0), 2).to_pylist() == ["a", "a"]
    assert evaluate(lit(None, pa.list_(INT)), lambda _: pa.nulls(0), 2).to_pylist() == [None, None]
    times = pa.array([1, 2], TIME)
    assert evaluate(ResultTime(TIME), lambda _: times, 2, lambda: times).equals(times)
    with pytest.raises(UnsupportedOperationError):
        evaluate(ResultTime(TIME), lambda _: times, 2)


def test_what_the_engine_does_not_have_is_an_internal_error() -> None:
    with pytest.raises(KeyError, match="frobnicate"):
        run("frobnicate", INT, ints(1))
    with pytest.raises(KeyError, match="cast from date32"):
        run("cast", INT, pa.array([date(2024, 1, 1)]))
    with pytest.raises(KeyError, match="literal"):
        run("substring", TEXT, texts("a"), ints(1))


@pytest.mark.parametrize(("op", "type_", "operands", "expected"), CASES)
def test_no_rows(op: str, type_: pa.DataType, operands: list[Any], expected: list[Any]) -> None:
    if any(isinstance(operand, pa.Array) for operand in operands):
        assert run(op, type_, *(x.slice(0, 0) if isinstance(x, pa.Array) else x for x in operands)) == []


# Decimals against Python's

EXACT = Context(prec=400)
decimal_types = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: (p, s)))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal | None]:
    most = 10**precision - 1
    numbers = st.one_of(st.integers(-most, most), st.sampled_from([0, 1, -1, most, -most]))
    return st.none() | numbers.map(lambda n: Decimal(n).scaleb(-scale, EXACT))


def rounded(number: Decimal, type_: pa.DataType) -> Decimal | None:
    result = number.quantize(Decimal(1).scaleb(-type_.scale), ROUND_HALF_UP, EXACT)
    return result if result.copy_abs() < Decimal(10) ** (type_.precision - type_.scale) else None


def spark_type(op: str, p1: int, s1: int, p2: int, s2: int) -> pa.DataType:
    scale = {"mul": s1 + s2, "div": max(6, s1 + p2 + 1)}.get(op, max(s1, s2))
    whole = {"mul": p1 - s1 + p2 - s2 + 1, "div": p1 - s1 + s2, "mod": min(p1 - s1, p2 - s2)}.get(
        op, max(p1 - s1, p2 - s2) + 1
    )
    if whole + scale <= 38:
        return pa.decimal128(max(whole + scale, 1), scale)
    return pa.decimal128(38, min(38, max(38 - whole, min(scale, 6))))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["add", "sub", "mul", "div", "mod"]))
def test_decimal_arithmetic_is_exact_then_rounded_half_up(data: st.DataObject, op: str) -> None:
    (p1, s1), (p2, s2) = data.draw(decimal_types), data.draw(decimal_types)
    assume(op != "mod" or p1 - s1 + max(s1, s2) <= 72)
    left = data.draw(st.lists(decimals(p1, s1), min_size=1, max_size=4))
    right = data.draw(st.lists(decimals(p2, s2), min_size=len(left), max_size=len(left)))
    type_ = spark_type(op, p1, s1, p2, s2)
    exact = {"add": EXACT.add, "sub": EXACT.subtract, "mul": EXACT.multiply, "mod": EXACT.remainder,
             "div": Context(prec=400, rounding=ROUND_DOWN).divide}[op]  # fmt: skip
    expected = [
        None if a is None or b is None or (b == 0 and op in ("div", "mod")) else rounded(exact(a, b), type_)
        for a, b in zip(left, right, strict=True)
    ]
    assert run(op, type_, pa.array(left, pa.decimal128(p1, s1)), pa.array(right, pa.decimal128(p2, s2))) == expected


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_decimal_casts_round_half_up(data: st.DataObject) -> None:
    (p1, s1), (p2, s2) = data.draw(decimal_types), data.draw(decimal_types)
    values, target = data.draw(st.lists(decimals(p1, s1), max_size=4)), pa.decimal128(p2, s2)
    expected = [None if v is None else rounded(v, target) for v in values]
    assert cast(pa.array(values, pa.decimal128(p1, s1)), target).to_pylist() == expected
    written = cast(pa.array(values, pa.decimal128(p1, s1)), TEXT)
    assert written.to_pylist() == [None if v is None else f"{v:f}" for v in values]
    assert cast(written, target).to_pylist() == expected


# Casts, a row at a time

SAMPLES = {
    "boolean": st.booleans(),
    "integer": st.integers(MIN, MAX),
    "float": st.floats(),
    "string": st.text(max_size=8)
    | st.text("0123456789+-.eE xT:Z", max_size=24)
    | st.datetimes().map(str)
    | st.floats().map(str),
    "binary": st.binary(max_size=8),
    "date": st.dates(),
    "timestamp": st.datetimes(),
}
TYPES = {"boolean": BOOL, "integer": INT, "float": FLOAT, "string": TEXT, "binary": pa.binary(), "date": DATE,
         "timestamp": TIME, "decimal": pa.decimal128(9, 3)}  # fmt: skip


@pytest.mark.parametrize("pair", [pair for pair in CASTS if pair[0] in SAMPLES], ids="-".join)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cast_never_raises_and_never_looks_at_other_rows(pair: tuple[str, str], data: st.DataObject) -> None:
    target = pa.int32() if pair == ("integer", "integer") else TYPES[pair[1]]
    values = pa.array(data.draw(st.lists(st.none() | SAMPLES[pair[0]], max_size=6)), TYPES[pair[0]])
    whole = cast(values, target)
    whole.validate(full=True)
    apart = [cast(values.slice(i, 1), target)[0].as_py() for i in range(len(values))]
    assert all(map(same, whole.to_pylist(), apart))


# Random trees against DuckDB

LETTERS = "aBé1-% "
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    INT: st.none() | st.integers(-20, 20),
    FLOAT: st.none() | st.integers(-40, 40).map(lambda n: n / 4) | st.sampled_from([NAN, INF, -INF, -0.0]),
    BOOL: st.none() | st.booleans(),
    TEXT: st.none() | st.text(LETTERS, max_size=4),
}
SQL_TYPES = {INT: "BIGINT", FLOAT: "DOUBLE", BOOL: "BOOLEAN", TEXT: "VARCHAR"}
SAME_TYPE = {INT: ["add", "sub", "mul", "mod"], FLOAT: ["add", "sub", "mul", "div", "mod"], BOOL: ["and", "or"],
             TEXT: ["concat"]}  # fmt: skip
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
any_type = st.sampled_from(list(LEAVES))


@st.composite
def trees(draw: st.DrawFn, type_: pa.DataType, depth: int) -> Expr:
    def below(of: pa.DataType = type_) -> Expr:
        return draw(trees(of, depth - 1))

    if depth == 0 or draw(st.integers(0, 4)) == 0:
        column = Column(type_, "t", f"{SQL_TYPES[type_].lower()}_{draw(st.integers(0, 1))}")
        return draw(st.just(column) | LEAVES[type_].map(lambda value: Literal(type_, value)))
    kind = draw(st.sampled_from(["same", "case", "coalesce", "extreme", "cast", "own"]))
    if kind == "same":
        return Call(type_, draw(st.sampled_from(SAME_TYPE[type_])), (below(), below()))
    if kind == "case":
        return Call(type_, "case", (below(BOOL), below(), below(BOOL), below(), below()))
    if kind == "coalesce":
        return Call(type_, "coalesce", (below(), below()))
    if kind == "extreme" and type_ != BOOL:
        return Call(type_, draw(st.sampled_from(["greatest", "least"])), (below(), below(), below()))
    if kind == "cast":
        sources = {INT: [FLOAT, BOOL, TEXT], FLOAT: [INT, BOOL, TEXT], BOOL: [INT], TEXT: [INT, BOOL]}[type_]
        return Call(type_, "cast", (below(draw(st.sampled_from(sources))),))
    if type_ == INT:
        op = draw(st.sampled_from(["neg", "abs", "length", "floor", "ceil"]))
        return Call(INT, op, (below(TEXT if op == "length" else FLOAT if op in ("floor", "ceil") else INT),))
    if type_ == FLOAT:
        op = draw(st.sampled_from(["neg", "abs", "sqrt", "round"]))
        return Call(FLOAT, op, (below(), lit(0)) if op == "round" else (below(),))
    if type_ == TEXT:
        op = draw(st.sampled_from(["upper", "lower", "trim", "substring"]))
        bounds = st.integers(-3, 3).filter(bool), st.integers(0, 3)
        return Call(TEXT, op, (below(), *(lit(draw(bound)) for bound in bounds if op == "substring")))
    op = draw(st.sampled_from(["compare", "is_null", "not", "in", "like"]))
    if op == "not":
        return Call(BOOL, "not", (below(),))
    if op == "like":
        return Call(BOOL, "like", (below(TEXT), Literal(TEXT, draw(st.text("aBé1%_", max_size=4)))))
    of = draw(any_type)
    if op == "compare":
        return Call(BOOL, draw(st.sampled_from(COMPARISONS)), (below(of), below(of)))
    if op == "in":
        options = [draw(LEAVES[of].map(lambda value: Literal(of, value)) | trees(of, 0)) for _ in range(3)]
        return Call(BOOL, "in", (below(of), *options))
    return Call(BOOL, "is_null", (below(of),))


def sql(expr: Expr) -> str:
    """The expression in DuckDB's SQL, with our meaning where the two differ."""
    if isinstance(expr, Column):
        return expr.name
    if isinstance(expr, Literal):
        written = f"'{expr.value}'" if isinstance(expr.value, float) else str(expr)
        return f"CAST({written} AS {SQL_TYPES[expr.type]})"
    assert isinstance(expr, Call)
    args = [sql(arg) for arg in expr.args]
    a, b = args[0], args[-1]
    if expr.op in ("div", "mod"):
        return f"({a} {'/' if expr.op == 'div' else '%'} NULLIF({b}, 0))"
    if expr.op == "cast":
        exact = f"TRUNC({a})" if expr.args[0].type == FLOAT and expr.type == INT else a
        return f"TRY_CAST({exact} AS {SQL_TYPES[expr.type]})"
    if expr.op == "case":
        return f"CASE WHEN {a} THEN {args[1]} WHEN {args[2]} THEN {args[3]} ELSE {b} END"
    special = {
        "neg": f"(-{a})",
        "not": f"(NOT {a})",
        "is_null": f"({a} IS NULL)",
        "in": f"({a} IN ({', '.join(args[1:])}))",
        "like": f"({a} LIKE {b})",
        "concat": f"({' || '.join(args)})",
        "floor": f"TRY_CAST(FLOOR({a}) AS BIGINT)",
        "ceil": f"TRY_CAST(CEIL({a}) AS BIGINT)",
        "round": f"ROUND({a})",
        "sqrt": f"(CASE WHEN {a} < 0 THEN NULL ELSE SQRT({a}) END)",
    }
    infix = {"add": "+", "sub": "-", "mul": "*", "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
             "and": "AND", "or": "OR"}  # fmt: skip
    if expr.op in infix:
        return f"({a} {infix[expr.op]} {b})"
    return special.get(expr.op, f"{expr.op}({', '.join(args)})")


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 6))
    return pa.table({
        f"{name.lower()}_{i}": pa.array(draw(st.lists(LEAVES[type_], min_size=rows, max_size=rows)), type_)
        for type_, name in SQL_TYPES.items()
        for i in range(2)
    })  # fmt: skip


CONNECTION = duckdb.connect()
CONNECTION.execute("SET threads = 1")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tables(), any_type.flatmap(lambda type_: trees(type_, 3)))
def test_random_trees_agree_with_duckdb(table: pa.Table, expr: Expr) -> None:
    CONNECTION.register("t", table)
    try:
        expected = [row[0] for row in CONNECTION.execute(f"SELECT {sql(expr)} FROM t").fetchall()]
    except (duckdb.OutOfRangeException, duckdb.ConversionException):
        assume(False)
    ours = evaluate(expr, lambda column: table[column.name].combine_chunks(), table.num_rows)
    assert ours.type == expr.type
    assert all(map(same, ours.to_pylist(), expected)), (sql(expr), ours.to_pylist(), expected)
