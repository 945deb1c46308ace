"""Phase one of paper 004: exact, and no better than the one join optimizer of the product."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cost.model import CostModel
from anabranch.cost.streams import StreamGraph, edges, stream
from anabranch.cost.units import DEFAULT
from anabranch.optimize.exact import exact_front
from anabranch.optimize.trees import Pricer, parts_of
from bench.papers.federation.phase_one import every_tree, phase_one


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 5), st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 3.0]))
def test_the_best_order_is_the_best_of_all_trees(inputs: int, seed: int, most: float) -> None:
    u = np.random.default_rng(seed).random((1 << inputs, 1 << inputs)) * most

    def join_u(left: int, right: int) -> float:
        return float(u[left | right, min(left, right)])

    best = min(every_tree((1 << inputs) - 1, join_u), key=lambda tree: tree.rank)
    assert phase_one(inputs, join_u).best.rank == pytest.approx(best.rank)


def chain(seed: int, inputs: int) -> StreamGraph:
    rng = np.random.default_rng(seed)
    names = "abcdef"[:inputs]
    streams = [stream(n, float(rng.integers(1, 200)), float(rng.integers(1, 60))) for n in names]
    return edges(streams, {pair: float(10 ** -rng.uniform(1, 4)) for pair in pairwise(names)})


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_optimize_finds_it_among_binary_trees_with_memory_unbounded(seed: int, inputs: int) -> None:
    """CPU adds up over the joins of a tree, so with memory unbounded System R finds the best binary tree; `optimize`, which
    knows joins of more than two as well, finds that one or a better one."""
    graph = chain(seed, inputs)
    pricer = Pricer(CostModel(graph, DEFAULT), cartesian=True)

    def join_u(left: int, right: int) -> float:
        return pricer.join(tuple(sorted((left, right), key=lambda part: part & -part))).cpu * 1e-9

    ordered = phase_one(inputs, join_u)
    least = pricer.fixed.cpu + ordered.best.total * 1e9
    views, cost = exact_front(pricer)[-1]
    assert cost.cpu <= least * (1 + 1e-9)
    if all(len(parts_of(node, views)) == 2 for node in (*views, graph.everything)):
        assert cost.cpu == pytest.approx(least)
