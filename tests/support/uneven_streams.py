"""Three streams, and a query over them, of which defaults expect something else than is measured, in memory and in files."""

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
from anabranch.spark.types import zoned_schema
from tests.support.oracle import expected, joined

SQL = """SELECT a.v, b.v AS w, c.v AS x FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS], c [RANGE 4 SECONDS]
         WHERE a.k = b.k AND b.l = c.l"""
CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, l BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
ROWS = {"a": 60, "b": 60, "c": 6}
BATCHES = SURE_BATCHES + 5


def batches() -> list[dict[str, pa.Table]]:
    """a and b meet often, c is rare: what the defaults take for equal is not."""
    rng, found = np.random.default_rng(3), [dict[str, pa.Table]() for _ in range(BATCHES)]
    for stream, rows in ROWS.items():
        for number, given in enumerate(found):
            times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows))
            given[stream] = pa.table({
                "k": rng.integers(0, 5, rows), "l": rng.integers(0, 400, rows), "v": rng.integers(0, 1000, rows),
                "ts": pa.array(times, pa.timestamp("us")),
            })  # fmt: skip
    return found


def write_streams(root: Path) -> Path:
    """A file of each stream for each batch."""
    for number, given in enumerate(batches()):
        for stream, rows in given.items():
            path = root / stream / f"{number:03d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(rows.cast(zoned_schema(rows.schema)), path)
            os.utime(path, (1000 + number, 1000 + number))
    return root


def session_of(
    spark: SparkSession | None, folder: Path, checkpoint: Path, sink: object = None, sql: str = SQL, **options: object
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
