"""Slices that are cut anew from batch to batch under a driver that dies: a batch that runs again cuts rows as it did before,
and no result is missing, wrong or repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.control.loop import Joining, Observed, Recut, SliceRemark, Slices
from anabranch.control.records import Control
from anabranch.drive.driver import Driver
from anabranch.drive.runner import Computed
from anabranch.plan.actions import CutSlices
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from tests.support.faulty import Fault
from tests.support.scenarios import properties
from tests.support.simulation import Simulation

WINDOWS_S = (1, 2, 3, 5)


class Restless:
    """Has rows be cut in another way after each batch."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def at_start(self) -> Sequence[Recut]:
        return [self._cut(source) for source in "ab"]

    def after(
        self, joins: Sequence[Joining], slices: Slices, observed: Mapping[str, Observed]
    ) -> Sequence[Recut | SliceRemark]:
        assert {source for join in joins for source in join.sources.values()} == {"a", "b"}
        return [self._cut(source) for source in "ab" if self.rng.integers(3)]

    def _cut(self, source: str) -> Recut:
        chosen = tuple(s * 1_000_000 for s in WINDOWS_S if self.rng.integers(2))
        return Recut(CutSlices(source, chosen), "at random")


@dataclass
class Cutting(Simulation):
    """The drivers have slices cut at random; each has other ones in mind."""

    cut: dict[tuple[int, str], dict[str, tuple[int, ...]]] = field(default_factory=dict)
    """How the rows of each batch were cut, by its number and its token."""

    def make(self, steerings: Any, files: Any, holder: Any) -> Driver:
        made = super().make(steerings, files, holder)
        made.slicer = Restless(self.lives)
        return made

    def work(self, driver: Driver, run: str, kept: Any, rows: Any, control: Control) -> Computed:
        before = self.cut.setdefault((control.batch, control.token), dict(control.slices))
        assert before == control.slices, "a batch that runs again cuts as before"
        assert control.slices, "as is decided"
        return super().work(driver, run, kept, rows, control)

    def check(self, what: str = "") -> None:
        super().check(what)
        for commit, _ in self.steps:
            assert commit.slices == self.cut[commit.batch, commit.token]


def queries() -> list[Query]:
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    for number, window_s in enumerate(WINDOWS_S):
        where = f"a.k = b.k AND a.x > {2 * number} AND b.x < {9 - number}"
        script += f"CREATE QUERY q{number} AS SELECT a.x, b.x AS y FROM a, b WHERE {where} WINDOW {window_s} SECONDS;"
    return [declared.query for declared in parse_script(script).queries]


def batches(seed: int, count: int = 7) -> list[dict[str, pa.Table]]:
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        rows = {}
        for stream in "ab":
            times = np.sort(rng.integers(number * 1_000_000, (number + 1) * 1_000_000, 12))
            columns = {"k": rng.integers(0, 4, 12), "x": rng.integers(0, 10, 12), "ts": pa.array(times, pa.timestamp("us"))}
            rows[stream] = pa.table(columns)
        found.append(rows)
    return found


def check_cutting(seed: int, slots: int, workers: int, to_files: bool, faults: Mapping[int, Fault]) -> None:
    Cutting(queries(), batches(seed), {}, (), slots, to_files, faults, workers=workers).check()


KINDS = st.sampled_from(["lose", "tear", "crash_after"]).map(lambda kind: Fault(kind))  # type: ignore[arg-type]
FAULTS = st.dictionaries(st.integers(5, 200), KINDS, max_size=4)

test_cutting_and_dying, test_cutting_and_dying_long = properties(
    check_cutting, 20, 800, seed=st.integers(0, 99), slots=st.sampled_from([1, 2, 3]), workers=st.sampled_from([1, 2]),
    to_files=st.booleans(), faults=FAULTS,
)  # fmt: skip


def test_what_a_driver_decides_holds_after_its_death() -> None:
    """The driver dies before it commits a batch: the next one runs it with the slices that it was begun with."""
    calm = Cutting(queries(), batches(1), {})
    calm.check()
    commits = [put for put, path in enumerate(calm.world.puts) if "/commit/" in path]
    for put in commits[::2]:
        run = Cutting(queries(), batches(1), {}, faults={put: Fault("lose")})
        run.check(f"commit {put} is lost")
        numbers = [number for number, _ in run.computed]
        assert len(numbers) == len(set(numbers)) + 1, "one batch ran again"


class Once(Restless):
    """Has rows be cut in one way for good."""

    def after(
        self, joins: Sequence[Joining], slices: Slices, observed: Mapping[str, Observed]
    ) -> Sequence[Recut | SliceRemark]:
        return ()


class CutOnce(Cutting):
    def make(self, steerings: Any, files: Any, holder: Any) -> Driver:
        made = super().make(steerings, files, holder)
        made.slicer = Once(self.lives)
        return made


def test_what_a_batch_was_begun_with_holds_for_those_after_it() -> None:
    """The first batch is begun, and its commit lost. The next driver would cut in another way, had none been decided on."""
    calm = CutOnce(queries(), batches(1), {})
    calm.check()
    (first,) = {str(slices) for slices in calm.cut.values()}
    lost = next(put for put, path in enumerate(calm.world.puts) if "/commit/" in path)
    run = CutOnce(queries(), batches(1), {}, faults={lost: Fault("lose")})
    run.check()
    assert run.lives == 2
    assert {str(slices) for slices in run.cut.values()} == {first}
    assert str({source: Restless(1)._cut(source) for source in "ab"}) != str({s: Restless(2)._cut(s) for s in "ab"})
