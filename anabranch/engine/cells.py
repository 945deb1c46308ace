"""Which cells of a grid rows belong to, computed on Arrow columns exactly as Spark computes it on its own.

The routing value of a term (`routing_words`) is 64 bits for every type up to 64 bits wide, the bytes for strings and
binaries, and the integral part modulo a prime for decimals. `anabranch.spark.cells` writes the same as Spark expressions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.casts import cast
from anabranch.engine.expressions import evaluate
from anabranch.engine.kernels.cells import coordinates, route_bytes, route_words
from anabranch.engine.log import starts_of
from anabranch.plan.expression import Call, Column, Literal
from anabranch.plan.grid import Grid
from anabranch.plan.query import Query, Stream, Table

DECIMAL_PRIME = 1_000_000_007
HASH_OF_NULL = np.uint64(42)
"""What Spark's `xxhash64` makes of NULL: its seed."""
Fetch = Callable[[Column], pa.Array]


def base_cells(grid: Grid, alias: str, fetch: Fetch, times: pa.Array, rows: int) -> npt.NDArray[np.int64]:
    """For each row of an input the cell of its own coordinates; it goes to that plus each of `grid.offsets(alias)`."""
    cells = np.zeros(rows, np.int64)
    for place in grid.own(alias):
        cells += _coordinates(grid, place, alias, fetch, times, rows) * grid.stride(place)
    return cells


def member_mask(grid: Grid, cell: int, alias: str, fetch: Fetch, times: pa.Array, rows: int) -> npt.NDArray[np.bool_]:
    """Which rows belong to a cell as rows of an input."""
    mask = np.full(rows, grid.has(cell), np.bool_)
    for place in grid.own(alias):
        mask &= _coordinates(grid, place, alias, fetch, times, rows) == grid.coordinate(cell, place)
    return mask


def source_mask(grid: Grid, cell: int, query: Query, source: Stream | Table, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of a source belong to a cell for the sake of any input."""
    times = pa.array(starts_of(source, rows))
    mask = np.zeros(rows.num_rows, np.bool_)
    for i in query.inputs:
        if i.source == source:
            mask |= member_mask(grid, cell, i.alias, lambda c: _one(rows.column(c.name)), times, rows.num_rows)
    return mask


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def _coordinates(grid: Grid, place: int, alias: str, fetch: Fetch, times: pa.Array, rows: int) -> npt.NDArray[np.int64]:
    term = grid.dimensions[place].term_of(alias)
    column = times if term is None else evaluate(term, fetch, rows)
    hashes = np.empty(rows, np.uint64)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        if rows:
            _, offsets, data = column.buffers()
            window = np.frombuffer(offsets, np.int32)[column.offset : column.offset + rows + 1]
            route_bytes(window, data.address if data is not None else 0, hashes)
    else:
        route_words(routing_words(column), hashes)
    if column.null_count:
        hashes[np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)] = HASH_OF_NULL
    out = np.empty(rows, np.int64)
    coordinates(hashes, grid.shares[place], out)
    return out


def routing_words(column: pa.Array) -> npt.NDArray[np.uint64]:
    """The values of a column as the 64-bit words that are hashed; the word of NULL is any."""
    type = column.type
    if column.null_count:
        column = column.fill_null(pa.scalar(False) if pa.types.is_boolean(type) else _zero(type))
    if pa.types.is_floating(type):
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        values[np.isnan(values)] = np.nan
        return np.ascontiguousarray(values).view(np.uint64)
    if pa.types.is_boolean(type):
        return np.asarray(column.cast(pa.uint8()).to_numpy(zero_copy_only=False), np.uint64)
    if pa.types.is_decimal(type):
        return _decimal_words(column)
    integers = column.view({8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type.bit_width])
    return np.asarray(integers.to_numpy(zero_copy_only=False), np.int64).view(np.uint64)


def _decimal_words(column: pa.Array) -> npt.NDArray[np.uint64]:
    whole = pa.decimal128(38, 0)
    value = Column(whole, "", "")
    remainder = Call(whole, "mod", (value, Literal(whole, DECIMAL_PRIME)))
    rest = evaluate(remainder, lambda _: cast(column, whole), len(column))
    return np.asarray(rest.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64).view(np.uint64)


def _zero(type: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(type):
        return pa.scalar(0, pa.decimal128(1, 0)).cast(type)
    width = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    if pa.types.is_temporal(type):
        return pa.array([0], width[type.bit_width]).view(type)[0]
    return pa.scalar(0, type)
