"""Whether a query is consistent in itself; tests ask it after every rewrite.

- A column is one of an input of the query, under its alias, with the type that the source declares.
- Predicates are boolean. A filter reads its own input alone.
- The fields of a subquery as a source are what the subquery gives.
- Keys and arguments of a grouping are columns of the query's select list; what is selected of groups reads these keys and
  aggregates, with their types.

In a query that has been rewritten (`anabranch.plan.rewrites`), moreover, subqueries have groups, and no residual reads a
single input, unless it reads RESULT_TIME.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.plan.expression import Column, Expr, aliases_of, columns_of
from anabranch.plan.predicates import reads_result_time
from anabranch.plan.query import GROUP, Derived, Grouping, Query


def verify(query: Query) -> None:
    """Raises PlanError if a query, or a subquery of it, contradicts itself."""
    known = {(i.alias, f.name): f.type for i in query.inputs for f in i.source.fields}
    equalities = [side for e in query.equalities for side in (e.left, e.right)]
    _verify_columns(query, [*equalities, *query.residuals, *(e for _, e in query.select)], known)
    for i in query.inputs:
        _verify_columns(query, i.filters, known)
        for predicate in i.filters:
            if aliases_of(predicate) != {i.alias}:
                raise PlanError(f"query {query.name}: {predicate} is a filter of {i.alias}, and does not read it alone")
        if isinstance(i.source, Derived) and i.source.query is not None:
            verify(i.source.query)
            declared = [(f.name, f.type) for f in i.source.fields]
            if declared != [(f.name, f.type) for f in i.source.query.output_schema]:
                raise PlanError(f"query {query.name}: the fields of {i.alias} are not those that its subquery gives")
    for predicate in (*query.residuals, *(f for i in query.inputs for f in i.filters)):
        if predicate.type != pa.bool_():
            raise PlanError(f"query {query.name}: {predicate} is {predicate.type}, and cannot be a predicate")
    if query.grouping is not None:
        _verify_groups(query, query.grouping)


def verify_rewritten(query: Query) -> None:
    """The same for a query after all rewrites."""
    verify(query)
    for block in query.blocks:
        for i in block.inputs:
            if isinstance(i.source, Derived) and i.source.query is not None and i.source.query.grouping is None:
                raise PlanError(f"query {block.name}: {i.alias} is a subquery without groups, and was not taken apart")
        for residual in block.residuals:
            if len(aliases_of(residual)) == 1 and not reads_result_time(residual):
                raise PlanError(f"query {block.name}: {residual} reads one input, and is no filter of it")


def _verify_columns(query: Query, exprs: Iterable[Expr], known: dict[tuple[str, str], pa.DataType]) -> None:
    for column in {column for expr in exprs for column in columns_of(expr)}:
        declared = known.get((column.alias, column.name))
        if declared is None:
            raise PlanError(f"query {query.name}: there is no column {column}")
        if declared != column.type:
            raise PlanError(f"query {query.name}: {column} is {declared}, and is read as {column.type}")


def _verify_groups(query: Query, grouping: Grouping) -> None:
    if grouping.keys > len(query.select):
        raise PlanError(f"query {query.name}: {grouping.keys} keys of groups, but {len(query.select)} columns")
    for aggregate in grouping.aggregates:
        if aggregate.argument is not None and not grouping.keys <= aggregate.argument < len(query.select):
            raise PlanError(f"query {query.name}: {aggregate} reads a column that is no argument")
    known = {(GROUP, f"key{at}"): expr.type for at, (_, expr) in enumerate(query.select[: grouping.keys])}
    known |= {(GROUP, f"agg{at}"): aggregate.type for at, aggregate in enumerate(grouping.aggregates)}
    if grouping.statement is not None:
        known |= {(GROUP, f"out{at}"): type for at, type in enumerate(grouping.statement.types)}
    having = () if grouping.having is None else (grouping.having,)
    _verify_columns(query, [*(expr for _, expr in grouping.select), *having], known)
    for name, expr in grouping.select:
        if isinstance(expr, Column) and expr.alias != GROUP:
            raise PlanError(f"query {query.name}: {name} is selected of groups, and reads {expr}")
