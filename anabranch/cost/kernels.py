"""The cost model for loops that look at millions of joins; `CostModel` is the same for reading, and its twin in tests.

A join is an array of part masks. What its new rows cost, from a bound set of parts to all of them, is a shortest path in the
lattice of subsets: an edge from B to B ∪ Y costs N(B)·(lookup(Y) + rekey) + N(B ∪ Y)·join, without rekey if B is one part.
Where the path began counts only as a factor, Σ 1/W of the first part. So one pass over the subsets gives the best probe
order of every input.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.cost.model import CostModel
from anabranch.storage.compiled import njit

Masks = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

EXACT_PARTS = 8
"""Up to so many parts the best probe orders are found over all subsets of them."""


class Arrays(NamedTuple):
    """A graph and its unit costs, for kernels."""

    rows: Floats
    renewal: Floats
    span: Floats
    lookup: Floats
    """The lookup in the state of each stream; that of a view costs the least of its parts'."""
    row_bytes: Floats
    neighbours: Masks
    class_members: Masks
    class_distinct: Floats
    """Classes × streams; 0 for those that are not members."""
    units: Floats
    """What the constants below name."""


MAINTAIN, VIEW_MAINTAIN, JOIN, COUNTS_KEYS, INDEX_BYTES, VIEW_ROW, VIEW_PART, VIEW_INDEX, SLACK = range(9)
KEEPS_SEGMENTS, STEP, VIEW_SLACK, REKEY, UPKEEP = 9, 10, 11, 12, 13


def arrays_of(model: CostModel) -> Arrays:
    graph, u = model.graph, model.units
    distinct = np.zeros((len(graph.classes), len(graph)))
    for place, key in enumerate(graph.classes):
        for i, count in key.distinct:
            distinct[place, i] = count
    units = [
        u.insert + u.delete, (u.insert if u.view_insert is None else u.view_insert) + u.delete, u.join,
        float(u.counts_keys), u.index_bytes, u.view_row_bytes, u.view_part_bytes, u.view_index_bytes, u.slack_s,
        float(u.keeps_segments), u.step / u.batch_s, u.slack_s if u.view_slack_s is None else u.view_slack_s,
        u.rekey, u.upkeep / u.batch_s,
    ]  # fmt: skip
    return Arrays(
        np.array([s.rows for s in graph.streams], np.float64),
        np.array([s.renewal for s in graph.streams], np.float64),
        np.array([model.span(1 << i) for i in range(len(graph))], np.float64),
        np.array([model.lookup(1 << i) for i in range(len(graph))], np.float64),
        np.array([s.row_bytes for s in graph.streams], np.float64),
        np.array(graph.neighbours, np.int64),
        np.array([key.members for key in graph.classes], np.int64),
        distinct,
        np.array(units, np.float64),
    )


@njit(cache=True, nogil=True)
def rows_of(g, mask):
    """N of a set."""
    product = 1.0
    for i in range(len(g.rows)):
        if mask >> i & 1:
            product *= g.rows[i]
    for c in range(len(g.class_members)):
        inside = mask & g.class_members[c]
        if inside & (inside - 1):
            least, i = np.inf, 0
            while inside:
                if inside & 1:
                    count = g.class_distinct[c, i]
                    product /= count
                    least = min(least, count)
                inside >>= 1
                i += 1
            if least == np.inf:
                return 0.0
            product *= least
    return product


@njit(cache=True, nogil=True)
def renewal_of(g, mask):
    total = 0.0
    for i in range(len(g.renewal)):
        if mask >> i & 1:
            total += g.renewal[i]
    return total


@njit(cache=True, nogil=True)
def least_of(values, mask):
    """The least of the streams' values in a set: the shortest window, the cheapest lookup."""
    least = np.inf
    for i in range(len(values)):
        if mask >> i & 1:
            least = min(least, values[i])
    return least


@njit(cache=True, nogil=True)
def unite(parts, count, unions):
    """The union of every subset of the first `count` parts."""
    unions[0] = 0
    for subset in range(1, 1 << count):
        low = 0
        while not subset >> low & 1:
            low += 1
        unions[subset] = unions[subset & (subset - 1)] | parts[low]


@njit(cache=True, nogil=True)
def adjacent_to(g, mask):
    found = np.int64(0)
    for i in range(len(g.neighbours)):
        if mask >> i & 1:
            found |= g.neighbours[i]
    return found & ~mask


@njit(cache=True, nogil=True)
def is_connected(g, mask):
    reached = mask & -mask
    while True:
        fresh = adjacent_to(g, reached) & mask
        if fresh == 0:
            return reached == mask
        reached |= fresh


