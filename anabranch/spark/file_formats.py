"""File formats: the rows of one file as Arrow columns in the declared types, and the columns a file has.

Only the columns that are asked for are decoded. Local files are memory-mapped; an uncompressed Arrow file is not copied
at all. Where formats leave room we do what Spark does: a CSV file has a header, an empty field is NULL and a quoted one is
not; a key that a JSON object lacks is NULL. Instants are kept to the microsecond, with their zone or as UTC without one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from anabranch.engine.accept import conform
from anabranch.errors import AnabranchError, SchemaMismatchError
from anabranch.plan.formats import TEXT, compression_of, has_tabs
from anabranch.plan.query import Field, Stream, Table

JSON_BLOCK_BYTES = 1 << 30
"""A JSON file up to this size is parsed in one piece, so that no line is too long for a block."""

HAS_END = ("parquet", "arrow")
"""Formats whose files show by their end that they are complete."""

ARROW_MAGIC = b"ARROW1"
PARQUET_MAGIC = b"PAR1"
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

MICROSECONDS = pa.timestamp("us")
_TIMES = (MICROSECONDS, pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
"""How times may be written in text. All times of a file are written alike."""

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


class FilesError(AnabranchError):
    """Files of a stream that are not there, have changed, or cannot be read."""


def read_rows(path: str, format: str, source: Stream | Table, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The named columns of a file, in one piece and in the types their source declares."""
    fields = [f for f in source.fields if f.name in columns]
    try:
        rows = _READERS[format](path, fields)
        return conform(source, _to_microseconds(rows), columns)
    except FileNotFoundError:
        raise gone(path) from None
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"{path}: {error}") from None
    except (pa.ArrowException, OSError) as error:
        if format in TEXT and isinstance(error, pa.ArrowInvalid):
            raise SchemaMismatchError(f"{path} does not have the columns declared for {source.name}: {error}") from None
        raise FilesError(f"{path} cannot be read as {format}: {error}") from error


def read_fields(path: str, format: str) -> tuple[Field, ...]:
    """The columns of a file, in the types the engine has for them."""
    try:
        schema = _SCHEMAS[format](path)
    except (pa.ArrowException, OSError) as error:
        raise FilesError(f"{path} cannot be read as {format}: {error}") from error
    return tuple(Field(f.name, _engine_type(f.type, f"{path}: column {f.name}")) for f in schema)


def check_format(format: str) -> None:
    if format not in _READERS:
        raise FilesError(f"there is no reader for {format} files: use one of {', '.join(_READERS)}")


def gone(path: str) -> FilesError:
    return FilesError(
        f"{path} was found earlier and is gone: files must stay until the query has read them and its batch is committed; "
        "restore it as it was, skip it (see skip in docs/sql.md, Files), or start with an empty checkpoint"
    )


def ends_whole(path: str, format: str, size_bytes: int) -> bool:
    """Whether a file ends as a finished one does; if not, somebody may be writing it still.

    The end of a parquet or Arrow file is written last, and is read here: it is an end only if it describes what is before
    it. Lines of text that are complete are all that a text can show, and what is compressed shows nothing.
    """
    if format in TEXT and compression_of(path):
        return False
    with open(path, "rb") as file:
        file.seek(max(0, size_bytes - 8))
        tail = file.read(8)
    if format not in HAS_END:
        return tail.endswith(b"\n")
    try:
        if format == "parquet":
            return tail.endswith(PARQUET_MAGIC) and pq.read_metadata(path, memory_map=True) is not None
        return (tail.endswith(ARROW_MAGIC) or tail == STREAM_END) and _ends_whole_arrow(path, size_bytes)
    except (pa.ArrowException, OSError):
        return False


