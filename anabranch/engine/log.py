"""The log of one source in one slot: the rows that some reader accepted, batch by batch.

A row id is `batch << 32 | position`. Positions count the rows of a batch in the slot whose log it is; the segment that the
slot wrote itself begins at 0 (`LogSegment.first`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import LogSegment
from anabranch.engine.columns import LOW, AddressTables, ColumnStore, Ids
from anabranch.engine.keys import Hashes
from anabranch.engine.row_hash import hash_rows
from anabranch.engine.slices import Keeping, Slice
from anabranch.errors import MissingRowError
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Stream, Table


@dataclass
class Stored:
    """One segment: an Arrow IPC stream, its rows read in place, and its record (None until it is written)."""

    data: pa.Buffer
    rows: pa.RecordBatch
    start_max_us: int
    record: LogSegment | None = None
    passed: frozenset[str] = frozenset()
    """Predicates that all its rows have passed, as texts with the source's name in place of aliases."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """For the streams of each query for which some of its rows were late (`Reader.streams`), the query's watermark."""
    slices: tuple[Slice, ...] = ()
    """Its rows by how long they are kept, those first that are to be kept longest."""
    kept: float = 1.0
    """The share of the stream's rows that its batch kept; others were shed (`anabranch.engine.shedding`)."""
    over: set[Keeping] = field(default_factory=set)
    """The slices all rows of which have ended."""


