"""The two-layer framework (Zhu, Raghavan, Rundensteiner, DKE 2009, section 5.1, algorithm 2), as published.

The first layer makes the best mjoin and a good binary tree, each least in one resource. If neither is qualified, the second
layer goes from one towards the other: by state-selection, then by state-removal. Four outcomes: a qualified mjoin, a
qualified binary tree, a qualified jtree, or none.

As published it gives up early: if the memory of the mjoin is too much, rightly, for no plan needs less; if the CPU of the
binary tree is too much, wrongly at times, for min-state need not find the least CPU, and where keeping states is dear an
mjoin or a jtree may need less. `anabranch.optimize.local_search` closes that gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.cost.model import Cost
from anabranch.optimize.min_state import min_state
from anabranch.optimize.state_removal import state_removal
from anabranch.optimize.state_selection import state_selection
from anabranch.optimize.trees import MJOIN, Pricer, Views


@dataclass(frozen=True)
class Outcome:
    """What a search ended with: `kind` is mjoin, bjtree, jtree or none."""

    kind: str
    views: Views
    cost: Cost


def kind_of(views: Views, streams: int) -> str:
    if not views:
        return "mjoin" if streams > 2 else "bjtree"
    return "bjtree" if len(views) == streams - 2 else "jtree"


def two_layer(pricer: Pricer, cpu: float, memory: float) -> Outcome:
    """A qualified tree, or kind "none" with the tree it ended with."""
    mjoin = pricer.tree(MJOIN)
    if mjoin.memory > memory:
        return Outcome("none", MJOIN, mjoin)
    if mjoin.cpu <= cpu:
        return Outcome("mjoin", MJOIN, mjoin)
    binary = min_state(pricer)
    bjtree = pricer.tree(binary)
    if bjtree.cpu > cpu:
        return Outcome("none", binary, bjtree)
    if bjtree.memory <= memory:
        return Outcome("bjtree", binary, bjtree)
    for views in (state_selection(pricer, cpu, memory), state_removal(pricer, cpu, memory, binary)):
        cost = pricer.tree(views)
        if cost.within(cpu, memory):
            return Outcome(kind_of(views, len(pricer.model.graph)), views, cost)
    return Outcome("none", views, cost)
