"""Where the predicates of a query stand, by the inputs that they read.

A query begins with all its predicates as residuals. Of these

- one that reads a single input becomes a filter of that input (`predicates_to_filters`): a row that fails it is not stored;
- `left = right`, each side over one input, not the same, becomes an equality (`equalities_to_keys`): joins look up by it;
- what is left, also what reads no input at all, stays a residual: it is decided on combined rows. So is what reads
  RESULT_TIME, which belongs to the whole result, however few inputs it names.

Predicates keep their order, within each of the three.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.plan.expression import Call, Expr, ResultTime, aliases_of, walk
from anabranch.plan.query import Equality, Query


def predicates_to_filters(query: Query) -> Query:
    """The query with residuals that read one input among the filters of that input."""
    filters: dict[str, list[Expr]] = {}
    residuals: list[Expr] = []
    for residual in query.residuals:
        read = () if reads_result_time(residual) else tuple(aliases_of(residual))
        if len(read) == 1:
            filters.setdefault(read[0], []).append(residual)
        else:
            residuals.append(residual)
    if not filters:
        return query
    inputs = tuple(replace(i, filters=(*i.filters, *filters.get(i.alias, ()))) for i in query.inputs)
    return replace(query, inputs=inputs, residuals=tuple(residuals))


def equalities_to_keys(query: Query) -> Query:
    """The query with residuals that say two inputs are equal in something among its equalities."""
    found = [_equality(residual) for residual in query.residuals]
    equalities = tuple(equality for equality in found if equality is not None)
    if not equalities:
        return query
    residuals = tuple(r for r, equality in zip(query.residuals, found, strict=True) if equality is None)
    return replace(query, equalities=(*query.equalities, *equalities), residuals=residuals)


def _equality(residual: Expr) -> Equality | None:
    if not isinstance(residual, Call) or residual.op != "eq" or reads_result_time(residual):
        return None
    left, right = residual.args
    sides = aliases_of(left), aliases_of(right)
    return Equality(left, right) if len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1] else None


def reads_result_time(expr: Expr) -> bool:
    return any(isinstance(node, ResultTime) for node in walk(expr))
