"""Numbers in a dataflow of Spark's, which is analysed and compiled once, that are others in every batch."""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from anabranch.plan.query import BEGINNING_US

VARIABLES = "_variables"
ZERO = 1 << 61
"""This much is added to stored variables: only large numbers surely reach the JVM as long ones. Times are far smaller."""


class BatchVariables:
    """Numbers in a plan of Spark's that are others in every batch.

    A literal would be part of the code that Spark makes, and have it compiled anew in every batch. These are entries of an
    array, which plans hold by reference and tasks get as it is when their batch starts. There is an entry for each source,
    looked up by the number of a row's, so that the optimiser does not put the number itself in its place.
    """

    def __init__(self, spark: SparkSession, entries: int) -> None:
        jvm, gateway = spark._jvm, spark.sparkContext._gateway
        assert jvm is not None, "the session has stopped"
        assert gateway is not None, "the session has stopped"
        types = jvm.org.apache.spark.sql.types.DataTypes
        self._values = gateway.new_array(jvm.java.lang.Object, entries)
        for entry in range(entries):
            self.set(entry, BEGINNING_US)
        data = jvm.org.apache.spark.sql.catalyst.util.GenericArrayData(self._values)
        array = jvm.org.apache.spark.sql.catalyst.expressions.Literal(data, types.createArrayType(types.LongType, False))
        self.column = SparkColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(array))

    def set(self, entry: int, value: int) -> None:
        self._values[entry] = min(max(value, -ZERO // 2), 2 * ZERO) + ZERO

    def entry(self, number: SparkColumn) -> SparkColumn:
        """The variable for a row that tells which entry it is."""
        return F.element_at(self.column, number + 1) - ZERO


def variable_sql(entry: str) -> str:
    """A variable, as SQL over the column `VARIABLES`."""
    return f"(element_at({VARIABLES}, {entry} + 1) - {ZERO}L)"
