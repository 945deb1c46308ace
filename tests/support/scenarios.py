"""Scenarios: a query, plans for it, and batches of rows, as data. Several suites run the same ones.

A `Scenario` prints as the expression that makes it, so that what fails can be pasted into `tests/support/regressions.py`.
The strategy `scenarios()` draws what should shrink (how many inputs, which shape, which features) with Hypothesis, and fills
in the bulk (columns, predicates, windows, rows) from a drawn seed: every aspect has a generator of its own, so that
switching one feature off leaves the others as they were.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch.plan.expression import Call, Literal, ResultTime
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan, parse, show
from anabranch.plan.query import Query, Stream
from anabranch.sql import parse_script

Rows = list[tuple[Any, ...]]
"""Rows in the order of the declared columns; times are microseconds, dates are days, both since 1970."""

nan, inf = float("nan"), float("inf")


@lru_cache(8)
def query_in(script: str) -> Query:
    """The query of a script. Scenarios that differ in something else have it at hand."""
    return parse_script(script).queries[0].query


@dataclass(frozen=True, repr=False)
class Scenario:
    """A query in SQL, plans for it, rows of its streams batch by batch, and rows of its stored tables.

    `result_after_us` adds `RESULT_TIME > …` to the predicates, which SQL does not allow in WHERE but the engine does.
    """

    script: str
    plans: tuple[str, ...]
    batches: tuple[dict[str, Rows], ...]
    tables: dict[str, Rows] = field(default_factory=dict)
    result_after_us: int | None = None

    @cached_property
    def query(self) -> Query:
        query = query_in(self.script)
        if self.result_after_us is None:
            return query
        limit = pa.scalar(self.result_after_us, pa.timestamp("us")).as_py()
        later = Call(pa.bool_(), "gt", (ResultTime(pa.timestamp("us")), Literal(pa.timestamp("us"), limit)))
        return replace(query, residuals=(*query.residuals, later))

    @cached_property
    def graph(self) -> JoinGraph:
        return JoinGraph(self.query)

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(s for s in self.query.sources if isinstance(s, Stream))

    @cached_property
    def arrow_batches(self) -> tuple[dict[str, pa.Table], ...]:
        """The batches as Arrow tables."""
        return tuple({name: self.to_arrow(name, rows) for name, rows in batch.items()} for batch in self.batches)

    @cached_property
    def arrow_tables(self) -> dict[str, pa.Table]:
        return {name: self.to_arrow(name, rows) for name, rows in self.tables.items()}

    def to_arrow(self, source_name: str, rows: Rows) -> pa.Table:
        source = next(s for s in self.query.sources if s.name == source_name)
        columns = list(zip(*rows, strict=True)) or [()] * len(source.fields)
        arrays = [to_array(values, f.type) for values, f in zip(columns, source.fields, strict=True)]
        return pa.table(arrays, schema=pa.schema([pa.field(f.name, f.type) for f in source.fields]))

    def feed(self, batch: int) -> dict[str, pa.Table | pa.RecordBatch]:
        """A batch as a source may hand it out: whole, in chunks, as part of something larger, columns in any order."""
        return {
            name: FEEDS[(batch + place) % len(FEEDS)](rows)
            for place, (name, rows) in enumerate(self.arrow_batches[batch].items())
        }

    def __repr__(self) -> str:
        lines = ["Scenario(", '    """', *(f"    {line}" for line in self.script.splitlines()), '    """,']
        lines += [f"    plans={self.plans!r},", "    batches=("]
        lines += [f"        {batch!r}," for batch in self.batches]
        lines += ["    ),"]
        if self.tables:
            lines.append(f"    tables={self.tables!r},")
        if self.result_after_us is not None:
            lines.append(f"    result_after_us={self.result_after_us},")
        return "\n".join([*lines, ")"])


def to_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).view(type_)
    if pa.types.is_date(type_):
        return pa.array(values, pa.int32()).view(type_)
    return pa.array(values, type_)


def _padded(rows: pa.Table) -> pa.Table:
    """The rows as a slice of more rows."""
    return pa.concat_tables([rows, rows]).combine_chunks().slice(rows.num_rows, rows.num_rows)


def _chunked(rows: pa.Table) -> pa.Table:
    half = rows.num_rows // 2
    return pa.concat_tables([rows.slice(0, half), rows.slice(half)])


def _batch(rows: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([c.combine_chunks() for c in rows.columns], schema=rows.schema)


def _reordered(rows: pa.Table) -> pa.Table:
    return rows.select(rows.schema.names[::-1]).append_column("unknown", pa.nulls(rows.num_rows))


FEEDS: list[Callable[[pa.Table], Any]] = [lambda rows: rows, _padded, _chunked, _batch, _reordered]


# What can be drawn


@dataclass(frozen=True)
class Shape:
    """The choices that Hypothesis draws and shrinks; smaller and False mean simpler."""

    inputs: int
    topology: str
    batches: int
    rows: int
    keys: str
    domain: int
    plans: int
    self_joins: bool
    tables: bool
    filters: bool
    residuals: bool
    nulls: bool
    skewed: bool
    disordered: bool
    late: bool
    uneven: bool
    wide: bool
    finite: bool
    tight: bool
    unit_us: int
    base_us: int


TOPOLOGIES = ("chain", "star", "tree", "cycle", "clique", "disconnected")

ROWS = {1: 40, 2: 60, 3: 32, 4: 18, 5: 12, 6: 9}
"""How many rows a source may have: more inputs make more combinations of them."""

EDGES: dict[str, tuple[str, ...]] = {
    "int": ("{p}.i1 = {q}.i1", "{p}.i1 = {q}.i2", "{p}.i2 = {q}.i1"),
    "int32": ("{p}.n1 = {q}.n1", "{p}.n1 = {q}.h1", "{p}.i1 = {q}.n1"),
    "string": ("{p}.s1 = {q}.s1", "{p}.s2 = {q}.s1", "UPPER({p}.s1) = {q}.s2", "{p}.s1 = {q}.s1 || ''"),
    "float": ("{p}.f1 = {q}.f1", "{p}.f1 = {q}.f2", "{p}.i1 = {q}.f1", "{p}.g1 = {q}.g1", "{p}.f1 = {q}.g1"),
    "decimal": ("{p}.d1 = {q}.d1", "{p}.e1 = {q}.e1", "{p}.d1 = {q}.e1", "{p}.i1 = {q}.d1", "{p}.d1 = {q}.d2"),
    "time": ("{p}.day = {q}.day", "{p}.at = {q}.at", "CAST({p}.at AS DATE) = {q}.day", "{p}.at = {q}.day"),
    "short": ("{p}.b1 = {q}.b1", "{p}.x1 = {q}.x1"),
    "composite": (
        "{p}.i1 = {q}.i2 AND {p}.s1 = {q}.s1",
        "{p}.b1 = {q}.b1 AND {p}.f1 = {q}.f1",
        "{p}.n1 = {q}.n2 AND {p}.e1 = {q}.e1 AND {p}.x1 = {q}.x1",
        "{p}.i1 = {q}.i1 AND {p}.i2 = {q}.i2",
        "{p}.i1 = {q}.i1 AND {p}.i1 = {q}.i2",
    ),
    "expression": (
        "{p}.i1 + 1 = {q}.i2",
        "{p}.v % 3 = {q}.w % 3",
        "ABS({p}.v) = {q}.i1 * 2",
        "COALESCE({p}.i1, 1) = {q}.i1",
    ),
}
KEYS = (*EDGES, "mixed")

FILTERS = (
    "{p}.v > 0", "{p}.v <= 3 OR {p}.w IS NULL", "{p}.s1 IS NOT NULL", "{p}.b1", "NOT {p}.b1", "{p}.i1 = {p}.i2",
    "{p}.i1 IN (0, 2, 3)", "{p}.f1 < 1.5", "{p}.s1 <> 'a'", "{p}.d1 >= 1.00", "{p}.v BETWEEN -3 AND 5", "{p}.w = {p}.v + 1",
)  # fmt: skip
RESIDUALS = (
    "{p}.v < {q}.w", "{p}.v <> {q}.v", "{p}.v + {q}.w > {r}.v", "{p}.f1 <= {q}.f1", "{p}.v = {q}.v OR {q}.w = {r}.w",
    "{p}.at <= {q}.at", "{p}.s1 < {q}.s1", "{p}.v + {q}.v = {r}.v + {r}.w", "{p}.i1 IS NULL OR {q}.i1 IS NOT NULL",
    "CASE WHEN {p}.b1 THEN {q}.v > 0 ELSE {r}.w < 5 END", "{p}.v + {q}.v > -100", "1 = 1", "{p}.v IN ({q}.v, {q}.w)",
)  # fmt: skip
SELECTED = (
    "{p}.v", "{p}.i1", "{p}.s1", "{p}.s2", "{p}.f1", "{p}.d1", "{p}.e1", "{p}.day", "{p}.at", "{p}.b1", "{p}.x1", "{p}.l1",
    "{p}.r1", "{p}.l2", "{p}.g1", "{p}.h1", "{p}.n1", "{p}.id", "{q}.id", "{p}.id", "{p}.v + {q}.w", "UPPER({p}.s1)",
    "{p}.s1 || {q}.s1", "CASE WHEN {p}.b1 THEN {q}.v ELSE {p}.w END", "COALESCE({p}.v, {q}.v, 0)", "{p}.v = {q}.v",
    "RESULT_TIME", "7", "{p}.f1 * 2", "CAST({p}.v AS DOUBLE)", "LENGTH({p}.s1)", "{p}.l1 IS NULL", "-{p}.v",
)  # fmt: skip

DECLARED = {
    "id": "BIGINT", "i": "BIGINT", "v": "BIGINT", "w": "BIGINT", "n": "INT", "h": "SMALLINT", "s": "STRING", "f": "DOUBLE",
    "g": "FLOAT", "d": "DECIMAL(10,2)", "e": "DECIMAL(30,4)", "day": "DATE", "at": "TIMESTAMP", "b": "BOOLEAN",
    "x": "BINARY", "l1": "ARRAY<BIGINT>", "l2": "ARRAY<STRUCT<a INT, b ARRAY<STRING>>>",
    "r": "STRUCT<a BIGINT, b STRING>", "ts": "TIMESTAMP",
}  # fmt: skip
DAY_US = 86_400_000_000
DOMAINS: dict[str, list[Any]] = {  # numbers at one place are equal, so that keys of different types meet
    "i": [1, 2, 0, -1, 3, 2**40], "v": list(range(-5, 11)), "w": list(range(-5, 11)), "n": [1, 2, 0, -1, 3, 2**31 - 1],
    "h": [1, 2, 0, -1, 3, 2**15 - 1], "s": ["a", "", "A", "é€", "a longer string of twenty", "a longer string of twentz"],
    "f": [1.0, 2.0, 0.0, -1.0, nan, inf], "g": [1.0, 2.0, 0.0, -1.0, nan, 0.1],
    "d": [Decimal(x) for x in ("1.00", "2.00", "0.00", "-1.00", "1.25", "99999999.99")],
    "e": [Decimal(x) for x in ("1.0000", "2.0000", "0.0000", "-1.0000", "1.2500", "99999999999999999999999999.9999")],
    "day": [0, 1, -1, 19000, -20000, 2], "at": [0, DAY_US, -DAY_US, 1, 19000 * DAY_US, -1], "b": [True, False],
    "x": [b"", b"\0", b"\0\0", b"123456789", b"123456788", b"\xff"],
    "l1": [[], [1], [1, None], [2, 3, 4]], "l2": [[], [{"a": 1, "b": ["x", None]}], [{"a": None, "b": None}, None]],
    "r": [{"a": 1, "b": "x"}, {"a": None, "b": ""}, {"a": 2, "b": None}],
}  # fmt: skip

KEY_KINDS = frozenset(("i", "n", "h", "s", "f", "g", "d", "e", "day", "at", "b", "x"))


def kind_of(column: str) -> str:
    """Columns of one kind have the same type and values: i1 and i2, s1 and s2."""
    return column if column in DECLARED else column.rstrip("0123456789")


BATCHES = (2, 1, 3, 4, 6, 9, 17, 25)
INPUTS = (2, 3, 4, 5, 6, 1, 3, 2)


@st.composite
def shapes(
    draw: st.DrawFn,
    finite: bool = False,
    tight: bool = False,
    batches: Sequence[int] = BATCHES,
    inputs: Sequence[int] = INPUTS,
) -> Shape:
    count = draw(st.sampled_from(inputs))
    topologies = [t for t in TOPOLOGIES if t != "disconnected" or count <= 3]
    often = st.sampled_from([False, True, True])
    seldom = st.sampled_from([False, False, True])
    return Shape(
        inputs=count,
        topology=draw(st.sampled_from(topologies)),
        batches=draw(st.sampled_from(batches)),
        rows=draw(st.sampled_from([ROWS[count] // 2, ROWS[count] // 4, ROWS[count], ROWS[count]])),
        keys=draw(st.sampled_from(KEYS if not tight else KEYS[:1])),
        domain=draw(st.sampled_from([2, 3, 6] if count < 4 and not tight else [2, 3, 1])),
        plans=3,
        self_joins=draw(seldom),
        tables=draw(seldom),
        filters=draw(st.booleans()) and not tight,
        residuals=draw(st.booleans()) and not tight,
        nulls=draw(often) and not tight,
        skewed=draw(st.booleans()),
        disordered=draw(often),
        late=tight or draw(st.booleans()),
        uneven=draw(st.booleans()),
        wide=draw(often),
        finite=finite,
        tight=tight,
        unit_us=draw(st.sampled_from([1] if tight else [1_000_000, 1, 1_000, 3_600_000_000, 10**12])),
        # Nothing that may be drawn lies ahead of the clock by which rows are turned away.
        base_us=draw(st.sampled_from([0, 1_000_000_000_000_000, -(10**14)])),
    )


@st.composite
def scenarios(
    draw: st.DrawFn,
    finite: bool = False,
    tight: bool = False,
    batches: Sequence[int] = BATCHES,
    inputs: Sequence[int] = INPUTS,
) -> Scenario:
    """Any scenario. With `finite` every window ends, so that state must go away. With `tight` windows and lateness are a
    few instants long, so that the ends of rows, the watermark and the next rows often fall on the same instant."""
    return build(draw(shapes(finite, tight, batches, inputs)), draw(st.integers(0, 2**32 - 1)))


@dataclass(frozen=True)
class Property:
    """A check that holds for everything that can be drawn."""

    check: Callable[..., None]
    drawn: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.check.__module__.removeprefix('tests.')}.{self.check.__name__}"


PROPERTIES: list[Property] = []
"""All that `properties` has made tests of; fresh cases are drawn for them, too (`tests/test_fresh.py`)."""


def properties(
    check: Callable[..., None], cases: int, long_cases: int, examples: Sequence[dict[str, Any]] = (), **drawn: Any
) -> tuple[Any, Any]:
    """A check as two tests: one for every run, always of the same cases, and a long one that goes on to others."""
    PROPERTIES.append(Property(check, drawn))

    def test(count: int, always_the_same: bool) -> Any:
        made = given(**drawn)(check)
        for kwargs in examples:
            made = example(**kwargs)(made)
        return settings(
            max_examples=count,
            deadline=None,
            derandomize=always_the_same,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )(made)

    return test(cases, True), pytest.mark.long(test(long_cases, False))


# From a shape to a scenario


class Builder:
    """Fills in a shape; every aspect is drawn from a generator of its own."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.seed = shape, seed

    def rng(self, aspect: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(aspect.encode())])


