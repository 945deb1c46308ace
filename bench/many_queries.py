"""What queries cost that run in one pipeline, beside the same in pipelines of their own: `python -m bench.many_queries`.

Every query joins three streams of 50,000 rows per second, in a chain, over a window of its own: that of the first query is
4 s long, that of the last 0.5 s. Of three queries one filters the first stream and one the last, by a predicate that half
of the rows pass. A row finds one partner in each stream it is joined with, within the longest window. Plans are chosen by
these facts when the queries start, and stay (`--plan` pins another). Batches have one second of event time, rows come
through our reader, results go to parquet.

Each case is a fresh process with a fresh Spark, which first runs the largest query alone over all files, several times: a
JVM that has compiled little takes twice the CPU for a batch, and one that runs many pipelines would have compiled more.
Then the queries start with the first batch; all others appear at once when every pipeline has done that one. Measured is
from when every pipeline has its windows full until one has done all batches: CPU seconds of the whole process tree (driver,
JVM, Python workers) and wall seconds, by the batches done meanwhile; where there are several pipelines, a batch is one of
each. State is that of the last commits, and what queries share counts once. Results must be the same in both ways.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from anabranch.control.records import QueryCommit
from bench import report
from bench.data import write_files
from bench.processes import tree_cpu_s, watched
from bench.workload import SECOND_US, SHAPES, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.run import Run
    from anabranch.session import Session

RATE_PER_S, LONGEST_S, SHORTEST_S = 50_000, 4.0, 0.5
FILTERS = ("", " AND a.v < 0.5", " AND c.v < 0.5")
WARM = 6
"""Batches until windows are full and the first rows have ended."""
MEASURED = 8
WARM_UPS = 4
"""How often the largest query runs alone before anything is measured."""
LIMIT_S = 1800.0
TARGET_QUERIES = 12
CPU_TARGET, LOGS_TARGET, STATE_TARGET = 1 / 5, 1.1, 1 / 3
"""What queries in one pipeline may take at most: CPU and state beside those in pipelines of their own, logs beside those of
the largest query alone."""
KINDS = {"index": "indexes", "view": "views", "groups": "groups"}
"""What states are called in a commit, and in the table."""
SHOWN = (
    "queries", "way", "CPU s", "driver s", "JVM s", "workers s", "wall s", "peak MB", "logs MB", "indexes MB", "views MB",
    "state MB", "results",
)  # fmt: skip
POLL_S, LOOK_S = 0.05, 5.0
"""How often is asked how far pipelines are, and whether they are still alive."""
IDLE_POLL = "200ms"
"""How often Spark asks for rows that are not there: pipelines wait for each other, which is not to cost much."""


@dataclass(frozen=True)
class Case:
    """Some queries, in one pipeline or each in its own."""

    queries: int
    is_shared: bool
    rate_per_s: int
    measured: int
    folder: str
    plan: str | None = None
    warm_ups: int = WARM_UPS
    cores: int = 2

    @property
    def workload(self) -> Workload:
        return Workload("3-way chain", self.rate_per_s, LONGEST_S, 1)

    @property
    def batches(self) -> int:
        return WARM + self.measured

    @property
    def way(self) -> str:
        return "alone" if self.queries == 1 else "one pipeline" if self.is_shared else "separate"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.many_queries", "--case", json.dumps(asdict(self))]


def windows_us(count: int) -> list[int]:
    """The windows of so many queries, the longest first.

    >>> windows_us(3)
    [4000000, 2250000, 500000]
    """
    step = (LONGEST_S - SHORTEST_S) / max(1, count - 1)
    return [round((LONGEST_S - place * step) * SECOND_US) for place in range(count)]


def queries(workload: Workload, count: int) -> dict[str, str]:
    """The queries as SQL, by name. The first is the largest, whatever their number."""
    select = ", ".join(f"{c} AS {c.replace('.', '_')}" for c in workload.selected)
    joined = f"SELECT {select} FROM {', '.join(workload.streams)} WHERE {workload.where}"
    windows = enumerate(windows_us(count))
    return {f"q{n}": f"{joined}{FILTERS[n % len(FILTERS)]} WINDOW {us} MICROSECONDS" for n, us in windows}


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


def digest(results: pa.Table) -> int:
    """A number that a multiset of results has, whatever their order."""
    mixed = np.zeros(len(results), np.uint64)
    for column in results.columns:
        words = column.combine_chunks().to_numpy(zero_copy_only=False).view(np.uint64)
        mixed = (mixed ^ words) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum())


# -- a case, in a process of its own ---------------------------------------------------------------------------------


def run(case: Case) -> dict[str, Any]:
    """Runs a case in this process."""
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session
    from anabranch.spark.published import read

    warm_up()
    work = Path(tempfile.mkdtemp())
    try:
        settings = {"spark.driver.memory": "4g", "spark.sql.streaming.pollingDelay": IDLE_POLL}
        spark = create_session(f"local[{case.cores}]", settings)
        for place in range(case.warm_ups):
            folder = work / f"warm-up-{place}"
            alone = declared(replace(case, queries=1), spark, folder, case.folder)
            alone.start(availableNow=True).await_termination()
            shutil.rmtree(folder)
        _link(case, range(1), work / "in" / "first")
        _link(case, range(1, case.batches), work / "rest")
        started = declared(case, spark, work, f"{work}/in/*").start(processingTime="0 seconds")
        found = measure(started, case, lambda: (work / "rest").rename(work / "in" / "rest"))
        started.stop()
        results = [read(str(work / name)).to_table().drop(["batch"]) for name in queries(case.workload, case.queries)]
        return {**found, "results": sum(map(len, results)), "digests": [digest(table) for table in results]}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def declared(case: Case, spark: SparkSession, work: Path, files: str) -> Session:
    """The queries of a case over files, with results in folders of their names."""
    import anabranch as ab
    from anabranch.cost.facts import Given

    workload = case.workload
    joined = [term for pair in SHAPES[workload.shape] for term in pair]
    distinct = {term: float(workload.keys[term.partition(".")[2]]) for term in joined}
    facts = Given(dict.fromkeys(workload.streams, float(case.rate_per_s)), {}, distinct)
    session = ab.Session(
        spark, str(work / "checkpoint"), facts=facts, adapt=ab.Adapt(timing="never"), idle_close=None, share=case.is_shared
    )  # fmt: skip
    for stream in workload.streams:
        session.stream(stream, f"{files}/{stream}/*.parquet", time="ts", max_files_per_trigger=1)
    for name, sql in queries(workload, case.queries).items():
        session.query(name, sql, sink=ab.sinks.parquet(str(work / name)), plan=case.plan)
    return session


def _link(case: Case, batches: Iterable[int], folder: Path) -> None:
    """Some batches of the files, in another folder."""
    for stream in case.workload.streams:
        (folder / stream).mkdir(parents=True)
        for number in batches:
            name = f"{number:06d}.parquet"
            (folder / stream / name).symlink_to(Path(case.folder, stream, name).absolute())


def measure(started: Run, case: Case, release: Callable[[], object]) -> dict[str, Any]:
    """Figures of a batch, in steady state."""
    pipelines = started.pipelines

    def done() -> list[int]:
        return [pipeline.host.driver.standing.batch + 1 for pipeline in pipelines]

    def wait(is_reached: Callable[[], bool]) -> None:
        looked = time.monotonic()
        while not is_reached():
            time.sleep(POLL_S)
            if time.monotonic() - looked > LOOK_S:
                started.await_termination(0)  # raises what a pipeline has failed with
                looked = time.monotonic()

    wait(lambda: min(done()) >= 1)
    release()
    wait(lambda: min(done()) >= WARM)
    marks = [(tree_cpu_s(os.getpid()), time.perf_counter(), sum(done()))]
    wait(lambda: max(done()) >= case.batches)
    marks.append((tree_cpu_s(os.getpid()), time.perf_counter(), sum(done())))
    for pipeline in pipelines:
        pipeline.streaming.processAllAvailable()
    wait(lambda: all(pipeline.host.delivery.first_waiting is None for pipeline in pipelines))
    (cpu_before, wall_before, done_before), (cpu_after, wall_after, done_after) = marks
    batches = (done_after - done_before) / len(pipelines)
    if batches <= 0:
        raise SystemExit(f"a pipeline had done all {case.batches} batches before others were measured: more are needed")
    newest = [pipeline.host.driver.newest for pipeline in pipelines]
    progress = [step for steps in started.progress.values() for step in steps if WARM <= step.batch < case.batches]
    phases = {part: float(np.mean([step.wall_s.get(part, 0.0) for step in progress])) for part in progress[0].wall_s}
    return {
        "pipelines": len(pipelines),
        "batches": batches,
        "cpu_s": {kind: (cpu_after[kind] - cpu_before[kind]) / batches for kind in cpu_after},
        "wall_s": (wall_after - wall_before) / batches,
        "state_bytes": state_bytes(commit.queries for commit in newest if commit is not None),
        "phases_s": {name: round(spent, 4) for name, spent in sorted(phases.items(), key=lambda p: -p[1])},
        "plans": started.plans,
    }


# -- all cases -------------------------------------------------------------------------------------------------------


def row_of(case: Case, found: Mapping[str, Any]) -> dict[str, Any]:
    """A case as a row of the table."""
    cpu, sizes = found["cpu_s"], found["state_bytes"]
    return {
        "queries": case.queries, "way": case.way, "rate": case.rate_per_s, "CPU s": sum(cpu.values()),
        "driver s": cpu["root"], "JVM s": cpu["java"], "workers s": cpu["others"], "wall s": found["wall_s"],
        "peak MB": found["peak_rss_bytes"] / 1e6, **{f"{kind} MB": size / 1e6 for kind, size in sizes.items()},
        "state MB": sum(sizes.values()) / 1e6, "results": found["results"],
        **{name: found[name] for name in ("pipelines", "batches", "phases_s", "plans", "digests")},
    }  # fmt: skip


def targets(rows: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    """What so many queries in one pipeline take beside what they may."""
    found = {(row["queries"], row["way"]): row for row in rows}
    alone, shared, separate = found.get((1, "alone")), found[count, "one pipeline"], found.get((count, "separate"))
    asked = [
        ("CPU beside separate pipelines", "CPU s", separate, CPU_TARGET),
        ("logs beside those of the largest query alone", "logs MB", alone, LOGS_TARGET),
        ("state beside separate pipelines", "state MB", separate, STATE_TARGET),
    ]
    return [
        {"queries": count, "target": text, "at most": most, "measured": shared[figure] / beside[figure],
         "kept": "yes" if shared[figure] <= most * beside[figure] else "no"}
        for text, figure, beside, most in asked if beside is not None
    ]  # fmt: skip


def draw(rows: Sequence[Mapping[str, Any]]) -> Path:
    """CPU, wall time and state over the number of queries."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = ("CPU s", "wall s", "state MB", "peak MB")
    figure, axes = pyplot.subplots(1, len(figures), figsize=(4 * len(figures), 3.5))
    for axis, what in zip(axes, figures, strict=True):
        for way in ("one pipeline", "separate"):
            points = sorted((row["queries"], row[what]) for row in rows if row["way"] in (way, "alone"))
            axis.plot([n for n, _ in points], [value for _, value in points], marker="o", label=way)
        axis.set(title=f"{what}{' a batch' if what.endswith(' s') else ''}", xlabel="queries", ylim=(0, None))
        axis.legend(fontsize=8)
    figure.tight_layout()
    report.OUT.mkdir(exist_ok=True)
    path = report.OUT / "many_queries.png"
    figure.savefig(path, dpi=100)
    return path


