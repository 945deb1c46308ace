"""What can be decided about a query while it runs, or about the state of a pipeline: one frozen class for each kind of
decision.

A policy proposes an action, or a user asks for one; `anabranch.drive.transition` says what the query runs then, or why it
cannot. `CutSlices` is about a source, whoever reads it: the driver has the next control record tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Probation, Strategy
from anabranch.plan.selects import Selects
from anabranch.plan.statement import FAIL


@dataclass(frozen=True)
class ChangePlan:
    """Another plan, of the form that the query has."""

    plan: Plan
    strategy: Strategy
    pause_us: int = 0
    """How long a batch may work at a gradual migration."""


@dataclass(frozen=True)
class MoveGroups:
    """The rows of an input are grouped before they are joined; or, where `grouped_input` is None, groups stand above the
    join."""

    grouped_input: str | None
    plan: Plan
    """Of the form that the query then has (`anabranch.plan.eager.Forms`)."""
    strategy: Strategy
    pause_us: int = 0


@dataclass(frozen=True)
class MoveSelects:
    """These predicates stand above a join, and no others, under a plan that may be another."""

    selects: Selects
    plan: Plan
    strategy: Strategy
    pause_us: int = 0


@dataclass(frozen=True)
class CutSlices:
    """Rows that come of a source are cut into slices in another way: some are split, others merged (State-Slice, VLDB 2006,
    section 5.3). Rows that are there stay in the slices that they have until these end."""

    source: str
    limits_us: tuple[int, ...]
    """For how long rows of each slice are kept, shortest first."""


@dataclass(frozen=True)
class SetAllowances:
    """Rows of the inputs of a query that may look up their partners where results are found, in a batch, by input and slot;
    of an input or slot that is not named, all may."""

    query: str
    rows: Mapping[str, Mapping[int, int]]
    shares: Mapping[str, float] = field(default_factory=dict)
    """For inputs that a user has pinned, the share of rows that may, in every slot."""


@dataclass(frozen=True)
class ShedRows:
    """Rows of streams are dropped before the exchange: this share of each is kept; of a stream that is not named, all."""

    kept: Mapping[str, float]


@dataclass(frozen=True)
class PlaceBlock:
    """A block that a database may run is run there from the next batch on, or by the engine (`place` is `ENGINE`): its
    stored rows become groups, by the gradual strategy piece by piece while the database still runs it. One whose rows were
    not kept goes to the database when enough of them are."""

    block: str
    place: str
    plan: Plan
    """The plan that the query has, and keeps."""
    strategy: Strategy = Strategy.MOVING_STATE
    pause_us: int = 0
    failure: str = FAIL
    """What becomes of statements that fail, of a block that began in the engine."""
    probation: Probation | None = None
    """What is noted of the block then, if it moves because its database has failed, or is to be asked again."""


Action = ChangePlan | MoveGroups | MoveSelects | PlaceBlock
