"""Subqueries without groups taken apart: their inputs and predicates become those of the query around them.

    SELECT x.k FROM (SELECT a.k FROM a [NOW], b [NOW] WHERE a.k = b.k) AS x, c [NOW] WHERE x.k = c.k

becomes

    SELECT x_a.k FROM a [NOW] AS x_a, b [NOW] AS x_b, c [NOW] WHERE x_a.k = x_b.k AND x_a.k = c.k

Predicates that read columns of a subquery read other inputs then, perhaps several, perhaps none: they become residuals, and
`anabranch.plan.predicates` finds where they stand.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.plan.expression import Call, Column, Expr, ResultTime
from anabranch.plan.expression import replace as rewrite
from anabranch.plan.predicates import reads_result_time
from anabranch.plan.query import Derived, Equality, Input, Query, Stream


class CannotFlattenError(PlanError):
    """A subquery that has no meaning when it is taken apart."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def subqueries_to_inputs(query: Query) -> Query:
    """The query with the inputs of its ungrouped subqueries in their place. Their aliases are `x_a` for `a` in `x`."""
    inner = {i.alias: i.source.query for i in query.inputs if isinstance(i.source, Derived)}
    taken_apart = {alias: q for alias, q in inner.items() if q is not None and q.grouping is None}
    if not taken_apart:
        return query
    names = _names(query, taken_apart)
    selected = {
        alias: {name: _renamed(_timed(expr, q), alias, names) for name, expr in q.select}
        for alias, q in taken_apart.items()
    }

    def moved(expr: Expr) -> Expr:
        def rule(node: Expr) -> Expr:
            return selected[node.alias][node.name] if isinstance(node, Column) and node.alias in selected else node

        return rewrite(expr, rule)

    inputs: list[Input] = []
    equalities: list[Equality] = []
    conjuncts: list[Expr] = []
    for i in query.inputs:
        if i.alias not in taken_apart:
            inputs.append(i)
            continue
        q = taken_apart[i.alias]
        for part in q.inputs:
            filters = tuple(_renamed(f, i.alias, names) for f in part.filters)
            inputs.append(replace(part, alias=names[i.alias, part.alias], filters=filters))
        equalities += [
            Equality(_renamed(e.left, i.alias, names), _renamed(e.right, i.alias, names)) for e in q.equalities
        ]
        conjuncts += [_renamed(_timed(r, q), i.alias, names) for r in q.residuals]
        conjuncts += [moved(f) for f in i.filters]
    for equality in query.equalities:
        conjuncts.append(Call(pa.bool_(), "eq", (moved(equality.left), moved(equality.right))))
    conjuncts += [moved(r) for r in query.residuals]
    select = tuple((name, moved(expr)) for name, expr in query.select)
    return replace(query, inputs=tuple(inputs), equalities=tuple(equalities), residuals=tuple(conjuncts), select=select)


def _names(query: Query, inner: dict[str, Query]) -> dict[tuple[str, str], str]:
    """New aliases for the inputs of subqueries, none of them twice."""
    taken, names = set(query.aliases) - inner.keys(), {}
    for alias, q in inner.items():
        for part in q.aliases:
            name = f"{alias}_{part}"
            while name in taken:
                name += "_"
            taken.add(name)
            names[alias, part] = name
    return names


def _renamed(expr: Expr, alias: str, names: dict[tuple[str, str], str]) -> Expr:
    def rule(node: Expr) -> Expr:
        return Column(node.type, names[alias, node.alias], node.name) if isinstance(node, Column) else node

    return rewrite(expr, rule)


def _timed(expr: Expr, query: Query) -> Expr:
    """RESULT_TIME of a subquery over one stream is that stream's time; over several it is not a column of any."""
    if not reads_result_time(expr):
        return expr
    streams = [i for i in query.inputs if isinstance(i.source, Stream)]
    if len(streams) != 1:
        raise CannotFlattenError(
            "RESULT_TIME in a subquery that joins streams is not supported",
            "select the time column of a stream instead",
        )
    source = streams[0].source
    assert isinstance(source, Stream)
    time = Column(expr.type, streams[0].alias, source.time)
    return rewrite(
        expr, lambda node: Column(node.type, time.alias, time.name) if isinstance(node, ResultTime) else node
    )
