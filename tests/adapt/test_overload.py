"""The loop of load on a simulated machine: batches whose seconds follow from their rows and from what is limited."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import msgspec
import pytest

from anabranch.adapt.load import measured
from anabranch.adapt.overload import (
    CALM_BATCHES,
    CAUGHT_UP,
    FIRST_BATCHES,
    LASTING_BATCHES,
    LATEST_BATCHES,
    STEADY_BATCHES,
    OverloadLoop,
    least_slack_s,
)
from anabranch.control.loop import Allowing, Load, LoadRemark
from anabranch.control.records import (
    STAGE,
    Commit,
    ExecutionRecord,
    Layout,
    Limit,
    Limited,
    QueryCommit,
    SlotCommit,
    SourceStatistics,
    Statistics,
)
from anabranch.drive.limiting import Limiting
from anabranch.errors import OverloadError
from anabranch.plan.overload import Overload
from anabranch.plan.query import Query
from anabranch.sql import parse_script

FRESH = FIRST_BATCHES + 1
"""The first batch that is judged; the one before all others tells only where time begins."""
OTHER_S = 0.2
"""What a batch takes without its tasks."""


def query(name: str = "q", slack_s: int | None = None) -> Query:
    script = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    script += f"CREATE QUERY {name} AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 10 SECONDS"
    found = parse_script(script).queries[0].query
    if slack_s is None:
        return found
    return replace(found, inputs=tuple(replace(i, freshness_us=(10 + slack_s) * 1_000_000) for i in found.inputs))


@dataclass
class Direction:
    """The rows of an input in a slot at load 1, what a lookup costs, and what it gives."""

    rows: float
    cpu_s: float
    gives: float


@dataclass
class Machine:
    """A pipeline whose source hands out what came since the last batch, or `throttle_s` of it at most."""

    load: Callable[[float], float]
    """How many times the rows of load 1 come, by time."""
    overload: Overload
    slack_s: int | None = None
    slots: int = 2
    own_s: float = 0.3
    """CPU of a slot at load 1, without lookups that give results."""
    ways: Mapping[str, Direction] = field(
        default_factory=lambda: {"a": Direction(1000, 3e-4, 8.0), "b": Direction(1000, 1e-4, 0.5)}
    )
    hot: Mapping[int, float] = field(default_factory=dict)
    """Slots that have so many times the rows of others."""
    interval_s: float | None = 1.0
    throttle_s: float = math.inf
    queries: tuple[str, ...] = ("q",)
    delay_s: float = 0.5
    """How long rows take to come to the source."""
    cold_s: tuple[float, ...] = ()
    """What the first batches take on top."""
    backlog_s: float | None = None
    """How much is told to wait in the source; None: nothing is told of that."""

    def __post_init__(self) -> None:
        self.now, self.batch, self.read_to = 1_000_000.0, 0, 1_000_000.0
        self.begin, self.changes = self.now, 0
        self.journal: list[tuple[int, str, str]] = []
        self.seconds: list[float] = []
        self.lags: list[float] = []
        self.times: list[float] = []
        """When the rows of each batch came, since the beginning."""
        self.shares: list[dict[tuple[str, str, int], float]] = []
        self.complete: list[float] = []
        self.restart()

    def restart(self, limits: Limiting | None = None) -> None:
        queries = {name: query(name, self.slack_s) for name in self.queries}
        self.loop = OverloadLoop(self.overload, queries, self.interval_s, self.slots, 2.0, lambda: self.now)
        self.limiting = Limiting(self.overload, self.loop)
        if limits is not None:
            self.limiting.limits, self.limiting.shed = limits.limits, limits.shed
        said = self.loop.at_start(self.limiting.limits, self.limiting.shed)
        self.limiting._follow(said, self.batch - 1, self.tell)

    def tell(self, name: str | None, batch: int, event: str, text: str, **details: object) -> None:
        self.journal.append((batch, event, text))

    def events(self, *kinds: str) -> list[tuple[int, str]]:
        return [(batch, event) for batch, event, _ in self.journal if not kinds or event in kinds]

    def run(self, batches: int) -> Machine:
        for _ in range(batches):
            self.step()
        return self

    def step(self) -> None:
        planned = self.now
        until = min(planned - self.delay_s, self.read_to + self.throttle_s)
        span = max(0.0, until - self.read_to)
        middle = (self.read_to + until) / 2 - self.begin
        times = self.load(middle) * span
        self.lags.append(planned - self.read_to)
        self.times.append(middle)
        self.read_to = until
        kept = min(self.limiting.shed.values(), default=1.0)
        slots, shares, found, whole = {}, {}, 0.0, 0.0
        for slot in range(self.slots):
            hot = self.hot.get(slot, 1.0)
            cpu_s, limited = self.own_s * times * hot * kept, dict[str, dict[str, Limited]]()
            for name in self.queries:
                limited[name] = {}
                for alias, way in self.ways.items():
                    rows = way.rows * times * hot * kept
                    limit = self.limiting.limits.get(name, {}).get(alias, Limit())
                    share = limit.share if limit.share is not None else 1.0
                    if slot in limit.rows:
                        share = min(1.0, limit.rows[slot] / max(rows, 1e-9))
                    shares[name, alias, slot] = share
                    # As many more rows come, as many more partners each one finds.
                    spent = share * rows * way.cpu_s * self.load(middle) * hot * kept
                    results = round(share * rows * way.gives * hot * kept)
                    found, whole = found + share * rows * way.gives * hot, whole + rows * way.gives * hot
                    cpu_s += spent
                    counts = round(rows), round(share * rows), results
                    limited[name][alias] = Limited(*counts, results / max(share, 1e-9), 0.0, round(spent * 1e9), round(rows))
            slots[str(slot)] = SlotCommit("", None, {}, 0, round(times * 2000), 0, round(cpu_s * 1e9), limited)
        self.shares.append(shares)
        self.complete.append(found / whole if whole else 1.0)
        tasks_s = [each.cpu_ns / 1e9 for each in slots.values()]
        seconds = OTHER_S + max(max(tasks_s), sum(tasks_s) / 2) + sum(self.cold_s[self.batch : self.batch + 1])
        self.seconds.append(seconds)
        self.now = planned + seconds
        counted = round(2000 * self.slots * times)
        sources = {s: SourceStatistics(rows=counted, largest_time_us=round(until * 1e6)) for s in "ab"}
        own = QueryCommit(
            "", "", 0, ExecutionRecord("(a b)"), Layout((), ()), statistics=Statistics(sources=sources)
        )  # fmt: skip
        seen = {s: round(until * 1e6) for s in "ab"}
        commit = Commit(
            self.batch, self.batch, dict.fromkeys(self.queries, own), seen, slots, shed=dict(self.limiting.shed)
        )  # fmt: skip
        before = self.limiting.limits.get("q", {})
        waits = round(self.backlog_s * 2 * counted / span) if self.backlog_s is not None else None
        self.limiting.after(Load(commit, seconds, round(planned * 1e6), {}, waits), self.tell)
        self.changes += self.limiting.limits.get("q", {}) != before
        self.now = max(self.now, planned + (self.interval_s or 0.0))
        self.batch += 1


def stepped(low: float, high: float, begin_s: float, end_s: float, time_s: float) -> float:
    return high if begin_s <= time_s < end_s else low


adapt = partial(Overload, policy="adapt joins", clock="wall")  # type: ignore[arg-type]


def test_a_load_that_fits_is_never_limited() -> None:
    machine = Machine(lambda t: 0.8, adapt(), slack_s=0).run(60)
    assert not machine.journal
    assert machine.complete == [1.0] * 60


def test_a_burst_within_the_slack_loses_nothing() -> None:
    machine = Machine(partial(stepped, 0.5, 1.5, 20, 30), adapt(), slack_s=60).run(80)
    assert max(machine.seconds) > 3, "it falls behind"
    assert max(machine.lags) < 60
    assert not machine.journal
    assert min(machine.complete) == 1.0
    assert machine.lags[-1] < 3, "and catches up"


@pytest.mark.parametrize("throttle_s", [math.inf, 1.0])
@pytest.mark.parametrize("slack_s", [5, 30])
def test_beyond_the_slack_lookups_are_limited_and_the_lag_stays_bounded(slack_s: int, throttle_s: float) -> None:
    machine = Machine(lambda t: 0.6 if t < 15 else 2.0, adapt(), slack_s, own_s=0.1, throttle_s=throttle_s).run(150)
    assert {event for _, event in machine.events()} == {"limiting"}
    assert max(machine.lags) <= slack_s + 1.5
    late = machine.complete[-50:]
    assert min(late) > 0.3
    assert max(late) < 1
    assert machine.seconds[-1] < machine.lags[-1] + 0.1


def test_the_direction_that_gives_most_for_its_cpu_is_limited_last_and_the_other_keeps_its_pilots() -> None:
    machine = Machine(lambda t: 1.6, adapt(pilot=0.05), slack_s=0).run(60)
    shares = machine.shares[-1]
    for slot in range(2):
        assert shares["q", "a", slot] > shares["q", "b", slot]
        assert 0.04 <= shares["q", "b", slot] < 0.08, "pilots are looked up in any case"
    even = Machine(lambda t: 1.6, adapt(algorithm="uniform"), slack_s=0).run(60)
    assert even.shares[-1]["q", "a", 0] == pytest.approx(even.shares[-1]["q", "b", 0], rel=0.02)
    assert machine.complete[-1] > even.complete[-1]


def test_what_waits_in_the_source_is_behind_too() -> None:
    """Event times tell of half a minute at most, which the slack allows; the source's offsets tell of more."""
    machine = Machine(lambda t: 1.2, adapt(), slack_s=60).run(25)
    assert not machine.journal
    machine.backlog_s = 20.0
    assert not machine.run(1).journal
    machine.backlog_s = 100.0
    assert machine.run(1).events("limiting") == [(26, "limiting")]


