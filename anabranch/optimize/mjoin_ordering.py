"""mjoin-ordering: the probe order of each input of an n-ary join (Zhu, dissertation 2006, section 5.1, algorithm 1).

The cost of an order satisfies the adjacent sequence interchange property, also with a price for lookups: with T(Y) the rows
that one row becomes by joining Y, and C(Y) = rekey + lookup(Y) + T(Y)·join, C(S1 S2) = C(S1) + T(S1)·C(S2). (The first
lookup of an order needs no rekey: the same amount less for every order.) So the algorithm of
Ibaraki and Kameda finds the best order for a join graph without cycles: in the tree rooted at the input, sequences that are
out of order by rank (T - 1) / C are merged into one, and branches are interleaved by rank.

A graph with cycles is cut down to a minimum spanning tree first. The weight of an edge is the size of the joined state,
which has rates and windows in it, and not the selectivity alone. Edges of cartesian products, with selectivity 1, take part
if they are allowed; they are chosen only where they are lighter than predicates.
"""

from __future__ import annotations

import numpy as np

from anabranch.cost.kernels import arrays_of
from anabranch.cost.model import CostModel
from anabranch.cost.streams import Mask
from anabranch.errors import DisconnectedError
from anabranch.optimize.kernels import ik_orders, spanning_tree
from anabranch.plan.jtree import Join, Leaf

Orders = tuple[tuple[int, ...], ...]


def mjoin_ordering(model: CostModel, parts: tuple[Mask, ...], cartesian: bool = False) -> Orders:
    """For each part of a join the order in which its new rows look up the others."""
    g, masks = arrays_of(model), np.array(parts, np.int64)
    tree = spanning_tree(g, masks, cartesian)
    if len(tree) < len(parts) - 1:
        raise disconnected(model)
    return tuple(tuple(int(j) for j in order) for order in ik_orders(g, masks, tree))


def best_mjoin(model: CostModel, cartesian: bool = False) -> Join:
    """The n-ary join of all streams: of all plans the one with the least memory."""
    parts = tuple(1 << i for i in range(len(model.graph)))
    orders = mjoin_ordering(model, parts, cartesian)
    return Join(tuple(Leaf(name) for name in model.graph.names), orders)


def disconnected(model: CostModel) -> DisconnectedError:
    groups = ["(" + " ".join(model.graph.names_of(c)) + ")" for c in model.graph.components()]
    return DisconnectedError(
        f"no predicate connects {' and '.join(groups)}: add one, or allow cartesian products with cartesian=True"
    )
