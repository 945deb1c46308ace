"""The exact Pareto front of a query's plans: dynamic programming over sets of streams.

What a join costs depends on the sets it joins alone (`anabranch.cost.model`), with the best probe orders a shortest path
(`anabranch.cost.kernels.paths`), and costs add up over the tree. So the plans of a set that no other plan of that set
dominates are all that larger sets need: the front of a set comes from its partitions into two or more parts, each with the
sums of a point from the front of every part. Partitions are cut off as soon as the least they can still cost is dominated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from anabranch.cost.kernels import (
    JOIN,
    adjacent_to,
    arrays_of,
    is_connected,
    lookup_of,
    renewal_of,
    rows_of,
    state_of,
)
from anabranch.cost.model import Cost
from anabranch.optimize.mjoin_ordering import disconnected
from anabranch.optimize.trees import MJOIN, Pricer, Views

MOST_STREAMS = 16
"""The tables have an entry for each set of streams."""


def exact_front(pricer: Pricer) -> list[tuple[Views, Cost]]:
    """The plans that no plan dominates, from least memory to least CPU."""
    graph = pricer.model.graph
    if len(graph) > MOST_STREAMS:
        raise ValueError(f"an exact search over {len(graph)} streams would not end: at most {MOST_STREAMS}")
    if len(graph) < 2:
        return [(MJOIN, pricer.fixed)]
    if not pricer.cartesian and not graph.is_connected(graph.everything):
        raise disconnected(pricer.model)
    cpu, memory, first, sizes, children = _fronts(arrays_of(pricer.model), len(graph), pricer.cartesian)

    def views(point: int) -> Views:
        found = MJOIN
        for child in children[point]:
            if child[0] & (child[0] - 1):
                found |= {int(child[0])} | views(int(child[1]))
        return found

    whole = range(first[graph.everything], first[graph.everything] + sizes[graph.everything])
    return [(views(p), pricer.fixed + Cost(float(cpu[p]), float(memory[p]))) for p in whole]


@njit(cache=True, nogil=True)
def _is_dominated(cpu: float, memory: float, front_cpu: Any, front_memory: Any, size: int) -> bool:
    for i in range(size):
        if front_cpu[i] <= cpu and front_memory[i] <= memory:
            return True
    return False


@njit(cache=True, nogil=True)
def _node(g: Any, parts: Any, count: int, cartesian: bool, rows: Any, adjacent: Any, unions: Any, best: Any) -> float:
    """CPU of the probes of a join of the first `count` parts, with the best orders."""
    full = (1 << count) - 1
    for subset in range(1, full + 1):
        low = 0
        while not subset >> low & 1:
            low += 1
        unions[subset] = unions[subset & (subset - 1)] | parts[low]
    lookups = np.empty(count)
    for j in range(count):
        lookups[j] = lookup_of(g, parts[j])
    best[full] = 0.0
    for back in range(1, full):
        subset = full - back
        here, near, least = rows[unions[subset]], adjacent[unions[subset]], np.inf
        for j in range(count):
            if subset >> j & 1 or not (cartesian or near & parts[j]):
                continue
            after = subset | 1 << j
            spent = here * lookups[j] + rows[unions[after]] * g.units[JOIN] + best[after]
            if spent < least:
                least = spent
        best[subset] = least
    total = 0.0
    for j in range(count):
        total += renewal_of(g, parts[j]) * best[1 << j]
    return total


@njit(cache=True, nogil=True)
def _fronts(g: Any, n: int, cartesian: bool) -> Any:
    sets = 1 << n
    rows, adjacent = np.empty(sets), np.empty(sets, np.int64)
    usable, least_bytes = np.zeros(sets, np.bool_), np.zeros(sets)
    for s in range(1, sets):
        rows[s], adjacent[s] = rows_of(g, s), adjacent_to(g, s)
        usable[s] = cartesian or is_connected(g, s)
    for i in range(n):
        alone = np.int64(1) << i
        least = state_of(g, alone, np.int64(0), rows[alone], g.renewal[i])[1]
        for s in range(1, sets):
            if s >> i & 1:
                least_bytes[s] += least
    # Points of all fronts; the children of a point are (set, point) pairs.
    capacity = 1024
    cpu, memory = np.empty(capacity), np.empty(capacity)
    children = np.zeros((capacity, n, 2), np.int64)
    used = 0
    first, sizes = np.zeros(sets, np.int64), np.zeros(sets, np.int64)
    for i in range(n):
        cpu[used], memory[used] = 0.0, 0.0
        first[1 << i], sizes[1 << i] = used, 1
        used += 1
    unions, best = np.zeros(1 << n, np.int64), np.empty(1 << n)
    parts, remaining, inner = np.empty(n, np.int64), np.empty(n + 1, np.int64), np.empty(n, np.int64)
    low_cpu, low_memory = np.empty(n + 1), np.empty(n + 1)
    room = 256
    f_cpu, f_memory = np.empty(room), np.empty(room)
    f_children = np.zeros((room, n, 2), np.int64)
    for s in range(3, sets):
        if not s & (s - 1) or not usable[s]:
            continue
        size = 0
        floor = renewal_of(g, s) * rows[s] * g.units[JOIN]
        depth = 0
        remaining[0], inner[0] = s, -1
        low_cpu[0], low_memory[0] = floor, 0.0
        while depth >= 0:
            lowest = remaining[depth] & -remaining[depth]
            rest = remaining[depth] & ~lowest
            if inner[depth] < 0:
                inner[depth] = rest
            elif inner[depth] == 0:
                depth -= 1
                continue
            else:
                inner[depth] = (inner[depth] - 1) & rest
            part = lowest | inner[depth]
            if part == s or not usable[part] or sizes[part] == 0:
                if inner[depth] == 0:
                    depth -= 1
                continue
            parts[depth] = part
            kept, stored = state_of(g, part, s & ~part, rows[part], renewal_of(g, part))
            least_cpu, least_memory = cpu[first[part] + sizes[part] - 1], memory[first[part]]
            low_cpu[depth + 1] = low_cpu[depth] + kept + least_cpu
            low_memory[depth + 1] = low_memory[depth] + stored + least_memory
            left = remaining[depth] & ~part
            hopeless = _is_dominated(low_cpu[depth + 1], low_memory[depth + 1] + least_bytes[left], f_cpu, f_memory, size)
            if hopeless:
                if inner[depth] == 0:
                    depth -= 1
                continue
            if left:
                remaining[depth + 1], inner[depth + 1] = left, -1
                depth += 1
                continue
            count = depth + 1
            node_cpu, node_memory = _node(g, parts, count, cartesian, rows, adjacent, unions, best), 0.0
            for j in range(count):
                kept, stored = state_of(g, parts[j], s & ~parts[j], rows[parts[j]], renewal_of(g, parts[j]))
                node_cpu += kept
                node_memory += stored
            below_cpu, below_memory = node_cpu, node_memory
            for j in range(count):
                below_cpu += cpu[first[parts[j]] + sizes[parts[j]] - 1]
                below_memory += memory[first[parts[j]]]
            if node_cpu < np.inf and not _is_dominated(below_cpu, below_memory, f_cpu, f_memory, size):
                # All sums of points of the parts' fronts, part after part, dominated ones left out.
                l_cpu, l_memory = np.array([node_cpu]), np.array([node_memory])
                l_points = np.zeros((1, n), np.int64)
                for j in range(count):
                    start, many = first[parts[j]], sizes[parts[j]]
                    total = len(l_cpu) * many
                    c, m = np.empty(total), np.empty(total)
                    for a in range(len(l_cpu)):
                        for b in range(many):
                            c[a * many + b] = l_cpu[a] + cpu[start + b]
                            m[a * many + b] = l_memory[a] + memory[start + b]
                    order = np.argsort(m)
                    kept_places = np.empty(total, np.int64)
                    kept_count, lowest_cpu = 0, np.inf
                    at = 0
                    while at < total:
                        # Of those with equal memory the one with least CPU.
                        chosen, beyond = order[at], at + 1
                        while beyond < total and m[order[beyond]] == m[chosen]:
                            if c[order[beyond]] < c[chosen]:
                                chosen = order[beyond]
                            beyond += 1
                        at = beyond
                        if c[chosen] < lowest_cpu:
                            lowest_cpu = c[chosen]
                            kept_places[kept_count] = chosen
                            kept_count += 1
                    points = np.empty((kept_count, n), np.int64)
                    new_cpu, new_memory = np.empty(kept_count), np.empty(kept_count)
                    for k in range(kept_count):
                        place = kept_places[k]
                        points[k] = l_points[place // many]
                        points[k, j] = start + place % many
                        new_cpu[k], new_memory[k] = c[place], m[place]
                    l_cpu, l_memory, l_points = new_cpu, new_memory, points
                for k in range(len(l_cpu)):
                    if _is_dominated(l_cpu[k], l_memory[k], f_cpu, f_memory, size):
                        continue
                    kept_size = 0
                    for i in range(size):
                        if not (l_cpu[k] <= f_cpu[i] and l_memory[k] <= f_memory[i]):
                            f_cpu[kept_size], f_memory[kept_size] = f_cpu[i], f_memory[i]
                            f_children[kept_size] = f_children[i]
                            kept_size += 1
                    size = kept_size
                    if size == room:
                        room *= 2
                        f_cpu = np.concatenate((f_cpu, np.empty(size)))
                        f_memory = np.concatenate((f_memory, np.empty(size)))
                        f_children = np.concatenate((f_children, np.zeros((size, n, 2), np.int64)))
                    f_cpu[size], f_memory[size] = l_cpu[k], l_memory[k]
                    f_children[size] = 0
                    for j in range(count):
                        f_children[size, j, 0], f_children[size, j, 1] = parts[j], l_points[k, j]
                    size += 1
            if inner[depth] == 0:
                depth -= 1
        order = np.argsort(f_memory[:size])
        while used + size > capacity:
            cpu = np.concatenate((cpu, np.empty(capacity)))
            memory = np.concatenate((memory, np.empty(capacity)))
            children = np.concatenate((children, np.zeros((capacity, n, 2), np.int64)))
            capacity *= 2
        first[s], sizes[s] = used, size
        for k in range(size):
            cpu[used], memory[used] = f_cpu[order[k]], f_memory[order[k]]
            children[used] = f_children[order[k]]
            used += 1
    return cpu, memory, first, sizes, children