def _ends_whole_arrow(path: str, size_bytes: int) -> bool:
    """Whether the footer of an Arrow file can be read, or the messages of a stream lead to its end: the bytes that end a
    stream may stand at the end of a column, too."""
    with pa.memory_map(path) as file, _open_arrow(file) as reader:
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            return True
    with pa.memory_map(path) as file:
        reached = 0
        for _ in pa.ipc.MessageReader.open_stream(file):
            reached = file.tell()
        return reached == size_bytes - len(STREAM_END)


# -- reading ---------------------------------------------------------------------------------------------------------


def _read_parquet(path: str, fields: Sequence[Field]) -> pa.Table:
    with pq.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit="us") as file:
        _require(fields, file.schema_arrow.names)
        return file.read(columns=[f.name for f in fields], use_threads=False)


def _read_arrow(path: str, fields: Sequence[Field]) -> pa.Table:
    schema = _arrow_schema(path)
    _require(fields, schema.names)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(f.name) for f in fields], use_threads=False)
    with pa.memory_map(path) as file, _open_arrow(file, options) as reader:
        return reader.read_all()


def _open_arrow(
    file: pa.MemoryMappedFile, options: pa.ipc.IpcReadOptions | None = None
) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    is_file = file.read(len(ARROW_MAGIC)) == ARROW_MAGIC
    file.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file, options=options)


def _read_csv(path: str, fields: Sequence[Field]) -> pa.Table:
    if _is_empty(path):
        return _no_rows(fields)
    names = [f.name for f in fields]

    def read(types: dict[str, pa.DataType]) -> pa.Table:
        with _open_text(path) as file:
            return pa.csv.read_csv(
                file,
                pa.csv.ReadOptions(use_threads=False),
                _csv_parsing(path),
                _csv_conversion(column_types=types, include_columns=names),
            )

    try:
        return _in_any_time_notation(read, fields)
    except KeyError:
        _require(fields, _csv_schema(path).names)
        raise


def _read_json(path: str, fields: Sequence[Field]) -> pa.Table:
    if _is_empty(path):
        return _no_rows(fields)
    if bytes_field := next((f for f in fields if pa.types.is_binary(f.type)), None):
        raise SchemaMismatchError(
            f"column {bytes_field.name} is BINARY, which JSON does not have: declare it as STRING"
        )

    def read(types: dict[str, pa.DataType]) -> pa.Table:
        with _open_text(path) as file:
            return pa.json.read_json(file, _json_blocks(path), _json_parsing(types))

    return _in_any_time_notation(read, fields)


def _json_blocks(path: str) -> pa.json.ReadOptions:
    size_bytes = JSON_BLOCK_BYTES if compression_of(path) else os.path.getsize(path)
    return pa.json.ReadOptions(use_threads=False, block_size=min(size_bytes, JSON_BLOCK_BYTES))


def _json_parsing(types: dict[str, pa.DataType]) -> pa.json.ParseOptions:
    """Dates are taken as text and cast later: the parser knows them as numbers only."""
    schema = pa.schema([(name, pa.string() if pa.types.is_date(type) else type) for name, type in types.items()])
    return pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")


def _csv_parsing(path: str) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(delimiter="\t" if has_tabs(path) else ",")


