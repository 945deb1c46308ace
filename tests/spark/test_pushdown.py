"""Predicates before the exchange: rows stay behind, results, watermarks and counts do not change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

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
WAYS = ("frames", "files")
"""How streams are read: by Spark, as DataFrames, and by our own reader. Streams are named after it: frames_a, files_a, …"""


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
    "join": """SELECT a.v, b.v AS w FROM {way}_a [RANGE 2 SECONDS] AS a, {way}_b [RANGE 2 SECONDS] AS b
               WHERE a.k = b.k AND a.v < 3 AND (a.s = 'x' OR a.s IS NULL) AND b.v IN (1, 5, 7)""",
    "rows": "SELECT a.v, a.ts FROM {way}_a [NOW] AS a WHERE a.v < 3 AND a.s = 'x'",
    "groups": """SELECT a.k, COUNT(*) AS n FROM {way}_a [RANGE 2 SECONDS] AS a
                 WHERE a.v < 3 AND a.s LIKE '%x%' GROUP BY a.k""",
}


def both_ways(queries: dict[str, str]) -> dict[str, str]:
    """Queries over streams that are read in either way."""
    return {f"{name}_of_{way}": sql.format(way=way) for way in WAYS for name, sql in queries.items()}


def test_rows_stay_behind(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """A join, rows that need no exchange, and groups, each in a pipeline of its own."""
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2, clock=lambda: CLOCK_S, share=False)
    declare(session, folder, {"a": "0 seconds", "b": "0 seconds"})
    asked = both_ways(ALONE)
    kept = {name: sinks.memory() for name in asked}
    for name, sql in asked.items():
        session.query(name, sql, kept[name])
    run = session.start(availableNow=True)
    finish(run)
    assert len(run.pipelines) == len(asked)
    for name in asked:
        query = session.planning.query(name).query
        check_results(query, folder, kept[name].table())
        law, streams = law_of(query, folder), sorted({s.name for s in query.sources})
        stored = 0
        for number, step in enumerate(run.progress[name][:BATCHES]):
            check_counts(step, law, number, streams)
            assert step.early_rows == dict.fromkeys(streams, 3 * number), name
            stored += step.state_rows
        assert sum(law.late[n].get(streams[0], 0) for n in range(BATCHES)) > 0
        assert stored < BATCHES * len(streams) * ROWS * 0.6, name


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


# Several queries


TOGETHER = {
    "q": """SELECT a.v, b.v AS w FROM {way}_a [RANGE 2 SECONDS] AS a, {way}_b [RANGE 2 SECONDS] AS b
            WHERE a.k = b.k AND a.v < 3 AND b.v < 8""",
    "r": """SELECT y.v, z.v AS w FROM {way}_a [RANGE 1 SECOND] y, {way}_b [NOW] z
            WHERE y.k = z.k AND y.v < 3 AND z.v > 1""",
    "s": """SELECT y.v, z.s FROM {way}_a [RANGE 1 SECOND] y, {way}_a [NOW] z
            WHERE y.k = z.k AND y.v = 7 AND z.s = 'x'""",
}
"""q and r ask the same of a under different aliases, s something else. Those of b wait for it; a alone goes faster, so that
more rows of a are late for s than for the others."""


def test_what_no_query_can_use_stays_behind(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """Each query gets what it would get alone; rows that are late for s and not for q and r are not passed over for them.
    In the middle a predicate of r goes above its join, which q asks, too."""
    session = Session(spark, str(tmp_path / "checkpoint"), slots=2, clock=lambda: CLOCK_S)
    declare(session, folder, {"a": "0 seconds", "b": "2 seconds"})
    asked = both_ways(TOGETHER)
    kept = {name: sinks.memory() for name in asked}
    for name, sql in asked.items():
        session.query(name, sql, kept[name])
    run = session.start(availableNow=True)
    for way in WAYS:
        run.migrate(f"r_of_{way}", "(y z)", "moving-state", selects_above={"y": "y z"})
    finish(run)
    assert [sorted(pipeline.members) for pipeline in run.pipelines] == [[f"{n}_of_{way}" for n in TOGETHER] for way in WAYS]
    late = {}
    for name in asked:
        query = session.planning.query(name).query
        check_results(query, folder, kept[name].table())
        law, streams, steps = law_of(query, folder), sorted({s.name for s in query.sources}), run.progress[name]
        for number, step in enumerate(steps[:BATCHES]):
            check_counts(step, law, number, streams)
        late[name] = sum(step.late_rows[streams[0]] for step in steps)
    for way in WAYS:
        assert "migrating" in [entry.event for entry in run.journal[f"r_of_{way}"]]
        assert late[f"q_of_{way}"] == late[f"r_of_{way}"] < late[f"s_of_{way}"]


class Packed:
    """Rows of a stream a as frames bring them, in the packed schema, and a pushdown over them."""

    def __init__(self, spark: SparkSession, *wheres: str, sheds: bool = False, untimed: Sequence[int] = ()) -> None:
        selected = [(n, where.format(i=f"i{n}")) for n, where in enumerate(wheres)]
        queries = [
            f"CREATE QUERY q{n} AS SELECT i{n}.v FROM a i{n}, b WHERE i{n}.v = b.v AND {where} WINDOW 1 SECOND;"
            for n, where in selected
        ]
        streams = "".join(f"CREATE STREAM {s} (v BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
        self.workload = Workload(tuple(bound.query for bound in parse_script(streams + "\n".join(queries)).queries))
        self.columns, self.filters = read_columns(self.workload), source_filters(self.workload)
        times = pa.array([None if n in untimed else n * 1_000_000 for n in range(10)], pa.timestamp("us", "UTC"))
        numbers = pa.array(range(10), pa.int64())
        frame = spark.createDataFrame(pa.table({"v": numbers, "x": numbers, "ts": times}))
        packing = packing_of(self.columns, dict.fromkeys(self.columns, frame.schema))
        self.pushdown = Pushdown(self.workload, packing, self.filters, sheds)
        spread = [(query, Grid()) for query in self.workload.queries]
        rows = pack(frame, packing, spread, self.workload.streams["a"])
        self.frame = self.pushdown.apply(rows)
        self.column = dict(packing.places[packing.sources.index("a")])["x"]

    def passed(
        self,
        watermarks: dict[str, int],
        raised: Sequence[tuple[str, str]] = (),
        shed: dict[str, float] | None = None,
        salt: int = 0,
    ) -> list[int]:
        self.pushdown.set(watermarks, FUTURE_US, raised, shed, salt)
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
    # So does a row that has no time.
    packed = Packed(spark, "{i}.x > 7", "{i}.x > 8", untimed=[2, 9])
    assert packed.passed(early) == [2, 8, 9]


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
