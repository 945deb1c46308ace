"""Results on their way from staged files to where they go: for each query in order, and no query waits for another.

Each query has a *line* of batches that are committed and have not arrived, and a record of the last one that has
(`delivered/<query>/n`). What has not arrived when a driver dies is delivered first by the next one, from the same files: no
batch is computed again for it. A batch in which a query has no results is none of its line.

Lines are served in turn by a small pool of threads, a batch at a time; where a call takes long, other threads take the lines
that wait. A batch waits for the first try of its results, for `patience_s` at most; then it is over, whatever the sinks do:

- a call that takes longer is left to finish, and never made a second time while it runs, also where another delivery has
  taken the place of this one meanwhile; later results wait in line;
- a call that fails is made again, with growing pauses, in which it has no thread.

A call keeps its thread for as long as it takes, and there are never more than `MOST_CALLS` at a time. What is promised then:

- a line waits for a thread no longer than until calls end of lines that came before it; so none waits for ever, unless sinks
  hang that never answer;
- sinks that are known to be slow, because their last call outlasted the patience or one does now, have `MOST_SLOW` of the
  threads at most. Others do not wait for them, once each has shown how slow it is.

Example: of 300 sinks 290 take a minute each, and the patience is a second. Their first calls may have all threads for a
minute; from then on 24 of them are called at a time, and the ten quick ones have the other 8 threads for themselves.

What waits takes room. At `most_bytes` of staged results the pipeline waits for a slow sink, and for one whose call has just
failed. It stops with the error of one that has been tried in vain for `TRIED_S`, if what waits for the others takes less:
nothing is lost, the next start delivers what waits. A query of which a user has asked for it (`leaves`) leaves
the pipeline with the next batch instead: what waits for it stays, and is tried again, but no more is computed. If no batch
comes any more, because the input has ended, the query has not left: all its results are computed, and the run ends with the
error of its sink, as it does with that of any other.

Example: q1 goes to a folder, q2 to a database that is down. In batch 7 both have results. Those of q1 are published; the
call of q2 fails, is made again after 0.1 s, 0.2 s, 0.4 s …, and batches 8, 9, … go on. When the database is back, q2 gets 7,
8, 9.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import pyarrow as pa

from anabranch.control.ledger import Ledger, deliveries_in
from anabranch.control.records import Commit, Delivered, QueryCommit
from anabranch.control.sweep import batch_of
from anabranch.drive.staging import FOLDER, read_staged, staged_name
from anabranch.engine.aggregation import Aggregator
from anabranch.errors import AnabranchError, CheckpointBusyError, SinkError, StateError
from anabranch.plan.query import Query
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import damaged

PATIENCE_S = 1.0
"""So long a batch waits for its results to arrive, unless its trigger or a setting says otherwise."""
MOST_CALLS, MOST_SLOW = 32, 24
"""So many sinks are called at a time, and so many of them that are slow."""
MOST_STAGED_BYTES = 1 << 30
LEAST_BYTES = 1 << 16
"""What the results of a batch count at least: a commit and a file are kept for them."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before the second try of a call that failed, and between tries at most."""
TRIED_S = 3.0
"""At the bound a sink whose call has failed is tried again for so long."""
FINISH_S = 30.0
"""When input has ended, a sink that fails is tried again for so long."""
SWEEP_EVERY = 8
HELP_S = 0.02
"""While lines wait for a thread, one more is started whenever this has passed: one serves all sinks that answer at once."""
LOOK_S = 0.1
"""While no line can be given a thread, it is looked at least so often whether one can be."""


@dataclass(frozen=True)
class Results:
    """The results of a query in a batch."""

    query: str
    batch: int
    token: str
    names: tuple[str, ...]
    """Of the files that hold them (`anabranch.drive.staging.staged_name`), one for each slot that has any."""
    bytes: int
    has_own_files: bool = False
    """Whether the files are the query's alone, in the folder of its sink."""
    text: str = ""
    """The digest of the query's text as it was run (`anabranch.drive.queries.Readings`): it may be written in another way
    since."""


def rows_of(filesystem: Filesystem, query: Query, groups_span_slots: bool, results: Results) -> Iterator[pa.RecordBatch]:
    """Results, from the files; what slots have of the same groups is put together. `query` is what was run."""
    found = (piece for name in results.names for piece in read_staged(filesystem, name, query.name))
    if not groups_span_slots:
        yield from found
        return
    assert query.grouping is not None
    yield from Aggregator(query.grouping, query.row_schema).combine(list(found))


