"""Another select list or HAVING over state that is there.

What a slot keeps of a query follows from its inputs, windows and predicates, and from the select list in two ways: rows are
stored with the columns that some expression reads, and groups are partial rows of some keys and aggregates. Results are made
of these at the end. So a query may be given another select list as long as it asks for nothing that the state lacks. It then
*adopts* the shape of the state: it goes on storing the columns that were stored (`Query.kept`), and folds the same keys and
aggregates in the same order, whatever it selects of them.

Example: the state is that of `SELECT g, SUM(v) AS s, COUNT(*) AS n … GROUP BY g`. `SELECT COUNT(*) AS trades … GROUP BY g
HAVING SUM(v) > 10` adopts it: its first aggregate is the second that the state has. `SELECT g, MAX(v)` does not: there is no
MAX.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.plan.expression import Column, Expr, columns_of
from anabranch.plan.expression import replace as rewritten
from anabranch.plan.query import GROUP, Aggregate, Grouping, Query, Stream, Table


def is_stored(query: Query, alias: str) -> bool:
    """Whether rows of an input are of use after their batch (`anabranch.engine.reader.Reader.keeps`)."""
    return (len(query.inputs) > 1 or query.statement is not None) and alias != query.passing_stream


def kept_columns(query: Query, alias: str) -> tuple[Column, ...]:
    """The columns that rows of an input are stored with, but for their time, which always is."""
    if not is_stored(query, alias):
        return ()
    needed, source = query.needed_columns(alias), query.input(alias).source
    return tuple(Column(f.type, alias, f.name) for f in source.fields if f.name in needed and not _is_time(source, f.name))


def looked_at(query: Query, alias: str) -> tuple[Column, ...]:
    """The columns of an input that predicates read, or that are folded into groups."""
    exprs: list[Expr] = [*query.input(alias).filters, *query.residuals]
    exprs += [side for e in query.equalities for side in (e.left, e.right)]
    exprs += [expr for _, expr in query.select] if query.grouping is not None else []
    read = {c.name for e in exprs for c in columns_of(e) if c.alias == alias}
    return tuple(Column(f.type, alias, f.name) for f in query.input(alias).source.fields if f.name in read)


def adopted(query: Query, state: Query) -> tuple[Query, tuple[str, ...]]:
    """A query in the shape of the state that another one left behind, and what that state lacks of what it selects. Whether
    the two are alike in all else is for the caller to find out."""
    if query.grouping is None and state.grouping is None:
        kept = tuple(c for alias in query.aliases if alias in state.aliases for c in kept_columns(state, alias))
        return replace(query, kept=kept), tuple(_lacking_columns(query, kept))
    if query.grouping is not None and state.grouping is not None:
        return _with_groups(query, query.grouping, state, state.grouping)
    return query, ()


def _lacking_columns(query: Query, kept: tuple[Column, ...]) -> list[str]:
    """The columns that a query has stored, and that the rows of the state do not have."""
    there, found = {(c.alias, c.name): c.type for c in kept}, []
    for column in (c for alias in query.aliases for c in kept_columns(query, alias)):
        source, type = query.input(column.alias).source, there.get((column.alias, column.name))
        if type is None:
            found.append(f"column {column.name} of {source.name} is not in the state")
        elif type != column.type:
            found.append(f"column {column.name} of {source.name} is {type} in the state, not {column.type}")
    return found


def _is_time(source: Stream | Table, column: str) -> bool:
    return isinstance(source, Stream) and source.time == column


def _with_groups(query: Query, wanted: Grouping, state: Query, has: Grouping) -> tuple[Query, tuple[str, ...]]:
    """A query whose groups are those of the state: results and HAVING read its keys and aggregates."""
    lacking: list[str] = []
    keys = [expr for _, expr in state.select[: has.keys]]
    places: dict[str, str] = {}
    for at, (_, key) in enumerate(query.select[: wanted.keys]):
        if key in keys:
            places[f"key{at}"] = f"key{keys.index(key)}"
        else:
            lacking.append(f"the groups of the state have no key {key}")
    there = [_meant(a, state) for a in has.aggregates]
    for at, aggregate in enumerate(wanted.aggregates):
        meant = _meant(aggregate, query)
        if meant in there:
            places[f"agg{at}"] = f"agg{there.index(meant)}"
        else:
            lacking.append(f"{_shown(aggregate, query)} is not among the aggregates of the state")
    asked = [expr for _, expr in query.select[: wanted.keys]]
    lacking += [f"the groups of the state have the key {key} too" for key in keys if key not in asked]
    if lacking:
        return query, tuple(lacking)

    def moved(expr: Expr) -> Expr:
        return rewritten(expr, lambda e: Column(e.type, GROUP, places[e.name]) if isinstance(e, Column) else e)

    select = tuple((name, moved(expr)) for name, expr in wanted.select)
    having = moved(wanted.having) if wanted.having is not None else None
    made = Grouping(has.keys, has.aggregates, select, having, wanted.slide_us)
    return replace(query, select=state.select, grouping=made), ()


def _meant(aggregate: Aggregate, query: Query) -> tuple[object, ...]:
    argument = None if aggregate.argument is None else query.select[aggregate.argument][1]
    return aggregate.function, argument, aggregate.type


def _shown(aggregate: Aggregate, query: Query) -> str:
    argument = "*" if aggregate.argument is None else str(query.select[aggregate.argument][1])
    return f"{aggregate.function}({argument})"
