"""Columns of a stream that are given in Python: names with types, in the words of SQL or of pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from anabranch.errors import SessionError, SqlError
from anabranch.plan.outward import unzoned
from anabranch.plan.query import Field
from anabranch.sql.statements import parse_statements
from anabranch.sql.syntax import CreateSource
from anabranch.sql.types import is_engine_type

Columns: TypeAlias = "Mapping[str, str | pa.DataType] | Sequence[Field | tuple[str, str | pa.DataType]]"

HINT = 'write columns={"k": "BIGINT", "ts": "TIMESTAMP"}, or a list of such pairs'


def given_fields(source: str, columns: object) -> tuple[Field, ...]:
    """The columns of a source.

    >>> [f.type for f in given_fields("trades", {"k": "BIGINT", "price": pa.float64()})]
    [DataType(int64), DataType(double)]
    """
    if isinstance(columns, str) or not isinstance(columns, Mapping | Sequence) or not columns:
        raise SessionError(f"the columns of {source} cannot be {columns!r}: {HINT}")
    pairs = columns.items() if isinstance(columns, Mapping) else columns
    return tuple(_field(source, pair) for pair in pairs)


def _field(source: str, pair: object) -> Field:
    if isinstance(pair, Field):
        name, type = pair.name, pair.type
    elif isinstance(pair, tuple | list) and len(pair) == 2:
        name, type = pair
    else:
        raise SessionError(f"the columns of {source}: {pair!r} is no name with a type: {HINT}")
    if not isinstance(name, str):
        raise SessionError(f"the columns of {source}: {name!r} is no name of a column: {HINT}")
    if isinstance(type, pa.DataType):
        if not is_engine_type(type):
            raise SessionError(f"the columns of {source}: {name} is {type}, which no stream can hold: write a type of SQL")
        return pair if isinstance(pair, Field) else Field(name, type)
    if not isinstance(type, str):
        raise SessionError(f"the columns of {source}: {name} has {type!r} for a type: {HINT}")
    return _read(source, name, type)


def _read(source: str, name: str, type: str) -> Field:
    """A column whose type is written as in SQL."""
    try:
        statements = parse_statements(f"CREATE TABLE t (c {type})")
    except SqlError as error:
        hint = f": {error.hint}" if error.hint else ""
        raise SessionError(f"the columns of {source}: {name}: {error.message}{hint}") from None
    made = statements[0]
    if len(statements) != 1 or not isinstance(made, CreateSource) or len(made.columns) != 1:
        raise SessionError(f"the columns of {source}: {name}: {type!r} is no type")
    declared = made.columns[0].type
    return Field(name, unzoned(declared), declared)
