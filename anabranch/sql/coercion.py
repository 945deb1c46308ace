"""Operands brought to the types their operation needs: the casts that nobody writes.

Literals are converted here and now, everything else gets a `cast` call. The rules are Spark's with two exceptions, both
stricter: strings are never compared with numbers, and a string literal next to a date or timestamp must be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, TypeGuard

import pyarrow as pa

from anabranch.plan.expression import Call, Expr, Literal
from anabranch.sql.types import (
    TIMESTAMP,
    as_decimal,
    common_type,
    decimal_product,
    decimal_sum,
    is_numeric,
    is_temporal,
    is_text,
    spell,
)  # fmt: skip


class BadTypesError(ValueError):
    """Types that do not go together; the binder knows the place in the text."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def cast_to(expr: Expr, kind: pa.DataType) -> Expr:
    """The expression as another type; literals keep being literals."""
    if expr.type == kind:
        return expr
    if isinstance(expr, Literal):
        value: Any = expr.value
        if value is None:
            return Literal(kind, None)
        if is_numeric(expr.type) and pa.types.is_floating(kind):
            return Literal(kind, float(value))
        if pa.types.is_decimal(kind) and (pa.types.is_integer(expr.type) or pa.types.is_decimal(expr.type)):
            return Literal(kind, Decimal(value))
        if pa.types.is_date(expr.type) and kind == TIMESTAMP:
            return Literal(kind, datetime(value.year, value.month, value.day))
    return Call(kind, "cast", (expr,))


def parse_temporal(value: str, kind: pa.DataType) -> Literal:
    """A date or timestamp from the text of a literal; a date with a time of day becomes a timestamp.

    >>> str(parse_temporal("2024-01-31", pa.date32()))
    '2024-01-31'
    """
    try:
        if pa.types.is_date(kind) and len(value.strip()) <= len("2024-01-31"):
            return Literal(pa.date32(), date.fromisoformat(value.strip()))
        parsed = datetime.fromisoformat(value.strip())
    except ValueError:
        raise BadTypesError(f"{value!r} is not a {spell(kind)}", "write it as '2024-01-31 12:00:00'") from None
    if parsed.tzinfo is not None:
        raise BadTypesError(f"{value!r} has a time zone", "timestamps are without zone; convert it")
    return Literal(TIMESTAMP, parsed)


def _as_short_decimal(expr: Expr) -> Expr:
    """An integer literal as a decimal with no more digits than it has."""
    if isinstance(expr, Literal) and pa.types.is_integer(expr.type) and expr.value is not None:
        return Literal(pa.decimal128(len(str(abs(expr.value))), 0), Decimal(expr.value))
    return expr


def _is_string_literal(expr: Expr) -> TypeGuard[Literal]:
    return isinstance(expr, Literal) and isinstance(expr.value, str)


def _adapt_literals(exprs: Sequence[Expr]) -> list[Expr]:
    temporal = next((e.type for e in exprs if is_temporal(e.type)), None)
    if temporal is not None:
        exprs = [parse_temporal(e.value, temporal) if _is_string_literal(e) else e for e in exprs]
    if any(pa.types.is_decimal(e.type) for e in exprs) and not any(pa.types.is_floating(e.type) for e in exprs):
        exprs = [_as_short_decimal(e) for e in exprs]
    return list(exprs)


def _meet(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_nested(left) or pa.types.is_nested(right):
        raise BadTypesError("a nested column can only be selected, or tested with IS NULL")
    found = common_type(left, right)
    if found is not None and pa.types.is_duration(found):
        raise BadTypesError("an INTERVAL can only be added to a timestamp or subtracted from one")
    if found is None:
        hint = f"write CAST(… AS {spell(right)})"
        raise BadTypesError(f"{spell(left)} and {spell(right)} do not go together", hint)
    return found


def unify(exprs: Sequence[Expr]) -> tuple[Expr, ...]:
    """All operands in their one common type.

    >>> from anabranch.plan.expression import Column
    >>> [str(e) for e in unify([Column(pa.int32(), "a", "x"), Literal(pa.int64(), 1)])]
    ['CAST(a.x AS int64)', '1']
    """
    adapted = _adapt_literals(exprs)
    target = reduce(_meet, (e.type for e in adapted), pa.null())
    return tuple(cast_to(e, target) for e in adapted)


def comparison(op: str, left: Expr, right: Expr) -> Expr:
    return Call(pa.bool_(), op, unify([left, right]))


def condition(expr: Expr) -> Expr:
    """An operand that must be true or false."""
    if pa.types.is_null(expr.type):
        return cast_to(expr, pa.bool_())
    if not pa.types.is_boolean(expr.type):
        raise BadTypesError(f"a condition must be BOOLEAN, not {spell(expr.type)}")
    return expr


def text(expr: Expr) -> Expr:
    """An operand that must be a string."""
    if is_text(expr.type) or pa.types.is_null(expr.type):
        return cast_to(expr, pa.string())
    raise BadTypesError(f"expected a STRING, not {spell(expr.type)}", "write CAST(… AS STRING)")


def _check_number(expr: Expr) -> None:
    if not is_numeric(expr.type) and not pa.types.is_null(expr.type):
        raise BadTypesError(f"expected a number, not {spell(expr.type)}")


def number(expr: Expr) -> Expr:
    """An operand that must be a number: integers as BIGINT."""
    _check_number(expr)
    return expr if pa.types.is_floating(expr.type) or pa.types.is_decimal(expr.type) else cast_to(expr, pa.int64())


def arithmetic(op: str, left: Expr, right: Expr) -> Expr:
    """`add sub mul div mod` with Spark's result types; a decimal divided by anything is a DOUBLE here.

    A timestamp plus or minus an INTERVAL is a timestamp: the second operand is then a literal of Arrow's duration[us].
    """
    if pa.types.is_duration(left.type) or pa.types.is_duration(right.type):
        return _shift(op, left, right)
    if is_temporal(left.type) and is_temporal(right.type):
        raise BadTypesError(f"{spell(left.type)} and {spell(right.type)} cannot be combined by arithmetic",
                            "compare them: a.ts < b.ts + INTERVAL 5 SECONDS")  # fmt: skip
    _check_number(left)
    _check_number(right)
    if op == "div":
        return Call(pa.float64(), op, (cast_to(left, pa.float64()), cast_to(right, pa.float64())))
    left, right = _adapt_literals([left, right])
    kind = _meet(left.type, right.type)
    if not pa.types.is_decimal(kind):
        kind = kind if pa.types.is_floating(kind) else pa.int64()
        return Call(kind, op, (cast_to(left, kind), cast_to(right, kind)))
    own = [kind if pa.types.is_null(e.type) else as_decimal(e.type) for e in (left, right)]
    if op == "mul":
        return Call(decimal_product(*own), op, (cast_to(left, own[0]), cast_to(right, own[1])))
    return Call(decimal_sum(*own) if op != "mod" else kind, op, (cast_to(left, kind), cast_to(right, kind)))


def _shift(op: str, left: Expr, right: Expr) -> Expr:
    if op == "add" and pa.types.is_duration(left.type):
        left, right = right, left
    if op not in ("add", "sub") or not is_temporal(left.type) or not pa.types.is_duration(right.type):
        raise BadTypesError("an INTERVAL can only be added to a timestamp or subtracted from one")
    if pa.types.is_date(left.type):
        left = cast_to(left, TIMESTAMP)
    return Call(left.type, op, (left, right))
