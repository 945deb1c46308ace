"""The driver of a query: what its next batch starts from, what a batch left behind, and what follows from that.

Whoever runs the tasks takes a batch through it like this:

    control = driver.begin(trigger)                   control/n is written: all that the tasks need to know
    …the tasks run, and report their attempts…
    commit = driver.commit(control, attempts, …)      commit/n is written: the batch is never run again
    …the results are delivered…
    driver.delivered(commit)                          delivered/n is written: they are never delivered again
    driver.after(base, commit)                        files go, a migration ends, another plan is thought about

Everything that a batch depends on is in its control record and in the commit it starts from, so a batch that was begun and
not committed runs again from these, whoever drives it then.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from time import perf_counter, time
from typing import Any

import msgspec
import pyarrow as pa

from anabranch.control.execution import execution_after, execution_fields, execution_of
from anabranch.control.journal import Journal
from anabranch.control.lease import Lease
from anabranch.control.ledger import commits_in, controls_in, deliveries_in
from anabranch.control.loop import Loop, Proposal
from anabranch.control.records import Attempt, Commit, Control, Delivered, Layout, Statistics, slot_commit
from anabranch.control.resume import REMEDY, Standing, standing_of
from anabranch.control.statistics import summed
from anabranch.control.table_files import put_table, table_file
from anabranch.control.watermark import last_seen_after, next_watermark, seen_after
from anabranch.drive.retain import RELEASE_EVERY, SWEEP_GRACE_S, Retention, sweep_unnamed
from anabranch.drive.transition import Refusal, stands, transition, why_not
from anabranch.engine.query_text import identity_of, require_same
from anabranch.errors import MigrationError, StateError
from anabranch.plan.actions import ChangePlan
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, show
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import BEGINNING_US, Query
from anabranch.plan.selects import Selects, shown_selects
from anabranch.storage.filesystem import Filesystem

MOST_FAILED_RUNS = 3
"""A batch that was begun so often and never committed runs under the plan that was last committed: that one has run."""


@dataclass(frozen=True)
class ChangingTable:
    """A stored table that is read again every so much event time; `read` gives its rows as an Arrow IPC stream."""

    name: str
    every_us: int
    read: Callable[[], pa.Buffer]


class Driver:
    """Decides about the batches of one query, and records them. Does not run them."""

    def __init__(
        self,
        query: Query,
        execution: Execution,
        distribution: Distribution,
        filesystem: Filesystem,
        tables: Mapping[str, str],
        loop: Loop,
        holder: Lease,
        changing: Sequence[ChangingTable] = (),
        clock: Callable[[], float] = time,
        journal: Journal | None = None,
        release_every: int = RELEASE_EVERY,
        sweep_grace_s: float = SWEEP_GRACE_S,
    ) -> None:
        self.sweep_grace_s, self._retention = sweep_grace_s, Retention(filesystem, release_every)
        self.query, self.execution, self.distribution = query, execution, distribution
        self.filesystem, self.tables, self.changing = filesystem, dict(tables), tuple(changing)
        self.loop, self.holder = loop, holder
        self.clock = clock
        """Seconds since the epoch: what batches are planned by."""
        self.forms, self.identity, self.layout = Forms(query), identity_of(query), layout_of(distribution)
        self.slots = distribution.grid.cells
        self.controls = controls_in(filesystem, holder.epoch)
        self.commits = commits_in(filesystem, holder.epoch)
        self.deliveries = deliveries_in(filesystem)
        self.journal = journal or Journal(filesystem)
        self.standing = Standing()
        self.is_pinned = False
        """Whether the plan stays unless a user asks for another."""
        self.needs_approval = False
        self.pending: Proposal | None = None
        """A change that waits for approval."""
        self._requests: SimpleQueue[Proposal] = SimpleQueue()
        self._began: tuple[int, float, Proposal] | None = None
        """The batch and the moment since when a change is under way, and what was proposed."""

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.execution.plan

    @property
    def newest(self) -> Commit | None:
        """The newest commit."""
        return self.standing.commit

    @property
    def has_choices(self) -> bool:
        """Whether there is more than one plan, or form of the query."""
        return len(self.query.inputs) > 2 or len(self.forms.graphs) > 1

    @property
    def graph(self) -> JoinGraph:
        """The form of the query that its plan is of."""
        return self.forms.graphs[self.execution.grouped_input]

    @property
    def plan_text(self) -> str:
        return shown(self.execution.plan, self.forms, self.execution.grouped_input, self.execution.selects)

    # -- the start ---------------------------------------------------------------------------------------------------

    def open(self, delivers: str) -> None:
        """Finds what there is to go on from. `delivers` tells the journal what the sink promises."""
        self.standing = standing_of(self.commits, self.controls, self.deliveries)
        begun, commit = self.standing.begun, self.newest
        if commit is not None:
            require_same(self.query, commit.query, self.identity)
            if commit.layout != self.layout:
                raise StateError(
                    f"the checkpoint has {len(commit.layout.slots)} slots over {_text(commit.layout)}, this run "
                    f"{self.slots} over {_text(self.layout)}: start it with the same number of slots"
                )
        elif begun is not None and (begun.query, begun.layout) != (self.identity, self.layout):
            # A start that came to nothing has delivered nothing: another query may begin in its place.
            self.standing = replace(self.standing, begun=None)
        self.commits.drop_superseded()
        self.controls.drop_superseded()
        sweep_unnamed(self.filesystem, self.commits, self.slots, commit, self.sweep_grace_s)
        if commit is not None:
            self._retention.won(commit)
        self._journal_start({"shares": list(self.distribution.grid.shares), "slots": self.slots, "delivers": delivers})

    def _journal_start(self, facts: Mapping[str, Any]) -> None:
        commit, begun = self.newest, self.standing.begun
        if commit is None:
            if begun is not None and self.is_pinned and execution_of(begun, self.forms).plan != self.execution.plan:
                self._ask_at_restart(self.execution.plan)
            self.tell(-1, "started", f"on an empty checkpoint, plan {self.plan_text}", **facts)
            return
        batch, asked = commit.batch, self.execution.plan
        after = execution_after(commit, self.forms)
        if (
            not self.is_pinned
            or asked in (after.plan, after.target)
            or after.grouped_input != self.execution.grouped_input
        ):
            # What was chosen on facts stays, and so does a migration under way.
            self.execution = after
            way = f", on the way to {show(after.target, self.graph)}" if after.target is not None else ""
            self.tell(batch, "resumed", f"after batch {batch}, plan {self.plan_text}{way}", **facts)
            if after.is_settled and self._left_migrating():
                record = commit.migration
                self._ended(commit, record.since if record is not None else batch, commit.plan, None)
        elif begun is not None:
            self.execution = after
            self._ask_at_restart(asked)
            text = f"after batch {batch}, plan {self.plan_text}; another is asked for from batch {batch + 2} on"
            self.tell(batch, "resumed", text, **facts)
        else:
            old = shown(after.plan, self.forms, after.grouped_input, after.selects)
            self.execution = replace(after, plan=asked, migration=None)
            self.tell(batch, "replanned", f"plan {self.plan_text} instead of {old}, at a restart", **facts)

    def _ask_at_restart(self, plan: Plan) -> None:
        """Has another plan than the checkpoint's run after the batch that was begun, which runs as it was begun."""
        self._requests.put(Proposal(ChangePlan(plan, Strategy.MOVING_STATE), "asked for at a restart"))

    def _left_migrating(self) -> bool:
        """Whether a run before this one failed in the batch in which its migration ended, and could not tell."""
        told = self.journal.last_of("migrating", "migrated", "cancelled")
        return told is not None and told.event == "migrating"

    def tell(self, batch: int, event: str, text: str, **details: Any) -> None:
        """Notes something in the journal."""
        self.journal.note(batch, event, text, plan=self.plan_text, **details)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def begin(self, trigger: int) -> Control:
        """What the batch after the newest commit starts from: what it was begun with, or else what is decided now."""
        self.holder.require_held()
        begun = self.standing.begun
        if begun is not None and begun.trigger != trigger:
            raise StateError(f"batch {begun.batch} was begun for trigger {begun.trigger}, not for {trigger}: {REMEDY}")
        control = self._control(trigger) if begun is None else self._taken_up(begun)
        self.controls.write(control.batch, control)
        self.standing = replace(self.standing, begun=control)
        return control

    def _taken_up(self, begun: Control) -> Control:
        """The control record of a batch that was begun before, for one more run."""
        batch, base, execution = begun.batch, self.newest, execution_of(begun, self.forms)
        if begun.runs >= MOST_FAILED_RUNS:
            proven = (
                execution_after(base, self.forms)
                if base is not None
                else Execution(self.plan, grouped_input=self.execution.grouped_input)
            )
            if proven != execution:
                failed = shown(execution.plan, self.forms, execution.grouped_input, execution.selects)
                execution = proven
                self.tell(batch - 1, "given up", f"plan {failed}: batch {batch} failed {begun.runs} times under it")
        self.execution = execution
        fields = {"migration": None, "leaving": None, **execution_fields(execution, self.forms)}
        epochs = {"epoch": self.holder.epoch, "base_epoch": base.epoch if base is not None else 0}
        return msgspec.structs.replace(begun, runs=begun.runs + 1, **epochs, **fields)

    def _control(self, trigger: int) -> Control:
        """The control record of a batch that was never begun."""
        batch, base = self.standing.batch + 1, self.newest
        planned_us = int(self.clock() * 1_000_000)
        watermark_us = next_watermark(self.query, base, planned_us)
        self._redirect(batch, base)
        read_us = dict(base.tables_read_us) if base is not None else {}
        due = self._tables(batch, watermark_us, base, read_us)
        tables = {**(base.tables if base is not None else {}), **due} if self.distribution.needs_no_exchange else due
        return Control(
            batch, trigger, watermark_us, self.identity, token=uuid.uuid4().hex, layout=self.layout, tables=tables,
            tables_read_us=read_us, epoch=self.holder.epoch, base_epoch=base.epoch if base is not None else 0,
            planned_us=planned_us, **execution_fields(self.execution, self.forms),
        )  # fmt: skip

    def _tables(self, batch: int, watermark_us: int, base: Commit | None, read_us: dict[str, int]) -> dict[str, str]:
        """The files of the tables that a batch takes in: all in the first, later those that are due to be read again."""
        due = {} if base is not None else dict(self.tables)
        for table in self.changing:
            last_us = read_us.get(table.name, BEGINNING_US)
            if last_us == BEGINNING_US:
                read_us[table.name] = watermark_us
            elif watermark_us >= last_us + table.every_us:
                # A batch that runs again takes what it took before.
                path = table_file(table.name, batch)
                if path.rpartition("/")[2] not in self.filesystem.list("tables"):
                    put_table(self.filesystem, path, table.read())
                due[table.name], read_us[table.name] = path, watermark_us
        return due

    def commit(
        self,
        control: Control,
        attempts: Sequence[Attempt],
        staged: Sequence[str] | None = None,
        seen_elsewhere: Statistics | None = None,
    ) -> Commit:
        """Records what a batch left behind. `staged` are the files that hold its results, `seen_elsewhere` what was counted
        of rows that never reached a task."""
        base, counted = self.newest, [a.statistics for a in attempts]
        if seen_elsewhere is not None and counted:
            _count_all(counted, seen_elsewhere)
            counted.append(seen_elsewhere)
        commit = Commit(
            control.batch, control.trigger, control.watermark_us, self.identity, token=control.token,
            epoch=self.holder.epoch, largest_time_us=seen_after(base.largest_time_us if base is not None else {}, counted),
            slots={str(a.slot): slot_commit(a) for a in attempts}, layout=self.layout,
            statistics=summed(a.statistics for a in attempts),
            staged=tuple(staged) if staged is not None else None, tables_read_us=control.tables_read_us,
            last_seen_us=last_seen_after(self.query, base, counted, control.planned_us),
            tables={**(base.tables if base is not None else {}), **control.tables},
            **execution_fields(self.execution, self.forms),
        )  # fmt: skip
        self.commits.write(commit.batch, commit)
        self.standing = replace(self.standing, commit=commit, begun=None)
        # Whoever took the checkpoint over has seen this commit, or is seen now.
        self.holder.require_held()
        return commit

    def delivered(self, commit: Commit) -> None:
        """Records that the results of a batch, and of all before it, have arrived."""
        self.deliveries.write(commit.batch, Delivered(commit.batch, commit.token))
        self.standing = replace(self.standing, delivered=commit.batch)

    def after(self, base: Commit | None, commit: Commit) -> None:
        """What follows from a batch that is committed and delivered; `base` is the commit that it started from."""
        self._retention.after(base, commit, self.commits, self.controls, self.deliveries)
        self._follow_migration(commit)
        self._adapt(commit)

    # -- another plan ------------------------------------------------------------------------------------------------

    def request(self, proposal: Proposal) -> None:
        """Asks for another plan from the next batch on; may be called from any thread."""
        if reason := why_not(self.forms, self.execution, proposal.action):
            raise MigrationError(reason)
        self._requests.put(proposal)

    def approve(self) -> bool:
        """Agrees to the change that waits; False if none does."""
        pending, self.pending = self.pending, None
        if pending is None:
            return False
        self.request(pending)
        return True

    def _redirect(self, batch: int, base: Commit | None) -> None:
        """Takes up the last request there is. A migration under way is given up for it."""
        proposal = None
        while not self._requests.empty():
            proposal = self._requests.get()
        if proposal is not None:
            self._migrate(proposal, batch, base)

    def _migrate(self, proposal: Proposal, batch: int, base: Commit | None) -> None:
        """Goes over to another plan from a batch on."""
        before, action, text = self.execution, proposal.action, proposal.text
        seen, (grouped_input, selects) = base.largest_time_us if base is not None else {}, stands(before, action)
        old, target = self.plan_text, shown(action.plan, self.forms, grouped_input, selects)
        if before.target is not None and before.target != action.plan:
            self.tell(batch - 1, "cancelled", f"the way to {show(before.target, self.graph)}: {text}")
        after = transition(self.forms, before, action, batch, seen)
        if isinstance(after, Refusal) and grouped_input == before.grouped_input:
            # The plan has changed since it was asked for. Piece by piece it can still be gone over to.
            action, text = replace(action, strategy=Strategy.GRADUAL), f"{text}; {after.reason}"
            after = transition(self.forms, before, action, batch, seen)
        if isinstance(after, Refusal):
            self.tell(batch - 1, "kept", f"{target} cannot be gone over to any more: {after.reason}")
            return
        self.execution = after
        if (grouped_input, action.plan, selects) == (before.grouped_input, before.plan, before.selects):
            self._began = None
            return
        self._began = (batch, perf_counter(), proposal)
        told = {"old": old, "target": target, "strategy": action.strategy.value, **proposal.details}
        self.tell(batch - 1, "migrating", f"from {old} to {target} by {action.strategy}: {text}", **told)

    def _follow_migration(self, commit: Commit) -> None:
        """After a batch: a migration that every slot is ready for ends, and what it took is told."""
        began = self._began
        if not self.execution.is_settled:
            old, self.execution = self.plan_text, execution_after(commit, self.forms)
            if not self.execution.is_settled:
                return
            since = began[0] if began is not None else commit.batch
            if commit.migration is not None:
                since = commit.migration.since
            self._ended(commit, since, old, began[1] if began is not None else None)
        elif began is not None:
            self._ended(commit, began[0], str(began[2].details.get("from", "")), began[1])

    def _ended(self, commit: Commit, since: int, old: str, began_s: float | None) -> None:
        self._began = None
        text = f"plan {self.plan_text} gives the results after {commit.batch - since + 1} batches"
        if began_s is not None:
            text += f" and {perf_counter() - began_s:.2f} s"
        last_s = commit.statistics.preparing.cpu_ns / 1e9
        self.tell(commit.batch, "migrated", text, old=old, batches=commit.batch - since + 1, last_cpu_s=last_s)

    def _adapt(self, commit: Commit) -> None:
        """Asks whether another plan is worth it, now that a batch more is known."""
        if self.is_pinned:
            return
        found = self.loop.after(self.execution, commit)
        if isinstance(found, Proposal):
            if self.needs_approval:
                self.pending = found
                target = shown(found.action.plan, self.forms, *stands(self.execution, found.action))
                text = f"{target} by {found.action.strategy}, if you approve: {found.text}"
                self.tell(commit.batch, "proposed", text, **found.details)
            else:
                self._migrate(found, commit.batch + 1, commit)
        elif found is not None:
            self.tell(commit.batch, found.event, found.text, **found.details)


def shown(plan: Plan, forms: Forms, grouped_input: str | None, selects: Selects = ()) -> str:
    """A plan for people: with what is grouped before it is joined, and what is selected after that."""
    grouped = f", {grouped_input} grouped first" if grouped_input is not None else ""
    return show(plan, forms.graphs[grouped_input]) + grouped + shown_selects(selects, forms.written)


def _count_all(counted: list[Statistics], seen: Statistics) -> None:
    """Counts rows that never reached a slot among those of the first."""
    for name, source in seen.sources.items():
        reached = sum(c.sources[name].rows for c in counted if name in c.sources)
        if name in counted[0].sources:
            counted[0].sources[name].rows += source.rows - reached


def layout_of(distribution: Distribution) -> Layout:
    """A distribution as commits record it."""
    grid = distribution.grid
    return Layout(tuple(map(str, grid.dimensions)), grid.shares, tuple(range(grid.cells)))


def _text(layout: Layout) -> str:
    parts = [f"{d} in {s}" for d, s in zip(layout.dimensions, layout.shares, strict=True)]
    return "; ".join(parts) or "no dimension"
