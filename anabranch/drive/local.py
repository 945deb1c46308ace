"""The engine in one process: the same driver, work and files as on Spark, over batches that the caller hands in.

The caller plays the part of a source that remembers what it handed out: it numbers the batches, and hands a batch in again,
with the same rows, if it did not learn that the batch was done. Results go back to the caller at once, and are in no file.
So the newest batch, if it is handed in again, is computed once more, from the commit before it; its own commit stays.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from anabranch.balance.together import choose_together, join_others, restored
from anabranch.control.journal import FOLDER as JOURNALS
from anabranch.control.journal import MOST_GONE, Journal, forget_journal
from anabranch.control.lease import Unshared
from anabranch.control.ledger import Ledger, commits_in
from anabranch.control.loop import Load, Observed, Proposal, Remark, Slicer, Wish
from anabranch.control.pace import Took
from anabranch.control.query_texts import QueryTexts
from anabranch.control.records import BY_REQUEST, Attempt, BlockFigures, Commit, Control, Statistics
from anabranch.control.resume import REMEDY
from anabranch.control.statistics import summed
from anabranch.control.table_files import put_table, table_file
from anabranch.drive.coming import Coming, admission
from anabranch.drive.departed import sweep_texts
from anabranch.drive.driver import ChangingTable, Driver
from anabranch.drive.kept import Kept
from anabranch.drive.limiting import Limiting
from anabranch.drive.lookups import asking, databases_read_apart
from anabranch.drive.queries import gone_on
from anabranch.drive.retain import RELEASE_EVERY, SWEEP_GRACE_S
from anabranch.drive.steering import Steering
from anabranch.drive.transition import Refusal, transition
from anabranch.drive.work import NOTHING_DROPPED, SlotWork, shed_rows, slot_mask
from anabranch.engine.accept import Rows, conform
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.log import encode
from anabranch.engine.slot import Slot
from anabranch.errors import MigrationError, QueryFailedError, SchemaMismatchError, SessionError, StateError
from anabranch.place.databases.protocol import Servers
from anabranch.place.databases.registry import database
from anabranch.place.reading import LookupCosts
from anabranch.plan.actions import Action, ChangePlan, MoveGroups, MoveSelects, PlaceBlock
from anabranch.plan.demand import read_columns
from anabranch.plan.distribution import ONE_SLOT, Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, check, left_deep, parse
from anabranch.plan.lookups import brought_columns
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import Enriched, Query, Table
from anabranch.plan.selects import raise_selects
from anabranch.plan.workload import Workload
from anabranch.share.common_plan import joined_execution
from anabranch.storage.filesystem import Filesystem, MemoryFilesystem

SLOT = "0"
STATE_FOLDER = f"state/{SLOT}"

Take = Callable[[str, pa.RecordBatch], None]
"""Takes some results of a query."""


@dataclass(frozen=True)
class Step:
    """What a batch gave, of one query."""

    batch: int
    watermark_us: int
    results: pa.Table
    statistics: Statistics


class Steady:
    """A loop that proposes nothing, and grants every wish: callers decide by themselves."""

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        return None

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        return Proposal(ChangePlan(wish.plan, wish.strategy or Strategy.MOVING_STATE, wish.pause_us), "by request")

    def took(self, observed: Observed) -> Mapping[str, Took]:
        return {}

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        return {}


class Driven:
    """What a driver has written."""

    driver: Driver

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


class LocalPipeline(Driven):
    """Queries that run together over batches that the caller hands in.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> from anabranch.sql import parse_script
    >>> script = parse_script('''
    ...     CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE QUERY q AS SELECT a.k FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k;
    ...     CREATE QUERY r AS SELECT k FROM a [NOW]''')
    >>> pipeline = LocalPipeline([declared.query for declared in script.queries], MemoryFilesystem())
    >>> rows = pa.table({"k": [1, 2], "ts": pa.array([0, 0], pa.timestamp("us"))})
    >>> {name: step.results.to_pydict() for name, step in pipeline.step(0, {"a": rows, "b": rows}).items()}
    {'q': {'k': [1, 2]}, 'r': {'k': [1, 2]}}
    """

    def __init__(
        self,
        queries: Sequence[Query],
        filesystem: Filesystem,
        plans: Mapping[str, Plan | str] | None = None,
        tables: Mapping[str, Rows] | None = None,
        sweep_grace_s: float = SWEEP_GRACE_S,
        clock: Callable[[], float] = time.time,
        results_per_batch: int | None = None,
        slots: int = 1,
        release_every: int = RELEASE_EVERY,
        dropped: Sequence[str] = (),
        refresh: Mapping[str, tuple[int, Callable[[], Rows]]] | None = None,
        slicer: Slicer | None = None,
        limiting: Limiting | None = None,
        seconds: Callable[[Commit], float] | None = None,
        companies: Mapping[str, str] | None = None,
        databases: Servers = database,
        lookup_costs: Mapping[str, LookupCosts] | None = None,
    ) -> None:
        """`dropped` are queries that ran so far, and are not to go on. `refresh` tells which tables are read again: every so
        many microseconds of event time, and what gives their rows then. `slicer` decides how rows are cut into slices.
        `limiting` has what may be lost under overload: callers may set its limits and shares between batches, or `seconds`
        tells whoever decides about them how long a batch took. `companies` names that of each query which is not to run its
        join with just anybody who has it. `databases` gives those in which rows are looked up
        for, and `lookup_costs` what was measured of them."""
        self._databases, self._lookup_costs = databases, lookup_costs or {}
        self.filesystem, self.results_per_batch, self._seconds = filesystem, results_per_batch, seconds
        texts, latest = QueryTexts(filesystem), commits_in(filesystem).latest()
        known = latest[1].queries if latest is not None else {}
        queries = [gone_on(query, known[query.name], texts) if query.name in known else query for query in queries]
        self.tables, self._slots, workload = dict(tables or {}), slots, Workload(tuple(queries))
        for query in queries:
            self._require_tables(query)
        spread = self._spread(workload, slots)
        self._read_by(workload, spread)
        self._stored = {name: table_file(name) for name in self.tables if name in self._sources}
        asked, self._texts, self._notes = plans or {}, texts, MemoryFilesystem()
        steerings = []
        for query in queries:
            execution = Execution(_plan(query, asked.get(query.name)), company=(companies or {}).get(query.name, ""))
            made = self._steering(query, execution, spread[query.name])
            made.is_pinned = query.name in asked
            steerings.append(made)
        changing = [
            ChangingTable(name, every_us, partial(self._read, name, read))
            for name, (every_us, read) in (refresh or {}).items()
        ]
        self.driver = Driver(
            steerings, filesystem, self._stored, Unshared(), changing, clock, release_every, sweep_grace_s, slicer=slicer,
            limiting=limiting,
        )  # fmt: skip
        for name, rows in self.tables.items():
            self.driver.read_table.setdefault(name, partial(self._encoded, name, rows))
        self.driver.open(dropped=dropped)
        sweep_texts(texts, [filesystem])
        self._name, self._leaving = uuid.uuid4().hex, dict[str, str]()
        self.worker = Kept()
        """Who runs the slots: several may take turns."""

    def _require_tables(self, query: Query) -> None:
        for source in query.base_sources:
            if isinstance(source, Table) and source.name not in self.tables:
                raise StateError(f"query {query.name} reads table {source.name}; hand in its rows with tables=")

    def _read_by(self, workload: Workload, spread: Mapping[str, Distribution]) -> None:
        """Has the columns at hand that some query reads, or is spread by."""
        self._sources, self._columns = workload.sources, read_columns(workload, spread)

    def _steering(self, query: Query, execution: Execution, distribution: Distribution) -> Steering:
        return Steering(query, execution, distribution, Steady(), Journal(self._notes, query.name), self._texts)

    def add(self, query: Query, plan: Plan | str | None = None, history: bool = False) -> None:
        """Has a query come in with the next batch, or take the place of the one of its name. It runs its join with those
        that have it in common, unless it is given a plan of its own."""
        self._require_tables(query)
        queries = self.driver.queries
        running = {name: (other.query, other.distribution) for name, other in queries.items()}
        distribution = ONE_SLOT if self._slots == 1 else join_others(query, running, self._slots)
        others = [other.running for other in queries.values() if other.name != query.name]
        may_share = plan is None and not self.driver.limiting.may_lose
        shared = joined_execution(query, others) if may_share else None
        execution = shared[1] if shared is not None else Execution(_plan(query, plan))
        coming = Coming(self._steering(query, execution, distribution), history)
        if query.name not in queries and not self.driver.is_free(query.name):
            raise SessionError(f"there is, or was, a query {query.name} already: give this one another name")
        admission(coming, self.driver.standing.batch + 1, self.driver.newest, queries.values())
        self.driver.texts.keep(self._texts, coming.query.text)
        self.driver.coming[query.name] = coming
        stored = [source.name for source in query.base_sources if isinstance(source, Table)]
        self.driver.tables |= {name: table_file(name) for name in stored}
        stay = [other for name, other in queries.items() if name != query.name]
        stay += [each.query for each in self.driver.coming.values()]
        self._read_by(Workload(tuple(each.query for each in stay)), {each.name: each.distribution for each in stay})

    def drop(self, name: str) -> None:
        """Has a query leave with the next batch."""
        self._leaving[name] = BY_REQUEST

    def _spread(self, workload: Workload, slots: int) -> dict[str, Distribution]:
        """How rows are spread: as they were when the pipeline first started."""
        if slots == 1:
            return dict.fromkeys((query.name for query in workload.queries), ONE_SLOT)
        latest = commits_in(self.filesystem).latest()
        if latest is not None:
            known = {name: query.layout for name, query in latest[1].queries.items()}
            if all(query.name in known for query in workload.queries):
                return restored(workload, known, slots)
        return choose_together(workload, slots, may_skip_exchange=False)

    @property
    def commit(self) -> Commit | None:
        """The newest."""
        return self.driver.newest

    def change(
        self,
        name: str,
        target: Plan | str,
        strategy: Strategy = Strategy.MOVING_STATE,
        pause_us: int = 0,
        groups_below: str | None = None,
        selects: Mapping[str, str] | None = None,
    ) -> None:
        """Has a query go over to another plan from the next batch on. A migration under way is given up for it, and what it
        has done that serves this one too is kept. `groups_below` names the input whose rows are grouped before the join ("":
        none), `selects` those that stand above a join (`anabranch.plan.selects.raise_selects`)."""
        query = self.driver.queries[name]
        forms, execution = query.forms, query.execution
        grouped_input = execution.grouped_input if groups_below is None else groups_below or None
        graph = forms.graphs.get(grouped_input)
        if graph is None:
            raise MigrationError(forms.why_not(execution.grouped_input, grouped_input) or "")
        plan = parse(target, graph) if isinstance(target, str) else target
        check(plan, graph)
        action: Action = ChangePlan(plan, strategy, pause_us)
        if grouped_input != execution.grouped_input:
            action = MoveGroups(grouped_input, plan, strategy, pause_us)
        elif selects is not None:
            action = MoveSelects(raise_selects(forms.written, selects), plan, strategy, pause_us)
        seen = self.commit.largest_time_us if self.commit is not None else {}
        after = transition(forms, execution, action, self.last_batch + 1, seen)
        if isinstance(after, Refusal):
            raise MigrationError(after.reason)
        query.execution = after

    def place(
        self, name: str, block: str, place: str, strategy: Strategy = Strategy.GRADUAL, pause_us: int = 0
    ) -> None:
        """Has a block of a query run elsewhere from the next batch on, in the database that may run it, or in the engine:
        once its rows are folded, which batches work at for so long; or at once, by moving state."""
        query = self.driver.queries[name]
        action = PlaceBlock(block, place, query.execution.plan, strategy, pause_us)
        if reason := query.why_not(action):
            raise MigrationError(reason)
        query.place(action, "by request", self.last_batch + 1, self.commit)

    def step(self, batch: int, rows: Mapping[str, Rows], take: Take | None = None) -> dict[str, Step]:
        """Runs a batch: the next one, or the newest again. A batch without rows is a closing step. If `take` is given it is
        called with the results, piece by piece as they are found and before the batch is committed, and they are not kept
        for the steps."""
        given, standing = self._conform(rows), self.driver.standing
        is_again = batch == standing.batch >= 0
        if batch != standing.batch + 1 and not is_again:
            again = f", or batch {standing.batch} again" if standing.batch >= 0 else ""
            raise StateError(
                f"batch {batch} cannot follow batch {standing.batch}: hand in batch {standing.batch + 1}{again}"
            )
        found: dict[str, list[pa.RecordBatch]] = {name: [] for name in (*self.driver.queries, *self.driver.coming)}
        hand_on = take or (lambda name, piece: found[name].append(piece))
        if is_again:
            self.worker.forget_boxes()  # they are past it
            attempts = self._compute(self._begun(batch), given, hand_on)
        else:
            if batch == 0:
                self._store_tables()
            base, control = self.driver.newest, self.driver.begin(batch)
            if leaving := {name: why for name, why in self._leaving.items() if name in self.driver.queries}:
                control = self.driver.end(control, leaving)
                self._leaving = {}
            control, attempts = self._computed(control, given, hand_on, found)
            executions = {name: query.execution for name, query in self.driver.queries.items()}
            made = self.driver.commit(control, attempts)
            load = Load(made, self._seconds(made), control.planned_us, executions) if self._seconds else None
            if self.driver.after(base, made, load=load):
                self._trim_journals()
        commit = self.driver.newest
        assert commit is not None
        steps: dict[str, Step] = {}
        for name, query in self.driver.queries.items():
            table = pa.Table.from_batches(found[name], schema=query.query.output_schema)
            counted = summed(a.statistics[name] for a in attempts if name in a.statistics)
            steps[name] = Step(batch, commit.queries[name].watermark_us, table, counted)
        return steps

    def _trim_journals(self) -> None:
        """Forgets the journals of queries that have left long ago."""
        driver = self.driver
        kept = {*driver.queries, *driver.coming, *driver.ended, *[*driver.left.queries][-MOST_GONE:]}
        for name in self._notes.folders(JOURNALS):
            if name not in kept:
                forget_journal(self._notes, name)

    def _computed(
        self, control: Control, rows: Mapping[str, pa.RecordBatch], take: Take, found: dict[str, list[pa.RecordBatch]]
    ) -> tuple[Control, list[Attempt]]:
        """Runs a batch; without queries that fail by themselves, if others are left."""
        while True:
            try:
                return control, self._compute(control, rows, take)
            except QueryFailedError as error:
                self.worker.forget_boxes()
                if len(self.driver.queries) == 1:
                    raise error.error from None
                control = self.driver.end(control, {error.query: str(error.error)})
                for pieces in found.values():
                    pieces.clear()

    def _begun(self, batch: int) -> Control:
        """What a batch that is committed was begun with."""
        control, commit = self.controls.read(batch), self.driver.newest
        if commit is None or control.token != commit.token:
            paths = self.controls.path_of(batch), self.commits.path_of(batch)
            raise StateError(f"{paths[0]} is not what {paths[1]} was made from: {REMEDY}")
        return control

    def _store_tables(self) -> None:
        """Writes the rows of the tables to where the first batch finds them."""
        for name, path in self._stored.items():
            put_table(self.filesystem, path, self._encoded(name, self.tables[name]))

    def _read(self, name: str, read: Callable[[], Rows]) -> pa.Buffer:
        """The rows of a table as it is now."""
        return self._encoded(name, read())

    def _encoded(self, name: str, rows: Rows) -> pa.Buffer:
        """Rows of a table, as an Arrow IPC stream."""
        return encode(conform(self._sources[name], rows, self._columns[name]))

    def _conform(self, rows: Mapping[str, Rows]) -> dict[str, pa.RecordBatch]:
        """The rows in their declared types: what does not fit is refused before anything is written."""
        if stored := rows.keys() & self.tables.keys():
            raise StateError(
                f"{', '.join(sorted(stored))} is a stored table: its rows are handed in once, with tables="
            )
        roots = {source.root.name if isinstance(source, Enriched) else name for name, source in self._sources.items()}
        if unknown := rows.keys() - roots:
            names = ", ".join(self.driver.queries)
            raise SchemaMismatchError(
                f"query {names} does not read {', '.join(sorted(unknown))}; it reads {', '.join(sorted(roots))}"
            )
        given = {}
        for name, source in self._sources.items():
            if isinstance(source, Enriched) and source.root.name in rows:
                given[name] = conform(source.root, rows[source.root.name], brought_columns(source, self._columns[name]))
            elif name in rows:
                given[name] = conform(source, rows[name], self._columns[name])
        return given

    def _compute(self, control: Control, rows: Mapping[str, pa.RecordBatch], take: Take) -> list[Attempt]:
        """Runs the batch in one slot after the other."""
        base = self.driver.newest
        if base is not None and base.batch == control.batch:
            base = self.commits.read(control.batch - 1) if control.batch > 0 else None
        queries = {name: (query.query, query.distribution) for name, query in self.driver.queries.items()}
        work = SlotWork(
            self._name, queries, self.filesystem, self.worker, self.results_per_batch, self._databases
        )
        order, done = work.order_after(control, base), list[Attempt]()
        parts: dict[str, list[pa.RecordBatch]] = {n: [] for n, (_, d) in queries.items() if d.groups_span_slots}
        kept, dropped = shed_rows(order, self._sources, rows)
        with asking(databases_read_apart(queries.values()), self._lookup_costs, self._databases) as told:
            for slot in range(self.driver.slots):
                token, boxes = uuid.uuid4().hex[:12], work.boxes(order, slot)
                counted = dropped if slot == 0 else NOTHING_DROPPED
                for name, piece in work.step(order, slot, boxes, self._share(slot, kept), counted, told):
                    parts[name].append(piece) if name in parts else take(name, piece)
                done.append(work.save(order, slot, boxes, token))
        for name, pieces in parts.items():
            query = queries[name][0]
            assert query.grouping is not None
            for piece in Aggregator(query.grouping, query.row_schema).combine(pieces) if pieces else ():
                take(name, piece)
        return done

    def _share(self, slot: int, rows: Mapping[str, pa.RecordBatch]) -> Mapping[str, pa.RecordBatch]:
        """The rows that belong to a slot."""
        if self.driver.slots == 1:
            return rows
        spread = [(query.query, query.distribution) for query in self.driver.queries.values()]
        return {name: given.filter(pa.array(slot_mask(spread, name, slot, given))) for name, given in rows.items()}

    def slot(self, number: int = 0) -> Slot | None:
        """The boxes of a slot, if they are attached; for tests."""
        kept = self.worker.of(self._name).boxes.get(number)
        return kept[1] if kept is not None else None

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        for _, _, boxes in self.worker:
            boxes.verify()


class LocalRun(Driven):
    """One query over batches that the caller hands in: a pipeline of its own.

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
        **settings: Any,
    ) -> None:
        """`settings` are those of `LocalPipeline`."""
        plans = {query.name: plan} if plan is not None else {}
        self.pipeline = LocalPipeline([query], filesystem, plans, tables, **settings)
        self.driver, self.steering = self.pipeline.driver, self.pipeline.driver.queries[query.name]
        self.filesystem, self.forms, self.name = filesystem, self.steering.forms, query.name

    @property
    def execution(self) -> Execution:
        """What the next batch runs."""
        return self.steering.execution

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.steering.plan

    @property
    def graph(self) -> JoinGraph:
        """The form of the query that gives the results."""
        return self.steering.graph

    @property
    def commit(self) -> Commit | None:
        """The newest."""
        return self.driver.newest

    @property
    def observed(self) -> Observed:
        """What the newest batch has shown."""
        assert self.commit is not None, "no batch has run yet"
        return self.steering.observed(self.commit)

    @property
    def worker(self) -> Kept:
        """Who runs the slots: several may take turns."""
        return self.pipeline.worker

    @worker.setter
    def worker(self, worker: Kept) -> None:
        self.pipeline.worker = worker

    @property
    def slot(self) -> Slot | None:
        """The boxes of the first slot, if they are attached; for tests."""
        return self.pipeline.slot()

    def migrate(
        self,
        target: Plan | str,
        strategy: Strategy = Strategy.MOVING_STATE,
        pause_us: int = 0,
        groups_below: str | None = None,
        selects: Mapping[str, str] | None = None,
    ) -> None:
        """Goes over to another plan from the next batch on: see `LocalPipeline.change`."""
        self.pipeline.change(self.name, target, strategy, pause_us, groups_below, selects)

    def place(self, block: str, place: str, strategy: Strategy = Strategy.GRADUAL, pause_us: int = 0) -> None:
        """Has a block run elsewhere from the next batch on: see `LocalPipeline.place`."""
        self.pipeline.place(self.name, block, place, strategy, pause_us)

    def step(self, batch: int, rows: Mapping[str, Rows], take: Callable[[pa.RecordBatch], None] | None = None) -> Step:
        """Runs a batch: see `LocalPipeline.step`."""
        hand_on = None if take is None else lambda name, piece: take(piece)
        return self.pipeline.step(batch, rows, hand_on)[self.name]

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        self.pipeline.verify()


def _plan(query: Query, asked: Plan | str | None) -> Plan:
    graph = Forms(query).graphs[None]
    plan = left_deep(graph) if asked is None else parse(asked, graph) if isinstance(asked, str) else asked
    check(plan, graph)
    return plan
