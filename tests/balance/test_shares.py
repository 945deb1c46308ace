"""Grids: every result arises in exactly one cell, and no grid of as many cells moves fewer rows."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.balance.shares import _factorisations, choose_grid, is_routable
from anabranch.engine.cells import base_cells, member_mask, source_mask
from anabranch.engine.expressions import evaluate
from anabranch.plan.expression import Call, Column
from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import STORED, Equality, Field, Input, Query, Table
from tests.support.queries import FIELDS, INT, column, graph, graphs, query, stream

CELLS = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
RATES = st.dictionaries(st.sampled_from("ABCDEF"), st.floats(0.01, 1000.0))


@st.composite
def self_joins(draw: st.DrawFn) -> JoinGraph:
    """Join graphs in which several inputs read the same stream, by the same columns or others."""
    found = draw(graphs(max_inputs=4))
    aliases = found.query.aliases
    shared = stream("shared")
    sources = {a: shared for a in aliases if draw(st.booleans())}
    built = query(" ".join(aliases), sources=sources)
    return JoinGraph(Query("q", built.inputs, found.query.equalities, (), built.select))


ANY_GRAPH = st.one_of(graphs(max_inputs=4), self_joins())


# Rows, and the cells they go to


def rows_of(rng: np.random.Generator, count: int) -> pa.Table:
    columns = {f.name: pa.array(rng.integers(0, 3, count).tolist(), INT) for f in FIELDS[:3]}
    texts = pa.array([f"{n}" for n in rng.integers(0, 2, count)])
    return pa.table({**columns, "s": texts, "ts": pa.array(rng.integers(-3, 4, count), pa.timestamp("us"))})


def cells_of(grid: Grid, alias: str, rows: pa.Table) -> list[frozenset[int]]:
    """For each row of an input the cells it goes to."""
    times = rows["ts"].combine_chunks().view(pa.int64())
    bases = base_cells(grid, alias, lambda c: rows[c.name].combine_chunks(), times, rows.num_rows)
    return [frozenset(int(base) + offset for offset in grid.offsets(alias)) for base in bases]


def results(query: Query, rows: dict[str, pa.Table]) -> list[tuple[int, ...]]:
    """The rows, by their places, that agree on all equalities; windows and filters only take from these."""
    terms = {}
    for equality in query.equalities:
        for term in (equality.left, equality.right):
            alias = next(a for a in query.aliases if f"{a}." in str(term))
            terms[term] = evaluate(
                term, lambda c, a=alias: rows[a][c.name].combine_chunks(), rows[alias].num_rows
            ).to_pylist()
    places = {alias: place for place, alias in enumerate(query.aliases)}
    sides = [
        (terms[e.left], places[alias_of(e.left, query)], terms[e.right], places[alias_of(e.right, query)])
        for e in query.equalities
    ]
    return [
        combination
        for combination in product(*(range(rows[a].num_rows) for a in query.aliases))
        if all(left[combination[i]] == right[combination[j]] for left, i, right, j in sides)
    ]


def alias_of(term: object, query: Query) -> str:
    return next(a for a in query.aliases if f"{a}." in str(term))


@given(ANY_GRAPH, CELLS, RATES, st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=150, derandomize=True)
def test_every_result_arises_in_exactly_one_cell(
    found: JoinGraph, cells: int, rates: dict[str, float], seed: int
) -> None:
    query = found.query
    grid = choose_grid(found, cells, rates)
    rng = np.random.default_rng(seed)
    by_source = {i.source.name: rows_of(rng, 5) for i in query.inputs}
    rows = {i.alias: by_source[i.source.name] for i in query.inputs}
    goes_to = [cells_of(grid, alias, rows[alias]) for alias in query.aliases]
    assert all(0 <= cell < grid.cells for of_input in goes_to for of_row in of_input for cell in of_row)
    for combination in results(query, rows):
        meet = frozenset.intersection(*(of_input[row] for of_input, row in zip(goes_to, combination, strict=True)))
        assert len(meet) == 1, f"{combination} meets in {sorted(meet)} of {grid}"


@given(ANY_GRAPH, CELLS, st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_members_of_a_cell_are_the_rows_sent_to_it(found: JoinGraph, cells: int, seed: int) -> None:
    """What a slot thinks is its own is what the exchange sends it."""
    grid = choose_grid(found, cells)
    rows = rows_of(np.random.default_rng(seed), 20)
    times = rows["ts"].combine_chunks().view(pa.int64())
    for i in found.query.inputs:
        sent = cells_of(grid, i.alias, rows)
        for cell in range(grid.cells):
            mask = member_mask(grid, cell, i.alias, lambda c: rows[c.name].combine_chunks(), times, rows.num_rows)
            assert mask.tolist() == [cell in of_row for of_row in sent]
    for source in found.query.sources:
        sent_for_any = [
            frozenset().union(*of_row)
            for of_row in zip(
                *(cells_of(grid, i.alias, rows) for i in found.query.inputs if i.source == source), strict=True
            )
        ]
        for cell in range(grid.cells):
            mask = source_mask(grid, cell, found.query, source, rows)
            assert mask.tolist() == [cell in of_row for of_row in sent_for_any]


# Shares


@given(ANY_GRAPH, CELLS, RATES)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_shares_and_replication(found: JoinGraph, cells: int, rates: dict[str, float]) -> None:
    grid = choose_grid(found, cells, rates)
    aliases = found.query.aliases
    assert prod(grid.shares) == grid.cells == cells
    assert all(share > 1 for share in grid.shares), "a dimension in one part is no dimension"
    full = {alias: rates.get(alias, 1.0) for alias in aliases}
    for alias in aliases:
        lacking = [s for d, s in zip(grid.dimensions, grid.shares, strict=True) if not d.has(alias)]
        offsets = grid.offsets(alias)
        assert len(set(offsets)) == len(offsets) == prod(lacking)
    sent = sum(full[a] * len(grid.offsets(a)) for a in aliases)
    assert grid.replication(full) == pytest.approx(sent / sum(full.values()))


@given(graphs(max_inputs=3), st.sampled_from([2, 4, 6]), RATES)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_no_grid_moves_fewer_rows(found: JoinGraph, cells: int, rates: dict[str, float]) -> None:
    full = {alias: rates.get(alias, 1.0) for alias in found.query.aliases}
    dimensions = [Dimension(terms) for terms in found.classes if all(map(is_routable, terms))]
    dimensions += [Dimension((), alias) for alias in found.query.aliases]
    every = [Grid(tuple(dimensions), shares) for shares in product(range(1, cells + 1), repeat=len(dimensions))
             if prod(shares) == cells]  # fmt: skip
    assert sorted(g.shares for g in every) == sorted(_factorisations(cells, len(dimensions)))
    best = min(g.replication(full) for g in every)
    assert choose_grid(found, cells, rates).replication(full) == pytest.approx(best)


@given(ANY_GRAPH, CELLS, RATES)
@settings(deadline=None, max_examples=30, derandomize=True)
def test_the_choice_is_always_the_same(found: JoinGraph, cells: int, rates: dict[str, float]) -> None:
    """A checkpoint outlives the process: dictionaries and sets must not matter."""
    again = JoinGraph(found.query)
    assert choose_grid(found, cells, dict(reversed(rates.items()))) == choose_grid(again, cells, rates)


def copies(found: JoinGraph, cells: int, **rates: float) -> dict[str, int]:
    grid = choose_grid(found, cells, rates)
    return {alias: len(grid.offsets(alias)) for alias in found.query.aliases}


@pytest.mark.parametrize("cells", [2, 3, 4, 16])
def test_two_inputs_are_never_replicated(cells: int) -> None:
    grid = choose_grid(graph("A B", "A.x = B.x"), cells)
    assert grid.shares == (cells,)
    assert copies(graph("A B", "A.x = B.x"), cells) == {"A": 1, "B": 1}
    assert grid.replication({"A": 1, "B": 5}) == 1.0


def test_one_key_for_all_is_never_replicated() -> None:
    assert copies(graph("A B C D", "A.x = B.x, B.x = C.x, C.x = D.y"), 8) == {"A": 1, "B": 1, "C": 1, "D": 1}


def test_one_input_is_spread_by_its_rows() -> None:
    grid = choose_grid(graph("A"), 4)
    assert grid == Grid((Dimension((), "A"),), (4,))
    assert grid.replication({"A": 7.0}) == 1.0


def test_chain_in_two_slots_replicates_one_end() -> None:
    chain = graph("A B C", "A.x = B.x, B.y = C.y")
    assert sorted(copies(chain, 2).values()) == [1, 1, 2]
    assert copies(chain, 2, A=100, B=10, C=1) == {"A": 1, "B": 1, "C": 2}
    assert copies(chain, 2, A=1, B=10, C=100) == {"A": 2, "B": 1, "C": 1}
    assert choose_grid(chain, 2).replication({"A": 1, "B": 1, "C": 1}) == pytest.approx(4 / 3)


def test_triangle_cuts_two_of_its_three_classes() -> None:
    triangle = graph("A B C", "A.x = B.x, B.y = C.y, C.z = A.z")
    assert sorted(choose_grid(triangle, 4).shares) in ([2, 2], [4])
    assert sorted(choose_grid(triangle, 8).shares) == [2, 2, 2]
    assert copies(triangle, 8) == {"A": 2, "B": 2, "C": 2}


def test_product_splits_the_larger_side() -> None:
    assert copies(graph("A B"), 4, A=100, B=1) == {"A": 1, "B": 4}
    assert copies(graph("A B"), 4, A=1, B=100) == {"A": 4, "B": 1}


def test_unequal_rates_without_rows() -> None:
    """Rates of zero are no reason to divide by zero."""
    assert choose_grid(graph("A B", "A.x = B.x"), 2, {"A": 0.0, "B": 0.0}).cells == 2


def test_keys_that_are_computed_cut_no_dimension() -> None:
    """Every reader must compute a coordinate alike, so x + 1 = y is a product to the exchange."""
    built = query("A B")
    shifted = Call(INT, "add", (column("A.x"), column("A.y")))
    found = JoinGraph(Query("q", built.inputs, (Equality(shifted, column("B.x")),), (), built.select))
    assert all(d.rows_of for d in choose_grid(found, 4).dimensions)


@pytest.mark.parametrize(
    ("given_type", "wanted", "routable"),
    [
        (pa.int16(), pa.int64(), True),
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), False),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.string(), pa.int64(), False),
    ],
)
def test_casts_that_route(given_type: pa.DataType, wanted: pa.DataType, routable: bool) -> None:
    inner = Call(wanted, "cast", (column_of(given_type),))
    assert is_routable(inner) is routable
    assert is_routable(column_of(given_type))
    assert not is_routable(column_of(pa.list_(pa.int64())))
    assert not is_routable(Call(wanted, "cast", (inner,)))


def column_of(type_: pa.DataType) -> Column:
    return Column(type_, "A", "c")


def test_rows_of_a_table_share_one_cell_of_its_own_dimension() -> None:
    table = Table("t", (Field("v", INT),))
    grid = Grid((Dimension((), "t"),), (4,))
    rows = pa.table({"v": [1, 2, 3]})
    made = query("A", sources={})
    masks = [source_mask(grid, cell, with_table(made, table), table, rows).tolist() for cell in range(4)]
    assert sorted(masks) == [[False] * 3] * 3 + [[True] * 3]


def with_table(made: Query, table: Table) -> Query:
    return Query("q", (*made.inputs, Input("t", table, STORED)), (), (), made.select)
