"""The databases of a process, by name: each is connected when it is first asked, and stays."""

from __future__ import annotations

import atexit
import os

import pyarrow as pa

from anabranch.place.databases.protocol import Server
from anabranch.place.databases.settings import settings_of

_KNOWN: dict[tuple[int, str], Server] = {}
"""By process: a connection does not survive a fork."""


def database(name: str) -> Server:
    """The database of a name."""
    key = (os.getpid(), name)
    if key not in _KNOWN:
        from anabranch.place.databases.postgresql import PostgreSQL  # a driver is loaded where a database is used

        if not _KNOWN:
            atexit.register(close_all)
        _KNOWN[key] = PostgreSQL(settings_of(name))
    return _KNOWN[key]


def describe(name: str, table: str) -> tuple[tuple[str, pa.DataType], ...]:
    """The columns of a table of a database."""
    return database(name).describe(table)


def close_all() -> None:
    """Lets go of all connections of this process."""
    for (process, _), known in list(_KNOWN.items()):
        if process == os.getpid():
            known.close()
    _KNOWN.clear()
