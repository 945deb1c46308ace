"""Searches that look at millions of joins: spanning trees and probe orders (`mjoin_ordering`), Pareto fronts (`exact`)."""

from __future__ import annotations

import numpy as np

from anabranch.cost.kernels import (
    JOIN,
    REKEY,
    STEP,
    adjacent_to,
    along,
    bit_count,
    is_connected,
    least_of,
    renewal_of,
    rows_of,
    state_of,
    unite,
)
from anabranch.storage.compiled import njit


@njit(cache=True, nogil=True)
def spanning_tree(g, parts, cartesian):
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
def ik_orders(g, parts, tree):
    """The orders of Ibaraki and Kameda for every part as root of a tree of edges between parts."""
    count = len(parts)
    orders = np.empty((count, count - 1), np.int64)
    size, lookup = np.empty(count), np.empty(count)
    for i in range(count):
        size[i], lookup[i] = rows_of(g, parts[i]), least_of(g.lookup, parts[i])
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
            c[node] = g.units[REKEY] + lookup[node] + t[node] * g.units[JOIN]
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
def _rank(t, c):
    return (t - 1) / c if c > 0 else -np.inf


@njit(cache=True, nogil=True)
def _interleave(left, right, t, c, below):
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
def ordered_cost(g, parts, cartesian):
    """CPU and memory of a join alone with these orders; infinite where the parts are not connected."""
    tree = spanning_tree(g, parts, cartesian)
    if len(tree) < len(parts) - 1:
        return np.inf, np.inf
    return along(g, parts, ik_orders(g, parts, tree))


@njit(cache=True, nogil=True)
def _is_dominated(cpu, memory, front_cpu, front_memory, size):
    for i in range(size):  # noqa: SIM110
        if front_cpu[i] <= cpu and front_memory[i] <= memory:
            return True
    return False


@njit(cache=True, nogil=True)
def _node(g, parts, count, cartesian, rows, adjacent, unions, best):
    """CPU of the probes of a join of the first `count` parts, with the best orders."""
    full = (1 << count) - 1
    unite(parts, count, unions)
    lookups = np.empty(count)
    for j in range(count):
        lookups[j] = least_of(g.lookup, parts[j])
    best[full] = 0.0
    for back in range(1, full):
        subset = full - back
        here, near, least = rows[unions[subset]], adjacent[unions[subset]], np.inf
        ready = here * g.units[REKEY] if subset & (subset - 1) else 0.0
        for j in range(count):
            if subset >> j & 1 or not (cartesian or near & parts[j]):
                continue
            after = subset | 1 << j
            spent = ready + here * lookups[j] + rows[unions[after]] * g.units[JOIN] + best[after]
            if spent < least:
                least = spent
        best[subset] = least
    total = 0.0
    for j in range(count):
        total += renewal_of(g, parts[j]) * best[1 << j]
    return total


@njit(cache=True, nogil=True)
def fronts(g, n, cartesian):
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
    used, considered = 0, 0
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
            considered += 1
            count = depth + 1
            node_cpu, node_memory = _node(g, parts, count, cartesian, rows, adjacent, unions, best), 0.0
            node_cpu += bit_count(s) * (count - 1) * g.units[STEP]
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
    return cpu, memory, first, sizes, children, considered
