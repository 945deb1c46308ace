"""state-removal: from a binary tree towards an mjoin, one state less after the other (Zhu, Raghavan, Rundensteiner, DKE
2009, section 5.3, algorithm 4; dissertation 2006, section 6.2).

Each time the state goes whose *quality ratio* is least: the CPU it costs to do without it, for the memory it frees. The
joins below and above it become one.
"""

from __future__ import annotations

from anabranch.optimize.trees import Pricer, Views


def state_removal(pricer: Pricer, cpu: float, memory: float, views: Views) -> Views:
    """The views of the first qualified tree on the way, or of the mjoin at its end."""
    while views and not pricer.tree(views).within(cpu, memory):
        old = pricer.tree(views)

        def ratio(view: int, old_cpu: float = old.cpu, views: Views = views) -> tuple[float, int]:
            size = pricer.model.graph.rows(view)
            more = pricer.tree(views - {view}).cpu - old_cpu
            return (more / size if size else float("-inf"), view)

        views -= {min(views, key=ratio)}
    return views
