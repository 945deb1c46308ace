"""One streaming query for all queries that run together: one scan of each source, one exchange, one task per slot.

    sources ── pack ── push-down ── exchange ── mapInArrow(Task) ── foreachBatch(Host.step)

Columns are those that some query reads. A row goes to each slot that wants it for any query, once. A task has one store for
all queries. A batch lasts as long as its slowest query.

A query that comes while others run needs no more than a new control record if the dataflow carries all that it asks for
(`anabranch.spark.carried`). Else the streaming query is started anew between two batches, from the same checkpoint.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import xxhash
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.balance.partition import MOST_COPIED_BYTES
from anabranch.balance.together import choose_together, join_others, restored
from anabranch.control.journal import Journal
from anabranch.control.overload_notes import changed_text, read_overload, write_overload
from anabranch.control.pipelines import (
    COMING,
    DroppedNote,
    KnownPipeline,
    forget_coming,
    known_pipelines,
    noted,
    write_dropped,
)
from anabranch.control.query_texts import QueryTexts
from anabranch.control.records import Layout
from anabranch.control.sink_notes import forget_sink, write_sink
from anabranch.control.spark_streams import SOURCE_EVOLUTION, SparkStreams, forget_added
from anabranch.control.table_files import put_table, table_file
from anabranch.drive.coming import Coming
from anabranch.drive.delivery import PATIENCE_S, Delivery, Outlet, set_aside_waiting
from anabranch.drive.departed import trim_journals
from anabranch.drive.driver import ChangingTable, Driver
from anabranch.drive.limiting import Limiting
from anabranch.drive.patience import Patience
from anabranch.drive.queries import Readings
from anabranch.drive.retain import Background
from anabranch.drive.staging import Staging, set_aside_of
from anabranch.drive.steering import Steering
from anabranch.errors import SessionError
from anabranch.plan.demand import read_columns, source_filters
from anabranch.plan.distribution import Distribution, all_inputs
from anabranch.plan.lookups import carried_columns
from anabranch.plan.outward import outward_schema
from anabranch.plan.overload import Overload
from anabranch.plan.query import Query, Table
from anabranch.plan.workload import Workload
from anabranch.spark.carried import Carried
from anabranch.spark.counting import counting_of
from anabranch.spark.damaged import Marks
from anabranch.spark.deliver import Destination, SetAsideOutlet, outlet_of
from anabranch.spark.failures import told
from anabranch.spark.file_list import Lists
from anabranch.spark.file_rows import KEPT_ASIDE
from anabranch.spark.host import Host, set_for_a_moment
from anabranch.spark.members import Arriving, Ground, Member
from anabranch.spark.pack import Packing, packing_of
from anabranch.spark.pauses import Pauses
from anabranch.spark.published import OWNER
from anabranch.spark.pushdown import Pushdown
from anabranch.spark.sinks import Sink, note_of, parquet
from anabranch.spark.sources import waiting_files
from anabranch.spark.spark_log import spark_log_of
from anabranch.spark.stage import ParquetStaging, Takes
from anabranch.spark.task import Task
from anabranch.spark.visible import Sign, require_visible
from anabranch.storage.cache import CachedFilesystem
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, make_private_folder
from anabranch.storage.location import Folder


@dataclass(frozen=True)
class Joined:
    """What came of a query that was to come in."""

    pipeline: Pipeline
    """The one that goes on: as it was, or started anew in its place."""
    error: Exception | None = None
    """Why the query does not come, if the pipeline was started anew without it."""


@dataclass
class Pipeline:
    """Queries that run together."""

    ground: Ground
    name: str
    members: dict[str, Member]
    slots: int
    known: KnownPipeline | None = None
    """What the checkpoint has of it."""
    patience_s: float | None = PATIENCE_S
    dropped: Mapping[str, Member] = field(default_factory=dict)
    """Queries that have left, or are not to go on, and of which results wait for their sinks: these are delivered first."""
    arriving: Mapping[str, Arriving] = field(default_factory=dict)
    """Queries that are to come in with the next batch."""
    overload: Overload = field(default_factory=Overload)
    """What its queries do under overload."""
    command: str = ""
    """The command that asked for its query, if it is a new pipeline for that."""
    drops: Mapping[str, str] = field(default_factory=dict)
    """The commands by which queries are not to go on, that ran so far."""
    host: Host = field(init=False)
    streaming: StreamingQuery = field(init=False)
    counted: SparkStreams = field(init=False)
    """The streams that Spark counts here."""
    pauses: Pauses | None = None
    closes: bool = False
    """Whether it ends by itself, when all input there is has been processed."""
    is_over: bool = False
    _trigger: Mapping[str, Any] = field(default_factory=dict)
    _carried: Carried = field(init=False)
    _closing: threading.Thread | None = None
    _joined: dict[str, tuple[Arriving, Member | None]] = field(default_factory=dict)
    """The members that are to come with the next batch, each with the one whose place it takes, if there is one."""
    _gone: list[str] = field(default_factory=list)
    """Members that have left, and of which nothing is in the records any more."""
    _going: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever takes note of queries that have gone."""
    _tidy: Background = field(default_factory=Background)
    _aside: dict[str, Sink] = field(default_factory=dict)
    """Where rows go that are set aside and kept, by the names under which they are delivered."""

    @property
    def workload(self) -> Workload:
        coming = (each.member.query for each in self.arriving.values())
        return Workload((*(member.query for member in self.members.values()), *coming))

    @property
    def folder(self) -> Folder:
        return self.ground.checkpoint.below(self.name)

    def start(self, trigger: Mapping[str, Any]) -> None:
        """Starts the streaming query. The keywords are those of `DataStreamWriter.trigger`."""
        ground, folder, workload, self._trigger = self.ground, self.folder, self.workload, trigger
        if isinstance(folder, LocalFilesystem):
            make_private_folder(folder.root)
        filesystem = folder if isinstance(folder, LocalFilesystem) else CachedFilesystem(folder, str(folder), ground.cache)
        is_committed = self.known is not None and self.known.is_committed
        counting = counting_of(filesystem, ground.sources, workload.streams, is_committed)
        self.counted = counting.counted
        columns, filters = read_columns(workload), source_filters(workload)
        stored = {name: source for name, source in workload.sources.items() if isinstance(source, Table)}
        tables = {name: self._store_table(table, columns[name], filesystem) for name, table in stored.items()}
        spread, comes = self._spread(filesystem, tables), self._comes()
        columns = read_columns(workload, {**comes, **spread})
        carried = carried_columns(workload.sources, columns)
        packing = packing_of(carried, {name: ground.sources.schema(source) for name, source in workload.sources.items()})
        driver = Driver(
            [self._steering(member, spread[name]) for name, member in self.members.items()], filesystem, tables,
            ground.holder, self._changing(columns), ground.clock, release=Background(),
            slicer=ground.slicer([*self.members]), limiting=self._limiting(),
        )  # fmt: skip
        driver.read_table |= {name: partial(ground.sources.read, stored[name], columns[name]) for name in stored}
        for name, each in self.arriving.items():
            driver.coming[name] = self._coming(each, comes[name])
        for name in self.members if self.known is None else ():
            driver.queries[name].command = self.command
        if self.known is not None:
            forget_coming(filesystem, [name for name in noted(filesystem, COMING) if name not in self.arriving])
        self._find_kept_aside(driver, filesystem)
        gone: list[str] = []
        if self.known is not None:
            going = [name for name in self.known.layouts if name not in self.members]
            write_dropped(filesystem, [DroppedNote(name, self.drops.get(name, "")) for name in going])
            gone = [*self.known.dropped, *going]
        driver.open({name: self._told(member) for name, member in self.members.items()}, gone)
        self._note_overload(driver, folder)
        self._open_sinks({name: member.sink for name, member in self._everyone.items()} | self._aside)
        for name, member in self._everyone.items():
            write_sink(ground.checkpoint, name, note_of(member.sink))
        delivery = self._delivery(filesystem, driver.slots, {**comes, **spread})
        task = self._task({**comes, **spread}, packing, filesystem)
        for query in (*driver.queries.values(), *(each.query for each in driver.coming.values())):
            query.has_own_files = query.name in task.staging.own_files
        pushdown = Pushdown(workload, packing, filters, driver.limiting.overload.sheds)
        self.host = host = Host(driver, delivery, task, pushdown, Patience(ground.lookup_failure))
        host.runner.forgotten = self._part_with
        with ExitStack() as undo:
            undo.callback(delivery.stop)  # what waits is on its way already when something fails
            log = spark_log_of(
                folder, filesystem, ground.spark_checkpoint, self.name, ground.checkpoint_id, ground.holder.epoch
            )
            host.spark_log, spark_folder = log, log.open()
            host.settle(ground.spark)
            lists, files = folder.below("files"), ground.sources.files(workload.streams)
            kept = Lists(lists, ground.holder.marked)
            host.waiting = partial(waiting_files, {name: lists.below(name) for name in files})
            host.marks = {
                name: Marks(lists.below(name), ground.holder.epoch)
                for name, given in files.items()
                if given.options.on_error.sets_aside
            }
            for name, given in files.items():
                host.skips(name, given.options.skip)
            ways = [(all_inputs(m.query), spread[n].exchange) for n, m in self.members.items()]
            ways += [(all_inputs(each.member.query), comes[n].exchange) for n, each in self.arriving.items()]
            self._carried = Carried(columns, filters, tuple(ways))
            ground.holder.require_held()
            counting.note(filesystem)
            # Not longer: while it is on, no stream without a name can be loaded in the user's session.
            with set_for_a_moment(ground.spark, {SOURCE_EVOLUTION: "false" if self.counted.fixed else "true"}):
                rows = counting.rows(ground.spark, workload, ways, carried, filters, packing, kept)
                self.streaming = host.start(rows, self._shown_name, spark_folder, trigger)
            undo.pop_all()
        self.closes = bool(trigger.get("availableNow") or trigger.get("once"))
        if ground.idle_s is not None and not self.closes and not driver.needs_no_exchange:
            self.pauses = Pauses(host, self.streaming, ground.spark, ground.idle_s)

    def _find_kept_aside(self, driver: Driver, filesystem: Filesystem) -> None:
        """Where rows go that are set aside: those of streams that are read, and those that wait to be published."""
        files = self.ground.sources.files([*self.ground.sources.given])
        waiting = set_aside_waiting(filesystem, driver.commits)
        for stream, given in files.items():
            name, way = set_aside_of(stream), given.options.on_error
            if way.path and (stream in self.workload.streams or name in waiting):
                self._aside[name] = parquet(way.path)
                waiting.pop(name, None)
        for name, batch in waiting.items():
            raise SessionError(
                f"rows of {name.partition('@')[0]} that were set aside in batch {batch} wait to be published: declare the "
                "stream with the ON ERROR INTO that it had once more"
            )

    def _limiting(self) -> Limiting:
        queries = {name: member.query for name, member in self.members.items()}
        queries |= {name: each.member.query for name, each in self.arriving.items()}
        return self.ground.limiting(self.overload, queries, self.slots)

    def _told(self, member: Member) -> dict[str, Any]:
        """What the journal of a query tells beside its plan when it starts, or goes on."""
        shared = {} if self.known is not None or member.sharing is None else {"sharing": member.sharing}
        return {"delivers": member.sink.guarantee, **shared}

    def _note_overload(self, driver: Driver, folder: Folder) -> None:
        """Tells whether queries do something else under overload than when they were last started."""
        if told := changed_text(read_overload(folder), self.overload):
            for query in driver.queries.values():
                query.tell(driver.standing.batch, "policy", told)
        write_overload(folder, self.overload)

    # -- queries that come -------------------------------------------------------------------------------------------

    def join(self, arriving: Arriving) -> Joined:
        """Has a query come in with the next batch, or take the place of the one of its name. Where the streaming query must
        be started anew, another pipeline goes on in the place of this one."""
        member, name = arriving.member, arriving.note.name
        distribution = join_others(member.query, self._running(), self.slots)
        coming = self._coming(arriving, distribution)
        if name not in self.members:
            self._open_sinks({name: member.sink})
        write_sink(self.ground.checkpoint, name, note_of(member.sink))
        lacking = self._lacking(member, distribution)
        coming.query.has_own_files = _has_own_files(member, distribution)
        if coming.query.has_own_files and isinstance(folder := member.sink.staging(), LocalFilesystem):
            coming.query.own_folder = folder.root
        if lacking is None:
            self.host.delivery.add(name, self._outlet(member, distribution.groups_span_slots, self.host.driver.slots))
            self.host.pushdown.add_reader(member.query)
        self.host.runner.add(coming, arriving.note, lacking is None)
        if lacking is None:
            self._joined[name] = arriving, self.members.get(name)
            self.members = {**self.members, name: member}
            return Joined(self)
        return self._started_anew(arriving, lacking)

    def take_back(self) -> dict[str, Member | None]:
        """Gives up queries that could not come in any more when their batch began: each with the one of its name that goes
        on, if it was to take the place of that."""
        refused = self.host.runner.take_refused()
        found = {name: self._joined.pop(name)[1] if name in self._joined else self.members.get(name) for name in refused}
        self.arriving = {name: each for name, each in self.arriving.items() if name not in refused}
        self.take_in()
        members = {name: member for name, member in self.members.items() if name not in found}
        self.members = {**members, **{name: member for name, member in found.items() if member is not None}}
        self._forget([name for name, member in found.items() if member is None])
        return found

    def take_in(self) -> None:
        """Has queries among the members that have come since the pipeline was started."""
        come = {name: each.member for name, each in self.arriving.items() if self._has_come(each)}
        self.members = {**self.members, **come}
        self.arriving = {name: each for name, each in self.arriving.items() if name not in come}
        self._joined = {name: each for name, each in self._joined.items() if not self._has_come(each[0])}

    def _has_come(self, arriving: Arriving) -> bool:
        running = self.host.driver.queries.get(arriving.note.name)
        return running is not None and running.query is arriving.member.query

    def take_gone(self) -> list[str]:
        """The queries that have gone since this was last asked."""
        with self._going:
            gone, self._gone = self._gone, []
        self.members = {name: member for name, member in self.members.items() if name not in gone}
        return gone

    def _part_with(self, names: Collection[str]) -> None:
        """Takes note of queries that have gone."""
        with self._going:
            self._gone += names
        self._forget(names)

    def _forget(self, names: Collection[str]) -> None:
        """Deletes what is noted of queries that have gone, or did not come."""
        checkpoint = self.ground.checkpoint
        self.host.delivery.forget(names)
        for name in names:
            self.host.pushdown.remove_reader(name)
            forget_sink(checkpoint, name)
        if names:
            self._tidy(lambda: trim_journals(checkpoint, known_pipelines(checkpoint)))

    def _lacking(self, member: Member, distribution: Distribution) -> str | None:
        """Why the streaming query must be started anew for a query; None if it need not."""
        name, is_local = member.query.name, isinstance(member.sink.staging(), LocalFilesystem)
        if _has_own_files(member, distribution) and not is_local and name not in self.host.task.staging.own_files:
            return "tasks are to write files to the store of its sink"
        return self._carried.lacks(member.query, distribution)

    def _started_anew(self, arriving: Arriving, why: str) -> Joined:
        """The pipeline with a query that is to come in, in place of this one, from the same checkpoint."""
        host, name = self.host, arriving.note.name
        host.runner.end()
        for query in host.driver.queries.values():
            query.tell(host.driver.standing.batch, "restarting", f"for {name}: {why}")
        self._halt()
        self.is_over = True
        self.take_in()
        try:
            return Joined(self._again({**self.arriving, name: arriving}))
        except Exception as error:
            forget_coming(self.folder, [name])
            forget_added(self.folder, self.counted)
            return Joined(self._again(self.arriving), error)

    def _again(self, arriving: Mapping[str, Arriving]) -> Pipeline:
        """Another pipeline in place of this one, started from the same checkpoint."""
        known = next(each for each in known_pipelines(self.ground.checkpoint) if each.name == self.name)
        asked = {name: each for name, (each, _) in self._joined.items()}
        coming = {n: each for n, each in {**asked, **arriving}.items() if n in known.coming}
        replaced = {n: before for n, (_, before) in self._joined.items() if n in coming and before is not None}
        running = {n: member for n, member in {**self.members, **replaced}.items() if n in known.layouts}
        left = {n: member for n, member in self.members.items() if n in known.ended}
        gone = {**{n: member for n, member in self.dropped.items() if n in known.ended}, **left}
        made = Pipeline(
            self.ground, self.name, running, self.slots, known, self.patience_s, gone, coming, self.overload
        )  # fmt: skip
        made.start(self._trigger)
        return made

    def _running(self) -> dict[str, tuple[Query, Distribution]]:
        queries = self.host.driver.queries
        return {name: (query.query, query.distribution) for name, query in queries.items()}

    def _comes(self) -> dict[str, Distribution]:
        """How queries are spread that are to come."""
        known, found = self._known_layouts, dict[str, Distribution]()
        if not self.arriving:
            return found
        running = restored(Workload(tuple(m.query for m in self.members.values())), known, self.slots)
        others = {name: (member.query, running[name]) for name, member in self.members.items()}
        for name, each in self.arriving.items():
            found[name] = join_others(each.member.query, others, self.slots)
            others[name] = each.member.query, found[name]
        return found

    @property
    def _known_layouts(self) -> dict[str, Layout]:
        """How rows are spread of the queries that the checkpoint knows, also of those that have left."""
        return {**self.known.ended, **self.known.layouts} if self.known is not None else {}

    def _delivery(self, filesystem: Filesystem, slots: int, spread: Mapping[str, Distribution]) -> Delivery:
        ground, outlets = self.ground, dict[str, Outlet]()
        for name, member in self._everyone.items():
            outlets[name] = self._outlet(member, spread[name].groups_span_slots, slots, filesystem)
        outlets |= {name: SetAsideOutlet(sink) for name, sink in self._aside.items()}
        leaves = [name for name, member in self._everyone.items() if member.leaves]
        held = ground.holder.require_held
        return Delivery(filesystem, outlets, self.patience_s, ground.most_staged_bytes, held, leaves, ground.calls)

    def _outlet(
        self, member: Member, groups_span_slots: bool, slots: int, filesystem: Filesystem | None = None
    ) -> Outlet:
        queries = Readings(member.query, QueryTexts(self.ground.checkpoint))
        folder = filesystem or self.host.delivery.filesystem
        return outlet_of(Destination(queries, groups_span_slots, member.sink, folder, slots), self.ground.spark)

    @property
    def _everyone(self) -> dict[str, Member]:
        """The queries that have a sink here: those that run, that are to come, and that are gone."""
        coming = {name: each.member for name, each in self.arriving.items()}
        return {**self.dropped, **coming, **self.members}

    def why_not_read(self, streams: Collection[str]) -> str:
        """Why some streams cannot be read here for a query that comes; "" if they can be."""
        return self.counted.why_not_more(self.ground.sources.names(streams))

    @property
    def _shown_name(self) -> str:
        """What Spark's pages call it."""
        first, *others = self.members
        return first if not others else f"{first} and {len(others)} more"

    def _steering(self, member: Member, distribution: Distribution) -> Steering:
        root = self.ground.checkpoint
        journal, texts = Journal(root, member.query.name), QueryTexts(root)
        made = Steering(member.query, member.execution, distribution, member.loop, journal, texts)
        made.is_pinned, made.needs_approval = member.is_pinned or not made.has_choices, member.needs_approval
        made.budget_bytes = member.budget_bytes
        return made

    def _coming(self, arriving: Arriving, distribution: Distribution) -> Coming:
        return Coming(self._steering(arriving.member, distribution), arriving.note.history, arriving.note.command)

    def _spread(self, filesystem: Filesystem, tables: Mapping[str, str]) -> dict[str, Distribution]:
        """How rows are spread: as they were when the pipeline first started."""
        if self.known is not None and self.known.is_committed:
            everyone = [member.query for member in {**self.members, **self.dropped}.values()]
            return restored(Workload(tuple(everyone)), self._known_layouts, self.slots)
        are_small = sum(filesystem.size_bytes(path) for path in tables.values()) <= MOST_COPIED_BYTES
        return choose_together(self.workload, self.slots, are_small)

    def _store_table(self, table: Table, columns: tuple[str, ...], filesystem: Filesystem) -> str:
        """Writes the rows of a table to where tasks find them, until the first commit has taken them in."""
        path = table_file(table.name)
        if not filesystem.list("commit"):
            put_table(filesystem, path, self.ground.sources.read(table, columns))
        return path

    def _changing(self, columns: Mapping[str, tuple[str, ...]]) -> list[ChangingTable]:
        sources = self.ground.sources
        return [
            ChangingTable(name, sources.refresh_us[name], partial(sources.read, source, columns[name]))
            for name, source in self.workload.sources.items()
            if name in sources.refresh_us and isinstance(source, Table)
        ]

    def _open_sinks(self, sinks: Mapping[str, Sink]) -> None:
        """Marks what sinks write to as this checkpoint's, and refuses what workers do not see."""
        ground = self.ground
        signs = {str(ground.checkpoint): Sign(ground.checkpoint, "id", ground.checkpoint_id)}
        for name, sink in sinks.items():
            owner = xxhash.xxh3_128_hexdigest(f"{ground.checkpoint_id}/{self.name}/{name}".encode())
            sink.open(owner)
            if (staging := sink.staging()) is not None:
                signs[str(staging)] = Sign(staging, OWNER, owner)
        require_visible(ground.spark, signs)

    def _task(self, spread: Mapping[str, Distribution], packing: Packing, filesystem: Filesystem) -> Task:
        own_files: dict[str, ParquetStaging] = {}
        schemas: dict[pa.Schema, pa.Schema] = {}  # every task gets a copy: of equal ones once
        for name, sink in self._aside.items():
            if (folder := sink.staging()) is not None:
                own_files[name] = ParquetStaging(folder, KEPT_ASIDE)
        for name, member in self._everyone.items():
            folder = member.sink.staging()
            if name not in self.dropped and folder is not None and _has_own_files(member, spread[name]):
                output = outward_schema(member.query)
                own_files[name] = ParquetStaging(folder, schemas.setdefault(output, output))
        staging, most = Staging(filesystem, own_files), self.ground.results_per_batch
        return Task(uuid.uuid4().hex, self.slots, packing, filesystem, staging, self.ground.checkpoint, most)

    # -- the end -----------------------------------------------------------------------------------------------------

    def has_ended(self, is_stopped: bool) -> bool:
        """Whether it is over. A pipeline that came to the end of its input is closed; one that failed raises its error."""
        if self.is_over:
            return True
        if self.streaming.isActive:
            return False
        ended_with = self.streaming.exception()
        error = self.host.error or (told(ended_with) if ended_with is not None else None)
        if error is None and self.closes and not is_stopped:
            # Sinks may be slow, and nobody is to wait for them who does not want to.
            if self._closing is None:
                self._closing = threading.Thread(target=self._close, name="anabranch-close", daemon=True)
                self._closing.start()
            if self._closing.is_alive():
                return False
            error = self.host.error
        self.is_over = True
        if self.pauses is not None:
            self.pauses.stop()
        try:
            if error is not None and not is_stopped:
                self.host.end("failed", (str(error).splitlines() or [type(error).__name__])[0][:300])
                raise error
        finally:
            self.host.delivery.stop()
        return True

    def _close(self) -> None:
        """Closes it, when its input has ended: until all results have arrived, or a sink has failed for too long."""
        try:
            self.host.close(self.ground.spark)
        except Exception as error:
            self.host.error = told(error)
            return
        left = "".join(f"; {stream}: {waiting}" for stream, waiting in self.host.waiting().items())
        self.host.end("ended", f"all input there was is processed{left}")

    def stop(self) -> None:
        """Stops it. What was committed stays."""
        self._halt()
        if not self.is_over:
            self.host.end("stopped", "by request")

    def _halt(self) -> None:
        # A batch may wait for a slow sink or a database, and Spark, or who watches for pauses, waits for the batch.
        self.host.delivery.stop()
        self.host.runner.patience.stop()
        if self.pauses is not None:
            self.pauses.stop()
        self.streaming.stop()


def _has_own_files(member: Member, distribution: Distribution) -> bool:
    """Whether tasks write the results of a query to files that its sink takes as they are."""
    return member.sink.takes is Takes.FILES and not distribution.groups_span_slots
