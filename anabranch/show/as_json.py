"""A plan with its figures as plain values, for programs: what `anabranch.show.explain` says in words."""

from __future__ import annotations

from typing import Any

from anabranch.plan.defeated import Defeated
from anabranch.plan.jtree import joins_of, show
from anabranch.show.explain import PricedPlan, reason, sentence
from anabranch.show.nodes import Figures, Node


def priced_json(priced: PricedPlan) -> dict[str, Any]:
    """The figures of a plan, how each is known, what was measured, and why the plan is what it is."""
    decision, graph = priced.decision, priced.graph
    own = dict(priced.model.nodes(priced.plan))
    batches = priced.batches
    return {
        "sentence": sentence(priced),
        "pinned": priced.is_pinned,
        "costs": {
            "plan": priced.plan_text, "cpu": priced.cost.cpu, "memory": priced.cost.memory, "known": str(priced.basis),
            "qualified": priced.cost.within(decision.bounds.cpu, decision.bounds.memory), "reason": reason(priced),
            "considered": decision.considered, "exact": decision.is_exact, "calibrated": priced.is_calibrated,
            "chosen": show(decision.plan, graph),
            "joins": [
                {"join": [str(i) for i in node.inputs], "cpu": own[node].cpu, "memory": own[node].memory}
                for node in joins_of(priced.plan)
            ],
            "front": [{"plan": show(p, graph), "cpu": c.cpu, "memory": c.memory} for p, c in decision.front],
        },
        "tree": _node_json(priced.tree),
        "measured": None if batches is None else {
            "batches": batches.count, "last_batch": batches.last_batch, "cpu": batches.cores, "memory": batches.state_bytes,
        },
        "warnings": [_defeated_json(d) for d in priced.warnings],
    }  # fmt: skip


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "inputs": list(node.aliases), "source": None if node.input is None else node.input.source.name,
        "window": node.window or None, "on": [[term for _, term in key] for key in node.keys],
        "unknown_selectivity": list(node.unknown), "known": str(node.basis), "cpu": node.cpu,
        "predicted": _figures_json(node.predicted), "measured": _figures_json(node.measured),
        "children": [_node_json(child) for child in node.children],
    }  # fmt: skip


def _figures_json(figures: Figures) -> dict[str, float | None]:
    return {"rows_per_s": figures.rows_per_s, "kept_rows": figures.kept_rows, "kept_bytes": figures.kept_bytes}


def _defeated_json(found: Defeated) -> dict[str, Any]:
    return {
        "query": found.query, "earlier": found.earlier, "later": found.later, "window": found.window,
        "window_us": found.window_us, "apart_us": found.apart_us, "needed": found.needed, "text": str(found),
    }  # fmt: skip
