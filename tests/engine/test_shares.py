"""Members take what is theirs of a piece: as if each took its rows by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine import bounds
from anabranch.engine.shares import Kind, Share, Shares, all_of, in_ranges, kinds_of
from anabranch.plan.expression import Call, Column, Literal

X, NAME = Column(pa.int64(), "t", "x"), Column(pa.string(), "t", "name")
TWICE = Call(pa.int64(), "mul", (X, Literal(pa.int64(), 2)))


class Rows:
    """A piece of rows whose x is ten times their place."""

    def __init__(self, count: int) -> None:
        self.starts = np.arange(count, dtype=np.int64)
        self.ends = self.starts + 5
        self._columns = {X: pa.array(10 * self.starts), NAME: pa.array([f"row {place}" for place in range(count)])}

    def __len__(self) -> int:
        return len(self.starts)

    def __call__(self, column: Column) -> pa.Array:
        return self._columns[column]


def shares_of(rows: list[set[int]], by_ranges: bool) -> Shares:
    """What members have that have some rows each."""
    if not by_ranges:
        places = [sorted(own) for own in rows]
        counts = np.array([len(own) for own in places], np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Shares(np.array([p for own in places for p in own], np.int64), None, offsets, counts)
    ranges = []
    for member, own in enumerate(rows):
        begins = [place for place in sorted(own) if place - 1 not in own]
        lasts = [place + 1 for place in sorted(own) if place + 1 not in own]
        ranges += [(begin, last, member) for begin, last in zip(begins, lasts, strict=True)]
    begins, lasts, members = np.array(ranges, np.int64).reshape(-1, 3).T
    return in_ranges(begins, lasts, members, len(rows))


@given(
    st.lists(st.sets(st.integers(0, 11)), min_size=1, max_size=8), st.booleans(), st.integers(1, 20),
    st.sampled_from([(X,), (X, TWICE), (NAME, X)]), st.sets(st.integers(0, 7), min_size=1),
)  # fmt: skip
@settings(deadline=None)
def test_members_take_their_rows(rows, by_ranges, at_once, select, members):
    piece, shares = Rows(12), shares_of(rows, by_ranges)
    there = sorted(m for m in members if m < len(rows))
    if not there:
        return
    named = tuple((f"c{place}", expr) for place, expr in enumerate(select))
    schema = pa.schema([(name, expr.type) for name, expr in named])
    (kind,) = kinds_of([(m, named, schema) for m in there])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "RESULT_ROWS", at_once)
        whole = kind.whole(piece)
        found = [each for part in kind.taken(whole, shares) for each in part]
    assert sorted(m for m, _ in found) == [m for m in there if rows[m]], "who has nothing gets nothing"
    for member, results in found:
        own = Share(piece, shares.places(np.array([member])))
        assert len(own) == shares.counts[member] == len(rows[member])
        expected = [[10 * p for p in sorted(rows[member])], [f"row {p}" for p in sorted(rows[member])]]
        assert own(X).to_pylist() == expected[0]
        assert own.starts.tolist() == sorted(rows[member])
        assert own.ends.tolist() == [p + 5 for p in sorted(rows[member])]
        by_expr = {X: expected[0], TWICE: [2 * x for x in expected[0]], NAME: expected[1]}
        assert [column.to_pylist() for column in results.columns] == [by_expr[expr] for expr in select]
        part = own.slice(0, len(own) // 2)
        assert part(X).to_pylist() == expected[0][: len(own) // 2]


def test_what_is_made_once() -> None:
    """Columns always; what is computed, if members together have as many rows as there are."""
    schema = pa.schema([("c", pa.int64())])
    piece, some = Rows(12), shares_of([{1, 2}, {5}], by_ranges=True)
    plain, computed = (Kind((("c", expr),), schema, np.array([0, 1])) for expr in (X, TWICE))
    assert plain.is_worth(piece, some)
    assert not computed.is_worth(piece, some)
    assert computed.is_worth(piece, all_of(12, 2))
    assert all_of(12, 2).places(np.array([1])).tolist() == list(range(12))
    other = (("d", X),)
    kinds = kinds_of([(0, plain.select, schema), (1, other, schema), (4, plain.select, schema)])
    assert [kind.members.tolist() for kind in kinds] == [[0, 4], [1]]
