"""Tables 3 and 4, the queries of section 7, and streams with Poisson arrivals."""

from __future__ import annotations

import random
from dataclasses import dataclass

from anabranch.share.reference.rows import NONE, KeyBand, Row
from anabranch.share.window_queries import Stream, WindowQuery

SECONDS = 90.0
MEASURED_FROM_S = 30.0
"""The longest window: from here on all states are full."""

WINDOWS_S: dict[str, tuple[float, float, float]] = {
    "mostly-small": (5.0, 10.0, 30.0), "uniform": (10.0, 20.0, 30.0), "mostly-large": (20.0, 25.0, 30.0),
}  # fmt: skip
SELECTIVITIES = (0.2, 0.5, 0.8)
JOINS: dict[float, KeyBand] = {0.025: KeyBand(40), 0.1: KeyBand(10), 0.4: KeyBand(5, 2)}
"""S_⋈, and a condition on evenly drawn keys that has it."""

CHAIN_JOIN = 0.025
"""S_⋈ of section 7.3."""

SIGMA = "σ"
PASSES = frozenset((SIGMA,))


@dataclass(frozen=True)
class Size:
    """How much is run."""

    seeds: int = 10
    other_seeds: int = 2
    """For the combinations of table 3 that no figure shows."""
    rates_per_s: tuple[int, ...] = (20, 40, 60, 80)
    queries: tuple[int, ...] = (12, 24, 36)


QUICK = Size(2, 1, (20, 40), (12,))


def three_queries(windows_s: tuple[float, float, float]) -> tuple[WindowQuery, ...]:
    """Section 7.2: the second and the third query have the selection σ on A."""
    first, second, third = windows_s
    return (WindowQuery("Q1", first), WindowQuery("Q2", second, SIGMA), WindowQuery("Q3", third, SIGMA))


def two_queries(ratio: float, long_s: float = 30.0) -> tuple[WindowQuery, ...]:
    """Section 3, by ρ."""
    return (WindowQuery("Q1", ratio * long_s), WindowQuery("Q2", long_s, SIGMA))


def spread(name: str, queries: int) -> tuple[float, ...]:
    """Table 4 for 12 queries. For 24 and 36, which the paper sets "accordingly", the same shares of the queries are spread
    evenly over the same spans.

    >>> spread("mostly-small", 12) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)
    True
    >>> spread("small-large", 12) == (1, 2, 3, 4, 5, 6, 25, 26, 27, 28, 29, 30)
    True
    >>> spread("uniform", 24)[:3]
    (1.25, 2.5, 3.75)
    """
    parts = {
        "uniform": [(0.0, 30.0, queries)],
        "mostly-small": [(0.0, 10.0, queries * 10 // 12), (10.0, 30.0, queries - queries * 10 // 12)],
        "small-large": [(0.0, 6.0, queries // 2), (24.0, 30.0, queries - queries // 2)],
    }[name]
    return tuple(start + (end - start) * n / count for start, end, count in parts for n in range(1, count + 1))


def chain_queries(windows_s: tuple[float, ...]) -> tuple[WindowQuery, ...]:
    """Section 7.3: no selections."""
    return tuple(WindowQuery(f"Q{n}", window_s) for n, window_s in enumerate(windows_s, 1))


def poisson(rate_per_s: float, seed: int, keys: int, selectivity: float = 1.0, seconds: float = SECONDS) -> list[Row]:
    """Rows of both streams: Poisson arrivals, keys drawn evenly, a share of the rows of A satisfying σ."""
    rng = random.Random(f"{seed} {rate_per_s}")
    arrivals: list[tuple[float, Stream]] = []
    streams: tuple[Stream, Stream] = ("A", "B")
    for stream in streams:
        now_s = rng.expovariate(rate_per_s)
        while now_s < seconds:
            arrivals.append((now_s, stream))
            now_s += rng.expovariate(rate_per_s)
    arrivals.sort()
    return [
        Row(stream, number, time_s, rng.randrange(keys), PASSES if stream == "A" and rng.random() < selectivity else NONE)
        for number, (time_s, stream) in enumerate(arrivals)
    ]
