"""Two streams with four rows each in every batch."""

from __future__ import annotations

import pyarrow as pa

from anabranch.sql import parse_script

CATALOG = parse_script("""
    CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
""").catalog


def rows(number: int) -> dict[str, pa.Table]:
    ts = pa.array([number * 1_000_000 + n for n in range(4)], pa.timestamp("us"))
    return {
        name: pa.table({"k": [0, 1, 2, 3], "x": pa.array([number % 7 + n for n in range(4)]), "ts": ts})
        for name in "ab"
    }
