"""How complete results are: sums over batches, and when nothing is missing."""

from __future__ import annotations

import math

import pytest

from anabranch.control.completeness import Completeness, completeness_of, missing_until_us, since_adapted
from anabranch.control.progress import Progress, ProgressLog, read_progress
from anabranch.control.records import ExecutionRecord, Layout, Limit, Limited, QueryCommit, SourceStatistics, Statistics
from anabranch.plan.query import FOREVER_US
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem


def commit(limits: dict[str, Limit], missing_until_us: int = 0, results: int = 0, **limited: Limited) -> QueryCommit:
    """Of a batch whose watermark is 0."""
    sources = {alias: SourceStatistics(rows=each.rows) for alias, each in limited.items()}
    return QueryCommit(
        "", "", 0, ExecutionRecord("(a b)"), Layout((), ()), limits=limits, missing_until_us=missing_until_us,
        statistics=Statistics(limited=limited, sources=sources, results=results),
    )  # fmt: skip


def test_all_directions_of_a_query_count_together() -> None:
    half, whole = Limited(100, 50, 300, 600.0, 25.0), Limited(80, 80, 400, 400.0)
    found = completeness_of(7, commit({"a": Limit(share=0.5)}, a=half, b=whole))
    assert found == Completeness(7, 700, 1000.0, 25.0, is_partial=True)
    assert found.share == 0.7
    assert found.error == pytest.approx(0.7 * 5 / 1000)


def test_nothing_is_missing_where_nothing_is_limited_or_shed() -> None:
    whole = Limited(80, 80, 400, 400.0)
    assert completeness_of(7, commit({}, a=whole)) is None
    assert completeness_of(7, commit({})) is None
    assert completeness_of(7, commit({"a": Limit(share=1.0)}, a=whole)) is None, "all of them look up"
    assert completeness_of(7, commit({}, 1, a=whole)) is not None
    shed_before = Limited(80, 80, 400, 800.0, 100.0)
    found = completeness_of(7, commit({}, a=shed_before))
    assert found is not None, "partners of its rows were shed in an earlier batch"
    assert found.share == 0.5


def test_a_direction_that_never_looks_up_leaves_it_unknown() -> None:
    found = completeness_of(7, commit({"a": Limit(share=0.0)}, a=Limited(100), b=Limited(80, 80, 400, 400.0)))
    assert found is not None
    assert found.share is None
    assert str(found + Completeness(8, 5, 5.0)) == "an unknown share of the results"
    idle = completeness_of(7, commit({"a": Limit(share=0.0)}, a=Limited(), b=Limited(80, 80, 400, 400.0)))
    assert idle is not None
    assert idle.share == 1.0, "no row came that might have found anything"


def test_where_nothing_was_found_of_some_rows_the_share_is_unknown() -> None:
    """None of ten rows looked up, by chance, or all partners were shed before: that is not all there is. Sums go on."""
    by_chance = completeness_of(7, commit({"a": Limit(share=0.05)}, a=Limited(10)))
    partners_shed = completeness_of(7, commit({}, 1, a=Limited(10, 10)))
    for found in (by_chance, partners_shed):
        assert found is not None
        assert (found.share, found.error, str(found)) == (None, 0.0, "an unknown share of the results")
        assert (Completeness(3, 50, 100.0, 9.0) + found).share == 0.5
    no_rows = completeness_of(7, commit({"a": Limit(share=0.05)}, 1))
    assert no_rows is not None
    assert no_rows.share == 1.0


def test_what_was_shed_is_missing_also_where_nobody_counts_what_results_stand_for() -> None:
    """The policy was changed, and rows that were shed before are missing still."""
    found = completeness_of(7, commit({}, 1, results=20))
    assert found is not None
    assert found.share is None


def test_rows_that_were_shed_are_missing_until_they_would_have_ended() -> None:
    streams = "CREATE STREAM a (ts TIMESTAMP) TIME ts; CREATE STREAM b (ts TIMESTAMP) TIME ts;"
    sql = "CREATE QUERY q AS SELECT x.ts FROM a [RANGE 5 SECONDS] x, a [RANGE 9 SECONDS] y, b [UNBOUNDED] z"
    query = parse_script(streams + sql).queries[0].query
    seen = {"a": 100, "b": 70}
    assert missing_until_us(query, (), seen, 3) == 3
    assert missing_until_us(query, ("a", "c"), seen, 3) == 9_000_100
    assert missing_until_us(query, ("a",), seen, 10_000_000) == 10_000_000, "those of before"
    assert missing_until_us(query, ("a",), {"b": 70}, 3) == 3, "of a none has come yet"
    assert missing_until_us(query, ("a", "b"), seen, 3) == FOREVER_US


def test_sums_go_on_until_a_batch_is_exact() -> None:
    first, second = Completeness(3, 50, 100.0, 9.0), Completeness(4, 10, 100.0, 16.0)
    assert since_adapted(None, first) == first
    both = since_adapted(first, second)
    assert both == Completeness(3, 60, 200.0, 25.0)
    shed = Completeness(5, 20, 40.0, 4.0, covariance=6.0)
    assert both + shed == Completeness(3, 80, 240.0, 35.0), "rows that were shed are missing in several batches"
    assert shed.error == 20 / 40 * 2 / 40, "by itself a batch does not vary with others"
    counted = completeness_of(5, commit({}, a=Limited(80, 80, 20, 40.0, 4.0, covariance=6.0)))
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
