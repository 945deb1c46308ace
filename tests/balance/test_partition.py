"""Queries with groups and subqueries, spread over slots: all slots together give what one would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.balance.partition import choose_distribution, common_key
from anabranch.control.watermark import seen_after, watermark_of
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.cells import source_mask
from anabranch.engine.slot import Slot, Tenant, Times
from anabranch.plan.distribution import all_inputs
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution, Strategy, switched, why_not_switch
from anabranch.plan.query import BEGINNING_US, Query
from anabranch.sql import parse_script
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import COLUMNS, Continuous, Shape, shapes
from tests.support.scenarios import properties


def query_of(sql: str) -> Query:
    streams = "".join(f"CREATE STREAM {s} ({COLUMNS}) TIME ts;\n" for s in ("p", "q"))
    return parse_script(f"{streams} CREATE QUERY z AS {sql}").queries[0].query


def test_a_single_stream_needs_no_exchange():
    script = "CREATE STREAM p (k BIGINT, ts TIMESTAMP) TIME ts; CREATE TABLE t (k BIGINT);"
    for sql in ("SELECT k FROM p [NOW] WHERE k > 1", "SELECT p.k FROM p [NOW], t, t u WHERE p.k = t.k AND t.k = u.k"):
        query = parse_script(f"{script} CREATE QUERY z AS {sql}").queries[0].query
        distribution = choose_distribution(query, 4)
        assert distribution.needs_no_exchange
        assert (str(distribution.grid.dimensions[0]), distribution.exchange.cells) == ("rows of p", 1)
        assert not choose_distribution(query, 4, may_skip_exchange=False).needs_no_exchange
    sql = "SELECT COUNT(*) AS n FROM p [NOW], t WHERE p.k = t.k"
    query = parse_script(f"{script} CREATE QUERY z AS {sql}").queries[0].query
    assert not choose_distribution(query, 4).needs_no_exchange


def test_groups_are_spread_by_a_key():
    query = query_of("SELECT p.k, p.g, COUNT(*) AS n FROM p [RANGE 5 SECONDS] GROUP BY p.k, p.g")
    distribution = choose_distribution(query, 4)
    assert (str(distribution.grid.dimensions[0]), distribution.grid.shares) == ("p.k", (4,))
    assert not distribution.groups_span_slots


def test_a_join_is_spread_by_a_key_of_its_groups():
    sql = "SELECT p.k, COUNT(*) AS n FROM p, q WHERE p.k = q.k AND p.g = q.g GROUP BY p.k WINDOW 5 SECONDS"
    assert str(choose_distribution(query_of(sql), 4).grid.dimensions[0]) == "p.k = q.k"


def test_groups_by_another_key_are_combined():
    sql = "SELECT p.h, COUNT(*) AS n FROM p, q WHERE p.k = q.k GROUP BY p.h WINDOW 5 SECONDS"
    distribution = choose_distribution(query_of(sql), 4)
    assert (str(distribution.grid.dimensions[0]), distribution.groups_span_slots) == ("p.k = q.k", True)


def test_a_subquery_carries_a_key_upwards():
    sql = """SELECT p.k, COUNT(*) AS n FROM p [RANGE 5 SECONDS],
             (SELECT k, MAX(x) AS m FROM p [RANGE 5 SECONDS] GROUP BY k) s
             WHERE p.k = s.k AND p.x > 0.9 * s.m GROUP BY p.k"""
    query = query_of(sql)
    assert {alias: str(term) for alias, term in common_key(query, True).items()} == {(0, "p"): "p.k", (1, "p"): "p.k"}
    assert str(choose_distribution(query, 2).grid.dimensions[0]) == "b0_p.k = b1_p.k"


def test_a_subquery_without_the_key_is_computed_everywhere():
    sql = """SELECT p.k, COUNT(*) AS n FROM p [RANGE 5 SECONDS],
             (SELECT MAX(x) AS m FROM p [RANGE 5 SECONDS]) s WHERE p.x > s.m GROUP BY p.k"""
    grid = choose_distribution(query_of(sql), 2).grid
    assert (len(grid.offsets("b0_p")), len(grid.offsets("b1_p"))) == (2, 1)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) AS n FROM p [RANGE 5 SECONDS]",
        "SELECT MAX(s.m) AS m FROM (SELECT k, SUM(x) AS m FROM p [RANGE 5 SECONDS] GROUP BY k) s",
    ],
)
def test_one_group_is_combined(sql):
    distribution = choose_distribution(query_of(sql), 4)
    assert (distribution.grid.cells, distribution.groups_span_slots) == (4, True)


def test_one_slot_needs_no_distribution():
    distribution = choose_distribution(query_of("SELECT COUNT(*) AS n FROM p [RANGE 5 SECONDS]"), 1)
    assert (distribution.grid.cells, distribution.groups_span_slots) == (1, False)


def check_slots(shape: Shape, slots: int, first: int, switches: Sequence[tuple[int, int]]) -> None:
    """Slots give together what the query gives, in all its forms, also when it goes from one to another."""
    case = Continuous(shape)
    query, forms = case.query, Forms(case.query)
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in query.base_sources}}
    distribution, inputs, names = choose_distribution(query, slots), all_inputs(query), list(forms.graphs)
    grid, grouped_input = distribution.grid, names[first % len(names)]
    execution = Execution(left_deep(forms.graphs[grouped_input]), grouped_input=grouped_input)
    cells = []
    for cell in range(grid.cells):
        disk = MemoryFilesystem()
        cells.append(Slot([Tenant(forms, execution, distribution)], "state", disk, ContainerReader(disk), cell))
    found: oracle.Bag = Counter()
    seen: dict[str, int] = {}
    emitted_us = BEGINNING_US
    for number in range(len(case.batches) + 1):
        rows = case.batches[number] if number < len(case.batches) else {}
        rows = {**(tables if number == 0 else {}), **rows}
        watermark_us = watermark_of(query, seen)
        if execution.leaving is not None and emitted_us >= execution.leaving.until_us:
            execution = replace(execution, leaving=None)
        for at, which in switches:
            target = names[which % len(names)]
            strategy = Strategy.PARALLEL_TRACK if at % 2 else Strategy.MOVING_STATE
            if (
                at == number > 0
                and target != execution.grouped_input
                and not why_not_switch(forms, execution, target, strategy)
            ):
                execution = switched(forms, execution, left_deep(forms.graphs[target]), target, strategy, seen, number)
        results: list[pa.RecordBatch] = []
        for cell, slot in enumerate(cells):
            mine = {
                s.name: rows[s.name].filter(pa.array(source_mask(grid, cell, inputs, s, rows[s.name])))
                for s in query.base_sources
                if s.name in rows
            }
            times = {query.name: Times(watermark_us, emitted_us)}
            if slot.executions[query.name] != execution:
                slot.redirect({query.name: execution}, times)
            results += [piece for _, piece in slot.step(number, mine, times)]
            slot.save(number, "attempt")
            slot.relocate()
        if distribution.groups_span_slots and query.grouping is not None:
            results = Aggregator(query.grouping, query.row_schema).combine(results)
        for each in results:
            found += oracle.bag(pa.Table.from_batches([each]))
        seen = seen_after(seen, [s.statistics[query.name] for s in cells])
        emitted_us = watermark_us
    problem = oracle.difference(found, oracle.expected(query, case.batches, tables))
    assert not problem, f"{case.sql}\n{distribution}\n{problem}"


test_slots, test_slots_long = properties(
    check_slots,
    60,
    800,
    shape=shapes(),
    slots=st.sampled_from([1, 2, 3, 4]),
    first=st.integers(0, 2),
    switches=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 2)), max_size=3),
)
