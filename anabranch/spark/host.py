"""One continuous query on Spark: how its batches run, and how their results are delivered.

`dataflow` is what every batch of rows goes through: predicates, the exchange, one task per slot. It is part of the
streaming query. `step` is the function of `foreachBatch`. It hands the batch to the runner (`anabranch.drive.runner`), which
takes it through the protocol: the tasks read the control record and report what they did, the driver commits it, the sink
gets the results. The results of sinks that get a DataFrame are not in files: what has not arrived is computed once more.

Spark numbers the triggers, we number the steps: a closing step, made when input has ended or pauses, has no trigger of its
own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.control.records import Attempt, Commit, Control, SourceStatistics
from anabranch.drive.driver import Driver
from anabranch.drive.runner import Computed, Runner, Tasks
from anabranch.engine.pieces import check_results
from anabranch.errors import StateError
from anabranch.plan.expression import Expr
from anabranch.plan.query import INSTANT
from anabranch.spark.create import log_settings
from anabranch.spark.failures import told
from anabranch.spark.pack import CELL, Packing
from anabranch.spark.pushdown import Pushdown
from anabranch.spark.reader import RAISED
from anabranch.spark.sinks import Sink
from anabranch.spark.spark_log import OwnLog, SparkLog
from anabranch.spark.task import BATCH, EPOCH, META, CombiningTask, Task
from anabranch.spark.waiting import Waiting
from anabranch.storage.filesystem import Filesystem

SETTINGS = {"spark.sql.adaptive.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 17)}
"""Spark's, for our queries: slots are not to be merged, and few and large Arrow batches cost least."""


@dataclass
class Progress:
    """What a step did, for people to watch."""

    batch: int
    trigger: int
    plan: str
    target: str | None
    """The plan that a migration goes to."""
    rows: dict[str, int]
    late_rows: dict[str, int]
    early_rows: dict[str, int]
    """Rows that were turned away because they are too far ahead of the driver's clock."""
    results: int
    watermark_us: int
    state_rows: int
    state_bytes: int
    wall_s: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """Files of streams that are not read yet because they are not complete."""


