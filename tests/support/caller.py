"""Who has the batches of a scenario run until all are done, whatever fails on the way.

The caller is a source that remembers what it handed out and a sink that counts a batch once: after a crash it runs the
batch again that it did not see finished, and what a batch delivers again must be what it delivered before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anabranch.drive.local import LocalRun
from anabranch.errors import DamagedStateError
from anabranch.storage.filesystem import Filesystem
from tests.support import oracle
from tests.support.faulty import Crash, FaultyFilesystem
from tests.support.local_runs import assert_same, start, step
from tests.support.scenarios import Scenario


class Caller:
    """Hands out the batches of a scenario until each has been seen to finish."""

    def __init__(self, scenario: Scenario, disk: Filesystem, plans: Sequence[int], survives: bool) -> None:
        self.scenario, self.disk, self.plans, self.survives = scenario, disk, plans, survives
        self.run: LocalRun | None = None
        self.delivered: dict[int, oracle.Bag] = {}
        self.starts = 0
        self.batch = 0

    def work(self, attempts: int = 200) -> None:
        """Runs batch after batch; whatever a fault breaks is tried again, by a new process or (`survives`) by the same."""
        last = len(self.scenario.batches)
        for _ in range(attempts):
            if self.batch > last:
                return
            try:
                self._next()
            except Crash:
                if not self.survives:
                    self.run = None
            except DamagedStateError:
                # Only a write that is not visible yet can be the reason, and time heals that.
                assert isinstance(self.disk, FaultyFilesystem)
                assert self.disk._pending, "state that nothing has damaged is called damaged"
                self.disk.settle()
                if not self.survives:
                    self.run = None
        raise AssertionError(f"batch {self.batch} never ends")

    def _next(self) -> None:
        if self.run is None:
            self.run = start(self.scenario, self.disk, self.plans[self.starts % len(self.plans)])
            self.starts += 1
            assert self.run.last_batch <= self.batch, "a batch was committed that was never handed out"
            # A commit that was written but cannot be seen yet: the source goes back to what can.
            self.batch = min(self.batch, self.run.last_batch + 1)
        results = oracle.bag(step(self.run, self.scenario, self.batch).results)
        before = self.delivered.setdefault(self.batch, results)
        assert not (wrong := oracle.difference(results, before)), wrong
        self.batch += 1

    def assert_right(self) -> None:
        assert_same(sum(self.delivered.values(), Counter()), self.scenario)
