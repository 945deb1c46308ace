"""Tasks that do not go well: put in the place of `anabranch.spark.host.Task`, they make trouble at their first attempt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

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
        made = super().__call__(iter(given))
        if trouble == "halfway":
            yield next(made)
            raise OSError("the task fails after its first results")
        if trouble in ("after", "killed"):
            list(made)
            if trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the task fails after all its work")
        yield from made
