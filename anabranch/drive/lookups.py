"""Rows of a batch are looked up for, ahead of the engine: what was found comes to it as rows of an enriched stream.

A slot that has rows of `orders` for a query over `orders+customers` (`anabranch.plan.lookups`) asks the database of
`customers` once a batch, for the distinct keys of the rows that some query can use: not late, not early, with a key, and
past the filters that need nothing from the table. Rows found are joined with them by the same keys here, so that only what
is equal to us is a match. Where it takes less, by what was measured, the table is read whole instead
(`anabranch.place.reading`), and one that does not change is kept then (`anabranch.drive.shipped`).

Of a table that may change nothing is remembered between batches. A batch that runs again before its commit looks up again,
and may find something else; after its commit it is not computed any more. So each row meets what one run of its batch has
found. Where rows of one stream are in several slots, these read one snapshot of the database, which the driver holds until
they are done (`asking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.control.pace import Pace, Took
from anabranch.control.records import Border, Statistics
from anabranch.drive.shipped import Known, Shelf, ShippedTable, shipped
from anabranch.engine.accept import Rows, conform, in_one_piece
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.errors import DatabaseError
from anabranch.place.databases.protocol import Servers, Wanted
from anabranch.place.databases.registry import database
from anabranch.place.reading import MOST_BYTES, LookupCosts, Way, at_pace, choose_way, expected_s, pace_name
from anabranch.plan.demand import asked_of, read_columns
from anabranch.plan.distribution import Distribution, all_inputs, parted_sources
from anabranch.plan.expression import Column, Expr, columns_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import brought_columns, enriched_levels, is_found, looked_up
from anabranch.plan.query import BEGINNING_US, ENGINE, STATIC, Enriched, Query
from anabranch.plan.workload import Workload

LOOKUP = "wall lookup"
"""What the time is called that databases took."""


class Asking(msgspec.Struct, frozen=True):
    """What the tasks of a batch are told about databases, by name. Nothing of how they are reached is in it."""

    snapshots: dict[str, str] = {}
    """The snapshots that lookups read."""
    costs: dict[str, LookupCosts] = {}
    """What lookups take in databases of which that was measured."""


NOT_ASKING = Asking()


@dataclass(frozen=True)
class Lookups:
    """Makes the rows of enriched streams that some queries of a run read, in one batch of one slot."""

    run: str
    queries: Mapping[str, Query]
    databases: Servers = database
    asking: Asking = NOT_ASKING
    shelf: Shelf = field(default_factory=Shelf)
    """What the worker remembers of tables."""
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """How long databases have taken of late, beside what was calibrated (`anabranch.place.reading.pace_name`)."""
    borders: dict[str, Border] = field(default_factory=dict)
    """What was asked, by the stream for whose rows."""
    took: dict[str, Took] = field(default_factory=dict)
    """How long that took beside what was expected, as `paces` are named."""

    def __bool__(self) -> bool:
        return any(looked_up(query) for query in self.queries.values())

    def enriched(
        self,
        rows: Mapping[str, Rows],
        watermarks: Mapping[str, int],
        planned_us: int,
    ) -> tuple[dict[str, Rows], dict[str, Rows]]:
        """The rows of a batch as the engine takes them in, and those of enriched streams as they came."""
        taken, brought = dict(rows), dict[str, Rows]()
        if not self:
            return taken, brought
        workload = Workload(tuple(self.queries.values()))
        columns = read_columns(workload)
        for name, source in workload.streams.items():
            if isinstance(source, Enriched) and name in rows:
                came = conform(source, rows[name], brought_columns(source, columns[name]))
                readers = workload.readers(name)
                least_us = min((watermarks.get(q.name, BEGINNING_US) for q in readers), default=BEGINNING_US)
                mask = _useful(source, came, least_us, source.early_after_us(planned_us), readers)
                useful = came if mask.all() else came.filter(pa.array(mask))
                brought[name] = came
                taken[name] = conform(source, self._found(source, useful, columns[name]), columns[name])
        return taken, brought

    def tell(self, statistics: Mapping[str, Statistics]) -> None:
        """Notes what was asked among what queries did: of each that reads the stream."""
        if not self.borders:
            return
        for name, query in self.queries.items():
            for source in enriched_levels(query):
                if (border := self.borders.get(source.name)) is not None:
                    statistics[name].borders[source.name] = border
                for way in Way:
                    if (took := self.took.get(pace_name(source.name, way))) is not None:
                        statistics[name].took[pace_name(source.name, way)] = took
        spent_s = sum(border.seconds for border in self.borders.values())
        next(iter(statistics.values())).cpu_ns[LOOKUP] = round(spent_s * 1e9)

    def _found(self, source: Enriched, rows: pa.RecordBatch, columns: Iterable[str]) -> pa.Table:
        """Rows with what was found for them, in one table after the other."""
        base, wanted = source.base, {*columns}
        if isinstance(base, Enriched):
            needed = wanted | {c.name for _, term in source.keys for c in columns_of(term)}
            rows = conform(base, self._found(base, rows, needed), _known(base, needed))
        terms = [evaluate(term, lambda c: _column(rows, c), rows.num_rows) for _, term in source.keys]
        ours = pa.Table.from_arrays([in_one_piece(t) for t in terms], names=[f"k{n}" for n in range(len(terms))])
        theirs = self._asked(source, ours, wanted)
        return _joined(source, rows, ours, theirs, wanted)

    def _asked(self, source: Enriched, keys: pa.Table, wanted: set[str]) -> pa.Table:
        """Rows of the table among which are those for the keys, with its key columns first."""
        types = {f.name: f.outward or f.type for f in source.table.fields}
        names = dict.fromkeys([*(column for column, _ in source.keys), *(t for here, t in source.found if here in wanted)])
        asked = Wanted(
            source.table.relation, tuple(column for column, _ in source.keys), tuple((name, types[name]) for name in names)
        )
        distinct = keys.drop_null().group_by(keys.column_names, use_threads=False).aggregate([])
        if not distinct.num_rows:
            return pa.schema(asked.columns).empty_table()
        known = self.shelf.of(self.run, f"{source.name} {' '.join(names)}")
        if known.table is not None:
            return known.table.candidates(distinct)
        return self._brought(source, asked, distinct, known)

    def _place(self, source: Enriched) -> str | None:
        """Where a hint wants a table: of the first query that has one, of those that look it up for the same rows."""
        levels = (each for _, query in sorted(self.queries.items()) for each in enriched_levels(query))
        return next((each.place for each in levels if each.name == source.name and each.place is not None), None)

    def _brought(self, source: Enriched, asked: Wanted, keys: pa.Table, known: Known) -> pa.Table:
        """What a database gives for some distinct keys, asked in the way that takes least."""
        name, relation = source.table.database, source.table.relation
        theirs, snapshot, costs = self.databases(name), self.asking.snapshots.get(name), self.asking.costs.get(name)
        place = self._place(source)
        size = known.size(lambda: theirs.size(relation)) if costs is not None or place == ENGINE else None
        is_static, room = source.table.reading == STATIC, self.shelf.room(self.run)
        paced = at_pace(costs, self.paces, source.name) if costs is not None else None
        way = choose_way(is_static, keys.num_rows, size, paced, known.spent_s, room, place)
        border, began = self.borders.setdefault(source.name, Border(name)), perf_counter()
        if way is not Way.LOOKUP:
            try:
                most = room if way is Way.SHIPPED else MOST_BYTES
                found = theirs.read(relation, asked.columns, snapshot, most_bytes=most)
            except DatabaseError:  # it took too long, or is too large: a lookup may do, or tells why not
                known.forget_size()
                way, began = Way.LOOKUP, perf_counter()
        if way is Way.LOOKUP:
            found = theirs.lookup(asked, keys, snapshot)
        seconds, asked_for = perf_counter() - began, keys.num_rows if way is Way.LOOKUP else found.num_rows
        known.spent_s += seconds if way is Way.LOOKUP else 0.0
        if costs is not None and (expected := expected_s(costs, way, asked_for)) is not None:
            took = self.took.setdefault(pace_name(source.name, way), Took(round_trip_s=costs.round_trip_s))
            took.add(Took(seconds, expected))
        sent = (keys.num_rows, keys.nbytes) if way is Way.LOOKUP else (0, 0)
        border.count(sent, (found.num_rows, found.nbytes), seconds)
        if way is Way.SHIPPED:
            assert size is not None, "a table of unknown size is looked up"
            bytes = max(size.bytes, found.nbytes)
            self.shelf.make_room(self.run, bytes)
            known.table = _shipped(source, found, keys, bytes)
            return known.table.candidates(keys)
        return found


def _shipped(source: Enriched, theirs: pa.Table, keys: pa.Table, bytes: int) -> ShippedTable:
    return shipped(theirs, _keys_as_here(source, theirs, keys), bytes)


def _keys_as_here(source: Enriched, theirs: pa.Table, ours: pa.Table) -> pa.Table:
    """The key columns of a table in the types, and under the names, that rows have them in."""
    arrays = [_as_here(theirs.column(column)).cast(ours.column(n).type) for n, (column, _) in enumerate(source.keys)]
    return pa.Table.from_arrays(arrays, names=ours.column_names)


def _useful(
    source: Enriched, rows: pa.RecordBatch, least_us: int, early_after_us: int, readers: Iterable[Query]
) -> npt.NDArray[np.bool_]:
    """Which rows some query may use, as far as is known before the lookup."""
    times = _column(rows, Column(pa.timestamp("us"), "", source.time))
    us = times.fill_null(0).view(pa.int64()).to_numpy()
    mask: npt.NDArray[np.bool_] = (us >= least_us) & (us <= early_after_us)
    if times.null_count:
        mask &= times.is_valid().to_numpy(zero_copy_only=False)
    wanted = np.zeros(rows.num_rows, np.bool_)
    for query in readers:
        for block in query.blocks:
            graph = JoinGraph(block)
            for i in block.inputs:
                if i.source.name == source.name:
                    early = tuple(f for f in asked_of(graph, i.alias) if not _reads_found(source, f))
                    passing = predicate_mask(early, lambda c: _column(rows, c), rows.num_rows)
                    if passing is None:
                        return mask
                    wanted |= passing
    return mask & wanted


def _reads_found(source: Enriched, expr: Expr) -> bool:
    return any(is_found(source, column.name) for column in columns_of(expr))


def _joined(source: Enriched, rows: pa.RecordBatch, ours: pa.Table, theirs: pa.Table, wanted: set[str]) -> pa.Table:
    """Each row with each row of the table that has its key."""
    keys = ours.column_names
    left = ours.append_column("left", pa.array(np.arange(rows.num_rows)))
    theirs_keys = _keys_as_here(source, theirs, ours)
    right = theirs_keys.append_column("right", pa.array(np.arange(theirs.num_rows)))
    pairs = left.join(right, keys, join_type="inner", use_threads=False)
    lefts, rights = pairs.column("left"), pairs.column("right")
    order = pc.sort_indices(pairs, sort_keys=[("left", "ascending"), ("right", "ascending")])
    lefts, rights = lefts.take(order), rights.take(order)
    arrays, names = [], []
    for name in rows.schema.names:
        names.append(name)
        arrays.append(pa.chunked_array([rows.column(name)]).take(lefts))
    for here, there in source.found:
        if here in wanted:
            names.append(here)
            arrays.append(_as_here(theirs.column(there)).take(rights))
    return pa.Table.from_arrays(arrays, names=names)


def _as_here(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants as the engine has them."""
    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column


