"""The watermark of a batch, from what the batches before it have shown: one rule for every runner.

A stream that is silent holds the watermark back, unless it has an idle timeout. Example, with IDLE 30 SECONDS: at noon
`trades` has shown a row of 11:59, `quotes` nothing for a minute. The watermark follows `trades` alone. When `quotes` wakes,
it counts from the next batch on; the watermark does not go back for it, so its rows may be late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from anabranch.control.records import Commit, Statistics
from anabranch.plan.query import BEGINNING_US, Query, Stream


def watermark_of(query: Query, seen: Mapping[str, int], idle: Collection[str] = ()) -> int:
    """The minimum over the streams of the largest event time seen before the batch, less the lateness.

    A stream that has shown nothing yet holds it back. Idle ones do not count; where all are idle, those do that have ever
    shown a row: there are no others to wait for, and what these have shown is final, as it is when none is idle.
    """
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    counting = [s for s in streams if s.name not in idle] or [s for s in streams if s.name in seen]
    if not all(s.name in seen for s in counting):
        return BEGINNING_US
    return min((seen[s.name] - s.lateness_us for s in counting), default=BEGINNING_US)


def next_watermark(query: Query, base: Commit | None, planned_us: int, alike: Collection[str]) -> int:
    """The watermark of a query in the batch after a commit, planned at some time of the driver's clock. It never goes back.
    Queries over the same streams have one watermark, also one that comes while others run: `alike` are the names of those
    that the commit has over these streams. (One that is altered to read other streams has none of its own so far.)"""
    if base is None:
        return BEGINNING_US
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    idle = {s.name for s in streams if _is_idle(s, base.last_seen_us.get(s.name, planned_us), planned_us)}
    before = [own.watermark_us for name, own in base.queries.items() if name in alike]
    return max([*before, watermark_of(query, base.largest_time_us, idle)])


def _is_idle(stream: Stream, last_seen_us: int, planned_us: int) -> bool:
    return stream.idle_us is not None and planned_us - last_seen_us > stream.idle_us


def seen_after(seen: Mapping[str, int], reports: Iterable[Statistics]) -> dict[str, int]:
    """The largest event time of each stream, with what the slots of a batch report."""
    times = dict(seen)
    for statistics in reports:
        for name, counts in statistics.sources.items():
            if counts.largest_time_us is not None:
                times[name] = max(counts.largest_time_us, times.get(name, counts.largest_time_us))
    return times


def last_seen_after(
    streams: Iterable[str], base: Commit | None, reports: Iterable[Statistics], planned_us: int
) -> dict[str, int]:
    """When each stream was last seen, by the driver's clock, with what the slots of a batch report that was planned at some
    time. Rows without a time, and early ones, are no sign of life: they do not tell how far the stream has come."""
    known = base.last_seen_us if base is not None else {}
    shown = {name for r in reports for name, counts in r.sources.items() if counts.largest_time_us is not None}
    return {name: planned_us if name in shown else known.get(name, planned_us) for name in streams}
