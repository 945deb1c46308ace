"""What slices cost on this engine: `python -m bench.slices`.

Eight queries join two streams by a key, with windows of 2 to 16 batches. Each has a filter on both streams, and the longer
its window, the fewer rows pass, so that rows are wanted for eight different times. The same rows run cut into one, two, four
and eight slices, in batches of few and of many rows, which find few partners or many. CPU that tasks report for all but
making results (`route`, `emit`) is fitted by least squares, as a share of each case, to

    CPU of a batch = fixed + rows + SLICE_S · slices of all indexes + lookups in runs + candidates

`anabranch.share.slice_cost` has the one with a name; the others are for comparison with those of `anabranch calibrate`,
which are used. A predicate (PREDICATE_S of `anabranch.share.ways`) is the slope of the CPU of taking rows in over how many
distinct filters the queries have on a stream.

Beside these, `--watermarks` queries join a stream with one of their own each, and have a filter of their own on it: what a
batch takes, and how many slices it has, while all watermarks go together, and where those of all queries but one lag
(`anabranch.engine.slices.lagging`).

What a pipeline of its own costs (PIPELINE_S) is the difference of *separate* and *shared* at a rate at which rows cost next
to nothing, for each query but one: `python -m bench.many_queries --queries 1,6 --ways shared,separate --rate 200`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from anabranch.drive.calibrate import _positive
from anabranch.drive.local import LocalPipeline
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
SECOND_US, MEASURED = 1_000_000, 12
WARMING = 24
"""Batches before watermarks are measured: streams have fallen silent by then."""
WINDOWS_S = tuple(range(2, 18, 2))
ROWS = (100, 1_000, 5_000, 20_000)
CUTS = (1, 2, 4, 8)
PARTNERS = (1, 20)
PREDICATES = (1, 4, 16)
HANDING_OUT = ("route", "emit")


def queries_of(windows_s: Sequence[float]) -> list[Query]:
    """The longer the window, the fewer rows pass."""
    shares = [round(100 * (len(windows_s) - n) / len(windows_s)) for n in range(len(windows_s))]
    return _parsed(
        f"CREATE QUERY q{n} AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k AND a.v < {share} AND b.v < {share} "
        f"WINDOW {window_s} SECONDS;"
        for n, (window_s, share) in enumerate(zip(windows_s, shares, strict=True))
    )


def _parsed(texts: object) -> list[Query]:
    return [declared.query for declared in parse_script(STREAMS + "".join(texts)).queries]  # type: ignore[arg-type]


def rows_of(rng: np.random.Generator, batch: int, rows: int, keys: int) -> pa.Table:
    times = np.sort(rng.integers(batch * SECOND_US, (batch + 1) * SECOND_US, rows))
    columns = {"k": rng.integers(0, keys, rows), "v": rng.integers(0, 100, rows), "ts": pa.array(times, pa.timestamp("us"))}
    return pa.table(columns)


def measured(rows: int, slices: int, partners: int, batches: int) -> tuple[float, ...]:
    """Of a batch: rows, slices of all indexes, lookups in runs, candidates, one, and CPU seconds."""
    pipeline, rng, found = LocalPipeline(queries_of(WINDOWS_S), MemoryFilesystem()), np.random.default_rng(7), []
    limits = tuple(round(w * SECOND_US) for w in WINDOWS_S[len(WINDOWS_S) // slices - 1 :: len(WINDOWS_S) // slices])
    pipeline.driver.slices = dict.fromkeys("ab", limits)
    for batch in range(max(WINDOWS_S) + 4 + batches):
        given = {s: rows_of(rng, batch, rows, rows * WINDOWS_S[-1] // partners) for s in "ab"}
        each = [step.statistics for step in pipeline.step(batch, given).values()]
        if batch < max(WINDOWS_S) + 4:
            continue
        spent_ns = sum(ns for own in each for what, ns in own.cpu_ns.items() if what not in HANDING_OUT)
        steps = [step for own in each for step in own.steps]
        spent_ns += sum(step.cpu_ns for step in steps)
        counts = sum(step.lookups for step in steps), sum(step.candidates for step in steps)
        found.append((2.0 * rows, 2.0 * len(limits), *counts, 1.0, spent_ns / 1e9))
    return tuple(float(value) for value in np.median(np.array(found), axis=0))


def predicate_s(rows: int, batches: int) -> float:
    """Seconds for a predicate and a row."""
    spent = []
    for count in PREDICATES:
        queries = _parsed(
            f"CREATE QUERY q{n} AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k AND a.v < {50 + n} WINDOW {n + 2} SECONDS;"
            for n in range(count)
        )
        pipeline, rng, taken = LocalPipeline(queries, MemoryFilesystem()), np.random.default_rng(7), []
        for batch in range(4 + batches):
            given = {s: rows_of(rng, batch, rows, 10 * rows) for s in "ab"}
            each = [step.statistics for step in pipeline.step(batch, given).values()]
            taken.append(sum(own.cpu_ns.get("accept", 0) for own in each) / 1e9)
        spent.append(float(np.median(taken[4:])))
    return float(np.polyfit(np.array(PREDICATES) * rows, spent, 1)[0])


def watermarks(count: int, are_silent: bool, batches: int) -> tuple[int, float]:
    """The slices of a batch of 2,000 rows, and CPU seconds, with so many queries that have watermarks of their own. Where
    streams `are_silent`, they have fallen silent one after the other."""
    columns = ", ".join(f"v{n} BIGINT" for n in range(count))
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, {columns}, ts TIMESTAMP) TIME ts;" for s in ("a", *_hub(count)))
    join = "SELECT a.k FROM a, b{n} WHERE a.k = b{n}.k AND a.v{n} < 40 WINDOW 3 SECONDS"
    queries = "".join(f"CREATE QUERY q{n} AS {join.format(n=n)};" for n in range(count))
    parsed = [declared.query for declared in parse_script(streams + queries).queries]
    pipeline, rng, spent = LocalPipeline(parsed, MemoryFilesystem()), np.random.default_rng(7), list[float]()
    for batch in range(WARMING + batches):
        speaks = [s for n, s in enumerate(_hub(count)) if not are_silent or n == 0 or batch < n]
        given = {s: rows_of(rng, batch, 2_000 if s == "a" else 200, 10**6) for s in ("a", *speaks)}
        given["a"] = _with_columns(rng, given["a"], count)
        given |= {s: _with_columns(rng, given[s], count) for s in speaks}
        each = [step.statistics for step in pipeline.step(batch, given).values()]
        spent.append(sum(own.engine_cpu_ns for own in each) / 1e9)
    slot = pipeline.slot()
    assert slot is not None
    segment = slot.store.logs["a"].segments[WARMING + batches - 1]
    return len(segment.slices), float(np.median(spent[WARMING:]))


def _hub(count: int) -> list[str]:
    return [f"b{n}" for n in range(count)]


def _with_columns(rng: np.random.Generator, rows: pa.Table, count: int) -> pa.Table:
    own = {f"v{n}": rng.integers(0, 100, rows.num_rows) for n in range(count)}
    return pa.table({"k": rows["k"], **own, "ts": rows["ts"]})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few batches")
    parser.add_argument("--watermarks", type=int, default=12, help="queries with watermarks of their own")
    given = parser.parse_args(arguments)
    batches = 2 if given.quick else MEASURED
    measured(ROWS[0], 2, 1, 1)
    names = ("rows", "slices", "lookups", "candidates", "fixed", "CPU s")
    cases = [measured(rows, slices, partners, batches) for partners in PARTNERS for rows in ROWS for slices in CUTS]
    print(report.table([{**dict(zip(names, case, strict=True)), "CPU ms": 1e3 * case[-1]} for case in cases]))
    row_s, slice_s, lookup_s, candidate_s, fixed_s = _positive(cases)
    tested_s = predicate_s(ROWS[-1], batches)
    print(f"SLICE_S {slice_s * 1e6:.0f} us, PREDICATE_S {tested_s * 1e9:.1f} ns")
    print(
        f"beside: a lookup in a run {lookup_s * 1e9:.1f} ns, a candidate {candidate_s * 1e9:.1f} ns, a row "
        f"{row_s * 1e9:.1f} ns, a batch {fixed_s * 1e3:.2f} ms"
    )
    for are_silent, how in ((False, "go together"), (True, "lag, all but one")):
        slices, cpu_s = watermarks(given.watermarks, are_silent, batches)
        print(f"{given.watermarks} watermarks that {how}: {slices} slices in a batch, {cpu_s * 1e3:.1f} ms of CPU")


if __name__ == "__main__":
    main()
