"""What batches did, for people to watch: kept in memory while a pipeline runs, and in its folder for other processes.

    progress/00000000000000000064-0000000003     batches 64 to 95 of the driver of epoch 3

A file is a *page*: the batches from its number on, some dozens of them, written anew after each batch. So a batch costs one
small file that takes the place of another, whoever looks reads few files, and the last `MOST_KEPT` batches are there. Pages
are written after the commit, and nothing is decided by them: a page that cannot be written or read is passed over.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from html import escape
from itertools import islice

import msgspec

from anabranch.control.completeness import Completeness, LeftOut, completeness_of, since_adapted, unprobed_rows
from anabranch.control.holding import Holding
from anabranch.control.ledger import Ledger
from anabranch.control.pace import factors
from anabranch.control.records import STAGE, Border, Commit, SourceStatistics
from anabranch.errors import StateError
from anabranch.plan.query import Query, Stream
from anabranch.storage.filesystem import Filesystem

FOLDER = "progress"
MOST_KEPT = 1000
"""So many batches are kept, in memory and in the folder."""
PAGE_RECORDS = 32
"""So many records, one for each batch and query, are in a page, or those of one batch if they are more. A page of 32 takes
26 KB and 0.6 ms to write, where a file for each batch, with the deleting of old ones, takes 1.2 ms, and one file for all
2 ms. All pages are read in 10 ms; a thousand files take 1.5 s."""

TOLD_WITHIN = 3
"""Spark tells how long a trigger took when it is over: of the batch before this one, or of one just before that."""

OURS = ("control", "commit", "deliver", "wall order", "wall attach", "wall step", "wall stage", "wall save")
"""The parts of a batch's time that are not Spark's: what the driver does, and what the slowest task does with its rows."""


class Waiting(msgspec.Struct, frozen=True):
    """The files of a stream that wait to be complete."""

    count: int = 0
    paths: list[str] = []
    """The first few of them."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        more = f" and {self.count - len(self.paths)} more" if self.count > len(self.paths) else ""
        what = "1 file waits" if self.count == 1 else f"{self.count} files wait"
        return f"{what} to be complete: {', '.join(self.paths)}{more}"


