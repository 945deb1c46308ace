"""Unit costs as tasks report them: where calibrated ones are off on a cluster's machines, under its load, for its data.

A batch reports the CPU of its probes, of keeping indexes and views, and of handing out results. Each of these kinds is set
beside what the model says for the rows that were seen, and its unit costs are scaled by the ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.control.records import Statistics
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.plan.jtree import Join, Plan

MOST = 8.0
"""Costs are scaled by at most so much, either way: more is a fault of the measurement."""

KINDS = {
    "probe": ("lookup", "lookup_run", "join", "rekey", "step"), "keep": ("insert", "delete", "view_insert", "upkeep"),
    "emit": ("result",),
}  # fmt: skip
"""Which unit costs make up each kind."""


def refined(model: CostModel, plan: Plan, batches: Sequence[Statistics], span_s: float) -> UnitCosts:
    """The unit costs of a model whose graph was measured over the same batches, which took `span_s` of event time."""
    predicted, seen = _predicted(model, plan), _reported(batches)
    units = model.units
    changed: dict[str, float] = {}
    for kind, names in KINDS.items():
        expected = predicted[kind] * span_s
        if expected > 0 and seen[kind] > 0:
            factor = min(MOST, max(1 / MOST, seen[kind] / expected))
            changed |= {n: getattr(units, n) * factor for n in names if getattr(units, n) is not None}
    return replace(units, **changed)  # type: ignore[arg-type]


def _predicted(model: CostModel, plan: Plan) -> dict[str, float]:
    """CPU per second of each kind."""
    found = dict.fromkeys(KINDS, 0.0)
    u = model.units

    def visit(node: Join) -> None:
        inputs = [model.graph.mask(child.aliases) for child in node.inputs]
        everything = model.graph.mask(node.aliases)
        found["probe"] += everything.bit_count() * (len(inputs) - 1) * u.step / u.batch_s
        for child, streams, order in zip(node.inputs, inputs, node.orders, strict=True):
            found["probe"] += model.probe(streams, [inputs[j] for j in order])
            found["keep"] += model.maintain(streams, everything & ~streams)
            if isinstance(child, Join):
                visit(child)

    if isinstance(plan, Join):
        visit(plan)
    found["emit"] = model.graph.rate(model.graph.everything) * u.result
    return found


def _reported(batches: Sequence[Statistics]) -> dict[str, float]:
    """CPU seconds of each kind."""
    return {
        "probe": sum(s.cpu_ns for b in batches for s in b.steps) / 1e9,
        "keep": sum(b.cpu_ns.get(part, 0) for b in batches for part in ("index", "views", "settle")) / 1e9,
        "emit": sum(b.cpu_ns.get("emit", 0) for b in batches) / 1e9,
    }
