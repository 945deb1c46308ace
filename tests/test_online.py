"""Queries that are refused when they are to come while others run: each alone, with a reason, and the others go on."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import anabranch as ab
from anabranch.drive.local import LocalPipeline
from anabranch.errors import AnabranchError
from anabranch.online import Online
from anabranch.spark.pipeline import Joined
from anabranch.spark.remote_parquet import RemoteParquetSink
from anabranch.spark.sinks import as_sink
from anabranch.storage.filesystem import MemoryFilesystem

SCRIPT = """
CREATE STREAM a (k BIGINT, s STRING, ts TIMESTAMP) TIME ts FROM 'rows/a/*.parquet';
CREATE STREAM b (k BIGINT, s STRING, ts TIMESTAMP) TIME ts LATENESS 1 SECOND FROM 'rows/b/*.parquet';
CREATE STREAM c (k BIGINT, s STRING, ts TIMESTAMP) TIME ts FROM 'rows/c/*.parquet';
CREATE QUERY pairs AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;
"""
PAIRS = "SELECT a.k FROM a, b WHERE a.k = b.k WINDOW {window}"
FITS = PAIRS.format(window="4 SECONDS")


class Ground:
    """A session whose query runs, without Spark: what a pipeline is to whoever has queries come and go."""

    def __init__(self, folder: Path) -> None:
        budget = ab.Budget(cpu=1.5, memory="20 MiB", strict=True)
        rates = dict.fromkeys("abc", 1_000.0)
        self.session = ab.Session(None, str(folder), budget, slots=2, facts=ab.Given(rates, {}, {"a.k": 1e4, "b.k": 1e4}))
        self.session.script(SCRIPT)
        self.came: list[str] = []
        written = self.session.planning.query("pairs").forms.written
        driver = LocalPipeline([written], MemoryFilesystem(), slots=2).driver
        self.place: Any = SimpleNamespace(
            host=SimpleNamespace(driver=driver), name="pipeline-0", is_over=False,
            members=self.session._queries.members({"pairs": written}), arriving={},
            overload=self.session.planning.overload, join=self.join, take_back=dict, take_gone=list,
            counted=SimpleNamespace(lacking=lambda streams: []), why_not_read=lambda streams: "",
        )  # fmt: skip
        self.run: Any = SimpleNamespace(
            pipelines=[self.place], stopped=False, changing=threading.RLock(), pipeline=lambda name: self.place
        )
        self.online = Online(self.session._queries, self.run, None, {}, None)  # type: ignore[arg-type]

    def join(self, arriving: Any) -> Joined:
        self.came.append(arriving.note.name)
        return Joined(self.place)

    def add(self, name: str, sql: str, plan: str | None = None) -> str:
        return self.online.add(name, sql, None, plan, False)


@pytest.mark.parametrize(
    ("name", "sql", "reason"),
    [
        ("pairs", FITS, "there is, or was, a query pairs already: give this one another name"),
        ("Pairs", FITS, "there is a query pairs already: give this one another name than Pairs"),
        ("more", FITS.replace("FROM a", "FROM x"), "there is no stream or table x"),
        ("more", FITS.replace("b.k W", "b.z W"), "b has no column z"),
        ("more", FITS.replace("b.k W", "b.s W"), "BIGINT and STRING"),
        ("more", PAIRS.format(window="2 HOURS"), "query more: no plan within the budget: the least bad exceeds memory"),
    ],
)  # fmt: skip
def test_a_query_that_cannot_come_is_refused_alone(tmp_path: Path, name: str, sql: str, reason: str) -> None:
    ground = Ground(tmp_path)
    with pytest.raises(AnabranchError, match=reason):
        ground.add(name, sql)
    assert not ground.came
    assert [*ground.session.planning.queries] == ["pairs"]
    assert ground.run.pipelines == [ground.place]
    assert ground.add("more", FITS) == "more comes with the next batch", "a good one comes after it"
    assert ground.came == ["more"]


def test_freshness_too_short_for_late_rows_is_told_of_a_query_that_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the answer and on the terminal of the run; of a query that is altered, too."""
    ground, fresh = Ground(tmp_path), PAIRS.format(window="4 SECONDS FRESHNESS 4 SECONDS")
    warned = "the freshness of b, 4 seconds, is below its window and the lateness together, 5 seconds"
    assert "more comes with the next batch; warning: the freshness of a, 4 sec" in (told := ground.add("more", fresh))
    assert f"; warning: {warned}" in told
    assert f"anabranch: warning: query more: {warned}" in capsys.readouterr().err
    assert f"; warning: {warned}" in ground.online.alter("pairs", fresh)
    assert f"anabranch: warning: query pairs: {warned}" in capsys.readouterr().err
    assert ground.add("other", FITS) == "other comes with the next batch"


