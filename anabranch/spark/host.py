"""One continuous query on Spark: what happens on the driver in each micro-batch.

`step` is the function of `foreachBatch`. It writes `control/n`, runs one task per slot over the exchanged rows, collects
what the tasks report, writes `commit/n`, and delivers. Everything a batch depends on is in the commit it starts from, so a
batch can run again: after a failed sink, a lost driver, or because Spark never heard that it was done.

Spark numbers the triggers, we number the steps: a closing step, made when input has ended, has no trigger of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from anabranch.control.journal import Journal
from anabranch.control.ledger import Ledger
from anabranch.control.records import Attempt, Commit, Control, Layout, Statistics
from anabranch.control.sweep import sweep
from anabranch.control.watermark import seen_after, watermark_of
from anabranch.engine.identity import identity_of, require_same
from anabranch.errors import StateError
from anabranch.optimize.review import Reviewer
from anabranch.plan.expression import Expr
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, parse, show
from anabranch.plan.query import BEGINNING_US, INSTANT, Query
from anabranch.plan.spread import Spread
from anabranch.spark.failures import told
from anabranch.spark.pack import CELL, Packing
from anabranch.spark.push import Push
from anabranch.spark.sinks import Sink
from anabranch.spark.task import META, Combination, Task
from anabranch.storage.filesystem import Filesystem

RELEASE_EVERY = 8
"""Files that no commit needs any more are deleted every so many batches."""
SWEEP_GRACE_S = 600.0
"""At start, files that no commit names are deleted when they are older than this."""
ARROW_ROWS = 1 << 17
"""Rows per Arrow batch between Spark and a worker: few and large ones cost least."""


@dataclass
class Progress:
    """What a step did, for people to watch."""

    batch: int
    trigger: int
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
        plan: Plan,
        spread: Spread,
        packing: Packing,
        filesystem: Filesystem,
        sink: Sink,
        tables: Mapping[str, str] | None = None,
        reviewer: Reviewer | None = None,
        filters: Mapping[str, Sequence[Sequence[Expr]]] | None = None,
        changing: Sequence[ChangingTable] = (),
    ) -> None:
        self.changing = tuple(changing)
        self.reviewer = reviewer
        self.push = Push(query, packing, filters or {})
        self.query, self.plan, self.spread, self.packing = query, plan, spread, packing
        self.filesystem, self.sink, self.tables = filesystem, sink, dict(tables or {})
        self.graph = JoinGraph(query)
        self.slots = spread.grid.cells
        self.controls = Ledger(filesystem, "control", "control", Control)
        self.commits = Ledger(filesystem, "commit", "commit", Commit)
        self.journal = Journal(filesystem)
        self.identity = identity_of(query)
        self.plan_text = show(plan, self.graph)
        self.layout = Layout(tuple(map(str, spread.grid.dimensions)), spread.grid.shares, tuple(range(self.slots)))
        self.progress: list[Progress] = []
        self.commit: Commit | None = None
        self.error: Exception | None = None
        self._run = ""

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
        facts: dict[str, Any] = {"plan": self.plan_text, "shares": list(self.spread.grid.shares), "slots": self.slots}
        facts["delivers"] = self.sink.guarantee
        if self.commit is None:
            self.journal.note(-1, "started", f"on an empty checkpoint, plan {self.plan_text}", **facts)
        elif self.commit.plan != self.plan_text and self.reviewer is not None:
            # What was chosen on facts stays; it is reviewed again when there are enough of them.
            self._take(parse(self.commit.plan, self.graph))
            facts["plan"] = self.plan_text
            self.journal.note(
                self.commit.batch, "resumed", f"after batch {self.commit.batch}, plan {self.plan_text} as before", **facts
            )
        elif self.commit.plan != self.plan_text:
            self.journal.note(
                self.commit.batch, "replanned", f"plan {self.plan_text} instead of {self.commit.plan}, at a restart", **facts
            )
        else:
            self.journal.note(self.commit.batch, "resumed", f"after batch {self.commit.batch}", **facts)

    def _take(self, plan: Plan) -> None:
        """Goes on with another plan: in the next batch boxes are attached anew, and derive from the log what they lack."""
        self.plan, self.plan_text = plan, show(plan, self.graph)

    def _review(self, commit: Commit) -> None:
        """Asks whether another plan is worth it, now that a batch more is known."""
        if self.reviewer is None:
            return
        found = self.reviewer.after(self.plan, commit)
        if found is None:
            return
        old = self.plan_text
        if found.plan is not None:
            self._take(found.plan)
        self.journal.note(
            commit.batch, "replanned" if found.plan is not None else "kept", found.text, old=old, plan=self.plan_text,
            **found.details,
        )  # fmt: skip

    def end(self, event: str, text: str) -> None:
        """Notes in the journal how a run ended."""
        self.journal.note(self.commit.batch if self.commit is not None else -1, event, text)

    def step(self, frame: DataFrame, trigger: int) -> None:
        """Runs the batch that a trigger brought; the newest one again if it brings that."""
        try:
            self._run_step(frame, trigger, self._base(trigger))
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
        if self.commit is not None:
            # A session of its own, as Spark makes one for each streaming query: settings of the user's stay as they are.
            empty = spark.newSession().createDataFrame([], self.packing.schema)
            self._run_step(empty, self.commit.trigger, self.commit, has_rows=False)

    def _before(self, commit: Commit) -> Commit | None:
        """The commit that the batch of a commit started from."""
        return self.commits.read(commit.batch - 1) if commit.batch > 0 else None

    def _run_step(self, frame: DataFrame, trigger: int, base: Commit | None, has_rows: bool = True) -> None:
        marks = [perf_counter()]
        batch = base.batch + 1 if base is not None else 0
        seen = base.largest_time_us if base is not None else {}
        watermark_us = watermark_of(self.query, seen)
        self.controls.write(batch, Control(batch, trigger, watermark_us, self.identity, self.plan_text, self.layout))
        read_us = dict(base.tables_read_us) if base is not None else {}
        task = self._task(batch, watermark_us, base, self._tables(batch, watermark_us, base, read_us))
        conf = frame.sparkSession.conf
        conf.set("spark.sql.adaptive.enabled", "false")
        conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_ROWS))
        marks.append(perf_counter())
        frame, observed = self.push.apply(frame, watermark_us) if has_rows else (frame, None)
        out = frame.repartitionById(self.slots, CELL).mapInArrow(task, task.schema)
        staged = task.staging is not None
        if not staged:
            out = out.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            reports = out.where(F.col(META).isNotNull()).select(META) if not staged else out
            attempts = self._attempts([bytes(row[0]) for row in reports.collect()])
            results, files = out.where(F.col(META).isNull()).drop(META), [a.results for a in attempts if a.results]
            if self.spread.combines:
                results, files = self._combined(results, batch)
            marks.append(perf_counter())
            counted = [a.statistics for a in attempts]
            if observed is not None:
                _add_rows(counted[0], passed_over := observed.statistics())
                counted.append(passed_over)
            commit = Commit(
                batch, trigger, watermark_us, self.identity, self.plan_text, seen_after(seen, counted),
                {str(a.slot): a for a in attempts}, self.layout, read_us,
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
        self._review(commit)
        self._note(commit, dict(zip(("control", "tasks", "commit", "deliver"), _gaps(marks), strict=True)))

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

    def _task(self, batch: int, watermark_us: int, base: Commit | None, tables: Mapping[str, str]) -> Task:
        states = {int(slot): (a.token, bytes(a.state)) for slot, a in base.slots.items()} if base is not None else {}
        emitted_us = base.watermark_us if base is not None else BEGINNING_US
        return Task(
            self._run, batch, watermark_us, emitted_us, self.query, self.plan, self.spread, self.packing, self.filesystem,
            states, tables, None if self.spread.combines else self.sink.staging(),
        )  # fmt: skip

    def _attempts(self, reports: list[bytes]) -> list[Attempt]:
        attempts = sorted((msgspec.json.decode(r, type=Attempt) for r in reports), key=lambda a: a.slot)
        if [a.slot for a in attempts] != list(range(self.slots)):
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
            if version.isdigit() and int(version) < base.batch:
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

    def _note(self, commit: Commit, wall_s: dict[str, float]) -> None:
        counted = [a.statistics for a in commit.slots.values()]
        names = [s.name for s in self.query.base_sources]
        for statistics in counted:
            for name, spent in statistics.cpu_ns.items():
                wall_s[name] = max(wall_s.get(name, 0.0), spent / 1e9)
        self.progress.append(
            Progress(
                batch=commit.batch,
                trigger=commit.trigger,
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


def _add_rows(counted: Statistics, more: Statistics) -> None:
    """Counts rows that never reached a slot among those of the first."""
    for name, source in more.sources.items():
        if name in counted.sources:
            counted.sources[name].rows += source.rows


def _gaps(marks: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(marks)]


def _text(layout: Layout) -> str:
    parts = [f"{d} in {s}" for d, s in zip(layout.dimensions, layout.shares, strict=True)]
    return "; ".join(parts) or "no dimension"
