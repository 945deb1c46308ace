"""Types of PostgreSQL as ours: what a column is here, how its values come, how keys are sent to be compared with it.

A type that is not in the list is refused when a table is declared: nothing is guessed. Values that come as text (decimals,
`uuid`, enumerations, `char(n)` without the blanks at its end) are turned into their type here.

Keys that no value of the column can equal are left out before they are sent, where the server would refuse them: text with
a NUL, and what is no `uuid` in the form in which PostgreSQL writes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import DatabaseError

INSTANT = pa.timestamp("us", "UTC")

SIMPLE: dict[str, pa.DataType] = {
    "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "float4": pa.float32(), "float8": pa.float64(),
    "bool": pa.bool_(), "text": pa.string(), "varchar": pa.string(), "name": pa.string(), "bpchar": pa.string(),
    "uuid": pa.string(), "bytea": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": INSTANT,
}  # fmt: skip
"""Types of PostgreSQL by their names in its catalog."""

AS_TEXT = ("bpchar", "uuid", "name", "numeric")
"""Types whose values come as text."""

UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
HEADER = 4
"""What PostgreSQL adds to precision and scale of a `numeric` in a column's type modifier."""


@dataclass(frozen=True)
class Stored:
    """A column of a table in PostgreSQL."""

    kind: str
    """Its type in the catalog of the server; `enum` for enumerations."""
    type: pa.DataType
    """Its type here."""

    def fetched(self, column: str) -> str:
        """SQL that gives its values in a form that can be read here."""
        return f"{column}::text" if self.kind in AS_TEXT or self.kind == "enum" else column

    def compared(self, column: str) -> str:
        """SQL for what keys are compared with: the column itself, so that an index serves."""
        return f"{column}::text" if self.kind == "enum" else column


@dataclass(frozen=True)
class Keys:
    """Keys as they are sent to be compared with a column."""

    values: pa.Array
    cast: str
    """The array type of PostgreSQL that they are cast to."""
    possible: pa.Array | None = None
    """Which of them a value of the column can equal at all; None: all."""


def stored_type(where: str, row: Mapping[str, Any]) -> Stored:
    """The type of a column, as the catalog tells it.

    >>> stored_type("c", {"typname": "numeric", "typtype": "b", "atttypmod": 655366, "shown": "numeric(10,2)"}).type
    Decimal128Type(decimal128(10, 2))
    """
    name, modifier = row["typname"], row["atttypmod"]
    if row["typtype"] == "e":
        return Stored("enum", pa.string())
    if name in SIMPLE:
        return Stored(name, SIMPLE[name])
    if name == "numeric" and modifier >= HEADER:
        precision, scale = (modifier - HEADER) >> 16, (modifier - HEADER) & 0x7FF
        if precision <= 38 and scale <= precision:
            return Stored(name, pa.decimal128(precision, scale))
    raise DatabaseError(
        f"{where} is {row['shown']}, which is no type here: declare a view of the table that leaves it out, or casts it to "
        "one of smallint, integer, bigint, real, double precision, numeric(p,s) of up to 38 digits, boolean, text, date, "
        "timestamp, bytea"
    )


def key_array(stored: Stored, given: pa.ChunkedArray | pa.Array) -> Keys:
    """Keys of a batch as they are sent."""
    keys = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    if isinstance(keys, pa.ChunkedArray):
        keys = pa.concat_arrays(keys.chunks) if keys.num_chunks else pa.array([], keys.type)
    type = keys.type
    if pa.types.is_integer(type):
        return Keys(keys.cast(pa.int64()), "bigint[]")
    if pa.types.is_decimal(type):
        return Keys(keys.cast(pa.string()), "text[]::numeric[]")
    if pa.types.is_boolean(type):
        return Keys(keys, "boolean[]")
    if pa.types.is_date(type):
        return Keys(keys.cast(pa.string()), "text[]::date[]")
    if pa.types.is_timestamp(type):
        texts = pc.strftime(keys.cast(pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
        return Keys(texts, f"text[]::{'timestamptz' if stored.kind == 'timestamptz' else 'timestamp'}[]")
    if pa.types.is_binary(type):
        return Keys(keys, "bytea[]")
    if stored.kind == "uuid":
        return Keys(keys, "text[]::uuid[]", pc.match_substring_regex(keys, UUID))
    return Keys(keys, "text[]::bpchar[]" if stored.kind == "bpchar" else "text[]", _without_nul(keys))


def _without_nul(keys: pa.Array) -> pa.Array | None:
    found = pc.invert(pc.match_substring(keys.cast(pa.binary()), b"\0"))
    return None if pc.all(found).as_py() is not False else found


def fetched(rows: pa.Table, columns: tuple[tuple[str, pa.DataType], ...]) -> pa.Table:
    """Rows that came, in the types of the columns."""
    arrays = []
    for place, (_, type) in enumerate(columns):
        column = rows.column(place)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        arrays.append(column.cast(type) if column.type != type else column)
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])
