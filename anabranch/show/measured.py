"""What the batches of a query measured, set beside the nodes of its plan: from the commits that its pipeline still has.

A pipeline keeps the newest commit and a few before it. The first of them tells only where time begins, as in
`anabranch.adapt.monitor`; so there are figures once two batches with rows are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.adapt.monitor import Monitor, Observation
from anabranch.control.ledger import commits_in
from anabranch.control.records import Commit, ExecutionRecord, Statistics
from anabranch.cost.facts import Given, Measured
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Plan
from anabranch.plan.query import Derived
from anabranch.plan.routes import routes, views
from anabranch.show.nodes import Figures
from anabranch.storage.location import Folder


@dataclass(frozen=True)
class Batches:
    """What a query has done under the plan of its newest commit."""

    monitor: Monitor
    execution: ExecutionRecord
    last_batch: int

    @property
    def count(self) -> int:
        return len(self.monitor.batches)

    @property
    def newest(self) -> Statistics:
        return self.monitor.observations[-1].statistics

    @property
    def cores(self) -> float:
        """What joining took, in seconds of CPU per second of event time."""
        return self.monitor.cores

    @property
    def state_bytes(self) -> float:
        return float(self.monitor.observations[-1].state_bytes)

    def facts(self, plan: Plan, otherwise: Given) -> Measured:
        """What these batches say about the streams."""
        return Measured(plan, self.monitor.batches, self.monitor.span_s, otherwise)

    def figures(self, plan: Plan, graph: JoinGraph) -> dict[Aliases, Figures]:
        """What was measured of each input, and of each join of the plan."""
        found: dict[Aliases, Figures] = {(alias,): self._of_input(alias, graph) for alias in graph.query.aliases}
        kept = {view: self._of_view(view, plan, graph) for view in views(routes(plan, graph))}
        for joined, matches in self._matches(plan, graph).items():
            rows, size = kept.get(joined, (None, None))
            found[joined] = Figures(matches / self.monitor.span_s, rows, size)
        return found

    def _of_input(self, alias: str, graph: JoinGraph) -> Figures:
        source = graph.query.input(alias).source
        rows = sum(b.sources[source.name].stored_rows for b in self.monitor.batches if source.name in b.sources)
        if (log := self.newest.sources.get(source.name)) is None or isinstance(source, Derived):
            return Figures(rows / self.monitor.span_s)
        indexes = sum(s.bytes for s in self.newest.states if s.is_index_over(source.name))
        return Figures(rows / self.monitor.span_s, log.state_rows, log.state_bytes + indexes)

    def _of_view(self, view: Aliases, plan: Plan, graph: JoinGraph) -> tuple[float | None, float | None]:
        """Rows and bytes of a view and its indexes; nothing if the plan has several views of the same streams."""

        def sources(aliases: Sequence[str]) -> Counter[str]:
            return Counter(graph.query.input(alias).source.name for alias in aliases)

        wanted = sources(view)
        if sum(sources(other) == wanted for other in views(routes(plan, graph))) > 1:
            return None, None
        own = [s for s in self.newest.states if Counter(s.sources) == wanted]
        rows = [s.rows for s in own if s.kind == "view"]
        return (float(sum(rows)), float(sum(s.bytes for s in own))) if rows else (None, None)

    def _matches(self, plan: Plan, graph: JoinGraph) -> dict[Aliases, float]:
        """How many combinations each join has found."""
        counts: Counter[tuple[str, str]] = Counter()
        for batch in self.monitor.batches:
            for step in batch.steps:
                counts[step.route, step.target] += step.matches
        found: Counter[Aliases] = Counter()
        for route in routes(plan, graph):
            for stage in route.stages:
                found[stage.joined] += counts[route.alias, " ".join(stage.probes[-1].target)] if stage.probes else 0
        return {joined: float(matches) for joined, matches in found.items()}


def batches_of(pipeline: Folder, query: str, identity: str) -> Batches | None:
    """What the commits of a pipeline tell about a query of an identity (`anabranch.control.query_texts`); None if there are
    too few."""
    records = [commit for _, commit in commits_in(pipeline).whole()]
    found = [commit for commit in records if query in commit.queries and commit.queries[query].identity == identity]
    if not found:
        return None
    monitor, execution = Monitor(len(found)), found[-1].queries[query].execution
    for commit in found:
        own = commit.queries[query]
        if (seen_us := _seen_us(commit, own.statistics)) is not None and own.execution.plan == execution.plan:
            monitor = monitor.after(Observation(commit.batch, seen_us, own.statistics))
    return Batches(monitor, execution, found[-1].batch) if monitor.span_s > 0 else None


def _seen_us(commit: Commit, statistics: Statistics) -> int | None:
    """The least of the largest event times of a query's streams."""
    times = [us for name, us in commit.largest_time_us.items() if name in statistics.sources]
    return min(times) if times else None