def encode(rows: pa.RecordBatch) -> pa.Buffer:
    """The rows as an Arrow IPC stream of one batch: what the log file holds."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def decode(data: pa.Buffer) -> pa.RecordBatch:
    """The rows of a segment, without copying: its arrays have no offset, so kernels can address their buffers."""
    return pa.ipc.open_stream(data).read_next_batch()


class Log:
    """The rows of a source that are still needed."""

    def __init__(self, source: Stream | Table, schema: pa.Schema) -> None:
        self.source, self.schema = source, schema
        """What new rows are stored with. Segments may have other columns: those of selects come and go with them."""
        self.segments: dict[int, Stored] = {}
        self.rows = 0
        self.bytes = 0
        self._columns: dict[str, ColumnStore] = {}
        self._counts = AddressTables(1)
        """How many rows each segment has."""
        self._stuffed: dict[tuple[int, str], pa.Array] = {}
        self._passed: dict[str, set[int]] = {}
        """For predicates that somebody asked for: the batches whose rows had passed it."""
        self._hashes, self._hashed = ColumnStore(pa.uint64()), dict[int, pa.Array]()
        """Of segments whose rows were chosen among: their hashes."""
        self.shed: dict[int, float] = {}
        """Of segments of batches that shed rows: the share that was kept."""
        self.slice_rows: dict[Keeping, int] = {}
        """How many rows there are that are kept equally long, of segments that have slices."""
        self._ending: dict[Keeping, list[tuple[int, int]]] = {}
        """By how long rows are kept: the largest start and the batch of each slice, as a heap: what ends first stands
        first."""

    def add(self, batch: int, stored: Stored) -> None:
        self.segments[batch] = stored
        self._counts.set(batch, stored.rows.num_rows)
        self.rows += stored.rows.num_rows
        self.bytes += stored.data.size
        if stored.kept < 1:
            self.shed[batch] = stored.kept
        for each in stored.slices:
            if each.start_max_us != BEGINNING_US:
                heappush(self._ending.setdefault(each.keeping, []), (each.start_max_us, batch))
        self._count_slices(stored.slices, 1)
        for predicate, batches in self._passed.items():
            if predicate in stored.passed:
                batches.add(batch)

    def clear(self) -> None:
        self.segments, self._columns, self._stuffed, self._passed, self._ending = {}, {}, {}, {}, {}
        self._counts, self._hashes, self._hashed, self.shed = AddressTables(1), ColumnStore(pa.uint64()), {}, {}
        self.rows, self.bytes, self.slice_rows = 0, 0, {}

    def _count_slices(self, slices: tuple[Slice, ...], sign: int) -> None:
        begin = 0
        for each in slices:
            left = self.slice_rows.get(each.keeping, 0) + sign * (each.end - begin)
            self.slice_rows[each.keeping] = left
            if not left:
                del self.slice_rows[each.keeping]
            begin = each.end

    @property
    def rows_by_length(self) -> dict[int, int]:
        """How many rows there are in slices of each length."""
        found: dict[int, int] = {}
        for keeping, rows in self.slice_rows.items():
            found[keeping.retention_us] = found.get(keeping.retention_us, 0) + rows
        return found

    def ended_rows(self, ended_us: Mapping[Keeping, int]) -> dict[Keeping, int]:
        """How many rows that are kept equally long started at or before some time. Segments are looked at from the newest
        on, down to one all rows of which did; those before it are taken to have, too."""
        found = {keeping: self.slice_rows.get(keeping, 0) for keeping in ended_us}
        least_us = min(ended_us.values(), default=FOREVER_US)
        for stored in reversed(self.segments.values()):
            if stored.start_max_us <= least_us:
                break
            begin = 0
            for each in stored.slices:
                if each.start_max_us > ended_us.get(each.keeping, FOREVER_US):
                    found[each.keeping] -= each.end - begin
                begin = each.end
        return found

    def check(self, ids: Ids) -> None:
        """Refuses ids that are not those of rows in the log: values are fetched from wherever an id points to."""
        place = self._counts.first_outside(ids)
        if place >= 0:
            batch, offset = int(ids[place]) >> 32, int(ids[place]) & LOW
            kept = f"has {self.segments[batch].rows.num_rows} rows there" if batch in self.segments else "is not there"
            raise MissingRowError(
                f"an index or a view names row {offset} of batch {batch} of {self.source.name}, which is not in the log: "
                f"that batch {kept}. The state's parts do not belong together: restore the checkpoint from a backup, or "
                "start with an empty one"
            )

    def relocate(self, batch: int, data: pa.Buffer, record: LogSegment) -> None:
        """The same rows at other addresses: they were in memory and are now mapped from their file."""
        self.segments[batch] = replace(self.segments[batch], data=data, rows=decode(data), record=record)
        for column in self._columns.values():
            column.known.discard(batch)

    def column(self, name: str, ids: Ids) -> pa.Array:
        """Values of a column for the rows with these ids."""
        store = self._store(name)
        return store.gather(ids, {} if store.is_fast else self._all_values(name, store.type))

    def widest(self, name: str) -> int:
        """The bytes of the longest value of a column."""
        return self._store(name).widest()

    def lengths(self, name: str, ids: Ids) -> npt.NDArray[np.int64]:
        """The bytes of the values of a column for the rows with these ids."""
        store = self._store(name)
        return store.lengths(ids, {} if store.is_fast else self._all_values(name, store.type))

    def _store(self, name: str) -> ColumnStore:
        """Where the values of a column lie, in all segments that there are now."""
        store = self._columns.get(name)
        if store is None:
            declared = self.source.field(name)
            assert declared is not None, name
            store = self._columns[name] = ColumnStore(declared.type)
        if len(store.known) != len(self.segments):
            for batch in sorted(self.segments.keys() - store.known):
                store.learn(batch, self._values(batch, name, store.type))
        return store

    def _all_values(self, name: str, type: pa.DataType) -> dict[int, pa.Array]:
        return {batch: self._values(batch, name, type) for batch in self.segments}

    def _values(self, batch: int, name: str, type: pa.DataType) -> pa.Array:
        """A column of a segment. One that it lacks is filled with NULL (*state stuffing*: 002, section 13.2)."""
        rows = self.segments[batch].rows
        place = rows.schema.get_field_index(name)
        if place >= 0:
            return rows.column(place)
        if (batch, name) not in self._stuffed:
            self._stuffed[batch, name] = pa.nulls(rows.num_rows, type)
        return self._stuffed[batch, name]

    def passed(self, predicate: str) -> set[int]:
        """The batches whose rows had passed a predicate when they were stored."""
        if predicate not in self._passed:
            self._passed[predicate] = {batch for batch, stored in self.segments.items() if predicate in stored.passed}
        return self._passed[predicate]

    def times(self, ids: Ids) -> npt.NDArray[np.int64]:
        """The event times of rows of a stream."""
        assert isinstance(self.source, Stream)
        times: npt.NDArray[np.int64] = self.column(self.source.time, ids).view(pa.int64()).to_numpy()
        return times

    def row_hashes(self, ids: Ids) -> Hashes:
        """The hashes of rows, of all that is stored of them. Those of a segment are computed when first asked for."""
        first, last = (int(ids.min()) >> 32, int(ids.max()) >> 32) if len(ids) else (0, -1)
        for batch in [b for b in self.segments if first <= b <= last and b not in self._hashed]:
            self._hashed[batch] = pa.array(hash_rows(self.segments[batch].rows))
            self._hashes.learn(batch, self._hashed[batch])
        hashes: Hashes = self._hashes.gather(ids, {}).to_numpy()
        return hashes

    def purge(self, ended_us: Callable[[Keeping], int]) -> bool:
        """Drops slices of segments all rows of which started at or before some time, which `ended_us` tells for each slice;
        whether there were any. A slice that is over stays while one behind it is not."""
        over: dict[int, set[Keeping]] = {}
        for keeping, heap in list(self._ending.items()):
            limit_us = ended_us(keeping)
            while heap and heap[0][0] <= limit_us:
                over.setdefault(heappop(heap)[1], set()).add(keeping)
            if not heap:
                del self._ending[keeping]
        dead = []
        for batch, ended in over.items():
            stored = self.segments[batch]
            stored.over |= ended
            left = stored.slices
            while left and left[-1].keeping in stored.over:
                left = left[:-1]
            if not left:
                dead.append(batch)
            elif len(left) < len(stored.slices):
                self._cut(batch, left)
        self._forget(dead)
        return bool(over)

    def _cut(self, batch: int, left: tuple[Slice, ...]) -> None:
        """Leaves the first slices of a segment; what is left is copied, so that the memory of the others is given back."""
        before = self.segments[batch]
        data = encode(before.rows.slice(0, left[-1].end))
        start_max_us = max(each.start_max_us for each in left)
        after = replace(before, data=data, rows=decode(data), record=None, slices=left, start_max_us=start_max_us)
        self.segments[batch] = after
        self._count_slices(before.slices, -1)
        self._count_slices(left, 1)
        self.rows += after.rows.num_rows - before.rows.num_rows
        self.bytes += after.data.size - before.data.size
        self._counts.set(batch, after.rows.num_rows)
        self._stuffed = {key: values for key, values in self._stuffed.items() if key[0] != batch}
        for column in self._columns.values():
            column.known.discard(batch)

    def inside(self, ids: Ids) -> npt.NDArray[np.bool_] | None:
        """Which ids are those of rows in the log; None if all are."""
        return self._counts.inside(ids)

    def drop(self, batch: int) -> None:
        """Drops the segment of a batch."""
        for keeping, heap in self._ending.items():
            self._ending[keeping] = [(start_us, known) for start_us, known in heap if known != batch]
            heapify(self._ending[keeping])
        self._forget([batch])

    def _forget(self, dead: list[int]) -> None:
        for batch in dead:
            stored = self.segments.pop(batch)
            self._count_slices(stored.slices, -1)
            self._counts.drop(batch)
            self.rows -= stored.rows.num_rows
            self.bytes -= stored.data.size
        if dead:
            for batches in self._passed.values():
                batches.difference_update(dead)
            self._stuffed = {key: v for key, v in self._stuffed.items() if key[0] in self.segments}
            for column in (*self._columns.values(), self._hashes):
                column.known.difference_update(dead)
            for batch in dead:
                self._hashed.pop(batch, None)
                self.shed.pop(batch, None)

    def __iter__(self) -> Iterator[tuple[int, Stored]]:
        return iter(sorted(self.segments.items()))


def starts_of(source: Stream | Table, rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int64]:
    """The event times of a stream's rows, any for rows without one; a stored table's rows were always there."""
    if isinstance(source, Table):
        return np.full(rows.num_rows, BEGINNING_US, np.int64)
    times = rows.column(rows.schema.get_field_index(source.time))
    if isinstance(times, pa.ChunkedArray):
        times = pa.concat_arrays(times.chunks) if times.num_chunks else pa.array([], times.type)
    if times.null_count:
        times = times.view(pa.int64()).fill_null(0)
    starts: npt.NDArray[np.int64] = times.view(pa.int64()).to_numpy()
    return starts
