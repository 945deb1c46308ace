"""JTree-Finder: every qualified plan, by dynamic programming over all partitions of all sets (Zhu, Raghavan, Rundensteiner,
DKE 2009, section 3.3, algorithm 1), as published: it keeps every plan of every set that is within the bounds.

Exponential in time and in memory; `anabranch.optimize.exact` finds the same best plans with far less of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from anabranch.cost.model import Cost
from anabranch.cost.streams import Mask
from anabranch.optimize.trees import Pricer, Views


def partitions(streams: Mask) -> Iterator[tuple[Mask, ...]]:
    """The ways to cut a set into disjoint parts, one of them the set itself.

    >>> sorted(len(p) for p in partitions(0b111))
    [1, 2, 2, 2, 3]
    """
    if not streams:
        yield ()
        return
    lowest = streams & -streams
    rest = streams & ~lowest
    inner = rest
    while True:
        for others in partitions(rest & ~inner):
            yield (lowest | inner, *others)
        if not inner:
            return
        inner = (inner - 1) & rest


def jtree_finder(
    pricer: Pricer, cpu: float = float("inf"), memory: float = float("inf")
) -> list[tuple[Views, Cost]]:
    """All trees within the bounds, with their costs; none if there is none."""
    graph = pricer.model.graph
    plans: dict[Mask, list[tuple[Views, Cost]]] = {1 << i: [(frozenset(), Cost(0, 0))] for i in range(len(graph))}
    sets = sorted(range(1, graph.everything + 1), key=lambda s: (s.bit_count(), s))
    for size in range(2, len(graph) + 1):
        found_any = False
        for streams in (s for s in sets if s.bit_count() == size):
            if not pricer.is_joinable(streams):
                continue
            found = []
            for parts in partitions(streams):
                if len(parts) < 2 or not all(p in plans for p in parts):
                    continue
                ordered = tuple(sorted(parts, key=lambda part: part & -part))
                node = pricer.join(ordered)
                kept = frozenset(p for p in parts if p & (p - 1))
                for choice in product(*(plans[p] for p in ordered)):
                    cost = node
                    views = kept
                    for below, price in choice:
                        views |= below
                        cost += price
                    whole = cost + pricer.fixed
                    if whole.within(cpu, memory):
                        found.append((views, cost))
            if found:
                plans[streams] = found
                found_any = True
        if not found_any:
            return []
    return [(views, cost + pricer.fixed) for views, cost in plans.get(graph.everything, [])]
