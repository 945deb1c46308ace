"""Blocks that begin in the engine, and that a database may run when somebody asks for it (`anabranch.plan.migration.Woken`).

A block over one stream folds its rows and forgets them, so a database would have nothing to read. When it is asked for, its
rows are kept from then on, and the engine goes on with the groups that it has. The block goes over with the first batch at
whose beginning all rows have ended that came before (`anabranch.control.execution.execution_after`): by the watermark, so in
all slots at once, and again after a crash. A join keeps its rows anyway, and goes with the next batch.

What a database is asked for is printed where blocks are run: records name the block and the database alone, so that a query
that goes on with another select list asks for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.place.capabilities import DUCKDB
from anabranch.place.databases.embedded import DUCK, is_installed
from anabranch.place.statement_of import placed
from anabranch.place.wishes import Databases, why_not_in
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.distribution import Distribution, grid_of
from anabranch.plan.migration import Execution, Folding, Strategy, Woken
from anabranch.plan.query import ENGINE, FOREVER_US, Query, Stream, Table


def databases() -> Databases:
    """The databases that run blocks of ours, by name."""
    return {DUCK: DUCKDB} if is_installed() else {}


def with_statements(execution: Execution, query: Query) -> Execution:
    """An execution as blocks are run by it: with what databases are asked for."""
    if not execution.woken:
        return execution
    return replace(execution, woken=tuple(_with_statement(each, query) for each in execution.woken))


def _with_statement(woken: Woken, query: Query) -> Woken:
    made = placed(query, {woken.block: woken.database}, woken.failure)
    return replace(woken, statement=next(block.may_ask for block in made.blocks if block.name == woken.block))


def why_not_wake(query: Query, execution: Execution, action: PlaceBlock, spread: Distribution, may_lose: bool) -> str | None:
    """Why a block that the engine runs cannot go to a database; None if it can."""
    name, able = action.block.removeprefix(f"{query.name}."), databases()
    if action.place not in able:
        return f"{name} runs in the engine, and there is no database {action.place} that could run it"
    if elsewhere := [*query.places, *(each.block for each in execution.woken)]:
        return f"one block of a query may be in a database, and {elsewhere[0]} is the one"
    block = next(block for block in query.blocks if block.name == action.block)
    if reason := why_not_in(replace(query, place=action.place) if block is query else query, block.name, able[action.place]):
        return f"{name} cannot run in {action.place}: {reason}"
    if tables := [i.source.name for i in block.inputs if isinstance(i.source, Table)]:
        return f"{name} joins the stored table {tables[0]}: place it by a hint, --fresh"
    if execution.grouped_input is not None or execution.selects:
        return "groups stand below a join, or selects above one: have them elsewhere before a block goes to a database"
    if may_lose:
        return "the overload policy of the query may lose results: its blocks stay in the engine"
    if len(block.inputs) == 1 and block.inputs[0].window.length_us == FOREVER_US:
        return f"rows of {block.inputs[0].alias} are valid for ever, and those that came so far were not kept"
    if block.grouping is not None and not _is_parted(query, block, spread):
        return f"groups of {name} are made in several slots, and a database gives whole ones: place it by a hint, --fresh"
    return None


def _is_parted(query: Query, block: Query, spread: Distribution) -> bool:
    """Whether each group of a block is in one slot alone."""
    if spread.grid.cells == 1:
        return True
    if block is query and spread.groups_span_slots:
        return False
    grid = grid_of(query, spread.grid, query.blocks.index(block))
    wide = {place for place, share in enumerate(grid.shares) if share > 1}
    return all(wide <= set(grid.own(i.alias)) for i in block.inputs)


def woken(query: Query, execution: Execution, action: PlaceBlock, batch: int, seen: Mapping[str, int]) -> Execution:
    """The execution from a batch on in which a block of the engine's is on its way to a database, or there."""
    block = next(block for block in query.blocks if block.name == action.block)
    made = Woken(action.block, action.place, failure=action.failure)
    largest_us = [seen[s.name] for s in query.base_sources if isinstance(s, Stream) and s.name in seen]
    if len(block.inputs) > 1 or not largest_us:
        return replace(execution, woken=(*execution.woken, made))
    until_us = max(largest_us) + block.inputs[0].window.length_us
    made = replace(made, since=batch, until_us=until_us, is_going=True)
    return replace(execution, woken=(*execution.woken, made), home=execution.home | {action.block})


def moved(query: Query, execution: Execution, action: PlaceBlock, batch: int) -> Execution:
    """The execution from a batch on in which a block that a database may run is run elsewhere: there, once all that it reads
    is kept; in the engine, if that is to be gradual, once all that was kept is folded."""
    to_engine = action.place == ENGINE
    known = execution.woken_as(action.block)
    if known is not None and not known.is_covered:
        woken = tuple(replace(w, is_going=not to_engine) if w is known else w for w in execution.woken)
        return replace(execution, woken=woken)
    home, others = execution.home - {action.block}, tuple(p for p in execution.probation if p.block != action.block)
    # Whoever has a block stay in the engine has said that it is not to go back when a probation ends.
    probation = (*others, action.probation) if action.probation is not None else others if to_engine else execution.probation
    folding = tuple(f for f in execution.folding if f.block != action.block)
    has_groups = next(block for block in query.blocks if block.name == action.block).grouping is not None
    if to_engine and has_groups and action.strategy is Strategy.GRADUAL and action.block not in execution.home:
        begun = execution.folding_of(action.block) or Folding(action.block, batch, action.pause_us)
        folding = (*folding, begun)
        return replace(execution, probation=probation, folding=folding)
    return replace(execution, home=home | {action.block} if to_engine else home, probation=probation, folding=folding)


def places(query: Query, execution: Execution) -> Mapping[str, str]:
    """The databases that may run blocks of ours now, by the names of the blocks."""
    return {**query.places, **{each.block: each.database for each in execution.woken}}
