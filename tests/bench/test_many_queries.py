"""Many queries: what the benchmark counts, its ways beside each other, and what it refuses. Most of it without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from anabranch.control.records import QueryCommit
from anabranch.drive.local import LocalPipeline
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.data import write_files
from bench.many import duckdb_loop, pipelines, spark_own
from bench.many.case import BY_HAND, DUCKDB, SEPARATE, SHARED, Case
from bench.many.goals import goals
from bench.many.pipelines import ByHand, state_bytes
from bench.many.queries import Asked, asked, digest, wanted_rows
from bench.many_queries import cases, parser, require_same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TINY = Case(4, SHARED, rate_per_s=50, measured=2, folder="files")


def made(case: Case, queries: list[Asked], times: bool = False) -> list[Query]:
    workload = case.workload
    fields = ", ".join(f"{name} {type}" for name, type in workload.columns.items())
    streams = "".join(f"CREATE STREAM {s} ({fields}) TIME ts;\n" for s in workload.streams)
    text = "".join(f"CREATE QUERY {query.name} AS {query.sql(workload, times)};\n" for query in queries)
    return [declared.query for declared in parse_script(streams + text).queries]


def results_of(case: Case, pipeline: LocalPipeline) -> dict[str, pa.Table]:
    found: dict[str, list[pa.Table]] = {}
    for number in range(case.batches):
        for name, step in pipeline.step(number, case.workload.batch(number)).items():
            found.setdefault(name, []).append(step.results)
    return {name: pa.concat_tables(tables) for name, tables in found.items()}


def test_queries_have_windows_and_filters_of_their_own() -> None:
    first, second, third, fourth = made(TINY, TINY.asked)
    windows_us = [query.inputs[0].window.length_us for query in (first, second, third, fourth)]
    assert windows_us == [query.window_us for query in TINY.asked]
    assert [i.alias for query in (first, second, third, fourth) for i in query.inputs if i.filters] == ["a", "c"]
    for count in (1, 4, 300):
        queries = asked(count)
        assert (queries[0].window_us, queries[0].stream) == (4_000_000, "")
        assert all(0.1 <= query.passing <= 0.6 for query in queries if query.stream)
    assert [query.name for query in replace(TINY, first=1, count=2).asked] == ["q1", "q2"]


def test_one_pipeline_gives_what_separate_ones_and_a_sink_by_hand_give_and_counts_what_is_shared_once() -> None:
    every = made(TINY, TINY.asked)
    together = LocalPipeline(every, MemoryFilesystem())
    separate = [LocalPipeline([query], MemoryFilesystem()) for query in every]
    shared = results_of(TINY, together)
    largest = results_of(TINY, LocalPipeline(made(TINY, asked(1), times=True), MemoryFilesystem()))["q0"]
    by_hand = ByHand(TINY.asked, shared["q0"].column_names, Path())
    routed = {query.name: own for query, own in by_hand.routed(largest)}
    for query, pipeline in zip(every, separate, strict=True):
        alone = results_of(TINY, pipeline)[query.name]
        assert len(shared[query.name]) == len(alone) == len(routed[query.name]) > 0
        assert digest([shared[query.name]]) == digest([alone]) == digest([routed[query.name]])
    committed: list[dict[str, QueryCommit]] = [p.commit.queries for p in (together, *separate) if p.commit is not None]
    own, first, apart = (state_bytes(each) for each in (committed[:1], committed[1:2], committed[1:]))
    assert own["logs"] == first["logs"]
    assert own["indexes"] < apart["indexes"]


@pytest.mark.parametrize("kind", duckdb_loop.KINDS)
def test_the_loop_gives_the_same(kind: str, tmp_path: Path) -> None:
    case = replace(TINY, way=DUCKDB, folder=str(tmp_path / "files"), variant=kind, cores=1)
    write_files(case.workload, case.folder, case.batches)
    found = duckdb_loop.run(case, tmp_path / "out")
    shared = results_of(case, LocalPipeline(made(case, case.asked), MemoryFilesystem()))
    assert found["counts"] == [len(shared[query.name]) for query in case.asked]
    assert found["digests"] == [digest([shared[query.name]]) for query in case.asked]
    assert found["state_bytes"]["DuckDB's"] > 0


def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    case = replace(TINY, queries=2, folder=str(tmp_path / "files"), measured=1)
    write_files(case.workload, case.folder, case.batches)
    shared = results_of(case, LocalPipeline(made(case, case.asked), MemoryFilesystem()))
    for way in (SHARED, BY_HAND):
        found = pipelines.run(replace(case, way=way), spark, tmp_path / way)
        assert found["digests"] == [digest([shared[query.name]]) for query in case.asked], way
        assert all(spent_s > 0 for spent_s in found["left_out_s"].values()), way
        assert sum(found["cpu_s"].values()) > 0, way


def test_rows_that_some_query_wants() -> None:
    workload = TINY.workload
    largest = wanted_rows(asked(1), workload, 8)
    assert largest == wanted_rows(asked(12), workload, 8)
    # Rows of the last four seconds of three streams; the one of exactly four seconds ago has ended.
    assert largest == 3 * (4 * 50 - 1)
    short = [Asked("q", 1_000_000, "", 1.0), Asked("p", 4_000_000, "a", 0.5)]
    assert 3 * 50 < wanted_rows(short, workload, 8) < largest


def test_a_digest_tells_results_apart_but_not_their_order() -> None:
    rows = pa.table({"k": [1, 1, 2], "x": [0.5, 0.25, 0.5]})
    assert digest([rows]) == digest([rows.take([2, 0, 1])]) == digest([rows.slice(0, 1), rows.slice(1)])
    assert len({digest([t]) for t in (rows, rows.take([0, 0, 2]), rows.take([0, 1]), rows.slice(0, 0))}) == 4


def test_goals() -> None:
    names = ("queries", "way", "counted CPU s", "CPU s", "logs MB", "state MB")
    figures = [
        (1, "alone", 1, 1, 10, 20), (12, SHARED, 2, 3, 10.5, 40), (12, SEPARATE, 11, 12, 70, 130),
        (12, BY_HAND, 3, 4, 1, 1),
    ]  # fmt: skip
    rows = [{**dict(zip(names, row, strict=True)), "rate": 50, "all batches": 8} for row in figures]
    found = {row["goal"]: row["kept"] for row in goals(rows)}
    assert found == {
        "counted CPU s of separate": "yes", "counted CPU s of by hand": "no", "CPU s of separate": "no",
        "logs MB of alone": "yes", "state MB of separate": "yes", "state MB of theorem 4's sum": "no",
    }  # fmt: skip
    assert goals(rows[1:2]) == []


def test_what_spark_spends_on_results_is_what_a_run_without_them_does_not() -> None:
    run: dict[str, Any] = {"cpu_s": {"root": 1.0, "java": 5.0}}
    found = spark_own.merged(run, {"cpu_s": {"root": 1.0, "java": 4.5}})
    assert found["left_out_s"] == {"results": 0.5}
    assert spark_own.merged(run, {"cpu_s": {"java": 7.0}})["left_out_s"] == {"results": 0.0}


def test_cases_that_are_asked_for() -> None:
    given = parser().parse_args(["--quick", "--queries", "3,20", "--ways", "shared,separate,spark"])
    found = [(case.queries, case.way) for case in cases(given)]
    assert found == [(1, "shared"), (3, "shared"), (3, "separate"), (3, "Spark's own"), (20, "shared"), (20, "separate")]


def test_other_results_are_refused() -> None:
    row = {"queries": 2, "way": "shared", "counts": [3, 4], "digests": [1, 2]}
    require_same([row, {**row, "way": "separate"}, {**row, "queries": 3, "counts": [9], "digests": [5]}])
    with pytest.raises(SystemExit, match="1 of 2 queries differ, separate and shared \\(q1: 4 and 4\\)"):
        require_same([row, {**row, "way": "separate", "digests": [1, 3]}])
