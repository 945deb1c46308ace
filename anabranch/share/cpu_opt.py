"""CPU-Opt: the chain of least cost (State-Slice, VLDB 2006, section 5.2, fig. 14; with selections section 6.2, fig. 16).

The windows w_0 = 0 < w_1 < … < w_N are the nodes of a graph, the slice from w_i to w_j is an edge, and a chain is a
path from w_0 to w_N. The cost of a slice is the same in every chain (lemma 2), so the cheapest chain is the shortest
path. All edges go forward, so one pass over the nodes finds it: N(N+1)/2 edges are priced, each once. The paper names
Dijkstra's algorithm, which needs costs that are not negative; the pass does not.

What a slice costs is the caller's: the paper's own cost is `nested_loop.NestedLoopModel.edge_cost`, in which a slice
also pays for rows and probes that a selection between its windows would have spared.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.share.chain import Chain, ChainDecision, EdgeCost


def cpu_opt(windows_s: Sequence[float], edge_cost: EdgeCost) -> ChainDecision:
    """The cheapest chain; of equally cheap ones the one with the most slices, which stores no more rows.

    >>> print(cpu_opt((1.0, 2.0, 30.0), lambda i, j: 10.0 + 5.0 * (j - i - 1) * (j == 3)).chain)
    [0, 2) [2, 30)
    """
    last = len(windows_s)
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    """For each node: what the way to it costs, minus the number of its slices, and the node before."""
    for j in range(1, last + 1):
        best.append(min((best[i][0] + edge_cost(i, j), best[i][1] - 1, i) for i in range(j)))
    ends, node = [], last
    while node:
        ends.append(node)
        node = best[node][2]
    return ChainDecision(Chain(tuple(windows_s), tuple(reversed(ends))), best[last][0], last * (last + 1) // 2)