class Progress(msgspec.Struct, omit_defaults=True):
    """What a batch did of a query."""

    batch: int
    trigger: int
    plan: str
    target: str | None
    """The plan that a migration goes to."""
    rows: dict[str, int]
    """By stream; a row that goes to several slots is counted once."""
    late_rows: dict[str, int]
    early_rows: dict[str, int]
    """Rows that were turned away because they are too far ahead of the driver's clock."""
    results: int
    watermark_us: int
    state_rows: int
    """Of logs, indexes and views that the query reads, also those that it shares."""
    state_bytes: int
    untimed_rows: dict[str, int] = {}
    """Rows without an event time: they are turned away."""
    skipped_rows: dict[str, int] = {}
    """Rows of files that could not be read and were set aside: they are not among `rows`."""
    skipped_files: dict[str, int] = {}
    """Files that are damaged as a whole and were set aside; the journal names them."""
    is_counted: bool = True
    """Whether `results` is the number of results. Groups that span slots are put together when they are delivered: until
    then, and for a function that gets them as a DataFrame, `results` has a group once for each slot that has rows of it."""
    wall_s: dict[str, float] = {}
    """How long the parts of the batch took, with all queries of the pipeline; `trigger` is what Spark says of its trigger as
    a whole, once it has said so."""
    cpu_s: float = 0.0
    """What tasks spent for the query, without Spark; what queries share is shared out."""
    staging_cpu_s: float = 0.0
    """What tasks spent on encoding and writing results: those of all queries of the pipeline, told with the first."""
    waiting: dict[str, Waiting] = {}
    """Files of streams that are not read yet because they are not complete."""
    undelivered: int = 0
    """Batches of the query whose results wait for its sink."""
    budget_bytes: float | None = None
    """What its state may take."""
    names: dict[str, str] = {}
    """The stream that each alias of the query stands for."""
    completeness: Completeness | None = None
    """How complete the results of the batch are; None: none is missing."""
    since_adapted: Completeness | None = None
    """And those of all batches since the first of which results are missing; None with the first that is exact."""
    unprobed_rows: dict[str, int] = {}
    """By alias, rows that did not look up their partners where results are found."""
    stale_results: int = 0
    """Results that were suppressed because a row in them is older than its freshness allows."""
    stale_rows: dict[str, int] = {}
    """Rows that are older than the query may have them in a result."""
    shed_rows: dict[str, int] = {}
    """Rows that were dropped before they were joined."""
    borders: dict[str, Border] = {}
    """What databases were asked for the sake of the query: by the stream for whose rows, and by the block that they ran."""
    paces: dict[str, float] = {}
    """How many times as long as calibrated databases took of late, before the batch: by block, and by stream and the way in
    which rows of its table come. Of what is not named, the calibrated costs stand."""
    held_back: list[Holding] = []
    """Rows of its streams that wait for the watermark of some queries, its own among them, which lags behind others'."""
    seen_us: int | None = None
    """The least of the largest event times that its streams have shown; None before all have."""
    at_s: float = 0.0
    """When the batch was over: seconds since the epoch, by the driver's clock."""
    is_closing: bool = False
    """Whether it is a closing step, a batch without a trigger of its own."""

    @property
    def is_exact(self) -> bool:
        """Whether no result is missing."""
        return self.completeness is None

    @property
    def lag_s(self) -> float | None:
        """How far the event times of its streams were behind the driver's clock, when the batch was over."""
        return self.at_s - self.seen_us / 1e6 if self.seen_us is not None else None

    @property
    def left_out(self) -> LeftOut:
        """What the batch left out."""
        unprobed, shed, stale = (sum(each.values()) for each in (self.unprobed_rows, self.shed_rows, self.stale_rows))
        return LeftOut(self.batch, self.completeness, unprobed, shed, stale, self.stale_results, self.lag_s)

    @property
    def seconds(self) -> float:
        """How long the batch took, from its trigger on as far as Spark has told."""
        return max(self.parts_s, self.wall_s.get("trigger", 0.0))

    @property
    def parts_s(self) -> float:
        """What of that is counted by parts."""
        return sum(self.wall_s.get(part, 0.0) for part in ("control", "tasks", "commit", "deliver"))

    @property
    def spark_s(self) -> float:
        """What of that is Spark's: reading sources, planning, the exchange, starting tasks, its own log."""
        return max(0.0, self.seconds - sum(self.wall_s.get(part, 0.0) for part in OURS))

    def __repr__(self) -> str:
        results = f"{'' if self.is_counted else 'at most '}{self.results:,} results"
        rows = f"{sum(self.rows.values()):,} rows"
        return f"<batch {self.batch}: {rows}, {results}, {self.seconds:.2f} s, plan {self.plan}>"

    def _repr_html_(self) -> str:
        lines = {
            "rows": f"{sum(self.rows.values()):,}", "results": f"{'' if self.is_counted else 'at most '}{self.results:,}",
            "turned away": f"{sum(self.late_rows.values()):,} late, {sum(self.early_rows.values()):,} early, "
            f"{sum(self.untimed_rows.values()):,} without a time, {sum(self.skipped_rows.values()):,} skipped",
            "seconds": f"{self.seconds:.2f}, of which {self.spark_s:.2f} are Spark's",
            "state": f"{self.state_rows:,} rows, {self.state_bytes:,} bytes", "plan": self.plan,
        }  # fmt: skip
        if self.completeness is not None:
            lines["complete"] = f"{self.completeness}, {sum(self.unprobed_rows.values()):,} rows were not looked up"
        if self.stale_results or any(self.stale_rows.values()) or any(self.shed_rows.values()):
            stale = f"{self.stale_results:,} results and {sum(self.stale_rows.values()):,} rows were too old"
            lines["left out"] = f"{stale}, {sum(self.shed_rows.values()):,} rows were shed"
        if self.held_back:
            lines["held back"] = "; ".join(map(str, self.held_back))
        for name, border in self.borders.items():
            lines[f"database {border.database}"] = f"{name}: {border}"
        for what, ratio in self.paces.items():
            lines[f"pace of {what}"] = f"{ratio:.2g} times as long as calibrated"
        cells = "".join(f"<tr><td>{key}</td><td>{escape(value)}</td></tr>" for key, value in lines.items())
        return f"<table><caption>batch {self.batch}</caption>{cells}</table>"


