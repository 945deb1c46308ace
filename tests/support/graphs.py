"""Random graphs of streams, and every plan over them."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from anabranch.cost.model import Cost, CostModel, UnitCosts
from anabranch.cost.streams import KeyClass, StreamFacts, StreamGraph
from anabranch.optimize.jtree_finder import partitions

LOOKUPS = UnitCosts(
    rekey=3.0e-7, upkeep=2e-6,
    insert=3e-7, delete=1e-7, join=2e-6, lookup=1e-7, lookup_run=2e-8, view_insert=5e-7, counts_keys=True, index_bytes=20,
    view_row_bytes=0, view_part_bytes=8, view_index_bytes=28, slack_s=1.5, view_slack_s=1.0, keeps_segments=True,
    step=1e-5, batch=1e-3,
)  # fmt: skip


def random_graph(rng: np.random.Generator, n: int, extra: float = 0.3, tables: bool = False) -> StreamGraph:
    """A connected graph: a random tree of predicates, more edges with a probability, some key classes of three or more."""
    streams = []
    for i in range(n):
        rate, window = float(rng.integers(1, 101)), float(rng.choice([1, 1, 2, 5]))
        is_table = tables and rng.random() < 0.2
        streams.append(StreamFacts("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i], 0.0 if is_table else rate, rate * window, 24.0))
    classes = []
    for i in range(1, n):
        others = [i, int(rng.integers(0, i))]
        if rng.random() < 0.2 and i > 1:
            others += [j for j in range(i) if j not in others][:1]
        classes.append(_class(rng, others))
    for i in range(n):
        for j in range(i):
            if rng.random() < extra / n:
                classes.append(_class(rng, [i, j]))
    return StreamGraph(streams, classes)


def _class(rng: np.random.Generator, members: list[int]) -> KeyClass:
    count = 1 / float(rng.uniform(0.005, 1.0))
    same = rng.random() < 0.7
    return KeyClass(tuple((i, count if same else count * float(rng.uniform(1, 3))) for i in members))


def all_plans(model: CostModel, cartesian: bool):
    """Every jtree with every probe order, as a cost: brute force over shapes and permutations."""
    graph = model.graph

    def plans(streams: int) -> list[Cost]:
        if not streams & (streams - 1):
            return [Cost(0, 0)]
        found = []
        for parts in partitions(streams):
            if len(parts) < 2 or not all(cartesian or graph.is_connected(p) for p in parts):
                continue
            nodes = _orderings(model, parts, cartesian)
            for choice in product(*(plans(p) for p in parts)):
                below = sum(choice, Cost(0, 0))
                found += [node + below for node in nodes]
        return found

    return [cost + model.fixed() for cost in plans(graph.everything)]


def _orderings(model: CostModel, parts, cartesian) -> list[Cost]:
    """The join with every combination of probe orders; per part the cheapest suffices, for they do not depend on each other
    and memory does not depend on them: so all orders of a part are tried, one part at a time."""
    graph = model.graph
    everything = sum(parts)
    cpu, memory = everything.bit_count() * (len(parts) - 1) * model.units.step / model.units.batch_s, 0.0
    for part in parts:
        others = [p for p in parts if p != part]
        costs = []
        for order in permutations(others):
            bound, allowed = part, True
            for other in order:
                allowed &= cartesian or bool(graph.adjacent(bound) & other)
                bound |= other
            if allowed:
                costs.append(model.probe(part, order))
        if not costs:
            return []
        cpu += min(costs) + model.maintain(part, everything & ~part)
        memory += model.state_bytes(part, everything & ~part)
    return [Cost(cpu, memory)]
