"""Files that are not read yet because they are not complete: found by the reader, told by the driver.

The reader lives in a process of its own, which Spark starts. Beside its list of files it keeps a small record of those that
it left out, written when they change; the driver looks there when somebody asks.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from anabranch.control.progress import Waiting
from anabranch.errors import StateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

RECORD = "waiting"
MOST_NAMED = 10
"""So many files are named, of others only the number is told."""


def waiting_of(paths: Collection[str]) -> Waiting:
    """
    >>> print(waiting_of(["/b.parquet", "/a.parquet"]))
    2 files wait to be complete: /a.parquet, /b.parquet
    """
    return Waiting(len(paths), sorted(paths)[:MOST_NAMED])


def write_waiting(filesystem: Filesystem, waiting: Waiting) -> None:
    """Keeps the record of what waits, if it differs from the one that is there."""
    if waiting != read_waiting(filesystem):
        filesystem.put(RECORD, [seal(RECORD, msgspec.json.encode(waiting))])


def read_waiting(filesystem: Filesystem) -> Waiting:
    """What waits; nothing if there is no record, or none that can be read: it is for people only."""
    try:
        payload = unseal(RECORD, memoryview(filesystem.get(RECORD)), RECORD)
        return msgspec.json.decode(payload, type=Waiting)
    except (FileNotFoundError, StateError, msgspec.DecodeError):
        return Waiting()
