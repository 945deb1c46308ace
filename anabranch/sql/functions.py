"""The functions of the language: what they take, and the operation of `plan.expression` they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.errors import did_you_mean
from anabranch.plan.expression import Call, Expr, Literal
from anabranch.sql.coercion import BadTypesError, cast_to, comparison, condition, number, text, unify
from anabranch.sql.types import is_temporal, spell

Bind = Callable[[Sequence[Expr]], Expr]


@dataclass(frozen=True)
class Function:
    """How many operands a function takes (`most` None: any number), and how it is bound to them."""

    least: int
    most: int | None
    bind: Bind


def _text_to_text(op: str) -> Function:
    return Function(1, 1, lambda args: Call(pa.string(), op, (text(args[0]),)))


def _length(args: Sequence[Expr]) -> Expr:
    return Call(pa.int64(), "length", (text(args[0]),))


def concat(args: Sequence[Expr]) -> Expr:
    return Call(pa.string(), "concat", tuple(text(arg) for arg in args))


def _integer_literal(expr: Expr, what: str, least: int) -> Expr:
    if not isinstance(expr, Literal) or not isinstance(expr.value, int) or isinstance(expr.value, bool):
        raise BadTypesError(f"{what} must be an integer literal")
    if expr.value < least:
        raise BadTypesError(f"{what} must be at least {least}")
    return expr


def _substring(args: Sequence[Expr]) -> Expr:
    start = _integer_literal(args[1], "the start", 1)
    length = [_integer_literal(arg, "the length", 0) for arg in args[2:]]
    return Call(pa.string(), "substring", (text(args[0]), start, *length))


def absolute(args: Sequence[Expr]) -> Expr:
    operand = number(args[0])
    return Call(operand.type, "abs", (operand,))


def _to_integer(op: str) -> Function:
    def bind(args: Sequence[Expr]) -> Expr:
        operand = number(args[0])
        if pa.types.is_integer(operand.type):
            return operand
        return Call(pa.int64(), op, (cast_to(operand, pa.float64()),))

    return Function(1, 1, bind)


def _round(args: Sequence[Expr]) -> Expr:
    operand = number(args[0])
    digits = _integer_literal(args[1], "the digits", -MAX_ROUND_DIGITS) if len(args) > 1 else Literal(pa.int64(), 0)
    assert isinstance(digits, Literal)
    if digits.value > MAX_ROUND_DIGITS:
        raise BadTypesError(f"the digits must be at most {MAX_ROUND_DIGITS}")
    return Call(operand.type, "round", (operand, digits))


def _sqrt(args: Sequence[Expr]) -> Expr:
    return Call(pa.float64(), "sqrt", (cast_to(number(args[0]), pa.float64()),))


def _one_type(op: str, least: int) -> Function:
    def bind(args: Sequence[Expr]) -> Expr:
        operands = unify(args)
        return Call(operands[0].type, op, operands)

    return Function(least, None, bind)


def _part_of_time(op: str, of_date: bool) -> Function:
    def bind(args: Sequence[Expr]) -> Expr:
        operand = args[0] if not pa.types.is_null(args[0].type) else cast_to(args[0], pa.timestamp("us"))
        if not is_temporal(operand.type) or (pa.types.is_date(operand.type) and not of_date):
            wanted = "a DATE or TIMESTAMP" if of_date else "a TIMESTAMP"
            raise BadTypesError(f"{op.upper()} takes {wanted}, not {spell(operand.type)}")
        return Call(pa.int64(), op, (operand,))

    return Function(1, 1, bind)


def case(branches: Sequence[tuple[Expr, Expr]], default: Expr) -> Expr:
    """CASE; conditions are boolean, all values get one type."""
    values = unify([*(value for _, value in branches), default])
    args: list[Expr] = []
    for (test, _), value in zip(branches, values, strict=False):
        args += [condition(test), value]
    return Call(values[-1].type, "case", (*args, values[-1]))


def _null_if(args: Sequence[Expr]) -> Expr:
    return case([(comparison("eq", args[0], args[1]), Literal(args[0].type, None))], args[0])


MAX_ROUND_DIGITS = 38
"""Digits beyond this change nothing in any number type."""

FUNCTIONS: dict[str, Function] = {
    "UPPER": _text_to_text("upper"), "UCASE": _text_to_text("upper"),
    "LOWER": _text_to_text("lower"), "LCASE": _text_to_text("lower"),
    "TRIM": _text_to_text("trim"),
    "LENGTH": Function(1, 1, _length), "LEN": Function(1, 1, _length), "CHAR_LENGTH": Function(1, 1, _length),
    "CONCAT": Function(1, None, concat),
    "SUBSTRING": Function(2, 3, _substring), "SUBSTR": Function(2, 3, _substring),
    "ABS": Function(1, 1, absolute),
    "FLOOR": _to_integer("floor"), "CEIL": _to_integer("ceil"), "CEILING": _to_integer("ceil"),
    "ROUND": Function(1, 2, _round),
    "SQRT": Function(1, 1, _sqrt),
    "COALESCE": _one_type("coalesce", 1), "IFNULL": _one_type("coalesce", 2), "NVL": _one_type("coalesce", 2),
    "GREATEST": _one_type("greatest", 2), "LEAST": _one_type("least", 2),
    "NULLIF": Function(2, 2, _null_if),
    "IF": Function(3, 3, lambda args: case([(args[0], args[1])], args[2])),
    "IFF": Function(3, 3, lambda args: case([(args[0], args[1])], args[2])),
    "YEAR": _part_of_time("year", of_date=True), "MONTH": _part_of_time("month", of_date=True),
    "DAY": _part_of_time("day", of_date=True), "DAYOFMONTH": _part_of_time("day", of_date=True),
    "HOUR": _part_of_time("hour", of_date=False), "MINUTE": _part_of_time("minute", of_date=False),
    "SECOND": _part_of_time("second", of_date=False),
}  # fmt: skip

AGGREGATES = {
    "COUNT": "count", "SUM": "sum", "AVG": "avg", "MEAN": "avg", "MIN": "min", "MAX": "max", "STDDEV": "stddev",
    "STDDEV_SAMP": "stddev",
}  # fmt: skip
"""The aggregates, and what they are called below."""

OTHER_AGGREGATES = {
    "APPROX_COUNT_DISTINCT": "write COUNT(DISTINCT x)", "VARIANCE": "write STDDEV(x) * STDDEV(x)",
    "VAR_SAMP": "write STDDEV(x) * STDDEV(x)", "ANY_VALUE": "write MIN(x)", "FIRST": "write MIN(x)", "LAST": "write MAX(x)",
} | dict.fromkeys(
    ("ARRAY_AGG", "COLLECT_LIST", "COLLECT_SET", "CORR", "GROUP_CONCAT", "LISTAGG", "MEDIAN", "PERCENTILE", "STDDEV_POP",
     "STRING_AGG", "VAR_POP"),
    f"the aggregates are {', '.join(AGGREGATES)}; DuckDB has others: FROM DATABASE duck (SELECT …)",
)  # fmt: skip
WINDOW_FUNCTIONS = (
    "DENSE_RANK", "FIRST_VALUE", "LAG", "LAST_VALUE", "LEAD", "NTH_VALUE", "NTILE", "RANK", "ROW_NUMBER",
)  # fmt: skip
OUTPUT_STREAMS = ("ISTREAM", "DSTREAM", "RSTREAM")
INSTEAD = {
    "EXTRACT": "write YEAR(ts), MONTH(ts), DAY(ts), HOUR(ts), MINUTE(ts) or SECOND(ts)",
    "DATE": "write CAST(x AS DATE)", "TIMESTAMP": "write CAST(x AS TIMESTAMP)", "TO_DATE": "write CAST(x AS DATE)",
    "TO_TIMESTAMP": "write CAST(x AS TIMESTAMP)", "MOD": "write a % b", "POSITION": "write LIKE '%part%'",
    "NOW": "write RESULT_TIME: results depend on the times of their rows, never on the clock",
    "CURRENT_TIMESTAMP": "write RESULT_TIME: results depend on the times of their rows, never on the clock",
    "CURRENT_DATE": "write RESULT_TIME: results depend on the times of their rows, never on the clock",
}  # fmt: skip


def refusal(name: str) -> tuple[str, str]:
    """What to say about a function that is not in the table: its kind, and a hint.

    >>> refusal("MEDIAN")[0]
    'the aggregate MEDIAN'
    >>> refusal("UPER")
    ('the function UPER', 'did you mean UPPER?')
    """
    if name in OTHER_AGGREGATES:
        return f"the aggregate {name}", OTHER_AGGREGATES[name]
    if name in WINDOW_FUNCTIONS:
        return f"the window function {name}", "windows stand in FROM: stream [RANGE 10 SECONDS]"
    if name in OUTPUT_STREAMS:
        return name, "leave it out: results are emitted when they appear"
    if name in ("EXISTS", "ANY", "SOME"):
        return f"a subquery in {name}", "join it in FROM: JOIN (SELECT …) x ON …"
    known = did_you_mean(name, (*FUNCTIONS, *AGGREGATES, "CAST", "TRY_CAST"))
    return f"the function {name}", INSTEAD.get(name) or known or "the functions are " + ", ".join(sorted(FUNCTIONS))
