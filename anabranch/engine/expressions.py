"""Evaluates typed expressions over columns of rows, a whole batch at a time.

`evaluate` walks the tree from the leaves up. A column is fetched when it is first met and then kept; a literal stays an
Arrow scalar, so `x > 5` never builds a column of fives; an operation looks up its function in `OPERATIONS` and hands it
its operands, at least one of which is an array. An operation on literals alone runs once, on one row, and is a scalar
again. Only the outermost result is spread over all rows.

Nothing here raises because of data: what has no value is NULL. `plan/expression.py` lists the operations and says what
each means; where it is silent (a substring from the end, say) they do what Spark does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.casts import (
    WIDEST,
    UnsupportedOperationError,
    cast,
    keep,
    known_values,
    rescale,
    round_floats,
    with_nulls_of,
)
from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime

Value: TypeAlias = pa.Array | pa.Scalar
"""A column, or one value that stands for a column of it."""

Operation = Callable[[Call, list[Value]], Value]


def evaluate(
    expr: Expr,
    columns: Callable[[Column], pa.Array],
    rows: int,
    result_time: Callable[[], pa.Array] | None = None,
) -> pa.Array:
    """The value of the expression in each of the rows, as an array of `expr.type`.

    >>> x = Column(pa.int64(), "t", "x")
    >>> evaluate(Call(pa.int64(), "add", (x, Literal(pa.int64(), 1))), lambda _: pa.array([1, None]), 2).to_pylist()
    [2, None]
    """
    return spread(_Evaluation(columns, result_time).value(expr), rows)


def predicate_mask(
    exprs: Sequence[Expr],
    columns: Callable[[Column], pa.Array],
    rows: int,
    result_time: Callable[[], pa.Array] | None = None,
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """True for each row in which all expressions are true (NULL is not); None when there are none.

    >>> x = Column(pa.int64(), "t", "x")
    >>> over_5 = Call(pa.bool_(), "gt", (x, Literal(pa.int64(), 5)))
    >>> predicate_mask([over_5], lambda _: pa.array([3, 7, None]), 3).tolist()
    [False, True, False]
    """
    if not exprs:
        return None
    evaluation = _Evaluation(columns, result_time)
    truth = spread(reduce(pc.and_kleene, [evaluation.value(expr) for expr in exprs]), rows)
    return unpacked(pc.fill_null(truth, False) if truth.null_count else truth)


def unpacked(truth: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The bits of a boolean array without NULLs as bytes; Arrow's own conversion takes three times as long."""
    if not len(truth):
        return np.zeros(0, np.bool_)
    packed = np.frombuffer(truth.buffers()[1], np.uint8)
    return np.unpackbits(packed, count=truth.offset + len(truth), bitorder="little")[truth.offset :].view(np.bool_)


class _Evaluation:
    """One walk over expressions, with the columns that it has fetched so far."""

    def __init__(self, columns: Callable[[Column], pa.Array], result_time: Callable[[], pa.Array] | None) -> None:
        self._columns, self._result_time = columns, result_time
        self._fetched: dict[Expr, pa.Array] = {}

    def value(self, expr: Expr) -> Value:
        if isinstance(expr, Call):
            return self._call(expr)
        if isinstance(expr, Literal):
            return pa.scalar(expr.value, expr.type)
        if expr not in self._fetched:
            self._fetched[expr] = cast(self._fetch(expr), expr.type)
        return self._fetched[expr]

    def _fetch(self, expr: Expr) -> pa.Array:
        if isinstance(expr, Column):
            return self._columns(expr)
        if isinstance(expr, ResultTime) and self._result_time is not None:
            return self._result_time()
        raise UnsupportedOperationError(f"{expr}: no value for a {type(expr).__name__} here")

    def _call(self, call: Call) -> Value:
        if call.op not in OPERATIONS:
            raise UnsupportedOperationError(f"{call}: no operation {call.op!r}")
        args = [self.value(arg) for arg in call.args]
        if all(isinstance(arg, pa.Scalar) for arg in args):
            return cast(OPERATIONS[call.op](call, [spread(args[0], 1), *args[1:]]), call.type)[0]
        return cast(OPERATIONS[call.op](call, args), call.type)


