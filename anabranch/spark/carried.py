"""What a dataflow of Spark's carries, which is analysed once, when the streaming query starts: columns of streams, the rows
that are let through before the exchange, and the slots that they go to.

A query that comes while others run is served by the dataflow as it is if it asks for no more. Example: q reads trades and
quotes whole, by symbol. A query over the same columns and keys, with any windows and filters, is carried. One that reads a
column which nobody has read is not; nor is one over trades by exchange, whose rows would have to go to other slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from anabranch.plan.demand import Asked, asked_of, read_columns
from anabranch.plan.distribution import Distribution, QueryGrids, all_inputs, way_of
from anabranch.plan.grid import Grid
from anabranch.plan.identity import named
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import reads_found
from anabranch.plan.query import Query, Stream
from anabranch.plan.workload import Workload


@dataclass(frozen=True)
class Carried:
    """What a dataflow carries."""

    columns: Mapping[str, tuple[str, ...]]
    """The columns of each source."""
    filters: Mapping[str, Sequence[Asked]]
    """What rows are asked before the exchange, of the streams of which not all go on."""
    ways: QueryGrids
    """How the rows of each query are spread."""

    def lacks(self, query: Query, distribution: Distribution) -> str | None:
        """What a query asks for that is not carried; None if all is."""
        for name, columns in read_columns(Workload((query,))).items():
            if lacking := set(columns) - set(self.columns.get(name, ())):
                return f"nobody has read {', '.join(sorted(lacking))} of {name} so far"
        for source in query.base_sources:
            if not isinstance(source, Stream):
                return f"the stored table {source.name} is to be read for it"
        for block in query.blocks:
            graph = JoinGraph(block)
            for i in block.inputs:
                early = (f for f in asked_of(graph, i.alias) if not reads_found(block, f))
                asked = tuple(sorted(named(f, i.source.name) for f in early))
                if asked not in self._let_through.get(i.source.name, {asked}):
                    return f"rows of {i.source.name} that it asks for do not cross the exchange so far"
        for i in all_inputs(query).inputs:
            if (i.source.name, *_way(distribution.exchange, i.alias)) not in self._spread:
                return f"rows of {i.source.name} are to go to other slots for it"
        return None

    @cached_property
    def _let_through(self) -> dict[str, set[tuple[str, ...]]]:
        return {
            name: {tuple(sorted(named(p, name) for p in asked.predicates)) for asked in several}
            for name, several in self.filters.items()
        }

    @cached_property
    def _spread(self) -> set[tuple[object, ...]]:
        found = [(query, grid, i) for query, grid in self.ways for i in all_inputs(query).inputs]
        return {(i.source.name, *_way(grid, i.alias)) for _, grid, i in found}


def _way(grid: Grid, alias: str) -> tuple[object, ...]:
    return grid.cells, way_of(grid, alias), tuple(grid.offsets(alias))
