"""Typed expressions: what the SQL room binds and the engine evaluates.

An expression is one of four frozen nodes. All typing happens when SQL is bound: operands of a comparison or of arithmetic
already have one common type (the binder inserts `cast` calls), so that whoever evaluates never guesses.

The operations of `Call`, with their meaning (NULL in, NULL out, unless said otherwise):

===================== ==================================================================================================
add sub mul           numbers of one type; integers wrap; decimals widen by Spark's rules; a timestamp and a duration literal
div                   float64 operands, or decimals; NULL when the divisor is 0
mod                   sign of the dividend; NULL when the divisor is 0
neg abs               a number
eq ne lt le gt ge     two operands of one type; NaN equals NaN and is above all other numbers
and or not            three-valued logic
is_null               never NULL
in                    first operand against the others, with SQL's NULL logic
case                  condition, value, condition, value, …, else (the else is always there, perhaps a NULL literal)
coalesce              the first operand that is not NULL
cast                  to `type`; what cannot be converted becomes NULL
like                  string, pattern literal (% and _), case sensitive
upper lower trim      a string
length                of a string, in characters
concat                strings
substring             string, start (1-based, literal), length (literal, optional)
floor ceil            to int64 from float64
round                 number, digits (literal)
sqrt                  NULL below 0
greatest least        operands of one type; NULLs are passed over
year month day        of a date or timestamp, int64
hour minute second    of a timestamp, int64
===================== ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Expr:
    """The base of all expressions. `type` is an Arrow type. What an expression reads is asked for all the time: it is found
    once."""

    type: pa.DataType

    @cached_property
    def _columns(self) -> frozenset[Column]:
        return frozenset(node for node in walk(self) if isinstance(node, Column))

    @cached_property
    def _aliases(self) -> frozenset[str]:
        return frozenset(column.alias for column in columns_of(self))


@dataclass(frozen=True)
class Column(Expr):
    """A column of one input of the query."""

    alias: str
    name: str

    def __str__(self) -> str:
        return f"{self.alias}.{self.name}"


@dataclass(frozen=True)
class Literal(Expr):
    """A constant; `value` is the Python value that `pa.scalar(value, type)` takes, or None for NULL."""

    value: Any

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value)


@dataclass(frozen=True)
class Call(Expr):
    """An operation on expressions; the table in the module's docstring lists them."""

    op: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        if self.op in INFIX and len(self.args) == 2:
            return f"({self.args[0]} {INFIX[self.op]} {self.args[1]})"
        if self.op == "cast":
            return f"CAST({self.args[0]} AS {self.type})"
        return f"{self.op}({', '.join(map(str, self.args))})"


@dataclass(frozen=True)
class ResultTime(Expr):
    """`RESULT_TIME`: the time of a join result, the latest start among its rows."""

    def __str__(self) -> str:
        return "RESULT_TIME"


INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "AND", "or": "OR",
}  # fmt: skip


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first."""
    yield expr
    if isinstance(expr, Call):
        for arg in expr.args:
            yield from walk(arg)


def columns_of(expr: Expr) -> frozenset[Column]:
    """The columns that an expression reads. A column does not keep itself: what holds its own hash cannot be unpickled."""
    return frozenset((expr,)) if isinstance(expr, Column) else expr._columns


def aliases_of(expr: Expr) -> frozenset[str]:
    """The inputs that an expression reads."""
    return expr._aliases


def replace(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """The expression with `rule` applied to every node, children first."""
    if isinstance(expr, Call):
        expr = Call(expr.type, expr.op, tuple(replace(arg, rule) for arg in expr.args))
    return rule(expr)
