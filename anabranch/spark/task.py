"""What runs in a Python worker: one batch of one slot.

A pipeline has one task for all its batches, part of the streaming query. It takes the rows of its slot out of what the
exchange brought, has `anabranch.drive.work` run the batch, stages the results in files, and reports.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter_ns, thread_time_ns

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T

from anabranch.control.ledger import controls_in
from anabranch.control.records import STAGE, Attempt, SourceStatistics, Statistics
from anabranch.drive.kept import Kept
from anabranch.drive.lookups import Asking
from anabranch.drive.queries import BoundQueries
from anabranch.drive.staging import Result, Staging, set_aside_of, staged_name
from anabranch.drive.work import Order, SlotWork
from anabranch.errors import DamagedStateError, DatabaseGoneError, QueryFailedError, StateError
from anabranch.plan.outward import outward_schema
from anabranch.plan.query import FOREVER_US, Query, Stream
from anabranch.spark.pack import Packing, unpack
from anabranch.spark.stage import ParquetStaging
from anabranch.spark.visible import require_seen
from anabranch.spark.workers import settle, settle_with
from anabranch.storage.filesystem import Filesystem, LocalFilesystem

REPORT = "report"
BATCH, EPOCH = "anabranch.batch", "anabranch.epoch"
"""The local properties of Spark's that tell tasks which batch they run, and which driver's control record says how."""
ASKING = "anabranch.asking"
"""The property that tells tasks which snapshots of databases they read, and what lookups take there. The driver that runs
the tasks holds the snapshots: one that comes after it runs the batch again, with others."""

_KEPT, _BOUND = Kept(), BoundQueries()
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
    """Runs every batch of every slot of a pipeline; what `mapInArrow` calls in each of its partitions. It hands on nothing
    but its report: results are in files."""

    run: str
    """Names the run: boxes kept in a worker belong to one."""
    slots: int
    packing: Packing
    filesystem: Filesystem
    staging: Staging
    root: Filesystem
    """That of the checkpoint, by which a worker can tell whether it sees it."""
    results_per_batch: int | None = None
    """More results of a query in a batch in a slot are an error."""

    @property
    def schema(self) -> T.StructType:
        """One row per slot: the report."""
        return T.StructType([T.StructField(REPORT, T.BinaryType())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None
        slot = context.partitionId()
        began = perf_counter_ns()
        work, order, staging = self._order(batch_of(context), _told(context, EPOCH))
        told = perf_counter_ns()
        unpacked = unpack(self.packing, batches)
        received = perf_counter_ns()
        token = uuid.uuid4().hex[:12]
        boxes = work.boxes(order, slot)
        attached, attached_cpu = perf_counter_ns(), thread_time_ns()
        asking = msgspec.json.decode(context.getLocalProperty(ASKING) or "{}", type=Asking)
        results = Clocked(work.step(order, slot, boxes, unpacked.rows, asking=asking))
        try:
            kept = self._kept_aside(staging, unpacked.set_aside)
            name = staged_name(order.batch, order.token, slot, token)
            staged = staging.stage(name, chain(kept, results), boxes.sharing)
        except QueryFailedError as error:
            yield self._row(work.failed(slot, token, error))
            return
        except DatabaseGoneError as error:
            yield self._row(Attempt(slot, token, None, {}, gone=str(error)))
            return
        stepped, stepped_cpu = perf_counter_ns(), thread_time_ns()
        attempt = work.save(order, slot, boxes, token)
        settle_with({f"{run}/{slot}": boxes for run, slot, boxes in _KEPT})
        saved = perf_counter_ns()
        count_all_passed_over(work, attempt, order, unpacked.passed_over)
        count_all_passed_over(work, attempt, order, unpacked.shed, are_shed=True)
        count_set_aside(work, attempt, unpacked.set_aside)
        first = next(iter(attempt.statistics.values()), Statistics())
        first.cpu_ns |= {
            "wall order": told - began, "wall receive": received - told, "wall attach": attached - received,
            "wall step": results.spent_ns, "wall stage": stepped - attached - results.spent_ns,
            "wall save": saved - stepped, STAGE: stepped_cpu - attached_cpu - results.cpu_ns,
        }  # fmt: skip
        yield self._row(msgspec.structs.replace(attempt, staged=staged))

    def _kept_aside(self, staging: Staging, set_aside: Mapping[str, list[pa.RecordBatch]]) -> Iterator[Result]:
        """The rows that were set aside and are kept, by the names under which they are delivered."""
        for stream, told in set_aside.items():
            if (name := set_aside_of(stream)) in staging.own_files:
                yield from ((name, rows) for rows in told)

    def _row(self, attempt: Attempt) -> pa.RecordBatch:
        report = msgspec.json.encode(attempt)
        return pa.RecordBatch.from_arrays([pa.array([report], pa.binary())], names=[REPORT])

    def _order(self, batch: int, epoch: int) -> tuple[SlotWork, Order, Staging]:
        """What a batch asks for, of which queries, and where results go. Those with files of their own stand first."""
        try:
            control = controls_in(self.filesystem).read(batch, epoch)
            folders = {name: own.own_folder for name, own in control.queries.items() if own.own_folder}
            queries = _BOUND.of(control, self.slots, self.root, [*self.staging.own_files, *folders])
            work = SlotWork(self.run, queries, self.filesystem, _KEPT, self.results_per_batch)
            came = {n: _parquet_in(at, queries[n][0]) for n, at in folders.items()}
            staging = replace(self.staging, own_files={**self.staging.own_files, **came}) if came else self.staging
            return work, work.order(control), staging
        except DamagedStateError:
            require_seen(self.root)
            raise


def _parquet_in(folder: str, query: Query) -> ParquetStaging:
    """Writes the results of a query to files in a folder of this machine."""
    return ParquetStaging(LocalFilesystem(folder, shared=True), outward_schema(query))


class Clocked:
    """Results as they are found, and how long the finding took, by the clock and of the thread's CPU: not what becomes of
    them in between."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._results, self.spent_ns, self.cpu_ns = iter(results), 0, 0

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        began, began_cpu = perf_counter_ns(), thread_time_ns()
        try:
            return next(self._results)
        finally:
            self.spent_ns += perf_counter_ns() - began
            self.cpu_ns += thread_time_ns() - began_cpu


