"""Rows of a batch are looked up for, ahead of the engine: what was found comes to it as rows of an enriched stream.

A slot that has rows of `orders` for a query over `orders+customers` (`anabranch.plan.lookups`) asks the database of
`customers` once a batch, for the distinct keys of the rows that some query can use: not late, not early, with a key, and
past the filters that need nothing from the table. Rows found are joined with them by the same keys here, so that only what
is equal to us is a match.

Nothing is remembered between batches. A batch that runs again before its commit looks up again, and may find something else;
after its commit it is not computed any more. So each row meets what one run of its batch has found. Where rows of one stream
are in several slots, these read one snapshot of the database, which the driver holds until they are done (`snapshots`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.control.records import Border
from anabranch.engine.accept import Rows, conform, in_one_piece
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.place.databases.protocol import Databases, Wanted
from anabranch.place.databases.registry import database
from anabranch.plan.demand import asked_of, read_columns
from anabranch.plan.distribution import Distribution, all_inputs, parted_sources
from anabranch.plan.expression import Column, Expr, columns_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import brought_columns, is_found, looked_up
from anabranch.plan.query import BEGINNING_US, Enriched, Query
from anabranch.plan.workload import Workload

LOOKUP = "wall lookup"
"""What the time is called that databases took."""

Snapshots = Mapping[str, str]
"""By database, the snapshot that lookups read."""


@dataclass(frozen=True)
class Lookups:
    """Makes the rows of enriched streams that some queries read."""

    queries: Mapping[str, Query]
    databases: Databases = database
    counted: Border = field(default_factory=Border)

    def __bool__(self) -> bool:
        return any(looked_up(query) for query in self.queries.values())

    def enriched(
        self,
        rows: Mapping[str, Rows],
        watermarks: Mapping[str, int],
        planned_us: int,
        snapshots: Snapshots,
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
                taken[name] = conform(source, self._found(source, useful, columns[name], snapshots), columns[name])
        return taken, brought

    def _found(self, source: Enriched, rows: pa.RecordBatch, columns: Iterable[str], snapshots: Snapshots) -> pa.Table:
        """Rows with what was found for them, in one table after the other."""
        base, wanted = source.base, {*columns}
        if isinstance(base, Enriched):
            needed = wanted | {c.name for _, term in source.keys for c in columns_of(term)}
            rows = conform(base, self._found(base, rows, needed, snapshots), _known(base, needed))
        terms = [evaluate(term, lambda c: _column(rows, c), rows.num_rows) for _, term in source.keys]
        ours = pa.Table.from_arrays([in_one_piece(t) for t in terms], names=[f"k{n}" for n in range(len(terms))])
        theirs = self._asked(source, ours, wanted, snapshots)
        return _joined(source, rows, ours, theirs, wanted)

    def _asked(self, source: Enriched, keys: pa.Table, wanted: set[str], snapshots: Snapshots) -> pa.Table:
        """The rows of the table for the distinct keys, with its key columns first."""
        types = {f.name: f.outward or f.type for f in source.table.fields}
        names = dict.fromkeys([*(column for column, _ in source.keys), *(t for here, t in source.found if here in wanted)])
        asked = Wanted(
            source.table.relation, tuple(column for column, _ in source.keys), tuple((name, types[name]) for name in names)
        )
        distinct = keys.drop_null().group_by(keys.column_names, use_threads=False).aggregate([])
        if not distinct.num_rows:
            return pa.schema(asked.columns).empty_table()
        began = perf_counter_ns()
        name = source.table.database
        found = self.databases(name).lookup(asked, distinct, snapshots.get(name))
        took_ns = perf_counter_ns() - began
        self.counted.add(Border(1, distinct.num_rows, distinct.nbytes, found.num_rows, found.nbytes, took_ns))
        return found


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
    right = pa.Table.from_arrays(
        [
            _as_here(theirs.column(column)).cast(ours.column(n).type)
            for n, (column, _) in enumerate(source.keys)
        ]
        + [pa.array(np.arange(theirs.num_rows))],
        names=[*keys, "right"],
    )
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
def snapshots(names: Iterable[str], databases: Databases = database) -> Iterator[Snapshots]:
    """One snapshot of each of some databases, held until the context ends."""
    with ExitStack() as held:
        yield {name: held.enter_context(databases(name).export_snapshot()) for name in sorted(names)}
