"""The reader splits rows by the cells that the engine expects them in, for all queries at once. No Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from anabranch.balance.shares import choose_grid
from anabranch.engine.cells import source_mask
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Query, Stream
from anabranch.spark.reader import (
    CellRouter,
)
from tests.support.reading import (
    QUERIES,
    multiset,
    query_of,
    random_rows,
)


@pytest.mark.parametrize("cells", [1, 2, 4, 12])
@pytest.mark.parametrize("name", QUERIES)
def test_rows_go_where_the_engine_expects_them(name: str, cells: int) -> None:
    query, source = query_of(name)
    grid = choose_grid(JoinGraph(query), cells)
    rows = random_rows(700).slice(13, 600)
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for targets, piece in CellRouter([(query, grid)], source).split(rows):
        for cell in targets:
            pieces.setdefault(cell, []).append(piece)
    for cell in range(grid.cells):
        mask = source_mask(grid, cell, query, source, pa.Table.from_batches([rows]))
        expected = rows.filter(pa.array(mask))
        assert [repr(r) for p in pieces.get(cell, []) for r in p.to_pylist()] == list(map(repr, expected.to_pylist()))


def test_inputs_that_differ_in_their_alias_alone_are_routed_once() -> None:
    query, source = query_of("same key")
    assert len(CellRouter([(query, choose_grid(JoinGraph(query), 4))], source).ways) == 1
    query, source = query_of("two keys")
    assert len(CellRouter([(query, choose_grid(JoinGraph(query), 4))], source).ways) == 2


TOGETHER = [
    ["one key", "same key"], ["one key", "text"], ["two keys", "chain", "decimal"], ["theta", "one key"],
    ["all in one slot", "theta"], ["theta", "all in one slot"], ["all in one slot", "one key", "chain"],
]  # fmt: skip


def spread_of(names: list[str], cells: int) -> tuple[list[tuple[Query, Grid]], Stream]:
    """Queries, and the grids that they have alone; some have all rows in one slot."""
    _, source = query_of("one key")
    found = []
    for name in names:
        query, _ = query_of(name if name in QUERIES else "one key")
        found.append((query, choose_grid(JoinGraph(query), cells) if name in QUERIES else Grid()))
    return found, source


@pytest.mark.parametrize("cells", [2, 4, 6])
@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_rows_go_to_the_slots_of_all_queries_once(names: list[str], cells: int) -> None:
    """Each slot gets the rows that any query wants there, in order, and none twice."""
    spread, source = spread_of(names, cells)
    rows = random_rows(300)
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for targets, piece in CellRouter(spread, source).split(rows):
        for cell in targets:
            pieces.setdefault(cell, []).append(piece)
    for cell in range(cells):
        masks = [
            source_mask(grid, cell, query, source, pa.Table.from_batches([rows]))
            for query, grid in spread
            if cell < grid.cells
        ]
        expected = rows.filter(pa.array(np.logical_or.reduce(masks)))
        assert [repr(r) for p in pieces.get(cell, []) for r in p.to_pylist()] == list(map(repr, expected.to_pylist()))


def test_queries_of_the_same_way_are_routed_once() -> None:
    spread, source = spread_of(["one key", "same key"], 4)
    assert len(CellRouter(spread, source).ways) == 1


def test_rows_of_one_cell_are_not_copied() -> None:
    query, source = query_of("one key")
    rows = random_rows(50)
    ((cells, piece),) = CellRouter([(query, Grid())], source).split(rows)
    assert cells == (0,)
    assert piece is rows


def test_rows_without_a_time_arrive_too() -> None:
    query, source = query_of("theta")
    grid = choose_grid(JoinGraph(query), 4)
    rows = random_rows(100)
    times = pa.array([None if n % 3 == 0 else n for n in range(100)], pa.timestamp("us"))
    rows = rows.set_column(rows.schema.get_field_index("ts"), "ts", times)
    arrived = [multiset(piece) for _, piece in CellRouter([(query, grid)], source).split(rows)]
    assert set().union(*arrived) == set(multiset(rows))
