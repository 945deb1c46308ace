"""Where whoever drives a query meets whoever decides about what it runs: after each batch the one shows what the batch
has shown of the query, and the other may propose an action. So it is with the slices of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.control.pace import Pace, Took
from anabranch.control.records import BlockFigures, Commit, Limit, Statistics
from anabranch.plan.actions import Action, CutSlices, SetAllowances, ShedRows
from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import Query
from anabranch.plan.selects import Selects


@dataclass(frozen=True)
class Proposal:
    """An action from the next batch on, and why."""

    action: Action
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Remark:
    """Something decided that changes nothing, for the journal."""

    event: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """What a user asks for; the way there may be left open."""

    plan: Plan
    grouped_input: str | None
    """The form that the plan is of (`anabranch.plan.eager.Forms`)."""
    strategy: Strategy | None = None
    """None: the cheapest of which no batch waits longer than the pause."""
    pause_us: int = 0
    selects: Selects | None = None
    """The predicates that stand above a join; None: those that do."""


@dataclass(frozen=True)
class Observed:
    """What a batch has shown of a query."""

    batch: int
    largest_time_us: Mapping[str, int]
    """For each of its streams, as far as it has shown any."""
    statistics: Statistics
    limited_cores: float | None = None
    """Under overload: the cores that lookups which give results may take; below 0 if all else takes so much more than there
    is. None: all may be looked up."""
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """How long databases have taken of late for blocks of the query, beside what was calibrated."""
    figures: Mapping[str, BlockFigures] = field(default_factory=dict)
    """What earlier batches have measured of blocks of the query, as records have it."""


class Loop(Protocol):
    """Whoever decides about what one query runs."""

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        """Takes note of a batch; says what to do about it."""

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        """The action that a user asks for, with what is estimated of it."""

    def took(self, observed: Observed) -> Mapping[str, Took]:
        """How long databases took in a batch for the blocks that they ran, beside what was calibrated; only for blocks of
        which that is known."""

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        """What batches have measured of the blocks of the query, to be remembered over a restart."""


@dataclass(frozen=True)
class Joining:
    """A join that a query runs, or leads: of each of its inputs the source, and the windows that its members have."""

    query: str
    sources: Mapping[str, str]
    """By alias; streams only."""
    windows_us: Mapping[str, tuple[int, ...]]
    """By alias, for each member; 0 if it does not have the input."""


@dataclass(frozen=True)
class Recut:
    """Rows of a source cut in another way from the next batch on, and why."""

    action: CutSlices
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SliceRemark:
    """Something to be told of the slices of a source that changes nothing."""

    source: str
    remark: Remark


Slices = Mapping[str, tuple[int, ...]]
"""How rows of sources are cut, as far as that was decided: for how long those of each slice are kept, shortest first."""


class Slicer(Protocol):
    """Whoever decides how rows of the sources of a pipeline are cut into slices (`anabranch.engine.slices`)."""

    def at_start(self) -> Sequence[Recut]:
        """How they are cut in the first batch, as far as it is not left to the rule."""

    def after(
        self, joins: Sequence[Joining], slices: Slices, observed: Mapping[str, Observed]
    ) -> Sequence[Recut | SliceRemark]:
        """Takes note of a batch, by what it has shown of each query; says what to do about it."""


@dataclass(frozen=True)
class Load:
    """What a batch has shown of the load of a pipeline."""

    commit: Commit
    seconds: float
    """How long the batch took, from its trigger on: what Spark did before it as far as that is known."""
    planned_us: int
    """The driver's clock when it was planned."""
    executions: Mapping[str, Execution]
    """What each query ran in it."""
    backlog_rows: int | None = None
    """Rows that wait in sources, as far as these tell."""


@dataclass(frozen=True)
class Allowing:
    """Allowances from the next batch on, and why."""

    action: SetAllowances | ShedRows
    text: str
    """Empty where it is not worth telling: allowances follow the load from batch to batch."""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadRemark:
    """Something to be told of a query under load that changes nothing."""

    query: str
    remark: Remark


class Limiter(Protocol):
    """Whoever decides what queries of a pipeline may lose under overload (`anabranch.adapt.overload`)."""

    def at_start(self, limits: Mapping[str, Mapping[str, Limit]], kept: Mapping[str, float]) -> Sequence[Allowing]:
        """What is limited in the first batch of a run, given how queries were limited and rows shed so far."""

    def serve(self, queries: Mapping[str, Query]) -> Sequence[Allowing]:
        """Has it decide about these queries from now on: some have come, were altered, or have left. What is limited of
        those that are new."""

    def after(self, load: Load) -> Sequence[Allowing | LoadRemark]:
        """Takes note of a batch; says what to do about it. It may raise `OverloadError` where the policy is to fail."""

    @property
    def cores(self) -> Mapping[str, float]:
        """While there is too little CPU: by query, what lookups that give results may take (`Observed.limited_cores`)."""
