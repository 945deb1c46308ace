"""Ours: all queries in one pipeline, each in its own, or one query by hand whose sink makes the results of all.

What does not count of a batch's CPU, because every way has it alike and none can spare it: the encoding and writing of
results, and the calls of sinks. Tasks tell what staging takes of their threads' CPU (`Progress.staging_cpu_s`); calls are
clocked here, by the CPU of the thread that makes them. Of the query by hand only that part of its sink is left out which
encodes and writes: the filters and projections that it makes for each query count. Reading files, the exchange, writing and
reading of state, records, commits and all that Spark does count in every way.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.control.records import QueryCommit
from anabranch.drive.delivery import Outlet, Results
from bench.many.case import BY_HAND, SEPARATE, WARM, Case, steady, told, wait
from bench.many.queries import Asked, asked
from bench.workload import SHAPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.run import Run
    from anabranch.session import Session

KINDS = {"index": "indexes", "view": "views", "groups": "groups"}
"""What states are called in a commit, and in the table."""
SETTINGS = {"spark.driver.memory": "4g", "spark.sql.streaming.pollingDelay": "200ms"}
"""How often Spark asks for rows that are not there: pipelines wait for each other, which is not to cost much."""


@dataclass(frozen=True)
class Clock:
    """CPU of threads, by batch."""

    spent_ns: Counter[int] = field(default_factory=Counter)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def running(self, batch: int) -> Iterator[None]:
        began = thread_time_ns()
        try:
            yield
        finally:
            with self._changing:
                self.spent_ns[batch] += thread_time_ns() - began

    def mean_s(self, batches: Iterable[int]) -> float:
        return float(np.mean([self.spent_ns[batch] for batch in batches])) / 1e9


@dataclass(frozen=True)
class Clocked:
    """An outlet whose calls are clocked."""

    outlet: Outlet
    clock: Clock

    @property
    def takes_files(self) -> bool:
        return self.outlet.takes_files

    @property
    def name(self) -> str:
        return self.outlet.name

    def take(self, results: Results) -> int | None:
        with self.clock.running(results.batch):
            return self.outlet.take(results)


@dataclass(frozen=True)
class ByHand:
    """The sink of the query by hand: it makes the results of every query from those of the longest window without
    filters. A result is a query's if its oldest row is younger than the query's window when its newest comes, and if it
    passes the query's filter."""

    queries: Sequence[Asked]
    selected: Sequence[str]
    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __call__(self, results: pa.Table, number: int) -> None:
        for query, own in self.routed(results):
            with self.clock.running(number):
                (self.folder / query.name).mkdir(exist_ok=True, parents=True)
                path = self.folder / query.name / f"{number}.parquet"
                pq.write_table(own, path, compression="lz4", use_dictionary=False)

    def routed(self, results: pa.Table) -> Iterator[tuple[Asked, pa.Table]]:
        """Each query with its results."""
        results = results.combine_chunks()
        times = [column.cast(pa.int64()) for name, column in _columns(results).items() if name.endswith("_ts")]
        ages_us = pc.subtract(pc.max_element_wise(*times), pc.min_element_wise(*times))
        selected = results.select(self.selected)
        for query in self.queries:
            is_own = pc.less(ages_us, query.window_us)
            if query.stream:
                is_own = pc.and_(is_own, pc.less(results.column(f"{query.stream}_v"), query.passing))
            yield query, selected.filter(is_own)


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def run(case: Case, spark: SparkSession, work: Path) -> dict[str, Any]:
    """Runs a case. Before it, the largest query runs alone over all files, several times: a JVM that has compiled little
    takes twice the CPU for a batch, and one that runs many pipelines would have compiled more."""
    from anabranch.spark.published import read

    for place in range(case.warm_ups):
        folder = work / f"warm-up-{place}"
        declared(case, spark, folder, case.folder, asked(1)).start(availableNow=True).await_termination()
        shutil.rmtree(folder)
    case.link(range(1), work / "in" / "first")
    case.link(range(1, case.batches), work / "rest")
    selected = [column.replace(".", "_") for column in case.workload.selected]
    sink = ByHand(case.asked, selected, work / "out") if is_by_hand(case) else None
    queries = case.asked if sink is None else asked(1)
    started = declared(case, spark, work, f"{work}/in/*", queries, sink).start(processingTime="0 seconds")
    try:
        clock = sink.clock if sink is not None else clocked_sinks(started)
        found = measure(started, case, clock, lambda: (work / "rest").rename(work / "in" / "rest"))
    finally:
        started.stop()

    def published(folder: Path) -> pa.Table:
        results = read(str(folder)).to_table()
        return results.drop(["batch"]) if results.num_columns else results

    return {**found, **told(work / "out", case.asked, published if sink is None else None)}