def test_no_more_queries_come_than_can_run_one_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.planning.MOST_MEMBERS", 2)
    ground = Ground(tmp_path)
    ground.add("more", FITS)
    with pytest.raises(AnabranchError, match="query third joins a, b as 2 others do, and no more queries run one join"):
        ground.add("third", FITS)
    assert ground.came == [*ground.session.planning.queries][1:] == ["more"]


def test_a_pinned_plan_that_is_none_of_the_query(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with pytest.raises(AnabranchError, match="plan"):
        ground.add("more", FITS, "(a c)")
    assert not ground.came


def test_a_query_that_cannot_be_altered_stays_as_it_is(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    before = ground.session.planning.query("pairs").query
    with pytest.raises(AnabranchError, match="query pairs: no plan within the budget"):
        ground.online.alter("pairs", PAIRS.format(window="2 HOURS"))
    assert not ground.came
    assert ground.session.planning.query("pairs").query == before
    assert ground.online.alter("pairs", FITS) == "pairs is another query from the next batch on"
    assert ground.session.planning.query("pairs").query != before


NARROW = FITS.replace("a.k F", "a.k AS key F")


@pytest.mark.parametrize(
    ("sink", "shown"),
    [
        (ab.sinks.parquet("out"), "parquet in "), (ab.sinks.memory(), "memory"), (ab.sinks.table("pairs"), "table pairs"),
        (RemoteParquetSink(MemoryFilesystem()), "parquet in "),
        (SimpleNamespace(holds=lambda: pa.schema([("k", pa.int64())]), staging=lambda: None), "namespace("),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "sql", [NARROW, FITS.replace("a.k F", "a.k, b.k AS other F"), FITS.replace("a.k F", "CAST(a.k AS DOUBLE) AS k F")]
)
def test_results_in_a_sink_keep_their_columns(tmp_path: Path, sink: Any, shown: str, sql: str) -> None:
    """Another name, a column more, another type: whatever keeps results is not altered to."""
    ground = Ground(tmp_path)
    ground.place.members["pairs"] = replace(ground.place.members["pairs"], sink=sink)
    before = ground.session.planning.query("pairs").query
    with pytest.raises(AnabranchError) as refused:
        ground.online.alter("pairs", sql)
    assert f"pairs cannot be altered to give other columns: results in its sink ({shown}" in str(refused.value)
    assert str(refused.value).endswith(
        "have k BIGINT; drop it, and add a query of another name with a sink of its own"
    )
    assert not ground.came
    assert ground.session.planning.query("pairs").query == before
    assert ground.online.alter("pairs", FITS) == "pairs is another query from the next batch on", "with the same columns"


@pytest.mark.parametrize("sink", [lambda rows, n: None, ab.sinks.arrow(lambda rows, n: None), ab.sinks.console()])
def test_a_function_is_called_with_other_columns(tmp_path: Path, sink: Any) -> None:
    ground = Ground(tmp_path)
    ground.place.members["pairs"] = replace(ground.place.members["pairs"], sink=as_sink(sink, "pairs"))
    assert ground.online.alter("pairs", NARROW) == "pairs is another query from the next batch on"
    assert ground.came == ["pairs"]
    assert ground.session.planning.query("pairs").query.output_schema.names == ["key"]


@pytest.mark.parametrize(("window", "company"), [("5 SECONDS", ""), ("1 HOUR", "part")])
def test_a_query_that_comes_runs_its_join_with_others_if_that_costs_less(tmp_path: Path, window: str, company: str) -> None:
    """An hour of rows of a and b would be joined for `whole` too, which wants a second of them."""
    session = ab.Session(None, str(tmp_path), slots=1, facts=ab.Given(dict.fromkeys("abc", 100.0), {}, {}))
    three = "SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 1 SECOND"
    session.script(SCRIPT.replace(SCRIPT[SCRIPT.index("CREATE QUERY"):], f"CREATE QUERY whole AS {three};"))
    written, came = session.planning.query("whole").forms.written, list[Any]()
    driver = LocalPipeline([written], MemoryFilesystem(), plans={"whole": "((a b) c)"}).driver
    place: Any = SimpleNamespace(
        host=SimpleNamespace(driver=driver), name="pipeline-0", is_over=False, overload=session.planning.overload,
        counted=SimpleNamespace(lacking=lambda streams: []), take_back=dict, take_gone=list,
        members=session._queries.members({"whole": written}), arriving={},
    )  # fmt: skip
    place.join = lambda arriving: came.append(arriving.member) or Joined(place)
    run: Any = SimpleNamespace(pipelines=[place], stopped=False, changing=threading.RLock())
    Online(session._queries, run, None, {}, None).add("part", PAIRS.format(window=window), None, None, False)  # type: ignore[arg-type]
    assert [member.execution.company for member in came] == [company]
