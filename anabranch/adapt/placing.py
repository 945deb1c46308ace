"""The loop of a query with a block that a database may run, if no hint keeps it where it is: where the block runs, beside
its plan (what 004 leaves to future work).

Now and then, when rates are known over a window of batches, the placement that runs is set beside the others
(`anabranch.place.choice`), by what was measured of the streams. Another one must be worth it as another plan must
(`anabranch.adapt.arbiter`): by enough less CPU, and by as much as the way there costs. Into the engine that is the rows of
the window, folded once, or what a block that joins has to hand over (`anabranch.adapt.handover`); into the database nothing,
for it reads the log. A block over one stream that began in the engine has no log: what keeping one takes is part of the
price of the database, and the block goes when its rows are there (`anabranch.drive.waking`). A block that has just moved
stays for a while.

What was calibrated of the database is corrected by what batches measure while a block runs there: by the pace of the block
(`anabranch.control.pace`), which records keep. So a block whose database is much slower than calibrated comes home, and
stays there as long as that is remembered.

A block moves only if its size is known (`anabranch.place.choice`): how many groups it has, as the engine counts those that
it hands out, and a database those that it gives; and if it joins, how many rows of its inputs meet, by what lookups find
while the engine runs it. Both are remembered while the database does the work, and over a restart; else facts count that a
user gave. What nobody measured and nobody gave is not trusted: the block stays where it is. So does the query itself while
groups stand below its join, or selects above it.

Example: for DuckDB a statement costs as much as folding a thousand rows, and a row half as much as folding it; the window
slides by its whole length, a second. At 100,000 rows a second the block runs in DuckDB. At 10 rows a second it goes to the
engine, and back when rows come faster again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from anabranch.adapt.arbiter import Change
from anabranch.adapt.grouping_loop import distinct_values, measured_facts, measured_values
from anabranch.adapt.handover import handover_s
from anabranch.adapt.monitor import Monitor, observe
from anabranch.control.loop import Loop, Observed, Proposal, Remark, Wish
from anabranch.control.pace import Pace, Took
from anabranch.control.records import BlockFigures, Grouped, Probed
from anabranch.cost.facts import Given, Measured, window_s
from anabranch.cost.model import UnitCosts
from anabranch.cost.streams import Basis
from anabranch.place.choice import CallCosts, Choice
from anabranch.place.cost import DatabaseCosts
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import ENGINE, Query
from anabranch.plan.statement import FAIL

STAYS_BATCHES = 32
"""A block that has moved stays where it is for so many batches with rows, at least."""

LIFE_S = 600.0
"""For so long, at least, rates are taken to stay as they are when a block moves."""

Choose = Callable[[Query, Given, frozenset[str], frozenset[str], Mapping[str, Pace]], Choice | None]
"""The placement of a query by some facts, while some blocks run in the database and the rows of some are kept, at the paces
that the database has for blocks, beside the next best."""


@dataclass(frozen=True)
class PlacingKnowledge:
    """What does not change while a query runs."""

    choose: Choose
    units: UnitCosts
    otherwise: Given
    window: int = 8
    """Rates are those of so many batches."""
    failure: str = FAIL
    """What becomes of statements that fail."""
    pause_us: int = 0
    """How long a batch may work at what a block takes home."""
    database_costs: Callable[[str], DatabaseCosts | None] = lambda name: None
    """What operators take in a database, if that was measured."""


class PlacingLoop:
    """Where a block runs, beside what another loop decides about the plan."""

    def __init__(self, inner: Loop, forms: Forms, known: PlacingKnowledge) -> None:
        self.inner, self.forms, self.known = inner, forms, known
        self.monitor, self.since = Monitor(known.window), 0
        self.figures: dict[str, BlockFigures] = {}
        """By block, what batches have measured of it when they last told."""
        self.calls: Mapping[str, CallCosts] = {}
        """What blocks in the database are expected to take there, when rates were last looked at."""

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        """Takes note of a batch, and says what to do."""
        said, self.figures = self.inner.after(execution, observed), self.figures or self._remembered(observed)
        observation = observe(observed)
        if observation is not None and observation.rows:
            self.monitor, self.since = self.monitor.after(observation), self.since + 1
        if isinstance(said, Proposal):
            # What a database may run as a whole keeps its plan.
            return None if self.forms.written.name in self._may_go(execution) else said
        is_known = len(self.monitor.observations) > self.known.window and self.monitor.span_s > 0
        if not is_known or self.since % self.known.window or not execution.is_settled:
            return said
        return self._better(execution, observed.paces) or said

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        """The action that a user asks for."""
        return self.inner.granted(execution, wish)

    def took(self, observed: Observed) -> Mapping[str, Took]:
        """How long the database took for the blocks that it ran. Calls that fail tell nothing of that."""
        found = {}
        for block, call in self.calls.items():
            border = observed.statistics.borders.get(block)
            if border is not None and not border.failed:
                found[block] = Took(border.seconds, call.seconds(border.instants, border.rows_sent), call.round_trip_s)
        return found

    def _better(self, execution: Execution, paces: Mapping[str, Pace]) -> Proposal | None:
        """The best placement, if it is worth the way there."""
        written = self.forms.written
        facts = self._facts(execution)
        logged = frozenset(self._may_go(execution))
        choice = self.known.choose(written, facts, logged - execution.home, logged, paces)
        self.calls = {} if choice is None else choice.calls
        if self.since < STAYS_BATCHES or choice is None or choice.decision is None or choice.other is None:
            return None
        now, then = choice.decision.use.total, choice.other.use.total
        change = Change(now, then, becomes_qualified=choice.other.is_feasible and not choice.decision.is_feasible)
        move = next(self._moves(choice, execution), None)
        if move is None or not change.is_better:
            return None
        block, place = move
        pace = paces.get(block, Pace()).beside(self.calls[block].round_trip_s)
        cost_s = self._brought_home_s(block, choice.database, facts, execution, pace) if place == ENGINE else 0.0
        if cost_s is None or not change.pays(cost_s, LIFE_S):
            return None
        self.since = 0
        # The model prices more than tasks report: what the two placements differ by is the model's.
        cpu, before = max(0.0, self.monitor.cores + then - now), self.monitor.cores
        text = f"{cpu:.3g} cores instead of {before:.3g}, at {self.monitor.rows_per_s:,.0f} rows/s"
        text += f"; {choice.database} takes {pace}" if pace.counts else ""
        details = {
            "cpu": cpu, "cpu_before": before, "c_u": then, "c_u_before": now, "cost_cpu_s": cost_s,
            "gain_cpu_s": change.gain_s(LIFE_S), "pace": pace.factor,
        }  # fmt: skip
        known = self.known
        action = PlaceBlock(block, place, execution.plan, Strategy.GRADUAL, known.pause_us, known.failure)
        return Proposal(action, text, details)

    def _may_go(self, execution: Execution) -> Mapping[str, str]:
        """The databases of blocks whose rows are kept for them, wherever the blocks run."""
        return {**self.forms.written.places, **{each.block: each.database for each in execution.woken}}

    def _moves(self, choice: Choice, execution: Execution) -> Iterator[tuple[str, str]]:
        """What the next best placement has elsewhere, of the blocks that can go there."""
        assert choice.other is not None
        there = {each.block for each in choice.root if each.name in choice.other.in_database}
        kept = self._may_go(execution)
        for block in self.forms.written.blocks:
            if block is self.forms.written and (execution.grouped_input is not None or execution.selects):
                continue  # it keeps its plan while the database runs it
            is_there = block.name in kept and block.name not in execution.home
            if not is_there and execution.probation_of(block.name) is not None:
                continue  # its database has failed, and is asked again when its time has come
            if block.name in there and not is_there:
                yield block.name, kept.get(block.name, choice.database)
            elif block.name not in there and is_there:
                yield block.name, ENGINE

    def _remembered(self, observed: Observed) -> dict[str, BlockFigures]:
        """What batches of an earlier run have measured of the blocks that there are."""
        blocks = {block.name for block in self.forms.written.blocks}
        return {name: figures for name, figures in observed.figures.items() if name in blocks}

    def _facts(self, execution: Execution) -> Given:
        """What batches tell; what they do not tell, for the database does the work, as it was last told."""
        written, given, monitor = self.forms.written, self.known.otherwise, self.monitor
        otherwise = given.with_figures(self.figures)
        if any(step.probes for batch in monitor.batches for step in batch.steps):
            measured = Measured(execution.plan, monitor.batches, monitor.span_s, otherwise)
            self._note(written, distinct=measured_values(self.forms, execution, measured))
        facts = measured_facts(self.forms, execution, monitor, otherwise)
        for block in written.blocks:
            if block is not written and (found := self._met_below(block, facts)):
                self._note(block, distinct=found)
            if (groups := self._groups(block)) is not None:
                self._note(block, groups=groups)
        return facts.with_figures(self.figures)

    def _note(self, block: Query, **measured: Any) -> None:
        known = self.figures.get(block.name, BlockFigures())
        self.figures = {**self.figures, block.name: msgspec.structs.replace(known, **measured)}

    def _groups(self, block: Query) -> float | None:
        """How many groups a block has at an instant; None if batches do not tell. A database hands out those that pass
        HAVING alone: that is what is known, if the engine has not told better."""
        counted = Grouped()
        for batch in self.monitor.batches:
            if (handed := batch.grouped.get(block.name)) is not None:
                counted = Grouped(counted.instants + handed.instants, counted.groups + handed.groups)
        known = self.figures.get(block.name, BlockFigures())
        passes_all = block.grouping is not None and block.grouping.having is None
        if not counted.instants and block.grouping is not None and (passes_all or known.groups is None):
            borders = [batch.borders[block.name] for batch in self.monitor.batches if block.name in batch.borders]
            counted = Grouped(sum(b.instants for b in borders), sum(b.rows_back for b in borders))
        return counted.groups / counted.instants if counted.instants else None

    def _met_below(self, block: Query, facts: Given) -> Mapping[str, float]:
        """How many values keys of a subquery that joins have by what its own lookups found; nothing if they do not tell all.
        A subquery with a key that is called as one of another block stays unknown: facts name both alike."""
        probed = [batch.blocks.get(block.name, Probed()) for batch in self.monitor.batches]
        if not any(step.probes for each in probed for step in each.steps):
            return {}
        batches = [
            msgspec.structs.replace(batch, steps=each.steps, samples=each.samples)
            for batch, each in zip(self.monitor.batches, probed, strict=True)
        ]
        graph, blocks = JoinGraph(block), self.forms.written.blocks
        own = Measured(left_deep(graph), batches, self.monitor.span_s, facts)
        others = {term for each in blocks if each is not block for term in _keys(JoinGraph(each))}
        is_told = all(each.basis is Basis.MEASURED for each in own.graph(graph).classes)
        if not is_told or others & _keys(graph):
            return {}
        return {term: values for term, (values, _) in distinct_values(graph, own).items()}

    def _brought_home_s(
        self, name: str, database: str, facts: Given, execution: Execution, pace: Pace
    ) -> float | None:
        """What a block takes home, in seconds of CPU; None if that is not known."""
        block, units = next(block for block in self.forms.written.blocks if block.name == name), self.known.units
        first = block.inputs[0]
        if len(block.inputs) == 1:
            return facts.rates.get(first.source.name, 0.0) * window_s(first) * units.fold
        costs = self.known.database_costs(database)
        if costs is None:
            return None
        batch_s = self.monitor.span_s / len(self.monitor.batches)
        plan = execution.plan if block is self.forms.written else left_deep(JoinGraph(block))
        costs = costs.at_pace(pace.factor)
        return handover_s(block, plan, facts, units, costs, max(1.0, window_s(first) / batch_s))


def _keys(graph: JoinGraph) -> set[str]:
    """The terms of the keys by which inputs are joined."""
    return {str(term) for terms in graph.classes for term in terms}
