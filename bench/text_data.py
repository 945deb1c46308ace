"""A workload's streams as CSV, for a contender that reads no parquet, and the same rows as CSV and parquet for ours.

Event times are cut to whole milliseconds, because Flink's have no more. A stream has only the columns that the query reads,
since a reader of parquet passes over the others for nothing, and a reader of CSV does not. The rows are cut as each
contender needs them:

- `<folder>/parquet/<stream>/<batch>.parquet` and `<folder>/csv/<stream>/<batch>.csv`, a file for each batch, for ours;
- `<folder>/readers/<stream>/<reader>.csv`, a file for each of a stream's parallel readers, for Flink: every n-th row, in
  order of time, without a header, with the time `ms` as a number. Flink hands files to readers in no order, so a reader that
  took several would come upon rows behind its own watermark;
- `<folder>/together/<reader>.csv`, the same with the rows of all streams in one file, and first of all the place of a row's
  stream (`origin`), for a Flink that reads all streams with one source. All rows have the columns that any stream has.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from bench.data import EARLIEST_MTIME_S, FIRST_EVENT_US, mark_written, write_batches
from bench.workload import POOL, SHAPES, Workload

FORMAT = 1
"""Raised when the same parameters give other files than before."""

MARKER = "text.json"
MS_US = 1000


def columns_read(workload: Workload, stream: str) -> tuple[str, ...]:
    """The columns of a stream that the query reads, without its time.

    >>> columns_read(Workload("3-way chain", 10, 4, 1), "c")
    ('k2', 'v')
    """
    read = {c for edge in SHAPES[workload.shape] for c in edge} | set(workload.selected)
    return tuple(name for name in workload.columns if f"{stream}.{name}" in read)


def columns_together(workload: Workload) -> tuple[str, ...]:
    """The columns that the query reads of any stream, without times.

    >>> columns_together(Workload("3-way chain", 10, 4, 1))
    ('k1', 'k2', 'v')
    """
    read = {name for stream in workload.streams for name in columns_read(workload, stream)}
    return tuple(name for name in workload.columns if name in read)


def rows_of(workload: Workload, number: int) -> dict[str, pa.Table]:
    """A batch of the workload, by stream, in whole milliseconds."""
    return {s: rows.select([*columns_read(workload, s), "ts"]) for s, rows in _wide_rows(workload, number).items()}


def _wide_rows(workload: Workload, number: int) -> dict[str, pa.Table]:
    batch = {}
    for stream, rows in workload.batch(number).items():
        times = pc.multiply(pc.divide(rows.column("ts").cast(pa.int64()), MS_US), MS_US).cast(pa.timestamp("us"))
        batch[stream] = rows.select(columns_together(workload)).append_column("ts", times)
    return batch


def _numbered(rows: pa.Table) -> pa.Table:
    """The rows with the instant in milliseconds, as a number, in the place of their time."""
    instants = pc.add(rows.column("ts").cast(pa.int64()), FIRST_EVENT_US)
    return rows.set_column(rows.schema.get_field_index("ts"), "ms", pc.divide(instants, MS_US))


def _deal(rows: pa.Table, folder: Path, readers: int) -> None:
    """Appends every n-th row to the file of each reader."""
    for reader in range(readers):
        with open(folder / f"{reader}.csv", "ab") as file:
            part = rows.take(pa.array(range(reader, len(rows), readers)))
            pv.write_csv(part, file, pv.WriteOptions(include_header=False))


def write_text(workload: Workload, folder: str, batches: int, readers: int) -> None:
    """Writes the first batches of a workload in all cuts, unless the folder has exactly these already."""
    root = Path(folder)
    marker = {**asdict(workload), "batches": batches, "readers": readers, "pool": POOL, "format": FORMAT}
    if (root / MARKER).exists() and json.loads((root / MARKER).read_text()) == marker:
        return
    (root / MARKER).unlink(missing_ok=True)
    for old in (*root.glob("*/*/*.*"), *root.glob("together/*.csv")):
        old.unlink()
    numbers = range(batches)
    (root / "parquet").mkdir(parents=True, exist_ok=True)
    write_batches(root / "parquet", workload.streams, (rows_of(workload, number) for number in numbers))
    mark_written(workload, str(root / "parquet"), batches)
    for stream in workload.streams:
        (root / "csv" / stream).mkdir(parents=True, exist_ok=True)
        (root / "readers" / stream).mkdir(parents=True, exist_ok=True)
    (root / "together").mkdir(exist_ok=True)
    for number in numbers:
        for stream, rows in rows_of(workload, number).items():
            path = root / "csv" / stream / f"{number:06d}.csv"
            times = pc.multiply(_numbered(rows).column("ms"), MS_US).cast(pa.timestamp("us")).cast(pa.timestamp("ms"))
            texts = pc.strftime(times, "%Y-%m-%d %H:%M:%S")
            whole = rows.set_column(rows.schema.get_field_index("ts"), "ts", texts)
            pv.write_csv(whole, path, pv.WriteOptions(quoting_style="none"))
            os.utime(path, (EARLIEST_MTIME_S + number, EARLIEST_MTIME_S + number))
            _deal(_numbered(rows), root / "readers" / stream, readers)
        together = [
            rows.add_column(0, "origin", pa.array(np.full(len(rows), place)))
            for place, rows in enumerate(_wide_rows(workload, number).values())
        ]
        _deal(_numbered(pa.concat_tables(together).sort_by("ts")), root / "together", readers)
    (root / MARKER).write_text(json.dumps(marker) + "\n")
