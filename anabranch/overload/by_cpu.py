"""What the product allocates by: results per CPU second of the probes that find results (beyond JAQPOT, after its
section 4.1).

In our engine a probe costs what it finds, and only the last stage of a route is limited: the probes of the rows of one
input, a *direction*, whose finds are results. What feeds views is never limited, so directions compete for CPU and for
nothing else. That is a knapsack of things that can be cut, with a bound on each: to fill it by results per CPU second
is optimal. The linear programme agrees (tests/overload/test_by_cpu.py).

Each direction keeps a *pilot share* of its rows, however unproductive it seems, or its productivity would never be seen
again. A direction that a user pinned gets its share, whatever the capacity. The paper's ρ_p is
`Direction.results_per_cpu_s`, for a path of one half-way join.

`uniform` is the rival: the same share of every direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan

from anabranch.errors import PlanError
from anabranch.overload.allocation import CLOSE

PILOT_SHARE = 0.01
"""One row in a hundred probes in any case: enough to see a productivity within a tenth from ten thousand rows on, and
too few to cost anything."""


@dataclass(frozen=True)
class Direction:
    """The rows of one input of a query that probe for results, per second or per batch."""

    alias: str
    rows: float
    cpu_s_per_row: float
    results_per_row: float
    pinned_share: float | None = None

    def __post_init__(self) -> None:
        for what in ("rows", "cpu_s_per_row", "results_per_row"):
            if not (isfinite(value := getattr(self, what)) and value >= 0):
                raise PlanError(f"{what} of {self.alias} is {value}: it must be a number, 0 or more")
        if self.pinned_share is not None and not 0 <= self.pinned_share <= 1:
            raise PlanError(f"the allowance of {self.alias} is {self.pinned_share}: it must be a share from 0 to 1")

    @property
    def cpu_s(self) -> float:
        """What all rows take."""
        return self.rows * self.cpu_s_per_row

    @property
    def results_per_cpu_s(self) -> float:
        return self.results_per_row / self.cpu_s_per_row if self.cpu_s_per_row else inf


@dataclass(frozen=True)
class Shares:
    """Rows of each direction that may probe, in the order in which directions were given; what they take and give."""

    rows: tuple[float, ...]
    cpu_s: float
    results: float
    completeness: float
    """Of the results that all rows would give; 1 if they would give none."""
    is_exact: bool
    """All rows of all directions probe."""


Divide = Callable[[Sequence[Direction], float, float], Shares]


def by_results_per_cpu(
    directions: Sequence[Direction], capacity_cpu_s: float, pilot_share: float = PILOT_SHARE
) -> Shares:  # fmt: skip
    """The most results for the CPU, after what is pinned and the pilots.

    >>> a, b = Direction("a", 1000, 1e-3, 80), Direction("b", 1000, 1e-3, 20)
    >>> by_results_per_cpu([a, b], 1.125, pilot_share=0.0)
    Shares(rows=(1000.0, 125.0), cpu_s=1.125, results=82500.0, completeness=0.825, is_exact=False)
    """
    least = _least(directions, capacity_cpu_s, pilot_share)
    left = capacity_cpu_s - sum(r * each.cpu_s_per_row for r, each in zip(least, directions, strict=True))
    rows = list(least)
    for place in sorted(range(len(directions)), key=lambda n: (-directions[n].results_per_cpu_s, directions[n].alias)):
        each = directions[place]
        if each.pinned_share is not None:
            continue
        more = each.rows - rows[place]
        if each.cpu_s_per_row and left < more * each.cpu_s_per_row * (1 - CLOSE):
            more = max(0.0, left) / each.cpu_s_per_row
        rows[place] += more
        left -= more * each.cpu_s_per_row
    return _shares(directions, rows)


def uniform(directions: Sequence[Direction], capacity_cpu_s: float, pilot_share: float = PILOT_SHARE) -> Shares:
    """The same share of each direction that is not pinned; pilots are part of it.

    >>> a, b = Direction("a", 1000, 1e-3, 80), Direction("b", 1000, 1e-3, 20)
    >>> uniform([a, b], 1.1).completeness
    0.55
    """
    _check(directions, capacity_cpu_s, pilot_share)
    free = [each for each in directions if each.pinned_share is None]
    wanted = sum(each.cpu_s for each in free)
    left = max(0.0, capacity_cpu_s - _pinned_cpu_s(directions))
    share = min(1.0, left / wanted) if wanted else 1.0
    return _shares(directions, [e.rows * (share if e.pinned_share is None else e.pinned_share) for e in directions])


def _check(directions: Sequence[Direction], capacity_cpu_s: float, pilot_share: float) -> None:
    if isnan(capacity_cpu_s) or capacity_cpu_s < 0:
        raise PlanError(f"the capacity is {capacity_cpu_s} CPU seconds: it must be 0 or more")
    if not 0 <= pilot_share <= 1:
        raise PlanError(f"the pilot share is {pilot_share}: it must be from 0 to 1")
    aliases = [each.alias for each in directions]
    if len(set(aliases)) != len(aliases):
        raise PlanError(f"a direction stands twice in {', '.join(aliases)}")


def _pinned_cpu_s(directions: Sequence[Direction]) -> float:
    return sum(each.cpu_s * each.pinned_share for each in directions if each.pinned_share is not None)


def _least(directions: Sequence[Direction], capacity_cpu_s: float, pilot_share: float) -> list[float]:
    """What every direction has: pinned ones their share, others the pilots, and less of these where they alone take too
    much."""
    _check(directions, capacity_cpu_s, pilot_share)
    pilots_cpu_s = pilot_share * sum(each.cpu_s for each in directions if each.pinned_share is None)
    left = max(0.0, capacity_cpu_s - _pinned_cpu_s(directions))
    share = pilot_share * (min(1.0, left / pilots_cpu_s) if pilots_cpu_s else 1.0)
    return [each.rows * (share if each.pinned_share is None else each.pinned_share) for each in directions]


def _shares(directions: Sequence[Direction], rows: Sequence[float]) -> Shares:
    everything = sum(each.rows * each.results_per_row for each in directions)
    results = sum(r * each.results_per_row for r, each in zip(rows, directions, strict=True))
    return Shares(
        tuple(rows),
        sum(r * each.cpu_s_per_row for r, each in zip(rows, directions, strict=True)),
        results,
        results / everything if everything else 1.0,
        all(r >= each.rows for r, each in zip(rows, directions, strict=True)),
    )  # fmt: skip
