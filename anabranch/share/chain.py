"""A chain of slices, as a value (definition 2, and fig. 14: a path from v_0 to v_N)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

EdgeCost = Callable[[int, int], float]
"""What the slice from w_i to w_j costs, by (i, j) with 0 <= i < j <= N and w_0 = 0: the length l_ij of an edge in fig. 14.

The cost of a slice must not depend on how the rest of the chain is cut (lemma 2)."""


@dataclass(frozen=True)
class Chain:
    """Windows w_1 < … < w_N, and the numbers of the windows at which slices end; the last is N."""

    windows_s: tuple[float, ...]
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        check_windows(self.windows_s)
        if not self.ends or self.ends[-1] != len(self.windows_s):
            raise ValueError(f"a chain ends with its last window, number {len(self.windows_s)}: {self.ends}")
        if any(i >= j for i, j in pairwise((0, *self.ends))):
            raise ValueError(f"slices end one after the other: {self.ends}")

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """
        >>> Chain((1.0, 2.0, 5.0), (2, 3)).edges
        ((0, 2), (2, 3))
        """
        return tuple(pairwise((0, *self.ends)))

    @property
    def spans_s(self) -> tuple[tuple[float, float], ...]:
        """
        >>> Chain((1.0, 2.0, 5.0), (2, 3)).spans_s
        ((0.0, 2.0), (2.0, 5.0))
        """
        bounds = (0.0, *self.windows_s)
        return tuple((bounds[i], bounds[j]) for i, j in self.edges)

    def cost(self, edge_cost: EdgeCost) -> float:
        return sum(edge_cost(i, j) for i, j in self.edges)

    def __str__(self) -> str:
        """
        >>> print(Chain((1.0, 2.5, 5.0), (2, 3)))
        [0, 2.5) [2.5, 5)
        """
        return " ".join(f"[{start:g}, {end:g})" for start, end in self.spans_s)


@dataclass(frozen=True)
class ChainDecision:
    """A chain, what it costs, and how many slices were priced to find it."""

    chain: Chain
    cost: float
    edges_priced: int


def check_windows(windows_s: Sequence[float]) -> None:
    if not windows_s or windows_s[0] <= 0 or any(a >= b for a, b in pairwise(windows_s)):
        raise ValueError(f"windows are longer than 0, sorted and distinct: {tuple(windows_s)}")


def every_chain(windows_s: Sequence[float]) -> Iterator[Chain]:
    """All 2^(N-1) chains, from all slices merged to none.

    >>> [chain.ends for chain in every_chain((1.0, 2.0, 3.0))]
    [(3,), (1, 3), (2, 3), (1, 2, 3)]
    """
    check_windows(windows_s)
    last = len(windows_s)
    for chosen in range(2 ** (last - 1)):
        yield Chain(tuple(windows_s), (*(k + 1 for k in range(last - 1) if chosen >> k & 1), last))
