"""What is run on Spark: a workload, rates that are multiples of what a machine can do, and what comes when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from bench.overload.hosted import Hosted
from bench.overload.traffic import Traffic
from bench.workload import SHAPES

SHAPE, STREAMS, N_ARY = "3-way chain", "abc", "(a b c)"
WINDOW_S, FRESHNESS_S = 4, 8
DOMAINS = (100, 16_000_000)
"""At 10,000 rows per second and stream a row of `a` meets 400 of `b`, and each pair 0.0025 of `c`."""
LOADS = (0.5, 1.0, 1.5, 2.0, 4.0)
OURS, BEHIND, SHED, SPARK, FREE = "adapt joins", "fall behind", "shed", "Spark's own", "adapt joins, plan of its own"
PARTS = ("load", "burst", "skew", "cannot-help")
LONG_FRESHNESS_S = 24
"""Of a burst that is within the slack."""


@dataclass(frozen=True)
class Size:
    """How long things last."""

    calibration_rates: tuple[int, ...] = (6_000, 10_000, 14_000, 18_000, 24_000)
    calibration_s: int = 18
    warm_s: float = 8
    loaded_s: float = 20
    measured_s: float = 12
    burst_s: float = 10
    after_s: float = 20
    loads: tuple[float, ...] = LOADS


QUICK = Size((6_000, 14_000, 24_000), 10, 6, 10, 6, 5, 12, (2.0,))


@dataclass(frozen=True)
class Capacity:
    """What an exact batch of a second takes, by the rate: parabolas of seconds and CPU seconds."""

    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    probing_share: float
    """Of all CPU, at the largest rate that was tried."""

    @cached_property
    def rate_per_s(self) -> float:
        """At which a batch takes as long as its rows took to come."""
        return _rate_of(self.seconds, 1.0)

    def rate_at(self, load: float) -> int:
        """At which an exact run takes so many times the CPU that it takes at capacity."""
        return round(_rate_of(self.cpu_s, load * float(np.polyval(self.cpu_s, self.rate_per_s))))


def growing_parabola(rates: Sequence[float], values: Sequence[float]) -> tuple[float, ...]:
    """The parabola nearest to some values whose coefficients are 0 or more: what batches take grows with their rates, and
    faster than they do, however one of the values was disturbed.

    >>> [round(each, 3) for each in growing_parabola([1, 2, 3], [2, 5, 10])]
    [1.0, 0.0, 1.0]
    >>> [round(each, 3) for each in growing_parabola([1, 2, 3], [1, 3, 3])]
    [0.0, 1.0, 0.333]
    """
    whole = np.vander(np.asarray(rates, float), 3)
    best: tuple[float, tuple[float, ...]] = (np.inf, ())
    for kept in (k for n in (1, 2, 3) for k in combinations(range(3), n)):
        found, *_ = np.linalg.lstsq(whole[:, kept] / (scale := whole[:, kept].max(axis=0)), values, rcond=None)
        if (found >= 0).all():
            away = float(np.square(whole[:, kept] / scale @ found - values).sum())
            least = dict(zip(kept, found / scale, strict=True))
            best = min(best, (away, tuple(float(least.get(place, 0.0)) for place in range(3))))
    return best[1]


def _rate_of(parabola: Sequence[float], value: float) -> float:
    """The largest rate at which a parabola has a value.

    >>> round(_rate_of((1e-8, 0.0, 0.5), 1.5))
    10000
    """
    roots = np.roots([*parabola[:-1], parabola[-1] - value])
    real = [float(r.real) for r in roots if abs(r.imag) < 1e-9 and r.real > 0]
    if not real:
        raise SystemExit(f"no rate makes {value}: calibration gave {parabola}; run it alone on the machine")
    return max(real)


@dataclass(frozen=True)
class Case:
    """One run."""

    part: str
    way: str
    schedule: tuple[tuple[float, int], ...]
    load: float = 0.0
    freshness_s: float | None = FRESHNESS_S
    hot: float = 0.0
    streams: str = STREAMS
    plan: str | None = N_ARY
    domains: tuple[int, ...] = DOMAINS
    cpu: float | None = None

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        return SHAPES[SHAPE][: len(self.streams) - 1]

    @property
    def policy(self) -> str:
        return OURS if self.way == FREE else self.way

    @property
    def sql(self) -> str:
        """What loses nothing promises no freshness."""
        select = ", ".join(f"{s}.v AS {s}_v" for s in self.streams)
        where = " AND ".join(f"{x} = {y}" for x, y in self.edges)
        fresh = f" FRESHNESS {self.freshness_s} SECONDS" if self.freshness_s and self.way != BEHIND else ""
        return f"SELECT {select} FROM {', '.join(self.streams)} WHERE {where} WINDOW {WINDOW_S} SECONDS{fresh}"

    def traffic(self, folder: str) -> Traffic:
        return Traffic(folder, self.streams, self.domains, self.schedule, self.hot)

    def hosted(self, folder: str, seconds: float) -> Hosted:
        options = {"cpu": self.cpu} if self.cpu is not None else {}
        return Hosted(folder, self.sql, self.streams, self.policy, seconds, self.plan, options)


def cases(parts: Iterable[str], capacity: Capacity, size: Size, is_quick: bool) -> list[Case]:
    """What is run, in order."""
    low, found = capacity.rate_at(0.5), list[Case]()

    def loaded(load: float, seconds: float = size.loaded_s) -> tuple[tuple[float, int], ...]:
        return (size.warm_s, low), (seconds, capacity.rate_at(load))

    if "load" in parts:
        for load in size.loads:
            ways = [OURS, BEHIND, SHED]
            ways += [SPARK, FREE] if load == 2.0 and not is_quick else [SPARK] if load == 0.5 else []
            found += [Case("load", way, loaded(load), load, plan=None if way == FREE else N_ARY) for way in ways]
    if "burst" in parts:
        for load, freshness_s in ((4.0, FRESHNESS_S), (2.0, LONG_FRESHNESS_S)):
            schedule = (*loaded(load, size.burst_s), (size.after_s, low))
            ways = [OURS, BEHIND] if load == 4.0 else [OURS]
            found += [Case("burst", way, schedule, load, freshness_s) for way in ways]
    if "skew" in parts:
        found += [Case("skew", way, loaded(1.0), 1.0, hot=0.1) for way in (OURS, SHED)]
    if "cannot-help" in parts:
        rate = 20_000
        schedule = ((size.warm_s, rate), (size.loaded_s, rate))
        found.append(Case("cannot-help", OURS, schedule, 0.0, 6, 0.0, "ab", "(a b)", (rate * WINDOW_S, 10), cpu=0.15))
    return found
