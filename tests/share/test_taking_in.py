"""Whether a query whose join is contained in another's is a member of it: by cost, and what it starts with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cost.facts import DEFAULT_RATE, EMPTY, Given
from anabranch.cost.model import CostModel
from anabranch.cost.units import DEFAULT
from anabranch.plan.distribution import Distribution
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution
from anabranch.plan.query import Query
from anabranch.plan.shared_join import shared_join
from anabranch.share.canonical import Running, companies
from anabranch.share.common_plan import Alone, Starting, common_plans, joined_execution
from anabranch.share.join_cost import HANDED_S, MEMBER_S, handing_out, member_rate
from anabranch.share.source_chain import BYTE_CORES, worth
from anabranch.share.taking_in import JoinMembers, Pricing, TakingIn, taking_in
from anabranch.sql import parse_script

CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
WHOLE = "SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 60 SECONDS"
PART = "SELECT p.x FROM b AS o, a AS p WHERE p.k = o.k WINDOW {} SECONDS"
PAIRS = "SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 10 SECONDS"
BOTH_KEYS = "SELECT m.x FROM a AS m, b AS n WHERE m.k = n.k AND m.j = n.j WINDOW 10 SECONDS"
MANY = Given({"a": 2_000.0, "b": 2_000.0}, {}, {"a.k": 20.0, "m.j": 5_000.0, "n.j": 5_000.0})
"""A row finds a thousand partners by k, and hardly one by both keys."""


def queries(*selects: str) -> list[Query]:
    script = CREATE + "".join(f"CREATE QUERY q{n} AS {select};" for n, select in enumerate(selects))
    return [declared.query for declared in parse_script(script).queries]


def alone(query: Query, plan: str) -> JoinMembers:
    return JoinMembers((query,), (query.aliases,), parse(plan, JoinGraph(query)))


def decided(selects: tuple[str, str], plans: tuple[str, str], facts: Given = EMPTY, byte_cores: float = 0.0) -> TakingIn:
    host, contained = (alone(query, plan) for query, plan in zip(queries(*selects), plans, strict=True))
    found = taking_in(host, contained, Pricing(facts, DEFAULT, byte_cores))
    assert found is not None
    least = min(worth(found.member, byte_cores), worth(found.apart, byte_cores))
    assert worth(found.member if found.is_member else found.apart, byte_cores) == least
    return found


def test_a_part_of_a_join_is_cheaper_there() -> None:
    found = decided((WHOLE, PART.format(20)), ("((a b) c)", "(o p)"))
    assert found.is_member
    assert found.host == "q0"
    assert 0 < found.member.cpu < found.apart.cpu
    assert "handed out costs less" in found.reason


def test_windows_that_are_much_longer_make_the_join_larger() -> None:
    """All of a and b would be kept for an hour for the whole join too, and what it finds of them thrown away."""
    found = decided((WHOLE, PART.format(3_600)), ("((a b) c)", "(o p)"), Given({}, {}, {"a.k": 100.0, "b.j": 100.0}))
    assert not found.is_member
    assert found.member.cpu > found.apart.cpu
    whole, other, part = queries(WHOLE, WHOLE.replace("60", "50"), PART.format(3_600))
    two = JoinMembers((whole, other), (whole.aliases, other.aliases), parse("((a b) c)", JoinGraph(whole)))
    shared = taking_in(two, alone(part, "(o p)"), Pricing(Given({}, {}, {"a.k": 100.0, "b.j": 100.0}), DEFAULT, 0.0))
    assert shared is not None
    assert not shared.is_member
    assert "finds many combinations more" in shared.reason


def test_rows_that_the_larger_join_would_keep_longer_cost_more_than_lookups() -> None:
    selects, plans = (WHOLE, PART.format(3_600)), ("((a b) c)", "(o p)")
    assert decided(selects, plans).is_member, "if a byte is worth nothing"
    found = decided(selects, plans, byte_cores=BYTE_CORES)
    assert not found.is_member
    assert found.member.memory > found.apart.memory
    assert "would keep more rows for its sake" in found.reason


def test_both_ways_are_priced_by_the_same_facts() -> None:
    """Keys of which nothing is known have as many values as the longest window has rows: for the join without it, too."""
    selects, plans = (WHOLE, PART.format(3_600)), ("((a b) c)", "(o p)")
    values = 3_600 * DEFAULT_RATE
    said = decided(selects, plans, Given({}, {}, {"a.k": values, "b.j": values}))
    assumed = decided(selects, plans, EMPTY)
    assert (assumed.member.cpu, assumed.apart.cpu) == pytest.approx((said.member.cpu, said.apart.cpu))


def test_a_second_key_finds_less_than_the_join_hands_out() -> None:
    found = decided((PAIRS, BOTH_KEYS), ("(a b)", "(m n)"), MANY)
    assert not found.is_member
    assert "nobody else shares the larger join" in found.reason
    few = decided((PAIRS, BOTH_KEYS), ("(a b)", "(m n)"), replace(MANY, distinct={**MANY.distinct, "a.k": 50_000.0}))
    assert few.is_member


def test_what_cannot_be_a_member_is_not_priced() -> None:
    whole, part = queries(WHOLE, "SELECT b.x FROM b, c WHERE b.j = c.j WINDOW 5 SECONDS")
    pricing = Pricing(EMPTY, DEFAULT)
    assert taking_in(alone(whole, "((a b) c)"), alone(part, "(b c)"), pricing) is None
    assert taking_in(alone(whole, "(a (b c))"), alone(part, "(b c)"), pricing) is not None
    narrow, part = queries(WHOLE.replace("a.k = b.k", "a.k = b.k AND a.x < b.x"), PART.format(5))
    assert taking_in(alone(narrow, "((a b) c)"), alone(part, "(o p)"), pricing) is None


def test_several_queries_are_decided_about_together() -> None:
    """They run a join of their own anyway, so that each of them would add little to that."""
    whole, *parts = queries(WHOLE, *(PART.format(n + 10) for n in range(4)))
    several = JoinMembers(tuple(parts), tuple(part.aliases for part in parts), parse("(o p)", JoinGraph(parts[0])))
    one = taking_in(alone(whole, "((a b) c)"), alone(parts[0], "(o p)"), Pricing(EMPTY, DEFAULT, 0.0))
    all_ = taking_in(alone(whole, "((a b) c)"), several, Pricing(EMPTY, DEFAULT, 0.0))
    assert one is not None
    assert all_ is not None
    assert all_.apart.cpu < 2 * one.apart.cpu
    assert one.member.cpu < all_.member.cpu < 2 * one.member.cpu


# What queries start with


def started(selects: tuple[str, ...], plans: tuple[str, ...], facts: Given, pins: tuple[int, ...] = ()) -> list[Running]:
    starting = {}
    for number, (query, plan) in enumerate(zip(queries(*selects), plans, strict=True)):
        starting[query.name] = Starting(query, Execution(parse(plan, JoinGraph(query))), number in pins)
    taken = common_plans(starting, Pricing(facts, DEFAULT))
    return [
        Running(each.query, taken[name].execution if name in taken else each.execution, Distribution())
        for name, each in starting.items()
    ]


@pytest.mark.parametrize("pins", [(), (1,)])
def test_queries_that_are_better_off_apart_start_in_a_company_of_their_own(pins: tuple[int, ...]) -> None:
    """The two with both keys run one join, and the one without another."""
    found = started((PAIRS, BOTH_KEYS, BOTH_KEYS.replace("10", "7")), ("(a b)", "(m n)", "(m n)"), MANY, pins)
    assert [each.execution.company for each in found] == ["", "q1", "q1"]
    assert [company.names for company in companies(found)] == [("q1", "q2")]


def test_queries_that_are_better_off_in_a_larger_join_start_there() -> None:
    found = started((PART.format(5), WHOLE, PART.format(7)), ("(o p)", "((a b) c)", "(o p)"), EMPTY)
    assert [each.execution.company for each in found] == ["", "", ""]
    assert [set(company.names) for company in companies(found)] == [{"q0", "q1", "q2"}]


def test_a_pinned_part_with_another_plan_is_not_decided_about() -> None:
    three = WHOLE.replace("60", "5").replace("a.k = b.k", "a.k = b.k AND a.x = c.x")
    found = started((WHOLE, three), ("((a b) c)", "(a (b c))"), EMPTY, (1,))
    assert [str(each.execution.plan) for each in found] == ["((a b) c)", "(a (b c))"]
    assert not companies(found)
    starting = {each.query.name: Starting(each.query, each.execution, place == 1) for place, each in enumerate(found)}
    assert not common_plans(starting, Pricing(EMPTY, DEFAULT))


def test_a_query_that_comes_goes_to_those_with_its_filters() -> None:
    """Where the join is run once for each set of filters; with others it has a company of its own."""
    filters = (" AND a.x > 3", " AND 3 < a.x", " AND b.x > 3")
    few, same, other = (PAIRS.replace(" WINDOW", f"{where} WINDOW") for where in filters)
    first, second, *coming = queries(PAIRS, few, same, other, PAIRS)
    running = [Running(first, Execution(parse("(a b)", JoinGraph(first)), company="q0"), Distribution()),
               Running(second, Execution(parse("(a b)", JoinGraph(second)), company="q1"), Distribution())]  # fmt: skip
    found = [joined_execution(query, running) for query in coming]
    assert [each and each[1].company for each in found] == ["q1", "q3", "q0"]
    together = [Running(each.query, Execution(each.execution.plan), Distribution()) for each in running]
    assert [each and each[1].company for query in coming for each in [joined_execution(query, together)]] == ["", "", ""]


@pytest.mark.parametrize(("window_s", "facts"), [(20, EMPTY), (3_600, Given({}, {}, {"a.k": 100.0, "b.j": 100.0}))])
def test_a_query_that_comes_is_a_member_of_a_larger_join_if_that_costs_less(window_s: int, facts: Given) -> None:
    """As when it starts with the others; without prices it is a member where it can be."""
    whole, other, part = queries(WHOLE, WHOLE.replace("60", "50"), PART.format(window_s))
    plan, is_member = parse("(o p)", JoinGraph(part)), window_s == 20
    for several in ((whole,), (whole, other)):
        running = [Running(q, Execution(parse("((a b) c)", JoinGraph(q))), Distribution()) for q in several]
        found = joined_execution(part, running, Alone(plan, Pricing(facts, DEFAULT)))
        assert found == (("q0", Execution(plan)) if is_member else ("", Execution(plan, company="q2")))
        assert joined_execution(part, running) == ("q0", Execution(plan))
        came = [*running, Running(part, found[1], Distribution())]
        assert ("q2" in {name for each in companies(came) for name in each.names}) == is_member


# What it costs to hand results out


def handed(*selects: str) -> tuple[float, list[float], float]:
    """The CPU of handing out, the results of each query, and all that is found; of queries with the join of the first."""
    found = queries(*selects)
    orders = [query.aliases if len(query.inputs) == 3 else (*query.aliases, "") for query in found]
    shared = shared_join(tuple(found), tuple(orders))
    model = CostModel(EMPTY.graph(JoinGraph(shared.join)), DEFAULT)
    rates = [member_rate(shared, place, model.graph) for place in range(len(found))]
    return handing_out(shared, model).cpu, rates, model.graph.rate(model.graph.everything)


def test_what_nobody_wants_of_a_shared_join_is_not_made() -> None:
    """One looks far back in a, the other in b: combinations of old rows of both are nobody's."""
    three = "SELECT a.x FROM a [RANGE {} SECONDS], b [RANGE {} SECONDS], c [RANGE 1 SECOND] WHERE a.k = b.k AND b.j = c.j"
    cpu, rates, everything = handed(three.format(100, 1), three.format(1, 100))
    assert sum(rates) < everything
    made = (sum(rates) - everything) * DEFAULT.result
    assert cpu == pytest.approx(sum(rates) * HANDED_S + 2 * MEMBER_S / DEFAULT.batch_s + made)


def test_results_over_some_of_the_streams_are_made_once() -> None:
    """For all members over the same ones: another of these adds what is handed to it."""
    part = "SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS"
    one, several = handed(WHOLE, part), handed(WHOLE, part, part)
    assert several[0] - one[0] == pytest.approx(several[1][2] * HANDED_S + MEMBER_S / DEFAULT.batch_s)
