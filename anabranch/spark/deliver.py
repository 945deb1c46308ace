"""Staged results, in the form in which sinks take them.

A parquet sink gets the files that tasks have written for it. Memory and `sinks.arrow` get a table that the driver reads from
the files of all. A callable gets a DataFrame made of the names of these files and of a `mapInArrow` that reads them through
our own filesystem, so that it works where Spark itself cannot read the checkpoint.

Groups that span slots are staged as partial rows. A table of them is put together in the driver; for a DataFrame, and for
files, a job reads the partial rows, brings those of a group together, and combines them. It can be repeated.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.drive.delivery import Outlet, Results, rows_of
from anabranch.drive.queries import Readings
from anabranch.drive.staging import read_staged
from anabranch.engine import bounds
from anabranch.engine.aggregation import Aggregator
from anabranch.errors import QueryError
from anabranch.plan.outward import outward_schema
from anabranch.plan.query import INSTANT, Query
from anabranch.spark.create import own_session
from anabranch.spark.failures import in_a_line, told
from anabranch.spark.sinks import Sink
from anabranch.spark.stage import ParquetStaging, Takes, staged_path
from anabranch.spark.types import outward_spark_schema, zoned_schema
from anabranch.storage.filesystem import Filesystem

NAME, ROWS = "name", "rows"


@dataclass(frozen=True)
class Destination:
    """A query whose results go somewhere."""

    queries: Readings
    """The query as it was run, by the text that results name."""
    groups_span_slots: bool
    sink: Sink
    filesystem: Filesystem
    """Where results are staged."""
    slots: int

    @property
    def name(self) -> str:
        """How errors call the sink: in its own words if it has any."""
        shown = str(self.sink)
        return type(self.sink).__name__ if " object at 0x" in shown else shown

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """An error of a job that a sink has run comes with the stacks of two languages: it is told as what it was, or in a
        line."""
        try:
            yield
        except Exception as error:
            plain = told(error)
            if plain is error and isinstance(error, Py4JJavaError | PySparkException):
                plain = QueryError(in_a_line(error))
            if plain is error:
                raise
            raise plain from error


def outlet_of(destination: Destination, spark: SparkSession) -> Outlet:
    """What delivers the results of a query."""
    if destination.sink.takes is Takes.ARROW:
        return TableOutlet(destination)
    frames = Frames(destination, spark)
    return FrameOutlet(destination, frames) if destination.sink.takes is Takes.FRAME else FilesOutlet(destination, frames)


@dataclass(frozen=True)
class ToSink:
    """What outlets to a sink have in common."""

    destination: Destination

    @property
    def name(self) -> str:
        return self.destination.name


@dataclass(frozen=True)
class TableOutlet(ToSink):
    """Reads results in the driver."""

    takes_files = False

    def take(self, results: Results) -> int:
        query, sink = self.destination.queries(results.text), self.destination.sink
        found = rows_of(self.destination.filesystem, query, self.destination.groups_span_slots, results)
        schema = outward_schema(query)
        table = pa.Table.from_batches([_outward(piece, schema) for piece in found], schema)
        sink.deliver(table, results.batch)
        return int(table.num_rows)


@dataclass(frozen=True)
class Frames:
    """Makes DataFrames of staged results."""

    destination: Destination
    spark: SparkSession

    @cached_property
    def session(self) -> SparkSession:
        return own_session(self.spark)

    def frame(self, results: Results, combine: Combine | None = None) -> DataFrame:
        """The results as rows; or what is made of groups whose rows have been brought together."""
        destination, query = self.destination, self.destination.queries(results.text)
        read = Read(destination.filesystem, results.names, query, destination.groups_span_slots)
        files = len(results.names)
        rows = self.session.range(0, files, 1, files).mapInArrow(read, outward_spark_schema(read.schema))
        if not destination.groups_span_slots:
            return rows
        made, grouping = combine or Combine(query), query.grouping
        assert grouping is not None
        keys = [F.col(INSTANT), *(F.col(f"key{i}") for i in range(grouping.keys))]
        together = rows.repartition(destination.slots, *keys).sortWithinPartitions(INSTANT)
        return together.mapInArrow(made, made.spark_schema)


@dataclass(frozen=True)
class FrameOutlet(ToSink):
    """Calls a sink with a DataFrame."""

    frames: Frames
    takes_files = False

    def take(self, results: Results) -> None:
        with self.destination.plainly():
            self.destination.sink.deliver(self.frames.frame(results), results.batch)


@dataclass(frozen=True)
class FilesOutlet(ToSink):
    """Publishes files: those that tasks have written for a sink; or of groups that a job has put together; or, of results
    that waited for a sink of another kind when the query was last stopped, files that the driver writes."""

    frames: Frames
    takes_files = True

    def take(self, results: Results) -> int | None:
        with self.destination.plainly():
            names, count = (results.names, None) if results.has_own_files else self._written(results)
            self.destination.sink.publish([staged_path(name) for name in names], results.batch, results.token)
            return count

    def _written(self, results: Results) -> tuple[Sequence[str], int | None]:
        """The names of the files, and how many results are in them, if that was counted."""
        query, folder = self.destination.queries(results.text), self.destination.sink.staging()
        assert folder is not None, "the sink takes files"
        begins, write = f"{results.batch:010d}-{results.token}", ParquetStaging(folder, outward_schema(query))
        if self.destination.groups_span_slots:
            files = self.frames.frame(results, Combine(query, write, begins)).collect()
            return [row[NAME] for row in files], sum(row[ROWS] for row in files)
        name = f"{begins}-{uuid.uuid4().hex[:12]}"
        return [name] if write(name, rows_of(self.destination.filesystem, query, False, results)) else [], None


@dataclass(frozen=True)
class SetAsideOutlet:
    """Publishes the files that tasks have written of rows that were set aside."""

    sink: Sink
    takes_files = True

    @property
    def name(self) -> str:
        return str(self.sink)

    def take(self, results: Results) -> None:
        self.sink.publish([staged_path(name) for name in results.names], results.batch, results.token)


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
            return zoned_schema(Aggregator(self.query.grouping, self.query.row_schema).parts_schema)
        return outward_schema(self.query)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece in read_staged(self.filesystem, self.names[number], self.query.name):
                    yield _outward(piece, schema)


@dataclass(frozen=True)
class Combine:
    """Puts together the partial values that slots have of groups; `mapInArrow` calls it with all of some groups', in the
    order of their instants. However many instants a batch has passed, their groups are never held together."""

    query: Query
    write: ParquetStaging | None = None
    """What writes results to files; None: they are handed on."""
    begins: str = ""
    """How the names of these files begin: with batch and token."""

    @property
    def spark_schema(self) -> T.StructType:
        """Results; or, if they are written to files, the names of these and how many results are in each."""
        if self.write is None:
            return outward_spark_schema(outward_schema(self.query))
        return T.StructType([T.StructField(NAME, T.StringType()), T.StructField(ROWS, T.LongType())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        grouping = self.query.grouping
        assert grouping is not None
        schema = Aggregator(grouping, self.query.row_schema).parts_schema
        rows = (
            pa.RecordBatch.from_arrays([_plain(c, t) for c, t in zip(b.columns, schema.types, strict=True)], schema=schema)
            for b in batches
        )
        if self.write is None:
            for found in self._results(rows):
                yield _outward(found, outward_schema(self.query))
            return
        # Each try brings the same groups to a partition: its files sort alike, and are published under the same names.
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        name, counted = f"{self.begins}-{partition:05d}-{uuid.uuid4().hex[:12]}", list[int]()

        def counting() -> Iterator[pa.RecordBatch]:
            for found in self._results(rows):
                counted.append(found.num_rows)
                yield found

        if self.write(name, counting()):
            yield pa.RecordBatch.from_pydict({NAME: [name], ROWS: [sum(counted)]})

    def _results(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.query.grouping is not None
        for portion in whole_instants(rows):
            yield from Aggregator(self.query.grouping, self.query.row_schema).combine(portion)


def whole_instants(rows: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Partial values in portions, each with all rows of its instants, in whose order they come. A portion is no larger than
    a piece of results and what came last, or than the groups of one instant: these are as many as there are groups."""
    over, latest = list[pa.RecordBatch](), list[pa.RecordBatch]()
    newest: int | None = None
    count = size = 0
    for batch in rows:
        if not batch.num_rows:
            continue
        instants = batch.column(INSTANT).to_numpy()
        assert newest is None or newest <= instants[0], "they come in order"
        assert (instants[1:] >= instants[:-1]).all(), "they come in order"
        if instants[-1] != newest:
            newest = int(instants[-1])
            first = int(np.searchsorted(instants, newest))
            ended = [*latest, *([batch.slice(0, first)] if first else [])]
            over, latest = over + ended, [batch.slice(first)]
            count, size = count + sum(b.num_rows for b in ended), size + sum(b.nbytes for b in ended)
        else:
            latest.append(batch)
        if count >= bounds.RESULT_ROWS or size >= bounds.RESULT_BYTES:
            yield over
            over, count, size = [], 0, 0
    if over or latest:
        yield [*over, *latest]


def _outward(piece: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in the types under which they leave."""
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(piece.columns, schema, strict=True)], schema=schema)


def _plain(column: pa.Array, type: pa.DataType) -> pa.Array:
    return column if column.type == type else column.cast(type)
