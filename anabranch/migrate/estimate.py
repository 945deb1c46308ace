"""What a migration costs, before it is made (002, sections 12.3 and 12.4, with joins that look up instead of nested loops).

- *Moving state* recomputes each view V that the old plan lacks from the rows of its smallest input: these look up the
  others, and N(V) combined rows are kept (the counterpart of equation 12.1; as there, matching and moving cost next to
  nothing). The batch waits for all of it: that is its pause.
- *Parallel track* lasts until the last old row has ended: under our law the largest window plus lateness, for a combined row
  ends with the first of its parts. (With the papers' timestamps it is 2W once a join stands above another, equation 12.4:
  `paper_duration_s`.) All that time the new plan runs too; its states grow from nothing, so that its lookups find half of
  what they will later (equations 12.5 to 12.7). No batch waits.
- *Gradual* costs what moving state does, but for rows that end before their turn, and what it takes to keep the new views up
  to date in the meantime; a batch waits for as long as is allowed.

To each is added what the old plan needs more than the new one, for as long as it goes on.

A select that goes down has moving state build the indexes anew that show rows which have not passed it (*state filtering*,
section 13.1); by the other two it waits until these have ended, which costs next to nothing. Upwards there is nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.cost.model import CostModel
from anabranch.migrate.matching import match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Plan, joins_of
from anabranch.plan.migration import Execution, Strategy, why_not_parallel, why_not_raise, with_selects
from anabranch.plan.query import FOREVER_US, Stream
from anabranch.plan.routes import indexes, routes, views
from anabranch.plan.selects import Selects


@dataclass(frozen=True)
class Estimate:
    """What a strategy would take."""

    strategy: Strategy
    cpu_s: float
    """CPU of the migration itself."""
    pause_s: float
    """The longest that a batch waits for it."""
    duration_s: float
    """Until the new plan gives the results."""
    delay_cpu_s: float
    """What the old plan needs more until then than the new one would."""

    @property
    def total_cpu_s(self) -> float:
        return self.cpu_s + self.delay_cpu_s


@dataclass(frozen=True)
class Estimates:
    """The strategies that are possible, and why others are not."""

    possible: dict[Strategy, Estimate]
    refused: dict[Strategy, str]

    def best(self, pause_s: float) -> Estimate:
        """The cheapest within a pause; if none is, the one with the shortest. Of equals the simplest."""
        within = [e for e in self.possible.values() if e.pause_s <= pause_s]
        if not within:
            return min(self.possible.values(), key=lambda e: e.pause_s)
        return min(within, key=lambda e: e.total_cpu_s)


def recompute_cpu_s(model: CostModel, graph: JoinGraph, old: Plan, new: Plan) -> float:
    """Recomputing the views that only the new plan has, and building its indexes (algorithm 6)."""
    matching, streams, u = match_states(old, new, graph), model.graph, model.units
    nodes = {graph.ordered(join.aliases): join for join in joins_of(new)}
    spent = sum(model.stored_rows(streams.mask(index.state)) * u.insert for index in matching.built)
    for view in matching.unmatched:
        node, everything = nodes[view], streams.mask(view)
        spent += found_cpu_s(model, node) + streams.rows(everything) * (u.view_insert or u.insert) * _keys(model, new, node)
    return spent


def rebuild_cpu_s(model: CostModel, graph: JoinGraph, plan: Plan) -> float:
    """Building all states of a plan from logs alone: a migration from nothing."""
    after, streams, u = routes(plan, graph), model.graph, model.units
    nodes = {graph.ordered(join.aliases): join for join in joins_of(plan)}
    spent = sum(model.stored_rows(streams.mask(i.state)) * u.insert for i in indexes(after) if len(i.state) == 1)
    for view in views(after):
        kept = streams.rows(streams.mask(view)) * (u.view_insert or u.insert) * _keys(model, plan, nodes[view])
        spent += found_cpu_s(model, nodes[view]) + kept
    return spent


def found_cpu_s(model: CostModel, node: Join) -> float:
    """The rows of the smallest input of a join look up the others."""
    inputs = [model.graph.mask(child.aliases) for child in node.inputs]
    seed = min(range(len(inputs)), key=lambda i: model.stored_rows(inputs[i]))
    bound, rows, spent = inputs[seed], model.stored_rows(inputs[seed]), 0.0
    for place in node.orders[seed]:
        bound |= inputs[place]
        matches = model.graph.rows(bound)
        spent += rows * (model.lookup(inputs[place]) + model.units.rekey) + matches * model.units.join
        rows = matches
    return spent


def _keys(model: CostModel, plan: Plan, node: Join) -> int:
    above = next(j for j in joins_of(plan) if any(child is node for child in j.inputs))
    return model.keys(model.graph.mask(node.aliases), model.graph.mask(above.aliases - node.aliases))


def parallel_duration_s(graph: JoinGraph) -> float:
    """Until the last row that is valid now, or comes late, has ended."""
    inputs = [(i.window.length_us, i.source) for i in graph.query.inputs]
    return max((window_us + s.lateness_us) / 1e6 for window_us, s in inputs if isinstance(s, Stream))


def paper_duration_s(graph: JoinGraph, old: Plan) -> float:
    """Equation 12.4: W, or 2W if a join of the old plan stands above another."""
    window_s = max(i.window.length_us for i in graph.query.inputs if i.window.length_us != FOREVER_US) / 1e6
    return window_s * (2 if len(list(joins_of(old))) > 1 else 1)


def estimate(
    model: CostModel, graph: JoinGraph, old: Plan, new: Plan, slots: int, batch_s: float, pause_s: float
) -> Estimates:
    """All three strategies from one plan to another, on what is known of the streams."""
    before, after = model.cost(old).cpu, model.cost(new).cpu
    saved = max(0.0, before - after)
    recompute = recompute_cpu_s(model, graph, old, new)
    found = {Strategy.MOVING_STATE: Estimate(Strategy.MOVING_STATE, recompute, recompute / slots, 0.0, 0.0)}
    batches = max(1.0, recompute / slots / max(pause_s, 1e-9))
    lasting = batches * batch_s
    refused = {}
    if reason := why_not_parallel(graph, old, new):
        refused[Strategy.PARALLEL_TRACK] = reason
    else:
        both = parallel_duration_s(graph)
        fixed = model.fixed().cpu
        twice = 0.0 if old == new else both * max(0.0, after - fixed) * 0.75
        found[Strategy.PARALLEL_TRACK] = Estimate(Strategy.PARALLEL_TRACK, twice, 0.0, both, saved * both)
        lasting = min(lasting, both)
    kept = set(match_states(old, new, graph).unmatched)
    upkeep = sum(cost.cpu for node, cost in model.nodes(new) if graph.ordered(node.aliases) in kept)
    found[Strategy.GRADUAL] = Estimate(
        Strategy.GRADUAL, recompute + upkeep * lasting, min(pause_s, recompute / slots), lasting, saved * lasting
    )
    return Estimates(found, refused)


def filtering_cpu_s(model: CostModel, graph: JoinGraph, plan: Plan, before: Selects, after: Selects) -> float:
    """Building the indexes anew whose rows must have passed more selects than they have."""
    spent, u = 0.0, model.units
    for index in indexes(routes(plan, graph)):
        inputs = set(index.state)
        if {s.predicate for s in before if s.is_open(inputs)} - {s.predicate for s in after if s.is_open(inputs)}:
            insert = u.insert if len(inputs) == 1 else u.view_insert or u.insert
            spent += model.stored_rows(model.graph.mask(index.state)) * (u.accept + insert)
    return spent


def with_filtering(
    found: Estimates, model: CostModel, graph: JoinGraph, execution: Execution, plan: Plan, selects: Selects, slots: int
) -> Estimates:
    """The strategies from one plan to another when selects go elsewhere, too."""
    possible, refused = dict[Strategy, Estimate](), dict(found.refused)
    for strategy, e in found.possible.items():
        if reason := why_not_raise(execution, graph, selects, strategy):
            refused[strategy] = reason
            continue
        after = with_selects(execution, graph, selects, strategy, {}).selects
        spent = filtering_cpu_s(model, graph, plan, execution.selects, after)
        possible[strategy] = replace(e, cpu_s=e.cpu_s + spent, pause_s=e.pause_s + spent / slots)
    return Estimates(possible, refused)
