"""Which rows of a batch count: those that have an event time, at or after the watermark and not far in the future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.errors import SchemaMismatchError, ValueTooLargeError
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Stream, Table

Rows: TypeAlias = "pa.RecordBatch | pa.Table"


@dataclass(frozen=True)
class Accepted:
    """The accepted rows of a source in one batch, and what was turned away."""

    rows: pa.RecordBatch
    seen: int
    late: int
    untimed: int
    largest_time_us: int | None
    early: int = 0


def accept(
    source: Stream | Table,
    rows: Rows,
    columns: tuple[str, ...],
    watermark_us: int,
    early_after_us: int = FOREVER_US,
) -> Accepted:
    """The rows of a source that are neither late nor early, with the named columns only.

    `largest_time_us` is over all rows that are not early, late ones too: it moves the watermark of the batches after this
    one. A row whose time is after `early_after_us` moves nothing.
    """
    batch = conform(source, rows, columns)
    if isinstance(source, Table):
        return Accepted(batch, batch.num_rows, 0, 0, None)
    times = batch.column(batch.schema.get_field_index(source.time))
    seen, untimed = batch.num_rows, times.null_count
    if untimed:
        batch = batch.filter(times.is_valid())
        times = batch.column(batch.schema.get_field_index(source.time))
    if not batch.num_rows:
        return Accepted(batch, seen, 0, untimed, None)
    times_us = times.view(pa.int64()).to_numpy()
    largest, early = int(times_us.max()), 0
    if largest > early_after_us:
        in_time = times_us <= early_after_us
        batch, times_us = batch.filter(pa.array(in_time)), times_us[in_time]
        early = int(len(in_time) - len(times_us))
        if not len(times_us):
            return Accepted(batch, seen, 0, untimed, None, early)
        largest = int(times_us.max())
    if watermark_us == BEGINNING_US or int(times_us.min()) >= watermark_us:
        return Accepted(batch, seen, 0, untimed, largest, early)
    on_time = times_us >= watermark_us
    late = int(len(on_time) - np.count_nonzero(on_time))
    return Accepted(batch.filter(pa.array(on_time)), seen, late, untimed, largest, early)


def conform(source: Stream | Table, rows: Rows, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The named columns of the rows, in one piece and in the declared types."""
    fields = [field for name in columns if (field := source.field(name)) is not None]
    assert len(fields) == len(columns), columns
    schema = pa.schema([(field.name, field.type) for field in fields])
    if columns and isinstance(rows, pa.RecordBatch) and rows.schema.equals(schema, check_metadata=True):
        return rows
    arrays = []
    for name, declared in zip(columns, fields, strict=True):
        place = rows.schema.get_field_index(name)
        if place < 0:
            raise SchemaMismatchError(
                f"rows of {source.name} have no column {name} ({declared.type}); they have {', '.join(rows.schema.names)}"
            )
        given = rows.column(place)
        try:
            column = in_one_piece(given)
        except pa.ArrowInvalid as error:  # offsets of 32 bits overflow
            raise ValueTooLargeError(
                f"column {name} of {source.name} has {given.nbytes:,} bytes in the rows of one batch and slot, and a "
                "column of strings holds 2 GiB: have smaller batches (max_files_per_trigger), or more slots"
            ) from error
        if column.type != declared.type:
            check_fields(f"column {name} of {source.name}", column.type, declared.type)
            try:
                column = column.cast(declared.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatchError(
                    f"column {name} of {source.name} is {column.type}, declared as {declared.type}: {error}"
                ) from None
        arrays.append(column)
    if not arrays:
        # A source of which nothing is needed but the number of its rows.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def in_one_piece(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def check_fields(where: str, given: pa.DataType, declared: pa.DataType) -> None:
    """Refuses structs with other fields than declared: a cast would lose them without a word."""
    if pa.types.is_struct(given) and pa.types.is_struct(declared):
        ours, theirs = [declared.field(i) for i in range(declared.num_fields)], [f.name for f in given]
        if sorted(f.name for f in ours) != sorted(theirs):
            raise SchemaMismatchError(
                f"{where} has the fields {', '.join(theirs)}, declared are {', '.join(f.name for f in ours)}"
            )
        for field in ours:
            check_fields(f"{field.name} in {where}", given.field(field.name).type, field.type)
    elif pa.types.is_list(given) and pa.types.is_list(declared):
        check_fields(where, given.value_type, declared.value_type)
    elif pa.types.is_map(given) and pa.types.is_map(declared):
        check_fields(where, given.key_type, declared.key_type)
        check_fields(where, given.item_type, declared.item_type)
