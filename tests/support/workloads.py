"""Several queries over the same streams, as data: what they share must not be seen in what they give.

Queries are drawn so that they have much in common and little in full: the same keys with other windows, filters on some, one
key or two, a subquery over a stream that another query joins, groups, stored tables; and streams whose lateness differs, so
that what is late for one query is not for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.plan.query import Query, Stream
from anabranch.sql import parse_script

SECOND_US = 1_000_000
STREAMS = "abc"
COLUMNS = "k BIGINT, j BIGINT, x BIGINT, s STRING"
WINDOWS = ("[RANGE 2 SECONDS]", "[RANGE 5 SECONDS]", "[RANGE 1 SECOND]", "[NOW]", "[RANGE 3 SECONDS]", "[UNBOUNDED]")
KEYS = ("{p}.k = {q}.k", "{p}.k = {q}.k AND {p}.j = {q}.j", "{p}.j = {q}.k", "{p}.k = {q}.k AND {p}.x < {q}.x + 3",
        "{p}.j = {q}.j", "{p}.s = {q}.s", "{p}.x BETWEEN {q}.x - 1 AND {q}.x + 1")  # fmt: skip
FILTERS = ("{p}.x > 3", "{p}.x > 3", "{p}.x < 7", "{p}.s = 'u'", "{p}.x % 2 = 0", "{p}.j IS NOT NULL")


@dataclass(frozen=True)
class Workload:
    """So many queries over three streams and a table, and batches of rows, from a seed."""

    stream_names: ClassVar[str] = STREAMS

    seed: int
    count: int
    batches: int = 8
    rows: int = 12

    def rng(self, *what: object) -> np.random.Generator:
        return np.random.default_rng([self.seed, *(abs(hash_of(w)) for w in what)])

    @cached_property
    def script(self) -> str:
        rng = self.rng("streams")
        streams = [f"CREATE STREAM {n} ({COLUMNS}, ts TIMESTAMP) TIME ts LATENESS {rng.integers(0, 4)} SECONDS;"
                   for n in self.stream_names]  # fmt: skip
        queries = [f"CREATE QUERY q{n} AS {self._query(n)};" for n in range(self.count)]
        return "\n".join([*streams, f"CREATE TABLE t ({COLUMNS});", *queries])

    def _query(self, number: int) -> str:
        rng = self.rng("query", number)
        kind, count = int(rng.integers(10)), int(rng.integers(2, 4))
        sources = [str(rng.choice(list(STREAMS))) for _ in range(count)]
        if kind == 0:
            sources = sources[:1]
        if kind == 1:
            sources[-1] = "t"
        aliases = [f"i{place}" for place in range(len(sources))]
        inputs = [f"{s} {'' if s == 't' else str(rng.choice(WINDOWS[: 6 if count < 3 else 5]))} AS {a}"
                  for s, a in zip(sources, aliases, strict=True)]  # fmt: skip
        where = [str(rng.choice(KEYS[: 7 if count < 3 else 5])).format(p=p, q=q)
                 for p, q in pairwise(aliases)]  # fmt: skip
        where += [str(rng.choice(FILTERS)).format(p=a) for a in aliases if rng.integers(3) == 0]
        if kind in (2, 3):
            inner = str(rng.choice(list(STREAMS)))
            inputs.append(f"(SELECT k, MAX(x) AS m, COUNT(*) AS n FROM {inner} [RANGE 3 SECONDS] GROUP BY k) AS g")
            where.append(f"{aliases[0]}.k = g.k")
            where.append(f"{aliases[0]}.x >= g.m - 2")
        tail = f" WHERE {' AND '.join(where)}" if where else ""
        if kind in (3, 4, 5):
            key = f"{aliases[-1]}.k"
            return (
                f"SELECT {key}, COUNT(*) AS n, SUM({aliases[0]}.x) AS y FROM {', '.join(inputs)}{tail} GROUP BY {key}"
            )
        shown = ", ".join(f"{a}.x AS x{place}, {a}.s AS s{place}" for place, a in enumerate(aliases))
        return f"SELECT {shown} FROM {', '.join(inputs)}{tail}"

    @cached_property
    def queries(self) -> list[Query]:
        return [declared.query for declared in parse_script(self.script).queries]

    @cached_property
    def sources(self) -> dict[str, pa.Schema]:
        plain = [("k", pa.int64()), ("j", pa.int64()), ("x", pa.int64()), ("s", pa.string())]
        return {n: pa.schema([*plain, ("ts", pa.timestamp("us"))]) for n in self.stream_names} | {"t": pa.schema(plain)}

    def batch(self, number: int) -> dict[str, pa.Table]:
        """A second of rows of some streams; some rows are late, some have no key, some no time."""
        found = {}
        for name in self.stream_names:
            rng = self.rng("rows", name, number)
            if number and rng.integers(6) == 0:
                continue
            times = number * SECOND_US + rng.integers(-4 * SECOND_US, SECOND_US, self.rows) // (1 + rng.integers(0, 4))
            found[name] = self._rows(rng, name, times)
        return found

    @cached_property
    def table(self) -> pa.Table:
        return self._rows(self.rng("table"), "t", None)

    def _rows(self, rng: np.random.Generator, name: str, times: object) -> pa.Table:
        columns: dict[str, list[object]] = {}
        for column in ("k", "j", "x"):
            values = rng.integers(0, 4 if column != "x" else 10, self.rows).tolist()
            columns[column] = [None if rng.integers(8) == 0 else value for value in values]
        columns["s"] = [str(rng.choice(["u", "v", "w"])) for _ in range(self.rows)]
        if times is not None:
            assert isinstance(times, np.ndarray)
            columns["ts"] = [None if rng.integers(20) == 0 else int(t) for t in times]
        schema = self.sources[name]
        arrays = [pa.array(columns[f.name], pa.int64()).view(f.type) if f.name == "ts" else pa.array(columns[f.name], f.type)
                  for f in schema]  # fmt: skip
        return pa.table(arrays, schema=schema)

    def streams_of(self, query: Query) -> list[str]:
        return [s.name for s in query.base_sources if isinstance(s, Stream)]


def with_table(workload: Workload) -> list[Query]:
    """The queries of a workload, and three that read its table beside two streams each."""
    join = "SELECT i0.x, t.x AS y FROM {s} AS i0, {o} AS i1, t WHERE i0.k = t.k AND i1.k = i0.k WINDOW 2 SECONDS"
    sql = [*(q.sql for q in workload.queries), *(join.format(s=s, o=o) for s, o in ("ab", "bc", "ca"))]
    creates = workload.script.partition("CREATE QUERY")[0]
    script = parse_script(creates + "".join(f"CREATE QUERY q{n} AS {each};" for n, each in enumerate(sql)))
    return [declared.query for declared in script.queries]


def readings_of(workload: Workload) -> list[pa.Table]:
    """What the table of a workload holds in each batch, where it changes."""
    return [Workload(workload.seed + n, 2).table for n in range(workload.batches + 1)]


def hash_of(value: object) -> int:
    """The same in every process."""
    return value if isinstance(value, int) else int.from_bytes(str(value).encode()[:7], "little")


def counts(most: int = 12) -> st.SearchStrategy[int]:
    """How many queries there are: two or more, up to twelve, and mostly few, for each of them takes time."""
    return st.one_of(st.integers(2, min(most, 6)), st.integers(2, most))


def workloads(most: int = 12) -> st.SearchStrategy[Workload]:
    """Two queries or more."""
    return st.builds(Workload, st.integers(0, 2**32 - 1), counts(most), st.sampled_from([6, 3, 12]))