def test_at_a_steady_load_allowances_stay_as_they_are() -> None:
    machine = Machine(lambda t: 1.8, adapt(), slack_s=0).run(120)
    assert len(machine.events("limiting")) <= 3
    assert not machine.events("lifted")
    assert len({round(share, 6) for each in machine.shares[60:] for share in each.values()}) <= 8, "nothing moves"
    assert max(machine.complete[60:]) - min(machine.complete[60:]) < 0.05


def test_noise_does_not_change_allowances() -> None:
    machine = Machine(lambda t: 1.8 + 0.02 * math.sin(7 * t), adapt(), slack_s=0).run(60)
    settled = machine.changes
    machine.run(60)
    assert machine.changes - settled <= 2


def test_what_the_source_takes_by_itself_is_no_slack() -> None:
    machine = Machine(lambda t: 0.6 if t < 15 else 1.8, adapt(), slack_s=8, own_s=0.1, delay_s=4.0).run(60)
    assert machine.events("limiting")
    assert max(machine.lags) <= 8 + 1.0, "rows were four seconds old when they came"


def test_a_load_that_falls_is_exact_within_ten_batches() -> None:
    machine = Machine(lambda t: 2.0 if 10 < t < 60 else 0.5, adapt(), slack_s=10).run(140)
    first_low = next(n for n, at in enumerate(machine.times) if at >= 60)
    assert machine.complete[first_low - 1] < 1
    exact_from = next(n for n in range(first_low, 140) if min(machine.complete[n:]) == 1.0)
    assert exact_from - first_low <= 10
    assert [event for _, event in machine.events()][-1] == "lifted"
    assert not any(machine.limiting.limits.values())