class Outlet(Protocol):
    """Where the results of a query go."""

    @property
    def takes_files(self) -> bool:
        """Whether it can take files that tasks have written for it."""

    @property
    def name(self) -> str:
        """How errors call where the results go."""

    def take(self, results: Results) -> int | None:
        """Takes results; called again with the same if it fails, or if nobody could note that it did not. How many there
        were, if it is known."""


@dataclass(eq=False)
class Line:
    """What waits for an outlet."""

    outlet: Outlet
    arrived: Ledger[Delivered]
    waiting: deque[Results] = field(default_factory=deque)
    is_served: bool = False
    """Whether a thread is at it, or about to be."""
    is_slow: bool = False
    """Whether the last call outlasted the patience."""
    again_s: float = 0.0
    """When results that were tried in vain are tried again."""
    noted: int | None = None
    """The last batch that was noted to have arrived by this driver."""
    error: Exception | None = None
    """Why the last call failed; None if it did not, or none was made."""
    tries: int = 0
    """How often the results that are first in line were tried in vain."""
    failed_s: float = 0.0
    """When that was for the first time."""
    tried_s: float = 0.0
    """How long after that it was for the last time."""
    bytes: int = 0
    """What the results that wait count."""
    calling: threading.Lock = field(default_factory=threading.Lock)
    """Held while the outlet is called."""

    def append(self, results: Results) -> None:
        self.waiting.append(results)
        self.bytes += max(LEAST_BYTES, results.bytes)

    def pop(self) -> None:
        """The results that are first in line have arrived."""
        self.bytes -= max(LEAST_BYTES, self.waiting.popleft().bytes)
        self.error, self.tries = None, 0


@dataclass
class StagedFiles:
    """The files of a batch that hold results of several queries."""

    names: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    """The queries that wait for them."""