def build(shape: Shape, seed: int) -> Scenario:
    builder = Builder(shape, seed)
    aliases = tuple("abcdef"[: shape.inputs])
    sources = _sources(builder)
    windows = [_window(builder, place) for place in range(shape.inputs)]
    conditions = _conditions(builder, aliases)
    select = _select(builder, aliases)
    from_list = ", ".join(
        f"{source} {windows[place] if source.startswith('s') else ''} AS {alias}"
        for place, (alias, source) in enumerate(zip(aliases, sources, strict=True))
    )
    where = f"\nWHERE {' AND '.join(conditions)}" if conditions else ""
    text = f"SELECT {select}\nFROM {from_list}{where}"
    columns = _columns(text, dict(zip(aliases, sources, strict=True)))
    statements = [_create(builder, source, columns[source]) for source in sorted(set(sources))]
    script = "\n".join([*statements, f"CREATE QUERY q AS {text}"])
    rows = {s: _rows(builder, s, columns[s]) for s in sorted(set(sources))}
    batches = tuple({s: rows[s][n] for s in rows if s.startswith("s") and n in rows[s]} for n in range(shape.batches))
    tables = {s: rows[s].get(0, []) for s in rows if s.startswith("t")}
    after_us = None
    if shape.residuals and builder.rng("result time").integers(4) == 0:
        after_us = shape.base_us + shape.unit_us * int(builder.rng("after").integers(0, 2 * shape.batches))
    scenario = Scenario(script, (), batches, tables, after_us)
    plans = [random_plan(builder.rng(f"plan {n}"), scenario.graph) for n in range(shape.plans)]
    return replace(scenario, plans=tuple(show(plan, scenario.graph) for plan in plans))


