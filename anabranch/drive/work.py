"""One batch of one slot, without Spark: the boxes are attached to what the commit before names, stepped, and saved.

What a batch asks of a slot is in its control record and in the commit that it starts from (`Order`). A worker keeps the
boxes that it has attached. The next batch of a slot may run in any worker; the token of the attempt that a commit names
tells whether kept boxes are the ones to go on from. Boxes that stopped some batches ago catch up; else the slot is attached
to what that commit names.

Example: worker A ran batches 4 and 5 of slot 0, worker B runs 6, A gets 7. The attempt that commit 6 names for slot 0 has
another token than the boxes that A kept, so A has them catch up with the state that commit 6 names, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from anabranch.control.execution import execution_of
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.records import Attempt, Commit, Control, Manifest
from anabranch.control.table_files import get_table
from anabranch.engine.accept import Rows
from anabranch.engine.cells import source_mask
from anabranch.engine.pieces import limited
from anabranch.engine.slot import Slot, Tenant, Times
from anabranch.plan.distribution import Distribution, all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, Query
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

RETAIN_EVERY = 16
"""Files that are no longer named are unmapped every so many batches."""

MOST_KEPT = 32
"""A worker that served many runs forgets the boxes of the oldest."""


@dataclass(frozen=True)
class Order:
    """What a batch asks of the tasks of its slots."""

    batch: int
    watermark_us: int
    emitted_us: int
    """The watermark of the batch before: groups at instants before it have been handed out."""
    execution: Execution
    before: Execution
    """The execution of the batch before."""
    states: Mapping[int, tuple[str, Manifest | None]]
    """For each slot the token of the attempt it goes on from, and where its state is told."""
    planned_us: int
    """The driver's clock when the batch was first planned: it tells which rows are early."""
    tables: Mapping[str, str]
    """Files with the rows of stored tables that are taken in now."""
    token: str
    """That of the control record: names of staged files carry it."""

    @property
    def tables_read(self) -> str:
        """What the boxes of a slot hold whose rows need no exchange, all of it."""
        return " ".join(f"{name}={path}" for name, path in sorted(self.tables.items()))


def order_of(batch: int, epoch: int, filesystem: Filesystem, forms: Forms) -> Order:
    """What a batch asks for, from the records that it starts from."""
    control = controls_in(filesystem).read(batch, epoch)
    base = commits_in(filesystem).read(batch - 1, control.base_epoch) if batch > 0 else None
    return order_after(control, base, forms)


def order_after(control: Control, base: Commit | None, forms: Forms) -> Order:
    """What a batch asks for that starts from a commit."""
    execution, given = execution_of(control, forms), (control.planned_us, control.tables, control.token)
    if base is None:
        return Order(control.batch, control.watermark_us, BEGINNING_US, execution, execution, {}, *given)
    states = {int(slot): (kept.token, kept.manifest) for slot, kept in base.slots.items()}
    before = execution_of(base, forms)
    return Order(control.batch, control.watermark_us, base.watermark_us, execution, before, states, *given)


@dataclass(frozen=True)
class Kept:
    """What a worker keeps between batches, by run."""

    boxes: dict[str, tuple[str, Slot]] = field(default_factory=dict)
    """For each slot the token of the attempt that left its boxes, and the boxes."""
    forms: dict[str, Forms] = field(default_factory=dict)


