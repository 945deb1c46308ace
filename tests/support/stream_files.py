"""Files of the two streams that scripts for the command line read."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_batch(folder: Path, number: int, rows: int = 2) -> None:
    times = pa.array([number * 1_000_000] * rows, pa.timestamp("us"))
    keys = pa.array(range(number, number + rows), pa.int64())
    for name, columns in {"a": {"k": keys}, "b": {"k": keys, "name": [f"n{k}" for k in keys.to_pylist()]}}.items():
        (folder / name).mkdir(exist_ok=True)
        path = folder / name / f"{number}.parquet"
        pq.write_table(pa.table({**columns, "ts": times}), path)
        os.utime(path, (1000 + number, 1000 + number))


def write_rows(folder: Path, stream: str, keys: list[int], number: int = 0) -> None:
    """Rows of one instant each, one file."""
    (folder / stream).mkdir(parents=True, exist_ok=True)
    times = pa.array([number * 1_000_000] * len(keys), pa.timestamp("us", "UTC"))
    path = folder / stream / f"{number}.parquet"
    pq.write_table(pa.table({"k": pa.array(keys, pa.int64()), "ts": times}), path)
    os.utime(path, (1000 + number, 1000 + number))
