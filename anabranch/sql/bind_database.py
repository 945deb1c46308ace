"""A block in the words of a database becomes a subquery whose groups the database makes.

Streams with windows, and stored tables, become inputs of the block, under the names that the text reads them by; a stream
that stands there with two windows is two relations. What the text may name, and the types of what it gives, is asked of the
database itself. What it says against the text is told at its place in the whole query.

Example: `SELECT plug, median(load) AS m FROM plugs [RANGE 5 MINUTES] GROUP BY plug` is handed over as
`SELECT plug, median(load) AS m FROM plugs GROUP BY plug`. DuckDB says that `m` is a double when `plugs` has no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import pyarrow as pa

from anabranch.errors import (
    DuplicateNameError,
    MissingWindowError,
    TypeMismatchError,
    UnknownColumnError,
    UnknownStreamError,
    UnsupportedSqlError,
    did_you_mean,
)
from anabranch.plan.expression import Column, Expr, ResultTime
from anabranch.plan.outward import unzoned
from anabranch.plan.query import (
    FOREVER_US,
    GROUP,
    INSTANT,
    SECOND_US,
    STORED,
    Derived,
    Field,
    Grouping,
    Input,
    Query,
    Stream,
    Table,
)
from anabranch.plan.statement import Embedded, Statement, StatementError, Words
from anabranch.sql.catalog import Catalog
from anabranch.sql.syntax import DatabaseText, Name
from anabranch.sql.text import SqlText
from anabranch.sql.types import TIMESTAMP, is_engine_type, spell

MOST_INSTANTS = 100_000
"""A window must not be longer than so many slides: the database looks at a row at each of them."""


@dataclass
class Handed:
    """The text that a database gets, and where each piece of it stands in the whole."""

    sql: str = ""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Where pieces begin, here and there; what was put in stands at the piece that it takes the place of."""

    def add(self, piece: str, at: int) -> None:
        self.pieces.append((len(self.sql), at))
        self.sql += piece

    def at(self, place: int) -> int:
        """Where a place of this text stands in the whole."""
        here, there = max((p for p in self.pieces if p[0] <= place), default=(0, 0))
        return there + place - here


def bind_database(name: str, block: DatabaseText, catalog: Catalog, text: SqlText) -> Derived:
    """A block of a database as a source: its event time is the instant that rows are for."""
    try:
        database = catalog.databases(block.database.text)
    except StatementError as error:
        raise text.error(UnsupportedSqlError, error.message, block.database.at, error.hint) from None
    try:
        return _Binder(name, block, catalog, text, database).bind()
    finally:
        database.close()


