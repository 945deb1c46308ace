# ruff: noqa: N802 (the names of Spark's methods)
"""Files as a stream: a Python data source that hands out Arrow blobs, one for each cell, instead of rows.

Life of a file: `FileList.discover` finds it on the driver and appends it to a durable list; `latestOffset` counts it in;
`partitions` puts it into a task with others; `read` decodes the needed columns in a worker, splits the rows by cell
(`CellRouter`) and encodes those of a cell as one Arrow IPC stream, which the JVM and the shuffle carry like one value.

Invariants:

- An offset is a number of files of an append-only list (`anabranch.spark.file_list`), which is written before any offset
  that counts them is told to Spark.
- Every row goes exactly once to each distinct cell that some input over the source sends it to. Rows that no input can use
  go along too: their times move the watermark.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from anabranch.control.lease import Lease
from anabranch.control.spark_streams import SOURCE_EVOLUTION, spark_name
from anabranch.errors import DamagedFileError, FilesError, FilesToMarkError
from anabranch.plan.demand import Asked
from anabranch.plan.distribution import QueryGrids, each_way, way_of
from anabranch.plan.expression import Column
from anabranch.plan.grid import Grid
from anabranch.plan.on_error import FAIL, OnError
from anabranch.plan.query import Field, Stream, Table
from anabranch.spark.damaged import Mark, Marks, encoded, reasons_in
from anabranch.spark.file_formats import check_format, gone, read_fields
from anabranch.spark.file_list import FileList, FileListing, FoundFile, Skipped, local_path
from anabranch.spark.file_rows import KEPT_ASIDE, WHOLE_FILE, judge, read_rows
from anabranch.spark.waiting import waiting_of
from anabranch.spark.workers import settle
from anabranch.storage.filesystem import Filesystem, LocalFilesystem
from anabranch.storage.location import located

RAISED = "anabranch.raised"
"""The local property of Spark's that tells tasks which predicates are not theirs to evaluate."""

DAMAGED = "anabranch.damaged"
"""The local property of Spark's that tells tasks which files were found damaged in earlier runs of their batch."""

SHED = "anabranch.shed"
"""The local property of Spark's that tells tasks which share of rows of each stream is kept, and by what salt."""

FORMAT = "anabranch_files"
"""Under what name Spark knows the data source."""

MIN_PARTITION_BYTES = 1 << 20
"""Less than this is not worth a task of its own."""

FLUSH_BYTES = 64 << 20
"""Blobs are handed out before more rows than this are held; a blob is at most about this large."""

FEW_GROUPS = 8
"""Up to so many groups are found by one comparison each, more by sorting."""

_BLOB_SCHEMA = pa.schema([pa.field("cell", pa.int32()), pa.field("blob", pa.binary())])
PASSED_OVER = b"passed over"
"""In the metadata of a blob: it holds the times of rows that no input can use."""
DROPPED = b"shed"
"""In the metadata of a blob: it holds the times of rows that were shed."""
ASIDE = b"set aside"
"""In the metadata of a blob: it tells of rows that could not be read (`anabranch.spark.file_rows.SET_ASIDE`)."""

_registered: WeakSet[SparkSession] = WeakSet()


