"""What queries ask of their sources: which columns, and which rows.

Both follow from the query as it is written, whatever plan runs it: a predicate may stand elsewhere for a while, but the rows
that can be of use, and the columns that must be looked at, stay the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from anabranch.plan.distribution import Distribution, all_inputs
from anabranch.plan.expression import Call, Expr, columns_of
from anabranch.plan.identity import named
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import reads_found
from anabranch.plan.query import Query, Stream, Table
from anabranch.plan.workload import Workload


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


def read_columns(workload: Workload, spread: Mapping[str, Distribution] | None = None) -> dict[str, tuple[str, ...]]:
    """The columns of each stream and table that some block of some query reads, or by which its rows are spread over slots,
    in declared order. Rows of a query may be spread by a column that it does not read, for the sake of another query that
    has left since."""
    read: dict[str, set[str]] = {}
    for block in _blocks(workload):
        graph = JoinGraph(block)
        for source in block.sources:
            read.setdefault(source.name, set()).update(stored_columns(block, source))
        for i in block.inputs:
            read[i.source.name] |= {c.name for f in asked_of(graph, i.alias) for c in columns_of(f)}
    spread_queries = [(query, spread[query.name].grid) for query in workload.queries] if spread is not None else []
    for query, grid in spread_queries:
        for i in all_inputs(query).inputs:
            terms = [grid.dimensions[place].term_of(i.alias) for place in grid.own(i.alias)]
            read[i.source.name] |= {c.name for term in terms if term is not None for c in columns_of(term)}
    return {name: tuple(f.name for f in s.fields if f.name in read[name]) for name, s in workload.sources.items()}


@dataclass(frozen=True)
class Asked:
    """All that some inputs ask of a row."""

    predicates: tuple[Expr, ...]
    owners: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The queries whose inputs these are, each with the texts of the predicates as it writes them."""

    def texts(self, place: int) -> frozenset[tuple[str, str]]:
        """A predicate as the queries write it that ask it."""
        return frozenset((query, texts[place]) for query, texts in self.owners)

    def left(self, raised: Collection[tuple[str, str]]) -> tuple[Expr, ...]:
        """The predicates that no query has above a join."""
        return tuple(p for place, p in enumerate(self.predicates) if not self.texts(place) & set(raised))


def source_filters(workload: Workload) -> dict[str, tuple[Asked, ...]]:
    """For each stream what its inputs ask: a row that passes none of these sets of predicates is of no use. A stream of
    which some input takes all rows that have its keys is not there: NULLs are few, and found on the way. Predicates over
    what a lookup finds are asked later."""
    found: dict[str, dict[tuple[str, ...], Asked]] = {}
    for query in workload.queries:
        for block in query.blocks:
            graph = JoinGraph(block)
            for i in block.inputs:
                early = (f for f in asked_of(graph, i.alias) if not reads_found(block, f))
                asked = sorted(((named(f, i.source.name), f) for f in early), key=lambda one: one[0])
                key, texts = tuple(text for text, _ in asked), (query.name, tuple(str(f) for _, f in asked))
                known = found.setdefault(i.source.name, {}).get(key, Asked(tuple(f for _, f in asked)))
                found[i.source.name][key] = replace(known, owners=(*known.owners, texts))
    sets = {name: tuple(known.values()) for name, known in found.items() if name in workload.streams}
    return {name: groups for name, groups in sets.items() if all(_selects(group.predicates) for group in groups)}


def _blocks(workload: Workload) -> list[Query]:
    return [block for query in workload.queries for block in query.blocks]


def _selects(predicates: tuple[Expr, ...]) -> bool:
    """Whether predicates ask more of a row than not to be NULL."""
    return any(not is_not_null(p) for p in predicates)


def is_not_null(expr: Expr) -> bool:
    """Whether a predicate asks no more than that a term is not NULL."""
    return (
        isinstance(expr, Call) and expr.op == "not" and isinstance(expr.args[0], Call) and expr.args[0].op == "is_null"
    )
