"""What a query runs changes here and nowhere else: from a course, a proposal and what has been seen to another course, or to
a refusal with its reason.

Example: a query runs `((a b) c)`. `(a b c)` by moving state is the course `(a b c)`, from the next batch on. On a parallel
track it is `((a b) c)` with a migration to `(a b c)`, which ends after the batch in which every slot says that nothing is
left to prepare (`anabranch.control.course.course_after`). With an input `[UNBOUNDED]` the parallel track is refused: its old
rows would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.control.loop import Proposal
from anabranch.plan.eager import Forms
from anabranch.plan.migration import (
    Course,
    Migration,
    Strategy,
    switched,
    why_not_parallel,
    why_not_raise,
    why_not_switch,
    with_selects,
)


@dataclass(frozen=True)
class Refusal:
    """Why a proposal cannot be followed."""

    reason: str


def transition(
    forms: Forms, course: Course, proposal: Proposal, batch: int, seen: Mapping[str, int]
) -> Course | Refusal:
    """The course from a batch on that a proposal leads to. A migration under way is given up for it. `seen` are the largest
    event times so far, by source."""
    below = course.below if proposal.below is None else proposal.below
    selects = course.selects if proposal.selects is None else proposal.selects
    if (below, proposal.plan, selects) == (course.below, course.plan, course.selects):
        return replace(course, migration=None)
    if reason := why_not(forms, course, proposal):
        return Refusal(reason)
    strategy, graph = proposal.strategy, forms.graphs[course.below]
    if below != course.below:
        return switched(forms, course, proposal.plan, below, strategy, seen)
    if proposal.selects is not None:
        course = with_selects(course, graph, selects, strategy, seen)
    if strategy is Strategy.MOVING_STATE or proposal.plan == course.plan:
        return replace(course, plan=proposal.plan, migration=None)
    return replace(course, migration=Migration(proposal.plan, strategy, batch, proposal.pause_us))


def why_not(forms: Forms, course: Course, proposal: Proposal) -> str | None:
    """Why a proposal cannot be followed from a course; None if it can."""
    graph = forms.graphs[course.below]
    if proposal.below is not None and proposal.below != course.below:
        return why_not_switch(forms, course, proposal.below, proposal.strategy)
    if proposal.selects is not None and (reason := why_not_raise(course, graph, proposal.selects, proposal.strategy)):
        return reason
    if proposal.strategy is Strategy.PARALLEL_TRACK:
        return why_not_parallel(graph, course.plan, proposal.plan)
    return None
