"""One query under a driver: what it runs, and how that changes from batch to batch.

A request of a user's, or a proposal of the loop's, is an action. It is taken up before the next batch is begun, by
`anabranch.drive.transition`; what comes of it is told in the query's journal.

Example: after batch 7 the loop proposes `(a b c)` for a query that runs `((a b) c)`, by the gradual strategy. The journal
says *migrating*, and batches 8, 9 and 10 run `((a b) c)` with a migration to `(a b c)`. In batch 10 no slot has anything
left to prepare: the journal says *migrated*, and batch 11 runs `(a b c)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from anabranch.balance.layout import layout_of, layout_text
from anabranch.control.execution import execution_after, execution_of, execution_record
from anabranch.control.freshness import all_too_old, none_too_old
from anabranch.control.journal import Journal
from anabranch.control.loop import Loop, Observed, Proposal, Recut
from anabranch.control.pace import Pace, paces_after
from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.control.records import BlockFigures, Commit, Control, ExecutionRecord, QueryCommit, QueryControl
from anabranch.drive.probation import on_probation
from anabranch.drive.transition import Refusal, placing_followed, stands, transition, why_not, without_changes
from anabranch.drive.waking import places
from anabranch.errors import MigrationError, StateError
from anabranch.plan.actions import Action, ChangePlan, PlaceBlock
from anabranch.plan.distribution import Distribution
from anabranch.plan.eager import Forms
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, show
from anabranch.plan.migration import Execution, Strategy
from anabranch.plan.query import ENGINE, Query, Stream
from anabranch.plan.selects import Selects, shown_selects
from anabranch.plan.warned import warnings_of
from anabranch.share.canonical import Running, part_in_names, renamed_plan

MOST_FAILED_RUNS = 3
"""A batch that was begun so often and never committed runs under the plan that was last committed: that one has run."""


class Steering:
    """Decides what one query runs."""

    def __init__(
        self, query: Query, execution: Execution, distribution: Distribution, loop: Loop, journal: Journal, texts: QueryTexts
    ) -> None:
        self.query, self.execution, self.distribution = query, execution, distribution
        self.loop, self.journal = loop, journal
        self.forms, self.layout = Forms(query), layout_of(distribution)
        self.texts, self.text = texts, text_of(query)
        self.identity = self.text.state_digest
        self.streams = tuple(s.name for s in query.base_sources if isinstance(s, Stream))
        self.since = 0
        """The first batch whose rows of streams are its own."""
        self.declared = ""
        """How it was written when it was last declared, if it was altered since."""
        self.command = ""
        """The command by which it came, or was altered last."""
        self.has_own_files = False
        """Whether tasks write its results to files that its sink takes as they are."""
        self.own_folder = ""
        """Where they write them, if they are told so with each batch."""
        self.is_pinned = False
        """Whether the plan stays unless a user asks for another."""
        self.needs_approval = False
        self.may_lose = False
        """Whether the policy of its pipeline may lose results."""
        self.limited_cores: float | None = None
        """Under overload, the cores that lookups which give results may take."""
        self.is_too_old = False
        """Whether it was told that all of a batch was too old, and each batch since has had something that was."""
        self.budget_bytes: float | None = None
        """What its state may take, for people to see beside what it takes."""
        self.paces: Mapping[str, Pace] = {}
        """How long databases have taken of late, beside what was calibrated."""
        self.figures: Mapping[str, BlockFigures] = {}
        """What batches have measured of blocks, where a database may run some."""
        self.pending: Proposal | None = None
        """A change that waits for approval."""
        self.pending_cuts: dict[str, Recut] = {}
        """Slices of its streams that wait for approval."""
        self._approved_cuts: list[Recut] = []
        self.followers: Sequence[tuple[Steering, Mapping[str, str]]] = ()
        """The queries that run its join with it and go where it goes, with the names that they have for its inputs."""
        self.is_led = False
        """Whether it runs the join of another, and goes where that goes."""
        self._requests: SimpleQueue[Proposal] = SimpleQueue()
        self._running: Running | None = None
        self._record: tuple[Execution, ExecutionRecord] | None = None
        self._text: tuple[Execution, str] | None = None
        self._began: tuple[int, float, Proposal] | None = None
        """The batch and the moment since when a change is under way, and what was proposed."""
        self._waited_s = 0.0
        """What the batch did for it that waited longest."""

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def plan(self) -> Plan:
        """The plan that gives the results."""
        return self.execution.plan

    @property
    def has_choices(self) -> bool:
        """Whether there is more than one plan, or form of the query."""
        return len(self.query.inputs) > 2 or len(self.forms.graphs) > 1

    @property
    def record(self) -> ExecutionRecord:
        """The execution as control records have it."""
        if self._record is None or self._record[0] is not self.execution:
            self._record = self.execution, execution_record(self.execution, self.forms)
        return self._record[1]

    @property
    def running(self) -> Running:
        """The query as it runs now."""
        known, kind = self._running, (self.since, self.may_lose)
        if known is None or known.execution is not self.execution or (known.since, known.may_lose) != kind:
            self._running = known = Running(self.query, self.execution, self.distribution, self.since, self.may_lose)
        return known

    @property
    def graph(self) -> JoinGraph:
        """The form of the query that its plan is of."""
        return self.forms.graphs[self.execution.grouped_input]

    @property
    def plan_text(self) -> str:
        if self._text is None or self._text[0] is not self.execution:
            self._text = self.execution, self._shown(self.execution)
        return self._text[1]

    def _shown(self, execution: Execution) -> str:
        return shown(execution.plan, self.forms, execution.grouped_input, execution.selects)

    def tell(self, batch: int, event: str, text: str, **details: Any) -> None:
        """Notes something in the journal."""
        self.journal.note(batch, event, text, plan=self.plan_text, **details)

    def warn(self, batch: int) -> None:
        """Notes what people are warned of in the query, if that is not what was noted last."""
        told = ". ".join(warnings_of(self.forms.written))
        if told and ((before := self.journal.last_of("warned")) is None or before.text != told):
            self.tell(batch, "warned", told)

    # -- the start ---------------------------------------------------------------------------------------------------

    def is_begun_by(self, begun: QueryControl) -> bool:
        """Whether a batch was begun for this query, spread like this."""
        return (begun.identity, begun.layout) == (self.identity, self.layout)

    def require_same(self, commit: QueryCommit) -> None:
        """Refuses a checkpoint of another query, or of one that was spread in another way."""
        self.texts.require(self.text, commit.identity, commit.text)
        if commit.layout != self.layout:
            raise StateError(
                f"the checkpoint has {len(commit.layout.slots)} slots over {layout_text(commit.layout)}, this run "
                f"{len(self.layout.slots)} over {layout_text(self.layout)}: start it with the same number of slots"
            )

    def resume(self, commit: Commit | None, begun: Control | None, facts: Mapping[str, Any]) -> None:
        """Goes on from a commit, and from a batch that was begun after it; `facts` are for the journal."""
        asked = self.execution.plan
        if commit is None:
            if begun is not None and self.is_pinned and self._begun(begun).plan != asked:
                self._ask_at_restart(asked)
            self.tell(-1, "started", f"on an empty checkpoint, plan {self.plan_text}", **facts)
            return
        batch, own = commit.batch, commit.queries[self.name]
        self.since, self.declared, self.command = own.since, own.declared, own.command
        self.paces, self.figures = paces_after(own.paces, own.statistics.took, batch), own.figures
        after = execution_after(own, self.forms)
        is_rewritten = own.text != self.text.digest and self.texts.read(own.text).sql != self.text.sql
        if (
            not self.is_pinned
            or asked in (after.plan, after.target)
            or after.grouped_input != self.execution.grouped_input
        ):
            # What was chosen on facts stays, and so does a migration under way.
            self.execution = after
            way = f", on the way to {show(after.target, self.graph)}" if after.target is not None else ""
            self.tell(batch, "resumed", f"after batch {batch}, plan {self.plan_text}{way}", **facts)
            told = self.journal.last_of("placing", "placed")
            if told is not None and told.event == "placing":
                # A run before this one ended before it could tell that the block has gone.
                self._tell_placed(commit, frozenset(own.execution.home), after.home)
            if after.is_settled and self._left_migrating():
                record = own.execution.migration
                self._ended(commit, record.since if record is not None else batch, own.execution.plan, None)
        elif begun is not None:
            self.execution = after
            self._ask_at_restart(asked)
            text = f"after batch {batch}, plan {self.plan_text}; another is asked for from batch {batch + 2} on"
            self.tell(batch, "resumed", text, **facts)
        else:
            self._replan(after, asked, commit, facts)
        self._follow_probation(commit)
        if is_rewritten:
            columns = ", ".join(self.query.output_schema.names)
            text = f"from batch {batch + 1} on results are those of the query as it is written now"
            self.tell(batch, "rewritten", f"{text}, with the columns {columns}")

    def _replan(self, after: Execution, asked: Plan, commit: Commit, facts: Mapping[str, Any]) -> None:
        """Goes over to another plan at a restart, from the next batch on."""
        self.execution, action = after, ChangePlan(asked, Strategy.MOVING_STATE)
        old, batch = self.plan_text, commit.batch
        found = transition(self.forms, after, action, batch + 1, commit.largest_time_us, self.may_lose)
        if isinstance(found, Refusal):
            text = f"after batch {batch}, plan {old}; {show(asked, self.graph)} cannot be gone over to: {found.reason}"
            self.tell(batch, "resumed", text, **facts)
            return
        self.execution = found
        self.tell(batch, "replanned", f"plan {self.plan_text} instead of {old}, at a restart", **facts)

    def _begun(self, begun: Control) -> Execution:
        return execution_of(begun.queries[self.name].execution, self.forms)

    def _ask_at_restart(self, plan: Plan) -> None:
        """Has another plan than the checkpoint's run after the batch that was begun, which runs as it was begun."""
        self._requests.put(Proposal(ChangePlan(plan, Strategy.MOVING_STATE), "asked for at a restart"))

    def _left_migrating(self) -> bool:
        """Whether a run before this one failed in the batch in which its migration ended, and could not tell."""
        told = self.journal.last_of("migrating", "migrated", "cancelled")
        return told is not None and told.event == "migrating"

    # -- a batch -----------------------------------------------------------------------------------------------------

    def take_up(self, begun: Control, base: Commit | None) -> None:
        """Runs what a batch was begun with; if that failed too often, what has run before."""
        batch, execution = begun.batch, self._begun(begun)
        self.paces, self.figures = begun.queries[self.name].paces, begun.queries[self.name].figures
        if begun.runs >= MOST_FAILED_RUNS:
            proven = without_changes(self.execution)
            own = base.queries.get(self.name) if base is not None else None
            if own is not None and own.identity == self.identity:  # else it comes with this batch
                proven = execution_after(own, self.forms)
            if proven != execution:
                text = f"plan {self._shown(execution)}: batch {batch} failed {begun.runs} times under it"
                self.execution = execution = proven
                self.tell(batch - 1, "given up", text)
        self.execution = execution

    def redirect(self, batch: int, base: Commit | None) -> None:
        """Takes up the last request there is. A migration under way is given up for it."""
        proposal = None
        while not self._requests.empty():
            proposal = self._requests.get()
        if proposal is not None:
            self._migrate(proposal, batch, base)

    def after(self, commit: Commit, is_led: bool = False) -> None:
        """What follows from a batch: a migration ends, another plan is thought about; by another query, if that leads the
        join of this one."""
        self._follow_paces(commit)
        self._follow_migration(commit)
        self._follow_probation(commit)
        self._follow_freshness(commit)
        if not is_led:
            self._adapt(commit)

    def observed(self, commit: Commit) -> Observed:
        """What a batch has shown of the query."""
        seen = {name: us for name, us in commit.largest_time_us.items() if name in self.streams}
        statistics = commit.queries[self.name].statistics
        return Observed(commit.batch, seen, statistics, self.limited_cores, self.paces, self.figures)

    # -- another plan ------------------------------------------------------------------------------------------------

    def request(self, proposal: Proposal) -> None:
        """Asks for another plan from the next batch on; may be called from any thread."""
        if reason := self.why_not(proposal.action):
            raise MigrationError(reason)
        self._requests.put(proposal)

    def why_not(self, action: Action) -> str | None:
        """Why an action cannot be followed now; None if it can."""
        if isinstance(action, PlaceBlock) and (self.followers or self.is_led) and action.block == self.name:
            return "the query shares its join with others, which stays in the engine"
        return why_not(self.forms, self.execution, action, self.may_lose, self.distribution)

    def approve(self) -> bool:
        """Agrees to the change that waits; False if none does."""
        pending, self.pending = self.pending, None
        cuts, self.pending_cuts = self.pending_cuts, {}
        self._approved_cuts = [*self._approved_cuts, *cuts.values()]
        if pending is None:
            return bool(cuts)
        self.request(pending)
        for follower, theirs in self._following(pending) if self.followers else ():
            follower.request(theirs)
        return True

    def approved_cuts(self) -> list[Recut]:
        """Slices that somebody has agreed to, once."""
        found, self._approved_cuts = self._approved_cuts, []
        return found

    def _following(self, proposal: Proposal) -> Iterator[tuple[Steering, Proposal]]:
        """The same proposal for the queries that go where this one goes."""
        assert isinstance(proposal.action, ChangePlan)
        for follower, names in self.followers:
            # A query over a part of the streams goes along where its part is another one, and stays where there is none.
            plan = None if follower.is_pinned else part_in_names(proposal.action.plan, names)
            if plan is not None and plan != renamed_plan(follower.plan, {alias: alias for alias in follower.plan.aliases}):
                action = replace(proposal.action, plan=plan)
                text = f"{self.name} leads the join of both: {proposal.text}"
                yield follower, Proposal(action, text, proposal.details)

    def _migrate(self, proposal: Proposal, batch: int, base: Commit | None) -> None:
        """Goes over to another plan from a batch on."""
        before, action, text = self.execution, proposal.action, proposal.text
        if isinstance(action, PlaceBlock):
            self.place(action, text, batch, base)
            return
        seen, (grouped_input, selects) = base.largest_time_us if base is not None else {}, stands(before, action)
        old, target = self.plan_text, shown(action.plan, self.forms, grouped_input, selects)
        if before.target is not None and before.target != action.plan:
            self.tell(batch - 1, "cancelled", f"the way to {show(before.target, self.graph)}: {text}")
        after = transition(self.forms, before, action, batch, seen, self.may_lose)
        if isinstance(after, Refusal) and grouped_input == before.grouped_input:
            # The plan has changed since it was asked for. Piece by piece it can still be gone over to.
            action, text = replace(action, strategy=Strategy.GRADUAL), f"{text}; {after.reason}"
            after = transition(self.forms, before, action, batch, seen, self.may_lose)
        if isinstance(after, Refusal):
            self.tell(batch - 1, "kept", f"{target} cannot be gone over to any more: {after.reason}")
            return
        self.execution = after
        if (grouped_input, action.plan, selects) == (before.grouped_input, before.plan, before.selects):
            self._began = None
            return
        self._began, self._waited_s = (batch, perf_counter(), proposal), 0.0
        told = {"old": old, "target": target, "strategy": action.strategy.value, **proposal.details}
        self.tell(batch - 1, "migrating", f"from {old} to {target} by {action.strategy}: {text}", **told)

    def place(self, action: PlaceBlock, text: str, batch: int, base: Commit | None, is_told: bool = False) -> None:
        """Has a block run elsewhere from a batch on, or from the batch on in which all that it reads is kept."""
        seen, before = base.largest_time_us if base is not None else {}, self.execution
        reason = self.why_not(action)
        after = transition(self.forms, before, action, batch, seen, self.may_lose, self.distribution)
        if isinstance(after, Refusal) or reason:
            reason = after.reason if isinstance(after, Refusal) else reason
            self.tell(batch - 1, "kept", f"{action.block} cannot go to {action.place}: {reason}")
            return
        if after == before:
            return
        self.execution, told = after, {"block": action.block, "place": action.place}
        if is_told:
            return
        known, known_before = after.woken_as(action.block), before.woken_as(action.block)
        folding, was_folding = after.folding_of(action.block), before.folding_of(action.block)
        if folding is not None:
            pause_ms = folding.pause_us / 1000
            kept = f"its rows are folded from batch {folding.since} on, {pause_ms:g} ms of a batch, or a segment"
            self.tell(batch - 1, "placing", f"{action.block} is to run in {action.place}: {text}; {kept}", **told)
        elif was_folding is not None and action.place != ENGINE:
            self.tell(batch - 1, "placed", f"{action.block} stays in {action.place}: {text}", **told)
        elif known is not None and known.is_going:
            kept = f"its rows are kept from batch {known.since} on, and it goes when its window has no others"
            self.tell(batch - 1, "placing", f"{action.block} is to run in {action.place}: {text}; {kept}", **told)
        elif known_before is not None and known_before.is_going:
            self.tell(batch - 1, "placed", f"{action.block} stays in {action.place}: {text}", **told)
        else:
            self.tell(batch - 1, "placed", f"{action.block} in {action.place} from batch {batch} on: {text}", **told)

    def _follow_probation(self, commit: Commit) -> None:
        """A block whose database has failed goes to the engine, and some time later back. Nobody is asked for approval: the
        engine is to make up for a database only where a user wants that."""
        found = on_probation(self.query, self.execution, commit.queries[self.name], commit.batch)
        if found is not None and self.why_not(found[0]) is None:
            told, wanted = self.journal.last_of("placed"), {"block": found[0].block, "place": found[0].place}
            # A run before this one may have told it, and ended before the next batch.
            is_told = told is not None and told.batch == commit.batch and wanted.items() <= told.details.items()
            self.place(*found, commit.batch + 1, commit, is_told)

    def _follow_paces(self, commit: Commit) -> None:
        """Notes how long databases took in a batch beside what was expected: in the next control record, and so over a
        restart."""
        observed = self.observed(commit)
        took = {**observed.statistics.took, **self.loop.took(observed)}
        self.paces = paces_after(self.paces, took, commit.batch)

    def _follow_freshness(self, commit: Commit) -> None:
        """Tells that nothing is given because all is too old: once, until a batch gives results and suppresses none."""
        if text := all_too_old(self.query, commit):
            if not self.is_too_old:
                self.tell(commit.batch, "too old", text)
            self.is_too_old = True
        elif self.is_too_old:
            self.is_too_old = not none_too_old(self.query, commit)

    def _follow_placing(self, commit: Commit) -> None:
        """A block goes to its database when all that it reads there is kept, and home when all of that is folded."""
        if all(each.is_covered for each in self.execution.woken) and not self.execution.folding:
            return
        before = self.execution
        self.execution = placing_followed(self.forms, before, commit.queries[self.name])
        self._tell_placed(commit, before.home, self.execution.home)

    def _tell_placed(self, commit: Commit, before: frozenset[str], home: frozenset[str]) -> None:
        """Tells which blocks are at home now, and which are not any more."""
        for block in sorted(before ^ home):
            place = ENGINE if block in home else places(self.query, self.execution)[block]
            why = "all rows of its window are folded" if block in home else "all rows of its window are kept"
            text = f"{block} in {place} from batch {commit.batch + 1} on: {why}"
            self.tell(commit.batch, "placed", text, block=block, place=place)

    def _follow_migration(self, commit: Commit) -> None:
        """A migration that every slot is ready for ends, and what it took is told."""
        self._follow_placing(commit)
        began, own = self._began, commit.queries[self.name]
        self._waited_s = max(self._waited_s, own.statistics.preparing.slowest_ns / 1e9)
        if not self.execution.is_settled:
            old, self.execution = self.plan_text, execution_after(own, self.forms)
            if not self.execution.is_settled:
                return
            since = began[0] if began is not None else commit.batch
            if own.execution.migration is not None:
                since = own.execution.migration.since
            self._ended(commit, since, old, began[1] if began is not None else None)
        elif began is not None:
            self._ended(commit, began[0], str(began[2].details.get("from", "")), began[1])

    def _ended(self, commit: Commit, since: int, old: str, began_s: float | None) -> None:
        self._began = None
        text = f"plan {self.plan_text} gives the results after {commit.batch - since + 1} batches"
        if began_s is not None:
            text += f" and {perf_counter() - began_s:.2f} s"
        last_s = commit.queries[self.name].statistics.preparing.cpu_ns / 1e9
        told = {"old": old, "batches": commit.batch - since + 1, "last_cpu_s": last_s, "waited_s": self._waited_s}
        self.tell(commit.batch, "migrated", text, **told)

    def _adapt(self, commit: Commit) -> None:
        """Asks whether another plan is worth it, now that a batch more is known."""
        if self.is_pinned:
            return
        found = self.loop.after(self.execution, self.observed(commit))
        self.figures = {**self.figures, **self.loop.figures}
        if isinstance(found, Proposal) and self.followers and not isinstance(found.action, ChangePlan):
            shared = ", ".join(follower.name for follower, _ in self.followers)
            self.tell(commit.batch, "kept", f"the join is shared with {shared}: {found.text}", **found.details)
        elif isinstance(found, Proposal):
            if self.needs_approval:
                self.pending = found
                action = found.action
                way = f"{shown(action.plan, self.forms, *stands(self.execution, action))} by {action.strategy}"
                if isinstance(action, PlaceBlock):
                    way = f"{action.block} in {action.place}"
                text = f"{way}, if you approve: {found.text}"
                self.tell(commit.batch, "proposed", text, **found.details)
            else:
                self._migrate(found, commit.batch + 1, commit)
                for follower, theirs in self._following(found) if self.followers else ():
                    follower._migrate(theirs, commit.batch + 1, commit)
        elif found is not None:
            self.tell(commit.batch, found.event, found.text, **found.details)


def shown(plan: Plan, forms: Forms, grouped_input: str | None, selects: Selects = ()) -> str:
    """A plan for people: with what is grouped before it is joined, and what is selected after that."""
    grouped = f", {grouped_input} grouped first" if grouped_input is not None else ""
    return show(plan, forms.graphs[grouped_input]) + grouped + shown_selects(selects, forms.written)
