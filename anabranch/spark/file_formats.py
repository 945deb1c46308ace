"""File formats: the rows of one file as Arrow columns, and the columns a file has. (`anabranch.spark.file_rows` has them in
the declared types, and tells which are bad.)

Only the columns that are asked for are decoded. Local files are memory-mapped; an uncompressed Arrow file is not copied
at all. Where formats leave room we do what Spark does: a CSV file has a header, an empty field is NULL and a quoted one is
not; a key that a JSON object lacks is NULL. Instants are kept to the microsecond, with their zone or as UTC without one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from anabranch.engine.accept import in_one_piece
from anabranch.errors import FilesError, SchemaMismatchError, known_names
from anabranch.plan.formats import TEXT, compression_of, has_tabs
from anabranch.plan.query import Field

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




def read_fields(path: str, format: str) -> tuple[Field, ...]:
    """The columns of a file, in the types the engine has for them."""
    try:
        schema = _SCHEMAS[format](path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, format, error) from error
    return tuple(Field(f.name, _engine_type(f.type, f"{path}: column {f.name}")) for f in schema)


def check_format(format: str) -> None:
    if format not in READERS:
        raise FilesError(f"there is no reader for {format} files; {known_names(str(format), READERS)}")


def unreadable(path: str, format: str, error: Exception) -> FilesError:
    """Told in one line, however many the library took."""
    return FilesError(f"{path} cannot be read as {format}: {' '.join(str(error).split())}")


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
        require(fields, file.schema_arrow.names)
        return file.read(columns=[f.name for f in fields], use_threads=False)


def _read_arrow(path: str, fields: Sequence[Field]) -> pa.Table:
    schema = _arrow_schema(path)
    require(fields, schema.names)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(f.name) for f in fields], use_threads=False)
    with pa.memory_map(path) as file, _open_arrow(file, options) as reader:
        rows = reader.read_all()
    rows.validate(full=True)  # its bytes are taken as they are: an offset that is damaged would lead anywhere in memory
    return rows


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
        require(fields, _csv_schema(path).names)
        raise


def _read_json(path: str, fields: Sequence[Field]) -> pa.Table:
    content = read_text(path)
    if not content.size:
        return _no_rows(fields)
    require_no_binary(fields)
    if holds(content, b"\nnull") or content[: len(b"null")].to_pybytes() == b"null":
        raise pa.ArrowInvalid("a line is null, not an object")  # the parser crashes over it
    return _in_any_time_notation(lambda types: parse_json(content, json_schema(types.items())), fields)


def require_no_binary(fields: Sequence[Field]) -> None:
    """Refuses columns of JSON that are bytes."""
    if bytes_field := next((f for f in fields if pa.types.is_binary(f.type)), None):
        raise SchemaMismatchError(
            f"column {bytes_field.name} is BINARY, which JSON does not have: declare it as STRING"
        )


def json_schema(columns: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """As what columns of JSON are parsed. Dates are taken as text and cast later: the parser knows them as numbers only."""
    return pa.schema([(name, pa.string() if pa.types.is_date(type) else type) for name, type in columns])


def parse_json(text: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
    """The columns of a schema, or those that there are, from objects of JSON."""
    blocks = pa.json.ReadOptions(use_threads=False, block_size=min(text.size, JSON_BLOCK_BYTES))
    if schema is None:
        return pa.json.read_json(pa.BufferReader(text), blocks)
    parsing = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pa.json.read_json(pa.BufferReader(text), blocks, parsing).select(schema.names)


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


def read_text(path: str) -> pa.Buffer:
    """The content of a text, decompressed."""
    if not os.path.getsize(path):
        return pa.py_buffer(b"")
    with _open_text(path) as file:
        return file.read_buffer()


def holds(text: pa.Buffer, part: bytes) -> bool:
    """Whether a text holds some bytes."""
    return bool(pc.find_substring(as_value(text), part)[0].as_py() >= 0)


def as_value(text: pa.Buffer) -> pa.LargeBinaryArray:
    """A text as one value of an array."""
    ends = pa.array([0, text.size], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, text or pa.py_buffer(b"\n")])


def _is_empty(path: str) -> bool:
    """Whether a text has no bytes, once it is decompressed."""
    if not os.path.getsize(path) or not compression_of(path):
        return not os.path.getsize(path)
    with _open_text(path) as file:
        return not file.read(1)


def _no_rows(fields: Sequence[Field]) -> pa.Table:
    return pa.schema([pa.field(f.name, f.type) for f in fields]).empty_table()


def require(fields: Sequence[Field], names: Sequence[str]) -> None:
    for field in fields:
        if field.name not in names:
            raise SchemaMismatchError(
                f"the file has no column {field.name} ({field.type}); it has {', '.join(names) or 'none'}"
            )


def to_microseconds(values: pa.Array) -> pa.Array:
    """Nanoseconds are cut: no type of the engine, or of Spark, holds them."""
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values


def in_any_notation(read: Callable[[pa.DataType], pa.Array]) -> pa.Array:
    """Times, which `read` reads in one notation."""
    for time in _TIMES:
        try:
            return to_microseconds(read(time)).cast(MICROSECONDS)
        except pa.ArrowInvalid as error:
            failed = error
    raise failed


def header_names(path: str, header: pa.Buffer) -> list[str]:
    """The columns of a CSV file, by its first line."""
    reading = pa.csv.ReadOptions(use_threads=False, block_size=header.size)
    return list(pa.csv.read_csv(pa.BufferReader(header), reading, _csv_parsing(path)).schema.names)


def read_cells(path: str, lines: pa.Buffer, names: Sequence[str]) -> pa.Table:
    """The fields of lines of a CSV file, of which the first is its header, as bytes. An empty field is NULL."""
    reading = pa.csv.ReadOptions(use_threads=False, block_size=lines.size)
    conversion = _csv_conversion(column_types=dict.fromkeys(names, pa.binary()))
    return pa.csv.read_csv(pa.BufferReader(lines), reading, _csv_parsing(path), conversion)


def cells_to(type: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """What makes values of a type of the fields of a CSV file, all of them or none: its parser does, over one column."""
    if pa.types.is_binary(type):
        return lambda cells: cells
    if pa.types.is_string(type):
        return lambda cells: cells.cast(type)

    def parsed(text: pa.Buffer, type: pa.DataType) -> pa.Array:
        rows = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(use_threads=False, block_size=text.size, column_names=[""]),
            pa.csv.ParseOptions(ignore_empty_lines=False),
            _csv_conversion(column_types={"": type}),
        )
        return in_one_piece(rows.column(0))

    def convert(cells: pa.Array) -> pa.Array:
        if not len(cells):
            return pa.array([], type)
        text = pa.BufferOutputStream()
        pa.csv.write_csv(pa.table({"": cells}), text, pa.csv.WriteOptions(include_header=False, quoting_style="all_valid"))
        lines = text.getvalue()
        if type == MICROSECONDS:
            return in_any_notation(lambda time: parsed(lines, time))
        return parsed(lines, type)

    return convert


READERS: dict[str, Callable[[str, Sequence[Field]], pa.Table]] = {
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
    rows = parse_json(read_text(path), None)
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
