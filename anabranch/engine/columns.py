"""Where the values of a column lie, batch by batch, and how rows are fetched by id.

The addresses are found once per segment and column, when somebody first asks for the column. Types that are not a plain
buffer or bytes with offsets (nested ones) go the slow way: a take in each segment.

Rows whose values differ in length are counted in bytes as well (`row_bytes`): pieces of results are bounded by them, and a
column of strings ends at 2 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.kernels import gather as kernels
from anabranch.errors import ValueTooLargeError

Ids = npt.NDArray[np.int64]

MOST_COLUMN_BYTES = np.iinfo(np.int32).max
"""Arrow's strings and bytes have offsets of 32 bits."""

LIST_OFFSET_BYTES = 4
"""What an element of a list costs beside its value."""

_FIXED: dict[int, tuple[Callable[..., None], Any]] = {
    8: (kernels.gather_8, np.uint8),
    16: (kernels.gather_16, np.uint16),
    32: (kernels.gather_32, np.uint32),
    64: (kernels.gather_64, np.uint64),
    128: (kernels.gather_128, np.uint64),
}


LOW = 0xFFFFFFFF
"""The bits of a row id that tell its place in the segment."""

LEAST_SPAN, LEAST_DENSITY = 1024, 8
"""Batches are addressed by their number as long as those of a span of 1024, or one in 8 of a longer one, are there."""


