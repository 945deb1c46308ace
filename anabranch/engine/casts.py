"""Casts between Arrow types in which what cannot be converted becomes NULL, row by row, and nothing raises.

Whether a row converts depends on that row alone, never on its neighbours in the batch: Arrow's own casts fail a whole
array and accept more texts than SQL does (hexadecimal numbers, for one), so each cast here first blanks the rows that
do not convert and then lets Arrow convert the rest. Texts are read the way Spark reads them: spaces around are ignored,
`'1.9'` is the integer 1, `'yes'` is true, a time without an offset is UTC. Numbers lose their fraction on the way to an
integer; decimals round half up, away from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WIDEST = 76
"""Digits of a decimal256, in which decimals are rescaled and computed before they take their own type."""

DAYS_OF_TIMESTAMPS = 2**63 // (86_400 * 10**6)
"""Days before and after 1970 that a timestamp in microseconds reaches."""

INTEGER_TEXT = r"^[+-]?[0-9]+(\.[0-9]*)?$"
DECIMAL_TEXT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"
EXPONENT_TEXT = r"(?i)^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)e[+-]?[0-9]+$"
FLOAT_TEXT = r"(?i)^([+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)|nan)$"
DATE_TEXT = r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
TIME_TEXT = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]+))?)?"
ZONE_TEXT = r" *(?:Z|UTC|(?P<sign>[+-])(?P<zone_hour>[0-9]{2}):?(?P<zone_minute>[0-9]{2}))?"
UTF8_BYTES = (
    r"^([\x00-\x7F]|[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}"
    r"|\xED[\x80-\x9F][\x80-\xBF]|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2})*$"
)
TRUE_TEXTS = pa.array(["true", "t", "yes", "y", "1"])
FALSE_TEXTS = pa.array(["false", "f", "no", "n", "0"])


class UnsupportedOperationError(KeyError):
    """An operation or a cast that the engine does not have, though the binder let it pass: a defect, not bad input."""


def cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    """The values as `target`, NULL where a value has no counterpart there.

    >>> cast(pa.array(["12", " 7.9 ", "0x1F", "", None]), pa.int64()).to_pylist()
    [12, 7, None, None, None]
    """
    source = values.type
    if source == target:
        return values
    if pa.types.is_null(source):
        return pa.nulls(len(values), target)
    try:
        rule = CASTS[family(source), family(target)]
    except KeyError:
        raise UnsupportedOperationError(f"cast from {source} to {target}") from None
    return rule(values, target)


def family(type_: pa.DataType) -> str:
    """The group of types that are cast alike."""
    return next((name for name, test in FAMILIES.items() if test(type_)), str(type_))


def keep(condition: pa.Array, values: pa.Array) -> pa.Array:
    """The values where the condition is true, NULL elsewhere."""
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def known_values(values: pa.Array) -> np.ndarray[Any, Any]:
    """The numbers as a numpy array, with a 0 or 1 in place of each NULL; no copy where there is none."""
    filled = pc.fill_null(values, pa.scalar(1, values.type)) if values.null_count else values
    return filled.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def with_nulls_of(numbers: np.ndarray[Any, Any], *operands: pa.Array) -> pa.Array:
    """The numbers as an Arrow array, NULL where an operand is."""
    masks = [operand.is_null().to_numpy(zero_copy_only=False) for operand in operands if operand.null_count]
    return pa.array(numbers, mask=np.logical_or.reduce(masks) if masks else None, from_pandas=False)


def round_floats(numbers: np.ndarray[Any, Any], digits: int) -> np.ndarray[Any, Any]:
    """The floats rounded half away from zero, read as the decimals they are printed as, like Spark's HALF_UP.

    >>> round_floats(np.array([2.675, -0.5, 0.29]), 2).tolist(), round_floats(np.array([-0.5, 1.5]), 0).tolist()
    ([2.68, -0.5, 0.29], [-1.0, 2.0])
    """
    unit = 10.0 ** min(abs(digits), 308)
    size = np.abs(numbers.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        below = np.floor(size * unit if digits >= 0 else size / unit)
        half = (below + 0.5) / unit if digits >= 0 else (below + 0.5) * unit
        steps = below + (np.abs(numbers) >= half.astype(numbers.dtype))
        rounded = np.copysign(steps / unit if digits >= 0 else steps * unit, numbers)
    return np.where(below < 2.0**52, rounded, numbers).astype(numbers.dtype)


def rescale(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals as another decimal type, rounded half up, NULL where they do not fit its precision."""
    source, scale = values.type, target.scale
    if source.scale <= scale and source.precision - source.scale <= target.precision - scale:
        return values.cast(target)
    # One digit more than asked for is enough to round half up, and leaves room to round up in.
    kept = min(source.scale, scale + 1)
    wide = values.cast(pa.decimal256(WIDEST, kept), safe=False)
    if kept > scale:
        wide = pc.round(wide, ndigits=scale, round_mode="half_towards_infinity")
    zeros = max(0, target.precision - scale + kept)
    limit = pa.scalar(Decimal((0, (1,) + (0,) * zeros, -kept)), wide.type)
    return keep(pc.less(pc.abs(wide), limit), wide).cast(target)


