"""Figures 5 and 6 by the cost model: which placement is chosen for CQ1 to CQ6 at which rate, and how far plans keep up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch.place.cost import Costs
from anabranch.place.operators import Operator
from anabranch.place.placement import bottleneck_of, use_of
from anabranch.place.search import pruned
from bench.papers.federation.published import fitted, printed
from bench.papers.federation.shapes import FIGURE_4


def model(rates: Sequence[int]) -> list[dict[str, Any]]:
    """For each query and rate the plan that is chosen, with the check of feasibility and without."""
    found = []
    for name, built in FIGURE_4.items():
        for rate in rates:
            root = built(float(rate))
            costs = fitted(root)
            chosen, unchecked = pruned(root, costs), pruned(root, fitted(root, checks_feasibility=False))
            wanted = printed(name, rate, root) if rate <= 40_000 else None
            found.append({
                "query": name, "rate": rate, "in the database": _told(root, chosen.in_database),
                "C_b": chosen.bottleneck, "C_u": chosen.use.total, "feasible": chosen.is_feasible,
                "as printed": None if wanted is None else wanted == chosen.in_database,
                "without check": _told(root, unchecked.in_database), "its C_b": unchecked.bottleneck,
                "the check matters": chosen.in_database != unchecked.in_database,
                "engine C_b": _bottleneck(root, frozenset(), costs),
                "database C_b": _bottleneck(root, frozenset(each.name for each in root), costs),
            })  # fmt: skip
    return found


def _bottleneck(root: Operator, in_database: frozenset[str], costs: Costs) -> float:
    return bottleneck_of(use_of(root, in_database, costs), costs)


def _told(root: Operator, in_database: frozenset[str]) -> str:
    names = [each.name for each in root if each.name in in_database]
    return "all but the selects" if len(names) == sum(not each.name.startswith("select") for each in root) else (
        ", ".join(names) or "nothing"
    )  # fmt: skip
