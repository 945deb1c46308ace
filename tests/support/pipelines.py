"""Workloads through Spark: batches as files, streams and queries as those of a `Session`, sinks of all kinds.

A batch is one file per stream, empty where the stream brings nothing, and one file of each stream makes a trigger. So the
oracle may recompute from the batches which rows were late, for each query by itself.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from anabranch.control.spark_streams import SOURCE_EVOLUTION
from anabranch.plan.query import Query, Stream
from anabranch.session import Run, Session
from anabranch.spark import sinks
from anabranch.spark.host import set_for_a_moment
from anabranch.spark.types import spark_schema, zoned_schema
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.feeding import finish
from tests.support.workloads import STREAMS, Workload

SPANNING = """SELECT i0.s, COUNT(*) AS n, SUM(i1.x) AS y FROM a [RANGE 2 SECONDS] AS i0, b [RANGE 3 SECONDS] AS i1
              WHERE i0.k = i1.k GROUP BY i0.s"""
"""Groups that have rows in several slots: rows are spread by k."""


class Brought:
    """What a sink of at least once was brought, by batch: each time the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[oracle.Bag]] = defaultdict(list)
        self.order: list[int] = []

    def take(self, results: DataFrame | pa.Table, number: int) -> None:
        rows = results if isinstance(results, pa.Table) else results.toArrow()
        self.order.append(number)
        self.batches[number].append(oracle.bag(_unzoned(rows)))

    def found(self) -> oracle.Bag:
        assert all(again == first for first, *others in self.batches.values() for again in others), "a batch is another"
        return sum((bags[-1] for bags in self.batches.values()), oracle.Bag())


def _unzoned(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([pa.field(f.name, _plain(f.type)) for f in rows.schema]))


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us") if pa.types.is_timestamp(type_) else type_


KINDS = ("parquet", "memory", "arrow", "callable")


@dataclass
class Target:
    """Where the results of a query go, and what is there."""

    kind: str
    path: str
    brought: Brought = field(default_factory=Brought)
    kept: sinks.MemorySink = field(default_factory=sinks.memory)

    @cached_property
    def sink(self) -> Any:
        if self.kind == "parquet":
            return sinks.parquet(self.path)
        if self.kind == "memory":
            return self.kept
        return sinks.arrow(self.brought.take) if self.kind == "arrow" else self.brought.take

    def found(self) -> oracle.Bag:
        if self.kind == "parquet":
            folders = [n for n in os.listdir(self.path) if n.startswith("batch=")] if os.path.isdir(self.path) else []
            rows = [pq.read_table(os.path.join(self.path, n)) for n in folders]
            return sum((oracle.bag(_unzoned(each)) for each in rows), oracle.Bag())
        if self.kind == "memory":
            return oracle.bag(_unzoned(self.kept.table())) if self.kept.batches else oracle.Bag()
        return self.brought.found()


@dataclass
class Piped:
    """A workload over folders. `route` says how streams are read: by Spark as "frames", by our reader as "files", or
    "mixed"; or "named", mixed too, and Spark has names for its sources."""

    drawn: Workload
    folder: str
    route: str = "frames"
    more: Mapping[str, str] = field(default_factory=dict)
    """Further queries."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the session."""
    targets: dict[str, Target] = field(default_factory=dict)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The queries, by name."""
        lines = [line for line in self.drawn.script.split("CREATE ") if line.startswith("QUERY ")]
        named = [line.removeprefix("QUERY ").partition(" AS ") for line in lines]
        return {name: text.strip().rstrip(";") for name, _, text in named} | dict(self.more)

    @cached_property
    def queries(self) -> dict[str, Query]:
        declared = self.drawn.script + "".join(f"\nCREATE QUERY {n} AS {text};" for n, text in self.more.items())
        return {bound.query.name: bound.query for bound in parse_script(declared).queries}

    @cached_property
    def streams(self) -> dict[str, Stream]:
        catalog = parse_script(self.drawn.script).catalog
        return {s.name: s for s in catalog if isinstance(s, Stream)}

    @cached_property
    def batches(self) -> list[dict[str, pa.Table]]:
        return [self.drawn.batch(number) for number in range(self.drawn.batches)]

    def write(self, numbers: Iterable[int], streams: str = STREAMS) -> None:
        """Brings batches, of some streams."""
        for number in numbers:
            for name in streams:
                rows = self.batches[number].get(name, self.drawn.sources[name].empty_table())
                folder = os.path.join(self.folder, name)
                os.makedirs(folder, exist_ok=True)
                hidden = os.path.join(folder, f".{number:04d}.parquet")
                pq.write_table(rows.cast(zoned_schema(rows.schema)), hidden)
                os.utime(hidden, (1_000_000 + number, 1_000_000 + number))
                os.rename(hidden, os.path.join(folder, f"{number:04d}.parquet"))

    def target(self, name: str) -> Target:
        if name not in self.targets:
            kind = KINDS[len(self.targets) % len(KINDS)]
            self.targets[name] = Target(kind, os.path.join(self.folder, "out", name))
        return self.targets[name]

    def session(self, spark: SparkSession, names: Sequence[str] | None = None, **settings: Any) -> Session:
        """A session with the queries that are named, or all."""
        made = Session(spark, os.path.join(self.folder, "checkpoint"), **{"slots": 2, **self.settings, **settings})
        for place, stream in enumerate(self.streams.values()):
            source: DataFrame | str = os.path.join(self.folder, stream.name, "*.parquet")
            options: dict[str, Any] = {}
            if self.route == "frames" or (self.route in ("mixed", "named") and place % 2 == 0):
                source = self._frame(spark, stream)
            else:
                options = {"columns": stream.fields, "max_files_per_trigger": 1}
            made.stream(stream.name, source, stream.time, f"{stream.lateness_us} microseconds", **options)
        made.table("t", spark.createDataFrame(self.drawn.table))
        for name in self.texts if names is None else names:
            made.query(name, self.texts[name], self.target(name).sink)
        return made

    def _frame(self, spark: SparkSession, stream: Stream) -> DataFrame:
        schema = spark_schema(pa.schema([pa.field(f.name, f.type) for f in stream.fields]))
        folder = os.path.join(self.folder, stream.name)
        if self.route != "named":
            return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)
        with set_for_a_moment(spark, {SOURCE_EVOLUTION: "true"}):
            named = spark.readStream.name(f"frame_{stream.name}").schema(schema)
            return named.option("maxFilesPerTrigger", 1).parquet(folder)

    def run(
        self,
        spark: SparkSession,
        names: Sequence[str] | None = None,
        fresh: Sequence[str] = (),
        **more: Any,
    ) -> Run:
        """Processes what is there."""
        run = self.session(spark, names, **more).start(fresh=fresh, availableNow=True)
        finish(run)
        return run

    def expected(self, name: str, batches: int | None = None) -> oracle.Bag:
        """What a query gives over so many batches."""
        query = self.queries[name]
        read = {source.name for source in query.base_sources}
        own = [{n: r for n, r in batch.items() if n in read} for batch in self.batches[:batches]]
        return oracle.expected(query, own, {"t": self.drawn.table} if "t" in read else {})

    def check(self, names: Sequence[str] | None = None, batches: int | None = None) -> None:
        """Each query has delivered what it gives over so many batches, and nothing else."""
        for name in self.texts if names is None else names:
            wrong = oracle.difference(self.target(name).found(), self.expected(name, batches))
            assert not wrong, f"{name} ({self.target(name).kind}): {self.texts[name]}\n{wrong}"
