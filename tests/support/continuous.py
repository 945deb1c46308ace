"""Random continuous queries over random streams: joins, groups, subqueries, in many batch cuts.

A query is drawn from a seed and a `Shape`, as in `scenarios`; sums of floats are over multiples of a quarter, so that they
are exact in any order. A mean of quarters that is compared with a quarter is equal to it or far from it, and so never in
doubt (`oracle.bounds`); for other readings see `tests/engine/test_means.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.plan.query import Query
from anabranch.sql import parse_script

SECOND_US = 1_000_000
COLUMNS = "k BIGINT, g STRING, h INT, x DOUBLE, d DECIMAL(9,2), b BOOLEAN, day DATE, ts TIMESTAMP"
KEYS = ("{a}.k", "{a}.g", "{a}.h % 2", "{a}.b", "{a}.day", "{a}.d")
AGGREGATES = (
    "COUNT(*)", "COUNT({a}.x)", "SUM({a}.k)", "SUM({a}.x)", "SUM({a}.d)", "AVG({a}.x)", "AVG({a}.h)", "MIN({a}.x)",
    "MAX({a}.x)", "MIN({a}.g)", "MAX({a}.g)", "MAX({a}.ts)", "MIN({a}.d)", "COUNT(DISTINCT {a}.g)", "COUNT(DISTINCT {a}.k)",
    "ROUND(STDDEV({a}.x), 5)", "MAX({a}.day)", "MIN({a}.b)", "SUM({a}.k * {a}.h) + 1", "COUNT(*) + MAX({a}.k)",
    "SUM(CASE WHEN {a}.b THEN {a}.x ELSE 0.25 END)", "MAX({a}.k) - MIN({a}.k)",
)  # fmt: skip
FILTERS = ("{a}.x > 0", "{a}.g IS NOT NULL", "{a}.h BETWEEN 1 AND 3", "({a}.g LIKE 'a%' OR {a}.b)", "{a}.d >= 0.00")
PAIRS = ("{a}.k = {b}.k", "{a}.g = {b}.g", "{a}.k = {b}.k AND {a}.x < {b}.x", "{a}.h = {b}.h", "{a}.k = {b}.k AND {a}.b")
THETA = (
    "{a}.x < {b}.x", "{a}.x BETWEEN {b}.x - 1 AND {b}.x + 1", "{a}.k <> {b}.k", "{a}.k + {b}.h > 3",
    "{a}.d BETWEEN {b}.d - 0.75 AND {b}.d + 1", "{a}.day > {b}.day AND {a}.k + 1 >= {b}.h", "{a}.h - 1 > {b}.k",
    "{a}.ts BETWEEN {b}.ts - INTERVAL 1 SECOND AND {b}.ts", "{a}.b > {b}.b",
)  # fmt: skip
WINDOWS = ("[RANGE 2 SECONDS]", "[RANGE 3500 MILLISECONDS]", "[RANGE 1 SECOND]", "[NOW]", "[UNBOUNDED]")
HAVING = ("COUNT(*) > 1", "MAX({a}.x) >= 0.5", "SUM({a}.k) <> 3 OR COUNT(*) = 1")


@dataclass(frozen=True)
class Shape:
    """What Hypothesis draws and shrinks."""

    seed: int
    streams: int
    rows: int
    batches: int
    groups: bool
    subquery: bool
    theta: bool
    nulls: bool
    late: bool
    tables: bool


def shapes(**fixed: Any) -> st.SearchStrategy[Shape]:
    drawn = {
        "seed": st.integers(0, 2**32 - 1), "streams": st.integers(1, 3), "rows": st.integers(0, 40),
        "batches": st.integers(1, 8), "groups": st.booleans(), "subquery": st.booleans(), "theta": st.booleans(),
        "nulls": st.booleans(), "late": st.booleans(), "tables": st.booleans(),
    }  # fmt: skip
    return st.builds(Shape, **{**drawn, **{name: st.just(value) for name, value in fixed.items()}})


@dataclass(frozen=True)
class Continuous:
    """A query, and the rows of its streams batch by batch."""

    shape: Shape

    @cached_property
    def sql(self) -> str:
        rng = np.random.default_rng([self.shape.seed, 1])
        return _select(rng, self.shape, ["s0", "s1", "s2"][: self.shape.streams], self.shape.groups, self.shape.subquery, 2)

    @cached_property
    def query(self) -> Query:
        return parse_script(self.script).queries[0].query

    @property
    def script(self) -> str:
        streams = "".join(f"CREATE STREAM s{i} ({COLUMNS}) TIME ts LATENESS {i} SECONDS;\n" for i in range(3))
        table = "CREATE TABLE t (k BIGINT, name STRING);\n"
        return f"{streams}{table}CREATE QUERY q AS {self.sql}"

    @cached_property
    def tables(self) -> dict[str, pa.Table]:
        return {"t": pa.table({"k": [0, 1, 1, 2, None], "name": ["a", "b", None, "c", "d"]},
                              schema=pa.schema([("k", pa.int64()), ("name", pa.string())]))}  # fmt: skip

    @cached_property
    def batches(self) -> list[dict[str, pa.Table]]:
        rng = np.random.default_rng([self.shape.seed, 2])
        names = [s.name for s in self.query.base_sources if s.name != "t"]
        batches: list[dict[str, pa.Table]] = [{} for _ in range(self.shape.batches)]
        for name in names:
            n = self.shape.rows
            times = np.sort(rng.integers(0, 12 * SECOND_US, n)) // (SECOND_US // 4) * (SECOND_US // 4) + 5 * SECOND_US
            if self.shape.late and n:
                moved = rng.random(n) < 0.3
                times[moved] -= rng.integers(0, 5 * SECOND_US, int(moved.sum()))
            cuts = np.sort(rng.integers(0, n + 1, self.shape.batches - 1))
            rows = self._rows(rng, n, times)
            for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, n], strict=True)):
                if high > low or rng.random() < 0.5:
                    batches[number][name] = rows.slice(low, high - low)
        return batches

    def _rows(self, rng: np.random.Generator, n: int, times: Any) -> pa.Table:
        def maybe(values: pa.Array) -> pa.Array:
            if not self.shape.nulls:
                return values
            mask = rng.random(n) < 0.2
            return pa.array([None if m else v for m, v in zip(mask, values.to_pylist(), strict=True)], values.type)

        text = pa.array([str(v) for v in rng.choice(["a", "ab", "b", ""], n)], pa.string())
        cents = pa.array(rng.integers(-500, 500, n)).cast(pa.decimal128(19, 0)).to_pylist()
        return pa.table({
            "k": maybe(pa.array(rng.integers(0, 4, n))), "g": maybe(text),
            "h": maybe(pa.array(rng.integers(0, 5, n), pa.int32())), "x": maybe(pa.array(rng.integers(-8, 9, n) / 4.0)),
            "d": maybe(pa.array([c / 100 for c in cents], pa.decimal128(9, 2))), "b": maybe(pa.array(rng.random(n) < 0.5)),
            "day": maybe(pa.array(rng.integers(0, 3, n), pa.int32()).cast(pa.date32())),
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us")),
        })  # fmt: skip


def _select(rng: np.random.Generator, shape: Shape, streams: list[str], groups: bool, nested: bool, depth: int) -> str:
    """A SELECT over some streams, one of them perhaps a subquery."""

    def some(choices: tuple[str, ...]) -> str:
        return str(rng.choice(choices))

    aliases = [f"a{i}" for i in range(len(streams))]
    froms, inner = [], None
    for place, (stream, alias) in enumerate(zip(streams, aliases, strict=True)):
        if nested and depth and place == len(streams) - 1:
            inner = _subquery(rng, shape, stream, depth)
            froms.append(f"({inner}) AS {alias}")
        else:
            window = rng.choice(WINDOWS, p=[0.4, 0.25, 0.2, 0.05, 0.1])
            froms.append(f"{stream} {window} AS {alias}")
    plain = aliases[:-1] if inner is not None else aliases
    conditions = []
    for left, right in pairwise(aliases):
        if inner is not None and right == aliases[-1]:
            conditions.append(f"{left}.k = {right}.k")
            if rng.random() < 0.5:
                conditions.append(f"{left}.x >= {right}.m")
        else:
            conditions.append(some(THETA if shape.theta else PAIRS).format(a=left, b=right))
    for alias in plain:
        if rng.random() < 0.3:
            conditions.append(some(FILTERS).format(a=alias))
    if shape.tables and plain and depth == 2:
        froms.append("t")
        conditions.append(f"{plain[0]}.k = t.k")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    source = f" FROM {', '.join(froms)}{where}"
    if not plain:
        if groups:
            key = "a0.k, " if rng.random() < 0.5 else ""
            return f"SELECT {key}MAX(a0.m) AS m2, COUNT(*) AS n2{source}{' GROUP BY a0.k' if key else ''} SLIDE 2 SECONDS"
        return f"SELECT a0.k, a0.m, a0.n{source}"
    if not groups:
        columns = ", ".join(f"{a}.{c} AS {a}_{c}" for a in plain for c in ("k", "g", "x"))
        return f"SELECT {columns}{f', {aliases[-1]}.m AS m' if inner is not None else ''}{source}"
    keys = list(dict.fromkeys(some(KEYS).format(a=some(tuple(plain))) for _ in range(int(rng.integers(0, 3)))))
    chosen = [some(AGGREGATES).format(a=some(tuple(plain))) for _ in range(int(rng.integers(1, 5)))]
    if inner is not None:
        chosen.append(f"MAX({aliases[-1]}.m)")
    entries = [*(f"{key} AS key{i}" for i, key in enumerate(keys)), *(f"{a} AS agg{i}" for i, a in enumerate(chosen))]
    if rng.random() < 0.5:
        entries.append("RESULT_TIME AS at")
    group_by = f" GROUP BY {', '.join(keys)}" if keys else ""
    having = f" HAVING {some(HAVING).format(a=some(tuple(plain)))}" if rng.random() < 0.3 else ""
    slide = rng.choice(["", " SLIDE 1 SECOND", " SLIDE 500 MILLISECONDS", " SLIDE 2 SECONDS", " SLIDE 3 SECONDS"])
    return f"SELECT {', '.join(entries)}{source}{group_by}{having}{slide}"


def _subquery(rng: np.random.Generator, shape: Shape, stream: str, depth: int) -> str:
    """Groups by `k` with aggregates `m` and `n`, or rows with the same columns; sometimes over a subquery of its own."""
    if depth > 1 and rng.random() < 0.3:
        inner = _subquery(rng, shape, stream, depth - 1)
        return f"SELECT i.k AS k, MAX(i.m) AS m, COUNT(*) AS n FROM ({inner}) i GROUP BY i.k"
    kind = rng.random()
    if kind < 0.2:
        return f"SELECT i.k AS k, i.x AS m, i.h AS n FROM {stream} [RANGE 2 SECONDS] i WHERE i.h > 1"
    aggregate = rng.choice(["MAX(i.x)", "AVG(i.x)", "SUM(i.x)"])
    window, slide = rng.choice(["2 SECONDS", "4 SECONDS"]), rng.choice(["", " SLIDE 2 SECONDS"])
    return f"SELECT i.k AS k, {aggregate} AS m, COUNT(*) AS n FROM {stream} [RANGE {window}] i GROUP BY i.k{slide}"
