"""Between a course and the records that name it."""

from __future__ import annotations

from dataclasses import replace

from anabranch.control.records import Commit, Control, LeavingRecord, MigrationRecord
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse, show
from anabranch.plan.migration import Course, Leaving, Migration, Strategy, why_not_switch


def plan_text(course: Course, forms: Forms) -> str:
    """The plan that gives the results, as records name it."""
    return show(course.plan, forms.graphs[course.below])


def migration_record(course: Course, forms: Forms) -> MigrationRecord | None:
    """The migration under way, as a control or a commit names it."""
    migration = course.migration
    if migration is None:
        return None
    target = show(migration.target, forms.graphs[course.below])
    return MigrationRecord(target, migration.strategy.value, migration.since, migration.pause_us)


def leaving_record(course: Course, forms: Forms) -> LeavingRecord | None:
    """The form that is left, as a control or a commit names it."""
    leaving = course.leaving
    if leaving is None:
        return None
    return LeavingRecord(leaving.below, show(leaving.plan, forms.graphs[leaving.below]), leaving.until_us)


def course_of(named: Control | Commit, forms: Forms) -> Course:
    """The course under which the batch of a record runs, or ran."""
    graph = forms.graphs[named.below]
    migration, leaving = None, None
    if (record := named.migration) is not None:
        migration = Migration(parse(record.target, graph), Strategy(record.strategy), record.since, record.pause_us)
    if (left := named.leaving) is not None:
        leaving = Leaving(left.below, parse(left.plan, forms.graphs[left.below]), left.until_us)
    return Course(parse(named.plan, graph), migration, named.below, leaving)


def course_after(commit: Commit, forms: Forms) -> Course:
    """The course of the batch after a commit: a migration ends when every slot is ready for its target, and a form is left
    when the groups at all instants that its rows count at have been handed out."""
    course = course_of(commit, forms)
    if course.target is not None and all(a.statistics.preparing.left == 0 for a in commit.slots.values()):
        course = replace(course, plan=course.target, migration=None)
    if course.leaving is not None and commit.watermark_us >= course.leaving.until_us:
        course = replace(course, leaving=None)
    return course


def following(course: Course, base: Commit | None, forms: Forms) -> Course:
    """A course that was decided on, as the batch after a commit can have it. A batch that runs again starts from an earlier
    commit than the one it was decided after: what that was still leaving is left again."""
    if base is None:
        return replace(course, leaving=None)
    if base.below == course.below and base.leaving is None and course.leaving is None:
        return course
    before = course_after(base, forms)
    if course.below == before.below:
        return replace(course, leaving=before.leaving)
    strategy = Strategy.MOVING_STATE if course.leaving is None else Strategy.PARALLEL_TRACK
    return before if why_not_switch(forms, before, course.below, strategy) else course