class Delivery:
    """Delivers the results of a pipeline. Without threads (`patience_s` None) calls are made by whoever offers."""

    def __init__(
        self,
        filesystem: Filesystem,
        outlets: Mapping[str, Outlet],
        patience_s: float | None = PATIENCE_S,
        most_bytes: int = MOST_STAGED_BYTES,
        require_held: Callable[[], None] = lambda: None,
        leaves: Collection[str] = (),
        calls: dict[str, threading.Lock] | None = None,
    ) -> None:
        """`calls` are held, by query, while sinks are called: deliveries that follow one another have the same."""
        self.filesystem, self.patience_s, self.most_bytes, self.leaves = filesystem, patience_s, most_bytes, leaves
        self.leaving: dict[str, str] = {}
        """The queries that are to leave the pipeline with the next batch, and why."""
        self.left: set[str] = set()
        """The queries that have left it with a batch, because of their sinks."""
        self.require_held = require_held
        """Raises if another driver has taken the checkpoint over."""
        self.counted: Callable[[str, int, int], None] = lambda query, batch, results: None
        """Is told how many results of a query in a batch were delivered."""
        self.calls = calls if calls is not None else {}
        self.lines = {name: self._line(name, outlet) for name, outlet in outlets.items()}
        self._changed, self._stopped = threading.Condition(), False
        self._due: deque[Line] = deque()
        """Lines that wait for a thread."""
        self._paused: list[Line] = []
        """Lines that wait for their next try."""
        self._called: dict[Line, float] = {}
        """The lines that have a thread, and since when."""
        self._threads, self._is_watched = 0, False
        """How many threads make calls, and whether one looks after the lines that wait for them."""
        self._awaited, self._untried = -1, set[str]()
        """The batch whose results are waited for, and the queries of which some of it, or of a batch before it, were not
        tried yet."""
        self._files: dict[int, StagedFiles] = {}
        """For each batch of which results wait the files that hold them, but for those that one query has for itself."""
        self._offered, self._newest = 0, -1
        """How many batches were offered, and the newest one that is committed."""

    def _line(self, name: str, outlet: Outlet) -> Line:
        calling = self.calls.setdefault(name, threading.Lock())
        return Line(outlet, deliveries_in(self.filesystem, name), calling=calling)

    def add(self, name: str, outlet: Outlet) -> None:
        """Has a line for a query that comes while others run."""
        with self._changed:
            if name not in self.lines:
                self.lines = {**self.lines, name: self._line(name, outlet)}

    def forget(self, names: Iterable[str]) -> None:
        """Has no lines any more for queries that have gone, or did not come."""
        over = frozenset(names)
        with self._changed:
            self.lines = {name: line for name, line in self.lines.items() if name not in over or line.waiting}
            for name in over - self.lines.keys():
                self.calls.pop(name, None)
            self.left &= self.lines.keys()

    def leave(self) -> None:
        """The queries that were to leave have left."""
        with self._changed:
            self.left |= self.leaving.keys()
            self.leaving = {}

    def open(self, commits: Ledger[Commit]) -> None:
        """Delivers what the last driver could not, as far as it arrives within the patience. A commit that cannot be
        read is an error, whose results may wait: they would be lost in silence."""
        _require_all(self.filesystem, commits)
        arrived = {name: _last_arrived(line.arrived) for name, line in self.lines.items()}
        for _, commit in commits.history():
            self._queue(commit, arrived)
        self._require_takers()
        self._sweep()
        self._delete(self.filesystem.unfinished(FOLDER))
        self._serve(None)

    def _require_takers(self) -> None:
        """Refuses another sink than the one that files were written for."""
        for name, line in self.lines.items():
            for results in line.waiting:
                if results.has_own_files and not line.outlet.takes_files:
                    raise StateError(
                        f"the results of query {name} in batch {results.batch} are in files that were written for a parquet "
                        "sink, and have not been published: start the query with that sink once more, then with another"
                    )

    def offer(self, commit: Commit) -> None:
        """Delivers the results of a batch: within the patience, or later."""
        self._queue(commit, {})
        self._serve(commit.batch)
        self._keep_to_bound()
        self._offered += 1
        if self._offered % SWEEP_EVERY == 0:
            self._sweep()

    def _queue(self, commit: Commit, arrived: Mapping[str, int]) -> None:
        with self._changed:
            self._newest = commit.batch
            for name, line in self.lines.items():
                own = commit.staged(name)
                if own is None or not own.slots or commit.batch <= arrived.get(name, -1):
                    continue
                tokens = [(slot, commit.slots[str(slot)].token) for slot in own.slots]
                names = tuple(staged_name(commit.batch, commit.token, slot, attempt) for slot, attempt in tokens)
                has_own = own.has_own_files
                text = own.text if isinstance(own, QueryCommit) else ""
                line.append(Results(name, commit.batch, commit.token, names, own.staged_bytes, has_own, text))
                if not has_own:
                    files = self._files.setdefault(commit.batch, StagedFiles())
                    files.names.update(names)
                    files.readers.add(name)

    @property
    def waits_from(self) -> dict[str, int]:
        """The oldest batch whose results have not arrived, by query, of queries of which there is one."""
        with self._changed:
            return {name: line.waiting[0].batch for name, line in self.lines.items() if line.waiting}

    @property
    def first_waiting(self) -> int | None:
        """The oldest batch of which some results have not arrived."""
        return min(self.waits_from.values(), default=None)

    @property
    def waiting(self) -> dict[str, int]:
        """Of how many batches results have not arrived, by query."""
        with self._changed:
            return {name: len(line.waiting) for name, line in self.lines.items()}

    @property
    def failing(self) -> dict[str, Exception]:
        """The sinks that fail, by query."""
        with self._changed:
            return {name: line.error for name, line in self.lines.items() if line.error is not None}

    # -- serving lines -----------------------------------------------------------------------------------------------

    def _serve(self, batch: int | None) -> None:
        """Has lines served. Returns when the results of a batch (None: all) have arrived or failed, or patience ends."""
        if self.patience_s is None:
            for line in self.lines.values():
                while line.waiting and self._try(line):
                    pass
            return
        with self._changed:
            self._awaited = self._newest if batch is None else batch
            for line in self.lines.values():
                if line.waiting and not line.is_served:
                    line.is_served = True
                    self._due.append(line)
            self._untried = {name for name, line in self.lines.items() if not self._is_tried(line)}
            if self._due:
                self._start_thread()
            until_s = monotonic() + self.patience_s
            while self._untried and not self._stopped and (left_s := until_s - monotonic()) > 0:
                self._changed.wait(left_s)

    def _start_thread(self) -> None:
        """Has one more thread make calls, unless there are enough."""
        if self._threads < MOST_CALLS:
            self._threads += 1
            threading.Thread(target=self._work, name="deliver", daemon=True).start()

    def _is_tried(self, line: Line) -> bool:
        return line.error is not None or not line.waiting or line.waiting[0].batch > self._awaited

    def _tell(self, query: str, line: Line) -> None:
        """Wakes who waits, if something of a line that was just tried may have been waited for."""
        if self._is_tried(line):
            self._untried.discard(query)
        if not self._untried:
            self._changed.notify_all()

    def _work(self) -> None:
        """Makes calls while lines wait for a thread."""
        while (line := self._taken()) is not None:
            try:
                has_arrived = self._try(line)
            except BaseException as error:  # a function may have asked its thread to exit
                has_arrived = self._failed(line, SinkError(f"{type(error).__name__}: {error}"))
            self._put_back(line, has_arrived)

    def _taken(self) -> Line | None:
        """The line that a thread serves now; None if it is not needed any more."""
        with self._changed:
            line = None if self._stopped else self._first_due()
            if line is None:
                self._threads -= 1
            else:
                self._due.remove(line)
                self._called[line] = monotonic()
            if (self._due or self._paused) and not self._is_watched and not self._stopped:
                self._is_watched = True
                threading.Thread(target=self._watch, name="deliver", daemon=True).start()
            return line

    def _first_due(self) -> Line | None:
        """The line that is to have the next thread. One whose sink is slow waits while others that are have enough."""
        assert self.patience_s is not None
        late_s = monotonic() - self.patience_s
        slow = sum(line.is_slow or since_s < late_s for line, since_s in self._called.items())
        return next((line for line in self._due if not line.is_slow or slow < MOST_SLOW), None)

    def _put_back(self, line: Line, has_arrived: bool) -> None:
        """Has a line wait for its next turn, after a call."""
        assert self.patience_s is not None
        with self._changed:
            now_s = monotonic()
            line.is_slow = now_s - self._called.pop(line) > self.patience_s
            if self._stopped or not line.waiting:
                line.is_served = False
            elif has_arrived:
                self._due.append(line)
            else:
                line.again_s = now_s + min(FIRST_PAUSE_S * 2 ** (line.tries - 1), LONGEST_PAUSE_S)
                self._paused.append(line)

    def _watch(self) -> None:
        """Has lines not wait long for a thread, nor longer than they are to for their next try."""
        with self._changed:
            while not self._stopped and (self._due or self._paused):
                now_s = monotonic()
                wait_s = min((line.again_s - now_s for line in self._paused), default=LOOK_S)
                if self._threads < MOST_CALLS and self._first_due() is not None:
                    wait_s = HELP_S
                self._changed.wait_for(lambda: self._stopped, timeout=max(0.0, min(wait_s, LOOK_S)))
                now_s = monotonic()
                self._due.extend(line for line in self._paused if line.again_s <= now_s)
                self._paused = [line for line in self._paused if line.again_s > now_s]
                if not self._stopped and self._first_due() is not None:
                    self._start_thread()
            self._is_watched = False

    def _try(self, line: Line) -> bool:
        """Tries to deliver what is first in line; whether it has arrived."""
        results = line.waiting[0]
        try:
            with line.calling:
                is_over = self._stopped  # while the call of another delivery was waited for
                if is_over:
                    return False
                self.require_held()
                began_s = monotonic()
                count = line.outlet.take(results)
            if self._stopped:
                return False  # whoever comes next may have begun to deliver the same: it is theirs to note
            if monotonic() - began_s > (self.patience_s or 0.0):
                self.require_held()  # and so it is where the lease was lost in a long call
            line.arrived.write(results.batch, Delivered(results.batch, results.token))
        except Exception as error:
            return self._failed(line, error)
        with self._changed:
            line.pop()
            over = self._read(results)
            self._tell(results.query, line)
        if count is not None:
            self.counted(results.query, results.batch, count)
        # What cannot be deleted now does no harm: a sweep finds files, the next driver finds records.
        with contextlib.suppress(Exception):
            before, line.noted = line.noted, results.batch
            if before is None:
                line.arrived.prune(results.batch)
            else:
                line.arrived.drop(before)
            self._delete(over)
        return True

    def _failed(self, line: Line, error: Exception) -> bool:
        """Notes why what is first in line has not arrived."""
        with self._changed:
            now_s = monotonic()
            if not line.tries:
                line.failed_s = now_s
            line.error, line.tries, line.tried_s = error, line.tries + 1, now_s - line.failed_s
            self._tell(line.waiting[0].query, line)
        return False

    def _read(self, results: Results) -> Collection[str]:
        """The files that nobody waits for any more, now that a query has its results."""
        files = self._files.get(results.batch)
        if files is None:
            return ()
        files.readers.discard(results.query)
        return () if files.readers else self._files.pop(results.batch).names

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete(f"{FOLDER}/{name}")

    def _sweep(self) -> None:
        """Deletes files of committed batches that nobody waits for: those of attempts that lost, and of drivers that died
        after they had delivered."""
        with self._changed:
            named = {name for files in self._files.values() for name in files.names}
        over = [n for n in self.filesystem.list(FOLDER) if (batch := batch_of(n)) is not None and batch <= self._newest]
        self._delete(name for name in over if name not in named)

    # -- bounds and ends ---------------------------------------------------------------------------------------------

    def _keep_to_bound(self) -> None:
        """Waits for slow sinks while too much waits. Where what waits for others fits, sinks that were tried in vain for a
        while stop the pipeline, or have their queries leave: first the one for which most waits."""
        with self._changed:
            while not self._stopped:
                lines = {name: line for name, line in self.lines.items() if name not in self.left | self.leaving.keys()}
                too_many = sum(line.bytes for line in lines.values()) - self.most_bytes
                if too_many <= 0:
                    return
                errors = dict(self._failing())
                in_vain = {name: line.bytes for name, line in lines.items() if self._is_tried_in_vain(line)}
                if sum(in_vain.values()) < too_many:
                    self._changed.wait(timeout=1.0)
                    continue
                name = max(in_vain, key=in_vain.__getitem__)
                if name not in self.leaves:
                    raise errors[name]
                self.leaving[name] = str(errors[name])

    def _is_tried_in_vain(self, line: Line) -> bool:
        """Whether calls of a sink fail, and have for some time. Without threads nobody makes one again before the next
        batch."""
        return line.error is not None and (self.patience_s is None or line.tried_s >= TRIED_S)

    def _failing(self) -> Iterator[tuple[str, Exception]]:
        """The queries that have not left the pipeline and whose sinks fail, and what is told of it."""
        for name, line in self.lines.items():
            if isinstance(line.error, CheckpointBusyError):
                raise line.error
            if line.error is not None and name not in self.left:
                kind = "" if isinstance(line.error, AnabranchError) else f"{type(line.error).__name__}: "
                times = "once" if line.tries == 1 else f"{line.tries} times"
                told = SinkError(
                    f"the sink of query {name} ({line.outlet.name}) has failed {times} in batch {line.waiting[0].batch}: "
                    f"{kind}{line.error}\nwhat waits for it is delivered at the next start"
                )
                told.__cause__ = line.error
                yield name, told

    def finish(self, within_s: float | None = None) -> None:
        """Waits until all has arrived, when no batch comes any more. A sink that fails is tried again for so long
        (`FINISH_S`), then its error is raised, unless its query has left with a batch: that is told where it left."""
        until_s = monotonic() + (FINISH_S if within_s is None else within_s)
        if self.patience_s is None:
            self._serve(None)
        with self._changed:
            while any(line.waiting for line in self.lines.values()) and not self._stopped:
                if monotonic() >= until_s or self.patience_s is None:
                    for _, error in self._failing():
                        raise error
                    if not any(line.waiting for name, line in self.lines.items() if name not in self.left):
                        break
                self._changed.wait(timeout=0.1)
        self._sweep()

    def stop(self) -> None:
        """Makes no more calls. One that runs is left alone."""
        with self._changed:
            self._stopped = True
            for line in (*self._due, *self._paused):
                line.is_served = False
            self._due.clear()
            self._paused.clear()
            self._changed.notify_all()