def _sources(builder: Builder) -> list[str]:
    """For every input a stream (s0, s1, …) or a stored table (t1, …); the first is always a stream."""
    shape, rng = builder.shape, builder.rng("sources")
    sources = ["s0"]
    for place in range(1, shape.inputs):
        kind = rng.integers(6)
        if shape.self_joins and kind < 4:
            sources.append(sources[int(rng.integers(len(sources)))])
        elif shape.tables and kind < 5 and rng.integers(3) == 0:
            sources.append(f"t{place}")
        else:
            sources.append(f"s{place}")
    return sources


def _window(builder: Builder, place: int) -> str:
    shape, rng = builder.shape, builder.rng(f"window {place}")
    kind = rng.integers(10)
    if shape.tight:
        return f"[RANGE {int(rng.integers(1, 7))} MICROSECONDS]"
    if kind == 0 and rng.integers(1, 6) > shape.inputs - 2:
        return "[NOW]"
    if kind == 1 and not shape.finite:
        return "[UNBOUNDED]"
    if kind == 2 and shape.inputs < 5:
        return "[RANGE 1 MICROSECONDS]"
    if kind == 3 or (kind > 6 and shape.inputs > 3):
        return f"[RANGE {10_000 * shape.unit_us} MICROSECONDS]"
    length_us = max(1, shape.unit_us * int(rng.integers(1, 9)) + int(rng.integers(-1, 2)))
    return f"[RANGE {length_us} MICROSECONDS]"


