"""Declared streams and tables as Spark and tasks get them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.readwriter import DataStreamReader

from anabranch.control.progress import Waiting
from anabranch.control.spark_streams import spark_name
from anabranch.engine.accept import conform
from anabranch.engine.log import encode
from anabranch.errors import SessionError, did_you_mean
from anabranch.place.databases.named import TableInDatabase
from anabranch.place.databases.registry import database
from anabranch.plan.demand import Asked
from anabranch.plan.distribution import QueryGrids
from anabranch.plan.lookups import root_name
from anabranch.plan.on_error import WAYS, OnError
from anabranch.plan.query import Stream, Table
from anabranch.spark.file_list import Lists
from anabranch.spark.frames import source_names
from anabranch.spark.pack import COPY, Packing, pack, pack_blobs
from anabranch.spark.reader import FileOptions, file_stream, read_table
from anabranch.spark.waiting import read_waiting
from anabranch.storage.location import Folder


@dataclass(frozen=True)
class Files:
    """Files of a path, for our own reader."""

    path: str
    format: str
    options: FileOptions


Declared = DataFrame | Callable[[], DataFrame] | Files | TableInDatabase
"""What a user has declared a stream or a table as."""


@dataclass
class Sources:
    """The declared sources of a session."""

    given: dict[str, Declared]
    refresh_us: dict[str, int]
    """How much event time passes until a table is read again, for those that are."""

    def _given(self, name: str) -> Declared:
        """What a stream was declared as; an enriched stream is read as the one that it is made of."""
        return self.given[root_name(name)]

    def schema(self, source: Stream | Table) -> T.StructType | None:
        """The columns of a stream as Spark knows them; None: its rows come as blobs."""
        frame = self._given(source.name)
        return frame.schema if isinstance(frame, DataFrame) and isinstance(source, Stream) else None

    def files(self, streams: Iterable[str]) -> dict[str, Files]:
        """The streams that our own reader reads."""
        found = {name: self._given(name) for name in streams}
        return {name: files for name, files in found.items() if isinstance(files, Files)}

    def names(self, streams: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """What Spark calls the sources of streams; none of a frame whose sources have no names."""
        found = {}
        for name in streams:
            if (given := self.given.get(root_name(name))) is None:
                told = f"the checkpoint has read the stream {name}, for a query that is gone"
                raise SessionError(f"{told}: declare the stream")
            if isinstance(given, DataFrame):  # a frame that is read twice would have its names twice
                found[name] = source_names(given) if name in self.given else ()
            else:
                found[name] = _names_of_files(name)
        return found

    def packed(
        self,
        spark: SparkSession,
        source: Stream,
        spread: QueryGrids,
        columns: tuple[str, ...],
        filters: tuple[Asked, ...],
        packing: Packing,
        lists: Lists,
    ) -> DataFrame:
        """The rows of a stream with the slots that they go to; `lists` is where the reader keeps its list of files."""
        given = self._given(source.name)
        if isinstance(given, Files):
            options = _listed(given.options, source.name, lists)
            blobs = file_stream(spark, source, given.path, given.format, spread, columns, options, filters)
            return pack_blobs(blobs, packing, source)
        assert isinstance(given, DataFrame), "streams are frames or files"
        return pack(given, packing, spread, source)

    def passed_by(self, spark: SparkSession, name: str, packing: Packing, lists: Lists) -> DataFrame:
        """No row of a stream, which Spark goes on counting: queries have read it that are gone."""
        given = self._given(name)
        if isinstance(given, Files):
            options = _listed(given.options, name, lists)
            given = file_stream(spark, Stream(name, (), ""), given.path, given.format, (), (), options)
        assert isinstance(given, DataFrame), "streams are frames or files"
        packed = [F.lit(None).cast(f.dataType).alias(f.name) for f in packing.schema]
        return given.where(F.lit(False)).select(*packed, F.lit(0).alias(COPY))

    def read(self, table: Table, columns: tuple[str, ...]) -> pa.Buffer:
        """The rows of a stored table as it is now, as an Arrow IPC stream."""
        given = self.given[table.name]
        if isinstance(given, TableInDatabase):
            types = {f.name: f.outward or f.type for f in table.fields}
            found = database(given.database).read(given.relation, tuple((c, types[c]) for c in columns))
            rows = pa.Table.from_arrays([_unzoned(c) for c in found.columns], names=list(columns))
        elif isinstance(given, Files):
            rows = read_table(given.path, given.format, table, columns)
        else:
            now = given if isinstance(given, DataFrame) else given()
            rows = now.select(*(f"`{c}`" for c in columns)).toArrow()
        return encode(conform(table, rows, columns))


def _listed(options: FileOptions, stream: str, lists: Lists) -> FileOptions:
    return replace(options, log_path=lists.folder.below(stream), lease=lists.lease)


def _names_of_files(stream: str) -> tuple[str, ...]:
    """What Spark calls our reader of a stream, if it knows names of sources: since 4.2."""
    return (spark_name(stream),) if hasattr(DataStreamReader, "name") else ()


def on_error_of(stream: str, given: object, is_files: bool) -> OnError:
    """What a user has asked for if rows of a stream cannot be read."""
    way, path = given if isinstance(given, tuple) and len(given) == 2 else (given, "")
    if way not in WAYS or not isinstance(path, str) or bool(path) != (way == "into"):
        hint = did_you_mean(way, WAYS) if isinstance(way, str) and way not in WAYS else ""
        raise SessionError(
            f"on_error={given!r} of the stream {stream}: it is \"fail\", \"skip\" or (\"into\", \"folder\")"
            + (f"; {hint}" if hint else "")
        )
    found = OnError(str(way), path)
    if found.sets_aside and not is_files:
        raise SessionError(
            f"{stream} is a DataFrame: on_error={given!r} is for files that our own reader reads; have Spark leave out what "
            "is bad: .option(\"mode\", \"DROPMALFORMED\") for csv and json (with \"PERMISSIVE\" and a column "
            "_corrupt_record it is kept), .option(\"ignoreCorruptFiles\", True), or badRecordsPath on Databricks"
        )
    return found


def waiting_files(lists: Mapping[str, Folder]) -> dict[str, Waiting]:
    """The files that wait to be complete, by stream, as the readers last found them."""
    found = {name: read_waiting(folder) for name, folder in lists.items()}
    return {name: waiting for name, waiting in found.items() if waiting}


def _unzoned(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
