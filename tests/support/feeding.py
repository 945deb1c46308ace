"""Scenarios through Spark: their batches as files, their streams and query as those of a `Session`.

A batch is one file per stream, empty where the stream brings nothing, and one file of each stream makes a trigger. So the
batches of a scenario are the batches that Spark runs, and the oracle may recompute from them which rows were late.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from anabranch.session import Run, Session
from anabranch.spark.sinks import Sink
from anabranch.spark.types import spark_schema, zoned_schema
from tests.support import oracle
from tests.support.scenarios import Scenario

WAIT_S = 300.0
"""Longer than any query of a test takes, on a busy machine, too: one that hangs fails."""


# Results


def expected(scenario: Scenario) -> oracle.Bag:
    return oracle.expected(scenario.query, scenario.arrow_batches, scenario.arrow_tables)


def bag(results: pa.Table, scenario: Scenario) -> oracle.Bag:
    """Results as Spark hands them out, as a multiset: instants are compared as UTC."""
    if not results.num_columns:
        return oracle.Bag()
    return oracle.bag(results.cast(scenario.query.output_schema))


def assert_same(results: pa.Table, scenario: Scenario) -> None:
    assert not (wrong := oracle.difference(bag(results, scenario), expected(scenario))), wrong


def read_parquet(path: str, scenario: Scenario) -> pa.Table:
    """What the parquet sink has made visible; nothing if it never got a result."""
    if not any(name.startswith("batch=") for name in os.listdir(path)) if os.path.isdir(path) else True:
        return scenario.query.output_schema.empty_table()
    return pq.read_table(path).select(scenario.query.output_schema.names)


# Batches as files


@dataclass(frozen=True)
class Feed:
    """Writes batches of a scenario to folders and declares its streams over them.

    With `frames` streams are streaming DataFrames of Spark's own file source; else they are read by our reader, or, for
    "mixed", by turns. `zoned` writes times as instants (TIMESTAMP), else as TIMESTAMP_NTZ.
    """

    scenario: Scenario
    folder: str
    route: str = "frames"
    zoned: bool = True
    checkpoint: Any = None
    """Where state is kept, unless it is in the folder."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further ones of the session."""

    def write(self, batches: Iterable[int]) -> None:
        for number in batches:
            for stream in self.scenario.streams:
                rows = self.scenario.arrow_batches[number].get(stream.name)
                if rows is None:
                    rows = self.scenario.to_arrow(stream.name, [])
                self._write(stream.name, number, rows)

    def _write(self, name: str, number: int, rows: pa.Table) -> None:
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{number:04d}.parquet")
        hidden = os.path.join(folder, f".{number:04d}.parquet")
        pq.write_table(rows.cast(zoned_schema(rows.schema)) if self.zoned else rows, hidden)
        os.utime(hidden, (1_000_000 + number, 1_000_000 + number))
        os.rename(hidden, path)

    def session(self, spark: SparkSession, sink: Any, plan: int = 0, slots: int | None = None) -> Session:
        """A session with the scenario's query, named q, over the folders; the checkpoint is beside them."""
        checkpoint = self.checkpoint or os.path.join(self.folder, "checkpoint")
        made = Session(spark, checkpoint, slots=slots, **self.settings)
        for place, stream in enumerate(self.scenario.streams):
            source: DataFrame | str = os.path.join(self.folder, stream.name, "*.parquet")
            options: dict[str, Any] = {}
            if self.route == "frames" or (self.route == "mixed" and place % 2 == 0):
                source = self._frame(spark, stream.name)
            else:
                options = {"columns": stream.fields, "max_files_per_trigger": 1}
            made.stream(stream.name, source, stream.time, f"{stream.lateness_us} microseconds", **options)
        for name, rows in self.scenario.arrow_tables.items():
            made.table(name, spark.createDataFrame(rows.cast(zoned_schema(rows.schema)) if self.zoned else rows))
        sql = self.scenario.script.partition("CREATE QUERY q AS ")[2]
        made.query("q", sql, sink, self.scenario.plans[plan % len(self.scenario.plans)])
        return made

    def _frame(self, spark: SparkSession, name: str) -> DataFrame:
        source = next(s for s in self.scenario.streams if s.name == name)
        schema = spark_schema(pa.schema([pa.field(f.name, f.type) for f in source.fields]))
        if not self.zoned:
            for field in schema.fields:
                field.dataType = T.TimestampNTZType() if field.dataType == T.TimestampType() else field.dataType
        folder = os.path.join(self.folder, name)
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)

    def run(self, spark: SparkSession, sink: Sink, plan: int = 0, slots: int | None = None) -> Run:
        """Processes what is there."""
        run = self.session(spark, sink, plan, slots).start(availableNow=True)
        finish(run)
        return run


def finish(run: Run) -> None:
    try:
        assert run.await_termination(WAIT_S), "the query hangs"
    finally:
        run.stop()


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()
