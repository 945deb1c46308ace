"""Expressions bound: sqlglot's nodes to typed ones of `plan.expression`, names resolved, casts inserted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from math import isfinite

import pyarrow as pa
from sqlglot import exp

from anabranch.errors import TypeMismatchError, UnsupportedSqlError
from anabranch.plan.expression import Call, Expr, Literal, ResultTime
from anabranch.sql.coercion import BadTypesError, arithmetic, comparison, condition, number, parse_temporal, text, unify
from anabranch.sql.functions import FUNCTIONS, case, concat
from anabranch.sql.scope import Scope
from anabranch.sql.syntax import AggregateCall, ArrowType, Length, Name, TypedLiteral, offset_of
from anabranch.sql.text import SqlText
from anabranch.sql.types import MAX_PRECISION, TIMESTAMP, castable, is_temporal, spell

RESULT_TIME = "RESULT_TIME"
COMPARISONS = {exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge"}
ARITHMETIC = {exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.Mod: "mod"}
CONNECTORS = {exp.And: "and", exp.Or: "or"}
REFUSED = {
    exp.ILike: ("ILIKE", "write LOWER(text) LIKE 'pattern'"),
    exp.RegexpLike: ("RLIKE", "write LIKE with % and _"),
    exp.Escape: ("ESCAPE", "write a pattern that needs none"),
    exp.IntDiv: ("DIV", "write CAST(a / b AS BIGINT)"),
    exp.BitwiseAnd: ("the operator &", ""),
    exp.BitwiseOr: ("the operator |", "strings are joined by ||, conditions by OR"),
    exp.BitwiseXor: ("the operator ^", ""),
    exp.BitwiseLeftShift: ("the operator <<", ""),
    exp.BitwiseRightShift: ("the operator >>", ""),
    exp.AtTimeZone: ("AT TIME ZONE", "timestamps are without zone; shift by an INTERVAL"),
}
FALSE = Literal(pa.bool_(), False)


class ExpressionBinder:
    """Binds expressions over one scope."""

    def __init__(self, text: SqlText, scope: Scope) -> None:
        self.text, self.scope = text, scope

    def bind(self, node: exp.Expr) -> Expr:
        try:
            return self._bind(node)
        except BadTypesError as error:
            raise self.text.error(TypeMismatchError, str(error), offset_of(node), error.hint) from None

    def predicate(self, node: exp.Expr) -> Expr:
        """An expression that must be true or false."""
        bound = self.bind(node)
        try:
            return condition(bound)
        except BadTypesError as error:
            raise self.text.error(TypeMismatchError, str(error), offset_of(node), error.hint) from None

    def _bind(self, node: exp.Expr) -> Expr:
        kind = type(node)
        if isinstance(node, exp.Paren):
            return self.bind(node.this)
        if isinstance(node, exp.Column):
            return self._column(node)
        if kind in COMPARISONS:
            return comparison(COMPARISONS[kind], *self._operands(node))
        if kind in ARITHMETIC:
            return arithmetic(ARITHMETIC[kind], *self._operands(node))
        if kind in CONNECTORS:
            return balanced(CONNECTORS[kind], [self.predicate(part) for part in chain(node)])
        if isinstance(node, exp.Cast):
            return self._cast(node)
        if isinstance(node, exp.Anonymous):
            return self._function(node)
        if isinstance(node, exp.Not):
            return negation(self.predicate(node.this))
        if isinstance(node, exp.Neg):
            return self._negative(node)
        if isinstance(node, exp.DPipe):
            return concat(self._operands(node))
        if isinstance(node, exp.Case):
            return self._case(node)
        return self._predicate_or_literal(node)

    def _predicate_or_literal(self, node: exp.Expr) -> Expr:
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In):
            return Call(pa.bool_(), "in", unify([self.bind(node.this), *map(self.bind, node.expressions)]))
        if isinstance(node, exp.Between):
            value = self.bind(node.this)
            low, high = self.bind(node.args["low"]), self.bind(node.args["high"])
            return Call(pa.bool_(), "and", (comparison("ge", value, low), comparison("le", value, high)))
        if isinstance(node, exp.Like):
            return self._like(node)
        if isinstance(node, (exp.NullSafeEQ, exp.NullSafeNEQ)):
            same = null_safe_equal(*self._operands(node))
            return same if isinstance(node, exp.NullSafeEQ) else negation(same)
        if isinstance(node, (exp.Literal, exp.HexString, exp.Boolean, exp.Null, TypedLiteral, Length)):
            return literal(node)
        if isinstance(node, AggregateCall):
            raise self.text.error(UnsupportedSqlError, f"{node.this} here is not supported", offset_of(node),
                                  "aggregates stand in the select list and in HAVING")  # fmt: skip
        what, hint = REFUSED.get(type(node), (f"the operator {type(node).__name__}", ""))
        raise self.text.error(UnsupportedSqlError, f"{what} is not supported", offset_of(node), hint)

    def _operands(self, node: exp.Expr) -> tuple[Expr, Expr]:
        return self.bind(node.this), self.bind(node.args["expression"])

    def _column(self, node: exp.Column) -> Expr:
        name, owner = name_of(node.this), node.args.get("table")
        if owner is None and not name.quoted and name.text.upper() == RESULT_TIME:
            return ResultTime(TIMESTAMP)
        return self.scope.column(name_of(owner) if owner is not None else None, name)

    def _cast(self, node: exp.Cast) -> Expr:
        value, to = self.bind(node.this), node.args["to"]
        assert isinstance(to, ArrowType)
        target: pa.DataType = to.this
        if value.type == target:
            return value
        if not castable(value.type, target):
            hint = "take a part of it: YEAR, MONTH, DAY, HOUR, MINUTE, SECOND" if is_temporal(value.type) else ""
            raise BadTypesError(f"{spell(value.type)} cannot be cast to {spell(target)}", hint)
        if isinstance(value, Literal) and value.value is None:
            return Literal(target, None)
        return Call(target, "cast", (value,))

    def _function(self, node: exp.Anonymous) -> Expr:
        name = str(node.this)
        function = FUNCTIONS[name]
        args = [self.bind(arg) for arg in node.expressions]
        if len(args) < function.least or (function.most is not None and len(args) > function.most):
            wanted = f"{function.least}" if function.most == function.least else f"{function.least} or more"
            if function.most is not None and function.most != function.least:
                wanted = f"{function.least} to {function.most}"
            raise BadTypesError(f"{name} takes {wanted} operands, not {len(args)}")
        return function.bind(args)

    def _negative(self, node: exp.Neg) -> Expr:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return numeric_literal("-" + node.this.name)
        value = number(self.bind(node.this))
        return Call(value.type, "neg", (value,))

    def _case(self, node: exp.Case) -> Expr:
        subject = self.bind(node.this) if node.this is not None else None
        branches: list[tuple[Expr, Expr]] = []
        for branch in node.args["ifs"]:
            when = branch.this
            test = self.predicate(when) if subject is None else comparison("eq", subject, self.bind(when))
            branches.append((test, self.bind(branch.args["true"])))
        default = node.args.get("default")
        return case(branches, self.bind(default) if default is not None else Literal(pa.null(), None))

    def _is(self, node: exp.Is) -> Expr:
        value, right = node.this, node.args["expression"]
        if isinstance(right, exp.Null):
            test: Expr = Call(pa.bool_(), "is_null", (self.bind(value),))
        elif isinstance(right, exp.Boolean):
            truth = self.predicate(value)
            test = Call(pa.bool_(), "coalesce", (truth if right.this else negation(truth), FALSE))
        else:
            raise self.text.error(UnsupportedSqlError, "IS with anything but NULL, TRUE and FALSE is not supported",
                                  offset_of(node), "write = or IS NOT DISTINCT FROM")  # fmt: skip
        return negation(test) if node.args.get("negate") else test

    def _like(self, node: exp.Like) -> Expr:
        value, pattern = self._operands(node)
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise BadTypesError("the pattern of LIKE must be a string literal")
        test = Call(pa.bool_(), "like", (text(value), pattern))
        return negation(test) if node.args.get("negate") else test


def name_of(node: exp.Expr) -> Name:
    return Name(node.name, offset_of(node), bool(node.args.get("quoted")))


def negation(expr: Expr) -> Expr:
    return Call(pa.bool_(), "not", (expr,))


def null_safe_equal(left: Expr, right: Expr) -> Expr:
    """IS NOT DISTINCT FROM: NULL equals NULL, and the answer is never NULL."""
    equal = comparison("eq", left, right)
    assert isinstance(equal, Call)
    missing = [Call(pa.bool_(), "is_null", (operand,)) for operand in equal.args]
    return Call(pa.bool_(), "case", (missing[0], missing[1], missing[1], FALSE, equal))


def chain(node: exp.Expr) -> list[exp.Expr]:
    """The operands of a row of ANDs (or of ORs), in order; a loop, for a thousand of them nest a thousand deep."""
    kind, parts, left = type(node), [], [node]
    while left:
        current = left.pop()
        inner = current.this if isinstance(current, exp.Paren) and isinstance(current.this, kind) else current
        if isinstance(inner, kind):
            left += [inner.args["expression"], inner.this]
        else:
            parts.append(inner)
    return parts


def balanced(op: str, operands: Sequence[Expr]) -> Expr:
    """A row of operands as a tree of least depth.

    >>> str(balanced("or", [Literal(pa.bool_(), value) for value in (True, False, True, True)]))
    '((True OR False) OR (True OR True))'
    """
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return Call(pa.bool_(), op, (balanced(op, operands[:middle]), balanced(op, operands[middle:])))


def numeric_literal(digits: str) -> Literal:
    """An integer is a BIGINT, a number with a point a DECIMAL, one with an exponent a DOUBLE.

    >>> numeric_literal("1.50").type
    Decimal128Type(decimal128(3, 2))
    """
    try:
        exact = Decimal(digits)
    except InvalidOperation:
        raise BadTypesError(f"{digits} is not a number") from None
    if "E" not in digits.upper():
        places = -int(exact.as_tuple().exponent)
        if places == 0 and "." not in digits:
            if not -(2**63) <= exact < 2**63:
                raise BadTypesError(f"{digits} is out of the range of BIGINT", "write a DECIMAL: add .0")
            return Literal(pa.int64(), int(exact))
        precision = max(len(exact.as_tuple().digits), places)
        if precision <= MAX_PRECISION:
            return Literal(pa.decimal128(precision, places), exact)
    if not isfinite(float(exact)):
        raise BadTypesError(f"{digits} is out of the range of DOUBLE")
    return Literal(pa.float64(), float(exact))


def literal(node: exp.Expr) -> Literal:
    """A constant as the user wrote it."""
    if isinstance(node, exp.Literal):
        return Literal(pa.string(), node.name) if node.is_string else numeric_literal(node.name)
    if isinstance(node, exp.Boolean):
        return Literal(pa.bool_(), bool(node.this))
    if isinstance(node, TypedLiteral):
        found = parse_temporal(str(node.this), node.args["to"].this)
        if found.type != node.args["to"].this:
            raise BadTypesError(f"{str(node.this)!r} has a time of day", "write TIMESTAMP '…'")
        return found
    if isinstance(node, Length):
        return Literal(pa.duration("us"), timedelta(microseconds=int(node.this)))
    if isinstance(node, exp.HexString):
        try:
            return Literal(pa.binary(), bytes.fromhex(str(node.this)))
        except ValueError:
            raise BadTypesError(f"X'{node.this}' is not a row of bytes in hexadecimal") from None
    return Literal(pa.null(), None)
