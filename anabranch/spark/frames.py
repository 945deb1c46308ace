"""Checks on what users hand in as streams and tables."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from anabranch.errors import UnsupportedFrameError
from anabranch.plan.outward import unzoned
from anabranch.plan.query import Field
from anabranch.spark.types import outward_arrow

GIVEN = "UserProvided"
"""Spark's class of the name of a source that has one."""
STATEFUL = ("Aggregate", "Deduplicate", "FlatMapGroupsWithState", "TransformWithState", "GlobalLimit", "Join", "Window")


def check_stream(name: str, frame: Any) -> None:
    """Refuses what cannot work as a stream, and says what to do instead."""
    _check_classic(name, frame)
    if not frame.isStreaming:
        raise UnsupportedFrameError(
            f"{name} is a batch DataFrame: read it with spark.readStream, or declare it with table() if it is a stored table"
        )
    found = _stateful_operators(frame)
    if found:
        raise UnsupportedFrameError(
            f"{name} has a stateful operator ({', '.join(found)}) before it reaches us: its results would depend on how "
            "batches are cut; write its output to files or a topic and read that as the stream"
        )


def check_table(name: str, frame: Any) -> None:
    _check_classic(name, frame)
    if frame.isStreaming:
        raise UnsupportedFrameError(f"{name} is a streaming DataFrame: declare it with stream()")


def fields_of(name: str, frame: DataFrame) -> tuple[Field, ...]:
    """The columns of a DataFrame in the engine's types."""
    outward = [(f.name, outward_arrow(f.dataType, f"{name}.{f.name}")) for f in frame.schema.fields]
    return tuple(Field(column, unzoned(type), type) for column, type in outward)


def source_names(frame: DataFrame) -> tuple[str, ...]:
    """What Spark calls the sources of a streaming frame; none if one of them has no name, or Spark is too old to tell."""
    leaves, found = frame._jdf.queryExecution().analyzed().collectLeaves(), []
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        if not leaf.isStreaming():
            continue
        try:
            name = leaf.sourceIdentifyingName()
        except Py4JError:
            return ()
        if name.getClass().getSimpleName() != GIVEN:
            return ()
        found.append(str(name.name()))
    return tuple(found)


def _check_classic(name: str, frame: Any) -> None:
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedFrameError(
            f"{name} is a Spark Connect DataFrame: batches are committed by a driver in this process; "
            "use a classic SparkSession"
        )
    if not isinstance(frame, DataFrame):
        raise UnsupportedFrameError(f"{name} is a {type(frame).__name__}, not a Spark DataFrame")


def _stateful_operators(frame: DataFrame) -> list[str]:
    """Names of logical operators in a streaming frame's plan that keep state between batches."""
    found, left = [], [frame._jdf.queryExecution().analyzed()]
    while left:
        node = left.pop()
        children = node.children()
        below = [children.apply(i) for i in range(children.size())]
        name = str(node.getClass().getSimpleName())
        streaming = sum(1 for child in below if child.isStreaming())
        if name.startswith(STATEFUL) and (streaming > 1 if name == "Join" else streaming > 0):
            found.append(name)
        left += below
    return sorted(found)
