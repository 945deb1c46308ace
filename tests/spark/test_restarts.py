"""Queries that are written in another way at a restart, on Spark: they go on with their state, or start anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from anabranch.errors import ForeignStateError, SessionError, SinkError
from anabranch.plan.query import Field, Query
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.pipelines import SPANNING, Piped, Target
from tests.support.workloads import Workload

PAIRS = "SELECT i0.k, i0.x, i1.s FROM a [RANGE 3 SECONDS] AS i0, b [RANGE 2 SECONDS] AS i1 WHERE i0.k = i1.k"
OTHER_PAIRS = PAIRS.replace("i0.k, i0.x, i1.s", "i0.x + 1 AS y, i1.s AS name")
OTHER_SPANS = SPANNING.replace("i0.s, COUNT(*) AS n, SUM(i1.x) AS y", "SUM(i1.x) AS total, i0.s") + " HAVING COUNT(*) > 1"


def piped_in(folder: Path, route: str) -> Piped:
    piped = Piped(Workload(11, 0, batches=5), str(folder), route, {"pairs": PAIRS, "spans": SPANNING})
    piped.targets["pairs"] = Target("parquet", str(folder / "pairs"))
    piped.targets["spans"] = Target("callable", "")
    return piped


def query_of(piped: Piped, name: str) -> Query:
    return parse_script(f"{piped.drawn.script} CREATE QUERY {name} AS {piped.texts[name]};").queries[0].query


def given(piped: Piped, name: str, batches: int) -> oracle.Bag:
    """What a query gives over so many batches, as it is written now."""
    own = [{n: r for n, r in batch.items() if n in "ab"} for batch in piped.batches[:batches]]
    return oracle.expected(query_of(piped, name), own, {})


def test_another_select_list(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are those of the query as it was, then of the query as it is; columns are added that nobody reads. Groups that
    span slots wait as partial rows: a function that takes them later gets the columns that the query had."""
    piped = piped_in(tmp_path, "mixed")
    piped.write(range(3))

    def fails(*_: object) -> None:
        raise OSError("it is full")

    with monkeypatch.context() as patch:
        patch.setattr(piped.target("spans").brought, "take", fails)
        with pytest.raises(SinkError, match="it is full"):
            piped.run(spark)
    piped.check(["pairs"], batches=3)
    before = given(piped, "spans", 3)
    assert before

    piped.texts.update(pairs=OTHER_PAIRS, spans=OTHER_SPANS)
    for name in "ab":
        stream = piped.streams[name]
        piped.streams[name] = replace(stream, fields=(Field("added", pa.string()), *stream.fields))
    piped.write(range(3, 5))
    with pytest.raises(SessionError, match=r"the columns y int64, name string, and .*/pairs holds results with k int64, x "):
        piped.run(spark)
    piped.targets = {"pairs": Target("parquet", str(tmp_path / "others")), "spans": Target("callable", "")}
    run = piped.run(spark)
    assert [p.name for p in run.pipelines] == ["pipeline-0"]
    told = [entry.text for entry in run.journal["pairs"] if entry.event == "rewritten"]
    assert [text.partition(" on ")[2] for text in told] == [
        "results are those of the query as it is written now, with the columns y, name"
    ]
    for name, waited in (("pairs", oracle.Bag()), ("spans", before)):
        wanted = given(piped, name, 5) - given(piped, name, 3)
        assert wanted
        assert not (wrong := oracle.difference(piped.target(name).found(), waited + wanted)), f"{name}: {wrong}"


def test_a_query_that_starts_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Another window is another query. It starts anew beside the one that goes on, from the beginning and into an empty
    folder."""
    piped = piped_in(tmp_path, "files")
    piped.write(range(2))
    piped.run(spark)
    piped.write(range(2, 5))
    piped.texts["pairs"] = PAIRS.replace("2 SECONDS", "4 SECONDS")
    with pytest.raises(ForeignStateError, match=r"(?s)\+input i1: b by ts \[RANGE 4000000 us\].*start\(fresh=\['pairs'\]\)"):
        piped.run(spark)
    with pytest.raises(SessionError, match=r"pairs cannot start anew: .*/pairs holds results of it; name an empty sink"):
        piped.run(spark, fresh=["pairs"])
    piped.targets["pairs"] = Target("parquet", str(tmp_path / "anew"))
    run = piped.run(spark, fresh=["pairs"])
    assert {p.name: list(p.members) for p in run.pipelines} == {"pipeline-0": ["spans"], "pipeline-1": ["pairs"]}
    piped.check(["spans"])
    assert not (wrong := oracle.difference(piped.target("pairs").found(), given(piped, "pairs", 5))), wrong
    run = piped.run(spark)
    assert {p.name: list(p.members) for p in run.pipelines} == {"pipeline-0": ["spans"], "pipeline-1": ["pairs"]}
    piped.targets["spans"] = Target("memory", "")
    run = piped.run(spark, fresh=["spans"])
    assert [p.name for p in run.pipelines] == ["pipeline-1", "pipeline-2"], "nobody is left in the first"
    assert not (tmp_path / "checkpoint" / "pipeline-0").exists()
    piped.check(["spans"])
