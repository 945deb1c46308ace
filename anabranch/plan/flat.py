"""Subqueries without groups taken apart: their inputs and predicates become those of the query around them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.plan.expression import Call, Column, Expr, ResultTime, aliases_of, walk
from anabranch.plan.expression import replace as rewrite
from anabranch.plan.query import Derived, Equality, Grouping, Input, Query, Stream


class CannotFlattenError(PlanError):
    """A subquery that has no meaning when it is taken apart."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def flat(query: Query) -> Query:
    """The query with the inputs of its ungrouped subqueries in their place. Their aliases are `x_a` for `a` in `x`."""
    inner = {i.alias: i.source.query for i in query.inputs if isinstance(i.source, Derived)}
    taken_apart = {alias: q for alias, q in inner.items() if q is not None and q.grouping is None}
    if not taken_apart:
        return query
    names = _names(query, taken_apart)
    selected = {
        alias: {name: _renamed(_timed(expr, q), alias, names) for name, expr in q.select} for alias, q in taken_apart.items()
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
        equalities += [Equality(_renamed(e.left, i.alias, names), _renamed(e.right, i.alias, names)) for e in q.equalities]
        conjuncts += [_renamed(_timed(r, q), i.alias, names) for r in q.residuals]
        conjuncts += [moved(f) for f in i.filters]
    for equality in query.equalities:
        left, right = moved(equality.left), moved(equality.right)
        sides = aliases_of(left), aliases_of(right)
        if len(sides[0]) == 1 and len(sides[1]) == 1 and sides[0] != sides[1]:
            equalities.append(Equality(left, right))
        else:
            conjuncts.append(Call(pa.bool_(), "eq", (left, right)))
    conjuncts += [moved(r) for r in query.residuals]
    residuals: list[Expr] = []
    for conjunct in conjuncts:
        read = aliases_of(conjunct)
        place = next((p for p, i in enumerate(inputs) if {i.alias} == read), None)
        if place is not None and not any(isinstance(n, ResultTime) for n in walk(conjunct)):
            inputs[place] = replace(inputs[place], filters=(*inputs[place].filters, conjunct))
        else:
            residuals.append(conjunct)
    select = tuple((name, moved(expr)) for name, expr in query.select)
    grouping: Grouping | None = query.grouping
    return Query(query.name, tuple(inputs), tuple(equalities), tuple(residuals), select, query.sql, grouping)


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
    if not any(isinstance(n, ResultTime) for n in walk(expr)):
        return expr
    streams = [i for i in query.inputs if isinstance(i.source, Stream)]
    if len(streams) != 1:
        raise CannotFlattenError(
            "RESULT_TIME in a subquery that joins streams is not supported", "select the time column of a stream instead"
        )
    source = streams[0].source
    assert isinstance(source, Stream)
    time = Column(expr.type, streams[0].alias, source.time)
    return rewrite(expr, lambda node: Column(node.type, time.alias, time.name) if isinstance(node, ResultTime) else node)
