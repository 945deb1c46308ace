"""Under limits, whatever dies, and wherever: nothing arrives that is wrong, repeated or stale, and as much as commits have
told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from anabranch.adapt.overload import OverloadLoop
from anabranch.control.freshness import FAR_US
from anabranch.control.lease import Holder
from anabranch.control.records import Commit, Limit
from anabranch.drive.driver import Driver
from anabranch.drive.limiting import Limiting
from anabranch.drive.steering import Steering
from anabranch.plan.demand import read_columns
from anabranch.plan.migration import Strategy
from anabranch.plan.overload import Clock, Overload, Policy
from anabranch.plan.query import BEGINNING_US
from anabranch.plan.workload import Workload as Plans
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Fault
from tests.support.fixed_scenarios import many_batches
from tests.support.growing import JOIN, OTHER, THIRD, Growing, query_of
from tests.support.losing import with_freshness
from tests.support.scenarios import Scenario, properties, scenarios
from tests.support.simulation import Simulation
from tests.support.troubles import FAILS, FAULTS, PAUSES
from tests.support.workloads import Workload

STRATEGIES = st.sampled_from([Strategy.MOVING_STATE, Strategy.GRADUAL])
MOVES = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 3), STRATEGIES), max_size=4)


@dataclass
class Told(Simulation):
    """Remembers every commit, whoever made it. The driver's clock is never before the rows of the trigger that is next, and
    goes on with every batch that is planned; not so far that they were of another age, which is refused."""

    BESIDE: ClassVar[tuple[str, ...]] = (*Simulation.BESIDE, "told", "begun")

    told: dict[int, Commit] = field(default_factory=dict)
    latest_us: Sequence[int] = ()
    """By trigger: the largest time of the rows through it."""
    tick_us: int = 0
    begun: dict[int, set[int]] = field(default_factory=dict)
    """By batch: the clocks that its results were to be fresh by, one for each time that it was begun."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ticks = count()

    def make(self, steerings: Sequence[Steering], files: Mapping[str, str], holder: Holder) -> Driver:
        driver = super().make(steerings, files, holder)
        driver.clock = self.now_s
        if (latest := driver.commits.latest()) is not None:
            self.told[latest[1].batch] = latest[1]  # its driver may have died with it
        commit = driver.commit

        def noted(*given: Any) -> Commit:
            made = commit(*given)
            self.told[made.batch] = made
            return made

        begin = driver.begin

        def begun(trigger: int) -> Any:
            control = begin(trigger)
            self.begun.setdefault(control.batch, set()).add(control.queries["q"].clock_us)
            return control

        driver.commit, driver.begin = noted, begun  # type: ignore[method-assign]
        return driver

    def now_s(self) -> float:
        planned = min(self.done + 1, len(self.batches) - 1)
        return (self.latest_us[planned] + min(next(self.ticks) * self.tick_us, FAR_US // 2)) / 1e6

    def clocks(self) -> list[int | None]:
        """By what clock the results of each trigger were to be fresh."""
        found: dict[int, int] = {}
        for _, commit in sorted(self.told.items()):
            found.setdefault(commit.trigger, commit.queries["q"].clock_us)
        return [None if found[n] == BEGINNING_US else found[n] for n in range(len(self.batches))]


def latest_times(scenario: Scenario) -> list[int]:
    """By batch: the largest time of the rows through it; the least of all before there are any."""
    by_batch = [
        [us for s in scenario.streams if s.name in batch for us in oracle.times_us(batch[s.name], s) if us is not None]
        for batch in scenario.arrow_batches
    ]
    latest, found = min((us for times in by_batch for us in times), default=0), []
    for times in by_batch:
        latest = max([latest, *times])
        found.append(latest)
    return found


def check_losing(
    scenario: Scenario,
    fresh: int,
    clock: Clock,
    share: float,
    rows: int,
    kept: float,
    slots: int,
    to_files: bool,
    faults: Mapping[int, Fault],
    asks: Mapping[int, tuple[int, Strategy]],
    fails: Mapping[int, str],
    workers: int,
    pauses: frozenset[int],
) -> None:
    rng = np.random.default_rng(fresh)
    query, aliases = with_freshness(scenario.query, rng), scenario.query.aliases

    def limiting() -> Limiting:
        """Of the first input a share may look up, of the others some rows in the first slot; of each stream some is shed."""
        made = Limiting(Overload(Policy.ADAPT_JOINS, clock=clock, may_shed=kept < 1))
        if share < 1:
            made.limits = {"q": {aliases[0]: Limit(share=share)} | {a: Limit(rows={0: rows}) for a in aliases[1:]}}
        made.shed = {stream.name: kept for stream in scenario.streams} if kept < 1 else {}
        return made

    batches, tables = scenario.arrow_batches, scenario.arrow_tables
    shortest_us = min((i.freshness_us for i in query.inputs if i.freshness_us is not None), default=0)
    case = Told(
        [query], batches, tables, scenario.plans, slots, to_files, faults, asks, workers, fails, pauses,
        limiting=limiting, latest_us=latest_times(scenario), tick_us=shortest_us // int(rng.integers(1, 9)),
    )  # fmt: skip
    found, clocks = case.run()["q"], case.clocks()
    if clock is Clock.EVENT:
        asks_for_it = any(i.freshness_us is not None for i in query.inputs)
        assert not asks_for_it or clocks == oracle.event_clocks(batches, scenario.streams)
    else:
        assert all(len(each) == 1 for each in case.begun.values()), "a batch that runs again has the clock that it had"
    wanted = sum(oracle.fresh_by_batch(query, batches, tables, clocks), Counter())
    if share == kept == 1:
        assert not (wrong := oracle.difference(found, wanted)), wrong
    assert not found - wanted, "nothing is wrong, stale, or there too often"
    told = {batch: commit.queries["q"].statistics for batch, commit in case.told.items()}
    assert found.total() == sum(each.results for each in told.values()), "as much as was told"
    for name in (stream.name for stream in scenario.streams):
        seen = sum(batch[name].num_rows for batch in scenario.arrow_batches if name in batch)
        assert seen == sum(each.sources[name].rows for each in told.values()), "rows that were shed have been seen"
    case.verify()


test_losing, test_losing_long = properties(
    check_losing, 40, 1_000, scenario=scenarios(inputs=(2, 3, 4)), fresh=st.integers(0, 2**32 - 1),
    clock=st.sampled_from([Clock.EVENT, Clock.WALL]), share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    rows=st.integers(0, 5), kept=st.sampled_from([1.0, 0.6]), slots=st.sampled_from([1, 2, 3]), to_files=st.booleans(),
    faults=FAULTS, asks=MOVES, fails=FAILS, workers=st.integers(1, 2), pauses=PAUSES,
)  # fmt: skip


def test_a_batch_whose_results_are_all_too_old_goes_to_files() -> None:
    """The random cases found it: a piece without rows came to the writer of parquet, which takes none."""
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    windows = "a [RANGE 5 SECONDS FRESHNESS 5 SECONDS], b [RANGE 5 SECONDS]"
    script = f"{streams} CREATE QUERY q AS SELECT a.k FROM {windows} WHERE a.k = b.k"
    scenario = Scenario(script, ("(a b)",), tuple({s: [(1, n * 1_000_000)]} for n, s in enumerate("abb")))
    case = Told(
        [scenario.query], scenario.arrow_batches, {}, scenario.plans, slots=1, latest_us=[0, 1_000_000, 60_000_000],
        limiting=lambda: Limiting(Overload(clock=Clock.WALL)),
    )  # fmt: skip
    assert case.run()["q"].total() == 1
    counted = [each.queries["q"].statistics for _, each in sorted(case.told.items())]
    assert [(each.results, each.stale_results) for each in counted] == [(0, 0), (1, 0), (0, 1), (0, 0)]


HALF = Overload(Policy.ADAPT_JOINS, allowances={"p": 0.5})


def growing() -> Growing:
    """A query runs of which every second row of p looks up; others come, one is altered, one leaves."""
    drawn = Workload(35, 0, batches=7)
    batches = [drawn.batch(number) for number in range(drawn.batches)]

    def limiting() -> Limiting:
        running = {query.name: query for query in case.queries}
        return Limiting(HALF, OverloadLoop(HALF, running, None, 2, 2.0, lambda: 0.0), draw_salt=lambda: 7)

    case = Growing([query_of(drawn, "q0", JOIN)], batches, {}, slots=2, limiting=limiting)
    third = case.asking(query_of(drawn, "third", THIRD), history=False)
    come: dict[int, Any] = {
        1: case.asking(query_of(drawn, "later", OTHER), history=False),
        2: case.asking(query_of(drawn, "old", OTHER), history=True),
        3: third,
        5: lambda run: run.pipelines[0].host.runner.drop("later") if "later" in run.queries else None,
    }
    case.before.update(come)
    workload = Plans(tuple(replace(q, name=f"{q.name}_{n}") for n, q in enumerate(case.versions.values())))
    case.sources, case.columns = workload.sources, read_columns(workload)
    return case


def check_growing(case: Growing, what: str = "") -> None:
    found, wanted = case.run(), case.wanted()
    assert found.keys() == {"q0", "later", "old", "third"}
    assert not found["old"], "nobody has history where results may be lost"
    for name, results in found.items():
        assert not results - wanted.get(name, Counter()), f"{what} {name}"
        assert name == "old" or 0 < results.total() < wanted[name].total(), f"{what} {name}"
    for control in case.begun.values():
        for name, own in control.queries.items():
            assert own.limits == {"p": Limit(share=0.5)}, f"{what} {name}: batch {control.batch}"
    case.verify()


def test_queries_that_come_under_limits_have_them_from_their_first_batch(part: Part) -> None:
    """Also where the driver dies as it begins or commits a batch."""
    check_growing(growing())
    deaths = [each for each in growing().deaths("crash_after") if each.path.split("/")[1] in ("control", "commit", "coming")]
    for left in part.of(deaths):
        case = growing()
        case.go_on(left)
        check_growing(case, str(left))


def limited() -> Told:
    """Three batches of a query whose results are to be fresh, some rows of which look up, and some are shed."""
    plain = many_batches(3)
    script = plain.script.replace("[RANGE 2 SECONDS]", "[RANGE 2 SECONDS FRESHNESS 2 SECONDS]")
    scenario = Scenario(script, plain.plans, plain.batches)

    def limiting() -> Limiting:
        made = Limiting(Overload(Policy.ADAPT_JOINS, clock=Clock.EVENT, may_shed=True), draw_salt=lambda: 7)
        made.limits = {"q": {"a": Limit(share=0.5), "b": Limit(rows={0: 6, 1: 4})}}
        made.shed = {"c": 0.8}
        return made

    made = Told([scenario.query], scenario.arrow_batches, {}, scenario.plans, limiting=limiting)
    made.latest_us = latest_times(scenario)
    return made


def test_a_driver_dies_at_every_second_put_under_limits(part: Part) -> None:
    """By the same salts every batch gives what it gives where nobody dies. (Random cases die anywhere.)"""
    calm = limited()
    wanted = calm.run()["q"]
    fresh = oracle.fresh_by_batch(calm.queries[0], calm.batches, {}, calm.clocks())
    assert 0 < wanted.total() < sum(each.total() for each in fresh)
    assert not wanted - sum(fresh, Counter())
    deaths = limited().deaths("tear")
    assert {each.path.split("/")[1] for each in deaths} >= {"control", "commit", "state", "q"}
    for left in part.of([each for each in deaths if "/progress/" not in each.path][::2]):
        case = limited()
        case.go_on(left)
        assert not (wrong := oracle.difference(case.run()["q"], wanted)), f"{left}: {wrong}"
        case.verify()
