"""The loop of a query whose groups may stand above a join or below it: one loop for the plans of each form, and when a plan
is thought about, so is the form (002, chapter 14).

Another form must be worth it as another plan must (`anabranch.adapt.arbiter`). Moving state folds the rows of the grouped
input that are stored; a parallel track runs both forms for a window of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.adapt.arbiter import Change
from anabranch.adapt.loop import AdaptiveLoop, Knowledge, LoopState, Promise, expected_life_s, steady_s
from anabranch.adapt.monitor import Monitor
from anabranch.control.loop import Observed, Proposal, Remark, Wish
from anabranch.control.pace import Took
from anabranch.control.records import BlockFigures
from anabranch.cost.facts import Given, Measured, window_s
from anabranch.cost.streams import Basis
from anabranch.optimize.group_placement import Grouped, priced_forms
from anabranch.plan.actions import MoveGroups
from anabranch.plan.eager import Forms
from anabranch.plan.expression import aliases_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import show
from anabranch.plan.migration import Execution, Strategy, why_not_switch
from anabranch.plan.query import Stream, Table


class GroupingLoop:
    """The loops of all forms."""

    def __init__(self, forms: Forms, known: Knowledge) -> None:
        self.forms, self.known = forms, known
        self.again_at_s: float | None = None
        """When things have been as they are for so long, another form that was not worth the way there would be."""
        self.not_worth = ""
        """That form in words, as it was told; empty if the last look found none."""
        self.loops = {name: AdaptiveLoop(replace(known, graph=graph)) for name, graph in forms.graphs.items()}

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        """Takes note of a batch, and says what to do. While a form is left, figures are those of two forms: none is used."""
        loop = self.loops[execution.grouped_input]
        if execution.leaving is not None:
            loop.state = LoopState(promise=loop.state.promise)
            return None
        said = loop.after(execution, observed)
        if isinstance(said, Proposal) or len(self.loops) == 1:
            return said
        is_due = self.again_at_s is not None and loop.state.monitor.span_s > 0 and steady_s(loop.state) >= self.again_at_s
        if is_due if said is None else said.event == "kept":
            found = self._better_form(execution, loop)
            return found if isinstance(found, Proposal) else _together(said, found)
        return said

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        """The action that a user asks for."""
        loop, grouped_input = self.loops[execution.grouped_input], wish.grouped_input
        if grouped_input == execution.grouped_input:
            return loop.granted(execution, wish)
        facts = measured_facts(self.forms, execution, loop.state.monitor, self.known.otherwise)
        way = wish.strategy or self._way(execution, grouped_input, facts, wish.pause_us / 1e6)[0]
        graph = self.forms.graphs[execution.grouped_input]
        details = {
            "from": show(execution.plan, graph),
            "grouped_input": grouped_input,
            "grouped_input_before": execution.grouped_input,
        }
        return Proposal(MoveGroups(grouped_input, wish.plan, way, wish.pause_us), "by request", details)

    def took(self, observed: Observed) -> Mapping[str, Took]:
        """Nothing: where blocks run is not its business."""
        return {}

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        """Nothing, as `took`."""
        return {}

    def _better_form(self, execution: Execution, loop: AdaptiveLoop) -> Proposal | Remark | None:
        """A proposal, if another form is worth the way there; a remark on one that is not, if that is news."""
        known, monitor, self.again_at_s = loop.known, loop.state.monitor, None
        facts = measured_facts(self.forms, execution, monitor, known.otherwise)
        priced = {g.grouped_input: g for g in priced_forms(self.forms, facts, known.units, known.bounds)}
        now = priced.pop(execution.grouped_input)
        reachable = [g for g in priced.values() if self._ways(execution, g.grouped_input)]
        best = min(reachable, key=lambda g: (not g.decision.is_qualified, g.cpu), default=now)
        change = Change(now.cpu, best.cpu, best.decision.is_qualified and not now.decision.is_qualified)
        if best is now or not change.is_better:
            self.not_worth = ""
            return None
        way, cost_s = self._way(execution, best.grouped_input, facts, known.settings.pause_s, now, best)
        where = "groups above the join"
        if best.grouped_input is not None:
            where = f"rows of {best.grouped_input} grouped before they are joined"
        life_s = expected_life_s(known, loop.state)
        details = {
            "grouped_input": best.grouped_input, "grouped_input_before": execution.grouped_input,
            "gain_cpu_s": change.gain_s(life_s), "cost_cpu_s": cost_s, "expected_life_s": life_s,
        }  # fmt: skip
        if not change.pays(cost_s, life_s):
            self.again_at_s, told, self.not_worth = change.pays_after_s(cost_s), self.not_worth, where
            text = (
                f"{where} would save {change.gain_s(life_s):.3g} s of CPU in the {life_s:.3g} s that may be good for, and "
                f"getting there costs {cost_s:.3g}"
            )
            return Remark("kept", text, {"form": details}) if told != where else None
        self.not_worth = ""
        # The model prices more than tasks report (`anabranch.adapt.loop.Found.on_measured_scale`).
        cpu, cpu_before = monitor.cores * (best.cpu / now.cpu if now.cpu else 1.0), monitor.cores
        self.loops[best.grouped_input].state = LoopState(
            promise=Promise(best.decision.plan, cpu, cpu_before, monitor.rows_per_s)
        )
        text = f"{where}: {cpu:.3g} cores instead of {cpu_before:.3g}"
        plan = show(execution.plan, self.forms.graphs[execution.grouped_input])
        details |= {"cpu": cpu, "cpu_before": cpu_before, "from": plan}
        pause_us = round(known.settings.pause_s * 1e6)
        return Proposal(MoveGroups(best.grouped_input, best.decision.plan, way, pause_us), text, details)

    def _ways(self, execution: Execution, grouped_input: str | None) -> list[Strategy]:
        every = (Strategy.MOVING_STATE, Strategy.PARALLEL_TRACK)
        return [s for s in every if why_not_switch(self.forms, execution, grouped_input, s) is None]

    def _way(
        self,
        execution: Execution,
        grouped_input: str | None,
        facts: Given,
        pause_s: float,
        now: Grouped | None = None,
        best: Grouped | None = None,
    ) -> tuple[Strategy, float]:
        """The cheapest way to another form that keeps to a pause, and what it costs in seconds of CPU."""
        grouped, units = self.forms.grouped(execution.grouped_input, grouped_input), self.known.units
        rows = facts.rates.get(grouped.source.name, 0.0) * window_s(grouped)
        found = {}
        ways = self._ways(execution, grouped_input)
        if Strategy.MOVING_STATE in ways and rows * units.fold / self.known.slots <= pause_s:
            found[Strategy.MOVING_STATE] = rows * units.fold
        if Strategy.PARALLEL_TRACK in ways:
            least = min(now.cpu, best.cpu) if now is not None and best is not None else 0.0
            found[Strategy.PARALLEL_TRACK] = least * window_s(grouped)
        if not found:
            return (ways or [Strategy.PARALLEL_TRACK])[0], rows * units.fold
        return min(found.items(), key=lambda item: item[1])


def _together(plans: Remark | None, forms: Remark | None) -> Remark | None:
    """One remark of what was found about plans of the form that runs, and about other forms."""
    if plans is None or forms is None:
        return plans or forms
    return Remark(plans.event, f"{plans.text}; {forms.text}", {**plans.details, **forms.details})


def measured_facts(forms: Forms, execution: Execution, monitor: Monitor, otherwise: Given) -> Given:
    """What batches under an execution tell, in the names of the query as written."""
    if monitor.span_s <= 0:
        return otherwise
    graph, last = forms.graphs[execution.grouped_input], monitor.batches[-1]
    rates, tables, distinct = dict(otherwise.rates), dict(otherwise.table_rows), dict(otherwise.distinct)
    for name in {n for b in monitor.batches for n in b.sources}:
        rates[name] = sum(b.sources[name].stored_rows for b in monitor.batches if name in b.sources) / monitor.span_s
    for source in forms.written.base_sources:
        if isinstance(source, Table) and source.name in last.sources:
            tables[source.name] = float(last.sources[source.name].state_rows)
    measured = Measured(execution.plan, monitor.batches, monitor.span_s, otherwise)
    names, written = _written_names(forms, execution.grouped_input), forms.written.name
    found = {names.get(term, term): known for term, known in distinct_values(graph, measured).items()}
    distinct |= {term: values for term, (values, _) in found.items()}
    # What passes the other predicates of its join is in these values now.
    is_told = any(basis is Basis.MEASURED for _, basis in found.values()) or written in otherwise.passing
    passing = {**otherwise.passing, written: 1.0} if is_told else otherwise.passing
    assumed = {term for term, (_, basis) in found.items() if basis is Basis.ASSUMED}
    estimated = (otherwise.estimated - found.keys() - rates.keys()) | assumed
    return Given(rates, tables, distinct, passing, otherwise.groups, estimated)


def distinct_values(graph: JoinGraph, measured: Measured) -> dict[str, tuple[float, Basis]]:
    """How many values the keys of a block have by what batches tell, as facts name them, and how that is known."""
    found, classes = dict[str, tuple[float, Basis]](), measured.graph(graph).classes
    usable = [terms for terms in graph.classes if len({a for t in terms for a in aliases_of(t)}) > 1]
    for terms, key_class in zip(usable, classes, strict=True):
        values = dict(key_class.distinct)
        for term in terms:
            (alias,) = aliases_of(term)
            found[str(term)] = max(1.0, values[graph.query.aliases.index(alias)]), key_class.basis
    return found


def measured_values(forms: Forms, execution: Execution, measured: Measured) -> dict[str, float]:
    """How many values keys of the query as written have by what batches tell, those of which they do."""
    names = _written_names(forms, execution.grouped_input)
    found = distinct_values(forms.graphs[execution.grouped_input], measured)
    return {names.get(term, term): values for term, (values, basis) in found.items() if basis is Basis.MEASURED}


def _written_names(forms: Forms, grouped_input: str | None) -> dict[str, str]:
    """What the columns of groups below a join are called in the query as written."""
    if grouped_input is None:
        return {}
    source = forms.query(grouped_input).input(grouped_input).source
    assert isinstance(source, Stream)
    (inner,) = [q for q in forms.query(grouped_input).subqueries if q.name == source.name]
    assert inner.grouping is not None
    return {f"{grouped_input}.key{i}": str(expr) for i, (_, expr) in enumerate(inner.select[: inner.grouping.keys])}
