"""A column without a time zone comes out without one, whatever the sink."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

import anabranch as ab
from tests.support.feeding import finish

MOMENT = datetime(2024, 1, 31, 12, 0, 0, 5)


@pytest.mark.parametrize("select", [
    "SELECT a.k, a.t, a.n FROM a [NOW], a [NOW] AS b WHERE a.k = b.k",
    "SELECT k, MAX(t) AS t, MAX(n) AS n FROM a [RANGE 1 SECOND] GROUP BY k",
    "SELECT COUNT(*) AS k, MAX(t) AS t, MAX(n) AS n FROM a [RANGE 1 SECOND]",
])  # fmt: skip
def test_types_are_kept(spark: SparkSession, tmp_path: Path, select: str) -> None:
    (tmp_path / "in").mkdir()
    later = MOMENT + timedelta(seconds=3)  # what is grouped is given when the watermark has passed it
    moment, times = pa.array([MOMENT] * 2, pa.timestamp("us")), pa.array([MOMENT, later], pa.timestamp("us", "UTC"))
    zoned = moment.cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"k": [1, 2], "t": zoned, "n": moment, "ts": times}), tmp_path / "in" / "0.parquet")
    rows = spark.readStream.schema("k BIGINT, t TIMESTAMP, n TIMESTAMP_NTZ, ts TIMESTAMP").parquet(str(tmp_path / "in"))
    found: list[T.StructType] = []
    kept, out = ab.sinks.memory(), tmp_path / "out"

    def take(results: DataFrame, batch: int) -> None:
        found.append(results.schema)
        assert set(results.toArrow().column("n").to_pylist()) == {MOMENT}

    session = ab.Session(spark, tmp_path / "checkpoint", slots=2)
    session.stream("a", rows, "ts")
    session.query("kept", select, kept)
    session.query("taken", select, take)
    session.query("written", select, ab.sinks.parquet(out))
    finish(session.start(availableNow=True))
    assert [(f.name, f.dataType) for f in found[0].fields[1:]] == [("t", T.TimestampType()), ("n", T.TimestampNTZType())]
    for table in (kept.table(), pq.read_table(out)):
        assert table.schema.field("t").type == pa.timestamp("us", "UTC")
        assert table.schema.field("n").type == pa.timestamp("us")
        assert set(table.column("n").to_pylist()) == {MOMENT}
    assert spark.read.parquet(str(out)).schema["n"].dataType == T.TimestampNTZType()
