"""The queries of a session as pipelines run them: each with its plan, its sink, and who decides about its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.adapt.grouping_loop import GroupingLoop
from anabranch.adapt.loop import Knowledge
from anabranch.adapt.placing import PlacingKnowledge, PlacingLoop
from anabranch.adapt.slicing import SlicingKnowledge, SlicingLoop
from anabranch.control.loop import Loop, Slicer
from anabranch.control.pipelines import ComingNote
from anabranch.control.sink_notes import read_sink
from anabranch.drive.local import Steady
from anabranch.optimize.planner import Bounds
from anabranch.place.calibrate import database_costs
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import left_deep, parse
from anabranch.plan.migration import Execution
from anabranch.plan.overload import Overload
from anabranch.plan.query import Query
from anabranch.planning import Planning
from anabranch.settings import Adapt
from anabranch.share.taking_in import Pricing
from anabranch.spark.members import Arriving, Member
from anabranch.spark.sinks import Sink, from_note
from anabranch.sql import BoundQuery, bind_query
from anabranch.storage.location import Folder


@dataclass
class SessionQueries:
    """The queries that are declared, or that come while others run."""

    planning: Planning
    checkpoint: Folder
    adapt: Adapt
    count_slots: Callable[[], int]
    """How many tasks a batch of a new pipeline has: where nobody said it, Spark is asked, which starts it."""
    sinks: dict[str, Sink] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    """The queries that leave their pipelines when their sinks fail for too long."""

    @property
    def slots(self) -> int:
        """How many tasks a batch of a new pipeline has."""
        return self.count_slots()

    def bind(self, name: str, sql: str) -> Query:
        """The query of a text over the declared sources, whose blocks run where they are to."""
        return self.planning.placed(bind_query(name, sql, self.planning.catalog))

    def declare(self, query: Query, sink: Sink, plan: str | None, overload: Overload | None = None) -> Member:
        """A query as one of the session's, which comes while others run; as it is to run."""
        self.planning.add_query(BoundQuery(query, plan, overload), is_settled=True)
        self.sinks[query.name] = sink
        return self.members({query.name: query})[query.name]

    def forget(self, name: str) -> None:
        """Takes a query back that was declared."""
        self.planning.queries.pop(name, None)
        self.planning.overloads.pop(name, None)
        self.sinks.pop(name, None)
        self.leaving.discard(name)
        self.planning.alone.discard(name)

    @property
    def overload(self) -> Overload:
        """What queries do under overload of which nothing else is said."""
        return self.planning.overload

    @property
    def pricing(self) -> Pricing:
        """What costs are worked out from."""
        return self.planning.pricing

    def members(self, queries: Mapping[str, Query]) -> dict[str, Member]:
        """Queries as they are to run: one that goes on with its state may differ from how it is written."""
        found, planning = {}, self.planning
        for name, query in queries.items():
            planned = planning.query(name)
            forms, is_pinned = planned.forms, planned.is_pinned or self.adapt.timing == "never"
            is_pinned = is_pinned or query.name in query.hinted
            left = planning.left_for(name)
            loop = self.loop(forms if query is forms.written else Forms(query), left)
            memory = left.memory
            found[name] = Member(query, planned.execution, loop, self.sinks[name], is_pinned, self.adapt.approve,
                                 name in self.leaving, memory if memory < float("inf") else None,
                                 planning.started_with(name))  # fmt: skip
        return found

    def arriving(self, query: Query, note: ComingNote) -> Arriving:
        """A query that was about to come in when the last run ended."""
        forms = Forms(query)
        execution = Execution(parse(note.plan, forms.graphs[None]) if note.plan else left_deep(forms.graphs[None]))
        loop = self.loop(forms, self.planning.left_for(query.name))
        member = Member(query, execution, loop, self.sinks[query.name], bool(note.plan), self.adapt.approve)
        return Arriving(member, note)

    def leaver(self, query: Query) -> Member:
        """A query that has left, whose results wait: as it ran, with the sink that is declared for it, or noted."""
        name, sink = query.name, self.sinks.get(query.name)
        if sink is None and (note := read_sink(self.checkpoint, name)) is not None:
            sink = from_note(note, name)
        assert sink is not None, "a start is refused otherwise"
        return Member(query, Execution(left_deep(Forms(query).graphs[None])), Steady(), sink, leaves=name in self.leaving)

    def slicer(self, queries: Sequence[str]) -> Slicer | None:
        """What decides how rows of the streams of some queries are cut into slices; while they run only if anything is to
        change."""
        planning = self.planning
        chains = planning.first_chains([name for name in queries if name in planning.queries])
        known = SlicingKnowledge(planning.units, planning.byte_cores, planning.budget.bounds.memory)
        return SlicingLoop(known, chains, self.adapt.timing != "never")

    def loop(self, forms: Forms, bounds: Bounds) -> Loop:
        """What decides about the plan of a query while it runs, within what others leave of the budget."""
        planning = self.planning
        settings = self.adapt.settings(bounds)
        knowledge = Knowledge(forms.graphs[None], planning.units, bounds, planning.facts, self.slots, settings)
        loop = GroupingLoop(forms, knowledge)
        if not planning.moving_places(forms.written):
            return loop
        choose, failure, pause_us = planning.choose_places, planning.database_failure, round(settings.pause_s * 1e6)
        known = PlacingKnowledge(
            choose, planning.units, planning.facts, settings.window, failure, pause_us, database_costs
        )  # fmt: skip
        return PlacingLoop(loop, forms, known)
