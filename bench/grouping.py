"""Groups above a join, below it, or where they cost less: `python -m bench.grouping [--seconds 60] [--repeat 3]`.

Two streams are joined and grouped (002, chapter 14). For a while many rows of `b` share a key, so that it pays to group them
before they are joined; then almost every row has a key of its own, and it does not; then again. One run keeps the groups
above the join (the query as written), one keeps them below, one lets the loop decide. *Knowing the future* is the sum of the
cheaper of the two fixed runs in every phase: it changes over for nothing. Figures are seconds of CPU of the engine and its
loop, medians of the repetitions; results are compared with those of the query as written.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.adapt.grouping_loop import GroupingLoop
from anabranch.adapt.loop import Knowledge
from anabranch.control.loop import Proposal
from anabranch.cost.units import unit_costs
from anabranch.drive.local import LocalRun
from anabranch.drive.warm import warm_up
from anabranch.plan.actions import MoveGroups
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

SCRIPT = """
CREATE STREAM a (k BIGINT, g BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.g, COUNT(*) AS n, SUM(b.x) AS s FROM a, b WHERE a.k = b.k GROUP BY a.g WINDOW 4 SECONDS
"""
FEW_KEYS, MANY_KEYS = (40, 20_000, 50), (400, 20_000, 1_000_000)
"""Rows a second of a and of b, and how many keys they have."""
PHASES = (("few keys", FEW_KEYS), ("many keys", MANY_KEYS), ("few keys again", FEW_KEYS))
WAYS = ("above (as written)", "below", "adaptive")


def batch_of(number: int, phase: tuple[int, int, int], rng: np.random.Generator) -> dict[str, pa.Table]:
    """The rows of a second."""
    rows = {}
    for name, column, n in (("a", "g", phase[0]), ("b", "x", phase[1])):
        times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, n))
        columns = {"k": rng.integers(0, phase[2], n), column: rng.integers(0, 9, n)}
        rows[name] = pa.table({**columns, "ts": pa.array(times, pa.timestamp("us"))})
    return rows


def run(way: str, seconds: int, seed: int) -> tuple[list[float], Counter[tuple[Any, ...]], list[str]]:
    """The CPU of each phase, the results, and what the loop decided."""
    forms, rng = Forms(parse_script(SCRIPT).queries[0].query), np.random.default_rng(seed)
    local = LocalRun(forms.written, MemoryFilesystem())
    loop = GroupingLoop(forms, Knowledge(forms.graphs[None], replace(unit_costs(), batch_s=1.0)))
    if way == "below":
        local.migrate("(a b)", Strategy.MOVING_STATE, groups_below="b")
    spent, found, decisions = [0.0] * len(PHASES), Counter(), []  # type: ignore[var-annotated]
    for number in range(seconds * len(PHASES)):
        rows, began = batch_of(number, PHASES[number // seconds][1], rng), process_time()
        results = local.step(number, rows).results
        if way == "adaptive" and local.commit is not None:
            said = loop.after(local.execution, local.observed)
            if isinstance(said, Proposal):
                action = said.action
                groups_below = action.grouped_input or "" if isinstance(action, MoveGroups) else None
                local.migrate(action.plan, action.strategy, action.pause_us, groups_below)
                where = {None: "another plan", "": "above"}.get(groups_below, "below")
                decisions.append(f"{number} s: {where}, by {action.strategy}")
        spent[number // seconds] += process_time() - began
        found.update(zip(*(c.to_pylist() for c in results.columns), strict=True))
    return spent, found, decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of event time, for each phase (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    warm_up()
    for way in WAYS:
        run(way, 6, 0)
    spent: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for seed in range(given.repeat):
        every = {way: run(way, given.seconds, seed) for way in WAYS}
        for way, (cpu, found, decisions) in every.items():
            spent[way].append(cpu)
            assert found == every[WAYS[0]][1], f"{way} gives other results than the query as written"
            if decisions:
                print(f"{way}: {'; '.join(decisions)}", flush=True)
    by_phase = {way: [statistics.median(phase) for phase in zip(*runs, strict=True)] for way, runs in spent.items()}
    fixed = [by_phase[way] for way in WAYS[:2]]
    by_phase["knowing the future"] = [min(phase) for phase in zip(*fixed, strict=True)]
    best = sum(by_phase["knowing the future"])
    rows = [
        {"groups": way, **{f"{name}, CPU s": s for (name, _), s in zip(PHASES, cpu, strict=True)}, "all": sum(cpu),
         "times the best": sum(cpu) / best}
        for way, cpu in by_phase.items()
    ]  # fmt: skip
    print(report.table(rows))
    print(f"written to {report.write('grouping', rows)}")


if __name__ == "__main__":
    main()
