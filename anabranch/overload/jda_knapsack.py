"""JDA-Knapsack: allocation where every cycle stands alone and numbers are whole (JAQPOT, section 4.1, problem 1,
equations 9 and 10).

    X^I        `PathItem.resources`     what one multiple of a path takes
    r^I        `PathItem.results`       what it gives
    M_I        multiples
    µ          `capacity`, a whole number

`in_order` is the policy as written: the most productive path that still fits, again and again; it is not optimal (table 2: 6
where 8 can be had). `by_dynamic_programming` is, in O(k·µ).

Deviations. Equation 9 gives M_I · ρ_p as the results of M_I multiples; it must be M_I · r^I, as in the paper's own example
(2 · 4). The a_I of the equations says whether M_I is above 0, and is left out. Multiples are not bounded by the rate of a
stream in the paper (its optimum probes with 22 rows of a stream that brings 11); `most` bounds them where it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.errors import PlanError


@dataclass(frozen=True)
class PathItem:
    """A line of the path productivity table."""

    stream: str
    resources: int
    results: float
    most: int | None = None
    """Multiples that the stream has rows for; None is as many as one likes."""

    def __post_init__(self) -> None:
        if self.resources < 1:
            raise PlanError(f"a multiple of the path of {self.stream} takes {self.resources}: it must be 1 or more")

    @property
    def productivity(self) -> float:
        return self.results / self.resources


@dataclass(frozen=True)
class Multiples:
    """How often each path is taken, and what that gives."""

    by_stream: tuple[tuple[str, int], ...]
    results: float


def in_order(items: Sequence[PathItem], capacity: int) -> Multiples:
    """The most productive path that fits, until none does.

    >>> table = [PathItem("a", 15, 4), PathItem("b", 16, 5), PathItem("c", 10, 1)]
    >>> in_order(table, 30)
    Multiples(by_stream=(('a', 0), ('b', 1), ('c', 1)), results=6)
    """
    taken = dict.fromkeys((item.stream for item in items), 0)
    for item in sorted(items, key=lambda each: -each.productivity):
        times = capacity // item.resources
        taken[item.stream] = times if item.most is None else min(times, item.most)
        capacity -= taken[item.stream] * item.resources
    return Multiples(tuple(taken.items()), sum(taken[item.stream] * item.results for item in items))


def by_dynamic_programming(items: Sequence[PathItem], capacity: int) -> Multiples:
    """The most results that whole multiples give.

    >>> table = [PathItem("a", 15, 4), PathItem("b", 16, 5), PathItem("c", 10, 1)]
    >>> by_dynamic_programming(table, 30)
    Multiples(by_stream=(('a', 2), ('b', 0), ('c', 0)), results=8)
    """
    best = [0.0] * (capacity + 1)
    taken: list[list[int]] = []
    for item in items:
        best, times = _with(best, item)
        taken.append(times)
    found, spent = {}, capacity
    for item, times in zip(reversed(items), reversed(taken), strict=True):
        found[item.stream] = times[spent]
        spent -= times[spent] * item.resources
    results = sum(found[item.stream] * item.results for item in items)
    return Multiples(tuple((item.stream, found[item.stream]) for item in items), results)


def _with(best: list[float], item: PathItem) -> tuple[list[float], list[int]]:
    """What each amount of resources gives once a path may be taken, too, and how often it then is. Amounts that differ by
    whole multiples of the path are looked at in turn: of those not further back than `most` multiples, a queue has the ones
    that may still be the best to start from, so that each amount enters and leaves it once."""
    after, times = list(best), [0] * len(best)
    most = len(best) if item.most is None else item.most
    for first in range(min(item.resources, len(best))):
        queue: deque[tuple[int, float]] = deque()
        for place, spent in enumerate(range(first, len(best), item.resources)):
            worth = best[spent] - place * item.results
            while queue and queue[-1][1] < worth:
                queue.pop()
            queue.append((place, worth))
            if place - queue[0][0] > most:
                queue.popleft()
            start, worth = queue[0]
            after[spent], times[spent] = worth + place * item.results, place - start
    return after, times
