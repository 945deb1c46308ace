"""What runs in a Python worker: one batch of one slot.

A query has one task for all its batches, part of the streaming query. What a batch asks of it is in the batch's control
record and in the commit that the batch starts from.

A worker keeps the boxes it has attached. The next batch of a slot may run in any worker; the token of the attempt whose
commit counts tells whether a kept box is the one to go on from. One that stopped some batches ago catches up; else the slot
is attached to what that commit names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T

from anabranch.control.course import course_of
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.records import Attempt, SlotState, SourceStatistics
from anabranch.control.table_files import get_table
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.pieces import limited
from anabranch.engine.routing import source_mask
from anabranch.engine.slot import Slot
from anabranch.errors import DamagedStateError, StateError
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Course
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Query, Stream
from anabranch.plan.spread import Spread, all_inputs
from anabranch.spark.pack import Packing, unpack
from anabranch.spark.stage import Clocked, stage
from anabranch.spark.types import spark_schema, zoned
from anabranch.spark.visible import require_seen
from anabranch.spark.workers import settle
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

META = "_meta"
BATCH, EPOCH = "anabranch.batch", "anabranch.epoch"
"""The local properties of Spark's that tell tasks which batch they run, and which driver's control record says how."""

RETAIN_EVERY = 16
"""Files that are no longer named are unmapped every so many batches."""

MOST_KEPT = 32
"""A worker that served many runs forgets the boxes of the oldest."""

_kept: dict[str, tuple[str, Slot]] = {}
_forms: dict[str, Forms] = {}


@dataclass(frozen=True)
class Order:
    """What a batch asks of the tasks of its slots."""

    batch: int
    watermark_us: int
    emitted_us: int
    """The watermark of the batch before: groups at instants before it have been handed out."""
    course: Course
    before: Course
    """The course of the batch before."""
    states: Mapping[int, tuple[str, bytes]]
    """For each slot the token of the attempt it goes on from, and its state (an encoded `SlotState`)."""
    planned_us: int
    """The driver's clock when the batch was first planned: it tells which rows are early."""
    tables: Mapping[str, str]
    """Files with the rows of stored tables that are taken in now."""
    token: str
    """That of the control record: names of staged files carry it."""

    @property
    def tables_read(self) -> str:
        """What the boxes of a free slot hold, all of it."""
        return " ".join(f"{name}={path}" for name, path in sorted(self.tables.items()))


def order_of(batch: int, epoch: int, filesystem: Filesystem, forms: Forms) -> Order:
    """What a batch asks for, from the records that it starts from."""
    control = controls_in(filesystem).read(batch, epoch)
    course, given = course_of(control, forms), (control.planned_us, control.tables, control.token)
    if batch == 0:
        return Order(batch, control.watermark_us, BEGINNING_US, course, course, {}, *given)
    base = commits_in(filesystem).read(batch - 1, control.base_epoch)
    states = {int(slot): (a.token, bytes(a.state)) for slot, a in base.slots.items()}
    before = course_of(base, forms)
    return Order(batch, control.watermark_us, base.watermark_us, course, before, states, *given)


def batch_of(context: TaskContext) -> int:
    """The batch that a task runs."""
    return _told(context, BATCH)


def _told(context: TaskContext, name: str) -> int:
    found = context.getLocalProperty(name)
    if found is None:
        raise StateError(f"a task was started without {name}: results can be computed in the thread of their batch only")
    return int(found)