def matching(texts: pa.Array, pattern: str) -> pa.Array:
    return keep(pc.match_substring_regex(texts, pattern), texts)


def arrow_cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values.cast(target, safe=False)


def integer_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    have, want = (np.iinfo(t.to_pandas_dtype()) for t in (values.type, target))
    if have.min < want.min:
        values = keep(pc.greater_equal(values, pa.scalar(int(want.min), values.type)), values)
    if have.max > want.max:
        values = keep(pc.less_equal(values, pa.scalar(int(want.max), values.type)), values)
    return values.cast(target)


def float_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    limits, whole = np.iinfo(target.to_pandas_dtype()), pc.trunc(values.cast(pa.float64()))
    # The upper limit plus 1 is a power of two and thus a float; the limit itself, in 64 bits, is not.
    fits = pc.and_(pc.greater_equal(whole, float(limits.min)), pc.less(whole, float(int(limits.max) + 1)))
    return keep(fits, whole).cast(target, safe=False)


def decimal_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    limits, wide = np.iinfo(target.to_pandas_dtype()), pc.trunc(values.cast(pa.decimal256(WIDEST, values.type.scale)))
    whole = wide.cast(pa.decimal256(WIDEST, 0))
    low, high = (pa.scalar(Decimal(int(limit)), whole.type) for limit in (limits.min, limits.max))
    return keep(pc.and_(pc.greater_equal(whole, low), pc.less_equal(whole, high)), whole).cast(target)


def integer_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    return rescale(values.cast(pa.decimal256(20, 0)), target)


def float_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    rounded = with_nulls_of(round_floats(known_values(values), target.scale), values).cast(pa.float64())
    return keep(pc.less(pc.abs(rounded), 10.0 ** (target.precision - target.scale)), rounded).cast(target)


def decimal_to_boolean(values: pa.Array, target: pa.DataType) -> pa.Array:
    return pc.not_equal(values, pa.scalar(Decimal(0), values.type))


def boolean_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    return integer_to_decimal(values.cast(pa.int8()), target)


def float_to_string(values: pa.Array, target: pa.DataType) -> pa.Array:
    """The shortest text that reads back as the same number; whole numbers end in `.0`."""
    texts = values.cast(target)
    return pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")


def decimal_to_string(values: pa.Array, target: pa.DataType) -> pa.Array:
    """All digits of the scale, never an exponent (which Arrow would write for small numbers)."""
    precision, scale = values.type.precision, values.type.scale
    wide = pa.decimal256 if pa.types.is_decimal256(values.type) else pa.decimal128
    if scale <= 0:
        return values.cast(wide(precision - scale, 0)).cast(target)
    digits = pc.utf8_lpad(pc.abs(values).view(wide(precision, 0)).cast(target), scale + 1, "0")
    minus, point, nothing = (pa.scalar(text, target) for text in ("-", ".", ""))
    sign = pc.if_else(pc.less(values, pa.scalar(Decimal(0), values.type)), minus, nothing)
    whole, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale, None)
    return pc.binary_join_element_wise(sign, whole, point, fraction, nothing)


def timestamp_to_string(values: pa.Array, target: pa.DataType) -> pa.Array:
    """`2024-01-31 12:00:00`, with a fraction only where there is one."""
    return pc.replace_substring_regex(values.cast(target), r"\.?0+$|(\.[0-9]*[1-9])0+$", r"\1")


def date_to_timestamp(values: pa.Array, target: pa.DataType) -> pa.Array:
    days = values.cast(pa.int32())
    reach = pc.and_(pc.greater_equal(days, -DAYS_OF_TIMESTAMPS), pc.less_equal(days, DAYS_OF_TIMESTAMPS))
    return keep(reach, values).cast(target)


def string_to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    texts = matching(pc.utf8_trim_whitespace(values), INTEGER_TEXT)
    whole = pc.replace_substring_regex(texts, r"^\+|\..*$", "")
    short = pc.replace_substring_regex(whole, r"^(-?)0+([0-9])", r"\1\2")
    return decimal_to_integer(matching(short, r"^-?[0-9]{1,20}$").cast(pa.decimal128(20, 0)), target)


def string_to_float(values: pa.Array, target: pa.DataType) -> pa.Array:
    return matching(pc.utf8_trim_whitespace(values), FLOAT_TEXT).cast(target)


