"""The exact Pareto front of a query's plans: dynamic programming over sets of streams.

What a join costs depends on the sets it joins alone (`anabranch.cost.model`), with the best probe orders a shortest path
(`anabranch.cost.kernels.paths`), and costs add up over the tree. So the plans of a set that no other plan of that set
dominates are all that larger sets need: the front of a set comes from its partitions into two or more parts, each with the
sums of a point from the front of every part. Partitions are cut off as soon as the least they can still cost is dominated.
"""

from __future__ import annotations

from anabranch.cost.kernels import arrays_of
from anabranch.cost.model import Cost
from anabranch.optimize.kernels import fronts
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
    cpu, memory, first, sizes, children, considered = fronts(arrays_of(pricer.model), len(graph), pricer.cartesian)

    def views(point: int) -> Views:
        found = MJOIN
        for child in children[point]:
            if child[0] & (child[0] - 1):
                found |= {int(child[0])} | views(int(child[1]))
        return found

    pricer.considered += int(considered)
    whole = range(first[graph.everything], first[graph.everything] + sizes[graph.everything])
    return [(views(p), pricer.fixed + Cost(float(cpu[p]), float(memory[p]))) for p in whole]
