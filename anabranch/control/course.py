"""Between a course and the records that name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.control.records import Commit, Control, LeavingRecord, MigrationRecord, SelectRecord
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse, show
from anabranch.plan.migration import Course, Leaving, Migration, Strategy
from anabranch.plan.selects import above_text, raise_selects


def course_fields(course: Course, forms: Forms) -> dict[str, Any]:
    """What a control and a commit say of a course: `course_of` reads it."""
    graph, migration, leaving = forms.graphs[course.below], course.migration, course.leaving
    fields: dict[str, Any] = {"plan": show(course.plan, graph), "below": course.below}
    selects = {str(s.predicate): SelectRecord(above_text(s, forms.written), s.until_us) for s in course.selects}
    fields["selects"] = selects
    if migration is not None:
        target = show(migration.target, graph)
        fields["migration"] = MigrationRecord(target, migration.strategy.value, migration.since, migration.pause_us)
    if leaving is not None:
        left = show(leaving.plan, forms.graphs[leaving.below])
        fields["leaving"] = LeavingRecord(leaving.below, left, leaving.until_us)
    return fields


def course_of(named: Control | Commit, forms: Forms) -> Course:
    """The course under which the batch of a record runs, or ran."""
    graph = forms.graphs[named.below]
    migration, leaving = None, None
    if (record := named.migration) is not None:
        migration = Migration(parse(record.target, graph), Strategy(record.strategy), record.since, record.pause_us)
    if (left := named.leaving) is not None:
        leaving = Leaving(left.below, parse(left.plan, forms.graphs[left.below]), left.until_us)
    raised = raise_selects(forms.written, {text: record.above for text, record in named.selects.items()})
    selects = tuple(replace(s, until_us=named.selects[str(s.predicate)].until_us) for s in raised)
    return Course(parse(named.plan, graph), migration, named.below, leaving, selects)


def course_after(commit: Commit, forms: Forms) -> Course:
    """The course of the batch after a commit: a migration ends when every slot is ready for its target, a form is left when
    the groups at all instants that its rows count at have been handed out, and a select is down when no row is left that was
    stored before it was."""
    course = course_of(commit, forms)
    if course.target is not None and all(a.statistics.preparing.left == 0 for a in commit.slots.values()):
        course = replace(course, plan=course.target, migration=None)
    if course.leaving is not None and commit.watermark_us >= course.leaving.until_us:
        course = replace(course, leaving=None)
    waiting = tuple(s for s in course.selects if s.until_us is None or commit.watermark_us < s.until_us)
    return course if waiting == course.selects else replace(course, selects=waiting)
