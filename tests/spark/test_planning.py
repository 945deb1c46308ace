"""Plans that a session chooses by itself: at first on defaults, then on what was measured."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.loop import FIRST_BATCHES, SURE_BATCHES
from anabranch.cost.facts import Given
from anabranch.errors import SessionError
from anabranch.optimize.planner import NoQualifiedPlanError
from anabranch.session import Budget, Session
from anabranch.spark import sinks
from tests.oracle import bag, expected, joined
from tests.spark.feeding import finish

SQL = """SELECT a.v, b.v AS w, c.v AS x FROM a [RANGE 4 SECONDS], b [RANGE 4 SECONDS], c [RANGE 4 SECONDS]
         WHERE a.k = b.k AND b.l = c.l"""
ROWS = {"a": 60, "b": 60, "c": 6}
BATCHES = SURE_BATCHES + 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a and b meet often, c is rare: what the defaults take for equal is not."""
    root, rng = tmp_path_factory.mktemp("streams"), np.random.default_rng(3)
    for stream, rows in ROWS.items():
        (root / stream).mkdir()
        for number in range(BATCHES):
            times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows))
            table = pa.table({
                "k": rng.integers(0, 5, rows), "l": rng.integers(0, 400, rows), "v": rng.integers(0, 1000, rows),
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
            })  # fmt: skip
            path = root / stream / f"{number:03d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1000 + number, 1000 + number))
    return root


def session_of(
    spark: SparkSession, folder: Path, checkpoint: Path, sink: object = None, sql: str = SQL, **options: object
) -> Session:
    session = Session(spark, str(checkpoint), slots=2, **options)  # type: ignore[arg-type]
    for stream in ROWS:
        session.stream(stream, f"{folder}/{stream}/*.parquet", "ts", max_files_per_trigger=1)
    session.query("q", sql, sink or sinks.memory())  # type: ignore[arg-type]
    return session


def wanted(session: Session, folder: Path) -> object:
    rows = {s: pq.read_table(folder / s) for s in ROWS}
    plain = {s: t.set_column(3, "ts", t["ts"].cast(pa.timestamp("us"))) for s, t in rows.items()}
    query = session._declared("q").forms.written
    return joined(query, plain) if query.grouping is None else expected(query, [plain], {})


def test_a_query_is_planned_again_while_it_runs(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    session = session_of(spark, folder, tmp_path / "checkpoint", sinks.parquet(str(tmp_path / "out")))
    run = session.start(availableNow=True)
    before = run.plans["q"]
    finish(run)
    events = [e.event for e in run.journal["q"]]
    assert events[0] == "started"
    assert events[-1] == "ended"
    assert "migrating" in events or "kept" in events
    review = next(e for e in run.journal["q"] if e.event in ("migrating", "kept"))
    assert review.batch == FIRST_BATCHES
    assert review.details["rates"]["a"] == pytest.approx(ROWS["a"], rel=0.2)
    assert review.event == "migrating", review.text
    assert "migrated" in events
    assert run.plans["q"] != before
    assert bag(pq.read_table(tmp_path / "out", columns=["v", "w", "x"])) == wanted(session, folder)


def test_a_pinned_plan_stays(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    session = session_of(spark, folder, tmp_path / "checkpoint")
    session.query("pinned", SQL, sinks.memory(), plan="((a b) c)")
    del session._queries["q"]
    run = session.start(availableNow=True)
    finish(run)
    assert run.plans == {"pinned": "((a b) c)"}
    assert {e.event for e in run.journal["pinned"]} == {"started", "ended"}


def test_facts_and_budgets(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    known = Given({"a": 60.0, "b": 60.0, "c": 6.0}, {}, {"a.k": 5.0, "b.l": 400.0})
    session = session_of(spark, folder, tmp_path / "checkpoint", facts=known, budget=Budget(1.0, "1 GiB"))
    text = session.explain("q")
    assert "cores of 1" in text
    assert "of 1 GiB" in text
    with pytest.raises(NoQualifiedPlanError, match="memory"):
        session_of(spark, folder, tmp_path / "other", budget=Budget(memory=10, strict=True))
    with pytest.raises(SessionError, match="cannot be negative"):
        session_of(spark, folder, tmp_path / "other", budget=Budget(cpu=-1))