def is_by_hand(case: Case) -> bool:
    return case.way == BY_HAND


def declared(
    case: Case, spark: SparkSession, work: Path, files: str, queries: Sequence[Asked], sink: ByHand | None = None
) -> Session:
    """Queries over files, with results in folders of their names, or by hand."""
    import anabranch as ab
    from anabranch.cost.facts import Given

    workload = case.workload
    joined = [term for pair in SHAPES[workload.shape] for term in pair]
    distinct = {term: float(workload.keys[term.partition(".")[2]]) for term in joined}
    facts = Given(dict.fromkeys(workload.streams, float(case.rate_per_s)), {}, distinct)
    session = ab.Session(
        spark, str(work / "checkpoint"), facts=facts, adapt=ab.Adapt(timing="never"), idle_close=None,
        share=case.way != SEPARATE,
    )  # fmt: skip
    for stream in workload.streams:
        session.stream(stream, f"{files}/{stream}/*.parquet", time="ts", max_files_per_trigger=1)
    for query in queries:
        to = ab.sinks.arrow(sink) if sink is not None else ab.sinks.parquet(str(work / "out" / query.name))
        session.query(query.name, query.sql(workload, times=sink is not None), sink=to, plan=case.plan)
    return session


def clocked_sinks(started: Run) -> Clock:
    """Has all calls of sinks clocked from now on."""
    clock = Clock()
    for pipeline in started.pipelines:
        for line in pipeline.host.delivery.lines.values():
            line.outlet = Clocked(line.outlet, clock)
    return clock


def measure(started: Run, case: Case, clock: Clock, release: Callable[[], object]) -> dict[str, Any]:
    """Figures of a batch, in steady state. All batches but the first appear at once, when every pipeline has done it."""
    pipelines = started.pipelines

    def done() -> list[int]:
        return [pipeline.host.driver.standing.batch + 1 for pipeline in pipelines]

    def look() -> None:
        started.await_termination(0)

    wait(lambda: min(done()) >= 1, look)
    release()
    found = steady(case, done, look)
    for pipeline in pipelines:
        pipeline.streaming.processAllAvailable()
    wait(lambda: all(pipeline.host.delivery.first_waiting is None for pipeline in pipelines), look)
    newest = [pipeline.host.driver.newest for pipeline in pipelines]
    measured = range(WARM, case.batches)
    progress = [step for steps in started.progress.values() for step in steps if step.batch in measured]
    phases = {part: float(np.mean([step.wall_s.get(part, 0.0) for step in progress])) for part in progress[0].wall_s}
    return {
        **found,
        "left_out_s": {
            "staging": sum(step.staging_cpu_s for step in progress) / len(measured),
            "writing" if is_by_hand(case) else "sinks": clock.mean_s(measured),
        },
        "state_bytes": state_bytes(commit.queries for commit in newest if commit is not None),
        "phases_s": {name: round(spent, 4) for name, spent in sorted(phases.items(), key=lambda p: -p[1])},
        "plans": started.plans,
    }


def state_bytes(pipelines: Iterable[Mapping[str, QueryCommit]]) -> dict[str, int]:
    """Bytes of logs, indexes, views and groups: of each pipeline what its queries have, what they share once."""
    found = dict.fromkeys(("logs", *KINDS.values()), 0)
    for committed in pipelines:
        own: dict[tuple[str, str], int] = {}
        for query in committed.values():
            states = [(("logs", name), source.state_bytes) for name, source in query.statistics.sources.items()]
            states += [((KINDS[state.kind], state.name), state.bytes) for state in query.statistics.states]
            for key, size in states:
                own[key] = max(size, own.get(key, 0))
        for (kind, _), size in own.items():
            found[kind] += size
    return found
