"""Queries with subqueries as the exchange sees them: the inputs of all blocks side by side.

One exchange serves all blocks: a row goes to the slots where any input of any block wants it. So that blocks do not see what
came for others, a block looks again which rows are its own, where that can differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anabranch.plan.expression import Column, Expr, aliases_of
from anabranch.plan.expression import replace as rewrite
from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.query import Derived, Query


@dataclass(frozen=True)
class Distribution:
    """How the rows of a query are spread over slots: a grid over the inputs of all blocks. If `groups_span_slots`, a group
    may have rows in several slots, and what each has of it is put together after them. If it `needs_no_exchange`, rows are
    good wherever they come in: no slot keeps anything but stored tables, and each has all of those."""

    grid: Grid = field(default_factory=Grid)
    groups_span_slots: bool = False
    needs_no_exchange: bool = False

    @property
    def exchange(self) -> Grid:
        """The grid by which rows are sent to slots: of one cell if they stay where they come in."""
        return Grid() if self.needs_no_exchange else self.grid


ONE_SLOT = Distribution()
"""All rows in one slot."""


def all_inputs(query: Query) -> Query:
    """The streams and tables of all blocks as inputs of one query, under names of their own; for the exchange alone."""
    if len(query.blocks) == 1:
        return query
    inputs = [
        replace(i, alias=name_of(place, i.alias), filters=())
        for place, block in enumerate(query.blocks)
        for i in block.inputs
        if not isinstance(i.source, Derived)
    ]
    return Query(query.name, tuple(inputs), (), (), ())


def name_of(block: int, alias: str) -> str:
    """What an input of a block is called among those of all."""
    return f"b{block}_{alias}"


def renamed(term: Expr, alias: str) -> Expr:
    """A term over one input in another name of it."""
    return rewrite(term, lambda e: Column(e.type, alias, e.name) if isinstance(e, Column) else e)


def grid_of(query: Query, grid: Grid, place: int) -> Grid:
    """The grid over all inputs as one block sees it."""
    if len(query.blocks) == 1:
        return grid
    dimensions = []
    for dimension in grid.dimensions:
        terms = []
        for i in query.blocks[place].inputs:
            term = dimension.term_of(name_of(place, i.alias))
            if term is not None:
                terms.append(renamed(term, i.alias))
        own = next((i.alias for i in query.blocks[place].inputs if name_of(place, i.alias) == dimension.rows_of), "")
        dimensions.append(Dimension(tuple(terms), own, dimension.is_fixed))
    return Grid(tuple(dimensions), grid.shares)


def in_form(distribution: Distribution, written: Query, form: Query) -> Distribution:
    """A distribution of a query as written in the names of a form of it: rows go where they went."""
    if form is written:
        return distribution
    places = {block.name: place for place, block in enumerate(form.blocks)}
    renames: dict[str, str] = {}
    for place, block in enumerate(written.blocks):
        for i in block.inputs:
            # The block that groups an input below the join is named after both.
            new = places.get(f"{block.name}.{i.alias}", places[block.name]) if block is written else places[block.name]
            renames[i.alias if len(written.blocks) == 1 else name_of(place, i.alias)] = name_of(new, i.alias)
    dimensions = [
        replace(
            d,
            terms=tuple(renamed(t, renames[next(iter(aliases_of(t)))]) for t in d.terms),
            rows_of=renames.get(d.rows_of, ""),
        )
        for d in distribution.grid.dimensions
    ]
    return replace(distribution, grid=Grid(tuple(dimensions), distribution.grid.shares))


QueryGrids = Sequence[tuple[Query, Grid]]
"""The inputs of queries (`all_inputs`), and the grids that their rows are spread by."""


def way_of(grid: Grid, alias: str) -> tuple[object, ...]:
    """What decides where rows of an input go, by itself: two inputs of one way go to the same cells, of grids of the same
    size."""
    own = ((place, grid.dimensions[place].term_of(alias)) for place in grid.own(alias))
    return tuple((grid.shares[p], grid.stride(p), None if t is None else renamed(t, "")) for p, t in own)


def each_way(queries: QueryGrids, source: str) -> QueryGrids:
    """As many of the queries as tell where rows of a source go for the sake of all: the first that has an input of each
    way."""
    known: set[tuple[object, ...]] = set()
    found = []
    for query, grid in queries:
        ways = {(way_of(grid, i.alias), grid.offsets(i.alias)) for i in query.inputs if i.source.name == source}
        if not ways <= known:
            known |= ways
            found.append((query, grid))
    return tuple(found)


def parted_sources(queries: QueryGrids) -> frozenset[str]:
    """The sources whose rows may be in a slot for the sake of one input and not of another, of the same query or not."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for query, grid in queries:
        for i in all_inputs(query).inputs:
            found.setdefault(i.source.name, set()).add(way_of(grid, i.alias))
    return frozenset(name for name, ways in found.items() if len(ways) > 1)
