"""The clock that the freshness of results is told by (001, definition 2): it stands in the control record of each batch.

Example, `trades [RANGE 10 MINUTES FRESHNESS 12 MINUTES]`: a result of a batch whose clock is 12:00 has no trade of before
11:48. By the *event* clock nothing of streams in order is suppressed while freshness is as long as the window; by the *wall*
clock, a run that has fallen behind by more than two minutes suppresses what would be too old when it is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.control.records import Commit
from anabranch.errors import SessionError
from anabranch.plan.lengths import instant_text
from anabranch.plan.overload import Clock
from anabranch.plan.query import BEGINNING_US, Query, Stream


def next_clock(query: Query, clock: Clock, base: Commit | None, planned_us: int) -> int:
    """The clock of a query in the batch after a commit, planned at some time of the driver's clock. It never goes back."""
    if all(i.freshness_us is None for i in query.inputs):
        return BEGINNING_US
    own = base.queries.get(query.name) if base is not None else None
    before_us = own.clock_us if own is not None else BEGINNING_US
    if clock is Clock.WALL:
        return max(before_us, planned_us)
    streams = {s.name for s in query.base_sources if isinstance(s, Stream)}
    seen = base.largest_time_us if base is not None else {}
    return max(before_us, min((seen.get(name, BEGINNING_US) for name in streams), default=BEGINNING_US))


def retaken_clock(query: Query, clock: Clock, base: Commit | None, begun_us: int) -> int:
    """The clock of a query in a batch that was begun before and runs again. The wall clock stays as it was; the event clock
    follows from the commit before, whatever clock the batch was begun with: of a batch without a commit nobody has seen
    results."""
    return begun_us if clock is Clock.WALL else next_clock(query, clock, base, begun_us)


FAR_US = 365 * 86_400_000_000
"""Event times that are so far behind the wall clock are not late: they are of another age, or in another unit."""


def require_near(query: Query, base: Commit | None, seen: Mapping[str, int], clock_us: int) -> None:
    """Refuses the wall clock for a stream whose first rows are years behind it: by that clock all results would be too old,
    for ever."""
    for i in query.inputs:
        name, largest_us = i.source.name, seen.get(i.source.name)
        if i.freshness_us is None or largest_us is None or (base is not None and name in base.largest_time_us):
            continue
        if largest_us + i.freshness_us + FAR_US < clock_us:
            raise SessionError(
                f"query {query.name}: the rows of {name} are of {instant_text(largest_us)} at most, and the clock says "
                f"{instant_text(clock_us)}: by the wall clock all results would be suppressed as too old. For rows of the "
                'past, tell freshness by their own times: overload=ab.Overload(clock="event"), in a script OVERLOAD \'fall '
                "behind\' CLOCK EVENT, on the command line --clock event"
            )
