"""Results on their way out of a task: written row group by row group to a file that waits for its batch to be committed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.drive.staging import gathered
from anabranch.storage.filesystem import Filesystem

STAGING = "_staging"
"""The folder of a parquet sink in which files wait for their batch to be committed."""


def staged_path(name: str) -> str:
    """Where a parquet sink has a staged file."""
    return f"{STAGING}/{name}.parquet"


@dataclass(frozen=True)
class ParquetStaging:
    """Writes results, as they come, to files that nobody reads until their batch is committed."""

    folder: Filesystem
    """That of the sink."""
    output: pa.Schema
    """The columns, in the types under which they leave."""

    def __call__(self, name: str, results: Iterator[pa.RecordBatch]) -> int:
        """Writes a file, and returns its size; no file, and 0, if there are no results."""
        groups = gathered(results)
        first = next(groups, None)
        if first is None:
            return 0
        file = _Written()
        self.folder.put(staged_path(name), file.parquet(first, groups, self.output))
        return file.size


class Takes(Enum):
    """In which form a sink takes results."""

    FILES = "files that tasks have written for it"
    ARROW = "a table of pyarrow's, in the driver"
    PIECES = "a reader of pyarrow's, in the driver, which gives them piece by piece"
    FRAME = "a DataFrame"


class _Written(io.RawIOBase):
    """What a writer of parquet has written and nobody has taken yet."""

    def __init__(self) -> None:
        self.size, self._parts = 0, list[bytes]()

    def parquet(self, first: pa.Table, groups: Iterator[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
        """The bytes of a file, a row group at a time."""
        with pq.ParquetWriter(self, schema, compression="lz4", use_dictionary=False) as writer:
            writer.write_table(first.cast(schema), row_group_size=first.num_rows)
            del first
            yield from self._taken()
            for group in groups:
                writer.write_table(group.cast(schema), row_group_size=group.num_rows)
                yield from self._taken()
        yield from self._taken()

    def _taken(self) -> list[bytes]:
        taken, self._parts = self._parts, []
        return taken

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size
