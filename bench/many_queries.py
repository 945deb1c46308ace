"""What many queries over the same streams cost in one pipeline, beside other ways to the same results: `python -m
bench.many_queries`.

Every query joins three streams of 50,000 rows per second, in a chain (`bench/many/queries.py`): windows of 0.5 to 4 s,
two of three queries with filters that 10 to 60 % of the rows pass, about one partner per row in the longest window.
Batches have one second of event time. The ways (`--ways`):

- *shared*: all queries in one pipeline. One query, the largest, is called *alone*;
- *separate*: each in a pipeline of its own (`share=False`). More than `--at-once` pipelines do not fit into memory: they
  run in parts, one after the other, each in a process of its own. CPU, wall time and state of the parts are added up; the
  peak of memory is that of the largest part, less than all pipelines would take;
- *by hand*: one query with the longest window and no filter, whose sink makes the results of all queries;
- *Spark's own*: a streaming query of Spark's for each query, for at most `--most-spark` queries;
- *DuckDB loop*: one process without Spark that joins a batch for each query.

`--online` has queries come and go instead (`bench/many/online.py`).

Each case is a fresh process; a JVM is warmed up by the largest query. Measured is from when every pipeline has done six
batches until one has done all: *CPU* is that of the whole process tree, and *counted CPU* is without the encoding and
writing of results and without calls of sinks (`bench/many/pipelines.py` says what exactly). Where there are several
pipelines, a batch is one of each. State is that of the last commits, and what queries share counts once. Memory is
proportional (PSS) where the kernel tells it, else resident. All ways must give the same results, query by query.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from bench.data import write_files
from bench.many import duckdb_loop, online, pipelines, spark_own
from bench.many.case import DUCKDB, ONLINE, SEPARATE, SHARED, SPARK, WAYS, Case
from bench.many.goals import ALONE, COUNTED, STATE, WHOLE, goals
from bench.processes import watched

RATE_PER_S, MEASURED, MEASURED_ONLINE = 50_000, 8, 60
WARM_UPS = 4
"""How often the largest query runs alone before anything is measured."""
LIMIT_S = 3600.0
SHOWN = (
    "queries", "way", COUNTED, WHOLE, "driver s", "JVM s", "workers s", "wall s", "peak MB", "logs MB", "indexes MB",
    "views MB", STATE, "results", "parts",
)  # fmt: skip


def run(case: Case) -> dict[str, Any]:
    """Runs a case in this process."""
    work = Path(tempfile.mkdtemp())
    try:
        if case.way == DUCKDB:
            return duckdb_loop.run(case, work)
        if case.way == SPARK:
            return spark_own.run(case, work)
        way = online.run if case.way == ONLINE else pipelines.run
        from anabranch.drive.warm import warm_up
        from anabranch.spark.create import create_session

        warm_up()
        return way(case, create_session(f"local[{case.cores}]", pipelines.SETTINGS), work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def found_of(case: Case, at_once: int, limit_s: float) -> dict[str, Any]:
    """Runs a case in processes of its own."""

    def fresh(**changed: Any) -> dict[str, Any]:
        return watched(replace(case, **changed).command(), limit_s, pss=True)

    if case.way == SPARK:
        return spark_own.merged(*(fresh(variant=sink) for sink in spark_own.SINKS))
    if case.way == DUCKDB:
        return min((fresh(variant=kind) for kind in duckdb_loop.KINDS), key=counted_s)
    if case.way == SEPARATE:
        return added_up([fresh(first=first, count=at_once) for first in range(0, case.queries, at_once)])
    return fresh()


def counted_s(found: Mapping[str, Any]) -> float:
    """CPU seconds of a batch without what is left out."""
    return float(sum(found["cpu_s"].values()) - sum(found["left_out_s"].values()))


def added_up(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of queries that ran in several parts, one after the other.

    >>> one = {"cpu_s": {"root": 1.0}, "left_out_s": {}, "state_bytes": {"logs": 5}, "wall_s": 2.0, "pipelines": 3,
    ...        "counts": [7], "digests": [1], "peak_rss_bytes": 10, "peak_pss_bytes": None}
    >>> both = added_up([one, {**one, "peak_rss_bytes": 12}])
    >>> both["cpu_s"], both["state_bytes"], both["counts"], both["peak_rss_bytes"], both["parts"]
    ({'root': 2.0}, {'logs': 10}, [7, 7], 12, 2)
    """
    whole = dict(parts[0])
    for part in parts[1:]:
        for name in ("cpu_s", "left_out_s", "state_bytes"):
            whole[name] = {key: whole[name][key] + value for key, value in part[name].items()}
        for name in ("wall_s", "pipelines", "counts", "digests"):
            whole[name] = whole[name] + part[name]
        for name in ("peak_rss_bytes", "peak_pss_bytes"):
            whole[name] = max(whole[name] or 0, part[name] or 0) or None
    return {**whole, "parts": len(parts)}


