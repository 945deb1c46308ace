"""Shares: how to cut the dimensions of a grid (Afrati, Ullman: *Optimizing joins in a map-reduce environment*, EDBT 2010).

All ways to write the number of cells as an ordered product are tried: there are few cells and few dimensions. The best one
moves the fewest rows; ties go to the one whose fullest cell is the least full. (The paper solves the relaxed problem with
Lagrange multipliers and rounds; for the tens of cells of a slot grid the search is exact and takes less than a millisecond.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr
from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import reads_found


def choose_grid(graph: JoinGraph, cells: int, rates: Mapping[str, float] | None = None) -> Grid:
    """The grid of so many cells that moves the fewest rows; `rates` are rows per second of each input (default: equal)."""
    return grids(graph, cells, rates)[0]


def grids(graph: JoinGraph, cells: int, rates: Mapping[str, float] | None = None) -> list[Grid]:
    """The grids of so many cells, those that move the fewest rows first."""
    aliases = graph.query.aliases
    rates = {alias: float((rates or {}).get(alias, 1.0)) for alias in aliases}
    # What a lookup finds is not known yet when rows are spread: rows go to all parts of a dimension by that.
    known = [tuple(t for t in terms if not reads_found(graph.query, t)) for terms in graph.classes]
    dimensions = [Dimension(terms) for terms in known if terms and all(is_routable(t) for t in terms)]
    dimensions += [Dimension((), alias) for alias in aliases]
    every = [Grid(tuple(dimensions), shares) for shares in _factorisations(cells, len(dimensions))]
    every.sort(key=lambda g: (round(g.replication(rates), 9), _fullest(g, rates), _row_dimensions(g), g.shares[::-1]))
    return list(dict.fromkeys(_without_whole(grid) for grid in every))


def _without_whole(grid: Grid) -> Grid:
    """A grid without the dimensions that are not cut."""
    kept = [i for i, share in enumerate(grid.shares) if share > 1]
    return Grid(tuple(grid.dimensions[i] for i in kept), tuple(grid.shares[i] for i in kept))


def _fullest(grid: Grid, rates: Mapping[str, float]) -> float:
    return sum(rate / prod(grid.shares[i] for i in grid.own(alias)) for alias, rate in rates.items())


def _row_dimensions(grid: Grid) -> int:
    return sum(1 for d, share in zip(grid.dimensions, grid.shares, strict=True) if share > 1 and d.rows_of)


def _factorisations(number: int, places: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many factors, in order.

    >>> sorted(_factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if places == 1:
        yield (number,)
        return
    for factor in range(1, number + 1):
        if number % factor == 0:
            for rest in _factorisations(number // factor, places - 1):
                yield (factor, *rest)


def is_routable(term: Expr) -> bool:
    """Whether every reader computes the term alike: a column, perhaps widened. Other classes cut no dimension."""
    if isinstance(term, Column):
        return not pa.types.is_nested(term.type)
    if isinstance(term, Call) and term.op == "cast" and isinstance(term.args[0], Column):
        given, wanted = term.args[0].type, term.type
        integers = pa.types.is_integer(given) and pa.types.is_integer(wanted) and given.bit_width <= wanted.bit_width
        floats = pa.types.is_floating(given) and pa.types.is_float64(wanted)
        return bool(integers or floats)
    return False