@dataclass(frozen=True)
class SlotWork:
    """Runs the batches of the slots of a query in a worker."""

    run: str
    """Names the run: boxes kept in a worker belong to one."""
    query: Query
    distribution: Distribution
    filesystem: Filesystem
    kept: Kept
    results_per_batch: int | None = None
    """More results of a batch in a slot are an error."""

    def order(self, batch: int, epoch: int) -> Order:
        """What a batch asks for."""
        return order_of(batch, epoch, self.filesystem, self._forms())

    def boxes(self, order: Order, slot: int) -> Slot:
        """The boxes of a slot, brought to where the batch starts from. They are taken out of the kept ones: if this attempt
        fails, nobody goes on from them."""
        return self._without_exchange(order) if self.distribution.needs_no_exchange else self._attached(order, slot)

    def step(self, order: Order, slot: int, boxes: Slot, rows: Mapping[str, Rows]) -> Iterator[pa.RecordBatch]:
        """Has the boxes process a batch; its results, as they are found."""
        tables = {} if self.distribution.needs_no_exchange else self._tables(order, slot)
        if slot in order.states:
            for name in tables:
                boxes.replace_table(name, order.batch, tables[name], self._times(order))
            tables = {}
        found = boxes.step(order.batch, {**tables, **rows}, self._times(order), order.planned_us)
        return limited((piece for _, piece in found), self.results_per_batch, self.query.name, order.batch)

    def save(self, order: Order, slot: int, boxes: Slot, token: str) -> Attempt:
        """Writes what is new of the slot's state, under the token of the attempt, and keeps the boxes. What the attempt has
        to report, but for the results."""
        manifest, dropped = None, frozenset[str]()
        if not self.distribution.needs_no_exchange:
            manifest, dropped = boxes.save(order.batch, token)
            boxes.relocate()
            if order.batch % RETAIN_EVERY == 0:
                boxes.reader.retain(boxes.checkpoint.files)
        self.kept.boxes[self._key(slot)] = (order.tables_read if self.distribution.needs_no_exchange else token, boxes)
        if len(self.kept.boxes) > MOST_KEPT:
            del self.kept.boxes[next(iter(self.kept.boxes))]
        statistics = boxes.statistics[self.query.name]
        statistics.files_written, statistics.bytes_written = (
            boxes.checkpoint.files_written,
            boxes.checkpoint.bytes_written,
        )
        return Attempt(slot, token, manifest, statistics, dropped=tuple(sorted(dropped)))

    def _times(self, order: Order) -> dict[str, Times]:
        return {self.query.name: Times(order.watermark_us, order.emitted_us)}

    def _forms(self) -> Forms:
        """The forms of the query: made once in a worker."""
        if self.run not in self.kept.forms:
            if len(self.kept.forms) >= MOST_KEPT:
                del self.kept.forms[next(iter(self.kept.forms))]
            self.kept.forms[self.run] = Forms(self.query)
        return self.kept.forms[self.run]

    def _tables(self, order: Order, slot: int) -> dict[str, pa.Table]:
        """The rows of stored tables that belong to a slot."""
        found, inputs = {}, all_inputs(self.query)
        for source in self.query.base_sources:
            if source.name in order.tables:
                rows = get_table(self.filesystem, order.tables[source.name])
                found[source.name] = rows.filter(
                    pa.array(source_mask(self.distribution.grid, slot, inputs, source, rows))
                )
        return found

    def _key(self, slot: int) -> str:
        return f"{self.run}/{'' if self.distribution.needs_no_exchange else slot}"

    def _without_exchange(self, order: Order) -> Slot:
        """Boxes with the stored tables: those of any slot will do."""
        kept = self.kept.boxes.pop(self._key(0), None)
        if kept is not None and kept[0] == order.tables_read and kept[1].executions[self.query.name] == order.execution:
            return kept[1]
        reader = ContainerReader(self.filesystem)
        slot = Slot([Tenant(self._forms(), order.execution)], "state/0", self.filesystem, reader)
        for name, path in order.tables.items():
            rows = get_table(self.filesystem, path)
            slot.replace_table(name, order.batch, rows, self._times(order))
        return slot

    def _attached(self, order: Order, slot: int) -> Slot:
        token, manifest = order.states.get(slot, ("", None))
        kept = self.kept.boxes.pop(self._key(slot), None)
        if kept is not None and manifest is not None and self._goes_on(order, kept[1], kept[0] == token, manifest):
            return kept[1]
        reader = kept[1].reader if kept is not None else ContainerReader(self.filesystem)
        execution = order.execution if order.execution.is_like(order.before) else order.before
        tenant = Tenant(self._forms(), execution, self.distribution)
        boxes = Slot([tenant], f"state/{slot}", self.filesystem, reader, slot)
        boxes.attach(manifest, self._times(order))
        if execution != order.execution:
            boxes.redirect(self.query.name, order.execution, self._times(order))
        return boxes

    def _goes_on(self, order: Order, boxes: Slot, is_latest: bool, manifest: Manifest) -> bool:
        """Brings boxes of this worker to where the batch starts from: another may have had the slot for a few batches. If
        they cannot be brought there, they are of no more use."""
        name, times, execution = self.query.name, self._times(order), boxes.executions[self.query.name]
        if is_latest and execution == order.execution:
            return True
        if not is_latest:
            if not execution.is_like(order.before):
                return False
            if execution != order.before:
                boxes.redirect(name, order.before, times)
            if not boxes.catch_up(manifest, times):
                return False
        if boxes.executions[name] != order.execution:
            boxes.redirect(name, order.execution, times)
        return True
