"""The queries of a slot: the boxes of their blocks over one store, each query in the form that it has at the time.

One batch, in `Slot.step`:

1. what no reader needs any more is purged, and boxes work at states they lack (`anabranch.engine.rebuild`);
2. the rows of each source come in, once for all who read it (`anabranch.engine.arrival`);
3. query by query, subqueries first, each box takes its new rows along their routes. The groups of a subquery at the instants
   that the watermark has passed come in as the rows of a stream;
4. indexes settle: what arrived becomes a run, and the merges that are due are made.

Example: `SELECT … FROM s, (SELECT k, MAX(x) AS m FROM s GROUP BY k) g WHERE s.k = g.k`. In batch 4, twenty rows of s come.
They are appended to the log of s, which the join keeps; the box of g folds the same rows into its groups, and needs no log.
The watermark has passed second 3, so g gives the groups of second 3. They are appended to the log of `q.g`, and the box of q
takes first the rows of s, then those of g along their routes. A second query that joins s and t by k reads the same log of
s, and the same index over it; what it finds depends on its own watermark and window alone.

While its groups go below a join, or above it again, a query has two forms (`anabranch.plan.eager.Forms`; 002, chapter 14):

- by *moving state*, the stored rows of the grouped input are folded into the groups of the new form. Upwards that cannot be:
  groups below a join keep no rows;
- on a *parallel track*, the old form reads the rows that the grouped input has brought so far, and the new one those to
  come. Both read the rows of all other inputs, from the same logs. What both give of a group at an instant is put together:
  the *SGB operator*. When no old row of the grouped input is valid any more, the old form has nothing more to give.

Each combination has one row of the grouped input, an old or a new one, so each is counted once.

Queries with a join in common (`anabranch.plan.shared_join`) have one box for it, under the name of the lead; the others have
none of their own while they share it (`anabranch.engine.shared_box`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import thread_time_ns
from types import MappingProxyType

import pyarrow as pa

from anabranch.control.records import Manifest, Probed, SlotState, SourceStatistics, StateStatistics, Statistics
from anabranch.engine.accept import Rows
from anabranch.engine.aggregation import Aggregator, part_column
from anabranch.engine.allocator import keep_freed_memory
from anabranch.engine.arrival import Arrival, delta_of
from anabranch.engine.blame import errors_of
from anabranch.engine.box import Box, horizon_us
from anabranch.engine.checkpoint import Checkpoint
from anabranch.engine.homecoming import Homecoming
from anabranch.engine.limits import NO_LIMITS, Limits
from anabranch.engine.lineage import Lineage
from anabranch.engine.log import starts_of
from anabranch.engine.mig_box import ALL, JoinMigBox, MigBox
from anabranch.engine.reader import ENDLESS, EVERY_BATCH, Place, Reader, Spans
from anabranch.engine.rebuild import hand_over
from anabranch.engine.results import Found
from anabranch.engine.shared_box import SharedBox
from anabranch.engine.store import Store
from anabranch.engine.visibility import Visibility
from anabranch.errors import QueryError, StateError
from anabranch.plan.distribution import ONE_SLOT, Distribution, grid_of, in_form, parted_sources
from anabranch.plan.eager import Forms
from anabranch.plan.identity import IndexKey, ViewKey
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution, Folding
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Query, Stream, Table
from anabranch.plan.shared_join import SharedJoin
from anabranch.plan.statement import Embedded, Open, StatementError, no_database
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem

NOTHING_BROUGHT: Mapping[str, Rows] = MappingProxyType({})


@dataclass(frozen=True)
class Block:
    """What a box is to run."""

    name: str
    query: Query
    execution: Execution
    place: Place
    is_whole: bool
    """Whether it is the query itself, and not a subquery."""
    spans: Spans = field(default_factory=dict)
    """The sources of which some batches only are for it."""
    shared: SharedJoin | None = None
    """The join that the query leads; `query` is that join then."""
    folding: Folding | None = None
    """How it is on its way from a database to the engine."""


@dataclass(frozen=True)
class Times:
    """The times of a query in a batch."""

    watermark_us: int
    emitted_us: int = BEGINNING_US
    """The watermark of the batch before: groups at instants before it have been handed out."""
    clock_us: int = BEGINNING_US
    """The clock that the freshness of results is told by."""


class Tenant:
    """A query in a slot: what it runs, and which of the slot's boxes are its own."""

    def __init__(
        self, forms: Forms, execution: Execution, distribution: Distribution = ONE_SLOT, since: int = 0
    ) -> None:
        """Rows of streams that came before batch `since` are none of its own."""
        self.forms, self.execution, self.distribution, self.since = forms, execution, distribution, since
        self.versions: dict[str, int] = {}
        """The batch in which each stored table was last read for it."""
        self.streams = tuple(s.name for s in forms.written.base_sources if isinstance(s, Stream))

    @property
    def name(self) -> str:
        return self.forms.written.name

    @property
    def main(self) -> str:
        """The name of the box that gives the results."""
        return self.box_name(self.execution.grouped_input)

    @property
    def left(self) -> str | None:
        """The name of the box of the form that is left."""
        return self.box_name(self.execution.leaving.grouped_input) if self.execution.leaving is not None else None

    def box_name(self, grouped_input: str | None) -> str:
        """What the query itself is called in a form. No name of a query holds an `@` (`anabranch.plan.names`)."""
        return self.name if grouped_input is None else f"{self.name}@{grouped_input}"

    def blocks(self, cell: int, parted: frozenset[str]) -> list[Block]:
        """What it runs, in order."""
        execution = self.execution
        found = self._form(execution.grouped_input, execution.own, cell, parted)
        if (leaving := execution.leaving) is not None:
            grouped = self.forms.grouped(execution.grouped_input, leaving.grouped_input).source.name
            # Others may keep the rows, too: each form sees those of its own batches.
            found = self._form(execution.grouped_input, execution.own, cell, parted, {grouped: (leaving.since, ENDLESS)})
            span = {grouped: (0, leaving.since)}
            old = self._form(leaving.grouped_input, Execution(leaving.plan), cell, parted, span)
            names = {block.name for block in found}
            found += [block for block in old if block.name not in names]
        return sorted(found, key=lambda block: block.is_whole)

    def _form(
        self,
        grouped_input: str | None,
        execution: Execution,
        cell: int,
        parted: frozenset[str],
        spans: Spans = EVERY_BATCH,
    ) -> list[Block]:
        query = self.forms.query(grouped_input)
        grid, found = in_form(self.distribution, self.forms.written, query).grid, []
        for place, block in enumerate(query.blocks):
            is_whole = block is query
            name = self.box_name(grouped_input) if is_whole else block.name
            own = execution if is_whole else Execution(left_deep(JoinGraph(block)))
            where = Place(grid_of(query, grid, place), cell, parted)
            mine = {source.name: spans[source.name] for source in block.sources if source.name in spans}
            made = block
            if (woken := self.execution.woken_as(block.name)) is not None:
                made = block.asking(woken.statement)
                if woken.since:  # others may have kept rows before, but of these not all that it needs
                    mine = {source.name: (woken.since, ENDLESS) for source in block.sources} | mine
            made = made.at_home if block.name in self.execution.home else made
            folding = self.execution.folding_of(block.name)
            found.append(Block(name, made, own, where, is_whole, mine, folding=folding))
        return found

    def reader(self, block: Block, lineage: Lineage | None = None) -> Reader:
        graph = JoinGraph(block.query)
        return Reader(
            block.name, self.name, graph, block.execution, self.streams, block.place, self.versions, block.spans, lineage,
            self.since,
        )  # fmt: skip

    @property
    def grouping(self) -> Aggregator:
        """Puts parts of its groups together."""
        grouping = self.forms.written.grouping
        assert grouping is not None
        return Aggregator(grouping, self.forms.written.row_schema)

    def sgb(self, parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Puts together what two forms give of the same groups at the same instants (002, section 14.1.2)."""
        return self.grouping.combine(parts) if parts else []

    @cached_property
    def _parts_schema(self) -> pa.Schema:
        return self.grouping.parts_schema

    def as_written(self, parts: Iterable[pa.RecordBatch], grouped_input: str | None) -> Iterator[pa.RecordBatch]:
        """Partial values as the query has them as written: what it counts, a form with groups below sums up."""
        if grouped_input is None:
            yield from parts
            return
        grouping = self.forms.written.grouping
        assert grouping is not None
        counted = {
            part_column(i, "n"): part_column(i, "low")
            for i, a in enumerate(grouping.aggregates)
            if a.function == "count"
        }
        schema = self._parts_schema
        for batch in parts:
            yield pa.RecordBatch.from_arrays([batch.column(counted.get(n, n)) for n in schema.names], schema=schema)


class Slot:
    """The boxes of the queries of a slot, and their store."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        folder: str,
        filesystem: Filesystem,
        reader: ContainerReader,
        cell: int = 0,
        parted: frozenset[str] = frozenset(),
        shared: Sequence[SharedJoin] = (),
        databases: Open = no_database,
    ) -> None:
        """`parted` are sources whose rows may be there for the sake of a query that is not among the tenants any more.
        `shared` are the joins that tenants run together, `databases` opens those that run blocks of theirs."""
        keep_freed_memory()
        self._open, self._databases = databases, dict[str, Embedded]()
        self.tenants, self.reader, self._cell = {tenant.name: tenant for tenant in tenants}, reader, cell
        self.parted = parted | parted_by(tenants)
        self.store = Store()
        self.checkpoint = Checkpoint(self.store, folder, filesystem, reader)
        self.boxes: dict[str, Box] = {}
        """By name; of each query subqueries first, then itself, then the form of it that is left."""
        self.aggregators: dict[str, Aggregator] = {}
        """The groups of each block that has some."""
        self._share(shared)
        self.statistics: dict[str, Statistics] = {}
        """What the last batch measured, by query."""
        self.batch = -1
        """The last batch that was run and saved, whether or not it was committed."""
        self._accepted: tuple[int, Mapping[str, int]] = (-1, {})
        """The last batch that was begun, and by which watermarks its rows were accepted."""
        self._visibility: Visibility | None = None
        self._place()
        self.store.serve([box.reader for box in self.boxes.values()])

    @property
    def _sources(self) -> dict[str, Stream | Table]:
        return {s.name: s for t in self.tenants.values() for s in t.forms.written.base_sources}

    @property
    def executions(self) -> dict[str, Execution]:
        return {name: tenant.execution for name, tenant in self.tenants.items()}

    def _share(self, shared: Sequence[SharedJoin]) -> None:
        self._shared = {join.names[0]: join for join in shared}
        self._leads = {name: join.names[0] for join in shared for name in join.names}

    @property
    def sharing(self) -> Collection[str]:
        """The queries that share a join: their results come mixed."""
        return self._leads.keys()

    def _lead(self, query: str) -> str:
        """The query whose box runs the join of another: mostly itself."""
        return self._leads.get(query, query)

    def _place(self) -> dict[str, Reader]:
        """Has the boxes that the queries ask for. The readers that others took the place of."""
        before, groups, self.boxes, self.aggregators = self.boxes, self.aggregators, {}, {}
        replaced: dict[str, Reader] = {}
        for tenant in self.tenants.values():
            if self._lead(tenant.name) != tenant.name:
                continue
            for block in tenant.blocks(self._cell, self.parted):
                if (shared := self._shared.get(tenant.name)) is not None:
                    block = replace(block, query=shared.join, shared=shared)
                box = before.get(block.name)
                if box is None or not _is_for(box.reader, block, tenant):
                    if box is not None:
                        replaced[block.name] = box.reader
                    box = self._boxed(tenant, block, box)
                self.boxes[block.name] = box
                self._have_groups(tenant, block, box, groups)
        return replaced

    def _boxed(self, tenant: Tenant, block: Block, before: Box | None) -> Box:
        """A box for a block: the one that was there, if only what it reads is another."""
        if block.query.statement is not None:
            if not isinstance(before, MigBox):
                asked = partial(self._database, block.query.statement.database)
                kind = MigBox if block.query.grouping is not None else JoinMigBox
                return kind(tenant.reader(block), self.store, asked)
            reader = tenant.reader(block)
        elif block.shared is None:
            reader = tenant.reader(block)
            if before is None or isinstance(before, SharedBox | MigBox):
                return Box(reader, self.store)
        else:
            is_same = isinstance(before, SharedBox) and before.lineage.shared == block.shared
            lineage = before.lineage if is_same and isinstance(before, SharedBox) else Lineage(block.shared)
            if isinstance(before, SharedBox) and not is_same:
                lineage.inherit(before.lineage)
            reader = tenant.reader(block, lineage)
            if before is None or not isinstance(before, SharedBox):
                return SharedBox(reader, self.store)
        before.reader = reader
        return before

    def _database(self, name: str) -> Embedded:
        """The database of a name: one for all blocks of the slot. Where it cannot be opened, its queries fail as by a
        statement that fails."""
        if name not in self._databases:
            try:
                self._databases[name] = self._open(name)
            except StatementError as error:
                hint = f": {error.hint}" if error.hint else ""
                raise QueryError(f"a worker cannot open the database {name}: {error.message}{hint}") from None
        return self._databases[name]

    def _have_groups(self, tenant: Tenant, block: Block, box: Box, known: Mapping[str, Aggregator]) -> None:
        """Has a box fold what its query groups, or its members do: into the groups that are there, if there are some. A box
        whose block is on its way home has groups beside what its database gives."""
        if isinstance(box, MigBox) and (None if box.homecoming is None else box.homecoming.folding) != block.folding:
            # Groups that were begun for another way home do not have what came in between.
            box.homecoming = Homecoming(box, block.folding) if block.folding is not None else None
            known = {name: groups for name, groups in known.items() if name != block.name}

        def groups(name: str, query: Query) -> Aggregator | None:
            if query.grouping is not None and (query.statement is None or block.folding is not None):
                self.aggregators[name] = known.get(name) or Aggregator(query.grouping, query.row_schema)
            return self.aggregators.get(name)

        if isinstance(box, SharedBox):
            assert block.shared is not None
            spans = {q.name: self.tenants[q.name].distribution.groups_span_slots for q in block.shared.members}
            box.serve({q.name: (groups(q.name, q), spans[q.name]) for q in block.shared.members})
            return
        gives_parts = tenant.distribution.groups_span_slots or tenant.execution.leaving is not None
        box.aggregator, box.gives_parts = groups(block.name, block.query), block.is_whole and gives_parts

    def _horizons(self, times: Mapping[str, Times]) -> dict[str, int]:
        """What is valid from then on may still be of use to each box, and to each member of a shared join: to its lead by
        the name of the box."""
        found = dict[str, int]()
        for name, box in self.boxes.items():
            lead, *members = (times[query] for query in box.reader.queries)
            found |= {query: own.watermark_us for query, own in zip(box.reader.queries[1:], members, strict=True)}
            found[name] = horizon_us(box, lead.watermark_us, lead.emitted_us)
        return found

    # -- from one execution to another -------------------------------------------------------------------------------

    def redirect(
        self,
        executions: Mapping[str, Execution],
        times: Mapping[str, Times],
        shared: Sequence[SharedJoin] = (),
        coming: Sequence[Tenant] = (),
        going: Collection[str] = (),
    ) -> None:
        """Has queries go on with other executions, before the next batch, and with the joins that they share now; some come
        in, and some go: one that does both is another one of that name. What both read is kept, what only the old ones had
        is dropped (that is safe, for all of it follows from the logs: 002, section 12.1.4), and what is lacking is
        recomputed in the batches to come: in the next one, as far as results need it."""
        for name in going:
            del self.tenants[name]
            self.aggregators.pop(name, None)
            self.boxes = {n: box for n, box in self.boxes.items() if box.reader.query != name}
        self.tenants |= {tenant.name: tenant for tenant in coming}
        known, folded, home = self.aggregators, dict[str, Stream | Table](), set[str]()
        for query, execution in executions.items():
            tenant = self.tenants[query]
            before, leaving = tenant.execution, execution.leaving
            is_like = execution.grouped_input == before.grouped_input
            if is_like and leaving is not None and leaving != before.leaving:
                raise StateError(f"slot {self._cell} cannot take up the form it has left")
            tenant.execution = execution
            home |= execution.home - before.home
            if not is_like and leaving is None:
                folded[query] = tenant.forms.grouped(before.grouped_input, execution.grouped_input).source
        self._share(shared)
        before_boxes = dict(self.boxes)
        replaced = self._place()
        for name, (groups, emitted_us) in self._emitted(times).items():
            if known.get(name) is not groups:
                groups.restore((), emitted_us)
        for query, source in folded.items():
            self._fold(query, source)
        for block in home:
            self._come_home(before_boxes[block], self.boxes[block])
        self._serve(replaced, times)

    def _serve(self, replaced: Mapping[str, Reader], times: Mapping[str, Times]) -> None:
        """Has the store serve the readers that there are now."""
        self.store.horizons = self._horizons(times)
        inherited: dict[ViewKey, ViewKey] = {}
        for name, old in replaced.items():
            inherited |= hand_over(self.store, old, self.boxes[name].reader)
        self.store.serve([box.reader for box in self.boxes.values()])
        self.checkpoint.inherited(inherited)
        for box in self.boxes.values():
            box.reader.look_at(self.store.logs)
            box.rebuild.check()
        self._complete_indexes()

    def _complete_indexes(self, since: int = -1, prepared: Mapping[IndexKey, int] | None = None) -> None:
        """Completes the indexes of all boxes, as far as they must be: what one has enough of another may lack."""
        for box in self.boxes.values():
            box.rebuild.complete_needed()
        for box in self.boxes.values():
            box.rebuild.begin_thin(since, prepared)

    def _fold(self, query: str, source: Stream | Table) -> None:
        """Moving state downwards: the stored rows of an input become groups."""
        lower = next(b for b in self.boxes.values() if b.reader.query == query and b.aggregator is not None
                     and not b.reader.keeps_rows and b.reader.inputs[0].source.name == source.name)  # fmt: skip
        self._fold_rows(lower)

    def _come_home(self, there: Box, box: Box) -> None:
        """What a database had of a block becomes groups, as far as it has not yet: stored rows, or what it joins them to. A
        join without groups keeps nothing but rows."""
        if box.aggregator is None or not isinstance(there, MigBox):
            return
        if there.homecoming is not None and there.aggregator is box.aggregator:
            there.homecoming.finish()
        elif len(box.reader.inputs) == 1:
            self._fold_rows(box)
        else:
            there.look_at_all()
            there.fold_into(box.aggregator, {i.alias: ALL for i in box.reader.inputs})
            known = [batch for i in box.reader.inputs for batch in self.store.logs[i.source.name].segments]
            box.aggregator.settle(max(known, default=0))

    def _fold_rows(self, box: Box) -> None:
        """The stored rows of the one input of a box become groups."""
        (i,) = box.reader.inputs
        for batch, stored in self.store.logs[i.source.name]:
            box.fold(batch, delta_of(box.reader, i, batch, stored, starts_of(i.source, stored.rows)))

    # -- from files and to files -------------------------------------------------------------------------------------

    def attach(self, manifest: Manifest | None, times: Mapping[str, Times]) -> None:
        """Takes up what a commit names that was made in the same forms; nothing, before the first batch."""
        state = self.checkpoint.read(manifest)
        for name, tenant in self.tenants.items():
            tenant.versions = dict(state.versions.get(name, {}))
        self._place()
        self.store.serve([box.reader for box in self.boxes.values()])
        self.store.horizons = self._horizons(times)
        self.checkpoint.attach(state, self._emitted(times))
        self._fold_on(state)
        for box in self.boxes.values():
            box.rebuild.check()
        self._complete_indexes(prepared=self.checkpoint.prepared(state))

    def _emitted(self, times: Mapping[str, Times]) -> dict[str, tuple[Aggregator, int]]:
        """The groups of each block, and the time before which they have been handed out."""
        query_of = {name: box.reader.query for name, box in self.boxes.items()} | {name: name for name in self._leads}
        return {name: (groups, times[query_of[name]].emitted_us) for name, groups in self.aggregators.items()}

    def catch_up(self, manifest: Manifest, times: Mapping[str, Times]) -> bool:
        """Brings boxes that stopped some batches ago to what a commit names; if False, they are of no more use."""
        state = self.checkpoint.read(manifest)
        if any(state.versions.get(name, {}) != tenant.versions for name, tenant in self.tenants.items()):
            return False
        # What was needed when the commit was made may be needed by another form in the next batch.
        self.store.purge(self._horizons({name: Times(own.emitted_us, own.emitted_us) for name, own in times.items()}))
        last = self.checkpoint.catch_up(state, self._emitted(times))
        if last is None:
            return False
        self._fold_on(state)
        for box in self.boxes.values():
            box.rebuild.check()
        # The commit may name what has ended since: it was purged above, and goes again.
        self.store.purge(self.store.horizons)
        self._complete_indexes(last, self.checkpoint.prepared(state))
        return True

    def _fold_on(self, state: SlotState) -> None:
        """Has boxes whose blocks are on their way home know what has become groups."""
        for name, coming in self._homecomings().items():
            coming.folded = state.folded.get(name, coming.folding.since)

    def _homecomings(self) -> dict[str, Homecoming]:
        """The blocks that are on their way home, by name."""
        found = {name: box.homecoming for name, box in self.boxes.items() if isinstance(box, MigBox)}
        return {name: coming for name, coming in found.items() if coming is not None}

    def save(self, batch: int, attempt: str) -> tuple[Manifest, frozenset[str]]:
        """Writes what is not yet on disk. Where all of the state is told, and the files that it no longer needs."""
        versions = {name: tenant.versions for name, tenant in self.tenants.items() if tenant.versions}
        folded = {name: coming.folded for name, coming in self._homecomings().items()}
        return self.checkpoint.save(batch, attempt, self.aggregators, versions, folded)

    def relocate(self) -> None:
        self.checkpoint.relocate()

    # -- a batch -----------------------------------------------------------------------------------------------------

    def replace_table(
        self, name: str, batch: int, rows: Rows, times: Mapping[str, Times], queries: Collection[str]
    ) -> None:
        """Takes other rows for a stored table, for some queries, before the batch is processed. What is kept of it is
        derived anew, and nothing emitted: rows that have met the old ones do not meet the new ones again."""
        for query, tenant in self.tenants.items():
            if query in queries:
                tenant.versions = {**tenant.versions, name: batch}
        replaced = self._place()
        self.store.serve([box.reader for box in self.boxes.values()], keeps=set(replaced.values()))
        Arrival(batch).store_table(self.store, self._sources[name], rows)
        self._serve(replaced, times)

    def step(
        self,
        batch: int,
        rows: Mapping[str, Rows],
        times: Mapping[str, Times],
        planned_us: int = FOREVER_US,
        limits: Limits = NO_LIMITS,
        brought: Mapping[str, Rows] = NOTHING_BROUGHT,
    ) -> Iterator[Found]:
        """Processes one batch and gives the results of each query as they are found: partial values of groups, if slots
        share them. The batch is done when the last piece was taken; a slot whose batch was not is of no more use.
        `planned_us` is the driver's clock by which rows are early. The groups of a subquery are taken in whole if the
        block above keeps them, and so is what two forms have of the same groups. `limits` are what the batch may lose.
        `brought` are the rows as they came, of sources whose rows were made of others: these are counted."""
        arrival = self._begin(rows, times, Arrival(batch, planned_us, limits, brought=brought))
        for name, tenant in self.tenants.items():
            if self._lead(name) != name:
                continue
            results = self._results(tenant, arrival, times[name].watermark_us)
            while True:
                with errors_of(name):
                    found = next(results, None)
                if found is None:
                    break
                yield found
        self._end(arrival)

    def _results(self, tenant: Tenant, arrival: Arrival, watermark_us: int) -> Iterator[Found]:
        """What a query gives in a batch, and those that share the join that it leads."""
        for name, box in self.boxes.items():
            if box.reader.query != tenant.name or name in (tenant.main, tenant.left):
                continue
            above = [b for b in self.boxes.values() if any(s.name == name for s in b.reader.sources)]
            derived = next(s for s in above[0].reader.sources if s.name == name)
            groups: Iterator[Rows] = (piece for _, piece in box.step(watermark_us))
            goes_on = not any(b.reader.keeps_rows or (b.aggregator is None and b.name != tenant.main) for b in above)
            if not goes_on and (whole := [*groups]):  # a box has the rows of a batch in one segment
                groups = iter([pa.Table.from_batches(whole)])
            for rows in groups:
                arrival.take(self.store, derived, rows, {tenant.name: watermark_us})
                for each in above if goes_on else ():
                    yield from each.go_on()
        main, spans, execution = self.boxes[tenant.main], tenant.distribution.groups_span_slots, tenant.execution
        if isinstance(main, SharedBox) or (execution.leaving is None and not spans):
            yield from main.step(watermark_us)
            return
        parts = tenant.as_written((piece for _, piece in main.step(watermark_us)), execution.grouped_input)
        if execution.leaving is not None and tenant.left is not None:
            old = (piece for _, piece in self.boxes[tenant.left].step(watermark_us))
            both = [*parts, *tenant.as_written(old, execution.leaving.grouped_input)]
            together = both if spans else tenant.sgb(both)
            main.statistics.results = sum(piece.num_rows for piece in together)
            parts = iter(together)
        for piece in parts:
            yield tenant.name, piece

    def _begin(self, rows: Mapping[str, Rows], times: Mapping[str, Times], arrival: Arrival) -> Arrival:
        """What has ended goes, states that are lacking are worked at, and new rows come in."""
        arrival.clocks_us = {name: own.clock_us for name, own in times.items() if own.clock_us != BEGINNING_US}
        watermarks = {name: own.watermark_us for name, own in times.items()}
        self._accepted = arrival.batch, watermarks
        for box in self.boxes.values():
            box.begin(arrival)
            if isinstance(box, SharedBox):
                box.watermarks = watermarks
            if isinstance(box, MigBox):
                box.emitted_us = times[box.reader.query].emitted_us
        began = thread_time_ns()
        self.store.purge(self._horizons(times))
        arrival.cpu_ns["purge"] = thread_time_ns() - began
        for box in self.boxes.values():
            box.rebuild.advance(arrival.batch)
        for source in self._sources.values():
            if source.name in rows:
                arrival.take(self.store, source, rows[source.name], watermarks)
        arrival.count_dropped(self.store)
        return arrival

    def _end(self, arrival: Arrival) -> None:
        """Indexes settle, and what the batch measured is put together: steps and results of each query itself, and the
        states that its boxes read. The CPU of what all have in common is shared out evenly."""
        began = thread_time_ns()
        self.store.settle(arrival.batch)
        arrival.cpu_ns["settle"] = thread_time_ns() - began
        found: dict[str, Statistics] = {}
        for name, tenant in self.tenants.items():
            if self._lead(name) == name:
                found |= self._measured(tenant, arrival)
        self.statistics = {name: found[name] for name in self.tenants}
        for source in self.store.logs:
            counted = (own.sources[source] for own in self.statistics.values() if source in own.sources)
            if (first := next(counted, None)) is not None:
                first.held = self.store.held(source)
        share_ns = Statistics(cpu_ns={what: spent // len(found) for what, spent in arrival.cpu_ns.items()})
        for measured in self.statistics.values():
            measured.add_cpu(share_ns)

    def _measured(self, tenant: Tenant, arrival: Arrival) -> dict[str, Statistics]:
        """What a batch measured of a query, and of those that share the join that it leads. Steps and states of a shared
        join, and the CPU that its members spend together, are told as those of the lead: records do not repeat them for each
        member."""
        main, own = self.boxes[tenant.main], [b for b in self.boxes.values() if b.reader.query == tenant.name]
        whole, found = main.statistics, {tenant.name: main.statistics}
        if isinstance(main, SharedBox):
            found = {name: member.statistics for name, member in main.members.items()}
            whole.results = found[tenant.name].results
            whole.add_cpu(found[tenant.name])
            found[tenant.name] = whole
        whole.states = self.store.measured([box.reader for box in own])
        whole.preparing, left = main.rebuild.done, main.rebuild.left()
        read = [self.store.logs[name] for name in {source.name for box in own for source in box.reader.sources}]
        sizes = [(log.source.name, log.rows, log.bytes) for log in read]
        for box in own:
            if isinstance(box, MigBox) and box.homecoming is not None:
                box.homecoming.tell(whole.preparing)
        for query, each in found.items():
            each.preparing.left = left
            for name, state_rows, state_bytes in sizes:
                if isinstance(main, SharedBox) and name not in self.tenants[query].streams:
                    continue  # a member of a shared join may have some of its streams only
                counts = each.sources[name] = arrival.counts.get((query, name)) or SourceStatistics()
                counts.state_rows, counts.state_bytes = state_rows, state_bytes
                counts.slice_rows = self.store.logs[name].rows_by_length if counts.wanted_rows else {}
            for box in own:
                name = query if isinstance(box, SharedBox) else box.name
                if (groups := self.aggregators.get(name)) is not None:
                    state = StateStatistics(f"groups of {name}", "groups", groups.partial_rows, groups.bytes)
                    each.states.append(state)
                    if (handed := groups.handed_out()).instants:
                        each.grouped[name] = handed
                if box is not main:
                    each.add_cpu(box.statistics)
                    each.borders |= box.statistics.borders
                    if len(box.reader.inputs) > 1 and not isinstance(box, MigBox):
                        each.blocks[box.name] = Probed(box.statistics.steps, box.statistics.samples)
        return found

    def verify(self) -> None:
        """Checks the invariants of the state in memory after a batch, for tests: runs are in order, and every box sees the
        rows, and has the views, that it should (`anabranch.engine.visibility`)."""
        self.store.verify()
        self._visibility = self._visibility or Visibility()
        self._visibility.verify(self.boxes.values(), *self._accepted)


def parted_by(tenants: Iterable[Tenant]) -> frozenset[str]:
    """The sources whose rows may be in a slot for the sake of one input of some queries and not of another."""
    return parted_sources([(t.forms.written, t.distribution.grid) for t in tenants])


def _is_for(reader: Reader, block: Block, tenant: Tenant) -> bool:
    """Whether a reader is one for a block of a tenant as it is now."""
    read = {source.name for source in reader.sources if isinstance(source, Table)}
    same = all(reader.versions.get(name, 0) == tenant.versions.get(name, 0) for name in read)
    same = same and reader.is_placed == (block.query.statement is not None)
    same = same and reader.graph.query.keeps_log == block.query.keeps_log
    shared = reader.lineage.shared if reader.lineage is not None else None
    is_since = reader.lineage is not None or reader.since == tenant.since
    return same and is_since and (reader.execution, reader.spans, shared) == (block.execution, block.spans, block.shared)
