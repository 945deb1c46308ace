"""One DuckDB process in a loop: append each stream's delta, expire what is out of its window, join the delta.

Nothing is durable here, and a crash loses all state: it is what a sceptic would write first. Two ways of keeping the
state were tried, DuckDB's own tables with DELETE, and a list of Arrow tables from which the oldest is dropped; a benchmark
runs both and counts the faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import permutations

import duckdb
import pyarrow as pa

from bench.workload import Workload


class DuckDbLoop:
    """`kind` is "tables" or "arrow"."""

    def __init__(self, workload: Workload, kind: str, threads: int = 1) -> None:
        self.workload, self.kind = workload, kind
        self.connection = duckdb.connect(config={"threads": threads})
        # Joins by comparisons: below a thousand rows DuckDB would compare all pairs, which is slower here.
        self.connection.execute("SET merge_join_threshold = 0")
        self.state: dict[str, deque[pa.Table]] = {s: deque() for s in workload.streams}
        self._made: set[str] = set()

    def fill(self, batch: Mapping[str, pa.Table]) -> None:
        """Adds rows to the state without joining them."""
        for stream, rows in batch.items():
            self._append(stream, rows)

    def step(self, batch: Mapping[str, pa.Table]) -> list[pa.Table]:
        results = []
        for stream, rows in batch.items():
            if all(other in self._made for other in self.workload.streams if other != stream):
                results.append(self._join(stream, rows, self.workload.window_us))
            self._append(stream, rows)
        return results

    def expire(self, watermark_us: int) -> None:
        """Drops what has ended by the watermark."""
        oldest = watermark_us - self.workload.window_us
        for stream in self._made:
            if self.kind == "tables":
                self.connection.execute(f"DELETE FROM {stream} WHERE epoch_us(ts) <= {oldest}")
            else:
                kept = self.state[stream]
                while kept and kept[0].column("ts")[-1].value <= oldest:
                    kept.popleft()

    def _append(self, stream: str, rows: pa.Table) -> None:
        if self.kind == "arrow":
            self.state[stream].append(rows)
        else:
            self.connection.register("delta", rows)
            if stream in self._made:
                self.connection.execute(f"INSERT INTO {stream} SELECT * FROM delta")
            else:
                self.connection.execute(f"CREATE TABLE {stream} AS SELECT * FROM delta")
            self.connection.unregister("delta")
        self._made.add(stream)

    def _join(self, stream: str, rows: pa.Table, window_us: int, predicate: str = "") -> pa.Table:
        """New rows of a stream with the rows of all others that lie in a window with them."""
        w = self.workload
        self.connection.register("delta", rows)
        names = {s: "delta" if s == stream else s for s in w.streams}
        if self.kind == "arrow":
            for other in w.streams:
                if other != stream:
                    names[other] = f"state_{other}"
                    self.connection.register(names[other], pa.concat_tables(self.state[other]))
        # A result's rows are valid together iff the oldest and the newest of them lie less than a window apart. Of streams
        # without a condition in common it is asked at the end: DuckDB would else join these first, by their times alone.
        span = f"INTERVAL {window_us} MICROSECONDS"
        valid = [f"{x}.ts < {y}.ts + {span}" for x, y in permutations(w.streams, 2) if meet(w.where, x, y)]
        if len(w.streams) > 2:
            times = ", ".join(f"{stream}.ts" for stream in w.streams)
            valid.append(f"greatest({times}) < least({times}) + {span}")
        select = ", ".join(f"{c} AS {c.replace('.', '_')}" for c in w.selected)
        if w.wide:
            select += ", a.note, a.w0 + a.w11 AS w"
        from_ = ", ".join(f"{table} AS {alias}" for alias, table in names.items())
        where = " AND ".join(filter(None, (w.where, *valid, predicate)))
        return self.connection.sql(f"SELECT {select} FROM {from_} WHERE {where}").to_arrow_table()


def meet(where: str, one: str, other: str) -> bool:
    """Whether some condition compares two streams.

    >>> meet("a.k1 = b.k1 AND b.k2 = c.k2", "c", "b"), meet("a.k1 = b.k1 AND b.k2 = c.k2", "a", "c")
    (True, False)
    """
    return any(f"{one}." in part and f"{other}." in part for part in where.split(" AND "))
