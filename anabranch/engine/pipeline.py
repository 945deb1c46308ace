"""A query in one slot: the boxes of its subqueries and its own, fed one after the other, with their files.

Subqueries come first in a batch. Their groups at the instants that the watermark has passed go to the box above as the rows
of a stream. They are known when the watermark has passed them, so that box keeps what it has for a batch longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

from anabranch.control.records import SlotState, SourceStatistics, Statistics
from anabranch.engine.accept import Rows
from anabranch.engine.box import Box
from anabranch.engine.checkpoint import Checkpoint
from anabranch.engine.states import BoxState
from anabranch.plan.distribution import Distribution, grid_of, parted_sources
from anabranch.plan.expression import Call, Expr
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.query import FOREVER_US, Derived, Query, Stream
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

ONE_SLOT = Distribution()
"""All rows in one slot."""


class Pipeline:
    """The boxes of a query in one slot. `execution` is that of the query itself; subqueries join from left to right."""

    def __init__(
        self,
        query: Query,
        execution: Execution,
        folder: str,
        filesystem: Filesystem,
        reader: ContainerReader,
        distribution: Distribution = ONE_SLOT,
        cell: int = 0,
    ) -> None:
        self.query, self.reader = query, reader
        self.blocks: list[Checkpoint] = []
        parted = parted_sources(query, distribution.grid)
        for place, block in enumerate(query.blocks):
            graph = JoinGraph(block)
            own_execution = execution if block is query else Execution(left_deep(graph))
            gives_parts = distribution.groups_span_slots and block is query
            box = Box(graph, own_execution, grid_of(query, distribution.grid, place), cell, parted, gives_parts)
            self.blocks.append(Checkpoint(box, folder, filesystem, reader))

    @property
    def boxes(self) -> list[Box]:
        return [block.box for block in self.blocks]

    @property
    def box(self) -> Box:
        """That of the query itself."""
        return self.blocks[-1].box

    @property
    def execution(self) -> Execution:
        """What the query itself runs."""
        return self.box.execution

    def redirect(self, execution: Execution, watermark_us: int, emitted_us: int) -> None:
        """Goes on with another plan, or begins or ends a migration, before the next batch."""
        self.blocks[-1].redirect(execution, _horizon(self.box, watermark_us, emitted_us))

    def attach(self, state: SlotState, watermark_us: int, emitted_us: int) -> None:
        """Takes up what a commit names; `emitted_us` is the watermark of its batch, `watermark_us` that of the next."""
        for block, its_state in zip(self.blocks, _states(state, len(self.blocks)), strict=True):
            block.attach(its_state, _horizon(block.box, watermark_us, emitted_us), emitted_us)

    def catch_up(self, state: SlotState, watermark_us: int, emitted_us: int) -> bool:
        """Brings boxes that stopped some batches ago to what a commit names; if False, they are of no more use."""
        return all(
            block.catch_up(its_state, _horizon(block.box, watermark_us, emitted_us), emitted_us)
            for block, its_state in zip(self.blocks, _states(state, len(self.blocks)), strict=True)
        )

    def replace_table(self, name: str, batch: int, rows: Rows, watermark_us: int, emitted_us: int) -> None:
        """Takes other rows for a stored table, before the batch is processed."""
        for box in self.boxes:
            if name in box.state.logs:
                box.replace_table(name, batch, rows, _horizon(box, watermark_us, emitted_us))

    def step(
        self,
        batch: int,
        rows: Mapping[str, Rows],
        watermark_us: int,
        emitted_us: int,
        planned_us: int = FOREVER_US,
    ) -> Iterator[pa.RecordBatch]:
        """Processes one batch and gives its results as they are found. The groups of a subquery are taken in whole.
        `planned_us` is the driver's clock by which rows are early."""
        known: dict[str, Rows] = dict(rows)
        for box in self.boxes:
            query = box.graph.query
            given = {s.name: known[s.name] for s in query.sources if s.name in known}
            results = box.step(batch, given, watermark_us, _horizon(box, watermark_us, emitted_us), planned_us)
            if box is self.box:
                yield from results
            elif groups := list(results):
                known[query.name] = pa.Table.from_batches(groups)

    def save(self, batch: int, attempt: str) -> SlotState:
        """Writes what is not yet on disk, and returns what names all of the state."""
        states = [block.save(batch, f"{attempt}-{place}") for place, block in enumerate(self.blocks[:-1])]
        whole = self.blocks[-1].save(batch, attempt)
        return msgspec.structs.replace(whole, blocks=tuple(states))

    def relocate(self) -> None:
        for block in self.blocks:
            block.relocate()

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        for box in self.boxes:
            box.state.verify()

    @property
    def statistics(self) -> Statistics:
        """What the last batch measured: steps and results of the query itself, sources and states of all."""
        whole = self.box.statistics
        for box in self.boxes[:-1]:
            measured = box.statistics
            for name, counts in measured.sources.items():
                known = whole.sources.get(name)
                if known is None or not known.rows:
                    state = known or SourceStatistics()
                    counts.state_rows += state.state_rows
                    counts.state_bytes += state.state_bytes
                    whole.sources[name] = counts
                else:
                    known.state_rows += counts.state_rows
                    known.state_bytes += counts.state_bytes
            whole.absorb(measured)
        return whole


def _states(state: SlotState, blocks: int) -> list[SlotState]:
    return [*(state.blocks or (SlotState(),) * (blocks - 1)), state]


def _horizon(box: Box, watermark_us: int, emitted_us: int) -> int:
    """What is valid at or after this may still be needed."""
    return emitted_us if any(isinstance(s, Derived) for s in box.graph.query.sources) else watermark_us


def source_filters(query: Query, plan: Plan) -> dict[str, tuple[tuple[Expr, ...], ...]]:
    """For each stream the sets of predicates that some input has: a row that passes none of the sets is of no use. A stream
    of which some input takes all rows that have its keys is not there: NULLs are few, and found on the way."""
    found: dict[str, list[tuple[Expr, ...]]] = {}
    for block in query.blocks:
        graph = JoinGraph(block)
        state = BoxState(graph, Execution(plan if block is query else left_deep(graph)))
        for name, groups in state.filters.items():
            found.setdefault(name, []).extend(groups)
    streams = {s.name for s in query.base_sources if isinstance(s, Stream)}
    return {name: tuple(groups) for name, groups in found.items() if name in streams and all(map(_selects, groups))}


def _selects(predicates: tuple[Expr, ...]) -> bool:
    """Whether predicates ask more of a row than not to be NULL."""
    return any(not (isinstance(p, Call) and p.op == "not" and isinstance(p.args[0], Call) and p.args[0].op == "is_null")
               for p in predicates)  # fmt: skip


def read_columns(query: Query, plan: Plan) -> dict[str, tuple[str, ...]]:
    """The columns of each stream and table that some block reads, in declared order."""
    read: dict[str, set[str]] = {}
    for block in query.blocks:
        graph = JoinGraph(block)
        state = BoxState(graph, Execution(plan if block is query else left_deep(graph)))
        for name, columns in state.read_columns.items():
            read.setdefault(name, set()).update(columns)
    return {s.name: tuple(f.name for f in s.fields if f.name in read[s.name]) for s in query.base_sources}
