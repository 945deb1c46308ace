"""Texts from the grammar, valid and spoilt: what is refused has a place in the text, what is accepted plans and runs."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.engine.local import LocalRun
from anabranch.errors import SqlError
from anabranch.plan.explain import explain_json, explain_text
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.query import Query, Stream, Table
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.scenarios import properties
from tests.sql.grammar import Grammar, mutated
from tests.sql.sources import CATALOG


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
    assert explain_text(plan, graph)
    assert explain_json(plan, graph)
    sources = query.base_sources
    run = LocalRun(query, MemoryFilesystem(), tables={s.name: rows_of(s, 4) for s in sources if isinstance(s, Table)})
    for number, count in enumerate((0, 7, 0)):
        step = run.step(number, {s.name: rows_of(s, count) for s in sources if isinstance(s, Stream)})
        assert step.results.schema.types == query.output_schema.types


test_valid_and_spoilt_texts, test_valid_and_spoilt_texts_long = properties(
    check,
    150,
    5_000,
    rng=st.randoms(use_true_random=False),
    oddness=st.sampled_from((0.0, 0.0, 0.0, 0.02, 0.1)),
    mutations=st.sampled_from((0, 0, 0, 0, 1, 3)),
)