class AddressTables:
    """Where the buffers of each batch lie: one table for each buffer, one address in it for each batch.

    Kernels look for a batch at its number less `base`. The batches that are there mostly follow one another. A few may be
    far older, for one row that stays valid keeps its segment: these *stragglers* have the places in front of the others, and
    the ids of their rows are numbered anew before a kernel sees them. Example: of the batches 3, 9000 and 9001, batch 3 is a
    straggler; `base` is 8999, and a row of batch 3 goes to kernels as one of batch 8999. So the size of the tables follows
    the number of batches that are there, however far they are apart.
    """

    def __init__(self, buffers: int) -> None:
        self.known: set[int] = set()
        """The batches that are there. Whoever takes one out need not do more: its place is given up when room is needed."""
        self.addresses = np.zeros((buffers, 64), np.int64)
        self._stragglers = np.empty(0, np.int64)
        self._first = 0
        """The first batch that is no straggler."""

    @property
    def base(self) -> int:
        return self._first - len(self._stragglers)

    def set(self, batch: int, *addresses: int) -> None:
        self.known.add(batch)
        place = self._place(batch)
        if place < 0:
            self._lay_out()
            place = self._place(batch)
        self.addresses[:, place] = addresses

    def renumbered(self, ids: Ids) -> Ids:
        """The ids as kernels can look them up."""
        if not len(self._stragglers):
            return ids
        old = ids < self._first << 32
        if not old.any():
            return ids
        found, rows = ids.copy(), ids[old]
        found[old] = (np.searchsorted(self._stragglers, rows >> 32) + self.base) << 32 | rows & LOW
        return found

    def drop(self, batch: int) -> None:
        """Forgets what stands for a batch."""
        place = self._place(batch)
        if place >= 0:
            self.addresses[:, place] = 0
        self.known.discard(batch)

    def first_outside(self, ids: Ids) -> int:
        """The first of the rows that is in no segment, -1 if all are, by tables whose last one has the numbers of rows."""
        found = int(kernels.first_outside(self.addresses[-1], self.base, self.renumbered(ids)))
        if len(self._stragglers):
            # An old batch that is none of the stragglers would be numbered as one of those that are there.
            unknown = (ids < self._first << 32) & ~np.isin(ids >> 32, self._stragglers)
            if unknown.any():
                first = int(np.argmax(unknown))
                found = first if found < 0 else min(first, found)
        return found

    def inside(self, ids: Ids) -> npt.NDArray[np.bool_] | None:
        """Which of the rows are in a segment, by tables whose last one has the numbers of rows; None if all are."""
        if self.first_outside(ids) < 0:
            return None
        found = np.empty(len(ids), np.bool_)
        kernels.inside(self.addresses[-1], self.base, self.renumbered(ids), found)
        if len(self._stragglers):
            found &= (ids >= self._first << 32) | np.isin(ids >> 32, self._stragglers)
        return found

    def _place(self, batch: int) -> int:
        """Where a batch stands in the tables; -1 if it has no place."""
        if len(self._stragglers):
            return int(self._places(np.array([batch]))[0])
        place = batch - self._first
        return place if 0 <= place < self.addresses.shape[1] else -1

    def _places(self, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where batches stand in the tables; -1 for those that have no place."""
        places = batches - self.base
        places[(batches < self._first) | (places >= self.addresses.shape[1])] = -1
        if len(self._stragglers):
            found = np.minimum(np.searchsorted(self._stragglers, batches), len(self._stragglers) - 1)
            places = np.where(self._stragglers[found] == batches, found, places)
        return places

    def _lay_out(self) -> None:
        """Gives each batch a place, with room for as many more."""
        batches = np.array(sorted(self.known), np.int64)
        before, old = self._places(batches), self.addresses
        span, count = batches[-1] - batches + 1, np.arange(len(batches), 0, -1)
        cut = int(np.flatnonzero(span <= np.maximum(LEAST_SPAN, LEAST_DENSITY * count))[0])
        self._stragglers, self._first = batches[:cut], int(batches[cut])
        self.addresses = np.zeros((len(old), max(64, 2 * (cut + int(span[cut])))), np.int64)
        kept = before >= 0
        self.addresses[:, self._places(batches)[kept]] = old[:, before[kept]]


class ColumnStore:
    """The values of one column over all segments."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.tables = AddressTables(3)
        """Of bitmaps that tell what is NULL, of values or their offsets, and of bytes."""
        self.has_nulls = False
        self.is_bytes = pa.types.is_string(type) or pa.types.is_binary(type)
        self.is_bool = pa.types.is_boolean(type)
        self.is_fixed = (
            (pa.types.is_primitive(type) or pa.types.is_decimal128(type))
            and not self.is_bool
            and type.bit_width in _FIXED
        )
        self._widest: dict[int, int] = {}

    @property
    def known(self) -> set[int]:
        """The batches whose segments it has learned."""
        return self.tables.known

    @property
    def is_fast(self) -> bool:
        return self.is_bytes or self.is_bool or self.is_fixed

    def learn(self, batch: int, array: pa.Array) -> None:
        """Notes where a segment's values lie. The array has no offset: it was read from an IPC stream."""
        self.known.add(batch)
        if varies(self.type):
            self._widest[batch] = int(row_bytes(array).max(initial=0))
            if len(self._widest) > 2 * len(self.known) + 64:
                self._widest = {b: width for b, width in self._widest.items() if b in self.known}
        if not self.is_fast:
            return
        validity, values, *data = array.buffers()
        has_nulls = bool(array.null_count and validity is not None)
        self.has_nulls |= has_nulls
        self.tables.set(batch, *(_address(b) for b in (validity if has_nulls else None, values, *(data or [None]))))

    def widest(self) -> int:
        """The bytes of the longest value."""
        return max((width for batch, width in self._widest.items() if batch in self.known), default=0)

    def lengths(self, ids: Ids, segments: Mapping[int, pa.Array]) -> npt.NDArray[np.int64]:
        """The bytes of the rows' values, in the order of the ids."""
        if self.is_bytes:
            out = np.empty(len(ids), np.int64)
            kernels.gather_lengths(self.tables.addresses[1], self.tables.base, self.tables.renumbered(ids), out)
            return out
        counted = {int(b): pa.array(row_bytes(segments[int(b)])) for b in np.unique(ids >> 32)}
        lengths: npt.NDArray[np.int64] = _take_by_segment(ids, counted, pa.int64()).to_numpy()
        return lengths

    def gather(self, ids: Ids, segments: Mapping[int, pa.Array]) -> pa.Array:
        """The values of the rows, in the order of the ids."""
        if not self.is_fast:
            return _take_by_segment(ids, segments, self.type)
        n, base, (validities, all_values, all_data) = len(ids), self.tables.base, self.tables.addresses
        ids = self.tables.renumbered(ids)
        validity, nulls = None, 0
        if self.has_nulls:
            bitmap = np.zeros((n + 7) // 8, np.uint8)
            nulls = kernels.gather_bits(validities, base, ids, bitmap)
            validity = pa.py_buffer(bitmap) if nulls else None
        if self.is_bool:
            bitmap = np.zeros((n + 7) // 8, np.uint8)
            kernels.gather_bits(all_values, base, ids, bitmap)
            return pa.Array.from_buffers(self.type, n, [validity, pa.py_buffer(bitmap)], nulls)
        if self.is_bytes:
            offsets = np.empty(n + 1, np.int32)
            total = kernels.gather_offsets(all_values, base, ids, offsets)
            if total > MOST_COLUMN_BYTES:
                raise ValueTooLargeError(
                    f"{n} values of type {self.type} have {total} bytes, and a column holds {MOST_COLUMN_BYTES}: "
                    "select a part of the text (SUBSTRING), or leave the column out"
                )
            out = np.empty(total, np.uint8)
            kernels.gather_bytes(all_values, all_data, base, ids, offsets, out)
            return pa.Array.from_buffers(self.type, n, [validity, pa.py_buffer(offsets), pa.py_buffer(out)], nulls)
        kernel, dtype = _FIXED[self.type.bit_width]
        values = np.empty(n * (2 if self.type.bit_width == 128 else 1), dtype)
        kernel(all_values, base, ids, values)
        return pa.Array.from_buffers(self.type, n, [validity, pa.py_buffer(values)], nulls)


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def varies(type: pa.DataType) -> bool:
    """Whether values of a type differ in length.

    >>> varies(pa.string()), varies(pa.list_(pa.int64())), varies(pa.timestamp("us")), varies(pa.null())
    (True, True, False, False)
    """
    return not (pa.types.is_primitive(type) or pa.types.is_decimal(type) or pa.types.is_null(type))


def row_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    """About how many bytes the value of each row has.

    >>> row_bytes(pa.array(["a", "", None, "bcd"])).tolist()
    [1, 0, 0, 3]
    >>> row_bytes(pa.array([["a"], ["bc", "def"], None])).tolist()
    [5, 13, 0]
    """
    rows, type = len(array), array.type
    if pa.types.is_string(type) or pa.types.is_binary(type):
        _, offsets, _ = array.buffers()
        if not rows:
            return np.zeros(0, np.int64)
        return np.diff(np.frombuffer(offsets, np.int32)[array.offset : array.offset + rows + 1]).astype(np.int64)
    if pa.types.is_list(type) or pa.types.is_map(type):
        ends = np.concatenate([[0], np.cumsum(row_bytes(array.values) + LIST_OFFSET_BYTES)])
        offsets = array.offsets.to_numpy()
        found: npt.NDArray[np.int64] = ends[offsets[1:]] - ends[offsets[:-1]]
        return found
    if pa.types.is_struct(type):
        fields = (row_bytes(array.field(place)) for place in range(type.num_fields))
        return sum(fields, np.zeros(rows, np.int64))
    if not varies(type):
        return np.full(rows, 0 if pa.types.is_null(type) else -(-type.bit_width // 8), np.int64)
    return np.full(rows, -(-array.nbytes // max(rows, 1)), np.int64)


def _take_by_segment(ids: Ids, segments: Mapping[int, pa.Array], type: pa.DataType) -> pa.Array:
    """The slow way: rows grouped by segment, taken from each, put back in order."""
    if not len(ids):
        return pa.array([], type)
    batches = ids >> 32
    order = np.argsort(batches, kind="stable")
    cuts = np.flatnonzero(np.diff(batches[order])) + 1
    pieces = [segments[int(ids[group[0]] >> 32)].take(pa.array(ids[group] & LOW)) for group in np.split(order, cuts)]
    back = np.empty(len(ids), np.int64)
    back[order] = np.arange(len(ids))
    return pa.concat_arrays(pieces).take(pa.array(back))
