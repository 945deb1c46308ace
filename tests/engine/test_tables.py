"""A single stream among stored tables: its rows find all there is, and none of them is kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.routes import routes, views
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.local_runs import state_of
from tests.support.scenarios import random_plan

SQL = """CREATE STREAM s (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE TABLE t (k BIGINT, j BIGINT, name STRING);
CREATE TABLE u (j BIGINT, low BIGINT, high BIGINT);
CREATE QUERY q AS SELECT s.x, t.name, u.low, v.name AS other FROM t, s [RANGE 2 SECONDS], u, t v
  WHERE s.k = t.k AND t.j = u.j AND s.x BETWEEN u.low AND u.high AND v.k = s.j"""


def some(rng: np.random.Generator, rows: int, *columns: str) -> dict[str, pa.Array]:
    return {c: pa.array([None if v == 5 else int(v) for v in rng.integers(0, 6, rows)], pa.int64()) for c in columns}


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_nothing_of_the_stream_is_kept(seed, batches, restart):
    rng = np.random.default_rng(seed)
    query = parse_script(SQL).queries[0].query
    graph = JoinGraph(query)
    plan = random_plan(rng, graph)
    assert not any("s" in view for view in views(routes(plan, graph)))
    tables = {
        "t": pa.table({**some(rng, 9, "k", "j"), "name": [f"n{i}" for i in range(9)]}),
        "u": pa.table(some(rng, 6, "j", "low", "high")),
    }
    rows = [
        {"s": pa.table({**some(rng, 20, "k", "j", "x"),
                        "ts": pa.array(number * 500_000 + rng.integers(-900_000, 500_000, 20), pa.timestamp("us"))})}
        for number in range(batches)
    ]  # fmt: skip
    disk = MemoryFilesystem()
    run = LocalRun(query, disk, plan, tables)
    found: oracle.Bag = Counter()
    for batch, given_rows in enumerate(rows):
        if batch == restart:
            run = LocalRun(query, disk, random_plan(rng, graph), tables)
        done = run.step(batch, given_rows)
        found += oracle.bag(done.results)
        assert done.statistics.sources["s"].state_rows == 0
        assert not any("s." in state.name for state in done.statistics.states)
        assert all(segment.source != "s" for segment in state_of(run, batch).logs)
    assert not (wrong := oracle.difference(found, oracle.expected(query, rows, tables))), wrong
