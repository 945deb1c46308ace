"""Combined rows in pieces of bounded size: so many rows, and so many bytes of values that differ in length.

Nothing on a route holds more than a piece at a time. A lookup is cut where it has found enough; what it found goes
along the rest of the route, and leaves as results, before it goes on. Values are fetched a piece at a time too. A row with a
value that is longer than the bound is a piece by itself. The bounds are in `anabranch.engine.bounds`.

Exempt is what is state: rows that a plan keeps in a view, and partial rows of groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.columns import row_bytes, varies
from anabranch.engine.combination import Combination
from anabranch.errors import TooManyResultsError

if TYPE_CHECKING:
    from anabranch.engine.box import Box


def cuts(box: Box, rows: Combination, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Where rows are cut: the first of each piece, and the one behind its last."""
    count = len(rows)
    if count <= most_rows and _most_bytes(box, rows) <= most_bytes:
        yield 0, count
        return
    ends = None if _most_bytes(box, rows) <= most_bytes else np.cumsum(_lengths(box, rows))
    first = 0
    while first < count:
        last = min(first + most_rows, count)
        if ends is not None:
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, min(last, int(np.searchsorted(ends, before + most_bytes, "right"))))
        yield first, last
        first = last


def pieces(box: Box, rows: Combination, most_rows: int, most_bytes: int) -> Iterator[Combination]:
    """The rows, piece by piece."""
    for first, last in cuts(box, rows, most_rows, most_bytes):
        yield rows if last - first == len(rows) else rows.slice(first, last)


def _most_bytes(box: Box, rows: Combination) -> int:
    """As many bytes as values of the rows can have that differ in length; mostly that is little, and no row is looked at."""
    found = 0
    for alias in rows.ids:
        if rows.whole is not None and rows.whole[0] == alias:
            found += sum(column.nbytes for column in _varying(rows.whole[1]))
        else:
            log = box.log_of(alias)
            found += len(rows) * sum(log.widest(name) for name in box.varying_columns(alias))
    return found


def _lengths(box: Box, rows: Combination) -> npt.NDArray[np.int64]:
    """The bytes of each row."""
    found = np.zeros(len(rows), np.int64)
    for alias, ids in rows.ids.items():
        if rows.whole is not None and rows.whole[0] == alias:
            for column in _varying(rows.whole[1]):
                found += row_bytes(column)
        else:
            for name in box.varying_columns(alias):
                found += box.log_of(alias).lengths(name, ids)
    return found


def _varying(segment: pa.RecordBatch) -> list[pa.Array]:
    return [column for column in segment.columns if varies(column.type)]


def check_results(found: int, most: int | None, query: str, batch: int) -> None:
    """Refuses a batch with more results than a user allows."""
    if most is not None and found > most:
        raise TooManyResultsError(
            f"query {query} gives more than {most} results in batch {batch}, and results_per_batch allows no more: nothing "
            "of the batch is delivered. Look for a key that very many rows have, or a join without one; or allow more"
        )