class Host:
    """Runs a query's batches."""

    def __init__(
        self,
        driver: Driver,
        packing: Packing,
        sink: Sink,
        filters: Mapping[str, Sequence[Sequence[Expr]]] | None = None,
        results_per_batch: int | None = None,
    ) -> None:
        self.driver, self.packing, self.sink, self.results_per_batch = driver, packing, sink, results_per_batch
        self.query, self.distribution, self.filesystem = driver.query, driver.distribution, driver.filesystem
        self.pushdown = Pushdown(driver.query, packing, filters or {})
        self.progress: list[Progress] = []
        self.runner = Runner(driver, sink, self._note, lambda trigger: self.spark_log.keep(trigger))
        self.error: Exception | None = None
        self._run = ""
        self.spark_log: SparkLog | OwnLog = OwnLog("")
        self._spark: SparkSession | None = None
        """The session whose query brings the batches."""
        self._raised: list[str] = []
        """The predicates that sources were last told to leave to the tasks."""
        self.waiting: Callable[[], dict[str, Waiting]] = dict
        """Tells which files are not complete, by stream."""

    def open(self, run: str) -> None:
        """Finds what there is to go on from. `run` tells the boxes of this run from those of others in a worker."""
        self._run = run
        self.driver.open(self.sink.guarantee)

    def end(self, event: str, text: str) -> None:
        """Notes in the journal how a run ended."""
        self.driver.journal.note(self.driver.standing.batch, event, text)

    def skips(self, stream: str, files: Sequence[str]) -> None:
        """Notes in the journal that rows of some files are left out from now on."""
        if files:
            text = f"files of {stream} are left out, as asked: {', '.join(files)}; what was read of them before stays"
            self.driver.tell(self.driver.standing.batch, "skipping", text, files=list(files))

    def start(self, rows: DataFrame, folder: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Starts the streaming query over packed rows; Spark's own checkpoint goes into the folder."""
        self._spark = rows.sparkSession
        writer = self.dataflow(rows).writeStream.foreachBatch(self.step).queryName(self.query.name)
        # Spark copies the session's settings when the query starts.
        with set_for_a_moment(self._spark, SETTINGS | log_settings(self._spark)):
            return writer.option("checkpointLocation", folder).trigger(**trigger).start()

    def dataflow(self, rows: DataFrame, has_rows: bool = True) -> DataFrame:
        """What the tasks of a batch make of packed rows: results, and a report of each slot."""
        assert self._run, "open() names the run"
        # Groups that have rows in several slots are put together after the tasks: these hand on what they have of them.
        staging = None if self.distribution.groups_span_slots else self._staging
        task = Task(
            self._run, self.query, self.distribution, self.packing, self.filesystem, staging, self.results_per_batch
        )
        wanted = self.pushdown.apply(rows) if has_rows else rows
        exchanged = wanted if self.distribution.needs_no_exchange else wanted.repartitionById(self.driver.slots, CELL)
        return exchanged.mapInArrow(task, task.schema)

    @property
    def _staging(self) -> Filesystem | None:
        """Where results are written to, unless they are handed over as a DataFrame."""
        return self.sink.staging()

    def settle(self, spark: SparkSession) -> None:
        """Before Spark brings anything: what waits is delivered, and a closing step that was cut short runs to its end."""
        self.runner.settle(lambda: self._no_rows(spark))

    def step(self, out: DataFrame, trigger: int) -> None:
        """Runs the batch that a trigger brought, given its dataflow; or delivers the newest one, if it is that one's."""
        try:
            self.runner.step(trigger, partial(self._computed, out, self._spark))
        except Exception as error:
            # Spark searches what it is told for signs of an interruption, at length: it is told little, the caller all.
            self.error = told(error)
            first_line = (str(self.error).splitlines() or [""])[0]
            raise RuntimeError(f"{type(self.error).__name__}: {first_line[:300]}") from None

    def close(self, spark: SparkSession) -> None:
        """A closing step: a batch without rows, for what the last rows have made final."""
        self.runner.close(lambda: self._no_rows(spark))

    def close_if_paused(self, spark: SparkSession, idle_s: float, is_done: Callable[[int], bool]) -> bool:
        """A closing step, if nothing has come for a while and Spark has recorded that the last trigger is done."""
        return self.runner.close_if_paused(lambda: self._no_rows(spark), idle_s, is_done)

    def _no_rows(self, spark: SparkSession) -> Tasks:
        """The tasks of a batch without rows."""
        # A session of its own, as Spark makes one for each streaming query: settings of the user's stay as they are.
        own = spark.newSession()
        for name, value in SETTINGS.items():
            own.conf.set(name, value)
        out = self.dataflow(own.createDataFrame([], self.packing.schema), has_rows=False)
        return partial(self._computed, out, None)

    @contextmanager
    def _computed(self, out: DataFrame, pushed_in: SparkSession | None, control: Control) -> Iterator[Computed]:
        """Has the tasks of a batch run. Results that are not in files can be read within the block. `pushed_in` is the
        session in whose plan predicates passed over rows, and counted them."""
        raised = [text for text, select in control.selects.items() if select.until_us is None]
        self.pushdown.set(control.watermark_us, control.planned_us, raised)
        context = out.sparkSession.sparkContext
        context.setLocalProperty(BATCH, str(control.batch))
        context.setLocalProperty(EPOCH, str(control.epoch))
        if raised != self._raised:
            context.setLocalProperty(RAISED, json.dumps(raised))
            self._raised = raised
        is_staged = self._staging is not None and not self.distribution.groups_span_slots
        if not is_staged:
            out = out.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            reports = out if is_staged else out.where(F.col(META).isNotNull()).select(META)
            attempts = self._attempts([bytes(row[0]) for row in reports.collect()])
            if not self.distribution.groups_span_slots:
                found = sum(a.statistics.results for a in attempts)
                check_results(found, self.results_per_batch, self.query.name, control.batch)
            results, staged = out, [a.results for a in attempts if a.results]
            if not is_staged:
                results = out.where(F.col(META).isNull()).drop(META)
            if self.distribution.groups_span_slots:
                results, staged = self._combined(results, control)
            seen = self.pushdown.seen(pushed_in) if pushed_in is not None and attempts else None
            yield Computed(attempts, results, tuple(staged) if self._staging is not None else None, seen)
        finally:
            if not is_staged:
                out.unpersist()

    def _combined(self, parts: DataFrame, control: Control) -> tuple[DataFrame, list[str]]:
        """The results of groups that have rows in several slots; or the files that they were written to."""
        grouping = self.query.grouping
        assert grouping is not None
        task = CombiningTask(f"{control.batch:010d}-{control.token}", self.query, self._staging)
        keys = [F.col(INSTANT), *(F.col(f"key{i}") for i in range(grouping.keys))]
        results = parts.repartition(self.driver.slots, *keys).mapInArrow(task, task.schema)
        return results, [row[0] for row in results.collect()] if task.staging is not None else []

    def _attempts(self, reports: list[bytes]) -> list[Attempt]:
        attempts = sorted((msgspec.json.decode(r, type=Attempt) for r in reports), key=lambda a: a.slot)
        slots = self.driver.slots
        if not self.distribution.needs_no_exchange and [a.slot for a in attempts] != list(range(slots)):
            raise StateError(f"expected a report of each of {slots} slots, got {[a.slot for a in attempts]}")
        return attempts

    def _note(self, commit: Commit, plan: str, wall_s: dict[str, float]) -> None:
        counted = commit.statistics
        sources = {s.name: counted.sources.get(s.name, SourceStatistics()) for s in self.query.base_sources}
        for name, spent_ns in counted.slowest_ns.items():
            wall_s[name] = max(wall_s.get(name, 0.0), spent_ns / 1e9)
        self.progress.append(
            Progress(
                batch=commit.batch,
                trigger=commit.trigger,
                plan=plan,
                target=commit.migration.target if commit.migration is not None else None,
                rows={n: s.rows for n, s in sources.items()},
                late_rows={n: s.late_rows for n, s in sources.items()},
                early_rows={n: s.early_rows for n, s in sources.items()},
                results=counted.results,
                watermark_us=commit.watermark_us,
                state_rows=sum(s.state_rows for s in sources.values()),
                state_bytes=sum(s.state_bytes for s in sources.values()) + sum(s.bytes for s in counted.states),
                wall_s=wall_s,
                waiting=self.waiting(),
            )
        )
        del self.progress[:-1000]


@contextmanager
def set_for_a_moment(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Has settings of a session's differ within a block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, given in before.items():
            spark.conf.unset(name) if given is None else spark.conf.set(name, given)
