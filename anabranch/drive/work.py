"""One batch of one slot, without Spark: the boxes are attached to what the commit before names, stepped, and saved.

What a batch asks of a slot is in its control record and in the commit that it starts from (`Order`). A worker keeps the
boxes that it has attached. The next batch of a slot may run in any worker; the token of the attempt that a commit names
tells whether kept boxes are the ones to go on from. Boxes that stopped some batches ago catch up; else the slot is attached
to what that commit names.

Example: worker A ran batches 4 and 5 of slot 0, worker B runs 6, A gets 7. The attempt that commit 6 names for slot 0 has
another token than the boxes that A kept, so A has them catch up with the state that commit 6 names, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.execution import execution_of
from anabranch.control.ledger import commits_in
from anabranch.control.records import Attempt, Commit, Control, ExecutionRecord, Failure, Manifest
from anabranch.control.table_files import get_table
from anabranch.engine.accept import Rows
from anabranch.engine.blame import errors_of
from anabranch.engine.cells import source_mask
from anabranch.engine.pieces import check_results
from anabranch.engine.slot import Slot, Tenant, Times
from anabranch.errors import QueryFailedError
from anabranch.plan.distribution import Distribution, all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, Query, Stream, Table
from anabranch.plan.shared_join import SharedJoin
from anabranch.share.canonical import Running, shared_joins
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

RETAIN_EVERY = 16
"""Files that are no longer named are unmapped every so many batches."""

MOST_KEPT = 32
"""A worker that served many runs forgets the boxes of the oldest."""


@dataclass(frozen=True)
class QueryOrder:
    """What a batch asks of a query."""

    watermark_us: int
    emitted_us: int
    """The watermark of the batch before: groups at instants before it have been handed out."""
    execution: Execution
    before: Execution
    """The execution of the batch before."""
    tables: Mapping[str, str]
    """Files with the rows of stored tables that are taken in now."""


@dataclass(frozen=True)
class Order:
    """What a batch asks of the tasks of its slots."""

    batch: int
    queries: Mapping[str, QueryOrder]
    states: Mapping[int, tuple[str, Manifest | None]]
    """For each slot the token of the attempt it goes on from, and where its state is told."""
    planned_us: int
    """The driver's clock when the batch was first planned: it tells which rows are early."""
    token: str
    """That of the control record: names of staged files carry it."""
    parted: frozenset[str] = frozenset()
    """The sources whose rows may be in a slot for the sake of a query that has left."""

    @property
    def times(self) -> dict[str, Times]:
        """The times of each query."""
        return {name: Times(query.watermark_us, query.emitted_us) for name, query in self.queries.items()}

    @property
    def tables(self) -> dict[tuple[str, str], list[str]]:
        """The tables that are taken in, with the file, and the queries that take them in."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, query in self.queries.items():
            for table, path in query.tables.items():
                found.setdefault((table, path), []).append(name)
        return found

    @property
    def tables_read(self) -> str:
        """What the boxes of a slot hold whose rows need no exchange, all of it."""
        return " ".join(f"{table}={path}" for table, path in sorted(self.tables))


def order_after(
    control: Control, base: Commit | None, forms: Mapping[str, Forms], known: Executions | None = None
) -> Order:
    """What a batch asks for that starts from a commit. `known` are executions that were read before."""
    queries, read = {}, known if known is not None else {}
    for name, own in control.queries.items():
        execution, before, emitted_us = _execution(name, own.execution, forms, read), None, BEGINNING_US
        if base is not None:
            last = base.queries[name]
            before, emitted_us = _execution(name, last.execution, forms, read), last.watermark_us
        queries[name] = QueryOrder(own.watermark_us, emitted_us, execution, before or execution, own.tables)
    kept = base.slots if base is not None else {}
    states = {int(slot): (each.token, each.manifest) for slot, each in kept.items()}
    return Order(control.batch, queries, states, control.planned_us, control.token, frozenset(control.parted))


Executions = dict[str, tuple[ExecutionRecord, Execution]]
"""For each query the execution that was last read, and its record."""


def _execution(name: str, record: ExecutionRecord, forms: Mapping[str, Forms], known: Executions) -> Execution:
    """The execution that a record names: mostly the one of the batch before."""
    if name not in known or known[name][0] != record:
        known[name] = record, execution_of(record, forms[name])
    return known[name][1]


@dataclass(frozen=True)
class Kept:
    """What a worker keeps between batches, by run."""

    boxes: dict[str, tuple[str, Slot]] = field(default_factory=dict)
    """For each slot the token of the attempt that left its boxes, and the boxes."""
    forms: dict[str, dict[str, Forms]] = field(default_factory=dict)
    executions: dict[str, Executions] = field(default_factory=dict)


@dataclass(frozen=True)
class SlotWork:
    """Runs the batches of the slots of a pipeline in a worker."""

    run: str
    """Names the run: boxes kept in a worker belong to one."""
    queries: Mapping[str, tuple[Query, Distribution]]
    """The queries of the pipeline, and how their rows are spread. Results come in this order."""
    filesystem: Filesystem
    kept: Kept
    results_per_batch: int | None = None
    """More results of a query in a batch in a slot are an error."""

    @property
    def needs_no_exchange(self) -> bool:
        return all(distribution.needs_no_exchange for _, distribution in self.queries.values())

    def order(self, control: Control) -> Order:
        """What a batch asks for, by its control record and the commit that it starts from."""
        batch = control.batch
        base = commits_in(self.filesystem).read(batch - 1, control.base_epoch) if batch > 0 else None
        return order_after(control, base, self._forms(), self.kept.executions.setdefault(self.run, {}))

    def boxes(self, order: Order, slot: int) -> Slot:
        """The boxes of a slot, brought to where the batch starts from. They are taken out of the kept ones: if this attempt
        fails, nobody goes on from them."""
        return self._without_exchange(order) if self.needs_no_exchange else self._attached(order, slot)

    def step(
        self, order: Order, slot: int, boxes: Slot, rows: Mapping[str, Rows]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Has the boxes process a batch; the results of each query, as they are found."""
        tables: dict[str, pa.Table] = {}
        for (name, path), asking in {}.items() if self.needs_no_exchange else order.tables.items():
            queries = [query for query in asking if query in boxes.tenants]
            if not queries:
                continue
            stored = self._stored(name, path, slot)
            if slot in order.states:
                boxes.replace_table(name, order.batch, stored, order.times, queries)
            else:
                tables[name] = stored
        counts = dict.fromkeys(self.queries, 0)
        for query, piece in boxes.step(order.batch, {**tables, **rows}, order.times, order.planned_us):
            counts[query] += piece.num_rows
            with errors_of(query):
                check_results(counts[query], self.results_per_batch, query, order.batch)
            yield query, piece

    def save(self, order: Order, slot: int, boxes: Slot, token: str) -> Attempt:
        """Writes what is new of the slot's state, under the token of the attempt, and keeps the boxes. What the attempt has
        to report, but for the results."""
        manifest, dropped = None, frozenset[str]()
        if not boxes.tenants:
            return Attempt(slot, token, None, {})
        if not self.needs_no_exchange:
            manifest, dropped = boxes.save(order.batch, token)
            boxes.relocate()
            if order.batch % RETAIN_EVERY == 0:
                boxes.reader.retain(boxes.checkpoint.files)
        self.kept.boxes[self._key(slot)] = (order.tables_read if self.needs_no_exchange else token, boxes)
        if len(self.kept.boxes) > MOST_KEPT:
            del self.kept.boxes[next(iter(self.kept.boxes))]
        first = next(iter(boxes.statistics.values()))
        first.files_written, first.bytes_written = boxes.checkpoint.files_written, boxes.checkpoint.bytes_written
        return Attempt(slot, token, manifest, boxes.statistics, dropped=tuple(sorted(dropped)))

    def failed(self, slot: int, token: str, error: QueryFailedError) -> Attempt:
        """What an attempt has to report in which a query failed by itself."""
        failure = Failure(type(error.error).__name__, str(error.error))
        return Attempt(slot, token, None, {}, failed={error.query: failure})

    def _forms(self) -> dict[str, Forms]:
        """The forms of the queries: made once in a worker."""
        known = self.kept.forms.setdefault(self.run, {})
        if len(self.kept.forms) > MOST_KEPT:
            oldest = next(iter(self.kept.forms))
            del self.kept.forms[oldest]
            self.kept.executions.pop(oldest, None)
        for name, (query, _) in self.queries.items():
            if name not in known:
                known[name] = Forms(query)
        return known

    def _stored(self, table: str, path: str, slot: int) -> pa.Table:
        """The rows of a stored table that belong to a slot, for the sake of any query."""
        rows = get_table(self.filesystem, path)
        return rows.filter(pa.array(slot_mask(self.queries.values(), table, slot, rows)))

    def _key(self, slot: int) -> str:
        return f"{self.run}/{'' if self.needs_no_exchange else slot}"

    def _tenants(self, executions: Mapping[str, Execution], slot: int) -> list[Tenant]:
        """The queries that have a cell in a slot: some may need fewer slots than there are."""
        forms = self._forms()
        return [
            Tenant(forms[name], executions[name], distribution)
            for name, (_, distribution) in self.queries.items()
            if name in executions and slot < distribution.grid.cells
        ]

    def _without_exchange(self, order: Order) -> Slot:
        """Boxes with the stored tables: those of any slot will do."""
        kept, executions = self.kept.boxes.pop(self._key(0), None), _executions(order)
        if kept is not None and kept[0] == order.tables_read and kept[1].executions == executions:
            return kept[1]
        reader, forms = ContainerReader(self.filesystem), self._forms()
        tenants = [Tenant(forms[name], executions[name]) for name in self.queries if name in executions]
        slot = Slot(tenants, "state/0", self.filesystem, reader)
        for (name, path), queries in order.tables.items():
            slot.replace_table(name, order.batch, get_table(self.filesystem, path), order.times, queries)
        return slot

    def _attached(self, order: Order, slot: int) -> Slot:
        token, manifest = order.states.get(slot, ("", None))
        kept = self.kept.boxes.pop(self._key(slot), None)
        if kept is not None and manifest is not None and self._goes_on(order, kept[1], kept[0] == token, manifest):
            return kept[1]
        reader = kept[1].reader if kept is not None else ContainerReader(self.filesystem)
        starts = {n: q.execution if q.execution.is_like(q.before) else q.before for n, q in order.queries.items()}
        tenants = self._tenants(starts, slot)
        shared = self._shared({tenant.name: starts[tenant.name] for tenant in tenants})
        boxes = Slot(tenants, f"state/{slot}", self.filesystem, reader, slot, order.parted, shared)
        boxes.attach(manifest, order.times)
        self._redirect(boxes, _executions(order), order)
        return boxes

    def _goes_on(self, order: Order, boxes: Slot, is_latest: bool, manifest: Manifest) -> bool:
        """Brings boxes of this worker to where the batch starts from: another may have had the slot for a few batches. If
        they cannot be brought there, they are of no more use."""
        if not boxes.executions.keys() <= order.queries.keys():
            return False  # a query has left the pipeline
        if not is_latest:
            before = {name: order.queries[name].before for name in boxes.executions}
            if not all(execution.is_like(before[name]) for name, execution in boxes.executions.items()):
                return False
            self._redirect(boxes, before, order)
            if not boxes.catch_up(manifest, order.times):
                return False
        self._redirect(boxes, _executions(order), order)
        return True

    def _redirect(self, boxes: Slot, executions: Mapping[str, Execution], order: Order) -> None:
        """Has queries go on with other executions, where these differ from what they have."""
        now = {name: executions[name] for name in boxes.executions}
        changed = {name: now[name] for name, before in boxes.executions.items() if now[name] != before}
        if changed:
            boxes.redirect(changed, order.times, self._shared(now))

    def _shared(self, executions: Mapping[str, Execution]) -> tuple[SharedJoin, ...]:
        """The joins that queries run together, as they run now."""
        forms = self._forms()
        return shared_joins(Running(forms[n].written, each, self.queries[n][1]) for n, each in executions.items())


def _executions(order: Order) -> dict[str, Execution]:
    return {name: query.execution for name, query in order.queries.items()}


def slot_mask(
    queries: Iterable[tuple[Query, Distribution]], source: str, slot: int, rows: pa.Table | pa.RecordBatch
) -> npt.NDArray[np.bool_]:
    """Which rows of a source belong to a slot for the sake of any query."""
    mask = np.zeros(rows.num_rows, np.bool_)
    for query, distribution in queries:
        read = _source(query, source)
        if read is not None and slot < distribution.grid.cells:
            mask |= source_mask(distribution.grid, slot, all_inputs(query), read, rows)
    return mask


def _source(query: Query, name: str) -> Stream | Table | None:
    return next((source for source in query.base_sources if source.name == name), None)
