"""What holds state back: rows of a stream that wait for a watermark which lags behind those of others who read it.

Queries over other streams have watermarks of their own (`anabranch.engine.slices.lagging` says which of them lag). Rows that
somebody may still want by one that lags are kept until it comes; nobody is told that by results, only by state that grows.

Example: whole joins trades, quotes and orders, part trades and quotes. No order has come for an hour. 36,000 trades wait for
whole that would be over, because of orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from anabranch.control.records import Commit, Held
from anabranch.plan.identity import streams_key
from anabranch.plan.lengths import length_text
from anabranch.plan.query import BEGINNING_US, Query, Stream

MOST_NAMED = 3
"""So many queries are named in a text."""


class Holding(msgspec.Struct, frozen=True):
    """Rows of a stream that wait for the watermark of some queries."""

    source: str
    queries: list[str]
    """Those that hold them back: they are over the same streams, and have one watermark."""
    stream: str
    """The stream of theirs that is furthest behind."""
    rows: int
    """Rows that would be over if the watermark did not lag."""
    bytes: int
    free_rows: int = 0
    """Rows that are kept apart from these, because nobody wants them by that watermark: they do not wait."""
    behind_us: int | None = None
    """How far the watermark is behind the foremost one by which rows of the source are kept; None: there is none yet."""

    def __str__(self) -> str:
        more = len(self.queries) - MOST_NAMED
        names = ", ".join(self.queries[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        why = f"{self.stream} has shown no row yet"
        if self.behind_us is not None:
            seconds_us = max(1, round(self.behind_us / 1e6)) * 1_000_000
            why = f"{self.stream} is behind, the watermark by {length_text(seconds_us)}"
        free = f"; {self.free_rows:,} others do not" if self.free_rows else ""
        return f"{self.rows:,} rows of {self.source} ({self.bytes:,} bytes) wait for {names}, as {why}{free}"


QUIET_BATCHES = 32
"""After so many batches in which nothing waited it is told that nothing does: a watermark that lags now and then, by just as
much, does not fill a journal."""


class Told:
    """What waits, and what was told of it."""

    def __init__(self) -> None:
        self.now: Sequence[Holding] = ()
        """What the last batch left behind."""
        self._most: dict[tuple[str, str], tuple[Holding, int]] = {}
        """Of what was told: where most rows waited, and how many batches ago some last did; by source and query."""

    def after(self, held: Sequence[Holding]) -> list[tuple[Holding, str, str]]:
        """Takes note of a batch: what there is to tell, and under which event."""
        self.now, said = held, []
        there = {(each.source, each.queries[0]): each for each in held}
        for key, each in there.items():
            most, _ = self._most.get(key, (None, 0))
            if most is None:
                said.append((each, "held back", str(each)))
            self._most[key] = each if most is None or each.rows > most.rows else most, 0
        for key in self._most.keys() - there.keys():
            most, quiet = self._most[key]
            self._most[key] = most, quiet + 1
            if quiet + 1 >= QUIET_BATCHES:
                del self._most[key]
                text = f"no rows of {most.source} wait for {most.queries[0]} any more; {most.rows:,} did at most"
                said.append((most, "released", text))
        return said


def held_back(queries: Iterable[Query], commit: Commit) -> list[Holding]:
    """What a batch has left behind that waits for a watermark which lags."""
    counted = {whose: held for whose, held in _counted(commit).items() if held.waiting}
    if not counted:
        return []
    sharing: dict[str, list[Query]] = {}
    for query in queries:
        if query.name in commit.queries:
            sharing.setdefault(streams_key(s.name for s in _streams(query)), []).append(query)
    watermarks = {streams: commit.queries[own[0].name].watermark_us for streams, own in sharing.items()}
    found = []
    for (source, streams), held in counted.items():
        if streams not in sharing:
            continue  # they have left
        over = [key for key, own in sharing.items() if any(s.name == source for s in _streams(own[0]))]
        foremost_us, own_us = max(watermarks[key] for key in over), watermarks[streams]
        names, stream = [query.name for query in sharing[streams]], _furthest(sharing[streams][0], commit)
        behind_us = foremost_us - own_us if own_us > BEGINNING_US else None
        size = _bytes(commit, source, held.waiting)
        found.append(Holding(source, names, stream, held.waiting, size, held.free, behind_us))
    return found


def _counted(commit: Commit) -> dict[tuple[str, str], Held]:
    """What tasks have counted, by source and by the streams of the watermark: each slot tells it of one query."""
    found: dict[tuple[str, str], Held] = {}
    for own in commit.queries.values():
        for source, counts in own.statistics.sources.items():
            for streams, held in counts.held.items():
                found[source, streams] = found.get((source, streams), Held()) + held
    return found


def _streams(query: Query) -> list[Stream]:
    return [source for source in query.base_sources if isinstance(source, Stream)]


def _furthest(query: Query, commit: Commit) -> str:
    """The stream of a query that is furthest behind."""
    seen = commit.largest_time_us
    return min(_streams(query), key=lambda s: seen[s.name] - s.lateness_us if s.name in seen else BEGINNING_US).name


def _bytes(commit: Commit, source: str, rows: int) -> int:
    """What some rows of a log take, if they are as others are."""
    counts = [own.statistics.sources[source] for own in commit.queries.values() if source in own.statistics.sources]
    state_rows = max((each.state_rows for each in counts), default=0)
    return round(rows * max(each.state_bytes for each in counts) / state_rows) if state_rows else 0
