"""Rows that are early and streams that are idle, by the driver's clock, against the oracle: drawn at random, and by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.control.records import Commit, ExecutionRecord, QueryCommit
from anabranch.control.watermark import next_watermark, watermark_of
from anabranch.drive.local import LocalRun, Step
from anabranch.plan.query import AHEAD_US, BEGINNING_US, FOREVER_US, LATEST_US, Query, Stream
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape, shapes
from tests.support.scenarios import Scenario, properties, scenarios

SECOND_US = 1_000_000


def with_clauses(script: str, rng: np.random.Generator, span_us: int) -> str:
    """The script with AHEAD and IDLE for some of its streams."""

    def clauses(_: re.Match[str]) -> str:
        ahead = rng.choice(["", "AHEAD NONE", "AHEAD 0 SECONDS", f"AHEAD {span_us // 8 + 1} MICROSECONDS"])
        idle = rng.choice(["", "IDLE 1 MICROSECOND", f"IDLE {span_us // 3 + 1} MICROSECONDS"])
        return f"TIME ts {ahead} {idle}"

    return re.sub("TIME ts", clauses, script)


@dataclass
class Case:
    """A query over batches, and what the driver's clock shows when each is first planned; closing steps follow."""

    query: Query
    batches: Sequence[Mapping[str, pa.Table]]
    tables: Mapping[str, pa.Table]
    clocks: list[int]
    plan: str | None = None

    @property
    def streams(self) -> list[Stream]:
        return [s for s in self.query.base_sources if isinstance(s, Stream)]

    def run(self, again: Sequence[int] = (), stops: Sequence[int] = ()) -> list[Step]:
        """All steps. Some batches run again, at a time by which all would be different, some in a new process."""
        disk, now, steps, planned = MemoryFilesystem(), 0, [], []
        tables = dict(self.tables)

        def start(plan: str | None) -> LocalRun:
            return LocalRun(self.query, disk, plan, tables, clock=lambda: now / 1e6)

        run = start(self.plan)
        for number, clock in enumerate(self.clocks):
            now, rows = clock, self.batches[number] if number < len(self.batches) else {}
            done = run.step(number, rows)
            planned.append(run.controls.read(number).planned_us)
            assert abs(planned[-1] - clock) <= 1, "a clock of seconds is a float"
            if number in stops:
                run = start(None)
            if number in again:
                now = clock + 10**15 if number % 2 else clock - 10**15
                repeated = run.step(number, rows)
                assert oracle.bag(repeated.results) == oracle.bag(done.results)
                assert repeated.watermark_us == done.watermark_us
            steps.append(done)
        self.clocks = planned
        return steps

    def check(self, **how: Any) -> None:
        steps = self.run(**how)
        law = oracle.accepted(self.batches, self.streams, self.clocks)
        found: oracle.Bag = Counter()
        for number, done in enumerate(steps):
            found += oracle.bag(done.results)
            watermark = law.watermarks[number]
            assert done.watermark_us == (BEGINNING_US if watermark is None else watermark), number
            for name in self.batches[number] if number < len(self.batches) else ():
                counts = done.statistics.sources[name]
                counted = counts.early_rows, counts.late_rows, counts.untimed_rows
                assert counted == (law.early[number][name], law.late[number][name], law.untimed[number][name])
        wanted = oracle.expected(self.query, self.batches, self.tables, self.clocks)
        assert not (wrong := oracle.difference(found, wanted)), wrong


