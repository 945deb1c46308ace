"""What a query runs changes here and nowhere else: from a course, an action and what has been seen to another course, or to
a refusal with its reason.

Example: a query runs `((a b) c)`. `(a b c)` by moving state is the course `(a b c)`, from the next batch on. On a parallel
track it is `((a b) c)` with a migration to `(a b c)`, which ends after the batch in which every slot says that nothing is
left to prepare (`anabranch.control.course.course_after`). With an input `[UNBOUNDED]` the parallel track is refused: its old
rows would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.plan.actions import Action, MoveGroups, MoveSelects
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
from anabranch.plan.selects import Selects


@dataclass(frozen=True)
class Refusal:
    """Why an action cannot be followed."""

    reason: str


def transition(forms: Forms, course: Course, action: Action, batch: int, seen: Mapping[str, int]) -> Course | Refusal:
    """The course from a batch on that an action leads to. A migration under way is given up for it. `seen` are the largest
    event times so far, by source."""
    below, selects = stands(course, action)
    if (below, action.plan, selects) == (course.below, course.plan, course.selects):
        return replace(course, migration=None)
    if reason := why_not(forms, course, action):
        return Refusal(reason)
    strategy, graph = action.strategy, forms.graphs[course.below]
    if below != course.below:
        after = switched(forms, course, action.plan, below, strategy, seen)
        return after if batch > 0 else replace(after, leaving=None)  # before the first batch there is nothing to leave
    if isinstance(action, MoveSelects):
        course = with_selects(course, graph, selects, strategy, seen)
    if strategy is Strategy.MOVING_STATE or action.plan == course.plan:
        return replace(course, plan=action.plan, migration=None)
    return replace(course, migration=Migration(action.plan, strategy, batch, action.pause_us))


def stands(course: Course, action: Action) -> tuple[str, Selects]:
    """The input that is grouped first, and the predicates that stand above a join, when an action has been followed."""
    below = action.below if isinstance(action, MoveGroups) else course.below
    return below, action.selects if isinstance(action, MoveSelects) else course.selects


def why_not(forms: Forms, course: Course, action: Action) -> str | None:
    """Why an action cannot be followed from a course; None if it can."""
    graph = forms.graphs[course.below]
    if isinstance(action, MoveGroups) and action.below != course.below:
        return why_not_switch(forms, course, action.below, action.strategy)
    if isinstance(action, MoveSelects) and (reason := why_not_raise(course, graph, action.selects, action.strategy)):
        return reason
    if action.strategy is Strategy.PARALLEL_TRACK:
        return why_not_parallel(graph, course.plan, action.plan)
    return None
