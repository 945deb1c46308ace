"""Stored tables of Spark and of files, read again every so much event time. What rows meet is tested without Spark
(`tests/drive/test_tables.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.session import Run, Session
from anabranch.spark import sinks
from tests.support.feeding import finish

SECONDS = 8
STOPPED = 4
"""In which batch the first run is stopped."""


def write_stream(folder: Path) -> None:
    """A row of a key every half second, a file every second."""
    folder.mkdir()
    for number in range(SECONDS):
        times = [number * 1_000_000 + half * 500_000 for half in (0, 1)]
        rows = pa.table({"k": [1, 2], "n": [2 * number, 2 * number + 1], "ts": pa.array(times, pa.timestamp("us", "UTC"))})
        path = folder / f"{number:03d}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (1000 + number, 1000 + number))


class Tables:
    """A stream as a DataFrame of several partitions a batch, joined with a small table of files, and by another query with a
    large one of Spark's. Each is another one each time it is read. A sink stops the first run."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.runs, self.read = spark, folder, list[Run](), list[int]()
        self.kept = {name: sinks.memory() for name in ("small", "large")}
        write_stream(folder / "s")
        (folder / "t").mkdir()
        self.write_version(0)

    def write_version(self, version: int) -> None:
        """Writes the small table, all at once: a batch may read it meanwhile."""
        begun = self.folder / "t" / ".a.parquet"
        pq.write_table(pa.table({"k": [1, 2], "version": [version] * 2}), begun)
        begun.rename(begun.with_name("a.parquet"))

    def large(self) -> DataFrame:
        self.read.append(len(self.read))
        rows = [(key, self.read[-1], f"{key}" * 10_000) for key in (1, 2, 3)]
        return self.spark.createDataFrame(rows, "k bigint, version bigint, filling string")

    def sink(self, name: str) -> Callable[[DataFrame, int], None]:
        def take(results: DataFrame, number: int) -> None:
            if number == STOPPED and len(self.runs) == 1:
                self.runs[0].stop()
                raise OSError("the run was stopped")
            self.kept[name].deliver(results.select("n", "version").toArrow(), number)
            if name == "small":
                self.write_version(number + 1)

        return take

    def run(self) -> Run:
        session, path = Session(self.spark, str(self.folder / "checkpoint"), slots=2, share=False), f"{self.folder}/s"
        schema = self.spark.read.parquet(path).schema
        frame = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)
        session.stream("s", frame.repartition(3), "ts")
        session.script(f"CREATE TABLE small (k BIGINT, version BIGINT) FROM '{self.folder}/t/*.parquet' REFRESH 2 SECONDS")
        session.table("large", self.large, refresh="2 seconds")
        join = "FROM s [NOW], {0} WHERE s.k = {0}.k AND s.n <> 4"
        session.query("small", "SELECT s.n, small.version " + join.format("small"), self.sink("small"))
        session.query("large", "SELECT s.n, large.version, filling " + join.format("large"), self.sink("large"))
        self.runs.append(session.start(availableNow=True))
        finish(self.runs[-1])
        return self.runs[-1]


def test_tables_are_read_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are whole in every worker and rows stay where they come in; for large ones rows are exchanged. What was
    decided when a query first started stays after a stop."""
    tables = Tables(spark, tmp_path)
    monkeypatch.setattr("anabranch.spark.pipeline.MOST_COPIED_BYTES", 10_000)
    tables.run()
    monkeypatch.setattr("anabranch.spark.pipeline.MOST_COPIED_BYTES", 0)
    run = tables.run()
    for name in ("small", "large"):
        assert run.queries[name].distribution.needs_no_exchange == (name == "small")
        found = tables.kept[name].table().sort_by("n").to_pydict()
        assert found["n"] == [n for n in range(2 * SECONDS) if n != 4], f"every row has met one version of {name}"
        assert found["version"] == sorted(found["version"]), name
        assert len(set(found["version"])) >= 3, name
        steps = {step.trigger: step for step in reversed(run.progress[name])}
        assert all(step.rows["s"] == 2 for trigger, step in steps.items() if trigger > STOPPED), name
        slots = run.pipeline(name).host.driver.commits.latest()[1].slots.values()  # type: ignore[index]
        assert any(slot.manifest is not None for slot in slots) == (name == "large")
    versions = tables.kept["small"].table().sort_by("n").column("version").to_pylist()
    assert versions[0] == 0
    assert versions[-1] >= 4
