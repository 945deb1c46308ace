"""GROUP BY, HAVING and aggregates: a select list over groups becomes keys, aggregates, and expressions over both."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from anabranch.errors import SyntaxSqlError, TypeMismatchError, UnsupportedSqlError
from anabranch.plan.expression import Column, Expr, Literal, ResultTime, columns_of, walk
from anabranch.plan.query import GROUP, Aggregate
from anabranch.sql.coercion import BadTypesError, cast_to, number
from anabranch.sql.expressions import ExpressionBinder
from anabranch.sql.functions import AGGREGATES
from anabranch.sql.scope import Scope
from anabranch.sql.syntax import AggregateCall, Select, SelectItem, offset_of
from anabranch.sql.text import SqlText
from anabranch.sql.types import MAX_PRECISION, is_numeric, spell


def is_grouped(select: Select) -> bool:
    """Whether a SELECT is over groups."""
    exprs = [item.expr for item in select.items if item.expr is not None]
    return bool(select.group_by) or select.having is not None or any(has_aggregate(e) for e in exprs)


def has_aggregate(node: exp.Expr) -> bool:
    return node.find(AggregateCall) is not None


@dataclass
class Groups:
    """What the expressions over groups need of the rows: keys, then arguments of aggregates."""

    keys: list[Expr]
    arguments: list[Expr] = field(default_factory=list)
    aggregates: list[Aggregate] = field(default_factory=list)

    def key(self, expr: Expr) -> Column | None:
        return Column(expr.type, GROUP, f"key{self.keys.index(expr)}") if expr in self.keys else None

    def aggregate(self, function: str, argument: Expr | None, type: pa.DataType) -> Column:
        place = None
        if argument is not None:
            if argument not in self.arguments:
                self.arguments.append(argument)
            place = len(self.keys) + self.arguments.index(argument)
        found = Aggregate(function, place, type)
        if found not in self.aggregates:
            self.aggregates.append(found)
        return Column(type, GROUP, f"agg{self.aggregates.index(found)}")

    @property
    def rows(self) -> tuple[tuple[str, Expr], ...]:
        """The columns of the rows that are grouped."""
        keys = [(f"key{i}", key) for i, key in enumerate(self.keys)]
        return (*keys, *((f"arg{i}", argument) for i, argument in enumerate(self.arguments)))


def bind_keys(select: Select, text: SqlText, scope: Scope) -> list[Expr]:
    """The keys of GROUP BY: expressions over the inputs, names or places of the select list."""
    binder, keys = ExpressionBinder(text, scope), []
    for node in select.group_by:
        if has_aggregate(node):
            raise text.error(SyntaxSqlError, "an aggregate cannot be a key of GROUP BY", offset_of(node),
                             "group by columns of the inputs")  # fmt: skip
        key = binder.bind(_meant(node, select, text, scope))
        if any(isinstance(n, ResultTime) for n in walk(key)):
            raise text.error(UnsupportedSqlError, "GROUP BY RESULT_TIME is not supported", offset_of(node),
                             "every instant has groups of its own already: leave it out")  # fmt: skip
        if pa.types.is_nested(key.type) or pa.types.is_duration(key.type) or pa.types.is_null(key.type):
            raise text.error(TypeMismatchError, f"{spell(key.type)} cannot be a key of GROUP BY", offset_of(node),
                             "group by columns of a simple type")  # fmt: skip
        if key not in keys:
            keys.append(key)
    return keys


def _meant(node: exp.Expr, select: Select, text: SqlText, scope: Scope) -> exp.Expr:
    """What an entry of GROUP BY stands for: itself, or an entry of the select list by its name or place."""
    if isinstance(node, exp.Literal) and not node.is_string:
        place = int(node.name) if node.name.isdigit() else 0
        item = select.items[place - 1] if 1 <= place <= len(select.items) else None
        if item is None or item.expr is None:
            raise text.error(SyntaxSqlError, f"GROUP BY {node.name}: there is no such entry in the select list",
                             offset_of(node), "group by columns of the inputs")  # fmt: skip
        return _without_aggregate(item, node, text)
    if isinstance(node, exp.Column) and node.args.get("table") is None:
        name = node.name.lower()
        is_column = any(f.name.lower() == name for i in scope.inputs for f in i.source.fields)
        named = [i for i in select.items if i.alias is not None and i.alias.text.lower() == name and i.expr is not None]
        if named and not is_column:
            return _without_aggregate(named[0], node, text)
    return node


def _without_aggregate(item: SelectItem, node: exp.Expr, text: SqlText) -> exp.Expr:
    assert item.expr is not None
    if has_aggregate(item.expr):
        raise text.error(SyntaxSqlError, "an aggregate cannot be a key of GROUP BY", offset_of(node),
                         "group by columns of the inputs")  # fmt: skip
    return item.expr


class GroupBinder(ExpressionBinder):
    """Binds expressions over groups: keys, aggregates, and what is computed from them."""

    def __init__(self, text: SqlText, scope: Scope, groups: Groups) -> None:
        super().__init__(text, scope)
        self.groups, self.rows = groups, ExpressionBinder(text, scope)

    def _bind(self, node: exp.Expr) -> Expr:
        if isinstance(node, AggregateCall):
            return self._aggregate(node)
        if not has_aggregate(node):
            found = self.rows.bind(node)
            key = self.groups.key(found)
            if key is not None:
                return key
            if not columns_of(found):
                return found
            if isinstance(node, exp.Column):
                raise self.text.error(
                    UnsupportedSqlError, f"{node.name} is neither in GROUP BY nor in an aggregate", offset_of(node),
                    f"add it to GROUP BY, or take one of its values: MAX({node.name})",
                )  # fmt: skip
        return super()._bind(node)

    def _aggregate(self, node: AggregateCall) -> Expr:
        name, function = str(node.this), AGGREGATES[str(node.this)]
        args: list[exp.Expr] = node.expressions
        if any(has_aggregate(arg) for arg in args):
            raise self.text.error(UnsupportedSqlError, "an aggregate of an aggregate is not supported", offset_of(node),
                                  f"put the inner one in a subquery: SELECT {name}(x) FROM (SELECT … AS x …) s")  # fmt: skip
        argument = self.rows.bind(args[0]) if args else None
        if argument is not None and any(isinstance(n, ResultTime) for n in walk(argument)):
            raise self.text.error(UnsupportedSqlError, f"RESULT_TIME in {name} is not supported", offset_of(node),
                                  "aggregate the time column of a stream")  # fmt: skip
        if argument is not None and (pa.types.is_nested(argument.type) or pa.types.is_duration(argument.type)):
            raise BadTypesError(f"{name} of {spell(argument.type)} is not supported", "aggregate a simple value")
        if argument is not None and pa.types.is_null(argument.type):
            argument = Literal(pa.int64(), None)
        if node.args.get("distinct"):
            return self._distinct(name, function, argument, offset_of(node))
        return self._plain(name, function, argument)

    def _distinct(self, name: str, function: str, argument: Expr | None, at: int) -> Expr:
        if function in ("min", "max"):
            return self._plain(name, function, argument)
        if function != "count" or argument is None:
            raise self.text.error(UnsupportedSqlError, f"{name}(DISTINCT …) is not supported", at,
                                  "group by the value in a subquery first, or write COUNT(DISTINCT x)")  # fmt: skip
        return self.groups.aggregate("count_distinct", argument, pa.int64())

    def _plain(self, name: str, function: str, argument: Expr | None) -> Expr:
        if function == "count":
            return self.groups.aggregate("count", argument, pa.int64())
        assert argument is not None
        if function in ("min", "max"):
            return self.groups.aggregate(function, argument, argument.type)
        if not is_numeric(argument.type):
            raise BadTypesError(f"{name} takes numbers, not {spell(argument.type)}")
        if function in ("avg", "stddev"):
            return self.groups.aggregate(function, cast_to(argument, pa.float64()), pa.float64())
        summed = number(argument)
        if pa.types.is_floating(summed.type):
            return self.groups.aggregate("sum", cast_to(summed, pa.float64()), pa.float64())
        kind = summed.type
        if pa.types.is_decimal(kind):
            kind = pa.decimal128(min(MAX_PRECISION, kind.precision + 10), kind.scale)
        return self.groups.aggregate("sum", summed, kind)
