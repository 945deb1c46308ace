"""Where whoever runs a query meets whoever decides about its plan: after each batch the one shows the commit, and the other
may propose another plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from anabranch.control.records import Commit
from anabranch.plan.jtree import Plan
from anabranch.plan.migration import Course, Strategy
from anabranch.plan.selects import Selects


@dataclass(frozen=True)
class Proposal:
    """Another plan from the next batch on, how to get there, and why."""

    plan: Plan
    strategy: Strategy
    text: str
    pause_us: int = 0
    """How long a batch may work at a gradual migration."""
    details: Mapping[str, Any] = field(default_factory=dict)
    below: str | None = None
    """The form of the query that the plan is of (`anabranch.plan.eager.Forms`); None: the one that it has."""
    selects: Selects | None = None
    """Those that stand above a join; None: those that do."""


@dataclass(frozen=True)
class Remark:
    """Something decided that changes nothing, for the journal."""

    event: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Loop(Protocol):
    """Whoever decides about the plan of one query."""

    def after(self, course: Course, commit: Commit) -> Proposal | Remark | None:
        """Takes note of a batch; says what to do about it."""

    def proposal(
        self,
        course: Course,
        plan: Plan,
        strategy: Strategy | None,
        pause_us: int,
        below: str | None = None,
        selects: Selects | None = None,
    ) -> Proposal:
        """What a user asks for: this plan, by the cheapest strategy within a pause unless one is given."""
