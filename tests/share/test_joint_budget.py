"""One budget for all: beside trying all combinations, and on real plans."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.cost.facts import EMPTY, Given
from anabranch.cost.model import Cost, CostModel
from anabranch.cost.units import DEFAULT
from anabranch.optimize.planner import decide
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.query import Query
from anabranch.plan.shared_join import shared_join
from anabranch.share import joint_budget
from anabranch.share.canonical import shape_of
from anabranch.share.join_cost import HANDED_S, MEMBER_S, Priced, handing_out, log_bytes, member_rate, option_of
from anabranch.share.joint_budget import Company, Option, certain, charges, choose_jointly, total_of
from anabranch.sql import parse_script

NEARLY = 1e-9

# Beside trying all combinations

figures = st.integers(0, 20).map(float)
costs = st.builds(Cost, figures, figures)


def options(keys: str) -> st.SearchStrategy[Option]:
    kept = st.dictionaries(st.sampled_from(keys), costs, max_size=3).map(lambda found: tuple(found.items()))
    return st.builds(Option, costs, kept if keys else st.just(()))


@st.composite
def sessions(draw: st.DrawFn, shared: bool) -> list[Company]:
    found = []
    for place in range(draw(st.integers(1, 3))):
        keys = "xyz" if shared else ""
        own = options(f"{keys}{place}" if shared else str(place))
        found.append(Company(f"c{place}", tuple(draw(st.lists(own, min_size=1, max_size=4)))))
    return found


budgets = st.builds(Cost, st.one_of(st.just(float("inf")), figures), st.one_of(st.just(float("inf")), figures))


def of_all(companies: list[Company], budget: Cost) -> Cost:
    """The best total of all combinations, counted by hand: each state once, as large as the largest."""
    found = []
    for chosen in product(*(range(len(company.options)) for company in companies)):
        picked = [company.options[place] for company, place in zip(companies, chosen, strict=True)]
        total = [sum(option.own.cpu for option in picked), sum(option.own.memory for option in picked)]
        for key in {key for option in picked for key, _ in option.kept}:
            several = [cost for option in picked for other, cost in option.kept if other == key]
            total[0] += max(cost.cpu for cost in several)
            total[1] += max(cost.memory for cost in several)
        found.append(Cost(*total))
    return min(found, key=lambda cost: joint_budget.rank(cost, budget))


def ranks(one: Cost, other: Cost, budget: Cost) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return joint_budget.rank(one, budget), joint_budget.rank(other, budget)


@given(sessions(shared=False), budgets)
def test_without_states_in_common_it_is_the_best_of_all(companies: list[Company], budget: Cost) -> None:
    found, best = choose_jointly(companies, budget), of_all(companies, budget)
    assert found.is_exact
    own, least = ranks(found.total, best, budget)
    assert own[0] == pytest.approx(least[0], abs=NEARLY)
    if found.fits:
        assert own == pytest.approx(least, abs=NEARLY)


TWO = Option(Cost(4, 4), (("x", Cost(5, 5)),)), Option(Cost(8, 8))


@given(sessions(shared=True), budgets)
@example([Company("c0", TWO), Company("c1", TWO), Company("c2", TWO)], Cost(float("inf"), float("inf")))
def test_it_is_never_better_than_the_best_of_all(companies: list[Company], budget: Cost) -> None:
    """And what is shared is counted once, and charged to somebody."""
    found, best = choose_jointly(companies, budget), of_all(companies, budget)
    own, least = ranks(found.total, best, budget)
    assert own[0] >= least[0] - NEARLY
    assert least[0] or own[0] or own[1] >= least[1] - NEARLY
    only = [Company(c.name, (c.options[place],)) for c, place in zip(companies, found.chosen, strict=True)]
    by_hand = of_all(only, budget)
    for one in (found.total, sum(found.charged, Cost(0, 0)), total_of(companies, found.chosen)):
        assert (one.cpu, one.memory) == pytest.approx((by_hand.cpu, by_hand.memory), abs=NEARLY)
    if found.is_exact and found.fits:
        assert own == pytest.approx(least, abs=NEARLY)
    assert found.fits is found.total.within(budget.cpu + NEARLY, budget.memory + NEARLY)


@given(sessions(shared=True))
def test_what_is_certain_is_in_every_combination(companies: list[Company]) -> None:
    sunk = certain(companies)
    for chosen in product(*(range(len(company.options)) for company in companies)):
        kept = [dict(company.options[place].kept) for company, place in zip(companies, chosen, strict=True)]
        for key, cost in sunk.items():
            assert max(each[key].cpu for each in kept if key in each) >= cost.cpu
            assert max(each[key].memory for each in kept if key in each) >= cost.memory


def test_memory_goes_where_it_saves_the_most_cpu() -> None:
    """Views of 10 bytes save 1 core here and 5 there; of 25 bytes one of the two fits, and of 20 more the other."""
    little = Company("little", (Option(Cost(4, 5)), Option(Cost(3, 15)), Option(Cost(4, 16))))
    much = Company("much", (Option(Cost(9, 5)), Option(Cost(4, 15)), Option(Cost(9, 9))))
    for memory, chosen in ((19.0, (0, 0)), (25.0, (0, 1)), (45.0, (1, 1))):
        found = choose_jointly([little, much], Cost(float("inf"), memory))
        assert (found.chosen, found.is_exact) == (chosen, True)


def test_improvement_finds_what_sums_do_not_see() -> None:
    """Alone the second plan is better for both; together the first, whose state there is once."""
    shared, apart = Option(Cost(1, 1), (("v", Cost(6, 6)),)), Option(Cost(6, 6))
    lone = Option(Cost(0, 0), (("v", Cost(6, 5)),)), Option(Cost(9, 9))
    found = choose_jointly([Company("p", (shared, apart)), Company("q", lone)])
    assert found.chosen == (0, 0)
    assert found.total == Cost(7, 7)
    assert not found.is_exact
    assert found.charged == (Cost(7, 7), Cost(0, 0)), "the state is charged to its first user"
    assert charges([Company("q", lone), Company("p", (shared, apart))], (0, 0)) == (Cost(6, 5), Cost(1, 2))


def test_fronts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_budget, "MOST_POINTS", 16)
    front = tuple(Option(Cost(2.0**n, 2.0 ** (9 - n) + n)) for n in range(10))
    companies = [Company(f"c{n}", front) for n in range(40)]
    found = choose_jointly(companies, Cost(float("inf"), 40 * 70.0))
    assert not found.is_exact
    assert found.fits
    assert found.considered <= 40 * 16 * 10
    assert choose_jointly(companies[:1], Cost(float("inf"), 70.0)).is_exact


def test_what_breaks_is_named() -> None:
    companies = [Company("small", (Option(Cost(1, 10)),)), Company("large", (Option(Cost(1, 70)), Option(Cost(9, 50)))),
                 Company("last", (Option(Cost(3, 40)),))]  # fmt: skip
    found = choose_jointly(companies, Cost(20.0, 90.0))
    (broken,) = found.breaks
    assert (broken.resource, broken.over, broken.company, broken.largest) == ("memory", 10.0, "last", "large")
    assert not found.fits
    both = choose_jointly(companies, Cost(2.0, 15.0)).breaks
    assert [(each.resource, each.company) for each in both] == [("CPU", "large"), ("memory", "large")]
    with pytest.raises(ValueError, match="nobody has no plan to choose"):
        Company("nobody", ())


# On real plans

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
CHAIN = "SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 10 SECONDS"
RATES = Given({"a": 5000.0, "b": 100.0, "c": 700.0}, {}, {"a.k": 50.0, "b.j": 900.0})


def queries(*selects: str) -> list[Query]:
    script = STREAMS + "CREATE TABLE t (k BIGINT, x BIGINT);"
    script += "".join(f"CREATE QUERY q{n} AS {select};" for n, select in enumerate(selects))
    return [declared.query for declared in parse_script(script).queries]


def priced(query: Query, facts: Given = EMPTY) -> Priced:
    graph = JoinGraph(query)
    return Priced(query.name, graph, CostModel(facts.graph(graph), DEFAULT))


@pytest.mark.parametrize("facts", [EMPTY, RATES])
@pytest.mark.parametrize(
    "select", [CHAIN, "SELECT a.x, t.x AS y FROM a [NOW], t WHERE a.k = t.k", "SELECT a.x FROM a [NOW]"]
)  # fmt: skip
def test_a_plan_alone_costs_what_the_model_says(select: str, facts: Given) -> None:
    (query,) = queries(select)
    join = priced(query, facts)
    for plan, cost in decide(join.graph, facts, DEFAULT).front:
        alone = option_of(join, plan, *log_bytes([[join]])).alone
        assert (alone.cpu, alone.memory) == pytest.approx((cost.cpu, cost.memory))


def test_states_of_two_companies() -> None:
    """Logs of a and b are there once, with all columns that somebody reads, and so are the indexes by k."""
    one, other = queries(CHAIN, "SELECT a.j FROM a, b, d WHERE a.k = b.k AND b.x = d.x WINDOW 30 SECONDS")
    joins = [priced(one), priced(other)]
    logs = log_bytes([[join] for join in joins])
    assert logs[0]["a"] == pytest.approx(12_000 * 3 * 8), "k, x and ts of 1,000 rows/s, for 10 s and what is kept with them"
    assert logs[1]["a"] == pytest.approx(32_000 * 4 * 8), "j as well, for 30 s"
    turned = log_bytes([[join] for join in reversed(joins)])
    assert turned[1]["a"] == logs[1]["a"], "in whatever order"
    first, second = (
        dict(option_of(join, parse(text, join.graph), kept).kept)
        for join, text, kept in zip(joins, ("(a b c)", "(a b d)"), logs, strict=True)
    )
    common = {": log of a", ": log of b", ": a by (a.k)", ": b by (b.k)"}
    assert first.keys() & second.keys() == common
    assert first[": a by (a.k)"].memory < second[": a by (a.k)"].memory, "the longer window keeps more"
    apart = dict(option_of(joins[1], parse("(a b d)", joins[1].graph), logs[1], "1").kept)
    assert not first.keys() & apart.keys(), "pipelines share nothing"


def test_an_input_that_stands_in_from_twice_has_one_log() -> None:
    (query,) = queries("SELECT m.x FROM a AS m, a AS n WHERE m.k = n.k WINDOW 10 SECONDS")
    join = priced(query)
    plan = parse("(m n)", join.graph)
    found = option_of(join, plan, *log_bytes([[join]]))
    assert {key for key, _ in found.kept} == {": log of a", ": a by (a.k)"}
    assert found.alone.memory == pytest.approx(join.model.state_bytes(0b01, 0b10)), "n has no column that m has not"


def test_a_shared_join() -> None:
    """It costs what the join with the largest windows costs, and what handing out results does."""
    several = queries(CHAIN, CHAIN.replace("a.x", "c.k").replace("10 SECONDS", "4 SECONDS"))
    orders = [shape.order for query in several if (shape := shape_of(query)) is not None]
    shared = shared_join(several, orders)
    graph = JoinGraph(shared.join)
    model = CostModel(EMPTY.graph(graph), DEFAULT)
    assert member_rate(shared, 0, model.graph) == pytest.approx(model.graph.rate(model.graph.everything))
    assert member_rate(shared, 1, model.graph) < member_rate(shared, 0, model.graph)
    handed = handing_out(shared, model)
    results = sum(member_rate(shared, place, model.graph) for place in range(2))
    assert handed == Cost(pytest.approx(results * HANDED_S + 2 * MEMBER_S), 0.0)
    join = Priced("q0", graph, model, handed, has_own_views=True)
    plan = parse("((a b) c)", graph)
    found = option_of(join, plan, *log_bytes([[join]]))
    alone = model.cost(plan) + handed
    assert (found.alone.cpu, found.alone.memory) == pytest.approx((alone.cpu, alone.memory))
    assert {key for key, _ in found.kept if key.startswith(": (")} == {key for key, _ in found.kept if "of q0" in key}
