"""The plan on facts: a query starts on what is assumed, is measured, and is planned again on what was seen.

(When and how to change plans while data keeps changing is a larger question; here it is asked once, when enough is known.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.control.records import Commit, SourceStatistics, Statistics, StepStatistics
from anabranch.cost.facts import EMPTY, Given, Measured
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.cost.refine import refined
from anabranch.optimize.planner import Bounds, decide, show_bytes
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, show

MEASURED_BATCHES = 8
"""So many batches with rows are measured before the plan is reviewed."""

WORTH = 0.9
"""Another plan must need less than this share of the CPU of the one that runs, or bring the query into its budget."""


@dataclass(frozen=True)
class Review:
    """What came out: another plan, or none, and why."""

    plan: Plan | None
    text: str
    details: dict[str, Any]


@dataclass
class Reviewer:
    """Watches a query until it knows enough."""

    graph: JoinGraph
    units: UnitCosts
    bounds: Bounds = field(default_factory=Bounds)
    otherwise: Given = EMPTY
    batches: list[Statistics] = field(default_factory=list)
    first_time_us: int | None = None
    is_done: bool = False

    def after(self, plan: Plan, commit: Commit) -> Review | None:
        """Takes note of a batch; the review, once there are enough of them."""
        if self.is_done or not commit.largest_time_us:
            return None
        seen_us = min(commit.largest_time_us.values())
        if self.first_time_us is None:
            # The first batch tells where time begins; its rows came before that.
            self.first_time_us = seen_us
            return None
        combined = together([a.statistics for a in commit.slots.values()])
        if any(s.rows for s in combined.sources.values()):
            self.batches.append(combined)
        span_s = (seen_us - self.first_time_us) / 1e6
        if len(self.batches) < MEASURED_BATCHES or span_s <= 0:
            return None
        self.is_done = True
        return self._decide(plan, span_s)

    def _decide(self, plan: Plan, span_s: float) -> Review:
        facts = Measured(plan, self.batches, span_s, self.otherwise)
        self.units = refined(CostModel(facts.graph(self.graph), self.units), plan, self.batches, span_s)
        decision = decide(self.graph, facts, self.units, self.bounds)
        now = decision.model.cost(plan)
        details = {
            "cpu": decision.cost.cpu, "memory": decision.cost.memory, "cpu_before": now.cpu, "memory_before": now.memory,
            "rates": {s.name: s.rate for s in decision.model.graph.streams}, "measured_batches": len(self.batches),
        }  # fmt: skip
        becomes_qualified = decision.is_qualified and not now.within(self.bounds.cpu, self.bounds.memory)
        if decision.plan != plan and (becomes_qualified or decision.cost.cpu < WORTH * now.cpu):
            text = (
                f"plan {show(decision.plan, self.graph)}: {decision.cost.cpu:.3g} cores instead of {now.cpu:.3g}, "
                f"{show_bytes(decision.cost.memory)} instead of {show_bytes(now.memory)}; {decision.reason}"
            )
            return Review(decision.plan, text, details)
        text = f"no plan is better by enough: this one needs {now.cpu:.3g} cores, the best {decision.cost.cpu:.3g}"
        return Review(None, text, details)


def together(slots: Sequence[Statistics]) -> Statistics:
    """The statistics of all slots of a batch as one."""
    whole = Statistics()
    steps: dict[tuple[str, str], StepStatistics] = {}
    for slot in slots:
        for name, s in slot.sources.items():
            total = whole.sources.setdefault(name, SourceStatistics())
            total.rows += s.rows
            total.stored_rows += s.stored_rows
            total.state_rows += s.state_rows
            total.state_bytes += s.state_bytes
        for step in slot.steps:
            counts = steps.setdefault((step.route, step.target), StepStatistics(step.route, step.target))
            counts.probes += step.probes
            counts.lookups += step.lookups
            counts.candidates += step.candidates
            counts.matches += step.matches
            counts.cpu_ns += step.cpu_ns
        whole.samples += slot.samples
        whole.add_cpu(slot)
        whole.results += slot.results
    whole.steps = list(steps.values())
    return whole
