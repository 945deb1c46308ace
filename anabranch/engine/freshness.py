"""Results that would be too old: a row in them is older, by the clock of its query, than the user wants (001, definition 2).

What no query that reads a stream may have in a result by the clock of the batch in which it comes is turned away. (The wall
clock never goes back. Where the next run goes by event times, a row that was turned away is missing.) A row that another
query still wants is stored, and kept in views; it does not look up results for the query that it is too old for. Results in
which it is found by a newer row are suppressed where they would leave the root.

Mostly nothing is too old, and no row need be looked at for it. A combination ends with the first of its rows, so a row of an
input with window d is no older than the end of the combination less d; and what a batch finds ends after its watermark.
Example: windows of 10 minutes, freshness 12 minutes, the clock 12:00, the watermark 11:59. All that is found ends after
11:59, so no row in it is of before 11:49, and 11:48 is the limit: nothing is asked. Were the watermark 11:55, pieces of
results would be asked for the least of their ends, and those with one before 11:58 for the times of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anabranch.engine.combination import Combination
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Query

if TYPE_CHECKING:
    from anabranch.engine.box import Box
    from anabranch.engine.reader import Reader


@dataclass(frozen=True)
class Oldest:
    """The oldest time that a row of an input may have in a result."""

    alias: str
    time_us: int
    window_us: int

    def may_be_missed(self, end_us: int) -> bool:
        """Whether a row may be older in a combination that ends then."""
        return self.window_us == FOREVER_US or end_us - self.window_us < self.time_us


def oldest_times(query: Query, clock_us: int, watermark_us: int) -> tuple[Oldest, ...]:
    """For the inputs of which rows may be too old in results of a batch: how old they may be."""
    if clock_us == BEGINNING_US:
        return ()
    limits = (
        Oldest(i.alias, clock_us - i.freshness_us, i.window.length_us)
        for i in query.inputs
        if i.freshness_us is not None
    )
    return tuple(each for each in limits if watermark_us == BEGINNING_US or each.may_be_missed(watermark_us + 1))


def fresh(box: Box, rows: Combination, limits: Iterable[Oldest]) -> Combination:
    """The results, or rows that are to find some, in which no row is too old."""
    for each in limits:
        if each.alias in rows.ids and len(rows) and each.may_be_missed(int(rows.ends.min())):
            in_time = box.log_of(each.alias).times(rows.ids[each.alias]) >= each.time_us
            rows = rows if in_time.all() else rows.where(in_time)
    return rows


def useful_from_us(source: str, readers: Iterable[Reader], clocks_us: Mapping[str, int]) -> int:
    """Rows of a stream of before this time are of no use to any of those who read it."""
    found = []
    for reader in readers:
        clock_us = clocks_us.get(reader.query, BEGINNING_US)
        for i in reader.graph.query.inputs:
            if i.source.name == source:
                is_any = i.freshness_us is None or clock_us == BEGINNING_US
                found.append(BEGINNING_US if is_any else clock_us - (i.freshness_us or 0))
    return min(found, default=BEGINNING_US)


def count_between(times_us: npt.NDArray[np.int64], first_us: int, end_us: int) -> int:
    """How many times are at or after one and before another."""
    return int(((times_us >= first_us) & (times_us < end_us)).sum()) if end_us > first_us else 0
