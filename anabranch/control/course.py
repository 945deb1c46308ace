"""Between a course and the records that name it."""

from __future__ import annotations

from anabranch.control.records import Commit, MigrationRecord
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse, show
from anabranch.plan.migration import Course, Migration, Strategy


def migration_record(course: Course, graph: JoinGraph) -> MigrationRecord | None:
    """The migration under way, as a control or a commit names it."""
    migration = course.migration
    if migration is None:
        return None
    return MigrationRecord(show(migration.target, graph), migration.strategy.value, migration.since, migration.pause_us)


def course_of(commit: Commit, graph: JoinGraph) -> Course:
    """The course under which the batch of a commit ran."""
    plan, record = parse(commit.plan, graph), commit.migration
    if record is None:
        return Course(plan)
    return Course(plan, Migration(parse(record.target, graph), Strategy(record.strategy), record.since, record.pause_us))


def course_after(commit: Commit, graph: JoinGraph) -> Course:
    """The course of the batch after a commit: a migration ends when every slot is ready for its target."""
    course = course_of(commit, graph)
    if course.target is not None and all(a.statistics.preparing.left == 0 for a in commit.slots.values()):
        return Course(course.target)
    return course
