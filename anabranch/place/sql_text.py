"""Our bound expressions in the SQL of a database, built with sqlglot: names always in quotes, constants with their types.

What is printed means the same in the database only for expressions that `anabranch.place.capabilities` lists; others are not
printed. Where a database's own operator means something else, what is printed says ours: `a / b` is NULL where b is 0.

>>> from anabranch.plan.expression import Call, Column, Literal
>>> load = Column(pa.float64(), "p", "load")
>>> print(expression_text(Call(pa.bool_(), "gt", (load, Literal(pa.float64(), 0.5)))))
("p"."load" > CAST('0.5' AS DOUBLE))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from sqlglot import exp

from anabranch.plan.expression import Call, Column, Expr, Literal
from anabranch.plan.query import GROUP, Aggregate

DIALECT = "duckdb"

NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "TEXT", pa.binary(): "VARBINARY", pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
}  # fmt: skip
"""What sqlglot calls our types; decimals are spelled out."""


def expression_text(expr: Expr) -> str:
    """An expression in the SQL of DuckDB."""
    return expression_tree(expr).sql(dialect=DIALECT)


def aggregate_tree(aggregate: Aggregate, argument: Expr | None) -> exp.Expression:
    """An aggregate, with the type that it has here.

    >>> v = Column(pa.int64(), "t", "v")
    >>> aggregate_tree(Aggregate("max", 0, pa.int64()), v).sql(dialect=DIALECT)
    'MAX("t"."v")'
    """
    if argument is None:
        return exp.Anonymous(this="count", expressions=[exp.Star()])
    value = expression_tree(argument)
    if aggregate.function == "count_distinct":
        return exp.Count(this=exp.Distinct(expressions=[value]))
    if aggregate.function in ("min", "max") and pa.types.is_floating(aggregate.type):
        # 0.0 and −0.0 are equal, and either could be given: ours is 0.0.
        nought = _literal(Literal(aggregate.type, 0.0))
        is_nought = exp.If(this=exp.EQ(this=value, expression=nought), true=nought.copy())
        value = exp.Case(ifs=[is_nought], default=value.copy())
    found: exp.Expression = exp.Anonymous(this=aggregate.function, expressions=[value])
    if aggregate.function == "sum" and pa.types.is_integer(aggregate.type):
        return _wrapped(found)
    return _cast(found, aggregate.type) if aggregate.function == "sum" else found


WRAP, HALF = 2**64, 2**63


def _wrapped(total: exp.Expression) -> exp.Expression:
    """A sum of 128 bits as one of 64 that wraps, as ours does; DuckDB's own fails."""
    def remainder(value: exp.Expression) -> exp.Expression:
        return exp.Paren(this=exp.Mod(this=value, expression=_huge(WRAP)))

    def plus(value: exp.Expression, other: int) -> exp.Expression:
        return exp.Paren(this=exp.Add(this=value, expression=_huge(other)))

    return _cast(plus(remainder(plus(remainder(plus(total, HALF)), WRAP)), -HALF), pa.int64())


def _huge(value: int) -> exp.Expression:
    return exp.Cast(this=exp.Literal.string(str(value)), to=exp.DataType.build("INT128"))


def type_tree(kind: pa.DataType) -> exp.DataType:
    """A type in the words of sqlglot."""
    name = f"DECIMAL({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else NAMES[kind]
    return exp.DataType.build(name)


def expression_tree(expr: Expr) -> exp.Expression:
    """An expression in the words of sqlglot."""
    if isinstance(expr, Column):
        return exp.column(expr.name, table=None if expr.alias == GROUP else expr.alias, quoted=True)
    if isinstance(expr, Literal):
        return _literal(expr)
    assert isinstance(expr, Call), f"{expr} is not on the list of what a database computes"
    return PRINTED[expr.op](expr, [expression_tree(arg) for arg in expr.args])


def _literal(literal: Literal) -> exp.Expression:
    """A constant with its type: as text that the database converts exactly."""
    value, kind = literal.value, literal.type
    if value is None:
        return _cast(exp.Null(), kind)
    if pa.types.is_string(kind):
        # A NUL would end the statement for some who read it.
        pieces = [exp.Literal.string(piece) for piece in str(value).split("\0")]
        found: exp.Expression = pieces[0]
        for piece in pieces[1:]:
            found = exp.DPipe(this=found, expression=exp.Anonymous(this="chr", expressions=[exp.Literal.number(0)]))
            found = exp.DPipe(this=found, expression=piece)
        return exp.Paren(this=found) if len(pieces) > 1 else _cast(found, kind)
    if pa.types.is_binary(kind):
        return exp.Anonymous(this="unhex", expressions=[exp.Literal.string(bytes(value).hex())])
    if pa.types.is_timestamp(kind):
        time_us = pa.scalar(value, kind).cast(pa.int64()).as_py()
        return exp.Anonymous(this="make_timestamp", expressions=[_cast(exp.Literal.string(str(time_us)), pa.int64())])
    return _cast(exp.Literal.string(repr(value) if isinstance(value, float) else str(value)), kind)


