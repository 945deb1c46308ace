"""One continuous query on Spark: what happens on the driver in each micro-batch.

`dataflow` is what every batch of rows goes through: predicates, the exchange, one task per slot. It is part of the streaming
query. `step` is the function of `foreachBatch`. It writes `control/n`, which tells the tasks what to do, collects what they
report, writes `commit/n`, and delivers. Everything a batch depends on is in the commit it starts from, so a
batch can run again: after a failed sink, a lost driver, or because Spark never heard that it was done.

Spark numbers the triggers, we number the steps: a closing step, made when input has ended, has no trigger of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.control.course import course_after, course_fields, following
from anabranch.control.journal import Journal
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.loop import Loop, Proposal
from anabranch.control.records import Attempt, Commit, Control, Layout, Statistics
from anabranch.control.sweep import sweep
from anabranch.control.watermark import seen_after, watermark_of
from anabranch.engine.identity import identity_of, require_same
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
from anabranch.spark.task import BATCH, META, Combination, Task
from anabranch.storage.filesystem import Filesystem

RELEASE_EVERY = 8
"""Files that no commit needs any more are deleted every so many batches."""
SWEEP_GRACE_S = 600.0
"""At start, files that no commit names are deleted when they are older than this."""
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
    results: int
    watermark_us: int
    state_rows: int
    state_bytes: int
    wall_s: dict[str, float] = field(default_factory=dict)


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
        filters: Mapping[str, Sequence[Sequence[Expr]]] | None = None,
        changing: Sequence[ChangingTable] = (),
    ) -> None:
        self.changing = tuple(changing)
        self.loop = loop
        self.push = Push(query, packing, filters or {})
        self.query, self.spread, self.packing = query, spread, packing
        self.filesystem, self.sink, self.tables = filesystem, sink, dict(tables)
        self.forms = Forms(query)
        self.course = course
        self.slots = spread.grid.cells
        self.controls = controls_in(filesystem)
        self.commits = commits_in(filesystem)
        self.journal = Journal(filesystem)
        self.identity = identity_of(query)
        self.layout = layout_of(spread)
        self.progress: list[Progress] = []
        self.commit: Commit | None = None
        self.error: Exception | None = None
        self._run = ""
        self._spark: SparkSession | None = None
        """The session whose query brings the batches."""
        self.is_pinned = False
        """Whether the plan stays unless a user asks for another."""
        self.needs_approval = False
        self.pending: Proposal | None = None
        """A change that waits for approval."""
        self._raised: list[str] = []
        """The predicates that sources were last told to leave to the tasks."""
        self._requests: SimpleQueue[Proposal] = SimpleQueue()
        self._began: tuple[int, float, Proposal] | None = None

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.course.plan

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
        latest = self.commits.latest()
        self.commit = latest[1] if latest is not None else None
        if self.commit is not None:
            require_same(self.query, self.commit.query, self.identity)
            if self.commit.layout != self.layout:
                raise StateError(
                    f"the checkpoint has {len(self.commit.layout.slots)} slots over {_text(self.commit.layout)}, this run "
                    f"{self.slots} over {_text(self.layout)}: start it with the same number of slots"
                )
        self._sweep()
        self._journal_start()

    def _journal_start(self) -> None:
        facts: dict[str, Any] = {"shares": list(self.spread.grid.shares), "slots": self.slots}
        facts["delivers"] = self.sink.guarantee
        if self.commit is None:
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
        else:
            old = shown(after.plan, self.forms, after.below, after.selects)
            self.course = replace(after, plan=asked, migration=None)
            self._tell(batch, "replanned", f"plan {self.plan_text} instead of {old}, at a restart", **facts)

    def _left_migrating(self) -> bool:
        """Whether a run before this one failed in the batch in which its migration ended, and could not tell."""
        told = [e.event for e in self.journal.entries() if e.event in ("migrating", "migrated", "cancelled")]
        return told[-1:] == ["migrating"]

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
        self.course = following(self.course, base, self.forms)

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
        task = Task(self._run, self.query, self.spread, self.packing, self.filesystem, self._staging)
        wanted = self.push.apply(rows) if has_rows else rows
        exchanged = wanted if self.spread.is_free else wanted.repartitionById(self.slots, CELL)
        return exchanged.mapInArrow(task, task.schema)

    @property
    def _staging(self) -> Filesystem | None:
        """Where tasks write results to, unless they are handed to Spark."""
        return None if self.spread.combines else self.sink.staging()

    def step(self, out: DataFrame, trigger: int) -> None:
        """Runs the batch that a trigger brought, given its dataflow; the newest one again if it brings that."""
        try:
            self._run_step(out, trigger, self._base(trigger))
        except Exception as error:
            # Spark searches what it is told for signs of an interruption, at length: it is told little, the caller all.
            self.error = told(error)
            first_line = (str(self.error).splitlines() or [""])[0]
            raise RuntimeError(f"{type(self.error).__name__}: {first_line[:300]}") from None

    def _base(self, trigger: int) -> Commit | None:
        """The commit that the batch of a trigger starts from: the newest that is not of the same trigger."""
        base = self.commit
        while base is not None and base.trigger == trigger:
            base = self._before(base)
        if base is not None and base.trigger > trigger:
            raise StateError(
                f"Spark runs batch {trigger} again, but batch {base.trigger} is committed: the checkpoint's parts do "
                "not belong together; restore all of it, or start with an empty one"
            )
        return base

    def close(self, spark: SparkSession) -> None:
        """A closing step: a batch without rows, for what the last rows have made final."""
        if self.commit is not None and not self.spread.is_free:
            # A session of its own, as Spark makes one for each streaming query: settings of the user's stay as they are.
            own = spark.newSession()
            for name, value in SETTINGS.items():
                own.conf.set(name, value)
            empty = own.createDataFrame([], self.packing.schema)
            self._run_step(self.dataflow(empty, has_rows=False), self.commit.trigger, self.commit, has_rows=False)

    def _before(self, commit: Commit) -> Commit | None:
        """The commit that the batch of a commit started from."""
        return self.commits.read(commit.batch - 1) if commit.batch > 0 else None

    def _run_step(self, out: DataFrame, trigger: int, base: Commit | None, has_rows: bool = True) -> None:
        marks = [perf_counter()]
        batch = base.batch + 1 if base is not None else 0
        seen = base.largest_time_us if base is not None else {}
        watermark_us = watermark_of(self.query, seen)
        self._redirect(batch, base)
        course = course_fields(self.course, self.forms)
        read_us = dict(base.tables_read_us) if base is not None else {}
        due = self._tables(batch, watermark_us, base, read_us)
        tables = {**base.tables, **due} if base is not None else due
        taken = tables if self.spread.is_free else due
        control = Control(batch, trigger, watermark_us, self.identity, layout=self.layout, tables=taken, **course)
        self.controls.write(batch, control)
        raised = [str(s.predicate) for s in self.course.selects if s.until_us is None]
        self.push.set(watermark_us, raised)
        out.sparkSession.sparkContext.setLocalProperty(BATCH, str(batch))
        if raised != self._raised:
            out.sparkSession.sparkContext.setLocalProperty(RAISED, json.dumps(raised))
            self._raised = raised
        marks.append(perf_counter())
        staged = self._staging is not None
        if not staged:
            out = out.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            reports = out.where(F.col(META).isNotNull()).select(META) if not staged else out
            attempts = self._attempts([bytes(row[0]) for row in reports.collect()])
            results, files = out, [a.results for a in attempts if a.results]
            if not staged:
                results = out.where(F.col(META).isNull()).drop(META)
            if self.spread.combines:
                results, files = self._combined(results, batch)
            marks.append(perf_counter())
            counted = [a.statistics for a in attempts]
            if self._spark is not None and has_rows and counted and (seen_by_spark := self.push.seen(self._spark)):
                _count_all(counted, seen_by_spark)
                counted.append(seen_by_spark)
            commit = Commit(
                batch, trigger, watermark_us, self.identity, largest_time_us=seen_after(seen, counted),
                slots={str(a.slot): a for a in attempts}, layout=self.layout, tables_read_us=read_us, tables=tables,
                **course,
            )  # fmt: skip
            self.commits.write(batch, commit)
            self.commit = commit
            marks.append(perf_counter())
            if self.sink.staging() is not None:
                self.sink.publish(files, batch)
            else:
                self.sink.deliver(results, batch)
        finally:
            if not staged:
                out.unpersist()
        marks.append(perf_counter())
        self._release(base, commit)
        ran = self.plan_text
        self._follow_migration(commit)
        self._adapt(commit)
        self._note(commit, ran, dict(zip(("control", "tasks", "commit", "deliver"), _gaps(marks), strict=True)))

    def _combined(self, parts: DataFrame, batch: int) -> tuple[DataFrame, list[str]]:
        """The results of groups that have rows in several slots; or the files that they were written to."""
        grouping = self.query.grouping
        assert grouping is not None
        combination = Combination(batch, self.query, self.sink.staging())
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
                path = f"tables/{table.name}-{batch}.arrow"
                if path.rpartition("/")[2] not in self.filesystem.list("tables"):
                    self.filesystem.put(path, [table.read()])
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
        for name in self.filesystem.list("tables"):
            version = name.removesuffix(".arrow").rpartition("-")[2]
            is_named = f"tables/{name}" in (*base.tables.values(), *commit.tables.values())
            if version.isdigit() and int(version) < base.batch and not is_named:
                self.filesystem.delete(f"tables/{name}")

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
            folder = f"state/{slot}"
            if before is None:
                sweep(self.filesystem, folder, named, grace_s)
            else:
                for name in self.filesystem.list(folder):
                    if f"{folder}/{name}" not in named and int(name.split("-")[0]) < before - 1:
                        self.filesystem.delete(f"{folder}/{name}")

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
                results=sum(s.results for s in counted),
                watermark_us=commit.watermark_us,
                state_rows=sum(s.sources[n].state_rows for s in counted for n in names),
                state_bytes=sum(s.sources[n].state_bytes for s in counted for n in names)
                + sum(state.bytes for s in counted for state in s.states),
                wall_s=wall_s,
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
