"""Queries that come, change and go while a session runs on Spark; commands from outside; what a restart makes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.cli import main
from anabranch.control.commands import COMMANDS, REFUSED
from anabranch.control.ledger import commits_in
from anabranch.control.spark_streams import BEFORE_NAMES, SOURCE_EVOLUTION, STREAMS, read_streams
from anabranch.drive.runner import Runner
from anabranch.errors import AnabranchError, SessionError
from anabranch.plan.query import Query
from anabranch.run import Run
from anabranch.spark.host import Host
from anabranch.sql import bind_query, parse_script
from anabranch.storage.filesystem import LocalFilesystem
from anabranch.storage.record import seal
from tests.support import oracle
from tests.support.feeding import wait_until
from tests.support.pipelines import Piped, Target
from tests.support.workloads import Workload

PAIRS = "SELECT i0.x AS x0, i1.s AS s1 FROM a [RANGE 5 SECONDS] AS i0, b [RANGE 5 SECONDS] AS i1 WHERE i0.k = i1.k"
SHORT = PAIRS.replace("5 SECONDS", "2 SECONDS") + " AND i0.x > 2"
NARROW = SHORT.replace("i0.x AS x0, ", "")
COLUMN = "SELECT i0.s AS s0, i1.j AS j1 FROM a [RANGE 5 SECONDS] AS i0, b [RANGE 5 SECONDS] AS i1 WHERE i0.k = i1.k"
MORE = "SELECT i0.j AS j0, i1.j AS j1 FROM a [RANGE 5 SECONDS] AS i0, b [RANGE 5 SECONDS] AS i1 WHERE i0.k = i1.k"
THIRD = "SELECT i0.x AS x0, i1.x AS x1 FROM a [RANGE 3 SECONDS] AS i0, c [RANGE 3 SECONDS] AS i1 WHERE i0.k = i1.k"
ALONE = "SELECT i0.x AS x0, COUNT(*) AS n FROM c [RANGE 3 SECONDS] AS i0 GROUP BY i0.x"
BATCHES = 8


class Gate:
    """Lets triggers pass up to one. All files are there from the start, one of each stream a trigger."""

    allowed, is_shut = -1, False

    def through(self, step: Callable[..., None]) -> Callable[..., None]:
        def gated(runner: Runner, trigger: int, tasks: Any) -> None:
            while trigger > self.allowed and not runner._is_over:
                if self.is_shut:
                    raise RuntimeError("the test is over")
                sleep(0.01)
            step(runner, trigger, tasks)

        return gated


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(Runner, "step", made.through(Runner.step))
    return made


class Growing(Piped):
    """A session that runs, to which batches are brought one by one."""

    gate: Gate

    def bring(self, run: Run, number: int) -> None:
        """A batch, and waits until all pipelines have it."""
        self.gate.allowed = number
        wait_until(lambda: all(self.batch_of(p.name) >= number for p in run.pipelines))

    def end(self, run: Run) -> None:
        self.gate.is_shut = True
        run.stop()
        self.gate.is_shut = False

    def batch_of(self, pipeline: str) -> int:
        """How many batches of input a pipeline has committed, but one; closing steps are none."""
        latest = commits_in(LocalFilesystem(f"{self.folder}/checkpoint/{pipeline}")).latest()
        return -1 if latest is None else latest[1].trigger

    def bound(self, name: str, sql: str) -> Query:
        return bind_query(name, sql, parse_script(self.drawn.script).catalog)

    def stay(self, name: str, sql: str, first: int, since: int, last: int = BATCHES, closes: bool = True) -> oracle.Bag:
        """What a query gives from its first batch on."""
        query = self.bound(name, sql)
        read = {source.name for source in query.base_sources}
        own = [{n: r for n, r in batch.items() if n in read} for batch in self.batches[:last]]
        return oracle.expected_of_stay(query, own, {}, first, since, closes)

    def with_third(self, begins: int, passed: Collection[int] = ()) -> list[dict[str, pa.Table]]:
        """The rows of a and c in each batch, if c is read from the beginning from a batch on, but for some batches."""
        found = []
        for number in range(BATCHES + begins):
            own = {"a": self.batches[number]["a"]} if number < BATCHES and "a" in self.batches[number] else {}
            place = number - begins
            if place >= 0 and number not in passed and "c" in self.batches[place]:
                own["c"] = self.batches[place]["c"]
            found.append(own)
        return found

    def planned(self, trigger: int) -> None:
        """Waits until Spark has planned a trigger, which the gate holds."""
        wait_until(lambda: Path(f"{self.folder}/checkpoint/pipeline-0/spark/offsets/{trigger}").exists())

    def require(self, name: str, wanted: oracle.Bag) -> None:
        assert wanted
        assert not (wrong := oracle.difference(self.target(name).found(), wanted)), f"{name}: {wrong}"


def growing(folder: Path, gate: Gate, route: str = "files") -> Growing:
    made = Growing(Workload(35, 0, BATCHES), str(folder), route, {"pairs": PAIRS}, {"idle_close": None})
    made.gate = gate
    made.write(range(BATCHES))
    made.targets["pairs"] = Target("parquet", str(folder / "out" / "pairs"))
    return made


def test_queries_come_change_and_go(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], gate: Gate
) -> None:
    """One shares the join of the query that runs, one reads a column that nobody has read, one has no stream in common with
    it. A restart goes on with all of them."""
    case = growing(tmp_path, gate)
    case.targets["short"], case.targets["column"] = Target("arrow", ""), Target("parquet", str(tmp_path / "out" / "column"))
    case.targets["third"] = Target("memory", "")
    for name in ("early", "more"):
        case.targets[name] = Target("parquet", str(tmp_path / "out" / name))
    run = case.session(spark).start()
    try:
        case.bring(run, 0)
        case.bring(run, 1)
        with pytest.raises(SessionError, match="short cannot have history: no query keeps all"):
            run.add_query("short", SHORT.replace("2 SECONDS", "9 SECONDS"), case.target("short").sink, history=True)
        with pytest.raises(AnabranchError, match="i1 has no column z"):
            run.add_query("short", SHORT.replace("i1.s", "i1.z"), case.target("short").sink)
        with pytest.raises(SessionError, match="there is, or was, a query pairs already"):
            run.add_query("pairs", SHORT)
        streaming = run.pipelines[0].streaming
        assert run.add_query("short", SHORT, case.target("short").sink, history=True) == "short comes with the next batch"
        case.bring(run, 2)
        assert run.pipelines[0].streaming is streaming, "nothing is started anew"
        run.add_query("column", COLUMN, case.target("column").sink)
        assert run.pipelines[0].streaming is not streaming, "a column that nobody has read"
        assert run.add_query("early", SHORT, case.target("early").sink) == "early comes with the next batch"
        run.add_query("more", MORE, case.target("more").sink)
        assert "more" not in run.queries, "started anew before anybody has come"
        case.bring(run, 3)
        assert {"early", "column", "more"} <= run.queries.keys()
        told = run.add_query("third", ALONE, case.target("third").sink)
        assert told == "third has a pipeline of its own, from the beginning of its streams: no query that runs reads c"
        case.bring(run, 4)
        for name, held in (("pairs", "x0 BIGINT, s1 STRING"), ("third", "x0 BIGINT, n BIGINT")):
            with pytest.raises(SessionError, match=f"{name} cannot be altered to give other columns: .* have {held}; drop"):
                run.alter_query(name, NARROW)
        assert run.alter_query("pairs", SHORT) == "pairs is another query from the next batch on"
        run.alter_query("short", NARROW)
        case.bring(run, 5)
        assert run.drop_query("short") == "short leaves with the next batch"
        case.bring(run, 6)
        events = [entry.event for entry in run.journal["pairs"]]
        assert "restarting" in events
        assert "altered" in events
        assert "added" in [entry.event for entry in run.journal["column"]]
    finally:
        case.end(run)
    with pytest.raises(SessionError, match="the run is over"):
        run.add_query("late", SHORT)

    with pytest.raises(SessionError, match="the checkpoint runs third, whose sink cannot be made again"):
        case.session(spark).start(availableNow=True)
    capfd.readouterr()
    case.more = {"pairs": PAIRS, "third": ALONE}
    del case.__dict__["texts"]
    gate.allowed = BATCHES
    run = case.session(spark).start(availableNow=True)
    assert run.await_termination(60)
    told = capfd.readouterr().err
    assert "query pairs was altered while it ran, and goes on so" in told
    assert "query column is not declared, and runs on; to have it leave: anabranch drop column" in told
    assert [sorted(p.host.driver.queries) for p in run.pipelines] == [["column", "early", "more", "pairs"], ["third"]]
    case.require("pairs", case.stay("pairs", PAIRS, 0, 0, 5, closes=False) + case.stay("pairs", SHORT, 5, 0))
    before = case.stay("short", SHORT, 2, 0, 5, closes=False)
    case.require("short", before + case.stay("short", NARROW, 5, 0, 6, closes=False))
    case.require("column", case.stay("column", COLUMN, 3, 3))
    case.require("early", case.stay("early", SHORT, 3, 3))
    case.require("more", case.stay("more", MORE, 3, 3))
    case.require("third", case.stay("third", ALONE, 0, 0))


def test_a_query_brings_a_stream(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streaming query is started anew with a source more, although a first try fails, and the driver dies twice before
    the stream has a commit. The query that reads the stream goes, and another comes which reads it on."""
    case = growing(tmp_path, gate, "named")
    case.targets["third"] = Target("parquet", str(tmp_path / "out" / "third"))
    case.targets["again"] = Target("parquet", str(tmp_path / "out" / "again"))
    third, again = case.target("third"), case.target("again")
    run, start = case.session(spark).start(), Host.start
    fails: list[type[BaseException]] = []

    def start_or_fail(host: Host, *given: Any) -> Any:
        if fails:
            raise fails.pop()("not now")
        return start(host, *given)

    monkeypatch.setattr(Host, "start", start_or_fail)
    try:
        case.bring(run, 0)
        case.bring(run, 1)
        case.planned(2)  # else Spark may have listed the next file of a, and takes two of them in one batch
        for way in (run.alter_query, lambda name, sql: run.add_query("third", sql, history=True)):
            with pytest.raises(SessionError, match="cannot have history: no query that runs reads c, so no row of it is"):
                way("pairs", PAIRS.replace(" b ", " c "))
        fails.append(RuntimeError)
        with pytest.raises(RuntimeError, match="not now"):
            run.add_query("third", THIRD, third.sink)
        noted = read_streams(LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0")))
        assert noted is not None
        assert noted.names == {"a": ("frame_a",), "b": ("b",)}
        case.bring(run, 2)
        case.planned(3)
        fails.append(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run.add_query("third", THIRD, third.sink)
    finally:
        case.end(run)
    run = case.session(spark).start()
    try:
        assert "query third was about to come in, and does so with the next batch" in capfd.readouterr().err
        case.bring(run, 3)
        case.planned(4)
    finally:
        case.end(run)
    run = case.session(spark).start()
    try:
        assert spark.conf.get(SOURCE_EVOLUTION, None) in (None, "false"), "the user's session is as it was"
        case.bring(run, 4)
        case.bring(run, 5)
        assert [sorted(p.host.driver.queries) for p in run.pipelines] == [["pairs", "third"]]
        run.drop_query("third")
        case.bring(run, 6)
    finally:
        case.end(run)
    run = case.session(spark).start()
    try:
        case.planned(7)
        assert run.add_query("again", THIRD, again.sink) == "again comes with the next batch"
        case.bring(run, 7)
    finally:
        case.end(run)
    gate.allowed = 2 * BATCHES
    assert case.session(spark).start(availableNow=True).await_termination(60)
    case.require("pairs", case.stay("pairs", PAIRS, 0, 0))
    query = case.bound("third", THIRD)
    case.require("third", oracle.expected_of_stay(query, case.with_third(4)[:6], {}, 3, 3, False))
    case.require("again", oracle.expected_of_stay(query, case.with_third(4, passed=[6]), {}, 7, 7))

    case.route = "mixed"
    with pytest.raises(SessionError, match="knows the source of a as frame_a, and it has no name now: load the stream with"):
        case.session(spark).start()


def test_streams_are_fixed_where_a_source_has_no_name(spark: SparkSession, tmp_path: Path, gate: Gate) -> None:
    """A query over a new stream gets a pipeline of its own then, and is told why; so does one in a pipeline that an earlier
    release has started."""
    case = growing(tmp_path, gate, "mixed")
    case.targets["third"] = Target("parquet", str(tmp_path / "out" / "third"))
    pipeline = LocalFilesystem(str(tmp_path / "checkpoint" / "pipeline-0"))
    why = "third has a pipeline of its own, from the beginning of its streams: no query that runs reads c, and the streams"
    session = case.session(spark)
    assert "are fixed: the source of a has no name in Spark" in session.explain("pairs")
    run = session.start()
    try:
        case.bring(run, 0)
    finally:
        case.end(run)
    pipeline.put(STREAMS, [seal(STREAMS, b'["a","b"]')])
    session = case.session(spark)
    assert "are fixed: its pipeline was started by a release" in session.explain("pairs")
    run = session.start()
    try:
        case.bring(run, 1)
        told = run.add_query("third", THIRD, case.target("third").sink)
        assert told == f"{why} of the pipeline that reads the others are fixed: {BEFORE_NAMES}"
        case.bring(run, 2)
    finally:
        case.end(run)
    assert pipeline.get(STREAMS).to_pybytes().endswith(b'["a","b"]')
    gate.allowed = BATCHES
    assert case.session(spark).start(availableNow=True).await_termination(60)
    case.require("pairs", case.stay("pairs", PAIRS, 0, 0))
    case.require("third", case.stay("third", THIRD, 0, 0))


def test_commands_from_outside(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], gate: Gate
) -> None:
    """A query is added, altered and dropped by commands, one brings a stream, and a foreign file among them is set aside."""
    case = growing(tmp_path, gate)
    checkpoint = str(tmp_path / "checkpoint")
    run = case.session(spark).start()

    def asked(*command: str, code: int = 0) -> str:
        assert main([*command, "--checkpoint", checkpoint]) == code
        told = capsys.readouterr()
        return told.out if code == 0 else told.err

    try:
        case.bring(run, 0)
        case.bring(run, 1)
        assert asked("add", "short", SHORT, "--history", "--output", str(tmp_path / "out" / "short")) == (
            "short comes with the next batch\n"
        )
        (tmp_path / "checkpoint" / COMMANDS / "0-foreign").write_text("rubbish")
        case.bring(run, 2)
        assert "i0 has no column z" in asked("add", "other", SHORT.replace("i0.x >", "i0.z >"), code=65)
        to = str(tmp_path / "out" / "short")
        assert "write to another folder" in asked("add", "other", SHORT, "--output", to, code=65)
        assert "no query other runs; running are: pairs, short" in asked("alter", "other", SHORT, code=65)
        assert asked("alter", "short", SHORT + " AND i0.x > 4") == "short is another query from the next batch on\n"
        case.bring(run, 3)
        assert asked("drop", "short") == "short leaves with the next batch\n"
        assert "pairs is the last query of its pipeline: stop the run instead" in asked("drop", "pairs", code=65)
        assert asked("add", "third", THIRD, "--output", str(tmp_path / "out" / "third")) == (
            "third comes with the next batch; c is new to its pipeline, and read from the beginning\n"
        )
        case.bring(run, 4)
        assert (tmp_path / "checkpoint" / REFUSED / "0-foreign").exists()
    finally:
        case.end(run)
    assert "no run has the checkpoint" in asked("add", "more", SHORT, code=65)
    case.targets["short"] = Target("parquet", str(tmp_path / "out" / "short"))
    before = case.stay("short", SHORT, 2, 0, 3, closes=False)
    case.require("short", before + case.stay("short", SHORT + " AND i0.x > 4", 3, 0, 4, closes=False))