def test_a_load_between_lifting_and_limiting_does_not_have_limits_come_and_go() -> None:
    for load in (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2):
        machine = Machine(lambda t, load=load: 2.0 if 20 < t < 50 else load, adapt(), slack_s=2).run(200)
        assert len(machine.events("lifted")) <= 1, load
        assert len([e for e in machine.events("limiting") if e[0] > 80]) <= 1, load


def rows_for(load: float) -> float:
    """How many times the rows of load 1 a machine is to have that exact batches of a second take so many seconds of."""
    linear, square = 0.3, 1000 * 3e-4 + 1000 * 1e-4
    return (math.sqrt(linear**2 + 4 * square * (load - OTHER_S)) - linear) / (2 * square)


@pytest.mark.parametrize("load", [0.8, 0.95, 1.0, 1.05, 1.2])
@pytest.mark.parametrize(("slack_s", "throttle_s"), [(2, math.inf), (0, math.inf), (10, 1.0)])
def test_after_a_burst_a_load_that_fits_is_exact_and_limits_do_not_come_and_go(
    load: float, slack_s: int, throttle_s: float
) -> None:
    """Rows come by 2 % more or less. In a thousand batches limits end once where exact batches fit, and stay where they
    do not; also where the source hands out no more than comes, and the pipeline never catches up."""
    rng = random.Random(5)
    noise = [1 + 0.02 * rng.gauss(0, 1) for _ in range(2000)]
    rows, burst = rows_for(load), rows_for(2.5)
    machine = Machine(
        lambda t: burst if 10 < t < 40 else rows * noise[int(t)], adapt(), slack_s, throttle_s=throttle_s
    ).run(1000)  # fmt: skip
    first = next(n for n, at in enumerate(machine.times) if at >= 40)
    exact = [share == 1 for share in machine.complete[first:]]
    assert not exact[0]
    assert sum(one is not other for one, other in pairwise(exact)) <= 1
    assert sum(exact) > 0.9 * len(exact) if load < 1 else load == 1 or not any(exact)
    if load == 0.95:
        lifted = exact.index(True)
        has_caught_up = machine.lags[first + lifted] < machine.lags[FRESH] + CAUGHT_UP * slack_s + 1
        assert has_caught_up or lifted >= STEADY_BATCHES


