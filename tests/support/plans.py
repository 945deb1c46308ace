"""Plans with their costs, by what is given and by the usual costs of operations: the same on every machine."""

from __future__ import annotations

from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.units import DEFAULT
from anabranch.optimize.planner import Bounds, decide
from anabranch.plan.defeated import defeated
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan
from anabranch.show.explain import PricedPlan
from anabranch.sql import parse_script


def priced(plan: Plan, found: JoinGraph, facts: Given = EMPTY, bounds: Bounds | None = None) -> PricedPlan:
    """A plan that is pinned."""
    decision = decide(found, facts, DEFAULT, bounds)
    return PricedPlan(plan, found, decision, is_pinned=True, warnings=tuple(defeated(found.query)))


def chosen(query: str, facts: Given = EMPTY, bounds: Bounds | None = None) -> PricedPlan:
    """A query of streams a to d under the plan that is chosen for it."""
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;" for s in "abcd")
    found = JoinGraph(parse_script(f"{streams} CREATE QUERY q AS {query}").queries[0].query)
    decision = decide(found, facts, DEFAULT, bounds)
    return PricedPlan(decision.plan, found, decision, warnings=tuple(defeated(found.query)))
