"""Streams of which some rows stay before the exchange, and what the law says of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from anabranch.plan.demand import read_columns, source_filters
from anabranch.plan.grid import Grid
from anabranch.plan.query import Query, Stream
from anabranch.plan.workload import Workload
from anabranch.session import Session
from anabranch.spark.host import Progress
from anabranch.spark.pack import pack, packing_of
from anabranch.spark.pushdown import Pushdown
from anabranch.sql import parse_script
from tests.support import oracle

BATCHES, ROWS = 4, 200
CLOCK_S, FUTURE_US = 100.0, 2 * 86_400 * 1_000_000
WAYS = ("frames", "files")
"""How streams are read: by Spark, as DataFrames, and by our own reader. Streams are named after it: frames_a, files_a, …"""


def write_pushed(root: Path) -> Path:
    """Files of both streams. The row with the latest time of each batch passes no predicate, some rows are late, and some
    are of another day: of these some pass the predicates."""
    rng = np.random.default_rng(8)
    for stream in "ab":
        (root / stream).mkdir()
        for number in range(BATCHES):
            times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, ROWS))
            late = rng.random(ROWS) < 0.1
            times[late] -= 3_000_000
            v = rng.integers(0, 10, ROWS)
            v[-1], times[-1] = 9, number * 1_000_000 + 1_500_000
            early = slice(10, 10 + 3 * number)
            v[early], times[early] = np.arange(3 * number) % 10, FUTURE_US + number
            text = pa.array([None if i % 5 == 0 else "xy"[i % 2] for i in range(ROWS)], pa.string())
            table = pa.table({"k": rng.integers(0, 20, ROWS), "v": v, "s": text,
                              "ts": pa.array(times, pa.timestamp("us", "UTC"))})  # fmt: skip
            path = root / stream / f"{number:03d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1000 + number, 1000 + number))
    return root


def declare(session: Session, folder: Path, lateness: dict[str, str]) -> None:
    """Declares streams over their folders, in either way: DataFrames, and files for our own reader."""
    for stream, late in lateness.items():
        schema = session.spark.read.parquet(str(folder / stream)).schema
        reader = session.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        session.stream(f"frames_{stream}", reader.parquet(str(folder / stream)), "ts", late)
        session.stream(f"files_{stream}", f"{folder}/{stream}/*.parquet", "ts", late, max_files_per_trigger=1)


def batches_of(query: Query, folder: Path) -> list[dict[str, pa.Table]]:
    """The batches of the streams of a query."""
    paths = [{s.name: folder / s.name[-1] / f"{n:03d}.parquet" for s in query.sources} for n in range(BATCHES)]
    return [{name: plain(pq.read_table(path)) for name, path in batch.items()} for batch in paths]


def plain(rows: pa.Table) -> pa.Table:
    return rows.set_column(3, "ts", rows["ts"].cast(pa.timestamp("us")))


CLOCKS = [int(CLOCK_S * 1e6)] * (BATCHES + 1)


def law_of(query: Query, folder: Path) -> oracle.Acceptance:
    return oracle.accepted(batches_of(query, folder), [s for s in query.sources if isinstance(s, Stream)], CLOCKS)


def check_results(query: Query, folder: Path, results: pa.Table) -> None:
    found = oracle.bag(results.cast(query.output_schema))
    assert found, query.name
    wanted = oracle.expected(query, batches_of(query, folder), {}, CLOCKS)
    assert not (wrong := oracle.difference(found, wanted)), f"{query.name}: {wrong}"


def check_counts(step: Progress, law: oracle.Acceptance, number: int, streams: Sequence[str]) -> None:
    """Watermarks, and rows that are late or early, are as if no predicate had gone ahead."""
    assert step.watermark_us == (law.watermarks[number] if law.watermarks[number] is not None else -(2**63))
    assert step.rows == dict.fromkeys(streams, ROWS)
    assert step.late_rows == {s: law.late[number].get(s, 0) for s in streams}
    assert step.early_rows == {s: law.early[number].get(s, 0) for s in streams}


class Packed:
    """Rows of a stream, a or b, as frames bring them, in the packed schema, and a pushdown over them."""

    def __init__(
        self, spark: SparkSession, *wheres: str, sheds: bool = False, untimed: Sequence[int] = (), stream: str = "a",
        rows: int = 10,
    ) -> None:  # fmt: skip
        selected = [(n, where.format(i=f"i{n}")) for n, where in enumerate(wheres)]
        queries = [
            f"CREATE QUERY q{n} AS SELECT i{n}.v FROM a i{n}, b WHERE i{n}.v = b.v AND {where} WINDOW 1 SECOND;"
            for n, where in selected
        ]
        streams = "".join(f"CREATE STREAM {s} (v BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
        self.workload = Workload(tuple(bound.query for bound in parse_script(streams + "\n".join(queries)).queries))
        self.columns, self.filters = read_columns(self.workload), source_filters(self.workload)
        times = pa.array([None if n in untimed else n * 1_000_000 for n in range(rows)], pa.timestamp("us", "UTC"))
        numbers = pa.array(range(rows), pa.int64())
        frame = spark.createDataFrame(pa.table({"v": numbers, "x": numbers, "ts": times}))
        packing = packing_of(self.columns, dict.fromkeys(self.columns, frame.schema))
        self.pushdown = Pushdown(self.workload, packing, self.filters, sheds)
        spread = [(query, Grid()) for query in self.workload.queries]
        self.frame = self.pushdown.apply(pack(frame, packing, spread, self.workload.streams[stream]))
        self.column = dict(packing.places[packing.sources.index(stream)])["v"]

    def passed(
        self,
        watermarks: dict[str, int],
        raised: Sequence[tuple[str, str]] = (),
        shed: dict[str, float] | None = None,
        salt: int = 0,
    ) -> list[int]:
        self.pushdown.set(watermarks, FUTURE_US, raised, shed, salt)
        return sorted(row[0] for row in self.frame.select(self.column).collect())
