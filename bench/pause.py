"""How long a batch waits for a migration when there is much state: `python -m bench.pause [--rows 2000000]`.

A chain of four streams on Spark, two cores, our reader, parquet sink; windows that hold `--rows` rows of each stream,
batches of one second. When windows are full, the query goes from (((a b) c) d) to (a ((b c) d)), by each strategy in a
fresh process. The *pause* is by how much the longest batch of the migration exceeds the median of the ten before it, by
Spark's own clock of a trigger. The gradual way may work for `--pause` ms in a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution, Strategy
from anabranch.sql import parse_script
from bench import report
from bench.adaptive import Schedule
from bench.data import write_batches
from bench.workload import SECOND_US

STREAMS = ("a", "b", "c", "d")
WINDOW_S = 40
FILL, STEADY = 4, 12
"""The first batches bring ten seconds each, then come some of one second before the migration."""
OLD, NEW = "(((a b) c) d)", "(a ((b c) d))"


def script() -> str:
    columns = "k1 BIGINT, k2 BIGINT, k3 BIGINT, v DOUBLE, ts TIMESTAMP"
    create = "".join(f"CREATE STREAM {s} ({columns}) TIME ts;" for s in STREAMS)
    where = "a.k1 = b.k1 AND b.k2 = c.k2 AND c.k3 = d.k3"
    return f"{create} CREATE QUERY q AS SELECT a.v, d.v AS w FROM a, b, c, d WHERE {where} WINDOW {WINDOW_S} SECONDS"


def batches(rows: int) -> Any:
    """Every row finds a partner in each neighbour; of the last only a tenth does, so that there are fewer results than
    state."""
    rng, rate, at_us = np.random.default_rng(3), rows // WINDOW_S, 0
    spans = [WINDOW_S // FILL] * FILL + [1] * (STEADY + WINDOW_S + 6)
    for span_s in spans:
        n = rate * span_s
        times = pa.array(at_us + np.arange(n, dtype=np.int64) * span_s * SECOND_US // n, pa.timestamp("us"))
        yield {
            s: pa.table({
                "k1": rng.integers(0, rows, n), "k2": rng.integers(0, rows, n), "k3": rng.integers(0, 10 * rows, n),
                "v": rng.random(n), "ts": times,
            })
            for s in STREAMS
        }  # fmt: skip
        at_us += span_s * SECOND_US


def run(folder: Path, strategy: Strategy, pause_us: int) -> dict[str, Any]:
    """One migration in this process."""
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session

    warm_up()
    work = tempfile.mkdtemp()
    try:
        session = ab.Session(create_session("local[2]", {"spark.driver.memory": "4g"}), os.path.join(work, "checkpoint"))
        for stream in STREAMS:
            session.stream(stream, f"{folder / stream}/*.parquet", time="ts", max_files_per_trigger=1)
        session.query("q", parse_script(script()).queries[0].query.sql, sink=ab.sinks.parquet(os.path.join(work, "out")))
        declared = session.planning.query("q")
        graph, first = JoinGraph(declared.query), FILL + STEADY
        session.planning.queries["q"] = replace(declared, execution=Execution(parse(OLD, graph)))
        loop = Schedule({first: parse(NEW, graph)}, strategy, pause_us)
        session._queries.loop = lambda *_: loop  # type: ignore[method-assign]
        running = session.start(availableNow=True)
        running.await_termination()
        progress = running.pipeline("q").streaming.recentProgress
        times = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1e3 for p in progress if p["numInputRows"]}
        steps = {s.batch: s for s in running.progress["q"]}
        ended = next(e.batch for e in running.journal["q"] if e.event == "migrated")
        before = statistics.median(times[n] for n in range(first - 10, first))
        during = [times[n] for n in range(first, min(ended + 2, max(times) + 1))]
        after = statistics.median(times[n] for n in range(max(times) - 5, max(times)))
        return {
            "strategy": strategy.value, "rows of state per stream": steps[first - 1].state_rows // len(STREAMS),
            "batch s before": before, "longest batch s": max(during), "pause s": max(during) - before,
            "batches": ended - first + 1, "batch s after": after,
            "results": sum(s.results for s in steps.values()),
        }  # fmt: skip
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of state per stream (default: %(default)s)")
    parser.add_argument("--pause", type=int, default=200, help="ms per batch of the gradual way (default: %(default)s)")
    parser.add_argument("--strategy", help="run this one in this process")
    parser.add_argument("--folder", help="with --strategy: the files")
    given = parser.parse_args()
    if given.strategy:
        print(json.dumps(run(Path(given.folder), Strategy(given.strategy), given.pause * 1000)))
        return
    folder, rows = Path(tempfile.mkdtemp()), []
    try:
        write_batches(folder, STREAMS, batches(given.rows))
        for strategy in Strategy:
            options = ["--strategy", strategy.value, "--folder", str(folder), "--pause", str(given.pause)]
            rows.append(report.in_fresh_process("bench.pause", *options))
            print(report.table(rows[-1:]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len({r["results"] for r in rows}) > 1:
        raise SystemExit("results differ")
    print(report.table(rows))
    print(f"written to {report.write('pause', rows)}")


if __name__ == "__main__":
    main()
