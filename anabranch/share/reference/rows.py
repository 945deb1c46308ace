"""Rows, references to rows, the condition of the join, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

from anabranch.share.window_queries import Stream

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a stream. Rows come in the order of their times; `number` counts the rows of both streams as they come."""

    stream: Stream
    number: int
    time_s: float
    key: int = 0
    satisfies: frozenset[str] = NONE
    """The predicates that hold for the row, by their names."""

    def __str__(self) -> str:
        return f"{self.stream.lower()}{self.number}"


class Reference(NamedTuple):
    """A row on its way through a chain: the male reference purges and probes, the female one is stored (section 4.2)."""

    row: Row
    is_male: bool
    lineage: int
    """The row survives to the slice of this window, counted from 1, and no further (section 6.1)."""


Pair = tuple[Row, Row]
"""A result: the row of A, then the row of B."""


def pair(one: Row, other: Row) -> Pair:
    return (one, other) if one.stream == "A" else (other, one)


@dataclass(frozen=True)
class KeyBand:
    """The join condition: b joins a if (b.key − a.key) mod `keys` is below `width`, for keys from 0 on and below
    `keys`. With a width of 1 it is an equijoin.

    >>> KeyBand(5, 2).selectivity
    0.4
    """

    keys: int
    width: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.keys:
            raise ValueError(f"a band of {self.width} of {self.keys} keys")

    @property
    def selectivity(self) -> float:
        """S_⋈, where keys are drawn evenly."""
        return self.width / self.keys

    def holds(self, a: Row, b: Row) -> bool:
        return (b.key - a.key) % self.keys < self.width

    def partner_keys(self, row: Row) -> Sequence[int]:
        """The keys of the other stream's rows that join a row.

        >>> KeyBand(5, 2).partner_keys(Row("A", 0, 0.0, 4)), KeyBand(5, 2).partner_keys(Row("B", 0, 0.0, 0))
        ([4, 0], [0, 4])
        """
        return self._partners[row.stream][row.key]

    @cached_property
    def _partners(self) -> dict[Stream, list[list[int]]]:
        keys, steps = range(self.keys), range(self.width)
        return {
            "A": [[(key + step) % self.keys for step in steps] for key in keys],
            "B": [[(key - step) % self.keys for step in steps] for key in keys],
        }


EVERY_PAIR = KeyBand(1)
"""Every row of A joins every row of B, as in table 2."""


@dataclass
class Meter:
    """Comparisons of one plan so far, by what they are for; rows that are stored now."""

    probing: int = 0
    """A male reference counts as many as the state that it probes has rows."""
    purging: int = 0
    """A male reference counts one in each join that it comes to."""
    filtering: int = 0
    """Predicates evaluated for rows on their way in: selections (fig. 15), the split of push-down (fig. 4)."""
    selecting: int = 0
    """Predicates evaluated for results."""
    routing: int = 0
    """A result counts one less than there are windows to choose from."""
    merging: int = 0
    """Unions: one for each male reference that punctuates (fig. 12), one for each result that is merged (fig. 4)."""
    visits: int = 0
    """Male references that a join took up: what the paper's C_sys is counted for. No comparisons."""
    stored_rows: int = 0
    """Female references in the states of all joins."""

    @property
    def comparisons(self) -> int:
        return self.probing + self.purging + self.filtering + self.selecting + self.routing + self.merging

    def since(self, before: Meter) -> Meter:
        """What was counted since; of stored rows those of now."""
        counted = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        return Meter(**{**counted, "stored_rows": self.stored_rows})
