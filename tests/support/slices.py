"""Random queries, chains and streams of State-Slice, and what a window join is, pair by pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from anabranch.share.chain import Chain
from anabranch.share.reference.rows import KeyBand, Pair, Row
from anabranch.share.window_queries import WindowQuery, distinct_windows

PREDICATES = ("x", "y", "z")
CONDITIONS = (KeyBand(1), KeyBand(2), KeyBand(3, 2))


@dataclass(frozen=True)
class Case:
    """Queries over two streams, and their rows."""

    queries: tuple[WindowQuery, ...]
    condition: KeyBand
    rows: tuple[Row, ...]

    @property
    def windows_s(self) -> tuple[float, ...]:
        return distinct_windows(self.queries)


@st.composite
def rows(draw: st.DrawFn, keys: int, most: int = 40) -> tuple[Row, ...]:
    """Rows whose times are whole seconds, many of them equal, so that rows are often exactly as old as a window."""
    made: list[Row] = []
    now_s = 0.0
    for number in range(draw(st.integers(0, most))):
        now_s += draw(st.sampled_from((0, 0, 1, 1, 2, 3, 9)))
        satisfies = frozenset(name for name in PREDICATES if draw(st.booleans()))
        made.append(Row(draw(st.sampled_from(("A", "B"))), number, now_s, draw(st.integers(0, keys - 1)), satisfies))
    return tuple(made)


@st.composite
def cases(draw: st.DrawFn, selections: bool = True, most: int = 40) -> Case:
    condition = draw(st.sampled_from(CONDITIONS))
    predicates = st.sampled_from((None, *PREDICATES)) if selections else st.none()
    windows = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    queries = tuple(
        WindowQuery(f"q{n}", float(window_s), draw(predicates), draw(predicates)) for n, window_s in enumerate(windows)
    )
    return Case(queries, condition, draw(rows(condition.keys, most)))


def chains(windows_s: Sequence[float]) -> st.SearchStrategy[Chain]:
    """Any chain over these windows."""
    last = len(windows_s)
    inner = st.sets(st.sampled_from(range(1, last))) if last > 1 else st.just(set[int]())
    return inner.map(lambda ends: Chain(tuple(windows_s), (*sorted(ends), last)))


def pairs_of(query: WindowQuery, condition: KeyBand, given: Sequence[Row]) -> Counter[Pair]:
    """The law: which pairs a query has, by their times."""
    found: Counter[Pair] = Counter()
    for a in given:
        for b in given:
            if (a.stream, b.stream) == ("A", "B") and condition.holds(a, b) and abs(a.time_s - b.time_s) < query.window_s:
                found[a, b] += query.wants("A", a.satisfies) and query.wants("B", b.satisfies)
    return +found


def required_rows(queries: Iterable[WindowQuery], given: Sequence[Row], now_s: float) -> int:
    """The rows that some query can still join with a row that comes now: no correct plan can do without them."""
    return sum(
        any(query.wants(row.stream, row.satisfies) and now_s - row.time_s < query.window_s for query in queries)
        for row in given
    )
