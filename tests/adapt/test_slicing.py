"""The loop of slices: rows of a source are cut in another way when what is measured says so, and no result changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.arbiter import FREE_WORTH, WORTH
from anabranch.adapt.slicing import (
    EVERY_BATCHES,
    FIRST_BATCHES,
    Seen,
    SlicingKnowledge,
    SlicingLoop,
    kept_bytes,
    measured_loads,
)
from anabranch.cost.units import DEFAULT
from anabranch.drive.driver import joining_of
from anabranch.drive.local import LocalPipeline
from anabranch.optimize.planner import show_bytes
from anabranch.share.slice_cost import SourceLoad
from anabranch.share.source_chain import chain_of, told_chain
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.two_windows import KEYS, LIMITS, batch, queries

DEAR = 1e-9
"""A price of bytes at which a slice is worth some 160 KB."""


class Sliced:
    """Both queries with a loop of slices, beside the same with slices by the rule."""

    def __init__(self, byte_cores: float = DEAR, most_bytes: float = float("inf"), disk: MemoryFilesystem | None = None):
        self.known, self.disk = SlicingKnowledge(DEFAULT, byte_cores, most_bytes), disk or MemoryFilesystem()
        self.ruled = LocalPipeline(queries(), MemoryFilesystem())
        self.number, self.passing = 0, 0.02
        self.restart()

    def restart(self) -> None:
        self.pipeline = LocalPipeline(queries(), self.disk, slicer=SlicingLoop(self.known))

    def run(self, until: int, passing: Callable[[int], float]) -> None:
        while self.number < until:
            rows = batch(self.number, passing(self.number))
            found, expected = (run.step(self.number, rows) for run in (self.pipeline, self.ruled))
            for name, step in found.items():
                assert not oracle.difference(oracle.bag(step.results), oracle.bag(expected[name].results))
            self.number += 1

    @property
    def events(self) -> list[str]:
        journal = self.pipeline.driver.queries["short"].journal
        return [entry.event for entry in journal.entries() if entry.event in ("slicing", "sliced", "kept", "proposed")]

    @property
    def slices(self) -> dict[str, tuple[int, ...]]:
        return self.pipeline.driver.slices


def test_few_rows_for_long_are_cut_apart_and_many_are_not():
    """While two rows of a hundred are wanted for long, they have a slice of their own; when nearly all are, one slice is
    enough, and when few are again, so it is again."""
    run = Sliced()
    run.run(14, lambda number: 0.02)
    assert "a" not in run.slices, "the rule has a slice for each of them already"
    assert run.events[0] == "kept"
    run.run(40, lambda number: 0.98)
    assert run.slices["a"] == (LIMITS["long"],)
    run.run(70, lambda number: 0.02)
    assert run.slices["a"] == (LIMITS["short"], LIMITS["long"])
    assert "sliced" in run.events, "what came of it is told"
    assert run.events.count("slicing") == 2, "it does not go to and fro"


def test_other_slices_need_not_be_worth_as_much_as_another_plan():
    """The way there costs nothing. One slice takes between 0.9 and 0.95 of what two take, and is gone over to."""
    run = Sliced()
    run.run(FIRST_BATCHES + 2 * EVERY_BATCHES + 1, lambda number: 0.8)
    entries = run.pipeline.driver.queries["short"].journal.entries()
    (details,) = [each.details for each in entries if each.event == "slicing"]
    share = (details["cpu"] + DEAR * details["memory"]) / (details["cpu_before"] + DEAR * details["memory_before"])
    assert WORTH < share < FREE_WORTH
    assert run.slices["a"] == (LIMITS["long"],)


def test_noise_changes_nothing():
    run, rng = Sliced(), np.random.default_rng(3)
    run.run(60, lambda number: float(rng.choice([0.0, 0.01, 0.05])))
    assert run.slices == {}
    assert run.events.count("slicing") == 0


def test_bytes_that_are_worth_nothing_are_not_cut_apart():
    run = Sliced(byte_cores=0.0)
    run.run(FIRST_BATCHES + EVERY_BATCHES, lambda number: 0.02)
    assert run.slices == {}, "one look is not enough"
    run.run(FIRST_BATCHES + 2 * EVERY_BATCHES, lambda number: 0.02)
    assert run.slices["a"] == (LIMITS["long"],), "a slice costs more than the pairs that it spares"


def test_memory_that_is_short_is():
    """The same where bytes are worth nothing, but may not be more than there are."""
    run = Sliced(byte_cores=0.0, most_bytes=1_000.0)
    run.run(20, lambda number: 0.02)
    assert run.slices.get("a", (LIMITS["short"], LIMITS["long"])) == (LIMITS["short"], LIMITS["long"])


def test_a_driver_that_is_started_anew_goes_on_with_the_slices():
    run = Sliced(byte_cores=0.0)
    run.run(20, lambda number: 0.02)
    decided = dict(run.slices)
    run.restart()
    assert run.slices == decided == run.pipeline.driver.newest.slices
    run.run(24, lambda number: 0.02)
    assert run.pipeline.controls.read(23).slices == decided


def test_what_was_measured():
    run = Sliced()
    run.run(26, lambda number: 0.25)
    loop, lead = run.pipeline.driver.slicer, run.pipeline.driver.queries["long"]
    assert isinstance(loop, SlicingLoop)
    run.pipeline.driver._lead()
    joining = joining_of(lead)
    assert joining is not None
    assert joining.windows_us == {"a": tuple(LIMITS.values())[::-1], "b": tuple(LIMITS.values())[::-1]}
    load, units = measured_loads(loop.state.seen, [joining], DEFAULT)["a"]
    assert load.windows_us == tuple(LIMITS.values())
    assert sum(load.wanted_per_s) == pytest.approx(600, rel=0.05)
    assert load.wanted_per_s[1] / sum(load.wanted_per_s) == pytest.approx(0.25, rel=0.2)
    assert sum(load.probes_per_s) == pytest.approx(600, rel=0.05), "each row of b looks a up"
    assert load.probes_per_s[1] == pytest.approx(600, rel=0.05), "and is wanted for long"
    assert load.match == pytest.approx(1 / KEYS, rel=0.25)
    assert load.indexes == 1
    assert units.batch_s == pytest.approx(1.0, rel=0.1)


def test_a_change_waits_for_approval():
    run = Sliced(byte_cores=0.0)
    for query in run.pipeline.driver.queries.values():
        query.needs_approval = True
    run.run(20, lambda number: 0.02)
    assert "a" not in run.slices
    assert run.events.count("proposed") == 1, "it is told once"
    assert run.pipeline.driver.queries["short"].approve()
    run.run(21, lambda number: 0.02)
    assert run.slices["a"] == (LIMITS["long"],)
    assert run.pipeline.controls.read(20).slices == {"a": (LIMITS["long"],)}
    assert run.events[-1] == "slicing"


def test_what_is_decided_at_the_start_holds_from_the_first_batch():
    load = SourceLoad("a", tuple(LIMITS.values()), (100.0, 100.0), (0.0, 200.0), 0.0, 24.0)
    chain = chain_of(load, DEFAULT, byte_cores=0.0)
    pipeline = LocalPipeline(queries(), MemoryFilesystem(), slicer=SlicingLoop(SlicingKnowledge(DEFAULT), [chain], False))
    pipeline.step(0, batch(0, 0.5))
    assert pipeline.controls.read(0).slices == {"a": (LIMITS["long"],)}
    (told,) = [e for e in pipeline.driver.queries["short"].journal.entries() if e.event == "slicing"]
    (kept,) = chain.slices
    size = f"{kept.rows:,.0f} rows, {show_bytes(kept.bytes)}"
    assert told.text.startswith(f"from batch 0 on rows of a are kept for 20 seconds ({size}), pull-up: one slice")
    assert told.details["slices_us"] == [LIMITS["long"]]
    assert told.details["read_by"] == [["short", "long"]]


def test_the_journal_tells_what_slices_hold_and_who_reads_them():
    load = SourceLoad("a", tuple(LIMITS.values()), (100.0, 50.0), (0.0, 200.0), 0.0, 24.0)
    chain = chain_of(load, DEFAULT, byte_cores=1.0)
    pipeline = LocalPipeline(queries(), MemoryFilesystem(), slicer=SlicingLoop(SlicingKnowledge(DEFAULT), [chain], False))
    pipeline.step(0, batch(0, 0.5))
    (told,) = [e for e in pipeline.driver.queries["short"].journal.entries() if e.event == "slicing"]
    short_s, long_s = (us / 1e6 + DEFAULT.slack_s for us in LIMITS.values())
    assert told.details["slices_us"] == [*LIMITS.values()]
    assert told.details["rows"] == pytest.approx([100 * short_s, 50 * long_s])
    entry = 24.0 + DEFAULT.index_bytes
    assert told.details["bytes"] == pytest.approx([100 * short_s * entry, 50 * long_s * entry])
    assert sum(told.details["bytes"]) == pytest.approx(chain.cost.memory)
    assert told.details["read_by"] == [["short"], ["short", "long"]], "a query reads what is kept as long as its window"


def test_a_slice_between_windows_has_the_rows_that_are_wanted_no_longer():
    """Also one that is kept shorter than anybody wants its rows: its reader has gone."""
    load = SourceLoad("a", (10_000_000, 60_000_000), (100.0, 50.0), (0.0, 200.0), 0.0, 24.0)
    made = told_chain(load, DEFAULT, (5_000_000, 30_000_000, 60_000_000))
    assert [(each.limit_us, each.rows_per_s) for each in made.slices] == [
        (5_000_000, 0.0), (30_000_000, 100.0), (60_000_000, 50.0)
    ]  # fmt: skip
    assert [each.rows for each in made.slices] == pytest.approx(
        [0.0, 100 * (10 + DEFAULT.slack_s), 50 * (60 + DEFAULT.slack_s)]
    )


def test_streams_whose_names_begin_alike_keep_bytes_of_their_own():
    """An index over `s ordered` by a hash is called as one over `s` in an order would be."""
    script = "".join(f'CREATE STREAM "{name}" (k BIGINT, ts TIMESTAMP) TIME ts;' for name in ("s", "s ordered"))
    script += 'CREATE QUERY q AS SELECT a.k FROM s AS a, "s ordered" AS b WHERE a.k = b.k WINDOW 9 SECONDS;'
    pipeline = LocalPipeline([declared.query for declared in parse_script(script).queries], MemoryFilesystem())
    times = pa.array(range(50), pa.timestamp("us"))
    rows = {"s": pa.table({"k": range(50), "ts": times}), "s ordered": pa.table({"k": [1], "ts": times[:1]})}
    own = pipeline.step(0, rows)["q"].statistics
    seen, size = Seen(0, {"q": own}), {state.name: state.bytes for state in own.states}
    for name in ("s", "s ordered"):
        assert kept_bytes(seen, name) == own.sources[name].state_bytes + size[f"{name} by ({name}.k)"]
