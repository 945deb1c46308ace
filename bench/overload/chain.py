"""The 5-way chain of the engine's part: neighbours find 8, 8, 0.3 and 0.3 partners.

Rows of `a` make a hundred pairs each on their way to 5.8 results, rows of `e` seven: what a row finds is the same in every
direction, what it costs is not. Keys are drawn uniformly from `rate × window / partners` values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from anabranch.overload.half_way import Plan, Stream, join
from anabranch.overload.time_windows import with_time_windows
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from bench.workload import SECOND_US

PARTNERS = (8.0, 8.0, 0.3, 0.3)
STREAMS = tuple("abcde")
N_ARY = "(a b c d e)"
BINARY = ("((((a b) c) d) e)", "(a (b (c (d e))))")
"""As written, which has the largest views; and with the least."""


@dataclass(frozen=True)
class Chain:
    """Streams of equal rate and window; batches of a second of event time."""

    rate_per_s: int
    window_s: int
    seed: int

    @cached_property
    def query(self) -> Query:
        fields = "k1 BIGINT, k2 BIGINT, k3 BIGINT, k4 BIGINT, v DOUBLE, ts TIMESTAMP"
        streams = "".join(f"CREATE STREAM {s} ({fields}) TIME ts;" for s in STREAMS)
        where = " AND ".join(f"{x}.k{n} = {y}.k{n}" for n, x, y in zip((1, 2, 3, 4), "abcd", "bcde", strict=True))
        select = ", ".join(f"{s}.v AS {s}_v" for s in STREAMS)
        text = f"SELECT {select} FROM {', '.join(STREAMS)} WHERE {where} WINDOW {self.window_s} SECONDS"
        return parse_script(f"{streams} CREATE QUERY q AS {text};").queries[0].query

    @property
    def keys(self) -> tuple[int, ...]:
        """From how many values each key is drawn."""
        return tuple(max(1, round(self.rate_per_s * self.window_s / found)) for found in PARTNERS)

    def batch(self, number: int, kept: float = 1.0) -> dict[str, pa.Table]:
        """The rows of a second, or a share of them, drawn at random."""
        rows, found = self.rate_per_s, {}
        times = number * SECOND_US + np.arange(rows) * SECOND_US // rows
        for place, stream in enumerate(STREAMS):
            rng = np.random.default_rng((self.seed, number, place))
            columns = {f"k{n + 1}": rng.integers(0, domain, rows) for n, domain in enumerate(self.keys)}
            values, is_kept = rng.random(rows), rng.random(rows) < kept
            table = pa.table({**columns, "v": values, "ts": pa.array(times, pa.timestamp("us"))})
            found[stream] = table if kept >= 1 else table.filter(pa.array(is_kept))
        return found

    @cached_property
    def as_written(self) -> Plan:
        """The binary plan as the paper's algorithms see it: a probe costs 1, windows are in time."""
        first, *others = (Stream(name, self.rate_per_s, 0.0, 0.0) for name in STREAMS)
        root = join(first, others[0], 1 / self.keys[0])
        for stream, domain in zip(others[1:], self.keys[1:], strict=True):
            root = join(root, stream, 1 / domain)
        return with_time_windows(Plan(root), dict.fromkeys(STREAMS, float(self.window_s)), is_law=True)
