"""A block on its way from a database to the engine (`anabranch.plan.migration.Folding`): its stored rows become groups piece
by piece, while the database still gives its results.

What comes in a batch is folded with it. What came before the block set out is folded segment by segment, the newest first,
for as long as the pause allows: what ends before its turn comes is never folded. Of a block that joins, the database joins a
segment of the first input with all older rows of the others, and what is new of each input with the others as a join without
groups does (`anabranch.engine.mig_box.JoinMigBox`): so every combination is folded once. Groups pass over the instants that
the database gives. When all slots have folded everything the engine goes on with the groups
(`anabranch.control.execution.execution_after`).

Each segment's groups are stored as partial rows of its batch, as if the engine had folded it then, and the state of the slot
names the batch from which on all is folded: whoever goes on from a commit goes on from there.

Example: the block sets out in batch 8, with rows of the batches 3 to 7 in its window. Batch 8 folds its own rows and the
segments of 7 and 6, batch 9 its own and the segment of 5; those of 4 and 3 have ended by then. Batch 10 is the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time_ns
from typing import TYPE_CHECKING

from anabranch.control.records import Preparing
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.reader import InputState
from anabranch.engine.rebuild import Pause
from anabranch.engine.stand_in import Spans
from anabranch.plan.migration import Folding
from anabranch.plan.query import Table

if TYPE_CHECKING:
    from anabranch.engine.mig_box import MigBox


class Homecoming:
    """What the groups of a block have, and the work at them."""

    def __init__(self, box: MigBox, folding: Folding) -> None:
        self.box, self.folding = box, folding
        self.folded = folding.since
        """All that came in this batch or later is in the groups."""
        self._done = Preparing()

    @property
    def _groups(self) -> Aggregator:
        assert self.box.aggregator is not None, "a block on its way home has groups"
        return self.box.aggregator

    @property
    def _inputs(self) -> Sequence[InputState]:
        """The inputs of the block, streams first: tables have all their rows in one segment."""
        return sorted(self.box.reader.inputs, key=lambda i: isinstance(i.source, Table))

    def advance(self, batch: int, watermark_us: int) -> None:
        """Folds what came in a batch, and older rows for as long as is allowed."""
        began, self._done = thread_time_ns(), Preparing()
        self._fold_new(batch)
        self._fold_old(Pause(self.folding.pause_us))
        self._groups.pass_over(watermark_us)
        self._done.cpu_ns = thread_time_ns() - began

    def finish(self) -> None:
        """Folds all that is left, in one go."""
        self.box.look_at_all()
        self._fold_old(Pause(None))

    def tell(self, done: Preparing) -> None:
        """Tells what the batch did, and what is left to do."""
        done.unfolded += len(self._left())
        done.pieces, done.cpu_ns = done.pieces + self._done.pieces, done.cpu_ns + self._done.cpu_ns

    def _left(self) -> list[int]:
        """The batches whose segments of the first input must still become groups, the newest first."""
        found = self.box.batches_of(self._inputs[0])
        return sorted((batch for batch in found if batch < self.folded), reverse=True)

    def _fold_new(self, batch: int) -> None:
        """What is new of an input meets what inputs ahead of it have by now, and those behind it had before."""
        inputs, now, until_now, before = self._inputs, (batch, batch + 1), (0, batch + 1), (0, batch)
        for place, i in enumerate(inputs):
            others = {j.alias: until_now if other < place else before for other, j in enumerate(inputs)}
            self._take({**others, i.alias: now})
        self._groups.settle(batch)

    def _fold_old(self, pause: Pause) -> None:
        first, *others = self._inputs
        for batch in self._left():
            self._take({**{i.alias: (0, self.folding.since) for i in others}, first.alias: (batch, batch + 1)})
            self._groups.settle(batch)
            self.folded = batch
            self._done.pieces += 1
            if pause.is_spent:
                return

    def _take(self, spans: Spans) -> None:
        self.box.fold_into(self._groups, spans)
