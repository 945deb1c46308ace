"""state-selection: from an mjoin to a tree, one kept state after the other (Zhu, Raghavan, Rundensteiner, DKE 2009,
section 5.2, algorithm 3; dissertation 2006, section 5.2, algorithm 2).

Two inputs of the top join are merged into a view: those that stand next to each other most often in the probe orders, for
the size of the state they make. A view that does not lower the CPU is not kept. What was merged is then tried as one join
instead of two (*operator merging*), which is kept if it lowers both resources. It ends when the plan is qualified, when no
view helps, or when the memory is used up.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from anabranch.cost.streams import Mask
from anabranch.optimize.trees import MJOIN, Pricer, Views, parts_of


def edge_frequencies(pricer: Pricer, parts: tuple[Mask, ...]) -> Counter[tuple[Mask, Mask]]:
    """How often two inputs that a predicate connects follow each other in the probe orders of a join."""
    found: Counter[tuple[Mask, Mask]] = Counter()
    for start, order in enumerate(pricer.orders(parts)):
        sequence = [parts[start], *(parts[j] for j in order)]
        for left, right in pairwise(sequence):
            if pricer.cartesian or pricer.model.graph.adjacent(left) & right:
                found[min(left, right), max(left, right)] += 1
    return found


def state_selection(pricer: Pricer, cpu: float, memory: float, views: Views = MJOIN) -> Views:
    """The views of the tree it ends with, qualified or not."""
    cost = pricer.tree(views)
    while cost.cpu > cpu and cost.memory < memory:
        parts = parts_of(pricer.everything, views)
        frequencies = edge_frequencies(pricer, parts) if len(parts) > 2 else Counter()
        candidates = sorted(
            frequencies, key=lambda edge: (-frequencies[edge] / (pricer.model.graph.rows(edge[0] | edge[1]) or 1e-300), edge)
        )
        for left, right in candidates:
            grown = views | {left | right}
            new = pricer.tree(grown)
            if new.cpu < cost.cpu:
                views, cost = _merge_operators(pricer, grown, (left, right)), new
                cost = pricer.tree(views)
                break
        else:
            return views
    return views


def _merge_operators(pricer: Pricer, views: Views, children: tuple[Mask, Mask]) -> Views:
    """Merges a new join with a join below it where that saves both CPU and memory."""
    for child in children:
        if child in views:
            merged = views - {child}
            old, new = pricer.tree(views), pricer.tree(merged)
            if new.cpu < old.cpu and new.memory < old.memory:
                views = merged
    return views
