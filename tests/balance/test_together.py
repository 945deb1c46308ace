"""Queries that run together: every result of each arises in one slot, rows cross no more often than they must, and a
checkpoint's way to spread a query is found again when others are gone."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.balance.layout import layout_of
from anabranch.balance.partition import choose_distribution
from anabranch.balance.together import choose_together, pipelines_of, restored
from anabranch.control.watermark import seen_after, watermark_of
from anabranch.drive.work import slot_mask
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.cells import member_mask
from anabranch.engine.log import starts_of
from anabranch.engine.slot import Slot, Tenant, Times
from anabranch.errors import StateError
from anabranch.plan.distribution import Distribution, all_inputs, way_of
from anabranch.plan.eager import Forms
from anabranch.plan.grid import Grid
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, Query, Stream
from anabranch.plan.workload import Workload, connected
from anabranch.sql import parse_script
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.scenarios import properties
from tests.support.workloads import Workload as Drawn
from tests.support.workloads import workloads

SLOTS = st.integers(1, 8)
STREAM = "CREATE STREAM {} (k BIGINT, j BIGINT, n INT, x BIGINT, ts TIMESTAMP) TIME ts;"


def queries_of(*texts: str) -> list[Query]:
    """Queries q0, q1, … over streams a, b, c and d, and a table t."""
    declared = [STREAM.format(name) for name in "abcd"] + ["CREATE TABLE t (k BIGINT, y BIGINT);"]
    declared += [f"CREATE QUERY q{place} AS {text};" for place, text in enumerate(texts)]
    return [bound.query for bound in parse_script("\n".join(declared)).queries]


def names_of(found: list[Workload]) -> list[list[str]]:
    return [[query.name for query in workload.queries] for workload in found]


def streams_of(query: Query) -> set[str]:
    return {source.name for source in query.base_sources if isinstance(source, Stream)}


# Which queries run together


def check_groups(drawn: Drawn, alone: set[int]) -> None:
    """Each query is in one group; queries of two groups share no stream, and those of one are connected by streams."""
    groups = connected(drawn.queries)
    assert sorted(q.name for group in groups for q in group.queries) == sorted(q.name for q in drawn.queries)
    read = [set().union(*(streams_of(q) for q in group.queries)) for group in groups]
    assert all(not (a & b) for place, a in enumerate(read) for b in read[:place])
    for group in groups:
        reached, left = streams_of(group.queries[0]), list(group.queries[1:])
        while near := [q for q in left if streams_of(q) & reached]:
            reached |= set().union(*map(streams_of, near))
            left = [q for q in left if q not in near]
        assert not left, "no stream leads there"
    apart = {f"q{number}" for number in alone}
    pipelines = pipelines_of(drawn.queries, apart)
    assert sorted(n for names in names_of(pipelines) for n in names) == sorted(q.name for q in drawn.queries)
    assert all(len(names) == 1 for names in names_of(pipelines) if set(names) & apart)
    firsts = [names[0] for names in names_of(pipelines)]
    assert firsts == sorted(firsts, key=[q.name for q in drawn.queries].index), (
        "in the order in which they were declared"
    )


test_groups, test_groups_long = properties(
    check_groups, 60, 800, drawn=workloads(), alone=st.sets(st.integers(0, 11), max_size=2)
)


JOIN = "SELECT a.x FROM a [NOW], b [NOW] WHERE a.k = b.k"


def test_a_stored_table_connects_nothing() -> None:
    queries = queries_of("SELECT a.x FROM a [NOW], t WHERE a.k = t.k", "SELECT b.x FROM b [NOW], t WHERE b.k = t.k")
    assert names_of(pipelines_of(queries)) == [["q0"], ["q1"]]


@pytest.mark.parametrize(
    ("others", "own", "shares"),
    [
        ([JOIN], "SELECT a.x FROM a [NOW]", True),
        ([JOIN], "SELECT a.x FROM a [NOW] WHERE a.x > 3", True),
        ([f"{JOIN} AND a.x > 3"], "SELECT a.x FROM a [NOW]", False),
        ([f"{JOIN} AND a.x > 3"], "SELECT a.x FROM a [NOW] WHERE a.x > 4", False),
        ([f"{JOIN} AND a.x > 3", JOIN], "SELECT a.x FROM a [NOW]", True),
        ([f"{JOIN} AND b.x > 3"], "SELECT a.x FROM a [NOW]", True),
        ([f"{JOIN} AND a.x > 3"], "SELECT z.x FROM a [NOW] z, t WHERE z.k = t.k AND z.x > 3", True),
        ([f"{JOIN} AND a.x > 3"], "SELECT z.x FROM a [NOW] z, t WHERE z.k = t.k AND z.x > 4", False),
        ([f"{JOIN} AND a.x > 3"], "SELECT a.k, COUNT(*) AS n FROM a [RANGE 1 SECOND] GROUP BY a.k", True),
        ([], "SELECT a.x FROM a [NOW]", True),
    ],
)
def test_a_query_that_needs_no_exchange(others: list[str], own: str, shares: bool) -> None:
    """It runs apart if all others filter its stream, and its own predicates, under whatever alias, are not among theirs."""
    found = names_of(pipelines_of(queries_of(*others, own)))
    every = [f"q{place}" for place in range(len(others) + 1)]
    assert found == ([every] if shares else [every[:-1], every[-1:]])


def test_queries_without_an_exchange_share_what_they_read() -> None:
    """Nothing crosses for any of them."""
    queries = queries_of("SELECT a.x FROM a [NOW] WHERE a.x > 3", "SELECT a.k FROM a [NOW]", "SELECT b.k FROM b [NOW]")
    found = pipelines_of(queries)
    assert names_of(found) == [["q0", "q1"], ["q2"]]
    assert all(each.needs_no_exchange for each in choose_together(found[0], 4).values())


def test_queries_that_run_apart_share_what_they_read() -> None:
    """A join filters a and b; three queries read a as it comes, and one reads b, without an exchange."""
    own = [f"SELECT {s}.x FROM {s} {window}" for s, window in zip("abaa", ["[NOW]"] * 3 + ["WINDOW 1 SECOND"], strict=True)]
    found = pipelines_of(queries_of(f"{JOIN} AND a.x > 5 AND b.x > 5", *own))
    assert names_of(found) == [["q0"], ["q1", "q3", "q4"], ["q2"]]
    assert all(each.needs_no_exchange for each in choose_together(found[1], 4).values())


def test_what_only_a_query_that_runs_apart_connects_is_not_together() -> None:
    """q0 and q2 share no stream; q1 is over one of them, with a table."""
    joins = [f"SELECT {p}.x FROM {p} [NOW], {q} [NOW] WHERE {p}.k = {q}.k AND {p}.x > 3" for p, q in ("ab", "cd")]
    queries = queries_of(joins[0], "SELECT a.x FROM a [NOW]", joins[1])
    assert names_of(pipelines_of(queries)) == [["q0"], ["q1"], ["q2"]]


# Every result in exactly one slot


def check_slots(drawn: Drawn, slots: int) -> None:
    """Slots that serve all queries, and get the rows that any of them wants, give together what each query gives."""
    workload = Workload(tuple(drawn.queries))
    spread = choose_together(workload, slots, may_skip_exchange=False)
    every = [(query, spread[query.name]) for query in drawn.queries]
    stores = []
    for slot in range(max(each.grid.cells for each in spread.values())):
        tenants = [tenant(query, spread[query.name]) for query in drawn.queries if slot < spread[query.name].grid.cells]
        disk = MemoryFilesystem()
        stores.append(Slot(tenants, "state", disk, ContainerReader(disk), slot))
    batches = [drawn.batch(number) for number in range(drawn.batches)]
    found: dict[str, oracle.Bag] = {query.name: Counter() for query in drawn.queries}
    seen: dict[str, int] = {}
    emitted = dict.fromkeys(found, BEGINNING_US)
    for number in range(drawn.batches + 1):
        rows = batches[number] if number < drawn.batches else {}
        rows = {**({"t": drawn.table} if number == 0 else {}), **rows}
        rows = {name: table for name, table in rows.items() if name in workload.sources}
        marks = {query.name: watermark_of(query, seen) for query in drawn.queries}
        times = {name: Times(marks[name], emitted[name]) for name in found}
        pieces: dict[str, list[pa.RecordBatch]] = {name: [] for name in found}
        for slot, store in enumerate(stores):
            mine = {n: r.filter(pa.array(slot_mask(every, n, slot, r))) for n, r in rows.items()}
            for name, piece in store.step(number, mine, times):
                pieces[name].append(piece)
            store.save(number, "attempt")
            store.relocate()
        for query, distribution in every:
            results = pieces[query.name]
            if distribution.groups_span_slots and query.grouping is not None:
                results = Aggregator(query.grouping, query.row_schema).combine(results)
            for each in results:
                found[query.name] += oracle.bag(pa.Table.from_batches([each]))
        seen = seen_after(seen, [s for store in stores for s in store.statistics.values()])
        emitted = marks
    for query, distribution in every:
        read = {source.name for source in query.base_sources}
        own = [{n: r for n, r in batch.items() if n in read} for batch in batches]
        wanted = oracle.expected(query, own, {"t": drawn.table} if "t" in read else {})
        assert not (wrong := oracle.difference(found[query.name], wanted)), f"{query.name} {distribution}\n{wrong}"


def tenant(query: Query, distribution: Distribution) -> Tenant:
    forms = Forms(query)
    return Tenant(forms, Execution(left_deep(forms.graphs[None])), distribution)


test_slots, test_slots_long = properties(check_slots, 25, 800, drawn=workloads(5), slots=SLOTS)


def check_joins(drawn: Drawn, slots: int) -> None:
    """Rows that agree on all equalities of a join meet in exactly one slot, and all of them are sent there."""
    spread = choose_together(Workload(tuple(drawn.queries)), slots, may_skip_exchange=False)
    batch = {**drawn.batch(0), "t": drawn.table}
    rows = {name: table.slice(0, 5) for name, table in batch.items()}
    for query in drawn.queries:
        if query.grouping is not None or len(query.blocks) > 1:
            continue
        grid = spread[query.name].grid
        where = [members(query, grid, i.alias, rows[i.source.name]) for i in query.inputs]
        for combination in product(*(range(len(of_input)) for of_input in where)):
            if all(agree(query, rows, combination, e.left, e.right) for e in query.equalities):
                meet = frozenset.intersection(*(w[row] for w, row in zip(where, combination, strict=True)))
                assert len(meet) == 1, f"{query.name}: {combination} meets in {sorted(meet)} of {grid}"
        every = [(q, spread[q.name]) for q in drawn.queries]
        for i, of_input in zip(query.inputs, where, strict=True):
            for slot in range(grid.cells):
                sent = slot_mask(every, i.source.name, slot, rows[i.source.name])
                assert all(sent[row] for row, slots_of in enumerate(of_input) if slot in slots_of)


def members(query: Query, grid: Grid, alias: str, rows: pa.Table) -> list[frozenset[int]]:
    """For each row of an input the slots it belongs to."""
    source, found = query.input(alias).source, [set[int]() for _ in range(rows.num_rows)]
    times = pa.array(starts_of(source, rows))
    for slot in range(grid.cells):
        mask = member_mask(grid, slot, alias, lambda c: rows[c.name].combine_chunks(), times, rows.num_rows)
        for row in np.flatnonzero(mask):
            found[row].add(slot)
    return [frozenset(each) for each in found]


def agree(query: Query, rows: dict[str, pa.Table], combination: tuple[int, ...], *terms: Any) -> bool:
    values = []
    for term in terms:
        place = query.aliases.index(term.alias)
        values.append(rows[query.inputs[place].source.name][term.name][combination[place]].as_py())
    return values[0] is not None and values[0] == values[1]


test_joins, test_joins_long = properties(check_joins, 60, 1_000, drawn=workloads(), slots=SLOTS)


# The same way where keys allow it


def copies(queries: list[Query], spread: dict[str, Distribution], slots: int) -> int:
    """To how many slots a row of each source goes at most, added up."""
    ways: dict[str, set[tuple[Any, ...]]] = {}
    for query in queries:
        grid = spread[query.name].grid
        for i in all_inputs(query).inputs:
            ways.setdefault(i.source.name, set()).add((way_of(grid, i.alias), grid.offsets(i.alias)))
    return sum(min(slots, sum(len(offsets) for _, offsets in found)) for found in ways.values())


def check_copies(drawn: Drawn, slots: int) -> None:
    """Queries that choose together never send rows more often than if each had chosen by itself."""
    workload = Workload(tuple(drawn.queries))
    together = choose_together(workload, slots, may_skip_exchange=False)
    alone = {query.name: choose_distribution(query, slots, may_skip_exchange=False) for query in drawn.queries}
    assert copies(drawn.queries, together, slots) <= copies(drawn.queries, alone, slots)
    assert together == choose_together(workload, slots, may_skip_exchange=False), "the choice is always the same"
    assert all(together[name].groups_span_slots == alone[name].groups_span_slots for name in alone)


test_copies, test_copies_long = properties(check_copies, 60, 1_000, drawn=workloads(), slots=SLOTS)


def ways(queries: list[Query], slots: int) -> dict[str, set[tuple[object, ...]]]:
    """By which ways rows of each stream go."""
    spread, found = choose_together(Workload(tuple(queries)), slots), dict[str, set[tuple[object, ...]]]()
    for query in queries:
        for i in all_inputs(query).inputs:
            found.setdefault(i.source.name, set()).add(way_of(spread[query.name].grid, i.alias))
    return found


@pytest.mark.parametrize("slots", range(2, 9))
@pytest.mark.parametrize(
    "texts",
    [
        [JOIN, "SELECT z.x FROM a [RANGE 5 SECONDS] z, b [NOW] y WHERE z.k = y.k AND z.j = y.j"],
        [JOIN, "SELECT a.x FROM a [NOW], b [NOW], c [NOW] WHERE a.k = b.k AND b.k = c.k AND a.j = c.j"],
        [JOIN, "SELECT a.k, COUNT(*) AS n FROM a [RANGE 1 SECOND] GROUP BY a.k", "SELECT x FROM a [NOW]"],
        ["SELECT a.j, COUNT(*) AS n FROM a [NOW], b [NOW] WHERE a.k = b.k AND a.j = b.j GROUP BY a.j",
         "SELECT a.x FROM a [NOW], b [NOW] WHERE a.k = b.k AND a.j = b.j"],
        [JOIN, """SELECT a.k, s.m FROM a [NOW], (SELECT k, MAX(x) AS m FROM b [RANGE 2 SECONDS] GROUP BY k) s
                  WHERE a.k = s.k"""],
        [JOIN, "SELECT a.x FROM a [NOW], t WHERE a.k = t.k", "SELECT b.x FROM b [NOW], t WHERE b.k = t.y"],
    ],
)  # fmt: skip
def test_queries_that_can_use_the_same_way_do(texts: list[str], slots: int) -> None:
    """Rows of a and of b cross once, for all queries."""
    found = ways(queries_of(*texts), slots)
    assert {name: len(found[name]) for name in "ab"} == {"a": 1, "b": 1}, found


def test_a_query_follows_one_that_has_less_choice() -> None:
    """Alone q1 would have a grid of two times two; beside q0 it is spread by k."""
    texts = [JOIN, "SELECT a.x FROM a [NOW], b [NOW], c [NOW] WHERE a.k = b.k AND b.j = c.j"]
    queries = queries_of(*texts)
    assert choose_distribution(queries[1], 4).grid.shares == (2, 2)
    chosen = choose_together(Workload(tuple(queries)), 4)
    assert layout_of(chosen["q1"]).dimensions == ("a.k = b.k",)


# Found again


def check_restored(drawn: Drawn, slots: int, gone: set[int], may_skip: bool) -> None:
    """Whatever others there were and are."""
    chosen = {}
    for workload in pipelines_of(drawn.queries):
        chosen |= choose_together(workload, slots, may_skip)
    layouts = {name: layout_of(each) for name, each in chosen.items()}
    left = [query for query in drawn.queries if query.name not in {f"q{number}" for number in gone}]
    for workload in (Workload(tuple(left)), *(Workload((query,)) for query in left)):
        found = restored(workload, layouts, slots)
        assert found == {query.name: chosen[query.name] for query in workload.queries}


test_restored, test_restored_long = properties(
    check_restored, 60, 1_000, drawn=workloads(), slots=SLOTS, gone=st.sets(st.integers(0, 11), max_size=7),
    may_skip=st.booleans(),
)  # fmt: skip


def test_a_widened_key_of_a_query_that_is_gone_is_found_again() -> None:
    """q1 is spread by the key that q0 joins its stream by, an INT that is compared with a BIGINT."""
    queries = queries_of("SELECT a.x FROM a [NOW], b [NOW] WHERE a.n = b.k", "SELECT a.x FROM a [NOW]")
    chosen = choose_together(Workload(tuple(queries)), 2)
    assert layout_of(chosen["q1"]).dimensions == ("CAST(a.n AS int64)",)
    layouts = {name: layout_of(each) for name, each in chosen.items()}
    assert restored(Workload((queries[1],)), layouts, 2) == {"q1": chosen["q1"]}


def test_other_slots_are_refused() -> None:
    workload = Workload(tuple(queries_of(JOIN)))
    layouts = {"q0": layout_of(choose_together(workload, 2)["q0"])}
    with pytest.raises(
        StateError, match=r"2 slots over a\.k = b\.k in 2 for query q0, this run 3: start it with the same"
    ):
        restored(workload, layouts, 3)
