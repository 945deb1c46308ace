"""Join trees as the sets of streams whose combined rows they keep, and their prices.

A tree is given by its *views*: sets of two or more streams, not all, of which any two are nested or apart. The inputs of a
join are the largest views inside it and the streams that are in none. To add a view is to keep a state (state selection), to
take one away is to merge two joins (state removal).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anabranch.cost.kernels import EXACT_PARTS, arrays_of, best_orders, join_cost
from anabranch.cost.model import Cost, CostModel
from anabranch.cost.streams import Mask, bits
from anabranch.optimize.kernels import ik_orders, ordered_cost, spanning_tree
from anabranch.optimize.mjoin_ordering import Orders
from anabranch.plan.jtree import Join, Leaf, Plan

Views = frozenset[Mask]
MJOIN: Views = frozenset()
"""The tree that keeps no combined rows."""


def parts_of(node: Mask, views: Iterable[Mask]) -> tuple[Mask, ...]:
    """The inputs of the join that makes a set.

    >>> [bin(part) for part in parts_of(0b11111, [0b00011, 0b00111])]
    ['0b111', '0b1000', '0b10000']
    """
    inside = [v for v in views if v & node == v and v != node]
    largest = [v for v in inside if not any(v & other == v and v != other for other in inside)]
    covered = 0
    for view in largest:
        covered |= view
    return tuple(sorted([*largest, *(1 << i for i in bits(node & ~covered))], key=lambda part: part & -part))


class Pricer:
    """Prices trees over one graph; every join is priced once.

    With `exact` orders a join of few parts has the best probe orders there are; one of many, and all joins without it, those
    of mjoin-ordering, which are the best for a graph without cycles.
    """

    def __init__(self, model: CostModel, cartesian: bool = False, exact: bool = True) -> None:
        self.model, self.cartesian, self.exact = model, cartesian, exact
        self.everything = model.graph.everything
        self.arrays = arrays_of(model)
        self.fixed = model.fixed()
        self.considered = 0
        """How many joins were priced so far."""
        self._joins: dict[tuple[Mask, ...], Cost] = {}

    def join(self, parts: tuple[Mask, ...]) -> Cost:
        found = self._joins.get(parts)
        if found is None:
            self.considered += 1
            price = join_cost if self.exact and len(parts) <= EXACT_PARTS else ordered_cost
            found = self._joins[parts] = Cost(*price(self.arrays, np.array(parts, np.int64), self.cartesian))
        return found

    def tree(self, views: Views) -> Cost:
        """A tree, whole."""
        total = self.fixed
        for node in (*views, self.everything) if len(self.model.graph) > 1 else ():
            total += self.join(parts_of(node, views))
        return total

    def orders(self, parts: tuple[Mask, ...]) -> Orders:
        masks = np.array(parts, np.int64)
        if self.exact and len(parts) <= EXACT_PARTS:
            found = best_orders(self.arrays, masks, self.cartesian)
        else:
            found = ik_orders(self.arrays, masks, spanning_tree(self.arrays, masks, self.cartesian))
        return tuple(tuple(int(j) for j in order) for order in found)

    def plan(self, views: Views, node: Mask | None = None) -> Plan:
        """The tree as a plan with its probe orders."""
        node = self.everything if node is None else node
        if not node & (node - 1):
            return Leaf(self.model.graph.names[node.bit_length() - 1])
        parts = parts_of(node, views)
        return Join(tuple(self.plan(views, part) for part in parts), self.orders(parts))

    def is_joinable_group(self, parts: tuple[Mask, ...]) -> bool:
        """Whether some inputs of a join, each joinable, may be joined with each other first."""
        if self.cartesian:
            return True
        reached, left = parts[0], list(parts[1:])
        while left:
            near = self.model.graph.adjacent(reached)
            fresh = [p for p in left if near & p]
            if not fresh:
                return False
            for part in fresh:
                reached |= part
                left.remove(part)
        return True

    def is_joinable(self, streams: Mask) -> bool:
        """Whether a set may be joined on its own."""
        return self.cartesian or self.model.graph.is_connected(streams)


def views_of(plan: Plan, model: CostModel) -> Views:
    """The views that a plan keeps."""
    if isinstance(plan, Leaf):
        return MJOIN
    below = frozenset().union(*(views_of(child, model) for child in plan.inputs))
    return below | {model.graph.mask(c.aliases) for c in plan.inputs if isinstance(c, Join)}
