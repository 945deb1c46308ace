"""Monitoring of load (001, section 4.4): what a batch has shown of the time it took, of the time that it may take, and of
the lookups that give results.

Example, a trigger of one second: batch 7 was planned one second after batch 6, brought what streams had in that second, and
took 1.4 s, 0.9 s of it for lookups that give results. So it took 1.4 seconds for each second of arrival; the next one is
planned 1.4 s after it and brings 1.4 s of rows.

How long rows took to arrive is told by the driver's clock from batch to batch, and by event times where these fall behind
it: a source that hands out so many files a trigger, and has more, brings less than a second of event time in a second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.control.loop import Load
from anabranch.control.records import STAGE, Commit, SlotCommit
from anabranch.control.statistics import rows_by_source

LEAST_CPU_S = 0.02
"""Tasks that take less CPU do not tell how much longer than that they run."""

SHORTEST_S = 0.001
"""Rows take as long as this to arrive at least."""

Way = tuple[str, str]
"""The lookups of one input where results are found: by query and alias."""


@dataclass(frozen=True)
class Probing:
    """The lookups of one input that give results, in a slot."""

    arrived: float = 0.0
    """Rows of the input."""
    rows: float = 0.0
    """Rows that came to the join that gives results: combined with others on their way, or those of the input."""
    probed: float = 0.0
    results: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Probing) -> Probing:
        return Probing(
            self.arrived + other.arrived, self.rows + other.rows, self.probed + other.probed,
            self.results + other.results, self.cpu_s + other.cpu_s,
        )  # fmt: skip


@dataclass(frozen=True)
class SlotLoad:
    """What a task did in a batch."""

    cpu_s: float = 0.0
    ways: Mapping[Way, Probing] = field(default_factory=dict)

    @property
    def own_s(self) -> float:
        """What everything but lookups that give results took."""
        return max(0.0, self.cpu_s - sum(each.cpu_s for each in self.ways.values()))

    def only(self, queries: Collection[str]) -> SlotLoad:
        """Without the lookups of other queries that give results."""
        ways = {way: each for way, each in self.ways.items() if way[0] in queries}
        return SlotLoad(self.own_s + sum(each.cpu_s for each in ways.values()), ways)


@dataclass(frozen=True)
class Sample:
    """A batch with rows."""

    batch: int
    planned_s: float
    seconds: float
    arrival_s: float
    """How long its rows took to arrive: for so long it may take, if the pipeline is to keep up."""
    gap_s: float
    """The time from when the batch before it was planned."""
    seen_s: float
    """The largest event times of its streams, their mean by rows."""
    rows: int
    slots: Mapping[int, SlotLoad]
    backlog_rows: int | None = None
    kept: float = 1.0
    """The share of rows that was not shed."""
    stretch: float | None = None
    """How much longer than their CPU tasks ran: others want the same cores. None where that is not known."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.arrival_s

    def only(self, queries: Collection[str]) -> Sample:
        """As if nobody had looked up for other queries."""
        return replace(self, slots={slot: each.only(queries) for slot, each in self.slots.items()})


@dataclass(frozen=True)
class Before:
    """What is remembered of the batch before: where time begins for the next."""

    planned_s: float
    seen_s: Mapping[str, float]
    age_s: float
    """How far its event times were behind the driver's clock."""


def measured(
    load: Load, before: Before | None, interval_s: float | None, is_live: bool
) -> tuple[Sample | None, Before | None]:
    """What a batch has shown; nothing, if it brought no rows. `is_live`: its rows come as time goes by, and are not
    history."""
    rows = rows_by_source(load.commit)
    seen = {name: us / 1e6 for name, us in load.commit.largest_time_us.items()}
    weights = {name: count for name, count in rows.items() if name in seen and count}
    if not weights:
        return None, before
    whole, planned_s = sum(weights.values()), load.planned_us / 1e6
    seen_s = sum(seen[name] * count for name, count in weights.items()) / whole
    now = Before(planned_s, {**(before.seen_s if before is not None else {}), **seen}, planned_s - seen_s)
    if before is None:
        return None, now
    gap_s = max(SHORTEST_S, planned_s - before.planned_s)
    if is_live:
        # A source that is handed out slowly falls behind the clock: its rows took less time to come than the clock says.
        arrival_s = min(gap_s, gap_s - (now.age_s - before.age_s))
    else:
        shown = [(seen[name] - before.seen_s[name]) * weights[name] for name in weights if name in before.seen_s]
        arrival_s = sum(shown) / whole
    # A batch that is over before the next trigger has all the time there is.
    arrival_s = max(arrival_s, interval_s or 0.0, SHORTEST_S)
    shed, stage_ns = load.commit.shed.values(), _stage_ns(load.commit)
    slots = {int(slot): _slot(each, stage_ns) for slot, each in load.commit.slots.items()}
    sample = Sample(
        load.commit.batch, planned_s, load.seconds, arrival_s, gap_s, seen_s, sum(rows.values()),
        slots, load.backlog_rows, min(shed, default=1.0), _stretch(load.commit, slots),
    )  # fmt: skip
    return sample, now


def _stage_ns(commit: Commit) -> float:
    """What a result takes when it is encoded and written: without the lookup that found it, it would not be."""
    counted = [own.statistics for own in commit.queries.values()]
    results = sum(each.results for each in counted)
    return sum(each.cpu_ns.get(STAGE, 0) for each in counted) / results if results else 0.0


def _stretch(commit: Commit, slots: Mapping[int, SlotLoad]) -> float | None:
    """How much longer than its CPU the slowest task ran, as far as tasks tell the one and take enough of the other."""
    parts = [own.statistics.slowest_ns for own in commit.queries.values()]
    wall_s = max((each.get("wall step", 0) + each.get("wall stage", 0) for each in parts), default=0) / 1e9
    cpu_s = max((slot.cpu_s for slot in slots.values()), default=0.0)
    return max(1.0, wall_s / cpu_s) if wall_s and cpu_s >= LEAST_CPU_S else None


def _slot(commit: SlotCommit, stage_ns: float) -> SlotLoad:
    ways, staged_ns = {}, 0.0
    for query, limited in commit.limited.items():
        for alias, each in limited.items():
            staged_ns += each.results * stage_ns
            cpu_s = (each.cpu_ns + each.results * stage_ns) / 1e9
            ways[query, alias] = Probing(each.arrived or each.rows, each.rows, each.probed, each.results, cpu_s)
    return SlotLoad((commit.cpu_ns + staged_ns) / 1e9, ways)


def stage_s(slots: Sequence[float], cores: float) -> float:
    """How long tasks take that need so much CPU each, on so many cores.

    >>> stage_s([3.0, 1.0], 2), stage_s([2.0, 2.0, 2.0, 2.0], 2)
    (3.0, 4.0)
    """
    return max(max(slots, default=0.0), sum(slots) / cores)
