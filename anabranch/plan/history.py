"""Rows that are stored already, for a query that comes while others run.

A query that is added takes the rows that come from then on. It can have *history* too, combinations of new rows with rows
that came before it, if some query that runs keeps all that it would have kept: the *keeper* has the same streams, windows
that are as long, no predicate that the new one lacks, all columns that it reads, and its rows lie in the same slots.

Example: q joins trades [60 s] and quotes [60 s] by symbol and selects price and bid. `… [10 s] … AND t.price > 5` can have
history: what it asks for are rows that q keeps. With [90 s] it cannot, for rows older than 60 s are gone; nor with the
column t.size, which q does not store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.plan.adoption import is_stored
from anabranch.plan.demand import asked_of
from anabranch.plan.distribution import way_of
from anabranch.plan.expression import columns_of
from anabranch.plan.grid import Grid
from anabranch.plan.identity import named
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import FOREVER_US, Derived, Enriched, Input, Query, Stream


@dataclass(frozen=True)
class Stored:
    """A query that runs and stores the rows of its inputs, the grid that they are spread by, and the first batch whose rows
    are its own."""

    query: Query
    grid: Grid
    since: int = 0


def why_no_history(query: Query) -> str | None:
    """Why a query cannot have history, whatever runs; None if it could."""
    if query.grouping is not None or len(query.blocks) > 1:
        return "groups count rows of an instant, and those that came before it are not all there any more"
    if query.asked is not None:
        return f"{query.asked.database} joins rows as they come, and not those that came before"
    if not all(isinstance(i.source, Stream) and not isinstance(i.source, Derived | Enriched) for i in query.inputs):
        return "a row meets a stored table as its own batch finds it"
    return None


def keeper_of(query: Query, grid: Grid, running: Iterable[Stored]) -> Stored | None:
    """The query that keeps all that another would have kept, of those that run; None if there is none."""
    if why_no_history(query) is not None:
        return None
    streams = {source.name for source in query.base_sources}
    for other in running:
        if {s.name for s in other.query.base_sources} == streams and _keeps_all(other, query, grid):
            return other
    return None


def _keeps_all(other: Stored, query: Query, grid: Grid) -> bool:
    graph, theirs = JoinGraph(query), JoinGraph(other.query)
    if grid.shares != other.grid.shares and grid.cells > 1:
        return False
    mine = [i for i in query.inputs if is_stored(query, i.alias)]
    kept = [i for i in other.query.inputs if is_stored(other.query, i.alias)]
    return all(any(_keeps(theirs, j, graph, i) and _lies(other.grid, j, grid, i) for j in kept) for i in mine)


def _lies(theirs: Grid, j: Input, grid: Grid, i: Input) -> bool:
    """Whether rows of two inputs go to the same slots."""
    return way_of(theirs, j.alias) == way_of(grid, i.alias)


def _keeps(theirs: JoinGraph, j: Input, graph: JoinGraph, i: Input) -> bool:
    if j.source != i.source or j.window.length_us < i.window.length_us:
        return False
    if j.freshness_us is not None and (i.freshness_us is None or i.freshness_us > j.freshness_us):
        return False  # rows too old for the other are turned away
    passed = {named(f, j.source.name) for f in asked_of(theirs, j.alias)}
    asked = {named(f, i.source.name): f for f in asked_of(graph, i.alias)}
    read = set(graph.query.needed_columns(i.alias)) | {
        column.name for text, f in asked.items() if text not in passed for column in columns_of(f)
    }
    kept = {*theirs.query.needed_columns(j.alias), *([i.source.time] if isinstance(i.source, Stream) else [])}
    return passed <= asked.keys() and read <= kept


def complete_from_us(query: Query, largest_time_us: Mapping[str, int], has_all: bool) -> int | None:
    """The event time from which on the results of a query are complete that comes after such times were seen; None if they
    never are. `has_all`: all rows are there that results can need which a new row completes. A stream that has shown nothing
    yet lacks nothing, however long its window is."""
    seen = [us for name, us in largest_time_us.items() if name in {s.name for s in query.base_sources}]
    after_us = max(seen, default=0) + 1
    if has_all:
        return after_us
    silent = {s.name for s in query.base_sources if s.name not in largest_time_us}
    inputs = [i for block in query.blocks for i in block.inputs if i.source.name not in silent]
    longest_us = max((i.window.length_us for i in inputs if isinstance(i.source, Stream)), default=0)
    return None if longest_us == FOREVER_US else after_us + longest_us
