"""A workload's streams as parquet files, the same for every contender.

One file per stream and batch, `<folder>/<stream>/<batch>.parquet`. Modification times rise by a second per batch, alike in
all streams, so that a file source which takes one file of each stream at a time, oldest first, sees the batches in order.
Event times are instants in UTC: Spark reads them as TIMESTAMP, not as TIMESTAMP_NTZ. They are later than those of
`Workload.batch` by `FIRST_EVENT_US`, because the watermark of a new Spark query is the epoch, and a row at or before the
watermark is dropped as late.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.workload import POOL, SECOND_US, Workload

FORMAT = 1
"""Raised when the same parameters give other files than before."""

MARKER = "workload.json"
ROWS_PER_GROUP = 100_000
"""Several row groups per file, so that a reader may split it between cores."""

EARLIEST_MTIME_S = 1_600_000_000
FIRST_EVENT_US = EARLIEST_MTIME_S * SECOND_US


def write_files(workload: Workload, folder: str, batches: int) -> None:
    """Writes the first batches of a workload, unless the folder has exactly these already."""
    root = Path(folder)
    if is_written(workload, folder, batches):
        return
    write_batches(root, workload.streams, (workload.batch(number) for number in range(batches)))
    (root / MARKER).write_text(json.dumps(_marker(workload, batches)) + "\n")


def write_batches(root: Path, streams: Sequence[str], batches: Iterable[Mapping[str, pa.Table]]) -> None:
    """Writes batches in place of whatever the folder has."""
    (root / MARKER).unlink(missing_ok=True)
    for old in root.glob("*/*.parquet"):
        old.unlink()
    for stream in streams:
        (root / stream).mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches):
        for stream, rows in batch.items():
            path = root / stream / f"{number:06d}.parquet"
            pq.write_table(_shifted(rows), path, compression="lz4", row_group_size=ROWS_PER_GROUP)
            os.utime(path, (EARLIEST_MTIME_S + number, EARLIEST_MTIME_S + number))


def mark_written(workload: Workload, folder: str, batches: int) -> None:
    """Passes the files of a folder off as those of a workload, for a contender that takes nothing else."""
    (Path(folder) / MARKER).write_text(json.dumps(_marker(workload, batches)) + "\n")


def is_written(workload: Workload, folder: str, batches: int) -> bool:
    """Whether the folder has exactly these batches of this workload."""
    marker = Path(folder) / MARKER
    return marker.exists() and json.loads(marker.read_text()) == _marker(workload, batches)


def _marker(workload: Workload, batches: int) -> dict[str, object]:
    parameters = {**asdict(workload), "batches": batches, "format": FORMAT, "pool": POOL}
    text = json.dumps(parameters, sort_keys=True)
    return {"hash": hashlib.sha256(text.encode()).hexdigest(), "parameters": parameters}


def _shifted(rows: pa.Table) -> pa.Table:
    """The rows with their event times as instants after `FIRST_EVENT_US`."""
    times = pc.add(rows.column("ts").cast(pa.int64()), FIRST_EVENT_US).cast(pa.timestamp("us", tz="UTC"))
    return rows.set_column(rows.schema.get_field_index("ts"), "ts", times)
