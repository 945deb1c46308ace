"""A block of ours with groups becomes one that a database runs: its SELECT, FROM, WHERE, GROUP BY and HAVING are printed.

The block keeps its keys, aggregates and predicates; what is added is the statement, by which the engine knows to hand it
over (`anabranch.engine.mig_box`). Filters of an input are not in it: rows are filtered at their source, before they are
stored.

    SELECT plug, MAX(load) * 2.0 AS m FROM plugs [RANGE 5 MINUTES] WHERE load > 0 GROUP BY plug HAVING COUNT(*) > 3

is, over the rows of `plugs` that are valid at an instant and have a load above 0,

    SELECT "key0" AS "plug", ("agg0" * CAST('2.0' AS DOUBLE)) AS "m"
    FROM (SELECT "plugs"."plug" AS "key0", MAX("plugs"."load") AS "agg0", COUNT(*) AS "agg1" FROM "plugs" GROUP BY 1) AS "g"
    WHERE ("agg1" > CAST('3' AS BIGINT))

A join without groups is asked for in each batch, for what is new of each input in turn, over rows with their validity.

A group without rows has no result, also where there are no keys: such a block asks for rows. RESULT_TIME is the instant,
which the engine fills in. Whether a block may be placed at all is for `anabranch.place.tree` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from anabranch.errors import PlanError
from anabranch.place.sql_text import DIALECT, aggregate_tree, expression_tree
from anabranch.plan.expression import Expr, Literal, ResultTime
from anabranch.plan.query import Derived, Grouping, Input, Query
from anabranch.plan.statement import FAIL, VALID, Statement

GROUPS = "g"
"""What the groups are called in a statement, as a relation."""

Places = Mapping[str, str]
"""The databases that run blocks of a query, by the names of the blocks."""


def placed(query: Query, places: Places, failure: str = FAIL) -> Query:
    """The query whose blocks of these names are run by databases, and no others but those in the words of one: `places` of
    what comes out are these. `failure` says what becomes of statements that fail."""
    if lost := [name for name in places if all(block.name != name for block in query.blocks)]:
        raise PlanError(f"query {query.name} has no block {lost[0]}")
    return _placed(query, places, failure)


def _placed(query: Query, places: Places, failure: str) -> Query:
    inputs = tuple(_input_placed(i, places, failure) for i in query.inputs)
    query = replace(query, inputs=inputs)
    if query.may_ask is not None and not query.may_ask.is_printed:
        return query
    if query.name not in places:
        return query.asking(None)
    if (grouping := query.grouping) is None:
        types, sql = tuple(expr.type for _, expr in query.select), join_text(query)
        return query.asking(Statement(places[query.name], sql, types, is_printed=True, failure=failure))
    types = tuple(expr.type for _, expr in grouping.select if not isinstance(expr, ResultTime))
    combinations = combinations_text(query) if len(inputs) > 1 else ""
    made = Statement(places[query.name], statement_text(query), types, True, failure, combinations)
    return query.asking(made)


def _input_placed(i: Input, places: Places, failure: str) -> Input:
    if not isinstance(i.source, Derived) or i.source.query is None:
        return i
    return replace(i, source=replace(i.source, query=_placed(i.source.query, places, failure)))


def statement_text(query: Query) -> str:
    """A block with groups in the SQL of DuckDB, over relations that are called as its inputs are."""
    grouping = query.grouping
    assert grouping is not None, "a block of a database has groups"
    found = exp.select(*(_named(expression_tree(e), name) for name, e in _shown(grouping)), dialect=DIALECT)
    found = found.from_(_groups(query, grouping).subquery(exp.to_identifier(GROUPS, quoted=True)))
    if grouping.having is not None:
        found = found.where(expression_tree(grouping.having))
    return found.sql(dialect=DIALECT)


def join_text(query: Query) -> str:
    """A join without groups in the SQL of DuckDB, over relations that have the validity of their rows (`VALID`). Its time is
    the latest start."""
    time = exp.Anonymous(this="make_timestamp", expressions=[_latest(query)])
    shown = [(name, time if isinstance(e, ResultTime) else expression_tree(e)) for name, e in query.select]
    return _meeting(exp.select(*(_named(each, name) for name, each in shown)), query).sql(dialect=DIALECT)


def combinations_text(query: Query) -> str:
    """The rows that a block groups, with their validity, over relations that have it, too."""
    shown = [_named(expression_tree(e), name) for name, e in query.select]
    ends = _named(_latest(query), VALID[0]), _named(_earliest(query), VALID[1])
    return _meeting(exp.select(*shown, *ends), query).sql(dialect=DIALECT)


def _latest(query: Query) -> exp.Expression:
    starts = [exp.column(VALID[0], table=alias, quoted=True) for alias in query.aliases]
    return exp.Anonymous(this="greatest", expressions=starts)


def _earliest(query: Query) -> exp.Expression:
    ends = [exp.column(VALID[1], table=alias, quoted=True) for alias in query.aliases]
    return exp.Anonymous(this="least", expressions=ends)


def _meeting(found: exp.Select, query: Query) -> exp.Select:
    """A SELECT over the combinations of a block: a result exists if the validities of all its rows intersect."""
    return _joined(found, query).where(exp.LT(this=_latest(query), expression=_earliest(query)))


def _shown(grouping: Grouping) -> list[tuple[str, Expr]]:
    """What is selected, but for the instant; a constant, if that is all: there is a row for each group."""
    found = [(name, expr) for name, expr in grouping.select if not isinstance(expr, ResultTime)]
    return found or [("n", Literal(pa.int64(), 1))]


def _groups(query: Query, grouping: Grouping) -> exp.Select:
    """The keys and aggregates of all groups, under the names by which expressions over groups read them."""
    columns = [expr for _, expr in query.select]
    keys = [_named(expression_tree(key), f"key{n}") for n, key in enumerate(columns[: grouping.keys])]
    made = (aggregate_tree(a, None if a.argument is None else columns[a.argument]) for a in grouping.aggregates)
    found = exp.select(*keys, *(_named(each, f"agg{n}") for n, each in enumerate(made)))
    if not keys and not grouping.aggregates:
        found = exp.select(_named(exp.Literal.number(1), "n"))
    found = _joined(found, query)
    if keys:
        return found.group_by(*(exp.Literal.number(n + 1) for n in range(len(keys))))
    return found.having("count(*) > 0", dialect=DIALECT)


def _joined(found: exp.Select, query: Query) -> exp.Select:
    """A SELECT over the inputs of a block, by its predicates."""
    found = found.from_(_relation(query.aliases[0]))
    for alias in query.aliases[1:]:
        found = found.join(_relation(alias), join_type="cross")
    for equality in query.equalities:
        sides = expression_tree(equality.left), expression_tree(equality.right)
        found = found.where(exp.Paren(this=exp.EQ(this=sides[0], expression=sides[1])))
    for residual in query.residuals:
        found = found.where(expression_tree(residual))
    return found


def _relation(alias: str) -> exp.Table:
    return exp.Table(this=exp.to_identifier(alias, quoted=True))


def _named(value: exp.Expression, name: str) -> exp.Alias:
    return exp.Alias(this=value, alias=exp.to_identifier(name, quoted=True))
