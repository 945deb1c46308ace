"""What a block that joins has to hand over when it comes home from a database, in seconds of CPU.

All of it follows from the rates and selectivities that the placements are priced by, with the cost model that plans are
chosen by (`anabranch.cost`). With N(s) rows of a set of streams at an instant:

- the database joins each segment of the first input with what is there of the others (`anabranch.engine.homecoming`): for
  each a round trip and the rows of the others, looked up among those of the segment; each row of the first input, kept once;
  and N(all) combinations, which come back;
- the engine folds the combinations: N(all) times what folding a row takes;
- the engine builds the indexes and views of its plan from the log, as after a restart
  (`anabranch.migrate.estimate.rebuild_cpu_s`).

Where the database fails, and the engine makes up for it (`anabranch.engine.stand_in`), it does all of that by itself, in one
go: it derives the indexes that one n-ary join looks up, joins by them, and folds what that gives.

On the way to the database there is nothing to hand over: it reads the log, which the join keeps anyway.

Example: a and b have 10,000 rows each in their windows, in 100 segments, and find 20,000 combinations. DuckDB looks up a
hundred times 10,000 rows and keeps 10,000; 20,000 rows come back and are folded; two indexes get 10,000 rows each.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.cost.facts import Given, window_s
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.cost.streams import Basis
from anabranch.migrate.estimate import found_cpu_s, rebuild_cpu_s
from anabranch.place.cost import DatabaseCosts
from anabranch.place.operators import Kind
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Leaf, Plan, join
from anabranch.plan.query import Query, Stream


@dataclass(frozen=True)
class MadeUp:
    """What the engine does at once for the window of a block in the place of a database."""

    rows: float
    """What it folds, rows or combinations of them; of a join without groups the rows that it derives indexes of."""
    cpu_s: float


def made_up(block: Query, facts: Given, units: UnitCosts) -> MadeUp | None:
    """What it takes to do all at once what a database was to do for a block; None if too little is known of its streams."""
    if len(block.inputs) == 1:
        rows = facts.rates.get(block.inputs[0].source.name, 0.0) * window_s(block.inputs[0])
        return MadeUp(rows, rows * units.fold) if rows else None
    graph, known = JoinGraph(block), facts.graph(JoinGraph(block))
    is_told = all(i.source.name in facts.rates for i in block.inputs if isinstance(i.source, Stream))
    if not is_told or not known.classes or any(each.basis is Basis.ASSUMED for each in known.classes):
        return None
    model, plan = CostModel(known, units), join(tuple(Leaf(alias) for alias in block.aliases), graph)
    stored = sum(model.stored_rows(model.graph.mask((alias,))) for alias in block.aliases)
    if block.grouping is None:
        return MadeUp(stored, stored * units.insert)
    combined = model.graph.rows(model.graph.everything)
    return MadeUp(combined, stored * units.insert + found_cpu_s(model, plan) + combined * units.fold)


def handover_s(
    block: Query, plan: Plan, facts: Given, units: UnitCosts, database: DatabaseCosts, segments: float
) -> float:
    """What it takes to have the engine run a block that joins, by a plan; the window of its first input has so many
    segments."""
    graph = JoinGraph(block)
    model = CostModel(facts.graph(graph), units)
    first, *others = (model.graph.rows(model.graph.mask((alias,))) for alias in block.aliases)
    combined, probe = model.graph.rows(model.graph.everything), database.per_row_s[Kind.JOIN]
    kept = probe if database.build_s is None else database.build_s
    asked_s = segments * (database.round_trip_s + sum(others) * probe) + first * kept + combined * database.out_s
    return asked_s + combined * units.fold + rebuild_cpu_s(model, graph, plan)
