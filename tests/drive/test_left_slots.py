"""Slots in which no query has a cell any more, because one has left: the others go on, and what these slots held goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.plan.demand import read_columns
from anabranch.plan.query import Query
from anabranch.plan.workload import Workload as Plans
from anabranch.run import Run
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.faulty import Crash
from tests.support.growing import JOIN, Growing, query_of
from tests.support.simulation import Taken
from tests.support.workloads import Workload

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, i BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
R = "[RANGE 3 SECONDS]"
CHAIN = f"SELECT a.x, d.x AS y FROM a {R}, b {R}, c {R}, d {R} WHERE a.k = b.k AND b.j = c.j AND c.i = d.i"
PAIR = f"SELECT a.x, b.x AS y FROM a {R}, b {R} WHERE a.k = b.k"
LEAST = f"SELECT a.x, g.m FROM a {R}, (SELECT MIN(x) AS m FROM b {R}) g WHERE a.x > g.m"
MOST = f"SELECT a.x, g.m FROM a {R}, (SELECT MAX(x) AS m FROM b {R}) g WHERE a.x < g.m"


def query(name: str, sql: str) -> Query:
    return parse_script(f"{STREAMS} CREATE QUERY {name} AS {sql}").queries[0].query


def rows(n: int) -> dict[str, pa.Table]:
    times = pa.array([n * 1_000_000 + i for i in range(6)], pa.timestamp("us"))
    keys = dict.fromkeys("kji", range(6))
    values = {s: [(3 * n + i + place) % 7 for i in range(6)] for place, s in enumerate("abcd")}
    return {s: pa.table({**keys, "x": values[s], "ts": times}) for s in "abcd"}


class Case:
    """A pipeline over several slots, and what each query has given."""

    def __init__(self, queries: Sequence[Query], slots: int) -> None:
        self.disk, self.slots, self.number = MemoryFilesystem(), slots, 0
        self.first, self.last = {q.name: (q, 0) for q in queries}, dict[str, int]()
        self.found: dict[str, oracle.Bag] = {}
        self.pipeline = self.started()

    def started(self) -> LocalPipeline:
        queries = [q for name, (q, _) in self.first.items() if name not in self.last]
        return LocalPipeline(
            queries, self.disk, slots=self.slots, release_every=1, sweep_grace_s=0.0, dropped=[*self.last]
        )

    def add(self, query: Query) -> None:
        self.first[query.name] = query, self.number
        self.pipeline.add(query)

    def drop(self, name: str) -> None:
        self.last[name] = self.number
        self.pipeline.drop(name)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            read = {s.name for q in self.pipeline.driver.queries.values() for s in q.query.base_sources}
            read |= {s.name for q, first in self.first.values() if first == self.number for s in q.base_sources}
            for name, step in self.pipeline.step(self.number, self.given(self.number, read)).items():
                self.found[name] = self.found.get(name, Counter()) + oracle.bag(step.results)
            self.pipeline.verify()
            self.number += 1

    def given(self, n: int, read: set[str]) -> Mapping[str, pa.Table]:
        return {name: table for name, table in rows(n).items() if name in read}

    def files(self) -> dict[str, int]:
        """How many files there are, by slot."""
        return {slot: len(self.disk.list(f"state/{slot}")) for slot in self.disk.folders("state")}

    def check(self) -> None:
        for name, (each, first) in self.first.items():
            read = {s.name for s in each.base_sources}
            batches = [self.given(n, read) for n in range(self.last.get(name, self.number))]
            wanted = oracle.expected_of_stay(each, batches, {}, first, first, closes=False)
            assert wanted
            assert not (wrong := oracle.difference(self.found[name], wanted)), f"{name}: {wrong}"


def in_every_second_slot() -> Case:
    """A chain of four streams over a grid of two times two, and a join of its first two, which has half of the cells."""
    case = Case([query("w", CHAIN), query("p", PAIR)], 4)
    grids = {name: each.distribution.grid for name, each in case.pipeline.driver.queries.items()}
    assert [slot for slot in range(4) if grids["p"].has(slot)] == [0, 2]
    assert all(grids["w"].has(slot) for slot in range(4))
    return case


def test_some_slots_have_no_query_any_more() -> None:
    case = in_every_second_slot()
    case.step(2)
    assert case.files().keys() == set("0123")
    case.drop("w")
    case.step(2)
    assert case.files().keys() == set("02"), "what a slot held that nobody needs is deleted"
    case.pipeline = case.started()
    case.add(query("again", CHAIN))
    case.step(2)
    assert case.files().keys() == set("0123")
    case.check()


def test_a_query_is_left_out_at_a_start() -> None:
    case = in_every_second_slot()
    case.step(3)
    case.last["w"] = case.number
    case.pipeline = case.started()
    case.step(2)
    assert case.files().keys() == set("02")
    case.check()


def test_a_pipeline_keeps_its_slots_while_it_runs() -> None:
    """Spark's dataflow has as many, whoever comes and goes. At the next start there are as many as queries need."""
    case = Case([query("p", PAIR), query("q", LEAST)], 4)
    assert [each.distribution.grid.cells for each in case.pipeline.driver.queries.values()] == [4, 1]
    case.step(2)
    case.drop("p")
    case.step()
    case.add(query("r", MOST))
    case.step(2)
    commit = case.pipeline.commit
    assert commit is not None
    assert (case.pipeline.driver.slots, [*commit.slots]) == (4, ["0", "1", "2", "3"])
    assert case.files().keys() == {"0"}
    case.pipeline = case.started()
    assert case.pipeline.driver.slots == 1
    case.step(3)
    case.check()


def test_files_of_slots_that_a_start_does_without_go_at_the_next() -> None:
    """The newest commit and the one before it name them at first."""
    case = Case([query("p", PAIR), query("q", LEAST)], 4)
    case.step(2)
    case.last["p"] = case.number
    case.pipeline = case.started()
    case.step(2)
    case.pipeline = case.started()
    assert case.files().keys() == {"0"}
    case.step()
    case.check()


def test_a_start_has_the_slots_of_those_that_are_to_come() -> None:
    """The dataflow of Spark's is made before the first batch begins, with which they come."""
    drawn = Workload(35, 0, batches=3)
    largest = "(SELECT MAX(x) AS m FROM b [RANGE 3 SECONDS]) AS g"
    one = query_of(drawn, "one", f"SELECT p.x, g.m FROM a [RANGE 2 SECONDS] AS p, {largest} WHERE p.x > g.m")
    case = Growing([one], [drawn.batch(n) for n in range(3)], {}, slots=4)
    four = query_of(drawn, "four", JOIN)
    asked, case.columns = case.asking(four, history=False), read_columns(Plans((one, four)))

    def dies(run: Run) -> None:
        asked(run)
        raise Crash("before the query comes")

    case.before[1] = dies
    with pytest.raises(Crash):
        case.live()
    holder = Taken(case.checkpoint)  # type: ignore[arg-type]
    holder.acquire()
    driver, _, _ = case.started(holder)
    assert [each.distribution.grid.cells for each in driver.queries.values()] == [1]
    assert driver.coming.keys() == {"four"}
    assert driver.slots == 4
    holder.die()
    case.check()
