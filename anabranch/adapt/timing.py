"""When to think about another plan (002, section 26.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from anabranch.adapt.monitor import Monitor, Signal, trend

STEADY = 0.6
"""A rise is steady when `trend` is above this."""


class Timing(Protocol):
    """When the optimiser is asked."""

    @property
    def recent(self) -> int:
        """The latest batches that are looked at: when something has changed, only they count."""

    @property
    def threshold(self) -> float:
        """A signal that is apart by a larger share than this has changed."""

    def due(self, monitor: Monitor, reference: Mapping[str, Signal], since_last: int) -> str | None:
        """Why it is to be asked now, so many batches after the last time; None: not now."""


@dataclass(frozen=True)
class DataDriven:
    """When statistics have changed (section 26.1.1): an interval has passed since the last time, and some signal has drifted
    beyond a threshold. The *aggressive* version does not wait for the interval. The latest `recent` batches are compared."""

    interval: int = 4
    threshold: float = 0.2
    recent: int = 2
    aggressive: bool = False

    def due(self, monitor: Monitor, reference: Mapping[str, Signal], since_last: int) -> str | None:
        # Half of the batches that are compared are new each time: looking more often would show little else.
        waited = since_last - (0 if self.aggressive else self.interval)
        if waited < 0 or waited % max(1, self.recent // 2):
            return None
        drifted = monitor.latest(self.recent).drifted(reference, self.threshold)
        if not drifted:
            return None
        first = drifted[0]
        now = monitor.latest(self.recent).signals[first]
        more = f" and {len(drifted) - 1} more" if len(drifted) > 1 else ""
        return f"{first} went from {reference[first].mean:.3g} to {now.mean:.3g}{more}"


@dataclass(frozen=True)
class MemoryDriven:
    """When memory is getting short, or more and more rows wait (section 26.1.2). Spark keeps the rows that wait: they show
    as batches that bring more and more rows."""

    limit_bytes: float = float("inf")
    near: float = 0.9
    interval: int = 4
    recent: int = 6
    threshold: float = 0.2

    def due(self, monitor: Monitor, reference: Mapping[str, Signal], since_last: int) -> str | None:
        if since_last < self.interval or len(monitor.observations) <= self.recent:
            return None
        seen = monitor.observations[-self.recent :]
        if seen[-1].state_bytes > self.near * self.limit_bytes:
            return f"state of {seen[-1].state_bytes:,} bytes is near the limit of {self.limit_bytes:,.0f}"
        if trend([o.rows for o in seen]) > STEADY and seen[-1].rows > 1.2 * seen[0].rows:
            return f"more and more rows wait: {seen[0].rows:,} in a batch became {seen[-1].rows:,}"
        return self._more(monitor)

    def _more(self, monitor: Monitor) -> str | None:
        return None


@dataclass(frozen=True)
class RefinedMemoryDriven(MemoryDriven):
    """The same, and when rows pile up between operators (section 26.1.3): here that is in views."""

    def _more(self, monitor: Monitor) -> str | None:
        seen = monitor.observations[-self.recent :]
        if trend([o.view_rows for o in seen]) > STEADY and seen[-1].view_rows > 1.2 * seen[0].view_rows:
            return f"views grow steadily: from {seen[0].view_rows:,} to {seen[-1].view_rows:,} rows"
        return None