def test_what_becomes_of_results_counts_as_part_of_finding_them() -> None:
    counted = Statistics(results=100, cpu_ns={STAGE: 4_000})
    own = QueryCommit("", "", 0, ExecutionRecord("(a b)"), Layout((), ()), statistics=counted)
    slot = SlotCommit("", None, cpu_ns=10_000, limited={"q": {"a": Limited(10, 10, 75, 75.0, cpu_ns=1_000)}})
    counted.sources = {"a": SourceStatistics(rows=10)}
    commit = Commit(1, 1, {"q": own}, {"a": 3_000_000}, {"0": slot})
    _, before = measured(Load(msgspec.structs.replace(commit, batch=0), 1.0, 3_000_000, {}), None, 1.0, True)
    sample, _ = measured(Load(commit, 1.0, 4_000_000, {}), before, 1.0, True)
    assert sample is not None
    assert sample.slots[0].cpu_s == pytest.approx(13_000e-9), "three quarters of the results are of this slot"
    assert sample.slots[0].ways["q", "a"].cpu_s == pytest.approx(4_000e-9)
    assert sample.slots[0].own_s == pytest.approx(9_000e-9)


def test_a_hot_slot_is_limited_alone() -> None:
    machine = Machine(lambda t: 0.7, adapt(), slack_s=0, slots=2, hot={1: 1.8}).run(60)
    shares = machine.shares[-1]
    assert min(share for (_, _, slot), share in shares.items() if slot == 0) == 1.0
    assert min(share for (_, _, slot), share in shares.items() if slot == 1) < 0.7
    assert "in 1 of 2 slots" in machine.journal[0][2]


def test_the_first_batches_are_not_judged() -> None:
    machine = Machine(lambda t: 0.5, adapt(), slack_s=0, cold_s=(6.0, 4.0, 3.0)).run(40)
    assert max(machine.seconds) > 5
    assert not machine.journal


def test_one_slow_batch_is_no_overload() -> None:
    machine = Machine(partial(stepped, 0.5, 1.3, 20, 21), adapt(), slack_s=0).run(60)
    assert not machine.journal


def test_where_lookups_are_a_small_part_it_is_told_once_and_nothing_is_limited() -> None:
    few = {"a": Direction(1000, 1e-5, 1.0), "b": Direction(1000, 1e-5, 1.0)}
    machine = Machine(lambda t: 2.0, adapt(), slack_s=0, own_s=0.6, ways=few).run(60)
    assert [event for _, event in machine.events()] == ["cannot help"]
    assert set(machine.complete) == {1.0}
    assert "may_shed=True" in machine.journal[0][2]


def test_with_may_shed_rows_are_dropped_where_taking_them_in_is_too_much() -> None:
    few = {"a": Direction(1000, 1e-5, 1.0), "b": Direction(1000, 1e-5, 1.0)}
    machine = Machine(
        lambda t: 2.0 if 10 < t < 60 else 0.5, adapt(may_shed=True), slack_s=5, own_s=0.6, ways=few
    ).run(150)  # fmt: skip
    assert machine.events("shedding")
    assert max(machine.lags) < 9
    assert machine.events()[-1][1] == "lifted"
    assert not machine.limiting.shed


