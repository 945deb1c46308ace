"""A library of plans by the statistics they were good for (002, section 26.1.4: *query logging*): where streams follow a
pattern, a plan that was found once need not be searched for again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from anabranch.cost.streams import StreamGraph
from anabranch.plan.jtree import Plan

Key = tuple[int, ...]

STEPS = 2.0
"""Figures are told apart in steps of the square root of two."""


def key_of(graph: StreamGraph) -> Key:
    """The statistics that plans depend on, rounded: rates, rows and distinct values."""
    figures = [f for s in graph.streams for f in (s.rate, s.rows)] + [d for c in graph.classes for _, d in c.distinct]
    return tuple(round(STEPS * math.log2(f)) if 0 < f < math.inf else -1_000 for f in figures)


@dataclass(frozen=True)
class PlanLibrary:
    """Plans by rounded statistics."""

    plans: dict[Key, Plan] = field(default_factory=dict)

    def find(self, graph: StreamGraph) -> Plan | None:
        return self.plans.get(key_of(graph))

    def add(self, graph: StreamGraph, plan: Plan) -> PlanLibrary:
        return replace(self, plans={**self.plans, key_of(graph): plan})
