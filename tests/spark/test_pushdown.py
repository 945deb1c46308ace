"""Predicates before the exchange: rows stay behind, results, watermarks and counts do not change."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.engine.expressions import predicate_mask
from anabranch.plan.expression import Expr
from anabranch.session import Session
from anabranch.spark import sinks
from anabranch.spark.pushdown import spark_filter
from anabranch.sql import parse_script
from tests.support.feeding import finish
from tests.support.pushed import (
    BATCHES,
    CLOCK_S,
    ROWS,
    WAYS,
    Packed,
    check_counts,
    check_results,
    declare,
    law_of,
    write_pushed,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pushed(tmp_path_factory.mktemp("pushed"))


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
