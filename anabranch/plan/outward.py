"""The types under which results leave: a column that came without a time zone leaves without one.

To the engine all timestamps are microseconds, `timestamp[us]`, which is how they are compared and joined. Outside there are
two types, Spark's TIMESTAMP (an instant; to Arrow `timestamp[us, UTC]`) and TIMESTAMP_NTZ (`timestamp[us]`). A `Field` knows
which of them its column has (`Field.outward`). A result has the type of the columns that it is made of; of both it is an
instant, as in Spark. `RESULT_TIME`, and what is cast from text or dates, are instants.
"""

from __future__ import annotations

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, Literal
from anabranch.plan.query import GROUP, Derived, Query

KEEPS = ("add", "sub", "case", "coalesce", "greatest", "least")
"""The operations that give a time which is one of their arguments, or is shifted from it."""


def zoned(type: pa.DataType) -> pa.DataType:
    """A type of the engine whose timestamps are instants.

    >>> zoned(pa.list_(pa.timestamp("us")))
    ListType(list<item: timestamp[us, tz=UTC]>)
    """
    return _with_zone(type, "UTC")


def unzoned(type: pa.DataType) -> pa.DataType:
    """The type of the engine that holds the values of an outward type."""
    return _with_zone(type, None)


def outward_schema(query: Query) -> pa.Schema:
    """What a query gives, in the types under which it leaves."""
    select = query.select if query.grouping is None else query.grouping.select
    return pa.schema([pa.field(name, _outward(expr, query)) for name, expr in select])


def _outward(expr: Expr, query: Query) -> pa.DataType:
    if zoned(expr.type) == expr.type:
        return expr.type  # there is no time in it
    if isinstance(expr, Column):
        return _of_group(expr, query) if expr.alias == GROUP else _of_input(expr, query)
    if isinstance(expr, Call) and expr.op in KEEPS:
        times = [arg for arg in expr.args if arg.type == expr.type and not isinstance(arg, Literal)]
        found = {_outward(arg, query) for arg in times}
        return found.pop() if len(found) == 1 else zoned(expr.type)
    return zoned(expr.type)


def _of_input(column: Column, query: Query) -> pa.DataType:
    source = query.input(column.alias).source
    if isinstance(source, Derived) and source.query is not None:
        inner = outward_schema(source.query)
        return inner.field(column.name).type if column.name in inner.names else zoned(column.type)
    found = source.field(column.name)
    return found.outward if found is not None and found.outward is not None else zoned(column.type)


def _of_group(column: Column, query: Query) -> pa.DataType:
    """The type of a key, or of the least or largest value of a group. Times of a database are instants."""
    assert query.grouping is not None, "only groups have keys"
    if column.name.startswith("out"):
        return zoned(column.type)
    number = int(column.name[3:])
    place = number if column.name.startswith("key") else query.grouping.aggregates[number].argument
    return zoned(column.type) if place is None else _outward(query.select[place][1], query)


def _with_zone(type: pa.DataType, zone: str | None) -> pa.DataType:
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", zone)
    if pa.types.is_list(type):
        return pa.list_(_with_zone(type.value_type, zone))
    if pa.types.is_map(type):
        return pa.map_(_with_zone(type.key_type, zone), _with_zone(type.item_type, zone))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(f.name, _with_zone(f.type, zone)) for f in type])
    return type