def require_same(rows: Sequence[Mapping[str, Any]]) -> None:
    """Ends with an error where results of the two ways differ."""
    for row in rows:
        other = next((r for r in rows if r["queries"] == row["queries"] and r["way"] != row["way"]), row)
        if (row["results"], row["digests"]) != (other["results"], other["digests"]):
            ways = f"{row['way']}: {row['results']}, {other['way']}: {other['results']}"
            raise SystemExit(f"results of {row['queries']} queries differ: {ways}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 and 4 queries, 5,000 rows per second, few batches, cold")
    parser.add_argument("--queries", help="how many, in turn (default: 1,4,12,36)")
    parser.add_argument("--rate", type=int, help=f"rows per second and stream (default: {RATE_PER_S:,})")
    parser.add_argument("--measured", type=int, help=f"batches that are measured at most (default: {MEASURED})")
    parser.add_argument("--most-separate", type=int, default=36, help="more than so many pipelines are not started")
    parser.add_argument("--plan", help='the plan of all queries, such as "(a b c)" (default: as chosen)')
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a case (default: %(default)s)")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "anabranch-bench"), help="where files are kept")
    parser.add_argument("--case", help="run this one in this process")
    given = parser.parse_args()
    if given.case:
        print(json.dumps(run(Case(**json.loads(given.case)))))
        return
    counts = [int(n) for n in (given.queries or ("1,4" if given.quick else "1,4,12,36")).split(",")]
    rate = given.rate or (5_000 if given.quick else RATE_PER_S)
    measured = given.measured or (4 if given.quick else MEASURED)
    warm_ups = 0 if given.quick else WARM_UPS
    folder = os.path.join(given.data, f"many-queries-{rate}")
    rows: list[dict[str, Any]] = []
    for count in sorted({1, *counts}):
        for is_shared in (True, False) if 1 < count <= given.most_separate else (True,):
            case = Case(count, is_shared, rate, measured, folder, given.plan, warm_ups)
            write_files(case.workload, folder, case.batches)
            try:
                rows.append(row_of(case, watched(case.command(), given.limit)))
            except subprocess.TimeoutExpired:
                print(f"{count} queries, {case.way}: not done within {given.limit:.0f} s", flush=True)
                continue
            print(report.table(rows[-1:], SHOWN).splitlines()[-1], flush=True)
    require_same(rows)
    print(report.table(rows, SHOWN))
    shared = [row["queries"] for row in rows if row["way"] == "one pipeline"]
    if shared and (kept := targets(rows, TARGET_QUERIES if TARGET_QUERIES in shared else max(shared))):
        print(report.table(kept))
        rows += kept
    print(f"drawn to {draw([row for row in rows if 'way' in row])}")
    print(f"written to {report.write('many_queries', rows)}")


if __name__ == "__main__":
    main()
