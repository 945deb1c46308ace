"""Rows with equal keys under one number. NULL is a key like any other."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels.aggregation import NONE, assign, rehash
from anabranch.engine.keys import Hashes, equal_keys, hash_keys, is_exact

Ids = npt.NDArray[np.int64]

FIRST_ROOM = 1024
NULL_MARK = np.uint64(0xD6E8FEB86659FD93)
SALT = np.uint64(0xA0761D6478BD642F)


class KeyNumbers:
    """The keys seen so far, numbered from 0."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = tuple(types)
        self.count = 0
        self.keys: list[pa.Array] = [pa.array([], t) for t in self.types]
        self._table = np.full(2 * FIRST_ROOM, NONE, np.int64)
        self._known = np.empty(FIRST_ROOM, np.uint64)

    def numbers(self, keys: Sequence[pa.Array], rows: int) -> Ids:
        """The number of each row's group; new keys get new numbers."""
        hashes = _hashes(keys, rows)
        found = self._assign(hashes, keys)
        if is_exact(self.types) and not any(k.null_count for k in (*keys, *self.keys)):
            return found
        # Rows whose hash is that of another key get another hash, until each has a number of its own.
        wrong = np.flatnonzero(~_same(keys, self.keys_of(found)))
        while len(wrong):
            hashes[wrong] = hashes[wrong] * SALT + SALT
            parts = [k.take(pa.array(wrong)) for k in keys]
            found[wrong] = self._assign(hashes[wrong], parts)
            wrong = wrong[~_same(parts, self.keys_of(found[wrong]))]
        return found

    def keys_of(self, numbers: Ids) -> list[pa.Array]:
        """The keys of some groups."""
        places = pa.array(numbers)
        return [key.take(places) for key in self.keys]

    def _assign(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Ids:
        """The numbers of hashes; those that are new get the keys of the rows that brought them."""
        self._make_room(len(hashes))
        found, brought_by = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
        before = self.count
        self.count = int(assign(hashes, self._table, self._known, self.count, found, brought_by))
        if self.count > before:
            rows = pa.array(brought_by[: self.count - before])
            self.keys = [_joined(old, key.take(rows)) for old, key in zip(self.keys, keys, strict=True)]
        return found

    def _make_room(self, more: int) -> None:
        need = self.count + more
        if need > len(self._known):
            self._known = np.concatenate([self._known[: self.count], np.empty(need, np.uint64)])
        if 2 * need > len(self._table):
            self._table = np.full(1 << (2 * need).bit_length(), NONE, np.int64)
            rehash(self._known, self.count, self._table)


def _joined(old: pa.Array, fresh: pa.Array) -> pa.Array:
    return pa.concat_arrays([old, fresh]) if len(old) else fresh


def _hashes(keys: Sequence[pa.Array], rows: int) -> Hashes:
    hashes = hash_keys([_filled(k) for k in keys], rows)
    for place, key in enumerate(keys):
        if key.null_count:
            missing = np.asarray(key.is_null().to_numpy(zero_copy_only=False), np.bool_)
            hashes[missing] = (hashes[missing] ^ NULL_MARK) * np.uint64(2 * place + 3)
    return hashes


def _filled(key: pa.Array) -> pa.Array:
    """The key with some value in place of NULL."""
    if not key.null_count:
        return key
    type = key.type
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return pc.fill_null(key, pa.scalar("" if pa.types.is_string(type) else b"", type))
    if pa.types.is_boolean(type):
        return pc.fill_null(key, pa.scalar(False))
    if pa.types.is_decimal(type) or pa.types.is_floating(type):
        return pc.fill_null(key, pa.scalar(Decimal(0) if pa.types.is_decimal(type) else 0.0, type))
    if pa.types.is_integer(type):
        return pc.fill_null(key, pa.scalar(0, type))
    plain = key.view({32: pa.int32(), 64: pa.int64()}[type.bit_width])
    return pc.fill_null(plain, pa.scalar(0, plain.type)).view(type)


def _same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Where two rows of keys are the same, NULLs included."""
    same = equal_keys([_filled(k) for k in left], [_filled(k) for k in right])
    for ours, theirs in zip(left, right, strict=True):
        if ours.null_count or theirs.null_count:
            same &= ours.is_null().to_numpy(zero_copy_only=False) == theirs.is_null().to_numpy(zero_copy_only=False)
    return same