def spread(value: Value, rows: int) -> pa.Array:
    """The value as an array of so many rows."""
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def spread_all(values: Sequence[Value]) -> list[pa.Array]:
    """Operands as arrays of one length; one of them is an array already."""
    rows = next(len(value) for value in values if isinstance(value, pa.Array))
    return [spread(value, rows) for value in values]


def constant(call: Call, value: Value) -> Any:
    """The value of an operand that must be the same in all rows."""
    if not isinstance(value, pa.Scalar):
        raise UnsupportedOperationError(f"{call}: an operand that must be a literal is not")
    return value.as_py()


def unary(kernel: Callable[[pa.Array], pa.Array]) -> Operation:
    return lambda call, args: kernel(args[0])


def chain(kernel: Callable[[Value, Value], Value]) -> Operation:
    return lambda call, args: reduce(kernel, args)


# Arithmetic


def arithmetic(plain: Callable[[Value, Value], Value], decimals: Operation) -> Operation:
    """Decimals need a function of their own, as Arrow gives their results other types than SQL does."""
    return lambda call, args: decimals(call, args) if pa.types.is_decimal(args[0].type) else plain(args[0], args[1])


def sum_decimals(kernel: Callable[[pa.Array, pa.Array], pa.Array]) -> Operation:
    def operation(call: Call, args: list[Value]) -> Value:
        scale = max(arg.type.scale for arg in args)
        # Declared one digit short, so that Arrow finds room for the carry; two decimals of 38 digits never fill it.
        left, right = (
            x.cast(pa.decimal256(WIDEST, scale)).view(pa.decimal256(WIDEST - 1, scale)) for x in spread_all(args)
        )
        return rescale(kernel(left, right), call.type)

    return operation


def multiply_decimals(call: Call, args: list[Value]) -> Value:
    # 38 digits times 38 digits are 76 at most; Arrow reserves one more and would refuse, hence the declared 37.
    left, right = (
        x.cast(pa.decimal256(38, x.type.scale)).view(pa.decimal256(37, x.type.scale)) for x in spread_all(args)
    )
    return rescale(pc.multiply(left, right), call.type)


def divide_decimals(call: Call, args: list[Value]) -> Value:
    """The quotient cut off one digit after the result's scale, which is what rounding it half up needs.

    Arrow derives the scale of a quotient from the *declared* precision of the divisor, so declaring one is how to ask
    for a scale. A dividend too long for the digits that remain has a quotient too long for the result: NULL as well.
    """
    left, right = spread_all(args)
    declared = min(max(call.type.scale + right.type.scale - left.type.scale, 1), WIDEST)
    scale = max(4, left.type.scale + declared - right.type.scale + 1)
    room = max(1, WIDEST - (scale + right.type.scale - left.type.scale))
    left = rescale(left, pa.decimal256(min(left.type.precision, room), left.type.scale))
    right = null_if_zero(right.cast(pa.decimal256(38, right.type.scale)))
    return rescale(pc.divide(left, right.view(pa.decimal256(declared, right.type.scale))), call.type)


def modulo_decimals(call: Call, args: list[Value]) -> Value:
    """The remainder of the unscaled integers: Arrow divides with 4 digits after the point, cut off here."""
    left, right = spread_all(args)
    scale = max(left.type.scale, right.type.scale)
    digits, integers = WIDEST - 4, pa.decimal256(WIDEST - 4, 0)
    dividend = rescale(left, pa.decimal256(digits, scale)).view(integers)
    divisor = null_if_zero(right.cast(pa.decimal256(WIDEST, scale))).view(pa.decimal256(1, 0))
    quotient = pc.trunc(pc.divide(dividend, divisor)).cast(pa.decimal256(WIDEST, 0)).view(integers)
    remainder = pc.subtract(dividend, pc.multiply(quotient, divisor))
    return rescale(remainder.view(pa.decimal256(WIDEST, scale)), call.type)


