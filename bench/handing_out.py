"""What it costs to hand the results of a shared join to its members: `python -m bench.handing_out`.

Two streams are joined by a key in batches of one second. Members of the join differ in their windows, and two of three have
a filter, on one stream or the other. CPU that boxes report for telling whose combinations are and for making results
(`route`, `emit`), with few and many members, and with few and many results, is fitted by least squares to

    CPU of a batch = fixed + fetched · results of the join + HANDED_S · results of all members + MEMBER_S · members

`anabranch.share.join_cost` has the last two. Rough: members have no groups and select two columns, and filters that differ
more make more sets, so that a member's results are more ranges. RESIDUAL_S is the slope of that CPU over how many predicates
of its own on both streams a member has, which all combinations pass.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalPipeline
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
SECOND_US, WARM, MEASURED = 1_000_000, 8, 10
MEMBERS, ROWS, RESIDUALS = (2, 8, 32), (500, 10_000, 40_000), (0, 1, 2, 4)


def measured(members: int, rows: int) -> tuple[float, float, float]:
    """Of a batch: results of the largest member, results of all, and CPU seconds."""
    windows = [f"{6000 - 100 * n} MILLISECONDS" for n in range(members)]
    filters = [("", f" AND a.v < {30 + n}", f" AND b.v < {30 + n}")[n % 3] for n in range(members)]
    selects = [
        f"CREATE QUERY q{n} AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k{where} WINDOW {window};"
        for n, (window, where) in enumerate(zip(windows, filters, strict=True))
    ]
    queries = [declared.query for declared in parse_script(STREAMS + "".join(selects)).queries]
    pipeline, rng, found = LocalPipeline(queries, MemoryFilesystem()), np.random.default_rng(7), []
    for batch in range(WARM + MEASURED):
        steps = pipeline.step(batch, {s: _rows(rng, batch, rows) for s in "ab"})
        if batch < WARM:
            continue
        each = [step.statistics for step in steps.values()]
        spent_ns = sum(own.cpu_ns.get(part, 0) for own in each for part in ("route", "emit"))
        counts = [own.results for own in each]
        found.append((max(counts), sum(counts), spent_ns / 1e9))
    return tuple(float(value) for value in np.median(np.array(found), axis=0))  # type: ignore[return-value]


def residual_s(rows: int) -> float:
    """Seconds for a predicate over both streams and a combination."""
    spent, handed = [], 0.0
    for count in RESIDUALS:
        where = "".join(f" AND a.v + b.v > -{n + 1}" for n in range(count))
        script = STREAMS + "CREATE QUERY q0 AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k WINDOW 6 SECONDS;"
        script += f"CREATE QUERY q1 AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k{where} WINDOW 6 SECONDS;"
        queries = [declared.query for declared in parse_script(script).queries]
        pipeline, rng, found = LocalPipeline(queries, MemoryFilesystem()), np.random.default_rng(7), []
        for batch in range(WARM + MEASURED):
            each = [s.statistics for s in pipeline.step(batch, {s: _rows(rng, batch, rows) for s in "ab"}).values()]
            spent_ns = sum(own.cpu_ns.get(part, 0) for own in each for part in ("route", "emit"))
            found.append((each[1].results, spent_ns / 1e9))
        handed, spent_s = np.median(np.array(found[WARM:]), axis=0).tolist()
        spent.append(spent_s)
    return float(np.polyfit(RESIDUALS, spent, 1)[0]) / handed


def _rows(rng: np.random.Generator, batch: int, rows: int) -> pa.Table:
    times = np.sort(rng.integers(batch * SECOND_US, (batch + 1) * SECOND_US, rows))
    keys, values = rng.integers(0, 6 * rows, rows), rng.integers(0, 100, rows)
    return pa.table({"k": keys, "v": values, "ts": pa.array(times, pa.timestamp("us"))})


def main() -> None:
    measured(2, 500)
    cases = [(members, rows, *measured(members, rows)) for members in MEMBERS for rows in ROWS]
    print(f"{'members':>8} {'rows':>8} {'join':>9} {'handed':>9} {'CPU ms':>8}")
    for members, rows, joined, handed, cpu_s in cases:
        print(f"{members:>8} {rows:>8} {joined:>9.0f} {handed:>9.0f} {cpu_s * 1e3:>8.2f}")
    matrix = np.array([[joined, handed, members, 1] for members, _, joined, handed, _ in cases])
    seconds = np.array([cpu_s for *_, cpu_s in cases])
    # Relative errors count: else the largest case would decide alone.
    found, *_ = np.linalg.lstsq(matrix / seconds[:, None], np.ones(len(seconds)), rcond=None)
    fetched_s, handed_s, member_s, fixed_s = found
    print(f"fixed {fixed_s * 1e6:.0f} us, fetched {fetched_s * 1e9:.1f} ns")
    print(f"HANDED_S {handed_s * 1e9:.1f} ns, MEMBER_S {member_s * 1e6:.0f} us")
    print(f"RESIDUAL_S {residual_s(ROWS[-1]) * 1e9:.1f} ns")


if __name__ == "__main__":
    main()
