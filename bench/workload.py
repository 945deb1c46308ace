"""Synthetic streams and the joins over them that several benchmarks use.

Every stream has an event time, an integer column per join partner, and a value. Keys are drawn uniformly from a domain of
`rate × window / matches` values, so that a row finds `matches` valid partners in a stream it is joined with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from anabranch.plan.query import Query
from anabranch.sql import parse_script

SECOND_US = 1_000_000
POOL = 8
"""So many different batches are drawn per stream; later ones repeat them with new event times."""

SHAPES: dict[str, tuple[tuple[str, str], ...]] = {
    "2-way": (("a.k1", "b.k1"),),
    "3-way chain": (("a.k1", "b.k1"), ("b.k2", "c.k2")),
    "4-way star": (("a.k1", "b.k1"), ("a.k2", "c.k2"), ("a.k3", "d.k3")),
    "5-way chain": (("a.k1", "b.k1"), ("b.k2", "c.k2"), ("c.k3", "d.k3"), ("d.k1", "e.k1")),
    "5-way worst order": (("a.k1", "b.k1"), ("b.k2", "c.k2"), ("c.k3", "d.k3"), ("d.k4", "e.k4")),
    "6-way one key": tuple(("a.k1", f"{s}.k1") for s in "bcdef"),
}
PARTNERS: dict[str, dict[str, float]] = {"5-way worst order": {"k1": 4.0, "k2": 2.0, "k3": 0.5, "k4": 0.1}}
"""How many partners a row finds by a key, where keys differ: a query written so that the largest results come first."""


@dataclass(frozen=True)
class Workload:
    """A join over streams of equal rate and window."""

    shape: str
    rate_per_s: int
    window_s: float
    batch_s: float
    matches: float = 1.0
    wide: bool = False

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple("abcdef"[: int(self.shape[0])])

    @property
    def rows_per_batch(self) -> int:
        return round(self.rate_per_s * self.batch_s)

    @property
    def window_us(self) -> int:
        return round(self.window_s * SECOND_US)

    @cached_property
    def keys(self) -> dict[str, int]:
        """The key columns, and from how many values they are drawn."""
        # Rows valid together with a row lie up to one window before and after it.
        partners = PARTNERS.get(self.shape, dict.fromkeys(("k1", "k2", "k3"), self.matches))
        return {key: max(1, round(self.rate_per_s * self.window_s / found)) for key, found in partners.items()}

    @property
    def where(self) -> str:
        return " AND ".join(f"{left} = {right}" for left, right in SHAPES[self.shape])

    @property
    def selected(self) -> tuple[str, ...]:
        return (f"{self.streams[0]}.k1", *(f"{s}.v" for s in self.streams))

    @cached_property
    def columns(self) -> dict[str, str]:
        columns = {**dict.fromkeys(self.keys, "BIGINT"), "v": "DOUBLE"}
        if self.wide:
            columns |= {f"w{i}": "DOUBLE" for i in range(12)} | {"note": "STRING"}
        return columns | {"ts": "TIMESTAMP"}

    @cached_property
    def query(self) -> Query:
        fields = ", ".join(f"{name} {type}" for name, type in self.columns.items())
        streams = "".join(f"CREATE STREAM {s} ({fields}) TIME ts;\n" for s in self.streams)
        wide = ", a.note, a.w0 + a.w11 AS w" if self.wide else ""
        select = ", ".join(f"{c} AS {c.replace('.', '_')}" for c in self.selected)
        script = f"{streams} CREATE QUERY q AS SELECT {select}{wide} FROM {', '.join(self.streams)} WHERE {self.where} "
        return parse_script(f"{script} WINDOW {self.window_us} MICROSECONDS").queries[0].query

    @cached_property
    def _pool(self) -> list[dict[str, pa.Table]]:
        rng = np.random.default_rng(7)
        n, pool = self.rows_per_batch, []
        for _ in range(POOL):
            batch = {}
            for stream in self.streams:
                columns: dict[str, object] = {key: rng.integers(0, values, n) for key, values in self.keys.items()}
                columns["v"] = rng.random(n)
                if self.wide:
                    columns |= {f"w{i}": rng.random(n) for i in range(12)}
                    columns["note"] = pa.array([f"{i:0100d}" for i in range(n)])
                batch[stream] = pa.table(columns)
            pool.append(batch)
        return pool

    def batch(self, number: int) -> dict[str, pa.Table]:
        """The rows of one batch, by stream, in order of event time."""
        n = self.rows_per_batch
        first_us = round(number * self.batch_s * SECOND_US)
        times = first_us + (np.arange(n, dtype=np.int64) * round(self.batch_s * SECOND_US)) // n
        column = pa.array(times, pa.timestamp("us"))
        return {s: t.append_column("ts", column) for s, t in self._pool[number % POOL].items()}