def count_all_passed_over(
    work: SlotWork, attempt: Attempt, order: Order, passed_over: Mapping[str, list[pa.Array]], are_shed: bool = False
) -> None:
    """Counts rows that the reader has passed over, or shed, for each query that reads their stream."""
    for name, statistics in attempt.statistics.items():
        for source in work.queries[name][0].base_sources:
            if isinstance(source, Stream) and source.name in passed_over:
                counts = statistics.sources.setdefault(source.name, SourceStatistics())
                early_after_us = source.early_after_us(order.planned_us)
                watermark_us = order.queries[name].watermark_us
                in_time = count_passed_over(counts, passed_over[source.name], watermark_us, early_after_us)
                counts.shed_rows += in_time if are_shed else 0


def count_set_aside(work: SlotWork, attempt: Attempt, set_aside: Mapping[str, list[pa.RecordBatch]]) -> None:
    """Counts rows and files that the reader has set aside, for each query that reads their stream."""
    for name, statistics in attempt.statistics.items():
        for source in work.queries[name][0].base_sources:
            for told in set_aside.get(source.name, ()):
                counts = statistics.sources.setdefault(source.name, SourceStatistics())
                files = told.column("row").null_count
                counts.skipped_rows += told.num_rows - files
                counts.skipped_files += files


def count_passed_over(
    counts: SourceStatistics, times: list[pa.Array], watermark_us: int, early_after_us: int = FOREVER_US
) -> int:
    """Counts rows of which only the times came, as `accept` would; how many would have been accepted."""
    accepted = 0
    for column in times:
        known = column.drop_null().cast(pa.timestamp("us")).view(pa.int64()).to_numpy()
        counts.rows += len(column)
        counts.untimed_rows += column.null_count
        in_time = known[known <= early_after_us]
        counts.early_rows += len(known) - len(in_time)
        late = int((in_time < watermark_us).sum())
        counts.late_rows += late
        accepted += len(in_time) - late
        if len(in_time):
            largest = int(in_time.max())
            counts.largest_time_us = largest if counts.largest_time_us is None else max(largest, counts.largest_time_us)
    return accepted