@njit(cache=True, nogil=True)
def bit_count(mask):
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@njit(cache=True, nogil=True)
def state_of(g, mask, others, rows, renewal):
    """CPU per second to keep the rows of an input of a join, and their bytes."""
    keys = 0
    if g.units[COUNTS_KEYS] != 0.0:
        for c in range(len(g.class_members)):
            if g.class_members[c] & mask and g.class_members[c] & others:
                keys += 1
    keys = max(keys, 1)
    alive = rows
    if g.units[KEEPS_SEGMENTS] != 0.0:
        span = least_of(g.span, mask)
        if span < np.inf:
            alive = rows * renewal * span
    stored = alive + rows * renewal * (g.units[VIEW_SLACK] if mask & (mask - 1) else g.units[SLACK])
    if mask & (mask - 1):
        width = g.units[VIEW_ROW] + bit_count(mask) * g.units[VIEW_PART] + keys * g.units[VIEW_INDEX]
    else:
        i = 0
        while not mask >> i & 1:
            i += 1
        width = g.row_bytes[i] + keys * g.units[INDEX_BYTES]
    spent = g.units[VIEW_MAINTAIN] if mask & (mask - 1) else g.units[MAINTAIN]
    return (rows * renewal * spent + bit_count(mask) * g.units[UPKEEP]) * keys, stored * width


@njit(cache=True, nogil=True)
def paths(g, parts, cartesian, unions, best, following):
    """For every subset of the parts: the cost from there to all of them per unit of renewal, and which part comes next.

    `unions`, `best` and `following` have room for all subsets. A subset that is not connected costs infinitely much, unless
    cartesian products are allowed.
    """
    count = len(parts)
    full = (1 << count) - 1
    unite(parts, count, unions)
    lookups = np.empty(count)
    for j in range(count):
        lookups[j] = least_of(g.lookup, parts[j])
    best[full], following[full] = 0.0, -1
    for back in range(1, full):
        subset = full - back
        best[subset], following[subset] = np.inf, -1
        here = rows_of(g, unions[subset])
        near = adjacent_to(g, unions[subset])
        ready = here * g.units[REKEY] if subset & (subset - 1) else 0.0
        for j in range(count):
            if subset >> j & 1 or not (cartesian or near & parts[j]):
                continue
            after = subset | 1 << j
            spent = ready + here * lookups[j] + rows_of(g, unions[after]) * g.units[JOIN] + best[after]
            if spent < best[subset]:
                best[subset], following[subset] = spent, j


@njit(cache=True, nogil=True)
def join_cost(g, parts, cartesian):
    """CPU and memory of a join alone, with the best probe orders; for few parts."""
    count = len(parts)
    unions, best = np.empty(1 << count, np.int64), np.empty(1 << count)
    following = np.empty(1 << count, np.int64)
    paths(g, parts, cartesian, unions, best, following)
    everything, memory = unions[(1 << count) - 1], 0.0
    cpu = bit_count(everything) * (count - 1) * g.units[STEP]
    for j in range(count):
        rows, renewal = rows_of(g, parts[j]), renewal_of(g, parts[j])
        kept, stored = state_of(g, parts[j], everything & ~parts[j], rows, renewal)
        cpu += kept + renewal * best[1 << j]
        memory += stored
    return cpu, memory


@njit(cache=True, nogil=True)
def best_orders(g, parts, cartesian):
    """For each part the order in which its rows look up the others."""
    count = len(parts)
    unions, best = np.empty(1 << count, np.int64), np.empty(1 << count)
    following = np.empty(1 << count, np.int64)
    paths(g, parts, cartesian, unions, best, following)
    orders = np.empty((count, count - 1), np.int64)
    for j in range(count):
        subset = 1 << j
        for place in range(count - 1):
            chosen = following[subset]
            if chosen < 0:  # no order without a cartesian product: any will do
                chosen = 0
                while subset >> chosen & 1:
                    chosen += 1
            orders[j, place] = chosen
            subset |= 1 << chosen
    return orders


@njit(cache=True, nogil=True)
def along(g, parts, orders):
    """CPU and memory of a join alone, with given probe orders."""
    everything = np.int64(0)
    for part in parts:
        everything |= part
    cpu, memory = bit_count(everything) * (len(parts) - 1) * g.units[STEP], 0.0
    for j in range(len(parts)):
        here, renewal = rows_of(g, parts[j]), renewal_of(g, parts[j])
        kept, stored = state_of(g, parts[j], everything & ~parts[j], here, renewal)
        cpu += kept
        memory += stored
        bound = parts[j]
        for place in range(orders.shape[1]):
            other = parts[orders[j, place]]
            bound |= other
            after = rows_of(g, bound)
            ready = g.units[REKEY] if place else 0.0
            cpu += renewal * (here * (least_of(g.lookup, other) + ready) + after * g.units[JOIN])
            here = after
    return cpu, memory
