"""Measurements of 2,125 plugs in 40 households: each second two kinds of them, of which one is the load (section 8.1)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.papers.federation.shapes import HOUSEHOLDS, PLUGS

SECOND_US = 1_000_000
GAMMA = 2.0, 40.0
"""How loads are spread: shape and scale, in watts."""
PERIOD_S = 10
"""Plugs come again in the same order after so long, with other loads."""


class PlugRows:
    """The rows of a stream with a rate.

    >>> rows = PlugRows(rate_per_s=4).rows(first_s=20, seconds=1)
    >>> rows.column("property").to_pylist(), rows.column("ts").to_pylist()[-1].second
    ([0, 1, 0, 1], 20)
    """

    def __init__(self, rate_per_s: int, seed: int = 5) -> None:
        rng, count = np.random.default_rng(seed), rate_per_s * PERIOD_S
        self.rate_per_s = rate_per_s
        self.plug = rng.integers(0, int(PLUGS), count)
        self.household = self.plug * int(HOUSEHOLDS) // int(PLUGS)
        self.property = np.arange(count) % 2
        self.load = np.round(rng.gamma(*GAMMA, count), 3)

    def rows(self, first_s: int, seconds: int) -> pa.Table:
        """The rows of some seconds, in order of time."""
        count = self.rate_per_s * seconds
        places = (first_s * self.rate_per_s + np.arange(count)) % len(self.plug)
        loads = (places + first_s * 7919) % len(self.load)
        times = first_s * SECOND_US + np.arange(count) * SECOND_US // self.rate_per_s
        return pa.table({
            "plug": self.plug[places], "household": self.household[places], "property": self.property[places],
            "load": self.load[loads], "ts": pa.array(times).cast(pa.timestamp("us")),
        })  # fmt: skip