def _known(source: Enriched, columns: Iterable[str]) -> tuple[str, ...]:
    """Those of some columns that a source has."""
    wanted = {*columns, *brought_columns(source, ())}
    return tuple(f.name for f in source.fields if f.name in wanted)


def _column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(rows.schema.get_field_index(column.name))


def databases_read_apart(queries: Iterable[tuple[Query, Distribution]]) -> set[str]:
    """The databases of which several slots may look up for one row, or for one stream's rows in several ways: these must
    read one snapshot."""
    found: set[str] = set()
    spread = [(all_inputs(query), distribution.exchange) for query, distribution in queries]
    parted = parted_sources(spread)
    for inputs, grid in spread:
        for i in inputs.inputs:
            if isinstance(i.source, Enriched) and (len(grid.offsets(i.alias)) > 1 or i.source.name in parted):
                level = i.source
                while True:
                    found.add(level.table.database)
                    if not isinstance(level.base, Enriched):
                        break
                    level = level.base
    return found


@contextmanager
def asking(
    apart: Iterable[str], costs: Mapping[str, LookupCosts] = MappingProxyType({}), databases: Servers = database
) -> Iterator[Asking]:
    """What tasks are told: one snapshot of each database that several of them read, held until the context ends."""
    with ExitStack() as held:
        snapshots = {name: held.enter_context(databases(name).export_snapshot()) for name in sorted(apart)}
        yield Asking(snapshots, dict(costs))


def databases_of(queries: Iterable[Query]) -> set[str]:
    """The databases that queries look up in."""
    return {source.table.database for query in queries for source in enriched_levels(query)}
