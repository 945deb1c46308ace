"""Analysis of load (001, section 4.4): what the next batch takes if nothing is limited, and what allowances make of it.

A batch takes what its tasks take, that of the slowest slot or all on the cores there are, and what everything else takes:
reading, the exchange, planning, the commit. Of a task's CPU only lookups that give results are limited; the rest is fixed.
So the capacity µ of a slot is what its task may take, less what is fixed there. Each slot has its own, and one slot with a
hot key does not limit the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from anabranch.adapt.load import Probing, Sample, Way, stage_s
from anabranch.overload.by_cpu import Direction, Divide

ALIKE = 1.25
"""Batches that differ in length by a smaller factor take about as long beside their tasks."""

TRUSTED = 0.25
"""Where a smaller share of rows looks up, what a lookup costs is not told by them: a part of it is the same for any number
of rows. What it cost when more did counts, if that was less."""

FORGOTTEN = 1.05
"""What a lookup cost then is taken for so much more with each batch."""

Allowances = Mapping[Way, Mapping[int, int]]
"""By query and alias, and slot: rows of the input that may look up their partners; of what is not named, all."""


NOTHING_KNOWN: Mapping[Way, float] = MappingProxyType({})


@dataclass(frozen=True)
class SlotForecast:
    """What is expected of a slot in the next batch."""

    own_s: float
    """CPU of everything but lookups that give results."""
    directions: Mapping[Way, Direction]
    """Rows that come to the joins that give results, and what looking up costs and gives."""
    arrived: Mapping[Way, float]
    """Rows of the inputs themselves."""

    @property
    def full_s(self) -> float:
        """With nothing limited but what a user pinned."""
        return self.own_s + sum(_wanted(each) for each in self.directions.values())

    def least_s(self, pilot: float) -> float:
        """With every direction limited to its pilots."""
        return self.own_s + sum(
            each.cpu_s * (pilot if each.pinned_share is None else each.pinned_share) for each in self.directions.values()
        )

    def under(self, allowances: Allowances, slot: int) -> Outcome:
        """What allowances give."""
        cpu_s, results, whole = self.own_s, dict[str, float](), dict[str, float]()
        for way, each in self.directions.items():
            share = self.share(allowances, way, slot)
            cpu_s += share * each.cpu_s
            found = each.rows * each.results_per_row
            results[way[0]] = results.get(way[0], 0.0) + share * found
            whole[way[0]] = whole.get(way[0], 0.0) + found
        return Outcome(cpu_s, results, whole)

    def share(self, allowances: Allowances, way: Way, slot: int) -> float:
        """The share of rows that may look up."""
        pinned = self.directions[way].pinned_share
        if pinned is not None:
            return pinned
        allowed, arrived = allowances.get(way, {}).get(slot), self.arrived[way]
        return 1.0 if allowed is None or allowed >= arrived else allowed / arrived


@dataclass(frozen=True)
class Outcome:
    """What allowances come to, in a slot or in all."""

    cpu_s: float
    results: Mapping[str, float]
    """By query."""
    whole: Mapping[str, float]
    """And if nothing were limited."""

    def completeness(self, query: str) -> float:
        return self.results.get(query, 0.0) / whole if (whole := self.whole.get(query, 0.0)) else 1.0

    @property
    def all_results(self) -> float:
        return sum(self.results.values())


@dataclass(frozen=True)
class Capacity:
    """What there is to keep up with."""

    cores: float
    """Tasks that run at a time."""
    cpu: float | None = None
    """CPU that a batch may take, in seconds per second, if a user says so."""
    is_live: bool = True
    """Whether rows come as time goes by: else no batch takes too long, and only `cpu` is a bound."""

    def load(self, other_s: float, slots_s: Sequence[float], arrival_s: float, stretch: float) -> float:
        """What a batch takes of what there is, given what its tasks and everything else take; 1 is all of it. While no
        task runs, one core is taken to be busy: what the JVM takes on others, and beside tasks, nobody measures."""
        time = (other_s + stretch * stage_s(slots_s, self.cores)) / arrival_s if self.is_live else 0.0
        cpu = (other_s + sum(slots_s)) / (arrival_s * self.cpu) if self.cpu is not None else 0.0
        return max(time, cpu)

    def room(self, other_s: float, arrival_s: float, stretch: float) -> tuple[float, float]:
        """The CPU that the task of a slot may take, and that of all together."""
        slot_s = max(0.0, arrival_s - other_s) / stretch if self.is_live else math.inf
        cpu_s = max(0.0, arrival_s * self.cpu - other_s) if self.cpu is not None else math.inf
        return slot_s, min(slot_s * self.cores, cpu_s)


@dataclass(frozen=True)
class Forecast:
    """What is expected of the next batch."""

    arrival_s: float
    other_s: float
    """What everything but tasks takes."""
    slots: Mapping[int, SlotForecast]
    capacity: Capacity
    kept: float = 1.0
    """The share of rows that is not shed as things are: the slots are expected to have that share of rows."""
    stretch: float = 1.0
    """How much longer than their CPU tasks run."""

    @property
    def exact_load(self) -> float:
        """The load with nothing limited and nothing shed. Fewer rows find fewer partners: what lookups take goes with the
        square of the share that is kept, once windows have filled."""
        unshed = [
            each.own_s / self.kept + (each.full_s - each.own_s) / self.kept**2 for each in self.slots.values()
        ]  # fmt: skip
        return self._load(unshed)

    @property
    def full_load(self) -> float:
        """The load with nothing limited, and rows shed as they are now."""
        return self._load([each.full_s for each in self.slots.values()])

    def least_load(self, pilot: float) -> float:
        """The load with every direction limited to its pilots."""
        return self._load([each.least_s(pilot) for each in self.slots.values()])

    def load_of(self, outcomes: Iterable[Outcome]) -> float:
        """The load with what allowances come to in each slot."""
        return self._load([each.cpu_s for each in outcomes])

    def _load(self, slots_s: Sequence[float]) -> float:
        return self.capacity.load(self.other_s, slots_s, self.arrival_s, self.stretch)

    def room(self, target: float) -> tuple[float, float]:
        """The CPU that the task of a slot may take, and that of all together, within a share of what there is."""
        return self.capacity.room(self.other_s, self.arrival_s * target, self.stretch)

    def under(self, allowances: Allowances) -> list[Outcome]:
        """What allowances come to in each slot."""
        return [each.under(allowances, slot) for slot, each in self.slots.items()]


def forecast(
    samples: Sequence[Sample], arrival_s: float, capacity: Capacity, pinned: Mapping[Way, float], stretch: float = 1.0,
    costs: Mapping[Way, float] = NOTHING_KNOWN,
) -> Forecast:  # fmt: skip
    """What the next batch brings, whose rows arrive in so many seconds, by the latest batches. `stretch` is how much longer
    than their CPU tasks run, where these batches do not tell, and `costs` what a lookup costs (`costs_after`)."""
    told = [each.stretch for each in samples if each.stretch is not None]
    stretch = sum(told) / len(told) if told else stretch
    scale = arrival_s / sum(each.arrival_s for each in samples)
    everywhere = _summed(samples, None)
    slots = {
        slot: _slot_forecast(samples, slot, scale, everywhere, pinned, costs)
        for slot in sorted({slot for each in samples for slot in each.slots})
    }
    other_s = _other_s(samples, arrival_s, capacity.cores, stretch)
    return Forecast(arrival_s, other_s, slots, capacity, samples[-1].kept, stretch)


def _other_s(samples: Sequence[Sample], arrival_s: float, cores: float, stretch: float) -> float:
    """What everything but tasks takes in a batch whose rows arrive in so many seconds. A part of it is the same for any
    batch, and is not known apart. So a batch tells the most that it may be: in a shorter one what it was, in a longer one
    what it would be in proportion. Batches that are about as long as the next one are averaged; else the latest counts."""
    found = []
    for each in samples:
        tasks_s = (each.stretch or stretch) * stage_s([slot.cpu_s for slot in each.slots.values()], cores)
        spent_s = max(0.0, each.seconds - tasks_s)
        longer = arrival_s / each.arrival_s
        found.append((1 / ALIKE <= longer <= ALIKE, spent_s * max(1.0, longer)))
    alike = [spent_s for is_alike, spent_s in found if is_alike]
    return sum(alike) / len(alike) if alike else found[-1][1]


def _summed(samples: Sequence[Sample], slot: int | None) -> dict[Way, Probing]:
    """What lookups came to in the latest batches, in a slot or in all."""
    found: dict[Way, Probing] = {}
    for sample in samples:
        for number, load in sample.slots.items():
            if slot in (None, number):
                for way, each in load.ways.items():
                    found[way] = found.get(way, Probing()) + each
    return found


def _slot_forecast(
    samples: Sequence[Sample], slot: int, scale: float, everywhere: Mapping[Way, Probing], pinned: Mapping[Way, float],
    costs: Mapping[Way, float],
) -> SlotForecast:  # fmt: skip
    own_s = sum(each.slots[slot].own_s for each in samples if slot in each.slots) * scale
    directions, arrived = {}, {}
    for way, each in _summed(samples, slot).items():
        # Where no row of a slot was looked up, those of other slots tell what it would cost and give.
        told = each if each.probed else everywhere[way]
        cost = told.cpu_s / told.probed if told.probed else 0.0
        if told.probed < TRUSTED * told.rows:
            cost = min(cost, costs.get(way, math.inf))
        gives = told.results / told.probed if told.probed else 0.0
        directions[way] = Direction(".".join(way), each.rows * scale, cost, gives, pinned.get(way))
        arrived[way] = each.arrived * scale
    return SlotForecast(own_s, directions, arrived)


def costs_after(costs: Mapping[Way, float], sample: Sample) -> dict[Way, float]:
    """What a lookup of each input costs, after one more batch."""
    found = dict(costs)
    for way, each in _summed([sample], None).items():
        if each.probed:
            cost = each.cpu_s / each.probed
            is_trusted = each.probed >= TRUSTED * each.rows
            found[way] = cost if is_trusted else min(cost, FORGOTTEN * found.get(way, math.inf))
    return found


def _wanted(each: Direction) -> float:
    return each.cpu_s * (1.0 if each.pinned_share is None else each.pinned_share)


def allocate(expected: Forecast, target: float, divide: Divide, pilot: float) -> dict[Way, dict[int, int]]:
    """Allowances with which the next batch takes no more than a share of what there is."""
    slot_s, together_s = expected.room(target)
    level_s = min(slot_s, level([each.full_s for each in expected.slots.values()], together_s))
    found: dict[Way, dict[int, int]] = {}
    for slot, each in expected.slots.items():
        if each.full_s <= level_s:
            continue
        ways = [*each.directions]
        shares = divide([each.directions[way] for way in ways], max(0.0, level_s - each.own_s), pilot)
        for way, rows in zip(ways, shares.rows, strict=True):
            direction = each.directions[way]
            if direction.pinned_share is None and rows < direction.rows:
                # Pilots look up also where there is no room for them: without these nothing is known of what there is.
                allowed = max(1, math.ceil(each.arrived[way] * max(pilot, rows / direction.rows)))
                found.setdefault(way, {})[slot] = allowed
    return found


def level(needs: Sequence[float], together: float) -> float:
    """The most that each may have, so that all have no more than so much together: who needs less leaves it to others.

    >>> level([1.0, 4.0, 4.0], 7.0), level([1.0, 2.0], 7.0)
    (3.0, inf)
    """
    if sum(needs) <= together:
        return math.inf
    left, above = together, sorted(needs)
    while above and above[0] * len(above) <= left:
        left -= above.pop(0)
    return left / len(above)


def kept_share(expected: Forecast, target: float, slots_s: Sequence[float]) -> float:
    """Of the rows that are kept now, the share with which tasks that take so much would fit; above 1 if they fit."""
    slot_s, together_s = expected.room(target)
    return min(slot_s / max(max(slots_s, default=0.0), 1e-9), together_s / max(sum(slots_s), 1e-9))


def lookup_cores(expected: Forecast, allowances: Allowances, target: float) -> dict[str, float]:
    """By query, the cores that its lookups have under allowances; less what all tasks take above a share of what there is,
    which may be more than they have."""
    spent: dict[str, float] = {}
    for slot, each in expected.slots.items():
        for way, direction in each.directions.items():
            spent[way[0]] = spent.get(way[0], 0.0) + each.share(allowances, way, slot) * direction.cpu_s
    slot_s, together_s = expected.room(target)
    takes = [each.cpu_s for each in expected.under(allowances)]
    above_s = max(0.0, sum(takes) - together_s, sum(max(0.0, each - slot_s) for each in takes))
    return {query: (cpu_s - above_s) / expected.arrival_s for query, cpu_s in spent.items()}


def in_all(outcomes: Iterable[Outcome]) -> Outcome:
    """What allowances come to in all slots together."""
    cpu_s, results, whole = 0.0, dict[str, float](), dict[str, float]()
    for each in outcomes:
        cpu_s += each.cpu_s
        for query, found in each.results.items():
            results[query] = results.get(query, 0.0) + found
            whole[query] = whole.get(query, 0.0) + each.whole[query]
    return Outcome(cpu_s, results, whole)
