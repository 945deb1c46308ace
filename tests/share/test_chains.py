"""Mem-Opt and CPU-Opt: against every chain there is, and the chains of figure 19, which exclude each other."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import strategies as st

from anabranch.share.chain import Chain, every_chain
from anabranch.share.cpu_opt import cpu_opt
from anabranch.share.mem_opt import mem_opt
from anabranch.share.nested_loop import NestedLoopModel
from anabranch.share.reference.plans import SharedPlan, pull_up, push_down, sliced, unshared
from anabranch.share.reference.rows import EVERY_PAIR, Meter, Row
from anabranch.share.window_queries import WindowQuery
from tests.support.scenarios import properties
from tests.support.slices import PREDICATES, Case

WINDOWS = st.sets(st.integers(1, 60), min_size=1, max_size=10).map(lambda found: tuple(map(float, sorted(found))))


def check_any_cost(windows_s: tuple[float, ...], data: st.DataObject) -> None:
    """Whatever slices cost, below nothing too, no chain of the 2^(N-1) is cheaper; ties go to more slices."""
    last = len(windows_s)
    costs = {(i, j): data.draw(st.integers(-3, 9)) for i in range(last) for j in range(i + 1, last + 1)}
    priced = []

    def edge_cost(i: int, j: int) -> float:
        priced.append((i, j))
        return costs[i, j]

    found = cpu_opt(windows_s, edge_cost)
    assert sorted(priced) == sorted(costs), "each edge once"
    assert found.edges_priced == len(costs)
    every = {chain: chain.cost(lambda i, j: costs[i, j]) for chain in every_chain(windows_s)}
    assert len(every) == 2 ** (last - 1)
    assert found.cost == every[found.chain] == min(every.values())
    assert len(found.chain.ends) == max(len(chain.ends) for chain, cost in every.items() if cost == found.cost)


test_any_cost, test_any_cost_long = properties(check_any_cost, 40, 400, windows_s=WINDOWS, data=st.data())


def check_nested_loops(
    windows_s: tuple[float, ...], data: st.DataObject, rate: int, joins: float, overhead: float
) -> None:
    """The paper's costs, with selections: CPU-Opt is the cheapest of all chains, Mem-Opt stores least of all ways."""
    predicates = st.sampled_from((None, *PREDICATES))
    queries = tuple(WindowQuery(f"q{w}", w, data.draw(predicates), data.draw(predicates)) for w in windows_s)
    selectivities = {name: data.draw(st.sampled_from((0.1, 0.5, 0.9))) for name in PREDICATES}
    model = NestedLoopModel(queries, float(rate), 20.0, joins, selectivities, overhead)
    every = {chain: model.chain(chain) for chain in every_chain(windows_s)}
    found, least = cpu_opt(windows_s, model.edge_cost), mem_opt(windows_s, model.edge_cost)
    assert every[found.chain].comparisons_per_s == pytest.approx(min(cost.comparisons_per_s for cost in every.values()))
    assert least.cost == pytest.approx(least.chain.cost(model.edge_cost))
    rows = [cost.stored_rows for cost in (*every.values(), model.pull_up(), model.push_down(), model.unshared())]
    assert every[least.chain].stored_rows == pytest.approx(min(rows))


test_nested_loops, test_nested_loops_long = properties(
    check_nested_loops, 30, 400, windows_s=WINDOWS, data=st.data(), rate=st.sampled_from((1, 20, 80)),
    joins=st.sampled_from((0.001, 0.025, 0.4)), overhead=st.sampled_from((0.0, 5.0, 100.0)),
)  # fmt: skip


def test_selections_keep_slices_apart():
    """Section 6.2: C_sys alone would merge the two windows; the rows that σ spares the second slice are worth more."""
    plain = NestedLoopModel((WindowQuery("p", 1.0), WindowQuery("q", 20.0)), 20.0, 20.0, 0.001, overhead=50.0)
    choosy = NestedLoopModel((WindowQuery("p", 1.0), WindowQuery("q", 20.0, "σ")), 20.0, 20.0, 0.001, {"σ": 0.1}, 50.0)
    assert cpu_opt((1.0, 20.0), plain.edge_cost).chain.ends == (2,)
    assert cpu_opt((1.0, 20.0), choosy.edge_cost).chain.ends == (1, 2)
    spared = choosy.edge_rows(0, 2) - choosy.edge_rows(0, 1) - choosy.edge_rows(1, 2)
    assert spared == pytest.approx(0.9 * 20.0 * 19.0), "rows of A that fail σ, in [1, 20)"


# -- figure 19 -----------------------------------------------------------------------------------------------------------

UNIFORM = tuple(2.5 * n for n in range(1, 13))
MOSTLY_SMALL = (*map(float, range(1, 11)), 20.0, 30.0)
SMALL_LARGE = (*map(float, range(1, 7)), *map(float, range(25, 31)))


def slices_of(windows_s: tuple[float, ...], worth: float) -> tuple[int, ...]:
    """Where CPU-Opt ends slices, by (1 + C_sys) / x with x = λ·S_⋈: merging two slices pays if both together span fewer
    seconds than that. All else cancels."""
    rate, joins = 40.0, 0.025
    queries = tuple(WindowQuery(f"q{w}", w) for w in windows_s)
    model = NestedLoopModel(queries, rate, rate, joins, overhead=worth * rate * joins - 1)
    return cpu_opt(windows_s, model.edge_cost).chain.ends


