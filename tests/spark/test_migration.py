"""Plans change while queries run on Spark: results are exactly once, whatever the strategy, and across failures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import MigrationError, PlanError, SessionError
from anabranch.session import Run, Session
from anabranch.settings import Adapt
from anabranch.spark import sinks
from tests.support.feeding import Feed, expected, finish
from tests.support.feeding import bag as feeding_bag
from tests.support.migrating import PREDICATES, busy, random_selects
from tests.support.oracle import bag, difference
from tests.support.scenarios import Scenario
from tests.support.uneven_streams import BATCHES, SQL, session_of, wanted, write_streams

PLANS = ("((a b) c)", "(a (b c))", "(a b c)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_streams(tmp_path_factory.mktemp("streams"))


def events(run: Run) -> list[str]:
    return [e.event for e in run.journal["q"]]


class Script:
    """A sink that collects results, and does something in the middle of some batches."""

    def __init__(self, actions: dict[int, Any]) -> None:
        self.actions, self.run, self.rows = actions, None, {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows[batch] = frame.toArrow()
        if batch in self.actions:
            self.actions.pop(batch)(self.run)

    def bag(self) -> Any:
        return sum((bag(rows) for rows in self.rows.values()), bag(next(iter(self.rows.values())).slice(0, 0)))


def started(spark: SparkSession, data: Path, checkpoint: Path, script: Script, **options: Any) -> tuple[Session, Run]:
    session = session_of(spark, data, checkpoint, script, **options)
    run = session.start(availableNow=True)
    script.run = run
    return session, run


@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track", "gradual", None])
def test_a_plan_is_changed_by_request(spark: SparkSession, folder: Path, tmp_path: Path, strategy: str | None) -> None:
    script = Script({
        1: lambda run: run.migrate("q", PLANS[1], strategy, pause="20 milliseconds"),
        7: lambda run: run.migrate("q", PLANS[0], strategy),
    })  # fmt: skip
    session, run = started(spark, folder, tmp_path / "checkpoint", script, adapt=Adapt("never"))
    finish(run)
    assert script.bag() == wanted(session, folder)
    assert events(run).count("migrating") == 2
    assert events(run).count("migrated") == 2
    assert run.plans["q"] == PLANS[0]
    told = next(e for e in run.journal["q"] if e.event == "migrating")
    assert {"moving-state", "parallel-track", "gradual"} == set(told.details["estimates"])
    if strategy is not None:
        assert told.details["strategy"] == strategy
    if strategy == "parallel-track":
        on_the_way = [p for p in run.progress["q"] if p.target is not None]
        assert 4 <= len(on_the_way) <= 12, "two migrations of a window each"


def test_a_migration_is_interrupted_and_cancelled(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    script = Script({
        1: lambda run: run.migrate("q", PLANS[1], "parallel-track"),
        3: lambda run: run.migrate("q", PLANS[2], "gradual"),
        6: lambda run: run.migrate("q", PLANS[1], "parallel-track"),
        7: lambda run: run.migrate("q", PLANS[2]),
    })  # fmt: skip
    session, run = started(spark, folder, tmp_path / "checkpoint", script, adapt=Adapt("never"))
    finish(run)
    assert script.bag() == wanted(session, folder)
    assert "cancelled" in events(run)
    assert run.plans["q"] == PLANS[2]


@pytest.mark.parametrize("strategy", ["parallel-track", "gradual"])
def test_a_migration_survives_a_stop(spark: SparkSession, folder: Path, tmp_path: Path, strategy: str) -> None:
    script = Script({2: lambda run: run.migrate("q", PLANS[1], strategy, pause="1 microsecond"), 4: lambda run: run.stop()})
    session, run = started(spark, folder, tmp_path / "checkpoint", script, adapt=Adapt("never"))
    finish(run)
    again = session.start(availableNow=True)
    script.run = again
    finish(again)
    assert script.bag() == wanted(session, folder), "a batch that runs again gives the same rows"
    assert "migrated" in events(again)
    assert again.plans["q"] == PLANS[1]


def test_a_change_waits_for_approval(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    agreed: list[bool] = []
    script = Script({BATCHES - 3: lambda run: agreed.append(run.approve("q"))})
    session, run = started(spark, folder, tmp_path / "checkpoint", script, adapt=Adapt(approve=True))
    before = run.plans["q"]
    finish(run)
    assert script.bag() == wanted(session, folder)
    assert agreed == [True]
    assert events(run).index("proposed") < events(run).index("migrating")
    assert run.plans["q"] != before
    assert run.approve("q") is False


def test_what_cannot_be_asked_for(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    session = session_of(spark, folder, tmp_path / "checkpoint")
    session.query("forever", SQL.replace("[RANGE 4 SECONDS], b", "[UNBOUNDED], b"), sinks.memory())
    run = session.start(processingTime="1 hour")
    try:
        with pytest.raises(SessionError, match="no query nothing runs; running are: q, forever"):
            run.migrate("nothing", PLANS[0])
        with pytest.raises(PlanError, match="lacks c"):
            run.migrate("q", "(a b)")
        with pytest.raises(SessionError, match="'slowly' is not a strategy"):
            run.migrate("q", PLANS[0], "slowly")
        with pytest.raises(MigrationError, match=r"\[UNBOUNDED\] never do: take moving-state or gradual"):
            run.migrate("forever", PLANS[1], "parallel-track")
    finally:
        run.stop()
    with pytest.raises(SessionError, match="'often' is not a timing"):
        Adapt("often")


def test_a_pinned_query_stays_until_it_is_unpinned(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    script = Script({})
    session, run = started(spark, folder, tmp_path / "checkpoint", script)
    run.pin("q")
    finish(run)
    assert "migrating" not in events(run)
    assert script.bag() == wanted(session, folder)


def test_results_in_parquet_are_exactly_once(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    session = session_of(spark, folder, tmp_path / "checkpoint", sinks.parquet(str(out)), adapt=Adapt("never"))
    run = session.start(availableNow=True)
    for plan in (*PLANS[1:], PLANS[0]):
        run.migrate("q", plan, "gradual", pause="1 microsecond")
    finish(run)
    assert bag(pq.read_table(out, columns=["v", "w", "x"])) == wanted(session, folder)


@pytest.mark.parametrize("seed", [1, 2, 3, 103])
def test_random_migrations(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    migrate_at_random(spark, tmp_path, seed)


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


GROUPED = """SELECT a.l, COUNT(*) AS n, MAX(b.l) AS m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]
             WHERE a.k = b.k AND a.v < 900 GROUP BY a.l"""


@pytest.mark.parametrize("key", ["l", "k"])
def test_groups_go_below_a_join_and_above_it_again(
    spark: SparkSession, folder: Path, tmp_path: Path, key: str
) -> None:
    """Groups by the key that rows are spread by, and by another, of which slots have parts; with a stop on the way."""
    script = Script({
        2: lambda run: run.migrate("q", "(a b)", "moving-state", groups_below="b"),
        5: lambda run: run.migrate("q", "(b a)", "parallel-track", groups_below=""),
        6: lambda run: run.stop(),
        9: lambda run: run.migrate("q", "(a b)", "parallel-track", groups_below="b"),
    })  # fmt: skip
    sql = GROUPED.replace("a.l,", f"a.{key},").replace("BY a.l", f"BY a.{key}")
    session, run = started(spark, folder, tmp_path / "checkpoint", script, adapt=Adapt("never"), sql=sql)
    assert session.planning.query("q").execution.grouped_input is None
    finish(run)
    run = script.run = session.start(availableNow=True)  # type: ignore[assignment]
    finish(run)
    assert script.bag() == wanted(session, folder)
    assert events(run).count("migrating") == 3
    assert events(run).count("migrated") >= 2
    assert "b grouped first" in run.plans["q"]
    with pytest.raises(MigrationError, match="cannot be grouped before they are joined"):
        run.migrate("q", "(a b)", groups_below="c")
    with pytest.raises(MigrationError, match="one after the other"):
        run.migrate("q", "(a b)", groups_below="", selects_above={})
    with pytest.raises(MigrationError, match="have groups above the join before a select goes there"):
        run.migrate("q", "(a b)", selects_above={"a": "a b"})


@pytest.mark.parametrize("way", ["files", "frames"])
@pytest.mark.parametrize("strategy", ["moving-state", "parallel-track"])
def test_a_select_goes_above_a_join_and_down_again(spark: SparkSession, tmp_path: Path, way: str, strategy: str) -> None:
    """Where it stands above the join, neither Spark nor the reader nor the box drops a row for it."""
    create = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    sql = "SELECT b.x FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k AND a.x < 5"
    rng = np.random.default_rng(8)
    cut = tuple(
        {s: [(int(k), int(x), n * 1_000_000) for k, x in rng.integers(0, 10, (20, 2))] for s in "ab"} for n in range(14)
    )
    scenario = Scenario(f"{create} CREATE QUERY q AS {sql}", ("(a b)",), cut)
    stored: list[int] = []

    def note(run: Run) -> None:
        stored.append(run.pipeline("q").host.driver.newest.queries["q"].statistics.sources["a"].stored_rows)
        if len(stored) == 3:
            run.migrate("q", "(a b)", strategy, selects_above={"a": "a b"})
            with pytest.raises(MigrationError, match=r"b.x names no predicate of one input; there are: \(a.x < 5\)"):
                run.migrate("q", "(a b)", selects_above={"b.x": "a b"})
        elif len(stored) == 7:
            run.migrate("q", "(a b)", strategy, selects_above={})

    script = Script(dict.fromkeys(range(14), note))
    feed = Feed(scenario, str(tmp_path), way)
    feed.write(range(14))
    run = script.run = feed.session(spark, script, slots=2).start(availableNow=True)  # type: ignore[assignment]
    finish(run)
    found = sum((feeding_bag(rows, scenario) for rows in script.rows.values()), Counter())
    assert not (wrong := difference(found, expected(scenario))), wrong
    passing = [sum(x < 5 for _, x, _ in rows["a"]) for rows in cut]
    assert stored == [*passing[:3], *[20] * 4, *passing[7:]]
    plans = [p.plan for p in run.progress["q"]][:14]
    down = {"moving-state": [], "parallel-track": ["(a b), (a.x < 5) above (a b) for old rows"] * 4}[strategy]
    assert plans == [*["(a b)"] * 3, *["(a b), (a.x < 5) above (a b)"] * 4, *down, *["(a b)"] * (7 - len(down))]
    assert events(run).count("migrating") == events(run).count("migrated") == 2
