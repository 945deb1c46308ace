"""Tasks that do not go well: put in the place of `anabranch.spark.pipeline.Task`, they make trouble at their first attempt.

`TroubledTask` fails in all ways that a task can; `LethalTask` takes its whole executor with it.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext

from anabranch.drive.staging import Result, Staging
from anabranch.spark.task import Task, batch_of

TROUBLES = ("before", "after", "halfway", "twice", "killed", "slow", "none")


@dataclass(frozen=True)
class TroubledTask(Task):
    """What happens at the first attempt depends on batch and slot, so that a run meets everything; it is noted in a file."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = batch_of(context)
        trouble = TROUBLES[(batch + 3 * context.partitionId()) % len(TROUBLES)]
        if context.attemptNumber() > 0 or trouble == "none":
            yield from super().__call__(batches)
            return
        given = list(batches)
        self.filesystem.put(f"troubles/{trouble}-{batch}-{context.partitionId()}", [b""])
        if trouble == "before":
            raise OSError("the task fails before it does anything")
        if trouble == "slow":
            time.sleep(0.5)
        if trouble == "twice":  # as if a copy had run to its end elsewhere, and lost
            list(super().__call__(iter(given)))
        if trouble == "halfway":
            yield from halfway(self, _fail)(iter(given))
        made = super().__call__(iter(given))
        if trouble in ("after", "killed"):
            list(made)
            if trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the task fails after all its work")
        yield from made


def _fail() -> None:
    raise OSError("the task fails after its first results")


@dataclass(frozen=True)
class CutStaging(Staging):
    """Has something happen when the first results are on their way to a file, or when there are none."""

    then: Callable[[], None] = _fail

    def stage(self, name: str, results: Iterable[Result], mixed: Collection[str] = ()) -> dict[str, int]:
        return super().stage(name, self._cut(results), mixed)

    def _cut(self, results: Iterable[Result]) -> Iterator[Result]:
        for result in results:
            yield result
            break
        self.then()
        yield from results


def halfway(task: Task, then: Callable[[], None]) -> Task:
    """A task in the middle of which something happens."""
    staging = CutStaging(task.staging.filesystem, task.staging.own_files, then)
    fields = {field.name: getattr(task, field.name) for field in dataclasses.fields(Task)}
    return Task(**{**fields, "staging": staging})


KILLS = {(1, 0): "after", (2, 1): "before", (4, 0): "halfway"}
"""When a task kills its executor, by batch and slot."""


@dataclass(frozen=True)
class LethalTask(Task):
    """Kills the JVM of its executor with -9, before its work, after its first results, or after all of it. With the executor
    go its Python workers with the boxes they keep, its shuffle files, and whatever else it ran. Each kill happens once,
    whichever attempt of whichever stage comes first, and is noted in a file that names the executor."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch, slot = batch_of(context), context.partitionId()
        moment = KILLS.get((batch, slot))
        if moment is None or self.filesystem.list(f"killed/{batch}-{slot}"):
            yield from super().__call__(batches)
            return
        executor = executor_pid()
        self.filesystem.put(f"killed/{batch}-{slot}/{moment}-{executor}", [b""])
        if moment == "halfway":
            list(halfway(self, partial(os.kill, executor, signal.SIGKILL))(batches))
        elif moment == "after":
            list(super().__call__(batches))
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)  # the worker ends when it notices that its executor is gone


def executor_pid() -> int:
    """The process of the executor that this worker belongs to: the first Java among those that started it."""
    pid = os.getppid()
    while "java" not in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid
