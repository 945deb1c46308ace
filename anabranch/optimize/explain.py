"""A decision for people, as text and drawn: the tree with rates, bytes and CPU, the budget and the runners-up."""

from __future__ import annotations

from html import escape
from typing import Any

from anabranch.cost.model import Cost
from anabranch.optimize.planner import Decision, show_bytes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Plan, show

RUNNERS_UP = 6


def decision_text(decision: Decision, graph: JoinGraph) -> str:
    """The decision as an indented text."""
    model, total = decision.model, decision.cost
    lines = ["costs", f"  {'':<34}{'rows/s':>10} {'kept':>10} {'state':>10} {'CPU':>7}"]
    lines += _tree(decision.plan, decision, "  ")
    fixed = model.fixed()
    lines.append(f"  {'taking rows in, handing results out':<34}{'':>32} {_percent(fixed.cpu, total.cpu):>7}")
    lines.append(
        f"  together {total.cpu:.3g} cores of {_number(decision.bounds.cpu)}, "
        f"{show_bytes(total.memory)} of {show_bytes(decision.bounds.memory)}"
    )
    lines.append(f"  {decision.reason}")
    how = "every plan" if decision.is_exact else "not every plan"
    lines.append(
        f"  {how} considered, {decision.considered:,} joins priced; "
        f"no plan needs less than {decision.least.cpu:.3g} cores or {show_bytes(decision.least.memory)}"
    )
    others = [(p, c) for p, c in decision.front if p != decision.plan][:RUNNERS_UP]
    if others:
        lines.append("  not dominated, too:")
        lines += [f"    {c.cpu:.3g} cores, {show_bytes(c.memory)}: {show(p, graph)}" for p, c in others]
    return "\n".join(lines)


def decision_json(decision: Decision, graph: JoinGraph) -> dict[str, Any]:
    """The decision as plain values."""
    nodes = [
        {"join": [str(i) for i in node.inputs], "cpu": cost.cpu, "memory": cost.memory}
        for node, cost in decision.model.nodes(decision.plan)
    ]
    return {
        "plan": show(decision.plan, graph), "cpu": decision.cost.cpu, "memory": decision.cost.memory,
        "qualified": decision.is_qualified, "reason": decision.reason, "considered": decision.considered,
        "exact": decision.is_exact, "joins": nodes,
        "front": [{"plan": show(p, graph), "cpu": c.cpu, "memory": c.memory} for p, c in decision.front],
    }  # fmt: skip


def _tree(plan: Plan, decision: Decision, indent: str, others: int = 0) -> list[str]:
    model = decision.model
    streams = model.graph.mask(plan.aliases)
    rate, rows = model.graph.rate(streams), model.stored_rows(streams)
    label = f"{indent}{' '.join(model.graph.names_of(streams))}"
    if not isinstance(plan, Join):
        state = show_bytes(model.state_bytes(streams, others))
        return [f"{label:<36}{_count(rate):>10} {_count(rows):>10} {state:>10}"]
    own = dict(model.nodes(plan))[plan]
    kept = f"{_count(rows):>10} {show_bytes(model.state_bytes(streams, others)):>10}" if others else f"{'':>10} {'':>10}"
    name = f"{indent}{'join' if others else 'results:'} ({' '.join(model.graph.names_of(streams))})"
    lines = [f"{name:<36}{_count(rate):>10} {kept} {_percent(own.cpu, decision.cost.cpu):>7}"]
    for child in plan.inputs:
        lines += _tree(child, decision, indent + "  ", streams & ~model.graph.mask(child.aliases))
    return lines


def _percent(part: float, whole: float) -> str:
    return f"{part / whole * 100:.0f} %" if whole else "-"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    return "any" if value == float("inf") else f"{value:.3g}"


# -- drawn -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, GAP = 170, 58, 18


def decision_svg(decision: Decision, graph: JoinGraph) -> str:
    """The tree as a picture: joins by their CPU, states by their bytes, the front beside it."""
    places: dict[int, tuple[float, float]] = {}
    boxes: list[str] = []
    lines: list[str] = []
    model = decision.model
    own = {id(node): cost for node, cost in model.nodes(decision.plan)}
    depth = _depth(decision.plan)

    def place(plan: Plan, level: int, left: float, others: int) -> float:
        """Draws a subtree from `left` on; returns where it ends."""
        streams = model.graph.mask(plan.aliases)
        y = 50 + level * (HEIGHT + 44)
        right = left + WIDTH + GAP
        if isinstance(plan, Join):
            right = left
            for child in plan.inputs:
                right = place(child, level + 1, right, streams & ~model.graph.mask(child.aliases))
            x = (places[id(plan.inputs[0])][0] + places[id(plan.inputs[-1])][0]) / 2
        else:
            x = left
        places[id(plan)] = (x, y)
        title = " ".join(model.graph.names_of(streams))
        cost: Cost | None = own.get(id(plan))
        facts = [f"{_count(model.graph.rate(streams))} rows/s"]
        if others:
            facts.append(show_bytes(model.state_bytes(streams, others)))
        if cost is not None:
            facts.append(f"{_percent(cost.cpu, decision.cost.cpu)} of CPU")
        share = cost.cpu / decision.cost.cpu if cost is not None and decision.cost.cpu else 0.0
        fill = f"rgb({255 - int(60 * share)},{250 - int(90 * share)},{235 - int(140 * share)})" if cost else "#eef3fb"
        boxes.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{fill}" stroke="#51606f"/>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 22:.0f}" class="name">{escape(title)}</text>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 42:.0f}" class="fact">{escape(" · ".join(facts))}</text>'
        )
        for child in plan.inputs if isinstance(plan, Join) else ():
            cx, cy = places[id(child)]
            ends = f'x1="{x + WIDTH / 2:.0f}" y1="{y + HEIGHT:.0f}" x2="{cx + WIDTH / 2:.0f}" y2="{cy:.0f}"'
            lines.append(f'<line {ends} stroke="#9aa7b5"/>')
        return right

    width = max(place(decision.plan, 0, 20.0, 0) + 20, 460)
    height = 50 + depth * (HEIGHT + 44) + 60
    summary = (
        f"{decision.cost.cpu:.3g} cores of {_number(decision.bounds.cpu)}, "
        f"{show_bytes(decision.cost.memory)} of {show_bytes(decision.bounds.memory)}"
    )
    heading = escape(f"{graph.query.name}: {show(decision.plan, graph)}")
    style = "text{font-family:sans-serif;text-anchor:middle}.name{font-weight:bold;font-size:14px}.fact{font-size:11px}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">'
        f"<style>{style}</style><title>{escape(show(decision.plan, graph))}</title>"
        f'<text x="{width / 2:.0f}" y="26" class="name">{heading}</text>'
        + "".join(lines)
        + "".join(boxes)
        + f'<text x="{width / 2:.0f}" y="{height - 24:.0f}" class="fact">{escape(summary)}</text></svg>\n'
    )


def _depth(plan: Plan) -> int:
    return 1 + max((_depth(child) for child in plan.inputs), default=0) if isinstance(plan, Join) else 1
