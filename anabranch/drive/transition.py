"""What a query runs while it runs: from an execution to another, or to a refusal with its reason.

| why it changes | function |
|---|---|
| somebody asks for another plan, or for groups, selects or a block elsewhere | `transition`, which may refuse |
| all rows of a block are kept for its database, or folded for the engine | `placing_followed` |
| a batch that no commit is before has failed too often | `without_changes` |
| slots are ready for what is under way, or no row needs what is left | `execution_after` of `anabranch.control.execution` |

The last one follows from a commit alone, so it stands beside the records. `Steering` calls these four, for requests, loops,
probations and restarts, and tells what came of them. What a query runs first is decided before it has a driver: by
`anabranch.planning`, and for queries that share a join by `anabranch.share.common_plan`.

Example: a query runs `((a b) c)`. `(a b c)` by moving state is the execution `(a b c)`, from the next batch on. On a
parallel track it is `((a b) c)` with a migration to `(a b c)`, which ends after the batch in which every slot says that
nothing is left to prepare (`anabranch.control.execution.execution_after`). With an input `[UNBOUNDED]` the parallel track is
refused: its old rows would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.control.execution import execution_after
from anabranch.control.records import QueryCommit
from anabranch.drive.waking import moved, places, why_not_wake, woken
from anabranch.plan.actions import Action, MoveGroups, MoveSelects, PlaceBlock
from anabranch.plan.distribution import ONE_SLOT, Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.migration import (
    Execution,
    Migration,
    Strategy,
    switched,
    why_not_parallel,
    why_not_raise,
    why_not_switch,
    with_selects,
)
from anabranch.plan.query import ENGINE
from anabranch.plan.selects import Selects


@dataclass(frozen=True)
class Refusal:
    """Why an action cannot be followed."""

    reason: str


def transition(
    forms: Forms, execution: Execution, action: Action, batch: int, seen: Mapping[str, int], may_lose: bool = False,
    spread: Distribution = ONE_SLOT,
) -> Execution | Refusal:  # fmt: skip
    """The execution from a batch on that an action leads to. A migration under way is given up for it. `seen` are the
    largest event times so far, by source; `may_lose`: the policy of the query may lose results; `spread` says how its rows
    are over slots."""
    if isinstance(action, PlaceBlock):
        if reason := why_not(forms, execution, action, may_lose, spread):
            return Refusal(reason)
        if action.block not in places(forms.written, execution):
            return woken(forms.written, execution, action, batch, seen)
        return moved(forms.written, execution, action, batch)
    grouped_input, selects = stands(execution, action)
    if (grouped_input, action.plan, selects) == (execution.grouped_input, execution.plan, execution.selects):
        return replace(execution, migration=None)
    if reason := why_not(forms, execution, action, may_lose):
        return Refusal(reason)
    strategy, graph = action.strategy, forms.graphs[execution.grouped_input]
    if grouped_input != execution.grouped_input:
        after = switched(forms, execution, action.plan, grouped_input, strategy, seen, batch)
        return after if batch > 0 else replace(after, leaving=None)  # before the first batch there is nothing to leave
    if isinstance(action, MoveSelects):
        execution = with_selects(execution, graph, selects, strategy, seen)
    if strategy is Strategy.MOVING_STATE or action.plan == execution.plan:
        return replace(execution, plan=action.plan, migration=None)
    return replace(execution, migration=Migration(action.plan, strategy, batch, action.pause_us))


def placing_followed(forms: Forms, execution: Execution, commit: QueryCommit) -> Execution:
    """The execution after a commit in which a block has gone to its database, if all that it reads is kept there, or has
    come home, if all of that is folded. Nothing else that is under way ends with it."""
    after = execution_after(commit, forms)
    return replace(execution, woken=after.woken, home=after.home, folding=after.folding)


def without_changes(execution: Execution) -> Execution:
    """The execution of a query that gives up what is under way and what stands elsewhere: the plan alone stays, with the
    form that it is of."""
    return replace(execution, migration=None, leaving=None, selects=())


def _why_not_place(
    forms: Forms, execution: Execution, action: PlaceBlock, may_lose: bool, spread: Distribution
) -> str | None:
    """Why a block cannot go to a database, or come back; None if it can."""
    known, name = places(forms.written, execution), action.block.removeprefix(f"{forms.written.name}.")
    if action.block not in (blocks := [block.name for block in forms.written.blocks]):
        return f"query {forms.written.name} has no block {name}: it has {', '.join(blocks)}"
    if action.block in known and action.place not in (ENGINE, known[action.block]):
        return f"{name} runs in {ENGINE} or {known[action.block]}, not in {action.place}"
    if action.block not in known and action.place == ENGINE:
        return f"{name} runs in the engine already"
    if not replace(execution, woken=(), folding=()).is_settled:
        return "another change is under way: ask again when it has ended"
    if action.block not in known:
        return why_not_wake(forms.written, execution, action, spread, may_lose)
    return None


def _why_not_limited(action: Action) -> str | None:
    """Why an action cannot be followed while results may be lost; None if it can. Which rows look up their partners is said
    of the one join that gives the results: a parallel track has two, and groups or selects that go elsewhere have others on
    the way."""
    why = "the overload policy of the query may lose results"
    if isinstance(action, MoveGroups):
        return f"{why}: groups stay where they are"
    if isinstance(action, MoveSelects):
        return f"{why}: selects stay where they are"
    if action.strategy is Strategy.PARALLEL_TRACK:
        instead = f"take {Strategy.MOVING_STATE} or {Strategy.GRADUAL}"
        return f"{why}: on a {Strategy.PARALLEL_TRACK} two plans give them; {instead}"
    return None


def stands(execution: Execution, action: Action) -> tuple[str | None, Selects]:
    """The input that is grouped first, and the predicates that stand above a join, when an action has been followed."""
    grouped_input = action.grouped_input if isinstance(action, MoveGroups) else execution.grouped_input
    return grouped_input, action.selects if isinstance(action, MoveSelects) else execution.selects


def why_not(
    forms: Forms, execution: Execution, action: Action, may_lose: bool = False, spread: Distribution = ONE_SLOT
) -> str | None:
    """Why an action cannot be followed from an execution; None if it can."""
    graph = forms.graphs[execution.grouped_input]
    if isinstance(action, PlaceBlock):
        return _why_not_place(forms, execution, action, may_lose, spread)
    if (database := places(forms.written, execution).get(forms.written.name)) is not None:
        return f"{database} may run the query: it keeps the plan that it has"
    if may_lose and (reason := _why_not_limited(action)):
        return reason
    if isinstance(action, MoveGroups) and action.grouped_input != execution.grouped_input:
        return why_not_switch(forms, execution, action.grouped_input, action.strategy)
    if isinstance(action, MoveSelects) and (reason := why_not_raise(execution, graph, action.selects, action.strategy)):
        return reason
    if action.strategy is Strategy.PARALLEL_TRACK:
        return why_not_parallel(graph, execution.plan, action.plan)
    return None
