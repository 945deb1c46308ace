"""The public API: declare streams, tables and queries, start them, watch them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from time import monotonic, sleep
from time import time as wall_clock
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.adapt.grouping_loop import GroupingLoop
from anabranch.adapt.loop import Knowledge
from anabranch.balance.partition import choose_distribution
from anabranch.control.journal import Entry, Journal
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in
from anabranch.control.loop import Loop, Wish
from anabranch.control.table_files import put_table, table_file
from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.units import unit_costs
from anabranch.drive.driver import ChangingTable, Driver, layout_of
from anabranch.engine.accept import conform
from anabranch.engine.log import encode
from anabranch.errors import LocationError, MigrationError, SessionError
from anabranch.optimize.explain import decision_text
from anabranch.optimize.group_placement import choose_groups
from anabranch.optimize.planner import Decision
from anabranch.plan.demand import read_columns, source_filters
from anabranch.plan.distribution import Distribution, all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.explain import explain_text, times_text
from anabranch.plan.expression import Expr
from anabranch.plan.formats import format_of
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy, why_not_raise
from anabranch.plan.names import same_name
from anabranch.plan.query import Field, Query, Stream, Table
from anabranch.plan.selects import raise_selects
from anabranch.settings import Adapt, Budget, strategy_of
from anabranch.spark.create import create_session
from anabranch.spark.frames import check_stream, check_table, fields_of
from anabranch.spark.host import Host, Progress
from anabranch.spark.pack import pack, pack_blobs, packing_of
from anabranch.spark.pauses import Pauses
from anabranch.spark.reader import FileOptions, file_stream, infer_fields, read_table
from anabranch.spark.sinks import OWNER, Sink, as_sink, console
from anabranch.spark.spark_log import spark_log_of
from anabranch.spark.visible import Sign, require_visible
from anabranch.spark.waiting import Waiting, read_waiting
from anabranch.sql import BoundQuery, Catalog, bind_query, parse_duration, parse_script
from anabranch.storage.cache import Cache, CachedFilesystem
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, make_private_folder
from anabranch.storage.location import Folder, Place, located
from anabranch.storage.record import damaged

MOST_COPIED_BYTES = 64 << 20
"""Stored tables up to this size are kept whole by every worker where that spares an exchange of rows."""
POLL_S = 0.05
"""How often queries are asked whether they have ended."""


@dataclass
class _Query:
    forms: Forms
    execution: Execution
    sink: Sink
    is_pinned: bool
    decision: Decision | None = None
    """Why the plan is what it is, unless it is pinned."""

    @property
    def query(self) -> Query:
        """In the form that it starts with."""
        return self.forms.query(self.execution.grouped_input)


@dataclass(frozen=True)
class _Files:
    path: str
    format: str
    options: FileOptions


class Session:
    """Streams, tables and continuous queries over them.

    `spark` is your SparkSession, or None for a local one of our own. State and control records go below `checkpoint`, a
    folder per query: a path, a URI (`s3://bucket/state`, `file:///…`, `gs://…`, `hdfs://…`), or a `pyarrow.fs.FileSystem`
    with a path in it. State files of a remote one are kept on each machine too, as `cache` says. Spark's own log of a query
    goes below `spark_checkpoint`: by default with the rest; where that is remote, to a temporary folder of this machine,
    with a copy in the checkpoint. `slots` is the number of tasks of a batch (default: Spark's parallelism); it is
    fixed when a query first starts. Plans that are not pinned are chosen within `budget`: at first by `facts` (rates and
    distinct keys, as far as you know them), then by what was measured, and again when that changes, as `adapt` says. When no
    rows have come for `idle_close`, a batch without rows gives what the last ones have made final (None: it does not).
    `clock` gives seconds since the epoch: by it rows are too far ahead, and streams idle. A query that gives more than
    `results_per_batch` results in one batch ends with `TooManyResultsError`, and nothing of that batch is delivered or
    committed; None, the default: however many there are. (Groups that have rows in several slots are counted in each slot by
    itself, before HAVING.)
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        checkpoint: Place = "checkpoint",
        budget: Budget | None = None,
        slots: int | None = None,
        facts: Given = EMPTY,
        adapt: Adapt | None = None,
        idle_close: str | None = "5 seconds",
        clock: Callable[[], float] = wall_clock,
        cache: Cache | None = None,
        spark_checkpoint: str | None = None,
        results_per_batch: int | None = None,
    ) -> None:
        self._idle_us = None
        if idle_close is not None:
            self._idle_us = self._positive_us(idle_close, f"idle_close cannot be {idle_close}")
        self.clock = clock
        if results_per_batch is not None and (type(results_per_batch) is not int or results_per_batch < 1):
            raise SessionError(f"results_per_batch is a number of rows, 1 or more, or None: not {results_per_batch!r}")
        self.results_per_batch = results_per_batch
        self.adapt = adapt or Adapt()
        self._spark, self.checkpoint, self.budget, self._slots = spark, located(checkpoint), budget, slots
        self.cache, self.spark_checkpoint = cache or Cache(), spark_checkpoint
        self.facts, self.units = facts, unit_costs()
        self.catalog = Catalog()
        self._frames: dict[str, DataFrame | Callable[[], DataFrame] | _Files] = {}
        self._refresh_us: dict[str, int] = {}
        self._queries: dict[str, _Query] = {}

    @property
    def spark(self) -> SparkSession:
        """The SparkSession in use."""
        if self._spark is None:
            self._spark = create_session()
        return self._spark

    @property
    def slots(self) -> int:
        return self._slots or int(self.spark.sparkContext.defaultParallelism)

    def stream(
        self,
        name: str,
        source: DataFrame | str,
        time: str,
        lateness: str = "0 seconds",
        format: str | None = None,
        columns: tuple[Field, ...] | None = None,
        max_files_per_trigger: int | None = None,
        skip: Sequence[str] = (),
        ahead: str | None = "1 day",
        idle: str | None = None,
    ) -> None:
        """Declares a stream: a streaming DataFrame, or a path of files (parquet, csv, json, arrow) for our own reader.

        Rows may come out of order by `lateness`. A row whose time is later than the driver's clock by more than `ahead` is
        turned away and counted (None: none is). A stream that has shown no row for longer than `idle`, by the driver's
        clock, does not hold the watermark back (None: it always does).

        `skip` names files to leave out, by path or by the last parts of it, also such as were found earlier and have changed
        or gone: their rows are missing then, what was read of them before stays, and the journal tells of it."""
        if skip and not isinstance(source, str):
            raise SessionError(f"{name} is a DataFrame: only files of a path can be skipped")
        if isinstance(source, str):
            format = format or format_of(source)
            fields = columns or infer_fields(source, format)
            frame: DataFrame | _Files = _Files(source, format, _file_options(max_files_per_trigger, skip))
        else:
            check_stream(name, source)
            fields = fields_of(name, source)
            frame = source
        ahead_us = parse_duration(ahead) if ahead is not None else None
        idle_us = self._positive_us(idle, f"the stream {name} cannot be idle after {idle}") if idle is not None else None
        made = Stream(name, fields, time, parse_duration(lateness), ahead_us, idle_us)
        self.catalog = self.catalog.with_stream(made)
        self._frames[name] = frame

    def table(
        self,
        name: str,
        rows: DataFrame | Callable[[], DataFrame] | str,
        refresh: str | None = None,
        format: str | None = None,
    ) -> None:
        """Declares a stored table: a DataFrame, a function that gives one, or a path of files. It is read when the query
        first starts, and its rows are valid for ever. With `refresh` ("10 minutes") it is read again every so much event
        time, and rows of streams that come then meet what it holds then."""
        if isinstance(rows, str):
            format = format or format_of(rows)
            fields = infer_fields(rows, format)
            frame: DataFrame | Callable[[], DataFrame] | _Files = _Files(rows, format, FileOptions())
        else:
            now = rows() if callable(rows) else rows
            check_table(name, now)
            fields, frame = fields_of(name, now), rows
        problem = f"the table {name} cannot be read again every {refresh}"
        every_us = self._positive_us(refresh, problem) if refresh is not None else 0
        self.catalog = self.catalog.with_table(Table(name, fields))
        self._frames[name] = frame
        if every_us:
            self._refresh_us[name] = every_us

    @staticmethod
    def _positive_us(length: str, problem: str) -> int:
        length_us = parse_duration(length)
        if length_us <= 0:
            raise SessionError(f"{problem}: give a longer time")
        return length_us

    def query(
        self,
        name: str,
        sql: str,
        sink: Sink | Callable[[DataFrame, int], None] | None = None,
        plan: str | None = None,
    ) -> None:
        """Declares a continuous query. `plan` pins it, in the aliases of the query: `((t q) o)`."""
        self._add(BoundQuery(bind_query(name, sql, self.catalog), plan), sink)

    def _add(self, bound: BoundQuery, sink: Sink | Callable[[DataFrame, int], None] | None) -> None:
        if taken := next((name for name in self._queries if same_name(name, bound.query.name)), None):
            raise SessionError(f"there is a query {taken} already: give this one another name than {bound.query.name}")
        forms = Forms(bound.query)
        if bound.plan:
            execution = Execution(parse(bound.plan, forms.graphs[None]))
            declared = _Query(forms, execution, as_sink(sink or console()), is_pinned=True)
        else:
            budget = self.budget or Budget()
            chosen = choose_groups(forms, self.facts, self.units, budget.bounds, budget.strict)
            execution = Execution(chosen.decision.plan, grouped_input=chosen.grouped_input)
            declared = _Query(forms, execution, as_sink(sink or console()), False, chosen.decision)
        self._queries[bound.query.name] = declared

    def script(
        self,
        text: str,
        sinks: Callable[[str], Sink] | None = None,
        max_files_per_trigger: int | None = None,
        skip: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Declares what a SQL script creates; `sinks` gives the sink of each query by its name, `skip` names files of its
        streams to leave out (see `stream`)."""
        parsed, skip = parse_script(text, self.catalog), skip or {}
        created = [s.name for s in parsed.catalog if isinstance(s, Stream) and self.catalog.source(s.name) is None]
        if unknown := [name for name in skip if name not in created]:
            raise SessionError(
                f"files of {unknown[0]} cannot be skipped: the script creates no such stream; it creates "
                f"{', '.join(created) or 'none'}"
            )
        for source in parsed.catalog:
            location = parsed.catalog.location(source.name)
            if self.catalog.source(source.name) is not None:
                continue
            if location is None:
                raise SessionError(f"{source.name} has no FROM path: add one, or declare the stream in Python")
            options = _file_options(max_files_per_trigger, skip.get(source.name, ()))
            self._frames[source.name] = _Files(location.path, location.format, options)
            if location.refresh_us:
                self._refresh_us[source.name] = location.refresh_us
        self.catalog = parsed.catalog
        for bound in parsed.queries:
            self._add(bound, sinks(bound.query.name) if sinks is not None else None)

    def explain(self, name: str) -> str:
        """The plan of a query, and how its rows are spread."""
        declared = self._declared(name)
        graph = JoinGraph(declared.query)
        parts = [explain_text(declared.execution.plan, graph)]
        if declared.decision is not None:
            parts.append(decision_text(declared.decision, graph))
        written = declared.forms.written
        distribution = _explain_distribution(choose_distribution(written, self.slots), JoinGraph(all_inputs(written)))
        return "\n\n".join([*parts, times_text(written), distribution])

    def start(self, **trigger: Any) -> Run:
        """Starts all queries. The keywords are those of `DataStreamWriter.trigger`; availableNow=True ends by itself."""
        if not self._queries:
            raise SessionError("there is no query to start: declare one with query()")
        if isinstance(self.checkpoint, LocalFilesystem):
            make_private_folder(self.checkpoint.root)  # Spark writes there, too, as the umask says
        run = Run(self.spark)
        try:
            for declared in self._queries.values():
                run.add(self._start(declared, trigger or {"processingTime": "0 seconds"}))
        except BaseException:
            run.stop()
            raise
        return run

    def _declared(self, name: str) -> _Query:
        if name not in self._queries:
            known = ", ".join(self._queries) or "none"
            raise SessionError(f"there is no query {name}; declared are: {known}")
        return self._queries[name]

    def _start(self, declared: _Query, trigger: dict[str, Any]) -> Started:
        query, execution = declared.forms.written, declared.execution
        inputs = all_inputs(query)
        folder = self.checkpoint.below(query.name)
        filesystem = folder if isinstance(folder, LocalFilesystem) else CachedFilesystem(folder, str(folder), self.cache)
        holder = Holder(filesystem)
        try:
            holder.acquire()
        except OSError as error:
            raise LocationError(f"the checkpoint {folder} cannot be used: {error}") from error
        try:
            columns, filters = read_columns(query), source_filters(query)
            frames = {s.name: self._frames[s.name] for s in query.base_sources}
            schemas = {
                name: frame.schema if isinstance(frame, DataFrame) and not self._is_table(name) else None
                for name, frame in frames.items()
            }
            packing = packing_of(columns, schemas)
            tables = {
                s.name: self._store_table(s, columns[s.name], filesystem)
                for s in query.base_sources
                if isinstance(s, Table)
            }
            distribution = self._distribution(query, filesystem, tables)
            changing = [
                ChangingTable(s.name, self._refresh_us[s.name], partial(self._read_table, s, columns[s.name]))
                for s in query.base_sources
                if s.name in self._refresh_us and isinstance(s, Table)
            ]
            loop = self._loop(query)
            driver = Driver(query, execution, distribution, filesystem, tables, loop, holder, changing, self.clock)
            driver.is_pinned = declared.is_pinned or not driver.has_choices or self.adapt.timing == "never"
            driver.needs_approval = self.adapt.approve
            host = Host(driver, packing, declared.sink, filters, self.results_per_batch)
            host.open(uuid.uuid4().hex)
            checkpoint_id = _checkpoint_id(filesystem)
            declared.sink.open(checkpoint_id)
            self._require_visible(filesystem, declared.sink, checkpoint_id)
            log = spark_log_of(folder, filesystem, self.spark_checkpoint, query.name, checkpoint_id, holder.epoch)
            host.spark_log, spark_folder = log, log.open()
            host.settle(self.spark)
            found, grid = folder.below("files"), distribution.exchange
            files = {name: frame for name, frame in frames.items() if isinstance(frame, _Files) and not self._is_table(name)}
            host.waiting = partial(_waiting, {name: found.below(name) for name in files})
            for name, frame in files.items():
                host.skips(name, frame.options.skip)
            packed = [
                self._packed(s, frames[s.name], inputs, grid, columns[s.name], filters.get(s.name, ()), packing, found)
                for s in query.base_sources
                if isinstance(s, Stream)
            ]
            streaming = host.start(reduce(DataFrame.unionByName, packed), spark_folder, trigger)
        except BaseException:
            holder.release()
            raise
        closes = bool(trigger.get("availableNow") or trigger.get("once"))
        watched = self._idle_us is not None and not closes and not distribution.needs_no_exchange
        pauses = Pauses(host, streaming, self.spark, (self._idle_us or 0) / 1e6) if watched else None
        return Started(query, host, streaming, holder, closes, pauses)

    def _require_visible(self, filesystem: Filesystem, sink: Sink, checkpoint_id: str) -> None:
        """Refuses a checkpoint or output folder that workers do not see."""
        signs = {str(filesystem): Sign(filesystem, "id", checkpoint_id)}
        if (staging := sink.staging()) is not None:
            signs[str(staging)] = Sign(staging, OWNER, checkpoint_id)
        require_visible(self.spark, signs)

    def _distribution(self, query: Query, filesystem: Filesystem, tables: Mapping[str, str]) -> Distribution:
        """How rows are spread: as they were when the query first started."""
        latest = commits_in(filesystem).latest()
        if latest is None:
            are_small = sum(filesystem.size_bytes(path) for path in tables.values()) <= MOST_COPIED_BYTES
            return choose_distribution(query, self.slots, are_small)
        unexchanged = choose_distribution(query, self.slots)
        was_unexchanged = latest[1].layout == layout_of(unexchanged) and latest[1].tables.keys() >= tables.keys()
        return unexchanged if was_unexchanged else choose_distribution(query, self.slots, may_skip_exchange=False)

    def _loop(self, query: Query) -> Loop:
        """What decides about the plan while the query runs."""
        bounds, forms = (self.budget or Budget()).bounds, Forms(query)
        settings = self.adapt.settings(bounds)
        return GroupingLoop(forms, Knowledge(forms.graphs[None], self.units, bounds, self.facts, self.slots, settings))

    def _is_table(self, name: str) -> bool:
        return isinstance(self.catalog.source(name), Table)

    def _packed(
        self,
        source: Stream,
        frame: DataFrame | Callable[[], DataFrame] | _Files,
        query: Query,
        grid: Grid,
        columns: tuple[str, ...],
        filters: tuple[tuple[Expr, ...], ...],
        packing: Any,
        found: Folder,
    ) -> DataFrame:
        if isinstance(frame, _Files):
            files = frame.options
            options = replace(files, log_path=found.below(source.name))
            blobs = file_stream(self.spark, source, frame.path, frame.format, query, grid, columns, options, filters)
            return pack_blobs(blobs, packing, source)
        assert isinstance(frame, DataFrame), "streams are frames or files"
        return pack(frame, packing, grid, query, source)

    def _store_table(self, source: Table, columns: tuple[str, ...], filesystem: Filesystem) -> str:
        """Writes the rows of a table to where tasks find them, until the query has taken them in with its first commit."""
        path = table_file(source.name)
        if not filesystem.list("commit"):
            put_table(filesystem, path, self._read_table(source, columns))
        return path

    def _read_table(self, source: Table, columns: tuple[str, ...]) -> pa.Buffer:
        frame = self._frames[source.name]
        if isinstance(frame, _Files):
            rows = read_table(frame.path, frame.format, source, columns)
        else:
            now = frame if isinstance(frame, DataFrame) else frame()
            rows = now.select(*(f"`{c}`" for c in columns)).toArrow()
        return encode(conform(source, rows, columns))


def _file_options(max_files_per_trigger: int | None, skip: Sequence[str]) -> FileOptions:
    return FileOptions(max_files_per_trigger, skip=(skip,) if isinstance(skip, str) else tuple(skip))


def _waiting(lists: Mapping[str, Filesystem]) -> dict[str, Waiting]:
    """The files that wait to be complete, by stream, as the readers last found them."""
    found = {name: read_waiting(filesystem) for name, filesystem in lists.items()}
    return {name: waiting for name, waiting in found.items() if waiting}


def read_journals(checkpoint: Place) -> dict[str, list[Entry]]:
    """The journals of the queries below a checkpoint, running or not."""
    place = located(checkpoint)
    folders = {name: place.below(name) for name in place.folders("")}
    found = {name: Journal(folder).entries() for name, folder in folders.items() if folder.list("journal")}
    if not found:
        raise SessionError(f"there is no checkpoint {place}: it holds no query's journal; name what was given as checkpoint")
    return found


def _checkpoint_id(filesystem: Filesystem) -> str:
    """The name of a checkpoint, made when it is first used."""
    try:
        found = filesystem.get("id").to_pybytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        name = uuid.uuid4().hex
        filesystem.put("id", [f"{name}\n".encode()])
        return name
    if len(found) != 32 or not set(found) <= set("0123456789abcdef"):
        raise damaged("id", f"{found[:40]!r} is no name of a checkpoint")
    return str(found)


@dataclass
class Started:
    """A query that runs."""

    query: Query
    host: Host
    streaming: StreamingQuery
    holder: Holder
    closes: bool
    pauses: Pauses | None = None
    ended: bool = False


@dataclass
class Run:
    """The queries of a session, running."""

    spark: SparkSession
    started: dict[str, Started] = field(default_factory=dict)
    stopped: bool = False

    def add(self, started: Started) -> None:
        self.started[started.query.name] = started

    @property
    def plans(self) -> dict[str, str]:
        """The plan each query runs under."""
        return {name: s.host.driver.plan_text for name, s in self.started.items()}

    @property
    def progress(self) -> dict[str, list[Progress]]:
        """What each query did in its latest batches."""
        return {name: list(s.host.progress) for name, s in self.started.items()}

    @property
    def waiting_files(self) -> dict[str, dict[str, Waiting]]:
        """The files that each query does not read yet because they are not complete, by stream."""
        return {name: s.host.waiting() for name, s in self.started.items()}

    @property
    def journal(self) -> dict[str, list[Entry]]:
        """What was decided about each query and why, since its checkpoint was new."""
        return {name: s.host.driver.journal.entries() for name, s in self.started.items()}

    def migrate(
        self,
        name: str,
        plan: str,
        strategy: str | None = None,
        pause: str = "500 milliseconds",
        groups_below: str | None = None,
        selects_above: Mapping[str, str] | None = None,
    ) -> None:
        """Changes the plan of a query from its next batch on, without a result lost or repeated. `strategy` is
        "moving-state", "parallel-track" or "gradual", by default the cheapest of which no batch waits longer than `pause`.
        A migration under way is given up for it. `groups_below` names an input whose rows are grouped before they are
        joined, or "" to have the groups above the join again. `selects_above` names predicates that rows pass only where
        they are joined: all of an input (`{"a": "a b"}`: above the join of a and b), those that read a column
        (`{"a.s": "a b"}`), or single ones by their text as `explain` shows it; those that are not named are evaluated when
        a row comes in, as all are by default."""
        driver = self._driver(name)
        way = strategy_of(strategy) if strategy is not None else None
        grouped_input = driver.execution.grouped_input if groups_below is None else groups_below or None
        if grouped_input not in driver.forms.graphs:
            reason = driver.forms.why_not(driver.execution.grouped_input, grouped_input)
            raise MigrationError(reason or f"there is no input {grouped_input}")
        parsed = parse(plan, driver.forms.graphs[grouped_input])
        selects = None if selects_above is None else raise_selects(driver.query, selects_above)
        if selects is not None:
            if grouped_input != driver.execution.grouped_input:
                raise MigrationError("groups and selects go elsewhere one after the other: ask for one of them at a time")
            if reason := why_not_raise(driver.execution, driver.graph, selects, way or Strategy.MOVING_STATE):
                raise MigrationError(reason)
        wish = Wish(parsed, grouped_input, way, parse_duration(pause), selects)
        driver.request(driver.loop.granted(driver.execution, wish))

    def pin(self, name: str) -> None:
        """Keeps the plan of a query as it is, until `unpin`; `migrate` still works."""
        self._driver(name).is_pinned = True

    def unpin(self, name: str) -> None:
        """Lets the plan of a query change with what is measured."""
        self._driver(name).is_pinned = False

    def approve(self, name: str) -> bool:
        """Agrees to the change that was last proposed for a query; False if there is none."""
        return self._driver(name).approve()

    def _driver(self, name: str) -> Driver:
        if name not in self.started:
            raise SessionError(f"no query {name} runs; running are: {', '.join(self.started) or 'none'}")
        return self.started[name].host.driver

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Waits until all queries have ended; the first that failed raises its error. False if time ran out."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            left = [s for s in self.started.values() if not self._has_ended(s)]
            if not left:
                return True
            if deadline is not None and monotonic() >= deadline:
                return False
            sleep(POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - monotonic())))

    def _has_ended(self, s: Started) -> bool:
        """Whether a query is over. One that came to the end of its input is closed; one that failed raises its error."""
        if s.streaming.isActive:
            return False
        if s.ended:
            return True
        s.ended = True
        try:
            if s.pauses is not None:
                s.pauses.stop()
            error = s.host.error or s.streaming.exception()
            if error is not None and not self.stopped:
                s.host.end("failed", (str(error).splitlines() or [type(error).__name__])[0][:300])
                raise error from None
            if s.closes and not self.stopped:
                s.host.close(self.spark)
                left = "".join(f"; {stream}: {waiting}" for stream, waiting in s.host.waiting().items())
                s.host.end("ended", f"all input there was is processed{left}")
        finally:
            s.holder.release()
        return True

    def stop(self) -> None:
        """Stops all queries. What was committed stays; start the session again to go on."""
        self.stopped = True
        for s in self.started.values():
            if s.pauses is not None:
                s.pauses.stop()
            s.streaming.stop()
            if not s.ended:
                s.host.end("stopped", "by request")
            s.holder.release()


def _explain_distribution(distribution: Distribution, graph: JoinGraph) -> str:
    grid = distribution.grid
    lines = ["spread", f"  over {grid.cells} slots, fixed when the query first starts"]
    for dimension, share in zip(grid.dimensions, grid.shares, strict=True):
        lines.append(f"  {dimension} in {share} parts")
    for alias in graph.query.aliases:
        copies = len(grid.offsets(alias))
        if copies > 1:
            lines.append(f"  rows of {alias} go to {copies} slots each")
    factor = grid.replication(dict.fromkeys(graph.query.aliases, 1.0))
    lines.append(f"  replication {factor:.2f} rows sent per row, at equal rates")
    return "\n".join(lines)