@dataclass(frozen=True)
class Task:
    """Runs every batch of every slot of a query; what `mapInArrow` calls in each of its partitions."""

    run: str
    """Names the run: boxes kept in a worker belong to one."""
    query: Query
    spread: Spread
    packing: Packing
    filesystem: Filesystem
    staging: Filesystem | None = None
    """Where results are written to as parquet; None: they are handed to Spark."""
    results_per_batch: int | None = None
    """More results of a batch in a slot are an error."""

    @property
    def schema(self) -> T.StructType:
        """Results and, in one row per slot, the report."""
        columns = spark_schema(self.output_schema) if self.staging is None else T.StructType()
        return T.StructType([*columns.fields, T.StructField(META, T.BinaryType())])

    @property
    def output_schema(self) -> pa.Schema:
        """Results, or partial values of them."""
        if self.spread.combines and self.query.grouping is not None:
            return Aggregator(self.query.grouping, self.query.row_schema).parts_schema
        return self.query.output_schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None
        slot = context.partitionId()
        began = perf_counter_ns()
        order = self._order(batch_of(context), _told(context, EPOCH))
        told = perf_counter_ns()
        unpacked = unpack(self.packing, batches)
        received = perf_counter_ns()
        token = uuid.uuid4().hex[:12]
        boxes = self._free(order) if self.spread.is_free else self._attached(order, slot)
        attached = perf_counter_ns()
        tables = {} if self.spread.is_free else self._tables(order, slot)
        if slot in order.states:
            for name in tables:
                boxes.replace_table(name, order.batch, tables[name], order.watermark_us, order.emitted_us)
            tables = {}
        times = order.watermark_us, order.emitted_us, order.planned_us
        found = boxes.step(order.batch, {**tables, **unpacked.rows}, *times)
        results = Clocked(limited(found, self.results_per_batch, self.query.name, order.batch))
        staged, bytes_staged = "", 0
        if self.staging is None:
            for piece in results:
                yield self._with_meta(piece)
        else:
            name = f"{order.batch:010d}-{order.token}-{slot}-{token}"
            staged, bytes_staged = stage(self.staging, name, results, self.query.output_schema)
        stepped = perf_counter_ns()
        state = SlotState() if self.spread.is_free else self._saved(order, boxes, token)
        _kept[self._key(slot)] = (order.tables_read if self.spread.is_free else token, boxes)
        if len(_kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
        saved = perf_counter_ns()
        statistics = boxes.statistics
        for source in self.query.base_sources:
            if isinstance(source, Stream) and source.name in unpacked.passed_over:
                counts = statistics.sources.setdefault(source.name, SourceStatistics())
                early_after_us = source.early_after_us(order.planned_us)
                count_passed_over(counts, unpacked.passed_over[source.name], order.watermark_us, early_after_us)
        statistics.cpu_ns |= {
            "wall order": told - began, "wall receive": received - told, "wall attach": attached - received,
            "wall step": results.spent_ns, "wall stage": stepped - attached - results.spent_ns,
            "wall save": saved - stepped,
        }  # fmt: skip
        encoded = msgspec.Raw(msgspec.json.encode(state))
        yield self._meta_row(msgspec.json.encode(Attempt(slot, token, encoded, statistics, staged, bytes_staged)))

    def _order(self, batch: int, epoch: int) -> Order:
        try:
            return order_of(batch, epoch, self.filesystem, self._query_forms())
        except DamagedStateError:
            require_seen(self.filesystem)
            raise

    def _query_forms(self) -> Forms:
        """The forms of the query: made once in a worker."""
        if self.run not in _forms:
            if len(_forms) >= MOST_KEPT:
                del _forms[next(iter(_forms))]
            _forms[self.run] = Forms(self.query)
        return _forms[self.run]

    def _tables(self, order: Order, slot: int) -> dict[str, pa.Table]:
        """The rows of stored tables that belong to this slot."""
        found, inputs = {}, all_inputs(self.query)
        for source in self.query.base_sources:
            if source.name in order.tables:
                rows = get_table(self.filesystem, order.tables[source.name])
                found[source.name] = rows.filter(pa.array(source_mask(self.spread.grid, slot, inputs, source, rows)))
        return found

    def _key(self, slot: int) -> str:
        return f"{self.run}/{'' if self.spread.is_free else slot}"

    def _free(self, order: Order) -> Slot:
        """Boxes with the stored tables: those of any slot will do."""
        kept = _kept.pop(self._key(0), None)
        if kept is not None and kept[0] == order.tables_read and kept[1].course == order.course:
            return kept[1]
        reader = ContainerReader(self.filesystem)
        slot = Slot(self._query_forms(), order.course, "state/0", self.filesystem, reader)
        for name, path in order.tables.items():
            rows = get_table(self.filesystem, path)
            slot.replace_table(name, order.batch, rows, order.watermark_us, order.emitted_us)
        return slot

    def _saved(self, order: Order, boxes: Slot, token: str) -> SlotState:
        """Writes what is new of a slot's state."""
        state = boxes.save(order.batch, token)
        boxes.relocate()
        if order.batch % RETAIN_EVERY == 0:
            boxes.reader.retain(state.files())
        return state

    def _attached(self, order: Order, slot: int) -> Slot:
        """The boxes of the slot. They are taken out of the kept ones: if this attempt fails, nobody goes on from them."""
        token, state = order.states.get(slot, ("", b""))
        kept = _kept.pop(self._key(slot), None)
        if kept is not None and token and _goes_on(order, kept[1], kept[0] == token, state):
            return kept[1]
        reader = kept[1].reader if kept is not None else ContainerReader(self.filesystem)
        named = msgspec.json.decode(state, type=SlotState) if state else SlotState()
        course = order.course if order.course.is_like(order.before) else order.before
        boxes = Slot(self._query_forms(), course, f"state/{slot}", self.filesystem, reader, self.spread, slot)
        boxes.attach(named, order.watermark_us, order.emitted_us)
        if boxes.course != order.course:
            boxes.redirect(order.course, named, order.watermark_us, order.emitted_us)
        return boxes

    def _with_meta(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [c.cast(zoned(c.type)) for c in batch.columns]
        return pa.RecordBatch.from_arrays(
            [*columns, pa.nulls(batch.num_rows, pa.binary())], names=[*batch.schema.names, META]
        )

    def _meta_row(self, report: bytes) -> pa.RecordBatch:
        fields = self.output_schema if self.staging is None else []
        columns = [pa.nulls(1, zoned(f.type)) for f in fields]
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array([report], pa.binary())], names=[*(f.name for f in fields), META]
        )


