"""The clock that freshness is told by, and what is told where nothing is fresh by it."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.control.freshness import FAR_US, all_too_old, next_clock, none_too_old, require_near
from anabranch.control.records import Commit, ExecutionRecord, Layout, QueryCommit, SourceStatistics, Statistics
from anabranch.errors import SessionError
from anabranch.plan.overload import Clock
from anabranch.plan.query import BEGINNING_US, Query
from anabranch.sql import parse_script

SCRIPT = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS FRESHNESS 6 SECONDS;
"""


def query() -> Query:
    (found,) = parse_script(SCRIPT).queries
    return found.query


def commit(clock_us: int, **seen: int) -> Commit:
    own = QueryCommit("", "", 0, ExecutionRecord("(a b)"), Layout(("k",), (1,), (0,)), clock_us=clock_us)
    return Commit(0, 0, {"q": own}, seen)


def test_the_wall_clock_never_goes_back() -> None:
    assert next_clock(query(), Clock.WALL, None, 99) == 99
    assert next_clock(query(), Clock.WALL, commit(6, a=7, b=5), 99) == 99
    assert next_clock(query(), Clock.WALL, commit(100, a=7, b=5), 99) == 100


def test_the_event_clock_is_where_event_times_are() -> None:
    """Whatever clock batches before went by, and also where a batch runs again that was begun by another one."""
    assert next_clock(query(), Clock.EVENT, None, 99) == BEGINNING_US
    assert next_clock(query(), Clock.EVENT, commit(BEGINNING_US, a=7), 99) == BEGINNING_US
    assert next_clock(query(), Clock.EVENT, commit(BEGINNING_US, a=7, b=5), 99) == 5
    assert next_clock(query(), Clock.EVENT, commit(10**15, a=7, b=5), 99) == 5


@pytest.mark.parametrize("behind_us", [FAR_US, FAR_US + 6_000_000, FAR_US + 6_000_001])
def test_event_times_of_another_age_are_refused_with_both_times(behind_us: int) -> None:
    now_us = 1_800_000_000_000_000
    seen = {"a": now_us, "b": now_us - behind_us}
    if behind_us <= FAR_US + 6_000_000:
        require_near(query(), "ab", seen, now_us)
        return
    with pytest.raises(SessionError) as caught:
        require_near(query(), "ab", seen, now_us)
    told = str(caught.value)
    assert "the rows of b are of 2026-01-15 07:59:53.999999 UTC" in told
    assert "the clock says 2027-01-15 08:00:00 UTC" in told
    assert "CLOCK EVENT" in told
    require_near(query(), "a", seen, now_us)  # b has no rows in the batch


def test_without_freshness_there_is_no_clock() -> None:
    (plain,) = parse_script(SCRIPT.replace(" FRESHNESS 6 SECONDS", "")).queries
    assert next_clock(plain.query, Clock.WALL, commit(6, a=7, b=5), 99) == BEGINNING_US
    require_near(plain.query, "ab", {"a": 0, "b": 0}, 10**16)


def batch(results: int, stale: int, **sources: SourceStatistics) -> Commit:
    """A batch by the clock of second 100; results may have rows of second 94 on."""
    made = commit(100_000_000, a=200_000_000, b=93_000_000)
    counted = Statistics(results=results, stale_results=stale, sources=sources)
    return msgspec.structs.replace(made, queries={"q": msgspec.structs.replace(made.queries["q"], statistics=counted)})


NEW = SourceStatistics(rows=5, largest_time_us=94_000_000)
OLD = SourceStatistics(rows=5, late_rows=4, largest_time_us=93_999_999)
LATE = SourceStatistics(rows=5, late_rows=5, largest_time_us=3_000_000)


def test_a_batch_from_which_nothing_is_given_because_it_is_too_old_is_told() -> None:
    assert not all_too_old(query(), batch(0, 0, a=NEW, b=NEW)), "nothing was found"
    assert not all_too_old(query(), batch(0, 0, a=NEW, b=LATE)), "late rows are counted as late"
    assert not all_too_old(query(), batch(1, 7, a=NEW, b=OLD)), "something is given"
    told = all_too_old(query(), batch(0, 7, a=NEW, b=NEW))
    assert told.startswith("all 7 results of batch 0 are too old by the clock, 1970-01-01 00:01:40 UTC: ")
    assert "the newest row of a is of 1970-01-01 00:03:20 UTC, the newest row of b is of 1970-01-01 00:01:33 UTC" in told
    told = all_too_old(query(), batch(0, 0, a=NEW, b=OLD))
    assert told.startswith("all rows of b of batch 0 are too old")
    assert "row of a" not in told


def test_it_is_over_when_a_batch_gives_results_and_suppresses_none() -> None:
    assert none_too_old(query(), batch(1, 0, a=NEW, b=LATE))
    assert not none_too_old(query(), batch(1, 0, a=NEW, b=OLD))
    assert not none_too_old(query(), batch(1, 1, a=NEW))
    assert not none_too_old(query(), batch(0, 0, a=NEW))
