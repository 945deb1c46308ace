"""Tables that stay in their databases: a stream and a table that it looks up become one stream.

    SELECT o.id, c.name FROM orders [RANGE 5 MINUTES] o, payments [RANGE 5 MINUTES] p, customers c
    WHERE o.id = p.order_id AND o.customer = c.id AND c.region = 'EU'

If `customers` is in a database, this is a join of `payments` with the *enriched stream* `orders+customers`: the rows of
`orders`, each with the columns of the customer that was found when its batch was run. `c.region = 'EU'` becomes a filter of
it. A row for which nothing is found has no partner, as in any inner join, and is not there. So all that a lookup found is in
the log of a stream: later batches, changed plans, other slots and recovery read it there, and nobody looks up again.

The key of a lookup comes from one input: from a stream, or from a stream that has been enriched before (so a table may be
looked up by what was found in another). An equality is a key if its side of the table is a column, perhaps widened, of a
type that compares alike here and there; other equalities with that input are filters of what was found. If columns of a
table equal some of several streams, the first equality that is written decides which stream holds the key, and so in which
batch the table is looked up; the others join what was found. What cannot be rewritten stays a table of the query, and
`why_not_looked_up` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, aliases_of, columns_of
from anabranch.plan.expression import replace as rewrite
from anabranch.plan.identity import digest
from anabranch.plan.predicates import equalities_to_keys, predicates_to_filters
from anabranch.plan.query import DatabaseTable, Derived, Enriched, Equality, Field, Input, Query, Stream, Table

Columns = dict[str, tuple[str, ...]]

DIGITS = 6
"""Of the digest by which two lookups in one table by other keys are told apart."""


def lookups_to_streams(query: Query) -> Query:
    """The query with every stream that looks up a table in a database, and the table, as one enriched stream."""
    if not any(isinstance(i.source, DatabaseTable) for i in query.inputs):
        return query
    query = equalities_to_keys(query)
    while (pair := next(filter(None, (_pair(query, i) for i in query.inputs)), None)) is not None:
        query = _merged(query, *pair)
    return query


def why_not_looked_up(query: Query) -> tuple[str, str] | None:
    """The alias of a table in a database that a query cannot look up, and why; None: there is none."""
    for i in query.inputs:
        if isinstance(i.source, DatabaseTable):
            partners = _partners(query, i.alias)
            if partners and all(isinstance(query.input(p).source, Derived) for p in partners):
                return i.alias, "its key comes from the groups of a subquery: a lookup takes it from a stream"
            if partners and all(isinstance(query.input(p).source, Table) for p in partners):
                return i.alias, "its key comes from a stored table: a lookup takes it from a stream"
            if partners:
                return i.alias, "its key is computed, or of a type that is not compared alike here and in a database"
            return i.alias, "no column of it equals one of a stream"
    return None


def root_name(name: str) -> str:
    """The name of the stream that is read for a stream: its own, or that of the one that an enriched stream is made of.

    >>> root_name("orders+customers.1a2b3c"), root_name("orders")
    ('orders', 'orders')
    """
    return name.partition("+")[0]  # which no name that a user gives has in it


def looked_up(query: Query) -> tuple[Enriched, ...]:
    """The enriched streams that a query reads, each once."""
    return tuple(source for source in query.base_sources if isinstance(source, Enriched))


def enriched_levels(query: Query) -> tuple[Enriched, ...]:
    """The enriched streams that a query reads, and those that they are made of, each once, what is looked up first first."""
    found: dict[str, Enriched] = {}

    def add(source: Stream) -> None:
        if isinstance(source, Enriched):
            add(source.base)
            found[source.name] = source

    for source in looked_up(query):
        add(source)
    return tuple(found.values())


def is_found(source: Stream | object, column: str) -> bool:
    """Whether a column of a source is known only when its table was looked up: not yet at the exchange."""
    return isinstance(source, Enriched) and source.root.field(column) is None


def reads_found(query: Query, expr: Expr) -> bool:
    """Whether an expression over inputs of a query reads what is known only after a lookup."""
    return any(c.alias in query.aliases and is_found(query.input(c.alias).source, c.name) for c in columns_of(expr))


def carried_columns(sources: Mapping[str, Stream | Table], columns: Mapping[str, tuple[str, ...]]) -> Columns:
    """The columns of each source that are read, and cross the exchange, so that some columns of it are known after it."""
    return {
        name: brought_columns(source, columns[name]) if isinstance(source, Enriched) else columns[name]
        for name, source in sources.items()
    }


def brought_columns(source: Enriched, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns of the stream that is read of which an enriched stream makes some columns: these, as far as they are its
    own, its time, and those that lookups are made by."""
    wanted = {*columns, source.time}
    level: Stream = source
    while isinstance(level, Enriched):
        wanted |= {c.name for _, term in level.keys for c in columns_of(term)}
        level = level.base
    return tuple(f.name for f in source.root.fields if f.name in wanted)


