"""Planning without Spark: the declared sources and queries, a plan for each query, and `explain`.

`Session` and `anabranch explain` plan and explain by this. Nothing here, nor in what it imports, needs pyspark (`make lint`
checks it), so that plans can be looked at where there is no Spark, and before one is started.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from anabranch.balance.explain import Origin, Slots, spread_json, spread_text
from anabranch.balance.together import choose_together, pipelines_of, restored
from anabranch.control.pipelines import KnownPipeline, known_pipelines
from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.units import unit_costs
from anabranch.errors import LocationError, SessionError
from anabranch.optimize.explain import decision_json, decision_svg, decision_text
from anabranch.optimize.group_placement import choose_groups
from anabranch.optimize.planner import Decision
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.explain import explain_json, explain_text, times_json, times_text
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution
from anabranch.plan.names import same_name
from anabranch.plan.query import Query
from anabranch.plan.workload import Workload
from anabranch.settings import Budget
from anabranch.sql import BoundQuery, Catalog, Script
from anabranch.storage.location import Folder


@dataclass(frozen=True)
class Planned:
    """A declared query and what it starts with."""

    forms: Forms
    execution: Execution
    decision: Decision | None = None
    """Why the plan is what it is; None: the plan is pinned."""

    @property
    def is_pinned(self) -> bool:
        return self.decision is None

    @property
    def graph(self) -> JoinGraph:
        """Of the form that the query starts with."""
        return self.forms.graphs[self.execution.grouped_input]

    @property
    def query(self) -> Query:
        """In the form that it starts with."""
        return self.graph.query


class Planning:
    """The declared sources and queries of a session, each query with its plan.

    Plans are chosen within `budget`, by `facts`, unless they are pinned. `slots` is how many were asked for, and
    `checkpoint` where queries keep their state, once they have run.

    >>> from anabranch.sql import parse_script
    >>> planning = Planning(slots=4)
    >>> planning.add_script(parse_script('''
    ...     CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    ...     CREATE QUERY pairs AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;
    ... '''))
    >>> print(planning.explain("pairs"))  # doctest: +ELLIPSIS
    query pairs
    plan  (a b)
    ...
    spread
      over 4 slots (as asked), fixed when the query first starts
      a.k = b.k in 4 parts
      replication 1.00 rows sent per row, at equal rates
    """

    def __init__(
        self,
        budget: Budget | None = None,
        facts: Given = EMPTY,
        slots: int | None = None,
        checkpoint: Folder | None = None,
    ) -> None:
        if slots is not None and (not isinstance(slots, int) or slots < 1):
            raise SessionError(f"slots is a number of tasks, 1 or more: not {slots!r}")
        self.budget, self.facts, self.units = budget or Budget(), facts, unit_costs()
        self.slots, self.checkpoint = slots, checkpoint
        self.catalog = Catalog()
        self.queries: dict[str, Planned] = {}
        self.alone: set[str] = set()
        """The queries that are not to share a pipeline with others."""

    def add_script(self, script: Script) -> None:
        """Declares what a script creates, over the catalog that it was read with: all of it or, with an error, nothing."""
        planned = [self._plan(bound) for bound in script.queries]
        self.catalog = script.catalog
        self.queries |= {p.forms.written.name: p for p in planned}

    def add_query(self, bound: BoundQuery) -> None:
        """Declares a query over the sources of the catalog."""
        self.queries[bound.query.name] = self._plan(bound)

    def query(self, name: str) -> Planned:
        """A query that was declared."""
        if name not in self.queries:
            known = ", ".join(self.queries) or "none"
            raise SessionError(f"there is no query {name}; declared are: {known}")
        return self.queries[name]

    def _plan(self, bound: BoundQuery) -> Planned:
        if taken := next((name for name in self.queries if same_name(name, bound.query.name)), None):
            raise SessionError(f"there is a query {taken} already: give this one another name than {bound.query.name}")
        forms = Forms(bound.query)
        if bound.plan:
            return Planned(forms, Execution(parse(bound.plan, forms.graphs[None])))
        chosen = choose_groups(forms, self.facts, self.units, self.budget.bounds, self.budget.strict)
        execution = Execution(chosen.decision.plan, grouped_input=chosen.grouped_input)
        return Planned(forms, execution, chosen.decision)

    def explain(self, name: str, parallelism: Slots | None = None) -> str:
        """The plan of a query, why it was chosen, when rows are late, and how they are spread.

        The slots are those that were asked for, else those of the checkpoint, if it holds a commit of the query, else
        `parallelism`, which is this machine's cores where nothing else is known."""
        found = self.query(name)
        parts = [explain_text(found.execution.plan, found.graph)]
        if found.decision is not None:
            parts.append(decision_text(found.decision, found.graph))
        written = found.forms.written
        distribution, slots = self._spread(written, parallelism)
        return "\n\n".join([*parts, times_text(written), spread_text(written, distribution, slots), *self._company(name)])

    def explain_json(self, name: str, parallelism: Slots | None = None) -> dict[str, Any]:
        """What `explain` shows as plain values."""
        found = self.query(name)
        written = found.forms.written
        costs = {} if found.decision is None else {"costs": decision_json(found.decision, found.graph)}
        return {
            **explain_json(found.execution.plan, found.graph),
            **costs,
            "times": times_json(written),
            "spread": spread_json(written, *self._spread(written, parallelism)),
            "together": self._others(name),
        }

    def draw(self, name: str) -> str | None:
        """The decision about a query as SVG; None if its plan is pinned, for then it was not priced."""
        found = self.query(name)
        return None if found.decision is None else decision_svg(found.decision, found.graph)

    def pipelines(self) -> list[Workload]:
        """Which queries run together, if none has run yet."""
        return pipelines_of([planned.forms.written for planned in self.queries.values()], self.alone)

    def _others(self, name: str) -> list[str]:
        """The queries that run together with one."""
        known = self._known(name)
        if known is not None:
            return [other for other in known.layouts if other != name]
        (own,) = [each for each in self.pipelines() if any(query.name == name for query in each.queries)]
        return [query.name for query in own.queries if query.name != name]

    def _company(self, name: str) -> list[str]:
        others = self._others(name)
        shown = f"together\n  with {', '.join(others)}: one scan of each stream, and one state. A batch lasts as long as its"
        return [f"{shown} slowest query"] if others else []

    def _spread(self, written: Query, parallelism: Slots | None) -> tuple[Distribution, Slots]:
        """How rows of a query are spread, beside those of the queries that run with it."""
        known = self._known(written.name)
        committed = None if known is None else max(len(layout.slots) for layout in known.layouts.values())
        if self.slots is not None:
            slots = Slots(self.slots, Origin.ASKED, committed)
        elif committed is not None:
            slots = Slots(committed, Origin.CHECKPOINT, committed)
        else:
            slots = parallelism or machine_slots()
        if known is not None and slots.count == committed:
            return restored(Workload((written,)), known.layouts, slots.count)[written.name], slots
        workload = next(each for each in self.pipelines() if written in each.queries)
        return choose_together(workload, slots.count)[written.name], slots

    def _known(self, name: str) -> KnownPipeline | None:
        """The pipeline of the checkpoint that a query runs in, if it has a commit."""
        if self.checkpoint is None:
            return None
        try:
            known = known_pipelines(self.checkpoint)
        except OSError as error:
            raise LocationError(f"the checkpoint {self.checkpoint} cannot be used: {error}") from error
        return next((each for each in known if each.is_committed and name in each.layouts), None)


def machine_slots() -> Slots:
    """A slot for each core that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return Slots(len(os.sched_getaffinity(0)), Origin.MACHINE)
    return Slots(os.cpu_count() or 1, Origin.MACHINE)
