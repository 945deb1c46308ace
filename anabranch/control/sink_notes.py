"""Where the results of each query go, as data: a query that was added while others ran runs on after a restart, although no
script declares it.

    <checkpoint>/sinks/<query>

A folder of parquet files on a disk, a table of the catalog and the console can be found again by what is noted. A function,
or a folder on a store, cannot: it must be handed in again.
"""

from __future__ import annotations

import contextlib

import msgspec

from anabranch.errors import DamagedStateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

FOLDER, KIND = "sinks", "sink"


class SinkNote(msgspec.Struct, frozen=True):
    """A sink."""

    kind: str
    """`parquet`, `table`, `console`; or `function` or `store`, which cannot be found again."""
    place: str = ""
    """The path of a folder, the name of a table, or how a store is shown."""

    @property
    def is_enough(self) -> bool:
        """Whether the sink can be made again from this."""
        return self.kind in ("parquet", "table", "console")


def forget_sink(checkpoint: Filesystem, query: str) -> None:
    """Deletes what is noted of the sink of a query that is gone."""
    checkpoint.delete(f"{FOLDER}/{query}")


def write_sink(checkpoint: Filesystem, query: str, note: SinkNote) -> None:
    """Notes where the results of a query go, if that is not noted."""
    if read_sink(checkpoint, query) != note:
        checkpoint.put(f"{FOLDER}/{query}", [seal(KIND, msgspec.json.encode(note))])


def read_sink(checkpoint: Filesystem, query: str) -> SinkNote | None:
    """Where the results of a query go; None if that is not known.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> write_sink(disk, "q", SinkNote("parquet", "results/q"))
    >>> read_sink(disk, "q"), read_sink(disk, "p")
    (SinkNote(kind='parquet', place='results/q'), None)
    """
    path = f"{FOLDER}/{query}"
    with contextlib.suppress(FileNotFoundError, DamagedStateError):
        return msgspec.json.decode(unseal(KIND, memoryview(checkpoint.get(path)), path), type=SinkNote)
    return None