def null_if_zero(values: Value) -> Value:
    if isinstance(values, pa.Scalar):
        return values if values.as_py() != 0 else pa.scalar(None, values.type)
    zeros = pc.equal(values, pa.scalar(0, values.type))
    return pc.if_else(zeros, pa.scalar(None, values.type), values) if pc.any(zeros).as_py() else values


def divide(left: Value, right: Value) -> Value:
    return pc.divide(left, null_if_zero(right))


def modulo(left: Value, right: Value) -> Value:
    dividend, divisor = spread_all([left, null_if_zero(right)])
    with np.errstate(invalid="ignore"):  # infinity has no remainder: NaN
        remainder = np.fmod(known_values(dividend), known_values(divisor))
    return with_nulls_of(remainder, dividend, divisor)


def floor_or_ceil(kernel: Callable[[pa.Array], pa.Array]) -> Operation:
    def operation(call: Call, args: list[Value]) -> Value:
        number = args[0]
        if pa.types.is_integer(number.type):
            return number
        if pa.types.is_decimal(number.type):  # 9.5 rounded up has a digit more than its type
            number = number.cast(pa.decimal256(WIDEST, number.type.scale))
        return kernel(number)

    return operation


def round_half_up(call: Call, args: list[Value]) -> Value:
    numbers, digits = args[0], constant(call, args[1])
    if digits is None:
        return pa.nulls(len(numbers), call.type)
    if pa.types.is_decimal(numbers.type):
        wide = numbers.cast(pa.decimal256(WIDEST, numbers.type.scale))
        return pc.round(wide, ndigits=min(digits, numbers.type.scale), round_mode="half_towards_infinity")
    if pa.types.is_floating(numbers.type):
        return with_nulls_of(round_floats(known_values(numbers), digits), numbers)
    return numbers if digits >= 0 else round_integers(numbers, -digits)


def round_integers(numbers: pa.Array, zeros: int) -> pa.Array:
    integers = known_values(numbers).astype(np.int64)
    unit = 10 ** min(zeros, 18)
    rest = np.fmod(integers, unit)
    rounded = integers - rest + np.where(2 * np.abs(rest) >= unit, np.sign(rest) * unit, 0)
    return with_nulls_of(rounded if zeros <= 18 else np.zeros_like(integers), numbers)


def square_root(numbers: pa.Array) -> pa.Array:
    roots = pc.sqrt(numbers)
    below = pc.less(numbers, 0.0)
    return pc.if_else(below, pa.scalar(None, roots.type), roots) if pc.any(below).as_py() else roots


# Comparisons and logic


def compare(op: str, left: Value, right: Value) -> Value:
    """A comparison in which NaN equals NaN and is above all other numbers.

    Where at most one side has NaNs, IEEE's comparisons or their negations already say so.
    """
    if pa.types.is_null(left.type):
        left, right = (cast(side, pa.bool_()) for side in spread_all([left, right]))
    if not pa.types.is_floating(left.type):
        return IEEE[op](left, right)
    if isinstance(left, pa.Scalar) and isinstance(right, pa.Array):
        return compare(MIRRORED[op], right, left)
    if not has_nan(right):
        return pc.invert(IEEE[NEGATED[op]](left, right)) if op in ("gt", "ge") else IEEE[op](left, right)
    if not has_nan(left):
        return pc.invert(IEEE[NEGATED[op]](left, right)) if op in ("lt", "le") else IEEE[op](left, right)
    if op in ("ne", "le", "ge"):
        return pc.invert(compare(NEGATED[op], left, right))
    if op == "gt":
        op, left, right = "lt", right, left
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    by_nan = pc.and_(left_nan, right_nan) if op == "eq" else pc.and_(pc.invert(left_nan), right_nan)
    return pc.or_(IEEE[op](left, right), by_nan)


def has_nan(values: Value) -> bool:
    return bool(pc.any(pc.is_nan(spread(values, 1))).as_py())


def comparison(op: str) -> Operation:
    return lambda call, args: compare(op, args[0], args[1])


