"""Pack: rows of all sources in one schema, so that one union and one shuffle carry them.

Columns of a source are laid onto shared physical columns by type (`long0_0`, `long0_1`, …, `string1_0`, …): a row is as wide
as the widest source, not as the sum of all. Only columns that some query reads are packed. Rows of our own file reader come
as blobs (one Arrow IPC stream per file and cell) in a column of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from anabranch.errors import SchemaMismatchError
from anabranch.plan.distribution import QueryGrids
from anabranch.plan.query import Stream, Table
from anabranch.spark.cells import cells
from anabranch.spark.reader import ASIDE, DROPPED, PASSED_OVER

SOURCE, CELL, BLOB = "_source", "_cell", "_blob"
COPY = "_copy"
"""Of rows on their way to the exchange, which copy of a row it is: one that goes to several slots is counted once."""


@dataclass(frozen=True)
class Packing:
    """Which physical column holds which column of a source; sources are numbered in the order of the workload."""

    sources: tuple[str, ...]
    places: tuple[tuple[tuple[str, str], ...], ...]
    """For each source: (column, physical column)."""
    types: tuple[tuple[str, T.DataType], ...]
    """Physical columns and their Spark types."""
    has_blobs: bool

    @property
    def schema(self) -> T.StructType:
        """The packed schema."""
        fields = [(SOURCE, T.ByteType()), (CELL, T.IntegerType()), *self.types]
        if self.has_blobs:
            fields.append((BLOB, T.BinaryType()))
        return T.StructType([T.StructField(name, type) for name, type in fields])


def packing_of(columns: Mapping[str, tuple[str, ...]], schemas: Mapping[str, T.StructType | None]) -> Packing:
    """The packing of the columns read of each source; a source without a schema (None) comes as blobs."""
    known: list[T.DataType] = []
    physical: dict[str, T.DataType] = {}
    places = []
    for source, read in columns.items():
        schema = schemas[source]
        used: dict[int, int] = defaultdict(int)
        mine = []
        for column in read if schema is not None else ():
            assert schema is not None
            type = schema[column].dataType
            if type not in known:
                known.append(type)
            number = known.index(type)
            name = f"{type.typeName()}{number}_{used[number]}"
            used[number] += 1
            physical[name] = type
            mine.append((column, name))
        places.append(tuple(mine))
    return Packing(tuple(columns), tuple(places), tuple(physical.items()), any(schemas[n] is None for n in columns))


def pack(frame: DataFrame, packing: Packing, spread: QueryGrids, source: Stream | Table) -> DataFrame:
    """The rows of a source with their cells, in the packed schema, and the number of the copy. Rows that go to one cell are
    not exploded."""
    number = packing.sources.index(source.name)
    places = dict(packing.places[number])
    by_physical = {physical: column for column, physical in places.items()}
    target, several = cells(spread, source, lambda name: F.col(f"`{name}`"))
    columns = [F.lit(number).cast("tinyint").alias(SOURCE)]
    columns += [F.posexplode(target).alias(COPY, CELL)] if several else [F.lit(0).alias(COPY), target.alias(CELL)]
    for name, type in packing.types:
        if name in by_physical:
            columns.append(F.col(f"`{by_physical[name]}`").alias(name))
        else:
            columns.append(F.lit(None).cast(type).alias(name))
    if packing.has_blobs:
        columns.append(F.lit(None).cast("binary").alias(BLOB))
    return frame.select(*columns)


def pack_blobs(frame: DataFrame, packing: Packing, source: Stream | Table) -> DataFrame:
    """Blobs of a source (columns cell and blob) in the packed schema. What is in them the tasks count."""
    number = packing.sources.index(source.name)
    columns = [F.lit(number).cast("tinyint").alias(SOURCE), F.lit(0).alias(COPY), F.col("cell").alias(CELL)]
    columns += [F.lit(None).cast(type).alias(name) for name, type in packing.types]
    return frame.select(*columns, F.col("blob").alias(BLOB))


@dataclass(frozen=True)
class Unpacked:
    """The rows of each source, the times of those that a reader has passed over, or shed, and what it tells of those that it
    has set aside."""

    rows: dict[str, pa.Table]
    passed_over: dict[str, list[pa.Array]]
    shed: dict[str, list[pa.Array]]
    set_aside: dict[str, list[pa.RecordBatch]]


def unpack(packing: Packing, batches: Iterable[pa.RecordBatch]) -> Unpacked:
    """The rows of each source, as they came. Rows of one source follow each other: they are sliced, not filtered."""
    pieces: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    passed_over: dict[str, list[pa.Array]] = defaultdict(list)
    shed: dict[str, list[pa.Array]] = defaultdict(list)
    set_aside: dict[str, list[pa.RecordBatch]] = defaultdict(list)
    for batch in batches:
        if not batch.num_rows:
            continue
        numbers = batch.column(0).to_numpy(zero_copy_only=False)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
        for first, last in pairwise(cuts):
            number = int(numbers[first])
            piece = batch.slice(first, last - first)
            if packing.has_blobs and not packing.places[number]:
                blobs = piece.column(piece.schema.get_field_index(BLOB))
                for blob in blobs:
                    stream = pa.ipc.open_stream(blob.as_buffer())
                    told = stream.schema.metadata or {}
                    if PASSED_OVER in told:
                        passed_over[packing.sources[number]] += [b.column(0) for b in stream]
                    elif DROPPED in told:
                        shed[packing.sources[number]] += [b.column(0) for b in stream]
                    elif ASIDE in told:
                        set_aside[packing.sources[number]] += list(stream)
                    else:
                        pieces[number] += list(stream)
            else:
                pieces[number].append(_named(piece, packing.places[number]))
    found = {}
    for number, parts in pieces.items():
        try:
            found[packing.sources[number]] = pa.Table.from_batches(parts)
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(f"files of {packing.sources[number]} differ in their columns: {error}") from None
    return Unpacked(found, dict(passed_over), dict(shed), dict(set_aside))


def _named(piece: pa.RecordBatch, places: tuple[tuple[str, str], ...]) -> pa.RecordBatch:
    columns = [piece.column(piece.schema.get_field_index(physical)) for _, physical in places]
    return pa.RecordBatch.from_arrays([_plain(c) for c in columns], names=[name for name, _ in places])


def _plain(column: pa.Array) -> pa.Array:
    """Timestamps without their zone: microseconds since the epoch either way."""
    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
