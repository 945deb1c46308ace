"""What is known of the streams of a query, and what follows for sets of them.

A set of streams is a bit mask (stream i is bit i). With λ the rate of a stream and W its window in seconds,

    N(s) = Π λi·Wi · σ(s)                    rows of s that are valid at an instant
    R(s) = Σi λi · Π(j≠i) λj·Wj · σ(s)       rows of s that arise per second; N(s) · Σ 1/Wi

(Zhu, Raghavan, Rundensteiner, DKE 2009, section 2, for any windows). Selectivities come by *key class*: streams whose keys
must all be equal. A class knows how many distinct values each member has; of a set of its members all but the least of
these counts divide the product, so that A = B = C is two predicates, not three. A predicate between two streams with
selectivity σ is a class of two with 1/σ values each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

Mask = int


class Basis(StrEnum):
    """How a figure is known, the surest way first. What is worked out from several is as sure as the worst."""

    MEASURED = "measured"
    GIVEN = "given"
    ASSUMED = "assumed"


def worst(known: Iterable[Basis]) -> Basis:
    """
    >>> str(worst([Basis.GIVEN, Basis.MEASURED]))
    'given'
    """
    return max(known, key=list(Basis).index, default=Basis.MEASURED)


@dataclass(frozen=True)
class StreamFacts:
    """One input of a query: rows per second, and how many are valid at an instant."""

    name: str
    rate: float
    rows: float
    """λ·W for a stream; for a stored table its rows, at rate 0."""
    row_bytes: float = 1.0
    """What the log keeps of a row."""
    basis: Basis = field(default=Basis.GIVEN, compare=False)
    """How the rate is known, or the rows of a table."""

    @property
    def renewal(self) -> float:
        """1/W: which share of the rows is new each second; 0 for a table."""
        return self.rate / self.rows if self.rows else 0.0


def stream(name: str, rate: float, window_s: float, row_bytes: float = 1.0) -> StreamFacts:
    """A stream of a rate under a window."""
    return StreamFacts(name, rate, rate * window_s, row_bytes)


@dataclass(frozen=True)
class KeyClass:
    """Streams whose keys must be equal, and how many distinct values each has."""

    distinct: tuple[tuple[int, float], ...]
    basis: Basis = field(default=Basis.GIVEN, compare=False)

    @cached_property
    def members(self) -> Mask:
        return sum(1 << i for i, _ in self.distinct)

    def selectivity(self, streams: Mask) -> float:
        counts = [count for i, count in self.distinct if streams >> i & 1]
        if len(counts) < 2:
            return 1.0
        product = min(counts)
        if product == float("inf"):
            return 0.0
        for count in counts:
            product /= count
        return product


class StreamGraph:
    """The streams of a query, and the predicates between them.

    >>> graph = edges([stream("A", 10, 2), stream("B", 5, 2)], {("A", "B"): 0.1})
    >>> graph.rows(0b11), graph.rate(0b11)
    (20.0, 20.0)
    """

    def __init__(self, streams: Sequence[StreamFacts], classes: Sequence[KeyClass]) -> None:
        self.streams, self.classes = tuple(streams), tuple(classes)
        self.names = tuple(s.name for s in streams)
        self.everything: Mask = (1 << len(streams)) - 1
        self.neighbours = [0] * len(streams)
        for key in self.classes:
            for i, _ in key.distinct:
                self.neighbours[i] |= key.members & ~(1 << i)
        self._rows: dict[Mask, float] = {}
        self._renewal: dict[Mask, float] = {}
        self._adjacent: dict[Mask, Mask] = {}

    def __len__(self) -> int:
        return len(self.streams)

    def mask(self, names: Sequence[str] | frozenset[str] | set[str]) -> Mask:
        return sum(1 << self.names.index(name) for name in names)

    def names_of(self, streams: Mask) -> tuple[str, ...]:
        return tuple(name for i, name in enumerate(self.names) if streams >> i & 1)

    def selectivity(self, streams: Mask) -> float:
        """σ(s), the product of the selectivities inside a set."""
        product = 1.0
        for key in self.classes:
            product *= key.selectivity(streams)
        return product

    def rows(self, streams: Mask) -> float:
        """N(s)."""
        found = self._rows.get(streams)
        if found is None:
            found = self.selectivity(streams)
            for i, facts in enumerate(self.streams):
                if streams >> i & 1:
                    found *= facts.rows
            self._rows[streams] = found
        return found

    def rate(self, streams: Mask) -> float:
        """R(s)."""
        renewal = self._renewal.get(streams)
        if renewal is None:
            renewal = sum(f.renewal for i, f in enumerate(self.streams) if streams >> i & 1)
            self._renewal[streams] = renewal
        return self.rows(streams) * renewal

    def keys_between(self, left: Mask, right: Mask) -> int:
        """How many key classes connect two disjoint sets."""
        return sum(1 for key in self.classes if key.members & left and key.members & right)

    def adjacent(self, streams: Mask) -> Mask:
        """The streams that a key connects to some stream of a set, without the set."""
        found = self._adjacent.get(streams)
        if found is None:
            found = 0
            for i, neighbours in enumerate(self.neighbours):
                if streams >> i & 1:
                    found |= neighbours
            found &= ~streams
            self._adjacent[streams] = found
        return found

    def is_connected(self, streams: Mask) -> bool:
        """Whether a set can be joined without a cartesian product."""
        reached = streams & -streams
        while fresh := self.adjacent(reached) & streams:
            reached |= fresh
        return reached == streams

    def components(self) -> list[Mask]:
        """The parts that no predicate connects with each other."""
        left, found = self.everything, []
        while left:
            reached = left & -left
            while fresh := self.adjacent(reached) & left:
                reached |= fresh
            found.append(reached)
            left &= ~reached
        return found


def edges(streams: Sequence[StreamFacts], selectivities: Mapping[tuple[str, str], float]) -> StreamGraph:
    """A graph of predicates between two streams each, as the papers draw it."""
    names = [s.name for s in streams]
    classes = []
    for (left, right), selectivity in selectivities.items():
        count = 1 / selectivity if selectivity else float("inf")
        classes.append(KeyClass(((names.index(left), count), (names.index(right), count))))
    return StreamGraph(streams, classes)


def bits(streams: Mask) -> list[int]:
    """The streams of a set.

    >>> bits(0b1011)
    [0, 1, 3]
    """
    return [i for i in range(streams.bit_length()) if streams >> i & 1]
