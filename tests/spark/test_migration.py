"""Plans change while queries run on Spark: in workers that keep state, before the exchange, and across a stop. What else may
be asked of a run is tested without Spark (`tests/drive/test_asking.py`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from anabranch.adapt.loop import FIRST_BATCHES
from anabranch.control.records import Commit
from anabranch.errors import MigrationError
from anabranch.session import Run
from anabranch.settings import Adapt
from anabranch.spark import sinks
from tests.support.feeding import Feed, expected, finish
from tests.support.feeding import bag as feeding_bag
from tests.support.migrating import PREDICATES, a_select_that_moves, busy, check_select_moves, random_selects
from tests.support.oracle import bag, difference
from tests.support.script import Script
from tests.support.uneven_streams import BATCHES, ROWS, SQL, session_of, wanted, write_streams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("streams"))


def events(run: Run) -> list[str]:
    return [e.event for e in run.journal["q"]]


GROUPED = """SELECT a.l, COUNT(*) AS n, MAX(b.l) AS m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]
             WHERE a.k = b.k AND a.v < 900 GROUP BY a.l"""
"""Groups by another key than that which rows are spread by: slots have parts of them."""


def test_groups_go_below_a_join_and_above_it_again(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """By request, with a stop on the way."""
    script = Script({
        2: lambda run: run.migrate("q", "(a b)", "moving-state", groups_below="b"),
        5: lambda run: run.migrate("q", "(b a)", "parallel-track", groups_below=""),
        6: lambda run: run.stop(),
        9: lambda run: run.migrate("q", "(a b)", "parallel-track", groups_below="b"),
    })  # fmt: skip
    session = session_of(spark, folder, tmp_path / "checkpoint", script, adapt=Adapt("never"), sql=GROUPED)
    assert session.planning.query("q").execution.grouped_input is None
    for _ in range(2):
        run = script.run = session.start(availableNow=True)  # type: ignore[assignment]
        finish(run)
    assert script.bag() == wanted(session, folder)
    assert events(run).count("migrating") == 3
    assert events(run).count("migrated") >= 2
    assert "b grouped first" in run.plans["q"]


def test_a_query_is_planned_again_while_it_runs(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """When its change is approved; one whose plan is pinned stays as it is."""
    agreed, runs = list[bool](), list[Run]()

    def approving(results: pa.Table, number: int) -> None:
        if number == BATCHES - 3:
            agreed.append(runs[0].approve("q"))

    out = sinks.parquet(str(tmp_path / "out"))
    session = session_of(spark, folder, tmp_path / "checkpoint", out, adapt=Adapt(approve=True))
    session.query("pinned", SQL, sinks.arrow(approving), plan="((a b) c)")
    run = session.start(availableNow=True)
    runs.append(run)
    before = run.plans["q"]
    finish(run)
    assert agreed == [True]
    said = next(e for e in run.journal["q"] if e.event in ("proposed", "kept"))
    assert (said.event, said.batch) == ("proposed", FIRST_BATCHES), said.text
    assert said.details["rates"]["a"] == pytest.approx(ROWS["a"], rel=0.2)
    assert events(run).index("proposed") < events(run).index("migrating")
    assert (events(run)[0], events(run)[-1]) == ("started", "ended")
    assert run.plans["q"] != before
    assert run.plans["pinned"] == "((a b) c)"
    assert {e.event for e in run.journal["pinned"]} == {"started", "ended"}
    assert bag(pq.read_table(tmp_path / "out", columns=["v", "w", "x"])) == wanted(session, folder)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_random_migrations_long(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    migrate_at_random(spark, tmp_path, seed)


def migrate_at_random(spark: SparkSession, at: Path, seed: int) -> None:
    """Random plans, places of selects and strategies at random batches, with a restart in the middle, over two slots."""
    rng = np.random.default_rng(seed)
    scenario = busy(seed, int(rng.integers(3, 5)), 10, PREDICATES)
    feed = Feed(scenario, str(at), ("files", "frames")[seed % 2])

    def migrate(run: Run) -> None:
        plan, strategy = scenario.plans[rng.integers(4)], str(rng.choice(["moving-state", "parallel-track", "gradual"]))
        pause, selects = f"{rng.integers(1, 20)} milliseconds", random_selects(scenario.query, int(rng.integers(100)))
        try:
            run.migrate("q", plan, strategy, pause, selects_above=selects if rng.random() < 0.7 else None)
        except MigrationError:
            assert strategy == "parallel-track"
            run.migrate("q", plan, "gradual", pause, selects_above=selects)

    script = Script({int(n): migrate for n in rng.integers(0, 10, 5)})
    for batches in (range(6), range(6, 10)):
        feed.write(batches)
        run = feed.session(spark, script, slots=2).start(availableNow=True)
        script.run = run
        finish(run)
    found = sum((feeding_bag(rows, scenario) for rows in script.rows.values()), Counter())
    assert not (wrong := difference(found, expected(scenario))), wrong


class Moving:
    """A query that runs, and asks for its select to go above the join, and down again; `way` is how its streams are read."""

    def __init__(self, spark: SparkSession, folder: Path, way: str, strategy: str) -> None:
        self.scenario, self.strategy, self.commits = a_select_that_moves(), strategy, list[Commit]()
        feed, self.script = Feed(self.scenario, str(folder), way), Script(dict.fromkeys(range(14), self.note))
        feed.write(range(14))
        self.script.run = self.run = feed.session(spark, self.script, slots=2).start(availableNow=True)

    def note(self, run: Run) -> None:
        newest = run.pipeline("q").host.driver.newest
        assert newest is not None
        self.commits.append(newest)
        if len(self.commits) == 3:
            run.migrate("q", "(a b)", self.strategy, selects_above={"a": "a b"})
        elif len(self.commits) == 7:
            run.migrate("q", "(a b)", self.strategy, selects_above={})

    def check(self) -> None:
        finish(self.run)
        found = sum((feeding_bag(rows, self.scenario) for rows in self.script.rows.values()), Counter())
        assert not (wrong := difference(found, expected(self.scenario))), wrong
        plans = [step.plan for step in self.run.progress["q"]]
        check_select_moves(self.scenario, self.strategy, list(zip(self.commits, plans, strict=False)))


def test_selects_go_above_a_join_and_down_again(spark: SparkSession, tmp_path: Path) -> None:
    """Where a select stands above the join, neither Spark nor the reader nor the box drops a row for it."""
    Moving(spark, tmp_path / "files", "files", "parallel-track").check()
    Moving(spark, tmp_path / "frames", "frames", "moving-state").check()
