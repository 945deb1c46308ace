"""Results on their way out of a task: written row group by row group to a file that waits for its batch to be committed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from time import perf_counter_ns

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.engine import bounds
from anabranch.spark.types import zoned_schema
from anabranch.storage.filesystem import Filesystem

STAGING = "_staging"
"""The folder of a parquet sink in which files wait for their batch to be committed."""


class Clocked:
    """Results as they are found, and how long the finding took: not what becomes of them in between."""

    def __init__(self, results: Iterable[pa.RecordBatch]) -> None:
        self._results, self.spent_ns = iter(results), 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        began = perf_counter_ns()
        try:
            return next(self._results)
        finally:
            self.spent_ns += perf_counter_ns() - began


def stage(staging: Filesystem, name: str, results: Iterator[pa.RecordBatch], output: pa.Schema) -> tuple[str, int]:
    """Writes results, as they come, to a file nobody reads until the batch is committed. Returns its name and size; no name
    if there are no results."""
    groups = row_groups(results)
    first = next(groups, None)
    if first is None:
        return "", 0
    path, file = f"{STAGING}/{name}.parquet", _Written()
    staging.put(path, file.parquet(first, groups, zoned_schema(output)))
    return path, file.size


def row_groups(results: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Results in row groups: small pieces go together, none is larger than a piece and what had gathered before it."""
    gathered: list[pa.RecordBatch] = []
    for piece in results:
        gathered.append(piece)
        rows, size = sum(p.num_rows for p in gathered), sum(p.nbytes for p in gathered)
        if rows >= bounds.RESULT_ROWS or size >= bounds.RESULT_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered)


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
