"""Which expressions of ours DuckDB computes with exactly our meaning. What is not on the list is never placed there.

The list is tested, not believed: `tests/place/test_capabilities.py` runs each entry, and random expressions made of them,
in the engine and in DuckDB, over NULL, NaN, −0.0, extremes, empty strings, quotes and NUL. Not on it, because they differ:

- arithmetic of decimals, whose widths follow other rules (that of BIGINT is printed with more bits, and wraps as ours does);
- division and remainder but for division of doubles, and remainders of BIGINT; rounding;
- casts, but for those that lose nothing, and of BIGINT to DOUBLE: DuckDB fails, or rounds, where ours gives NULL, or cuts;
- UPPER, LOWER, LIKE: other tables of letters, other escapes;
- parts of dates and times, and their sums with intervals: the ends of the range are infinities to DuckDB;
- the greatest and least of floats: 0.0 and −0.0 are equal, and either may be given;
- STDDEV, which fails there where it is out of range; sums of decimals of more than 28 digits, which may be too long.

Sums and means of floats are on the list of aggregates, and are not the same to the last bit: whoever places them sees to it
that they are only shown (`anabranch.place.tree`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, Literal, walk
from anabranch.plan.query import Aggregate

TYPES = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"),
)  # fmt: skip
"""Types whose values go there and come back as they are; and decimals."""

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())
WIDER = {
    (small, large) for place, small in enumerate(INTEGERS) for large in INTEGERS[place + 1 :]
} | {(pa.float32(), pa.float64()), *((small, pa.float64()) for small in INTEGERS)}  # fmt: skip
"""Casts that lose nothing, and that of BIGINT to DOUBLE, which rounds alike."""


def is_known(kind: pa.DataType) -> bool:
    """Whether values of a type go to DuckDB and come back as they are."""
    return kind in TYPES or bool(pa.types.is_decimal128(kind))


def _always(call: Call) -> bool:
    return True


def _of(*kinds: pa.DataType) -> Callable[[Call], bool]:
    return lambda call: all(arg.type in kinds for arg in call.args)


def _is_wrapped(call: Call) -> bool:
    return all(arg.type == call.type == pa.int64() for arg in call.args)


COMPUTED: dict[str, Callable[[Call], bool]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "is_null", "in", "case", "coalesce"), _always),
    **dict.fromkeys(("and", "or", "not"), _of(pa.bool_())),
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs"), lambda call: _is_wrapped(call) or _of(*FLOATS)(call)),
    "mod": lambda call: _is_wrapped(call),
    "div": _of(pa.float64()),
    "cast": lambda call: (call.args[0].type, call.type) in WIDER,
    **dict.fromkeys(("concat", "length", "trim"), _of(pa.string())),
    "substring": lambda call: call.args[0].type == pa.string(),
    **dict.fromkeys(("greatest", "least"), _of(*INTEGERS, pa.string(), pa.date32(), pa.timestamp("us"))),
}
"""The operations that DuckDB computes as we do, and for which types."""


def why_not_computed(expr: Expr) -> str | None:
    """Why DuckDB is not to compute an expression; None if it may.

    >>> price = Column(pa.int64(), "t", "price")
    >>> why_not_computed(Call(pa.bool_(), "gt", (price, Literal(pa.int64(), 1))))
    >>> why_not_computed(Call(pa.string(), "upper", (Column(pa.string(), "t", "name"),)))
    'upper of string is not computed there as it is here'
    """
    for node in walk(expr):
        if not is_known(node.type):
            return f"values of the type {node.type} are not the same there"
        if isinstance(node, Call) and (node.op not in COMPUTED or not COMPUTED[node.op](node)):
            return f"{node.op} of {node.args[0].type} is not computed there as it is here"
        if not isinstance(node, Column | Literal | Call):
            return f"{node} is not known there"
    return None


LONGEST_SUMMED = 28
"""Digits of a decimal whose sum has room for ten more: no sum of as many rows as there may be is too long."""


def _is_summed(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.float64()) or (pa.types.is_decimal128(kind) and kind.precision <= LONGEST_SUMMED)


AGGREGATED: dict[str, Callable[[pa.DataType], bool]] = {
    **dict.fromkeys(("count", "count_distinct", "min", "max"), is_known),
    "sum": _is_summed,
    "avg": lambda kind: bool(kind == pa.float64()),
}
"""The aggregates that DuckDB computes as we do, and for which types."""


def why_not_aggregated(aggregate: Aggregate, argument: Expr | None) -> str | None:
    """Why DuckDB is not to compute an aggregate; None if it may.

    >>> why_not_aggregated(Aggregate("stddev", 0, pa.float64()), Column(pa.float64(), "t", "price"))
    'STDDEV of double is not computed there as it is here'
    """
    if argument is None:
        return None
    is_listed = AGGREGATED.get(aggregate.function, lambda _: False)
    if not is_known(aggregate.type) or not is_listed(argument.type):
        return f"{aggregate.function.upper()} of {argument.type} is not computed there as it is here"
    return why_not_computed(argument)


@dataclass(frozen=True)
class Abilities:
    """What a database says of itself: why it does not compute something with exactly our meaning; None, if it does."""

    why_not_computed: Callable[[Expr], str | None]
    why_not_aggregated: Callable[[Aggregate, Expr | None], str | None]


DUCKDB = Abilities(why_not_computed, why_not_aggregated)
