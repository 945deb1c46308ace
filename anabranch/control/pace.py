"""The pace of a database: how long it takes, beside what it was expected to take by what was calibrated.

`anabranch calibrate --database` measures rows of its own making. What a database takes for the rows of a run shows while it
runs: each batch that asks it gives a ratio, of the seconds that it took to those that were expected. Their mean is the pace
of a block, or of a way in which rows of a table come: of logarithms, so that twice and half cancel out, and a moving one, so
that the latest `MEMORY` batches count. Calibrated costs are multiplied with it, whoever decides by them.

Times scatter. A pace *counts* only if it is further from 1 than chance would have it: by `CHANCE` standard errors, by
how much the ratios scatter themselves, and `BEFORE` more of which nothing is known. So one batch must be off by a factor of
26 to count, four that agree by three, and thirty that scatter by a third each by a third. Until then the calibrated costs
stand; and where nothing was calibrated, nothing is expected, and there is no pace.

What was not asked for `FORGOTTEN` batches is forgotten: a database that was slow need not be so for ever. So is what was
measured beside another calibration; the round trip that it found tells one from another.

>>> slow = Pace()
>>> for batch in range(8):
...     slow = slow.after(Took(seconds=3.0, expected_s=1.0), batch)
>>> slow, slow.factor > 2.9
(3 times as long as calibrated, 8 batches, True)
>>> Pace().after(Took(3.0, 1.0), 0).factor
1.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

MEMORY = 32
"""So many batches count."""

CHANCE = 4.0
"""A difference of fewer standard errors may be chance."""

BEFORE = 2
"""So many batches are counted with those that there are, whose logarithms scatter by 1: a few may agree by chance."""

MOST = 32.0
"""No ratio is further from 1, either way: more is a fault of the measurement, or of a moment."""

FORGOTTEN = 1024
"""What was not asked for so many batches is forgotten."""


class Took(msgspec.Struct):
    """What a database took in a batch, and was expected to take."""

    seconds: float = 0.0
    expected_s: float = 0.0
    round_trip_s: float = 0.0
    """By the calibration that it was expected by."""

    def add(self, other: Took) -> None:
        """Counts what it took in another slot."""
        self.seconds += other.seconds
        self.expected_s += other.expected_s


class Pace(msgspec.Struct, frozen=True):
    """The mean of the logarithms of what a database took, beside what was expected."""

    mean: float = 0.0
    variance: float = 0.0
    batches: int = 0
    """How many have told."""
    last: int = 0
    """The last of them."""
    round_trip_s: float = 0.0
    """By the calibration that it is beside."""

    def beside(self, round_trip_s: float) -> Pace:
        """The pace beside a calibration: if that is another one, nothing is known."""
        return self if self.round_trip_s == round_trip_s else Pace(round_trip_s=round_trip_s)

    def after(self, took: Took, batch: int) -> Pace:
        """The pace after one batch more."""
        told = math.log(min(MOST, max(1 / MOST, took.seconds / took.expected_s)))
        weight, apart = 1 / min(self.batches + 1, MEMORY), told - self.mean
        variance = (1 - weight) * (self.variance + weight * apart * apart)
        return Pace(self.mean + weight * apart, variance, self.batches + 1, batch, self.round_trip_s)

    @property
    def ratio(self) -> float:
        """How many times as long it takes."""
        return math.exp(self.mean)

    @property
    def counts(self) -> bool:
        """Whether that is more than chance."""
        known = min(self.batches, MEMORY)
        variance = (known * self.variance + BEFORE) / (known + BEFORE)
        return self.batches > 0 and abs(self.mean) > CHANCE * math.sqrt(variance / known)

    @property
    def factor(self) -> float:
        """What calibrated costs are multiplied with."""
        return self.ratio if self.counts else 1.0

    def __repr__(self) -> str:
        many = f"{self.batches} {'batch' if self.batches == 1 else 'batches'}"
        return f"{self.ratio:.2g} times as long as calibrated, {many}"


def paces_after(paces: Mapping[str, Pace], took: Mapping[str, Took], batch: int) -> dict[str, Pace]:
    """The paces after a batch."""
    found = {name: pace for name, pace in paces.items() if batch - pace.last < FORGOTTEN}
    for name, each in took.items():
        if each.expected_s > 0:
            found[name] = found.get(name, Pace()).beside(each.round_trip_s).after(each, batch)
    return found


def factors(paces: Mapping[str, Pace]) -> dict[str, float]:
    """What calibrated costs are multiplied with, by what they are of; only where that is not 1."""
    return {name: pace.factor for name, pace in paces.items() if pace.counts}
