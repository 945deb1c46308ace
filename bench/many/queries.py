"""The queries that are run together: one chain of three streams, with windows and filters of their own.

The window of the first query is 4 s, that of the last 0.5 s, and those between are spread evenly. Of three queries the
first takes all rows, the second filters the first stream, the third the last stream, by predicates that 10 to 60 % of the
rows pass. The first query has the longest window and no filter: it wants every row and every result that any other wants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.workload import SECOND_US, Workload

LONGEST_S, SHORTEST_S = 4.0, 0.5
LEAST_PASSING, MOST_PASSING = 0.10, 0.60
FILTERED = ("", "a", "c")
"""The stream that a query filters, in turn."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Steps of this share of a range, wrapped around, spread evenly however many they are."""


@dataclass(frozen=True)
class Asked:
    """A query."""

    name: str
    window_us: int
    stream: str
    """The stream whose rows it filters; empty if it takes all."""
    passing: float
    """The share of that stream's rows that pass."""

    @property
    def predicate(self) -> str:
        return f"{self.stream}.v < {self.passing}" if self.stream else ""

    def sql(self, workload: Workload, times: bool = False) -> str:
        """The query; with the event times of all rows of a result where whoever takes it needs them."""
        columns = [*workload.selected, *(f"{stream}.ts" for stream in workload.streams if times)]
        select = ", ".join(f"{column} AS {column.replace('.', '_')}" for column in columns)
        where = " AND ".join(filter(None, (workload.where, self.predicate)))
        return f"SELECT {select} FROM {', '.join(workload.streams)} WHERE {where} WINDOW {self.window_us} MICROSECONDS"


def workload_of(rate_per_s: int) -> Workload:
    """The streams: a row finds one partner in each stream it is joined with, within the longest window."""
    return Workload("3-way chain", rate_per_s, LONGEST_S, 1)


def asked(count: int) -> list[Asked]:
    """So many queries. The first is the largest, whatever their number.

    >>> [(each.window_us, each.predicate) for each in asked(3)]
    [(4000000, ''), (2250000, 'a.v < 0.41'), (500000, 'c.v < 0.22')]
    """
    step = (LONGEST_S - SHORTEST_S) / max(1, count - 1)
    found = []
    for place in range(count):
        share = round(LEAST_PASSING + (MOST_PASSING - LEAST_PASSING) * (place * GOLDEN % 1), 2)
        stream = FILTERED[place % len(FILTERED)]
        window_us = round((LONGEST_S - place * step) * SECOND_US)
        found.append(Asked(f"q{place}", window_us, stream, share if stream else 1.0))
    return found


def wanted_rows(queries: Sequence[Asked], workload: Workload, batches: int) -> int:
    """The rows that some query still wants when all batches have come: each as long as the longest window of a query whose
    filter on its stream it passes. This is the sum of theorem 4 (State-Slice) in rows, over all streams."""
    last_us = round(batches * workload.batch_s * SECOND_US)
    found = 0
    for number in range(max(0, batches - math.ceil(workload.window_s / workload.batch_s) - 1), batches):
        for stream, rows in workload.batch(number).items():
            values = rows.column("v").to_numpy()
            starts = rows.column("ts").cast(pa.int64()).to_numpy()
            longest_us = np.zeros(len(rows), np.int64)
            for query in queries:
                passes = values < query.passing if query.stream == stream else np.ones(len(rows), np.bool_)
                np.maximum(longest_us, np.where(passes, query.window_us, 0), out=longest_us)
            found += int((starts + longest_us > last_us).sum())
    return found


def digest(results: Iterable[pa.Table]) -> int:
    """A number that a multiset of results has, whatever their order."""
    found = 0
    for table in results:
        mixed = np.zeros(len(table), np.uint64)
        for column in table.columns:
            words = column.combine_chunks().to_numpy(zero_copy_only=False).view(np.uint64)
            mixed = (mixed ^ words) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        found += int(mixed.sum())
    return found % 2**64
