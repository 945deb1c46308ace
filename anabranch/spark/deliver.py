"""Staged results, in the form in which sinks take them.

A parquet sink gets the files that tasks have written for it. Memory and `sinks.arrow` get a table that the driver reads from
the files of all. A callable gets a DataFrame made of the names of these files and of a `mapInArrow` that reads them through
our own filesystem, so that it works where Spark itself cannot read the checkpoint.

Groups that span slots are staged as partial rows. A table of them is put together in the driver; for a DataFrame, and for
files, a job reads the partial rows, brings those of a group together, and combines them. It can be repeated.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.drive.delivery import Outlet, Results, rows_of
from anabranch.drive.staging import read_staged
from anabranch.engine.aggregation import Aggregator
from anabranch.plan.query import INSTANT, Query
from anabranch.spark.create import own_session
from anabranch.spark.sinks import Sink
from anabranch.spark.stage import ParquetStaging, Takes, staged_path
from anabranch.spark.types import spark_schema, zoned
from anabranch.storage.filesystem import Filesystem

NAME = "name"


@dataclass(frozen=True)
class Delivered:
    """A query whose results go somewhere."""

    query: Query
    groups_span_slots: bool
    sink: Sink
    filesystem: Filesystem
    """Where results are staged."""
    slots: int


def outlet_of(delivered: Delivered, spark: SparkSession) -> Outlet:
    """What delivers the results of a query."""
    if delivered.sink.takes is Takes.ARROW:
        return TableOutlet(delivered)
    frames = Frames(delivered, spark)
    return FrameOutlet(delivered, frames) if delivered.sink.takes is Takes.FRAME else FilesOutlet(delivered, frames)


@dataclass(frozen=True)
class TableOutlet:
    """Reads results in the driver."""

    delivered: Delivered
    takes_files = False

    def take(self, results: Results) -> None:
        query, sink = self.delivered.query, self.delivered.sink
        found = rows_of(self.delivered.filesystem, query, self.delivered.groups_span_slots, results)
        sink.deliver(pa.Table.from_batches([_zoned(piece) for piece in found], _zoned_schema(query)), results.batch)


@dataclass(frozen=True)
class Frames:
    """Makes DataFrames of staged results."""

    delivered: Delivered
    spark: SparkSession

    @cached_property
    def session(self) -> SparkSession:
        return own_session(self.spark)

    def frame(self, results: Results, combine: Combine | None = None) -> DataFrame:
        """The results as rows; or what is made of groups whose rows have been brought together."""
        delivered = self.delivered
        read = Read(delivered.filesystem, results.names, delivered.query, delivered.groups_span_slots)
        files = len(results.names)
        rows = self.session.range(0, files, 1, files).mapInArrow(read, spark_schema(read.schema))
        if not delivered.groups_span_slots:
            return rows
        made = combine or Combine(delivered.query)
        grouping = delivered.query.grouping
        assert grouping is not None
        keys = [F.col(INSTANT), *(F.col(f"key{i}") for i in range(grouping.keys))]
        return rows.repartition(delivered.slots, *keys).mapInArrow(made, made.spark_schema)


@dataclass(frozen=True)
class FrameOutlet:
    """Calls a sink with a DataFrame."""

    delivered: Delivered
    frames: Frames
    takes_files = False

    def take(self, results: Results) -> None:
        self.delivered.sink.deliver(self.frames.frame(results), results.batch)


@dataclass(frozen=True)
class FilesOutlet:
    """Publishes files: those that tasks have written for a sink; or of groups that a job has put together; or, of results
    that waited for a sink of another kind when the query was last stopped, files that the driver writes."""

    delivered: Delivered
    frames: Frames
    takes_files = True

    def take(self, results: Results) -> None:
        names = results.names if results.has_own_files else self._written(results)
        self.delivered.sink.publish([staged_path(name) for name in names], results.batch, results.token)

    def _written(self, results: Results) -> Sequence[str]:
        query, folder = self.delivered.query, self.delivered.sink.staging()
        assert folder is not None, "the sink takes files"
        begins, write = f"{results.batch:010d}-{results.token}", ParquetStaging(folder, query.output_schema)
        if self.delivered.groups_span_slots:
            return [row[0] for row in self.frames.frame(results, Combine(query, write, begins)).collect()]
        name = f"{begins}-{uuid.uuid4().hex[:12]}"
        return [name] if write(name, rows_of(self.delivered.filesystem, query, False, results)) else []


@dataclass(frozen=True)
class Read:
    """Reads staged results, in a worker; `mapInArrow` calls it with the numbers of files."""

    filesystem: Filesystem
    names: tuple[str, ...]
    query: Query
    groups_span_slots: bool

    @property
    def schema(self) -> pa.Schema:
        """Results, or partial values of them."""
        if self.groups_span_slots and self.query.grouping is not None:
            return Aggregator(self.query.grouping, self.query.row_schema).parts_schema
        return self.query.output_schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece in read_staged(self.filesystem, self.names[number], self.query.name):
                    yield _zoned(piece)


@dataclass(frozen=True)
class Combine:
    """Puts together the partial values that slots have of groups; `mapInArrow` calls it with all of some groups'."""

    query: Query
    write: ParquetStaging | None = None
    """What writes results to files; None: they are handed on."""
    begins: str = ""
    """How the names of these files begin: with batch and token."""

    @property
    def spark_schema(self) -> T.StructType:
        """Results; or, if they are written to files, their names."""
        if self.write is None:
            return spark_schema(self.query.output_schema)
        return T.StructType([T.StructField(NAME, T.StringType())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        grouping = self.query.grouping
        assert grouping is not None
        aggregator = Aggregator(grouping, self.query.row_schema)
        schema = aggregator.parts_schema
        rows = [
            pa.RecordBatch.from_arrays([_plain(c, t) for c, t in zip(b.columns, schema.types, strict=True)], schema=schema)
            for b in batches
            if b.num_rows
        ]
        results = aggregator.combine(rows) if rows else []
        if self.write is None:
            for found in results:
                yield _zoned(found)
        elif results:
            name = f"{self.begins}-{uuid.uuid4().hex[:12]}"
            if self.write(name, iter(results)):
                yield pa.RecordBatch.from_pydict({NAME: [name]})


def _zoned(piece: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as Spark takes them."""
    return pa.RecordBatch.from_arrays([c.cast(zoned(c.type)) for c in piece.columns], names=piece.schema.names)


def _zoned_schema(query: Query) -> pa.Schema:
    return pa.schema([pa.field(f.name, zoned(f.type)) for f in query.output_schema])


def _plain(column: pa.Array, type: pa.DataType) -> pa.Array:
    return column if column.type == type else column.cast(type)
