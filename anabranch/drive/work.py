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
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.execution import execution_of
from anabranch.control.ledger import commits_in
from anabranch.control.pace import Pace
from anabranch.control.records import Attempt, Commit, Control, ExecutionRecord, Failure, Limit, Manifest
from anabranch.control.table_files import get_table
from anabranch.drive.kept import ANY_SLOT, Executions, Kept
from anabranch.drive.lookups import NOT_ASKING, Asking, Lookups
from anabranch.drive.waking import with_statements
from anabranch.engine.accept import Rows
from anabranch.engine.blame import errors_of
from anabranch.engine.cells import source_mask
from anabranch.engine.limits import Limits
from anabranch.engine.pieces import check_results
from anabranch.engine.shedding import Dropped, Shedding
from anabranch.engine.slot import Slot, Tenant, Times, parted_by
from anabranch.errors import QueryFailedError
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.databases.protocol import Servers
from anabranch.place.databases.registry import database
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

NOTHING_DROPPED: Mapping[str, Dropped] = MappingProxyType({})


@dataclass(frozen=True)
class QueryOrder:
    """What a batch asks of a query."""

    watermark_us: int
    emitted_us: int
    """The watermark of the batch before: groups at instants before it have been handed out."""
    execution: Execution
    before: Execution | None
    """The execution of the batch before; None if the query comes with this one."""
    tables: Mapping[str, str]
    """Files with the rows of stored tables that are taken in now."""
    since: int = 0
    """The first batch whose rows of streams are its own."""
    clock_us: int = BEGINNING_US
    """The clock that the freshness of its results is told by."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """Which rows of its inputs may look up their partners where results are found."""
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """How long databases have taken of late, beside what was calibrated."""

    @property
    def at_first(self) -> Execution:
        """What to attach the query with: what the commit was made by, as far as the form goes."""
        return self.execution if self.before is None or self.execution.is_like(self.before) else self.before


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
    slices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """How new rows of sources are cut, as far as that was decided."""
    salt: int = 0
    """By it rows are chosen that look up their partners, or that are shed."""
    shed: Mapping[str, float] = field(default_factory=dict)
    """The share of rows of each stream that is kept."""
    may_lose: bool = False
    """Whether queries may lose results: then they share no routes."""

    @property
    def shedding(self) -> Shedding:
        """Which rows are dropped before they come to a slot."""
        return Shedding(self.shed, self.salt, self.planned_us)

    def limits(self, slot: int, dropped: Mapping[str, Dropped]) -> Limits:
        """What may be lost in a slot."""
        own = {name: query.limits for name, query in self.queries.items() if query.limits}
        return Limits(self.may_lose, own, slot, self.salt, self.shed, dropped)

    @property
    def times(self) -> dict[str, Times]:
        """The times of each query."""
        return {name: Times(query.watermark_us, query.emitted_us, query.clock_us) for name, query in self.queries.items()}

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


def _order(control: Control, base: Commit | None, forms: Mapping[str, Forms], read: Executions) -> Order:
    """What a batch asks for that starts from a commit. `read` are executions that were read before; those of queries that
    have left are forgotten."""
    queries = {}
    for name in read.keys() - control.queries.keys():
        del read[name]
    for name, own in control.queries.items():
        execution, before, emitted_us = _execution(name, own.execution, forms, read), None, BEGINNING_US
        last = base.queries.get(name) if base is not None else None
        if last is not None and last.identity == own.identity:
            before, emitted_us = _execution(name, last.execution, forms, read), last.watermark_us
        queries[name] = QueryOrder(
            own.watermark_us, emitted_us, execution, before, own.tables, own.since, own.clock_us, own.limits, own.paces
        )
    kept = base.slots if base is not None else {}
    states = {int(slot): (each.token, each.manifest) for slot, each in kept.items()}
    return Order(
        control.batch, queries, states, control.planned_us, control.token, frozenset(control.parted), control.slices,
        control.salt, control.shed, control.may_lose,
    )  # fmt: skip


def _execution(name: str, record: ExecutionRecord, forms: Mapping[str, Forms], known: Executions) -> Execution:
    """The execution that a record names: mostly the one of the batch before."""
    if name not in known or known[name][0] != record:
        known[name] = record, with_statements(execution_of(record, forms[name]), forms[name].written)
    return known[name][1]


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
    databases: Servers = database
    """Gives databases in which rows are looked up for."""

    @property
    def needs_no_exchange(self) -> bool:
        return all(distribution.needs_no_exchange for _, distribution in self.queries.values())

    def order(self, control: Control) -> Order:
        """What a batch asks for, by its control record and the commit that it starts from."""
        batch = control.batch
        base = commits_in(self.filesystem).read(batch - 1, control.base_epoch) if batch > 0 else None
        return self.order_after(control, base)

    def order_after(self, control: Control, base: Commit | None) -> Order:
        """What a batch asks for that starts from a commit."""
        return _order(control, base, self._forms(), self.kept.of(self.run).executions)

    def boxes(self, order: Order, slot: int) -> Slot:
        """The boxes of a slot, brought to where the batch starts from. They are taken out of the kept ones: if this attempt
        fails, nobody goes on from them."""
        boxes = self._without_exchange(order) if self.needs_no_exchange else self._attached(order, slot)
        boxes.store.cut_as(order.slices)
        return boxes

    def step(
        self,
        order: Order,
        slot: int,
        boxes: Slot,
        rows: Mapping[str, Rows],
        dropped: Mapping[str, Dropped] = NOTHING_DROPPED,
        asking: Asking = NOT_ASKING,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Has the boxes process a batch; the results of each query, as they are found. What was `dropped` of streams before
        it came to a slot is counted in one of them. `asking` is what the batch is told about databases. A slot in
        which no query has a cell, because those that had one have left, has nothing to do."""
        if not boxes.tenants:
            return
        own = {name: query for name, (query, _) in self.queries.items() if name in boxes.tenants}
        paces = {what: pace for name in own for what, pace in order.queries[name].paces.items()}
        lookups = Lookups(self.run, own, self.databases, asking, self.kept.shelf, paces)
        watermarks = {name: query.watermark_us for name, query in order.queries.items()}
        rows, brought = lookups.enriched(rows, watermarks, order.planned_us)
        tables: dict[str, pa.Table] = {}
        for (name, path), readers in {}.items() if self.needs_no_exchange else order.tables.items():
            queries = [query for query in readers if query in boxes.tenants]
            if not queries:
                continue
            stored = self._stored(name, path, slot)
            if slot in order.states:
                boxes.replace_table(name, order.batch, stored, order.times, queries)
            else:
                tables[name] = stored
        counts = dict.fromkeys(self.queries, 0)
        limits = order.limits(slot, dropped)
        for query, piece in boxes.step(order.batch, {**tables, **rows}, order.times, order.planned_us, limits, brought):
            counts[query] += piece.num_rows
            with errors_of(query):
                check_results(counts[query], self.results_per_batch, query, order.batch)
            yield query, piece
        lookups.tell(boxes.statistics)

    def save(self, order: Order, slot: int, boxes: Slot, token: str) -> Attempt:
        """Writes what is new of the slot's state, under the token of the attempt, and keeps the boxes. What the attempt has
        to report, but for the results."""
        manifest, dropped = None, frozenset[str]()
        if not boxes.tenants:
            return Attempt(slot, token, None, {}, dropped=tuple(sorted(boxes.checkpoint.files)))
        if not self.needs_no_exchange:
            manifest, dropped = boxes.save(order.batch, token)
            boxes.relocate()
            if order.batch % RETAIN_EVERY == 0:
                boxes.reader.retain(boxes.checkpoint.files)
        boxes.batch = order.batch
        if self.needs_no_exchange:
            self.kept.keep(self.run, ANY_SLOT, order.tables_read, boxes)
        else:
            self.kept.keep(self.run, slot, token, boxes)
        first = next(iter(boxes.statistics.values()))
        first.files_written, first.bytes_written = boxes.checkpoint.files_written, boxes.checkpoint.bytes_written
        return Attempt(slot, token, manifest, boxes.statistics, dropped=tuple(sorted(dropped)))

    def failed(self, slot: int, token: str, error: QueryFailedError) -> Attempt:
        """What an attempt has to report in which a query failed by itself."""
        failure = Failure(type(error.error).__name__, str(error.error))
        return Attempt(slot, token, None, {}, failed={error.query: failure})

    def _forms(self) -> dict[str, Forms]:
        """The forms of the queries: made once in a worker. Those of queries that have left are forgotten."""
        kept = self.kept.of(self.run)
        known = kept.forms
        for name in known.keys() - self.queries.keys():
            del known[name]
        for name, (query, _) in self.queries.items():
            if name not in known or known[name].written is not query:
                known[name] = Forms(query)
                kept.executions.pop(name, None)
        return known

    def _stored(self, table: str, path: str, slot: int) -> pa.Table:
        """The rows of a stored table that belong to a slot, for the sake of any query."""
        rows = get_table(self.filesystem, path)
        return rows.filter(pa.array(slot_mask(self.queries.values(), table, slot, rows)))

    def _tenants(self, order: Order, executions: Mapping[str, Execution], slot: int) -> dict[str, Tenant]:
        """Those of some queries that have a cell in a slot: some may need fewer slots than there are."""
        forms = self._forms()
        return {
            name: Tenant(forms[name], executions[name], distribution, order.queries[name].since)
            for name, (_, distribution) in self.queries.items()
            if name in executions and distribution.grid.has(slot)
        }

    def _without_exchange(self, order: Order) -> Slot:
        """Boxes with the stored tables: those of any slot will do."""
        kept, executions = self.kept.of(self.run).boxes.pop(ANY_SLOT, None), _executions(order)
        tenants = self._tenants(order, executions, 0)
        if kept is not None and kept[0] == order.tables_read and kept[1].executions == executions:
            there = kept[1].tenants
            if all(_is_same(there[name], tenant) for name, tenant in tenants.items()):
                return kept[1]
        slot = Slot([*tenants.values()], "state/0", self.filesystem, ContainerReader(self.filesystem))
        for (name, path), queries in order.tables.items():
            slot.replace_table(name, order.batch, get_table(self.filesystem, path), order.times, queries)
        return slot

    def _attached(self, order: Order, slot: int) -> Slot:
        token, manifest = order.states.get(slot, ("", None))
        kept = self.kept.of(self.run).boxes.pop(slot, None)
        if kept is not None and manifest is not None and self._goes_on(order, slot, kept[1], kept[0] == token, manifest):
            return kept[1]
        reader = kept[1].reader if kept is not None else ContainerReader(self.filesystem)
        there = {name: query.at_first for name, query in order.queries.items() if query.before is not None}
        # The commit was made by those that were there; where nobody was, there is nothing to attach.
        tenants = self._tenants(order, there, slot) or self._tenants(order, _executions(order), slot)
        shared = _shared(tenants.values(), order)
        parted = order.parted | parted_by(self._tenants(order, _executions(order), slot).values())
        boxes = Slot(
            [*tenants.values()], f"state/{slot}", self.filesystem, reader, slot, parted, shared, open_embedded
        )
        boxes.attach(manifest, order.times)
        self._redirect(boxes, self._tenants(order, _executions(order), slot), order)
        return boxes

    def _goes_on(self, order: Order, slot: int, boxes: Slot, is_latest: bool, manifest: Manifest) -> bool:
        """Brings boxes of this worker to where the batch starts from: another may have had the slot for a few batches. If
        they cannot be brought there, they are of no more use."""
        now = self._tenants(order, _executions(order), slot)
        if not is_latest and boxes.batch >= order.batch:
            return False  # an attempt that came to nothing, because another slot could not run the batch: its time is past
        if not now or not order.parted <= boxes.parted or (order.may_lose and boxes.sharing):
            return False
        is_known = all(_is_spread_alike(boxes.tenants.get(name), tenant) for name, tenant in now.items())
        if not is_known and not parted_by(now.values()) <= boxes.parted:
            return False
        if not is_latest:
            before = {name: query.before for name, query in order.queries.items() if query.before is not None}
            there = self._tenants(order, before, slot)
            if not there or not all(_is_like(boxes.tenants.get(name), tenant) for name, tenant in there.items()):
                return False
            self._redirect(boxes, there, order)
            if not boxes.catch_up(manifest, order.times):
                return False
        self._redirect(boxes, now, order)
        return True

    def _redirect(self, boxes: Slot, now: Mapping[str, Tenant], order: Order) -> None:
        """Has a slot go on with the queries that there are now, where these differ from those that it has, or what they run
        does."""
        coming = [tenant for name, tenant in now.items() if not _is_same(boxes.tenants.get(name), tenant)]
        stays = now.keys() - {tenant.name for tenant in coming}
        going = boxes.tenants.keys() - stays
        changed = {name: now[name].execution for name in stays if now[name].execution != boxes.tenants[name].execution}
        if changed or coming or going:
            boxes.redirect(changed, order.times, _shared(now.values(), order), coming, going)


