"""A bounded local search from several starting points: what the published heuristics miss.

state-selection and state-removal only ever add or only ever remove a state, one at a time, so that they stop at the first
tree from which no single step helps; and the two-layer framework gives up when its binary tree needs too much CPU, which
another tree need not. Here walks begin at the mjoin, at binary trees, and at what both algorithms end with. Each walk goes
downhill in a weighted sum of the shares of CPU and memory that a tree uses, for several weights, and at last in *strain*,
the share of the scarcer resource. A step adds a view, removes one, or puts another in the place of one; only the joins that
it changes are priced. Every tree that is looked at counts, not only those that are walked through: the first qualified one
ends the search. For few streams the exact search has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from anabranch.cost.model import Cost
from anabranch.cost.streams import Mask
from anabranch.optimize.dominating import dominating, share, strain
from anabranch.optimize.exact import exact_front
from anabranch.optimize.min_state import min_state
from anabranch.optimize.state_removal import state_removal
from anabranch.optimize.state_selection import state_selection
from anabranch.optimize.trees import MJOIN, Pricer, Views, parts_of

MOST_STEPS = 40
"""A walk ends after so many steps."""

LAST_WORD_STREAMS = 8
"""Up to so many streams the exact front takes a few milliseconds: where no walk found a qualified tree, it decides."""

MOST_SEEN = {8: 300, 10: 1500, 64: 300}
"""After so many trees the search ends, by the number of streams up to which it holds: to price a large tree takes longer."""

SMALL_JOIN = 8
"""In joins of up to so many inputs, three at a time are tried as a view, too."""

WEIGHTS = (0.5, 0.2, 0.8, 0.05, 0.95)
"""How much the share of CPU counts in a walk, beside that of memory."""


@dataclass
class Search:
    """A search for a tree within bounds; remembers what it saw."""

    pricer: Pricer
    cpu: float
    memory: float
    seen: dict[Views, Cost] = field(default_factory=dict)

    @property
    def most_seen(self) -> int:
        return next(most for streams, most in MOST_SEEN.items() if len(self.pricer.model.graph) <= streams)

    def run(self) -> list[tuple[Views, Cost]]:
        """The trees seen that no other dominates. The first qualified one ends the search."""
        starts = []
        for views in self._starting_points():
            starts.append(views)
            if self._see(views, self.pricer.tree(views)):
                return dominating(self.seen.items())
        for weight in WEIGHTS:
            start = min(starts, key=lambda v: self._weighted(self.seen[v], weight))
            if self._walk(start, lambda cost, w=weight: self._weighted(cost, w)):  # type: ignore[misc]
                return dominating(self.seen.items())
        for start in sorted(self.seen, key=lambda v: strain(self.seen[v], self.cpu, self.memory))[:6]:
            if self._walk(start, lambda cost: strain(cost, self.cpu, self.memory)):
                return dominating(self.seen.items())
        for start, weight in product(starts, (*WEIGHTS, 1.0, 0.0)):
            if self._walk(start, lambda cost, w=weight: self._weighted(cost, w)):  # type: ignore[misc]
                return dominating(self.seen.items())
        if len(self.pricer.model.graph) <= LAST_WORD_STREAMS:
            return exact_front(self.pricer)
        return dominating(self.seen.items())

    def _starting_points(self) -> Iterator[Views]:
        yield MJOIN
        if len(self.pricer.model.graph) > 2:
            binary = min_state(self.pricer)
            yield binary
            yield least_cpu_tree(self.pricer)
            yield state_selection(self.pricer, self.cpu, self.memory)
            yield state_removal(self.pricer, self.cpu, self.memory, binary)

    def _weighted(self, cost: Cost, weight: float) -> float:
        return weight * share(cost.cpu, self.cpu) + (1 - weight) * share(cost.memory, self.memory)

    def _see(self, views: Views, cost: Cost) -> bool:
        self.seen[views] = cost
        return cost.within(self.cpu, self.memory)

    def _walk(self, views: Views, height: Callable[[Cost], float]) -> bool:
        """Goes downhill until no neighbour is lower; whether a qualified tree was seen."""
        cost = self.seen[views]
        for _ in range(MOST_STEPS):
            if len(self.seen) > self.most_seen:
                return False
            lowest, chosen = height(cost), None
            for neighbour, price in neighbours(self.pricer, views, cost):
                if self._see(neighbour, price):
                    return True
                if height(price) < lowest:
                    lowest, chosen = height(price), (neighbour, price)
            if chosen is None:
                return False
            views, cost = chosen
        return False


def search(pricer: Pricer, cpu: float, memory: float) -> list[tuple[Views, Cost]]:
    """The trees found that no other found one dominates, from least memory to least CPU."""
    return Search(pricer, cpu, memory).run()


def neighbours(pricer: Pricer, views: Views, cost: Cost) -> Iterator[tuple[Views, Cost]]:
    """Trees with one view more, one less, or one exchanged, and their costs."""
    parts = {node: parts_of(node, views) for node in (*views, pricer.everything)}
    above = {part: node for node, inputs in parts.items() for part in inputs}
    for inputs in parts.values():
        without = cost - pricer.join(inputs)
        for group, rest in _groups(pricer, inputs):
            yield views | {sum(group)}, without + pricer.join(group) + pricer.join(rest)
    for view in views:
        inputs = parts[above[view]]
        merged = _in_order((*(p for p in inputs if p != view), *parts[view]))
        without = cost - pricer.join(inputs) - pricer.join(parts[view])
        yield views - {view}, without + pricer.join(merged)
        for group, rest in _groups(pricer, merged):
            if sum(group) != view:
                yield views - {view} | {sum(group)}, without + pricer.join(group) + pricer.join(rest)


def _groups(pricer: Pricer, inputs: tuple[Mask, ...]) -> Iterator[tuple[tuple[Mask, ...], tuple[Mask, ...]]]:
    """Two inputs of a join that can be joined first (of a small join also three), and the inputs that are left then."""
    for size in (2, 3) if len(inputs) <= SMALL_JOIN else (2,):
        if len(inputs) <= size:
            return
        for group in combinations(inputs, size):
            joined = sum(group)
            if pricer.is_joinable_group(group):
                yield group, _in_order((*(p for p in inputs if p not in group), joined))


def _in_order(parts: tuple[Mask, ...]) -> tuple[Mask, ...]:
    return tuple(sorted(parts, key=lambda part: part & -part))


def least_cpu_tree(pricer: Pricer) -> Views:
    """A binary tree by the least CPU of each next join and its state, instead of the least state."""
    graph, views = pricer.model.graph, set()
    parts = [1 << i for i in range(len(graph))]

    def price(left: Mask, right: Mask) -> float:
        both = left | right
        return pricer.join(_in_order((left, right))).cpu + pricer.model.maintain(both, pricer.everything & ~both)

    while len(parts) > 2:
        pairs = [
            (price(left, right), left, right)
            for place, left in enumerate(parts)
            for right in parts[place + 1 :]
            if pricer.cartesian or graph.adjacent(left) & right
        ]
        _, left, right = min(pairs)
        parts = [p for p in parts if p not in (left, right)] + [left | right]
        views.add(left | right)
    return frozenset(views)
