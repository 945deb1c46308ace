"""A query with a short window and one with a long one, over the same streams."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.plan.query import Query
from anabranch.sql import parse_script

SECOND_US = 1_000_000
LIMITS = {"short": 2 * SECOND_US, "long": 20 * SECOND_US}
KEYS = 20_000


def queries() -> list[Query]:
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    script += "CREATE QUERY short AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k WINDOW 2 SECONDS;"
    script += "CREATE QUERY long AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k AND a.x < 10 WINDOW 20 SECONDS;"
    return [declared.query for declared in parse_script(script).queries]


def batch(number: int, passing: float, rows: int = 600) -> dict[str, pa.Table]:
    rng, found = np.random.default_rng(number), {}
    for stream in "ab":
        times = np.sort(rng.integers(number * SECOND_US, (number + 1) * SECOND_US, rows))
        x = np.where(rng.random(rows) < passing, rng.integers(0, 10, rows), rng.integers(10, 100, rows))
        found[stream] = pa.table({"k": rng.integers(0, KEYS, rows), "x": x, "ts": pa.array(times, pa.timestamp("us"))})
    return found
