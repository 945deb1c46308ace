"""Where a select belongs: `python -m bench.selects [--batches 40] [--repeat 3]`.

Two streams are joined, and rows of one must pass a predicate: at its stream, before a row is stored, or above the join.
Over how many rows pass it, how many partners a row finds, and what it costs: a comparison, or a LIKE on strings of 100
characters. Figures are CPU of the engine per row of that stream, medians of the repetitions; results are compared.

Then the select moves while the query runs, up and down again, by moving state or by waiting: the CPU of the batch in which
it does, beside the median of the batches before it.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.drive.warm import warm_up
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

ROWS, WINDOW_S, WARM = 20_000, 4, 10
PLAN, ABOVE = "(a b)", {"a": "a b"}
SCRIPT = """
CREATE STREAM a (k BIGINT, x BIGINT, s STRING, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, y BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.x, b.y FROM a, b WHERE a.k = b.k AND {predicate} WINDOW {window} SECONDS
"""
PREDICATES = {"comparison": "a.x < {percent}", "LIKE": "a.s LIKE '%pass%'"}
PASSING, PARTNERS = (1, 50, 99), (0.01, 1.0, 10.0)
MOVED_WINDOW_S = 40


def batch_of(number: int, passing: int, keys: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """The rows of a second."""
    times = pa.array(number * 1_000_000 + np.arange(ROWS) * 1_000_000 // ROWS, pa.timestamp("us"))
    x = rng.integers(0, 100, ROWS)
    texts = pa.array([f"{'-' * 90}{word:10}" for word in ("pass", "stay")])
    return {
        "a": pa.table({"k": rng.integers(0, keys, ROWS), "x": x, "s": texts.take(pa.array((x >= passing).astype(np.int32))),
                       "ts": times}),
        "b": pa.table({"k": rng.integers(0, keys, ROWS), "y": rng.integers(0, 9, ROWS), "ts": times}),
    }  # fmt: skip


def query_run(predicate: str, window_s: int) -> LocalRun:
    script = parse_script(SCRIPT.format(predicate=predicate, window=window_s))
    return LocalRun(script.queries[0].query, MemoryFilesystem(), PLAN)


def step(local: LocalRun, number: int, rows: dict[str, pa.Table], found: Counter[Any]) -> float:
    """Runs a batch; its CPU in seconds. Results are counted."""
    began = process_time()
    results = local.step(number, rows).results
    spent_s = process_time() - began
    counted = results.group_by(["x", "y"]).aggregate([([], "count_all")])
    found.update({(r["x"], r["y"]): r["count_all"] for r in counted.to_pylist()})
    return spent_s


def place(predicate: str, passing: int, partners: float, batches: int, seed: int, above: bool) -> tuple[float, Counter[Any]]:
    """CPU per row of the stream, in nanoseconds, and how often each result came."""
    local, keys = query_run(predicate, WINDOW_S), max(1, round(ROWS * WINDOW_S / partners))
    if above:
        local.migrate(PLAN, selects=ABOVE)
    rng, found = np.random.default_rng(seed), Counter[Any]()
    spent = [step(local, number, batch_of(number, passing, keys, rng), found) for number in range(batches)]
    return sum(spent[WARM:]) / ((batches - WARM) * ROWS) * 1e9, found


def places(batches: int, repeat: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for kind, text in PREDICATES.items():
        for passing in PASSING:
            for partners in PARTNERS:
                spent: dict[bool, list[float]] = {False: [], True: []}
                for seed in range(repeat):
                    predicate = text.format(percent=passing)
                    every = {above: place(predicate, passing, partners, batches, seed, above) for above in spent}
                    assert every[False][1] == every[True][1], "the place of a select must not change results"
                    for above, (ns, _) in every.items():
                        spent[above].append(ns)
                before, after = (statistics.median(spent[above]) for above in (False, True))
                rows.append({
                    "predicate": kind, "pass it, %": passing, "partners of a row": partners,
                    "at the stream, ns": before, "above the join, ns": after, "above / at": after / before,
                })  # fmt: skip
                print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    return rows


def moves(repeat: int) -> list[dict[str, Any]]:
    """A LIKE that half of the rows pass goes up when windows are full, and down when they are full again."""
    steady: Counter[Any] = Counter()
    rows: list[dict[str, Any]] = []
    ends = 4 * MOVED_WINDOW_S
    up, down = MOVED_WINDOW_S + 10, 2 * MOVED_WINDOW_S + 20
    for way in (None, Strategy.MOVING_STATE, Strategy.PARALLEL_TRACK):
        figures: dict[str, list[float]] = {"before": [], "up": [], "above": [], "down": [], "after": []}
        for _ in range(repeat):
            local, rng, found = query_run(PREDICATES["LIKE"], MOVED_WINDOW_S), np.random.default_rng(1), Counter[Any]()
            spent: list[float] = []
            for number in range(ends):
                turns: Mapping[int, Mapping[str, str]] = {up: ABOVE, down: {}}
                if way is not None and number in turns:
                    local.migrate(PLAN, way, selects=turns[number])
                spent.append(step(local, number, batch_of(number, 50, ROWS * MOVED_WINDOW_S, rng), found))
            steady = steady or found
            assert found == steady, "a select that moves must not change results"
            figures["before"].append(statistics.median(spent[up - 10 : up]))
            figures["up"].append(spent[up])
            figures["above"].append(statistics.median(spent[down - 10 : down]))
            figures["down"].append(spent[down])
            figures["after"].append(statistics.median(spent[-10:]))
        name = "stays at the stream" if way is None else f"{way}" if way is Strategy.MOVING_STATE else f"{way} (waits)"
        rows.append({"moved by": name, **{f"{k}, ms": 1e3 * statistics.median(v) for k, v in figures.items()}})
        print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    warm_up()
    compared = places(given.batches, given.repeat)
    print(report.table(compared))
    print(f"written to {report.write('selects', compared)}")
    moved = moves(given.repeat)
    print(f"a LIKE on {ROWS * MOVED_WINDOW_S:,} stored rows of each stream, CPU of a batch")
    print(report.table(moved))
    print(f"written to {report.write('selects-moved', moved)}")


if __name__ == "__main__":
    main()
