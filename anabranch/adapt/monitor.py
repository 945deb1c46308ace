"""Monitoring: what the latest batches say about streams, as averages over a window of batches, and whether it has changed.

A *signal* is a figure that plans depend on: the rows that a stream brings per second, and how many partners a row finds at
a step of its route. A signal has *drifted* when its average over the latest batches differs from what it was when the plan
was last decided on by more than a threshold, and by more than chance: the difference must be several standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from anabranch.control.loop import Observed
from anabranch.control.records import Statistics

CHANCE = 4.0
"""A difference of fewer standard errors may be chance."""


@dataclass(frozen=True)
class Observation:
    """One batch. After most batches nobody asks for more than its rows: the rest is worked out when somebody does."""

    batch: int
    seen_us: int
    """The least of the largest event times of the streams."""
    statistics: Statistics
    """Of all slots together."""
    limited_cores: float | None = None
    """Under overload, the cores that lookups which give results may take."""

    @cached_property
    def rows(self) -> int:
        return sum([source.rows for source in self.statistics.sources.values()])

    @property
    def state_bytes(self) -> int:
        logs = sum([source.state_bytes for source in self.statistics.sources.values()])
        return logs + sum([state.bytes for state in self.statistics.states])

    @cached_property
    def counts(self) -> dict[str, tuple[float, float]]:
        """What signals are ratios of: rows (per second), and matches per probe."""
        found = {f"rate of {name}": (float(s.stored_rows), 0.0) for name, s in self.statistics.sources.items()}
        for step in self.statistics.steps:
            found[f"matches of {step.route} in {step.target}"] = (float(step.matches), float(step.probes))
        return found

    @property
    def cpu_s(self) -> float:
        """What the engine spent, without Spark."""
        return self.statistics.engine_cpu_ns / 1e9

    @property
    def view_rows(self) -> int:
        """Combined rows that wait in views, and groups: what stands between operators."""
        return sum(s.rows for s in self.statistics.states if s.kind == "view")


@dataclass(frozen=True)
class Signal:
    """An average, and its standard error."""

    mean: float
    error: float

    def differs(self, other: Signal, threshold: float) -> bool:
        """Whether two averages are apart by more than a share of the larger, and by more than chance."""
        by_chance = CHANCE * math.hypot(self.error, other.error)
        return apart(self.mean, other.mean, threshold) and abs(self.mean - other.mean) > by_chance


def observe(observed: Observed) -> Observation | None:
    """What a batch shows; None if no stream has shown a time yet."""
    if not observed.largest_time_us:
        return None
    seen_us = min(observed.largest_time_us.values())
    return Observation(observed.batch, seen_us, observed.statistics, observed.limited_cores)


@dataclass(frozen=True)
class Monitor:
    """The latest batches with rows, oldest first. The first of them only tells where time begins."""

    window: int = 8
    observations: tuple[Observation, ...] = ()

    def after(self, observation: Observation) -> Monitor:
        if self.observations and not observation.rows:
            return self
        return Monitor(self.window, (*self.observations, observation)[-self.window - 1 :])

    def latest(self, batches: int) -> Monitor:
        """Only the latest batches: what came before is no longer true."""
        return Monitor(self.window, self.observations[-batches - 1 :])

    @property
    def batches(self) -> list[Statistics]:
        return [o.statistics for o in self.observations[1:]]

    @property
    def span_s(self) -> float:
        """The event time of the batches that count."""
        if len(self.observations) < 2:
            return 0.0
        return (self.observations[-1].seen_us - self.observations[0].seen_us) / 1e6

    @property
    def cores(self) -> float:
        """CPU per second of event time."""
        return sum(o.cpu_s for o in self.observations[1:]) / self.span_s if self.span_s > 0 else 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows per second of event time."""
        return sum(o.rows for o in self.observations[1:]) / self.span_s if self.span_s > 0 else 0.0

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """Rates by source, and partners found by step, with the error of their average."""
        names = {name: None for o in self.observations[1:] for name in o.counts}
        pairs = {name: self._pairs(name) for name in names}
        return {name: ratio(found) for name, found in pairs.items() if sum(below for _, below in found) > 0}

    def _pairs(self, name: str) -> list[tuple[float, float]]:
        """The two counts that a signal is the ratio of, for each batch."""
        found = []
        for before, o in pairwise(self.observations):
            above, below = o.counts.get(name, (0.0, 0.0))
            found.append((above, (o.seen_us - before.seen_us) / 1e6 if name.startswith("rate of ") else below))
        return found

    def drifted(self, reference: Mapping[str, Signal], threshold: float) -> list[str]:
        """The signals that are no longer what they were."""
        found = []
        for name, was in reference.items():
            pairs = self._pairs(name)
            below = sum([b for _, b in pairs])
            # Errors are looked at only where averages are apart: after most batches there is nothing to see.
            is_apart = below > 0 and apart(sum([a for a, _ in pairs]) / below, was.mean, threshold)
            if is_apart and ratio(pairs).differs(was, threshold):
                found.append(name)
        return found


def apart(one: float, other: float, threshold: float) -> bool:
    """Whether two figures are apart by more than a share of the larger."""
    return abs(one - other) > threshold * max(one, other)


def ratio(pairs: Sequence[tuple[float, float]]) -> Signal:
    """The ratio of two sums, with its error from how far single batches are from it, and from counting alone."""
    over = sum(below for _, below in pairs)
    mean = sum(above for above, _ in pairs) / over
    spread = sum((above - mean * below) ** 2 for above, below in pairs)
    counting = sum(above for above, _ in pairs)
    return Signal(mean, math.sqrt(max(spread * len(pairs) / max(1, len(pairs) - 1), counting)) / over)


def trend(values: Sequence[float]) -> float:
    """How steadily values rise: the share of pairs in which the later is larger, less those in which it is smaller
    (Kendall's tau against time).

    >>> trend([1, 2, 3, 4]), trend([4, 3, 2, 1]), trend([1, 1, 1])
    (1.0, -1.0, 0.0)
    """
    pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
    return sum((b > a) - (b < a) for a, b in pairs) / len(pairs) if pairs else 0.0
