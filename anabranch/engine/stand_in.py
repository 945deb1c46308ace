"""What the engine does in the place of a database that fails: it joins what is stored, with nothing kept for the next batch.

A MIG box has rows and no indexes. So the indexes that one n-ary join looks up are derived from the logs when they are
first needed, beside the store of the slot, and go with the batch. Then the rows of one input follow their route, and what
they meet is left out as far as it is none of the batches that are asked for: so each combination is found once, as by the
statement that failed. The rows of a segment are the same ones here and there; nothing is copied.

Example: a and b have rows of the batches 3 to 7, and DuckDB fails at what a brings in batch 7. The index over b by its key
is derived from all five segments; the rows of a of batch 7 look it up, and meet the rows of b of batches 3 to 6. Then those
that b brought follow their route, and meet all rows of a.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from anabranch.engine.arrival import Arrival, delta_of
from anabranch.engine.box import Box
from anabranch.engine.combination import Combination
from anabranch.engine.log import starts_of
from anabranch.engine.reader import Reader
from anabranch.engine.results import Found
from anabranch.engine.store import Store
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Leaf, join
from anabranch.plan.migration import Execution

Spans = Mapping[str, tuple[int, int]]
"""By input the batches whose rows are asked for: the first, and the one behind the last."""


class StandIn(Box):
    """The join of a block that a database was to run, for one batch."""

    def __init__(self, box: Box) -> None:
        """`box` is that of the block; of its reader the rows are seen."""
        there, graph = box.reader, JoinGraph(box.reader.graph.query.at_home)
        plan = join(tuple(Leaf(alias) for alias in graph.query.aliases), graph)
        reader = Reader(
            there.name, there.query, graph, Execution(plan), there.accepted_by, there.place, there.versions, there.spans,
            since=there.since,
        )  # fmt: skip
        super().__init__(reader, _derived(box, reader))
        reader.look_at(self.store.logs)
        self.begin(Arrival(box.arrival.batch))
        self.visible = {i.alias for i in reader.inputs}
        self.rebuild.complete_needed()
        self._spans: Spans = {}

    def find(self, spans: Spans) -> Iterator[Found]:
        """The results of every combination of rows of some batches; groups take them, if there are some."""
        self._spans = spans
        first = min(self.reader.inputs, key=lambda i: self._rows(i.alias))
        route = next(r for r in self.reader.routes if r.alias == first.alias)
        for batch in self._batches(first.alias):
            stored = self.store.logs[first.source.name].segments[batch]
            delta = delta_of(self.reader, first, batch, stored, starts_of(first.source, stored.rows))
            if len(delta.starts):
                yield from self._follow(route, 0, delta.combination(batch), emit=True)

    def on_way(self, rows: Combination, emit: bool) -> Combination:
        """What one more lookup has found of the batches that are asked for."""
        found = None
        for alias, ids in rows.ids.items():
            begin, end = self._spans[alias]
            mask = (ids >> 32 >= begin) & (ids >> 32 < end)
            found = mask if found is None else found & mask
        return rows if found is None or found.all() else rows.where(found)

    def _batches(self, alias: str) -> list[int]:
        begin, end = self._spans[alias]
        i = self.reader.input(alias)
        known = self.store.logs[i.source.name].segments
        return sorted(batch for batch in known if begin <= batch < end and self.reader.is_shown(i, batch))

    def _rows(self, alias: str) -> int:
        segments = self.store.logs[self.reader.input(alias).source.name].segments
        return sum(segments[batch].rows.num_rows for batch in self._batches(alias))


def _derived(box: Box, reader: Reader) -> Store:
    """A store that has the segments of the logs that a box reads, and nothing else yet."""
    store = Store()
    store.serve([reader])
    store.horizons = {reader.name: box.store.horizons[reader.name]}
    for source in reader.sources:
        for batch, stored in box.store.logs[source.name]:
            store.logs[source.name].add(batch, replace(stored, over=set()))
    return store