def test_rows_are_shed_as_the_load_asks() -> None:
    machine = Machine(
        lambda t: 2.0 if 10 < t < 60 else 0.5, Overload(policy="shed", clock="wall"), slack_s=5  # type: ignore[arg-type]
    ).run(150)  # fmt: skip
    assert machine.events("shedding")
    assert max(machine.lags) < 9
    assert not machine.limiting.shed
    assert machine.lags[-1] < 3
    steady = Machine(lambda t: 1.5, Overload(policy="shed", clock="wall"), slack_s=0).run(120)  # type: ignore[arg-type]
    assert not steady.events("lifted")
    assert max(batch for batch, _ in steady.events("shedding")) < 15


def test_the_policy_to_fail_waits_for_an_overload_that_lasts() -> None:
    fail = Overload(policy="fail", clock="wall")  # type: ignore[arg-type]
    machine = Machine(partial(stepped, 0.5, 2.0, 20, 23), fail, slack_s=0).run(60)
    assert not machine.journal
    machine = Machine(lambda t: 2.0 if t > 20 else 0.5, fail, slack_s=0)
    with pytest.raises(OverloadError, match=r"times what there is time for in 10 batches") as raised:
        machine.run(60)
    assert 20 < machine.batch < 20 + LASTING_BATCHES + LATEST_BATCHES
    assert "more cores" in str(raised.value)


def test_pinned_allowances_are_set_at_the_start_and_never_changed() -> None:
    machine = Machine(lambda t: 2.0 if 20 < t < 50 else 0.4, adapt(allowances={"a": 0.4}), slack_s=0)
    assert machine.limiting.limits == {"q": {"a": Limit(share=0.4)}}
    machine.run(110)
    assert {each["q", "a", slot] for each in machine.shares for slot in (0, 1)} == {0.4}
    assert min(each["q", "b", 0] for each in machine.shares) < 1, "others are limited beside it"
    assert machine.limiting.limits == {"q": {"a": Limit(share=0.4)}}
    assert machine.events()[-1] == (machine.events()[-1][0], "limiting"), "what is pinned is still limited"


def test_queries_of_a_pipeline_share_its_capacity() -> None:
    machine = Machine(lambda t: 1.0, adapt(), slack_s=0, queries=("p", "q")).run(60)
    assert {name for name, own in machine.limiting.limits.items() if own} == {"p", "q"}
    assert max(machine.seconds[-20:]) < 1.0


def test_a_driver_that_starts_anew_goes_on_with_its_limits() -> None:
    machine = Machine(lambda t: 2.0 if 10 < t < 80 else 0.5, adapt(), slack_s=0).run(50)
    before = dict(machine.limiting.limits)
    assert before["q"]
    machine.restart(machine.limiting)
    assert machine.limiting.limits == before
    machine.run(3)
    assert max(machine.complete[-3:]) < 1
    machine.run(80)
    assert machine.complete[-1] == 1.0
    policy = OverloadLoop(Overload(policy="shed", clock="wall"), {"q": query()}, 1.0, 2, 2.0, lambda: 0.0)  # type: ignore[arg-type]
    (said,) = policy.at_start(before, {})
    assert said.action.rows == {}  # type: ignore[union-attr]


def test_cpu_that_a_user_grants_is_a_bound_without_a_clock() -> None:
    """History is read as fast as it can be; by event time it takes more CPU than granted."""
    history = Machine(lambda t: 1.0, Overload(policy="adapt joins", cpu=0.8), interval_s=None).run(60)  # type: ignore[arg-type]
    assert history.events("limiting")
    unbounded = Machine(lambda t: 5.0, Overload(policy="adapt joins"), interval_s=None).run(30)  # type: ignore[arg-type]
    assert not unbounded.journal, "history that nobody waits for is exact"


def test_a_lag_that_is_the_sources_own_does_not_keep_limits() -> None:
    machine = Machine(lambda t: 2.0 if t < 40 else 0.4, adapt(), slack_s=1, delay_s=30.0).run(140)
    assert machine.complete[-1] == 1.0
    assert CALM_BATCHES < 10


