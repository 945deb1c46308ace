"""Between an execution and the record that names it."""

from __future__ import annotations

from dataclasses import replace

from anabranch.control.records import (
    ExecutionRecord,
    FoldingRecord,
    LeavingRecord,
    MigrationRecord,
    ProbationRecord,
    QueryCommit,
    SelectRecord,
    WokenRecord,
)
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse, show
from anabranch.plan.migration import Execution, Folding, Leaving, Migration, Probation, Strategy, Woken
from anabranch.plan.query import BEGINNING_US
from anabranch.plan.selects import above_text, raise_selects


def execution_record(execution: Execution, forms: Forms) -> ExecutionRecord:
    """What a control and a commit say of an execution: `execution_of` reads it."""
    graph, migration, leaving = forms.graphs[execution.grouped_input], execution.migration, execution.leaving
    under_way, left = None, None
    if migration is not None:
        target = show(migration.target, graph)
        under_way = MigrationRecord(target, migration.strategy.value, migration.since, migration.pause_us)
    if leaving is not None:
        plan = show(leaving.plan, forms.graphs[leaving.grouped_input])
        left = LeavingRecord(leaving.grouped_input, plan, leaving.until_us, leaving.since)
    selects = {str(s.predicate): SelectRecord(above_text(s, forms.written), s.until_us) for s in execution.selects}
    plan, company = show(execution.plan, graph), execution.company
    woken = tuple(
        WokenRecord(w.block, w.database, w.since, None if w.is_covered else w.until_us, w.is_going, w.failure)
        for w in execution.woken
    )
    probation = tuple(ProbationRecord(each.block, each.times, each.until) for each in execution.probation)
    folding = tuple(FoldingRecord(each.block, each.since, each.pause_us) for each in execution.folding)
    home = tuple(sorted(execution.home))
    return ExecutionRecord(
        plan, under_way, execution.grouped_input, left, selects, company, home, woken, probation, folding
    )


def execution_of(record: ExecutionRecord, forms: Forms) -> Execution:
    """The execution that a record names."""
    graph = forms.graphs[record.grouped_input]
    migration, leaving = None, None
    if (under_way := record.migration) is not None:
        target, strategy = parse(under_way.target, graph), Strategy(under_way.strategy)
        migration = Migration(target, strategy, under_way.since, under_way.pause_us)
    if (left := record.leaving) is not None:
        plan = parse(left.plan, forms.graphs[left.grouped_input])
        leaving = Leaving(left.grouped_input, plan, left.until_us, left.since)
    raised = raise_selects(forms.written, {text: select.above for text, select in record.selects.items()})
    selects = tuple(replace(s, until_us=record.selects[str(s.predicate)].until_us) for s in raised)
    plan, company = parse(record.plan, graph), record.company
    woken = tuple(
        Woken(w.block, w.database, w.since, BEGINNING_US if w.until_us is None else w.until_us, w.is_going, w.failure)
        for w in record.woken
    )
    home, probation = frozenset(record.home), tuple(Probation(p.block, p.times, p.until) for p in record.probation)
    folding = tuple(Folding(f.block, f.since, f.pause_us) for f in record.folding)
    return Execution(plan, migration, record.grouped_input, leaving, selects, company, home, woken, probation, folding)


def execution_after(commit: QueryCommit, forms: Forms) -> Execution:
    """The execution of the batch after a commit: a migration ends when every slot is ready for its target, a form is left
    when the groups at all instants that its rows count at have been handed out, and a select is down when no row is left
    that was stored before it was. A block goes to a database when rows that were not kept for it have ended, and comes home
    when every slot has folded all that there was."""
    execution = execution_of(commit.execution, forms)
    if execution.target is not None and commit.statistics.preparing.left == 0:
        execution = replace(execution, plan=execution.target, migration=None)
    if execution.leaving is not None and commit.watermark_us >= execution.leaving.until_us:
        execution = replace(execution, leaving=None)
    waiting = tuple(s for s in execution.selects if s.until_us is None or commit.watermark_us < s.until_us)
    execution = execution if waiting == execution.selects else replace(execution, selects=waiting)
    for each in execution.woken:
        if not each.is_covered and commit.watermark_us >= each.until_us:
            woken = tuple(replace(w, until_us=BEGINNING_US, is_going=False) if w is each else w for w in execution.woken)
            home = execution.home - {each.block} if each.is_going else execution.home
            execution = replace(execution, woken=woken, home=home)
    if execution.folding and commit.statistics.preparing.unfolded == 0:
        home = execution.home | {each.block for each in execution.folding}
        execution = replace(execution, folding=(), home=home)
    return execution