def _cast(value: exp.Expression, kind: pa.DataType) -> exp.Expression:
    return exp.Cast(this=value, to=type_tree(kind))


Print = Callable[[Call, Sequence[exp.Expression]], exp.Expression]


def _infix(kind: type[exp.Expression]) -> Print:
    return lambda call, args: exp.Paren(this=kind(this=args[0], expression=args[1]))


def _arithmetic(kind: type[exp.Expression]) -> Print:
    """An operator of numbers; of integers in 128 bits, which hold sums and products of any two, and then wrapped."""

    def printed(call: Call, args: Sequence[exp.Expression]) -> exp.Expression:
        if not pa.types.is_integer(call.type):
            return exp.Paren(this=kind(this=args[0], expression=args[1]))
        return _wrapped(exp.Paren(this=kind(this=_wide(args[0]), expression=_wide(args[1]))))

    return printed


def _sign(made: Callable[[exp.Expression], exp.Expression]) -> Print:
    """An operation on the sign of a number; the least integer has no positive counterpart, and stays."""
    return lambda call, args: _wrapped(made(_wide(args[0]))) if pa.types.is_integer(call.type) else made(args[0])


def _remainder(call: Call, args: Sequence[exp.Expression]) -> exp.Expression:
    """The remainder of integers, with the sign of the dividend; NULL where the divisor is 0."""
    is_zero = exp.EQ(this=args[1], expression=_literal(Literal(call.type, 0)))
    rest = exp.Paren(this=exp.Mod(this=_wide(args[0]), expression=_wide(args[1].copy())))
    return exp.Case(ifs=[exp.If(this=is_zero, true=exp.Null())], default=_cast(rest, call.type))


def _wide(value: exp.Expression) -> exp.Expression:
    return exp.Cast(this=value, to=exp.DataType.build("INT128"))


def _function(name: str) -> Print:
    return lambda call, args: exp.Anonymous(this=name, expressions=list(args))


def _unless_zero(kind: type[exp.Expression]) -> Print:
    """An operator that is NULL where its second operand is 0."""

    def printed(call: Call, args: Sequence[exp.Expression]) -> exp.Expression:
        is_zero = exp.EQ(this=args[1], expression=_literal(Literal(call.args[1].type, 0.0)))
        branch = exp.If(this=is_zero, true=exp.Null())
        return exp.Case(ifs=[branch], default=exp.Paren(this=kind(this=args[0].copy(), expression=args[1].copy())))

    return printed


def _chain(kind: type[exp.Expression]) -> Print:
    def printed(call: Call, args: Sequence[exp.Expression]) -> exp.Expression:
        found = args[0]
        for arg in args[1:]:
            found = exp.Paren(this=kind(this=found, expression=arg))
        return found

    return printed


def _case(call: Call, args: Sequence[exp.Expression]) -> exp.Expression:
    branches = [exp.If(this=test, true=value) for test, value in zip(args[:-1:2], args[1:-1:2], strict=True)]
    return exp.Case(ifs=branches, default=args[-1])


PRINTED: dict[str, Print] = {
    "eq": _infix(exp.EQ), "ne": _infix(exp.NEQ), "lt": _infix(exp.LT), "le": _infix(exp.LTE), "gt": _infix(exp.GT),
    "ge": _infix(exp.GTE), "add": _arithmetic(exp.Add), "sub": _arithmetic(exp.Sub), "mul": _arithmetic(exp.Mul),
    "mod": _remainder, "div": _unless_zero(exp.Div),
    "and": _chain(exp.And), "or": _chain(exp.Or), "concat": _chain(exp.DPipe),
    "neg": _sign(lambda value: exp.Paren(this=exp.Neg(this=value))),
    "not": lambda call, args: exp.Paren(this=exp.Not(this=args[0])),
    "is_null": lambda call, args: exp.Paren(this=exp.Is(this=args[0], expression=exp.Null())),
    "in": lambda call, args: exp.Paren(this=exp.In(this=args[0], expressions=list(args[1:]))),
    "cast": lambda call, args: _cast(args[0], call.type),
    "abs": _sign(lambda value: exp.Anonymous(this="abs", expressions=[value])),
    "length": _function("length"), "coalesce": _function("coalesce"),
    "substring": _function("substring"), "greatest": _function("greatest"), "least": _function("least"),
    "trim": lambda call, args: exp.Anonymous(this="trim", expressions=[args[0], exp.Literal.string(" ")]),
    "case": _case,
}  # fmt: skip
