"""Mem-Opt: the chain that stores the fewest rows (State-Slice, VLDB 2006, section 5.1, fig. 12; with selections section 6.1,
fig. 15).

Every window ends a slice of its own, so no row waits in a slice that only longer windows read: a selection drops a row at
the first slice in which nobody wants the row (theorems 3 and 4). Without selections every chain stores as much. No cost is
needed for the decision; a cost of slices, if one is given, prices it.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.share.chain import Chain, ChainDecision, EdgeCost


def mem_opt(windows_s: Sequence[float], edge_cost: EdgeCost | None = None) -> ChainDecision:
    """A slice for each distinct window.

    >>> print(mem_opt((1.0, 2.0, 5.0)).chain)
    [0, 1) [1, 2) [2, 5)
    """
    chain = Chain(tuple(windows_s), tuple(range(1, len(windows_s) + 1)))
    if edge_cost is None:
        return ChainDecision(chain, 0.0, 0)
    return ChainDecision(chain, chain.cost(edge_cost), len(windows_s))
