"""Texts from the grammar, valid and spoilt.

What is refused has a place in the text; what is accepted plans, runs, and gives the results that the oracle gives.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.errors import SqlError
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.query import Query, Stream, Table
from anabranch.show.routes import routes_json, routes_text
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.sql.grammar import Grammar, mutated
from tests.sql.sources import CATALOG
from tests.support import oracle
from tests.support.scenarios import properties


def accepted(sql: str) -> list[Query]:
    """The queries of a text; none if it is refused, which it must be at a place inside of it."""
    try:
        return [bound.query for bound in parse_script(sql, CATALOG).queries]
    except SqlError as error:
        refused = error
    lines = sql.splitlines() or [""]
    assert refused.sql == sql
    assert refused.message
    assert 1 <= refused.line <= len(lines), f"line {refused.line} is not in {sql!r}"
    assert 1 <= refused.column <= len(lines[refused.line - 1]) + 1, f"column {refused.column} is not in {sql!r}"
    return []


VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): ["a", "", "2024-01-31", "1.5", "äö ", None],
    pa.float64(): [1.5, -0.0, float("nan"), float("inf"), 1e300, None],
    pa.float32(): [1.5, -0.0, float("nan"), float("-inf"), 3e38, None],
    pa.int16(): [1, 0, -(2**15), 2**15 - 1, 7, None],
    pa.int32(): [1, 0, -(2**31), 2**31 - 1, 7, None],
    pa.int64(): [1, 0, -(2**63), 2**63 - 1, 7, None],
    pa.decimal128(10, 2): [Decimal(n) for n in ("1.50", "0.00", "-99999999.99", "99999999.99", "0.01")] + [None],
    pa.date32(): [date(2024, 1, 31), date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), date(1969, 12, 31), None],
    pa.bool_(): [True, False, True, False, True, None],
    pa.binary(): [b"", b"\xff", b"a", b"\x00", b"b", None],
}


def rows_of(source: Stream | Table, count: int) -> pa.Table:
    """Rows with the ends of each type among their values, half a second apart."""
    columns = {}
    for place, f in enumerate(source.fields):
        values = VALUES.get(f.type, [None])
        columns[f.name] = pa.array([values[(n + place) % len(values)] for n in range(count)], f.type)
    if isinstance(source, Stream):
        columns[source.time] = pa.array([n * 500_000 for n in range(count)], pa.timestamp("us"))
    return pa.table(columns, schema=pa.schema([(f.name, f.type) for f in source.fields]))


def check(rng: Random, oddness: float, mutations: int) -> None:
    sql = Grammar(rng, oddness).script()
    if mutations:
        sql = mutated(rng, sql, mutations)
    for query in accepted(sql):
        plans_and_runs(query)


def plans_and_runs(query: Query) -> None:
    graph = JoinGraph(query)
    plan = left_deep(graph)
    assert routes_text(plan, graph)
    assert routes_json(plan, graph)
    sources = query.base_sources
    run = LocalRun(query, MemoryFilesystem(), tables={s.name: rows_of(s, 4) for s in sources if isinstance(s, Table)})
    for number, count in enumerate((0, 7, 0)):
        step = run.step(number, {s.name: rows_of(s, count) for s in sources if isinstance(s, Stream)})
        assert step.results.schema.types == query.output_schema.types


test_valid_and_spoilt_texts, test_valid_and_spoilt_texts_long = properties(
    check,
    150,
    1_000,
    rng=st.randoms(use_true_random=False),
    oddness=st.sampled_from((0.0, 0.0, 0.0, 0.02, 0.1)),
    mutations=st.sampled_from((0, 0, 0, 0, 1, 3)),
)


INEXACT = re.compile(r"STDDEV|SQRT|/|0001-01-01")
"""What is rounded differently in another order of rows, and the days that Python has no date before."""


def check_against_oracle(rng: Random, seed: int) -> None:
    """Whatever well-typed text is accepted gives the results that DuckDB gives."""
    sql = Grammar(rng, 0).script()
    assume(not INEXACT.search(sql))
    for query in accepted(sql):
        draw = np.random.default_rng(seed)
        tables = {s.name: small_rows(draw, s, 4) for s in query.base_sources if isinstance(s, Table)}
        rows = {s.name: small_rows(draw, s, 16) for s in query.base_sources if isinstance(s, Stream)}
        batches = [{name: table.slice(start, 4) for name, table in rows.items()} for start in range(0, 16, 4)]
        run = LocalRun(query, MemoryFilesystem(), tables=tables)
        found: oracle.Bag = Counter()
        for number, batch in enumerate([*batches, {}]):
            found += oracle.bag(run.step(number, batch).results)
        problem = oracle.difference(found, oracle.expected(query, batches, tables))
        assert not problem, f"{sql}\n{problem}"


def small_rows(draw: np.random.Generator, source: Stream | Table, count: int) -> pa.Table:
    """Rows with few different values, all of which can be computed with exactly, some seconds out of order."""
    few: dict[pa.DataType, list[Any]] = {
        pa.string(): ["a", "ab", "1", "", None], pa.float64(): [0.25, 1.5, -2.0, 0.0, None],
        pa.float32(): [0.25, 1.5, -2.0, 0.0, None], pa.bool_(): [True, False, None],
        pa.decimal128(10, 2): [Decimal("0.25"), Decimal("1.50"), Decimal("-2.00"), None],
        pa.date32(): [date(1970, 1, 1), date(2024, 1, 31), None],
    }  # fmt: skip
    columns = {}
    for f in source.fields:
        values = few.get(f.type, [0, 1, 2, -3, None] if pa.types.is_integer(f.type) else [None])
        columns[f.name] = pa.array([values[int(draw.integers(len(values)))] for _ in range(count)], f.type)
    if isinstance(source, Stream):
        times = np.sort(draw.integers(0, 48, count)) * 250_000 + draw.integers(-2, 3, count) * 1_000_000
        columns[source.time] = pa.array(times, pa.int64()).cast(pa.timestamp("us"))
    return pa.table(columns, schema=pa.schema([(f.name, f.type) for f in source.fields]))


test_results_are_those_of_the_oracle, test_results_are_those_of_the_oracle_long = properties(
    check_against_oracle, 60, 1_000, rng=st.randoms(use_true_random=False), seed=st.integers(0, 2**32 - 1)
)
