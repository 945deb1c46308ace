"""Which expressions of ours DuckDB computes with exactly our meaning. What is not on the list is never placed there.

The list is tested, not believed: `tests/place/test_capabilities.py` runs each entry, and random expressions made of them,
in the engine and in DuckDB, over NULL, NaN, −0.0, extremes, empty strings, quotes and NUL. Not on it, because they differ:

- arithmetic of integers, and their sign: ours wraps, DuckDB fails; and of decimals, whose widths follow other rules;
- division and remainder but for division of doubles; rounding;
- casts, but for those that lose nothing: DuckDB fails, or rounds, where ours gives NULL or cuts off;
- UPPER, LOWER, LIKE: other tables of letters, other escapes;
- parts of dates and times, and their sums with intervals: the ends of the range are infinities to DuckDB;
- the greatest and least of floats: 0.0 and −0.0 are equal, and either may be given.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, Literal, walk

TYPES = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"),
)  # fmt: skip
"""Types whose values go there and come back as they are; and decimals."""

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())
WIDER = {
    (small, large) for place, small in enumerate(INTEGERS) for large in INTEGERS[place + 1 :]
} | {(pa.float32(), pa.float64()), *((small, pa.float64()) for small in INTEGERS[:3])}  # fmt: skip
"""Casts that lose nothing."""


def is_known(kind: pa.DataType) -> bool:
    """Whether values of a type go to DuckDB and come back as they are."""
    return kind in TYPES or bool(pa.types.is_decimal128(kind))


def _always(call: Call) -> bool:
    return True


def _of(*kinds: pa.DataType) -> Callable[[Call], bool]:
    return lambda call: all(arg.type in kinds for arg in call.args)


COMPUTED: dict[str, Callable[[Call], bool]] = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "is_null", "in", "case", "coalesce"), _always),
    **dict.fromkeys(("and", "or", "not"), _of(pa.bool_())),
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs"), _of(*FLOATS)),
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
    >>> why_not_computed(Call(pa.int64(), "add", (price, price)))
    'add of int64 is not computed there as it is here'
    """
    for node in walk(expr):
        if not is_known(node.type):
            return f"values of the type {node.type} are not the same there"
        if isinstance(node, Call) and (node.op not in COMPUTED or not COMPUTED[node.op](node)):
            return f"{node.op} of {node.args[0].type} is not computed there as it is here"
        if not isinstance(node, Column | Literal | Call):
            return f"{node} is not known there"
    return None
