"""Where rows of stored tables are kept in a checkpoint: `tables/t.arrow`, and `tables/t@5.arrow` as batch 5 read it again.

A file is an Arrow IPC stream in the envelope of a record: Arrow takes a stream that was cut between two batches for whole.

No name of a table holds `@` (`anabranch.plan.names`), so the fifth reading of `t` is never taken for the table `t-5`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import pyarrow as pa

from anabranch.errors import DamagedStateError
from anabranch.storage.filesystem import Filesystem, byte_view
from anabranch.storage.record import damaged, first_line, unsealed

FOLDER, KIND = "tables", "table"
_VERSION = re.compile(r"[^@]+@([0-9]+)\.arrow")


def table_file(table: str, batch: int | None = None) -> str:
    """The file of a table as it was read before the first batch, or again in a later one."""
    return f"{FOLDER}/{table}.arrow" if batch is None else f"{FOLDER}/{table}@{batch}.arrow"


def release_versions(filesystem: Filesystem, named: Collection[str], before: int) -> None:
    """Deletes what batches before one read again and no commit names; files that are not so called stay."""
    for name in filesystem.list(FOLDER):
        version = _VERSION.fullmatch(name)
        if version is not None and int(version[1]) < before and f"{FOLDER}/{name}" not in named:
            filesystem.delete(f"{FOLDER}/{name}")


def put_table(filesystem: Filesystem, path: str, rows: pa.Buffer) -> None:
    """Writes the rows of a table, given as an Arrow IPC stream."""
    view = byte_view(rows)
    filesystem.put(path, [first_line(KIND, view), view])


def holds_table(filesystem: Filesystem, path: str) -> bool:
    """Whether a file is there and whole."""
    try:
        _rows(filesystem, path)
    except DamagedStateError:
        return False
    return True


def get_table(filesystem: Filesystem, path: str) -> pa.Table:
    """The rows of a table; DamagedStateError if the file is missing, torn or changed.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk, stream = MemoryFilesystem(), pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(stream, pa.schema({"k": pa.int64()})) as writer:
    ...     writer.write_table(pa.table({"k": [1, 2]}))
    >>> put_table(disk, "tables/t.arrow", stream.getvalue())
    >>> get_table(disk, "tables/t.arrow").to_pydict()
    {'k': [1, 2]}
    """
    # Arrow wants its buffers aligned, and the first line is of any length: a copy is.
    return pa.ipc.open_stream(pa.py_buffer(bytes(_rows(filesystem, path)))).read_all()


def _rows(filesystem: Filesystem, path: str) -> memoryview:
    try:
        data = filesystem.get(path)
    except FileNotFoundError:
        raise damaged(path, "it is missing although a record names it") from None
    return unsealed(KIND, memoryview(data), path)