def string_to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Plain decimals exactly; those with an exponent as the float that they name."""
    texts = pc.utf8_trim_whitespace(values)
    kept = target.scale + 1
    plain = pc.replace_substring_regex(matching(texts, DECIMAL_TEXT), rf"(\.[0-9]{{{kept}}})[0-9]*$", r"\1")
    short = pc.replace_substring_regex(plain, r"^([+-]?)0+([0-9])", r"\1\2")
    within = matching(short, rf"^[+-]?[0-9]{{0,{WIDEST - kept}}}(\.|$)")
    decimals = rescale(within.cast(pa.decimal256(WIDEST, kept)), target)
    scientific = matching(texts, EXPONENT_TEXT)
    if scientific.null_count == len(scientific):
        return decimals
    return pc.coalesce(decimals, float_to_decimal(scientific.cast(pa.float64()), target))


def string_to_boolean(values: pa.Array, target: pa.DataType) -> pa.Array:
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(values)).cast(pa.string())
    yes = pc.is_in(texts, value_set=TRUE_TEXTS)
    return keep(pc.or_(yes, pc.is_in(texts, value_set=FALSE_TEXTS)), yes)


def text_parts(values: pa.Array, pattern: str) -> tuple[dict[str, pa.Array], np.ndarray[Any, Any]]:
    """The named groups of the pattern, and which texts match it."""
    parts = pc.extract_regex(pc.utf8_trim_whitespace(values), pattern)
    names = [field.name for field in parts.type]
    return dict(zip(names, parts.flatten(), strict=True)), parts.is_valid().to_numpy(zero_copy_only=False)


def part_numbers(texts: pa.Array) -> np.ndarray[Any, Any]:
    """Short runs of digits as numbers; 0 where the group was absent."""
    digits = pc.fill_null(texts, "")
    return pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]


def calendar_days(parts: dict[str, pa.Array]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Days since 1970 of year, month and day, and which of them the calendar has."""
    year, month, day = (part_numbers(parts[name]) for name in ("year", "month", "day"))
    months = (year - 1970) * 12 + month - 1
    first, following = (
        m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months, months + 1)
    )
    exists = (month >= 1) & (month <= 12) & (day >= 1) & (day <= following - first)
    return first + day - 1, exists


def string_to_date(values: pa.Array, target: pa.DataType) -> pa.Array:
    parts, matches = text_parts(values, DATE_TEXT + r"(?:[ T].*)?$")
    days, exists = calendar_days(parts)
    return pa.array(days.astype(np.int32), mask=~(matches & exists)).cast(target)


def string_to_timestamp(values: pa.Array, target: pa.DataType) -> pa.Array:
    parts, matches = text_parts(values, rf"{DATE_TEXT}(?:[ T]{TIME_TEXT}{ZONE_TEXT})?$")
    days, exists = calendar_days(parts)
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(parts["fraction"], ""), 6, "0"), 0, 6)
    hour, minute, second, zone_hour, zone_minute = (
        part_numbers(parts[name]) for name in ("hour", "minute", "second", "zone_hour", "zone_minute")
    )
    exists &= (hour < 24) & (minute < 60) & (second < 60)
    ahead = pc.fill_null(pc.equal(parts["sign"], "-"), False).to_numpy(zero_copy_only=False)
    zone_minutes = np.where(ahead, -1, 1) * (zone_hour * 60 + zone_minute)
    instant_us = ((days * 1440 + hour * 60 + minute - zone_minutes) * 60 + second) * 10**6 + part_numbers(fraction)
    return pa.array(instant_us, mask=~(matches & exists)).cast(pa.timestamp("us")).cast(target, safe=False)


def binary_to_string(values: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return values.cast(target)
    except pa.ArrowInvalid:
        return matching(values, UTF8_BYTES).cast(target)


FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean,
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "string": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    "binary": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
    "date": pa.types.is_date32,
    "timestamp": pa.types.is_timestamp,
}

CASTS: dict[tuple[str, str], Callable[[pa.Array, pa.DataType], pa.Array]] = {
    ("boolean", "integer"): arrow_cast,
    ("boolean", "float"): arrow_cast,
    ("boolean", "decimal"): boolean_to_decimal,
    ("boolean", "string"): arrow_cast,
    ("integer", "boolean"): arrow_cast,
    ("integer", "integer"): integer_to_integer,
    ("integer", "float"): arrow_cast,
    ("integer", "decimal"): integer_to_decimal,
    ("integer", "string"): arrow_cast,
    ("float", "boolean"): arrow_cast,
    ("float", "integer"): float_to_integer,
    ("float", "float"): arrow_cast,
    ("float", "decimal"): float_to_decimal,
    ("float", "string"): float_to_string,
    ("decimal", "boolean"): decimal_to_boolean,
    ("decimal", "integer"): decimal_to_integer,
    ("decimal", "float"): arrow_cast,
    ("decimal", "decimal"): rescale,
    ("decimal", "string"): decimal_to_string,
    ("string", "boolean"): string_to_boolean,
    ("string", "integer"): string_to_integer,
    ("string", "float"): string_to_float,
    ("string", "decimal"): string_to_decimal,
    ("string", "date"): string_to_date,
    ("string", "timestamp"): string_to_timestamp,
    ("string", "string"): arrow_cast,
    ("string", "binary"): arrow_cast,
    ("binary", "string"): binary_to_string,
    ("binary", "binary"): arrow_cast,
    ("date", "timestamp"): date_to_timestamp,
    ("date", "string"): arrow_cast,
    ("timestamp", "date"): arrow_cast,
    ("timestamp", "timestamp"): arrow_cast,
    ("timestamp", "string"): timestamp_to_string,
}
