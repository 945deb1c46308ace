"""One pipeline on Spark: how its batches run.

`dataflow` is what every batch of rows goes through: predicates, the exchange, one task per slot. It is part of the
streaming query. `step` is the function of `foreachBatch`. It hands the batch to the runner (`anabranch.drive.runner`), which
takes it through the protocol: the tasks read the control record, stage results in files, and report what they did; the
driver commits it; the results are delivered from the files.

Spark numbers the triggers, we number the steps: a closing step, made when input has ended or pauses, has no trigger of its
own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.control.progress import Progress, Waiting
from anabranch.control.records import Attempt, Control, Failure
from anabranch.drive.delivery import Delivery
from anabranch.drive.driver import Driver
from anabranch.drive.lookups import asking, databases_of, databases_read_apart
from anabranch.drive.patience import Patience
from anabranch.drive.retain import Background
from anabranch.drive.runner import Computed, Runner, Tasks
from anabranch.engine.pieces import check_results
from anabranch.errors import StateError, TooManyResultsError
from anabranch.place.reading import LookupCosts, lookup_costs_of
from anabranch.spark.backlog import batches_waiting
from anabranch.spark.create import QUERY_SETTINGS, empty_frame, log_settings, own_session
from anabranch.spark.damaged import Mark, Marks, encoded, told_in
from anabranch.spark.failures import told
from anabranch.spark.pack import CELL
from anabranch.spark.pushdown import Pushdown
from anabranch.spark.reader import DAMAGED, RAISED, SHED, shed_text
from anabranch.spark.spark_log import OwnLog, SparkLog
from anabranch.spark.task import ASKING, BATCH, EPOCH, Task


class Host:
    """Runs the batches of a pipeline."""

    def __init__(
        self, driver: Driver, delivery: Delivery, task: Task, pushdown: Pushdown, patience: Patience | None = None
    ) -> None:
        self.driver, self.delivery, self.task, self.pushdown = driver, delivery, task, pushdown
        self.runner = Runner(
            driver, delivery, lambda trigger: self.spark_log.keep(trigger), Background(), lambda: self.waiting(),
            lambda: self._batches_waiting, patience,
        )  # fmt: skip
        self._batches_waiting: float | None = None
        """What waits in sources, in batches like the last, as Spark has told of the last trigger that is over."""
        self.error: Exception | None = None
        self.spark_log: SparkLog | OwnLog = OwnLog("")
        self._spark: SparkSession | None = None
        """The session whose query brings the batches."""
        self._raised: list[tuple[str, str]] = []
        """The predicates that sources were last told to leave to the tasks."""
        self._asking = b"{}"
        """What tasks were last told about databases."""
        self._measured: dict[str, LookupCosts | None] = {}
        """What lookups take in databases, as far as that was measured."""
        self._shed = ""
        """What readers were last told of rows that are shed."""
        self.waiting: Callable[[], dict[str, Waiting]] = dict
        """Tells which files are not complete, by stream."""
        self.marks: dict[str, Marks] = {}
        """Where damaged files are marked, of the streams that set them aside."""
        self._damaged: list[Mark] = []
        """The files that tasks were last told of."""
        self._streaming: StreamingQuery | None = None

    @property
    def progress(self) -> dict[str, list[Progress]]:
        """What each query did in its latest batches."""
        return {**{name: [] for name in self.driver.queries}, **self.runner.progress.by_query}

    def end(self, event: str, text: str) -> None:
        """Notes in the journals how a run ended."""
        for query in self.driver.queries.values():
            query.journal.note(self.driver.standing.batch, event, text)
        self._note_trigger()
        self.runner.progress.flush()

    def skips(self, stream: str, files: Sequence[str]) -> None:
        """Notes in the journals that rows of some files are left out from now on."""
        text = f"files of {stream} are left out, as asked: {', '.join(files)}; what was read of them before stays"
        for query in self.driver.queries.values() if files else ():
            if stream in query.streams:
                query.tell(self.driver.standing.batch, "skipping", text, files=list(files))

    def start(self, rows: DataFrame, name: str, folder: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Starts the streaming query over packed rows; Spark's own checkpoint goes into the folder."""
        self._spark = rows.sparkSession
        writer = self.dataflow(rows).writeStream.foreachBatch(self.step).queryName(name)
        # Spark copies the session's settings when the query starts.
        with set_for_a_moment(self._spark, QUERY_SETTINGS | log_settings(self._spark)):
            self._streaming = writer.option("checkpointLocation", folder).trigger(**trigger).start()
        self.runner.rest()
        return self._streaming

    def _note_trigger(self) -> None:
        """Notes how long Spark says that the last trigger took which is over."""
        with suppress(Exception):  # for people only, and Spark may be gone
            last = self._streaming._jsq.lastProgress() if self._streaming is not None else None
            if last is not None:
                self.runner.progress.time(last.batchId(), last.durationMs().get("triggerExecution") / 1e3)
                if self.driver.limiting.limiter is not None:
                    self._batches_waiting = batches_waiting(last.json())

    def dataflow(self, rows: DataFrame, has_rows: bool = True) -> DataFrame:
        """What the tasks of a batch make of packed rows: a report of each slot."""
        wanted = self.pushdown.apply(rows) if has_rows else rows
        exchanged = wanted if self.driver.needs_no_exchange else wanted.repartitionById(self.driver.slots, CELL)
        return exchanged.mapInArrow(self.task, self.task.schema)

    def settle(self, spark: SparkSession) -> None:
        """Before Spark brings anything: what waits is delivered, and a closing step that was cut short runs to its end."""
        self.runner.settle(lambda: self._no_rows(spark))

    def step(self, out: DataFrame, trigger: int) -> None:
        """Runs the batch that a trigger brought, given its dataflow, unless it is committed."""
        self._note_trigger()
        try:
            self.runner.step(trigger, partial(self._computed, out, self._spark))
        except Exception as error:
            # Spark searches what it is told for signs of an interruption, at length: it is told little, the caller all.
            self.error = told(error)
            first_line = (str(self.error).splitlines() or [""])[0]
            raise RuntimeError(f"{type(self.error).__name__}: {first_line[:300]}") from None

    def close(self, spark: SparkSession) -> None:
        """When input has ended: a batch without rows, for what the last rows have made final."""
        self.runner.close(lambda: self._no_rows(spark))

    def close_if_paused(self, spark: SparkSession, idle_s: float, is_done: Callable[[int], bool]) -> bool:
        """A closing step, if nothing has come for a while and Spark has recorded that the last trigger is done."""
        return self.runner.close_if_paused(lambda: self._no_rows(spark), idle_s, is_done)

    def _no_rows(self, spark: SparkSession) -> Tasks:
        """The tasks of a batch without rows."""
        out = self.dataflow(empty_frame(own_session(spark), self.task.packing.schema), has_rows=False)
        return partial(self._computed, out, None)

    def _computed(self, out: DataFrame, pushed_in: SparkSession | None, control: Control) -> Computed:
        """Has the tasks of a batch run. `pushed_in` is the session in whose plan predicates passed over rows, and counted
        them."""
        raised = [
            (name, text)
            for name, query in control.queries.items()
            for text, select in query.execution.selects.items()
            if select.until_us is None
        ]
        watermarks = {name: query.watermark_us for name, query in control.queries.items()}
        self.pushdown.set(watermarks, control.planned_us, raised, control.shed, control.salt)
        context = out.sparkSession.sparkContext
        context.setLocalProperty(BATCH, str(control.batch))
        context.setLocalProperty(EPOCH, str(control.epoch))
        if raised != self._raised:
            context.setLocalProperty(RAISED, json.dumps(raised))
            self._raised = raised
        shed = shed_text(control.shed, control.salt)
        if pushed_in is not None and shed != self._shed:  # in the thread that brings rows
            context.setLocalProperty(SHED, shed)
            self._shed = shed
        queries = [(query.query, query.distribution) for query in self.driver.queries.values()]
        costs = self._lookup_costs(databases_of(query for query, _ in queries))
        with asking(databases_read_apart(queries) if pushed_in is not None else (), costs) as asked:
            if (text := msgspec.json.encode(asked)) != self._asking:
                context.setLocalProperty(ASKING, text.decode())
                self._asking = text
            attempts = self._attempts(self._collected(out))
        attempts += self._too_many(attempts, control.batch)
        return Computed(attempts, self.pushdown.seen(pushed_in) if pushed_in is not None and attempts else None)

    def _lookup_costs(self, names: Iterable[str]) -> dict[str, LookupCosts]:
        """What was measured on this machine of some databases; it is read once."""
        for name in names:
            if name not in self._measured:
                self._measured[name] = lookup_costs_of(name)
        return {name: costs for name, costs in self._measured.items() if costs is not None}

    def _collected(self, out: DataFrame) -> list[bytes]:
        """What the tasks of a batch report. If they find files damaged, these are marked, and the tasks run again."""
        marked: list[Mark] = []
        while True:
            if marked != self._damaged:
                out.sparkSession.sparkContext.setLocalProperty(DAMAGED, encoded(marked))
                self._damaged = list(marked)
            try:
                return [bytes(row[0]) for row in out.collect()]
            except Exception as error:
                found = [mark for mark in told_in(error) if mark not in marked and mark.stream in self.marks]
                if not found:
                    raise
                self._mark(found)
                marked += found

    def _mark(self, found: Sequence[Mark]) -> None:
        self.driver.holder.require_held()
        for mark in found:
            self.marks[mark.stream].add(msgspec.structs.replace(mark, batch=self.driver.standing.batch + 1))
            for query in self.driver.queries.values():
                if mark.stream in query.streams:
                    text = f"a file of {mark.stream} is left out: {mark.reason}"
                    query.tell(self.driver.standing.batch, "damaged", text, files=[mark.path])

    def _too_many(self, attempts: list[Attempt], batch: int) -> list[Attempt]:
        """A report of the queries that give more results, in all slots together, than a user allows."""
        failed = {}
        for name, query in self.driver.queries.items():
            if not query.distribution.groups_span_slots:
                found = sum(a.statistics[name].results for a in attempts if name in a.statistics)
                try:
                    check_results(found, self.task.results_per_batch, name, batch)
                except TooManyResultsError as error:
                    failed[name] = Failure(type(error).__name__, str(error))
        return [Attempt(-1, "", None, {}, failed=failed)] if failed else []

    def _attempts(self, reports: list[bytes]) -> list[Attempt]:
        attempts = sorted((msgspec.json.decode(r, type=Attempt) for r in reports), key=lambda a: a.slot)
        slots = self.driver.slots
        if not self.driver.needs_no_exchange and [a.slot for a in attempts] != list(range(slots)):
            raise StateError(f"expected a report of each of {slots} slots, got {[a.slot for a in attempts]}")
        return attempts


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
