"""Predicates before the exchange: rows stay behind, results, watermarks and counts do not change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from anabranch.engine.expressions import predicate_mask
from anabranch.plan.demand import read_columns, source_filters
from anabranch.plan.expression import Expr
from anabranch.plan.grid import Grid
from anabranch.plan.query import Query, Stream
from anabranch.plan.workload import Workload
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.host import Progress
from anabranch.spark.pack import pack, packing_of
from anabranch.spark.pushdown import Pushdown, spark_filter
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.feeding import finish

BATCHES, ROWS = 4, 200
CLOCK_S, FUTURE_US = 100.0, 2 * 86_400 * 1_000_000
SQL = """SELECT a.v, b.v AS w FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS]
         WHERE a.k = b.k AND a.v < 3 AND (a.s = 'x' OR a.s IS NULL) AND b.v IN (1, 5, 7)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The row with the latest time of each batch passes no predicate, some rows are late, and some are of another day: of
    these some pass the predicates."""
    root, rng = tmp_path_factory.mktemp("pushed"), np.random.default_rng(8)
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


ALONE = {
    "join": SQL,
    "rows": "SELECT a.v, a.ts FROM a [NOW] WHERE a.v < 3 AND a.s = 'x'",
    "groups": "SELECT a.k, COUNT(*) AS n FROM a [RANGE 2 SECONDS] WHERE a.v < 3 AND a.s LIKE '%x%' GROUP BY a.k",
}


@pytest.mark.parametrize("way", ["frames", "files"])
def test_rows_stay_behind(spark: SparkSession, folder: Path, tmp_path: Path, way: str) -> None:
    """A join, rows that need no exchange, and groups, each in a pipeline of its own."""
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2, clock=lambda: CLOCK_S, share=False)
    for stream in "ab":
        declare(session, folder, stream, way)
    kept = {name: sinks.memory() for name in ALONE}
    for name, sql in ALONE.items():
        session.query(name, sql, kept[name])
    run = session.start(availableNow=True)
    finish(run)
    assert len(run.pipelines) == len(ALONE)
    for name in ALONE:
        query = session.planning.query(name).query
        check_results(query, folder, kept[name].table())
        law, streams = law_of(query, folder), sorted({s.name for s in query.sources})
        stored = 0
        for number, step in enumerate(run.progress[name][:BATCHES]):
            check_counts(step, law, number, streams)
            assert step.early_rows == dict.fromkeys(streams, 3 * number)
            stored += step.state_rows
        assert sum(law.late[n].get("a", 0) for n in range(BATCHES)) > 0
        assert stored < BATCHES * len(streams) * ROWS * 0.6


def declare(session: Session, folder: Path, stream: str, way: str, lateness: str = "0 seconds", **settings: Any) -> None:
    """Declares a stream over its folder: a DataFrame, or files for our own reader."""
    if way == "frames":
        schema = session.spark.read.parquet(str(folder / stream)).schema
        reader = session.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        session.stream(stream, reader.parquet(str(folder / stream)), "ts", lateness, **settings)
    else:
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts", lateness, max_files_per_trigger=1, **settings)


def batches_of(query: Query, folder: Path) -> list[dict[str, pa.Table]]:
    """The batches of the streams of a query; a stream may have ended."""
    paths = [{s.name: folder / s.name / f"{n:03d}.parquet" for s in query.sources} for n in range(BATCHES)]
    return [{name: plain(pq.read_table(path)) for name, path in batch.items() if path.exists()} for batch in paths]


CLOCKS = [int(CLOCK_S * 1e6)] * (BATCHES + 1)


def law_of(query: Query, folder: Path, clocks: Sequence[int] = CLOCKS) -> oracle.Acceptance:
    return oracle.accepted(batches_of(query, folder), [s for s in query.sources if isinstance(s, Stream)], clocks)


def check_results(query: Query, folder: Path, results: pa.Table, clocks: Sequence[int] = CLOCKS) -> None:
    found = oracle.bag(results.cast(query.output_schema))
    assert found
    wanted = oracle.expected(query, batches_of(query, folder), {}, clocks)
    assert not (wrong := oracle.difference(found, wanted)), f"{query.name}: {wrong}"


def check_counts(step: Progress, law: oracle.Acceptance, number: int, streams: Sequence[str]) -> None:
    """Watermarks, and rows that are late or early, are as if no predicate had gone ahead."""
    assert step.watermark_us == (law.watermarks[number] if law.watermarks[number] is not None else -(2**63))
    assert step.rows == dict.fromkeys(streams, ROWS)
    assert step.late_rows == {s: law.late[number].get(s, 0) for s in streams}
    assert step.early_rows == {s: law.early[number].get(s, 0) for s in streams}


def test_a_stream_that_falls_silent(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """Stream b, of files, ends after its first, and the driver's clock goes on by ten seconds a batch: b is idle after
    twelve. The watermark follows a, a DataFrame."""
    asked: list[float] = []

    def clock() -> float:
        asked.append(100.0 + 10 * len(asked))
        return asked[-1]

    session, inputs = Session(spark, str(tmp_path / "checkpoint"), slots=2, clock=clock), tmp_path / "inputs"
    for stream, way in (("a", "frames"), ("b", "files")):
        (inputs / stream).mkdir(parents=True)
        for number in range(BATCHES if stream == "a" else 1):
            rows = pq.read_table(folder / stream / f"{number:03d}.parquet")
            path = inputs / stream / f"{number:03d}.parquet"
            pq.write_table(rows.filter(pa.compute.less(plain(rows)["ts"].cast(pa.int64()), FUTURE_US)), path)
            os.utime(path, (1000 + number, 1000 + number))
        declare(session, inputs, stream, way, ahead=None, idle="12 seconds")
    kept = sinks.memory()
    session.query("q", SQL, kept)
    run = session.start(availableNow=True)
    finish(run)
    query, clocks = session.planning.query("q").query, [int(at * 1e6) for at in asked]
    law, steps = law_of(query, inputs, clocks), run.progress["q"]
    assert [s.watermark_us for s in steps] == [w if w is not None else -(2**63) for w in law.watermarks]
    assert steps[-1].watermark_us == 4_500_000, "the watermark followed a alone"
    check_results(query, inputs, kept.table(), clocks)


def plain(rows: pa.Table) -> pa.Table:
    return rows.set_column(3, "ts", rows["ts"].cast(pa.timestamp("us")))


# Several queries


TOGETHER = {
    "q": "SELECT a.v, b.v AS w FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k AND a.v < 3 AND b.v < 8",
    "r": "SELECT y.v, z.v AS w FROM a [RANGE 1 SECOND] y, b [NOW] z WHERE y.k = z.k AND y.v < 3 AND z.v > 1",
    "s": "SELECT y.v, z.s FROM a [RANGE 1 SECOND] y, a [NOW] z WHERE y.k = z.k AND y.v = 7 AND z.s = 'x'",
}
"""q and r ask the same of a under different aliases, s something else. Those of b wait for it; a alone goes faster, so that
more rows of a are late for s than for the others."""


@pytest.mark.parametrize("way", ["frames", "files"])
def test_what_no_query_can_use_stays_behind(spark: SparkSession, folder: Path, tmp_path: Path, way: str) -> None:
    """Each query gets what it would get alone; rows that are late for s and not for q and r are not passed over for them.
    In the middle a predicate of r goes above its join, which q asks, too."""
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2, clock=lambda: CLOCK_S)
    for stream, lateness in (("a", "0 seconds"), ("b", "2 seconds")):
        declare(session, folder, stream, way, lateness)
    kept = {name: sinks.memory() for name in TOGETHER}
    for name, sql in TOGETHER.items():
        session.query(name, sql, kept[name])
    run = session.start(availableNow=True)
    run.migrate("r", "(y z)", "moving-state", selects_above={"y": "y z"})
    finish(run)
    assert len(run.pipelines) == 1
    assert "migrating" in [entry.event for entry in run.journal["r"]]
    late = {}
    for name in TOGETHER:
        query = session.planning.query(name).query
        check_results(query, folder, kept[name].table())
        law, streams, steps = law_of(query, folder), sorted({s.name for s in query.sources}), run.progress[name]
        for number, step in enumerate(steps[:BATCHES]):
            check_counts(step, law, number, streams)
        late[name] = sum(step.late_rows["a"] for step in steps)
    assert late["q"] == late["r"] < late["s"]


class Packed:
    """Rows of a stream a as frames bring them, in the packed schema, and a pushdown over them."""

    def __init__(self, spark: SparkSession, *wheres: str) -> None:
        selected = [(n, where.format(i=f"i{n}")) for n, where in enumerate(wheres)]
        queries = [
            f"CREATE QUERY q{n} AS SELECT i{n}.v FROM a i{n}, b WHERE i{n}.v = b.v AND {where} WINDOW 1 SECOND;"
            for n, where in selected
        ]
        streams = "".join(f"CREATE STREAM {s} (v BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
        self.workload = Workload(tuple(bound.query for bound in parse_script(streams + "\n".join(queries)).queries))
        self.columns, self.filters = read_columns(self.workload), source_filters(self.workload)
        times = pa.array([n * 1_000_000 for n in range(10)], pa.timestamp("us", "UTC"))
        numbers = pa.array(range(10), pa.int64())
        frame = spark.createDataFrame(pa.table({"v": numbers, "x": numbers, "ts": times}))
        packing = packing_of(self.columns, dict.fromkeys(self.columns, frame.schema))
        self.pushdown = Pushdown(self.workload, packing, self.filters)
        spread = [(query, Grid()) for query in self.workload.queries]
        rows = pack(frame, packing, spread, self.workload.streams["a"])
        self.frame = self.pushdown.apply(rows)
        self.column = dict(packing.places[packing.sources.index("a")])["x"]

    def passed(self, watermarks: dict[str, int], raised: Sequence[tuple[str, str]] = ()) -> list[int]:
        self.pushdown.set(watermarks, FUTURE_US, raised)
        return sorted(row[0] for row in self.frame.select(self.column).collect())


def test_which_rows_pass_for_several_queries(spark: SparkSession) -> None:
    early = dict.fromkeys(("q0", "q1"), -(2**62))
    # A predicate of two queries is one set. If one of them has it above a join, rows pass; below again, they do not.
    packed = Packed(spark, "{i}.x > 6", "{i}.x > 6")
    (asked,) = packed.filters["a"]
    assert [owner for owner, _ in asked.owners] == ["q0", "q1"]
    assert packed.passed(early) == [7, 8, 9]
    for number in range(2):
        assert packed.passed(early, [(f"q{number}", f"(i{number}.x > 6)")]) == list(range(10))
    assert packed.passed(early) == [7, 8, 9]
    assert packed.passed(early, [("q1", "(i0.x > 6)")]) == [7, 8, 9], "q1 has no such predicate"
    # A row passes that any of them can use. A predicate above a join opens its own set alone.
    packed = Packed(spark, "{i}.x > 7", "{i}.x < 1")
    assert packed.passed(early) == [0, 8, 9]
    assert packed.passed(early, [("q0", "(i0.x > 7)")]) == list(range(10))
    # A row that is late for any reader goes on: it is counted there, for this reader alone.
    packed = Packed(spark, "{i}.x > 7", "{i}.x > 8")
    assert packed.passed({"q0": -(2**62), "q1": 3_000_000}) == [0, 1, 2, 8, 9]
    assert packed.passed({"q0": 4_000_000, "q1": 3_000_000}) == [0, 1, 2, 3, 8, 9]
    assert packed.passed(early) == [8, 9]


STREAM = """CREATE STREAM a (v BIGINT, w INT, x DOUBLE, y DOUBLE, s STRING, d DATE, m DECIMAL(10, 2), ts TIMESTAMP) TIME ts;
            CREATE QUERY q AS SELECT a.v FROM a [NOW] WHERE {where}"""
PUSHED = [
    "a.v < 3", "a.v < 3 AND UPPER(a.s) = 'X'", "NOT (a.s = 'x')", "a.ts > TIMESTAMP '2020-01-01'", "a.s LIKE '%x'",
    "a.s LIKE 'x%y%'", "a.s NOT LIKE '%''%'", "a.x + a.y > 1.5e0", "a.x * 2.0e0 - a.y < 0.0e0", "a.x / a.y > 1.0e0",
    "-a.x > a.y OR ABS(a.y) = 1.0e0", "a.v BETWEEN 1 AND a.w", "a.d >= DATE '2024-02-29'", "YEAR(a.d) = 1999",
    "MONTH(a.d) IN (2, 12) AND DAY(a.d) > 28", "CASE WHEN a.v > 2 THEN a.s = 'x' WHEN a.w IS NULL THEN a.x > 0.0e0 END",
    "COALESCE(a.s, 'none') = 'none'", "LENGTH(a.s) > 1", "TRIM(a.s) = 'x'", "a.s || '!' = 'x!'", "a.m > 1.05", "a.m = a.m",
    "a.m IN (0.10, 2)", "a.x = a.y", "a.x > a.y", "a.w > a.x", "(a.v IN (1, NULL)) IS NULL", "a.x IS NOT NULL AND a.s < 'y'",
    "a.ts IN (TIMESTAMP '2024-02-29 12:00:00.000001')", "a.v <> 2 AND a.w <> 2",
]  # fmt: skip
LEFT = [
    "UPPER(a.s) = 'X'", "a.v < 3 OR UPPER(a.s) = 'X'", "a.v + 1 < 3", "a.s LIKE 'x_'", "a.s LIKE 'x\\%'", "HOUR(a.ts) = 12",
    "SUBSTRING(a.s, 2) = 'y'", "a.m + a.m > 2", "CAST(a.s AS BIGINT) = 2",
]  # fmt: skip


def filters_of(where: str) -> tuple[Expr, ...]:
    return parse_script(STREAM.format(where=where)).queries[0].query.inputs[0].filters


@pytest.mark.parametrize("where", LEFT)
def test_what_spark_does_not_evaluate(where: str) -> None:
    assert spark_filter([filters_of(where)], {c: c for c in "vwxysdm"} | {"ts": "ts"}, ["ts"]) is None


def test_spark_finds_the_same_rows(spark: SparkSession) -> None:
    """Spark passes a row where the engine does; where it cannot tell all of a predicate, it may pass more."""
    rng, rows = np.random.default_rng(4), 3000

    def drawn(values: list[object], type: pa.DataType) -> pa.Array:
        return pa.array([values[i] for i in rng.integers(0, len(values), rows)], type)

    decimals = [None, *map(Decimal, ("0.10", "1.05", "1.06", "2.00", "-3.33"))]
    times = [datetime(2020, 1, 1), datetime(2024, 2, 29, 12, 0, 0, 1), datetime(1969, 7, 20, 20, 17)]
    floats = [None, 0.0, -0.0, 1.0, -1.0, 0.5, 3.25, float("nan"), float("inf"), -float("inf"), 1e308]
    table = pa.table({
        "v": drawn([None, 0, 1, 2, 3, -5, 2**62], pa.int64()), "w": drawn([None, 0, 1, 2, -7, 2**31 - 1], pa.int32()),
        "x": drawn(floats, pa.float64()), "y": drawn(floats, pa.float64()),
        "s": drawn([None, "", "x", "y", " x ", "xy", "x%y", "it's", "Grüße, 𝄞x", "none", "x\ny"], pa.string()),
        "d": drawn([None, date(1999, 12, 31), date(2024, 2, 29), date(2024, 3, 1), date(1969, 2, 28)], pa.date32()),
        "m": drawn(decimals, pa.decimal128(10, 2)), "ts": drawn(times, pa.timestamp("us")),
    })  # fmt: skip
    zoned = table.set_column(7, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
    texts = {w: spark_filter([filters_of(w)], {c: c for c in table.column_names}, ["ts"]) for w in PUSHED}
    assert not (missed := [w for w, text in texts.items() if text is None]), missed
    columns = [f"coalesce({text}, FALSE) AS p{i}" for i, text in enumerate(texts.values())]
    passed = spark.createDataFrame(zoned).selectExpr(*columns).toArrow()
    batch = table.combine_chunks().to_batches()[0]
    for i, where in enumerate(texts):
        by_spark = passed[f"p{i}"].to_numpy()
        ours = predicate_mask(filters_of(where), lambda c: batch.column(c.name), rows)
        assert ours is not None
        if "UPPER" in where:
            assert (by_spark | ~ours).all(), where
        else:
            assert (by_spark == ours).all(), (where, table.filter(pa.array(by_spark != ours)).slice(0, 3).to_pylist())
        assert 0 < ours.sum() < rows, f"{where} tells no rows apart"
