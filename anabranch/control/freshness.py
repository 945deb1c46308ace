"""The clock that the freshness of results is told by (001, definition 2): it stands in the control record of each batch.

Example, `trades [RANGE 10 MINUTES FRESHNESS 12 MINUTES]`: a result of a batch whose clock is 12:00 has no trade of before
11:48. By the *event* clock nothing of streams in order is suppressed while freshness is as long as the window; by the *wall*
clock, a run that has fallen behind by more than two minutes suppresses what would be too old when it is delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.control.records import Commit, QueryCommit
from anabranch.errors import SessionError
from anabranch.plan.lengths import instant_text
from anabranch.plan.overload import Clock
from anabranch.plan.query import BEGINNING_US, Query, Stream


def next_clock(query: Query, clock: Clock, base: Commit | None, planned_us: int) -> int:
    """The clock of a query in the batch after a commit, that was first planned at some time of the driver's clock; also
    where the batch was begun by another clock and runs again: of a batch without a commit nobody has seen results.

    The wall clock never goes back, though the driver's may. The event clock follows from event times alone, which do not go
    back either; so where a run went by the wall clock and the next goes by event times, it is where event times are."""
    if all(i.freshness_us is None for i in query.inputs):
        return BEGINNING_US
    if clock is Clock.WALL:
        own = base.queries.get(query.name) if base is not None else None
        return max(own.clock_us, planned_us) if own is not None else planned_us
    streams = {s.name for s in query.base_sources if isinstance(s, Stream)}
    seen = base.largest_time_us if base is not None else {}
    return min((seen.get(name, BEGINNING_US) for name in streams), default=BEGINNING_US)


FAR_US = 365 * 86_400_000_000
"""Event times that are so far behind the wall clock are not late: they are of another age, or in another unit."""


def require_near(query: Query, shown: Collection[str], seen: Mapping[str, int], clock_us: int) -> None:
    """Refuses the wall clock for a stream that shows rows and is years behind: by that clock all their results would be too
    old, for ever. `shown` are the streams that have rows in a batch, `seen` the largest times through it."""
    for i in query.inputs:
        name = i.source.name
        if i.freshness_us is None or name not in shown:
            continue
        largest_us = seen[name]
        if largest_us + i.freshness_us + FAR_US < clock_us:
            raise SessionError(
                f"query {query.name}: the rows of {name} are of {instant_text(largest_us)} at most, and the clock says "
                f"{instant_text(clock_us)}: by the wall clock all results would be suppressed as too old. For rows of the "
                'past, tell freshness by their own times: overload=ab.Overload(clock="event"), in a script OVERLOAD \'fall '
                "behind\' CLOCK EVENT, on the command line --clock event"
            )


def all_too_old(query: Query, commit: Commit) -> str:
    """What is told of a batch that gives nothing because all of it is too old: all rows of a stream that came in time, or
    all results that were found. Nothing, if it is not so."""
    own = commit.queries[query.name]
    if own.statistics.results:
        return ""
    old = _too_old_streams(query, own)
    if not (own.statistics.stale_results or old):
        return ""
    what = f"all rows of {' and '.join(old)}" if old else f"all {own.statistics.stale_results:,} results"
    asked = [i.source.name for i in query.inputs if i.freshness_us is not None]
    seen = {name: commit.largest_time_us[name] for name in old or asked if name in commit.largest_time_us}
    times = ", ".join(f"the newest row of {name} is of {instant_text(us)}" for name, us in seen.items())
    return f"{what} of batch {commit.batch} are too old by the clock, {instant_text(own.clock_us)}: {times}"


def none_too_old(query: Query, commit: Commit) -> bool:
    """Whether a batch gives results, and suppresses none as too old."""
    own = commit.queries[query.name]
    return bool(own.statistics.results) and not own.statistics.stale_results and not _too_old_streams(query, own)


def _too_old_streams(query: Query, own: QueryCommit) -> list[str]:
    """The streams of whose rows in a batch some are not late, and all are too old."""
    found = []
    for name, each in sorted(own.statistics.sources.items()):
        fresh_us = [i.freshness_us for i in query.inputs if i.source.name == name]
        limits = [own.clock_us - us for us in fresh_us if us is not None]
        came = each.rows - each.late_rows - each.early_rows - each.untimed_rows - each.shed_rows
        if came > 0 and limits and len(limits) == len(fresh_us) and each.largest_time_us is not None:
            found += [name] if each.largest_time_us < min(limits) else []
    return found
