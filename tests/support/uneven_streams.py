"""Three streams as files, and a query over them on Spark, of which defaults expect something else than is measured."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from anabranch.adapt.loop import SURE_BATCHES
from anabranch.session import Session
from anabranch.spark import sinks
from tests.support.oracle import expected, joined

SQL = """SELECT a.v, b.v AS w, c.v AS x FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS], c [RANGE 4 SECONDS]
         WHERE a.k = b.k AND b.l = c.l"""
ROWS = {"a": 60, "b": 60, "c": 6}
BATCHES = SURE_BATCHES + 5


def write_streams(root: Path) -> Path:
    """a and b meet often, c is rare: what the defaults take for equal is not."""
    rng = np.random.default_rng(3)
    for stream, rows in ROWS.items():
        (root / stream).mkdir()
        for number in range(BATCHES):
            times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows))
            table = pa.table({
                "k": rng.integers(0, 5, rows), "l": rng.integers(0, 400, rows), "v": rng.integers(0, 1000, rows),
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
            })  # fmt: skip
            path = root / stream / f"{number:03d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1000 + number, 1000 + number))
    return root


def session_of(
    spark: SparkSession, folder: Path, checkpoint: Path, sink: object = None, sql: str = SQL, **options: object
) -> Session:
    session = Session(spark, str(checkpoint), slots=2, **options)  # type: ignore[arg-type]
    for stream in ROWS:
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts", max_files_per_trigger=1)
    session.query("q", sql, sink or sinks.memory())  # type: ignore[arg-type]
    return session


def wanted(session: Session, folder: Path) -> object:
    rows = {s: pq.read_table(folder / s) for s in ROWS}
    plain = {s: t.set_column(3, "ts", t["ts"].cast(pa.timestamp("us"))) for s, t in rows.items()}
    query = session.planning.query("q").forms.written
    return joined(query, plain) if query.grouping is None else expected(query, [plain], {})