def _conditions(builder: Builder, aliases: Sequence[str]) -> list[str]:
    shape, rng = builder.shape, builder.rng("keys")
    n = shape.inputs
    chain = [(i, i + 1) for i in range(n - 1)]
    edges = {
        "chain": chain,
        "star": [(0, i) for i in range(1, n)],
        "tree": [(int(rng.integers(i)), i) for i in range(1, n)],
        "cycle": [*chain, (n - 1, 0)] if n > 2 else chain,
        "clique": [(i, j) for i in range(n) for j in range(i + 1, n)],
        "disconnected": chain[1:],
    }[shape.topology]
    conditions = []
    for left, right in edges:
        kind = shape.keys if shape.keys != "mixed" else list(EDGES)[int(rng.integers(len(EDGES)))]
        options = EDGES[kind]
        choice = options[0 if shape.topology == "clique" and n > 3 else int(rng.integers(len(options)))]
        ends = (aliases[left], aliases[right])
        p, q = ends if rng.integers(2) else ends[::-1]
        conditions.append(choice.format(p=p, q=q))
    if shape.filters:
        rng = builder.rng("filters")
        for alias in aliases:
            if rng.integers(n + 1) == 0:
                conditions.append(f"({FILTERS[int(rng.integers(len(FILTERS)))].format(p=alias)})")
    if shape.residuals and n > 1:
        rng = builder.rng("residuals")
        for _ in range(int(rng.integers(1, 3))):
            p, q, r = (aliases[int(i)] for i in (rng.permutation(n)[:3] if n > 2 else [*rng.permutation(n), 0]))
            conditions.append(f"({RESIDUALS[int(rng.integers(len(RESIDUALS)))].format(p=p, q=q, r=r)})")
    return conditions


