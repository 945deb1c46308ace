"""What a worker keeps follows what it was given, and is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from anabranch.drive.kept import MOST_RUNS, RECENT_BATCHES, STALE_BATCHES, Kept
from anabranch.drive.local import LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SCRIPT = """
    CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS] WHERE a.k = b.k"""


def rows(second: int) -> pa.Table:
    return pa.table({"k": range(8), "ts": pa.array([second * 1_000_000] * 8, pa.timestamp("us"))})


def boxes(batch: int) -> Any:
    return SimpleNamespace(batch=batch)


def test_boxes_of_many_pipelines_are_gone_on_from() -> None:
    """20 pipelines of two slots take turns at one worker."""
    query, worker = parse_script(SCRIPT).queries[0].query, Kept()
    runs = [LocalRun(query, MemoryFilesystem(), slots=2) for _ in range(20)]
    before: list[object] = []
    for number in range(3):
        for run in runs:
            run.worker = worker
            run.step(number, {"a": rows(number), "b": rows(number)})
        now = [run.pipeline.slot(slot) for run in runs for slot in range(2)]
        assert None not in now
        assert not before or all(one is other for one, other in zip(now, before, strict=True))
        before = [*now]


def test_of_a_run_the_slots_are_kept_that_the_worker_had_of_late() -> None:
    kept = Kept()
    for batch in range(4 * RECENT_BATCHES):
        for slot in (0, batch // RECENT_BATCHES + 1):
            kept.keep("run", slot, "", boxes(batch))
    assert [slot for _, slot, _ in kept] == [0, 4]


def test_a_run_that_is_over_goes_and_one_with_few_batches_stays() -> None:
    kept, others = Kept(), 7
    for batch in range(5):
        kept.keep("over", 0, "", boxes(batch))
    for batch in range(STALE_BATCHES * (others + 3)):
        for other in range(others):
            kept.keep(f"run {other}", 0, "", boxes(batch))
        if batch % (STALE_BATCHES // 2) == 0:
            kept.keep("slow", 0, "", boxes(batch))
            assert ("over" in kept.runs) == (batch <= STALE_BATCHES)
        assert "slow" in kept.runs
    assert len(kept.runs) == others + 1


def test_runs_are_never_too_many() -> None:
    kept = Kept()
    for run in range(3 * MOST_RUNS):
        kept.of(f"run {run}").forms.clear()  # of which no batch came to its end
        assert len(kept.runs) <= MOST_RUNS
    assert f"run {3 * MOST_RUNS - 1}" in kept.runs