def test_the_least_slack_of_all_queries_counts() -> None:
    assert least_slack_s([query(slack_s=3), query(slack_s=7), query()]) == 3
    assert least_slack_s([query()]) is None


def test_steps_return_what_is_told_and_what_is_done() -> None:
    machine = Machine(lambda t: 2.0, adapt(), slack_s=0)
    said: list[Allowing | LoadRemark] = []
    after = machine.loop.after
    machine.loop.after = lambda load: [said.extend(found := after(load)), found][1]  # type: ignore[assignment,method-assign,func-returns-value,list-item]
    machine.run(FRESH + 3)
    first = next(each for each in said if isinstance(each, Allowing))
    assert first.details["completeness"] < 1
    assert first.details["load"] > 1.5
    assert set(first.details["shares"]) == {"a", "b"}


def served(machine: Machine, slacks: Mapping[str, int | None]) -> None:
    """Has the pipeline run these queries from the next batch on."""
    machine.queries = tuple(slacks)
    machine.limiting.serve({n: query(n, s) for n, s in slacks.items()}, machine.batch - 1, machine.tell)


def test_a_query_that_comes_counts_at_once_and_what_is_known_stays() -> None:
    """The query that comes wants fresher results. The pipeline is behind already when it does, and its batches count on."""
    machine = Machine(lambda t: 0.5 if t < 15 else 1.4, adapt(), slack_s=60).run(22)
    assert not machine.journal, "within the slack"
    before = machine.loop.state
    assert before.lag_s - (before.least_lag_s or 0.0) > 2
    served(machine, {"q": 60, "r": 2})
    assert machine.loop.state == before
    machine.run(1)
    assert machine.events("limiting"), "two seconds are used up"
    machine.run(59)
    assert max(machine.lags[-30:]) <= 2 + 1.5
    assert {name for name, own in machine.limiting.limits.items() if own} == {"q", "r"}


def test_a_query_that_leaves_counts_no_more() -> None:
    machine = Machine(lambda t: 0.9, adapt())
    served(machine, {"p": 0, "q": 30})
    machine.run(60)
    assert {name for name, own in machine.limiting.limits.items() if own} == {"p", "q"}
    served(machine, {"q": 30})
    state = machine.loop.state
    ways = {*state.allowances, *state.costs, *(way for s in state.samples for slot in s.slots.values() for way in slot.ways)}
    assert {name for name, _ in ways} == {*state.told, *state.cores} == {*machine.limiting.limits} == {"q"}
    assert (machine.loop.known.slack_s, machine.loop.known.queries) == (30, ("q",))
    machine.run(20)
    assert machine.complete[-1] == 1.0, "one query alone is not too much"


def test_an_altered_query_is_limited_as_one_that_is_new() -> None:
    machine = Machine(lambda t: 1.8, adapt(allowances={"b": 0.5}), slack_s=0).run(40)
    assert machine.limiting.limits["q"].keys() == {"a", "b"}
    told = len(machine.journal)
    served(machine, {"q": 0})
    assert machine.limiting.limits["q"].keys() == {"a", "b"}, "it is the same query"
    served(machine, {"q": 7})
    assert machine.limiting.limits["q"] == {"b": Limit(share=0.5)}
    assert not machine.loop.state.allowances, "what was known is of the query that it was"
    assert not machine.loop.state.costs
    assert [event for _, event, _ in machine.journal[told:]] == ["limiting"]
    assert machine.journal[-1][2].startswith("as asked, 50 % of rows of b look up their partners; since batch ")


def test_who_is_late_catches_up() -> None:
    """Beyond the slack lookups are limited by more than the load asks for, until the lag is within the slack; and not by so
    much that hardly anything is found meanwhile."""
    machine = Machine(lambda t: 1.5, adapt(), slack_s=2, own_s=0.1).run(5)
    machine.read_to -= 40  # rows come that had been held back
    late = machine.batch
    machine.run(12)
    assert machine.lags[late] > 40
    assert machine.lags[-1] <= 2 + 1.5, "each batch is a good deal shorter than the one before"
    assert min(machine.complete[late:]) > 0.3
