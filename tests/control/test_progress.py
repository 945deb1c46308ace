"""The record of progress: pages that are bounded, and that nothing depends on."""

from __future__ import annotations

import pytest

from anabranch.control.progress import MOST_KEPT, PAGE_RECORDS, Progress, ProgressLog, read_progress
from anabranch.control.records import STAGE, Statistics, StepStatistics
from anabranch.storage.filesystem import MemoryFilesystem


def step(batch: int, results: int = 0, is_counted: bool = True) -> Progress:
    return Progress(batch, batch, "(a b)", None, {"a": batch}, {}, {}, results, 0, 0, 0, is_counted=is_counted, wall_s={})


def noted(disk: MemoryFilesystem, batches: range, epoch: int = 1, queries: tuple[str, ...] = ("q",)) -> ProgressLog:
    log = ProgressLog(disk, epoch, lambda: 5.0)
    for batch in batches:
        log.note(batch, {name: step(batch) for name in queries})
        log.flush()
    return log


def batches_of(disk: MemoryFilesystem, last: int = MOST_KEPT) -> list[int]:
    return [each.batch for each in read_progress(disk, last).get("q", [])]


def test_what_is_noted_is_read_by_others() -> None:
    disk = MemoryFilesystem()
    log = noted(disk, range(3))
    assert read_progress(disk) == log.by_query
    assert [each.at_s for each in read_progress(disk)["q"]] == [5.0] * 3
    assert batches_of(disk, 2) == [1, 2]
    assert read_progress(MemoryFilesystem()) == {}


@pytest.mark.few(1)
@pytest.mark.parametrize("queries", [("q",), ("q", "r", "s"), tuple("q123456789") * 4])
def test_nothing_grows_without_bound(queries: tuple[str, ...]) -> None:
    disk, most = MemoryFilesystem(), 0
    log = ProgressLog(disk, 1)
    for batch in range(2 * MOST_KEPT + 7):
        log.note(batch, {name: step(batch) for name in queries})
        log.flush()
        if batch % 50 == 0:
            most = max(most, len(disk.list("progress")))
    found = batches_of(disk)
    assert found == list(range(MOST_KEPT + 7, 2 * MOST_KEPT + 7)), "the last thousand"
    assert most <= (MOST_KEPT + PAGE_RECORDS) * min(1, (len(set(queries)) + 2) / PAGE_RECORDS) + 2
    assert max(disk.size_bytes(f"progress/{name}") for name in disk.list("progress")) < 20_000
    assert len(log.by_query["q"]) == MOST_KEPT


def test_another_driver_goes_on_with_a_page_of_its_own() -> None:
    disk = MemoryFilesystem()
    noted(disk, range(5), epoch=1)
    noted(disk, range(5, 8), epoch=2)
    assert batches_of(disk) == list(range(8))
    noted(disk, range(7, 9), epoch=1)
    assert batches_of(disk) == list(range(8)), "a driver that had lost the lease counts for nothing"


@pytest.mark.parametrize("damage", [b"", b"anabranch", b"#!/bin/sh"])
def test_a_damaged_page_is_passed_over(damage: bytes) -> None:
    disk = MemoryFilesystem()
    noted(disk, range(2 * PAGE_RECORDS))
    first, _ = disk.list("progress")
    disk.put(f"progress/{first}", [damage])
    assert batches_of(disk) == list(range(PAGE_RECORDS, 2 * PAGE_RECORDS))


def test_a_page_that_cannot_be_written_fails_nobody_and_is_written_later() -> None:
    class Full(MemoryFilesystem):
        is_full = True

        def put(self, path, parts):  # type: ignore[no-untyped-def]
            if self.is_full:
                raise OSError("no space left")
            super().put(path, parts)

    disk = Full()
    log = noted(disk, range(2))
    assert batches_of(disk) == []
    disk.is_full = False
    log.note(2, {"q": step(2)})
    log.flush()
    assert batches_of(disk) == [0, 1, 2]


@pytest.mark.parametrize("is_noted_first", [True, False])
def test_results_are_counted_when_they_are_put_together(is_noted_first: bool) -> None:
    """Delivery may be done before a batch is noted, or long after that."""
    disk, log = MemoryFilesystem(), ProgressLog(MemoryFilesystem())
    log = ProgressLog(disk)
    if not is_noted_first:
        log.count("q", 0, 3)
    log.note(0, {"q": step(0, results=6, is_counted=False)})
    if is_noted_first:
        log.note(1, {"q": step(1, results=4, is_counted=False)})
        log.count("q", 0, 3)
    log.flush()
    found = [(each.results, each.is_counted) for each in read_progress(disk)["q"]]
    assert found == ([(3, True), (4, False)] if is_noted_first else [(3, True)])


def test_the_time_of_a_trigger_is_not_that_of_a_closing_step() -> None:
    log = ProgressLog(MemoryFilesystem())
    for batch, is_closing in ((0, False), (1, True)):
        made = step(batch)
        made.trigger, made.is_closing = 0, is_closing
        log.note(batch, {"q": made})
    log.time(0, 2.5)
    log.time(9, 7.0)
    assert [each.wall_s for each in log.by_query["q"]] == [{"trigger": 2.5}, {}]


def test_the_engine_has_no_part_in_clocks_and_in_staging() -> None:
    spent = Statistics(cpu_ns={"emit": 5, "wall step": 100, STAGE: 30}, steps=[StepStatistics("a", "b", cpu_ns=2)])
    assert spent.engine_cpu_ns == 7
