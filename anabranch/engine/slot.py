"""A query in one slot: the boxes of its blocks over one store, in the form that it has at the time.

One batch, in `Slot.step`:

1. what no reader needs any more is purged, and boxes work at states they lack (`anabranch.engine.rebuild`);
2. the rows of each source come in, once for all who read it (`anabranch.engine.arrival`);
3. subqueries first, each box takes its new rows along their routes. The groups of a subquery at the instants that the
   watermark has passed come in as the rows of a stream;
4. indexes settle: what arrived becomes a run, and the merges that are due are made.

Example: `SELECT … FROM s, (SELECT k, MAX(x) AS m FROM s GROUP BY k) g WHERE s.k = g.k`. In batch 4, twenty rows of s come.
They are appended to the log of s, which the join keeps; the box of g folds the same rows into its groups, and needs no log.
The watermark has passed second 3, so g gives the groups of second 3. They are appended to the log of `q.g`, and the box of q
takes first the rows of s, then those of g along their routes.

While its groups go below a join, or above it again, a query has two forms (`anabranch.plan.eager.Forms`; 002, chapter 14):

- by *moving state*, the stored rows of the grouped input are folded into the groups of the new form. Upwards that cannot be:
  groups below a join keep no rows;
- on a *parallel track*, the old form reads the rows that the grouped input has brought so far, and the new one those to
  come. Both read the rows of all other inputs, from the same logs. What both give of a group at an instant is put together:
  the *SGB operator*. When no old row of the grouped input is valid any more, the old form has nothing more to give.

Each combination has one row of the grouped input, an old or a new one, so each is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import thread_time_ns

import pyarrow as pa

from anabranch.control.records import SlotState, SourceStatistics, StateStatistics, Statistics
from anabranch.engine.accept import Rows
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.allocator import keep_freed_memory
from anabranch.engine.arrival import Arrival, delta_of
from anabranch.engine.box import Box, horizon_us
from anabranch.engine.checkpoint import Checkpoint
from anabranch.engine.log import starts_of
from anabranch.engine.reader import Place, Reader
from anabranch.engine.rebuild import hand_over
from anabranch.engine.store import Store
from anabranch.errors import StateError
from anabranch.plan.distribution import Distribution, grid_of, in_form, parted_sources
from anabranch.plan.eager import Forms
from anabranch.plan.identity import ViewKey
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.query import FOREVER_US, Query, Stream, Table
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

ONE_SLOT = Distribution()
"""All rows in one slot."""


@dataclass(frozen=True)
class Block:
    """What a box is to run."""

    name: str
    query: Query
    execution: Execution
    place: Place
    is_whole: bool
    """Whether it is the query itself, and not a subquery."""
    closed: frozenset[str] = frozenset()
    """Sources whose new rows are not for it."""


class Slot:
    """The boxes of a query in one slot, and their store."""

    def __init__(
        self,
        forms: Forms,
        execution: Execution,
        folder: str,
        filesystem: Filesystem,
        reader: ContainerReader,
        distribution: Distribution = ONE_SLOT,
        cell: int = 0,
    ) -> None:
        keep_freed_memory()
        self.forms, self.execution, self.reader = forms, execution, reader
        self._distribution, self._cell = distribution, cell
        self.store = Store()
        self.checkpoint = Checkpoint(self.store, folder, filesystem, reader)
        self.boxes: dict[str, Box] = {}
        """By name: subqueries first, then the query, then the form of it that is left."""
        self.statistics = Statistics()
        self._streams = [s.name for s in forms.written.base_sources if isinstance(s, Stream)]
        self._versions: dict[str, int] = {}
        """The batch in which each stored table was last read."""
        self._place(execution)
        self.store.serve([box.reader for box in self.boxes.values()])

    @property
    def box(self) -> Box:
        """That of the query itself."""
        return self.boxes[self._name(self.execution.grouped_input)]

    def _name(self, grouped_input: str | None) -> str:
        """What the query itself is called in a form."""
        name = self.forms.written.name
        return name if grouped_input is None else f"{name} over groups of {grouped_input}"

    def _blocks(self, execution: Execution) -> list[Block]:
        """What runs under an execution, in order."""
        found = self._form(execution.grouped_input, execution.own)
        if (leaving := execution.leaving) is not None:
            grouped = self.forms.grouped(execution.grouped_input, leaving.grouped_input).source.name
            old = self._form(leaving.grouped_input, Execution(leaving.plan), frozenset({grouped}))
            names = {block.name for block in found}
            found += [block for block in old if block.name not in names]
        return sorted(found, key=lambda block: block.is_whole)

    def _form(
        self, grouped_input: str | None, execution: Execution, closed: frozenset[str] = frozenset()
    ) -> list[Block]:
        query = self.forms.query(grouped_input)
        grid = in_form(self._distribution, self.forms.written, query).grid
        parted, found = parted_sources(query, grid), []
        for place, block in enumerate(query.blocks):
            is_whole = block is query
            name = self._name(grouped_input) if is_whole else block.name
            own = execution if is_whole else Execution(left_deep(JoinGraph(block)))
            where = Place(grid_of(query, grid, place), self._cell, parted)
            mine = closed & {source.name for source in block.sources}
            found.append(Block(name, block, own, where, is_whole, mine))
        return found

    def _reader(self, block: Block) -> Reader:
        graph, query = JoinGraph(block.query), self.forms.written.name
        return Reader(
            block.name, query, graph, block.execution, self._streams, block.place, self._versions, block.closed
        )

    def _place(self, execution: Execution) -> dict[str, Reader]:
        """Has the boxes that an execution asks for. The readers that others took the place of."""
        before, boxes = self.boxes, dict[str, Box]()
        replaced: dict[str, Reader] = {}
        for block in self._blocks(execution):
            box = before.get(block.name)
            if box is None:
                box = Box(self._reader(block), self.store)
            elif not _is_for(box.reader, block, self._versions):
                replaced[block.name], box.reader = box.reader, self._reader(block)
            box.gives_parts = block.is_whole and (self._distribution.groups_span_slots or execution.leaving is not None)
            boxes[block.name] = box
        self.boxes, self.execution = boxes, execution
        return replaced

    def _horizons(self, watermark_us: int, emitted_us: int) -> dict[str, int]:
        return {name: horizon_us(box, watermark_us, emitted_us) for name, box in self.boxes.items()}

    @property
    def _groups(self) -> dict[str, Aggregator]:
        return {name: box.aggregator for name, box in self.boxes.items() if box.aggregator is not None}

    # -- from one execution to another -------------------------------------------------------------------------------

    def redirect(self, execution: Execution, watermark_us: int, emitted_us: int) -> None:
        """Goes on with another execution, before the next batch. What both read is kept, what only the old one had is
        dropped (that is safe, for all of it follows from the logs: 002, section 12.1.4), and what is lacking is recomputed
        in the batches to come: in the next one, as far as results need it."""
        before, leaving = self.execution, execution.leaving
        is_like = execution.grouped_input == before.grouped_input
        if is_like and leaving is not None and leaving != before.leaving:
            raise StateError(f"slot {self._cell} cannot take up the form it has left")
        known = set(self.boxes)
        replaced = self._place(execution)
        for name, groups in self._groups.items():
            if name not in known:
                groups.restore((), emitted_us)
        if not is_like and leaving is None:
            self._fold(self.forms.grouped(before.grouped_input, execution.grouped_input).source)
        self._serve(replaced, watermark_us, emitted_us)

    def _serve(self, replaced: Mapping[str, Reader], watermark_us: int, emitted_us: int) -> None:
        """Has the store serve the readers that there are now."""
        self.store.horizons = self._horizons(watermark_us, emitted_us)
        inherited: dict[ViewKey, ViewKey] = {}
        for name, old in replaced.items():
            inherited |= hand_over(self.store, old, self.boxes[name].reader, self.store.horizons[name])
        self.store.serve([box.reader for box in self.boxes.values()])
        self.checkpoint.inherited(inherited)
        for box in self.boxes.values():
            box.reader.look_at(self.store.logs)
            box.rebuild.check()
        for box in self.boxes.values():
            box.rebuild.complete_indexes()

    def _fold(self, source: Stream | Table) -> None:
        """Moving state downwards: the stored rows of an input become groups."""
        lower = next(b for b in self.boxes.values() if b.aggregator is not None and not b.reader.keeps_rows
                     and b.reader.inputs[0].source.name == source.name)  # fmt: skip
        for batch, stored in self.store.logs[source.name]:
            lower.fold(batch, delta_of(lower.reader, lower.reader.inputs[0], stored, starts_of(source, stored.rows)))

    # -- from files and to files -------------------------------------------------------------------------------------

    def attach(self, state: SlotState, watermark_us: int, emitted_us: int) -> None:
        """Takes up what a commit names that was made in the same form; `emitted_us` is the watermark of its batch,
        `watermark_us` that of the next."""
        self._versions = _versions(self.forms.written, state)
        self._place(self.execution)
        self.store.serve([box.reader for box in self.boxes.values()])
        self.store.horizons = self._horizons(watermark_us, emitted_us)
        self.checkpoint.attach(state, self._groups, min(self.store.horizons.values()), emitted_us)
        for box in self.boxes.values():
            box.rebuild.check()
        for box in self.boxes.values():
            box.rebuild.complete_indexes(prepared=self.checkpoint.prepared(state))

    def catch_up(self, state: SlotState, watermark_us: int, emitted_us: int) -> bool:
        """Brings boxes that stopped some batches ago to what a commit names; if False, they are of no more use."""
        if _versions(self.forms.written, state) != self._versions:
            return False
        self.store.purge(self._horizons(watermark_us, emitted_us))
        last = self.checkpoint.catch_up(state, self._groups, min(self.store.horizons.values()), emitted_us)
        if last is None:
            return False
        for box in self.boxes.values():
            box.rebuild.check()
        # The commit may name what has ended since: it was purged above, and goes again.
        self.store.purge(self.store.horizons)
        for box in self.boxes.values():
            box.rebuild.complete_indexes(last, self.checkpoint.prepared(state))
        return True

    def save(self, batch: int, attempt: str) -> SlotState:
        """Writes what is not yet on disk, and returns what names all of the state."""
        state = self.checkpoint.save(batch, attempt, self._groups)
        self.statistics.files_written = self.checkpoint.files_written
        self.statistics.bytes_written = self.checkpoint.bytes_written
        return state

    def relocate(self) -> None:
        self.checkpoint.relocate()

    # -- a batch -----------------------------------------------------------------------------------------------------

    def replace_table(self, name: str, batch: int, rows: Rows, watermark_us: int, emitted_us: int) -> None:
        """Takes other rows for a stored table, before the batch is processed. What is kept of it is derived anew, and
        nothing emitted: rows that have met the old ones do not meet the new ones again."""
        self._versions = {**self._versions, name: batch}
        replaced = self._place(self.execution)
        source = next(s for s in self.forms.written.base_sources if s.name == name)
        self.store.serve([box.reader for box in self.boxes.values()])
        Arrival(batch).store_table(self.store, source, rows)
        self._serve(replaced, watermark_us, emitted_us)

    def step(
        self,
        batch: int,
        rows: Mapping[str, Rows],
        watermark_us: int,
        emitted_us: int,
        planned_us: int = FOREVER_US,
    ) -> Iterator[pa.RecordBatch]:
        """Processes one batch and gives its results as they are found: partial values of groups, if slots share them. The
        batch is done when the last piece was taken; a slot whose batch was not is of no more use. `planned_us` is the
        driver's clock by which rows are early. The groups of a subquery are taken in whole, and so is what two forms have of
        the same groups."""
        arrival = self._begin(batch, rows, watermark_us, emitted_us, planned_us)
        for name, box in self.boxes.items():
            if self._is_whole(name):
                continue
            if groups := list(box.step(watermark_us)):
                derived = next(s for b in self.boxes.values() for s in b.reader.sources if s.name == name)
                arrival.take(self.store, derived, pa.Table.from_batches(groups), {box.reader.query: watermark_us})
        results = self.box.step(watermark_us)
        grouped_input, leaving = self.execution.grouped_input, self.execution.leaving
        if leaving is None:
            yield from self._as_written(results, grouped_input) if self._distribution.groups_span_slots else results
            self._end(arrival, watermark_us)
            return
        old = self.boxes[self._name(leaving.grouped_input)].step(watermark_us)
        parts = [*self._as_written(results, grouped_input), *self._as_written(old, leaving.grouped_input)]
        together = parts if self._distribution.groups_span_slots else self.sgb(parts)
        self.box.statistics.results = sum(piece.num_rows for piece in together)
        yield from together
        self._end(arrival, watermark_us)

    def _is_whole(self, name: str) -> bool:
        leaving = self.execution.leaving
        return name in (self._name(self.execution.grouped_input), self._name(leaving.grouped_input) if leaving else "")

    def _begin(
        self, batch: int, rows: Mapping[str, Rows], watermark_us: int, emitted_us: int, planned_us: int
    ) -> Arrival:
        """What has ended goes, states that are lacking are worked at, and new rows come in."""
        arrival = Arrival(batch, planned_us)
        for box in self.boxes.values():
            box.begin(arrival)
        began = thread_time_ns()
        self.store.purge(self._horizons(watermark_us, emitted_us))
        arrival.cpu_ns["purge"] = thread_time_ns() - began
        for name, box in self.boxes.items():
            box.rebuild.advance(batch, self.store.horizons[name])
        for source in self.forms.written.base_sources:
            if source.name in rows:
                arrival.take(self.store, source, rows[source.name], {self.forms.written.name: watermark_us})
        return arrival

    def _end(self, arrival: Arrival, watermark_us: int) -> None:
        """Indexes settle, and what the batch measured is put together: steps and results of the query itself, states and CPU
        of all."""
        began = thread_time_ns()
        self.store.settle(arrival.batch)
        arrival.cpu_ns["settle"] = thread_time_ns() - began
        whole = self.box.statistics
        whole.preparing = self.box.rebuild.done
        whole.preparing.left = self.box.rebuild.left()
        whole.sources = {name: SourceStatistics() for name in self.store.logs}
        for (_, name), counts in arrival.counts.items():
            whole.sources[name] = counts
        for name, log in self.store.logs.items():
            whole.sources[name].state_rows, whole.sources[name].state_bytes = log.rows, log.bytes
        whole.states = self.store.measured()
        for name, groups in self._groups.items():
            whole.states.append(StateStatistics(f"groups of {name}", "groups", groups.partial_rows, groups.bytes))
        for box in self.boxes.values():
            if box is not self.box:
                whole.add_cpu(box.statistics)
        whole.add_cpu(Statistics(cpu_ns=arrival.cpu_ns))
        self.statistics = whole

    def sgb(self, parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Puts together what two forms give of the same groups at the same instants (002, section 14.1.2)."""
        grouping = self.forms.written.grouping
        assert grouping is not None
        return Aggregator(grouping, self.forms.written.row_schema).combine(parts) if parts else []

    @cached_property
    def _parts_schema(self) -> pa.Schema:
        grouping = self.forms.written.grouping
        assert grouping is not None
        return Aggregator(grouping, self.forms.written.row_schema).parts_schema

    def _as_written(self, parts: Iterable[pa.RecordBatch], grouped_input: str | None) -> Iterator[pa.RecordBatch]:
        """Partial values as the query has them as written: what it counts, a form with groups below sums up."""
        if grouped_input is None:
            yield from parts
            return
        grouping = self.forms.written.grouping
        assert grouping is not None
        counted = {f"{i} n": f"{i} low" for i, a in enumerate(grouping.aggregates) if a.function == "count"}
        schema = self._parts_schema
        for batch in parts:
            yield pa.RecordBatch.from_arrays([batch.column(counted.get(n, n)) for n in schema.names], schema=schema)

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        self.store.verify()


def _is_for(reader: Reader, block: Block, versions: Mapping[str, int]) -> bool:
    """Whether a reader is one for a block as it is now."""
    read = {source.name for source in reader.sources if isinstance(source, Table)}
    same = all(reader.versions.get(name, 0) == versions.get(name, 0) for name in read)
    return same and (reader.execution, reader.closed) == (block.execution, block.closed)


def _versions(query: Query, state: SlotState) -> dict[str, int]:
    """The batch in which each stored table was last read, as a commit has it."""
    found: dict[str, int] = {}
    for source in query.base_sources:
        if isinstance(source, Table):
            batches = [segment.batch for segment in state.logs if segment.source == source.name]
            if batches:
                found[source.name] = max(batches)
    return found