def clocks_of(rng: np.random.Generator, times: Sequence[int], batches: int, span_us: int) -> list[int]:
    """A clock that goes along with the rows, unevenly, at times back; two closing steps, the second after a long pause."""
    start = min(times, default=0)
    paces = np.sort(rng.random(batches + 1)) + rng.choice([0.0, -0.3, 0.5])
    clocks = [start + int(pace * span_us) for pace in paces]
    if batches and rng.random() < 0.2:
        clocks[batches // 2] -= span_us // 2
    return [*clocks, clocks[-1] + 2 * span_us]


def check_joins(scenario: Scenario, seed: int, again: Sequence[int], stops: Sequence[int]) -> None:
    rng = np.random.default_rng(seed)
    times = [row[-1] for batch in scenario.batches for rows in batch.values() for row in rows if row[-1] is not None]
    span_us = max(times, default=0) - min(times, default=0) + 1
    query = parse_script(with_clauses(scenario.script, rng, span_us)).queries[0].query
    clocks = clocks_of(rng, times, len(scenario.batches), span_us)
    case = Case(query, scenario.arrow_batches, scenario.arrow_tables, clocks, scenario.plans[0])
    case.check(again=again, stops=stops)


NUMBERS = st.lists(st.integers(0, 9), max_size=3)
test_joins, test_joins_long = properties(
    check_joins, 60, 1_500, scenario=scenarios(), seed=st.integers(0, 2**32 - 1), again=NUMBERS, stops=NUMBERS
)


def check_continuous(shape: Shape, again: Sequence[int], stops: Sequence[int]) -> None:
    """Groups and subqueries too; times are from 0 to 17 s."""
    drawn, rng = Continuous(shape), np.random.default_rng(shape.seed)
    query = parse_script(with_clauses(drawn.script, rng, 12 * SECOND_US)).queries[0].query
    tables = {name: rows for name, rows in drawn.tables.items() if name in {s.name for s in query.base_sources}}
    clocks = clocks_of(rng, [5 * SECOND_US], len(drawn.batches), 12 * SECOND_US)
    Case(query, drawn.batches, tables, clocks).check(again=again, stops=stops)


test_continuous, test_continuous_long = properties(
    check_continuous, 60, 1_500, shape=shapes(), again=NUMBERS, stops=NUMBERS
)


# -- cases by hand ---------------------------------------------------------------------------------------------------

JOIN = """CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts {a}; CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts {b};
          CREATE QUERY q AS SELECT a.k, b.ts FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k"""


def rows_at(*seconds: float) -> pa.Table:
    times = pa.array([int(s * SECOND_US) for s in seconds], pa.int64()).view(pa.timestamp("us"))
    return pa.table({"k": pa.array([1] * len(seconds), pa.int64()), "ts": times})


def case_of(a: str, b: str, *batches: tuple[float, Mapping[str, pa.Table]]) -> Case:
    query = parse_script(JOIN.format(a=a, b=b)).queries[0].query
    return Case(query, [rows for _, rows in batches], {}, [int(at * SECOND_US) for at, _ in batches])


def watermarks(case: Case) -> list[float | None]:
    """In seconds, of each batch; None before there is one."""
    case.check()
    return [None if s.watermark_us == BEGINNING_US else s.watermark_us / SECOND_US for s in case.run()]


def test_a_row_is_early_when_it_is_later_than_the_clock_and_what_the_stream_allows() -> None:
    case = case_of("AHEAD 10 SECONDS", "", (100, {"a": rows_at(99, 110, 110.000001, 5000), "b": rows_at(99)}), (101, {}))
    first, second = case.run()
    counts = first.statistics.sources["a"]
    assert (counts.rows, counts.early_rows, counts.late_rows) == (4, 2, 0)
    assert counts.largest_time_us == 110 * SECOND_US
    assert second.watermark_us == 99 * SECOND_US
    case.check()


def test_by_default_a_day_is_allowed() -> None:
    assert AHEAD_US == 24 * 3600 * SECOND_US
    day = 24 * 3600
    case = case_of("", "AHEAD NONE", (7, {"a": rows_at(7 + day, 7.000001 + day), "b": rows_at(10**12)}))
    (done,) = case.run()
    assert {n: s.early_rows for n, s in done.statistics.sources.items()} == {"a": 1, "b": 0}


def test_rows_of_the_past_and_gaps_turn_nothing_away() -> None:
    """However long ago, and however far apart: the clock decides, not the rows before."""
    years = 365 * 24 * 3600
    far_apart = {"a": rows_at(50 * years), "b": rows_at(0)}
    case = case_of("", "", (50 * years, {"a": rows_at(-(10**11), 0)}), (50 * years, far_apart))
    assert all(s.early_rows == 0 for done in case.run() for s in done.statistics.sources.values())
    case.check()


@pytest.mark.parametrize(("planned_us", "ahead_us"), [(2**62, 2**62), (FOREVER_US, 0), (0, 2**63), (-(2**63), 2**63 - 1)])
def test_limits_at_the_end_of_time(planned_us: int, ahead_us: int) -> None:
    limit = Stream("s", (), "ts", ahead_us=ahead_us).early_after_us(planned_us)
    assert limit == min(planned_us + ahead_us, LATEST_US)
    assert np.int64(limit) == limit


def test_rows_that_would_end_after_the_end_of_time_are_early() -> None:
    """Also where any time is allowed: the end of their window would lie before its start."""
    ends = [FOREVER_US, FOREVER_US - 1_000_000, LATEST_US + 1, LATEST_US, 0]
    rows = pa.table({"k": [1] * 5, "ts": pa.array(ends, pa.int64()).cast(pa.timestamp("us"))})
    case = case_of("AHEAD NONE", "AHEAD NONE", (0, {"a": rows, "b": rows}), (0, {"a": rows.slice(4), "b": rows.slice(3, 1)}))
    done = case.run()
    assert {name: s.early_rows for name, s in done[0].statistics.sources.items()} == {"a": 3, "b": 3}
    assert done[0].results.num_rows == 2
    case.check()


def test_early_rows_alone_are_no_sign_of_life() -> None:
    """They move no watermark, and a stream that shows no others is idle."""
    both, early = {"a": rows_at(0), "b": rows_at(0)}, {"a": rows_at(2), "b": rows_at(10**9)}
    case = case_of("", "IDLE 3 SECONDS", (0, both), (2, early), (4, {"a": rows_at(4)}), (4, {}))
    assert watermarks(case) == [None, 0, 2, 4]


def test_without_a_timeout_a_silent_stream_holds_the_watermark_back() -> None:
    case = case_of("", "", (0, {"a": rows_at(0)}), (1000, {"a": rows_at(1000)}), (2000, {}))
    assert watermarks(case) == [None, None, None]


def test_an_idle_stream_does_not() -> None:
    """It never showed anything: the clock of the first batch counts. It is idle after more than its timeout, not sooner."""
    batches = [(90, {"a": rows_at(0)}), (93, {"a": rows_at(3)}), (93.000001, {"a": rows_at(4)}), (95, {})]
    assert watermarks(case_of("", "IDLE 3 SECONDS", *batches)) == [None, None, 3, 4]


def test_a_stream_that_wakes_holds_back_what_is_to_come_and_is_late() -> None:
    case = case_of(
        "", "IDLE 3 SECONDS",
        (0, {"a": rows_at(0), "b": rows_at(0)}), (5, {"a": rows_at(5)}), (6, {"a": rows_at(6)}),
        (7, {"a": rows_at(7), "b": rows_at(1, 7)}), (8, {"a": rows_at(12), "b": rows_at(7.5)}), (9, {"a": rows_at(13)}),
    )  # fmt: skip
    assert watermarks(case) == [None, 0, 5, 6, 7, 7.5]
    assert [s.statistics.sources["b"].late_rows for s in case.run()] == [0, 0, 0, 1, 0, 0]


def test_when_all_are_idle_all_that_have_shown_a_row_count() -> None:
    """A closing step after a pause gives what it would without timeouts; one that never showed anything does not count."""
    both = {"a": rows_at(5), "b": rows_at(3)}
    assert watermarks(case_of("IDLE 1 SECOND", "IDLE 1 SECOND", (0, both), (100, {}), (101, {}))) == [None, 3, 3]
    one = {"a": rows_at(5)}
    assert watermarks(case_of("IDLE 1 SECOND", "IDLE 1 SECOND", (0, one), (100, {}), (101, {}))) == [None, 5, 5]
    assert watermarks(case_of("IDLE 1 SECOND", "IDLE 1 SECOND", (0, {}), (100, {}), (101, {}))) == [None, None, None]


def test_the_watermark_never_goes_back() -> None:
    """Not for a stream that wakes, nor where the lateness of a stream was changed between two runs."""
    query = case_of("", "LATENESS 9 SECONDS IDLE 1 SECOND").query
    seen = {"a": 50 * SECOND_US, "b": 20 * SECOND_US}
    own = QueryCommit("", "", 50 * SECOND_US, ExecutionRecord("(a b)"))
    base = Commit(4, 4, {query.name: own}, seen, last_seen_us={"a": 0, "b": 0})
    assert watermark_of(query, seen) == 11 * SECOND_US
    assert next_watermark(query, base, 1, [query.name]) == 50 * SECOND_US
