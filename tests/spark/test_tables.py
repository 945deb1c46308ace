"""Stored tables of Spark and of files, read again every so much event time. What rows meet is tested without Spark
(`tests/drive/test_tables.py`)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.session import Run, Session
from anabranch.spark import sinks
from tests.support.feeding import finish

SECONDS = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A row of a key every half second, a file every second."""
    (tmp_path / "s").mkdir()
    for number in range(SECONDS):
        times = [number * 1_000_000 + half * 500_000 for half in (0, 1)]
        rows = pa.table({"k": [1, 2], "n": [2 * number, 2 * number + 1], "ts": pa.array(times, pa.timestamp("us", "UTC"))})
        path = tmp_path / "s" / f"{number:03d}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (1000 + number, 1000 + number))
    return tmp_path


def versions(spark: SparkSession) -> tuple[list[int], object]:
    """A table that is another one each time it is read."""
    read: list[int] = []

    def rows() -> DataFrame:
        read.append(len(read))
        return spark.createDataFrame([(1, read[-1]), (2, read[-1]), (3, read[-1])], "k bigint, version bigint")

    return read, rows


def test_a_table_of_files_is_read_again(spark: SparkSession, folder: Path) -> None:
    (folder / "t").mkdir()
    pq.write_table(pa.table({"k": [1, 2], "version": [0, 0]}), folder / "t" / "a.parquet")
    script = f"""CREATE STREAM s (k BIGINT, n BIGINT, ts TIMESTAMP) TIME ts FROM '{folder}/s/*.parquet';
                 CREATE TABLE t (k BIGINT, version BIGINT) FROM '{folder}/t/*.parquet' REFRESH 2 SECONDS;
                 CREATE QUERY q AS SELECT s.n, t.version FROM s [NOW], t WHERE s.k = t.k"""
    seen: dict[int, int] = {}

    def changing(results: DataFrame, number: int) -> None:
        for row in results.collect():
            seen[row.n] = row.version
        pq.write_table(pa.table({"k": [1, 2], "version": [number + 1] * 2}), folder / "t" / "a.parquet")

    session = Session(spark, str(folder / "checkpoint"), slots=1)
    session.script(script, lambda name: sinks.as_sink(changing, name), max_files_per_trigger=1)
    finish(session.start(availableNow=True))
    assert sorted(seen) == list(range(2 * SECONDS))
    assert seen[0] == 0
    assert seen[2 * SECONDS - 1] >= 4


def joined(spark: SparkSession, folder: Path, rows: object, sink: object) -> Session:
    """The stream as a DataFrame of several partitions a batch, with one stored table."""
    session = Session(spark, str(folder / "checkpoint"), slots=2)
    schema = spark.read.parquet(f"{folder}/s").schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/s")
    session.stream("s", frame.repartition(3), "ts")
    session.table("t", rows, refresh="2 seconds")  # type: ignore[arg-type]
    session.query("q", "SELECT s.n, t.version FROM s [NOW], t WHERE s.k = t.k AND s.n <> 4", sink)  # type: ignore[arg-type]
    return session


@pytest.mark.parametrize("are_small", [True, False])
def test_a_stream_among_tables_goes_on_after_a_stop(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, are_small: bool
) -> None:
    """Small tables are whole in every worker and rows stay where they come in; for large ones rows are exchanged."""
    _, rows = versions(spark)
    kept = sinks.memory()
    runs: list[Run] = []

    def stopping(results: DataFrame, number: int) -> None:
        if number == 4 and len(runs) == 1:
            runs[0].stop()
            raise OSError("the run was stopped")
        kept.deliver(results.toArrow(), number)

    monkeypatch.setattr("anabranch.spark.pipeline.MOST_COPIED_BYTES", 1 << 20 if are_small else 0)
    runs.append(joined(spark, folder, rows, stopping).start(availableNow=True))
    finish(runs[0])
    # What was decided when the query first started stays.
    monkeypatch.setattr("anabranch.spark.pipeline.MOST_COPIED_BYTES", 0 if are_small else 1 << 20)
    runs.append(run := joined(spark, folder, rows, stopping).start(availableNow=True))
    finish(run)
    assert run.queries["q"].distribution.needs_no_exchange == are_small
    found = kept.table().sort_by("n").to_pydict()
    assert found["n"] == [n for n in range(2 * SECONDS) if n != 4], "every row has met one version"
    assert found["version"] == sorted(found["version"])
    assert len(set(found["version"])) >= 3
    steps = {step.trigger: step for step in reversed(run.progress["q"])}
    assert all(step.rows["s"] == 2 for trigger, step in steps.items() if trigger > 4)
    slots = run.pipeline("q").host.driver.commits.latest()[1].slots.values()  # type: ignore[index]
    assert any(slot.manifest is not None for slot in slots) != are_small
