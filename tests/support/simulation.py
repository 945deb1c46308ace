"""A checkpoint without Spark: this very driver, the real tasks, records and sinks, and a model of what brings the rows.

The model keeps Spark's contract: a trigger is done when its batch has run; one that is not done is brought again, with the
same rows, by whatever driver comes next; when all are done there is a closing step. Everything is in memory, in one
filesystem whose puts can go wrong (`tests.support.faulty`): a driver dies at any of them, and another one comes.
"""

from __future__ import annotations

import copy
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.balance.together import choose_together
from anabranch.control.journal import Journal
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.left import LeftQueries
from anabranch.control.loop import Loop, Proposal
from anabranch.control.pipelines import read_dropped
from anabranch.control.query_texts import QueryTexts
from anabranch.control.records import Attempt, Commit, Control, Ended
from anabranch.control.table_files import put_table, table_file
from anabranch.drive.delivery import Delivery, Results, rows_of
from anabranch.drive.departed import sweep_texts
from anabranch.drive.driver import ChangingTable, Driver
from anabranch.drive.kept import Kept
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalPipeline, Steady
from anabranch.drive.lookups import Asking, asking, databases_read_apart
from anabranch.drive.patience import FAIL, Patience
from anabranch.drive.queries import Readings, gone_on
from anabranch.drive.retain import RELEASE_EVERY
from anabranch.drive.runner import Computed, Runner, Tasks
from anabranch.drive.staging import FOLDER as STAGED
from anabranch.drive.staging import Result, Staging, staged_name
from anabranch.drive.steering import Steering
from anabranch.drive.work import SlotWork, shed_rows, slot_mask
from anabranch.engine.accept import conform
from anabranch.engine.log import encode
from anabranch.errors import DatabaseGoneError, MigrationError, QueryFailedError
from anabranch.place.databases.protocol import Servers
from anabranch.place.databases.registry import database
from anabranch.plan.actions import ChangePlan
from anabranch.plan.demand import read_columns
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.lookups import brought_columns
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.outward import outward_schema
from anabranch.plan.query import Enriched, Query
from anabranch.plan.workload import Workload
from anabranch.run import Run
from anabranch.spark.deliver import Destination, FilesOutlet
from anabranch.spark.published import BATCH_PREFIX, published_in
from anabranch.spark.sinks import ParquetSink, RemoteParquetSink, Sink
from anabranch.spark.stage import STAGING, ParquetStaging, staged_path
from anabranch.storage.filesystem import MemoryFilesystem, Names, byte_view
from tests.support import oracle
from tests.support.faulty import Crash, Fault, FaultyFilesystem, Kind


class Below:
    """A folder of a filesystem as one of its own."""

    def __init__(self, inner: Any, folder: str) -> None:
        self.inner, self.folder = inner, folder

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        return lambda path, *others: method(f"{self.folder}/{path}" if path else self.folder, *others)

    def copy(self, path: str, target: str) -> None:
        self.inner.copy(f"{self.folder}/{path}", f"{self.folder}/{target}")

    def list(self, directory: str) -> Names:
        return self.inner.list(f"{self.folder}/{directory}" if directory else self.folder)  # type: ignore[no-any-return]


class Taken(Holder):
    """Takes the checkpoint over at once: whoever had it is dead."""

    def _is_free(self, claim: Any) -> bool:
        return True

    def die(self) -> None:
        """Leaves everything as it is."""
        self._stopped.set()


