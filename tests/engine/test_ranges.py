"""Lookups in ranges find what lookups of every row find, for all kinds of values, across restarts and changes of plan."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.query import Query
from anabranch.plan.routes import indexes, routes
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import shapes
from tests.support.continuous_runs import check
from tests.support.scenarios import properties

COLUMNS = {
    "n": ("BIGINT", pa.int64(), [-7, -2, -1, 0, 1, 2, 9, None]),
    "edge": ("BIGINT", pa.int64(), [-(2**63), -(2**63) + 1, -1, 0, 2**63 - 2, 2**63 - 1, None]),
    "i": ("INT", pa.int32(), [-(2**31), -2, 0, 1, 2**31 - 1, None]),
    "x": ("DOUBLE", pa.float64(), [-1.5, -0.0, 0.0, 0.1, 0.3, 0.4, 1e16, float("inf"), float("-inf"), float("nan"), None]),
    "f": ("FLOAT", pa.float32(), [-0.5, 0.0, 0.1, 0.3, float("nan"), None]),
    "d": ("DECIMAL(9,2)", pa.decimal128(9, 2), ["-12.50", "-0.01", "0.00", "0.01", "12.50", None]),
    "b": ("BOOLEAN", pa.bool_(), [True, False, None]),
    "day": ("DATE", pa.date32(), [-400, -1, 0, 1, 30, None]),
    "at": ("TIMESTAMP", pa.timestamp("us"), [-1_000_000, 0, 999_999, 1_000_000, 5_000_000, None]),
}
PREDICATES = (
    "a.n < b.n", "a.n BETWEEN b.n - 1 AND b.n + 2", "a.n > b.i - 3", "a.edge < b.edge", "a.edge + 1 >= b.edge - 1",
    "a.edge BETWEEN b.edge - 2 AND b.edge", "a.i >= b.i", "a.i BETWEEN b.i - 1 AND b.i + 1", "a.x < b.x", "a.x >= b.x",
    "a.x BETWEEN b.x - 0.3 AND b.x + 0.1", "a.x > b.x + 1e16", "a.f <= b.f", "a.f < b.x - 0.1", "a.f + 0.3 >= b.f",
    "a.d < b.d", "a.d BETWEEN b.d - 0.01 AND b.d + 12.5", "a.d > b.i", "a.b < b.b", "a.b >= b.b", "a.day <= b.day",
    "a.day < b.at", "a.at BETWEEN b.at - INTERVAL 1 SECOND AND b.at + INTERVAL 1 SECOND", "a.at > b.at",
    "a.n * 2 <= b.n + b.i", "a.n / b.n < b.x AND a.n <= b.n", "a.n < b.n AND b.n < a.n",
)  # fmt: skip


def rows_of(random: np.random.Generator, batch: int, rows: int) -> pa.Table:
    columns = {}
    for name, (_, kind, values) in COLUMNS.items():
        picked = [values[i] for i in random.integers(0, len(values), rows)]
        if name == "d":
            columns[name] = pa.array(picked, pa.string()).cast(kind)
        elif name in ("day", "at"):
            columns[name] = pa.array(picked, pa.int32() if name == "day" else pa.int64()).view(kind)
        else:
            columns[name] = pa.array(picked, kind)
    columns["id"] = pa.array(np.arange(rows) + 1000 * batch)
    columns["ts"] = pa.array([timedelta(milliseconds=250 * batch + int(t)) for t in random.integers(0, 250, rows)]).view(
        pa.int64()
    ).view(pa.timestamp("us"))  # fmt: skip
    return pa.table(columns)


def band_query(where: str, streams: str = "a b") -> Query:
    fields = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    script = "".join(f"CREATE STREAM {s} ({fields}, id BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;" for s in "abc")
    ids = ", ".join(f"{s}.id AS {s}" for s in streams.split())
    select = f"SELECT {ids} FROM {', '.join(streams.split())} WHERE {where} WINDOW 1500 MILLISECONDS"
    return parse_script(f"{script} CREATE QUERY q AS {select}").queries[0].query


def batches_of(seed: int, streams: str = "a b", count: int = 14, rows: int = 12) -> list[dict[str, pa.Table]]:
    random = np.random.default_rng(seed)
    return [{s: rows_of(random, batch, rows) for s in streams.split()} for batch in range(count)]


def results(query: Query, batches: list[dict[str, pa.Table]], plan: str | None = None, stop: int = -1) -> oracle.Bag:
    """All results of a run, perhaps with a new process after some batch."""
    disk, found = MemoryFilesystem(), Counter()
    run = LocalRun(query, disk, plan)
    for number, rows in enumerate(batches):
        found += oracle.bag(run.step(number, rows).results)
        run.verify()
        if number == stop:
            run = LocalRun(query, disk, plan)
    return found


def every_row():
    """Switches ranges off."""
    return mock.patch.object(JoinGraph, "range_between", return_value=None)


@pytest.mark.few(6)
@pytest.mark.parametrize("where", PREDICATES)
def test_ranges_find_what_every_row_finds(where):
    query, batches = band_query(where), batches_of(11)
    graph = JoinGraph(query)
    assert all(i.is_ordered for i in indexes(routes(left_deep(graph), graph)))
    found = results(query, batches, stop=8)
    with every_row():
        assert found == results(query, batches)
    assert found or where.endswith("b.n < a.n")


@pytest.mark.parametrize("plan", ["((a b) c)", "(a b c)", "(a (b c))"])
def test_ranges_over_views(plan):
    query = band_query("a.n BETWEEN b.n - 1 AND b.n + 1 AND a.n + b.i > c.n AND c.x <= b.x", "a b c")
    batches = batches_of(5, "a b c", count=8, rows=7)
    found = results(query, batches, plan, stop=4)
    with every_row():
        assert found == results(query, batches, plan)
    assert found


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["a.n BETWEEN b.n - 1 AND b.n + 1", "a.edge BETWEEN b.edge - 1 AND b.edge + 1"])
def test_many_batches_alive_together(where):
    """Runs are merged over several tiers, though all their words may lie in one part of a merge."""
    batches = []
    for number, batch in enumerate(batches_of(9, count=70, rows=3)):
        times = pa.array([1000 * number] * 3, pa.int64()).view(pa.timestamp("us"))
        batches.append({s: rows.set_column(rows.num_columns - 1, "ts", times) for s, rows in batch.items()})
    found = results(band_query(where), batches, stop=50)
    with every_row():
        assert found == results(band_query(where), batches)


def test_an_index_that_no_run_shows_is_derived_from_the_log():
    """State of a process that looked up every row serves one that looks up ranges, and the other way round."""
    query, batches = band_query("a.x BETWEEN b.x - 0.3 AND b.x + 0.3"), batches_of(3)
    wanted = results(query, batches)
    disk, found = MemoryFilesystem(), Counter()
    for number, rows in enumerate(batches):
        if number // 3 % 2:
            found += oracle.bag(LocalRun(query, disk).step(number, rows).results)
        else:
            with every_row():
                found += oracle.bag(LocalRun(query, disk).step(number, rows).results)
    assert found == wanted


def test_much_that_is_found_is_checked_in_parts():
    query, batches = band_query("a.n < b.n AND a.x < b.x"), batches_of(2, rows=50)
    wanted = results(query, batches)
    for pairs in (70, 1000):
        with mock.patch("anabranch.engine.bounds.CHUNK_PAIRS", pairs):
            assert results(query, batches) == wanted
            with every_row():
                assert results(query, batches) == wanted


test_theta, test_theta_long = properties(
    check, 60, 1_000, shape=shapes(theta=True, subquery=False, rows=30), stops=st.lists(st.integers(0, 7), max_size=3)
)


GROUPED = (
    "a.n > g.least", "a.n <= g.n AND a.n >= g.least", "a.edge >= g.edge", "a.i < g.i", "a.x > 0.5e0 * g.x", "a.x <= g.x",
    "a.f >= g.f", "a.d < g.d", "a.day >= g.day", "a.at < g.at", "a.x > g.mean", "a.n < g.n AND a.x >= g.x",
)  # fmt: skip


def grouped_query(where: str) -> Query:
    """Rows beside the groups of their key: a range is looked up among the rows of a key."""
    most = ", ".join(f"MAX({name}) AS {name}" for name in COLUMNS if name not in ("b", "d"))
    inner = f"SELECT id % 7 AS k, {most}, MAX(d) AS d, MIN(n) AS least, AVG(x) AS mean FROM a [RANGE 1 SECOND]"
    groups = f"({inner} GROUP BY id % 7 SLIDE 500 MILLISECONDS) g"
    sql = f"SELECT a.id, g.k FROM a [RANGE 1500 MILLISECONDS] JOIN {groups} ON a.id % 7 = g.k WHERE {where}"
    fields = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    script = f"CREATE STREAM a ({fields}, id BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;"
    return parse_script(f"{script} CREATE QUERY q AS {sql}").queries[0].query


@pytest.mark.few(3)
@pytest.mark.parametrize("where", GROUPED)
def test_ranges_among_the_rows_of_a_key(where):
    query, batches = grouped_query(where), batches_of(7, "a", count=20)
    graph = JoinGraph(query)
    assert [len(i.terms) for i in indexes(routes(left_deep(graph), graph)) if i.is_ordered] == [2], "by key and range"
    found = results(query, [*batches, {}, {}], stop=9)
    assert not (wrong := oracle.difference(found, oracle.expected(query, batches, {}))), wrong
    assert found