def _select(builder: Builder, aliases: Sequence[str]) -> str:
    rng = builder.rng("select")
    items = [f"{alias}.id" for alias in aliases] if rng.integers(3) else []
    for _ in range(int(rng.integers(1, 6)) if builder.shape.wide else int(not items)):
        p, q = aliases[int(rng.integers(len(aliases)))], aliases[int(rng.integers(len(aliases)))]
        items.append(SELECTED[int(rng.integers(len(SELECTED)))].format(p=p, q=q))
    return ", ".join(f"{item} AS c{place}" for place, item in enumerate(items))


def _columns(text: str, source_of: dict[str, str]) -> dict[str, list[str]]:
    """The columns of each source that a query reads."""
    found: dict[str, set[str]] = {source: set() for source in source_of.values()}
    for alias, column in re.findall(r"\b([a-f])\.([a-z]+[0-9]?)\b", text):
        found[source_of[alias]].add(column)
    return {source: [*sorted(columns), *(["ts"] if source.startswith("s") else [])] or ["id"]
            for source, columns in found.items()}  # fmt: skip


def _create(builder: Builder, source: str, columns: Sequence[str]) -> str:
    declared = ", ".join(f"{column} {DECLARED[kind_of(column)]}" for column in columns)
    if source.startswith("t"):
        return f"CREATE TABLE {source} ({declared});"
    unit_us, rng = builder.shape.unit_us, builder.rng(f"lateness {source}")
    options = (
        [0, unit_us, (2 if builder.shape.tight else 3) * unit_us]
        if builder.shape.late
        else [5 * unit_us, 10**9 * min(unit_us, 10**6)]
    )
    return (
        f"CREATE STREAM {source} ({declared}) TIME ts LATENESS {options[int(rng.integers(len(options)))]} MICROSECONDS;"
    )


