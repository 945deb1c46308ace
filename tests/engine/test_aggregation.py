"""Aggregators by themselves: what is stored, what is forgotten, collisions of hashes."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from anabranch.engine import aggregation, groups
from anabranch.engine.groups import Groups
from anabranch.engine.local import LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

STREAM = "CREATE STREAM s (k BIGINT, g STRING, x DOUBLE, ts TIMESTAMP) TIME ts;"


def run_of(select: str) -> LocalRun:
    return LocalRun(parse_script(f"{STREAM} CREATE QUERY q AS {select}").queries[0].query, MemoryFilesystem())


def rows(times_s: list[float], **columns: list[object]) -> dict[str, pa.Table]:
    n = len(times_s)
    types = {"k": pa.int64(), "g": pa.string(), "x": pa.float64()}
    made = {name: pa.array(columns.get(name, [None] * n), type) for name, type in types.items()}
    times = pa.array([round(t * 1_000_000) for t in times_s], pa.int64()).cast(pa.timestamp("us"))
    return {"s": pa.table({**made, "ts": times})}


def test_a_window_slides():
    run = run_of("SELECT COUNT(*) AS n, SUM(x) AS x, RESULT_TIME AS at FROM s [RANGE 2 SECONDS]")
    run.step(0, rows([0.5, 1.0, 1.5], x=[1.0, 2.0, 4.0]))
    found = run.step(1, rows([4.0], x=[8.0])).results
    assert found.num_rows == 1, "only the instant 1 s lies before the watermark, 1.5 s"
    assert found.to_pydict()["x"] == [3.0], "the row at 1.0 counts at 1 s"
    later = run.step(2, {}).results.to_pydict()
    assert (later["n"], later["x"]) == ([3, 1], [7.0, 4.0]), "all three at 2 s, one of them at 3 s; 4 s is not over"


def test_tumbling_windows_count_every_row_once():
    run = run_of("SELECT COUNT(*) AS n FROM s [RANGE 2 SECONDS] SLIDE 2 SECONDS")
    counts = [run.step(b, rows([b + 0.25, b + 0.75])).results.to_pydict()["n"] for b in range(9)]
    total = [n for found in [*counts, run.step(9, {}).results.to_pydict()["n"]] for n in found]
    assert total == [4, 4, 4, 4]


def test_what_is_not_finite_leaves_again():
    run = run_of("SELECT SUM(x) AS s, AVG(x) AS a, MAX(x) AS m, STDDEV(x) AS d FROM s [RANGE 2 SECONDS]")
    run.step(0, rows([0.5, 0.6, 0.7], x=[math.inf, 1.0, 2.0]))
    run.step(1, rows([2.8, 2.9], x=[3.0, 5.0]))
    found = run.step(2, rows([9.0], x=[0.0])).results.to_pydict()
    assert found["s"][0] == math.inf
    found = run.step(3, {}).results.to_pydict()
    assert (found["s"][0], found["a"][0], found["m"][0]) == (8.0, 4.0, 5.0)
    assert found["d"][0] == pytest.approx(math.sqrt(2))


def test_groups_without_rows_are_forgotten(monkeypatch):
    monkeypatch.setattr(aggregation, "LEAST_DEAD", 8)
    run = run_of("SELECT k, COUNT(*) AS n, COUNT(DISTINCT g) AS d, MAX(g) AS m FROM s [RANGE 2 SECONDS] GROUP BY k")
    found = []
    for batch in range(40):
        step = run.step(batch, rows([batch + 0.5] * 5, k=[batch * 5 + i for i in range(5)], g=["a", "b", "a", None, ""]))
        found += step.results.to_pylist()
    assert run._slot is not None
    aggregator = run._slot.pipeline.box.aggregator
    assert aggregator is not None
    assert aggregator.groups.count <= 40, "of 200 groups"
    assert len(found) == 5 * (2 * 38 - 1)
    assert {row["n"] for row in found} == {1}


@pytest.mark.parametrize("aggregate", ["COUNT(DISTINCT k)", "MAX(g)", "COUNT(DISTINCT g)"])
def test_values_without_rows_are_forgotten(monkeypatch, aggregate):
    """One group for ever, but always other values in it."""
    monkeypatch.setattr(aggregation, "LEAST_DEAD", 8)
    run = run_of(f"SELECT {aggregate} AS a FROM s [RANGE 2 SECONDS]")
    for batch in range(60):
        names = [f"{batch:03d} {i}" for i in range(5)]
        step = run.step(batch, rows([batch + 0.5] * 5, k=[batch * 5 + i for i in range(5)], g=names))
    assert step.results.to_pydict()["a"] in ([10], ["057 4"]), "at 58 s, over the rows of 56.5 and 57.5 s"
    assert run._slot is not None
    aggregator = run._slot.pipeline.box.aggregator
    assert aggregator is not None
    assert aggregator._known <= 60, "of 300 values"


def test_keys_with_the_same_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(groups, "_hashes", lambda keys, rows: np.zeros(rows, np.uint64))
    known = Groups([pa.string(), pa.int64()])
    keys = [pa.array(["a", "b", "a", None, "a", None]), pa.array([1, 1, 1, 1, None, 1])]
    numbers = known.numbers(keys, 6).tolist()
    assert numbers == [0, 1, 0, 2, 3, 2]
    assert known.numbers([k.slice(1, 3) for k in keys], 3).tolist() == [1, 0, 2]
    assert [k.to_pylist() for k in known.keys_of(np.array([0, 1, 2, 3]))] == [["a", "b", None, "a"], [1, 1, 1, None]]


def test_state_is_one_row_per_group_and_slide():
    run = run_of("SELECT k, AVG(x) AS a FROM s [RANGE 10 SECONDS] GROUP BY k")
    for batch in range(5):
        times = np.linspace(batch, batch + 0.999, 1000).tolist()
        step = run.step(batch, rows(times, k=[i % 4 for i in range(1000)], x=[1.0] * 1000))
    kept = {s.name: s.rows for s in step.statistics.states}
    assert kept["groups"] <= 5 * 4 * 2
    assert step.statistics.sources["s"].state_rows == 0, "rows themselves are not stored"