class _Binder:
    def __init__(self, name: str, block: DatabaseText, catalog: Catalog, text: SqlText, database: Embedded) -> None:
        self.name, self.block, self.catalog, self.text, self.database = name, block, catalog, text, database
        self.inputs: dict[str, Input] = {}
        self.handed = Handed()

    def bind(self) -> Derived:
        self._take_windows()
        try:
            words = self.database.words(self.handed.sql)
            self._take_tables(words)
            every = {i.alias: tuple(f.name for f in i.source.fields) for i in self.inputs.values()}
            schema = self._described(every)
            columns = self._columns(words, every, schema)
        except StatementError as error:
            at = self.block.start if error.at is None else self.handed.at(error.at)
            raise self.text.error(UnsupportedSqlError, error.message, at, error.hint) from None
        self._check_types(schema)
        return self._derived(schema, columns)

    # -- what it reads -----------------------------------------------------------------------------------------------

    def _take_windows(self) -> None:
        """Takes the windows out of the text; what had one becomes a relation."""
        sql, place = self.text.sql, self.block.start
        for each in self.block.streams:
            source = self.catalog.source(each.source.text)
            if source is None:
                self._unknown(each.source)
            if isinstance(source, Table):
                raise self.text.error(UnsupportedSqlError, f"a window on the stored table {source.name} is not supported",
                                      each.window.at, "leave it out: its rows are valid for ever")  # fmt: skip
            relation = self._relation(source, Input("", source, each.window.window), each.source)
            shown = each.alias or (None if relation == each.source.text else each.source.text)
            self.handed.add(sql[place : each.start], place)
            is_named = each.alias is None and _names_next(sql[each.end : self.block.end])
            renamed = "" if shown is None or is_named else f" AS {_quoted(shown)}"
            self.handed.add(_quoted(relation) + renamed, each.start)
            place = each.end
        self.handed.add(sql[place : self.block.end].rstrip(), place)

    def _relation(self, source: Stream | Table, read: Input, name: Name) -> str:
        """The name of the relation that has the rows of a source in a window: one that is there, if there is one."""
        number, relation = 1, name.text
        while (known := self.inputs.get(relation.lower())) is not None:
            if (known.source, known.window) == (source, read.window):
                return known.alias
            number += 1
            relation = f"{name.text}_{number}"
        if not relation.isidentifier():
            raise self.text.error(UnsupportedSqlError, f"{relation!r} cannot name an input", name.at,
                                  "streams that a database reads are called by plain words")  # fmt: skip
        self.inputs[relation.lower()] = Input(relation, source, read.window)
        return relation

    def _take_tables(self, words: Words) -> None:
        """What the text names without a window is a stored table."""
        for each in words.tables:
            if each.text.lower() in self.inputs:
                continue
            name = Name(each.text, self.handed.at(each.at))
            source = self.catalog.source(each.text)
            if source is None:
                self._unknown(name)
            if isinstance(source, Stream):
                raise self.text.error(MissingWindowError, f"the stream {source.name} has no window", name.at,
                                      f"write {source.name} [RANGE 5 MINUTES]")  # fmt: skip
            location = self.catalog.location(source.name)
            if location is not None and location.refresh_us:
                message = f"{source.name} in a block of a database is not supported: it is read again while queries run"
                raise self.text.error(UnsupportedSqlError, message, name.at, "join it outside of the block")
            self._relation(source, Input("", source, STORED), name)
        if not any(isinstance(i.source, Stream) for i in self.inputs.values()):
            raise self.text.error(MissingWindowError, "a block of a database reads at least one stream with a window",
                                  self.block.start, "write FROM stream [RANGE 5 MINUTES]")  # fmt: skip

    def _unknown(self, name: Name) -> NoReturn:
        hint = did_you_mean(name.text, (s.name for s in self.catalog))
        raise self.text.error(UnknownStreamError, f"there is no stream or table {name.text}", name.at,
                              hint or "a block of a database reads streams with windows, and stored tables")  # fmt: skip

    # -- what it gives -----------------------------------------------------------------------------------------------

    def _described(self, columns: Mapping[str, Sequence[str]]) -> pa.Schema:
        relations = {
            i.alias: pa.schema([pa.field(f.name, f.type) for f in i.source.fields if f.name in columns[i.alias]])
            for i in self.inputs.values()
        }
        return self.database.describe(self.handed.sql, relations)

    def _columns(self, words: Words, every: Mapping[str, Sequence[str]], schema: pa.Schema) -> Mapping[str, Sequence[str]]:
        """The columns that the text reads of each relation: those that it names, if it means the same without the others."""
        if words.columns is None:
            return every
        named = {alias: tuple(n for n in names if n.lower() in words.columns) for alias, names in every.items()}
        if self.block.partition is not None:
            wanted = self.block.partition.text.lower()
            named = {a: tuple(n for n in every[a] if n in own or n.lower() == wanted) for a, own in named.items()}
        some = {alias: own or every[alias][:1] for alias, own in named.items()}
        try:
            return some if self._described(some) == schema else every
        except StatementError:
            return every

    def _check_types(self, schema: pa.Schema) -> None:
        seen: set[str] = {INSTANT}
        for column in schema:
            if column.name.lower() in seen:
                raise self.text.error(DuplicateNameError, f"two columns of the block are called {column.name}",
                                      self.block.start, "name one of them: … AS other")  # fmt: skip
            seen.add(column.name.lower())
            if not is_engine_type(unzoned(column.type)):
                message = f"{column.name} is {spell(column.type)}, which is not supported"
                hint = f"cast it: CAST({column.name} AS DOUBLE), or AS VARCHAR"
                raise self.text.error(TypeMismatchError, message, self.block.start, hint)

    def _derived(self, schema: pa.Schema, columns: Mapping[str, Sequence[str]]) -> Derived:
        block, inputs = self.block, tuple(self.inputs.values())
        keys = self._keys()
        read = [Column(f.type, i.alias, f.name) for i in inputs for f in i.source.fields if f.name in columns[i.alias]]
        select = [*((f"key{n}", key) for n, key in enumerate(keys[:1])), *((f"arg{n}", c) for n, c in enumerate(read))]
        types = tuple(unzoned(column.type) for column in schema)
        given: list[tuple[str, Expr]] = []
        for place, (column, type) in enumerate(zip(schema, types, strict=True)):
            is_key = bool(keys) and column.name.lower() == keys[0].name.lower() and type == keys[0].type
            given.append((column.name, Column(type, GROUP, "key0" if is_key else f"out{place}")))
        given.append((INSTANT, ResultTime(TIMESTAMP)))
        slide_us = block.slide_us if block.slide_us is not None else SECOND_US
        longest = max((i.window.length_us for i in inputs if i.window.length_us != FOREVER_US), default=0)
        if longest > MOST_INSTANTS * slide_us:
            message = f"a row that counts at more than {MOST_INSTANTS:,} instants is not supported"
            hint = "write a longer SLIDE, or a shorter window"
            raise self.text.error(UnsupportedSqlError, message, block.slide_at or block.start, hint)
        statement = Statement(block.database.text.lower(), self.handed.sql.strip(), types)
        grouping = Grouping(len(keys[:1]), (), tuple(given), None, slide_us, statement)
        sql = self.text.sql[block.start : block.end].strip()
        query = Query(self.name, inputs, (), (), tuple(select), sql, grouping)
        return Derived(self.name, tuple(Field(f.name, f.type) for f in query.output_schema), INSTANT, query=query)

    def _keys(self) -> list[Column]:
        """The column of PARTITION BY, as each input has it; that of the first stream stands first."""
        wanted, found = self.block.partition, list[Column]()
        if wanted is None:
            return found
        for i in self.inputs.values():
            column = next((f for f in i.source.fields if f.name.lower() == wanted.text.lower()), None)
            if column is None and isinstance(i.source, Stream):
                hint = did_you_mean(wanted.text, (f.name for f in i.source.fields))
                raise self.text.error(UnknownColumnError, f"{i.source.name} has no column {wanted.text}", wanted.at,
                                      hint or "PARTITION BY names a column of every stream of the block")  # fmt: skip
            if column is not None and found and column.type != found[0].type:
                raise self.text.error(TypeMismatchError, f"{wanted.text} is {spell(found[0].type)} in one input and "
                                      f"{spell(column.type)} in {i.source.name}", wanted.at,
                                      "rows are spread by equal values of one type")  # fmt: skip
            if column is not None:
                found.append(Column(column.type, i.alias, column.name))
        return sorted(found, key=lambda c: not isinstance(self.inputs[c.alias.lower()].source, Stream))


def _quoted(name: str) -> str:
    """
    >>> _quoted('a"b')
    '"a""b"'
    """
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _names_next(rest: str) -> bool:
    """Whether a text goes on with a name for what stands before it.

    >>> _names_next(" AS p JOIN x"), _names_next(" p"), _names_next(", x"), _names_next(" GROUP BY y")
    (True, True, False, False)
    """
    word = rest.lstrip()[:1] and rest.split()[0].rstrip(",)").upper()
    return bool(word) and (word[0].isalpha() or word[0] in '_"') and word not in CLAUSES


CLAUSES = frozenset({
    "ANTI", "ASOF", "CROSS", "EXCEPT", "FULL", "GROUP", "HAVING", "INNER", "INTERSECT", "JOIN", "LEFT", "LIMIT", "NATURAL",
    "OFFSET", "ON", "ORDER", "OUTER", "PIVOT", "POSITIONAL", "QUALIFY", "RIGHT", "SAMPLE", "SELECT", "SEMI", "TABLESAMPLE",
    "UNION", "UNPIVOT", "USING", "WHERE", "WINDOW",
})  # fmt: skip
"""Words that begin another clause of the database's text."""
