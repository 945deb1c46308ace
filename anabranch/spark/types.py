"""Spark types and the Arrow types the engine works with.

Timestamps with and without a zone are both microseconds to the engine; results have the types that `anabranch.plan.outward`
says.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from anabranch.errors import SchemaMismatchError
from anabranch.plan.outward import zoned

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


def outward_arrow(type: T.DataType, where: str) -> pa.DataType:
    """The Arrow type under which Spark takes values of a type back: TIMESTAMP is an instant, TIMESTAMP_NTZ has no zone.
    `where` names the column in errors."""
    if isinstance(type, T.TimestampType):
        return pa.timestamp("us", "UTC")
    for plain, arrow in _PLAIN:
        if isinstance(type, plain):
            return arrow
    if isinstance(type, T.DecimalType):
        return pa.decimal128(type.precision, type.scale)
    if isinstance(type, T.ArrayType):
        return pa.list_(outward_arrow(type.elementType, where))
    if isinstance(type, T.MapType):
        return pa.map_(outward_arrow(type.keyType, where), outward_arrow(type.valueType, where))
    if isinstance(type, T.StructType):
        return pa.struct([pa.field(f.name, outward_arrow(f.dataType, f"{where}.{f.name}")) for f in type.fields])
    raise SchemaMismatchError(
        f"{where} is {type.simpleString()}, which has no place in a stream: cast it, or leave the column out"
    )


def to_spark(type: pa.DataType, local: T.DataType | None = None) -> T.DataType:
    """The Spark type of an Arrow type that `outward_arrow` gives, or of one of the engine. Timestamps without a zone become
    `local`: TIMESTAMP, if nothing else is said."""
    if pa.types.is_decimal(type):
        return T.DecimalType(type.precision, type.scale)
    if pa.types.is_timestamp(type):
        return T.TimestampType() if type.tz is not None or local is None else local
    if pa.types.is_list(type):
        return T.ArrayType(to_spark(type.value_type, local))
    if pa.types.is_map(type):
        return T.MapType(to_spark(type.key_type, local), to_spark(type.item_type, local))
    if pa.types.is_struct(type):
        return T.StructType([T.StructField(f.name, to_spark(f.type, local)) for f in type])
    return next(plain() for plain, arrow in _PLAIN if arrow == type)


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Of columns in types of the engine: all timestamps are TIMESTAMP."""
    return T.StructType([T.StructField(f.name, to_spark(f.type)) for f in schema])


def outward_spark_schema(schema: pa.Schema) -> T.StructType:
    """Of columns in the types under which they leave."""
    return T.StructType([T.StructField(f.name, to_spark(f.type, T.TimestampNTZType())) for f in schema])


def zoned_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, zoned(f.type)) for f in schema])