def _pair(query: Query, table: Input) -> tuple[Input, Input, list[Equality]] | None:
    """A stream that can look up a table, the table, and the equalities that are the key."""
    if not isinstance(table.source, DatabaseTable):
        return None
    for alias in _partners(query, table.alias):
        stream = query.input(alias)
        if isinstance(stream.source, Stream) and not isinstance(stream.source, Derived):
            keys = [e for e in query.equalities if _sides(e, alias, table.alias) is not None]
            if keys:
                return stream, table, keys
    return None


def _partners(query: Query, alias: str) -> list[str]:
    """The inputs, but for tables in databases, that an input is equal to in something, in the order of the equalities."""
    found: dict[str, None] = {}
    for equality in query.equalities:
        both = aliases_of(equality.left) | aliases_of(equality.right)
        if alias in both:
            (other,) = both - {alias}
            if not isinstance(query.input(other).source, DatabaseTable):
                found[other] = None
    return list(found)


def _sides(equality: Equality, stream: str, table: str) -> tuple[Expr, str] | None:
    """The term over a stream and the column of a table that an equality is a key by; None: it is none."""
    for ours, theirs in ((equality.left, equality.right), (equality.right, equality.left)):
        if aliases_of(ours) == {stream} and aliases_of(theirs) == {table} and (column := _column(theirs)) is not None:
            return ours, column
    return None


def _column(term: Expr) -> str | None:
    """The column that a term over a table is, if its values compare alike here and in a database."""
    inner = term.args[0] if isinstance(term, Call) and term.op == "cast" else term
    if not isinstance(inner, Column) or not _is_exact(inner.type) or not _is_exact(term.type):
        return None
    if inner.type == term.type:
        return inner.name
    if pa.types.is_integer(inner.type) and pa.types.is_integer(term.type):
        return inner.name if inner.type.bit_width <= term.type.bit_width else None
    if pa.types.is_decimal(inner.type) and pa.types.is_decimal(term.type):
        whole = inner.type.precision - inner.type.scale, term.type.precision - term.type.scale
        return inner.name if inner.type.scale <= term.type.scale and whole[0] <= whole[1] else None
    return None


def _is_exact(type: pa.DataType) -> bool:
    return not (pa.types.is_floating(type) or pa.types.is_nested(type) or pa.types.is_null(type))


def _merged(query: Query, stream: Input, table: Input, keys: list[Equality]) -> Query:
    """The query with a stream and the table that it looks up as one input, under the alias of the stream."""
    source, names = _enriched(stream, table, keys)

    def moved(expr: Expr) -> Expr:
        if isinstance(expr, Column) and expr.alias == table.alias:
            return Column(expr.type, stream.alias, names[expr.name])
        return expr

    inputs = []
    for i in query.inputs:
        if i.alias == stream.alias:
            filters = (*i.filters, *(rewrite(f, moved) for f in table.filters))
            inputs.append(replace(i, source=source, filters=filters))
        elif i.alias != table.alias:
            inputs.append(i)
    left = [e for e in query.equalities if e not in keys]
    # What equalities are left may read one input now: they are told apart again.
    again = [Call(pa.bool_(), "eq", (rewrite(e.left, moved), rewrite(e.right, moved))) for e in left]
    made = replace(
        query,
        inputs=tuple(inputs),
        equalities=(),
        residuals=(*again, *(rewrite(r, moved) for r in query.residuals)),
        select=tuple((name, rewrite(e, moved)) for name, e in query.select),
        kept=tuple(c for k in query.kept if isinstance(c := rewrite(k, moved), Column)),
    )
    return equalities_to_keys(predicates_to_filters(made))


def _enriched(stream: Input, table: Input, keys: list[Equality]) -> tuple[Enriched, dict[str, str]]:
    """The enriched stream, and what columns of the table are called in it."""
    base, stored = stream.source, table.source
    assert isinstance(base, Stream)
    assert isinstance(stored, DatabaseTable)
    pairs = []
    for key in keys:
        sides = _sides(key, stream.alias, table.alias)
        assert sides is not None
        term = rewrite(sides[0], lambda e: Column(e.type, "", e.name) if isinstance(e, Column) else e)
        pairs.append((sides[1], term))
    pairs = sorted(dict.fromkeys(pairs), key=lambda pair: (pair[0], str(pair[1])))
    names = {f.name: _free(f"{stored.name}.{f.name}", base) for f in stored.fields}
    fields = [Field(names[f.name], f.type, f.outward) for f in stored.fields]
    by = digest(f"{stored.database} {stored.relation} " + " ".join(f"{column}={term}" for column, term in pairs))[:DIGITS]
    made = Enriched(
        f"{base.name}+{stored.name}.{by}", (*base.fields, *fields), base.time, base.lateness_us, base.ahead_us, base.idle_us,
        base=base, table=stored, keys=tuple(pairs), found=tuple((here, there) for there, here in names.items()),
        place=table.place,
    )  # fmt: skip
    return made, names


def _free(name: str, base: Stream) -> str:
    """A name that no column has yet: a table may be looked up twice for one row."""
    while base.field(name) is not None:
        name += "'"
    return name
