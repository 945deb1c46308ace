"""Types of PostgreSQL as ours: what a column is here, how its values come, how keys are sent to be compared with it.

A type that is not in the list is refused when a table is declared: nothing is guessed. Values that come as text (decimals,
`uuid`, enumerations, `char(n)` without the blanks at its end) are turned into their type here.

Dates and times come and go as numbers, which no setting of a session reads in its own way. `infinity` and `-infinity` are
the ends of the range that dates and times have here, so that they compare as they do there.

Keys that no value of the column can equal are left out before they are sent, where the server would refuse them: text with
a NUL, dates and times that it does not have, and what is no `uuid` in the form in which PostgreSQL writes one.
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
DAY_US = 86_400_000_000
DAYS, US = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
"""The ends of the range of dates and times: infinities there."""

FIRST_DAY, LAST_DAY = -2_440_588, 2_145_042_905
"""The first and the last date that PostgreSQL has, in days since 1970."""

FIRST_US = FIRST_DAY * DAY_US
"""The first time that it has; the last is later than any here."""

LAST_TIME = "294247-01-10 04:00:54.775806"

EPOCH_DAYS, EPOCH_US = 10_957, 10_957 * DAY_US
"""From 1970 to 2000, where PostgreSQL begins to count. What is added to it when it comes wraps its infinities."""

HEADER = 4
"""What PostgreSQL adds to precision and scale of a `numeric` in a column's type modifier."""


class OddValueError(ValueError):
    """A value of a column that has no form here."""


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

    def compared(self, column: str, as_bytes: bool = False) -> str:
        """SQL for what keys are compared with: the column itself, so that an index serves, unless its text is to be compared
        by the bytes that it has here."""
        if as_bytes and self.is_text:
            return f"convert_to({column}::text, 'UTF8')"
        return f"{column}::text" if self.kind == "enum" else column

    def condition(self, column: str, keys: Keys, key: str, as_bytes: bool = False) -> str:
        """SQL for whether a column equals a key. Text that only the rules of the column take for equal does not: two keys
        would both find the row, which here is that of one."""
        found = f"{self.compared(column, as_bytes)} = {keys.meant.format(key)}"
        return f'{found} AND {column}::text = {key} COLLATE "C"' if self.is_text and not as_bytes else found

    @property
    def is_text(self) -> bool:
        """Whether keys are sent as text that may have any letters."""
        return self.type == pa.string() and self.kind != "uuid"


@dataclass(frozen=True)
class Keys:
    """Keys as they are sent to be compared with a column."""

    values: pa.Array
    cast: str
    """The array type of PostgreSQL that they are cast to."""
    possible: pa.Array | None = None
    """Which of them a value of the column can equal at all; None: all."""
    meant: str = "{0}"
    """SQL for the value that is meant by one of the array."""


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


DATE = (
    f"CASE {{0}} WHEN {DAYS[1]} THEN date 'infinity' WHEN {DAYS[0]} THEN date '-infinity' "
    "ELSE date '1970-01-01' + {0}::int END"
)
TIME = (
    f"CASE {{0}} WHEN {US[1]} THEN timestamp 'infinity' WHEN '{US[0]}'::bigint THEN timestamp '-infinity' "
    f"ELSE timestamp '1970-01-01' + ({{0}} / {DAY_US})::int * interval '1 day' "
    f"+ ({{0}} % {DAY_US}) * interval '1 microsecond' END"
)
"""A date, and a time, by the days and microseconds since 1970: an interval of less than a day is exact."""


def key_array(stored: Stored, given: pa.ChunkedArray | pa.Array, as_bytes: bool = False) -> Keys:
    """Keys of a batch as they are sent: text as its bytes, if the database lacks letters of it."""
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
        days = keys.view(pa.int32())
        return Keys(days.cast(pa.int64()), "bigint[]", _within(days, DAYS, FIRST_DAY, LAST_DAY), DATE)
    if pa.types.is_timestamp(type):
        us = keys.cast(pa.timestamp("us")).view(pa.int64())
        meant = f"({TIME} AT TIME ZONE 'UTC')" if stored.kind == "timestamptz" else TIME
        return Keys(us, "bigint[]", _within(us, US, FIRST_US, US[1]), meant)
    if pa.types.is_binary(type):
        return Keys(keys, "bytea[]")
    if stored.kind == "uuid":
        return Keys(keys, "text[]::uuid[]", pc.match_substring_regex(keys, UUID))
    if as_bytes:
        return Keys(keys.cast(pa.binary()), "bytea[]", _without_nul(keys))
    return Keys(keys, "text[]", _without_nul(keys), "{0}::bpchar" if stored.kind == "bpchar" else "{0}")


def _within(keys: pa.Array, ends: tuple[int, int], first: int, last: int) -> pa.Array | None:
    """Which dates or times a database has: those in its range, and infinities."""
    there = pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last))
    found = pc.or_(there, pc.or_(pc.equal(keys, ends[0]), pc.equal(keys, ends[1])))
    return None if pc.all(found).as_py() is not False else found


def _without_nul(keys: pa.Array) -> pa.Array | None:
    found = pc.invert(pc.match_substring(keys.cast(pa.binary()), b"\0"))
    return None if pc.all(found).as_py() is not False else found


def fetched(rows: pa.Table, columns: tuple[tuple[str, pa.DataType], ...]) -> pa.Table:
    """Rows that came, in the types of the columns."""
    arrays = []
    for place, (name, type) in enumerate(columns):
        column = rows.column(place)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if pa.types.is_timestamp(column.type) and column.type.unit == "us":
            column = _with_ends(name, column, pa.int64(), US, EPOCH_US, FIRST_US)
        elif pa.types.is_date32(column.type):
            column = _with_ends(name, column, pa.int32(), DAYS, EPOCH_DAYS, FIRST_DAY)
        elif pa.types.is_decimal(type) and pa.types.is_string(column.type) and pc.any(pc.equal(column, "NaN")).as_py():
            raise OddValueError(f"column {name} has a NaN, which no decimal is here: declare a view that leaves it out")
        arrays.append(column.cast(type) if column.type != type else column)
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])


def _with_ends(
    name: str, column: pa.ChunkedArray, number: pa.DataType, ends: tuple[int, int], epoch: int, first: int
) -> pa.ChunkedArray:
    """Dates or times that came, with infinities as the ends of their range. What is later than the first of these came with
    the `epoch` added, so it has wrapped, and is earlier than anything that a database has."""
    numbers = pa.chunked_array([chunk.view(number) for chunk in column.chunks], number)
    least_and_most = pc.min_max(numbers).as_py()
    if least_and_most["min"] is None or (least_and_most["min"] >= first and least_and_most["max"] < ends[1]):
        return column
    is_last = pc.equal(numbers, pa.scalar(ends[0] + epoch - 1, number))  # +∞ is the largest number there
    is_first = pc.equal(numbers, pa.scalar(ends[0] + epoch, number))
    is_odd = pc.or_(pc.and_(pc.less(numbers, first), pc.invert(pc.or_(is_last, is_first))), pc.equal(numbers, ends[1]))
    if pc.any(is_odd).as_py():
        raise OddValueError(f"column {name} has a time that is none here: it is later than {LAST_TIME}")
    numbers = pc.if_else(is_last, pa.scalar(ends[1], number), pc.if_else(is_first, pa.scalar(ends[0], number), numbers))
    return pa.chunked_array([chunk.view(column.type) for chunk in numbers.chunks], column.type)