def _is_same(one: Tenant | None, other: Tenant) -> bool:
    """Whether two tenants are the same query, whatever they run."""
    return one is not None and one.forms is other.forms and one.since == other.since


def _is_spread_alike(one: Tenant | None, other: Tenant) -> bool:
    """Whether two tenants are the same query, whose rows are spread in the same way."""
    return one is not None and _is_same(one, other) and one.distribution is other.distribution


def _is_like(one: Tenant | None, other: Tenant) -> bool:
    """Whether a tenant that is there, if it is, can go on as another."""
    return one is None or not _is_same(one, other) or one.execution.is_like(other.execution)


def _shared(tenants: Iterable[Tenant], order: Order) -> tuple[SharedJoin, ...]:
    """The joins that queries run together, as they run now."""
    return shared_joins(Running(t.forms.written, t.execution, t.distribution, t.since, order.may_lose) for t in tenants)


def _executions(order: Order) -> dict[str, Execution]:
    return {name: query.execution for name, query in order.queries.items()}


def shed_rows(
    order: Order, sources: Mapping[str, Stream | Table], rows: Mapping[str, pa.RecordBatch]
) -> tuple[Mapping[str, pa.RecordBatch], Mapping[str, Dropped]]:
    """The rows of streams that a batch keeps, before they are spread over slots; and what it drops."""
    if not order.shed:
        return rows, NOTHING_DROPPED
    kept, dropped = dict(rows), dict[str, Dropped]()
    for name, given in rows.items():
        if isinstance(source := sources[name], Stream) and name in order.shed:
            kept[name], dropped[name] = order.shedding.shed(source, given)
    return kept, dropped


def slot_mask(
    queries: Iterable[tuple[Query, Distribution]], source: str, slot: int, rows: pa.Table | pa.RecordBatch
) -> npt.NDArray[np.bool_]:
    """Which rows of a source belong to a slot for the sake of any query."""
    mask = np.zeros(rows.num_rows, np.bool_)
    for query, distribution in queries:
        read = _source(query, source)
        if read is not None and distribution.grid.has(slot):
            mask |= source_mask(distribution.grid, slot, all_inputs(query), read, rows)
    return mask


def _source(query: Query, name: str) -> Stream | Table | None:
    return next((source for source in query.base_sources if source.name == name), None)
