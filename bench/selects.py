"""Where a select belongs: `python -m bench.selects [--batches 40] [--repeat 3]`.

Two streams are joined, and rows of one must pass a predicate: before a row is stored (what the engine does with a predicate
of one stream), or on the combined rows (where the same predicate is evaluated if it is written so that it names both
streams). Over how many rows pass it, how many partners a row finds, and what it costs: a comparison, or a LIKE on strings of
100 characters. Figures are CPU of the engine per row of that stream, medians of the repetitions; results are compared.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.local import LocalRun
from anabranch.engine.warm import warm_up
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

ROWS, WINDOW_S, WARM = 20_000, 4, 10
SCRIPT = """
CREATE STREAM a (k BIGINT, x BIGINT, s STRING, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, y BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.x, b.y FROM a, b WHERE a.k = b.k AND {predicate} WINDOW 4 SECONDS
"""
PREDICATES = {"comparison": "a.x < {percent}", "LIKE": "a.s LIKE '%pass%'"}
PASSING, PARTNERS = (1, 50, 99), (0.01, 1.0, 10.0)


def batch_of(number: int, passing: int, partners: float, rng: np.random.Generator) -> dict[str, pa.Table]:
    """The rows of a second."""
    keys = max(1, round(ROWS * WINDOW_S / partners))
    times = pa.array(number * 1_000_000 + np.arange(ROWS) * 1_000_000 // ROWS, pa.timestamp("us"))
    x = rng.integers(0, 100, ROWS)
    texts = pa.array([f"{'-' * 90}{word:10}" for word in ("pass", "stay")])
    return {
        "a": pa.table({"k": rng.integers(0, keys, ROWS), "x": x, "s": texts.take(pa.array((x >= passing).astype(np.int32))),
                       "ts": times}),
        "b": pa.table({"k": rng.integers(0, keys, ROWS), "y": rng.integers(0, 9, ROWS), "ts": times}),
    }  # fmt: skip


def run(predicate: str, passing: int, partners: float, batches: int, seed: int) -> tuple[float, Counter[Any]]:
    """CPU per row of the stream, in nanoseconds, and how often each result came."""
    local = LocalRun(parse_script(SCRIPT.format(predicate=predicate)).queries[0].query, MemoryFilesystem())
    rng, spent_s, found = np.random.default_rng(seed), 0.0, Counter[Any]()
    for number in range(batches):
        rows, began = batch_of(number, passing, partners, rng), process_time()
        results = local.step(number, rows).results
        spent_s += process_time() - began if number >= WARM else 0.0
        counted = results.group_by(["x", "y"]).aggregate([([], "count_all")])
        found.update({(r["x"], r["y"]): r["count_all"] for r in counted.to_pylist()})
    return spent_s / ((batches - WARM) * ROWS) * 1e9, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    warm_up()
    rows = []
    for kind, text in PREDICATES.items():
        for passing in PASSING:
            early = text.format(percent=passing)
            ways = {"before": early, "above": f"CASE WHEN b.y >= 0 THEN {early} END"}
            for partners in PARTNERS:
                spent: dict[str, list[float]] = {way: [] for way in ways}
                for seed in range(given.repeat):
                    every = {way: run(sql, passing, partners, given.batches, seed) for way, sql in ways.items()}
                    assert every["before"][1] == every["above"][1], "the place of a select must not change results"
                    for way, (ns, _) in every.items():
                        spent[way].append(ns)
                before, above = (statistics.median(spent[way]) for way in ways)
                rows.append({
                    "predicate": kind, "pass it, %": passing, "partners of a row": partners,
                    "before it is stored, ns": before, "on combined rows, ns": above, "above / before": above / before,
                })  # fmt: skip
                print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    print(report.table(rows))
    print(f"written to {report.write('selects', rows)}")


if __name__ == "__main__":
    main()
