"""How one block of a query reads the store of a slot: its inputs, their routes, and the keys of the states it looks up.

A reader owns no state. It says what it needs (`Reader.views`, `Reader.indexes`, columns and predicates for the logs), and
`anabranch.engine.store` keeps what all readers of a slot need together. So an index may hold rows that one of its readers
may not see: rows that came too late for it, or that have a NULL in another of its keys. `Reader.seen` tells which rows it
may; it looks only into segments where there can be others. (The rule itself is written down, and checked, in
`anabranch.engine.visibility`.)

Example: the index over s by k serves q, which joins s by k, and p, which joins it by k and by j. A row of batch 7 has no j.
It is stored for q's sake, and the log does not say of segment 7 that j is not NULL: segment 7 is a *suspect* for p. When p
finds rows in the index, it asks those of batch 7, and no others, for their j.

A select that stands above a join (`anabranch.plan.selects`) is no predicate of its input's rows, and so not in the key of an
index over the source; an index over a view that is below the select is named with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.columns import Ids, varies
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.keys import is_exact
from anabranch.engine.lineage import Lineage
from anabranch.engine.log import Log, Stored, decode, encode
from anabranch.engine.slices import Keeping
from anabranch.plan.demand import is_not_null
from anabranch.plan.expression import Call, Column, Expr, columns_of
from anabranch.plan.grid import Grid
from anabranch.plan.identity import (
    IndexKey,
    RowsKey,
    ViewKey,
    Wanted,
    input_rows,
    named,
    streams_key,
    view_key,
    view_terms,
)
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import part_of
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, Derived, Input, Stream, Table
from anabranch.plan.routes import Index, Probe, indexes, routes, views

ONE_CELL = Grid()
"""The grid of one cell."""


Spans = Mapping[str, tuple[int, int]]
"""By source the batches whose rows are a reader's: the first, and the one behind the last. Of other sources all are."""

EVERY_BATCH: Spans = MappingProxyType({})
ENDLESS = 1 << 62
"""A span that ends with this batch has no end."""


@dataclass(frozen=True)
class Place:
    """Where a block runs: which cell of which grid, and of which sources a row may be there for several reasons."""

    grid: Grid = ONE_CELL
    cell: int = 0
    parted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class InputState:
    """An input of a block, with all predicates that a row of it must pass to be of use."""

    alias: str
    source: Stream | Table
    window_us: int
    rows: RowsKey
    """What an index over it holds: rows that pass `filters`."""
    filters: tuple[Expr, ...]
    has_keys: tuple[Expr, ...] = ()
    """That its keys are not NULL."""
    selects: tuple[Expr, ...] = ()
    """Those of `filters` that may stand elsewhere."""
    raised: tuple[Expr, ...] = ()
    """Predicates of it that stand above a join."""
    lowered: tuple[Expr, ...] = ()
    """Predicates that stand above a join only for the sake of rows that are stored: new ones must pass them, too."""

    @cached_property
    def asked(self) -> dict[str, Expr]:
        """What new rows must pass, by texts without aliases."""
        return {named(f, self.source.name): f for f in (*self.filters, *self.has_keys, *self.lowered)}

    @cached_property
    def seen(self) -> dict[str, Expr]:
        """What stored rows must pass: selects that go down are still evaluated above a join."""
        return {named(f, self.source.name): f for f in (*self.filters, *self.has_keys)}

    @cached_property
    def indexed(self) -> dict[str, Expr]:
        """What rows in an index have passed."""
        return {named(f, self.source.name): f for f in self.filters}


@dataclass(frozen=True)
class BoundIndex:
    """An index as a reader sees it: `terms` are written in its own aliases."""

    key: IndexKey
    aliases: Aliases
    terms: tuple[Expr, ...]

    @property
    def is_ordered(self) -> bool:
        return self.key.is_ordered

    @cached_property
    def is_exact(self) -> bool:
        return is_exact([t.type for t in self.terms])