class Page(msgspec.Struct):
    """Some batches, oldest first, with what each did of each query."""

    batches: list[dict[str, Progress]]


def progress_of(query: Query, whole: Commit, plan: str, wall_s: dict[str, float]) -> Progress:
    """What a batch did of a query, by its commit."""
    batch, trigger, commit = whole.batch, whole.trigger, whole.queries[query.name]
    counted, migration = commit.statistics, commit.execution.migration
    streams = [s.name for s in query.base_sources if isinstance(s, Stream)]
    seen = [whole.largest_time_us.get(name) for name in streams]
    known = [us for us in seen if us is not None]
    sources = {s.name: counted.sources.get(s.name, SourceStatistics()) for s in query.base_sources}
    return Progress(
        batch, trigger, plan, migration.target if migration is not None else None,
        rows={n: s.rows for n, s in sources.items()},
        late_rows={n: s.late_rows for n, s in sources.items()},
        early_rows={n: s.early_rows for n, s in sources.items()},
        untimed_rows={n: s.untimed_rows for n, s in sources.items()},
        skipped_rows={n: s.skipped_rows for n, s in sources.items()},
        skipped_files={n: s.skipped_files for n, s in sources.items()},
        results=counted.results,
        watermark_us=commit.watermark_us,
        state_rows=sum(s.state_rows for s in sources.values()),
        state_bytes=sum(s.state_bytes for s in sources.values()) + sum(s.bytes for s in counted.states),
        wall_s=wall_s,
        cpu_s=counted.engine_cpu_ns / 1e9,
        staging_cpu_s=counted.cpu_ns.get(STAGE, 0) / 1e9,
        names=shown_names(query),
        completeness=completeness_of(batch, commit),
        unprobed_rows=unprobed_rows(counted),
        stale_results=counted.stale_results,
        stale_rows={n: s.stale_rows for n, s in sources.items() if s.stale_rows},
        shed_rows={n: s.shed_rows for n, s in sources.items() if s.shed_rows},
        borders=counted.borders,
        paces=factors(commit.paces),
        seen_us=min(known) if known and len(known) == len(seen) else None,
    )  # fmt: skip


def shown_names(query: Query) -> dict[str, str]:
    """What people call the inputs of a query: by their sources, and by their aliases too where a source stands twice."""
    names = [i.source.name for i in query.inputs]
    return {
        i.alias: i.source.name if names.count(i.source.name) == 1 else f"{i.source.name} {i.alias}" for i in query.inputs
    }


def pages_in(filesystem: Filesystem, epoch: int = 0) -> Ledger[Page]:
    """The pages of a pipeline."""
    return Ledger(filesystem, FOLDER, "progress", Page, epoch)


