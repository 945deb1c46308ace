"""The watermark of a batch, from what the batches before it have shown: one rule for every runner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.control.records import Statistics
from anabranch.plan.query import BEGINNING_US, Query, Stream


def watermark_of(query: Query, seen: Mapping[str, int]) -> int:
    """The minimum over the streams of the largest event time seen before the batch, less the lateness.

    A stream that has shown nothing yet holds it back.
    """
    streams = [s for s in query.base_sources if isinstance(s, Stream)]
    if not all(s.name in seen for s in streams):
        return BEGINNING_US
    return min((seen[s.name] - s.lateness_us for s in streams), default=BEGINNING_US)


def seen_after(seen: Mapping[str, int], reports: Iterable[Statistics]) -> dict[str, int]:
    """The largest event time of each stream, with what the slots of a batch report."""
    times = dict(seen)
    for statistics in reports:
        for name, counts in statistics.sources.items():
            if counts.largest_time_us is not None:
                times[name] = max(counts.largest_time_us, times.get(name, counts.largest_time_us))
    return times