def row_of(case: Case, found: Mapping[str, Any]) -> dict[str, Any]:
    """A case as a row of the table."""
    cpu, sizes = found["cpu_s"], found["state_bytes"]
    named = ("pipelines", "batches", "left_out_s", "phases_s", "plans", "variant", "counts", "digests")
    return {
        "queries": case.queries, "way": ALONE if case.queries == 1 and case.way == SHARED else case.way,
        "rate": case.rate_per_s, "all batches": case.batches, "parts": found.get("parts", 1),
        COUNTED: counted_s(found), WHOLE: sum(cpu.values()), "driver s": cpu["root"], "JVM s": cpu["java"],
        "workers s": cpu["others"], "wall s": found["wall_s"],
        "peak MB": (found["peak_pss_bytes"] or found["peak_rss_bytes"]) / 1e6,
        "peak is": "PSS" if found["peak_pss_bytes"] else "RSS",
        **{f"{kind} MB": size / 1e6 for kind, size in sizes.items()}, STATE: sum(sizes.values()) / 1e6,
        "results": sum(found["counts"]), **{name: found[name] for name in named if name in found},
    }  # fmt: skip


def require_same(rows: Sequence[Mapping[str, Any]]) -> None:
    """Ends with an error where some query's results of two ways differ."""
    first: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        other = first.setdefault(row["queries"], row)
        told = [list(zip(each["counts"], each["digests"], strict=True)) for each in (row, other)]
        differing = [place for place, (own, theirs) in enumerate(zip(*told, strict=True)) if own != theirs]
        if differing:
            places = ", ".join(f"q{place}: {row['counts'][place]} and {other['counts'][place]}" for place in differing[:5])
            raise SystemExit(
                f"results of {len(differing)} of {row['queries']} queries differ, {row['way']} and {other['way']} ({places})"
            )


