"""Aggregates over windows: at every slide instant, over the rows that are valid then.

A row that is valid `[start, end)` counts at the instants `first … last - 1`, multiples of SLIDE. The rows of a batch are
folded by group, first and last: what is stored is one *partial* row for each of these, however many rows there were. When
the watermark has passed an instant, its partial rows begin to count for their groups, others end, and every group with rows
gives a result. So a row is touched when it arrives, a partial row when it begins and when it ends, and the window is never
scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import Grouped, PartialSegment
from anabranch.engine import bounds
from anabranch.engine.aggregates import Accumulator, RankedExtreme, accumulator
from anabranch.engine.columns import varies
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.kernels import aggregation as kernels
from anabranch.engine.key_numbers import Ids, KeyNumbers
from anabranch.engine.sums import Count, Parts, Sum, without_zeros
from anabranch.plan.expression import Column
from anabranch.plan.query import BEGINNING_US, FOREVER_US, INSTANT, Grouping

NEVER = 2**62
"""The instant at which rows end that do not end."""
BY_KEYS = "keys"
LEAST_DEAD = 4096
"""Below so many groups and values none is forgotten."""


def part_column(place: int, name: str) -> str:
    """What the column of a partial value of an aggregate is called, in files and on the way to other slots."""
    return f"{place} {name}"


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

    @cached_property
    def last(self) -> int:
        """The first instant at which none of the rows counts any more."""
        return int(self.lasts.max())

    def encode(self) -> pa.Buffer:
        """The partial rows as an Arrow IPC stream."""
        columns: dict[str, Any] = {f"key{i}": key for i, key in enumerate(self.keys)}
        columns |= {"first": self.firsts, "last": self.lasts}
        for place, parts in enumerate(self.parts):
            columns |= {part_column(place, name): values for name, values in parts.items()}
        batch = pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()


def decode(data: pa.Buffer, keys: int, names: Sequence[Sequence[str]]) -> Partials:
    """Partial rows, given the `names` of the partial values that each accumulator may have."""
    batch = pa.ipc.open_stream(data).read_next_batch()
    parts: list[Parts] = [{} for _ in names]
    known = set(batch.schema.names)
    for place, of_one in enumerate(names):
        for name in of_one:
            if (column := part_column(place, name)) in known:  # rare ones are left out
                values = batch.column(column)
                fixed = pa.types.is_primitive(values.type) and name != "value"
                parts[place][name] = values.to_numpy() if fixed else values
    firsts, lasts = batch.column("first").to_numpy(), batch.column("last").to_numpy()
    return Partials([batch.column(i) for i in range(keys)], firsts, lasts, parts, data)


def names_of(each: Accumulator) -> tuple[str, ...]:
    """The names of all partial values that an accumulator has."""
    return tuple(each.parts(np.empty(0, np.int64), 0))


class PartialTable:
    """Partial rows by batch, and when they begin and end to count. `BY_KEYS`, or one for each COUNT DISTINCT."""

    def __init__(self, name: str, types: Sequence[pa.DataType], makers: Sequence[Callable[[], Accumulator]]) -> None:
        self.name, self.types, self._makers = name, tuple(types), tuple(makers)
        self.accumulators = tuple(make() for make in makers)
        self.part_names = tuple(names_of(each) for each in self.accumulators)
        self.batches: dict[int, Partials] = {}
        self.entering: dict[int, list[tuple[Partials, Ids]]] = {}
        self.leaving: dict[int, list[tuple[Partials, Ids]]] = {}

    def fold(self, keys: Sequence[pa.Array], firsts: Ids, lasts: Ids, values: Sequence[pa.Array | None]) -> Partials:
        """The partial rows of some rows."""
        ids, found = self._numbered(keys, firsts, lasts)
        found.parts = [a.fold(ids, len(found.firsts), v) for a, v in zip(self.accumulators, values, strict=True)]
        return found

    def merge(self, several: Sequence[Partials]) -> Partials:
        """The partial rows of parts of a batch as those of all of it."""
        if len(several) == 1:
            return several[0]
        keys = [pa.concat_arrays(pieces) for pieces in zip(*(p.keys for p in several), strict=True)]
        firsts, lasts = np.concatenate([p.firsts for p in several]), np.concatenate([p.lasts for p in several])
        ids, found = self._numbered(keys, firsts, lasts)
        rows, groups, never = np.arange(len(firsts)), np.arange(len(found.firsts)), np.full(len(firsts), NEVER)
        for place, make in enumerate(self._makers):
            each = make()
            each.grow(len(groups))
            each.take(ids, _together([(p.parts[place], len(p.firsts)) for p in several]), rows, never)
            parts = each.parts(groups, 0)
            found.parts.append(without_zeros(parts, each.RARE) if isinstance(each, Sum) else parts)
        return found

    def _numbered(self, keys: Sequence[pa.Array], firsts: Ids, lasts: Ids) -> tuple[Ids, Partials]:
        """Which partial row each row belongs to, and the partial rows, without their values."""
        rows = len(firsts)
        # Rows are told apart by their keys within the batch; numbers that last are given when they are added.
        numbers = KeyNumbers(self.types).numbers(keys, rows)
        ids, group = np.empty(rows, np.int64), np.empty(rows, np.int64)
        first, last = np.empty(rows, np.int64), np.empty(rows, np.int64)
        table = np.full(1 << (2 * rows).bit_length(), kernels.NONE, np.int64)
        count = int(kernels.fold(numbers, firsts, lasts, table, ids, group, first, last))
        some_row = np.empty(count, np.int64)
        some_row[ids] = np.arange(rows)
        places = pa.array(some_row)
        return ids, Partials([k.take(places) for k in keys], first[:count].copy(), last[:count].copy(), [])

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


def _together(pieces: Sequence[tuple[Parts, int]]) -> Parts:
    """Partial values one after the other, given how many each piece has; rare ones that a piece leaves out are 0."""
    names = dict.fromkeys(name for parts, _ in pieces for name in parts)
    columns = {name: [parts.get(name, np.zeros(rows, np.int64)) for parts, rows in pieces] for name in names}
    return {
        name: np.concatenate(c) if isinstance(c[0], np.ndarray) else pa.concat_arrays(c) for name, c in columns.items()
    }


def _by_instant(instants: Ids) -> Iterable[tuple[int, Ids]]:
    order = np.argsort(instants, kind="stable")
    found, starts = np.unique(instants[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts[1:]), strict=True)


class Aggregator:
    """The groups of a query in one slot."""

    def __init__(self, grouping: Grouping, schema: pa.Schema) -> None:
        self.grouping, self.schema = grouping, schema
        self._fold_rows: list[tuple[list[pa.Array], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self._fold_bytes = 0
        self._folded: dict[str, list[Partials]] = {}
        self._look_at = LEAST_DEAD
        self._handed = Grouped()
        self._reset()

    def _reset(self) -> None:
        grouping, types = self.grouping, self.schema.types
        self._distinct: dict[int, Distinct] = {}
        makers: dict[int, Callable[[], Accumulator]] = {}
        for place, aggregate in enumerate(grouping.aggregates):
            argument = types[aggregate.argument] if aggregate.argument is not None else None
            if aggregate.function == "count_distinct":
                assert aggregate.argument is not None
                self._distinct[place] = Distinct(aggregate.argument, types[: grouping.keys], types[aggregate.argument])
            else:
                makers[place] = partial(accumulator, aggregate, argument)
        self.groups = KeyNumbers(types[: grouping.keys])
        by_keys = PartialTable(BY_KEYS, self.groups.types, [Count, *makers.values()])
        rows, *others = by_keys.accumulators
        assert isinstance(rows, Count)
        self.rows = rows
        self._accumulators: dict[int, Accumulator] = dict(zip(makers, others, strict=True))
        self.tables = {BY_KEYS: by_keys}
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
        if not len(firsts):
            return
        self._fold_rows.append((columns, firsts, lasts))
        self._fold_bytes += sum(column.nbytes for column in columns if varies(column.type))
        if sum(len(f) for _, f, _ in self._fold_rows) >= bounds.FOLD_ROWS or self._fold_bytes >= bounds.FOLD_BYTES:
            self._fold()

    def settle(self, batch: int) -> None:
        """Folds what is left of the rows of a batch."""
        self._forget_dead()
        self._fold()
        folded, self._folded = self._folded, {}
        for name, several in folded.items():
            self.add(batch, name, self.tables[name].merge(several))

    def _fold(self) -> None:
        """Folds the rows that were taken."""
        taken, self._fold_rows, self._fold_bytes = self._fold_rows, [], 0
        if not taken:
            return
        columns, firsts, lasts = taken[0]
        if len(taken) > 1:
            columns = [pa.concat_arrays(pieces) for pieces in zip(*(c for c, _, _ in taken), strict=True)]
            firsts, lasts = np.concatenate([f for _, f, _ in taken]), np.concatenate([x for _, _, x in taken])
        keys = columns[: self.grouping.keys]
        values: list[pa.Array | None] = [None]
        for place in self._accumulators:
            argument = self.grouping.aggregates[place].argument
            values.append(columns[argument] if argument is not None else None)
        self._keep_folded(self.tables[BY_KEYS], self.tables[BY_KEYS].fold(keys, firsts, lasts, values))
        for distinct in self._distinct.values():
            value = columns[distinct.argument]
            rows = (keys, value, firsts, lasts)
            if value.null_count:
                mask = np.asarray(value.is_valid().to_numpy(zero_copy_only=False), np.bool_)
                kept = pa.array(mask)
                rows = ([k.filter(kept) for k in keys], value.filter(kept), firsts[mask], lasts[mask])
            if len(rows[2]):
                self._keep_folded(distinct.table, distinct.table.fold([*rows[0], rows[1]], rows[2], rows[3], [None]))

    def _keep_folded(self, table: PartialTable, partials: Partials) -> None:
        """Keeps partial rows of a part of the batch; puts those of its parts together when half of them may be the same."""
        several = self._folded.setdefault(table.name, [])
        several.append(partials)
        if sum(len(p.firsts) for p in several[1:]) > max(bounds.FOLD_ROWS, len(several[0].firsts)):
            self._folded[table.name] = [table.merge(several)]

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

    def _begin(self, table: PartialTable, partials: Partials, rows: Ids) -> None:
        if not len(rows):
            return
        groups, lasts = partials.groups[rows], partials.lasts[rows]
        if table.name == BY_KEYS:
            for each, parts in zip(table.accumulators, partials.parts, strict=True):
                each.take(groups, parts, rows, lasts)
        else:
            self._distinct_of(table.name).change(groups, partials.parts[0]["n"][rows])

    def _end(self, table: PartialTable, partials: Partials, rows: Ids) -> None:
        groups = partials.groups[rows]
        if table.name == BY_KEYS:
            for each, parts in zip(table.accumulators, partials.parts, strict=True):
                each.drop(groups, parts, rows)
        else:
            self._distinct_of(table.name).change(groups, -partials.parts[0]["n"][rows])

    # -- time goes on ------------------------------------------------------------------------------------------------

    def advance(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """Evaluates the instants that the watermark has passed; gives their results, in pieces."""
        for columns in self._advance(watermark_us, self._values):
            yield from results_of(self.grouping, columns)

    def advance_parts(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """The same as partial values: for groups that have rows in other slots too (`combine`)."""
        for columns in self._advance(watermark_us, self._parts):
            yield pa.RecordBatch.from_pydict(columns)

    def handed_out(self) -> Grouped:
        """The groups that were handed out since this was last asked."""
        handed, self._handed = self._handed, Grouped()
        return handed

    def pass_over(self, watermark_us: int) -> None:
        """Goes past the instants before the watermark: their results are known already."""
        for _ in self._instants(watermark_us):
            pass

    def _advance(
        self, watermark_us: int, values_of: Callable[[Ids, int], dict[str, pa.Array]]
    ) -> Iterator[dict[str, pa.Array]]:
        """Instants, keys and values of groups at the instants that the watermark has passed. As many instants as fill a
        piece go together; those of one instant are as many as there are groups, which are state."""
        found: list[tuple[int, Ids, dict[str, pa.Array]]] = []
        rows = size = 0
        for instant, groups in self._instants(watermark_us):
            values = values_of(groups, instant)
            self._handed.instants, self._handed.groups = self._handed.instants + 1, self._handed.groups + len(groups)
            found.append((instant, groups, values))
            rows += len(groups)
            share = len(groups) / self.groups.count
            size += sum(c.nbytes for c in values.values()) + int(share * sum(k.nbytes for k in self.groups.keys))
            if rows >= bounds.RESULT_ROWS or size >= bounds.RESULT_BYTES:
                yield self._keyed(found)
                found, rows, size = [], 0, 0
        if found:
            yield self._keyed(found)

    def _instants(self, watermark_us: int) -> Iterator[tuple[int, Ids]]:
        """Goes through the instants that the watermark has passed: each with the groups that have rows then."""
        if watermark_us == BEGINNING_US:
            return
        end = instant_of(watermark_us, self.grouping.slide_us)
        while True:
            instant = self._next(end)
            if instant is None:
                break
            self._move_to(instant)
            groups = np.flatnonzero(self.rows.counts[: self.groups.count] > 0)
            if len(groups):
                yield instant, groups
            self.position = instant + 1
        self.position = end if self.position is None else max(end, self.position)
        for table in self.tables.values():
            table.purge(self.position)

    def _keyed(self, found: Sequence[tuple[int, Ids, dict[str, pa.Array]]]) -> dict[str, pa.Array]:
        """The instants, the keys and the values of groups."""
        groups = np.concatenate([g for _, g, _ in found])
        instants = np.repeat([i for i, _, _ in found], [len(g) for _, g, _ in found])
        columns = {INSTANT: pa.array(instants)}
        columns |= {f"key{i}": key for i, key in enumerate(self.groups.keys_of(groups))}
        return columns | {name: pa.concat_arrays([values[name] for _, _, values in found]) for name in found[0][2]}

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

    def _values(self, groups: Ids, instant: int) -> dict[str, pa.Array]:
        values = {}
        for place in range(len(self.grouping.aggregates)):
            if place in self._distinct:
                values[f"agg{place}"] = pa.array(self._distinct[place].counts[groups])
            else:
                values[f"agg{place}"] = self._accumulators[place].value(groups, instant)
        return values

    def _parts(self, groups: Ids, instant: int) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        for place, each in self._accumulators.items():
            for name, values in each.parts(groups, instant).items():
                found[part_column(place, name)] = _signed(values)
        for place, distinct in self._distinct.items():
            found[part_column(place, "values")] = distinct.values_of(groups)
        return found

    @property
    def parts_schema(self) -> pa.Schema:
        """The columns of `advance_parts`."""
        nothing = np.empty(0, np.int64)
        columns = {INSTANT: pa.array(nothing)} | {f"key{i}": k for i, k in enumerate(self.groups.keys_of(nothing))}
        return pa.RecordBatch.from_pydict(columns | self._parts(nothing, 0)).schema

    def combine(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The results of groups from the partial values that slots have of them; for an aggregator that has no rows."""
        parts = pa.Table.from_batches(batches, self.parts_schema).combine_chunks()
        if not parts.num_rows:
            return []
        rows = pa.RecordBatch.from_arrays([_whole(c) for c in parts.columns], schema=parts.schema)
        keys = [rows.column(name) for name in (INSTANT, *(f"key{i}" for i in range(self.grouping.keys)))]
        together = KeyNumbers([k.type for k in keys])
        numbers = together.numbers(keys, rows.num_rows)
        every, groups = np.arange(rows.num_rows), np.arange(together.count)
        lasts = np.full(rows.num_rows, NEVER)
        columns = dict(zip(parts.schema.names, together.keys, strict=False))
        for place in range(len(self.grouping.aggregates)):
            if place in self._distinct:
                lists = rows.column(part_column(place, "values"))
                columns[f"agg{place}"] = self._distinct[place].combined(numbers, lists, groups)
                continue
            each = self._accumulators[place]
            taken = {name: _unsigned(name, rows.column(part_column(place, name))) for name in names_of(each)}
            each.grow(together.count)
            each.take(numbers, taken, every, lasts)
            columns[f"agg{place}"] = each.value(groups, 0)
        return results_of(self.grouping, columns)

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
        partials = decode(data, len(table.types), table.part_names)
        partials.record = record
        self.add(record.batch, record.table, partials)

    def _forget_dead(self) -> None:
        """Begins anew with the partial rows that still count, when there are twice as many groups and values as there were
        after the last time: those without rows are gone then."""
        if self._known < self._look_at:
            return
        alive, position = {table.name: table.batches for table in self.tables.values()}, self.position
        self._reset()
        self.position = position
        for name, batches in alive.items():
            for batch, partials in batches.items():
                self.add(batch, name, partials)
        self._look_at = max(LEAST_DEAD, 2 * self._known)

    @property
    def _known(self) -> int:
        """How many groups, pairs of group and value, and values in order there are, with rows or without."""
        pairs = sum(d.pairs.count for d in self._distinct.values())
        ranked = sum(len(a.values) for a in self._accumulators.values() if isinstance(a, RankedExtreme))
        return self.groups.count + pairs + ranked

    @property
    def bytes(self) -> int:
        return sum(p.data.size for t in self.tables.values() for p in t.batches.values() if p.data is not None)

    @property
    def partial_rows(self) -> int:
        return sum(len(p.firsts) for t in self.tables.values() for p in t.batches.values())


