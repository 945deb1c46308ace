"""Aggregates over windows: at every slide instant, over the rows that are valid then.

A row that is valid `[start, end)` counts at the instants `first … last - 1`, multiples of SLIDE. The rows of a batch are
folded by group, first and last: what is stored is one *partial* row for each of these, however many rows there were. When
the watermark has passed an instant, its partial rows begin to count for their groups, others end, and every group with rows
gives a result. So a row is touched when it arrives, a partial row when it begins and when it ends, and the window is never
scanned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import PartialSegment
from anabranch.engine.aggregates import Accumulator, Count, Parts, accumulator
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.groups import Groups, Ids
from anabranch.engine.kernels import aggregation as kernels
from anabranch.plan.expression import Column
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Grouping

NEVER = 2**62
"""The instant at which rows end that do not end."""
BY_KEYS = "keys"
LEAST_DEAD = 4096
"""Groups without rows are forgotten when there are more of them than this, and more than of others."""


def instant_of(time_us: int, slide_us: int) -> int:
    """The first instant at or after a time.

    >>> instant_of(1, 10), instant_of(10, 10), instant_of(-1, 10)
    (1, 1, 0)
    """
    return NEVER if time_us >= FOREVER_US else -(-time_us // slide_us)


@dataclass
class Partials:
    """The partial rows of one batch in one table."""

    keys: list[pa.Array]
    firsts: Ids
    lasts: Ids
    parts: list[Parts]
    data: pa.Buffer | None = None
    record: PartialSegment | None = None
    groups: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    """Numbers of the rows' groups, for whoever holds them now."""

    @property
    def last(self) -> int:
        return int(self.lasts.max())

    def encode(self) -> pa.Buffer:
        """The partial rows as an Arrow IPC stream."""
        columns: dict[str, Any] = {f"key{i}": key for i, key in enumerate(self.keys)}
        columns |= {"first": self.firsts, "last": self.lasts}
        for place, parts in enumerate(self.parts):
            columns |= {f"{place} {name}": values for name, values in parts.items()}
        batch = pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()


def decode(data: pa.Buffer, keys: int, accumulators: int) -> Partials:
    batch = pa.ipc.open_stream(data).read_next_batch()
    parts: list[Parts] = [{} for _ in range(accumulators)]
    for name in batch.schema.names[keys + 2 :]:
        place, column = name.split(" ")
        values = batch.column(name)
        fixed = pa.types.is_primitive(values.type) and column != "value"
        parts[int(place)][column] = values.to_numpy() if fixed else values
    firsts, lasts = batch.column("first").to_numpy(), batch.column("last").to_numpy()
    return Partials([batch.column(i) for i in range(keys)], firsts, lasts, parts, data)


class Table:
    """Partial rows by batch, and when they begin and end to count. `BY_KEYS`, or one for each COUNT DISTINCT."""

    def __init__(self, name: str, types: Sequence[pa.DataType], accumulators: Sequence[Accumulator]) -> None:
        self.name, self.types, self.accumulators = name, tuple(types), tuple(accumulators)
        self.batches: dict[int, Partials] = {}
        self.entering: dict[int, list[tuple[Partials, Ids]]] = {}
        self.leaving: dict[int, list[tuple[Partials, Ids]]] = {}

    def fold(self, keys: Sequence[pa.Array], firsts: Ids, lasts: Ids, values: Sequence[pa.Array | None]) -> Partials:
        """The partial rows of some rows."""
        rows = len(firsts)
        # Rows are told apart by their keys within the batch; numbers that last are given when they are added.
        numbers = Groups(self.types).numbers(keys, rows)
        ids, group = np.empty(rows, np.int64), np.empty(rows, np.int64)
        first, last = np.empty(rows, np.int64), np.empty(rows, np.int64)
        table = np.full(1 << (2 * rows).bit_length(), kernels.NONE, np.int64)
        count = int(kernels.fold(numbers, firsts, lasts, table, ids, group, first, last))
        some_row = np.empty(count, np.int64)
        some_row[ids] = np.arange(rows)
        places = pa.array(some_row)
        parts = [a.fold(ids, count, v) for a, v in zip(self.accumulators, values, strict=True)]
        return Partials([k.take(places) for k in keys], first[:count].copy(), last[:count].copy(), parts)

    def add(self, batch: int, partials: Partials) -> None:
        self.batches[batch] = partials

    def schedule(self, partials: Partials, after: int) -> Ids:
        """Notes when rows begin and end; returns those that began before the instant `after` and have not ended by then."""
        for instants, when in ((partials.firsts, self.entering), (partials.lasts, self.leaving)):
            for instant, rows in _by_instant(instants):
                if after <= instant < NEVER:
                    when.setdefault(instant, []).append((partials, rows))
        return np.flatnonzero((partials.firsts < after) & (partials.lasts >= after))

    def purge(self, instant: int) -> None:
        """Forgets batches of which no row counts at or after an instant."""
        for batch in [b for b, p in self.batches.items() if p.last <= instant]:
            del self.batches[batch]


