"""What members of a shared join have of a piece of its results, and how they take it.

A member's rows of a piece are some ranges of it (`Shares`). Members that select the same are a *kind*: what they select is
made once of all rows of the piece. A member with one range takes that part of it, which is not copied; the others' rows are
gathered one member after the other, many members at once, and each takes its part of what was gathered.

Example: of a piece of five results q has rows 0 to 3, p rows 1 and 4, r rows 2 and 4; all select `t.price`. The five prices
are fetched once. q takes the first four; rows 1, 4, 2, 4 are gathered, p takes the first two of these and r the rest.

Where few rows of a piece are a kind's, and what it selects is computed, each member makes its own (`Share`); so does each
where making it once fails, for only then it is known whose error it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine import bounds
from anabranch.engine.box import Fetch
from anabranch.engine.columns import varies
from anabranch.engine.combination import result_times
from anabranch.engine.expressions import evaluate
from anabranch.engine.kernels.lineage import expand
from anabranch.plan.expression import Column, Expr

Places = npt.NDArray[np.integer]
"""Places of rows in a piece, or of members among the members."""
TimesUs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """For each member, by its place among the members, the ranges of a piece that are its own: those of member m are the
    ranges from `offsets[m]` to `offsets[m + 1]`."""

    begins: Places
    lasts: Places | None
    """None: each range is of one row."""
    offsets: Places
    counts: Places
    """How many rows each member has."""

    def places(self, members: Places) -> Places:
        """The rows of some members, one member after the other; members stand in order."""
        if len(members) == members[-1] - members[0] + 1:
            return self._expanded(slice(self.offsets[members[0]], self.offsets[members[-1] + 1]))
        several = [self._expanded(slice(self.offsets[m], self.offsets[m + 1])) for m in members]
        return np.concatenate(several)

    def is_one_range(self, members: Places) -> npt.NDArray[np.bool_]:
        """Which of some members have one range."""
        found: npt.NDArray[np.bool_] = self.offsets[members + 1] - self.offsets[members] == 1
        return found

    def begin(self, member: int) -> int:
        """Where the first range of a member begins."""
        return int(self.begins[self.offsets[member]])

    def _expanded(self, ranges: slice) -> Places:
        if self.lasts is None:
            return self.begins[ranges]
        begins, lasts = self.begins[ranges], self.lasts[ranges]
        found = np.empty(int((lasts - begins).sum()), np.int64)
        expand(begins, lasts, found)
        return found


def in_ranges(begins: Places, lasts: Places, members: Places, count: int) -> Shares:
    """Ranges of `count` members, with the member of each; ranges stand by member."""
    offsets = np.searchsorted(members, np.arange(count + 1))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lasts - begins)])
    return Shares(begins, lasts, offsets, ends[offsets[1:]] - ends[offsets[:-1]])


def all_of(rows: int, count: int) -> Shares:
    """All rows are those of each of `count` members."""
    return Shares(
        np.zeros(count, np.int64), np.full(count, rows, np.int64), np.arange(count + 1), np.full(count, rows, np.int64)
    )


@dataclass(frozen=True)
class Share:
    """The rows of a piece that are a member's."""

    piece: Fetch
    places: Places
    """In order, each once."""
    member_ends: TimesUs | None = None
    """Until when combinations of the piece are valid for the member, if that matters."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def starts(self) -> TimesUs:
        return self._taken(self.piece.starts)

    @property
    def ends(self) -> TimesUs:
        return self._taken(self.piece.ends if self.member_ends is None else self.member_ends)

    def __call__(self, column: Column) -> pa.Array:
        found = self.piece(column)
        return found.slice(int(self.places[0]), len(self)) if self._is_one_range else found.take(self._indices)

    def slice(self, first: int, last: int) -> Share:
        return Share(self.piece, self.places[first:last], self.member_ends)

    @property
    def _is_one_range(self) -> bool:
        return len(self) > 0 and int(self.places[-1] - self.places[0]) == len(self) - 1

    @cached_property
    def _indices(self) -> pa.Array:
        return pa.array(self.places)

    def _taken(self, values: TimesUs) -> TimesUs:
        if self._is_one_range:
            return values[self.places[0] : self.places[-1] + 1]
        taken: TimesUs = values[self.places]
        return taken


@dataclass(frozen=True)
class Kind:
    """Members that select the same."""

    select: tuple[tuple[str, Expr], ...]
    schema: pa.Schema
    members: Places
    """Their places, in order."""

    @cached_property
    def _is_plain(self) -> bool:
        """Whether it selects nothing but columns."""
        return all(isinstance(expr, Column) for _, expr in self.select)

    @cached_property
    def _varies(self) -> bool:
        """Whether rows differ in length."""
        return any(varies(expr.type) for _, expr in self.select)

    def is_worth(self, piece: Fetch, shares: Shares) -> bool:
        """Whether what it selects is made once of all rows of a piece."""
        return self._is_plain or int(shares.counts[self.members].sum()) >= len(piece)

    def whole(self, piece: Fetch) -> pa.RecordBatch:
        """What it selects of all rows of a piece."""
        columns = [evaluate(expr, piece, len(piece), lambda: result_times(piece.starts)) for _, expr in self.select]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def taken(self, whole: pa.RecordBatch, shares: Shares) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """The results of the members that have any, some members at a time."""
        there = self.members[shares.counts[self.members] > 0]
        is_one = shares.is_one_range(there)
        counts = shares.counts[there].tolist()
        ones = [(m, n) for m, n, one in zip(there.tolist(), counts, is_one.tolist(), strict=True) if one]
        if ones:
            yield [(m, whole.slice(shares.begin(m), n)) for m, n in ones]
        for several in self._at_once(there[~is_one], shares):
            rows = pc.take(whole, pa.array(shares.places(several)), boundscheck=False)
            ends = np.cumsum(shares.counts[several]).tolist()
            begins = [0, *ends[:-1]]
            yield [(m, rows.slice(a, b - a)) for m, a, b in zip(several.tolist(), begins, ends, strict=True)]

    def _at_once(self, members: Places, shares: Shares) -> Iterator[Places]:
        """Members in parts whose rows are gathered at once: as many rows as a piece of results may have. Rows that differ in
        length are gathered for one member at a time, for a column of strings has a bound of its own."""
        if self._varies:
            yield from (members[place : place + 1] for place in range(len(members)))
            return
        ends, first = np.cumsum(shares.counts[members]), 0
        while first < len(members):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + bounds.RESULT_ROWS, "right")))
            yield members[first:last]
            first = last


def kinds_of(selects: Sequence[tuple[int, tuple[tuple[str, Expr], ...], pa.Schema]]) -> tuple[Kind, ...]:
    """Members by what they select; given are the place, the select list and the output of each, in order."""
    alike: dict[tuple[tuple[str, Expr], ...], list[int]] = {}
    schemas: dict[tuple[tuple[str, Expr], ...], pa.Schema] = {}
    for place, select, schema in selects:
        alike.setdefault(select, []).append(place)
        schemas[select] = schema
    return tuple(Kind(select, schemas[select], np.array(places, np.int64)) for select, places in alike.items())