def draw(rows: Sequence[Mapping[str, Any]]) -> Path:
    """CPU, wall time, state and memory over the number of queries."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = (COUNTED, WHOLE, "wall s", STATE, "peak MB")
    figure, axes = pyplot.subplots(1, len(figures), figsize=(4 * len(figures), 3.5))
    for axis, what in zip(axes, figures, strict=True):
        for way in WAYS:
            names = (way, ALONE) if way == SHARED else (way,)
            points = sorted((row["queries"], row[what]) for row in rows if row["way"] in names)
            if points:
                axis.plot([n for n, _ in points], [value for _, value in points], marker="o", label=way)
        axis.set(title=f"{what}{' a batch' if what.endswith(' s') else ''}", xlabel="queries", xscale="log", yscale="log")
        axis.legend(fontsize=8)
    figure.tight_layout()
    report.OUT.mkdir(exist_ok=True)
    path = report.OUT / "many_queries.png"
    figure.savefig(path, dpi=100)
    return path


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """The cases that are asked for; the largest query alone is always one."""
    counts = [int(n) for n in (given.queries or ("1,3" if given.quick else "1,10,12,36,100,300")).split(",")]
    rate = given.rate or (2_000 if given.quick else RATE_PER_S)
    most = {SEPARATE: given.most_separate, SPARK: given.most_spark}
    for count in sorted({1, *counts}):
        for way in given.ways if count > 1 else (SHARED,):
            if count <= most.get(way, count):
                yield Case(
                    count, way, rate, given.measured or (2 if given.quick else MEASURED),
                    os.path.join(given.data, f"many-queries-{rate}"), given.plan, 0 if given.quick else WARM_UPS,
                )  # fmt: skip


def come_and_go(given: argparse.Namespace) -> None:
    """Queries come and go while others run."""
    rate = given.rate or (2_000 if given.quick else RATE_PER_S)
    measured = given.measured or (16 if given.quick else MEASURED_ONLINE)
    folder, warm_ups = os.path.join(given.data, f"many-queries-{rate}"), 0 if given.quick else WARM_UPS
    case = Case(online.RUNNING, ONLINE, rate, measured, folder, given.plan, warm_ups)
    write_files(case.workload, case.folder, case.batches + online.EVERY)
    found = watched(case.command(), given.limit, pss=True)
    print(report.table(found["changes"]))
    rows = online.rows_of(found)
    print(report.table(rows))
    print(f"written to {report.write('many_queries_online', [*rows, *found['changes']])}")


def ways(text: str) -> list[str]:
    """Ways by their names, or by the beginnings of these.

    >>> ways("shared,by hand,Spark")
    ['shared', 'by hand', "Spark's own"]
    """
    found = []
    for name in text.split(","):
        meant = [way for way in WAYS if way.lower().startswith(name.strip().lower().replace("-", " "))]
        if len(meant) != 1:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(WAYS)}")
        found += meant
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="1 and 3 queries, 2,000 rows per second, few batches, cold")
    made.add_argument("--queries", help="how many, in turn (default: 1,10,12,36,100,300)")
    made.add_argument("--ways", type=ways, default=[*WAYS], help=f"of {', '.join(WAYS)} (default: all)")
    made.add_argument("--rate", type=int, help=f"rows per second and stream (default: {RATE_PER_S:,})")
    made.add_argument("--measured", type=int, help=f"batches that are measured at most (default: {MEASURED})")
    made.add_argument("--at-once", type=int, default=12, help="separate pipelines in a process (default: %(default)s)")
    made.add_argument("--most-separate", type=int, default=36, help="more are not run separately (default: %(default)s)")
    made.add_argument("--most-spark", type=int, default=10, help="more are not run by Spark's own (default: %(default)s)")
    made.add_argument("--plan", help='the plan of all queries, such as "(a b c)" (default: as chosen)')
    made.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a process (default: %(default)s)")
    made.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "anabranch-bench"), help="where files are kept")
    made.add_argument("--online", action="store_true", help="queries come and go while others run")
    made.add_argument("--case", help="run this one in this process")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    if given.case:
        print(json.dumps(run(Case(**json.loads(given.case)))))
        return
    if given.online:
        come_and_go(given)
        return
    rows: list[dict[str, Any]] = []
    for case in cases(given):
        write_files(case.workload, case.folder, case.batches)
        try:
            rows.append(row_of(case, found_of(case, given.at_once, given.limit)))
        except subprocess.TimeoutExpired:
            print(f"{case.queries} queries, {case.way}: not done within {given.limit:.0f} s", flush=True)
            continue
        print(report.table(rows[-1:], SHOWN).splitlines()[-1], flush=True)
        require_same(rows)
    print(report.table(rows, SHOWN))
    checked = goals(rows)
    if checked:
        print(report.table(checked))
    print(f"drawn to {draw(rows)}")
    print(f"written to {report.write('many_queries', [*rows, *checked])}")


if __name__ == "__main__":
    main()
