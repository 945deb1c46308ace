"""One continuous query on Spark: what happens on the driver in each micro-batch.

`dataflow` is what every batch of rows goes through: predicates, the exchange, one task per slot. It is part of the
streaming query. `step` is the function of `foreachBatch`. It writes `control/n`, which tells the tasks what to do, collects
what they report, writes `commit/n`, delivers, and writes `delivered/n`. Everything a batch depends on is in its control
record and in the commit it starts from, so a batch that was begun and not committed runs again from these. One that is
committed never does (`anabranch.control.resume`): if its results have not arrived, they are delivered from the files that
tasks staged. The results of sinks that get a DataFrame are not staged; they are computed once more, for delivery alone: the
commit stays as it is.

Spark numbers the triggers, we number the steps: a closing step, made when input has ended or pauses, has no trigger of its
own.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from queue import SimpleQueue
from time import monotonic, perf_counter, time
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.control.course import course_after, course_fields, course_of
from anabranch.control.journal import Journal
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in, controls_in, deliveries_in
from anabranch.control.loop import Loop, Proposal
from anabranch.control.records import Attempt, Commit, Control, Delivered, Layout, Statistics
from anabranch.control.resume import REMEDY, Meaning, Standing, standing_of
from anabranch.control.sweep import sweep
from anabranch.control.table_files import put_table, release_versions, table_file
from anabranch.control.watermark import last_seen_after, next_watermark, seen_after
from anabranch.engine.identity import identity_of, require_same
from anabranch.engine.pieces import check_results
from anabranch.errors import MigrationError, StateError
from anabranch.plan.eager import Forms
from anabranch.plan.expression import Expr
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, show
from anabranch.plan.migration import (
    Course,
    Migration,
    Strategy,
    switched,
    why_not_parallel,
    why_not_raise,
    why_not_switch,
    with_selects,
)
from anabranch.plan.query import BEGINNING_US, INSTANT, Query
from anabranch.plan.selects import Selects, shown_selects
from anabranch.plan.spread import Spread
from anabranch.spark.create import log_settings
from anabranch.spark.failures import told
from anabranch.spark.pack import CELL, Packing
from anabranch.spark.push import Push
from anabranch.spark.reader import RAISED
from anabranch.spark.sinks import Sink
from anabranch.spark.spark_log import OwnLog, SparkLog
from anabranch.spark.task import BATCH, EPOCH, META, Combination, Task
from anabranch.spark.waiting import Waiting
from anabranch.storage.filesystem import Filesystem

RELEASE_EVERY = 8
"""Files that no commit needs any more are deleted every so many batches."""
SWEEP_GRACE_S = 600.0
"""At start, files that no commit names are deleted when they are older than this."""
MOST_FAILED_RUNS = 3
"""A batch that was begun so often and never committed runs under the plan that was last committed: that one has run."""
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


@dataclass(frozen=True)
class _Computed:
    """What the tasks of a batch have made."""

    attempts: list[Attempt]
    results: DataFrame
    staged: tuple[str, ...] | None
    """Files with the results, if the sink publishes files."""


@dataclass(frozen=True)
class ChangingTable:
    """A stored table that is read again every so much event time; `read` gives its rows as an Arrow IPC stream."""

    name: str
    every_us: int
    read: Callable[[], pa.Buffer]


class Host:
    """Runs a query's batches."""

    def __init__(
        self,
        query: Query,
        course: Course,
        spread: Spread,
        packing: Packing,
        filesystem: Filesystem,
        sink: Sink,
        tables: Mapping[str, str],
        loop: Loop,
        holder: Holder,
        filters: Mapping[str, Sequence[Sequence[Expr]]] | None = None,
        changing: Sequence[ChangingTable] = (),
        clock: Callable[[], float] = time,
        results_per_batch: int | None = None,
    ) -> None:
        self.holder = holder
        self.clock = clock
        """Seconds since the epoch: what batches are planned by."""
        self.changing, self.results_per_batch = tuple(changing), results_per_batch
        self.loop = loop
        self.push = Push(query, packing, filters or {})
        self.query, self.spread, self.packing = query, spread, packing
        self.filesystem, self.sink, self.tables = filesystem, sink, dict(tables)
        self.forms = Forms(query)
        self.course = course
        self.slots = spread.grid.cells
        self.controls = controls_in(filesystem, holder.epoch)
        self.commits = commits_in(filesystem, holder.epoch)
        self.deliveries = deliveries_in(filesystem)
        self.journal = Journal(filesystem)
        self.identity = identity_of(query)
        self.layout = layout_of(spread)
        self.progress: list[Progress] = []
        self.standing = Standing()
        self.error: Exception | None = None
        self._one_at_a_time = threading.Lock()
        """Held by whoever runs a batch: the thread of Spark's query, or the one of a closing step."""
        self._run = ""
        self.spark_log: SparkLog | OwnLog = OwnLog("")
        self._spark: SparkSession | None = None
        """The session whose query brings the batches."""
        self.is_pinned = False
        """Whether the plan stays unless a user asks for another."""
        self.needs_approval = False
        self.pending: Proposal | None = None
        """A change that waits for approval."""
        self._raised: list[str] = []
        """The predicates that sources were last told to leave to the tasks."""
        self._rests_since_s = monotonic()
        """When the last batch was over."""
        self._requests: SimpleQueue[Proposal] = SimpleQueue()
        self._began: tuple[int, float, Proposal] | None = None
        self.waiting: Callable[[], dict[str, Waiting]] = dict
        """Tells which files are not complete, by stream."""

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.course.plan

    @property
    def commit(self) -> Commit | None:
        """The newest."""
        return self.standing.commit

    @property
    def has_choices(self) -> bool:
        """Whether there is more than one plan, or form of the query."""
        return len(self.query.inputs) > 2 or len(self.forms.graphs) > 1

    @property
    def graph(self) -> JoinGraph:
        """The form of the query that its plan is of."""
        return self.forms.graphs[self.course.below]

    @property
    def plan_text(self) -> str:
        return shown(self.course.plan, self.forms, self.course.below, self.course.selects)

    def open(self, run: str) -> None:
        """Finds what there is to go on from. `run` tells the boxes of this run from those of others in a worker."""
        self._run = run
        self.standing = standing_of(self.commits, self.controls, self.deliveries)
        begun = self.standing.begun
        if self.commit is not None:
            require_same(self.query, self.commit.query, self.identity)
            if self.commit.layout != self.layout:
                raise StateError(
                    f"the checkpoint has {len(self.commit.layout.slots)} slots over {_text(self.commit.layout)}, this run "
                    f"{self.slots} over {_text(self.layout)}: start it with the same number of slots"
                )
        elif begun is not None and (begun.query, begun.layout) != (self.identity, self.layout):
            # A start that came to nothing has delivered nothing: another query may begin in its place.
            self.standing = replace(self.standing, begun=None)
        self.commits.drop_superseded()
        self.controls.drop_superseded()
        self._sweep()
        self._journal_start()

    def _journal_start(self) -> None:
        facts: dict[str, Any] = {"shares": list(self.spread.grid.shares), "slots": self.slots}
        facts["delivers"] = self.sink.guarantee
        if self.commit is None:
            begun = self.standing.begun
            if begun is not None and self.is_pinned and course_of(begun, self.forms).plan != self.course.plan:
                self._ask_at_restart(self.course.plan)
            self._tell(-1, "started", f"on an empty checkpoint, plan {self.plan_text}", **facts)
            return
        batch, asked = self.commit.batch, self.course.plan
        after = course_after(self.commit, self.forms)
        if not self.is_pinned or asked in (after.plan, after.target) or after.below != self.course.below:
            # What was chosen on facts stays, and so does a migration under way.
            self.course = after
            way = f", on the way to {show(after.target, self.graph)}" if after.target is not None else ""
            self._tell(batch, "resumed", f"after batch {batch}, plan {self.plan_text}{way}", **facts)
            if after.is_settled and self._left_migrating():
                record = self.commit.migration
                self._ended(self.commit, record.since if record is not None else batch, self.commit.plan, None)
        elif self.standing.begun is not None:
            self.course = after
            self._ask_at_restart(asked)
            text = f"after batch {batch}, plan {self.plan_text}; another is asked for from batch {batch + 2} on"
            self._tell(batch, "resumed", text, **facts)
        else:
            old = shown(after.plan, self.forms, after.below, after.selects)
            self.course = replace(after, plan=asked, migration=None)
            self._tell(batch, "replanned", f"plan {self.plan_text} instead of {old}, at a restart", **facts)

    def _ask_at_restart(self, plan: Plan) -> None:
        """Has another plan than the checkpoint's run after the batch that was begun, which runs as it was begun."""
        self._requests.put(Proposal(plan, Strategy.MOVING_STATE, "asked for at a restart"))

    def _left_migrating(self) -> bool:
        """Whether a run before this one failed in the batch in which its migration ended, and could not tell."""
        told = self.journal.last_of("migrating", "migrated", "cancelled")
        return told is not None and told.event == "migrating"

    def _tell(self, batch: int, event: str, text: str, **details: Any) -> None:
        self.journal.note(batch, event, text, plan=self.plan_text, **details)

    # -- another plan ------------------------------------------------------------------------------------------------

    def request(self, proposal: Proposal) -> None:
        """Asks for another plan from the next batch on; may be called from any thread."""
        if reason := self._why_not(proposal):
            raise MigrationError(reason)
        self._requests.put(proposal)

    def _why_not(self, proposal: Proposal) -> str | None:
        if proposal.below is not None and proposal.below != self.course.below:
            return why_not_switch(self.forms, self.course, proposal.below, proposal.strategy)
        if proposal.selects is not None and (
            reason := why_not_raise(self.course, self.graph, proposal.selects, proposal.strategy)
        ):
            return reason
        if proposal.strategy is Strategy.PARALLEL_TRACK:
            return why_not_parallel(self.graph, self.course.plan, proposal.plan)
        return None

    def _redirect(self, batch: int, base: Commit | None) -> None:
        """Takes up the last request there is. A migration under way is given up for it."""
        proposal = None
        while not self._requests.empty():
            proposal = self._requests.get()
        if proposal is not None:
            self._migrate(proposal, batch, base)

    def _migrate(self, proposal: Proposal, batch: int, base: Commit | None) -> None:
        """Goes over to another plan from a batch on."""
        below = self.course.below if proposal.below is None else proposal.below
        selects = self.course.selects if proposal.selects is None else proposal.selects
        old, target = self.plan_text, shown(proposal.plan, self.forms, below, selects)
        way = self.course.target
        if way is not None and way != proposal.plan:
            self._tell(batch - 1, "cancelled", f"the way to {show(way, self.graph)}: {proposal.text}")
        if below == self.course.below and proposal.plan == self.course.plan and selects == self.course.selects:
            self.course, self._began = replace(self.course, migration=None), None
            return
        seen = base.largest_time_us if base is not None else {}
        strategy, text, reason = proposal.strategy, proposal.text, self._why_not(proposal)
        if reason is not None and (
            below != self.course.below or why_not_raise(self.course, self.graph, selects, Strategy.GRADUAL)
        ):
            self._tell(batch - 1, "kept", f"{target} cannot be gone over to any more: {reason}")
            return
        if below != self.course.below:
            self.course = switched(self.forms, self.course, proposal.plan, below, strategy, seen)
        else:
            if reason is not None:
                # The plan has changed since it was asked for.
                strategy, text = Strategy.GRADUAL, f"{text}; {reason}"
            if proposal.selects is not None:
                self.course = with_selects(self.course, self.graph, selects, strategy, seen)
            if strategy is Strategy.MOVING_STATE or proposal.plan == self.course.plan:
                self.course = replace(self.course, plan=proposal.plan, migration=None)
            else:
                migration = Migration(proposal.plan, strategy, batch, proposal.pause_us)
                self.course = replace(self.course, migration=migration)
        self._began = (batch, perf_counter(), proposal)
        told = {"old": old, "target": target, "strategy": strategy.value, **proposal.details}
        self._tell(batch - 1, "migrating", f"from {old} to {target} by {strategy}: {text}", **told)

    def _follow_migration(self, commit: Commit) -> None:
        """After a batch: a migration that every slot is ready for ends, and what it took is told."""
        began = self._began
        if not self.course.is_settled:
            old, self.course = self.plan_text, course_after(commit, self.forms)
            if not self.course.is_settled:
                return
            since = began[0] if began is not None else commit.batch
            if commit.migration is not None:
                since = commit.migration.since
            self._ended(commit, since, old, began[1] if began is not None else None)
        elif began is not None:
            self._ended(commit, began[0], str(began[2].details.get("from", "")), began[1])

    def _ended(self, commit: Commit, since: int, old: str, began_s: float | None) -> None:
        prepared = [a.statistics.preparing for a in commit.slots.values()]
        self._began = None
        text = f"plan {self.plan_text} gives the results after {commit.batch - since + 1} batches"
        if began_s is not None:
            text += f" and {perf_counter() - began_s:.2f} s"
        worst_s = max((p.cpu_ns for p in prepared), default=0) / 1e9
        self._tell(commit.batch, "migrated", text, old=old, batches=commit.batch - since + 1, last_cpu_s=worst_s)

    def _adapt(self, commit: Commit) -> None:
        """Asks whether another plan is worth it, now that a batch more is known."""
        if self.is_pinned:
            return
        found = self.loop.after(self.course, commit)
        if isinstance(found, Proposal):
            if self.needs_approval:
                self.pending = found
                below = self.course.below if found.below is None else found.below
                target = shown(found.plan, self.forms, below, self.course.selects)
                text = f"{target} by {found.strategy}, if you approve: {found.text}"
                self._tell(commit.batch, "proposed", text, **found.details)
            else:
                self._migrate(found, commit.batch + 1, commit)
        elif found is not None:
            self._tell(commit.batch, found.event, found.text, **found.details)

    def approve(self) -> bool:
        """Agrees to the change that waits; False if none does."""
        pending, self.pending = self.pending, None
        if pending is None:
            return False
        self.request(pending)
        return True

    def end(self, event: str, text: str) -> None:
        """Notes in the journal how a run ended."""
        self.journal.note(self.commit.batch if self.commit is not None else -1, event, text)

    def skips(self, stream: str, files: Sequence[str]) -> None:
        """Notes in the journal that rows of some files are left out from now on."""
        if files:
            text = f"files of {stream} are left out, as asked: {', '.join(files)}; what was read of them before stays"
            self._tell(self.commit.batch if self.commit is not None else -1, "skipping", text, files=list(files))

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
        staging = None if self.spread.combines else self._staging
        task = Task(self._run, self.query, self.spread, self.packing, self.filesystem, staging, self.results_per_batch)
        wanted = self.push.apply(rows) if has_rows else rows
        exchanged = wanted if self.spread.is_free else wanted.repartitionById(self.slots, CELL)
        return exchanged.mapInArrow(task, task.schema)

    @property
    def _staging(self) -> Filesystem | None:
        """Where results are written to, unless they are handed over as a DataFrame."""
        return self.sink.staging()

    def settle(self, spark: SparkSession) -> None:
        """Before Spark brings anything: what waits is delivered, and a closing step that was cut short runs to its end."""
        with self._one_at_a_time:
            commit, before = self.commit, self._before()
            if commit is not None and self.standing.waits:
                is_closing = before is not None and before.trigger == commit.trigger
                if is_closing or self._can_publish(commit):
                    self._deliver_again(self._no_rows(spark))
            if self.standing.is_cut_short:
                self._run_batch(self._no_rows(spark), self.standing.trigger, has_rows=False)

    def step(self, out: DataFrame, trigger: int) -> None:
        """Runs the batch that a trigger brought, given its dataflow; or delivers the newest one, if it is that one's."""
        try:
            with self._one_at_a_time:
                if self.standing.meaning(trigger) is Meaning.RUN:
                    self._run_batch(out, trigger)
                elif self.standing.waits:
                    self._deliver_again(out)
        except Exception as error:
            # Spark searches what it is told for signs of an interruption, at length: it is told little, the caller all.
            self.error = told(error)
            first_line = (str(self.error).splitlines() or [""])[0]
            raise RuntimeError(f"{type(self.error).__name__}: {first_line[:300]}") from None

    def close(self, spark: SparkSession) -> None:
        """A closing step: a batch without rows, for what the last rows have made final."""
        with self._one_at_a_time:
            if self.commit is not None and not self.spread.is_free:
                self._run_batch(self._no_rows(spark), self.commit.trigger, has_rows=False)

    def close_if_paused(self, spark: SparkSession, idle_s: float, is_done: Callable[[int], bool]) -> bool:
        """A closing step, if nothing has come for a while, Spark has recorded that the last trigger is done, and a batch
        without rows would make anything final. Whether it was made."""
        if not self._one_at_a_time.acquire(blocking=False):
            return False
        try:
            commit = self.commit
            if commit is None or self.standing.waits or self.spread.is_free or monotonic() < self._rests_since_s + idle_s:
                return False
            watermark_us = next_watermark(self.query, commit, int(self.clock() * 1_000_000))
            if watermark_us <= commit.watermark_us or not is_done(commit.trigger):
                return False
            self._run_batch(self._no_rows(spark), commit.trigger, has_rows=False)
            return True
        finally:
            self._one_at_a_time.release()

    def _no_rows(self, spark: SparkSession) -> DataFrame:
        """The dataflow of a batch without rows."""
        # A session of its own, as Spark makes one for each streaming query: settings of the user's stay as they are.
        own = spark.newSession()
        for name, value in SETTINGS.items():
            own.conf.set(name, value)
        return self.dataflow(own.createDataFrame([], self.packing.schema), has_rows=False)

    def _before(self) -> Commit | None:
        """The commit that the batch of the newest one started from."""
        return self.commits.read(self.standing.batch - 1) if self.standing.batch > 0 else None

    def _run_batch(self, out: DataFrame, trigger: int, has_rows: bool = True) -> None:
        marks = [perf_counter()]
        base = self.commit
        self.holder.require_held()
        control = self._control(trigger, base)
        self.controls.write(control.batch, control)
        self.standing = replace(self.standing, begun=control)
        marks.append(perf_counter())
        with self._computed(out, control, self.course) as computed:
            marks.append(perf_counter())
            counted = [a.statistics for a in computed.attempts]
            if self._spark is not None and has_rows and counted and (seen_by_spark := self.push.seen(self._spark)):
                _count_all(counted, seen_by_spark)
                counted.append(seen_by_spark)
            commit = Commit(
                control.batch, trigger, control.watermark_us, self.identity, token=control.token, epoch=self.holder.epoch,
                largest_time_us=seen_after(base.largest_time_us if base is not None else {}, counted),
                slots={str(a.slot): a for a in computed.attempts}, layout=self.layout, staged=computed.staged,
                tables_read_us=control.tables_read_us,
                last_seen_us=last_seen_after(self.query, base, counted, control.planned_us),
                tables={**(base.tables if base is not None else {}), **control.tables},
                **course_fields(self.course, self.forms),
            )  # fmt: skip
            self.spark_log.keep(trigger)
            self.commits.write(commit.batch, commit)
            self.standing = replace(self.standing, commit=commit, begun=None)
            # Whoever took the checkpoint over has seen this commit, or is seen now.
            self.holder.require_held()
            marks.append(perf_counter())
            self._deliver(commit, computed)
        marks.append(perf_counter())
        self._release(base, commit)
        ran = self.plan_text
        self._follow_migration(commit)
        self._adapt(commit)
        self._note(commit, ran, dict(zip(("control", "tasks", "commit", "deliver"), _gaps(marks), strict=True)))
        self._rests_since_s = monotonic()

    def _control(self, trigger: int, base: Commit | None) -> Control:
        """What the batch after a commit starts from: what it was begun with, or else what is decided now."""
        batch, begun = self.standing.batch + 1, self.standing.begun
        epoch, base_epoch = self.holder.epoch, base.epoch if base is not None else 0
        if begun is not None:
            course = course_of(begun, self.forms)
            if begun.runs >= MOST_FAILED_RUNS:
                proven = course_after(base, self.forms) if base is not None else Course(self.plan, below=self.course.below)
                if proven != course:
                    failed, course = shown(course.plan, self.forms, course.below, course.selects), proven
                    self._tell(batch - 1, "given up", f"plan {failed}: batch {batch} failed {begun.runs} times under it")
            self.course = course
            fields = {"migration": None, "leaving": None, **course_fields(course, self.forms)}
            return msgspec.structs.replace(begun, runs=begun.runs + 1, epoch=epoch, base_epoch=base_epoch, **fields)
        planned_us = int(self.clock() * 1_000_000)
        watermark_us = next_watermark(self.query, base, planned_us)
        self._redirect(batch, base)
        read_us = dict(base.tables_read_us) if base is not None else {}
        due = self._tables(batch, watermark_us, base, read_us)
        tables = {**(base.tables if base is not None else {}), **due} if self.spread.is_free else due
        return Control(
            batch, trigger, watermark_us, self.identity, token=uuid.uuid4().hex, layout=self.layout, tables=tables,
            tables_read_us=read_us, epoch=epoch, base_epoch=base_epoch, planned_us=planned_us,
            **course_fields(self.course, self.forms),
        )  # fmt: skip

    @contextmanager
    def _computed(self, out: DataFrame, control: Control, course: Course) -> Iterator[_Computed]:
        """Has the tasks of a batch run. Results that are not in files can be read within the block."""
        raised = [str(s.predicate) for s in course.selects if s.until_us is None]
        self.push.set(control.watermark_us, control.planned_us, raised)
        context = out.sparkSession.sparkContext
        context.setLocalProperty(BATCH, str(control.batch))
        context.setLocalProperty(EPOCH, str(control.epoch))
        if raised != self._raised:
            context.setLocalProperty(RAISED, json.dumps(raised))
            self._raised = raised
        is_staged = self._staging is not None and not self.spread.combines
        if not is_staged:
            out = out.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            reports = out if is_staged else out.where(F.col(META).isNotNull()).select(META)
            attempts = self._attempts([bytes(row[0]) for row in reports.collect()])
            if not self.spread.combines:
                found = sum(a.statistics.results for a in attempts)
                check_results(found, self.results_per_batch, self.query.name, control.batch)
            results, staged = out, [a.results for a in attempts if a.results]
            if not is_staged:
                results = out.where(F.col(META).isNull()).drop(META)
            if self.spread.combines:
                results, staged = self._combined(results, control)
            yield _Computed(attempts, results, tuple(staged) if self._staging is not None else None)
        finally:
            if not is_staged:
                out.unpersist()

    def _deliver(self, commit: Commit, computed: _Computed) -> None:
        """Delivers the results of a batch, and records that they have arrived."""
        if computed.staged is not None:
            self._publish(commit, computed.staged)
            return
        self.sink.deliver(computed.results, commit.batch)
        self._arrived(commit)

    def _publish(self, commit: Commit, staged: Sequence[str]) -> None:
        self.sink.publish(staged, commit.batch, commit.token)
        self._arrived(commit)

    def _arrived(self, commit: Commit) -> None:
        self.deliveries.write(commit.batch, Delivered(commit.batch, commit.token))
        self.standing = replace(self.standing, delivered=commit.batch)

    def _deliver_again(self, out: DataFrame) -> None:
        """Delivers the newest batch. What is not staged is computed once more from the commit before it, for delivery alone:
        the commit stays as it is, and the state that the tasks write is named by none."""
        commit = self.commit
        assert commit is not None, "a batch that waits is committed"
        if self._can_publish(commit):
            self._publish(commit, commit.staged or ())
            return
        control = self.controls.read(commit.batch)
        if control.token != commit.token:
            paths = self.controls.path_of(commit.batch), self.commits.path_of(commit.batch)
            raise StateError(f"{paths[0]} is not what {paths[1]} was made from: {REMEDY}")
        with self._computed(out, control, course_of(control, self.forms)) as computed:
            self._deliver(commit, computed)

    def _can_publish(self, commit: Commit) -> bool:
        return self._staging is not None and commit.staged is not None

    def _combined(self, parts: DataFrame, control: Control) -> tuple[DataFrame, list[str]]:
        """The results of groups that have rows in several slots; or the files that they were written to."""
        grouping = self.query.grouping
        assert grouping is not None
        combination = Combination(f"{control.batch:010d}-{control.token}", self.query, self._staging)
        keys = [F.col(INSTANT), *(F.col(f"key{i}") for i in range(grouping.keys))]
        results = parts.repartition(self.slots, *keys).mapInArrow(combination, combination.schema)
        return results, [row[0] for row in results.collect()] if combination.staging is not None else []

    def _tables(self, batch: int, watermark_us: int, base: Commit | None, read_us: dict[str, int]) -> dict[str, str]:
        """The files of the tables that a batch takes in: all in the first, later those that are due to be read again."""
        due = {} if base is not None else dict(self.tables)
        for table in self.changing:
            last_us = read_us.get(table.name, BEGINNING_US)
            if last_us == BEGINNING_US:
                read_us[table.name] = watermark_us
            elif watermark_us >= last_us + table.every_us:
                # A batch that runs again takes what it took before.
                path = table_file(table.name, batch)
                if path.rpartition("/")[2] not in self.filesystem.list("tables"):
                    put_table(self.filesystem, path, table.read())
                due[table.name], read_us[table.name] = path, watermark_us
        return due

    def _attempts(self, reports: list[bytes]) -> list[Attempt]:
        attempts = sorted((msgspec.json.decode(r, type=Attempt) for r in reports), key=lambda a: a.slot)
        if not self.spread.is_free and [a.slot for a in attempts] != list(range(self.slots)):
            raise StateError(f"expected a report of each of {self.slots} slots, got {[a.slot for a in attempts]}")
        return attempts

    def _release(self, base: Commit | None, commit: Commit) -> None:
        """Deletes what neither this commit nor the one it started from names."""
        if base is None or commit.batch % RELEASE_EVERY:
            return
        self._sweep(grace_s=0.0, before=commit.batch)
        self.commits.prune(base.batch)
        self.controls.prune(base.batch)
        self.deliveries.prune(commit.batch)
        release_versions(self.filesystem, {*base.tables.values(), *commit.tables.values()}, base.batch)

    def _sweep(self, grace_s: float = SWEEP_GRACE_S, before: int | None = None) -> None:
        """Deletes state files that no commit names. While the query runs, only those of batches that are over."""
        if self.commit is None:
            named: frozenset[str] = frozenset()
        else:
            kept = [self.commit]
            if self.commit.batch - 1 in self.commits.numbers():
                kept.append(self.commits.read(self.commit.batch - 1))
            named = frozenset().union(*(c.files() for c in kept))
        for slot in range(self.slots):
            sweep(self.filesystem, f"state/{slot}", named, grace_s, before - 1 if before is not None else None)

    def _note(self, commit: Commit, plan: str, wall_s: dict[str, float]) -> None:
        counted = [a.statistics for a in commit.slots.values()]
        names = [s.name for s in self.query.base_sources]
        for statistics in counted:
            for name, spent in statistics.cpu_ns.items():
                wall_s[name] = max(wall_s.get(name, 0.0), spent / 1e9)
        self.progress.append(
            Progress(
                batch=commit.batch,
                trigger=commit.trigger,
                plan=plan,
                target=commit.migration.target if commit.migration is not None else None,
                rows={n: sum(s.sources[n].rows for s in counted) for n in names},
                late_rows={n: sum(s.sources[n].late_rows for s in counted) for n in names},
                early_rows={n: sum(s.sources[n].early_rows for s in counted) for n in names},
                results=sum(s.results for s in counted),
                watermark_us=commit.watermark_us,
                state_rows=sum(s.sources[n].state_rows for s in counted for n in names),
                state_bytes=sum(s.sources[n].state_bytes for s in counted for n in names)
                + sum(state.bytes for s in counted for state in s.states),
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


def shown(plan: Plan, forms: Forms, below: str, selects: Selects = ()) -> str:
    """A plan for people: with what is grouped before it is joined, and what is selected after that."""
    grouped = f", {below} grouped first" if below else ""
    return show(plan, forms.graphs[below]) + grouped + shown_selects(selects, forms.written)


def _count_all(counted: list[Statistics], seen: Statistics) -> None:
    """Counts rows that never reached a slot among those of the first."""
    for name, source in seen.sources.items():
        reached = sum(c.sources[name].rows for c in counted if name in c.sources)
        if name in counted[0].sources:
            counted[0].sources[name].rows += source.rows - reached


def _gaps(marks: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]


def layout_of(spread: Spread) -> Layout:
    """A spread as commits record it."""
    grid = spread.grid
    return Layout(tuple(map(str, grid.dimensions)), grid.shares, tuple(range(grid.cells)))


def _text(layout: Layout) -> str:
    parts = [f"{d} in {s}" for d, s in zip(layout.dimensions, layout.shares, strict=True)]
    return "; ".join(parts) or "no dimension"