MERGED_SMALL = (6, 12)


@pytest.mark.parametrize(
    ("windows_s", "published", "least", "most"),
    [
        (UNIFORM, lambda ends: ends == tuple(range(1, 13)), 0.0, 5.0),
        (MOSTLY_SMALL, lambda ends: not set(range(1, 10)) & set(ends), 50.0, inf),
        (SMALL_LARGE, lambda ends: ends == MERGED_SMALL, 100.0, 180.0),
    ],
)
def test_where_the_chains_of_figure_19_arise(
    windows_s: tuple[float, ...], published: Callable[[tuple[int, ...]], bool], least: float, most: float
) -> None:
    """Uniform windows stay apart up to 5, ten small windows merge from 50 on, small and large ones give two slices from 100
    to 180. So no C_sys gives the first chain and one of the others at the same rate; and since x grows fourfold from
    20 to 80 rows/s, none gives the third chain at all rates of the figure."""
    inside = [max(least, 1.0) * 1.01, min(most, 1000.0) * 0.99]
    outside = [bound for bound in (least * 0.99, most * 1.01) if 0 < bound < inf]
    assert [published(slices_of(windows_s, worth)) for worth in inside] == [True, True]
    assert not any(published(slices_of(windows_s, worth)) for worth in outside)


# -- the model against the counts ----------------------------------------------------------------------------------------


def even_rows(seconds: int, per_s: int) -> list[Row]:
    """Rows of A and B in turn; a fourth satisfies x, and half of any of them y."""
    made = []
    for n in range(seconds * per_s):
        for stream, place in (("A", 0.25), ("B", 0.75)):
            names = {"x"} if n % 4 == 0 else set()
            names |= {"y"} if n // 4 % 2 == 0 else set()
            made.append(Row(stream, 2 * n + (stream == "B"), (n + place) / per_s, 0, frozenset(names)))  # type: ignore[arg-type]
    return made


def counted(plan: SharedPlan, case: Case) -> tuple[float, float]:
    """Stored rows and comparisons per second, once windows are full."""
    half = len(case.rows) // 2
    plan.run(case.rows[:half])
    before, stored = plan.meter.since(Meter()), 0
    for row in case.rows[half:]:
        plan.arrive(row)
        plan.drain()
        stored += plan.meter.stored_rows
    return stored / half, plan.meter.since(before).comparisons / (case.rows[-1].time_s - case.rows[half].time_s)


@pytest.mark.parametrize("ends", [(1, 2, 3), (1, 3), (2, 3), (3,)])
def test_chains_count_what_the_model_says(ends):
    queries = (WindowQuery("q1", 2.0), WindowQuery("q2", 5.0, "x"), WindowQuery("q3", 8.0, "x", "y"))
    case = Case(queries, EVERY_PAIR, tuple(even_rows(40, 20)))
    model = NestedLoopModel(queries, 20.0, 20.0, 1.0, {"x": 0.25, "y": 0.5})
    plan = sliced(queries, EVERY_PAIR, Chain(case.windows_s, ends), is_counted=True)
    said = model.chain(Chain(case.windows_s, ends))
    assert counted(plan, case) == pytest.approx((said.stored_rows, said.comparisons_per_s), rel=0.03)


@pytest.mark.parametrize(("build", "said"), [(pull_up, "pull_up"), (push_down, "push_down"), (unshared, "unshared")])
def test_other_ways_count_what_the_model_says(build, said):
    queries = (WindowQuery("q1", 2.0), WindowQuery("q2", 5.0, "x"), WindowQuery("q3", 8.0, "x"))
    case = Case(queries, EVERY_PAIR, tuple(even_rows(40, 20)))
    model = NestedLoopModel(queries, 20.0, 20.0, 1.0, {"x": 0.25})
    cost = getattr(model, said)()
    assert counted(build(queries, EVERY_PAIR, is_counted=True), case) == pytest.approx(
        (cost.stored_rows, cost.comparisons_per_s), rel=0.03
    )  # fmt: skip


def test_the_model_evaluates_predicates_as_chains_do():
    """x first, which the longest window asks for; y only for rows that fail it. Results are tested up to the longest window
    that asks, which here is in the middle of the slice."""
    queries = (WindowQuery("q1", 2.0, "y"), WindowQuery("q2", 5.0, "x"))
    model = NestedLoopModel(queries, 20.0, 20.0, 1.0, {"x": 0.25, "y": 0.5})
    plan = sliced(queries, EVERY_PAIR, is_counted=True)
    plan.run(even_rows(40, 20))
    assert model.filtering_per_s == 20.0 * 1.75 == plan.meter.filtering / 40
    windows = (1.0, 2.0, 3.0)
    plain = NestedLoopModel(tuple(WindowQuery(f"q{w}", w) for w in windows), 20.0, 20.0, 0.5)
    choosy = tuple(WindowQuery(f"q{w}", w, "x" if w < 3 else None) for w in windows)
    tested = NestedLoopModel(choosy, 20.0, 20.0, 0.5, {"x": 1.0})
    assert tested.edge_cost(0, 3) - plain.edge_cost(0, 3) == pytest.approx(2 * 20.0**2 * 0.5 * 2.0)
