"""Groups and subqueries through Spark, against the oracle: frames and files, one slot and several, groups combined."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.plan.query import Stream
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.types import spark_schema, zoned_schema
from tests.support import oracle
from tests.support.continuous import Continuous, Shape
from tests.support.feeding import finish

CASE = 24
"""Groups of a join of streams of both kinds with a stored table. They span slots: a job combines them, into files."""
LONG_CASES = range(160)


def shape_of(seed: int) -> Shape:
    rng = np.random.default_rng(seed)
    return Shape(
        seed, streams=(1, 2, 1, 3, 2)[seed % 5], rows=30, batches=int(rng.integers(2, 4)), groups=seed % 4 != 3,
        subquery=seed % 3 == 2, theta=seed % 7 == 5, nulls=bool(rng.integers(2)), late=bool(rng.integers(2)),
        tables=seed % 5 == 4,
    )  # fmt: skip


def check(spark: SparkSession, seed: int, folder: Path, parts: int = 1) -> None:
    """Runs a query in so many parts, each by a session of its own that goes on from the one before."""
    case = Continuous(shape_of(seed))
    streams = [s for s in case.query.base_sources if isinstance(s, Stream)]
    batches = [{s.name: batch.get(s.name, case._rows(np.random.default_rng(0), 0, [])) for s in streams}
               for batch in case.batches]  # fmt: skip
    in_memory, counted = sinks.memory(), 0
    for part in range(parts):
        for number in range(len(batches) * part // parts, len(batches) * (part + 1) // parts):
            for name, rows in batches[number].items():
                write(folder / name, number, rows)
        session = Session(spark, str(folder / "checkpoint"), slots=(2, 3, 1, 4)[seed % 4])
        for place, stream in enumerate(streams):
            path: str | DataFrame = str(folder / stream.name / "*.parquet")
            options: dict[str, object] = {"columns": stream.fields, "max_files_per_trigger": 1}
            if (seed + place) % 2:
                schema = spark_schema(pa.schema([pa.field(f.name, f.type) for f in stream.fields]))
                reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
                path, options = reader.parquet(str(folder / stream.name)), {}
            session.stream(stream.name, path, "ts", f"{stream.lateness_us} microseconds", **options)  # type: ignore[arg-type]
        tables = {n: rows for n, rows in case.tables.items() if n in {s.name for s in case.query.base_sources}}
        for name, rows in tables.items():
            session.table(name, spark.createDataFrame(rows))
        # Runs that go on from others may end in the middle: only files keep what each of them gave.
        sink = in_memory if parts == 1 and seed % 2 else sinks.parquet(str(folder / "out"))
        session.query("q", case.sql, sink)
        assert session.explain("q")
        run = session.start(availableNow=True)
        finish(run)
        assert all(step.is_counted for step in run.progress["q"])
        counted += sum(step.results for step in run.progress["q"])
    if sink is in_memory:
        found = in_memory.table()
    else:
        out = folder / "out"
        has_any = out.exists() and any(name.startswith("batch=") for name in os.listdir(out))
        names = case.query.output_schema.names
        found = pq.read_table(out).select(names) if has_any else case.query.output_schema.empty_table()
    assert counted == found.num_rows, "groups that span slots are counted once"
    ours = oracle.bag(found.cast(case.query.output_schema)) if found.num_columns else oracle.Bag()
    problem = oracle.difference(ours, oracle.expected(case.query, batches, tables))
    assert not problem, f"{case.sql}\n{problem}"


def write(folder: Path, number: int, rows: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{number:04d}.parquet"
    pq.write_table(rows.cast(zoned_schema(rows.schema)), hidden)
    os.utime(hidden, (1_000_000 + number, 1_000_000 + number))
    hidden.rename(folder / f"{number:04d}.parquet")


def test_a_query_that_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """A closing step comes at the end of each part: the watermark of what follows is what it would have been."""
    check(spark, CASE, tmp_path, parts=2)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_CASES)
def test_queries_long(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    check(spark, seed, tmp_path)
