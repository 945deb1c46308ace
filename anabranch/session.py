"""The public API: declare streams, tables and queries, start them, watch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from html import escape
from threading import Lock
from time import time as wall_clock
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.control.lease import Holder
from anabranch.cost.facts import EMPTY, Given
from anabranch.drive.delivery import MOST_STAGED_BYTES
from anabranch.drive.departed import sweep_checkpoint
from anabranch.drive.patience import LOOKUP_FAILURES
from anabranch.drive.restart import Fate, Outflow, restart_of
from anabranch.errors import LocationError, SessionError
from anabranch.online import Online, answer_drops
from anabranch.place.databases.named import TableInDatabase
from anabranch.place.databases.named import database as database
from anabranch.place.databases.registry import describe
from anabranch.plan.formats import format_of
from anabranch.plan.jtree import show
from anabranch.plan.on_error import OnError
from anabranch.plan.outward import unzoned
from anabranch.plan.overload import Overload, require_overload
from anabranch.plan.query import CURRENT, STATIC, DatabaseTable, Field, Stream, Table
from anabranch.plan.statement import FAIL
from anabranch.planning import Planning
from anabranch.run import Run
from anabranch.session_queries import SessionQueries
from anabranch.session_start import (
    checked_trigger,
    checkpoint_id,
    limiting_of,
    patience_s,
    pipelines_to_start,
    take_over,
)
from anabranch.settings import Adapt, Budget, size_bytes
from anabranch.show.explain import Explanation
from anabranch.show.spread import Origin, Slots
from anabranch.spark.create import create_session
from anabranch.spark.file_formats import check_format
from anabranch.spark.frames import check_stream, check_table, fields_of, source_names
from anabranch.spark.members import Ground
from anabranch.spark.reader import FileOptions, infer_fields
from anabranch.spark.sinks import Sink, as_sink, console
from anabranch.spark.sources import Declared, Files, Sources, on_error_of
from anabranch.spark.stage import Takes
from anabranch.sql import BoundQuery, Catalog, bind_query, parse_duration, parse_script
from anabranch.sql.columns import Columns, given_fields
from anabranch.storage.cache import Cache
from anabranch.storage.filesystem import LocalFilesystem, make_private_folder
from anabranch.storage.location import Place, check_folder, located


class Session:
    """Streams, tables and continuous queries over them.

    `spark` is your SparkSession, a function that gives one when it is needed, or None for a local one of our own. Queries
    that read the same streams run together, in one *pipeline*: one streaming query of Spark's, with one scan of each stream
    and one state (`share=False`: each by itself).
    State and control records go below `checkpoint`: a path, a URI (`s3://bucket/state`, `file:///…`, `gs://…`,
    `hdfs://…`), or a `pyarrow.fs.FileSystem` with a path in it. State files of a remote one are kept on each machine
    too, as `cache` says. Spark's own log of a query goes below `spark_checkpoint`: by default with the rest; where that
    is remote, to a temporary folder of this machine, with a copy in the checkpoint. `slots` is the number of tasks of a
    batch (default: Spark's parallelism); it is fixed when a query first starts. Plans that are not pinned are chosen
    within `budget`: at first by `facts` (rates and distinct keys, as far as you know them), then by what was measured,
    and again when that changes, as `adapt` says. When no rows have come for `idle_close`, a batch without rows gives
    what the last ones have made final (None: it does not). `clock` gives seconds since the epoch: by it rows are too far
    ahead, and streams idle. A query that gives more than `results_per_batch` results in one batch ends with
    `TooManyResultsError`, and nothing of that batch is delivered; None, the default: however many there are. (Groups
    that have rows in several slots are counted in each slot by itself, before HAVING.) Results that a sink does not
    take, because it is slow or fails, wait on disk, up to `most_staged` bytes ("1 GiB") in each pipeline: then the
    pipeline waits for a sink that is slow, and stops with the error of one that fails. A batch waits for the first call
    of its sinks, for `sink_patience` at most (None: for as long as the trigger's interval is, or 1 second); a call that
    takes longer goes on beside the next batches. `overload` says what becomes of results when streams bring more than
    there is CPU to join (`Overload`; default: all of them, late). Where an embedded database fails that runs a block of
    a query, the query does, too; with `database_failure="engine"` the engine does what the database was to do, and
    runs the block for a while before it asks the database again. Where a database is gone in which rows are
    looked up, queries that look up fail; with `lookup_failure="wait"` their batch waits until the database is back.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        checkpoint: Place = "checkpoint",
        budget: Budget | None = None,
        slots: int | None = None,
        facts: Given = EMPTY,
        adapt: Adapt | None = None,
        idle_close: str | timedelta | None = "5 seconds",
        clock: Callable[[], float] = wall_clock,
        cache: Cache | None = None,
        spark_checkpoint: str | None = None,
        results_per_batch: int | None = None,
        share: bool = True,
        most_staged: int | str = MOST_STAGED_BYTES,
        overload: Overload | None = None,
        database_failure: str = FAIL,
        lookup_failure: str = FAIL,
        sink_patience: str | timedelta | None = None,
    ) -> None:
        if not (spark is None or isinstance(spark, SparkSession) or callable(spark)):
            raise SessionError(f"spark is a classic SparkSession, or None for one of our own: not a {type(spark).__name__}")
        for what, given, kind, example in (
            ("budget", budget, Budget, "cpu=1.5, memory='2 GiB'"), ("facts", facts, Given, "{'trades': 5000}"),
            ("adapt", adapt, Adapt, "'never'"), ("cache", cache, Cache, ""),
            ("overload", overload, Overload, "'adapt joins'"),
        ):  # fmt: skip
            if given is not None and not isinstance(given, kind):
                raise SessionError(f"{what}={given!r} is no {kind.__name__}: write {what}=ab.{kind.__name__}({example})")
        if not callable(clock):
            raise SessionError(f"clock is a function that gives seconds since the epoch: not {clock!r}")
        self.share, self._most_staged_bytes = share, int(size_bytes(most_staged, "most_staged"))
        self._calls: dict[str, Lock] = {}
        self._patience_us = _positive_us(sink_patience, "sink_patience") if sink_patience is not None else None
        self._idle_us = _positive_us(idle_close, "idle_close") if idle_close is not None else None
        self.clock = clock
        if results_per_batch is not None and (type(results_per_batch) is not int or results_per_batch < 1):
            raise SessionError(f"results_per_batch is a number of rows, 1 or more, or None: not {results_per_batch!r}")
        self.results_per_batch = results_per_batch
        if lookup_failure not in LOOKUP_FAILURES:
            raise SessionError(
                f"lookup_failure says what becomes of lookups whose database is gone: {' or '.join(LOOKUP_FAILURES)}, not "
                f"{lookup_failure!r}"
            )
        self.lookup_failure = lookup_failure
        self._spark = spark if isinstance(spark, SparkSession) else None
        self._new_spark = spark if callable(spark) else create_session
        self.checkpoint = located(checkpoint)
        self.cache, self.spark_checkpoint = cache or Cache(), spark_checkpoint
        self.planning = Planning(budget, facts, slots, self.checkpoint, overload, database_failure)
        self._sources = Sources({}, {})
        self._queries = SessionQueries(self.planning, self.checkpoint, adapt or Adapt(), lambda: self.slots)

    def __repr__(self) -> str:
        streams = ", ".join(source.name for source in self.catalog) or "none"
        return f"<Session on {self.checkpoint}; sources: {streams}; queries: {', '.join(self.planning.queries) or 'none'}>"

    def _repr_html_(self) -> str:
        queries = "".join(
            f"<tr><td><b>{escape(name)}</b></td><td>{escape(show(planned.execution.plan, planned.graph))}</td></tr>"
            for name, planned in self.planning.queries.items()
        )
        return f"<p>{escape(repr(self)[1:-1])}</p><table>{queries}</table>"

    @property
    def catalog(self) -> Catalog:
        """The declared streams and tables."""
        return self.planning.catalog

    @property
    def spark(self) -> SparkSession:
        """The SparkSession in use."""
        if self._spark is None:
            self._spark = self._new_spark()
        return self._spark

    @property
    def slots(self) -> int:
        return self.planning.slots or int(self.spark.sparkContext.defaultParallelism)

    def stream(
        self,
        name: str,
        source: DataFrame | str,
        time: str,
        lateness: str | timedelta = "0 seconds",
        format: str | None = None,
        columns: Columns | None = None,
        max_files_per_trigger: int | None = None,
        skip: Sequence[str] = (),
        ahead: str | timedelta | None = "1 day",
        idle: str | timedelta | None = None,
        on_error: str | tuple[str, str] = "fail",
    ) -> None:
        """Declares a stream: a streaming DataFrame, or a path of files (parquet, csv, json, arrow) for our own reader.

        `columns` says which columns the files of a path have, as `{"k": "BIGINT", "ts": "TIMESTAMP"}`; without it the first
        file tells. Lengths of time are written `"5 seconds"`, `"5s"`, `"5 min"`, `"2h"`, or are a timedelta.

        Rows may come out of order by `lateness`. A row whose time is later than the driver's clock by more than `ahead` is
        turned away and counted (None: none is). A stream that has shown no row for longer than `idle`, by the driver's
        clock, does not hold the watermark back (None: it always does).

        `skip` names files to leave out, by path or by the last parts of it, also such as were found earlier and have changed
        or gone: their rows are missing then, what was read of them before stays, and the journal tells of it.

        `on_error` says what becomes of rows of files that cannot be read: "fail", the batch fails; "skip", they are left out
        and counted; ("into", "folder"), they are kept there too. They are judged on all columns then, whoever reads them."""
        lateness_us = parse_duration(lateness, f"the lateness of {name}")
        ahead_us = parse_duration(ahead, f"ahead of {name}") if ahead is not None else None
        idle_us = _positive_us(idle, f"idle of {name}") if idle is not None else None
        if skip and not isinstance(source, str):
            raise SessionError(f"{name} is a DataFrame: only files of a path can be skipped")
        if columns is not None and not isinstance(source, str):
            raise SessionError(f"{name} is a DataFrame, which has its columns: give columns= with a path of files")
        way = on_error_of(name, on_error, isinstance(source, str))
        if isinstance(source, str):
            format = format or format_of(source)
            check_format(format)
            fields = given_fields(name, columns) if columns is not None else infer_fields(source, format)
            frame: DataFrame | Files = Files(source, format, _file_options(max_files_per_trigger, skip, way))
        else:
            check_stream(name, source)
            fields = fields_of(name, source)
            frame = source
            self.planning.source_names[name] = source_names(source)
        made = Stream(name, fields, time, lateness_us, ahead_us, idle_us)
        self.planning.catalog = self.catalog.with_stream(made)
        self._sources.given[name] = frame

    def table(
        self,
        name: str,
        rows: DataFrame | Callable[[], DataFrame] | str | TableInDatabase,
        refresh: str | timedelta | None = None,
        format: str | None = None,
        static: bool = False,
    ) -> None:
        """Declares a stored table: a DataFrame, a function that gives one, or a path of files. It is read when the query
        first starts, and its rows are valid for ever. With `refresh` ("10 minutes") it is read again every so much event
        time, and rows of streams that come then meet what it holds then.

        A table of a database, `ab.database("crm").table("public.customers")`, stays there: rows of streams look it up, in
        the batch in which they come. `static` says that it does not change. With `refresh` it is read whole, as others."""
        every_us = _positive_us(refresh, f"refresh of {name}") if refresh is not None else 0
        if static and (every_us or not isinstance(rows, TableInDatabase)):
            raise SessionError(f"static=True of {name} is for a table that is looked up in its database, without refresh")
        if isinstance(rows, TableInDatabase):
            fields = tuple(Field(c, unzoned(t), t) for c, t in describe(rows.database, rows.relation))
            if not every_us:
                reading = STATIC if static else CURRENT
                made = DatabaseTable(name, fields, rows.database, rows.relation, reading)
                self.planning.catalog = self.catalog.with_table(made)
                return
            frame: Declared = rows
        elif isinstance(rows, str):
            format = format or format_of(rows)
            fields = infer_fields(rows, format)
            frame = Files(rows, format, FileOptions())
        else:
            now = rows() if callable(rows) else rows
            check_table(name, now)
            fields, frame = fields_of(name, now), rows
        self.planning.catalog = self.catalog.with_table(Table(name, fields))
        self._sources.given[name] = frame
        if every_us:
            self._sources.refresh_us[name] = every_us
            self.planning.changing.add(name)

    def query(
        self,
        name: str,
        sql: str,
        sink: Sink | Callable[[DataFrame, int], None] | None = None,
        plan: str | None = None,
        share: bool | None = None,
        on_failure: str = "stop",
        overload: Overload | None = None,
    ) -> None:
        """Declares a continuous query. `sink` is one of `ab.sinks.*`, or a function of a DataFrame and the number of a
        batch, which may be called from another thread than the one that starts the run, at the same time as other sinks;
        never twice at a time. `plan` pins the query, in its aliases: `((t q) o)`. `share` says whether it may run
        together with queries that read the same streams (None: as the session says). A sink that fails is tried again,
        and its results wait; when too many wait, the queries that run together stop, or (`on_failure="leave"`) go on
        without this one. `overload` says what it does under overload (None: as the session says); queries of which
        something else is said run in another pipeline."""
        if on_failure not in ("stop", "leave"):
            raise SessionError(f"on_failure={on_failure!r}: the pipeline may 'stop', or the query 'leave' it")
        require_overload(overload)
        made = as_sink(console(query=name) if sink is None else sink, name)
        self.planning.add_query(BoundQuery(bind_query(name, sql, self.catalog), plan, overload))
        self._queries.sinks[name] = made
        if not (self.share if share is None else share):
            self.planning.alone.add(name)
        if on_failure == "leave":
            self._queries.leaving.add(name)

    def script(
        self,
        text: str,
        sinks: Callable[[str], Sink] | None = None,
        max_files_per_trigger: int | None = None,
        skip: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Declares what a SQL script creates; `sinks` gives the sink of each query by its name, `skip` names files of its
        streams to leave out (see `stream`)."""
        parsed, skip = parse_script(text, self.catalog, describe=describe), skip or {}
        created = [s.name for s in parsed.catalog if isinstance(s, Stream) and self.catalog.source(s.name) is None]
        if unknown := [name for name in skip if name not in created]:
            raise SessionError(
                f"files of {unknown[0]} cannot be skipped: the script creates no such stream; it creates "
                f"{', '.join(created) or 'none'}"
            )
        files: dict[str, Declared] = {}
        refresh_us: dict[str, int] = {}
        for source in parsed.catalog:
            if self.catalog.source(source.name) is not None or isinstance(source, DatabaseTable):
                continue
            location = parsed.catalog.location(source.name)
            if location is None:
                raise SessionError(f"{source.name} has no FROM path: add one, or declare the stream in Python")
            options = _file_options(max_files_per_trigger, skip.get(source.name, ()), location.on_error)
            files[source.name] = Files(location.path, location.format, options)
            if location.database:
                files[source.name] = TableInDatabase(location.database, location.path)
            if location.refresh_us:
                refresh_us[source.name] = location.refresh_us
        names = [bound.query.name for bound in parsed.queries]
        made = {}
        for name in names:
            given = sinks(name) if sinks is not None else None
            made[name] = as_sink(console(query=name) if given is None else given, name)
        self.planning.add_script(parsed)
        self._sources.given |= files
        self._sources.refresh_us |= refresh_us
        self._queries.sinks |= made
        self.planning.alone |= set() if self.share else set(names)

    @property
    def plans(self) -> dict[str, Explanation]:
        """The plan of each query, explained; a notebook draws them."""
        return {name: self.explain(name) for name in self.planning.queries}

    def explain(self, name: str, verbose: bool = False) -> Explanation:
        """The plan of a query, what it costs and why it was chosen; in a notebook, drawn. With `verbose`, also what rows of
        each input do, and how they are spread: over `slots`, else as the checkpoint has it, else by the parallelism of the
        SparkSession in use, else by this machine's cores. No Spark is started for it."""
        in_use = self._spark
        parallelism = None if in_use is None else Slots(in_use.sparkContext.defaultParallelism, Origin.SPARK)
        return self.planning.explain(name, parallelism, verbose)

    def start(self, fresh: Sequence[str] = (), **trigger: Any) -> Run:
        """Starts all queries. The keywords are those of `DataStreamWriter.trigger`; availableNow=True ends by itself. Which
        queries run that the checkpoint knows is what it says: one that was added while others ran, or is not declared any
        more, runs on, and one that was dropped stays so. `fresh` names queries that start anew: their state is given up, and
        they read their streams from the beginning, into empty sinks."""
        if not self.planning.queries:
            raise SessionError("there is no query to start: declare one with query()")
        trigger = checked_trigger(trigger)
        self.planning.check_facts("facts: rates:", "facts: table_rows:", "facts: distinct:", "facts: passing:")
        check_folder(self.checkpoint, "the checkpoint")
        if isinstance(self.checkpoint, LocalFilesystem):
            make_private_folder(self.checkpoint.root)  # Spark writes there, too, as the umask says
        holder = Holder(self.checkpoint)
        try:
            holder.acquire()
        except OSError as error:
            raise LocationError(f"the checkpoint {self.checkpoint} cannot be used: {error}") from error
        run = Run(holder, draw=self.planning.draw, database_failure=self.planning.database_failure)
        try:
            self.planning.warn()
            ground = self._ground(holder, trigger)
            declared = {name: planned.forms.written for name, planned in self.planning.queries.items()}
            outflows = {name: _outflow(sink) for name, sink in self._queries.sinks.items()}
            restart = restart_of(
                self.checkpoint, self.catalog, declared, outflows, _names(fresh), self.planning.slots
            )  # fmt: skip
            restart.require()
            sweep_checkpoint(self.checkpoint)
            take_over(self._queries, restart)
            patience = patience_s(trigger, self._patience_us)
            for pipeline in pipelines_to_start(self._queries, ground, restart, patience):
                pipeline.start(trigger)
                run.pipelines.append(pipeline)
            answer_drops(self.checkpoint, restart.named(Fate.DROPPED))
            run.online = Online(self._queries, run, ground, trigger, patience)
            run.online.watch()
        except BaseException:
            run.stop()
            raise
        return run

    def _ground(self, holder: Holder, trigger: Mapping[str, Any]) -> Ground:
        idle_s = None if self._idle_us is None else self._idle_us / 1e6
        limiting = partial(limiting_of, trigger, lambda: int(self.spark.sparkContext.defaultParallelism), self.clock)
        return Ground(
            self.spark, self.checkpoint, checkpoint_id(self.checkpoint), holder, self._sources, self.cache, self.clock,
            self.spark_checkpoint, self.results_per_batch, idle_s, self._most_staged_bytes, self._queries.slicer, limiting,
            self.lookup_failure, self._calls,
        )  # fmt: skip


def _positive_us(length: str | timedelta, what: str) -> int:
    length_us = parse_duration(length, what)
    if length_us <= 0:
        raise SessionError(f"{what}: {length} is too short: give a longer time")
    return length_us


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _file_options(max_files_per_trigger: int | None, skip: Sequence[str], on_error: OnError) -> FileOptions:
    left_out = (skip,) if isinstance(skip, str) else tuple(skip)
    return FileOptions(max_files_per_trigger, on_error=on_error, skip=left_out)


def _outflow(sink: Sink) -> Outflow:
    place = getattr(sink, "path", None) or getattr(sink, "folder", None) or "its sink"
    return Outflow(sink.takes is Takes.FILES, str(place), sink.holds)
