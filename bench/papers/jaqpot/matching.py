"""Rows of streams, joined rows as the ids of their parts, and which of them match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import PlanError

Array = NDArray[Any]
Parts = dict[str, Array]
"""Joined rows: for each stream the ids of their rows of that stream. An id is a position in `Rows`."""


@dataclass(frozen=True)
class Rows:
    """All rows of a stream in the order of their times."""

    times_s: Array
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class Equality:
    """A column of one stream must equal a column of another."""

    left: tuple[str, str]
    right: tuple[str, str]

    def columns(self, one: Parts, other: Parts) -> tuple[tuple[str, str], tuple[str, str]] | None:
        """The column that rows of each side are compared by, if the equality is between them."""
        if self.left[0] in one and self.right[0] in other:
            return self.left, self.right
        if self.right[0] in one and self.left[0] in other:
            return self.right, self.left
        return None


def keys_between(
    rows: Mapping[str, Rows], equalities: Sequence[Equality], one: Parts, other: Parts
) -> list[tuple[Array, Array]]:  # fmt: skip
    """The keys of both sides, for each equality between them."""
    found = []
    for equality in equalities:
        if columns := equality.columns(one, other):
            (stream, column), (partner, partner_column) = columns
            found.append((rows[stream].columns[column][one[stream]], rows[partner].columns[partner_column][other[partner]]))
    if not found:
        raise PlanError(f"no equality is between {', '.join(one)} and {', '.join(other)}")
    return found


def pairs(left: Array, right: Array) -> tuple[Array, Array]:
    """Positions of equal keys in two arrays.

    >>> [each.tolist() for each in pairs(np.array([7, 8, 7]), np.array([7, 9, 7]))]
    [[0, 0, 2, 2], [0, 2, 0, 2]]
    """
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    low, high = np.searchsorted(ordered, left, "left"), np.searchsorted(ordered, left, "right")
    counts = high - low
    ends = np.cumsum(counts)
    at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(low - (ends - counts), counts)
    return np.repeat(np.arange(len(left)), counts), order[at]


def taken(parts: Parts, places: Array | slice) -> Parts:
    return {stream: ids[places] for stream, ids in parts.items()}


def size(parts: Parts) -> int:
    return len(next(iter(parts.values())))