@dataclass
class Function:
    """Where results go at least once: it fails, and dies with its driver, when told to."""

    query: Query
    checkpoint: Any
    groups_span_slots: bool
    fails: dict[int, str] = field(default_factory=dict)
    """By batch: whether the driver dies "before" it has taken the results, or "after"; or it "fails" before or after
    that."""
    brought: dict[int, list[oracle.Bag]] = field(default_factory=lambda: defaultdict(list))
    takes_files = False
    name = "a function"

    def take(self, results: Results) -> int:
        fails = self.fails.pop(results.batch, "")
        if fails == "before":
            raise Crash("the driver dies before the sink has the results")
        if fails == "fails before":
            raise OSError("the sink fails")
        query = Readings(self.query, QueryTexts(self.checkpoint))(results.text)
        found = rows_of(self.checkpoint, query, self.groups_span_slots, results)
        rows = pa.Table.from_batches(found, schema=query.output_schema)
        self.bring(results.batch, rows)
        if fails == "after":
            raise Crash("the driver dies when the sink has the results")
        if fails == "fails after":
            raise OSError("the sink fails, and has the results")
        return int(rows.num_rows)

    def bring(self, batch: int, rows: pa.Table) -> None:
        self.brought[batch].append(oracle.bag(rows))

    def found(self) -> oracle.Bag:
        assert all(again == first for first, *others in self.brought.values() for again in others), "a batch is another"
        return sum((bags[-1] for bags in self.brought.values()), Counter())


class Broken(dict[int, str]):
    """Every call of a function fails."""

    def pop(self, batch: int, otherwise: str = "") -> str:  # type: ignore[override]
        return "fails before"


@dataclass
class Files:
    """Where results go exactly once: parquet files, from tasks, or from here if groups span slots."""

    query: Query
    checkpoint: Any
    groups_span_slots: bool
    sink: Sink
    takes_files = True
    name = "files"

    @property
    def out(self) -> Any:
        """The folder of the sink."""
        return self.sink.staging()

    @property
    def has_own_files(self) -> bool:
        return not self.groups_span_slots

    @property
    def write(self) -> ParquetStaging:
        return ParquetStaging(self.out, outward_schema(self.query))

    def take(self, results: Results) -> None:
        if not self.groups_span_slots:
            delivered = Destination(Readings(self.query, QueryTexts(self.checkpoint)), False, self.sink, self.checkpoint)
            FilesOutlet(delivered, None).take(results)  # type: ignore[arg-type]
            return
        names = [f"{results.batch:010d}-{results.token}-{uuid.uuid4().hex[:12]}"]
        rows = rows_of(self.checkpoint, self.query, True, results)
        names = names if self.write(names[0], rows) else []
        self.sink.publish([staged_path(name) for name in names], results.batch, results.token)

    def found(self) -> oracle.Bag:
        total: oracle.Bag = Counter()
        for folder in self.out.folders(""):
            if folder.startswith(BATCH_PREFIX):
                published = published_in(self.out, folder)
                assert published is not None, f"{folder} was begun and never published"
                for name in published.files:
                    rows = pq.read_table(pa.BufferReader(self.out.get(f"{folder}/{name}")))
                    total += oracle.bag(rows.cast(self.query.output_schema))
        return total


REFRESH_US = 1_500_000
"""Tables that change are read again every so much event time."""


def next_batch(driver: Driver) -> int:
    """The number of the batch that a driver is about to begin."""
    return driver.newest.batch + 1 if driver.newest is not None else 0


def standin(driver: Driver, runner: Runner) -> Any:
    """In the place of a pipeline on Spark, for a run that is asked about its queries."""
    host = SimpleNamespace(driver=driver, delivery=runner.delivery, runner=runner)
    return SimpleNamespace(host=host, members=driver.queries)


def left_of(checkpoint: Any) -> dict[str, Ended]:
    """The queries that have left, by what is recorded."""
    latest = commits_in(checkpoint).latest()
    assert latest is not None
    left = {**LeftQueries(checkpoint).queries, **latest[1].ended}
    return {name: ended for name, ended in left.items() if name not in latest[1].queries}


@dataclass(frozen=True)
class Left:
    """What a driver leaves that dies at a put: the files, and what was there beside it."""

    ordinal: int
    path: str
    kind: Kind
    files: MemoryFilesystem
    beside: dict[str, Any]
    taken: list[tuple[Query, dict[int, list[oracle.Bag]]]]
    """What functions had taken, of which queries."""

    def __str__(self) -> str:
        return f"{self.kind} at put {self.ordinal}, of {self.path}"


