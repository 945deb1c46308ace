"""The engine in one process: the same driver, work and files as on Spark, over batches that the caller hands in.

The caller plays the part of a source that remembers what it handed out: it numbers the batches, and hands a batch in again,
with the same rows, if it did not learn that the batch was done. A batch that is committed is not run again for that: its
results are computed once more, and the commit stays. When the next batch comes, the results of the one before have arrived.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from anabranch.balance.partition import choose_distribution
from anabranch.control.journal import Journal
from anabranch.control.lease import Unshared
from anabranch.control.ledger import Ledger
from anabranch.control.loop import Proposal, Remark, Wish
from anabranch.control.records import Attempt, Commit, Control, Statistics
from anabranch.control.statistics import summed
from anabranch.control.table_files import put_table, table_file
from anabranch.drive.driver import Driver
from anabranch.drive.retain import RELEASE_EVERY, SWEEP_GRACE_S
from anabranch.drive.runner import Computed, Runner
from anabranch.drive.transition import Refusal, transition
from anabranch.drive.work import Kept, SlotWork, order_after
from anabranch.engine.accept import Rows, conform
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.cells import source_mask
from anabranch.engine.log import encode
from anabranch.engine.slot import ONE_SLOT, Slot
from anabranch.errors import MigrationError, SchemaMismatchError, StateError
from anabranch.plan.actions import Action, ChangePlan, MoveGroups, MoveSelects
from anabranch.plan.demand import read_columns
from anabranch.plan.distribution import all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, check, left_deep, parse
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import Query, Table
from anabranch.plan.selects import raise_selects
from anabranch.storage.filesystem import Filesystem, MemoryFilesystem

SLOT = "0"
STATE_FOLDER = f"state/{SLOT}"

Take = Callable[[pa.RecordBatch], None]


@dataclass(frozen=True)
class Step:
    """What a batch gave."""

    batch: int
    watermark_us: int
    results: pa.Table
    statistics: Statistics


class Steady:
    """A loop that proposes nothing, and grants every wish: callers decide by themselves."""

    def after(self, execution: Execution, commit: Commit) -> Proposal | Remark | None:
        return None

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        return Proposal(ChangePlan(wish.plan, wish.strategy or Strategy.MOVING_STATE, wish.pause_us), "by request")


@dataclass
class Caller:
    """Where results go: back to whoever handed the batch in."""

    results: list[pa.RecordBatch] = field(default_factory=list)

    def staging(self) -> None:
        return None

    def deliver(self, results: list[pa.RecordBatch], number: int) -> None:
        self.results = results

    def publish(self, files: object, number: int, token: str) -> None:
        raise AssertionError("nothing is staged")


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
        slots: int = 1,
        release_every: int = RELEASE_EVERY,
    ) -> None:
        self.forms, self.filesystem, self.results_per_batch = Forms(query), filesystem, results_per_batch
        self.tables, self._sources = dict(tables or {}), {source.name: source for source in query.base_sources}
        for source in query.base_sources:
            if isinstance(source, Table) and source.name not in self.tables:
                raise StateError(f"query {query.name} reads table {source.name}; hand in its rows with tables=")
        self.distribution = ONE_SLOT if slots == 1 else choose_distribution(query, slots, may_skip_exchange=False)
        graph = self.forms.graphs[None]
        asked = left_deep(graph) if plan is None else parse(plan, graph) if isinstance(plan, str) else plan
        check(asked, graph)
        self._columns = read_columns(query)
        self._stored = {name: table_file(name) for name in self.tables if name in self._sources}
        self.driver = Driver(
            query, Execution(asked), self.distribution, filesystem, self._stored, Steady(), Unshared(), clock=clock,
            journal=Journal(MemoryFilesystem()), release_every=release_every, sweep_grace_s=sweep_grace_s,
        )  # fmt: skip
        self.driver.is_pinned = plan is not None
        self.driver.open("to the caller")
        self._caller, self._name = Caller(), uuid.uuid4().hex
        self.worker = Kept()
        """Who runs the slots: several may take turns."""
        self._runner = Runner(self.driver, self._caller, is_acknowledged_later=True)

    @property
    def execution(self) -> Execution:
        """What the next batch runs."""
        return self.driver.execution

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.driver.plan

    @property
    def graph(self) -> JoinGraph:
        """The form of the query that gives the results."""
        return self.driver.graph

    @property
    def commit(self) -> Commit | None:
        """The newest."""
        return self.driver.newest

    @property
    def commits(self) -> Ledger[Commit]:
        return self.driver.commits

    @property
    def controls(self) -> Ledger[Control]:
        return self.driver.controls

    @property
    def last_batch(self) -> int:
        """The newest batch that was committed; -1 before the first."""
        return self.driver.standing.batch

    def migrate(
        self,
        target: Plan | str,
        strategy: Strategy = Strategy.MOVING_STATE,
        pause_us: int = 0,
        groups_below: str | None = None,
        selects: Mapping[str, str] | None = None,
    ) -> None:
        """Goes over to another plan from the next batch on. A migration under way is given up for it, and what it has done
        that serves this one too is kept. `groups_below` names the input whose rows are grouped before the join ("": none),
        `selects` those that stand above a join (`anabranch.plan.selects.raise_selects`)."""
        grouped_input = self.execution.grouped_input if groups_below is None else groups_below or None
        graph = self.forms.graphs.get(grouped_input)
        if graph is None:
            raise MigrationError(self.forms.why_not(self.execution.grouped_input, grouped_input) or "")
        plan = parse(target, graph) if isinstance(target, str) else target
        check(plan, graph)
        action: Action = ChangePlan(plan, strategy, pause_us)
        if grouped_input != self.execution.grouped_input:
            action = MoveGroups(grouped_input, plan, strategy, pause_us)
        elif selects is not None:
            action = MoveSelects(raise_selects(self.forms.written, selects), plan, strategy, pause_us)
        seen = self.commit.largest_time_us if self.commit is not None else {}
        after = transition(self.forms, self.execution, action, self.last_batch + 1, seen)
        if isinstance(after, Refusal):
            raise MigrationError(after.reason)
        self.driver.execution = after

    def step(self, batch: int, rows: Mapping[str, Rows], take: Take | None = None) -> Step:
        """Runs a batch: the next one, or the newest again. A batch without rows is a closing step. If `take` is given it is
        called with the results, piece by piece as they are found and before the batch is committed, and they are not kept
        for the step."""
        given, standing = self._conform(rows), self.driver.standing
        is_again = batch == standing.batch and standing.waits
        if batch != standing.batch + 1 and not is_again:
            again = f", or batch {standing.batch} again" if standing.waits else ""
            raise StateError(
                f"batch {batch} cannot follow batch {standing.batch}: hand in batch {standing.batch + 1}{again}"
            )
        if is_again:
            self.worker.boxes.clear()  # they are past it
        if batch == 0:
            self._store_tables()
        done: list[Attempt] = []
        self._caller.results = []
        self._runner.step(batch, lambda control: self._computed(control, given, take, done))
        commit = self.driver.newest
        assert commit is not None
        table = pa.Table.from_batches(self._caller.results, schema=self.forms.written.output_schema)
        self._caller.results = []
        return Step(batch, commit.watermark_us, table, summed(a.statistics for a in done))

    def _store_tables(self) -> None:
        """Writes the rows of the tables to where the first batch finds them."""
        for name, path in self._stored.items():
            put_table(
                self.filesystem, path, encode(conform(self._sources[name], self.tables[name], self._columns[name]))
            )

    def _conform(self, rows: Mapping[str, Rows]) -> dict[str, pa.RecordBatch]:
        """The rows in their declared types: what does not fit is refused before anything is written."""
        if stored := rows.keys() & self.tables.keys():
            raise StateError(
                f"{', '.join(sorted(stored))} is a stored table: its rows are handed in once, with tables="
            )
        if unknown := rows.keys() - self._sources.keys():
            name = self.forms.written.name
            raise SchemaMismatchError(
                f"query {name} does not read {', '.join(sorted(unknown))}; it reads {', '.join(self._sources)}"
            )
        return {name: conform(self._sources[name], given, self._columns[name]) for name, given in rows.items()}

    @contextmanager
    def _computed(
        self, control: Control, rows: Mapping[str, pa.RecordBatch], take: Take | None, done: list[Attempt]
    ) -> Iterator[Computed]:
        """Runs the batch in one slot after the other."""
        query, commit = self.forms.written, self.driver.newest
        base = commit if commit is None or commit.batch < control.batch else None
        if base is None and control.batch > 0:
            base = self.commits.read(control.batch - 1)
        work = SlotWork(self._name, query, self.distribution, self.filesystem, self.worker, self.results_per_batch)
        order, results = order_after(control, base, self.forms), list[pa.RecordBatch]()
        hand_on = results.append if take is None or self.distribution.groups_span_slots else take
        for slot in range(self.driver.slots):
            token = uuid.uuid4().hex[:12]
            boxes = work.boxes(order, slot)
            for piece in work.step(order, slot, boxes, self._share(slot, rows)):
                hand_on(piece)
            done.append(work.save(order, slot, boxes, token))
        if self.distribution.groups_span_slots:
            assert query.grouping is not None
            results = Aggregator(query.grouping, query.row_schema).combine(results) if results else []
            if take is not None:
                for piece in results:
                    take(piece)
        yield Computed(done, [] if take is not None else results, None)

    def _share(self, slot: int, rows: Mapping[str, pa.RecordBatch]) -> Mapping[str, pa.RecordBatch]:
        """The rows that belong to a slot."""
        if self.driver.slots == 1:
            return rows
        grid, inputs = self.distribution.grid, all_inputs(self.forms.written)
        return {n: r.filter(pa.array(source_mask(grid, slot, inputs, self._sources[n], r))) for n, r in rows.items()}

    @property
    def _slot(self) -> Slot | None:
        """The boxes of the first slot, if they are attached; for tests."""
        kept = self.worker.boxes.get(f"{self._name}/0")
        return kept[1] if kept is not None else None

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        for _, boxes in self.worker.boxes.values():
            boxes.verify()
