"""Many queries, without Spark: what the benchmark counts, over queries of its own in one process."""

import pyarrow as pa
import pytest

from anabranch.control.records import QueryCommit
from anabranch.drive.local import LocalPipeline
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.many_queries import FILTERS, Case, digest, queries, require_same, state_bytes, targets, windows_us

TINY = Case(4, True, rate_per_s=50, measured=2, folder="files")


def made(case: Case) -> list[Query]:
    workload = case.workload
    fields = ", ".join(f"{name} {type}" for name, type in workload.columns.items())
    streams = "".join(f"CREATE STREAM {s} ({fields}) TIME ts;\n" for s in workload.streams)
    text = "".join(f"CREATE QUERY {name} AS {sql};\n" for name, sql in queries(workload, case.queries).items())
    return [declared.query for declared in parse_script(streams + text).queries]


def test_queries_have_windows_and_filters_of_their_own() -> None:
    first, second, third, fourth = made(TINY)
    assert [query.inputs[0].window.length_us for query in made(TINY)] == windows_us(4)
    assert [i.alias for query in (first, second, third, fourth) for i in query.inputs if i.filters] == ["a", "c"]
    assert len(FILTERS) == 3
    assert made(Case(1, True, 50, 2, "files"))[0].inputs[0].window == first.inputs[0].window


def test_one_pipeline_gives_what_separate_ones_give_and_counts_what_is_shared_once() -> None:
    every = made(TINY)
    pipelines = [LocalPipeline(every, MemoryFilesystem())]
    pipelines += [LocalPipeline([query], MemoryFilesystem()) for query in every]
    found: dict[tuple[bool, str], list[pa.Table]] = {}
    for number in range(8):
        rows = TINY.workload.batch(number)
        for pipeline in pipelines:
            for name, step in pipeline.step(number, rows).items():
                found.setdefault((pipeline is pipelines[0], name), []).append(step.results)
    for query in every:
        shared, alone = (pa.concat_tables(found[way, query.name]) for way in (True, False))
        assert len(shared) == len(alone) > 0
        assert digest(shared) == digest(alone)
    committed: list[dict[str, QueryCommit]] = [p.commit.queries for p in pipelines if p.commit is not None]
    together, largest, separate = (state_bytes(each) for each in (committed[:1], committed[1:2], committed[1:]))
    assert together["logs"] == largest["logs"]
    assert together["indexes"] < separate["indexes"]
    assert 0 < together["views"] < separate["views"], "one view for all windows"


def test_a_digest_tells_results_apart_but_not_their_order() -> None:
    rows = pa.table({"k": [1, 1, 2], "x": [0.5, 0.25, 0.5]})
    assert digest(rows) == digest(rows.take([2, 0, 1]))
    assert len({digest(t) for t in (rows, rows.take([0, 0, 2]), rows.take([0, 1]), rows.slice(0, 0))}) == 4


def test_targets() -> None:
    figures = [(1, "alone", 1, 10, 20), (12, "one pipeline", 2, 10.5, 40), (12, "separate", 9, 70, 130)]
    rows = [dict(zip(("queries", "way", "CPU s", "logs MB", "state MB"), row, strict=True)) for row in figures]
    assert [row["kept"] for row in targets(rows, 12)] == ["no", "yes", "yes"]
    assert [row["target"] for row in targets(rows[:2], 12)] == ["logs beside those of the largest query alone"]


def test_other_results_are_refused() -> None:
    row = {"queries": 4, "way": "one pipeline", "results": 7, "digests": [1, 2]}
    require_same([row, {**row, "way": "separate"}, {**row, "queries": 12, "digests": [5]}])
    with pytest.raises(SystemExit, match="differ"):
        require_same([row, {**row, "way": "separate", "digests": [1, 3]}])
