"""What the parser hands to the binder: statements as frozen values, with offsets into the text.

Inside of them, expressions are sqlglot's nodes plus the three below. Nothing here is typed or resolved yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from sqlglot import exp

from anabranch.plan.on_error import FAIL, OnError
from anabranch.plan.overload import Overload
from anabranch.plan.query import AHEAD_US, CURRENT, Window


class ArrowType(exp.Expression):
    """The type in a cast; `this` is the Arrow type itself."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class TypedLiteral(exp.Expression):
    """`DATE '…'` and `TIMESTAMP '…'`: `this` is the text, `to` an `ArrowType`."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "to": True}


class Length(exp.Expression):
    """`INTERVAL …`: `this` is the number of microseconds."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True}


class AggregateCall(exp.Expression):
    """`COUNT(*)`, `SUM(x)`, `COUNT(DISTINCT x)`: `this` is the name, `expressions` the operand, if it has one."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expressions": False, "distinct": False}


def offset_of(node: exp.Expr) -> int:
    """Where an expression begins: its own place, or that of the first thing in it that has one."""
    for below in node.walk(bfs=False):
        start = below.meta.get("start")
        if isinstance(start, int):
            return start
    return 0


@dataclass(frozen=True)
class Name:
    """An identifier as the user spelled it."""

    text: str
    at: int
    quoted: bool = False


@dataclass(frozen=True)
class WindowClause:
    """`[RANGE d]`, `[NOW]`, `[UNBOUNDED]`, `WINDOW d`, each with FRESHNESS or without."""

    window: Window
    at: int
    freshness_us: int | None = None
    freshness_at: int = 0


@dataclass(frozen=True)
class WindowedName:
    """A stream with a window in the text of a database: it takes the place from `start` to `end`."""

    source: Name
    window: WindowClause
    start: int
    end: int
    alias: str | None
    """As the text names it ahead of the window; None: behind it, or not at all."""


@dataclass(frozen=True)
class DatabaseText:
    """DATABASE name (text SLIDE d PARTITION BY column): from `start` to `end` stands what the database reads."""

    database: Name
    start: int
    end: int
    streams: tuple[WindowedName, ...]
    slide_us: int | None
    slide_at: int
    partition: Name | None


@dataclass(frozen=True)
class PlaceHint:
    """`/*+ PLACE(alias, place) */`: where an input of FROM is to be computed, or looked up; `/*+ PLACE(place) */`: where the
    SELECT itself is."""

    alias: Name | None
    place: Name


@dataclass(frozen=True)
class FromItem:
    """One source in FROM, with the condition of the JOIN that brought it."""

    source: Name
    alias: Name
    window: WindowClause | None
    on: exp.Expr | None = None
    select: Select | None = None
    """The subquery, if it is one; `source` is then its alias."""
    text: DatabaseText | None = None
    """The same for a block in the words of a database."""


@dataclass(frozen=True)
class SelectItem:
    """One entry of the select list; `expr` is None for `*` and `a.*`."""

    at: int
    expr: exp.Expr | None
    star_of: Name | None = None
    alias: Name | None = None


@dataclass(frozen=True)
class Select:
    """SELECT … FROM … WHERE … GROUP BY … HAVING … WINDOW … SLIDE; `sql` is its own piece of the text."""

    items: tuple[SelectItem, ...]
    inputs: tuple[FromItem, ...]
    where: exp.Expr | None
    window: WindowClause | None
    sql: str
    group_by: tuple[exp.Expr, ...] = ()
    having: exp.Expr | None = None
    slide_us: int | None = None
    slide_at: int = 0
    places: tuple[PlaceHint, ...] = ()


@dataclass(frozen=True)
class ColumnDef:
    """A column in CREATE STREAM or CREATE TABLE."""

    name: Name
    type: pa.DataType
    """As it is declared (`anabranch.plan.outward`)."""


@dataclass(frozen=True)
class CreateSource:
    """CREATE STREAM (`is_stream`) or CREATE TABLE."""

    is_stream: bool
    name: Name
    columns: tuple[ColumnDef, ...]
    time: Name | None
    lateness_us: int
    path: str | None
    format: str | None
    """As FORMAT says, else by the ending of the path; None without a path."""
    refresh_us: int = 0
    ahead_us: int | None = AHEAD_US
    idle_us: int | None = None
    on_error: OnError = FAIL
    path_at: int = 0
    database: Name | None = None
    """The database that a table is in; `path` is the name of the table there then, and it has no columns here."""
    reading: str = CURRENT


@dataclass(frozen=True)
class CreateQuery:
    """CREATE QUERY, or a bare SELECT (then without a name)."""

    name: Name | None
    plan: str | None
    select: Select
    overload: Overload | None = None


Statement = CreateSource | CreateQuery
