"""Blocks that DuckDB runs, on Spark: in several slots, over several starts, against the oracle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from anabranch.plan.query import SECOND_US, Field
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.types import zoned_schema
from tests.support import oracle
from tests.support.feeding import finish
from tests.support.placed import Placed, Shape
from tests.support.script import Script


def test_medians_in_several_slots_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    case = Placed(Shape("medians, spread", seed=3, batches=6, rows=40, a=4, b=6, slide=1, late=2, gap=False))
    (stream,) = case.query.base_sources
    borders, numbered = [], list(enumerate(case.batches))
    empty = pa.schema([pa.field(f.name, f.type) for f in stream.fields]).empty_table()
    for part in (numbered[:3], numbered[3:]):
        for number, rows in part:
            write(tmp_path / "s", number, rows.get("s", empty))
        session = Session(spark, str(tmp_path / "checkpoint"), slots=2)
        session.stream(
            "s", str(tmp_path / "s" / "*.parquet"), "ts", "2 seconds", columns=stream.fields, max_files_per_trigger=1
        )
        session.query("q", case.sql, sinks.parquet(str(tmp_path / "out")))
        run = session.start(availableNow=True)
        finish(run)
        assert run.pipeline("q").host.driver.slots == 2
        borders += [border for step in run.progress["q"] for border in step.borders.values()]
    found = pq.read_table(tmp_path / "out").select(case.query.output_schema.names).cast(case.query.output_schema)
    problem = oracle.difference(oracle.bag(found), oracle.expected(case.query, case.batches, {}))
    assert not problem, problem
    assert found.num_rows
    assert {border.database for border in borders} == {"duck"}
    assert sum(border.rows_back for border in borders) == found.num_rows
    assert sum(border.calls for border in borders) > len(set(found.column("at").to_pylist())), "both slots ask"


GROUPED_BY_K = "SELECT k, COUNT(*) AS n, MAX(v) AS m FROM s [RANGE 4 SECONDS] GROUP BY k"
FIELDS = (Field("k", pa.int64()), Field("v", pa.int64()), Field("ts", pa.timestamp("us")))


def test_a_block_goes_to_duckdb_and_comes_home_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """It begins in the engine, its run is stopped on the way there, while it is there, and on the way home."""
    rng, schema = np.random.default_rng(5), pa.schema([(f.name, f.type) for f in FIELDS])
    batches = [
        {"s": pa.table({"k": rng.integers(0, 5, 30), "v": rng.integers(0, 99, 30),
                        "ts": pa.array(b * SECOND_US + rng.integers(0, SECOND_US, 30), pa.timestamp("us"))}, schema)}
        for b in range(20)
    ]  # fmt: skip
    for number, rows in enumerate(batches):
        write(tmp_path / "s", number, rows["s"])
    script = Script({
        2: lambda run: run.place("q", "q", "duck"), 3: lambda run: run.stop(), 9: lambda run: run.stop(),
        12: lambda run: run.place("q", "q", "engine", pause="1 microsecond"), 13: lambda run: run.stop(),
    })  # fmt: skip
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2)
    session.stream("s", str(tmp_path / "s" / "*.parquet"), "ts", columns=FIELDS, max_files_per_trigger=1)
    session.query("q", GROUPED_BY_K, script)
    asked = list[int]()
    for _ in range(4):
        run = script.run = session.start(availableNow=True)
        finish(run)
        asked += [step.batch for step in run.progress["q"] if step.borders]
    assert not script.actions
    query = session.planning.query("q").forms.written
    problem = oracle.difference(script.bag(), oracle.expected(query, batches, {}))
    assert not problem, problem
    told = [entry for entry in run.journal["q"] if entry.event in ("placing", "placed")]
    assert [(entry.event, entry.details["place"]) for entry in told] == [
        ("placing", "duck"), ("placed", "duck"), ("placing", "engine"), ("placed", "engine"),
    ]  # fmt: skip
    there, back = told[1].batch, told[3].batch
    assert there < 9 < 12 <= told[2].batch < 13 <= back < len(batches)
    assert asked
    assert all(there < batch <= back for batch in asked)


def write(folder: Path, number: int, rows: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(rows.cast(zoned_schema(rows.schema)), folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number}.parquet")
    os.utime(folder / f"{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
