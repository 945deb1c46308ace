"""How much of a plan to change (002, section 26.2): all of it, or the smallest part that has what changed.

A part of a plan is a join and what is below it. Whatever is put in its place keeps the same combined rows for what is above,
so only the part itself migrates.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from anabranch.cost.model import CostModel, UnitCosts
from anabranch.cost.streams import KeyClass, StreamGraph
from anabranch.optimize.exact import exact_front
from anabranch.optimize.trees import Pricer
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan, joins_of


class Scope(StrEnum):
    """What is optimised."""

    WHOLE_PLAN = "whole"
    PART = "part"


def aliases_in(signals: Iterable[str], graph: JoinGraph) -> frozenset[str]:
    """The inputs that some signals speak of."""
    found: set[str] = set()
    for signal in signals:
        words = set(signal.replace("rate of ", "").split())
        found |= {i.alias for i in graph.query.inputs if i.alias in words or i.source.name in words}
    return frozenset(found)


def smallest_part(plan: Plan, aliases: frozenset[str]) -> Join | None:
    """The smallest join that has some inputs; None for a plan without joins."""
    return next((join for join in joins_of(plan) if aliases <= join.aliases), None)


def best_part(part: Join, graph: StreamGraph, units: UnitCosts) -> Plan:
    """The cheapest way to join the inputs of a part."""
    places = {graph.names.index(name): new for new, name in enumerate(sorted(part.aliases, key=graph.names.index))}
    classes = [KeyClass(tuple((places[i], d) for i, d in c.distinct if i in places)) for c in graph.classes]
    inner = StreamGraph([graph.streams[i] for i in places], [c for c in classes if len(c.distinct) > 1])
    pricer = Pricer(CostModel(inner, units), cartesian=not inner.is_connected(inner.everything))
    return pricer.plan(min(exact_front(pricer), key=lambda found: found[1].cpu)[0])


def with_part(plan: Plan, part: Join, instead: Plan) -> Plan:
    """A plan with another plan in the place of a part of it.

    >>> from anabranch.plan.jtree import Join, Leaf
    >>> ab = Join((Leaf("a"), Leaf("b")), ((1,), (0,)))
    >>> print(with_part(Join((ab, Leaf("c")), ((1,), (0,))), ab, Join((Leaf("b"), Leaf("a")), ((1,), (0,)))))
    ((b a) c)
    """
    if plan is part:
        return instead
    if isinstance(plan, Leaf):
        return plan
    return Join(tuple(with_part(child, part, instead) for child in plan.inputs), plan.orders)
