"""What queries ask of their sources: which columns, and which rows.

Both follow from the query as it is written, whatever plan runs it: a predicate may stand elsewhere for a while, but the rows
that can be of use, and the columns that must be looked at, stay the same.
"""

from __future__ import annotations

from anabranch.plan.expression import Call, Expr, columns_of
from anabranch.plan.identity import named
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Query, Stream, Table


def asked_of(graph: JoinGraph, alias: str) -> tuple[Expr, ...]:
    """All that a row of an input must pass to be of use."""
    return (*graph.query.input(alias).filters, *graph.implied_filters(alias))


def stored_columns(query: Query, source: Stream | Table) -> set[str]:
    """The columns of a source that a block needs of stored rows: for keys, residuals and results."""
    found = {c for i in query.inputs if i.source.name == source.name for c in query.needed_columns(i.alias)}
    if isinstance(source, Stream):
        found.add(source.time)
    elif not found:
        found.add(source.fields[0].name)
    return found


def read_columns(query: Query) -> dict[str, tuple[str, ...]]:
    """The columns of each stream and table that some block reads, in declared order."""
    read: dict[str, set[str]] = {}
    for block in query.blocks:
        graph = JoinGraph(block)
        for source in block.sources:
            read.setdefault(source.name, set()).update(stored_columns(block, source))
        for i in block.inputs:
            read[i.source.name] |= {c.name for f in asked_of(graph, i.alias) for c in columns_of(f)}
    return {s.name: tuple(f.name for f in s.fields if f.name in read[s.name]) for s in query.base_sources}


def source_filters(query: Query) -> dict[str, tuple[tuple[Expr, ...], ...]]:
    """For each stream the sets of predicates that some input has: a row that passes none of the sets is of no use. A stream
    of which some input takes all rows that have its keys is not there: NULLs are few, and found on the way."""
    found: dict[str, dict[frozenset[str], tuple[Expr, ...]]] = {}
    for block in query.blocks:
        graph = JoinGraph(block)
        for i in block.inputs:
            asked = asked_of(graph, i.alias)
            found.setdefault(i.source.name, {}).setdefault(frozenset(named(f, i.source.name) for f in asked), asked)
    streams = {s.name for s in query.base_sources if isinstance(s, Stream)}
    sets = {name: tuple(known.values()) for name, known in found.items() if name in streams}
    return {name: groups for name, groups in sets.items() if all(map(_selects, groups))}


def _selects(predicates: tuple[Expr, ...]) -> bool:
    """Whether predicates ask more of a row than not to be NULL."""
    return any(not is_not_null(p) for p in predicates)


def is_not_null(expr: Expr) -> bool:
    """Whether a predicate asks no more than that a term is not NULL."""
    return (
        isinstance(expr, Call) and expr.op == "not" and isinstance(expr.args[0], Call) and expr.args[0].op == "is_null"
    )
