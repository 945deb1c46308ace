"""The clock that freshness is told by: it never goes back, whatever it was told by before."""

from __future__ import annotations

import pytest

from anabranch.control.freshness import FAR_US, next_clock, require_near, retaken_clock
from anabranch.control.records import Commit, ExecutionRecord, Layout, QueryCommit
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


def test_the_clock_never_goes_back() -> None:
    """Not with a stream that wakes, and not where batches came by the wall clock before and by event times now."""
    assert next_clock(query(), Clock.EVENT, None, 99) == BEGINNING_US
    assert next_clock(query(), Clock.EVENT, commit(BEGINNING_US, a=7), 99) == BEGINNING_US
    assert next_clock(query(), Clock.EVENT, commit(BEGINNING_US, a=7, b=5), 99) == 5
    assert next_clock(query(), Clock.EVENT, commit(6, a=7, b=5), 99) == 6
    assert next_clock(query(), Clock.WALL, commit(6, a=7, b=5), 99) == 99
    assert next_clock(query(), Clock.WALL, commit(100, a=7, b=5), 99) == 100
    assert next_clock(query(), Clock.EVENT, commit(99, a=120, b=98), 50) == 99


def test_a_batch_that_runs_again_has_its_clock() -> None:
    """The wall clock stays; the event clock follows from the commit before, also where the batch was begun by the wall
    clock, years away, and failed for it."""
    base = commit(6, a=9, b=8)
    assert retaken_clock(query(), Clock.WALL, base, 77) == 77
    assert retaken_clock(query(), Clock.EVENT, base, 8) == 8
    assert retaken_clock(query(), Clock.EVENT, base, 10**15) == 8


@pytest.mark.parametrize("behind_us", [FAR_US, FAR_US + 6_000_000, FAR_US + 6_000_001])
def test_event_times_of_another_age_are_refused_with_both_times(behind_us: int) -> None:
    now_us = 1_800_000_000_000_000
    seen = {"a": now_us, "b": now_us - behind_us}
    if behind_us <= FAR_US + 6_000_000:
        require_near(query(), None, seen, now_us)
        return
    with pytest.raises(SessionError) as caught:
        require_near(query(), None, seen, now_us)
    told = str(caught.value)
    assert "the rows of b are of 2026-01-15 07:59:53.999999 UTC" in told
    assert "the clock says 2027-01-15 08:00:00 UTC" in told
    assert "CLOCK EVENT" in told
    require_near(query(), commit(0, b=1), seen, now_us)  # only the first rows of a stream tell


def test_without_freshness_there_is_no_clock() -> None:
    (plain,) = parse_script(SCRIPT.replace(" FRESHNESS 6 SECONDS", "")).queries
    assert next_clock(plain.query, Clock.WALL, commit(6, a=7, b=5), 99) == BEGINNING_US
    require_near(plain.query, None, {"a": 0, "b": 0}, 10**16)
