"""One hash for a whole row: of all its columns, by their names, whatever their order, and never of where the row stands.

By it rows are chosen when not all of them can be dealt with: those that look up their partners (`anabranch.engine.limits`),
those that are kept where rows are shed (`anabranch.engine.shedding`). A batch that runs again, with its rows in another
order or on another host, chooses the same rows. Equal rows have equal hashes and share their fate: the multiset of what is
chosen depends on the multiset of rows alone.

NULL has a word of its own; -0.0 is 0.0, and every NaN is one, as for keys. A list is hashed by the words of its elements, a
struct by those of its fields in order, a map as the list of its entries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from anabranch.engine.accept import Rows, in_one_piece
from anabranch.engine.kernels import hashing
from anabranch.engine.keys import Hashes, words_of

NULL = 0xA0761D6478BD642F
"""The word of NULL: any that no value is likely to have."""

ALL_HASHES = 1 << 64


def hash_rows(rows: Rows) -> Hashes:
    """The hash of each row.

    >>> one, other = pa.table({"a": [1, 2], "b": ["x", None]}), pa.table({"b": [None, "x"], "a": [2, 1]})
    >>> hash_rows(one).tolist() == hash_rows(other).tolist()[::-1]
    True
    """
    out = np.zeros(rows.num_rows, np.uint64)
    for place in sorted(range(rows.num_columns), key=lambda place: rows.schema.names[place]):
        hashing.combine(value_words(in_one_piece(rows.column(place))), out)
    return out


def combined_hash(parts: list[Hashes]) -> Hashes:
    """The hash of combined rows by those of their parts, in an order that does not change."""
    out = np.zeros(len(parts[0]), np.uint64)
    for hashes in parts:
        hashing.combine(hashes, out)
    return out


def chosen(hashes: Hashes, share: float, salt: int) -> npt.NDArray[np.bool_]:
    """Which rows are in a share of all, from 0 to 1. With the same salt, the rows of a smaller share are among those of a
    larger one."""
    out = np.empty(len(hashes), np.bool_)
    hashing.choose(hashes, np.uint64(salt), np.uint64(min(int(share * ALL_HASHES), ALL_HASHES - 1)), out)
    return out


def salt_for(salt: int, purpose: str) -> int:
    """A salt for one of several choices that are to be independent of one another."""
    return xxhash.xxh3_64_intdigest(f"{salt} {purpose}".encode())


def value_words(column: pa.Array) -> Hashes:
    """Values of any type as words, equal iff the values are, but for collisions of 64-bit hashes."""
    type = column.type
    if isinstance(column, pa.ExtensionArray):
        return value_words(column.storage)
    if pa.types.is_null(type):
        return np.full(len(column), NULL, np.uint64)
    if pa.types.is_dictionary(type):
        return value_words(column.dictionary_decode())
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_map(type):
        words = _list_words(column)
    elif pa.types.is_fixed_size_list(type):
        return value_words(column.cast(pa.list_(type.value_type)))
    elif pa.types.is_struct(type):
        words = np.zeros(len(column), np.uint64)
        for place in range(type.num_fields):
            hashing.combine(value_words(column.field(place)), words)
    elif pa.types.is_primitive(type) or pa.types.is_decimal128(type) or type in (pa.string(), pa.binary()):
        words = words_of(_without_nulls(column))
    else:  # other layouts of strings and bytes
        words = words_of(_without_nulls(column.cast(pa.string() if _is_text(type) else pa.binary())))
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        words = np.where(is_null, np.uint64(NULL), words)
    return words


def _list_words(column: pa.Array) -> Hashes:
    out = np.empty(len(column), np.uint64)
    if len(column):
        offsets = column.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        hashing.hash_lists(offsets - first, value_words(column.values.slice(first, last - first)), out)
    return out


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _without_nulls(column: pa.Array) -> pa.Array:
    """The column as if nothing in it were NULL: where something is, any value stands."""
    if not column.null_count:
        return column
    buffers = [None, *column.buffers()[1:]]
    return pa.Array.from_buffers(column.type, len(column), buffers, 0, column.offset)
