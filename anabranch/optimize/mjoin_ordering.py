"""mjoin-ordering: the probe order of each input of an n-ary join (Zhu, dissertation 2006, section 5.1, algorithm 1).

The cost of an order satisfies the adjacent sequence interchange property, also with a price for lookups: with T(Y) the rows
that one row becomes by joining Y, and C(Y) = lookup(Y) + T(Y)·join, C(S1 S2) = C(S1) + T(S1)·C(S2). So the algorithm of
Ibaraki and Kameda finds the best order for a join graph without cycles: in the tree rooted at the input, sequences that are
out of order by rank (T - 1) / C are merged into one, and branches are interleaved by rank.

A graph with cycles is cut down to a minimum spanning tree first. The weight of an edge is the size of the joined state, which
has rates and windows in it, and not the selectivity alone. Edges of cartesian products, with selectivity 1, take part if they
are allowed; they are chosen only where they are lighter than predicates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from anabranch.cost.kernels import JOIN, adjacent_to, along, arrays_of, lookup_of, rows_of
from anabranch.cost.model import CostModel
from anabranch.cost.streams import Mask
from anabranch.errors import PlanError
from anabranch.plan.jtree import Join, Leaf

Orders = tuple[tuple[int, ...], ...]


class DisconnectedError(PlanError):
    """Streams that only a cartesian product can bring together, where none is allowed."""


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


@njit(cache=True, nogil=True)
def spanning_tree(g: Any, parts: Any, cartesian: bool) -> Any:
    """The edges (pairs of places) of a minimum spanning tree; fewer than parts - 1 if the parts are not connected."""
    count = len(parts)
    size = np.empty(count)
    for i in range(count):
        size[i] = rows_of(g, parts[i])
    reached = np.zeros(count, np.bool_)
    weight, source = np.full(count, np.inf), np.zeros(count, np.int64)
    edges = np.empty((count - 1, 2), np.int64)
    found, at = 0, 0
    reached[0] = True
    while found < count - 1:
        near = adjacent_to(g, parts[at])
        for j in range(count):
            if not reached[j] and (cartesian or near & parts[j]):
                w = rows_of(g, parts[at] | parts[j]) if near & parts[j] else size[at] * size[j]
                if w < weight[j]:
                    weight[j], source[j] = w, at
        at = -1
        for j in range(count):
            if not reached[j] and weight[j] < np.inf and (at < 0 or weight[j] < weight[at]):
                at = j
        if at < 0:
            return edges[:found]
        reached[at] = True
        edges[found, 0], edges[found, 1] = source[at], at
        found += 1
    return edges


@njit(cache=True, nogil=True)
def ik_orders(g: Any, parts: Any, tree: Any) -> Any:
    """The orders of Ibaraki and Kameda for every part as root of a tree of edges between parts."""
    count = len(parts)
    orders = np.empty((count, count - 1), np.int64)
    size, lookup = np.empty(count), np.empty(count)
    for i in range(count):
        size[i], lookup[i] = rows_of(g, parts[i]), lookup_of(g, parts[i])
    joined = np.empty((count, count))
    neighbours = np.zeros((count, count), np.bool_)
    for e in range(len(tree)):
        a, b = tree[e, 0], tree[e, 1]
        neighbours[a, b] = neighbours[b, a] = True
        joined[a, b] = joined[b, a] = rows_of(g, parts[a] | parts[b])
    parent, visited = np.empty(count, np.int64), np.empty(count, np.int64)
    # A sequence is a linked list of parts: `last` is where it ends, `after` the next part in it, `below` the next sequence.
    t, c = np.empty(count), np.empty(count)
    after, last, below = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    first = np.empty(count, np.int64)
    for root in range(count):
        parent[root] = -1
        visited[0] = root
        seen = 1
        at = 0
        while at < seen:
            node = visited[at]
            for j in range(count):
                if neighbours[node, j] and j != parent[node]:
                    parent[j] = node
                    visited[seen] = j
                    seen += 1
            at += 1
        first[:] = -1
        for back in range(count):
            node = visited[count - 1 - back]
            # The branches below the node, each in order, interleaved by rank.
            if node == root:
                break
            up = parent[node]
            t[node] = joined[up, node] / size[up] if size[up] > 0 else 0.0
            c[node] = lookup[node] + t[node] * g.units[JOIN]
            after[node], last[node], below[node] = -1, node, first[node]
            # What is out of order follows its parent at once.
            follower = below[node]
            while follower >= 0 and _rank(t[node], c[node]) > _rank(t[follower], c[follower]):
                c[node] += t[node] * c[follower]
                t[node] *= t[follower]
                after[last[node]], last[node] = follower, last[follower]
                follower = below[follower]
            below[node] = follower
            first[up] = _interleave(first[up], node, t, c, below)
        place, head = 0, first[root]
        while head >= 0:
            node = head
            while node >= 0:
                orders[root, place] = node
                place += 1
                node = after[node]
            head = below[head]
    return orders


@njit(inline="always")
def _rank(t: float, c: float) -> float:
    return (t - 1) / c if c > 0 else -np.inf


@njit(cache=True, nogil=True)
def _interleave(left: int, right: int, t: Any, c: Any, below: Any) -> int:
    """Merges two lists of sequences in order of rank; returns the first."""
    head, tail = np.int64(-1), np.int64(-1)
    while left >= 0 or right >= 0:
        if right < 0 or (left >= 0 and _rank(t[left], c[left]) <= _rank(t[right], c[right])):
            chosen = left
            left = below[left]
        else:
            chosen = right
            right = below[right]
        if tail < 0:
            head = chosen
        else:
            below[tail] = chosen
        tail = chosen
    if tail >= 0:
        below[tail] = -1
    return head


@njit(cache=True, nogil=True)
def ordered_cost(g: Any, parts: Any, cartesian: bool) -> tuple[float, float]:
    """CPU and memory of a join alone with these orders; infinite where the parts are not connected."""
    tree = spanning_tree(g, parts, cartesian)
    if len(tree) < len(parts) - 1:
        return np.inf, np.inf
    return along(g, parts, ik_orders(g, parts, tree))