def _last_arrived(arrived: Ledger[Delivered]) -> int:
    """The last batch whose results have arrived, -1 if none have. A record that a crash has torn is none, also if it is the
    first of all, of whatever batch: the files of its results are there, and they are delivered again."""
    return max((number for number, _ in arrived.whole()), default=-1)


def _require_all(filesystem: Filesystem, commits: Ledger[Commit]) -> None:
    """Refuses commits of which the first ones are missing, though results of them have not arrived. What has arrived of a
    query that left is not known for ever; so only of those that run it is told."""
    if (latest := commits.latest()) is None:
        return
    first, newest = commits.numbers()[0], latest[1]
    for name, batch in newest.waits_from.items():
        if batch < first and name in newest.queries and _last_arrived(deliveries_in(filesystem, name)) < batch:
            raise damaged(commits.path(batch), f"it is missing, and results of {name} in it have not arrived")


def set_aside_waiting(filesystem: Filesystem, commits: Ledger[Commit]) -> dict[str, int]:
    """The names under which rows that were set aside have not arrived, each with the first batch."""
    _require_all(filesystem, commits)
    names = {name for _, commit in commits.history() for name in commit.set_aside}
    waiting = {name: first_waiting(filesystem, commits, name) for name in sorted(names)}
    return {name: batch for name, batch in waiting.items() if batch is not None}


def first_waiting(filesystem: Filesystem, commits: Ledger[Commit], query: str) -> int | None:
    """The first batch whose results of a query have not arrived."""
    _require_all(filesystem, commits)
    for number, commit in commits.history(after=_last_arrived(deliveries_in(filesystem, query))):
        if (own := commit.staged(query)) is not None and own.slots:
            return number
    return None
