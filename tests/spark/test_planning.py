"""Plans that a session chooses by itself: at first on defaults, then on what was measured."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.loop import FIRST_BATCHES
from anabranch.cost.facts import Given
from anabranch.errors import SessionError
from anabranch.optimize.planner import NoQualifiedPlanError
from anabranch.session import Budget
from anabranch.spark import sinks
from tests.support.feeding import finish
from tests.support.oracle import bag
from tests.support.uneven_streams import ROWS, SQL, session_of, wanted, write_streams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("streams"))


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
    del session.planning.queries["q"]
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
