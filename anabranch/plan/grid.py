"""The exchange as a HyperCube: which cells a row goes to, so that every result arises in exactly one of them.

A grid has one dimension for each class of join attributes (`JoinGraph.classes`) and, where that is not enough, one for the
rows of a single input. Its *shares* say into how many parts each dimension is cut; cells are their product. A row goes to
the cells that its own attributes select, and to all of those along dimensions it lacks: it is *replicated* there. The rows
of a result agree on every attribute class, so exactly one cell has them all. `balance.shares` finds good ones.

A query may be spread by the grid of a larger join that it is contained in (`part_of`), so that its rows are where those of
the larger join are. In a dimension that none of its own inputs has, its rows would go to every part, and each result arise
in each of them: so it uses the first part alone. Such a dimension is *fixed*.

    a, b, c, d WHERE a.k = b.k AND b.j = c.j AND c.i = d.i       by k in 2, by j in 2, by i in 2 parts
    a, b       WHERE a.k = b.k                                   by k in 2, by b.j in 2 parts, and the first of 2 parts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from anabranch.plan.expression import Column, Expr, aliases_of, replace

FIXED = "nothing"
"""What rows are spread by in a dimension that is fixed."""


@dataclass(frozen=True)
class Dimension:
    """A class of terms that are equal in every result, or (`terms` empty) the rows of the input `rows_of`; or nothing that
    an input has, if it is fixed: all rows go to its first part."""

    terms: tuple[Expr, ...]
    rows_of: str = ""
    is_fixed: bool = False
    """Cut for the sake of others."""

    def term_of(self, alias: str) -> Expr | None:
        return next((t for t in self.terms if aliases_of(t) == {alias}), None)

    def has(self, alias: str) -> bool:
        return self.rows_of == alias or self.term_of(alias) is not None

    def __str__(self) -> str:
        if self.is_fixed:
            return FIXED
        return f"rows of {self.rows_of}" if self.rows_of else " = ".join(map(str, self.terms))


@dataclass(frozen=True)
class Grid:
    """Dimensions and into how many parts each is cut. Cells are numbered with the last dimension counting fastest."""

    dimensions: tuple[Dimension, ...] = ()
    shares: tuple[int, ...] = ()

    @property
    def cells(self) -> int:
        return prod(self.shares)

    def stride(self, place: int) -> int:
        """How far apart neighbouring cells along a dimension are numbered."""
        return prod(self.shares[place + 1 :])

    def own(self, alias: str) -> tuple[int, ...]:
        """The dimensions in which a row of an input has a coordinate of its own."""
        return tuple(i for i, d in enumerate(self.dimensions) if self.shares[i] > 1 and d.has(alias))

    @property
    def fixed(self) -> tuple[tuple[int, int], ...]:
        """The dimensions that are fixed: into how many parts each is cut, and how far apart these are."""
        return tuple((self.shares[i], self.stride(i)) for i, d in enumerate(self.dimensions) if d.is_fixed)

    def offsets(self, alias: str) -> tuple[int, ...]:
        """What is added to the cell of a row's own coordinates: one number for each cell it goes to."""
        fixed = [i for i, d in enumerate(self.dimensions) if d.is_fixed]
        free = [i for i in range(len(self.dimensions)) if self.shares[i] > 1 and i not in (*self.own(alias), *fixed)]
        steps = [[c * self.stride(i) for c in range(self.shares[i])] for i in free]
        return tuple(sorted(sum(combination) for combination in product(*steps)))

    def is_first(self, cell: int, alias: str) -> bool:
        """Whether a cell is the first of those that any row of an input goes to: one of them counts the row.

        >>> from anabranch.plan.expression import Column
        >>> import pyarrow as pa
        >>> by_k = Dimension((Column(pa.int64(), "a", "k"), Column(pa.int64(), "b", "k")))
        >>> grid = Grid((by_k, Dimension((), "b")), (2, 2))
        >>> [grid.is_first(cell, "a") for cell in range(4)], [grid.is_first(cell, "b") for cell in range(4)]
        ([True, False, True, False], [True, True, True, True])
        """
        own = self.own(alias)
        return all(self.coordinate(cell, place) == 0 for place in range(len(self.dimensions)) if place not in own)

    def has(self, cell: int) -> bool:
        """Whether rows go to a cell: it is one of the grid, and in the first part of each dimension that is fixed.

        >>> grid = Grid((Dimension((), "a"), Dimension((), is_fixed=True)), (2, 2))
        >>> [cell for cell in range(6) if grid.has(cell)], grid.offsets("a"), grid.offsets("b")
        ([0, 2], (0,), (0, 2))
        """
        fixed = (place for place, d in enumerate(self.dimensions) if d.is_fixed)
        return cell < self.cells and all(self.coordinate(cell, place) == 0 for place in fixed)

    def part_of(self, names: Mapping[str, str]) -> Grid:
        """The grid as a query has it over some of the inputs, under other names (`names`: of these inputs, by the old)."""
        dimensions = []
        for place, d in enumerate(self.dimensions):
            terms = tuple(replace(t, partial(_under, names)) for t in d.terms if aliases_of(t) <= names.keys())
            rows_of = names.get(d.rows_of, "")
            is_fixed = self.shares[place] > 1 and not terms and not rows_of
            dimensions.append(Dimension(terms, rows_of, is_fixed))
        return Grid(tuple(dimensions), self.shares)

    def coordinate(self, cell: int, place: int) -> int:
        """Where a cell lies along a dimension."""
        return cell // self.stride(place) % self.shares[place]

    def replication(self, rates: Mapping[str, float]) -> float:
        """Rows sent per row received."""
        total = sum(rates.values())
        return sum(rate * len(self.offsets(alias)) for alias, rate in rates.items()) / total if total else 1.0


def _under(names: Mapping[str, str], expr: Expr) -> Expr:
    return Column(expr.type, names[expr.alias], expr.name) if isinstance(expr, Column) else expr