def _csv_conversion(
    column_types: dict[str, pa.DataType] | None = None, include_columns: list[str] | None = None
) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(
        column_types=column_types,
        include_columns=include_columns,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _in_any_time_notation(read: Callable[[dict[str, pa.DataType]], pa.Table], fields: Sequence[Field]) -> pa.Table:
    """Text is parsed with times in microseconds without a zone; if that fails, with other times; then its error counts."""
    types = {f.name: f.type for f in fields}
    try:
        return read(types)
    except pa.ArrowInvalid as error:
        for time in _TIMES[1:] if MICROSECONDS in types.values() else ():
            with contextlib.suppress(pa.ArrowInvalid):
                return read({name: time if type == MICROSECONDS else type for name, type in types.items()})
        raise error


def _open_text(path: str) -> pa.NativeFile:
    compression = compression_of(path)
    return pa.input_stream(path, compression=compression) if compression else pa.memory_map(path)


def _is_empty(path: str) -> bool:
    """Whether a text has no bytes, once it is decompressed."""
    if not os.path.getsize(path) or not compression_of(path):
        return not os.path.getsize(path)
    with _open_text(path) as file:
        return not file.read(1)


def _no_rows(fields: Sequence[Field]) -> pa.Table:
    return pa.schema([pa.field(f.name, f.type) for f in fields]).empty_table()


def _require(fields: Sequence[Field], names: Sequence[str]) -> None:
    for field in fields:
        if field.name not in names:
            raise SchemaMismatchError(
                f"the file has no column {field.name} ({field.type}); it has {', '.join(names) or 'none'}"
            )


def _to_microseconds(rows: pa.Table) -> pa.Table:
    """Nanoseconds are cut: no type of the engine, or of Spark, holds them."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            cut = rows.column(place).cast(pa.timestamp("us", field.type.tz), safe=False)
            rows = rows.set_column(place, field.name, cut)
    return rows


_READERS: dict[str, Callable[[str, Sequence[Field]], pa.Table]] = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "json": _read_json,
    "arrow": _read_arrow,
}


# -- schemas ---------------------------------------------------------------------------------------------------------


def _parquet_schema(path: str) -> pa.Schema:
    with pq.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit="us") as file:
        return file.schema_arrow


def _arrow_schema(path: str) -> pa.Schema:
    with pa.memory_map(path) as file, _open_arrow(file) as reader:
        return reader.schema


def _csv_schema(path: str) -> pa.Schema:
    with _open_text(path) as file, pa.csv.open_csv(file, None, _csv_parsing(path), _csv_conversion()) as reader:
        return reader.schema


def _json_schema(path: str) -> pa.Schema:
    with _open_text(path) as file:
        rows = pa.json.read_json(file, _json_blocks(path))
    return pa.schema([(name, _time_or(column)) for name, column in zip(rows.column_names, rows.columns, strict=True)])


def _time_or(column: pa.ChunkedArray) -> pa.DataType:
    """The type of a column of JSON; text that is all times is taken for times, which the parser does for some only."""
    if pa.types.is_string(column.type) and column.null_count < len(column):
        for time in _TIMES:
            with contextlib.suppress(pa.ArrowInvalid):
                return column.cast(time).type
    return column.type


_SCHEMAS: dict[str, Callable[[str], pa.Schema]] = {
    "parquet": _parquet_schema,
    "csv": _csv_schema,
    "json": _json_schema,
    "arrow": _arrow_schema,
}


def _engine_type(type: pa.DataType, where: str) -> pa.DataType:
    """The type the engine has for an Arrow type: the same, or the narrowest that holds all its values."""
    types = pa.types
    if types.is_timestamp(type):
        return MICROSECONDS
    if types.is_dictionary(type):
        return _engine_type(type.value_type, where)
    if types.is_large_string(type) or types.is_string_view(type) or types.is_null(type):
        return pa.string()
    if types.is_large_binary(type) or types.is_binary_view(type) or types.is_fixed_size_binary(type):
        return pa.binary()
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        return pa.list_(_engine_type(type.value_type, where))
    if types.is_map(type):
        return pa.map_(_engine_type(type.key_type, where), _engine_type(type.item_type, where))
    if types.is_struct(type):
        return pa.struct([pa.field(f.name, _engine_type(f.type, where)) for f in type])
    if types.is_decimal(type) and type.precision <= 38 and type.scale >= 0:
        return pa.decimal128(type.precision, type.scale)
    if types.is_float16(type):
        return pa.float32()
    if types.is_date(type):
        return pa.date32()
    if type in _UNSIGNED:
        return _UNSIGNED[type]
    if types.is_string(type) or types.is_binary(type) or (types.is_primitive(type) and not types.is_temporal(type)):
        return type
    raise SchemaMismatchError(f"{where} is {type}, which no stream can hold: declare the columns you need without it")
