"""Spark's type names as Arrow types, and the one type that two operands meet in."""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us")
MAX_PRECISION = 38
"""Digits of the widest decimal, here and in Spark."""

MIN_ADJUSTED_SCALE = 6
"""Digits behind the point that Spark keeps when a result is too wide for MAX_PRECISION."""

SIMPLE_TYPES: dict[str, pa.DataType] = {
    "TINYINT": pa.int8(), "BYTE": pa.int8(),
    "SMALLINT": pa.int16(), "SHORT": pa.int16(),
    "INT": pa.int32(), "INTEGER": pa.int32(),
    "BIGINT": pa.int64(), "LONG": pa.int64(),
    "FLOAT": pa.float32(), "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(), "BOOL": pa.bool_(),
    "STRING": pa.string(), "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP, "TIMESTAMP_NTZ": TIMESTAMP,
}  # fmt: skip

SIZED_STRINGS = ("VARCHAR", "CHAR")
DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
TYPE_NAMES = (*SIMPLE_TYPES, *SIZED_STRINGS, *DECIMALS, "ARRAY", "STRUCT", "MAP")

_SPARK_NAMES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT", pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.string(): "STRING", pa.binary(): "BINARY", pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP", pa.null(): "NULL",
}  # fmt: skip

_INTEGER_DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}
"""Bytes of an integer → digits of the decimal that holds it (Spark's table)."""


def spell(kind: pa.DataType) -> str:
    """The name of a type, as the user would write it.

    >>> spell(pa.int64()), spell(pa.decimal128(10, 2))
    ('BIGINT', 'DECIMAL(10,2)')
    """
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_duration(kind):
        return "INTERVAL"
    return _SPARK_NAMES.get(kind, str(kind))


def is_engine_type(kind: pa.DataType) -> bool:
    """Whether columns of streams may have a type.

    >>> is_engine_type(pa.list_(pa.int64())), is_engine_type(pa.timestamp("ns"))
    (True, False)
    """
    if pa.types.is_list(kind):
        return is_engine_type(kind.value_type)
    if pa.types.is_map(kind):
        return is_engine_type(kind.key_type) and is_engine_type(kind.item_type)
    if pa.types.is_struct(kind):
        return all(is_engine_type(f.type) for f in kind)
    if pa.types.is_decimal128(kind):
        return 0 <= int(kind.scale) <= int(kind.precision)
    return kind in _SPARK_NAMES and not pa.types.is_null(kind)


def is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_temporal(kind: pa.DataType) -> bool:
    """A date or a timestamp."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether CAST goes from one type to the other at all; a value that does not convert is another matter, and NULL.

    >>> castable(pa.string(), pa.date32()), castable(pa.int64(), pa.date32())
    (True, False)
    """
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_nested(source) or pa.types.is_nested(target) or pa.types.is_duration(source):
        return False
    if is_text(source) or is_text(target):
        return True
    alike = (lambda kind: is_numeric(kind) or pa.types.is_boolean(kind), is_temporal)
    return any(test(source) and test(target) for test in alike)


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """A decimal cut to MAX_PRECISION digits, as Spark's `adjustPrecisionScale` does.

    >>> bounded_decimal(41, 20)
    Decimal128Type(decimal128(38, 17))
    """
    if precision <= MAX_PRECISION:
        return pa.decimal128(max(precision, 1), scale)
    whole = precision - scale
    return pa.decimal128(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, MIN_ADJUSTED_SCALE)))


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of an integer or decimal type."""
    if pa.types.is_decimal(kind):
        return kind
    return pa.decimal128(_INTEGER_DIGITS[kind.bit_width // 8], 0)


def decimal_sum(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of `left + right` and of `left - right`."""
    scale = max(left.scale, right.scale)
    return bounded_decimal(max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale)


def decimal_product(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of `left * right`.

    >>> decimal_product(pa.decimal128(10, 2), pa.decimal128(5, 3))
    Decimal128Type(decimal128(16, 5))
    """
    return bounded_decimal(left.precision + right.precision + 1, left.scale + right.scale)


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    unsigned, signed = (right, left) if pa.types.is_signed_integer(left) else (left, right)
    needed = max(unsigned.bit_width * 2, signed.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(needed, pa.decimal128(20, 0))


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return _common_integer(left, right)
    left, right = as_decimal(left), as_decimal(right)
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    return pa.decimal128(min(precision, MAX_PRECISION), scale)


def _common_timestamp(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_date(left) or pa.types.is_date(right):
        other = right if pa.types.is_date(left) else left
        return pa.date32() if pa.types.is_date(other) else None if other.tz else other
    if left.tz != right.tz:
        return None
    return max(left, right, key=lambda kind: ("s", "ms", "us", "ns").index(kind.unit))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type two operands are cast to before they are compared; None where they do not go together.

    >>> common_type(pa.int32(), pa.int64()), common_type(pa.float32(), pa.decimal128(5, 2))
    (DataType(int64), DataType(double))
    >>> common_type(pa.string(), pa.int64()) is None
    True
    """
    if pa.types.is_null(left) or pa.types.is_null(right):
        return right if pa.types.is_null(left) else left
    if pa.types.is_nested(left) or pa.types.is_nested(right):
        return None
    if left == right:
        return left
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right)
    if is_temporal(left) and is_temporal(right):
        return _common_timestamp(left, right)
    if is_text(left) and is_text(right):
        return pa.large_string()
    return None