def _by_instant(instants: Ids) -> Iterable[tuple[int, Ids]]:
    order = np.argsort(instants, kind="stable")
    found, starts = np.unique(instants[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts[1:]), strict=True)


class Aggregator:
    """The groups of a query in one slot."""

    def __init__(self, grouping: Grouping, schema: pa.Schema) -> None:
        self.grouping, self.schema = grouping, schema
        self._fold_rows: list[tuple[list[pa.Array], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self._reset()

    def _reset(self) -> None:
        grouping, types = self.grouping, self.schema.types
        self._accumulators: dict[int, Accumulator] = {}
        self._distinct: dict[int, Distinct] = {}
        for place, aggregate in enumerate(grouping.aggregates):
            argument = types[aggregate.argument] if aggregate.argument is not None else None
            if aggregate.function == "count_distinct":
                assert aggregate.argument is not None
                self._distinct[place] = Distinct(aggregate.argument, types[: grouping.keys], types[aggregate.argument])
            else:
                self._accumulators[place] = accumulator(aggregate, argument)
        self.rows = Count()
        self.groups = Groups(types[: grouping.keys])
        self.tables = {BY_KEYS: Table(BY_KEYS, self.groups.types, [self.rows, *self._accumulators.values()])}
        self.tables |= {d.table.name: d.table for d in self._distinct.values()}
        self.position: int | None = None
        """The next instant to be evaluated; None before there is any."""

    # -- rows come in ------------------------------------------------------------------------------------------------

    def take(self, columns: list[pa.Array], starts: Ids, ends: Ids) -> None:
        """Takes rows of the batch that is being processed: keys, then arguments, and their validity."""
        slide = self.grouping.slide_us
        firsts = -(-starts // slide)
        lasts = np.where(ends == FOREVER_US, NEVER, -(-np.where(ends == FOREVER_US, 0, ends) // slide))
        counts = firsts < lasts
        if not counts.all():
            mask = pa.array(counts)
            columns, firsts, lasts = [c.filter(mask) for c in columns], firsts[counts], lasts[counts]
        if len(firsts):
            self._fold_rows.append((columns, firsts, lasts))

    def settle(self, batch: int) -> None:
        """Folds the rows of a batch."""
        taken, self._fold_rows = self._fold_rows, []
        if not taken:
            return
        columns = [pa.concat_arrays(pieces) for pieces in zip(*(c for c, _, _ in taken), strict=True)]
        firsts, lasts = np.concatenate([f for _, f, _ in taken]), np.concatenate([x for _, _, x in taken])
        keys = columns[: self.grouping.keys]
        values: list[pa.Array | None] = [None]
        for place in self._accumulators:
            argument = self.grouping.aggregates[place].argument
            values.append(columns[argument] if argument is not None else None)
        table = self.tables[BY_KEYS]
        self.add(batch, BY_KEYS, table.fold(keys, firsts, lasts, values))
        for distinct in self._distinct.values():
            value = columns[distinct.argument]
            rows = (keys, value, firsts, lasts)
            if value.null_count:
                mask = np.asarray(value.is_valid().to_numpy(zero_copy_only=False), np.bool_)
                kept = pa.array(mask)
                rows = ([k.filter(kept) for k in keys], value.filter(kept), firsts[mask], lasts[mask])
            if len(rows[2]):
                partials = distinct.table.fold([*rows[0], rows[1]], rows[2], rows[3], [None])
                self.add(batch, distinct.table.name, partials)

    def add(self, batch: int, table_name: str, partials: Partials) -> None:
        """Adds partial rows of a batch: fresh ones, or from a file. Those of `BY_KEYS` come first."""
        table = self.tables[table_name]
        if partials.data is None:
            partials.data = partials.encode()
        table.add(batch, partials)
        keys = partials.keys[: self.grouping.keys]
        numbers = self.groups.numbers(keys, len(partials.firsts))
        self._grow()
        if table_name == BY_KEYS:
            partials.groups = numbers
        else:
            partials.groups = self._distinct_of(table_name).pairs_of(numbers, partials.keys[-1])
        after = self.position if self.position is not None else -NEVER
        self._begin(table, partials, table.schedule(partials, after))

    def _distinct_of(self, table_name: str) -> Distinct:
        return next(d for d in self._distinct.values() if d.table.name == table_name)

    def _grow(self) -> None:
        for each in (self.rows, *self._accumulators.values()):
            each.grow(self.groups.count)
        for distinct in self._distinct.values():
            distinct.grow(self.groups.count)

    def _begin(self, table: Table, partials: Partials, rows: Ids) -> None:
        if not len(rows):
            return
        groups, lasts = partials.groups[rows], partials.lasts[rows]
        if table.name == BY_KEYS:
            for each, parts in zip(table.accumulators, partials.parts, strict=True):
                each.take(groups, parts, rows, lasts)
        else:
            self._distinct_of(table.name).change(groups, partials.parts[0]["n"][rows])

    def _end(self, table: Table, partials: Partials, rows: Ids) -> None:
        groups = partials.groups[rows]
        if table.name == BY_KEYS:
            for each, parts in zip(table.accumulators, partials.parts, strict=True):
                each.drop(groups, parts, rows)
        else:
            self._distinct_of(table.name).change(groups, -partials.parts[0]["n"][rows])

    # -- time goes on ------------------------------------------------------------------------------------------------

    def advance(self, watermark_us: int, emit: bool = True) -> list[pa.RecordBatch]:
        """Evaluates the instants that the watermark has passed; their results, unless they are known already."""
        if watermark_us == BEGINNING_US:
            return []
        end = instant_of(watermark_us, self.grouping.slide_us)
        found: list[tuple[int, Ids, list[pa.Array]]] = []
        while True:
            instant = self._next(end)
            if instant is None:
                break
            self._move_to(instant)
            if emit and len(groups := np.flatnonzero(self.rows.counts[: self.groups.count] > 0)):
                found.append((instant, groups, self._values(groups, instant)))
            self.position = instant + 1
        self.position = end if self.position is None else max(end, self.position)
        for table in self.tables.values():
            table.purge(self.position)
        self._forget_dead()
        return self._results(found)

    def _next(self, end: int) -> int | None:
        """The next instant before `end` at which there may be a result."""
        position = self.position
        if position is not None and self.rows.counts.any():
            return position if position < end else None
        waiting = [i for t in self.tables.values() for i in t.entering]
        if not waiting or min(waiting) >= end:
            return None
        return min(waiting)

    def _move_to(self, instant: int) -> None:
        for table in self.tables.values():
            for partials, rows in table.leaving.pop(instant, ()):
                self._end(table, partials, rows)
            for partials, rows in table.entering.pop(instant, ()):
                self._begin(table, partials, rows)

    def _values(self, groups: Ids, instant: int) -> list[pa.Array]:
        values = []
        for place in range(len(self.grouping.aggregates)):
            if place in self._distinct:
                values.append(pa.array(self._distinct[place].counts[groups]))
            else:
                values.append(self._accumulators[place].value(groups, instant))
        return values

    def _results(self, found: list[tuple[int, Ids, list[pa.Array]]]) -> list[pa.RecordBatch]:
        if not found:
            return []
        grouping = self.grouping
        groups = np.concatenate([g for _, g, _ in found])
        instants = np.repeat([i for i, _, _ in found], [len(g) for _, g, _ in found])
        columns = {f"key{i}": key for i, key in enumerate(self.groups.keys_of(groups))}
        for place in range(len(grouping.aggregates)):
            columns[f"agg{place}"] = pa.concat_arrays([values[place] for _, _, values in found])
        times = pa.array(instants * grouping.slide_us, pa.timestamp("us"))

        def fetch(column: Column) -> pa.Array:
            return columns[column.name]

        rows = len(groups)
        if grouping.having is not None:
            mask = predicate_mask([grouping.having], fetch, rows, lambda: times)
            if mask is not None and not mask.all():
                kept = pa.array(mask)
                columns = {name: values.filter(kept) for name, values in columns.items()}
                times, rows = times.filter(kept), int(mask.sum())
        if not rows:
            return []
        selected = [evaluate(expr, fetch, rows, lambda: times) for _, expr in grouping.select]
        schema = pa.schema([pa.field(name, expr.type) for name, expr in grouping.select])
        return [pa.RecordBatch.from_arrays(selected, schema=schema)]

    # -- what is kept ------------------------------------------------------------------------------------------------

    def restore(self, segments: Iterable[tuple[PartialSegment, pa.Buffer]], watermark_us: int) -> None:
        """Takes up the partial rows of earlier batches; instants before the watermark have been evaluated."""
        self._reset()
        if watermark_us != BEGINNING_US:
            self.position = instant_of(watermark_us, self.grouping.slide_us)
        for record, data in sorted(segments, key=lambda s: (s[0].table != BY_KEYS, s[0].batch)):
            self.add_stored(record, data)

    def add_stored(self, record: PartialSegment, data: pa.Buffer) -> None:
        table = self.tables[record.table]
        partials = decode(data, len(table.types), len(table.accumulators))
        partials.record = record
        self.add(record.batch, record.table, partials)

    def _forget_dead(self) -> None:
        """Numbers the groups anew when most of them have no rows any more."""
        if self.groups.count < LEAST_DEAD:
            return
        alive = {table.name: table.batches for table in self.tables.values()}
        seen = [p.groups for p in alive[BY_KEYS].values()]
        used = len(np.unique(np.concatenate(seen))) if seen else 0
        if self.groups.count - used < max(LEAST_DEAD, used):
            return
        position = self.position
        self._reset()
        self.position = position
        for name, batches in alive.items():
            for batch, partials in batches.items():
                self.add(batch, name, partials)

    @property
    def bytes(self) -> int:
        return sum(p.data.size for t in self.tables.values() for p in t.batches.values() if p.data is not None)

    @property
    def partial_rows(self) -> int:
        return sum(len(p.firsts) for t in self.tables.values() for p in t.batches.values())


class Distinct:
    """COUNT DISTINCT of one argument: how many (group, value) pairs have rows."""

    def __init__(self, argument: int, keys: Sequence[pa.DataType], value: pa.DataType) -> None:
        self.argument = argument
        self.table = Table(f"distinct {argument}", [*keys, value], [Count()])
        self.pairs = Groups([pa.int64(), value])
        self.parents, self.alive = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)

    def grow(self, groups: int) -> None:
        if groups > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(groups, np.int64)])

    def pairs_of(self, groups: Ids, values: pa.Array) -> Ids:
        """The numbers of pairs."""
        numbers = self.pairs.numbers([pa.array(groups), values], len(groups))
        if self.pairs.count > len(self.alive):
            more = np.zeros(self.pairs.count, np.int64)
            self.alive, self.parents = np.concatenate([self.alive, more]), np.concatenate([self.parents, more])
        self.parents[numbers] = groups
        return numbers

    def change(self, pairs: Ids, rows: Ids) -> None:
        kernels.cross(pairs, self.parents, self.alive, rows, self.counts)
