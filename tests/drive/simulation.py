"""A checkpoint without Spark: this very driver, the real tasks, records and sinks, and a model of what brings the rows.

The model keeps Spark's contract: a trigger is done when its batch has run; one that is not done is brought again, with the
same rows, by whatever driver comes next; when all are done there is a closing step. Everything is in memory, in one
filesystem whose puts can go wrong (`tests.support.faulty`): a driver dies at any of them, and another one comes.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.balance.partition import choose_distribution
from anabranch.control.lease import Holder
from anabranch.control.loop import Proposal
from anabranch.control.records import Control
from anabranch.control.table_files import put_table, table_file
from anabranch.drive.driver import Driver
from anabranch.drive.local import Steady
from anabranch.drive.retain import RELEASE_EVERY
from anabranch.drive.runner import Computed, Runner, Tasks
from anabranch.drive.work import Kept, SlotWork
from anabranch.engine.accept import conform
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.cells import source_mask
from anabranch.engine.log import encode
from anabranch.errors import MigrationError
from anabranch.plan.actions import ChangePlan
from anabranch.plan.demand import read_columns
from anabranch.plan.distribution import all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import Query
from anabranch.spark.published import BATCH_PREFIX, published_in
from anabranch.spark.remote_parquet import RemoteParquetSink
from anabranch.spark.stage import STAGING, stage
from anabranch.storage.filesystem import MemoryFilesystem, Names
from tests.support import oracle
from tests.support.faulty import Crash, Fault, FaultyFilesystem


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
    """A sink of at least once, that fails when told to."""

    schema: pa.Schema
    fails: dict[int, str] = field(default_factory=dict)
    """By batch: "before" it has taken the results, or "after"."""
    brought: dict[int, list[oracle.Bag]] = field(default_factory=lambda: defaultdict(list))

    def staging(self) -> None:
        return None

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        raise AssertionError("nothing is staged")

    def deliver(self, results: list[pa.RecordBatch], number: int) -> None:
        fails = self.fails.pop(number, "")
        if fails == "before":
            raise Crash("the sink fails")
        self.brought[number].append(oracle.bag(pa.Table.from_batches(results, schema=self.schema)))
        if fails:
            raise Crash("the sink fails, and has the results")

    def found(self) -> oracle.Bag:
        assert all(again == first for first, *others in self.brought.values() for again in others), "a batch is another"
        return sum((bags[-1] for bags in self.brought.values()), Counter())


@dataclass
class Simulation:
    """A query over batches, in so many slots; results go to files or to a function."""

    query: Query
    batches: Sequence[Mapping[str, pa.Table]]
    tables: Mapping[str, pa.Table]
    plans: Sequence[str] = ()
    slots: int = 2
    to_files: bool = True
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By the ordinal of the put that goes wrong."""
    asks: Mapping[int, tuple[int, Strategy]] = field(default_factory=dict)
    """Before which triggers another plan is asked for, and how to get there."""
    workers: int = 1
    """So many take turns at the slots."""
    fails: Mapping[int, str] = field(default_factory=dict)
    pauses: Collection[int] = ()
    """After which triggers input pauses. (It changes no watermark that a batch with rows has.)"""
    done: int = -1
    """The last trigger that the source has noted as done."""
    lives: int = 0
    """How many drivers there were."""
    computed: list[tuple[int, bool]] = field(default_factory=list)
    """The batches whose tasks ran, and whether they were committed before."""

    def __post_init__(self) -> None:
        self.world = FaultyFilesystem(MemoryFilesystem(), dict(self.faults))
        self.checkpoint, self.out = Below(self.world, "checkpoint"), Below(self.world, "out")
        self.function = Function(self.query.output_schema, dict(self.fails))
        self.forms = Forms(self.query)
        names = {s.name for s in self.query.base_sources}
        self.tables = {name: rows for name, rows in self.tables.items() if name in names}
        self.distribution = choose_distribution(self.query, self.slots)
        self.columns = read_columns(self.query)
        self.sources = {s.name: s for s in self.query.base_sources}

    def run(self, most_lives: int = 60) -> oracle.Bag:
        """Driver after driver, until the input has ended and is closed; what has arrived then."""
        while self.lives < most_lives:
            try:
                self.live()
                return self.found()
            except Crash:
                continue
        raise AssertionError("it never ends")

    def live(self) -> None:
        """One driver, from its start to the end of the input; or to where it dies."""
        self.lives += 1
        holder = Taken(self.checkpoint)  # type: ignore[arg-type]
        try:
            holder.acquire()
            driver, runner, tasks = self.started(holder)
            for trigger in range(self.done + 1, len(self.batches)):
                if trigger in self.asks:
                    self.ask(driver, *self.asks[trigger])
                runner.step(trigger, tasks(self.batches[trigger]))
                self.done = trigger
                if trigger in self.pauses:
                    runner.close_if_paused(lambda: tasks({}), 0.0, lambda last: last <= self.done)
            runner.close(lambda: tasks({}))
            holder.release()
        finally:
            holder.die()

    def started(self, holder: Holder) -> tuple[Driver, Runner, Any]:
        plan = parse(self.plans[0], self.forms.graphs[None]) if self.plans else left_deep(self.forms.graphs[None])
        files = {name: table_file(name) for name in self.tables}
        if not self.checkpoint.list("commit"):
            for name, path in files.items():
                rows = conform(self.sources[name], self.tables[name], self.columns[name])
                put_table(self.checkpoint, path, encode(rows))  # type: ignore[arg-type]
        driver = Driver(self.query, Execution(plan), self.distribution, self.checkpoint, files, Steady(), holder)  # type: ignore[arg-type]
        driver.open("as it is")
        sink: Any = RemoteParquetSink(self.out) if self.to_files else self.function  # type: ignore[arg-type]
        if self.to_files:
            sink.open("simulated")
        runner = Runner(driver, sink)
        run, kept = uuid.uuid4().hex, [Kept() for _ in range(self.workers)]

        def tasks(rows: Mapping[str, pa.Table]) -> Tasks:
            return lambda control: self.work(driver, run, kept, rows, control)

        runner.settle(lambda: tasks({}))
        return driver, runner, tasks

    @contextmanager
    def work(
        self, driver: Driver, run: str, kept: Sequence[Kept], rows: Mapping[str, pa.Table], control: Control
    ) -> Iterator[Computed]:
        """The tasks of a batch."""
        newest = driver.newest
        self.computed.append((control.batch, newest is not None and newest.batch >= control.batch))
        given = {n: conform(self.sources[n], r, self.columns[n]) for n, r in rows.items() if n in self.sources}
        attempts, results, files = [], list[pa.RecordBatch](), list[str]()
        is_staged = self.to_files and not self.distribution.groups_span_slots
        for slot in range(1 if self.distribution.needs_no_exchange else driver.slots):
            who = kept[(control.batch * 7 + slot) % len(kept)]
            work = SlotWork(run, self.query, self.distribution, self.checkpoint, who)  # type: ignore[arg-type]
            order, token = work.order(control.batch, control.epoch), uuid.uuid4().hex[:12]
            boxes = work.boxes(order, slot)
            pieces = work.step(order, slot, boxes, given if self.distribution.needs_no_exchange else self.share(slot, given))
            file = ""
            if is_staged:
                name = f"{control.batch:010d}-{control.token}-{slot}-{token}"
                file, _ = stage(self.out, name, pieces, self.query.output_schema)  # type: ignore[arg-type]
            else:
                results += pieces
            attempts.append(msgspec.structs.replace(work.save(order, slot, boxes, token), results=file))
            files += [file] if file else []
        if self.distribution.groups_span_slots:
            assert self.query.grouping is not None
            results = Aggregator(self.query.grouping, self.query.row_schema).combine(results) if results else []
            if self.to_files and results:
                name = f"{control.batch:010d}-{control.token}-{uuid.uuid4().hex[:12]}"
                files.append(stage(self.out, name, iter(results), self.query.output_schema)[0])  # type: ignore[arg-type]
        yield Computed(attempts, results, tuple(files) if self.to_files else None)

    def share(self, slot: int, given: Mapping[str, pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
        """The rows that the exchange brings to a slot."""
        grid, inputs = self.distribution.grid, all_inputs(self.query)
        return {n: r.filter(pa.array(source_mask(grid, slot, inputs, self.sources[n], r))) for n, r in given.items()}

    def ask(self, driver: Driver, plan: int, strategy: Strategy) -> None:
        """Asks for another plan, if it can be gone over to."""
        target = parse(self.plans[plan % len(self.plans)], driver.graph)
        try:
            driver.request(Proposal(ChangePlan(target, strategy), "by the simulation"))
        except MigrationError:
            return

    def found(self) -> oracle.Bag:
        """What readers see, as a multiset."""
        if not self.to_files:
            return self.function.found()
        total: oracle.Bag = Counter()
        for folder in self.out.folders(""):
            if folder.startswith(BATCH_PREFIX):
                published = published_in(self.out, folder)  # type: ignore[arg-type]
                assert published is not None, f"{folder} was begun and never published"
                for name in published.files:
                    rows = pq.read_table(pa.BufferReader(self.out.get(f"{folder}/{name}")))
                    total += oracle.bag(rows.cast(self.query.output_schema))
        return total

    def verify(self) -> None:
        """What must hold at the end, whatever happened on the way."""
        again = [batch for batch, is_committed in self.computed if is_committed]
        assert not (self.to_files and again), f"batches {again} ran although they were committed, and their files are there"
        assert not self.to_files or not self.out.list(STAGING), "files wait that nobody will publish"
        most = RELEASE_EVERY * (1 + self.lives) + 4  # a driver that dies may have been about to release some
        for folder in ("control", "commit", "delivered"):
            assert len(self.checkpoint.list(folder)) <= most, f"{folder}: {self.checkpoint.list(folder)}"
        assert not self.checkpoint.list("lease")

