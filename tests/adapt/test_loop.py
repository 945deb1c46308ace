"""The loop on streams that change, and on streams that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.adapt.library import PlanLibrary, key_of
from anabranch.adapt.loop import (
    FIRST_BATCHES,
    SURE_BATCHES,
    AdaptiveLoop,
    Found,
    Knowledge,
    LoopState,
    Settings,
    _actuate,
)
from anabranch.adapt.monitor import Monitor, Observation, ratio
from anabranch.adapt.scope import aliases_in, best_part, smallest_part, with_part
from anabranch.adapt.timing import DataDriven, MemoryDriven, RefinedMemoryDriven
from anabranch.control.loop import Proposal, Remark
from anabranch.control.records import SourceStatistics, StateStatistics, Statistics
from anabranch.cost.facts import Given
from anabranch.cost.model import Cost, CostModel
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalRun
from anabranch.migrate.estimate import Estimates, estimate
from anabranch.optimize.planner import Bounds
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, parse, show
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.changing_streams import GRAPH, Phase, batch_of

KNOWN = Knowledge(GRAPH, DEFAULT)
OFTEN_AB: Phase = ({"a": 300, "b": 300, "c": 20}, {"k": 15, "l": 3000})
OFTEN_BC: Phase = ({"a": 20, "b": 300, "c": 300}, {"k": 3000, "l": 15})


def run(loop: AdaptiveLoop, phase_of: Callable[[int], Phase], batches: int, seed: int = 1) -> list[tuple[int, Any, str]]:
    """Runs a query under a loop that decides; returns what it said, and the plan that then ran."""
    rng, said = np.random.default_rng(seed), []
    local = LocalRun(GRAPH.query, MemoryFilesystem(), "((a b) c)")
    for number in range(batches):
        local.step(number, batch_of(number, phase_of(number), rng))
        assert local.commit is not None
        found = loop.after(local.execution, local.observed)
        if isinstance(found, Proposal):
            local.migrate(found.action.plan, found.action.strategy, found.action.pause_us)
        if found is not None:
            said.append((number, found, show(local.execution.plan, GRAPH)))
    return said


def test_a_plan_is_decided_on_when_enough_is_measured():
    said = run(AdaptiveLoop(KNOWN), lambda _: OFTEN_AB, SURE_BATCHES + 3)
    assert SURE_BATCHES in [n for n, _, _ in said], "and once more, when figures are more certain"
    first = said[0]
    number, found, _ = first
    assert number == FIRST_BATCHES, "one batch tells where time begins, then come those that count"
    assert isinstance(found, Proposal)
    assert "(a b)" not in show(found.action.plan, GRAPH)
    assert found.details["cpu"] < found.details["cpu_before"]
    assert found.details["rates"]["a"] == pytest.approx(300, rel=0.1)
    assert "instead of" in found.text


def test_a_change_of_the_streams_changes_the_plan():
    said = run(AdaptiveLoop(KNOWN), lambda n: OFTEN_AB if n < 20 else OFTEN_BC, 40)
    proposals = [(n, s) for n, s, _ in said if isinstance(s, Proposal)]
    assert proposals[0][0] == FIRST_BATCHES
    later = [s for n, s in proposals if n >= 20]
    assert later, [s for _, s, _ in said]
    assert "(b c)" not in show(later[-1].action.plan, GRAPH)
    assert "went from" in later[-1].text
    before, now = later[-1].details["drifted"]["matches of b in c"]
    assert before < 1 < 20 < now


def test_the_effect_of_a_change_is_told():
    said = run(AdaptiveLoop(KNOWN), lambda _: OFTEN_AB, FIRST_BATCHES + 12)
    (effect,) = [s for _, s, _ in said if isinstance(s, Remark) and s.event == "effect"]
    assert 0 < effect.details["cpu"] < effect.details["cpu_old_plan"]
    assert "by now ((a b) c) would need" in effect.text
    proposal = said[0][1]
    assert effect.details["cpu_before"] == proposal.details["cpu_before"], "what was measured when it was proposed"
    assert effect.details["cpu_predicted"] == proposal.details["cpu"]
    assert "were predicted; it was" in effect.text


@pytest.mark.parametrize("seed", range(8))
def test_noise_changes_nothing(seed):
    """The same streams, drawn anew: after the first decision, nothing is decided any more."""
    said = run(AdaptiveLoop(KNOWN), lambda _: OFTEN_AB, 60, seed)
    settled = [(n, s) for n, s, _ in said if n > SURE_BATCHES + 8]
    assert not [s for _, s in settled if isinstance(s, Proposal)]


def test_a_pattern_that_repeats_finds_its_plan_in_the_library():
    loop = AdaptiveLoop(replace(KNOWN, settings=Settings(window=4)))
    said = run(loop, lambda n: OFTEN_AB if n // 20 % 2 == 0 else OFTEN_BC, 120)
    assert any(s.details.get("from_library") for _, s, _ in said)


def test_a_change_that_does_not_pay_is_not_made(monkeypatch):
    def dear(*given: Any) -> Estimates:
        found = estimate(*given)
        return replace(found, possible={s: replace(e, cpu_s=1e6) for s, e in found.possible.items()})

    monkeypatch.setattr("anabranch.adapt.loop.estimate", dear)
    said = run(AdaptiveLoop(KNOWN), lambda _: OFTEN_AB, FIRST_BATCHES + 2)
    ((_, found, plan), *_) = said
    assert isinstance(found, Remark)
    assert "getting there costs 1e+06" in found.text
    assert plan == "((a b) c)"


def test_a_budget_that_breaks_is_reason_enough():
    loop = AdaptiveLoop(replace(KNOWN, bounds=Bounds(memory=50_000.0)))
    said = run(loop, lambda _: OFTEN_AB, FIRST_BATCHES + 2)
    assert said
    assert all(s.details["memory"] <= s.details["memory_before"] for _, s, _ in said)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_strategy_may_be_pinned(strategy):
    loop = AdaptiveLoop(replace(KNOWN, settings=Settings(strategy=strategy)))
    ((_, found, _), *_) = run(loop, lambda _: OFTEN_AB, FIRST_BATCHES + 2)
    assert isinstance(found, Proposal)
    assert found.action.strategy is strategy


# -- what is worth it ------------------------------------------------------------------------------------------------------


def actuated(share: float, migration_cpu_s: float, monkeypatch: Any, steady_us: int = 0) -> Proposal | Remark:
    """What is said of a plan that needs so much of the CPU of this one (a core), if getting there costs so much."""

    def priced(*given: Any) -> Estimates:
        found = estimate(*given)
        return replace(found, possible={s: replace(e, cpu_s=migration_cpu_s, delay_cpu_s=0.0)
                                        for s, e in found.possible.items()})  # fmt: skip

    monkeypatch.setattr("anabranch.adapt.loop.estimate", priced)
    monitor = monitor_of(*(observation(n, 100) for n in range(9)))
    state = LoopState(monitor, steady_since_us=monitor.observations[-1].seen_us - steady_us)
    model = CostModel(Given({"a": 300.0, "b": 300.0, "c": 20.0}).graph(GRAPH), DEFAULT)
    found = Found(parse("(a (b c))", GRAPH), Cost(share, 1.0), Cost(1.0, 1.0), model, "it is better", False, 0.6)
    return _actuate(KNOWN, state, parse("((a b) c)", GRAPH), found, "a test", {})


def test_a_plan_must_need_less_than_nine_tenths(monkeypatch):
    """As `docs/life-of-a-replan.md` says, however little getting there costs."""
    proposal = actuated(0.89, 0.0, monkeypatch)
    assert isinstance(proposal, Proposal)
    told = proposal.details["cpu"], proposal.details["cpu_before"]
    assert told == pytest.approx((0.49, 0.6)), "what is saved of a core, taken from the 0.6 that were measured"
    kept = actuated(0.91, 0.0, monkeypatch)
    assert isinstance(kept, Remark)
    assert "no plan is better by enough" in kept.text


def test_what_a_plan_saves_in_two_windows_must_pay_for_it(monkeypatch):
    """The window is 6 s: half a core saved is worth 6 s of CPU, as long as nothing is known to last longer."""
    assert isinstance(actuated(0.5, 5.9, monkeypatch), Proposal)
    kept = actuated(0.5, 6.1, monkeypatch)
    assert isinstance(kept, Remark)
    assert kept.details["expected_life_s"] == 12.0
    assert kept.details["worth_after_s"] == pytest.approx(12.2)
    assert isinstance(actuated(0.5, 6.1, monkeypatch, steady_us=12_100_000), Remark), "not yet"
    assert isinstance(actuated(0.5, 6.1, monkeypatch, steady_us=12_300_000), Proposal), "what lasted will last as long again"


# -- parts ---------------------------------------------------------------------------------------------------------------


def observation(number: int, rows: int, view_rows: int = 0, state_bytes: int = 0) -> Observation:
    statistics = Statistics({"a": SourceStatistics(rows=rows, stored_rows=rows)})
    statistics.states = [StateStatistics("a b", "view", view_rows, state_bytes)]
    return Observation(number, number * 1_000_000, statistics)


def monitor_of(*observations: Observation) -> Monitor:
    monitor = Monitor()
    for o in observations:
        monitor = monitor.after(o)
    return monitor


def test_averages_are_over_a_window_of_batches():
    monitor = monitor_of(*(observation(n, 100 if n < 10 else 200) for n in range(20)))
    assert monitor.signals["rate of a"].mean == 200
    assert monitor.span_s == 8
    assert monitor.latest(2).span_s == 2


def test_what_differs_by_chance_is_no_drift():
    rng = np.random.default_rng(5)
    before = monitor_of(*(observation(n, int(rng.poisson(30))) for n in range(9)))
    after = monitor_of(*(observation(n, int(rng.poisson(30))) for n in range(9)))
    assert not after.drifted(before.signals, 0.05)
    more = monitor_of(*(observation(n, int(rng.poisson(90))) for n in range(9)))
    assert more.drifted(before.signals, 0.05) == ["rate of a"]
    assert not more.drifted(before.signals, 0.8), "below the threshold"


def test_the_error_of_a_ratio():
    assert ratio([(10.0, 1.0), (10.0, 1.0)]).error == pytest.approx(np.sqrt(20) / 2)
    assert ratio([(0.0, 1.0), (400.0, 1.0)]).error > ratio([(200.0, 1.0), (200.0, 1.0)]).error


def test_data_driven_timing_waits_for_its_interval_unless_aggressive():
    before = monitor_of(*(observation(n, 1000) for n in range(9)))
    after = monitor_of(*(observation(n, 5000) for n in range(9)))
    assert DataDriven(interval=4).due(after, before.signals, 3) is None
    assert "went from 1e+03 to 5e+03" in (DataDriven(interval=4).due(after, before.signals, 4) or "")
    assert DataDriven(interval=4, aggressive=True).due(after, before.signals, 0)
    assert DataDriven().due(before, before.signals, 100) is None


def test_memory_driven_timing():
    steady = monitor_of(*(observation(n, 1000, state_bytes=50) for n in range(9)))
    rising = monitor_of(*(observation(n, 1000 + 200 * n) for n in range(9)))
    piling = monitor_of(*(observation(n, 1000, view_rows=100 + 50 * n) for n in range(9)))
    assert MemoryDriven(100).due(steady, {}, 9) is None
    assert "near the limit" in (MemoryDriven(55).due(steady, {}, 9) or "")
    assert "more and more rows wait" in (MemoryDriven().due(rising, {}, 9) or "")
    assert MemoryDriven().due(rising, {}, 1) is None
    assert MemoryDriven().due(piling, {}, 9) is None
    assert "views grow" in (RefinedMemoryDriven().due(piling, {}, 9) or "")


def test_the_library_tells_statistics_apart():
    near, far = (Given({"a": r, "b": 300.0, "c": 20.0}).graph(GRAPH) for r in (301.0, 900.0))
    here = Given({"a": 300.0, "b": 300.0, "c": 20.0}).graph(GRAPH)
    assert key_of(near) == key_of(here) != key_of(far)
    plan = parse("(a (b c))", GRAPH)
    library = PlanLibrary().add(here, plan)
    assert library.find(near) == plan
    assert library.find(far) is None


FOUR = JoinGraph(
    parse_script("""
    CREATE STREAM a (k INT, l INT, m INT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k INT, l INT, m INT, ts TIMESTAMP) TIME ts;
    CREATE STREAM c (k INT, l INT, m INT, ts TIMESTAMP) TIME ts; CREATE STREAM d (k INT, l INT, m INT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k FROM a, b, c, d WHERE a.k = b.k AND b.l = c.l AND c.m = d.m WINDOW 10 SECONDS
    """)
    .queries[0]
    .query
)


def test_the_smallest_part_that_changed():
    plan = parse("(((a b) c) d)", FOUR)
    assert str(smallest_part(plan, aliases_in(["rate of a", "matches of b in a"], FOUR))) == "(a b)"
    assert str(smallest_part(plan, aliases_in(["matches of c in a b"], FOUR))) == "((a b) c)"
    assert str(smallest_part(plan, aliases_in(["rate of d"], FOUR))) == "(((a b) c) d)"


def test_only_the_part_that_changed_is_changed():
    """a and b meet often, b and c seldom: (b c) comes first, and (a b c) is still what meets d."""
    graph = Given({}, {}, {"a.k": 100.0, "b.l": 1e6, "c.m": 1e4}).graph(FOUR)
    plan, model = parse("(((a b) c) d)", FOUR), CostModel(graph, DEFAULT)
    part = smallest_part(plan, frozenset("abc"))
    assert part is not None
    changed = with_part(plan, part, best_part(part, graph, DEFAULT))
    assert isinstance(changed, Join)
    assert [sorted(child.aliases) for child in changed.inputs] == [["a", "b", "c"], ["d"]]
    assert "(a b)" not in str(changed)
    assert model.cost(changed).cpu < model.cost(plan).cpu