@dataclass(frozen=True)
class FileOptions:
    """How files are taken in."""

    max_files_per_trigger: int | None = None
    """At most so many files in one batch; None: all there are."""
    partitions: int | None = None
    """Into how many tasks the files of a batch are grouped at most; None: as many as there are cores."""
    log_path: str | Filesystem = ""
    """A folder, under the query's checkpoint, for the list of files found."""
    lease: Lease | None = None
    """The lease of the driver that the list is written for; None: nobody else can write it."""
    on_error: OnError = FAIL
    skip: tuple[str, ...] = ()
    """Files that are left out, by their paths or the last parts of them, also those that an offset counts already."""

    def __post_init__(self) -> None:
        for name in ("max_files_per_trigger", "partitions"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise FilesError(f"{name} is a number of 1 or more, or None: not {value!r}")
        Skipped(self.skip)
        if self.on_error.path:
            located(self.on_error.path)


@dataclass(frozen=True)
class FileSource:
    """All that the processes that read files need to know; travels pickled."""

    source: Stream
    path: str
    format: str
    spread: QueryGrids
    columns: tuple[str, ...]
    options: FileOptions
    filters: tuple[Asked, ...] = ()
    """Rows that pass none of these sets of predicates are passed over: of them only the times are sent."""


def file_stream(
    spark: SparkSession,
    source: Stream,
    location_path: str,
    format: str,
    spread: QueryGrids,
    columns: tuple[str, ...],
    options: FileOptions,
    filters: tuple[Asked, ...] = (),
) -> DataFrame:
    """A streaming DataFrame (cell INT, blob BINARY) of the files under a path; a blob holds rows with the named columns."""
    check_format(format)
    path = local_path(location_path)
    if not os.path.isdir(start := FileListing(path, format).start):
        raise FilesError(f"{source.name}: there is no folder {start} to read {location_path} from")
    if not options.log_path:
        raise FilesError(f"{source.name}: FileOptions.log_path must name a folder for the list of files found")
    log = LocalFilesystem(options.log_path) if isinstance(options.log_path, str) else options.log_path
    settled = replace(options, partitions=options.partitions or spark.sparkContext.defaultParallelism, log_path=log)
    # Every task gets a copy: not of hundreds of queries whose rows go to the same slots.
    files = FileSource(source, path, format, each_way(spread, source.name), columns, settled, filters)
    if spark not in _registered:
        spark.dataSource.register(FileDataSource)
        _registered.add(spark)
    reader = spark.readStream.format(FORMAT).option("source", base64.b64encode(pickle.dumps(files)).decode())
    if spark.conf.get(SOURCE_EVOLUTION, "false") == "true":  # then every source must have a name
        reader = reader.name(spark_name(source.name))
    return reader.load()


def infer_fields(path: str, format: str) -> tuple[Field, ...]:
    """The columns of the first file under a path, for a stream whose columns are not declared."""
    check_format(format)
    listing = FileListing(local_path(path), format)
    first = next((f for f in listing.settled(frozenset()) if f.size_bytes), None)
    if first is None:
        waiting = f"; {waiting_of(listing.waiting)}" if listing.waiting else ""
        raise FilesError(
            f"no {format} file with rows matches {path}{waiting}: check the path, or declare the columns of the stream, "
            "so that it can start before its files arrive"
        )
    return read_fields(first.path, format)


def read_table(path: str, format: str, table: Table, columns: tuple[str, ...]) -> pa.Table:
    """The rows of a stored table, from all files under a path."""
    check_format(format)
    listing = FileListing(local_path(path), format)
    files = listing.settled(frozenset())
    if listing.waiting:
        raise FilesError(
            f"the table {table.name} cannot be read from {path}, {waiting_of(listing.waiting)}: write files under a name "
            f"that begins with a dot and rename them when they are complete; move away what is no {format} file"
        )
    if not files:
        raise FilesError(f"no {format} file matches {path}, from which the table {table.name} is read: check the path")
    return pa.Table.from_batches([read_rows(f.path, format, table, columns) for f in files])


# -- the data source -------------------------------------------------------------------------------------------------


class FileDataSource(DataSource):
    """What Spark asks for a reader. Lives in short-lived processes: it must be quick to import."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "cell int, blob binary"

    def streamReader(self, schema: StructType) -> FileStreamReader:
        return FileStreamReader(pickle.loads(base64.b64decode(self.options["source"])))


class FilePartition(InputPartition):
    """The files of one task, and those among them that are marked as damaged, with the reasons."""

    def __init__(self, files: tuple[FoundFile, ...], damaged: Mapping[str, str] | None = None) -> None:
        self.files, self.damaged = files, dict(damaged or {})


class FileStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and partitions, in one process on the driver's machine; `read`, in the workers."""

    def __init__(self, files: FileSource) -> None:
        self.files = files
        self._end_of_input: int | None = None

    @cached_property
    def found(self) -> FileList:
        listing = FileListing(self.files.path, self.files.format, self.files.options.skip)
        return FileList(listing, self.files.options.log_path, self.files.options.lease)

    def initialOffset(self) -> dict[str, int]:
        return {"files": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.files.options.max_files_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end_of_input = self.found.discover(wait=True)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self.found.require(start["files"])
        end = self.found.discover() if self._end_of_input is None else max(start["files"], self._end_of_input)
        if isinstance(limit, ReadMaxFiles):
            end = min(end, start["files"] + limit.max_files)
        return {"files": end}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"files": len(self.found)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        counted, skipped = self.found.between(start["files"], end["files"]), Skipped(self.files.options.skip)
        files = [file for file in counted if file.path not in skipped]
        damaged = self.damaged
        for file in files:
            if file.path not in damaged:
                _require_unchanged(file, self.files.source.name)
        groups = grouped(files, self.files.options.partitions or 1)
        marks = [{file.path: damaged[file.path] for file in group if file.path in damaged} for group in groups]
        return [FilePartition(*each) for each in zip(groups, marks, strict=True)] or ([FilePartition(())] if counted else [])

    @cached_property
    def damaged(self) -> dict[str, str]:
        """The files that were marked before this reader began, with the reasons: a batch that is begun anew leaves them out.
        Of those that are found later the driver tells the tasks."""
        if not self.files.options.on_error.sets_aside:
            return {}
        log = self.files.options.log_path
        marks = Marks(LocalFilesystem(log) if isinstance(log, str) else log)
        return {mark.path: mark.reason for mark in marks.all()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePartition)
        return blobs(self.files, partition.files, partition.damaged)


def _require_unchanged(file: FoundFile, stream: str) -> None:
    try:
        status = os.stat(file.path)
    except FileNotFoundError:
        raise gone(file.path) from None
    if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.modified_ns):
        was, now = _shown_time(file.modified_ns), _shown_time(status.st_mtime_ns)
        raise FilesError(
            f"{file.path} has changed since it was found: then it had {file.size_bytes} bytes of {was}, now "
            f"{status.st_size} bytes of {now}. Files of a stream must not change: write them under a name that begins with "
            "a dot and rename them when they are complete. Restore this one as it was, with its time, or have it skipped: "
            f"stream({stream!r}, …, skip=[{file.path!r}]), on the command line --skip {stream}={file.path}"
        )


def _shown_time(time_ns: int) -> str:
    """To the last digit: that may be the only one that differs.

    >>> _shown_time(1_700_000_000_000_000_001)
    '2023-11-14 22:13:20.000000001 UTC'
    """
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(time_ns // 10**9))}.{time_ns % 10**9:09d} UTC"


def grouped(files: Sequence[FoundFile], most: int) -> list[tuple[FoundFile, ...]]:
    """The files in at most so many groups of about equal size; small ones share a group."""
    total = sum(f.size_bytes for f in files)
    count = min(len(files), most, max(1, total // MIN_PARTITION_BYTES))
    groups: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for place in sorted(range(len(files)), key=lambda i: -files[i].size_bytes):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(place)
        sizes[smallest] += files[place].size_bytes
    return [tuple(files[i] for i in sorted(group)) for group in groups if group]


# -- rows to blobs ---------------------------------------------------------------------------------------------------

Cells = tuple[int, ...]


def blobs(
    files: FileSource, partition: Sequence[FoundFile], damaged: Mapping[str, str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of some files as (cell, blob): one blob for each cell, or a few if there are very many rows. Files that are
    marked as damaged are not opened; if others are found damaged, the task fails with all of them."""
    settle()
    if not files.spread:  # nobody reads the stream, and Spark goes on counting its files
        return
    router = CellRouter(files.spread, files.source)
    held: dict[Cells, list[pa.RecordBatch]] = {}
    held_bytes = 0
    passed_over: list[pa.RecordBatch] = []
    shed: list[pa.RecordBatch] = []
    aside: list[pa.RecordBatch] = []
    found: list[Mark] = []
    marked = {**(damaged or {}), **reasons_in(_property(DAMAGED), files.source.name)}
    for file in partition:
        if file.path in marked:
            aside.append(_told(files, file, WHOLE_FILE, marked[file.path]))
            continue
        _require_unchanged(file, files.source.name)
        try:
            rows, bad = _read(file, files)
        except DamagedFileError as error:
            _require_unchanged(file, files.source.name)  # else it is another file that is damaged
            found.append(Mark(files.source.name, file.path, str(error)))
            continue
        useful, times = _useful(rows, files)
        useful, dropped = _kept(useful, files.source)
        _require_unchanged(file, files.source.name)  # nor while it was read
        aside += bad
        passed_over += times
        shed += dropped
        for rows in _slices(useful):
            if held_bytes + rows.nbytes > FLUSH_BYTES:
                yield from _encoded(held)
                held, held_bytes = {}, 0
            held_bytes += rows.nbytes
            for cells, piece in router.split(rows):
                held.setdefault(cells, []).append(piece)
    if found:
        raise FilesToMarkError(encoded(found))
    yield from _encoded(held)
    for tidings in (passed_over, shed, aside):
        if tidings:
            yield from _encoded({(0,): tidings})


def _read(file: FoundFile, files: FileSource) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """The rows of a file with the columns that somebody reads; and, where bad rows are set aside, what is told of them:
    these are judged on all columns, whoever reads them."""
    if not files.options.on_error.sets_aside:
        return read_rows(file.path, files.format, files.source, files.columns), []
    judged = judge(file.path, files.format, files.source, [f.name for f in files.source.fields])
    told = [_told(files, file, judged.bad)] if judged.bad.num_rows else []
    return judged.good.select(files.columns), told


def _told(files: FileSource, file: FoundFile, bad: pa.RecordBatch, reason: str | None = None) -> pa.RecordBatch:
    """What is sent of bad rows: all there is to tell where they are kept, else only that there are so many."""
    if files.options.on_error.way != "into":
        return bad.select(["row"]).replace_schema_metadata({ASIDE: b""})
    row, reasons, raw = bad.columns
    columns = [pa.repeat(file.path, bad.num_rows), row, reasons if reason is None else pa.array([reason]), raw]
    return pa.RecordBatch.from_arrays(columns, schema=KEPT_ASIDE.with_metadata({ASIDE: b""}))


def _raised() -> frozenset[tuple[str, str]]:
    """The predicates that stand above a join in the batch that a task reads for, each with its query."""
    told = _property(RAISED)
    return frozenset((query, text) for query, text in json.loads(told)) if told else frozenset()


def _property(name: str) -> str | None:
    """What the driver tells the tasks of a batch."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None


def _useful(rows: pa.RecordBatch, files: FileSource) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """The rows that some input can use, and the times of the others: they move the watermark, and may be late."""
    if not files.filters or not rows.num_rows:
        return rows, []
    from anabranch.engine.expressions import predicate_mask

    raised, wanted = _raised(), np.zeros(rows.num_rows, np.bool_)
    for group in files.filters:
        asked = group.left(raised) if raised else group.predicates
        mask = predicate_mask(asked, lambda c: rows.column(rows.schema.get_field_index(c.name)), rows.num_rows)
        if mask is None:
            return rows, []
        wanted |= mask
    if wanted.all():
        return rows, []
    return rows.filter(pa.array(wanted)), [_times(rows, ~wanted, files.source, PASSED_OVER)]


def _kept(rows: pa.RecordBatch, source: Stream) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """The rows that are not shed, and the times of the others: they move the watermark, and may be late."""
    told = _property(SHED)
    share, salt = shed_of(told, source.name) if told else (1.0, 0)
    if share >= 1 or not rows.num_rows:
        return rows, []
    from anabranch.engine.shedding import kept_mask

    kept = kept_mask(source.name, rows, share, salt)
    return rows.filter(pa.array(kept)), [_times(rows, ~kept, source, DROPPED)]


def shed_text(shed: Mapping[str, float], salt: int) -> str:
    """What tasks are told of rows that are shed.

    >>> shed_of(shed_text({"a": 0.5}, 7), "a"), shed_of(shed_text({"a": 0.5}, 7), "b"), shed_text({}, 7)
    ((0.5, 7), (1.0, 7), '')
    """
    return json.dumps({"salt": salt, "kept": dict(shed)}) if shed else ""


def shed_of(told: str, source: str) -> tuple[float, int]:
    """The share of a source's rows that is kept, and the salt."""
    found = json.loads(told)
    return found["kept"].get(source, 1.0), found["salt"]


def _times(rows: pa.RecordBatch, which: npt.NDArray[np.bool_], source: Stream, kind: bytes) -> pa.RecordBatch:
    """What is sent of rows that stay behind."""
    times = rows.column(rows.schema.get_field_index(source.time)).filter(pa.array(which))
    return pa.RecordBatch.from_arrays([times], schema=pa.schema([pa.field(source.time, times.type)], {kind: b""}))


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not rows.num_rows:
        return
    count = min(-(-rows.nbytes // FLUSH_BYTES), rows.num_rows) or 1
    step = -(-rows.num_rows // count)
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def _encoded(held: dict[Cells, list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    for cells, pieces in held.items():
        blob = encode(pieces)
        value = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, blob.size], np.int32)), blob])
        for cell in cells:
            yield pa.RecordBatch.from_arrays([pa.array([cell], pa.int32()), value], schema=_BLOB_SCHEMA)


def encode(pieces: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """An Arrow IPC stream of the pieces, written into a buffer of the right size: a growing one costs twice as much."""
    schema = pieces[0].schema
    framing = schema.serialize().size + 64
    buffer = pa.allocate_buffer(framing + sum(pa.ipc.get_record_batch_size(p) for p in pieces))
    with pa.FixedSizeBufferWriter(buffer) as sink:
        with pa.ipc.new_stream(sink, schema) as writer:
            for piece in pieces:
                writer.write_batch(piece)
        size = sink.tell()
    return buffer.slice(0, size)


class CellRouter:
    """Splits rows of a source by the slots they go to."""

    def __init__(self, spread: QueryGrids, source: Stream) -> None:
        self.source = source
        inputs = [(grid, i.alias) for query, grid in spread for i in query.inputs if i.source.name == source.name]
        # Rows that go to every slot have the same way as those that all go to the only one of a smaller grid.
        known = {(way_of(grid, alias), grid.offsets(alias)): (grid, alias) for grid, alias in reversed(inputs)}
        self.ways = tuple(known.values())
        """One input of each way: inputs that differ in their alias alone, of one query or of several, go to the same."""

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[Cells, pa.RecordBatch]]:
        """The rows that go to each cell; cells that get the same rows together. Rows that all go there are not copied."""
        if len(self.ways) == 1:
            grid, alias = self.ways[0]
            offsets = grid.offsets(alias)
            for base, positions in _positions_by_value(self._bases(grid, alias, rows)):
                yield tuple(base + offset for offset in offsets), _take(rows, positions)
            return
        bases = [(grid, alias, self._bases(grid, alias, rows)) for grid, alias in self.ways]
        for cell in range(max(grid.cells for grid, _ in self.ways)):
            mask = np.zeros(rows.num_rows, np.bool_)
            for grid, alias, values in bases:
                if grid.has(cell):
                    mask |= values == self._base_of(grid, alias, cell)
            positions = np.flatnonzero(mask)
            if len(positions):
                yield (cell,), _take(rows, positions)

    def _bases(self, grid: Grid, alias: str, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        # Numba takes a second to import, and only workers need it: not the processes that plan.
        from anabranch.engine.cells import base_cells

        def fetch(column: Column) -> pa.Array:
            return rows.column(rows.schema.get_field_index(column.name))

        times = rows.column(rows.schema.get_field_index(self.source.time)).view(pa.int64())
        return base_cells(grid, alias, fetch, times, rows.num_rows)

    def _base_of(self, grid: Grid, alias: str, cell: int) -> int:
        """What `_bases` gives for the rows of an input that go to a cell."""
        return sum(grid.coordinate(cell, place) * grid.stride(place) for place in grid.own(alias))


def _positions_by_value(values: npt.NDArray[np.int64]) -> Iterable[tuple[int, npt.NDArray[Any]]]:
    """For each value the places where it stands, in order.

    >>> [(v, p.tolist()) for v, p in _positions_by_value(np.array([4, 0, 4]))]
    [(0, [1]), (4, [0, 2])]
    """
    counts = np.bincount(values)
    present = np.flatnonzero(counts)
    if len(present) <= FEW_GROUPS:
        return [(int(value), np.flatnonzero(values == value)) for value in present]
    order = np.argsort(values.astype(np.uint16 if len(counts) < 1 << 16 else np.int64), kind="stable")
    groups = np.split(order, np.cumsum(counts[present])[:-1])
    return [(int(value), group) for value, group in zip(present, groups, strict=True)]


def _take(rows: pa.RecordBatch, positions: npt.NDArray[Any]) -> pa.RecordBatch:
    return rows if len(positions) == rows.num_rows else rows.take(pa.array(positions))
