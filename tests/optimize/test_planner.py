"""Facts, decisions and their explanation."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cost.facts import EMPTY, Given, Measured
from anabranch.cost.model import PAPER, Cost, CostModel
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalRun
from anabranch.errors import FactsError, NoQualifiedPlanError, PlanError
from anabranch.optimize.exact import exact_front
from anabranch.optimize.planner import Bounds, decide, lower_bound, parse_bytes, show_bytes
from anabranch.optimize.trees import MJOIN, Pricer
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import check, parse, show
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.graphs import LOOKUPS, random_graph

SCRIPT = """
    CREATE STREAM a (k BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM c (l BIGINT, v STRING, ts TIMESTAMP) TIME ts;
    CREATE TABLE t (l BIGINT, name STRING);
"""


def graph_of(select):
    return JoinGraph(parse_script(f"{SCRIPT} CREATE QUERY q AS {select}").queries[0].query)


def chain():
    return graph_of("SELECT a.v, c.v AS w FROM a, b, c WHERE a.k = b.k AND b.l = c.l WINDOW 10 SECONDS")


SKEWED = Given({"a": 1000.0, "b": 1000.0, "c": 10.0}, {}, {"a.k": 10.0, "b.l": 1000.0})


# -- facts -----------------------------------------------------------------------------------------------------------


def test_given_facts():
    graph = SKEWED.graph(chain())
    assert graph.names == ("a", "b", "c")
    assert [s.rows for s in graph.streams] == [10_000, 10_000, 100]
    assert graph.rows(0b011) == pytest.approx(1e8 / 10)
    assert graph.streams[0].row_bytes == 24, "k, v and ts; strings are guessed"
    assert graph.streams[2].row_bytes == 32


def test_without_facts_every_row_finds_a_partner():
    graph = EMPTY.graph(chain())
    assert graph.rate(0b011) == pytest.approx(graph.rate(0b001) + graph.rate(0b010))


def test_tables_have_no_rate():
    query = graph_of("SELECT a.v, t.name FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS], t WHERE a.k = b.k AND b.l = t.l")
    graph = Given({}, {"t": 77.0}).graph(query)
    assert (graph.streams[2].rate, graph.streams[2].rows) == (0.0, 77.0)


@pytest.mark.parametrize("wrong", [{"rates": {"a": -1.0}}, {"rates": {"a": float("nan")}}, {"distinct": {"a.k": 0.0}}])
def test_impossible_facts_are_refused(wrong):
    with pytest.raises(FactsError, match="a"):
        Given(**wrong)


def run_batches(query, plan, rates, domains, batches, seed=1):
    rng = np.random.default_rng(seed)
    run = LocalRun(query.query, MemoryFilesystem(), plan)
    found = []
    for number in range(batches):
        rows = {}
        for name, keys in (("a", ("k",)), ("b", ("k", "l")), ("c", ("l",))):
            n = rates[name]
            columns = {key: rng.integers(0, domains[key], n) for key in keys}
            if name != "b":
                columns["v"] = rng.random(n) if name == "a" else ["x"] * n
            times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, n))
            rows[name] = pa.table({**columns, "ts": pa.array(times, pa.timestamp("us"))})
        found.append((run.step(number, rows), run.commit))
    return found


@pytest.mark.parametrize("plan", ["(a b c)", "((a b) c)", "(a (b c))"])
def test_measured_facts_find_what_the_data_has(plan):
    query = chain()
    steps = run_batches(query, plan, {"a": 400, "b": 300, "c": 50}, {"k": 500, "l": 200}, 24)
    measured = Measured(parse(plan, query), [s.statistics for s, _ in steps[12:]], 12.0)
    graph = measured.graph(query)
    assert [s.rate for s in graph.streams] == [pytest.approx(r, rel=0.02) for r in (400, 300, 50)]
    assert graph.selectivity(0b011) == pytest.approx(1 / 500, rel=0.2)
    assert graph.selectivity(0b110) == pytest.approx(1 / 200, rel=0.2)


# -- decisions -------------------------------------------------------------------------------------------------------


def test_the_plan_follows_the_facts():
    """a and b meet often, c is rare: a b first would keep ten million rows."""
    decision = decide(chain(), SKEWED, DEFAULT)
    assert decision.is_qualified
    assert decision.is_exact
    check(decision.plan, chain())
    assert "(a b)" not in show(decision.plan, chain())
    assert decision.cost.cpu == min(c.cpu for _, c in decision.front)


def test_memory_may_forbid_the_fastest_plan():
    free = decide(chain(), Given({"a": 100.0, "b": 100.0, "c": 100.0}, {}, {"a.k": 300.0, "b.l": 30.0}), PAPER)
    assert len(free.front) > 1
    least = free.front[0][1]
    tight = decide(chain(), Given({"a": 100.0, "b": 100.0, "c": 100.0}, {}, {"a.k": 300.0, "b.l": 30.0}), PAPER,
                   Bounds(memory=least.memory))  # fmt: skip
    assert tight.is_qualified
    assert tight.plan != free.plan
    assert tight.cost.memory == pytest.approx(least.memory)


@pytest.mark.parametrize(("bounds", "told"), [
    (Bounds(cpu=0.0), "CPU"), (Bounds(memory=0.0), "memory"), (Bounds(0.0, 0.0), "CPU .* and memory"),
])  # fmt: skip
def test_no_plan_within_the_budget(bounds, told):
    decision = decide(chain(), SKEWED, DEFAULT, bounds)
    assert not decision.is_qualified
    check(decision.plan, chain())
    with pytest.raises(NoQualifiedPlanError, match=f"query q: no plan within the budget: the least bad exceeds {told}"):
        decide(chain(), SKEWED, DEFAULT, bounds, strict=True)


def test_one_and_two_inputs_and_products():
    one = graph_of("SELECT a.v FROM a [RANGE 1 SECOND]")
    assert show(decide(one, EMPTY, DEFAULT).plan, one) == "a"
    two = graph_of("SELECT a.v FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k")
    assert show(decide(two, EMPTY, DEFAULT).plan, two) == "(a b)"
    product = graph_of("SELECT a.v FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k")
    check(decide(product, EMPTY, DEFAULT).plan, product)


def test_many_streams_are_searched_with_a_bound():
    names = [f"s{i}" for i in range(13)]
    streams = "".join(f"CREATE STREAM {n} (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;" for n in names)
    where = " AND ".join(f"{a}.l = {b}.k" for a, b in pairwise(names))
    text = f"{streams} CREATE QUERY q AS SELECT s0.k FROM {', '.join(names)} WHERE {where} WINDOW 5 SECONDS"
    query = JoinGraph(parse_script(text).queries[0].query)
    decision = decide(query, Given({n: 10.0 + 7 * i for i, n in enumerate(names)}), DEFAULT)
    check(decision.plan, query)
    assert not decision.is_exact
    assert decision.least.cpu <= decision.cost.cpu
    assert decision.least.memory <= decision.cost.memory


@pytest.mark.parametrize("units", [PAPER, LOOKUPS, DEFAULT], ids=["paper", "lookups", "default"])
@pytest.mark.parametrize("seed", range(10))
def test_no_plan_needs_less_than_the_bound(units, seed):
    rng = np.random.default_rng(seed)
    model = CostModel(random_graph(rng, int(rng.integers(2, 7)), tables=True), units)
    bound, front = lower_bound(model), exact_front(Pricer(model))
    assert bound.cpu <= min(cost.cpu for _, cost in front) * (1 + 1e-9)
    assert bound.memory <= min(cost.memory for _, cost in front) * (1 + 1e-9)


def test_the_bound_of_two_streams_is_what_their_join_needs():
    """A join of two does no more than what every plan must: each row kept once, each result joined once. With the paper's
    costs there is nothing else, so the bound is the cost; of three streams the mjoin has the least memory there is."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        two, three = (CostModel(random_graph(rng, n), PAPER) for n in (2, 3))
        bound, cost = lower_bound(two), Pricer(two).tree(MJOIN)
        assert bound == Cost(pytest.approx(cost.cpu), pytest.approx(cost.memory))
        assert lower_bound(three).memory == pytest.approx(Pricer(three).tree(MJOIN).memory)


def test_sizes():
    assert parse_bytes("1.5 MiB") == 1.5 * 2**20
    assert parse_bytes("10kB") == 10_000
    assert show_bytes(float("inf")) == "any"
    with pytest.raises(PlanError, match="'much' is not a size"):
        parse_bytes("much")