@dataclass
class Watch:
    """The segments of an input's log in which there may be rows that its reader must not see."""

    suspects: set[int] = field(default_factory=set)
    watermarks: dict[int, int] = field(default_factory=dict)
    """The reader's own watermark of a batch in which rows were stored that were late for it."""

    def forget(self, alive: Collection[int]) -> None:
        """Leaves out segments that are gone."""
        self.suspects.intersection_update(alive)
        self.watermarks = {batch: limit_us for batch, limit_us in self.watermarks.items() if batch in alive}


class Keeper(NamedTuple):
    """Who needs rows of a source after their batch: a reader, or a member of a shared join."""

    name: str
    window_us: int
    """For how long."""
    streams: str
    """The streams whose watermark tells when."""


class Reader:
    """One block of a query, compiled for an execution."""

    def __init__(
        self,
        name: str,
        query: str,
        graph: JoinGraph,
        execution: Execution,
        accepted_by: Iterable[str] = (),
        place: Place = Place(),  # noqa: B008 (frozen)
        versions: Mapping[str, int] | None = None,
        spans: Spans = EVERY_BATCH,
        lineage: Lineage | None = None,
        since: int = 0,
    ) -> None:
        """`name` is the block's, with that of the form it belongs to, `query` that of the whole query. `versions` tells
        which reading of each stored table it sees. Of some sources only the batches of their `spans` are its own. Rows of
        streams that came before batch `since` are not. The reader of a shared join has the name and the query of its
        lead, and tells by its `lineage` which members each row is for, and since when."""
        self.since = since if lineage is None else min(lineage.shared.since)
        self.name, self.query, self.graph, self.execution, self.place = name, query, graph, execution, place
        self.lineage = lineage
        self.queries = (query,) if lineage is None else lineage.shared.names
        """The queries that it reads for."""
        self._queries_over: dict[str, dict[str, str]] = {}
        self._keepers: dict[str, tuple[Keeper, ...]] = {}
        self._lasting: dict[str, set[tuple[int, str]]] = {}
        """For how long rows of each input are of use, and by the watermark of which streams."""
        self.accepted_by = tuple(sorted(accepted_by))
        self.streams = streams_key(self.accepted_by)
        """By whose watermark its rows count, as segments tell for whom rows were late."""
        self.versions, self.spans = dict(versions or {}), spans
        self.selects = execution.selects
        self.is_placed = graph.query.statement is not None
        """Whether a database runs the block: its rows are kept, and follow no routes."""
        self.routes = () if self.is_placed else routes(execution.plan, graph, execution.selects)
        self.target_routes = routes(execution.target, graph, execution.selects) if execution.target is not None else ()
        self.inputs = tuple(self._input(i) for i in graph.query.inputs)
        self._inputs = {i.alias: i for i in self.inputs}
        self.keeps_rows = len(self.inputs) > 1 or graph.query.keeps_log
        """Rows of a single input meet no others: they need not be stored."""
        self.passing = graph.query.passing_stream
        """The input whose rows are of no use after their batch."""
        self.orders: dict[Aliases, Aliases] = {}
        """The inputs of each view in the order in which its key numbers them."""
        self.views: dict[Aliases, ViewKey] = {}
        self.served_views = frozenset(views(self.routes))
        """The views of the plan that gives the results."""
        self.viewed = frozenset(map(frozenset, views(self.routes + self.target_routes)))
        """The inputs of each view."""
        for aliases in views(self.routes + self.target_routes):
            key, self.orders[aliases] = self._view(aliases)
            if key in self.views.values():
                # Of a stream that stands in FROM four times, two views may hold the same: rows become visible to each in
                # turn, so each has its own.
                key = replace(key, owner=f"{query} as ({' '.join(aliases)})")
            self.views[aliases] = key
        self.indexes: dict[Index, BoundIndex] = {}
        for index in indexes(self.routes + self.target_routes):
            self.indexes[index] = self._bound(index)
        self.served_indexes = frozenset(self.indexes[index].key for index in indexes(self.routes))
        self.by_key: dict[IndexKey, BoundIndex] = {}
        for bound in self.indexes.values():
            self.by_key.setdefault(bound.key, bound)
        self.view_indexes = {
            aliases: [i for i in self.by_key.values() if i.aliases == aliases] for aliases in self.views
        }
        self.watches = {i.alias: Watch() for i in self.inputs}
        self.passing_log = None if self.passing is None else Log(self.input(self.passing).source, pa.schema([]))
        """Has the rows of the passing input while their batch lasts."""
        self._varying = {i.alias: self._varying_of(i) for i in self.inputs}

    # -- what it needs -----------------------------------------------------------------------------------------------

    @property
    def sources(self) -> tuple[Stream | Table, ...]:
        return self.graph.query.sources

    def is_open(self, source: Stream | Table) -> bool:
        """Whether it takes new rows of a source."""
        return self.span(source.name)[1] == ENDLESS

    def span(self, source: str) -> tuple[int, int]:
        """The batches of a stream whose rows are its own: the first, and the one behind the last."""
        first, end = self.spans.get(source, (0, ENDLESS))
        return max(first, self.since), end

    def keeps(self, i: InputState) -> bool:
        """Whether rows of an input are of use after their batch."""
        return self.keeps_rows and i.alias != self.passing

    def windows_us(self, i: InputState) -> tuple[int, ...]:
        """For how long rows of an input are of use: of a shared join, to each of its members that has it."""
        return tuple(each.window_us for each in self.keepers(i))

    def keepers(self, i: InputState) -> tuple[Keeper, ...]:
        """For whose sake rows of an input are kept. A lead keeps them in the name of its box."""
        if (found := self._keepers.get(i.alias)) is None:
            if self.lineage is None:
                found = (Keeper(self.name, i.window_us, self.streams),)
            else:
                shared = self.lineage.shared
                windows, over = shared.windows_us(i.alias), shared.members_over(i.alias)
                found = tuple(Keeper(self._name_of(n), windows[n], shared.streams[n]) for n in over)
            self._keepers[i.alias] = found
            self._lasting[i.alias] = {(each.window_us, each.streams) for each in found}
        return found

    def viewers(self, aliases: Aliases) -> tuple[str, ...]:
        """Who has a use for combinations of some inputs that are kept: members of a shared join that have others, too."""
        if self.lineage is None:
            return (self.name,)
        return tuple(self._name_of(place) for place in self.lineage.shared.beyond(set(aliases)))

    @cached_property
    def going(self) -> frozenset[str]:
        """Who goes to the plan that a migration goes to: a member of a shared join over some of the inputs stays as it is if
        both plans bring these together in the same way."""
        if self.lineage is None:
            return frozenset([self.name])
        plan, target, members = self.execution.plan, self.execution.target, self.lineage.shared.members
        inputs = [set(member.aliases) for member in members]
        stays = [target is None or part_of(plan, each) == part_of(target, each) for each in inputs]
        return frozenset(self._name_of(place) for place, is_same in enumerate(stays) if not is_same)

    def _name_of(self, place: int) -> str:
        """The name by which a member of a shared join keeps rows: of the lead that of its box."""
        return self.queries[place] if place else self.name

    def window_us(self, i: InputState, keeping: Keeping) -> int | None:
        """For how long rows of a slice are of use to the reader; None if no row of it is. A row is in a slice of at least
        the longest window of those who want it."""
        self.keepers(i)
        mine = (us for us, streams in self._lasting[i.alias] if us <= keeping.retention_us and keeping.is_for(streams))
        return max(mine, default=None)

    def queries_over(self, source: str) -> Mapping[str, str]:
        """The queries that it reads a source for, and the streams whose watermark is theirs."""
        if source not in self._queries_over:
            if self.lineage is None:
                found = {self.query: self.streams}
            else:
                shared = self.lineage.shared
                places = sorted({p for i in self.inputs_over(source) for p in shared.members_over(i.alias)})
                found = {shared.names[place]: shared.streams[place] for place in places}
            self._queries_over[source] = found
        return self._queries_over[source]

    def late_us(self, alias: str, stored: Stored) -> int | None:
        """Before which time rows of a segment were late; None if none was, or if the sets of rows tell for whom."""
        if self.lineage is not None and self.lineage.tells_late(alias):
            return None
        return stored.watermarks.get(self.streams)

    def inputs_over(self, source: str) -> list[InputState]:
        return [i for i in self.inputs if i.source.name == source]

    def stored_columns(self, source: Stream | Table) -> set[str]:
        """The columns that the log must keep: for keys, residuals and results, for selects that stand above a join, and to
        tell which rows are in a cell for the sake of an input."""
        inputs = self.inputs_over(source.name)
        needed = {c for i in inputs for c in self.graph.query.needed_columns(i.alias)}
        return needed | columns_read(f for i in inputs for f in (*i.raised, *self._placed_by(i)))

    def _placed_by(self, i: InputState) -> list[Expr]:
        """What tells which rows are in a cell for the sake of an input, where others are there too."""
        if i.source.name not in self.place.parted:
            return []
        terms = (self.place.grid.dimensions[place].term_of(i.alias) for place in self.place.grid.own(i.alias))
        return [term for term in terms if term is not None]

    def read_columns(self, source: Stream | Table) -> set[str]:
        """Those, and what must be looked at when rows come in."""
        asked = (f for i in self.inputs_over(source.name) for f in (*i.asked.values(), *i.raised))
        return self.stored_columns(source) | columns_read(asked)

    def varying_columns(self, alias: str) -> tuple[str, ...]:
        """The columns of an input that may be fetched of combined rows and whose values differ in length."""
        return self._varying[alias]

    def _varying_of(self, i: InputState) -> tuple[str, ...]:
        above = columns_read((*i.raised, *i.lowered)) | self.stored_columns(i.source)
        return tuple(f.name for f in i.source.fields if f.name in above and varies(f.type))

    # -- its inputs --------------------------------------------------------------------------------------------------

    def input(self, alias: str) -> InputState:
        return self._inputs[alias]

    def _input(self, i: Input) -> InputState:
        above = [s for s in self.selects if s.alias == i.alias]
        raised = tuple(s.predicate for s in above if s.until_us is None)
        lowered = tuple(s.predicate for s in above if s.until_us is not None)
        kept = tuple(f for f in i.filters if f not in raised and f not in lowered)
        implied = self._implied(i.alias)
        has_keys = tuple(f for f in implied if is_not_null(f))
        filters = kept + tuple(f for f in implied if not is_not_null(f))
        version = self.versions.get(i.source.name, 0) if isinstance(i.source, Table) else 0
        rows = input_rows(i, filters, self._membership(i), version)
        return InputState(i.alias, i.source, i.window.length_us, rows, filters, has_keys, kept, raised, lowered)

    def _implied(self, alias: str) -> tuple[Expr, ...]:
        """What keys ask of rows of an input: in a shared join those that all members have which have the input."""
        implied = self.graph.implied_filters(alias)
        return implied if self.lineage is None else tuple(f for f in implied if f in self.lineage.shared.asked[alias])

    def has_keys(self, alias: str, terms: tuple[Expr, ...]) -> bool:
        """Whether no row of an input has a NULL in some keys. In a shared join there may be rows that only members want
        which do not join by them."""
        if self.lineage is None:
            return True
        known = self.input(alias).has_keys
        return all(Call(pa.bool_(), "not", (Call(pa.bool_(), "is_null", (term,)),)) in known for term in terms)

    def _membership(self, i: Input) -> list[str]:
        """What decides whether a row belongs to a cell as a row of an input, where it may be there for other reasons."""
        if i.source.name not in self.place.parted:
            return []
        grid = self.place.grid
        found = []
        for place in grid.own(i.alias):
            term = grid.dimensions[place].term_of(i.alias)
            by, coordinate = named(term, i.source.name) if term else "rows", grid.coordinate(self.place.cell, place)
            found.append(f"{by} in part {coordinate} of {grid.shares[place]}")
        return sorted(found)

    def is_shown(self, i: InputState, batch: int) -> bool:
        """Whether a segment of an input's log is one that the reader may see."""
        if isinstance(i.source, Table):
            return batch == self.versions.get(i.source.name, 0)
        first, end = self.span(i.source.name)
        return first <= batch < end

    def watch(self, source: str, batch: int, stored: Stored) -> None:
        """Looks at a segment that a log got: may there be rows in it that are none of an input's?"""
        for i in self.inputs_over(source):
            open_ = [f for text, f in i.seen.items() if text not in stored.passed and text not in i.indexed]
            is_suspect = any(not _is_filled(f, stored.rows) for f in open_)
            if not self.is_shown(i, batch) and isinstance(i.source, Stream):
                self.watches[i.alias].suspects.add(batch)
                continue
            if (late := self.late_us(i.alias, stored)) is not None:
                self.watches[i.alias].watermarks[batch] = late
                is_suspect = True
            if is_suspect:
                self.watches[i.alias].suspects.add(batch)

    def look_at(self, logs: Mapping[str, Log]) -> None:
        """Looks at all that the logs have."""
        self.watches = {i.alias: Watch() for i in self.inputs}
        for source in self.sources:
            for batch, stored in logs[source.name].segments.items():
                self.watch(source.name, batch, stored)

    def forget(self, source: str, alive: Collection[int]) -> None:
        """Leaves out segments of a log that are gone."""
        for i in self.inputs_over(source):
            self.watches[i.alias].forget(alive)
            if self.lineage is not None:
                self.lineage.forget(i.alias, alive)

    def seen(self, alias: str, ids: Ids, log: Log) -> npt.NDArray[np.bool_] | None:
        """Which rows that an index shows of an input the reader may see; None if all."""
        watch = self.watches[alias]
        if not watch.suspects or not len(ids):
            return None
        places = np.flatnonzero(np.isin(ids >> 32, list(watch.suspects)))
        if not len(places):
            return None
        i, chosen, found = self.input(alias), ids[places], np.ones(len(ids), np.bool_)
        mask = predicate_mask(i.has_keys, lambda column: log.column(column.name, chosen), len(chosen))
        if mask is not None:
            found[places] = mask
        if isinstance(i.source, Stream) and (span := self.span(i.source.name)) != (0, ENDLESS):
            found[places] &= (chosen >> 32 >= span[0]) & (chosen >> 32 < span[1])
        if watch.watermarks:
            batches, limits = chosen >> 32, np.full(len(chosen), np.iinfo(np.int64).min)
            for batch, watermark_us in watch.watermarks.items():
                limits[batches == batch] = watermark_us
            found[places] &= log.times(chosen) >= limits
        return None if found.all() else found

    def keep_for_now(self, batch: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the passing input, to be fetched from until the batch ends."""
        assert self.passing_log is not None
        data = encode(rows)
        self.passing_log.clear()
        self.passing_log.add(batch, Stored(data, decode(data), BEGINNING_US))
        return self.passing_log.segments[batch].rows

    # -- its states --------------------------------------------------------------------------------------------------

    def _view(self, aliases: Aliases) -> tuple[ViewKey, Aliases]:
        migration = self.execution.migration
        is_new = migration is not None and self.execution.is_parallel and aliases not in self.served_views
        rows = {a: self._written_rows(self.graph.query.input(a), aliases) for a in aliases}
        owner = self.query if self.selects or self.spans else ""
        since = migration.since if is_new and migration is not None else 0
        came = self.since if self.lineage is None else 0  # of a shared join that is told for each member
        windows_us = {a: self._window_in(a, aliases) for a in aliases}
        return view_key(self.graph, aliases, rows, windows_us, self.accepted_by, owner, since, self._wanted, came)

    def _window_in(self, alias: str, aliases: Aliases) -> int:
        """For how long rows of an input are of use in a view of some inputs."""
        if self.lineage is None:
            return self.input(alias).window_us
        return self.lineage.shared.window_in(alias, set(aliases))

    def _wanted(self, order: Aliases) -> tuple[Wanted, ...]:
        """Which combinations of inputs members of a shared join want, with numbers for the inputs; nothing: all."""
        return () if self.lineage is None else self.lineage.shared.wanted(order)

    def _written_rows(self, i: Input, aliases: Aliases) -> RowsKey:
        """The rows of an input as a view counts them: all its predicates, wherever they stand, and all its keys; of a shared
        join those of the members that want what is in the view."""
        version = self.versions.get(i.source.name, 0) if isinstance(i.source, Table) else 0
        filters = (*i.filters, *self.graph.implied_filters(i.alias))
        if self.lineage is not None:
            filters = self.lineage.shared.filters_in(i.alias, aliases)
        return input_rows(i, filters, self._membership(i), version)

    def _bound(self, index: Index) -> BoundIndex:
        if len(index.state) > 1:
            order = self.orders[index.state]
            before = tuple(sorted(view_terms(self.open_selects(index.state), order)))
            key = IndexKey(self.views[index.state], view_terms(index.terms, order), index.is_ordered, before)
        else:
            i = self.input(index.state[0])
            key = IndexKey(i.rows, tuple(named(t, i.source.name) for t in index.terms), index.is_ordered)
        return BoundIndex(key, index.state, index.terms)

    def index_of(self, probe: Probe) -> BoundIndex:
        return self.indexes[probe.index]

    def own_index(self, alias: str, terms: tuple[Expr, ...]) -> IndexKey | None:
        """The index over an input by these terms, if the plan has it."""
        i = self.input(alias)
        key = IndexKey(i.rows, tuple(named(t, i.source.name) for t in terms))
        return key if key in self.by_key else None

    def passed(self, aliases: Aliases) -> tuple[Expr, ...]:
        """The selects that combined rows of some inputs have passed."""
        below = [s for alias in aliases for s in self.input(alias).selects]
        return (*below, *(s.predicate for s in self.selects if s.above <= set(aliases)))

    def open_selects(self, aliases: Aliases) -> frozenset[Expr]:
        """The selects that they have still before them."""
        return frozenset(s.predicate for s in self.selects if s.is_open(set(aliases)))

    @cached_property
    def reads_groups(self) -> bool:
        """Whether some input is the groups of a subquery."""
        return any(isinstance(i.source, Derived) for i in self.inputs)


def columns_read(exprs: Iterable[Expr]) -> set[str]:
    return {c.name for e in exprs for c in columns_of(e)}


def _is_filled(predicate: Expr, rows: pa.RecordBatch) -> bool:
    """Whether all rows fulfil that a term is not NULL, as far as that can be told without looking at them."""
    assert isinstance(predicate, Call)
    (test,) = predicate.args
    assert isinstance(test, Call)
    term = test.args[0]
    if not isinstance(term, Column):
        return False
    place = rows.schema.get_field_index(term.name)
    return place >= 0 and not rows.column(place).null_count


def values_of(terms: Iterable[Expr], rows: pa.RecordBatch) -> list[pa.Array]:
    """The values of terms over one input for rows of a segment."""
    return [evaluate(t, lambda c: rows.column(rows.schema.get_field_index(c.name)), rows.num_rows) for t in terms]
