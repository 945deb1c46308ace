"""Spark's own stream-stream join over the files of a workload: `python -m bench.rivals.spark_native --spec <json>`.

TODO
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.workload import SHAPES, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORES = {
    "default": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
SINKS = ("parquet", "noop")
TIMES = ("latest", "first")
WATERMARK_KEY = "spark.watermarkDelayMs"
"""The metadata by which Spark knows a column with a watermark."""

POLL_S = 0.5


@dataclass(frozen=True)
class Spec:
    """One run. `timeout_s` counts from the start of the process; what was done by then is reported as partial."""

    shape: str
    rate_per_s: int
    window_s: float
    batch_s: float
    batches: int
    folder: str
    store: str = "default"
    sink: str = "parquet"
    cores: int = 2
    timeout_s: float = 600.0
    matches: float = 1.0
    wide: bool = False
    times: str = "latest"
    state_format: int | None = None
    memory: str = "8g"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("shape", self.shape, tuple(SHAPES)), ("store", self.store, tuple(STORES)),
            ("sink", self.sink, SINKS), ("times", self.times, TIMES),
        ):  # fmt: skip
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(allowed)}")

    @classmethod
    def from_json(cls, text: str) -> Spec:
        given = json.loads(text)
        unknown = set(given) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"unknown in a spec: {', '.join(sorted(unknown))}")
        return cls(**given)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def workload(self) -> Workload:
        return Workload(self.shape, self.rate_per_s, self.window_s, self.batch_s, self.matches, self.wide)

    @property
    def warm_batches(self) -> int:
        """Batches until a whole window is filled."""
        return round(self.window_s / self.batch_s) + 2


# The query


@dataclass(frozen=True)
class Step:
    """One join of the left-deep cascade: what is taken of the next stream, and when it matches what is joined so far."""

    stream: str
    columns: tuple[str, ...]
    """Of the stream, each named `<stream>_<column>`, with its time as `<stream>_ts`."""
    condition: str
    """Empty for the first stream."""
    kept: tuple[str, ...]
    """SQL of the columns of the joined rows that something above still needs, without their watermark."""
    time: str
    """SQL of the event time of the joined rows."""


def cascade(workload: Workload, times: str = "latest") -> list[Step]:
    """The joins of a workload in the order written.

    A result so far carries the earliest and the latest time of its rows: all pairs of rows are valid together iff the
    next row is valid together with these two.
    """
    streams, edges = workload.streams, SHAPES[workload.shape]
    selected = [*workload.selected, *(("a.note", "a.w0", "a.w11") if workload.wide else ())]
    window = f"INTERVAL {workload.window_us} MICROSECONDS"
    steps: list[Step] = []
    for place, stream in enumerate(streams):
        joined = streams[: place + 1]
        own = [c for c in [*selected, *(c for edge in edges for c in edge)] if c.startswith(f"{stream}.")]
        pending = [c for edge in edges for c in edge if _stream(edge[0]) not in joined or _stream(edge[1]) not in joined]
        needed = [c for c in [*selected, *pending] if _stream(c) in joined]
        last = place == len(streams) - 1
        condition, kept, time = "", [_name(c) for c in needed], f"{stream}_ts"
        if place:
            keys = [e for e in edges if {_stream(c) for c in e} <= set(joined) and stream in map(_stream, e)]
            first = place == 1
            earliest, latest = ("a_ts", "a_ts") if first else ("earliest", "latest")
            bounds = [f"{stream}_ts < {earliest} + {window}", f"{latest} < {stream}_ts + {window}"]
            if times == "latest" and not first:
                bounds.append(f"{stream}_ts < latest + {window}")
            elif times == "first" and not first:
                bounds += [f"{stream}_ts < a_ts + {window}", f"a_ts < {stream}_ts + {window}"]
            condition = " AND ".join([*(f"{_name(left)} = {_name(right)}" for left, right in keys), *bounds])
            kept += [f"least({earliest}, {stream}_ts) AS earliest"]
            if times == "first":
                kept += [f"greatest({latest}, {stream}_ts) AS latest"]
                time = "a_ts"
            else:
                time = f"greatest({latest}, {stream}_ts)"
        steps.append(Step(stream, tuple(dict.fromkeys(map(_column, own))), condition, tuple(dict.fromkeys(kept)), time))
        if last:
            steps[-1] = Step(stream, steps[-1].columns, condition, output_columns(workload), "")
    return steps


def output_columns(workload: Workload) -> tuple[str, ...]:
    wide = ("a_note", "a_w0 + a_w11 AS w") if workload.wide else ()
    return (*map(_name, workload.selected), *wide)


def _stream(column: str) -> str:
    return column.split(".")[0]


def _column(column: str) -> str:
    return column.split(".")[1]


def _name(column: str) -> str:
    return column.replace(".", "_")
