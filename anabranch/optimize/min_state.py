"""min-state: a binary tree with small states (Zhu, dissertation 2006, section 6.1, algorithm 3).

The two streams or views whose join is the smallest state are merged into one, again and again. Optimal for star joins, a
heuristic otherwise; the trees may be bushy.
"""

from __future__ import annotations

from anabranch.optimize.mjoin_ordering import disconnected
from anabranch.optimize.trees import Pricer, Views


def min_state(pricer: Pricer) -> Views:
    """The views of the tree."""
    graph, views = pricer.model.graph, set()
    parts = [1 << i for i in range(len(graph))]
    while len(parts) > 2:
        pairs = [
            (graph.rows(left | right), left, right)
            for place, left in enumerate(parts)
            for right in parts[place + 1 :]
            if pricer.cartesian or graph.adjacent(left) & right
        ]
        if not pairs:
            raise disconnected(pricer.model)
        _, left, right = min(pairs)
        parts = [p for p in parts if p not in (left, right)] + [left | right]
        views.add(left | right)
    if len(parts) == 2 and not pricer.cartesian and not graph.adjacent(parts[0]) & parts[1]:
        raise disconnected(pricer.model)
    return frozenset(views)
