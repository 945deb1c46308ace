"""Table 3, the plans of fig. 5, and streams that are drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.overload.freshness import window_s
from anabranch.overload.half_way import Plan, Stream, join
from bench.papers.jaqpot.matching import Equality, Rows

RATES_PER_S = (300.0, 1200.0)
STATE_ROWS = (200.0, 5000.0)
SELECTIVITIES = (0.01, 0.1)
FRESHNESS = (1.5, 3.0, 5.0)
"""Times the window."""
SHARES = tuple(n / 10 for n in range(1, 11))
"""Of saturation: 10 to 100 %."""

STREAMS = ("A", "B", "C", "D")
CHAIN = tuple(Equality((one, one + other), (other, one + other)) for one, other in ("AB", "BC", "CD"))
"""Fig. 5b and c: each join has a key of its own."""


@dataclass(frozen=True)
class Size:
    """How much is run."""

    settings: int = 400
    """Of table 3, for what formulas say."""
    simulated: int = 16
    """Of table 3, for what is simulated."""
    minutes: float = 10.0
    """Of fig. 6; selectivities change at three and seven tenths of them."""
    sensor_minutes: float = 10.0
    stale_after_s: float = 120.0
    """Fig. 9 counts stale results for `stale_counted_s` after this."""
    stale_counted_s: float = 30.0


QUICK = Size(40, 2, 0.4, 0.5, 60.0, 10.0)


@dataclass(frozen=True)
class Setting:
    """Rates, states and selectivities for four streams: for a linear plan and for a bushy one."""

    rates_per_s: tuple[float, ...]
    state_rows: tuple[float, ...]
    view_rows: tuple[float, float]
    selectivities: tuple[float, float, float]
    """Of the joins of A and B, of B and C, of C and D."""

    def streams(self) -> list[Stream]:
        return [Stream(*each, 0.0) for each in zip(STREAMS, self.rates_per_s, self.state_rows, strict=True)]


def linear(setting: Setting) -> Plan:
    """Fig. 5b: (((A B) C) D)."""
    a, b, c, d = setting.streams()
    first, second, third = setting.selectivities
    return Plan(join(join(join(a, b, first, setting.view_rows[0]), c, second, setting.view_rows[1]), d, third))


def bushy(setting: Setting) -> Plan:
    """Fig. 5c: ((A B) (C D)); its root is the join of B and C."""
    a, b, c, d = setting.streams()
    first, second, third = setting.selectivities
    return Plan(join(join(a, b, first, setting.view_rows[0]), join(c, d, third, setting.view_rows[1]), second))


SHAPES: dict[str, Callable[[Setting], Plan]] = {"linear": linear, "bushy": bushy}


def drawn(seed: int) -> Setting:
    """A setting of table 3, evenly drawn."""
    chosen = np.random.default_rng(seed)

    def some(span: tuple[float, float], count: int) -> tuple[float, ...]:
        return tuple(float(value) for value in chosen.uniform(*span, count))

    rates, states, views = some(RATES_PER_S, 4), some(STATE_ROWS, 4), some(STATE_ROWS, 2)
    first, second, third = some(SELECTIVITIES, 3)
    return Setting(rates, states, (views[0], views[1]), (first, second, third))


def freshness_s(plan: Plan, times: float) -> dict[str, float]:
    """So many windows for each stream."""
    return {stream.name: times * window_s(stream) for stream in plan.streams}


def poisson_rows(
    rates_per_s: Mapping[str, float], phases: Sequence[tuple[float, tuple[float, float, float]]], seed: int
) -> dict[str, Rows]:  # fmt: skip
    """Poisson arrivals whose keys have selectivities that change: (until when, selectivities of A B, B C, C D), by
    phase. A key of selectivity σ is drawn from 1/σ values, to the nearest."""
    chosen = np.random.default_rng(seed)
    ends_s = np.array([end for end, _ in phases])
    found = {}
    for name, rate in rates_per_s.items():
        count = chosen.poisson(rate * ends_s[-1])
        times_s = np.sort(chosen.uniform(0.0, ends_s[-1], count))
        phase = np.searchsorted(ends_s, times_s, "right").clip(max=len(phases) - 1)
        columns = {}
        for place, column in enumerate(("AB", "BC", "CD")):
            values = np.array([round(1 / selectivities[place]) for _, selectivities in phases])
            columns[column] = (chosen.random(count) * values[phase]).astype(np.int16)
        found[name] = Rows(times_s, columns)
    return found
