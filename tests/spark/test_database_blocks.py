"""A block that DuckDB runs, on Spark: in several slots, over several starts, against the oracle."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.types import zoned_schema
from tests.support import oracle
from tests.support.feeding import finish
from tests.support.placed import Placed, Shape


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


def write(folder: Path, number: int, rows: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(rows.cast(zoned_schema(rows.schema)), folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number}.parquet")
    os.utime(folder / f"{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
