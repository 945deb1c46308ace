"""The driver of a pipeline: what its next batch starts from, what a batch left behind, and what follows from that.

A pipeline has queries that run together, over the same batches of rows. Whoever runs the tasks takes a batch through the
driver like this:

    control = driver.begin(trigger)                   control/n is written: all that the tasks need to know
    …the tasks run, stage results in files, and report their attempts…
    commit = driver.commit(control, attempts)         commit/n is written: the batch is never run again
    …the results are delivered from the files…        (`anabranch.drive.delivery`)
    driver.after(base, commit, kept_from)             files go, migrations end, other plans are thought about

Everything that a batch depends on is in its control record and in the commit it starts from, so a batch that was begun and
not committed runs again from these, whoever drives it then. What a query runs is decided by its `Steering`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from time import time
from typing import Any

import msgspec
import pyarrow as pa

from anabranch.control.completeness import missing_until_us
from anabranch.control.freshness import next_clock, require_near
from anabranch.control.holding import Told, held_back
from anabranch.control.lease import Lease
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.left import MOST_LEFT, LeftQueries
from anabranch.control.loop import Joining, Load, Recut, Slicer
from anabranch.control.pipelines import read_dropped
from anabranch.control.progress import shown_names
from anabranch.control.records import (
    BY_REQUEST,
    Attempt,
    Commit,
    Control,
    Ended,
    Limit,
    QueryCommit,
    QueryControl,
    SetAside,
    Statistics,
    slot_commit,
)
from anabranch.control.resume import REMEDY, Standing, standing_of
from anabranch.control.statistics import summed
from anabranch.control.table_files import holds_table, put_table, table_file
from anabranch.control.watermark import last_seen_after, next_watermark, seen_after
from anabranch.drive.coming import Coming, admission, missing_before_us
from anabranch.drive.departed import TextsInUse, sweep_pipeline
from anabranch.drive.limiting import Limiting
from anabranch.drive.retain import RELEASE_EVERY, SWEEP_GRACE_S, Retention, Work, at_once, sweep_unnamed
from anabranch.drive.steering import Steering
from anabranch.errors import SessionError, StateError
from anabranch.plan.distribution import parted_sources
from anabranch.plan.overload import Clock
from anabranch.plan.query import BEGINNING_US, Stream
from anabranch.share.canonical import Running, companies
from anabranch.share.source_chain import readers_of
from anabranch.storage.filesystem import Filesystem


@dataclass(frozen=True)
class ChangingTable:
    """A stored table that is read again every so much event time; `read` gives its rows as an Arrow IPC stream."""

    name: str
    every_us: int
    read: Callable[[], pa.Buffer]


class Driver:
    """Decides about the batches of a pipeline, and records them. Does not run them."""

    def __init__(
        self,
        queries: Sequence[Steering],
        filesystem: Filesystem,
        tables: Mapping[str, str],
        holder: Lease,
        changing: Sequence[ChangingTable] = (),
        clock: Callable[[], float] = time,
        release_every: int = RELEASE_EVERY,
        sweep_grace_s: float = SWEEP_GRACE_S,
        release: Callable[[Work], None] = at_once,
        slicer: Slicer | None = None,
        limiting: Limiting | None = None,
    ) -> None:
        """`release` has files deleted that nobody needs any more: at once, or in the background. `slicer` decides how rows
        are cut into slices; else the rule does (`anabranch.engine.slices.bounds_of`). `limiting` has what queries may lose
        under overload: nothing, if it is not given."""
        self.queries = {steering.name: steering for steering in queries}
        self.filesystem, self.tables, self.changing = filesystem, dict(tables), tuple(changing)
        self.read_table: dict[str, Callable[[], pa.Buffer]] = {table.name: table.read for table in changing}
        """Gives the rows of tables as they are now: of those that change, and of those of queries that come."""
        self.holder, self.clock = holder, clock
        """`clock` gives seconds since the epoch: what batches are planned by."""
        self.sweep_grace_s, self._retention = sweep_grace_s, Retention(filesystem, release_every, release)
        self.slots = max(steering.distribution.grid.cells for steering in queries)
        self.needs_no_exchange = all(steering.distribution.needs_no_exchange for steering in queries)
        self.ended: dict[str, Ended] = {}
        """The queries that have left the pipeline, and of which something may be on its way."""
        self.left = LeftQueries(filesystem, holder.epoch)
        """Those of which nothing is."""
        self.has_left: dict[str, Ended] = {}
        """The queries that have left under this driver, the last ones."""
        self.texts = TextsInUse()
        self.coming: dict[str, Coming] = {}
        """The queries that are to come in with the next batch that is not begun yet."""
        self.refused: dict[str, str] = {}
        """The queries that could not come in when their batch began, and why, until somebody has taken note of it."""
        self.parted = parted_sources([(steering.query, steering.distribution.grid) for steering in queries])
        """The sources whose rows may be in a slot for the sake of one query and not of another, or have been."""
        self.slices: dict[str, tuple[int, ...]] = {}
        """How new rows of sources are cut (`anabranch.engine.slices`), as far as that was decided."""
        self.slicer, self.limiting = slicer, limiting or Limiting()
        for steering in queries:
            steering.may_lose = self.limiting.may_lose
        self.controls = controls_in(filesystem, holder.epoch)
        self.commits = commits_in(filesystem, holder.epoch)
        self.standing = Standing()
        self.holding = Told()
        """What state waits for, and what was told of that."""
        self._led: tuple[list[Running], set[str]] = [], set()
        """The queries as they ran when it was last seen who leads whom, and those that are led."""
        self._read: dict[str, frozenset[str]] = {}
        """The streams of the queries of the newest commit: one that is altered since may read others."""

    @property
    def newest(self) -> Commit | None:
        """The newest commit."""
        return self.standing.commit

    # -- the start ---------------------------------------------------------------------------------------------------

    def open(self, facts: Mapping[str, Mapping[str, Any]] | None = None, dropped: Collection[str] = ()) -> None:
        """Finds what there is to go on from. `facts` are for the journals, by query. `dropped` are queries that ran so far,
        and are not to go on."""
        self._have_slots_for([*self.queries.values(), *(each.query for each in self.coming.values())])
        for ledger in (self.commits, self.controls):
            ledger.require_not_after(self.holder.epoch)
        self.standing = standing_of(self.commits, self.controls)
        begun, commit, come = self.standing.begun, self.newest, list[str]()
        if commit is not None:
            self.ended, self.parted = dict(commit.ended), self.parted | frozenset(commit.parted)
            self.slices = dict(commit.slices)
            gone = {name: own for name, own in commit.queries.items() if name in dropped}
            asked = read_dropped(self.filesystem)
            for name, left in gone.items():
                command = asked[name].command if name in asked else left.command
                self.ended[name] = Ended(commit.batch + 1, BY_REQUEST, left.layout, command)
            if missing := [name for name in commit.queries if name not in self.queries and name not in dropped]:
                raise StateError(f"the checkpoint runs {', '.join(missing)} too: declare what it runs")
            for name, query in self.queries.items():
                query.require_same(commit.queries[name])
            self._read = self._streams
        if begun is not None and commit is not None:
            come = self._take_in(begun)
            # A query that left in the batch that was begun, or is dropped now, is not in it.
            self.ended |= begun.ended
            self.parted |= frozenset(begun.parted)
            self._leave([name for name in self.queries if name in begun.ended])
        elif begun is not None and not self._is_begun(begun):
            # A start that came to nothing has delivered nothing: other queries may begin in its place.
            self.standing = replace(self.standing, begun=None)
        if self.standing.begun is not None:
            self.slices = dict(self.standing.begun.slices)
        if commit is not None:
            sweep_pipeline(self.filesystem, self.commits, commit)
        self.commits.drop_superseded()
        self.controls.drop_superseded()
        sweep_unnamed(self.filesystem, self.commits, commit, self.sweep_grace_s)
        if commit is not None:
            self._retention.won(commit)
        for name, query in self.queries.items():
            own = {"shares": list(query.distribution.grid.shares), "slots": self.slots, "names": shown_names(query.query)}
            own |= (facts or {}).get(name, {})
            # What a commit says of the name of a query that was altered since is of the one before it.
            if commit is None or (name in commit.queries and name not in come):
                query.resume(commit, self.standing.begun, own)
                query.warn(commit.batch if commit is not None else -1)
        self.limiting.open(self.standing.begun or commit, self._tell)
        if commit is None and self.standing.begun is None and self.slicer is not None:
            for recut in self.slicer.at_start():
                self._cut(recut, -1)

    def _have_slots_for(self, queries: Iterable[Steering]) -> None:
        """There are never fewer than before: the dataflow of Spark's has so many for as long as it runs."""
        self.slots = max(self.slots, *(query.distribution.grid.cells for query in queries))

    def _take_in(self, begun: Control) -> list[str]:
        """Has queries come in with a batch that was begun with them: their names."""
        come = []
        for name, each in list(self.coming.items()):
            own = begun.queries.get(name)
            if own is not None and own.identity == each.query.identity:
                each.query.since, each.query.declared, each.query.command = own.since, own.declared, own.command
                each.query.may_lose = self.limiting.may_lose
                self.queries[name] = each.query
                come.append(name)
                del self.coming[name]
        return come

    def _leave(self, names: Iterable[str]) -> None:
        for name in names:
            del self.queries[name]

    def _is_begun(self, begun: Control) -> bool:
        """Whether a batch was begun for these very queries."""
        same = begun.queries.keys() == self.queries.keys()
        return same and all(query.is_begun_by(begun.queries[name]) for name, query in self.queries.items())

    @property
    def _streams(self) -> dict[str, frozenset[str]]:
        """The streams of each query."""
        return {name: frozenset(query.streams) for name, query in self.queries.items()}

    def watermarks(self, base: Commit | None, planned_us: int) -> dict[str, int]:
        """The watermark of each query in the batch after a commit."""
        alike: dict[frozenset[str], list[str]] = {}
        for name, streams in self._streams.items():
            alike.setdefault(streams, []).append(name)
        found: dict[str, int] = {}
        for streams, names in alike.items():
            ran = [name for name in names if self._read.get(name) == streams]
            found |= dict.fromkeys(names, next_watermark(self.queries[names[0]].query, base, planned_us, ran))
        return found

    # -- a batch -----------------------------------------------------------------------------------------------------

    def begin(self, trigger: int) -> Control:
        """What the batch after the newest commit starts from: what it was begun with, or else what is decided now."""
        self.holder.require_held()
        begun = self.standing.begun
        if begun is None and self.coming:
            self._admit()
        if begun is not None and begun.trigger != trigger:
            raise StateError(f"batch {begun.batch} was begun for trigger {begun.trigger}, not for {trigger}: {REMEDY}")
        control = self._control(trigger) if begun is None else self._taken_up(begun)
        self.controls.write(control.batch, control)
        self.standing = replace(self.standing, begun=control)
        return control

    def _taken_up(self, begun: Control) -> Control:
        """The control record of a batch that was begun before, for one more run. It runs under the queries as they are
        written now, and under the policy of now: nobody has seen results of a batch that has no commit."""
        base, queries = self.newest, {}
        for name, query in self.queries.items():
            query.take_up(begun, base)
            if begun.queries[name].text != query.text.digest:
                query.texts.keep(query.text)
            own = begun.queries[name]
            clock_us = next_clock(query.query, self.limiting.clock, base, begun.planned_us)
            limits = own.limits if self.limiting.overload.limits_lookups else {}
            queries[name] = msgspec.structs.replace(
                own, text=query.text.digest, execution=query.record, clock_us=clock_us, limits=limits
            )
        epochs = {"epoch": self.holder.epoch, "base_epoch": base.epoch if base is not None else 0}
        parted = tuple(sorted(self.parted))
        shed = begun.shed if self.limiting.overload.sheds else {}
        return msgspec.structs.replace(
            begun, runs=begun.runs + 1, queries=queries, ended=self.ended, parted=parted,
            may_lose=self.limiting.may_lose, shed=shed, **epochs,
        )  # fmt: skip

    def _admit(self) -> None:
        """Has queries come in with the batch that is about to begin; one that cannot, any more, is told so."""
        batch = self.standing.batch + 1
        for name, each in self.coming.items():
            before = self.queries.get(name)
            try:
                found = admission(each, batch, self.newest, self.queries.values())
            except SessionError as error:
                (before or each.query).tell(batch - 1, "refused", str(error))
                self.refused[name] = str(error)
                self.texts.name(batch - 1, [(each.query.texts, each.query.text)])
                continue
            each.query.since, each.query.command, self.queries[name] = found.since, each.command, each.query
            each.query.may_lose = self.limiting.may_lose
            if before is not None:
                each.query.declared = before.declared or before.text.sql_digest
            each.query.tell(batch - 1, "added" if before is None else "altered", found.text)
            each.query.warn(batch - 1)
        self.left.forget(name for name in self.coming if name in self.queries)
        self.parted |= parted_sources([(q.query, q.distribution.grid) for q in self.queries.values()])
        self._have_slots_for(self.queries.values())
        self.coming = {}
        self._serve(batch - 1)

    def _serve(self, batch: int) -> None:
        """Has whoever decides about limits know which queries there are."""
        self.limiting.serve({name: query.query for name, query in self.queries.items()}, batch, self._tell)

    def end(self, control: Control, reasons: Mapping[str, str], commands: Mapping[str, str] | None = None) -> Control:
        """Has queries leave the pipeline in a batch that was begun: what it starts from without them. `commands` are those
        that asked for it."""
        for name, reason in reasons.items():
            text = f"from batch {control.batch} on its results are not computed: {reason}"
            self.queries[name].tell(control.batch - 1, "left", text)
        for name, reason in reasons.items():
            own = control.queries[name]
            left = Ended(control.batch, reason, own.layout, (commands or {}).get(name) or own.command)
            self.ended, self.has_left = {**self.ended, name: left}, {**self.has_left, name: left}
        self.has_left = dict([*self.has_left.items()][-MOST_LEFT:])
        self._leave(reasons)
        self._serve(control.batch - 1)
        others = {name: own for name, own in control.queries.items() if name in self.queries}
        control = msgspec.structs.replace(control, queries=others, ended=self.ended)
        self.controls.write(control.batch, control)
        self.standing = replace(self.standing, begun=control)
        return control

    def _control(self, trigger: int) -> Control:
        """The control record of a batch that was never begun."""
        batch, base = self.standing.batch + 1, self.newest
        for query in self.queries.values():
            for approved in query.approved_cuts():
                self.slices[approved.action.source] = approved.action.limits_us
                query.tell(batch - 1, "slicing", f"from batch {batch} on {approved.text}", **approved.details)
        planned_us = int(self.clock() * 1_000_000)
        watermarks = self.watermarks(base, planned_us)
        queries = {
            name: self._of(query, batch, base, watermarks[name], planned_us) for name, query in self.queries.items()
        }
        base_epoch = base.epoch if base is not None else 0
        token, epoch = uuid.uuid4().hex, self.holder.epoch
        parted = tuple(sorted(self.parted))
        return Control(
            batch, trigger, queries, token, epoch, base_epoch, planned_us=planned_us, ended=self.ended, parted=parted,
            slices=dict(self.slices), salt=self.limiting.draw_salt(), shed=dict(self.limiting.shed),
            may_lose=self.limiting.may_lose,
        )  # fmt: skip

    def _of(
        self, query: Steering, batch: int, base: Commit | None, watermark_us: int, planned_us: int
    ) -> QueryControl:
        """What a batch starts from, of one query."""
        query.redirect(batch, base)
        own = base.queries.get(query.name) if base is not None else None
        own = own if own is not None and own.identity == query.identity else None
        if own is None or own.text != query.text.digest:
            query.texts.keep(query.text)
        read_us = dict(own.tables_read_us) if own is not None else {}
        tables = self._tables(query, batch, watermark_us, own is None, read_us)
        if self.needs_no_exchange and own is not None:
            tables = {**own.tables, **tables}
        return QueryControl(
            query.identity, query.text.digest, watermark_us, query.record, query.layout, tables, read_us, query.since,
            query.declared, next_clock(query.query, self.limiting.clock, base, planned_us),
            self._limits(query), query.command, dict(query.paces), dict(query.figures), own_folder=query.own_folder,
        )  # fmt: skip

    def _limits(self, query: Steering) -> dict[str, Limit]:
        """Which rows of a query may look up their partners. While both plans of a parallel track give results, all do: it
        ends first."""
        return {} if query.execution.is_parallel else self.limiting.limits.get(query.name, {})

    def _tables(
        self, query: Steering, batch: int, watermark_us: int, is_first: bool, read_us: dict[str, int]
    ) -> dict[str, str]:
        """The files of the tables that a query takes in: all in the first batch, later those that its watermark asks for.
        Two queries that ask for a table in one batch get the same rows."""
        own = {source.name for source in query.query.base_sources}
        stored = [name for name in self.tables if name in own] if is_first else []
        due = {name: self.tables[name] if batch == 0 else self._read_again(name, batch) for name in stored}
        for table in self.changing:
            if table.name not in own:
                continue
            last_us = read_us.get(table.name, BEGINNING_US)
            if last_us == BEGINNING_US:
                read_us[table.name] = watermark_us
            elif watermark_us >= last_us + table.every_us:
                due[table.name], read_us[table.name] = self._read_again(table.name, batch), watermark_us
        return due

    def _read_again(self, name: str, batch: int) -> str:
        """A table as it is now, once for all queries of a batch. A torn file does not count."""
        path = table_file(name, batch, self.holder.epoch)
        if not holds_table(self.filesystem, path):
            put_table(self.filesystem, path, self.read_table[name]())
        return path

    def commit(
        self,
        control: Control,
        attempts: Sequence[Attempt],
        seen_elsewhere: Statistics | None = None,
        waits_from: Mapping[str, int] | None = None,
    ) -> Commit:
        """Records what a batch left behind. `seen_elsewhere` is what was counted of rows that never reached a task,
        `waits_from` from which batch on results have not arrived."""
        base, shown = self.newest, [counted for a in attempts for counted in a.statistics.values()]
        if seen_elsewhere is not None and attempts:
            for name in self.queries:
                _count_all([a.statistics[name] for a in attempts if name in a.statistics], seen_elsewhere)
            shown.append(seen_elsewhere)
        streams = {stream for query in self.queries.values() for stream in query.streams}
        seen = seen_after(base.largest_time_us if base is not None else {}, shown)
        if self.limiting.clock is Clock.WALL:
            for query in self.queries.values():
                require_near(query.query, seen_after({}, shown), seen, control.queries[query.name].clock_us)
        commit = Commit(
            control.batch, control.trigger, {n: self._left(n, control, base, attempts, seen) for n in self.queries}, seen,
            {str(a.slot): slot_commit(a) for a in attempts}, control.token, self.holder.epoch,
            last_seen_after(sorted(streams), base, shown, control.planned_us), self.ended, self._set_aside(attempts),
            control.parted, control.slices, control.shed, dict(waits_from or {}),
        )  # fmt: skip
        self.commits.write(commit.batch, commit)
        self.standing, self._read = replace(self.standing, commit=commit, begun=None), self._streams
        self.texts.name(commit.batch, [(query.texts, query.text) for query in self.queries.values()])
        # Whoever took the checkpoint over has seen this commit, or is seen now.
        self.holder.require_held()
        return commit

    def _left(
        self, name: str, begun: Control, base: Commit | None, attempts: Sequence[Attempt], seen: Mapping[str, int]
    ) -> QueryCommit:
        """What a batch left behind, of one query."""
        own, control = base.queries.get(name) if base is not None else None, begun.queries[name]
        own = own if own is not None and own.identity == control.identity else None
        before = own.tables if own is not None else {}
        missing_us = own.missing_until_us if own else missing_before_us(control.since, begun.batch, base)
        staged = [a for a in attempts if name in a.staged]
        return QueryCommit(
            control.identity, control.text, control.watermark_us, control.execution, control.layout,
            {**before, **control.tables}, control.tables_read_us, control.since, control.declared, control.clock_us,
            control.limits, control.command, control.paces, control.figures, tuple(a.slot for a in staged),
            sum(a.staged[name] for a in staged),
            self.queries[name].has_own_files, summed(a.statistics[name] for a in attempts if name in a.statistics),
            missing_until_us(self.queries[name].query, begun.shed, seen, missing_us),
        )  # fmt: skip

    def _set_aside(self, attempts: Sequence[Attempt]) -> dict[str, SetAside]:
        """Where the tasks of a batch have staged rows that were set aside."""
        found: dict[str, SetAside] = {}
        for attempt in attempts:
            for name in attempt.staged.keys() - self.queries.keys():
                known = found.get(name, SetAside())
                found[name] = SetAside((*known.slots, attempt.slot), known.staged_bytes + attempt.staged[name])
        return found

    def after(
        self,
        base: Commit | None,
        commit: Commit,
        kept_from: int | None = None,
        load: Load | None = None,
        waiting: Collection[str] = (),
    ) -> Collection[str]:
        """What follows from a commit; `base` is the one that its batch started from. Commits from `kept_from` on are kept
        although newer ones are there: their results have not arrived yet; `waiting` are the queries of which some have not.
        `load` is what the batch has shown of the load, as far as somebody measures it. The queries that have left long ago,
        and are out of the records now."""
        first = self._retention.first_kept(base, commit, kept_from)
        gone = self._forget(first, waiting) if first is not None else {}
        self._retention.after(base, commit, self.commits, self.controls, first, gone)
        led = self._lead()
        for query in self.queries.values():
            query.after(commit, query.name in led)
        self._think_of_slices(commit, led)
        self._tell_what_is_held(commit)
        if load is not None:
            self.limiting.after(load, self._tell)
            for name, query in self.queries.items():
                query.limited_cores = self.limiting.cores.get(name)
        return gone

    def _tell(self, name: str | None, batch: int, event: str, text: str, **details: Any) -> None:
        """Notes something in the journal of a query, or in those of all."""
        for query in self.queries.values():
            if name in (None, query.name):
                query.tell(batch, event, text, **details)

    def _forget(self, first: int, waiting: Collection[str]) -> dict[str, Ended]:
        """Takes queries out of the records that have left, if nothing of theirs waits and no commit that is kept has results
        of theirs. That they have left is noted before."""
        gone = {name: left for name, left in self.ended.items() if left.batch <= first and name not in waiting}
        if gone:
            self.left.note(gone)
            self.ended = {name: left for name, left in self.ended.items() if name not in gone}
        self.texts.release(first)
        return gone

    def has_carried_out(self, command: str) -> bool:
        """Whether a command was carried out, by this driver or by one before it: the query that it asked for has come, is to
        come, or has left. Commands are answered one after the other, so only the last one of a query may be asked for."""
        there = {each.command for each in self.queries.values()} | {each.command for each in self.coming.values()}
        return command in there or any(each.command == command for each in {**self.left.queries, **self.ended}.values())

    def is_free(self, name: str) -> bool:
        """Whether a query of a name may come: no record has another one of it."""
        newest = self.newest
        return not any(name in known for known in (self.queries, self.coming, self.ended, newest.ended if newest else ()))

    def _think_of_slices(self, commit: Commit, led: Collection[str]) -> None:
        """Asks whether rows are to be cut in another way, now that a batch more is known. What is decided stands in the next
        control record, and so holds if the driver dies. Where results may be lost, rows are cut as they were when the
        pipeline first started: lookups that are limited tell too little of what slices are worth."""
        if self.slicer is None or self.limiting.may_lose:
            return
        joins = [joining_of(query) for query in self.queries.values() if query.name not in led]
        observed = {name: query.observed(commit) for name, query in self.queries.items()}
        for said in self.slicer.after([join for join in joins if join is not None], self.slices, observed):
            if isinstance(said, Recut):
                self._cut(said, commit.batch)
            elif (reader := self._reader(said.source)) is not None:
                reader.tell(commit.batch, said.remark.event, said.remark.text, **said.remark.details)

    def _tell_what_is_held(self, commit: Commit) -> None:
        """Tells in the journal of the query that holds rows of a stream back, and of the first that reads the stream."""
        for holding, event, text in self.holding.after(held_back([q.query for q in self.queries.values()], commit)):
            reader = self._reader(holding.source)
            names = dict.fromkeys([holding.queries[0], *([reader.name] if reader is not None else [])])
            for query in (self.queries[name] for name in names if name in self.queries):
                query.tell(commit.batch, event, text, **msgspec.to_builtins(holding))

    def _reader(self, source: str) -> Steering | None:
        """The query in whose journal it is told how rows of a source are cut: the first that reads it."""
        return next((query for query in self.queries.values() if source in query.streams), None)

    def _cut(self, recut: Recut, batch: int) -> None:
        """Has rows be cut in another way from the next batch on; if changes are to be approved, once that is."""
        source, reader = recut.action.source, self._reader(recut.action.source)
        if reader is None:
            return
        read_by = readers_of(source, recut.action.limits_us, [query.query for query in self.queries.values()])
        details = {**recut.details, "read_by": [list(names) for names in read_by]}
        if reader.needs_approval and batch >= 0:
            before = reader.pending_cuts.get(source)
            reader.pending_cuts[source] = recut
            if before is None or before.action != recut.action:
                reader.tell(batch, "proposed", f"if you approve, {recut.text}", **details)
            return
        self.slices[source] = recut.action.limits_us
        reader.tell(batch, "slicing", f"from batch {batch + 1} on {recut.text}", **details)

    def _lead(self) -> set[str]:
        """Has queries that run a join together go where one of them goes. Those that are led."""
        running, (before, led) = [query.running for query in self.queries.values()], self._led
        if len(running) == len(before) and all(map(is_, running, before)):
            return led
        led = set[str]()
        self._led = running, led
        for query in self.queries.values():
            query.followers, query.is_led = (), False
        for company in companies(running):
            followers = [self.queries[name] for name in company.names[1:]]
            names = [company.names_of(place + 1) for place in range(len(followers))]
            self.queries[company.lead.query.name].followers = [*zip(followers, names, strict=True)]
            led |= {follower.name for follower in followers}
            for follower in followers:
                follower.is_led = True
        return led


def joining_of(query: Steering) -> Joining | None:
    """The join that a query runs or leads, as whoever decides about slices sees it; None if it joins nothing."""
    written = query.graph.query
    streams = [i for i in written.inputs if isinstance(i.source, Stream)]
    if len(written.inputs) < 2:
        return None
    windows = {i.alias: [i.window.length_us] for i in streams}
    for follower, names in query.followers:
        for alias, lengths_us in windows.items():
            lengths_us.append(follower.query.input(names[alias]).window.length_us if alias in names else 0)
    return Joining(query.name, {i.alias: i.source.name for i in streams}, {a: tuple(us) for a, us in windows.items()})


def _count_all(counted: list[Statistics], seen: Statistics) -> None:
    """Counts rows that never reached a slot among those of the first."""
    for name, source in seen.sources.items():
        reached = sum(c.sources[name].rows for c in counted if name in c.sources)
        if counted and name in counted[0].sources:
            counted[0].sources[name].rows += source.rows - reached
            counted[0].sources[name].shed_rows += source.shed_rows
