"""Keys as 64-bit words: what indexes are sorted by, and how a match is checked where the word is only a hash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels import hashing

Hashes = npt.NDArray[np.uint64]


def is_exact(types: Sequence[pa.DataType]) -> bool:
    """Whether equal hashes mean equal keys: at most one column, of at most 64 bits."""
    return len(types) == 0 or (len(types) == 1 and _fits_word(types[0]))


def _fits_word(type: pa.DataType) -> bool:
    if pa.types.is_decimal(type):
        return bool(type.precision <= 18)
    return bool(pa.types.is_primitive(type) and type.bit_width <= 64)


def hash_keys(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """One hash per row; rows without key columns (cartesian products) all have the same."""
    out = np.zeros(rows, np.uint64)
    for place, column in enumerate(columns):
        words = words_of(column)
        if place == 0:
            hashing.hash_words(words, out)
        else:
            hashing.combine(words, out)
    return out


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Where all columns of two lists are equal (no value is NULL)."""
    result: npt.NDArray[np.bool_] | None = None
    for ours, theirs in zip(left, right, strict=True):
        if _fits_word(ours.type):
            same = words_of(ours) == words_of(theirs)
        else:
            same = pc.equal(ours, theirs).to_numpy(zero_copy_only=False)
        result = same if result is None else result & same
    assert result is not None
    return result


def words_of(column: pa.Array) -> Hashes:
    """The values as 64-bit words, equal iff the values are (for strings, binaries and long decimals: a hash of them). None
    of them is NULL."""
    type = column.type
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return _hash_bytes(column)
    if pa.types.is_floating(type):
        # 0.0 equals -0.0, and NaN equals NaN.
        with np.errstate(invalid="ignore"):
            values = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        values[np.isnan(values)] = np.nan
        words: Hashes = values.view(np.uint64)
        return words
    if pa.types.is_boolean(type):
        return np.asarray(column.cast(pa.uint8()).to_numpy(zero_copy_only=False), np.uint64)
    if pa.types.is_decimal128(type):
        pairs = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset : 2 * (column.offset + len(column))]
        low, high = np.ascontiguousarray(pairs[0::2]), np.ascontiguousarray(pairs[1::2])
        if type.precision <= 18:
            return low
        out = np.empty(len(column), np.uint64)
        hashing.hash_words(low, out)
        hashing.combine(high, out)
        return out
    integers = column.view({8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type.bit_width])
    values = integers.to_numpy(zero_copy_only=False)
    return np.asarray(values, np.int64).view(np.uint64)


def _hash_bytes(column: pa.Array) -> Hashes:
    _, offsets_buffer, data = column.buffers()
    out = np.empty(len(column), np.uint64)
    if len(column):
        offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
        hashing.hash_bytes(offsets, data.address if data is not None else 0, out)
    return out
