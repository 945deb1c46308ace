"""Takes each trigger through the protocol: which batch it stands for, what is computed, what is only delivered.

Who calls it knows how tasks run (`anabranch.spark.host`, or a test that has no Spark). The rules are those of
`anabranch.control.resume`: a batch whose commit is whole is never run again. Its results are in files; whether they have
arrived is the concern of `anabranch.drive.delivery`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic, perf_counter

from anabranch import errors
from anabranch.control.loop import Load
from anabranch.control.pipelines import (
    COMING,
    ComingNote,
    DroppedNote,
    forget_coming,
    forget_dropped,
    noted,
    read_dropped,
    write_coming,
    write_dropped,
)
from anabranch.control.progress import Progress, ProgressLog, Waiting, progress_of
from anabranch.control.records import BY_REQUEST, Attempt, Commit, Control, Failure, Statistics
from anabranch.control.resume import Meaning
from anabranch.control.statistics import rows_by_source
from anabranch.drive.coming import Coming, admission
from anabranch.drive.delivery import Delivery
from anabranch.drive.driver import Driver
from anabranch.drive.patience import Patience
from anabranch.drive.retain import Work, at_once
from anabranch.errors import AnabranchError, DatabaseGoneError, QueryError, SessionError, SinkError, StateError
from anabranch.plan.lookups import looked_up
from anabranch.plan.migration import Execution


@dataclass(frozen=True)
class Computed:
    """What the tasks of a batch have made."""

    attempts: Sequence[Attempt]
    seen_elsewhere: Statistics | None = None
    """What was counted of rows that never reached a task."""


Tasks = Callable[[Control], Computed]
"""Runs the tasks of a batch over the rows at hand."""


def nothing(trigger: int) -> None:
    """There is nothing to do before a commit."""


def unknown() -> float | None:
    """Nobody tells what waits in sources."""
    return None


class Runner:
    """Runs the batches of a driver, one at a time. `keep` is called before a commit is written, with the trigger: what must
    be there if the commit is. `do` has the progress written: at once, or in the background. `waiting` tells which files of
    streams are not complete, `batches_waiting` how many batches like the last one wait in sources. `patience` says whether
    batches wait for databases that are gone; by default they fail."""

    def __init__(
        self,
        driver: Driver,
        delivery: Delivery,
        keep: Callable[[int], None] = nothing,
        do: Callable[[Work], None] = at_once,
        waiting: Callable[[], Mapping[str, Waiting]] = dict,
        batches_waiting: Callable[[], float | None] = unknown,
        patience: Patience | None = None,
    ) -> None:
        self.driver, self.delivery, self.keep, self._do, self._waiting = driver, delivery, keep, do, waiting
        self._batches_waiting, self.patience = batches_waiting, patience or Patience()
        self.progress = ProgressLog(driver.filesystem, driver.holder.epoch)
        delivery.counted = self.progress.count
        self._one_at_a_time = threading.Lock()
        """Held by whoever runs a batch: the thread that brings triggers, or the one of a closing step."""
        self._rests_since_s = monotonic()
        """When the last batch was over, or Spark began to look for rows."""
        self.forgotten: Callable[[Collection[str]], None] = lambda names: None
        """Is told which queries have left under this driver, long ago: no record of the pipeline has them any more."""
        self._dropped = {name: note.command for name, note in read_dropped(driver.filesystem).items()}
        """The queries that are to leave with the next batch, each with the command that asked for it."""
        self._asked: dict[str, Coming] = {}
        """The queries that are to come with the next batch."""
        self._noted = set(noted(driver.filesystem, COMING))
        """The queries of which it is noted that they are to come."""
        self._asking = threading.Lock()
        """Held by whoever asks for queries to come or to go."""
        self._is_over = False
        """Whether no more batches are run: another runner takes over."""

    def drop(self, name: str, command: str = "") -> None:
        """Has a query leave with the next batch; may be called from any thread. If the driver dies before that batch, the
        query is left out by the next one."""
        with self._asking:
            if self.driver.newest is None:
                raise SessionError(f"{name} cannot be dropped yet: its pipeline has committed no batch; wait for the first")
            if not self.driver.queries.keys() - self._dropped.keys() - {name}:
                raise SessionError(f"{name} is the last query of its pipeline: stop the run instead")
            write_dropped(self.driver.filesystem, [DroppedNote(name, command)])
            self._dropped[name] = command

    def add(self, coming: Coming, note: ComingNote, is_served: bool = True) -> None:
        """Has a query come with the next batch, or take the place of the one of its name; may be called from any thread. If
        the driver dies before that batch, or rows do not come as the query needs them here (`is_served`), it comes in with a
        batch of the next driver."""
        name = note.name
        with self._asking:
            if self.driver.newest is None:
                raise SessionError(f"{name} cannot be added yet: its pipeline has committed no batch; wait for the first")
            if name in self._dropped:
                raise SessionError(f"{name} is about to leave its pipeline: give the query another name")
            admission(coming, self.driver.standing.batch + 1, self.driver.newest, [*self.driver.queries.values()])
            self.driver.texts.keep(coming.query.texts, coming.query.text)
            write_coming(self.driver.filesystem, note)
            if is_served:
                self._asked[name] = coming
                self._noted.add(name)

    def has_carried_out(self, command: str) -> bool:
        """Whether a command was carried out, by this driver or by one before it that died before it could answer."""
        with self._asking:
            asked = {*self._dropped.values(), *(each.command for each in self._asked.values())}
            return command in asked or self.driver.has_carried_out(command)

    def take_refused(self) -> dict[str, str]:
        """The queries that could not come in when their batch began, and why; each is told once."""
        with self._asking:
            found, self.driver.refused = self.driver.refused, {}
            return found

    def end(self) -> None:
        """Runs no more batches, once the one that runs is over: another runner takes over."""
        with self._one_at_a_time:
            self._is_over = True

    def settle(self, no_rows: Callable[[], Tasks]) -> None:
        """Before the first trigger: what waits is delivered, and a closing step that was cut short runs to its end."""
        with self._one_at_a_time:
            self.delivery.open(self.driver.commits)
            if self.driver.standing.is_cut_short:
                self._run(no_rows(), self.driver.standing.trigger)

    def rest(self) -> None:
        """From now on rows may come: what the start took was no pause."""
        self._rests_since_s = monotonic()

    def step(self, trigger: int, tasks: Tasks) -> None:
        """Runs the batch that a trigger brought, unless it is committed."""
        with self._one_at_a_time:
            if self._is_over:
                raise StateError("the streaming query is about to be started anew")
            if self.driver.standing.meaning(trigger) is Meaning.RUN:
                self._run(tasks, trigger)

    def close(self, no_rows: Callable[[], Tasks]) -> None:
        """When input has ended: a closing step, a batch without rows for what the last rows have made final. All results
        have arrived then."""
        with self._one_at_a_time:
            commit = self.driver.newest
            if commit is not None and not self.driver.needs_no_exchange:
                self._run(no_rows(), commit.trigger)
            self.delivery.finish()

    def close_if_paused(self, no_rows: Callable[[], Tasks], idle_s: float, is_done: Callable[[int], bool]) -> bool:
        """A closing step, if nothing has come for a while, the source has recorded that the last trigger is done, and a
        batch without rows would make anything final. Whether it was made. A batch that the last driver began, and that is to
        come again, is waited for."""
        if not self._one_at_a_time.acquire(blocking=False):
            return False
        try:
            driver, standing = self.driver, self.driver.standing
            is_idle, commit = monotonic() >= self._rests_since_s + idle_s, standing.commit
            if commit is None or standing.begun is not None or driver.needs_no_exchange or not is_idle or self._is_over:
                return False
            if not self._would_be_final(commit) or not is_done(commit.trigger):
                return False
            self._run(no_rows(), commit.trigger)
            return True
        finally:
            self._one_at_a_time.release()

    def _would_be_final(self, commit: Commit) -> bool:
        """Whether a batch without rows would move the watermark of some query."""
        planned_us = int(self.driver.clock() * 1_000_000)
        found = self.driver.watermarks(commit, planned_us)
        return any(us > commit.queries[name].watermark_us for name, us in found.items())

    def _run(self, tasks: Tasks, trigger: int) -> None:
        driver, marks = self.driver, [perf_counter()]
        with self._asking:
            driver.coming |= self._asked
            self._asked = {}
        base, control = driver.newest, driver.begin(trigger)
        executions = {name: query.execution for name, query in driver.queries.items()}
        asked = {**dict.fromkeys(self._dropped, BY_REQUEST), **self.delivery.leaving}
        if leaving := {name: reason for name, reason in asked.items() if name in driver.queries}:
            if not driver.queries.keys() - leaving.keys():
                raise SinkError(f"all queries have left the pipeline: {'; '.join(leaving.values())}")
            control = driver.end(control, leaving, self._dropped)
        self.delivery.leave()
        marks.append(perf_counter())
        computed, waited_s = self._computed(tasks, control)
        while failed := {name: each for a in computed.attempts for name, each in a.failed.items()}:
            control = self._without(control, failed)
            computed, more_s = self._computed(tasks, control)
            waited_s += more_s
        marks.append(perf_counter())
        self.keep(trigger)
        commit = driver.commit(control, computed.attempts, computed.seen_elsewhere, self.delivery.waits_from)
        self._forget_notes()
        marks.append(perf_counter())
        self.delivery.offer(commit)
        marks.append(perf_counter())
        ran = {name: query.plan_text for name, query in driver.queries.items()}
        spent_s = [after - before for before, after in pairwise(marks)]
        load = self._load(control, commit, sum(spent_s) - waited_s, executions)
        waiting = [name for name, batches in self.delivery.waiting.items() if batches]
        self._forget(driver.after(base, commit, self.delivery.first_waiting, load, waiting))
        wall_s = dict(zip(("control", "tasks", "commit", "deliver"), spent_s, strict=True))
        if waited_s:
            wall_s |= {"tasks": wall_s["tasks"] - waited_s, "waited": waited_s}
        self._note(commit, ran, wall_s, base is not None and base.trigger == trigger)
        self.rest()

    def _computed(self, tasks: Tasks, control: Control) -> tuple[Computed, float]:
        """What the tasks of a batch make, and how long the batch has waited for a database that was gone, all in all."""
        tries, began_s, over_s = 0, perf_counter(), 0.0
        while True:
            began_try_s = perf_counter()
            try:
                computed = tasks(control)
                said = next((attempt.gone for attempt in computed.attempts if attempt.gone), "")
            except DatabaseGoneError as error:  # the driver itself asks for snapshots
                said = str(error)
            if not said:
                break
            over_s = perf_counter() - began_s
            if not self.patience.is_endless:
                raise DatabaseGoneError(said)
            tries += 1
            if tries == 1:
                text = f"batch {control.batch} waits for a database, and is tried again: {said}"
                self._tell_lookups(control, "waiting", text)
            if not self.patience.wait(tries, said):
                raise DatabaseGoneError(said)
            self.driver.holder.require_held()
        if tries:
            self.patience.waits_for, over_s = "", began_try_s - began_s
            text = f"batch {control.batch} goes on: the database is back after {over_s:.0f} s and {tries} tries"
            self._tell_lookups(control, "answered", text)
        return computed, over_s

    def _tell_lookups(self, control: Control, event: str, text: str) -> None:
        """Notes something in the journals of the queries that look rows up."""
        for query in self.driver.queries.values():
            if looked_up(query.query):
                query.tell(control.batch - 1, event, text)

    def _load(
        self, control: Control, commit: Commit, seconds: float, executions: Mapping[str, Execution]
    ) -> Load:  # fmt: skip
        """What a batch has shown of the load. What Spark does before a batch is known of the last trigger that is over."""
        waiting, rows = self._batches_waiting(), sum(rows_by_source(commit).values())
        seconds += self.progress.before_s
        backlog = round(waiting * rows) if waiting is not None else None
        return Load(commit, seconds, control.planned_us, executions, backlog)

    def _forget_notes(self) -> None:
        """Deletes the notes of queries that have come or left with the batch that is committed, or could not come."""
        with self._asking:
            over = self._noted - self._asked.keys() - self.driver.coming.keys()
            self._noted -= over
            left = self._dropped.keys() - self.driver.queries.keys()
            self._dropped = {name: command for name, command in self._dropped.items() if name not in left}
        forget_coming(self.driver.filesystem, sorted(over))
        forget_dropped(self.driver.filesystem, sorted(left))

    def _forget(self, gone: Collection[str]) -> None:
        """Lets go of queries that are out of the records."""
        if gone:
            self.delivery.forget(gone)
            # One that left at the start may run in another pipeline since.
            self.forgotten([name for name in gone if name in self.driver.has_left])

    def _note(self, commit: Commit, plans: Mapping[str, str], wall_s: dict[str, float], is_closing: bool) -> None:
        """Notes what a batch did; nobody waits until it is written."""
        for own in commit.queries.values():
            for part, spent_ns in own.statistics.slowest_ns.items():
                wall_s[part] = max(wall_s.get(part, 0.0), spent_ns / 1e9)
        found: dict[str, Progress] = {}
        waiting, undelivered = self._waiting(), self.delivery.waiting
        for name, query in self.driver.queries.items():
            made = progress_of(query.query, commit, plans[name], wall_s)
            made.waiting = {stream: files for stream, files in waiting.items() if stream in query.streams}
            made.undelivered, made.is_closing = undelivered.get(name, 0), is_closing
            made.is_counted = not query.distribution.groups_span_slots or not commit.queries[name].slots
            made.budget_bytes = query.budget_bytes
            made.held_back = [each for each in self.driver.holding.now if each.source in query.streams]
            found[name] = made
        self.progress.note(commit.batch, found)
        self._do(self.progress.flush)

    def _without(self, control: Control, failed: Mapping[str, Failure]) -> Control:
        """What a batch starts from without the queries that failed by themselves; if none is left, their error is raised."""
        if not self.driver.queries.keys() - failed.keys():
            raise error_of(next(iter(failed.values())))
        return self.driver.end(control, {name: f"{each.kind}: {each.text}" for name, each in failed.items()})


def error_of(failure: Failure) -> Exception:
    """The error that a task has reported."""
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, AnabranchError):
        return kind(failure.text)
    return QueryError(f"{failure.kind}: {failure.text}")
