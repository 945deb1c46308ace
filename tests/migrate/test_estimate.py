"""What migrations are estimated to cost, and which strategy is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cost.facts import Given
from anabranch.cost.model import CostModel
from anabranch.cost.units import DEFAULT
from anabranch.migrate.estimate import Estimates, estimate, paper_duration_s, parallel_duration_s, with_filtering
from anabranch.migrate.matching import match_states
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy, why_not_parallel
from anabranch.plan.selects import raise_selects
from anabranch.sql import parse_script

STREAMS = "".join(f"CREATE STREAM {s} (k INT, l INT, m INT, ts TIMESTAMP) TIME ts LATENESS 2 SECONDS;" for s in "abcd")
CHAIN = "SELECT a.k FROM a, b, c, d WHERE a.k = b.k AND b.l = c.l AND c.m = d.m WINDOW 10 SECONDS"


def graph_of(select: str) -> JoinGraph:
    script = f"{STREAMS} CREATE TABLE t (k INT); CREATE TABLE u (k INT); CREATE QUERY q AS {select}"
    return JoinGraph(parse_script(script).queries[0].query)


GRAPH = graph_of(CHAIN)
OLD, NEW = parse("(((a b) c) d)", GRAPH), parse("(a ((b c) d))", GRAPH)


def estimates(rate: float = 1000.0, pause_s: float = 0.1, slots: int = 1, old: object = OLD, new: object = NEW) -> Estimates:
    facts = Given(dict.fromkeys("abcd", rate), {}, {"a.k": 1000.0, "b.l": 5000.0, "c.m": 5000.0})
    model = CostModel(facts.graph(GRAPH), DEFAULT)
    return estimate(model, GRAPH, old, new, slots, 1.0, pause_s)  # type: ignore[arg-type]


def test_the_example_of_figure_12_1():
    found = match_states(OLD, NEW, GRAPH)
    assert found.matched == ()
    assert found.unmatched == (("b", "c"), ("b", "c", "d"))
    assert found.discarded == (("a", "b"), ("a", "b", "c"))


def test_what_two_plans_share_is_matched():
    found = match_states(parse("(((a b) c) d)", GRAPH), parse("((a b) (c d))", GRAPH), GRAPH)
    assert found.matched == (("a", "b"),)
    assert found.unmatched == (("c", "d"),)
    assert match_states(OLD, OLD, GRAPH).unmatched == ()
    assert match_states(OLD, OLD, GRAPH).built == ()


def test_moving_state_grows_with_the_state_and_parallel_track_does_not_wait():
    small, large = estimates(100.0).possible, estimates(10_000.0).possible
    assert large[Strategy.MOVING_STATE].cpu_s > 50 * small[Strategy.MOVING_STATE].cpu_s
    assert large[Strategy.MOVING_STATE].pause_s == large[Strategy.MOVING_STATE].cpu_s
    assert small[Strategy.PARALLEL_TRACK].pause_s == 0
    assert large[Strategy.PARALLEL_TRACK].duration_s == small[Strategy.PARALLEL_TRACK].duration_s == 12.0
    assert large[Strategy.GRADUAL].duration_s <= large[Strategy.PARALLEL_TRACK].duration_s


def test_slots_share_the_work():
    assert estimates(slots=4).possible[Strategy.MOVING_STATE].pause_s == pytest.approx(
        estimates().possible[Strategy.MOVING_STATE].pause_s / 4
    )


def test_a_pause_that_is_allowed_is_used_and_one_that_is_not_is_avoided():
    assert estimates(100.0, pause_s=60.0).best(60.0).strategy is Strategy.MOVING_STATE
    hard = estimates(20_000.0, pause_s=0.01)
    assert hard.best(0.01).strategy is not Strategy.MOVING_STATE
    assert hard.best(0.01).pause_s <= 0.01


def test_views_that_both_have_cost_nothing():
    same = estimates(new=parse("((a b) (c d))", GRAPH)).possible[Strategy.MOVING_STATE]
    assert same.cpu_s < estimates().possible[Strategy.MOVING_STATE].cpu_s


def test_durations_of_a_parallel_track():
    assert parallel_duration_s(GRAPH) == 12.0, "the largest window, and lateness"
    assert paper_duration_s(GRAPH, OLD) == 20.0, "equation 12.4: 2W"
    assert paper_duration_s(GRAPH, parse("(a b c d)", GRAPH)) == 10.0, "and W for one join"


def test_the_price_of_a_parallel_track():
    """For a window and lateness both plans run. The new one has all it does twice over but for what every plan does once:
    taking rows in and handing results out. Its states grow from nothing, so that its lookups find half of what they will
    later (equations 12.6 and 12.7), while its rows are stored as ever: it costs between half of it and all of it."""
    facts = Given(dict.fromkeys("abcd", 1000.0), {}, {"a.k": 1000.0, "b.l": 5000.0, "c.m": 5000.0})
    prices = []
    for units in (DEFAULT, replace(DEFAULT, accept=100 * DEFAULT.accept, result=100 * DEFAULT.result, batch=1.0)):
        model = CostModel(facts.graph(GRAPH), units)
        track = estimate(model, GRAPH, OLD, NEW, 1, 1.0, 0.1).possible[Strategy.PARALLEL_TRACK]
        own = sum(cost.cpu for _, cost in model.nodes(NEW))
        assert 12.0 * own * 0.5 < track.cpu_s < 12.0 * own
        more = model.cost(OLD).cpu - model.cost(NEW).cpu
        assert more > 0, "this plan is the better one"
        assert track.delay_cpu_s == pytest.approx(12.0 * more), "what the old plan needs more, for as long as it goes on"
        prices.append(track.cpu_s)
        back = estimate(model, GRAPH, NEW, OLD, 1, 1.0, 0.1).possible[Strategy.PARALLEL_TRACK]
        assert back.delay_cpu_s == 0, "to go on with the better one costs nothing"
    assert prices[0] == pytest.approx(prices[1])


def test_where_a_parallel_track_would_not_do():
    forever = graph_of("SELECT a.k FROM a [UNBOUNDED], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k AND b.l = c.l")
    reason = why_not_parallel(forever, parse("((a b) c)", forever), parse("(a (b c))", forever))
    assert reason is not None
    assert "rows of a [UNBOUNDED] never" in reason
    tables = graph_of("SELECT a.k FROM a [RANGE 1 SECOND], t, u WHERE a.k = t.k AND t.k = u.k")
    reason = why_not_parallel(tables, parse("((a t) u)", tables), parse("(a (t u))", tables))
    assert reason is not None
    assert "(t u) joins stored tables" in reason
    assert why_not_parallel(tables, parse("(a (t u))", tables), parse("((a t) u)", tables)) is None


def test_a_strategy_that_is_refused_is_not_an_option():
    forever = graph_of("SELECT a.k FROM a [UNBOUNDED], b [RANGE 1 SECOND], c [RANGE 1 SECOND] WHERE a.k = b.k AND b.l = c.l")
    model = CostModel(Given().graph(forever), replace(DEFAULT, batch_s=1.0))
    found = estimate(model, forever, parse("((a b) c)", forever), parse("(a (b c))", forever), 1, 1.0, 0.1)
    assert Strategy.PARALLEL_TRACK not in found.possible
    assert "UNBOUNDED" in found.refused[Strategy.PARALLEL_TRACK]


# Selects that go elsewhere

SELECTING = graph_of(CHAIN.replace("WINDOW", "AND a.l > 1 AND b.m > 1 WINDOW"))


def test_what_it_takes_to_move_selects():
    query, plan = SELECTING.query, parse("(((a b) c) d)", SELECTING)
    facts = Given(dict.fromkeys("abcd", 1000.0), {}, {"a.k": 1000.0, "b.l": 5000.0, "c.m": 5000.0})
    model = CostModel(facts.graph(SELECTING), DEFAULT)
    below, above = (), raise_selects(query, {"a": "a b c d"})
    higher = raise_selects(query, {"a": "a b c d", "b": "a b"})

    def taken(before: object, after: object) -> Estimates:
        execution = Execution(plan, selects=before)  # type: ignore[arg-type]
        found = estimate(model, SELECTING, plan, plan, 2, 1.0, 0.1)
        return with_filtering(found, model, SELECTING, execution, plan, after, 2)  # type: ignore[arg-type]

    up, down = taken(below, above), taken(above, below)
    assert all(e.total_cpu_s == e.pause_s == 0 for e in up.possible.values())
    assert up.best(0.0).strategy is Strategy.MOVING_STATE, "of equals the simplest"
    moving = down.possible[Strategy.MOVING_STATE]
    assert moving.cpu_s > 0
    assert moving.pause_s == moving.cpu_s / 2, "by two slots"
    assert down.best(1e9).strategy is Strategy.PARALLEL_TRACK, "to wait costs nothing"
    assert 0 < taken(higher, above).possible[Strategy.MOVING_STATE].cpu_s < moving.cpu_s, "the state of b alone"
    lower = taken(above, raise_selects(query, {"a": "a b"}))
    assert "can wait on its way to its stream only" in lower.refused[Strategy.PARALLEL_TRACK]
    filtered = {s: e.cpu_s for s, e in lower.possible.items()}
    assert filtered[Strategy.GRADUAL] == filtered[Strategy.MOVING_STATE] > 0
    assert filtered[Strategy.MOVING_STATE] < moving.cpu_s, "rows of a alone need not have passed it"
