"""Rows from the future: they are kept as long as they are valid, and nothing else is kept for their sake."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle

SECOND_US = 1_000_000
FAR_US = 253_370_764_800 * SECOND_US
"""The first day of the year 9999."""

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts AHEAD NONE;" for s in "abc")
TWO = "SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k"
THREE = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND b.k = c.k"
BETWEEN = "SELECT a.x, b.x AS y FROM a, b WHERE a.x < b.x AND b.x < a.x + 3"


def batches_of(count, rows, future):
    """Half a second of rows in each batch; `future` has the rows of some streams and batches that are in the year 9999."""
    random = np.random.default_rng(1)
    found = []
    for batch in range(count):
        tables = {}
        for name in "abc":
            times = np.sort(random.integers(batch * SECOND_US // 2, (batch + 1) * SECOND_US // 2, rows))
            keys, values = random.integers(0, 60, rows), np.arange(rows) + batch * rows
            if (name, batch) in future:
                times[-1], keys[-1], values[-1] = FAR_US, 1, 0
            tables[name] = pa.table({"k": keys, "x": values, "ts": pa.array(times, pa.timestamp("us"))})
        found.append(tables)
    return found


def follow(sql, plan, future, count=60, rows=40):
    """Runs a query over batches, checks the results, and returns the run with what it held after the last."""
    query = parse_script(f"{STREAMS} CREATE QUERY q AS {sql} WINDOW 1 SECOND").queries[0].query
    batches = [{n: t for n, t in b.items() if n in [s.name for s in query.sources]} for b in batches_of(count, rows, future)]
    disk, found = MemoryFilesystem(), Counter()
    run = LocalRun(query, disk, plan)
    for batch, given in enumerate(batches):
        done = run.step(batch, given)
        found += oracle.bag(done.results)
        run.verify()
    assert not (wrong := oracle.difference(found, oracle.expected(query, batches, {}))), wrong
    return run, done.statistics, disk.list("state/0")


@cache
def usual(sql, plan, rows):
    """What a run holds without rows from the future."""
    return follow(sql, plan, frozenset(), rows=rows)[1:]


FUTURES = {
    "one row": {("a", 5)},
    "two streams": {("a", 5), ("b", 7)},
    "several": {("a", 5), ("b", 7), ("a", 40), ("b", 41)},
}


@pytest.mark.few(3)
@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize(("sql", "plan"), [(TWO, None), (BETWEEN, None), (THREE, None), (THREE, "((b c) a)")])
def test_a_row_from_the_future_keeps_its_own_segments_alone(sql, plan, future):
    rows = 40
    counted, files = usual(sql, plan, rows)
    run, statistics, with_future = follow(sql, plan, FUTURES[future], rows=rows)
    stays = len(FUTURES[future])
    kept, was = (sum(s.state_rows for s in c.sources.values()) for c in (statistics, counted))
    assert kept <= was + stays * rows
    assert len(with_future) <= len(files) + 3 * stays
    for ours, theirs in zip(statistics.states, counted.states, strict=True):
        assert ours.rows <= theirs.rows + 2 * rows * stays, ours.name
        assert ours.runs <= theirs.runs + stays, ours.name
    for log in run.slot.store.logs.values():
        assert len(log.segments) <= 6 + stays


def test_results_of_rows_from_the_future_are_found_after_a_restart():
    """The row of one stream waits in a log and an index that are read again; then that of the other comes."""
    sql, future = TWO, {("a", 5), ("b", 90)}
    query = parse_script(f"{STREAMS} CREATE QUERY q AS {sql} WINDOW 1 SECOND").queries[0].query
    batches = [{n: t for n, t in b.items() if n != "c"} for b in batches_of(100, 10, future)]
    disk, found = MemoryFilesystem(), Counter()
    for batch, given in enumerate(batches):
        if batch in (0, 60, 90):
            run = LocalRun(query, disk)
        found += oracle.bag(run.step(batch, given).results)
        run.verify()
    assert (0, 0) in found
    assert not (wrong := oracle.difference(found, oracle.expected(query, batches, {}))), wrong
