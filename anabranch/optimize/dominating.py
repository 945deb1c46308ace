"""Dominating plans, and which one to take (Zhu, dissertation 2006, section 6.3; DKE 2009, section 3.3).

A plan dominates another if it needs no more of either resource and less of one. Those that none dominates are the Pareto
front. Among qualified plans there are three choices: least CPU, least memory, or any that is not dominated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeVar

from anabranch.cost.model import Cost

T = TypeVar("T")


class Choice(Enum):
    """Which of the qualified plans is taken."""

    LEAST_CPU = "cpu"
    LEAST_MEMORY = "memory"
    BALANCED = "balanced"
    """Of those not dominated the one that leaves the most of the scarcer resource."""


def dominating(plans: Iterable[tuple[T, Cost]]) -> list[tuple[T, Cost]]:
    """The plans that no other dominates, from least memory to least CPU; of equal ones the first.

    >>> [p for p, _ in dominating([("a", Cost(1, 9)), ("b", Cost(5, 5)), ("c", Cost(6, 6)), ("d", Cost(9, 1))])]
    ['d', 'b', 'a']
    """
    front: list[tuple[T, Cost]] = []
    for plan, cost in sorted(plans, key=lambda p: (p[1].memory, p[1].cpu)):
        if not front or cost.cpu < front[-1][1].cpu:
            front.append((plan, cost))
    return front


def qualified(plans: Iterable[tuple[T, Cost]], cpu: float, memory: float) -> list[tuple[T, Cost]]:
    return [(plan, cost) for plan, cost in plans if cost.within(cpu, memory)]


def choose(plans: Sequence[tuple[T, Cost]], choice: Choice, cpu: float, memory: float) -> tuple[T, Cost]:
    """The plan of a choice among some (qualified ones, if it is to be qualified)."""
    if choice is Choice.LEAST_CPU:
        return min(plans, key=lambda p: (p[1].cpu, p[1].memory))
    if choice is Choice.LEAST_MEMORY:
        return min(plans, key=lambda p: (p[1].memory, p[1].cpu))
    return min(dominating(plans), key=lambda p: strain(p[1], cpu, memory))


def strain(cost: Cost, cpu: float, memory: float) -> float:
    """How much of the scarcer resource is used; above 1 the plan is not qualified."""
    return max(share(cost.cpu, cpu), share(cost.memory, memory))


def share(used: float, available: float) -> float:
    """How much of what is available is used; nothing of what has no bound."""
    if available == float("inf"):
        return 0.0
    return used / available if available else (float("inf") if used else 0.0)
