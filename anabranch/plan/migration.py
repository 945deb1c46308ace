"""A change of plan while the query runs: from which plan to which, how, and since when.

The three ways are those of 002 (chapter 12) and one of our own:

- *moving state* (algorithm 7): what both plans keep is shared, the views that only the new one has are recomputed from their
  parts before the next batch is processed, the rest is dropped. It is over in one batch, so nothing of it is under way;
- *parallel track* (algorithm 8): both plans run. The old one gives the results that have an old row, the new one those of
  new rows alone, until no old row is valid any more;
- *gradual*: the old plan serves while the views of the new one are recomputed piece by piece, a little in each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, joins_of
from anabranch.plan.query import FOREVER_US, Stream


class Strategy(StrEnum):
    """How state gets from one plan to another."""

    MOVING_STATE = "moving-state"
    PARALLEL_TRACK = "parallel-track"
    GRADUAL = "gradual"


@dataclass(frozen=True)
class Migration:
    """A migration under way: rows of batches before `since` are old. A batch works on it for `pause_us` at most, or for one
    piece if that takes longer."""

    target: Plan
    strategy: Strategy
    since: int
    pause_us: int = 0


@dataclass(frozen=True)
class Course:
    """What a batch runs: the plan that gives the results, and the migration under way, if there is one."""

    plan: Plan
    migration: Migration | None = None

    @property
    def target(self) -> Plan | None:
        return self.migration.target if self.migration is not None else None

    @property
    def is_parallel(self) -> bool:
        return self.migration is not None and self.migration.strategy is Strategy.PARALLEL_TRACK


def why_not_parallel(graph: JoinGraph, plan: Plan, target: Plan) -> str | None:
    """Why a parallel track would never end between two plans, or begin with too little; None if it would do."""
    for i in graph.query.inputs:
        if isinstance(i.source, Stream) and i.window.length_us == FOREVER_US:
            return (
                f"a parallel track waits until the last old row has ended, and rows of {i.alias} [UNBOUNDED] never do: "
                f"take {Strategy.MOVING_STATE} or {Strategy.GRADUAL}"
            )
    kept = {join.aliases for join in joins_of(plan)}
    tables = {i.alias for i in graph.query.inputs if not isinstance(i.source, Stream)}
    for join in joins_of(target):
        if join.aliases <= tables and join.aliases not in kept:
            return (
                f"a parallel track begins without old rows, and {join} joins stored tables, which have no others: "
                f"take {Strategy.MOVING_STATE} or {Strategy.GRADUAL}"
            )
    return None
