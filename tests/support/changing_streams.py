"""A chain of three streams whose rates and keys change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.plan.join_graph import JoinGraph
from anabranch.sql import parse_script

GRAPH = JoinGraph(
    parse_script("""
    CREATE STREAM a (k BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM c (l BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.v, c.v AS w FROM a, b, c WHERE a.k = b.k AND b.l = c.l WINDOW 6 SECONDS
    """)
    .queries[0]
    .query
)
Phase = tuple[dict[str, int], dict[str, int]]


def batch_of(number: int, phase: Phase, rng: np.random.Generator) -> dict[str, pa.Table]:
    rates, domains = phase
    rows = {}
    for name, keys in (("a", ("k",)), ("b", ("k", "l")), ("c", ("l",))):
        n = rates[name]
        columns: dict[str, Any] = {key: rng.integers(0, domains[key], n) for key in keys}
        if name != "b":
            columns["v"] = rng.random(n)
        times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, n))
        rows[name] = pa.table({**columns, "ts": pa.array(times, pa.timestamp("us"))})
    return rows
