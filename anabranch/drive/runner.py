"""Takes each trigger through the protocol: which batch it stands for, what is computed, what is only delivered.

Who calls it knows how tasks run and where results go (`anabranch.spark.host`, or a test that has no Spark). The rules are
those of `anabranch.control.resume`: a batch whose commit is whole is never run again. If its results have not arrived, they
are delivered from the files that tasks staged; results that are not in files are computed once more, for delivery alone,
from the commit before: the commit stays as it is, and the state that the tasks write then is named by none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic, perf_counter
from typing import Any, Protocol

from anabranch.control.records import Attempt, Commit, Control, Statistics
from anabranch.control.resume import REMEDY, Meaning
from anabranch.control.watermark import next_watermark
from anabranch.drive.driver import Driver
from anabranch.errors import StateError


@dataclass(frozen=True)
class Computed:
    """What the tasks of a batch have made."""

    attempts: Sequence[Attempt]
    results: Any
    """What a sink gets that takes no files."""
    staged: tuple[str, ...] | None
    """Files with the results, if the sink publishes files."""
    seen_elsewhere: Statistics | None = None
    """What was counted of rows that never reached a task."""


Tasks = Callable[[Control], AbstractContextManager[Computed]]
"""Runs the tasks of a batch over the rows at hand. What they have made can be read within the block."""


class Delivery(Protocol):
    """Where results go: files that are published, exactly once, or else whatever takes them, at least once."""

    def staging(self) -> Any:
        """Where tasks write files to; None if the sink takes none."""

    def publish(self, files: Sequence[str], number: int, token: str) -> None: ...

    def deliver(self, results: Any, number: int) -> None: ...


def nothing(trigger: int) -> None:
    """There is nothing to do before a commit."""


class Runner:
    """Runs the batches of a driver, one at a time. `keep` is called before a commit is written, with the trigger: what must
    be there if the commit is; `note` after a batch, with the plan it ran under and how long its parts took."""

    def __init__(
        self,
        driver: Driver,
        sink: Delivery,
        note: Callable[[Commit, str, dict[str, float]], None] = lambda commit, plan, wall_s: None,
        keep: Callable[[int], None] = nothing,
        is_acknowledged_later: bool = False,
    ) -> None:
        self.driver, self.sink, self.note, self.keep = driver, sink, note, keep
        self.is_acknowledged_later = is_acknowledged_later
        """Whether results have arrived only when the next trigger comes: until then they can be asked for again."""
        self._one_at_a_time = threading.Lock()
        """Held by whoever runs a batch: the thread that brings triggers, or the one of a closing step."""
        self._rests_since_s = monotonic()
        """When the last batch was over."""

    def settle(self, no_rows: Callable[[], Tasks]) -> None:
        """Before the first trigger: what waits is delivered, and a closing step that was cut short runs to its end."""
        with self._one_at_a_time:
            commit, standing = self.driver.newest, self.driver.standing
            if commit is not None and standing.waits:
                before = self.driver.commits.read(commit.batch - 1) if commit.batch > 0 else None
                is_closing = before is not None and before.trigger == commit.trigger
                if is_closing or self._can_publish(commit):
                    self._deliver_again(no_rows)
            if standing.is_cut_short:
                self._run(no_rows(), standing.trigger)

    def step(self, trigger: int, tasks: Tasks) -> None:
        """Runs the batch that a trigger brought; or delivers the newest one, if it is that one's."""
        with self._one_at_a_time:
            newest, standing = self.driver.newest, self.driver.standing
            if self.is_acknowledged_later and newest is not None and standing.waits and trigger == standing.trigger + 1:
                self.driver.delivered(newest)
            if self.driver.standing.meaning(trigger) is Meaning.RUN:
                self._run(tasks, trigger)
            elif self.driver.standing.waits:
                self._deliver_again(lambda: tasks)

    def close(self, no_rows: Callable[[], Tasks]) -> None:
        """A closing step: a batch without rows, for what the last rows have made final."""
        with self._one_at_a_time:
            commit = self.driver.newest
            if commit is not None and not self.driver.distribution.needs_no_exchange:
                self._run(no_rows(), commit.trigger)

    def close_if_paused(self, no_rows: Callable[[], Tasks], idle_s: float, is_done: Callable[[int], bool]) -> bool:
        """A closing step, if nothing has come for a while, the source has recorded that the last trigger is done, and a
        batch without rows would make anything final. Whether it was made."""
        if not self._one_at_a_time.acquire(blocking=False):
            return False
        try:
            driver, commit = self.driver, self.driver.newest
            is_idle = monotonic() >= self._rests_since_s + idle_s
            if commit is None or driver.standing.waits or driver.distribution.needs_no_exchange or not is_idle:
                return False
            watermark_us = next_watermark(driver.query, commit, int(driver.clock() * 1_000_000))
            if watermark_us <= commit.watermark_us or not is_done(commit.trigger):
                return False
            self._run(no_rows(), commit.trigger)
            return True
        finally:
            self._one_at_a_time.release()

    def _run(self, tasks: Tasks, trigger: int) -> None:
        driver, marks = self.driver, [perf_counter()]
        base, control = driver.newest, driver.begin(trigger)
        marks.append(perf_counter())
        with tasks(control) as computed:
            marks.append(perf_counter())
            self.keep(trigger)
            commit = driver.commit(control, computed.attempts, computed.staged, computed.seen_elsewhere)
            marks.append(perf_counter())
            self._deliver(commit, computed)
        marks.append(perf_counter())
        ran, spent_s = driver.plan_text, [after - before for before, after in pairwise(marks)]
        driver.after(base, commit)
        self.note(commit, ran, dict(zip(("control", "tasks", "commit", "deliver"), spent_s, strict=True)))
        self._rests_since_s = monotonic()

    def _deliver(self, commit: Commit, computed: Computed) -> None:
        """Delivers the results of a batch, and records that they have arrived."""
        if computed.staged is not None:
            self.sink.publish(computed.staged, commit.batch, commit.token)
        else:
            self.sink.deliver(computed.results, commit.batch)
        if not self.is_acknowledged_later:
            self.driver.delivered(commit)

    def _deliver_again(self, tasks: Callable[[], Tasks]) -> None:
        """Delivers the newest batch: from its files, or computed once more from the commit before it."""
        driver, commit = self.driver, self.driver.newest
        assert commit is not None, "a batch that waits is committed"
        if self._can_publish(commit):
            self.sink.publish(commit.staged or (), commit.batch, commit.token)
            driver.delivered(commit)
            return
        control = driver.controls.read(commit.batch)
        if control.token != commit.token:
            paths = driver.controls.path_of(commit.batch), driver.commits.path_of(commit.batch)
            raise StateError(f"{paths[0]} is not what {paths[1]} was made from: {REMEDY}")
        with tasks()(control) as computed:
            self._deliver(commit, computed)

    def _can_publish(self, commit: Commit) -> bool:
        return self.sink.staging() is not None and commit.staged is not None
