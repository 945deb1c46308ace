"""Fetching values of rows by their ids from the segments of a log.

A row id is `batch << 32 | offset`; `addresses[batch - base]` is where that batch's values lie. One loop serves all batches,
so the cost follows the rows fetched, however many segments they come from. None of the loops looks whether an id is that of
a row: ids are checked once, where a lookup finds them (`first_outside`).
"""

from __future__ import annotations

import numpy as np

from anabranch.engine.kernels.memory import load_i32, load_u8, load_u16, load_u32, load_u64
from anabranch.storage.compiled import njit

LOW = np.int64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def gather_8(addresses, base, ids, out):
    for i in range(len(ids)):
        out[i] = load_u8(addresses[(ids[i] >> 32) - base] + (ids[i] & LOW))


@njit(cache=True, nogil=True)
def gather_16(addresses, base, ids, out):
    for i in range(len(ids)):
        out[i] = load_u16(addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 2)


@njit(cache=True, nogil=True)
def gather_32(addresses, base, ids, out):
    for i in range(len(ids)):
        out[i] = load_u32(addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 4)


@njit(cache=True, nogil=True)
def gather_64(addresses, base, ids, out):
    for i in range(len(ids)):
        out[i] = load_u64(addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 8)


@njit(cache=True, nogil=True)
def gather_128(addresses, base, ids, out):
    """`out` has two words a row."""
    for i in range(len(ids)):
        at = addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 16
        out[2 * i] = load_u64(at)
        out[2 * i + 1] = load_u64(at + 8)


@njit(cache=True, nogil=True)
def gather_bits(addresses, base, ids, out):
    """Bits of bitmaps into the bitmap `out` (zeroed); an address of 0 stands for all ones. Returns how many are zero."""
    zeros = 0
    for i in range(len(ids)):
        at = addresses[(ids[i] >> 32) - base]
        offset = ids[i] & LOW
        if at == 0 or (load_u8(at + (offset >> 3)) >> np.uint8(offset & 7)) & np.uint8(1):
            out[i >> 3] |= np.uint8(1) << np.uint8(i & 7)
        else:
            zeros += 1
    return zeros


@njit(cache=True, nogil=True)
def gather_offsets(addresses, base, ids, out):
    """Offsets (one more than rows) of the values to be gathered; returns their total length in bytes."""
    total = np.int64(0)
    out[0] = 0
    for i in range(len(ids)):
        at = addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 4
        total += load_i32(at + 4) - load_i32(at)
        out[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather_lengths(addresses, base, ids, out):
    """How many bytes each of the variable-length values has."""
    for i in range(len(ids)):
        at = addresses[(ids[i] >> 32) - base] + (ids[i] & LOW) * 4
        out[i] = load_i32(at + 4) - load_i32(at)


@njit(cache=True, nogil=True)
def inside(counts, base, ids, out):
    """Whether each id is that of a row: its segment is there, and has so many rows."""
    for i in range(len(ids)):
        segment = (ids[i] >> 32) - base
        out[i] = 0 <= segment < len(counts) and (ids[i] & LOW) < counts[segment]


@njit(cache=True, nogil=True)
def first_outside(counts, base, ids):
    """The first of the rows that is in no segment, -1 if all are; `counts[batch - base]` is how many rows a segment has."""
    for i in range(len(ids)):
        segment = (ids[i] >> 32) - base
        if segment < 0 or segment >= len(counts) or (ids[i] & LOW) >= counts[segment]:
            return i
    return -1


@njit(cache=True, nogil=True)
def gather_bytes(offset_addresses, data_addresses, base, ids, offsets, out):
    """Copies the bytes of variable-length values to where `offsets` say."""
    for i in range(len(ids)):
        segment = (ids[i] >> 32) - base
        source = data_addresses[segment] + load_i32(offset_addresses[segment] + (ids[i] & LOW) * 4)
        target = offsets[i]
        for b in range(offsets[i + 1] - target):
            out[target + b] = load_u8(source + b)


@njit(cache=True, nogil=True)
def take(values, positions):
    """`values[positions]`, for positions that are known to be in range."""
    out = np.empty(len(positions), values.dtype)
    for i in range(len(positions)):
        out[i] = values[positions[i]]
    return out
