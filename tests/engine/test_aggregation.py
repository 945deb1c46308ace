"""Aggregators by themselves: what is stored, what is forgotten, collisions of hashes."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from itertools import pairwise, product
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.engine import aggregation, bounds, key_numbers
from anabranch.engine.kernels import reference
from anabranch.engine.key_numbers import KeyNumbers
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


def test_an_overflow_leaves_again():
    run = run_of("SELECT SUM(x) AS s, AVG(x) AS a, STDDEV(x) AS d FROM s [RANGE 2 SECONDS]")
    run.step(0, rows([0.5, 0.6, 0.7, 0.8], x=[1e308, 1.5e308, 3.0, 1.0]))
    run.step(1, rows([1.5, 2.7, 2.9], x=[-1e308, 3.0, 5.0]))
    found = run.step(2, rows([9.0], x=[0.0])).results.to_pydict()
    assert (found["s"][:2], found["a"][0]) == ([math.inf, 1.5e308], 6.25e307), "the sum is out of range at 1 s"
    assert found["d"][0] == pytest.approx(7.5e307)
    found = run.step(3, {}).results.to_pydict()
    assert (found["s"][0], found["a"][0]) == (-1e308, -1e308 / 3), "of the row at 1.5 s, at 3 s"
    assert (found["s"][1], found["a"][1], found["d"][1]) == (8.0, 4.0, pytest.approx(math.sqrt(2)))


def test_squares_that_overflow_leave_again():
    run = run_of("SELECT STDDEV(x) AS d FROM s [RANGE 2 SECONDS]")
    run.step(0, rows([0.5, 0.6, 1.7, 1.8], x=[1e200, -1e200, 1.0, 4.0]))
    run.step(1, rows([9.0], x=[0.0]))
    found = run.step(2, {}).results.to_pydict()["d"]
    assert found == pytest.approx([math.sqrt(2 / 3) * 1e200, math.sqrt(4.5)]), "of all four at 2 s, of the last two at 3 s"


def test_a_sum_of_decimals_is_null_while_it_is_too_long():
    stream = "CREATE STREAM s (d DECIMAL(38), ts TIMESTAMP) TIME ts;"
    query = parse_script(f"{stream} CREATE QUERY q AS SELECT SUM(d) AS s FROM s [RANGE 2 SECONDS]").queries[0].query
    run, most, found = LocalRun(query, MemoryFilesystem()), 10**38 - 1, []
    batches = [([0.5, 0.5], [most, most]), ([1.5, 2.6, 2.7], [-most, 8, -1]), ([9.0], [0]), ([9.0], [0])]
    for number, (times_s, values) in enumerate(batches):
        times = pa.array([round(t * 1e6) for t in times_s], pa.int64()).cast(pa.timestamp("us"))
        column = pa.array([Decimal(v) for v in values], pa.decimal128(38, 0))
        found += run.step(number, {"s": pa.table({"d": column, "ts": times})}).results.to_pydict()["s"]
    assert found == [None, Decimal(most), Decimal(7 - most), Decimal(7)]


VALUES = st.sampled_from([1e308, -1e308, 1.5e308, math.inf, -math.inf, math.nan, None, -0.0, 1e300]) | st.integers(
    -8, 8
).map(lambda units: units / 4.0)


@given(
    given_rows=st.lists(st.tuples(st.integers(0, 40), VALUES, st.integers(0, 1)), min_size=1, max_size=25),
    cuts=st.lists(st.integers(0, 25), max_size=4), stops=st.lists(st.integers(0, 5), max_size=2),
    fold_rows=st.sampled_from([1, 4, bounds.FOLD_ROWS]),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_windows_with_overflow_and_odd_values(given_rows, cuts, stops, fold_rows):
    """At every instant SUM and AVG are those of the rows in the window, whatever was in it before; also after a restart, and
    where the rows of a batch are folded in parts."""
    sql = "SELECT k, SUM(x) AS s, AVG(x) AS a, COUNT(x) AS n, RESULT_TIME AS at FROM s [RANGE 2 SECONDS] GROUP BY k"
    in_order = sorted(given_rows, key=lambda row: row[0])
    edges = sorted(min(c, len(in_order)) for c in cuts)
    query = parse_script(f"{STREAM} CREATE QUERY q AS {sql}").queries[0].query
    disk = MemoryFilesystem()
    run, found = LocalRun(query, disk), []
    pieces = [in_order[a:b] for a, b in pairwise([0, *edges, len(in_order)])]
    for number, piece in enumerate([*pieces, [(400, 0.0, 0)], []]):
        batch = rows([t / 4 for t, _, _ in piece], x=[x for _, x, _ in piece], k=[k for _, _, k in piece]) if piece else {}
        with mock.patch("anabranch.engine.bounds.FOLD_ROWS", fold_rows):
            found += run.step(number, batch).results.to_pylist()
        if number in stops:
            run = LocalRun(query, disk)
    wanted = set()
    for instant, k in product(range(13), (0, 1)):
        there = [x for t, x, key in in_order if key == k and t / 4 <= instant < t / 4 + 2]
        values = [x for x in there if x is not None]
        if there:
            wanted.add((k, instant, len(values), *map(repr, (law(reference.total, values), law(reference.mean, values)))))
    shown = {(r["k"], (r["at"] - datetime(1970, 1, 1)).seconds, r["n"], *map(plain, (r["s"], r["a"]))) for r in found}
    assert shown == wanted


def test_slots_combine_what_is_out_of_range_in_each():
    sql = "SELECT SUM(x) AS s, AVG(x) AS a, STDDEV(x) AS d FROM s [RANGE 2 SECONDS]"
    query = parse_script(f"{STREAM} CREATE QUERY q AS {sql}").queries[0].query

    def aggregator():
        return aggregation.Aggregator(query.grouping, query.row_schema)

    parts = []
    halves = [1e308, 1e308, 2.0], [-1e308, -1e308, 4.0]
    for values, start_us in ((halves[0], 500_000), (halves[1], 500_000), ([math.nan, None], 1_500_000)):
        slot, starts = aggregator(), np.full(len(values), start_us)
        slot.take([pa.array(values, pa.float64())], starts, starts + 1_000_000)
        slot.settle(0)
        parts += slot.advance_parts(5_000_000)
    found = pa.Table.from_batches(aggregator().combine(parts)).to_pydict()
    assert (found["s"][0], found["a"][0], found["d"][0]) == (6.0, 1.0, pytest.approx(math.sqrt(0.8) * 1e308))
    assert math.isnan(found["s"][1])


def law(finite, values):
    odd = [v for v in values if not math.isfinite(v)]
    return (sum(odd) if odd else finite(values) + 0.0) if values else None


def plain(value):
    return repr(value if value is None else value + 0.0)


def test_rows_that_count_at_no_instant_are_not_kept():
    run = run_of("SELECT k, COUNT(*) AS n FROM s [NOW] GROUP BY k")
    step = run.step(0, rows([0.5, 1.0, 1.5], k=[1, 2, 3]))
    assert {s.kind: s.rows for s in step.statistics.states}["groups"] == 1, "the row at 1 s"


def test_groups_without_rows_are_forgotten(monkeypatch):
    monkeypatch.setattr(aggregation, "LEAST_DEAD", 8)
    run = run_of("SELECT k, COUNT(*) AS n, COUNT(DISTINCT g) AS d, MAX(g) AS m FROM s [RANGE 2 SECONDS] GROUP BY k")
    found = []
    for batch in range(40):
        step = run.step(batch, rows([batch + 0.5] * 5, k=[batch * 5 + i for i in range(5)], g=["a", "b", "a", None, ""]))
        found += step.results.to_pylist()
    assert run.slot is not None
    aggregator = run.slot.boxes["q"].aggregator
    assert aggregator is not None
    assert aggregator.groups.count <= 40, "of 200 groups"
    assert len(found) == 5 * (2 * 38 - 1)
    assert {row["n"] for row in found} == {1}
    assert all(row["d"] == (row["m"] is not None) for row in found), "NULL is no value"


def test_groups_that_all_live_are_seldom_gone_through(monkeypatch):
    """Nothing can be forgotten: the aggregator looks again when there are twice as many groups, not in every batch."""
    monkeypatch.setattr(aggregation, "LEAST_DEAD", 8)
    begun = []
    reset = aggregation.Aggregator._reset
    monkeypatch.setattr(aggregation.Aggregator, "_reset", lambda self: (begun.append(self), reset(self)))
    run = run_of("SELECT k, COUNT(*) AS n FROM s [RANGE 1 HOUR] GROUP BY k")
    for batch in range(40):
        run.step(batch, rows([batch + 0.5] * 5, k=[batch * 5 + i for i in range(5)]))
    assert run.slot is not None
    assert run.slot.boxes["q"].aggregator.groups.count == 200
    assert len(begun) <= 7, "when it is made, and at 8, 16, 32, 64 and 128 groups or soon after"


@pytest.mark.parametrize("aggregate", ["COUNT(DISTINCT k)", "MAX(g)", "COUNT(DISTINCT g)"])
def test_values_without_rows_are_forgotten(monkeypatch, aggregate):
    """One group for ever, but always other values in it."""
    monkeypatch.setattr(aggregation, "LEAST_DEAD", 8)
    run = run_of(f"SELECT {aggregate} AS a FROM s [RANGE 2 SECONDS]")
    for batch in range(60):
        names = [f"{batch:03d} {i}" for i in range(5)]
        step = run.step(batch, rows([batch + 0.5] * 5, k=[batch * 5 + i for i in range(5)], g=names))
    assert step.results.to_pydict()["a"] in ([10], ["057 4"]), "at 58 s, over the rows of 56.5 and 57.5 s"
    assert run.slot is not None
    aggregator = run.slot.boxes["q"].aggregator
    assert aggregator is not None
    assert aggregator._known <= 60, "of 300 values"


def test_keys_with_the_same_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(key_numbers, "_hashes", lambda keys, rows: np.zeros(rows, np.uint64))
    known = KeyNumbers([pa.string(), pa.int64()])
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
    kept = {s.kind: s.rows for s in step.statistics.states}
    assert kept["groups"] <= 5 * 4 * 2
    assert step.statistics.sources["s"].state_rows == 0, "rows themselves are not stored"
