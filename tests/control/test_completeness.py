"""How complete results are: sums over batches, and when nothing is missing."""

from __future__ import annotations

import math

import pytest

from anabranch.control.completeness import Completeness, completeness_of, since_adapted
from anabranch.control.progress import Progress, ProgressLog, read_progress
from anabranch.control.records import ExecutionRecord, Layout, Limit, Limited, QueryCommit, Statistics
from anabranch.storage.filesystem import MemoryFilesystem


def commit(limits: dict[str, Limit], **limited: Limited) -> QueryCommit:
    record = ExecutionRecord("(a b)")
    return QueryCommit("", "", 0, record, Layout((), ()), limits=limits, statistics=Statistics(limited=limited))


def test_all_directions_of_a_query_count_together() -> None:
    half, whole = Limited(100, 50, 300, 600.0, 25.0), Limited(80, 80, 400, 400.0)
    found = completeness_of(7, commit({"a": Limit(share=0.5)}, a=half, b=whole), False)
    assert found == Completeness(7, 700, 1000.0, 25.0)
    assert found.share == 0.7
    assert found.error == pytest.approx(0.7 * 5 / 1000)


def test_nothing_is_missing_where_nothing_is_limited_or_shed() -> None:
    whole = Limited(80, 80, 400, 400.0)
    assert completeness_of(7, commit({}, a=whole), False) is None
    assert completeness_of(7, commit({}), False) is None
    assert completeness_of(7, commit({}, a=whole), True) is not None
    shed_before = Limited(80, 80, 400, 800.0, 100.0)
    found = completeness_of(7, commit({}, a=shed_before), False)
    assert found is not None, "partners of its rows were shed in an earlier batch"
    assert found.share == 0.5


def test_a_direction_that_never_looks_up_leaves_it_unknown() -> None:
    found = completeness_of(7, commit({"a": Limit(share=0.0)}, a=Limited(100), b=Limited(80, 80, 400, 400.0)), False)
    assert found is not None
    assert found.share is None
    assert str(found + Completeness(8, 5, 5.0)) == "an unknown share of the results"
    idle = completeness_of(7, commit({"a": Limit(share=0.0)}, a=Limited(), b=Limited(80, 80, 400, 400.0)), False)
    assert idle is not None
    assert idle.share == 1.0, "no row came that might have found anything"


def test_sums_go_on_until_a_batch_is_exact() -> None:
    first, second = Completeness(3, 50, 100.0, 9.0), Completeness(4, 10, 100.0, 16.0)
    assert since_adapted(None, first) == first
    both = since_adapted(first, second)
    assert both == Completeness(3, 60, 200.0, 25.0)
    shed = Completeness(5, 20, 40.0, 4.0, covariance=6.0)
    assert both + shed == Completeness(3, 80, 240.0, 35.0), "rows that were shed are missing in several batches"
    assert shed.error == 20 / 40 * 2 / 40, "by itself a batch does not vary with others"
    counted = completeness_of(5, commit({}, a=Limited(80, 80, 20, 40.0, 4.0, covariance=6.0)), True)
    assert counted == shed
    assert both.error == pytest.approx(0.3 * math.sqrt(25.0) / 200)
    assert since_adapted(both, None) is None


def test_sums_are_kept_by_the_log_of_progress_also_from_run_to_run() -> None:
    disk = MemoryFilesystem()

    def noted(log: ProgressLog, batch: int, complete: Completeness | None) -> Completeness | None:
        made = Progress(batch, batch, "(a b)", None, {}, {}, {}, 0, 0, 0, 0, completeness=complete)
        log.note(batch, {"q": made})
        log.flush()
        return read_progress(disk, 1)["q"][-1].since_adapted

    log = ProgressLog(disk, 1)
    assert noted(log, 0, None) is None
    assert noted(log, 1, Completeness(1, 5, 10.0)) == Completeness(1, 5, 10.0)
    assert noted(log, 2, Completeness(2, 5, 10.0)) == Completeness(1, 10, 20.0)
    again = ProgressLog(disk, 2)
    assert noted(again, 3, Completeness(3, 5, 10.0)) == Completeness(1, 15, 30.0)
    assert noted(again, 4, None) is None
    assert noted(again, 5, Completeness(5, 1, 2.0)) == Completeness(5, 1, 2.0)
