"""What a worker keeps between batches: for each run the boxes of the slots that it was given, and what it read of queries.

A worker serves as many pipelines as there are, each with as many slots as it has, so what it keeps follows what it was
given, and not a number of boxes:

- of a run the slots that this worker ran in one of the last `RECENT_BATCHES` batches: another worker has the others by now,
  and boxes that are farther behind are hardly worth catching up;
- the runs that go on: one goes when as many batches of others have come as if each kept run had had `STALE_BATCHES` since.
  A pipeline with few batches stays beside one with many; what a session has left behind that was stopped does not;
- never more than `MOST_RUNS`.

What was let go is attached again from what the commit names.

Example: 40 pipelines of two slots run one after the other in a worker. It keeps 80 boxes, and each next batch goes on from
them. The session is stopped, and another with one pipeline begins: its batches go on from its own two boxes, and after
64 · 41 of them the first of the 40 runs is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.control.records import ExecutionRecord
from anabranch.drive.shipped import Shelf
from anabranch.engine.slot import Slot
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution

RECENT_BATCHES = 16
STALE_BATCHES = 64
MOST_RUNS = 256

Executions = dict[str, tuple[ExecutionRecord, Execution]]
"""For each query the execution that was last read, and its record."""

ANY_SLOT = -1
"""In the place of a slot: the boxes of a pipeline that needs no exchange, which do for any."""


@dataclass
class KeptRun:
    """What a worker keeps of a run."""

    boxes: dict[int, tuple[str, Slot]] = field(default_factory=dict)
    """For each slot the token of the attempt that left its boxes, and the boxes."""
    forms: dict[str, Forms] = field(default_factory=dict)
    executions: Executions = field(default_factory=dict)
    batch: int = -1
    """The last batch of which this worker ran a slot."""
    seen: int = 0
    """How many batches of all runs the worker had seen by then."""


@dataclass
class Kept:
    """What a worker keeps between batches, by run."""

    shelf: Shelf = field(default_factory=Shelf)
    """Tables in databases."""
    runs: dict[str, KeptRun] = field(default_factory=dict)
    """The one that had a batch last stands last."""
    _seen: int = 0
    """How many batches of all runs the worker has seen."""

    def of(self, run: str) -> KeptRun:
        """What is kept of a run."""
        if run not in self.runs:
            self.runs[run] = KeptRun(seen=self._seen)
            if len(self.runs) > MOST_RUNS:
                del self.runs[next(iter(self.runs))]
        return self.runs[run]

    def keep(self, run: str, slot: int, token: str, boxes: Slot) -> None:
        """Keeps the boxes of a slot that a batch has left, and lets go what is too old."""
        own = self.of(run)
        own.boxes[slot] = token, boxes
        if own.batch != boxes.batch:
            self._seen += 1
            own.batch, own.seen = boxes.batch, self._seen
            own.boxes = {n: each for n, each in own.boxes.items() if each[1].batch > own.batch - RECENT_BATCHES}
            self.runs[run] = self.runs.pop(run)
            oldest = next(iter(self.runs))
            if self._seen - self.runs[oldest].seen > STALE_BATCHES * len(self.runs):
                del self.runs[oldest]

    def forget_boxes(self) -> None:
        """Keeps no boxes: each slot is attached to what a commit names."""
        for own in self.runs.values():
            own.boxes.clear()

    def __iter__(self) -> Iterator[tuple[str, int, Slot]]:
        """The boxes that are kept, each with its run and slot."""
        for run, own in self.runs.items():
            for slot, (_, boxes) in own.boxes.items():
                yield run, slot, boxes
