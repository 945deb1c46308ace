"""The queries of the paper: σ(A[w]) ⋈ σ(B[w]), which differ in the window w and in the selections σ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Stream = Literal["A", "B"]
STREAMS: tuple[Stream, Stream] = ("A", "B")
OTHER: dict[Stream, Stream] = {"A": "B", "B": "A"}


@dataclass(frozen=True)
class WindowQuery:
    """A window join of A and B. A selection is told by the name of its predicate; equal names are equal predicates."""

    name: str
    window_s: float
    on_a: str | None = None
    """The paper's cond_i; None where every row of A is wanted."""
    on_b: str | None = None

    def __post_init__(self) -> None:
        if self.window_s <= 0:
            raise ValueError(f"{self.name} has a window of {self.window_s} s: windows are longer than 0")

    def predicate(self, stream: Stream) -> str | None:
        return self.on_a if stream == "A" else self.on_b

    def wants(self, stream: Stream, satisfies: frozenset[str]) -> bool:
        """Whether a row of a stream passes this query's selection, by the predicates that the row satisfies."""
        predicate = self.predicate(stream)
        return predicate is None or predicate in satisfies


def distinct_windows(queries: Iterable[WindowQuery]) -> tuple[float, ...]:
    """w_1 < w_2 < … < w_N.

    >>> distinct_windows([WindowQuery("p", 30.0), WindowQuery("q", 10.0), WindowQuery("r", 30.0, "x")])
    (10.0, 30.0)
    """
    return tuple(sorted({query.window_s for query in queries}))


def predicates_of(queries: Iterable[WindowQuery], stream: Stream) -> list[str]:
    """The distinct predicates on a stream.

    >>> predicates_of([WindowQuery("p", 30.0, "x"), WindowQuery("q", 10.0), WindowQuery("r", 30.0, "x")], "A")
    ['x']
    """
    return sorted({name for query in queries if (name := query.predicate(stream)) is not None})


@dataclass(frozen=True)
class Ranked:
    """Queries in the order of their windows, each with the number of its window, from 1 as in the paper."""

    queries: tuple[WindowQuery, ...]
    windows_s: tuple[float, ...]
    ranks: tuple[int, ...]
    """Of each query the i of its window w_i."""

    @classmethod
    def of(cls, queries: Sequence[WindowQuery]) -> Ranked:
        if not queries:
            raise ValueError("there are no queries to share between")
        windows = distinct_windows(queries)
        ordered = tuple(sorted(queries, key=lambda query: query.window_s))
        return cls(ordered, windows, tuple(windows.index(query.window_s) + 1 for query in ordered))

    def beyond(self, start: int) -> list[tuple[int, WindowQuery]]:
        """The queries, by rank, that read what is older than w_start."""
        return [(rank, query) for rank, query in zip(self.ranks, self.queries, strict=True) if rank > start]

    def lineage(self, stream: Stream, satisfies: frozenset[str]) -> tuple[int, int]:
        """To which slice a row survives (section 6.1), and how many predicates are evaluated to know it.

        Predicates are evaluated from the longest window down, each once, until one holds; 0 is a row that nobody wants.

        >>> ranked = Ranked.of([WindowQuery("p", 1.0), WindowQuery("q", 2.0, "x"), WindowQuery("r", 3.0, "x")])
        >>> [ranked.lineage("A", frozenset(each)) for each in ({"x"}, ())]
        [(3, 1), (1, 1)]
        """
        failed: set[str] = set()
        for rank, query in zip(reversed(self.ranks), reversed(self.queries), strict=True):
            predicate = query.predicate(stream)
            if predicate is None:
                return rank, len(failed)
            if predicate in satisfies:
                return rank, len(failed) + 1
            failed.add(predicate)
        return 0, len(failed)

    def tests(self, start: int) -> list[tuple[Stream, str]]:
        """The predicates that results of a slice which begins at w_start are still to be tested for.

        A row of that slice satisfies cond'_{start+1}, the disjunction of the predicates of all queries that read further;
        where those queries have one predicate in common, the row has passed it.
        """
        readers = [query for _, query in self.beyond(start)]
        found: list[tuple[Stream, str]] = []
        for stream in STREAMS:
            named = {query.predicate(stream) for query in readers}
            if len(named) > 1:
                found += [(stream, name) for name in sorted(name for name in named if name is not None)]
        return found
