"""A change of plan while the query runs: from which plan to which, how, and since when.

The three ways are those of 002 (chapter 12) and one of our own:

- *moving state* (algorithm 7): what both plans keep is shared, the views that only the new one has are recomputed from their
  parts before the next batch is processed, the rest is dropped. It is over in one batch, so nothing of it is under way;
- *parallel track* (algorithm 8): both plans run. The old one gives the results that have an old row, the new one those of
  new rows alone, until no old row is valid any more;
- *gradual*: the old plan serves while the views of the new one are recomputed piece by piece, a little in each batch.

Groups go below a join, or above it again, by moving state or on a parallel track (002, chapter 14). Selects go above a join
at once, and down again by moving state, which filters what is stored (chapter 13), or else wait until that has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from anabranch.errors import MigrationError
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, joins_of
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Stream
from anabranch.plan.selects import Raised, Selects
from anabranch.plan.statement import FAIL, Statement


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
class Leaving:
    """The form of a query (`anabranch.plan.eager.Forms`) that it leaves, on a parallel track: it has the rows of the grouped
    input that came before, until none of them is valid any more."""

    grouped_input: str | None
    plan: Plan
    until_us: int
    since: int = 0
    """The first batch whose rows of the grouped input are those of the form that the query goes over to."""


@dataclass(frozen=True)
class Woken:
    """A block that the engine ran when its query began, and that a database may run since somebody asked for that: its rows
    are kept since a batch. They are all that its windows reach back to once the watermark has come to `until_us`.

    Example: a block over `s [RANGE 10 SECONDS]` is asked for in batch 7, when rows of s are there up to second 20. Rows are
    kept from batch 7 on; when the watermark has come to second 30, no older row is valid any more, and the block goes.
    """

    block: str
    database: str
    since: int = 0
    """The first batch whose rows are kept for it; 0: they were kept all along, as those of a join are."""
    until_us: int = BEGINNING_US
    """`BEGINNING_US`: all that its windows reach back to is there."""
    is_going: bool = False
    """Whether it goes to the database as soon as that is so."""
    failure: str = FAIL
    """What becomes of a statement that fails (`anabranch.plan.statement.Statement`)."""
    statement: Statement | None = field(default=None, compare=False)
    """What the database is asked for, where blocks are run (`anabranch.drive.waking`)."""

    @property
    def is_covered(self) -> bool:
        return self.until_us == BEGINNING_US


@dataclass(frozen=True)
class Folding:
    """A block on its way from a database to the engine: what came in batches before `since` becomes groups piece by piece,
    what comes later as it comes. The database gives the results until that is done. A batch works on it for `pause_us` at
    most, or for one piece if that takes longer."""

    block: str
    since: int
    pause_us: int = 0


@dataclass(frozen=True)
class Probation:
    """A block whose database has failed: it is run by the engine up to batch `until`, which asks the database again. If that
    fails before the batch `until` that is noted then, it has failed once more in a row (`anabranch.drive.probation`)."""

    block: str
    times: int
    """So many times in a row the block has come home because its database failed."""
    until: int


@dataclass(frozen=True)
class Execution:
    """What a batch runs: the plan that gives the results, and the migration under way, if there is one. `grouped_input`
    names the form of the query; the plan is one of that form. `selects` are those that do not stand at their stream, in both
    plans. Queries run a join together only if they name the same `company`: nobody's, unless it was decided that some are
    to run theirs apart (`anabranch.share.taking_in`). Of the blocks that a database may run (`Query.places`, and those
    that are `woken`), those at `home` are run by the engine; those whose database has failed are on `probation`, and
    those in `folding` on their way home."""

    plan: Plan
    migration: Migration | None = None
    grouped_input: str | None = None
    leaving: Leaving | None = None
    selects: Selects = ()
    company: str = ""
    home: frozenset[str] = frozenset()
    woken: tuple[Woken, ...] = ()
    probation: tuple[Probation, ...] = ()
    folding: tuple[Folding, ...] = ()

    def is_like(self, other: Execution) -> bool:
        """Whether another execution is in the same form, leaves the same one, and has blocks run where this one does."""
        mine, theirs = (
            (each.grouped_input, each.leaving, each.home, [(w.block, w.since) for w in each.woken],
             [(f.block, f.since) for f in each.folding])
            for each in (self, other)
        )  # fmt: skip
        return mine == theirs

    def folding_of(self, block: str) -> Folding | None:
        """How a block is on its way from a database to the engine; None if it is not."""
        return next((each for each in self.folding if each.block == block), None)

    def woken_as(self, block: str) -> Woken | None:
        """The block of a name, if it is one that a database may run since somebody asked for that."""
        return next((each for each in self.woken if each.block == block), None)

    def probation_of(self, block: str) -> Probation | None:
        """What is noted of a block whose database has failed; None if it has not, or if somebody has placed it since."""
        return next((each for each in self.probation if each.block == block), None)

    @property
    def own(self) -> Execution:
        """The execution as the boxes of its form have it."""
        return Execution(self.plan, self.migration, selects=self.selects)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way."""
        is_down = all(s.until_us is None for s in self.selects)
        is_going = any(each.is_going for each in self.woken)
        return self.migration is None and self.leaving is None and is_down and not is_going and not self.folding

    @property
    def target(self) -> Plan | None:
        return self.migration.target if self.migration is not None else None

    @property
    def is_parallel(self) -> bool:
        return self.migration is not None and self.migration.strategy is Strategy.PARALLEL_TRACK


