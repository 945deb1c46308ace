"""Tables that a worker keeps: each was read whole from its database, once, because it does not change.

A table is sorted by the hash of its key columns, so that a batch finds the rows for its keys by halving, whatever their
types, and however large the table is. What has the hash of a key need not have the key: whoever asks compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from anabranch.engine.accept import in_one_piece
from anabranch.engine.keys import Hashes, hash_keys
from anabranch.place.databases.protocol import TableSize
from anabranch.place.reading import MOST_BYTES

SIZE_ASKED_EVERY = 64
"""The size of a table is asked again after so many batches that looked it up."""

MOST_KNOWN = 256
"""Of so many tables a worker remembers something."""


@dataclass(frozen=True)
class ShippedTable:
    """The rows of a table that have a key."""

    rows: pa.Table
    hashes: Hashes
    bytes: int
    """As its database counted them when it was shipped."""

    def candidates(self, keys: pa.Table) -> pa.Table:
        """The rows whose keys have the hash of one of some distinct keys: all that match are among them."""
        wanted = np.unique(_hashed(keys))
        begins = np.searchsorted(self.hashes, wanted, "left")
        counts = np.searchsorted(self.hashes, wanted, "right") - begins
        ends = np.cumsum(counts)
        places = np.repeat(begins - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
        return self.rows.take(pa.array(places))


def shipped(rows: pa.Table, keys: pa.Table, bytes: int) -> ShippedTable:
    """A table, with its key columns as a batch has them."""
    valid = np.ones(rows.num_rows, np.bool_)
    for column in keys.columns:
        valid &= column.is_valid().to_numpy()
    if not valid.all():
        rows, keys = rows.filter(pa.array(valid)), keys.filter(pa.array(valid))
    hashes = _hashed(keys)
    order = np.argsort(hashes, kind="stable")
    return ShippedTable(rows.take(pa.array(order)).combine_chunks(), hashes[order], bytes)


def _hashed(keys: pa.Table) -> Hashes:
    return hash_keys([in_one_piece(column) for column in keys.columns], keys.num_rows)


@dataclass
class Known:
    """What a worker remembers of one table that is asked for some columns."""

    spent_s: float = 0.0
    """What lookups in it have taken."""
    table: ShippedTable | None = None
    _size: TableSize | None = None
    _asks_size_in: int = 0

    def size(self, ask: Callable[[], TableSize | None]) -> TableSize | None:
        """How large it is, which is asked now and then."""
        if self._asks_size_in <= 0:
            self._size, self._asks_size_in = ask(), SIZE_ASKED_EVERY
        self._asks_size_in -= 1
        return self._size

    def forget_size(self) -> None:
        """Does as if its size were not known, until it is asked again: it could not be read."""
        self._size = None


@dataclass
class Shelf:
    """What a worker remembers of tables in databases, from batch to batch, by run and by what is asked. All of it may be
    forgotten at any time: it is read again then."""

    known: dict[tuple[str, str], Known] = field(default_factory=dict)

    def of(self, run: str, asked: str) -> Known:
        """What is known of a table; what was not asked for longest is forgotten."""
        found = self.known.pop((run, asked), None) or Known()
        self.known[run, asked] = found
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]
        return found

    def room(self, run: str) -> int:
        """How many bytes a run may still keep: tables of other runs go where it needs their room."""
        return MOST_BYTES - sum(each.table.bytes for key, each in self.known.items() if each.table and key[0] == run)

    def make_room(self, run: str, bytes: int) -> None:
        """Lets tables of other runs go, those first that were not asked for longest, until there is room."""
        taken = sum(each.table.bytes for each in self.known.values() if each.table)
        for key, each in list(self.known.items()):
            if taken + bytes <= MOST_BYTES:
                return
            if each.table is not None and key[0] != run:
                taken -= each.table.bytes
                del self.known[key]
