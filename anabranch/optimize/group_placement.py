"""Where to group: above a join, or the rows of one input before it (`anabranch.plan.eager`), whichever needs less CPU.

Above the join every joined row is folded. Below it every row of the input is, and at each instant every group meets what it
joins with: good where there are many rows of a group in a slide, and bad where there are few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.cost.facts import Given
from anabranch.cost.model import UnitCosts
from anabranch.errors import NoQualifiedPlanError
from anabranch.optimize.planner import Bounds, Decision, decide
from anabranch.plan.eager import Forms
from anabranch.plan.expression import Column
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Grouped:
    """A query, perhaps with groups below its join, and the decision about its plan."""

    query: Query
    decision: Decision
    cpu: float
    """With the folding of rows."""
    grouped_input: str | None = None
    """The input whose rows are grouped before the join; None: groups stand above it."""


def choose_groups(forms: Forms, facts: Given, units: UnitCosts, bounds: Bounds, strict: bool = False) -> Grouped:
    """The form that needs least CPU, by what is known; one within the budget, if there is one."""
    found = priced_forms(forms, facts, units, bounds)
    best = min(found, key=lambda g: (not g.decision.is_qualified, g.cpu))
    if strict and not best.decision.is_qualified:
        raise NoQualifiedPlanError(f"query {forms.written.name}: {found[0].decision.reason}")
    return best


def priced_forms(forms: Forms, facts: Given, units: UnitCosts, bounds: Bounds) -> list[Grouped]:
    """The best plan of each form, as written first."""
    query = forms.written
    as_written = decide(forms.graphs[None], facts, units, bounds)
    graph = as_written.model.graph
    folded = graph.rate(graph.everything) * units.fold if query.grouping is not None else 0.0
    found = [Grouped(query, as_written, as_written.cost.cpu + folded)]
    for alias, below in forms.graphs.items():
        if alias is None or query.grouping is None:
            continue
        pushed = below.query
        stream = graph.streams[query.aliases.index(alias)]
        groups, known = _groups_of(pushed, alias, stream.rows, facts)
        # Where groups stand below already, how many there are is known.
        name = f"{query.name}.{alias}"
        rates = {name: groups / (query.grouping.slide_us / 1e6), **facts.rates}
        estimated = known.estimated | ({name} - facts.rates.keys())
        decision = decide(below, replace(known, rates=rates, estimated=estimated), units, bounds)
        above = decision.model.graph
        cpu = decision.cost.cpu + (stream.rate + above.rate(above.everything)) * units.fold
        found.append(Grouped(pushed, decision, cpu, alias))
    return found


def _groups_of(pushed: Query, alias: str, rows: float, facts: Given) -> tuple[float, Given]:
    """How many groups the rows of an input make at an instant, and the facts in terms of the groups' columns."""
    (inner,) = [i.source.query for i in pushed.inputs if i.alias == alias]  # type: ignore[union-attr]
    assert inner is not None
    assert inner.grouping is not None
    groups, distinct, estimated = 1.0, dict(facts.distinct), set(facts.estimated)
    for place, (_, expr) in enumerate(inner.select[: inner.grouping.keys]):
        values = facts.distinct.get(str(expr), rows) if isinstance(expr, Column) else rows
        distinct[f"{alias}.key{place}"] = max(1.0, values)
        groups *= max(1.0, values)
        if str(expr) not in facts.distinct or str(expr) in facts.estimated:
            estimated.add(f"{alias}.key{place}")
    return min(groups, rows), replace(facts, distinct=distinct, estimated=frozenset(estimated))