def switched(
    forms: Forms, execution: Execution, plan: Plan, grouped_input: str | None, strategy: Strategy, seen: Mapping[str, int],
    batch: int,
) -> Execution:  # fmt: skip
    """The execution from a batch on that goes over to a plan of another form; `seen` are the largest event times so far."""
    if reason := why_not_switch(forms, execution, grouped_input, strategy):
        raise MigrationError(reason)
    if strategy is Strategy.MOVING_STATE:
        return replace(execution, plan=plan, migration=None, grouped_input=grouped_input, leaving=None, selects=())
    grouped = forms.grouped(execution.grouped_input, grouped_input)
    largest_us = seen.get(grouped.source.name)
    until_us = BEGINNING_US if largest_us is None else largest_us + grouped.window.length_us
    leaving = Leaving(execution.grouped_input, execution.plan, until_us, batch)
    return replace(execution, plan=plan, migration=None, grouped_input=grouped_input, leaving=leaving, selects=())


def why_not_switch(forms: Forms, execution: Execution, grouped_input: str | None, strategy: Strategy) -> str | None:
    """Why groups cannot go from where they are to where they should be; None if they can."""
    if execution.leaving is not None:
        return "groups are on their way already: wait until the query has left the form it was in"
    if execution.selects:
        return "a select stands above a join: have it evaluated at its stream before groups go elsewhere"
    if reason := forms.why_not(execution.grouped_input, grouped_input):
        return reason
    grouped = forms.grouped(execution.grouped_input, grouped_input)
    if strategy is Strategy.GRADUAL:
        return f"groups go by {Strategy.MOVING_STATE} or on a {Strategy.PARALLEL_TRACK}, not piece by piece"
    if strategy is Strategy.MOVING_STATE:
        if execution.grouped_input is not None:
            return f"groups below a join keep no rows of {grouped.alias} to move: take {Strategy.PARALLEL_TRACK}"
        if forms.written.passing_stream == grouped.alias:
            return f"rows of {grouped.alias} are not kept, so there are none to move: take {Strategy.PARALLEL_TRACK}"
    elif grouped.window.length_us == FOREVER_US:
        return (
            f"a parallel track waits until the last old row has ended, and rows of {grouped.alias} [UNBOUNDED] never do"
            + ("" if execution.grouped_input is not None else f": take {Strategy.MOVING_STATE}")
        )
    return None


def with_selects(
    execution: Execution, graph: JoinGraph, selects: Selects, strategy: Strategy, seen: Mapping[str, int]
) -> Execution:
    """The execution whose selects go to where they should stand; `seen` are the largest event times so far."""
    if reason := why_not_raise(execution, graph, selects, strategy):
        raise MigrationError(reason)
    staying = {s.predicate for s in selects}
    waiting: Selects = ()
    if strategy is not Strategy.MOVING_STATE:
        going = [s for s in execution.selects if s.predicate not in staying and why_not_wait(graph, s) is None]
        waiting = tuple(s if s.until_us is not None else replace(s, until_us=_ends_us(graph, s, seen)) for s in going)
    order = [predicate for i in graph.query.inputs for predicate in i.filters]
    return replace(execution, selects=tuple(sorted((*selects, *waiting), key=lambda s: order.index(s.predicate))))


def _ends_us(graph: JoinGraph, select: Raised, seen: Mapping[str, int]) -> int:
    """When all rows that a select's input has brought so far have ended."""
    i = graph.query.input(select.alias)
    largest_us = seen.get(i.source.name)
    return BEGINNING_US if largest_us is None else largest_us + i.window.length_us


def why_not_raise(execution: Execution, graph: JoinGraph, selects: Selects, strategy: Strategy) -> str | None:
    """Why selects cannot go to where they should stand; None if they can."""
    if selects and (execution.grouped_input is not None or execution.leaving is not None):
        return "rows are grouped before they are joined: have groups above the join before a select goes there"
    if strategy is Strategy.PARALLEL_TRACK:
        places = {s.predicate: s.above for s in selects}
        for select in execution.selects:
            above = places.get(select.predicate)
            if above is None and (reason := why_not_wait(graph, select)):
                return reason
            if above is not None and not select.above <= above:
                return f"{select.predicate} can wait on its way to its stream only: take {Strategy.MOVING_STATE}"
    return None


def why_not_wait(graph: JoinGraph, select: Raised) -> str | None:
    """Why a select cannot wait until what was stored unfiltered has ended; None if it can."""
    i, instead = graph.query.input(select.alias), f"take {Strategy.MOVING_STATE}"
    if i.window.length_us == FOREVER_US:
        return f"{select.predicate} would wait until the last old row has ended, and rows of {i.alias} never do: {instead}"
    if sum(other.source.name == i.source.name for other in graph.query.inputs) > 1:
        return f"{i.source.name} stands in FROM twice, so that its rows are stored for others too: {instead}"
    return None


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