def results_of(grouping: Grouping, columns: dict[str, pa.Array]) -> list[pa.RecordBatch]:
    """What is selected of groups, given their instants, keys and aggregates."""
    times = pa.array(columns[INSTANT].to_numpy() * grouping.slide_us, pa.timestamp("us"))
    rows = len(times)

    def fetch(column: Column) -> pa.Array:
        return columns[column.name]

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


def _signed(values: Any) -> pa.Array:
    """Partial values as Spark has them: without unsigned numbers."""
    if isinstance(values, np.ndarray):
        return pa.array(values.view(np.int64) if values.dtype == np.uint64 else values)
    return values


def _unsigned(name: str, values: pa.Array) -> Any:
    """The reverse."""
    if name == "value":
        return values
    plain = values.to_numpy(zero_copy_only=False)
    return plain.view(np.uint64) if name in ("low", "word") else plain


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


class Distinct:
    """COUNT DISTINCT of one argument: how many (group, value) pairs have rows."""

    def __init__(self, argument: int, keys: Sequence[pa.DataType], value: pa.DataType) -> None:
        self.argument = argument
        self.table = PartialTable(f"distinct {argument}", [*keys, value], [Count])
        self.pairs = KeyNumbers([pa.int64(), value])
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

    def values_of(self, groups: Ids) -> pa.Array:
        """The values of some groups (in order of their numbers), as lists."""
        pairs = np.flatnonzero(self.alive[: self.pairs.count] > 0)
        pairs = pairs[np.argsort(self.parents[pairs], kind="stable")]
        parents = self.parents[pairs]
        counts = np.searchsorted(parents, groups, "right") - np.searchsorted(parents, groups, "left")
        wanted = pairs[np.isin(parents, groups)]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), self.pairs.keys[1].take(pa.array(wanted)))

    def combined(self, groups: Ids, values: pa.Array, wanted: Ids) -> pa.Array:
        """How many values groups have, given the lists of their parts."""
        self.grow(len(wanted))
        counts = np.asarray(values.value_lengths().to_numpy(zero_copy_only=False), np.int64)
        pairs = self.pairs_of(np.repeat(groups, counts), values.flatten())
        self.change(pairs, np.ones(len(pairs), np.int64))
        return pa.array(self.counts[wanted])
