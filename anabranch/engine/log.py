"""The log of one source in one slot: its accepted rows, batch by batch, addressed by row id (`batch << 32 | offset`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import LogSegment
from anabranch.engine.columns import ColumnStore, Ids
from anabranch.plan.query import BEGINNING_US, Stream, Table


@dataclass
class Stored:
    """One segment: an Arrow IPC stream, its rows read in place, and its record (None until it is written)."""

    data: pa.Buffer
    rows: pa.RecordBatch
    start_max_us: int
    record: LogSegment | None = None


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
        self.segments: dict[int, Stored] = {}
        self.rows = 0
        self.bytes = 0
        self._columns: dict[str, ColumnStore] = {}
        self._places = {name: i for i, name in enumerate(schema.names)}

    def add(self, batch: int, stored: Stored) -> None:
        self.segments[batch] = stored
        self.rows += stored.rows.num_rows
        self.bytes += stored.data.size

    def clear(self) -> None:
        self.segments, self._columns = {}, {}
        self.rows = self.bytes = 0

    def relocate(self, batch: int, data: pa.Buffer, record: LogSegment) -> None:
        """The same rows at other addresses: they were in memory and are now mapped from their file."""
        self.segments[batch] = Stored(data, decode(data), self.segments[batch].start_max_us, record)
        for column in self._columns.values():
            column.known.discard(batch)

    def column(self, name: str, ids: Ids) -> pa.Array:
        """Values of a column for the rows with these ids."""
        place = self._places[name]
        store = self._columns.get(name)
        if store is None:
            base = min(self.segments, default=0)
            store = self._columns[name] = ColumnStore(self.schema.field(place).type, base)
        if len(store.known) != len(self.segments):
            for batch in self.segments.keys() - store.known:
                store.learn(batch, self.segments[batch].rows.column(place))
        if store.is_fast:
            return store.gather(ids, {})
        return store.gather(ids, {b: s.rows.column(place) for b, s in self.segments.items()})

    def times(self, ids: Ids) -> npt.NDArray[np.int64]:
        """The event times of rows of a stream."""
        assert isinstance(self.source, Stream)
        times: npt.NDArray[np.int64] = self.column(self.source.time, ids).view(pa.int64()).to_numpy()
        return times

    def purge(self, watermark_us: int, retention_us: int) -> None:
        """Drops segments of which no row is valid at or after the watermark: the oldest ones, up to the first that lives."""
        dead = []
        for batch, stored in self.segments.items():
            if not _over(stored.start_max_us, retention_us, watermark_us):
                break
            dead.append(batch)
        for batch in dead:
            stored = self.segments.pop(batch)
            self.rows -= stored.rows.num_rows
            self.bytes -= stored.data.size
        if dead:
            base = min(self.segments, default=max(dead) + 1)
            for column in self._columns.values():
                column.known.difference_update(dead)
                if base - column.values.base > len(column.values.addresses) // 2:
                    column.forget(base)

    def __iter__(self) -> Iterator[tuple[int, Stored]]:
        return iter(sorted(self.segments.items()))


def starts_of(source: Stream | Table, rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int64]:
    """The event times of a stream's rows; a stored table's rows were always there."""
    if isinstance(source, Table):
        return np.full(rows.num_rows, BEGINNING_US, np.int64)
    times = rows.column(rows.schema.get_field_index(source.time))
    if isinstance(times, pa.ChunkedArray):
        times = pa.concat_arrays(times.chunks) if times.num_chunks else pa.array([], times.type)
    starts: npt.NDArray[np.int64] = times.view(pa.int64()).to_numpy(zero_copy_only=False)
    return starts


def _over(start_us: int, window_us: int, watermark_us: int) -> bool:
    """Whether what starts at `start_us` has ended by the watermark."""
    return start_us != BEGINNING_US and start_us + window_us <= watermark_us
