"""The engine in one process: what tests and simulations run, with the same files and the same protocol as the product.

The caller plays the part of a source that remembers what it handed out: it numbers the batches, and runs a batch again,
with the same rows, if it did not learn that the batch was done. A batch that runs again starts from the commit before it
and supersedes its own; so what a commit names is kept until the batch after it has been committed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from anabranch.control.course import course_after, course_fields, course_of, following
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.records import Attempt, Commit, Control, SlotState, Statistics
from anabranch.control.sweep import sweep
from anabranch.control.watermark import last_seen_after, next_watermark, seen_after
from anabranch.engine.accept import Rows, conform
from anabranch.engine.identity import identity_of, require_same
from anabranch.engine.pieces import limited
from anabranch.engine.pipeline import read_columns
from anabranch.engine.slot import Slot
from anabranch.errors import MigrationError, SchemaMismatchError, StateError
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, check, left_deep, parse
from anabranch.plan.migration import Course, Migration, Strategy, switched, why_not_parallel, with_selects
from anabranch.plan.query import BEGINNING_US, Query, Table
from anabranch.plan.selects import raise_selects
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

SLOT = "0"
STATE_FOLDER = f"state/{SLOT}"
SWEEP_GRACE_S = 600.0
"""Files that no commit names are deleted when they are older than this: a slower attempt may still be writing them."""


@dataclass(frozen=True)
class Step:
    """What a batch gave."""

    batch: int
    watermark_us: int
    results: pa.Table
    statistics: Statistics


class LocalRun:
    """A query over batches that the caller hands in.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> from anabranch.sql import parse_script
    >>> script = parse_script('''
    ...     CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE QUERY q AS SELECT a.k FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k''')
    >>> run = LocalRun(script.queries[0].query, MemoryFilesystem())
    >>> rows = pa.table({"k": [1, 2], "ts": pa.array([0, 0], pa.timestamp("us"))})
    >>> run.step(0, {"a": rows, "b": rows}).results.to_pydict()
    {'k': [1, 2]}
    """

    def __init__(
        self,
        query: Query,
        filesystem: Filesystem,
        plan: Plan | str | None = None,
        tables: Mapping[str, Rows] | None = None,
        sweep_grace_s: float = SWEEP_GRACE_S,
        clock: Callable[[], float] = time.time,
        results_per_batch: int | None = None,
    ) -> None:
        self.results_per_batch = results_per_batch
        self.clock = clock
        """Seconds since the epoch: what batches are planned by."""
        self.forms = Forms(query)
        self.tables = dict(tables or {})
        self._identity = identity_of(query)
        for source in query.base_sources:
            if isinstance(source, Table) and source.name not in self.tables:
                raise StateError(f"query {query.name} reads table {source.name}; hand in its rows with tables=")
        self.filesystem = filesystem
        self.reader = ContainerReader(filesystem)
        self.controls = controls_in(filesystem)
        self.commits = commits_in(filesystem)
        self._slot: Slot | None = None
        self._named: dict[int, frozenset[str]] = {}
        latest = self.commits.latest()
        self.commit = latest[1] if latest else None
        if self.commit is not None:
            require_same(query, self.commit.query, self._identity)
            self._named[self.commit.batch] = self.commit.files()
            if self.commit.batch - 1 in self.commits.numbers():
                before = self.commits.read(self.commit.batch - 1)
                self._named[before.batch] = before.files()
        self.course = self._course(plan)
        self._columns = read_columns(query, self.course.plan)
        sweep(filesystem, STATE_FOLDER, frozenset().union(*self._named.values()), sweep_grace_s)

    def _course(self, plan: Plan | str | None) -> Course:
        """The plan that is given; or else what the checkpoint was at, or from left to right if it is new."""
        before = Course(left_deep(self.forms.graphs[""]))
        if self.commit is not None:
            before = course_after(self.commit, self.forms)
        if plan is None:
            return before
        graph = self.forms.graphs[before.below]
        plan = parse(plan, graph) if isinstance(plan, str) else plan
        check(plan, graph)
        return replace(before, plan=plan, migration=None)

    @property
    def graph(self) -> JoinGraph:
        """The form of the query that gives the results."""
        return self.forms.graphs[self.course.below]

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.course.plan

    def migrate(
        self,
        target: Plan | str,
        strategy: Strategy = Strategy.MOVING_STATE,
        pause_us: int = 0,
        below: str | None = None,
        selects: Mapping[str, str] | None = None,
    ) -> None:
        """Goes over to another plan from the next batch on. A migration under way is given up for it, and what it has done
        that serves this one too is kept. `below` names the input whose rows are grouped before the join ("": none),
        `selects` those that stand above a join (`anabranch.plan.selects.raise_selects`)."""
        seen = self.commit.largest_time_us if self.commit is not None else {}
        if below is not None and below != self.course.below:
            graph = self.forms.graphs.get(below)
            if graph is None:
                raise MigrationError(self.forms.why_not(self.course.below, below) or "")
            target = parse(target, graph) if isinstance(target, str) else target
            check(target, graph)
            self.course = switched(self.forms, self.course, target, below, strategy, seen)
            return
        target = parse(target, self.graph) if isinstance(target, str) else target
        check(target, self.graph)
        if strategy is Strategy.PARALLEL_TRACK and (reason := why_not_parallel(self.graph, self.course.plan, target)):
            raise MigrationError(reason)
        if selects is not None:
            raised = raise_selects(self.forms.written, selects)
            self.course = with_selects(self.course, self.graph, raised, strategy, seen)
        if strategy is Strategy.MOVING_STATE or target == self.course.plan:
            self.course = replace(self.course, plan=target, migration=None)
            return
        self.course = replace(self.course, migration=Migration(target, strategy, self.last_batch + 1, pause_us))

    @property
    def last_batch(self) -> int:
        """The newest batch that was committed; -1 before the first."""
        return self.commit.batch if self.commit is not None else -1

    def step(
        self, batch: int, rows: Mapping[str, Rows], take: Callable[[pa.RecordBatch], None] | None = None
    ) -> Step:
        """Runs a batch: the next one, or the newest again. A batch without rows is a closing step. If `take` is given it is
        called with the results, piece by piece as they are found and before the batch is committed, and they are not kept
        for the step."""
        base, results = self._base(batch), list[pa.RecordBatch]()
        if stored := rows.keys() & self.tables.keys():
            raise StateError(
                f"{', '.join(sorted(stored))} is a stored table: its rows are handed in once, with tables="
            )
        conformed = self._conform({**(self.tables if batch == 0 else {}), **rows})
        seen = base.largest_time_us if base is not None else {}
        # A batch that runs again has the clock of its first run.
        begun = self.controls.find(batch)
        planned_us = begun.planned_us if begun is not None else int(self.clock() * 1_000_000)
        watermark_us = next_watermark(self.forms.written, base, planned_us)
        self.course = following(self.course, base, self.forms)
        course = course_fields(self.course, self.forms)
        self.controls.write(batch, Control(batch, batch, watermark_us, self._identity, planned_us=planned_us, **course))
        try:
            emitted_us = base.watermark_us if base is not None else BEGINNING_US
            slot = self._attached(base, watermark_us, emitted_us)
            found = slot.step(batch, conformed, watermark_us, emitted_us, planned_us)
            for piece in limited(found, self.results_per_batch, self.forms.written.name, batch):
                (results.append if take is None else take)(piece)
            token = uuid.uuid4().hex[:12]
            state = slot.save(batch, token)
            statistics = slot.statistics
            attempt = Attempt(0, token, msgspec.Raw(msgspec.json.encode(state)), statistics)
            commit = Commit(
                batch, batch, watermark_us, self._identity, largest_time_us=seen_after(seen, [statistics]),
                slots={SLOT: attempt}, last_seen_us=last_seen_after(self.forms.written, base, [statistics], planned_us),
                **course,
            )  # fmt: skip
            self.commits.write(batch, commit)
            self.commit = commit
            slot.relocate()
        except BaseException:
            # The boxes may be half-way through: the next attempt attaches to what is committed.
            self._slot = None
            raise
        self._release(base, commit, state)
        if not self.course.is_settled:
            self.course = course_after(commit, self.forms)
        table = pa.Table.from_batches(results, schema=self.forms.written.output_schema)
        return Step(batch, watermark_us, table, statistics)

    def _conform(self, rows: Mapping[str, Rows]) -> dict[str, pa.RecordBatch]:
        """The rows in their declared types: what does not fit is refused before anything is written."""
        written = self.forms.written
        sources = {source.name: source for source in written.base_sources}
        if unknown := rows.keys() - sources.keys():
            raise SchemaMismatchError(
                f"query {written.name} does not read {', '.join(sorted(unknown))}; it reads {', '.join(sources)}"
            )
        return {name: conform(sources[name], given, self._columns[name]) for name, given in rows.items()}

    def _base(self, batch: int) -> Commit | None:
        """The commit that a batch starts from."""
        if batch == self.last_batch + 1:
            return self.commit
        if batch == self.last_batch >= 0:
            self._slot = None
            return self.commits.read(batch - 1) if batch > 0 else None
        raise StateError(
            f"batch {batch} cannot follow batch {self.last_batch}: hand in batch {self.last_batch + 1}"
            + (f", or batch {self.last_batch} again" if self.last_batch >= 0 else "")
        )

    def _attached(self, base: Commit | None, watermark_us: int, emitted_us: int) -> Slot:
        if self._slot is not None and self._slot.course == self.course:
            return self._slot
        state = base.slots[SLOT].slot_state() if base is not None else SlotState()
        if self._slot is None:
            before = course_of(base, self.forms) if base is not None else self.course
            course = self.course if self.course.is_like(before) else before
            self._slot = Slot(self.forms, course, STATE_FOLDER, self.filesystem, self.reader)
            self._slot.attach(state, watermark_us, emitted_us)
        if self._slot.course != self.course:
            self._slot.redirect(self.course, state, watermark_us, emitted_us)
        return self._slot

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        if self._slot is not None:
            self._slot.verify()

    def _release(self, base: Commit | None, commit: Commit, state: SlotState) -> None:
        """Deletes what neither this commit nor the one before it names: this batch may have to run again from that."""
        keep = {commit.batch: state.files()}
        if base is not None:
            keep[base.batch] = self._named.get(base.batch) or base.files()
        needed = frozenset().union(*keep.values())
        for path in frozenset().union(*self._named.values()) - needed:
            self.filesystem.delete(path)
        self.reader.retain(needed)
        self._named = keep
        if base is not None:
            self.commits.prune(base.batch)
            self.controls.prune(base.batch)