def is_one_of(call: Call, args: list[Value]) -> Value:
    needle, *options = args
    exact = not pa.types.is_floating(needle.type) and not pa.types.is_null(needle.type)
    if not (exact and isinstance(needle, pa.Array) and all(isinstance(option, pa.Scalar) for option in options)):
        return reduce(pc.or_kleene, [compare("eq", needle, option) for option in options])
    known = [spread(option, 1) for option in options if option.is_valid]
    value_set = pa.concat_arrays(known) if known else pa.array([], needle.type)
    found = pc.is_in(needle, value_set=value_set)
    if len(known) < len(options):
        found = keep(found, found)
    return keep(needle.is_valid(), found) if needle.null_count else found


def case(call: Call, args: list[Value]) -> Value:
    values = [*args[1:-1:2], args[-1]]
    conditions = args[:-1:2]
    rows = next(len(arg) for arg in args if isinstance(arg, pa.Array))
    names = [str(position) for position in range(len(conditions))]
    return pc.case_when(pa.StructArray.from_arrays([spread(c, rows) for c in conditions], names), *values)


def extreme(op: str) -> Operation:
    def pick(left: Value, right: Value) -> Value:
        left_wins = pc.fill_null(pc.or_kleene(pc.is_null(right), compare(op, left, right)), False)
        return pc.if_else(left_wins, left, right)

    return chain(pick)


# Strings


def like(call: Call, args: list[Value]) -> Value:
    pattern = constant(call, args[1])
    return pa.nulls(len(args[0]), call.type) if pattern is None else pc.match_like(args[0], pattern)


def concat(call: Call, args: list[Value]) -> Value:
    return pc.binary_join_element_wise(*args, pa.scalar("", args[0].type), null_handling="emit_null")


def substring(call: Call, args: list[Value]) -> Value:
    """From the 1-based start (0 counts as 1, a negative one from the end), to the end or for so many characters."""
    start, *length = (constant(call, arg) for arg in args[1:])
    if start is None or None in length:
        return pa.nulls(len(args[0]), call.type)
    first = start - 1 if start > 0 else start
    last = first + max(length[0], 0) if length else None
    if last is not None and first < 0 <= last:
        last = None
    return pc.utf8_slice_codeunits(args[0], first, last)


IEEE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": pc.equal, "ne": pc.not_equal, "lt": pc.less, "le": pc.less_equal, "gt": pc.greater, "ge": pc.greater_equal,
}  # fmt: skip
NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}

OPERATIONS: dict[str, Operation] = {
    "add": arithmetic(pc.add, sum_decimals(pc.add)),
    "sub": arithmetic(pc.subtract, sum_decimals(pc.subtract)),
    "mul": arithmetic(pc.multiply, multiply_decimals),
    "div": arithmetic(divide, divide_decimals),
    "mod": arithmetic(modulo, modulo_decimals),
    "neg": unary(pc.negate),
    "abs": unary(pc.abs),
    **{op: comparison(op) for op in IEEE},
    "and": chain(pc.and_kleene),
    "or": chain(pc.or_kleene),
    "not": unary(pc.invert),
    "is_null": unary(pc.is_null),
    "in": is_one_of,
    "case": case,
    "coalesce": lambda call, args: pc.coalesce(*args),
    "cast": lambda call, args: cast(args[0], call.type),
    "like": like,
    "upper": unary(pc.utf8_upper),
    "lower": unary(pc.utf8_lower),
    "trim": unary(partial(pc.utf8_trim, characters=" ")),
    "length": unary(pc.utf8_length),
    "concat": concat,
    "substring": substring,
    "floor": floor_or_ceil(pc.floor),
    "ceil": floor_or_ceil(pc.ceil),
    "round": round_half_up,
    "sqrt": unary(square_root),
    "greatest": extreme("gt"),
    "least": extreme("lt"),
    "year": unary(pc.year),
    "month": unary(pc.month),
    "day": unary(pc.day),
    "hour": unary(pc.hour),
    "minute": unary(pc.minute),
    "second": unary(pc.second),
}
