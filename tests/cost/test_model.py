"""The cost model against the papers' equations, and its kernels against it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cost.kernels import along, arrays_of, best_orders, join_cost, rows_of
from anabranch.cost.model import PAPER, Cost, CostModel
from anabranch.cost.streams import KeyClass, StreamFacts, StreamGraph, edges, stream
from anabranch.plan.jtree import Join, Leaf
from tests.support.graphs import LOOKUPS, random_graph

A, B, C = Leaf("A"), Leaf("B"), Leaf("C")


def example(a=20.0, b=30.0, c=7.0, ab=0.05, bc=0.5, window=5.0):
    return edges([stream("A", a, window), stream("B", b, window), stream("C", c, window)], {("A", "B"): ab, ("B", "C"): bc})


@given(*[st.floats(1, 100)] * 3, *[st.floats(0.001, 1)] * 2, st.floats(0.5, 50))
def test_an_mjoin_costs_what_equations_1_to_3_say(a, b, c, ab, bc, w):
    """DKE 2009, section 2.2: A → B → C, B → A → C, C → B → A."""
    model = CostModel(example(a, b, c, ab, bc, w))
    mjoin = Join((A, B, C), ((1, 2), (0, 2), (1, 0)))
    ci_cd, cj = PAPER.insert + PAPER.delete, PAPER.join
    cpu_a = a * ci_cd + a * b * ab * w * cj + a * b * ab * c * bc * w**2 * cj
    assert model.probe(1, (2, 4)) + model.maintain(1, 6) == pytest.approx(cpu_a)
    cpu = (a + b + c) * ci_cd + b * c * bc * w * cj + 3 * a * b * c * ab * bc * w**2 * cj + 2 * a * b * ab * w * cj
    assert model.cost(mjoin) == Cost(pytest.approx(cpu), pytest.approx((a + b + c) * w))


@given(*[st.floats(1, 100)] * 3, *[st.floats(0.001, 1)] * 2, st.floats(0.5, 50))
def test_a_bjtree_costs_what_equations_4_to_7_say(a, b, c, ab, bc, w):
    model = CostModel(example(a, b, c, ab, bc, w))
    tree = Join((Join((A, B), ((1,), (0,))), C), ((1,), (0,)))
    mjoin = Join((A, B, C), ((1, 2), (0, 2), (1, 0)))
    ci_cd, cj = PAPER.insert + PAPER.delete, PAPER.join
    cpu = (a + b + c) * ci_cd + 3 * a * b * c * ab * bc * w**2 * cj + 2 * a * b * ab * w * (cj + ci_cd)
    assert model.cost(tree) == Cost(pytest.approx(cpu), pytest.approx((a + b + c) * w + a * b * ab * w**2))
    recompute, maintain = b * c * bc * w * cj, 2 * a * b * ab * w * ci_cd
    assert model.cost(mjoin).cpu - model.cost(tree).cpu == pytest.approx(recompute - maintain, abs=1e-9)


def test_different_windows_and_tables():
    graph = StreamGraph([stream("A", 10, 2), stream("B", 4, 5), StreamFacts("T", 0.0, 50.0)],
                        [KeyClass(((0, 10.0), (1, 10.0))), KeyClass(((1, 25.0), (2, 25.0)))])  # fmt: skip
    assert graph.rows(0b011) == pytest.approx(20 * 20 / 10)
    assert graph.rate(0b011) == pytest.approx((10 * 20 + 20 * 4) / 10), "each new row of one meets the rows of the other"
    assert graph.rate(0b100) == 0.0
    assert graph.rate(0b110) == pytest.approx(4 * 50 / 25), "only rows of the stream are new"


def test_a_class_of_three_is_two_predicates():
    graph = StreamGraph([stream(n, 10, 1) for n in "ABC"], [KeyClass(((0, 5.0), (1, 5.0), (2, 5.0)))])
    assert graph.selectivity(0b101) == pytest.approx(1 / 5)
    assert graph.selectivity(0b111) == pytest.approx(1 / 25)
    assert graph.keys_between(0b001, 0b110) == 1
    wider = KeyClass(((0, 2.0), (1, 4.0), (2, 8.0)))
    assert wider.selectivity(0b011) == pytest.approx(1 / 4), "values that only one side has find nothing"
    assert wider.selectivity(0b111) == pytest.approx(1 / 32)


@given(st.integers(0, 2**32), st.integers(2, 6), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_kernels_equal_the_model(seed, n, with_lookups, cartesian):
    rng = np.random.default_rng(seed)
    model = CostModel(random_graph(rng, n, tables=True), LOOKUPS if with_lookups else PAPER)
    g = arrays_of(model)
    for s in range(1, 1 << n):
        assert rows_of(g, s) == pytest.approx(model.graph.rows(s))
    parts = np.array([1 << i for i in range(n)], np.int64)
    orders = best_orders(g, parts, cartesian)
    found = model.join([int(p) for p in parts], orders.tolist())
    assert along(g, parts, orders) == pytest.approx((found.cpu, found.memory))
    assert join_cost(g, parts, cartesian) == pytest.approx((found.cpu, found.memory))
    other = np.array([rng.permutation([j for j in range(n) if j != i]) for i in range(n)], np.int64).reshape(n, n - 1)
    if cartesian:
        assert along(g, parts, other)[0] >= found.cpu * (1 - 1e-12)


def test_zero_rates_and_selectivities_have_defined_costs():
    silent = CostModel(edges([stream("A", 0, 5), stream("B", 10, 5)], {("A", "B"): 0.5}))
    assert silent.cost(Join((A, B), ((1,), (0,)))).cpu == pytest.approx(10 * (PAPER.insert + PAPER.delete))
    never = CostModel(edges([stream("A", 10, 5), stream("B", 10, 5)], {("A", "B"): 0.0}))
    assert never.graph.rows(3) == 0.0
    always = CostModel(edges([stream("A", 10, 5), stream("B", 10, 5)], {("A", "B"): 1.0}))
    assert always.graph.rows(3) == pytest.approx(2500)
