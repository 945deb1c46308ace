"""A text of several statements: the catalog it creates and the queries over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from anabranch.errors import (
    DatabaseError,
    DuplicateNameError,
    InvalidNameError,
    MissingTimeColumnError,
    UnsupportedSqlError,
)
from anabranch.plan.names import NAME_RULE, same_name, why_not_a_name
from anabranch.plan.outward import unzoned
from anabranch.plan.overload import Overload
from anabranch.plan.query import DatabaseTable, Field, Query, Stream, Table
from anabranch.plan.rewrites import REWRITES, Rewrite
from anabranch.sql.bind import bind_select
from anabranch.sql.catalog import Catalog, Location
from anabranch.sql.statements import parse_statements
from anabranch.sql.syntax import CreateQuery, CreateSource, Name
from anabranch.sql.text import SqlText


@dataclass(frozen=True)
class BoundQuery:
    """A query of a script, and the plan it was pinned to, in jtree notation, if it was; and what it is to do under overload,
    if that is said."""

    query: Query
    plan: str | None = None
    overload: Overload | None = None


@dataclass(frozen=True)
class Script:
    """What a text says. `catalog` includes the sources that were there before."""

    catalog: Catalog
    queries: tuple[BoundQuery, ...]


Describe = Callable[[str, str], Sequence[tuple[str, pa.DataType]]]
"""Gives the columns of a table, in the types under which they leave, by the names of its database and its own."""


def parse_script(
    text: str,
    catalog: Catalog | None = None,
    rewrites: Sequence[Rewrite] = REWRITES,
    describe: Describe | None = None,
) -> Script:
    """Read a whole text; either all of it is valid, or an error says what is not and nothing has happened. `describe` asks
    databases for the columns of tables that are there.

    A SELECT without CREATE QUERY is called `query1`, `query2`, … by its place among the queries.

    >>> script = parse_script('''
    ...     CREATE STREAM trades (symbol STRING, price DOUBLE, ts TIMESTAMP)
    ...         TIME ts LATENESS 5 SECONDS FROM 'trades/*.parquet';
    ...     CREATE QUERY pairs PLAN '(a b)' AS
    ...         SELECT a.symbol, a.price - b.price AS gap FROM trades a, trades b
    ...         WHERE a.symbol = b.symbol AND a.price > 10 WINDOW 1 MINUTE;
    ... ''')
    >>> script.queries[0].plan, script.queries[0].query.output_schema.names
    ('(a b)', ['symbol', 'gap'])
    >>> script.catalog.location("trades")
    Location(path='trades/*.parquet', format='parquet', refresh_us=0, on_error=OnError(way='fail', path=''))
    """
    source = SqlText(text)
    known = catalog if catalog is not None else Catalog()
    queries: list[BoundQuery] = []
    for statement in parse_statements(text):
        if isinstance(statement, CreateSource):
            known = _with_source(known, statement, source, queries, describe)
        else:
            name = _query_name(statement, known, queries, source)
            query = bind_select(name, statement.select, known, source, rewrites)
            queries.append(BoundQuery(query, statement.plan, statement.overload))
    return Script(known, tuple(queries))


def _with_source(
    catalog: Catalog, statement: CreateSource, text: SqlText, queries: list[BoundQuery], describe: Describe | None
) -> Catalog:
    fields = tuple(Field(column.name.text, unzoned(column.type), column.type) for column in statement.columns)
    location = None
    if statement.database is not None and statement.path is not None:
        fields = _described(statement.database, statement.path, statement.path_at, text, describe)
        if statement.refresh_us:
            database = statement.database.text
            location = Location(statement.path, "", statement.refresh_us, at=statement.path_at, database=database)
    elif statement.path is not None and statement.format is not None:
        location = Location(statement.path, statement.format, statement.refresh_us, statement.on_error, statement.path_at)
    name = statement.name
    if any(same_name(b.query.name, name.text) for b in queries):
        raise text.error(DuplicateNameError, f"{name.text} exists already: a query", name.at, "choose another name")
    if statement.time is None:
        made: Stream | Table = Table(name.text, fields)
        if statement.database is not None and location is None:
            made = DatabaseTable(name.text, fields, statement.database.text, statement.path or "", statement.reading)
    else:
        declared = next((f.name for f in fields if f.name.lower() == statement.time.text.lower()), statement.time.text)
        made = Stream(name.text, fields, declared, statement.lateness_us, statement.ahead_us, statement.idle_us)
    problem = catalog.problem_with(made)
    if problem is not None:
        places = [c.name.at for c in statement.columns if c.name.text == problem.column][-1:]
        if statement.time is not None and problem.kind is MissingTimeColumnError:
            places = [statement.time.at]
        raise text.error(problem.kind, problem.message, places[0] if places else name.at, problem.hint)
    return catalog.with_stream(made, location) if isinstance(made, Stream) else catalog.with_table(made, location)


def _described(
    database: Name, relation: str, at: int, text: SqlText, describe: Describe | None
) -> tuple[Field, ...]:
    """The columns of a table in a database; whatever is wrong there is said at its name."""
    if describe is None:
        raise text.error(UnsupportedSqlError, "FROM DATABASE is not supported here", database.at, "declare it in a session")
    try:
        return tuple(Field(name, unzoned(type), type) for name, type in describe(database.text, relation))
    except DatabaseError as error:
        raise text.error(UnsupportedSqlError, str(error), at) from None


def _query_name(statement: CreateQuery, catalog: Catalog, queries: list[BoundQuery], text: SqlText) -> str:
    taken = {b.query.name.lower() for b in queries} | {s.name.lower() for s in catalog}
    if statement.name is None:
        free = (f"query{number}" for number in range(len(queries) + 1, len(queries) + len(taken) + 2))
        return next(name for name in free if name not in taken)
    if reason := why_not_a_name(statement.name.text):
        raise text.error(InvalidNameError, reason, statement.name.at, NAME_RULE)
    if statement.name.text.lower() in taken:
        message = f"{statement.name.text} exists already"
        raise text.error(DuplicateNameError, message, statement.name.at, "choose another name")
    return statement.name.text
