"""Queries that may lose results beside one another, each with a FRESHNESS of its own: they come and leave, change plans,
are limited and shed by other shares from batch to batch, by either clock, in several slots, and die in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.control.completeness import completeness_of
from anabranch.drive.kept import Kept
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalPipeline
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import show
from anabranch.plan.migration import Strategy
from anabranch.plan.overload import Clock, Overload
from anabranch.plan.query import BEGINNING_US, Query, Stream
from anabranch.sql import bind_query, parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.losing import may_lose, random_limits, random_shares, shuffled
from tests.support.scenarios import properties, random_plan

BATCHES = 8
STREAMS = "".join(
    f"CREATE STREAM {s} (k BIGINT, l BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;" for s in "abc"
)
CATALOG = parse_script(STREAMS).catalog


def random_query(name: str, rng: np.random.Generator, sources: str) -> Query:
    """A join of some streams, of which some may stand twice."""
    aliases = [f"{source}{place}" for place, source in enumerate(sources)]
    inputs = []
    for alias, source in zip(aliases, sources, strict=True):
        window_s = int(rng.integers(1, 6))
        fresh = f" FRESHNESS {window_s + int(rng.integers(0, 4))} SECONDS" if rng.random() < 0.6 else ""
        inputs.append(f"{source} [RANGE {window_s} SECONDS{fresh}] AS {alias}")
    where = " AND ".join(f"{aliases[n]}.{'kl'[n % 2]} = {aliases[n + 1]}.{'kl'[n % 2]}" for n in range(len(aliases) - 1))
    where += f" AND {aliases[0]}.x < {rng.integers(4, 40)}" if rng.random() < 0.3 else ""
    select = ", ".join(f"{alias}.x AS {alias}_x" for alias in aliases)
    return bind_query(name, f"SELECT {select} FROM {', '.join(inputs)} WHERE {where}", CATALOG)


class Losing:
    """A pipeline whose queries, limits and drivers change, and what each of its batches has to give."""

    def __init__(self, seed: int, slots: int, clock: Clock, lag_s: int) -> None:
        self.rng, self.slots, self.clock = np.random.default_rng(seed), slots, clock
        sources = ["abc", *("".join(self.rng.choice([*"abc"], int(self.rng.integers(2, 4)))) for _ in range(4))]
        self.waiting = [random_query(f"q{n}", self.rng, each) for n, each in enumerate(sources)]
        self.running = {query.name: query for query in (self.waiting.pop(0), self.waiting.pop(0))}
        self.since = dict.fromkeys(self.running, 0)
        self.planned = [(n + lag_s) * 1_000_000 + int(self.rng.integers(0, 4)) * 250_000 for n in range(BATCHES)]
        self.batches = [{s: self.rows(n, s) for s in "abc" if self.rng.random() < 0.9} for n in range(BATCHES)]
        self.disk, self.salts = MemoryFilesystem(), seed % 1_000_000
        self.workers = [Kept(), Kept()]
        self.restart()

    def rows(self, number: int, stream: str) -> pa.Table:
        """Late and early ones, of keys some of which are frequent."""
        count = int(self.rng.integers(0, 9))
        times = number * 1_000_000 + self.rng.integers(-2_500_000, 1_000_000, count)
        keys = np.minimum(self.rng.zipf(1.7, (2, count)), 4)
        x = self.rng.integers(0, 50, count)
        return pa.table({"k": keys[0], "l": keys[1], "x": x, "ts": pa.array(times, pa.timestamp("us"))})

    def restart(self) -> None:
        """A new driver, by other salts, mostly under a policy that may lose results; plans are those of the last commit."""
        self.salts += 1_000
        self.loses = self.rng.random() < 0.7
        limiting = may_lose(self.salts, clock=self.clock) if self.loses else Limiting(Overload(clock=self.clock))
        self.pipeline = LocalPipeline(
            [*self.running.values()], self.disk, slots=self.slots, limiting=limiting,
            clock=lambda: self.planned[min(BATCHES - 1, self.pipeline.driver.standing.batch + 1)] / 1e6,
        )  # fmt: skip

    @property
    def limiting(self) -> Limiting:
        return self.pipeline.driver.limiting

    def step(self, number: int) -> None:
        if self.loses:
            self.limiting.limits = {n: random_limits(q, self.rng, self.slots) for n, q in self.running.items()}
            self.limiting.shed = random_shares("abc", self.rng) if self.rng.random() < 0.3 else {}
        self.pipeline.worker = self.workers[int(self.rng.integers(2))]
        done = self.pipeline.step(number, self.batches[number])
        found = {name: oracle.bag(each.results) for name, each in done.items()}
        assert found.keys() == self.running.keys()
        again = self.pipeline.step(number, shuffled(self.batches[number], self.rng))
        assert {name: oracle.bag(each.results) for name, each in again.items()} == found, "in any order"
        self.pipeline.verify()
        for name, query in self.running.items():
            self.check(number, query, found[name])

    def check(self, number: int, query: Query, found: oracle.Bag) -> None:
        """Results are among those that are fresh by the clock of the batch; where all is there they are all of them."""
        commit = self.pipeline.commit
        assert commit is not None
        own = commit.queries[query.name]
        streams = [s for s in query.base_sources if isinstance(s, Stream)]
        by_events = oracle.event_clocks(self.batches, streams)
        clocks: Sequence[int | None] = self.planned if self.clock is Clock.WALL else by_events
        has_clock = any(i.freshness_us is not None for i in query.inputs)
        clock_us = clocks[number] if has_clock else None
        assert own.clock_us == (BEGINNING_US if clock_us is None else clock_us)
        before, after = (
            oracle.fresh_of(query, self.batches[:upto], {}, clock_us, since=self.since[query.name])
            for upto in (number, number + 1)
        )
        wanted = after - before
        assert not (wrong := found - wanted), f"{query.name}, batch {number}: {wrong}"
        complete = completeness_of(number, own)
        if complete is None:
            assert not (missing := wanted - found), f"{query.name}, batch {number}, is told to be exact: {missing}"
        assert own.statistics.results == found.total()
        assert not self.loses or sum(each.results for each in own.statistics.limited.values()) == found.total()

    def change(self, number: int) -> None:
        """What comes between two batches."""
        names, fate = [*self.running], int(self.rng.integers(7))
        if fate == 0:
            self.restart()
        elif fate == 1 and self.waiting:
            query = self.waiting.pop()
            self.pipeline.add(query)
            self.running[query.name], self.since[query.name] = query, number + 1
        elif fate == 2 and len(names) > 1:
            name = names[int(self.rng.integers(1, len(names)))]
            self.pipeline.drop(name)
            del self.running[name]
        elif fate in (3, 4):
            name = names[int(self.rng.integers(len(names)))]
            graph = JoinGraph(self.running[name])
            strategy = (Strategy.MOVING_STATE, Strategy.GRADUAL)[int(self.rng.integers(2))]
            self.pipeline.change(name, show(random_plan(self.rng, graph), graph), strategy)


def check_together(seed: int, slots: int, clock: Clock, lag_s: int) -> None:
    run = Losing(seed, slots, clock, lag_s)
    for number in range(BATCHES):
        run.step(number)
        if number + 1 < BATCHES:
            run.change(number)


test_losing_together, test_losing_together_long = properties(
    check_together, 25, 800, seed=st.integers(0, 2**32 - 1), slots=st.sampled_from([1, 2, 3]),
    clock=st.sampled_from([Clock.EVENT, Clock.WALL]), lag_s=st.sampled_from([0, 1, 3, 5]),
)  # fmt: skip