def _goes_on(order: Order, boxes: Slot, is_latest: bool, encoded: bytes) -> bool:
    """Brings boxes of this worker to where the batch starts from: another may have had the slot for a few batches. If they
    cannot be brought there, they are of no more use."""
    given = order.watermark_us, order.emitted_us
    if is_latest and boxes.course == order.course:
        return True
    state = msgspec.json.decode(encoded, type=SlotState)
    if not is_latest:
        if not boxes.course.is_like(order.before):
            return False
        if boxes.course != order.before:
            boxes.redirect(order.before, state, *given)
        if not boxes.catch_up(state, *given):
            return False
    if boxes.course != order.course:
        boxes.redirect(order.course, state, *given)
    return True


def count_passed_over(
    counts: SourceStatistics, times: list[pa.Array], watermark_us: int, early_after_us: int = FOREVER_US
) -> None:
    """Counts rows of which only the times came, as `accept` would."""
    for column in times:
        known = column.drop_null().cast(pa.timestamp("us")).view(pa.int64()).to_numpy()
        counts.rows += len(column)
        counts.untimed_rows += column.null_count
        in_time = known[known <= early_after_us]
        counts.early_rows += len(known) - len(in_time)
        counts.late_rows += int((in_time < watermark_us).sum())
        if len(in_time):
            largest = int(in_time.max())
            counts.largest_time_us = largest if counts.largest_time_us is None else max(largest, counts.largest_time_us)


@dataclass(frozen=True)
class Combination:
    """What puts together the partial values that slots have of groups; `mapInArrow` calls it with all of some groups'."""

    name: str
    """How the names of staged files begin: with batch and token."""
    query: Query
    staging: Filesystem | None = None

    @property
    def schema(self) -> T.StructType:
        """Results; or, if they are written to files, their names and sizes."""
        if self.staging is None:
            return spark_schema(self.query.output_schema)
        return T.StructType([T.StructField("file", T.StringType()), T.StructField("bytes", T.LongType())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        grouping = self.query.grouping
        assert grouping is not None
        aggregator = Aggregator(grouping, self.query.row_schema)
        schema = aggregator.parts_schema
        rows = [
            pa.RecordBatch.from_arrays([_plain(c, t) for c, t in zip(b.columns, schema.types, strict=True)], schema=schema)
            for b in batches
            if b.num_rows
        ]
        results = aggregator.combine(rows) if rows else []
        if self.staging is None:
            for found in results:
                yield pa.RecordBatch.from_arrays([c.cast(zoned(c.type)) for c in found.columns], names=found.schema.names)
        elif results:
            token = uuid.uuid4().hex[:12]
            name, size = stage(self.staging, f"{self.name}-{token}", iter(results), self.query.output_schema)
            yield pa.RecordBatch.from_pydict({"file": [name], "bytes": [size]})


def _plain(column: pa.Array, type: pa.DataType) -> pa.Array:
    return column if column.type == type else column.cast(type)
