"""Predicates before the exchange: rows stay behind, results, watermarks and counts do not change."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from anabranch.plan.query import Stream
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.push import spark_filter
from anabranch.sql import parse_script
from tests import oracle
from tests.spark.feeding import finish

BATCHES, ROWS = 4, 200
SQL = """SELECT a.v, b.v AS w FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS]
         WHERE a.k = b.k AND a.v < 3 AND (a.s = 'x' OR a.s IS NULL) AND b.v IN (1, 5, 7)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The row with the latest time of each batch passes no predicate, and some rows are late."""
    root, rng = tmp_path_factory.mktemp("pushed"), np.random.default_rng(8)
    for stream in "ab":
        (root / stream).mkdir()
        for number in range(BATCHES):
            times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, ROWS))
            late = rng.random(ROWS) < 0.1
            times[late] -= 3_000_000
            v = rng.integers(0, 10, ROWS)
            v[-1], times[-1] = 9, number * 1_000_000 + 1_500_000
            text = pa.array([None if i % 5 == 0 else "xy"[i % 2] for i in range(ROWS)], pa.string())
            table = pa.table({"k": rng.integers(0, 20, ROWS), "v": v, "s": text,
                              "ts": pa.array(times, pa.timestamp("us", "UTC"))})  # fmt: skip
            path = root / stream / f"{number:03d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1000 + number, 1000 + number))
    return root


@pytest.mark.parametrize("way", ["frames", "files"])
def test_rows_stay_behind(spark: SparkSession, folder: Path, tmp_path: Path, way: str) -> None:
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2)
    for stream in "ab":
        if way == "frames":
            schema = spark.read.parquet(str(folder / stream)).schema
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            session.stream(stream, reader.parquet(str(folder / stream)), "ts")
        else:
            session.stream(stream, f"{folder}/{stream}/*.parquet", "ts", max_files_per_trigger=1)
    kept = sinks.memory()
    session.query("q", SQL, kept)
    run = session.start(availableNow=True)
    finish(run)
    query = session._declared("q").query
    batches = [
        {s: plain(pq.read_table(folder / s / f"{number:03d}.parquet")) for s in "ab"} for number in range(BATCHES)
    ]
    law = oracle.accepted(batches, [s for s in query.sources if isinstance(s, Stream)])
    found = oracle.bag(kept.table().cast(query.output_schema))
    assert not (wrong := oracle.difference(found, oracle.expected(query, batches, {}))), wrong
    assert found
    stored = 0
    for number, step in enumerate(run.progress["q"][:BATCHES]):
        assert step.watermark_us == (law.watermarks[number] if law.watermarks[number] is not None else -(2**63))
        assert step.rows == {"a": ROWS, "b": ROWS}
        assert step.late_rows == {s: law.late[number].get(s, 0) for s in "ab"}
        stored += step.state_rows
    assert stored < BATCHES * 2 * ROWS * 0.6


def plain(rows: pa.Table) -> pa.Table:
    return rows.set_column(3, "ts", rows["ts"].cast(pa.timestamp("us")))


@pytest.mark.parametrize(
    ("where", "is_pushed"),
    [
        ("a.v < 3", True), ("a.v < 3 AND UPPER(a.s) = 'X'", True), ("UPPER(a.s) = 'X'", False), ("NOT (a.s = 'x')", True),
        ("a.v < 3 OR UPPER(a.s) = 'X'", False), ("a.v + 1 < 3", False), ("a.ts > TIMESTAMP '2020-01-01'", False),
    ],
)  # fmt: skip
def test_what_spark_evaluates(spark: SparkSession, where: str, is_pushed: bool) -> None:
    script = parse_script(f"""CREATE STREAM a (v BIGINT, s STRING, ts TIMESTAMP) TIME ts;
                              CREATE QUERY q AS SELECT a.v FROM a [NOW] WHERE {where}""")
    filters = script.queries[0].query.inputs[0].filters
    assert (spark_filter([filters], {c: c for c in "abcdefghijklmnopqrstuvwxyz"}) is not None) == is_pushed
