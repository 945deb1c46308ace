"""A join whose streams change, on Spark: `python -m bench.adaptive [--phase-batches 32] [--cycles 2] [--real]`.

A chain of five streams, windows of four seconds, batches of one. Every `--phase-batches` batches the keys change which
pairs of streams meet often, and how fast two of the streams are. Each way runs in a fresh process on two cores, through our
reader, with a parquet sink:

- *adaptive*: the loop of the product, nothing set;
- *knows the future*: the best plan of each phase (by the cost model on the true statistics), taken up by moving state in
  the batch in which the phase begins;
- each of those plans *fixed* for the whole run, the best and the worst of them in hindsight, and the plan *as written*;
- *Spark's own* join, as far as it comes in `--limit` seconds, at its rate over the batches it finished.

The figure is the time that Spark needs for all batches after the first window (its own clock of a trigger). Results must
agree. `--real` does the same with trades and quotes of ../shared/data: a quarter of an hour from the opening bell, from
noon, and before the close, in batches of half a minute of trading, as fast as possible.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.control.loop import Observed, Proposal, Remark, Wish
from anabranch.control.pace import Took
from anabranch.control.records import BlockFigures
from anabranch.cost.facts import Given
from anabranch.cost.units import unit_costs
from anabranch.optimize.planner import decide
from anabranch.plan.actions import ChangePlan
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, left_deep, parse, show
from anabranch.plan.migration import Execution, Strategy
from bench import real, report
from bench.data import mark_written, write_batches
from bench.rivals.spark_native import Spec, launch
from bench.workload import SECOND_US, Workload

SHAPE, RATE_PER_S, WINDOW_S, BATCH_S = "5-way worst order", 40_000, 4, 1
WARM = WINDOW_S + 1
ADAPTIVE, FUTURE, WRITTEN = "adaptive", "knows the future", "as written"


@dataclass(frozen=True)
class Phase:
    """How many partners a row finds by each key, and how fast streams are, as a share of the rate."""

    partners: dict[str, float]
    speeds: dict[str, float]


PHASES = (
    Phase({"k1": 12.0, "k2": 6.0, "k3": 0.3, "k4": 0.05}, {"e": 0.3}),
    Phase({"k1": 0.05, "k2": 0.3, "k3": 6.0, "k4": 12.0}, {"a": 0.3}),
    Phase({"k1": 6.0, "k2": 12.0, "k3": 0.2, "k4": 0.1}, {"d": 0.5}),
)


def workload() -> Workload:
    return Workload(SHAPE, RATE_PER_S, WINDOW_S, BATCH_S)


def domains(phase: Phase) -> dict[str, int]:
    return {key: max(1, round(RATE_PER_S * WINDOW_S / found)) for key, found in phase.partners.items()}


def batch(phase: Phase, number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    rows = {}
    for stream in workload().streams:
        n = round(RATE_PER_S * BATCH_S * phase.speeds.get(stream, 1.0))
        columns: dict[str, Any] = {key: rng.integers(0, values, n) for key, values in domains(phase).items()}
        times = number * BATCH_S * SECOND_US + np.arange(n, dtype=np.int64) * BATCH_S * SECOND_US // n
        rows[stream] = pa.table({**columns, "v": rng.random(n), "ts": pa.array(times, pa.timestamp("us"))})
    return rows


def best_plan(phase: Phase, graph: JoinGraph) -> Plan:
    """By the model, on what the phase really is like."""
    rates = {s: RATE_PER_S * phase.speeds.get(s, 1.0) for s in workload().streams}
    distinct = {str(term): float(domains(phase)[str(term).split(".")[1]]) for terms in graph.classes for term in terms}
    return decide(graph, Given(rates, {}, distinct), unit_costs()).plan


class Schedule:
    """A loop that knows the future: which plan from which batch on."""

    def __init__(self, plans: dict[int, Plan], strategy: Strategy = Strategy.MOVING_STATE, pause_us: int = 0) -> None:
        self.plans, self.strategy, self.pause_us = plans, strategy, pause_us

    def after(self, execution: Execution, observed: Observed) -> Proposal | Remark | None:
        plan = self.plans.get(observed.batch + 1)
        if plan is None or plan == execution.plan:
            return None
        return Proposal(ChangePlan(plan, self.strategy, self.pause_us), "as it was foreseen")

    def granted(self, execution: Execution, wish: Wish) -> Proposal:
        return Proposal(ChangePlan(wish.plan, wish.strategy or Strategy.MOVING_STATE, wish.pause_us), "by request")

    def took(self, observed: Observed) -> Mapping[str, Took]:
        return {}

    @property
    def figures(self) -> Mapping[str, BlockFigures]:
        return {}


def run_ours(folder: Path, sql: str, streams: tuple[str, ...], plan: str | None, schedule: dict[int, str]) -> dict[str, Any]:
    """One run in this process."""
    import anabranch as ab
    from anabranch.drive.warm import warm_up
    from anabranch.spark.create import create_session

    warm_up()
    work = tempfile.mkdtemp()
    try:
        session = ab.Session(create_session("local[2]", {"spark.driver.memory": "4g"}), os.path.join(work, "checkpoint"))
        for stream in streams:
            session.stream(stream, f"{folder / stream}/*.parquet", time="ts", max_files_per_trigger=1)
        session.query("q", sql, sink=ab.sinks.parquet(os.path.join(work, "out")), plan=plan)
        declared = session.planning.query("q")
        if schedule:
            graph = JoinGraph(declared.query)
            plans = {int(n): parse(text, graph) for n, text in schedule.items()}
            session.planning.queries["q"] = replace(declared, execution=Execution(plans[0]))
            session._queries.loop = lambda *_: Schedule(plans)  # type: ignore[method-assign]
        run = session.start(availableNow=True)
        run.await_termination()
        times = {
            p["batchId"]: p["durationMs"]["triggerExecution"] / 1e3
            for p in run.pipeline("q").streaming.recentProgress
            if p["numInputRows"]
        }
        steps = run.progress["q"]
        return {
            "times": [times[n] for n in sorted(times)], "results": sum(s.results for s in steps),
            "state MB": max(s.state_bytes for s in steps) / 1e6,
            "migrations": sum(1 for e in run.journal["q"] if e.event == "migrated"),
            "journal": [str(e) for e in run.journal["q"]],
        }  # fmt: skip
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compare(
    name: str, folder: Path, sql: str, streams: tuple[str, ...], phases: list[tuple[int, str]], written: str, repeat: int
) -> list[dict[str, Any]]:
    """All ways over the files of a folder. `phases` tells the best plan from each batch on."""
    fixed = list(dict.fromkeys(plan for _, plan in phases))
    ways: dict[str, tuple[str | None, dict[int, str]]] = {ADAPTIVE: (None, {})}
    ways[FUTURE] = (None, dict(phases))
    ways |= {f"fixed {plan}": (plan, {}) for plan in fixed if plan != written}
    ways[WRITTEN] = (written, {})
    rows, results = [], set()
    for way, (plan, schedule) in ways.items():
        given = {"folder": str(folder), "sql": sql, "streams": streams, "plan": plan, "schedule": schedule}
        found = [report.in_fresh_process("bench.adaptive", "--spec", json.dumps(given)) for _ in range(repeat)]
        spent = sorted(sum(f["times"][WARM:]) for f in found)
        results |= {f["results"] for f in found}
        rows.append({
            "streams": name, "way": way, "seconds": spent[len(spent) // 2], "results": found[0]["results"],
            "state MB": found[0]["state MB"], "migrations": found[0]["migrations"],
        })  # fmt: skip
        print(report.table(rows[-1:]), flush=True)
        if way == ADAPTIVE:
            print("\n".join(found[0]["journal"]), flush=True)
    if len(results) > 1:
        raise SystemExit(f"results differ: {results}")
    future = next(r["seconds"] for r in rows if r["way"] == FUTURE)
    for row in rows:
        row["of the future's"] = row["seconds"] / future
    return rows


def synthetic(phase_batches: int, cycles: int, repeat: int, limit_s: float) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp())
    rng, graph = np.random.default_rng(9), JoinGraph(workload().query)
    phases = list(islice(cycle(PHASES), cycles * len(PHASES)))
    count = len(phases) * phase_batches
    try:
        write_batches(folder, workload().streams, (batch(phases[n // phase_batches], n, rng) for n in range(count)))
        plans = [(place * phase_batches, show(best_plan(phase, graph), graph)) for place, phase in enumerate(phases)]
        written = show(left_deep(graph), graph)
        sql = workload().query.sql
        rows = compare("synthetic", folder, sql, workload().streams, plans, written, repeat)
        if limit_s > 0:
            mark_written(workload(), str(folder), count)
            spec = Spec(SHAPE, RATE_PER_S, WINDOW_S, BATCH_S, count, str(folder), timeout_s=limit_s)
            found = launch(spec)
            done = [p["seconds"] for p in found["progress"]][WARM:]
            finished = len(done) + WARM
            whole = sum(done) / max(1, len(done)) * (count - WARM) if done else float("nan")
            rows.append({"streams": "synthetic", "way": f"Spark's own, {finished} of {count} batches", "seconds": whole})
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- real trades and quotes ----------------------------------------------------------------------------------------------

TRADING_S = 30
QUARTERS = {"opening bell": 0, "noon": 9_000, "close": 22_500}
"""Seconds after half past nine; each lasts for fifteen minutes."""


def real_ticks(data: Path, repeat: int) -> list[dict[str, Any]]:
    """The three quarters of an hour one after the other, as if there were nothing between them."""
    folder, tables = Path(tempfile.mkdtemp()), real.streams(data)
    try:
        pieces: list[dict[str, pa.Table]] = []
        number = 0
        for start_s in QUARTERS.values():
            for part in range(900 // TRADING_S):
                low = real.FIRST_US + (start_s + part * TRADING_S) * SECOND_US
                rows = {s: between(t, low, low + TRADING_S * SECOND_US) for s, t in tables.items()}
                pieces.append({s: moved(t, number * TRADING_S * SECOND_US - low) for s, t in rows.items()})
                number += 1
        streams = tuple(real.COLUMNS)
        write_batches(folder, streams, pieces)
        graph = JoinGraph(real_query(folder))
        # There is no telling what is best but to try: all plans of three streams.
        plans = ("((t b) a)", "(t (b a))", "(t b a)")
        quarters = [(place * 900 // TRADING_S, name) for place, name in enumerate(QUARTERS)]
        best = best_by_quarter(folder, plans, quarters)
        phases = [(first, best[name]) for first, name in quarters]
        for plan in plans:
            if plan not in dict(phases).values():
                phases.append((10**6, plan))
        return compare("ticks", folder, real.QUERY, streams, phases, show(left_deep(graph), graph), repeat)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def between(rows: pa.Table, low_us: int, high_us: int) -> pa.Table:
    times = rows["ts"].cast(pa.int64()).to_numpy()
    first, last = times.searchsorted([low_us, high_us])
    return rows.slice(int(first), int(last - first))


def moved(rows: pa.Table, by_us: int) -> pa.Table:
    import pyarrow.compute as pc

    times = pc.add(rows["ts"].cast(pa.int64()), by_us).cast(pa.timestamp("us"))
    return rows.set_column(rows.schema.get_field_index("ts"), "ts", times)


def real_query(folder: Path) -> Any:
    from anabranch.plan.query import Stream
    from anabranch.spark.reader import infer_fields
    from anabranch.sql import Catalog, bind_query

    catalog = Catalog()
    for stream in real.COLUMNS:
        catalog = catalog.with_stream(Stream(stream, infer_fields(f"{folder / stream}/*.parquet", "parquet"), "ts", 0))
    return bind_query("q", real.QUERY, catalog)


def best_by_quarter(folder: Path, plans: tuple[str, ...], quarters: list[tuple[int, str]]) -> dict[str, str]:
    """The plan with the least time in each quarter, in hindsight."""
    spent = {}
    for plan in plans:
        given = {"folder": str(folder), "sql": real.QUERY, "streams": tuple(real.COLUMNS), "plan": plan, "schedule": {}}
        times = report.in_fresh_process("bench.adaptive", "--spec", json.dumps(given))["times"]
        for first, name in quarters:
            spent[name, plan] = sum(times[first : first + 900 // TRADING_S])
    return {name: min(plans, key=lambda p: spent[name, p]) for _, name in quarters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase-batches", type=int, default=32, help="batches of a phase (default: %(default)s)")
    parser.add_argument("--cycles", type=int, default=2, help="how often all phases come (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each way (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for Spark's own, 0: none (default: %(default)s)")
    parser.add_argument("--real", action="store_true", help="trades and quotes instead")
    parser.add_argument("--data", default=str(real.DATA), help="where the ticks are")
    parser.add_argument("--spec", help="run this one way in this process")
    given = parser.parse_args()
    if given.spec:
        spec = json.loads(given.spec)
        done = run_ours(Path(spec["folder"]), spec["sql"], tuple(spec["streams"]), spec["plan"], spec["schedule"])
        print(json.dumps(done))
        return
    if given.real and not (Path(given.data) / "us_equity_ticks_trades.parquet").exists():
        print(f"SKIPPED: no ticks in {given.data}: this benchmark measures nothing without them", file=sys.stderr)
        return
    rows = (
        real_ticks(Path(given.data), given.repeat)
        if given.real
        else synthetic(given.phase_batches, given.cycles, given.repeat, given.limit)
    )
    print(report.table(rows))
    print(f"written to {report.write('adaptive_real' if given.real else 'adaptive', rows)}")


if __name__ == "__main__":
    main()
