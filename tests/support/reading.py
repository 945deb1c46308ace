"""What tests of the file reader share: a stream of all types, queries over it, random rows, and files of any age."""

from __future__ import annotations

import os
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from anabranch.plan.query import Query, Stream
from anabranch.spark.file_list import FoundFile
from anabranch.sql import parse_script

OLD = time.time() - 1000

STREAM = """
    CREATE STREAM s (k BIGINT, j BIGINT, i INT, name STRING, x DOUBLE, flag BOOLEAN, price DECIMAL(12,2), day DATE,
                     ts TIMESTAMP) TIME ts;
    CREATE STREAM r (k BIGINT, ts TIMESTAMP) TIME ts;
"""
QUERIES = {
    "one key": "SELECT a.k FROM s a, r b WHERE a.k = b.k WINDOW 1 SECOND",
    "same key": "SELECT a.k FROM s a, s b WHERE a.k = b.k WINDOW 1 SECOND",
    "two keys": "SELECT a.k FROM s a, s b WHERE a.k = b.j WINDOW 1 SECOND",
    "widened key": "SELECT a.k FROM s a, s b WHERE a.k = b.i WINDOW 1 SECOND",
    "text": "SELECT a.k FROM s a, s b WHERE a.name = b.name WINDOW 1 SECOND",
    "double": "SELECT a.k FROM s a, s b WHERE a.x = b.x WINDOW 1 SECOND",
    "boolean": "SELECT a.k FROM s a, s b WHERE a.flag = b.flag WINDOW 1 SECOND",
    "decimal": "SELECT a.k FROM s a, s b WHERE a.price = b.price WINDOW 1 SECOND",
    "date": "SELECT a.k FROM s a, s b WHERE a.day = b.day WINDOW 1 SECOND",
    "chain": "SELECT a.k FROM s a, s b, s c WHERE a.k = b.k AND b.j = c.j WINDOW 1 SECOND",
    "theta": "SELECT a.k FROM s a, s b WHERE a.k < b.k WINDOW 1 SECOND",
}


def query_of(name: str) -> tuple[Query, Stream]:
    query = parse_script(STREAM + QUERIES[name]).queries[0].query
    source = query.sources[0]
    assert isinstance(source, Stream)
    return query, source


def random_rows(count: int, seed: int = 0) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)

    def some(values: Any, type: pa.DataType) -> pa.Array:
        return pa.array(list(values), type, mask=rng.random(count) < 0.1)

    return pa.RecordBatch.from_arrays(
        [
            some(rng.integers(-50, 50, count), pa.int64()),
            some(rng.integers(-50, 50, count), pa.int64()),
            some(rng.integers(-50, 50, count), pa.int32()),
            some((f"name-{'x' * (n % 40)}{n}" for n in rng.integers(0, 60, count)), pa.string()),
            some(rng.choice([0.0, -0.0, 1.5, float("nan"), -7.25, 1e300], count), pa.float64()),
            some((bool(b) for b in rng.integers(0, 2, count)), pa.bool_()),
            some((Decimal(int(n)) / 100 for n in rng.integers(-9999, 9999, count)), pa.decimal128(12, 2)),
            some(rng.integers(0, 20000, count), pa.int32()).cast(pa.int32()).view(pa.date32()),
            pa.array(rng.integers(0, 2_000_000, count)).view(pa.timestamp("us")),
        ],
        names=["k", "j", "i", "name", "x", "flag", "price", "day", "ts"],
    )


def multiset(rows: pa.Table | pa.RecordBatch) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


def put(path: Path, content: bytes = b"x\n", modified: float = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified, modified))
    os.utime(path.parent, (modified, modified))
    return path


def names(files: list[FoundFile]) -> list[str]:
    return [os.path.basename(f.path) for f in files]


def arrow_bytes(kind: str) -> bytes:
    """A complete file of few rows. The last column ends with the bytes that end a stream."""
    rows = pa.table({"k": pa.array([5, 6], pa.int64()), "e": pa.array([-1, 0], pa.int32())})
    made = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(rows, made)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(made, rows.schema) as writer:
            writer.write_table(rows)
            writer.write_table(rows)
    return bytes(made.getvalue().to_pybytes())