class Remembered:
    """A filesystem that remembers how it would be left at each put, by a driver that dies there in one of some ways."""

    def __init__(self, inner: MemoryFilesystem, kinds: Sequence[Kind], left: Callable[..., Left]) -> None:
        self.inner, self.kinds, self._left, self.deaths = inner, kinds, left, list[Left]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, path: str, parts: Sequence[Any]) -> None:
        parts = [*parts]
        if "lose" in self.kinds:
            self.deaths.append(self._left(path, "lose", self.inner.copied()))
        if "tear" in self.kinds:
            content, files = b"".join(map(byte_view, parts)), self.inner.copied()
            files.put(path, [content[: len(content) // 2]])
            self.deaths.append(self._left(path, "tear", files))
        self.inner.put(path, parts)
        if "crash_after" in self.kinds:
            self.deaths.append(self._left(path, "crash_after", self.inner.copied()))


class NotedRunner(Runner):
    """Notes what was committed, under which plans."""

    steps: list[tuple[Commit, dict[str, str]]]

    def _note(self, commit: Commit, plans: Mapping[str, str], wall_s: dict[str, float], is_closing: bool) -> None:
        self.steps.append((commit, dict(plans)))
        super()._note(commit, plans, wall_s, is_closing)


@dataclass
class Simulation:
    """Queries over batches, in so many slots; results of the first go to files or to a function, of the next to the
    other."""

    queries: Sequence[Query]
    batches: Sequence[Mapping[str, pa.Table]]
    tables: Mapping[str, pa.Table]
    plans: Sequence[str] = ()
    """Of the first query."""
    slots: int = 2
    to_files: bool = True
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By the ordinal of the put that goes wrong."""
    asks: Mapping[int, tuple[int, Strategy]] = field(default_factory=dict)
    """Before which triggers another plan is asked for the first query, and how to get there."""
    workers: int = 1
    """So many take turns at the slots."""
    fails: Mapping[int, str] = field(default_factory=dict)
    """What functions do in some batches."""
    pauses: Collection[int] = ()
    """After which triggers input pauses, also if a driver starts after one. (It changes no watermark that a batch with rows
    has.)"""
    breaks: Mapping[str, int] = field(default_factory=dict)
    """From which batch on queries cannot be computed: they fail where they have results."""
    leaves: Collection[str] = ()
    """Which queries leave when results of theirs wait that take more than `most_bytes`."""
    most_bytes: int = 1 << 30
    folder: str = ""
    """Where files go, if that is on this machine's disk: through the sink for folders. Else they are in memory, through the
    sink for stores."""
    before: dict[int, Callable[[Run], None]] = field(default_factory=dict)
    """What is asked of the run before some triggers, once."""
    loop: Callable[[Forms], Loop] = lambda forms: Steady()
    """Who decides about the plan of a query."""
    limiting: Callable[[], Limiting] = Limiting
    """What may be lost, told to each driver."""
    databases: Servers = database
    """Gives databases in which rows are looked up for."""
    lookup_failure: str = FAIL
    """What becomes of batches whose lookups fail because the database is gone."""
    before_attempt: Callable[[int], None] = lambda batch: None
    """Called ahead of the tasks of a batch, and between two attempts of one."""
    zombies: Collection[int] = ()
    """In which batches each task is attempted twice, by two workers: both write all that they write, and one is heard of."""
    readings: Mapping[str, Sequence[pa.Table]] = field(default_factory=dict)
    """What tables that change hold when a batch begins, by the number of the batch."""
    release_every: int = RELEASE_EVERY
    """After how many batches files and records go that nobody needs."""
    done: int = -1
    """The last trigger that the source has noted as done."""
    lives: int = 0
    """How many drivers there were."""
    computed: list[tuple[int, bool]] = field(default_factory=list)
    """The batches whose tasks ran, and whether they were committed before."""
    steps: list[tuple[Commit, dict[str, str]]] = field(default_factory=list)
    """What was committed, and the plans that it ran under."""
    cuts: dict[int, Mapping[str, pa.Table]] = field(default_factory=dict)
    """The rows that each batch had when it last ran."""

    def __post_init__(self) -> None:
        self.world, workload = FaultyFilesystem(MemoryFilesystem(), dict(self.faults)), Workload(tuple(self.queries))
        self.checkpoint = Below(self.world, "checkpoint")
        self.spread = choose_together(workload, self.slots)
        self.sources, self.columns = workload.sources, read_columns(workload, self.spread)
        self.tables = {name: rows for name, rows in self.tables.items() if name in self.sources}
        self.forms = {query.name: Forms(query) for query in self.queries}
        self.outlets: dict[str, Files | Function] = {}
        for place, query in enumerate(self.queries):
            self.outlets[query.name] = self.files(query) if self.to_files == (place % 2 == 0) else self.called(query)

    def files(self, query: Query) -> Files:
        """An outlet to files."""
        sink: Sink = RemoteParquetSink(Below(self.world, f"out/{query.name}"))  # type: ignore[arg-type]
        if self.folder:
            sink = ParquetSink(f"{self.folder}/{query.name}")
        return Files(query, self.checkpoint, self.spread[query.name].groups_span_slots, sink)

    def called(self, query: Query) -> Function:
        """An outlet that is a function."""
        return Function(query, self.checkpoint, self.spread[query.name].groups_span_slots, dict(self.fails))

    @property
    def function(self) -> Function:
        """The first function."""
        return next(outlet for outlet in self.outlets.values() if isinstance(outlet, Function))

    BESIDE: ClassVar[tuple[str, ...]] = ("done", "lives", "computed", "steps", "cuts", "before", "spread")
    """What outlives a driver, and is not in files."""

    def deaths(self, *kinds: Kind) -> list[Left]:
        """Runs all of it without faults; what a driver would leave that died at each of its puts in turn. Who goes on from
        there (`go_on`) is spared what came before, which is the same for all."""

        def left(path: str, kind: Kind, files: MemoryFilesystem) -> Left:
            beside = {name: copy.copy(getattr(self, name)) for name in self.BESIDE}
            functions = [outlet for outlet in self.outlets.values() if isinstance(outlet, Function)]
            taken = [(each.query, {n: [*bags] for n, bags in each.brought.items()}) for each in functions]
            return Left(len(self.world.puts) - 1, path, kind, files, beside, taken)

        files = self.world.inner
        assert isinstance(files, MemoryFilesystem)
        remembered = Remembered(files, kinds, left)
        self.world.inner = remembered  # type: ignore[assignment]
        self.run()
        self.world.inner = files
        return remembered.deaths

    def go_on(self, left: Left) -> None:
        """Starts from what a driver of a simulation like this one has left."""
        self.world.inner = left.files.copied()
        for name, value in left.beside.items():
            if name == "before":  # what is asked is asked of this one
                self.before = {trigger: ask for trigger, ask in self.before.items() if trigger in value}
            else:
                setattr(self, name, copy.copy(value))
        for query, brought in left.taken:
            if query.name not in self.outlets:
                self.outlets[query.name] = self.called(query)
            outlet = self.outlets[query.name]
            assert isinstance(outlet, Function)
            outlet.brought.update({n: [*bags] for n, bags in brought.items()})

    def run(self, most_lives: int = 60) -> dict[str, oracle.Bag]:
        """Driver after driver, until the input has ended and is closed; what has arrived then, by query."""
        while self.lives < most_lives:
            try:
                self.live()
                return self.found()
            except Crash:
                continue
        raise AssertionError("it never ends")

    def rewrite(self, queries: Sequence[Query], batches: Sequence[Mapping[str, pa.Table]]) -> None:
        """Has the drivers that come run queries as they are written now, over streams with other columns. Functions stay."""
        latest, texts = commits_in(self.checkpoint).latest(), QueryTexts(self.checkpoint)  # type: ignore[arg-type]
        known = latest[1].queries if latest is not None else {}
        self.queries = [gone_on(q, known[q.name], texts) if q.name in known else q for q in queries]
        self.batches, workload = batches, Workload(tuple(self.queries))
        self.forms = {query.name: Forms(query) for query in self.queries}
        if latest is None:
            self.spread = choose_together(workload, self.slots)
        self.sources, self.columns = workload.sources, read_columns(workload, self.spread)
        for query in self.queries:
            self.outlets[query.name].groups_span_slots = self.spread[query.name].groups_span_slots
            self.outlets[query.name].query = query

    def live(self, triggers: int | None = None) -> Run:
        """One driver, from its start to the end of the input and its closing step, or through so many triggers; or to where
        it dies."""
        self.lives += 1
        holder = Taken(self.checkpoint)  # type: ignore[arg-type]
        try:
            holder.acquire()
            driver, runner, tasks = self.started(holder)
            run = Run(holder, [standin(driver, runner)])
            self.pause(runner, tasks)
            for trigger in range(self.done + 1, len(self.batches) if triggers is None else triggers):
                if trigger in self.asks:
                    self.ask(driver, *self.asks[trigger])
                if trigger in self.before:
                    self.before.pop(trigger)(run)
                runner.step(trigger, tasks(self.batches[trigger]))
                self.done = max(self.done, trigger)  # one that was thought dead may note it late
                self.pause(runner, tasks)
            if triggers is None:
                runner.close(lambda: tasks({}))
            holder.release()
        finally:
            holder.die()
        return run

    def pause(self, runner: Runner, tasks: Any) -> None:
        """Input pauses, if it is to after the last trigger."""
        if self.done in self.pauses:
            runner.close_if_paused(lambda: tasks({}), 0.0, lambda last: last <= self.done)

    def started(self, holder: Holder) -> tuple[Driver, Runner, Any]:
        files = {name: table_file(name) for name in self.tables}
        if not self.checkpoint.list("commit"):
            for name, path in files.items():
                put_table(self.checkpoint, path, self.encoded(name, self.tables[name]))  # type: ignore[arg-type]
        latest = commits_in(self.checkpoint).latest()  # type: ignore[arg-type]
        ended = left_of(self.checkpoint) if latest is not None else {}
        gone = [n for n in read_dropped(self.checkpoint) if n not in ended] if latest is not None else []  # type: ignore[arg-type]
        steerings = [self.steering(query) for query in self.queries if query.name not in (*ended, *gone)]
        driver = self.make(steerings, files, holder)
        driver.open(dropped=gone)
        for name, query in driver.queries.items():
            outlet = self.outlets[name]
            query.has_own_files = isinstance(outlet, Files) and outlet.has_own_files
        for outlet in self.outlets.values():
            if isinstance(outlet, Files):
                outlet.sink.open("simulated")
        delivery = Delivery(
            self.checkpoint, self.outlets, None, self.most_bytes, holder.require_held, self.leaves  # type: ignore[arg-type]
        )  # fmt: skip
        runner = NotedRunner(driver, delivery, patience=Patience(self.lookup_failure))
        runner.steps = self.steps
        run, kept = uuid.uuid4().hex, [Kept() for _ in range(self.workers)]

        def tasks(rows: Mapping[str, pa.Table]) -> Tasks:
            return lambda control: self.work(driver, run, kept, rows, control)

        sweep_texts(QueryTexts(self.checkpoint), [self.checkpoint])  # type: ignore[list-item, arg-type]
        runner.settle(lambda: tasks({}))
        return driver, runner, tasks

    def make(self, steerings: Sequence[Steering], files: Mapping[str, str], holder: Holder) -> Driver:
        changing = [
            ChangingTable(name, REFRESH_US, lambda name=name: self.encoded(name, self.reading(name, next_batch(driver))))
            for name in self.readings
            if name in self.tables
        ]
        driver = Driver(
            steerings, self.checkpoint, files, holder, changing, release_every=self.release_every,  # type: ignore[arg-type]
            limiting=self.limiting(),
        )  # fmt: skip
        for name, rows in self.tables.items():
            driver.read_table.setdefault(name, partial(self.encoded, name, rows))
        return driver

    def encoded(self, name: str, rows: pa.Table) -> pa.Buffer:
        """Rows of a table as an Arrow IPC stream."""
        return encode(conform(self.sources[name], rows, self.columns[name]))

    def reading(self, name: str, batch: int) -> pa.Table:
        """What a table that changes holds when a batch begins."""
        return self.readings[name][batch % len(self.readings[name])]

    def steering(self, query: Query) -> Steering:
        graph = self.forms[query.name].graphs[None]
        is_first = query is self.queries[0]
        plan = parse(self.plans[0], graph) if self.plans and is_first else left_deep(graph)
        journal, texts = Journal(self.checkpoint, query.name), QueryTexts(self.checkpoint)  # type: ignore[arg-type]
        return Steering(query, Execution(plan), self.spread[query.name], self.loop(self.forms[query.name]), journal, texts)

    def work(
        self, driver: Driver, run: str, kept: Sequence[Kept], rows: Mapping[str, pa.Table], control: Control
    ) -> Computed:
        """The tasks of a batch."""
        newest = driver.newest
        self.computed.append((control.batch, newest is not None and newest.batch >= control.batch))
        self.cuts[control.batch] = rows
        given = self.brought(rows)
        own_files = {n: o.write for n, o in self.outlets.items() if isinstance(o, Files) and o.has_own_files}
        staging = Staging(self.checkpoint, own_files)  # type: ignore[arg-type]
        # Queries with files of their own come first.
        running = [query for query in self.queries if query.name in control.queries]
        spread = {q.name: (q, self.spread[q.name]) for q in sorted(running, key=lambda q: q.name not in own_files)}
        attempts = []
        self.before_attempt(control.batch)
        with asking(databases_read_apart(spread.values()), {}, self.databases) as told:
            for slot in range(1 if driver.needs_no_exchange else driver.slots):
                who = kept[(control.batch * 7 + slot) % len(kept)]
                for worker in (Kept(), who) if control.batch in self.zombies else (who,):
                    work = SlotWork(run, spread, self.checkpoint, worker, None, self.databases)  # type: ignore[arg-type]
                    attempt = self.attempt(work, staging, control, slot, given, told, driver.needs_no_exchange)
                    if attempt.failed or attempt.gone:
                        return Computed([*attempts, attempt])
                    if worker is not who:
                        self.before_attempt(control.batch)
                attempts.append(attempt)
        return Computed(attempts)

    def brought(self, rows: Mapping[str, pa.Table]) -> dict[str, pa.RecordBatch]:
        """Rows of a batch as they come to the slots: those of a stream that looks up as those of the stream that is read."""
        found = {}
        for name, source in self.sources.items():
            if isinstance(source, Enriched) and source.root.name in rows:
                found[name] = conform(source.root, rows[source.root.name], brought_columns(source, self.columns[name]))
            elif name in rows:
                found[name] = conform(source, rows[name], self.columns[name])
        return found

    def attempt(
        self,
        work: SlotWork,
        staging: Staging,
        control: Control,
        slot: int,
        given: Mapping[str, pa.RecordBatch],
        told: Asking,
        is_whole: bool,
    ) -> Attempt:
        """One attempt of a task."""
        begun = controls_in(self.checkpoint).read(control.batch, control.epoch)  # type: ignore[arg-type]
        order, token = work.order(begun), uuid.uuid4().hex[:12]
        boxes = work.boxes(order, slot)
        mine, dropped = shed_rows(order, self.sources, given)
        if not is_whole:
            mine = {n: r.filter(pa.array(slot_mask(work.queries.values(), n, slot, r))) for n, r in mine.items()}
        name = staged_name(control.batch, control.token, slot, token)
        try:
            results = self.failing(work.step(order, slot, boxes, mine, {} if slot else dropped, told), control.batch)
            staged = staging.stage(name, results, boxes.sharing)
        except QueryFailedError as error:
            return work.failed(slot, token, error)
        except DatabaseGoneError as error:
            return Attempt(slot, token, None, {}, gone=str(error))
        return msgspec.structs.replace(work.save(order, slot, boxes, token), staged=staged)

    def failing(self, results: Iterator[Result], batch: int) -> Iterator[Result]:
        """Results, until a query fails by itself."""
        for name, piece in results:
            if batch >= self.breaks.get(name, batch + 1):
                raise QueryFailedError(name, ArithmeticError("it cannot be computed"))
            yield name, piece

    def ask(self, driver: Driver, plan: int, strategy: Strategy) -> None:
        """Asks for another plan, if it can be gone over to."""
        query = driver.queries[self.queries[0].name]
        target = parse(self.plans[plan % len(self.plans)], query.graph)
        try:
            query.request(Proposal(ChangePlan(target, strategy), "by the simulation"))
        except MigrationError:
            return

    def found(self) -> dict[str, oracle.Bag]:
        """What readers see of each query, as a multiset."""
        return {name: outlet.found() for name, outlet in self.outlets.items()}

    def expected(self) -> dict[str, oracle.Bag]:
        """What they should see: of queries that read a table which changes what each gives alone, of others what the oracle
        says."""
        found = {}
        for query in self.queries:
            read = {source.name for source in query.base_sources}
            if read & self.readings.keys():
                found[query.name] = self.alone(query)
                continue
            batches = [{n: r for n, r in batch.items() if n in read} for batch in self.batches]
            tables = {n: r for n, r in self.tables.items() if n in read}
            found[query.name] = oracle.expected(query, batches, tables)
        return found

    def alone(self, query: Query, until: int | None = None) -> oracle.Bag:
        """What a query gives by itself, unmigrated, in one slot, over the batches as they were cut here, or those before
        one."""
        read, number = {source.name for source in query.base_sources}, 0
        tables = {name: rows for name, rows in self.tables.items() if name in read}
        refresh = {
            name: (REFRESH_US, lambda name=name: self.reading(name, number)) for name in self.readings if name in tables
        }
        run, found = LocalPipeline([query], MemoryFilesystem(), tables=tables, refresh=refresh), Counter[Any]()
        for number, rows in sorted(self.cuts.items())[:until]:
            step = run.step(number, {name: given for name, given in rows.items() if name in read})
            found += oracle.bag(step[query.name].results)
        return found

    def check(self, what: str = "") -> None:
        """Runs all of it: every result arrives, and nothing else does."""
        found, expected = self.run(), self.expected()
        for name, wanted in expected.items():
            assert not (wrong := oracle.difference(found[name], wanted)), f"{what} {name}: {wrong}"
        self.verify()

    def verify(self) -> None:
        """What must hold at the end, whatever happened on the way."""
        again = [batch for batch, is_committed in self.computed if is_committed]
        assert not again, f"batches {again} ran although they were committed, and their files are there"
        assert not self.checkpoint.list(STAGED), "files that nobody will deliver"
        for outlet in self.outlets.values():
            assert not isinstance(outlet, Files) or not outlet.out.list(STAGING), "files wait that nobody will publish"
        most = self.release_every * (1 + self.lives) + 4  # a driver that dies may have been about to release some
        for folder in ("control", "commit", *(f"delivered/{name}" for name in self.outlets)):
            assert len(self.checkpoint.list(folder)) <= most, f"{folder}: {self.checkpoint.list(folder)}"
        assert not self.checkpoint.list("lease")