def _rows(builder: Builder, source: str, columns: Sequence[str]) -> dict[int, Rows]:
    """The rows of a source by batch; a batch without an entry has no rows of it."""
    shape, rng = builder.shape, builder.rng(f"rows {source}")
    count = int(rng.integers(shape.rows // 2, shape.rows + 1)) if source.startswith("s") else shape.rows // 2
    first = 0
    if shape.uneven:
        fate = int(rng.integers(3 + 3 * shape.inputs))
        count, first = (0 if fate == 0 else count), (shape.batches // 2 if fate == 1 else 0)
    batch_of = np.sort(rng.integers(first, shape.batches, count)) if source.startswith("s") else np.zeros(count, int)
    values = [_values(builder, source, column, batch_of) for column in columns]
    rows: list[tuple[Any, ...]] = list(zip(*values, strict=True)) if count else []
    found: dict[int, Rows] = {}
    for batch, row in zip(batch_of.tolist(), rows, strict=True):
        found.setdefault(batch, []).append(row)
        if shape.disordered and rng.integers(12) == 0:
            found.setdefault(int(rng.integers(batch, shape.batches)) if source.startswith("s") else 0, []).append(row)
    for batch in range(shape.batches):
        if rng.integers(3) == 0:
            found.setdefault(batch, [])
    return found


def _values(builder: Builder, source: str, column: str, batch_of: np.ndarray[Any, Any]) -> list[Any]:
    shape, rng, count = builder.shape, builder.rng(f"values {source} {column}"), len(batch_of)
    if column == "id":
        return list(range(count))
    nulls = rng.random(count) < ((0.15 if shape.inputs < 4 else 0.06) if shape.nulls else 0.0)
    if column == "ts":
        pace = (1, 0, 1, 3)[0 if shape.tight else int(builder.rng("pace").integers(4))]
        units = batch_of * pace + rng.integers((-2 if shape.tight else -4) if shape.disordered else 0, 2, count)
        times = shape.base_us + units * shape.unit_us
        if shape.disordered and shape.unit_us > 1:
            times = times + rng.choice([0, 0, 0, 1, -1], count)
        nulls &= rng.random(count) < 0.3
        return [None if null else int(time) for time, null in zip(times.tolist(), nulls, strict=True)]
    kind = kind_of(column)
    domain = DOMAINS[kind]
    if kind in KEY_KINDS:
        domain = [domain[i % len(domain)] for i in builder.rng("domain").permutation(6)[: shape.domain]]
    if shape.skewed and kind in KEY_KINDS:
        weights = 1.0 / np.arange(1, len(domain) + 1) ** 2
        picks = rng.choice(len(domain), count, p=weights / weights.sum())
    else:
        picks = rng.integers(0, len(domain), count)
    values = [None if null else domain[pick] for pick, null in zip(picks.tolist(), nulls, strict=True)]
    if kind in ("f", "g"):
        values = [-0.0 if value == 0.0 and rng.integers(2) else value for value in values]
    return values


# Plans


def random_plan(rng: np.random.Generator, graph: JoinGraph) -> Plan:
    """Any jtree over the inputs, with any probe orders."""
    leaves: list[Plan] = [Leaf(alias) for alias in graph.query.aliases]
    shuffled = [leaves[int(i)] for i in rng.permutation(len(leaves))]
    plan = _random_tree(rng, shuffled)
    assert parse(show(plan, graph), graph) == plan
    return plan


def _random_tree(rng: np.random.Generator, plans: list[Plan]) -> Plan:
    if len(plans) == 1:
        return plans[0]
    parts = int(rng.integers(2, len(plans) + 1))
    cuts = sorted(int(c) + 1 for c in rng.permutation(len(plans) - 1)[: parts - 1])
    groups = [plans[a:b] for a, b in zip([0, *cuts], [*cuts, len(plans)], strict=True)]
    children = tuple(_random_tree(rng, group) for group in groups)
    places = range(parts)
    orders = tuple(tuple(int(j) for j in rng.permutation([j for j in places if j != i])) for i in places)
    return Join(children, orders)


# Changing a scenario


def recut(scenario: Scenario, seed: int, batches: int) -> Scenario:
    """The same rows in other batches, in another order."""
    rng = np.random.default_rng(seed)
    cut: list[dict[str, Rows]] = [{} for _ in range(batches)]
    for batch in scenario.batches:
        for name, rows in batch.items():
            for row in rows:
                cut[int(rng.integers(batches))].setdefault(name, []).append(row)
    for rows_of in cut:
        for rows in rows_of.values():
            order = rng.permutation(len(rows))
            rows[:] = [rows[int(i)] for i in order]
    return replace(scenario, batches=tuple(cut))


def never_late(scenario: Scenario) -> Scenario:
    """The same with a lateness that no row exceeds."""
    return replace(scenario, script=re.sub(r"LATENESS \d+", f"LATENESS {5 * 10**17}", scenario.script))


def then_far_later(scenario: Scenario) -> Scenario:
    """The same, followed by two batches with one row of each stream, each so late that all before is over."""
    times = [row[-1] for batch in scenario.batches for rows in batch.values() for row in rows if row[-1] is not None]
    longest_us = max(i.window.length_us for i in scenario.query.inputs if isinstance(i.source, Stream))
    gap_us = longest_us + max(s.lateness_us for s in scenario.streams) + 1
    now_us = max(times, default=0)
    added = []
    for step in (1, 2):
        last = now_us + step * gap_us
        added.append({s.name: [(*([None] * (len(s.fields) - 1)), last)] for s in scenario.streams})
    script = scenario.script.replace("TIME ts", "TIME ts AHEAD NONE")
    return replace(scenario, script=script, batches=(*scenario.batches, *added))
