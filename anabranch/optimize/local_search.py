"""A bounded local search from several starting points: what the published heuristics miss.

state-selection and state-removal only ever add or only ever remove a state, one at a time, so that they stop at the first
tree from which no single step helps; and the two-layer framework gives up when its binary tree needs too much CPU, which
another tree need not. Here the starting points are the mjoin, the binary trees of min-state by size and by CPU, and what
both algorithms end with. From each, the neighbour with the least *strain* (the share of the scarcer resource that it uses)
is taken as long as that lowers the strain; a neighbour has one view more, one less, or another in place of one.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.cost.model import Cost
from anabranch.cost.streams import Mask
from anabranch.optimize.dominating import dominating, strain
from anabranch.optimize.min_state import min_state
from anabranch.optimize.state_removal import state_removal
from anabranch.optimize.state_selection import state_selection
from anabranch.optimize.trees import MJOIN, Pricer, Views, parts_of

MOST_STEPS = 40
"""A walk ends after so many steps."""


def starting_points(pricer: Pricer, cpu: float, memory: float) -> Iterator[Views]:
    """Trees to begin with, cheap ones first."""
    yield MJOIN
    if len(pricer.model.graph) > 2:
        binary = min_state(pricer)
        yield binary
        yield state_selection(pricer, cpu, memory)
        yield state_removal(pricer, cpu, memory, binary)
        yield least_cpu_tree(pricer)


def least_cpu_tree(pricer: Pricer) -> Views:
    """A binary tree by the least CPU of each next join, instead of the least state."""
    graph, views = pricer.model.graph, set()
    parts = [1 << i for i in range(len(graph))]
    while len(parts) > 2:
        pairs = [
            (pricer.join((left, right)).cpu + pricer.model.maintain(left | right, pricer.everything & ~(left | right)), left, right)
            for place, left in enumerate(parts)
            for right in parts[place + 1 :]
            if pricer.cartesian or graph.adjacent(left) & right
        ]
        _, left, right = min(pairs)
        parts = [p for p in parts if p not in (left, right)] + [left | right]
        views.add(left | right)
    return frozenset(views)


def neighbours(pricer: Pricer, views: Views) -> Iterator[Views]:
    """Trees with one view more, one less, or one exchanged."""
    for view in views:
        yield views - {view}
    for node in (*views, pricer.everything):
        yield from _grown(pricer, views, node)
    for view in views:
        parent = min((v for v in (*views, pricer.everything) if v & view == view and v != view), key=int.bit_count)
        for grown in _grown(pricer, views - {view}, parent):
            if grown != views:
                yield grown


def _grown(pricer: Pricer, views: Views, node: Mask) -> Iterator[Views]:
    """Trees in which two inputs of a join become one."""
    parts = parts_of(node, views)
    if len(parts) < 3:
        return
    for place, left in enumerate(parts):
        for right in parts[place + 1 :]:
            if pricer.cartesian or pricer.model.graph.adjacent(left) & right:
                yield views | {left | right}


def improve(pricer: Pricer, views: Views, cpu: float, memory: float) -> tuple[Views, Cost]:
    """Walks downhill in strain until it is at most 1 or no neighbour is better."""
    cost = pricer.tree(views)
    for _ in range(MOST_STEPS):
        now = strain(cost, cpu, memory)
        if now <= 1:
            break
        best = min(((strain(c := pricer.tree(v), cpu, memory), sum(v), v, c) for v in neighbours(pricer, views)),
                   default=None, key=lambda found: found[:2])  # fmt: skip
        if best is None or best[0] >= now:
            break
        views, cost = best[2], best[3]
    return views, cost


def search(pricer: Pricer, cpu: float, memory: float) -> list[tuple[Views, Cost]]:
    """The trees found that no other found one dominates: the first qualified one ends the search."""
    found: dict[Views, Cost] = {}
    for start in starting_points(pricer, cpu, memory):
        found[start] = pricer.tree(start)
        if found[start].within(cpu, memory):
            break
    else:
        for start in sorted(found, key=lambda v: strain(found[v], cpu, memory)):
            views, cost = improve(pricer, start, cpu, memory)
            found[views] = cost
            if cost.within(cpu, memory):
                break
    return dominating(found.items())
