"""The public API: declare streams, tables and queries, start them, watch them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import escape
from time import time as wall_clock
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.adapt.grouping_loop import GroupingLoop
from anabranch.adapt.loop import Knowledge
from anabranch.adapt.overload import OverloadLoop
from anabranch.adapt.placing import PlacingKnowledge, PlacingLoop
from anabranch.adapt.slicing import SlicingKnowledge, SlicingLoop
from anabranch.balance.together import pipelines_of
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in
from anabranch.control.loop import Loop, Slicer
from anabranch.control.overload_notes import read_overload
from anabranch.control.pipelines import ComingNote, KnownPipeline, new_name
from anabranch.control.query_texts import text_of
from anabranch.control.sink_notes import read_sink
from anabranch.cost.facts import EMPTY, Given
from anabranch.drive.delivery import MOST_STAGED_BYTES, PATIENCE_S, set_aside_waiting
from anabranch.drive.departed import sweep_checkpoint
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import Steady
from anabranch.drive.restart import Fate, Outcome, Outflow, Restart, restart_of
from anabranch.errors import LocationError, SessionError, known_names
from anabranch.online import Online, answer_drops
from anabranch.optimize.planner import Bounds
from anabranch.place.databases.named import TableInDatabase
from anabranch.place.databases.named import database as database
from anabranch.place.databases.registry import describe
from anabranch.plan.eager import Forms
from anabranch.plan.formats import format_of
from anabranch.plan.jtree import left_deep, parse, show
from anabranch.plan.migration import Execution
from anabranch.plan.on_error import OnError
from anabranch.plan.outward import unzoned
from anabranch.plan.overload import Clock, Overload, Policy, require_overload
from anabranch.plan.query import CURRENT, STATIC, DatabaseTable, Field, Query, Stream, Table
from anabranch.plan.statement import FAIL
from anabranch.planning import Planning
from anabranch.run import Run
from anabranch.settings import Adapt, Budget, size_bytes
from anabranch.show.explain import Explanation
from anabranch.show.spread import Origin, Slots
from anabranch.spark.create import create_session
from anabranch.spark.file_formats import check_format
from anabranch.spark.frames import check_stream, check_table, fields_of, source_names
from anabranch.spark.pipeline import Arriving, Ground, Member, Pipeline
from anabranch.spark.reader import FileOptions, infer_fields
from anabranch.spark.sinks import Sink, as_sink, console, from_note
from anabranch.spark.sources import Declared, Files, Sources, on_error_of
from anabranch.spark.stage import Takes
from anabranch.sql import BoundQuery, Catalog, bind_query, parse_duration, parse_script
from anabranch.sql.columns import Columns, given_fields
from anabranch.storage.cache import Cache
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, make_private_folder
from anabranch.storage.location import Place, check_folder, located, remove_all
from anabranch.storage.record import damaged


class Session:
    """Streams, tables and continuous queries over them.

    `spark` is your SparkSession, a function that gives one when it is needed, or None for a local one of our own. Queries
    that read the same streams run together, in one *pipeline*: one streaming query of Spark's, with one scan of each stream
    and one state (`share=False`: each by itself).
    State and control records go below `checkpoint`: a path, a URI (`s3://bucket/state`, `file:///…`, `gs://…`, `hdfs://…`),
    or a `pyarrow.fs.FileSystem` with a path in it. State files of a remote one are kept on each machine too, as `cache`
    says. Spark's own log of a query goes below `spark_checkpoint`: by default with the rest; where that is remote, to a
    temporary folder of this machine, with a copy in the checkpoint. `slots` is the number of tasks of a batch (default:
    Spark's parallelism); it is fixed when a query first starts. Plans that are not pinned are chosen within `budget`: at
    first by `facts` (rates and distinct keys, as far as you know them), then by what was measured, and again when that
    changes, as `adapt` says. When no rows have come for `idle_close`, a batch without rows gives what the last ones have
    made final (None: it does not). `clock` gives seconds since the epoch: by it rows are too far ahead, and streams idle. A
    query that gives more than `results_per_batch` results in one batch ends with `TooManyResultsError`, and nothing of that
    batch is delivered; None, the default: however many there are. (Groups that have rows in several slots are
    counted in each slot by itself, before HAVING.) Results that a sink does not take, because it is slow or fails, wait on
    disk, up to `most_staged` bytes ("1 GiB"). `overload` says what becomes of results when streams bring more than there is
    CPU to join (`Overload`; default: all of them, late). Where an embedded database fails that runs a block of a query,
    the query does, too; with `database_failure="engine"` the engine makes the groups of that instant, of a block over one
    stream.
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
        self._idle_us = _positive_us(idle_close, "idle_close") if idle_close is not None else None
        self.clock = clock
        if results_per_batch is not None and (type(results_per_batch) is not int or results_per_batch < 1):
            raise SessionError(f"results_per_batch is a number of rows, 1 or more, or None: not {results_per_batch!r}")
        self.results_per_batch = results_per_batch
        self.adapt = adapt or Adapt()
        self._spark = spark if isinstance(spark, SparkSession) else None
        self._new_spark = spark if callable(spark) else create_session
        self.checkpoint = located(checkpoint)
        self.cache, self.spark_checkpoint = cache or Cache(), spark_checkpoint
        self.planning = Planning(budget, facts, slots, self.checkpoint, overload, database_failure)
        self._sources = Sources({}, {})
        self._leaving: set[str] = set()
        """The queries that leave their pipelines when their sinks fail for too long."""
        self._sinks: dict[str, Sink] = {}

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
        """Declares a continuous query. `plan` pins it, in the aliases of the query: `((t q) o)`. `share` says whether it may
        run together with queries that read the same streams (None: as the session says). A sink that fails is tried again,
        and its results wait; when too many wait, the queries that run together stop, or (`on_failure="leave"`) go on without
        this one. `overload` says what it does under overload (None: as the session says); queries of which something else is
        said run in another pipeline."""
        if on_failure not in ("stop", "leave"):
            raise SessionError(f"on_failure={on_failure!r}: the pipeline may 'stop', or the query 'leave' it")
        require_overload(overload)
        made = as_sink(console(query=name) if sink is None else sink, name)
        self.planning.add_query(BoundQuery(bind_query(name, sql, self.catalog), plan, overload))
        self._sinks[name] = made
        if not (self.share if share is None else share):
            self.planning.alone.add(name)
        if on_failure == "leave":
            self._leaving.add(name)

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
        self._sinks |= made
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
        trigger = _checked_trigger(trigger)
        self.planning.check_facts("facts: rates:", "facts: table_rows:", "facts: distinct:")
        check_folder(self.checkpoint, "the checkpoint")
        if isinstance(self.checkpoint, LocalFilesystem):
            make_private_folder(self.checkpoint.root)  # Spark writes there, too, as the umask says
        holder = Holder(self.checkpoint)
        try:
            holder.acquire()
        except OSError as error:
            raise LocationError(f"the checkpoint {self.checkpoint} cannot be used: {error}") from error
        run = Run(holder, draw=self.planning.draw)
        try:
            self.planning.warn()
            ground = self._ground(holder, trigger)
            declared = {name: planned.forms.written for name, planned in self.planning.queries.items()}
            outflows = {name: _outflow(sink) for name, sink in self._sinks.items()}
            restart = restart_of(
                self.checkpoint, self.catalog, declared, outflows, _names(fresh), self.planning.slots
            )  # fmt: skip
            restart.require()
            sweep_checkpoint(self.checkpoint)
            self._take_over(restart)
            for pipeline in self._pipelines(ground, restart, _patience_s(trigger)):
                pipeline.start(trigger)
                run.pipelines.append(pipeline)
            answer_drops(self.checkpoint, restart.named(Fate.DROPPED))
            run.online = Online(self, run, ground, trigger, _patience_s(trigger))
            run.online.watch()
        except BaseException:
            run.stop()
            raise
        return run

    def _take_over(self, restart: Restart) -> None:
        """Has queries that the checkpoint runs, and nobody has declared; and tells how it differs from what is declared."""
        for name in restart.named(Fate.LEFT_OUT):
            told = f"query {name} was dropped, and stays so; to have it start anew, into an empty sink"
            print(f"anabranch: {told}: start(fresh=[{name!r}]), --fresh {name}", file=sys.stderr)
        for name, outcome in restart.outcomes.items():
            if outcome.fate is Fate.ALTERED and outcome.query is not None:
                overload, sink = self.planning.overloads.get(name), self._sinks[name]
                self.forget(name)
                self.declare(outcome.query, sink, None, overload)
                told = f"query {name} {outcome.fate.value}: {outcome.query.sql}; to have it as the script has it"
                print(f"anabranch: {told}: anabranch alter {name} …", file=sys.stderr)
            if name in self.planning.queries or outcome.query is None:
                continue
            note = read_sink(self.checkpoint, name)
            made = from_note(note, name) if note is not None else None
            if made is None:
                where = f" ({note.place})" if note is not None and note.place else ""
                raise SessionError(
                    f"the checkpoint runs {name}, whose sink{where} cannot be made again from what is noted: declare the "
                    "query with its sink"
                )
            plan = outcome.note.plan if outcome.note is not None else None
            self.declare(outcome.query, made, plan, self._overload_there(restart, outcome))
            text = f"query {name} {outcome.fate.value}; to have it leave: anabranch drop {name}"
            print(f"anabranch: {text} --checkpoint {self.checkpoint}", file=sys.stderr)

    def _overload_there(self, restart: Restart, outcome: Outcome) -> Overload | None:
        """What a query that nobody declares does under overload: what those do that it runs with, else what it did."""
        if (place := outcome.pipeline) is None:
            return None
        others = [name for name in restart.staying(place) if name in self.planning.queries]
        if others:
            return self.planning.overload_of(others[0])
        return read_overload(self.checkpoint.below(place.name))

    def bind(self, name: str, sql: str) -> Query:
        """The query of a text over the declared sources, whose blocks run where they are to."""
        return self.planning.placed(bind_query(name, sql, self.catalog))

    def declare(self, query: Query, sink: Sink, plan: str | None, overload: Overload | None = None) -> Member:
        """A query as one of the session's, which comes while others run; as it is to run."""
        self.planning.add_query(BoundQuery(query, plan, overload), is_settled=True)
        self._sinks[query.name] = sink
        return self._members({query.name: query})[query.name]

    def forget(self, name: str) -> None:
        """Takes a query back that was declared."""
        self.planning.queries.pop(name, None)
        self.planning.overloads.pop(name, None)
        self._sinks.pop(name, None)
        self._leaving.discard(name)
        self.planning.alone.discard(name)

    @property
    def overload(self) -> Overload:
        """What queries do under overload of which nothing else is said."""
        return self.planning.overload

    def _ground(self, holder: Holder, trigger: Mapping[str, Any]) -> Ground:
        idle_s = None if self._idle_us is None else self._idle_us / 1e6
        return Ground(
            self.spark, self.checkpoint, _checkpoint_id(self.checkpoint), holder, self._sources, self.cache, self.clock,
            self.spark_checkpoint, self.results_per_batch, idle_s, self._most_staged_bytes, self._slicer,
            partial(self._limiting, trigger),
        )  # fmt: skip

    def _pipelines(self, ground: Ground, restart: Restart, patience_s: float | None) -> list[Pipeline]:
        """The pipelines to start. A query that goes on stays where it is; others get pipelines of their own."""
        planned, fresh, found, over = self.planning.queries, restart.named(Fate.FRESH), [], []
        for each in restart.known:
            if not each.is_committed:
                continue
            going = restart.staying(each)
            if not going:
                self._require_published(each)
                over.append(each)
                continue
            dropped = {name: self._leaver(query) for name, query in restart.leavers[each.name].items()}
            drops = {name: outcome.command for name, outcome in restart.outcomes.items() if outcome.command}
            slots = self.planning.slots or max(len(layout.slots) for layout in each.layouts.values())
            arriving = {n: self._arriving(query, note) for n, (query, note) in restart.arriving(each).items()}
            overload = self._one_policy([*going, *arriving])
            members = self._members(going)
            found.append(
                Pipeline(
                    ground, each.name, members, slots, each, patience_s, dropped, arriving, overload, drops=drops
                )
            )  # fmt: skip
        new = [planned[name].forms.written for name in restart.named(Fate.NEW, Fate.FRESH)]
        overloads = {query.name: self.planning.overload_of(query.name) for query in new}
        for workload in pipelines_of(new, {*self.planning.apart, *fresh}, overloads):
            # One that was begun and never came to a commit is begun again where it was.
            digests = {query.name: text_of(query).state_digest for query in workload.queries}
            begun = next((each for each in restart.known if not each.is_committed and each.begun == digests), None)
            name = begun.name if begun is not None else new_name(self.checkpoint, restart.known)
            members = self._members({query.name: query for query in workload.queries})
            overload = overloads[workload.queries[0].name]
            found.append(Pipeline(ground, name, members, self.slots, None, patience_s, overload=overload))
        if not found:
            raise SessionError("there is no query to start: all that are declared were dropped")
        self._require_one_reader(found)
        self._clear([each for each in restart.known if each.name not in {pipeline.name for pipeline in found}])
        for each in over:
            remove_all(self.checkpoint.below(each.name))
        return found

    def _one_policy(self, names: Sequence[str]) -> Overload:
        """What queries that run in one pipeline do under overload."""
        first, found = names[0], self.planning.overload_of(names[0])
        for name in names[1:]:
            if (other := self.planning.overload_of(name)) != found:
                raise SessionError(
                    f"{first} and {name} run in one pipeline, which has one overload policy: {first} is to {found.text}, "
                    f"{name} to {other.text}; give both the same, or have one of them start anew, in a pipeline of its own "
                    f"and into an empty sink: --fresh {name}, start(fresh=[{name!r}])"
                )
        return found

    def _require_one_reader(self, pipelines: Sequence[Pipeline]) -> None:
        """Refuses to keep rows of a stream that several pipelines read: each would keep them."""
        for stream, files in self._sources.files(self._sources.given).items():
            readers = [each for each in pipelines if stream in each.workload.streams]
            if files.options.on_error.path and len(readers) > 1:
                shown = " and ".join(", ".join(each.members) for each in readers)
                raise SessionError(
                    f"bad rows of {stream} cannot be kept in {files.options.on_error.path}: {shown} read the stream by "
                    "themselves, and each would keep them; declare it once more under another name, with a folder of its "
                    "own or ON ERROR SKIP, for all but one of them"
                )

    def _clear(self, known: Sequence[KnownPipeline]) -> None:
        """Deletes pipelines that nobody takes up and that never came to a commit, not even to a torn one."""
        for each in known:
            folder = self.checkpoint.below(each.name)
            if not each.is_committed and not commits_in(folder).numbers():
                remove_all(folder)

    def _leaver(self, query: Query) -> Member:
        """A query that has left, whose results wait: as it ran, with the sink that is declared for it, or noted."""
        name, sink = query.name, self._sinks.get(query.name)
        if sink is None and (note := read_sink(self.checkpoint, name)) is not None:
            sink = from_note(note, name)
        assert sink is not None, "a start is refused otherwise"
        return Member(query, Execution(left_deep(Forms(query).graphs[None])), Steady(), sink)

    def _require_published(self, pipeline: KnownPipeline) -> None:
        """Refuses to delete a pipeline while rows that were set aside wait to be published."""
        folder = self.checkpoint.below(pipeline.name)
        for name, batch in set_aside_waiting(folder, commits_in(folder)).items():
            raise SessionError(
                f"{', '.join(pipeline.layouts)} cannot be dropped: rows of {name.partition('@')[0]} that were set aside in "
                f"batch {batch} wait to be published; let it run until they are"
            )

    def _members(self, queries: Mapping[str, Query]) -> dict[str, Member]:
        """Queries as they are to run: one that goes on with its state may differ from how it is written."""
        found = {}
        for name, query in queries.items():
            planned = self.planning.query(name)
            forms, is_pinned = planned.forms, planned.is_pinned or self.adapt.timing == "never"
            is_pinned = is_pinned or query.name in query.hinted
            left = self.planning.left_for(name)
            loop = self._loop(forms if query is forms.written else Forms(query), left)
            memory = left.memory
            found[name] = Member(query, planned.execution, loop, self._sinks[name], is_pinned, self.adapt.approve,
                                 name in self._leaving, memory if memory < float("inf") else None)  # fmt: skip
        return found

    def _arriving(self, query: Query, note: ComingNote) -> Arriving:
        """A query that was about to come in when the last run ended."""
        forms = Forms(query)
        execution = Execution(parse(note.plan, forms.graphs[None]) if note.plan else left_deep(forms.graphs[None]))
        loop = self._loop(forms, self.planning.left_for(query.name))
        member = Member(query, execution, loop, self._sinks[query.name], bool(note.plan), self.adapt.approve)
        return Arriving(member, note)

    def _slicer(self, queries: Sequence[str]) -> Slicer | None:
        """What decides how rows of the streams of some queries are cut into slices; while they run only if anything is to
        change."""
        planning = self.planning
        chains = planning.first_chains([name for name in queries if name in planning.queries])
        known = SlicingKnowledge(planning.units, planning.byte_cores, planning.budget.bounds.memory)
        return SlicingLoop(known, chains, self.adapt.timing != "never")

    def _limiting(
        self, trigger: Mapping[str, Any], overload: Overload, queries: Mapping[str, Query], slots: int
    ) -> Limiting:
        """What queries of a pipeline may lose, and who decides about it. Unless a clock was asked for, freshness is told by
        the wall clock where batches come by it."""
        interval = trigger.get("processingTime")
        if overload.clock is None:
            overload = replace(overload, clock=Clock.EVENT if interval is None else Clock.WALL)
        if overload.policy is Policy.FALL_BEHIND:
            return Limiting(overload)
        interval_s = (parse_duration(interval) / 1e6 if interval is not None else 0) or None
        cores = min(slots, int(self.spark.sparkContext.defaultParallelism))

        def loop(queries: Mapping[str, Query]) -> OverloadLoop:
            return OverloadLoop(overload, queries, interval_s, slots, cores, self.clock)

        return Limiting(overload, loop(queries), renew=loop)

    def _loop(self, forms: Forms, bounds: Bounds) -> Loop:
        """What decides about the plan of a query while it runs, within what others leave of the budget."""
        planning = self.planning
        settings = self.adapt.settings(bounds)
        knowledge = Knowledge(forms.graphs[None], planning.units, bounds, planning.facts, self.slots, settings)
        loop = GroupingLoop(forms, knowledge)
        if not forms.written.places.keys() - forms.written.hinted:
            return loop
        choose = planning.choose_places
        return PlacingLoop(loop, forms, PlacingKnowledge(choose, planning.units, planning.facts, settings.window))


TRIGGERS = ("processingTime", "availableNow", "once")
"""The triggers of Spark's that run batches."""


def _checked_trigger(trigger: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a trigger, as Spark takes them."""
    for name in trigger:
        if name not in TRIGGERS:
            raise SessionError(f"start() has no keyword {name}; {known_names(name, ('fresh', *TRIGGERS))}")
    given = {name: value for name, value in trigger.items() if value not in (None, False)}
    if len(given) > 1:
        raise SessionError(f"a session has one trigger: give one of {', '.join(given)}")
    if not given:
        return {"processingTime": "0 seconds"}
    if "processingTime" not in given:
        return given
    return {"processingTime": f"{parse_duration(given['processingTime'], 'processingTime') // 1000} milliseconds"}


def _positive_us(length: str | timedelta, what: str) -> int:
    length_us = parse_duration(length, what)
    if length_us <= 0:
        raise SessionError(f"{what}: {length} is too short: give a longer time")
    return length_us


def _patience_s(trigger: Mapping[str, Any]) -> float | None:
    """How long a batch waits for its results to arrive: as long as its trigger's interval."""
    interval = trigger.get("processingTime")
    return (parse_duration(str(interval)) / 1e6 if interval else 0.0) or PATIENCE_S


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _outflow(sink: Sink) -> Outflow:
    place = getattr(sink, "path", None) or getattr(sink, "folder", None) or "its sink"
    return Outflow(sink.takes is Takes.FILES, str(place), sink.holds)


def _file_options(max_files_per_trigger: int | None, skip: Sequence[str], on_error: OnError) -> FileOptions:
    left_out = (skip,) if isinstance(skip, str) else tuple(skip)
    return FileOptions(max_files_per_trigger, on_error=on_error, skip=left_out)


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
