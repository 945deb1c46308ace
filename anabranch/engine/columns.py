"""Where the values of a column lie, batch by batch, and how rows are fetched by id.

The addresses are found once per segment and column, when somebody first asks for the column. Types that are not a plain
buffer or bytes with offsets (nested ones) go the slow way: a take in each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.kernels import gather as kernels

Ids = npt.NDArray[np.int64]

_FIXED: dict[int, tuple[Callable[..., None], Any]] = {
    8: (kernels.gather_8, np.uint8),
    16: (kernels.gather_16, np.uint16),
    32: (kernels.gather_32, np.uint32),
    64: (kernels.gather_64, np.uint64),
    128: (kernels.gather_128, np.uint64),
}


class AddressTable:
    """One address per batch, for batches from `base` on."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.addresses = np.zeros(64, np.int64)

    def set(self, batch: int, address: int) -> None:
        place = batch - self.base
        if place >= len(self.addresses):
            grown = np.zeros(max(2 * len(self.addresses), place + 1), np.int64)
            grown[: len(self.addresses)] = self.addresses
            self.addresses = grown
        self.addresses[place] = address

    def rebase(self, base: int) -> None:
        """Forgets the batches before `base`."""
        kept = self.addresses[base - self.base :]
        self.addresses = np.zeros(max(64, len(kept)), np.int64)
        self.addresses[: len(kept)] = kept
        self.base = base


class ColumnStore:
    """The values of one column over all segments."""

    def __init__(self, type: pa.DataType, base: int) -> None:
        self.type = type
        self.known: set[int] = set()
        self.validity = AddressTable(base)
        self.values = AddressTable(base)
        self.data = AddressTable(base)
        self.has_nulls = False
        self.is_bytes = pa.types.is_string(type) or pa.types.is_binary(type)
        self.is_bool = pa.types.is_boolean(type)
        self.is_fixed = (
            (pa.types.is_primitive(type) or pa.types.is_decimal128(type))
            and not self.is_bool
            and type.bit_width in _FIXED
        )

    @property
    def is_fast(self) -> bool:
        return self.is_bytes or self.is_bool or self.is_fixed

    def learn(self, batch: int, array: pa.Array) -> None:
        """Notes where a segment's values lie. The array has no offset: it was read from an IPC stream."""
        self.known.add(batch)
        if not self.is_fast:
            return
        buffers = array.buffers()
        if array.null_count and buffers[0] is not None:
            self.has_nulls = True
            self.validity.set(batch, buffers[0].address)
        else:
            self.validity.set(batch, 0)
        self.values.set(batch, buffers[1].address if buffers[1] is not None else 0)
        if self.is_bytes:
            self.data.set(batch, buffers[2].address if buffers[2] is not None else 0)

    def forget(self, base: int) -> None:
        self.known = {b for b in self.known if b >= base}
        for table in (self.validity, self.values, self.data):
            table.rebase(base)

    def gather(self, ids: Ids, segments: Mapping[int, pa.Array]) -> pa.Array:
        """The values of the rows, in the order of the ids."""
        if not self.is_fast:
            return _take_by_segment(ids, segments, self.type)
        n, base = len(ids), self.values.base
        validity, nulls = None, 0
        if self.has_nulls:
            bitmap = np.zeros((n + 7) // 8, np.uint8)
            nulls = kernels.gather_bits(self.validity.addresses, base, ids, bitmap)
            validity = pa.py_buffer(bitmap) if nulls else None
        if self.is_bool:
            bitmap = np.zeros((n + 7) // 8, np.uint8)
            kernels.gather_bits(self.values.addresses, base, ids, bitmap)
            return pa.Array.from_buffers(self.type, n, [validity, pa.py_buffer(bitmap)], nulls)
        if self.is_bytes:
            offsets = np.empty(n + 1, np.int32)
            total = kernels.gather_offsets(self.values.addresses, base, ids, offsets)
            if total > np.iinfo(np.int32).max:
                return _take_by_segment(ids, segments, self.type)
            out = np.empty(total, np.uint8)
            kernels.gather_bytes(self.values.addresses, self.data.addresses, base, ids, offsets, out)
            return pa.Array.from_buffers(self.type, n, [validity, pa.py_buffer(offsets), pa.py_buffer(out)], nulls)
        kernel, dtype = _FIXED[self.type.bit_width]
        values = np.empty(n * (2 if self.type.bit_width == 128 else 1), dtype)
        kernel(self.values.addresses, base, ids, values)
        return pa.Array.from_buffers(self.type, n, [validity, pa.py_buffer(values)], nulls)


def _take_by_segment(ids: Ids, segments: Mapping[int, pa.Array], type: pa.DataType) -> pa.Array:
    """The slow way: rows grouped by segment, taken from each, put back in order."""
    if not len(ids):
        return pa.array([], type)
    batches = ids >> 32
    order = np.argsort(batches, kind="stable")
    cuts = np.flatnonzero(np.diff(batches[order])) + 1
    pieces = [
        segments[int(ids[group[0]] >> 32)].take(pa.array(ids[group] & 0xFFFFFFFF)) for group in np.split(order, cuts)
    ]
    back = np.empty(len(ids), np.int64)
    back[order] = np.arange(len(ids))
    return pa.concat_arrays(pieces).take(pa.array(back))
