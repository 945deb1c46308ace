"""What a query selects of combined rows that are its own: results, or what its groups take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import thread_time_ns
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import Statistics
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.combination import result_times
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.errors import ValueTooLargeError
from anabranch.plan.expression import Column, Expr
from anabranch.plan.query import Query

Found = tuple[str, pa.RecordBatch]
"""Results, and the query whose they are."""

Selected = tuple[list[pa.Array], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Columns, and from when to when each row is valid."""


class Rows(Protocol):
    """Combined rows whose columns can be asked for."""

    def __len__(self) -> int: ...

    @property
    def starts(self) -> npt.NDArray[np.int64]: ...

    @property
    def ends(self) -> npt.NDArray[np.int64]: ...

    def __call__(self, column: Column) -> pa.Array: ...

    def slice(self, first: int, last: int) -> Self: ...


def selected(query: Query, rows: Rows, left: Sequence[Expr]) -> Selected:
    """What a query selects of rows, as far as they pass the predicates that are `left`, and their validity."""
    columns, mask = _columns(query, rows, left)
    return (columns, rows.starts, rows.ends) if mask is None else (columns, rows.starts[mask], rows.ends[mask])


def _columns(query: Query, rows: Rows, left: Sequence[Expr]) -> tuple[list[pa.Array], npt.NDArray[np.bool_] | None]:
    """What a query selects of rows, and which of them pass; None if all."""
    columns = [evaluate(expr, rows, len(rows), lambda: result_times(rows.starts)) for _, expr in query.select]
    mask = predicate_mask(left, rows, len(rows), lambda: result_times(rows.starts))
    if mask is None or mask.all():
        return columns, None
    kept = pa.array(mask)
    return [column.filter(kept) for column in columns], mask


def results_of(query: Query, rows: Rows, statistics: Statistics, left: Sequence[Expr]) -> Iterator[pa.RecordBatch]:
    """The results that a query without groups has of rows."""
    began, count = thread_time_ns(), len(rows)
    try:
        columns, mask = _columns(query, rows, left)
    except pa.ArrowCapacityError as error:
        # An expression makes values much longer than those it is made of.
        if count == 1:
            raise ValueTooLargeError(f"query {query.name}: a value of a single result: {error}") from None
        for first, last in ((0, count // 2), (count // 2, count)):
            yield from results_of(query, rows.slice(first, last), statistics, left)
        return
    statistics.spent("emit", thread_time_ns() - began)
    if mask is None or mask.any():
        yield pa.RecordBatch.from_arrays(columns, schema=query.output_schema)


def advance(
    aggregator: Aggregator, statistics: Statistics, batch: int, watermark_us: int, gives_parts: bool
) -> Iterator[pa.RecordBatch]:
    """Ends a batch of a query that groups: the groups at the instants that the watermark has passed. If it `gives_parts`,
    groups have rows elsewhere too, and results are partial values (`Aggregator.combine`)."""
    began = thread_time_ns()
    aggregator.settle(batch)
    pieces = aggregator.advance_parts(watermark_us) if gives_parts else aggregator.advance(watermark_us)
    for piece in pieces:
        statistics.spent("aggregate", thread_time_ns() - began)
        statistics.results += piece.num_rows
        yield piece
        began = thread_time_ns()
    statistics.spent("aggregate", thread_time_ns() - began)
