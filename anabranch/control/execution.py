"""Between an execution and the records that name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.control.records import Commit, Control, LeavingRecord, MigrationRecord, SelectRecord
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse, show
from anabranch.plan.migration import Execution, Leaving, Migration, Strategy
from anabranch.plan.selects import above_text, raise_selects


def execution_fields(execution: Execution, forms: Forms) -> dict[str, Any]:
    """What a control and a commit say of an execution: `execution_of` reads it."""
    graph, migration, leaving = forms.graphs[execution.grouped_input], execution.migration, execution.leaving
    fields: dict[str, Any] = {"plan": show(execution.plan, graph), "grouped_input": execution.grouped_input}
    selects = {str(s.predicate): SelectRecord(above_text(s, forms.written), s.until_us) for s in execution.selects}
    fields["selects"] = selects
    if migration is not None:
        target = show(migration.target, graph)
        fields["migration"] = MigrationRecord(target, migration.strategy.value, migration.since, migration.pause_us)
    if leaving is not None:
        left = show(leaving.plan, forms.graphs[leaving.grouped_input])
        fields["leaving"] = LeavingRecord(leaving.grouped_input, left, leaving.until_us)
    return fields


def execution_of(named: Control | Commit, forms: Forms) -> Execution:
    """The execution under which the batch of a record runs, or ran."""
    graph = forms.graphs[named.grouped_input]
    migration, leaving = None, None
    if (record := named.migration) is not None:
        migration = Migration(parse(record.target, graph), Strategy(record.strategy), record.since, record.pause_us)
    if (left := named.leaving) is not None:
        leaving = Leaving(left.grouped_input, parse(left.plan, forms.graphs[left.grouped_input]), left.until_us)
    raised = raise_selects(forms.written, {text: record.above for text, record in named.selects.items()})
    selects = tuple(replace(s, until_us=named.selects[str(s.predicate)].until_us) for s in raised)
    return Execution(parse(named.plan, graph), migration, named.grouped_input, leaving, selects)


def execution_after(commit: Commit, forms: Forms) -> Execution:
    """The execution of the batch after a commit: a migration ends when every slot is ready for its target, a form is left
    when the groups at all instants that its rows count at have been handed out, and a select is down when no row is left
    that was stored before it was."""
    execution = execution_of(commit, forms)
    if execution.target is not None and all(slot.left == 0 for slot in commit.slots.values()):
        execution = replace(execution, plan=execution.target, migration=None)
    if execution.leaving is not None and commit.watermark_us >= execution.leaving.until_us:
        execution = replace(execution, leaving=None)
    waiting = tuple(s for s in execution.selects if s.until_us is None or commit.watermark_us < s.until_us)
    return execution if waiting == execution.selects else replace(execution, selects=waiting)
