"""Spark types and the Arrow types the engine works with.

Timestamps with and without a zone are both microseconds to the engine; results carry Spark's TIMESTAMP.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from anabranch.errors import SchemaMismatchError

_PLAIN: list[tuple[type[T.DataType], pa.DataType]] = [
    (T.BooleanType, pa.bool_()),
    (T.ByteType, pa.int8()),
    (T.ShortType, pa.int16()),
    (T.IntegerType, pa.int32()),
    (T.LongType, pa.int64()),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.StringType, pa.string()),
    (T.BinaryType, pa.binary()),
    (T.DateType, pa.date32()),
    (T.TimestampType, pa.timestamp("us")),
    (T.TimestampNTZType, pa.timestamp("us")),
]


def to_arrow(type: T.DataType, where: str) -> pa.DataType:
    """The Arrow type of a Spark type; `where` names the column in errors."""
    for plain, arrow in _PLAIN:
        if isinstance(type, plain):
            return arrow
    if isinstance(type, T.DecimalType):
        return pa.decimal128(type.precision, type.scale)
    if isinstance(type, T.ArrayType):
        return pa.list_(to_arrow(type.elementType, where))
    if isinstance(type, T.MapType):
        return pa.map_(to_arrow(type.keyType, where), to_arrow(type.valueType, where))
    if isinstance(type, T.StructType):
        return pa.struct([pa.field(f.name, to_arrow(f.dataType, f"{where}.{f.name}")) for f in type.fields])
    raise SchemaMismatchError(
        f"{where} is {type.simpleString()}, which has no place in a stream: cast it, or leave the column out"
    )


def to_spark(type: pa.DataType) -> T.DataType:
    """The Spark type of an Arrow type that `to_arrow` gives."""
    if pa.types.is_decimal(type):
        return T.DecimalType(type.precision, type.scale)
    if pa.types.is_timestamp(type):
        return T.TimestampType()
    if pa.types.is_list(type):
        return T.ArrayType(to_spark(type.value_type))
    if pa.types.is_map(type):
        return T.MapType(to_spark(type.key_type), to_spark(type.item_type))
    if pa.types.is_struct(type):
        return T.StructType([T.StructField(f.name, to_spark(f.type)) for f in type])
    return next(plain() for plain, arrow in _PLAIN if arrow == type)


def spark_schema(schema: pa.Schema) -> T.StructType:
    return T.StructType([T.StructField(f.name, to_spark(f.type)) for f in schema])


def zoned(type: pa.DataType) -> pa.DataType:
    """The Arrow type under which Spark takes values back: timestamps are instants."""
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(type):
        return pa.list_(zoned(type.value_type))
    if pa.types.is_map(type):
        return pa.map_(zoned(type.key_type), zoned(type.item_type))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(f.name, zoned(f.type)) for f in type])
    return type


def zoned_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, zoned(f.type)) for f in schema])
