"""A block of ours in DuckDB on Spark, in two slots, beside the same query in the engine; and on its way home."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import anabranch as ab

SECOND_US = 1_000_000
SQL = """SELECT {} x.k, x.n, x.most, p.v FROM (SELECT k, COUNT(*) AS n, MAX(v) AS most FROM s [RANGE 3 SECONDS]
         WHERE v > 1 GROUP BY k HAVING COUNT(*) > 1) x, s [RANGE 1 SECOND] p WHERE p.k = x.k"""


def write(folder: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    times = np.sort(rng.integers(0, 4 * SECOND_US, 80)) + 4 * number * SECOND_US
    rows = {"k": rng.integers(0, 5, 80), "v": rng.integers(0, 9, 80), "ts": pa.array(times, pa.timestamp("us", "UTC"))}
    (folder / "s").mkdir(exist_ok=True)
    pq.write_table(pa.table(rows), folder / "s" / f"{number}.parquet")


def bag(sink: ab.sinks.MemorySink) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in sink.table().to_pylist())


def test_a_placed_block_gives_what_the_engine_gives_before_and_after_it_comes_home(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = {name: ab.sinks.memory() for name in ("here", "there")}
    for life in range(2):
        write(tmp_path, 2 * life)
        write(tmp_path, 2 * life + 1)
        session = ab.Session(spark, str(tmp_path / "checkpoint"), slots=2)
        session.stream("s", f"{tmp_path}/s/*.parquet", time="ts")
        session.query("here", SQL.format("/*+ PLACE(x, engine) */"), sink=found["here"])
        session.query("there", SQL.format("/*+ PLACE(x, duck) */"), sink=found["there"])
        run = session.start(availableNow=True)
        if life:
            run.place("there", "x", "engine")
        run.await_termination()
        told = [step.borders for step in run.progress["there"] if step.borders]
        assert bool(told) or life, "DuckDB was never asked"
    assert found["here"].table().num_rows
    assert bag(found["here"]) == bag(found["there"])