class ProgressLog:
    """The progress of a pipeline while it runs."""

    def __init__(self, filesystem: Filesystem, epoch: int = 0, clock: Callable[[], float] = time.time) -> None:
        self._pages, self._clock, self._filesystem = pages_in(filesystem, epoch), clock, filesystem
        self._batches: deque[dict[str, Progress]] = deque(maxlen=MOST_KEPT)
        self._counts: dict[str, tuple[int, int]] = {}
        """For each query the last batch whose results were put together, and their number: it may come before the batch is
        noted."""
        self._changing, self._writing = threading.Lock(), threading.Lock()
        self._first, self._is_written = -1, True
        """The number of the page that is being filled, and whether it is written as it is."""
        self._adapted: dict[str, Completeness | None] | None = None
        """How complete the results of each query are since the first that is missing; None: what pages say is not read
        yet."""

    @property
    def before_s(self) -> float:
        """What Spark did of the last trigger that it has told of, beside what is counted as parts of the batch."""
        with self._changing:
            for each in islice(reversed(self._batches), TOLD_WITHIN):
                first = next(iter(each.values()), None)
                if first is not None and "trigger" in first.wall_s:
                    return max(0.0, first.wall_s["trigger"] - first.parts_s)
        return 0.0

    @property
    def by_query(self) -> dict[str, list[Progress]]:
        """What each query did, oldest batch first."""
        with self._changing:
            return _by_query(self._batches)

    def note(self, batch: int, progress: Mapping[str, Progress]) -> None:
        """Adds a batch."""
        with self._changing:
            for name, each in progress.items():
                each.at_s = self._clock()
                if self._counts.get(name, (-1, 0))[0] == batch:
                    each.results, each.is_counted = self._counts[name][1], True
                if each.completeness is not None:
                    each.since_adapted = since_adapted(self._adapted_before().get(name), each.completeness)
                if self._adapted is not None:
                    self._adapted[name] = each.since_adapted
            self._counts = {name: counted for name, counted in self._counts.items() if name in progress}
            if self._adapted is not None:
                self._adapted = {name: since for name, since in self._adapted.items() if name in progress}
            self._batches.append(dict(progress))
            if self._first < 0 or (batch - self._first) * len(progress) >= PAGE_RECORDS:
                self._first = batch
            self._is_written = False

    def _adapted_before(self) -> dict[str, Completeness | None]:
        """How complete results are since the first that is missing, before a batch: also of a run before this one."""
        if self._adapted is None:
            before = read_progress(self._filesystem, 1) if not self._batches else {}
            self._adapted = {name: steps[-1].since_adapted for name, steps in before.items()}
        return self._adapted

    def count(self, query: str, batch: int, results: int) -> None:
        """Corrects the number of results of a batch, now that they have been put together."""
        with self._changing:
            self._counts[query] = batch, results
            for each in reversed(self._batches):
                found = each.get(query)
                if found is not None and found.batch == batch:
                    found.results, found.is_counted, self._is_written = results, True, False
                    return

    def time(self, trigger: int, seconds: float) -> None:
        """Notes how long a trigger took, as Spark has told. A closing step repeats the number, and is not part of it."""
        with self._changing:
            for each in reversed(self._batches):
                first = next(iter(each.values()), None)
                if first is None or first.trigger != trigger or first.is_closing:
                    continue
                for found in each.values():
                    found.wall_s["trigger"] = seconds
                self._is_written = False
                return

    def flush(self) -> None:
        """Writes the page that is being filled, if it has changed; with a new page, those that are too old go. What fails is
        left: the page is written again after the next batch."""
        with self._writing:
            with self._changing:
                if self._is_written:
                    return
                self._is_written, first = True, self._first
                batches = [each for each in self._batches if any(p.batch >= first for p in each.values())]
            with contextlib.suppress(OSError, StateError):
                self._pages.write(first, Page(batches))
                if len(batches) == 1:
                    self._pages.prune(first - MOST_KEPT - PAGE_RECORDS)


def _by_query(batches: Iterable[Mapping[str, Progress]]) -> dict[str, list[Progress]]:
    found: dict[str, list[Progress]] = {}
    for batch in batches:
        for name, progress in batch.items():
            found.setdefault(name, []).append(progress)
    return found


def read_progress(filesystem: Filesystem, batches: int = MOST_KEPT) -> dict[str, list[Progress]]:
    """The newest batches of a pipeline by query, oldest first, as far as pages can be read."""
    pages, found = pages_in(filesystem), list[dict[str, Progress]]()
    for number in reversed(pages.numbers()):
        with contextlib.suppress(StateError, OSError):
            found = pages.read(number).batches + found
        if len(found) >= batches:
            break
    return _by_query(found[-batches:])
