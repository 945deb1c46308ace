"""Phase one (section 6): the best order of joins by System R's dynamic programming, under definition 1.

Sets of inputs are bit masks. What a join takes depends on the sets that it joins alone, so the best plan of a set is made of
best plans of two parts of it (the paper's proof: u of the join above is the same for all of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Mask = int
JoinU = Callable[[Mask, Mask], float]
"""What the join of two sets takes: u of eq. 4."""


@dataclass(frozen=True)
class Joined:
    """A binary tree over a set of inputs."""

    text: str
    bottleneck: float = 0.0
    total: float = 0.0

    @property
    def rank(self) -> tuple[bool, float]:
        """Definition 1 as an order."""
        is_infeasible = self.bottleneck > 1
        return is_infeasible, self.bottleneck if is_infeasible else self.total


@dataclass(frozen=True)
class Ordered:
    """The best tree, and how many joins were looked at."""

    best: Joined
    examined: int


def splits(whole: Mask) -> Iterator[tuple[Mask, Mask]]:
    """The ways to make two parts of a set, each once.

    >>> list(splits(0b111))
    [(6, 1), (5, 2), (4, 3)]
    """
    part = (whole - 1) & whole
    while part:
        if part > whole ^ part:
            yield part, whole ^ part
        part = (part - 1) & whole


def phase_one(inputs: int, join_u: JoinU) -> Ordered:
    """The best binary tree over so many inputs."""
    best = {1 << n: Joined(str(n)) for n in range(inputs)}
    examined = 0
    for whole in range(1, 1 << inputs):
        for left, right in splits(whole):
            examined += 1
            found = joined(best[left], best[right], join_u(left, right))
            if whole not in best or found.rank < best[whole].rank:
                best[whole] = found
    return Ordered(best[(1 << inputs) - 1], examined)


def joined(left: Joined, right: Joined, u: float) -> Joined:
    """A join of two trees."""
    bottleneck = max(u, left.bottleneck, right.bottleneck)
    return Joined(f"({left.text} {right.text})", bottleneck, u + left.total + right.total)


def every_tree(whole: Mask, join_u: JoinU) -> Iterator[Joined]:
    """All binary trees over a set: what `phase_one` is compared with."""
    if whole & (whole - 1) == 0:
        yield Joined(str(whole.bit_length() - 1))
    for left, right in splits(whole):
        for one in every_tree(left, join_u):
            for other in every_tree(right, join_u):
                yield joined(one, other, join_u(left, right))
