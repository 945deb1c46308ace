"""What runs in a Python worker: one batch of one slot.

A query has one task for all its batches, part of the streaming query. It takes the rows of its slot out of what the exchange
brought, has `anabranch.drive.work` run the batch, hands the results on or stages them, and reports.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T

from anabranch.control.records import SourceStatistics
from anabranch.drive.work import Kept, Order, SlotWork
from anabranch.engine.aggregation import Aggregator
from anabranch.errors import DamagedStateError, StateError
from anabranch.plan.distribution import Distribution
from anabranch.plan.query import FOREVER_US, Query, Stream
from anabranch.spark.pack import Packing, unpack
from anabranch.spark.stage import Clocked, stage
from anabranch.spark.types import spark_schema, zoned
from anabranch.spark.visible import require_seen
from anabranch.spark.workers import settle
from anabranch.storage.filesystem import Filesystem

META = "_meta"
BATCH, EPOCH = "anabranch.batch", "anabranch.epoch"
"""The local properties of Spark's that tell tasks which batch they run, and which driver's control record says how."""

_KEPT = Kept()
"""What this worker keeps."""


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
    distribution: Distribution
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
        if self.distribution.groups_span_slots and self.query.grouping is not None:
            return Aggregator(self.query.grouping, self.query.row_schema).parts_schema
        return self.query.output_schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None
        slot = context.partitionId()
        began = perf_counter_ns()
        work = SlotWork(self.run, self.query, self.distribution, self.filesystem, _KEPT, self.results_per_batch)
        order = self._order(work, batch_of(context), _told(context, EPOCH))
        told = perf_counter_ns()
        unpacked = unpack(self.packing, batches)
        received = perf_counter_ns()
        token = uuid.uuid4().hex[:12]
        boxes = work.boxes(order, slot)
        attached = perf_counter_ns()
        results = Clocked(work.step(order, slot, boxes, unpacked.rows))
        staged, bytes_staged = "", 0
        if self.staging is None:
            for piece in results:
                yield self._with_meta(piece)
        else:
            name = f"{order.batch:010d}-{order.token}-{slot}-{token}"
            staged, bytes_staged = stage(self.staging, name, results, self.query.output_schema)
        stepped = perf_counter_ns()
        attempt = work.save(order, slot, boxes, token)
        statistics = attempt.statistics
        saved = perf_counter_ns()
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
        report = msgspec.structs.replace(attempt, results=staged, results_bytes=bytes_staged)
        yield self._meta_row(msgspec.json.encode(report))

    def _order(self, work: SlotWork, batch: int, epoch: int) -> Order:
        try:
            return work.order(batch, epoch)
        except DamagedStateError:
            require_seen(self.filesystem)
            raise

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
class CombiningTask:
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
