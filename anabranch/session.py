"""The public API: declare streams, tables and queries, start them, watch them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from time import time as wall_clock
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.adapt.grouping_loop import GroupingLoop
from anabranch.adapt.loop import Knowledge
from anabranch.balance.explain import Origin, Slots
from anabranch.balance.together import pipelines_of
from anabranch.control.journal import FOLDER as JOURNALS
from anabranch.control.journal import Entry, Journal
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in
from anabranch.control.loop import Loop
from anabranch.control.pipelines import KnownPipeline, known_pipelines, new_name
from anabranch.cost.facts import EMPTY, Given
from anabranch.drive.delivery import MOST_STAGED_BYTES, PATIENCE_S, first_waiting
from anabranch.errors import LocationError, SessionError
from anabranch.optimize.planner import parse_bytes
from anabranch.plan.eager import Forms
from anabranch.plan.formats import format_of
from anabranch.plan.query import Field, Stream, Table
from anabranch.planning import Planning
from anabranch.run import Run
from anabranch.settings import Adapt, Budget
from anabranch.spark.create import create_session
from anabranch.spark.frames import check_stream, check_table, fields_of
from anabranch.spark.pipeline import Ground, Member, Pipeline
from anabranch.spark.reader import FileOptions, infer_fields
from anabranch.spark.sinks import Sink, as_sink, console
from anabranch.spark.sources import Files, Sources
from anabranch.sql import BoundQuery, Catalog, bind_query, parse_duration, parse_script
from anabranch.storage.cache import Cache
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, make_private_folder
from anabranch.storage.location import Place, located, remove_all
from anabranch.storage.record import damaged


class Session:
    """Streams, tables and continuous queries over them.

    `spark` is your SparkSession, or None for a local one of our own. Queries that read the same streams run together, in one
    *pipeline*: one streaming query of Spark's, with one scan of each stream and one state (`share=False`: each by itself).
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
    disk, up to `most_staged` bytes ("1 GiB").
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
        share: bool = True,
        most_staged: int | str = MOST_STAGED_BYTES,
    ) -> None:
        self.share, self._most_staged_bytes = share, int(parse_bytes(most_staged))
        self._idle_us = None
        if idle_close is not None:
            self._idle_us = self._positive_us(idle_close, f"idle_close cannot be {idle_close}")
        self.clock = clock
        if results_per_batch is not None and (type(results_per_batch) is not int or results_per_batch < 1):
            raise SessionError(f"results_per_batch is a number of rows, 1 or more, or None: not {results_per_batch!r}")
        self.results_per_batch = results_per_batch
        self.adapt = adapt or Adapt()
        self._spark, self.checkpoint = spark, located(checkpoint)
        self.cache, self.spark_checkpoint = cache or Cache(), spark_checkpoint
        self.planning = Planning(budget, facts, slots, self.checkpoint)
        self._sources = Sources({}, {})
        self._leaving: set[str] = set()
        """The queries that leave their pipelines when their sinks fail for too long."""
        self._sinks: dict[str, Sink] = {}

    @property
    def catalog(self) -> Catalog:
        """The declared streams and tables."""
        return self.planning.catalog

    @property
    def spark(self) -> SparkSession:
        """The SparkSession in use."""
        if self._spark is None:
            self._spark = create_session()
        return self._spark

    @property
    def slots(self) -> int:
        return self.planning.slots or int(self.spark.sparkContext.defaultParallelism)

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
            frame: DataFrame | Files = Files(source, format, _file_options(max_files_per_trigger, skip))
        else:
            check_stream(name, source)
            fields = fields_of(name, source)
            frame = source
        ahead_us = parse_duration(ahead) if ahead is not None else None
        idle_us = self._positive_us(idle, f"the stream {name} cannot be idle after {idle}") if idle is not None else None
        made = Stream(name, fields, time, parse_duration(lateness), ahead_us, idle_us)
        self.planning.catalog = self.catalog.with_stream(made)
        self._sources.given[name] = frame

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
            frame: DataFrame | Callable[[], DataFrame] | Files = Files(rows, format, FileOptions())
        else:
            now = rows() if callable(rows) else rows
            check_table(name, now)
            fields, frame = fields_of(name, now), rows
        problem = f"the table {name} cannot be read again every {refresh}"
        every_us = self._positive_us(refresh, problem) if refresh is not None else 0
        self.planning.catalog = self.catalog.with_table(Table(name, fields))
        self._sources.given[name] = frame
        if every_us:
            self._sources.refresh_us[name] = every_us

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
        share: bool | None = None,
        on_failure: str = "stop",
    ) -> None:
        """Declares a continuous query. `plan` pins it, in the aliases of the query: `((t q) o)`. `share` says whether it may
        run together with queries that read the same streams (None: as the session says). A sink that fails is tried again,
        and its results wait; when too many wait, the queries that run together stop, or (`on_failure="leave"`) go on without
        this one."""
        if on_failure not in ("stop", "leave"):
            raise SessionError(f"on_failure={on_failure!r}: the pipeline may 'stop', or the query 'leave' it")
        made = as_sink(sink or console())
        self.planning.add_query(BoundQuery(bind_query(name, sql, self.catalog), plan))
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
        parsed, skip = parse_script(text, self.catalog), skip or {}
        created = [s.name for s in parsed.catalog if isinstance(s, Stream) and self.catalog.source(s.name) is None]
        if unknown := [name for name in skip if name not in created]:
            raise SessionError(
                f"files of {unknown[0]} cannot be skipped: the script creates no such stream; it creates "
                f"{', '.join(created) or 'none'}"
            )
        files: dict[str, Files] = {}
        refresh_us: dict[str, int] = {}
        for source in parsed.catalog:
            if self.catalog.source(source.name) is not None:
                continue
            location = parsed.catalog.location(source.name)
            if location is None:
                raise SessionError(f"{source.name} has no FROM path: add one, or declare the stream in Python")
            options = _file_options(max_files_per_trigger, skip.get(source.name, ()))
            files[source.name] = Files(location.path, location.format, options)
            if location.refresh_us:
                refresh_us[source.name] = location.refresh_us
        names = [bound.query.name for bound in parsed.queries]
        made = {name: as_sink((sinks(name) if sinks is not None else None) or console()) for name in names}
        self.planning.add_script(parsed)
        self._sources.given |= files
        self._sources.refresh_us |= refresh_us
        self._sinks |= made
        self.planning.alone |= set() if self.share else set(names)

    def explain(self, name: str) -> str:
        """The plan of a query, and how its rows are spread: over `slots`, else as the checkpoint has it, else by the
        parallelism of the SparkSession in use, else by this machine's cores. No Spark is started for it."""
        in_use = self._spark
        parallelism = None if in_use is None else Slots(in_use.sparkContext.defaultParallelism, Origin.SPARK)
        return self.planning.explain(name, parallelism)

    def start(self, drop: Sequence[str] = (), **trigger: Any) -> Run:
        """Starts all queries. The keywords are those of `DataStreamWriter.trigger`; availableNow=True ends by itself. `drop`
        names queries of the checkpoint that are not to go on: their state is given up."""
        if not self.planning.queries:
            raise SessionError("there is no query to start: declare one with query()")
        if isinstance(self.checkpoint, LocalFilesystem):
            make_private_folder(self.checkpoint.root)  # Spark writes there, too, as the umask says
        trigger = trigger or {"processingTime": "0 seconds"}
        holder = Holder(self.checkpoint)
        try:
            holder.acquire()
        except OSError as error:
            raise LocationError(f"the checkpoint {self.checkpoint} cannot be used: {error}") from error
        run = Run(holder)
        try:
            ground = self._ground(holder)
            for pipeline in self._pipelines(ground, drop, _patience_s(trigger)):
                pipeline.start(trigger)
                run.pipelines.append(pipeline)
        except BaseException:
            run.stop()
            raise
        return run

    def _ground(self, holder: Holder) -> Ground:
        idle_s = None if self._idle_us is None else self._idle_us / 1e6
        return Ground(
            self.spark, self.checkpoint, _checkpoint_id(self.checkpoint), holder, self._sources, self.cache, self.clock,
            self.spark_checkpoint, self.results_per_batch, idle_s, self._most_staged_bytes,
        )  # fmt: skip

    def _pipelines(self, ground: Ground, drop: Sequence[str], patience_s: float | None) -> list[Pipeline]:
        """The pipelines to start. A query that has run stays where it is; others get pipelines of their own."""
        planned, known = self.planning.queries, known_pipelines(self.checkpoint)
        committed = [each for each in known if each.is_committed]
        places = {name: each for each in committed for name in each.layouts}
        self._check_drop(drop, places, [name for each in committed for name in each.ended])
        found = []
        for each in committed:
            names = [name for name in each.layouts if name in planned and name not in drop]
            if not names:
                self._forget(each)
                continue
            left = [name for name in each.ended if self._waits(each, name)]
            dropped = self._members([name for name in [*each.layouts, *left] if name in planned and name not in names])
            slots = self.planning.slots or max(len(layout.slots) for layout in each.layouts.values())
            found.append(Pipeline(ground, each.name, self._members(names), slots, each, patience_s, dropped))
        new = [p.forms.written for name, p in planned.items() if name not in places and name not in drop]
        for workload in pipelines_of(new, self.planning.alone):
            names = [query.name for query in workload.queries]
            # One that was begun and never came to a commit is begun again where it was.
            begun = next((each for each in known if not each.is_committed and [*each.layouts] == names), None)
            name = begun.name if begun is not None else new_name(self.checkpoint, known)
            found.append(Pipeline(ground, name, self._members(names), self.slots, None, patience_s))
        return found

    def _waits(self, pipeline: KnownPipeline, name: str) -> bool:
        """Whether results of a query wait for its sink."""
        folder = self.checkpoint.below(pipeline.name)
        return first_waiting(folder, commits_in(folder), name) is not None

    def _forget(self, pipeline: KnownPipeline) -> None:
        """Deletes a pipeline all of whose queries are dropped."""
        folder = self.checkpoint.below(pipeline.name)
        for name in pipeline.layouts:
            if (batch := first_waiting(folder, commits_in(folder), name)) is not None:
                raise SessionError(
                    f"{name} cannot be dropped: its results of batch {batch} wait for its sink; let it run until they have "
                    "arrived"
                )
        remove_all(folder)

    def _check_drop(self, drop: Sequence[str], places: Mapping[str, KnownPipeline], ended: Sequence[str]) -> None:
        """Refuses to leave a query of the checkpoint behind unless it is named, and to name one that is not there, or that
        has not left."""
        declared = self.planning.queries
        if unknown := [name for name in drop if name not in places and name not in ended]:
            there = ", ".join(places) or "none"
            raise SessionError(f"{unknown[0]} cannot be dropped: the checkpoint runs no such query; it runs {there}")
        if missing := [name for name in places if name not in declared and name not in drop]:
            raise SessionError(
                f"the checkpoint {self.checkpoint} runs {', '.join(missing)} too: declare what it runs, or drop it by name: "
                f"start(drop={missing!r})"
            )

    def _members(self, names: Sequence[str]) -> dict[str, Member]:
        found = {}
        for name in names:
            planned = self.planning.query(name)
            query, is_pinned = planned.forms.written, planned.is_pinned or self.adapt.timing == "never"
            loop = self._loop(planned.forms)
            found[name] = Member(query, planned.execution, loop, self._sinks[name], is_pinned, self.adapt.approve,
                                 name in self._leaving)  # fmt: skip
        return found

    def _loop(self, forms: Forms) -> Loop:
        """What decides about the plan of a query while it runs."""
        planning, bounds = self.planning, self.planning.budget.bounds
        settings = self.adapt.settings(bounds)
        knowledge = Knowledge(forms.graphs[None], planning.units, bounds, planning.facts, self.slots, settings)
        return GroupingLoop(forms, knowledge)


def _patience_s(trigger: Mapping[str, Any]) -> float | None:
    """How long a batch waits for its results to arrive: as long as its trigger's interval."""
    interval = trigger.get("processingTime")
    return (parse_duration(str(interval)) / 1e6 if interval else 0.0) or PATIENCE_S


def _file_options(max_files_per_trigger: int | None, skip: Sequence[str]) -> FileOptions:
    return FileOptions(max_files_per_trigger, skip=(skip,) if isinstance(skip, str) else tuple(skip))


def read_journals(checkpoint: Place) -> dict[str, list[Entry]]:
    """The journals of the queries below a checkpoint, running or not."""
    place = located(checkpoint)
    found = {name: Journal(place, name).entries() for name in place.folders(JOURNALS)}
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
