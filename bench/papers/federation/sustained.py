"""The largest rate that a placement sustains: batches of a second take no longer than a second. Where not all keep up with a
rate, CPU a row says too little, for what waits grows without end: then this is compared.

Its largest sustained rate lies between two rates that were tried: one that it keeps up with, and one that it does not. They
are narrowed by what a batch takes at rates between them, as if that were a power of the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

APART = 1.08
"""Two rates that are no further apart tell the largest sustained one."""
STEPS = 4
"""So many rates are tried between two, at most."""
DOWN = 4.0
"""Where no rate is known that is kept up with, so much smaller ones are tried, one after the other."""
LEAST_RATE = 10

BY_CPU, BY_RATE = "CPU a row", "largest sustained rate"
"""What two placements are compared by."""


@dataclass(frozen=True)
class Sustained:
    """What is known of the largest rate that a placement sustains."""

    kept: float
    """It keeps up with this one."""
    over: float | None = None
    """It does not keep up with this one; None: there was none such."""

    @property
    def rate(self) -> float:
        return self.kept if self.over is None else sqrt(self.kept * self.over)


def largest_sustained(
    seconds_at: Callable[[int], float], over: tuple[int, float], kept: tuple[int, float] | None = None
) -> Sustained:
    """Where the largest sustained rate lies below a rate that is not kept up with, given with the seconds that a batch takes
    there, and above one that is, if one is known.

    >>> tried = []
    >>> largest_sustained(lambda rate: tried.append(rate) or (rate / 100_000) ** 1.5, (200_000, 2.8), (40_000, 0.25))
    Sustained(kept=96961, over=104439)
    >>> tried
    [96961, 104439]
    """
    (high, high_s), low = over, kept
    while low is None and high > LEAST_RATE:
        rate = max(LEAST_RATE, round(high / DOWN))
        seconds = seconds_at(rate)
        (low, high, high_s) = ((rate, seconds), high, high_s) if seconds < 1 else (None, rate, seconds)
    if low is None:
        return Sustained(0.0, high)
    slow, slow_s = low
    for _ in range(STEPS):
        if high <= APART * slow:
            break
        share = log(1 / slow_s) / log(high_s / slow_s)
        found = slow * (high / slow) ** min(0.95, max(0.05, share))
        # The end that is further away is the one to be brought nearer.
        is_high = high / found > found / slow
        rate = round(found * sqrt(APART) ** (0.99 if is_high else -0.99))
        seconds = seconds_at(rate)
        if seconds < 1:
            slow, slow_s = rate, seconds
        else:
            high, high_s = rate, seconds
    return Sustained(slow, high)


def compared(chosen: Sustained, other: Sustained) -> dict[str, Any]:
    """The largest sustained rate of the chosen placement as a multiple of another one's, from the least that it may be to
    the most; None where nobody has tried how far that goes.

    >>> compared(Sustained(90.0, 100.0), Sustained(45.0, 50.0))
    {'compared by': 'largest sustained rate', 'of chosen': 2.0, 'low': 1.8, 'high': 2.2222222222222223}
    >>> compared(Sustained(200.0), Sustained(45.0, 50.0))["high"] is None
    True
    """
    return {
        "compared by": BY_RATE, "of chosen": chosen.rate / max(other.rate, 1.0),
        "low": 0.0 if other.over is None else chosen.kept / other.over,
        "high": None if chosen.over is None or not other.kept else chosen.over / other.kept,
    }  # fmt: skip
