"""Flink SQL's interval joins over the CSV files of a workload, in a mini-cluster of one Java process.

In our windows two rows meet iff they are less than a window apart (`[ts, ts + window)` of both intersect), and so the
interval excludes both its ends. Flink's event times are whole milliseconds, and so are those of the files
(`bench/text_data.py`). The joins run left-deep as written. Each joins a stream with the one that its key is compared with,
and their times make it an interval join. The condition for all other pairs of streams compares the same times as plain
numbers (`ms`): an interval join has one time of each side, and if a condition names two, Flink makes a join whose state is
never purged instead, without a word; `launch` refuses such a plan. A watermark is a millisecond behind the largest time, so
rows of equal time are not late, and results are exact.

Streams are read by a source `each`, which is how most would write it, or all by `one`, whose table has the rows of all
streams and of which each stream is a view. A source of files that runs ahead of another is not held back (Flink's alignment
of watermarks is for sources that make their own), and its rows wait in the state: with `one` no stream runs ahead.

Flink's wheel has the formats csv, json and raw for files, and no parquet, avro or orc; csv is the most compact of them.
Results are written as CSV files, or not at all (`blackhole`). Without checkpoints Flink keeps its state in memory alone,
which is its fastest way; with them it can begin again, as ours and Spark's can after each batch. `hashmap` holds state as
objects on the heap (Flink's default), `rocksdb` in RocksDB, whose checkpoints are incremental.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anabranch.spark.create import use_java
from bench.processes import ROOT, cpu_between, watched
from bench.text_data import columns_read, columns_together, write_text
from bench.workload import SHAPES, Workload

PYTHON = ROOT / ".venv-flink" / "bin" / "python"
REQUIREMENTS = Path(__file__).parent / "flink-requirements.txt"
BACKENDS = ("hashmap", "rocksdb")
SINKS = ("files", "blackhole")
SOURCES = ("each", "one")
START_S = 120.0
"""So long Flink may take to start and to stop, beside the time that its job is given."""
OPENED = (
    "java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text", "java.time", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks",
)  # fmt: skip
"""Packages of Java that the configuration which comes with Flink opens to it."""


@dataclass(frozen=True)
class FlinkSpec:
    """One run. `limit_s` counts from the start of the job; a job that takes longer is cancelled."""

    shape: str
    rate_per_s: int
    window_s: float
    batch_s: float
    batches: int
    folder: str
    backend: str = "hashmap"
    sink: str = "files"
    sources: str = "each"
    checkpoint_s: float | None = None
    parallelism: int = 2
    memory: str = "8g"
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("shape", self.shape, tuple(SHAPES)), ("backend", self.backend, BACKENDS), ("sink", self.sink, SINKS),
            ("sources", self.sources, SOURCES),
        ):  # fmt: skip
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(allowed)}")

    @property
    def workload(self) -> Workload:
        return Workload(self.shape, self.rate_per_s, self.window_s, self.batch_s)

    @property
    def rows(self) -> int:
        return len(self.workload.streams) * self.workload.rows_per_batch * self.batches


def join(workload: Workload) -> str:
    """The query, without where its results go.

    >>> print(join(Workload("3-way chain", 10, 4, 1)))
    SELECT a.k1 AS a_k1, a.v AS a_v, b.v AS b_v, c.v AS c_v FROM a
    JOIN b ON a.k1 = b.k1 AND a.ts > b.ts - INTERVAL '4.000' SECOND AND a.ts < b.ts + INTERVAL '4.000' SECOND
    JOIN c ON b.k2 = c.k2 AND b.ts > c.ts - INTERVAL '4.000' SECOND AND b.ts < c.ts + INTERVAL '4.000' SECOND
      AND a.ms > c.ms - 4000 AND a.ms < c.ms + 4000
    """
    window_ms = workload.window_us // 1000
    interval = f"INTERVAL '{window_ms // 1000}.{window_ms % 1000:03d}' SECOND"
    select = ", ".join(f"{c} AS {c.replace('.', '_')}" for c in workload.selected)
    lines = [f"SELECT {select} FROM {workload.streams[0]}"]
    for place, stream in enumerate(workload.streams[1:], 1):
        (left, right), *more = [e for e in SHAPES[workload.shape] if e[1].split(".")[0] == stream]
        partner = left.split(".")[0]
        keys = " AND ".join(f"{one} = {other}" for one, other in [(left, right), *more])
        near = f"{partner}.ts > {stream}.ts - {interval} AND {partner}.ts < {stream}.ts + {interval}"
        lines.append(f"JOIN {stream} ON {keys} AND {near}")
        lines += [
            f"  AND {s}.ms > {stream}.ms - {window_ms} AND {s}.ms < {stream}.ms + {window_ms}"
            for s in workload.streams[:place]
            if s != partner
        ]
    return "\n".join(lines)


def statements(spec: FlinkSpec, results: str) -> list[str]:
    """Tables or views of the streams, a table for the results, and the INSERT."""
    workload = spec.workload
    if spec.sources == "each":
        made = [
            _table(stream, workload, columns_read(workload, stream), Path(spec.folder, "readers", stream))
            for stream in workload.streams
        ]
    else:
        columns = columns_together(workload)
        made = [_table("everything", workload, ("origin", *columns), Path(spec.folder, "together"))]
        for place, stream in enumerate(workload.streams):
            select = ", ".join((*columns_read(workload, stream), "ms", "ts"))
            made.append(f"CREATE VIEW {stream} AS SELECT {select} FROM everything WHERE origin = {place}")
    fields = ", ".join(f"{c.replace('.', '_')} {workload.columns[c.split('.')[1]]}" for c in workload.selected)
    sink = {"connector": "blackhole"}
    if spec.sink == "files":
        sink = {"connector": "filesystem", "path": Path(results).as_uri(), "format": "csv"}
    options = ", ".join(f"'{name}' = '{value}'" for name, value in sink.items())
    return [*made, f"CREATE TABLE results ({fields}) WITH ({options})", f"INSERT INTO results\n{join(workload)}"]


def _table(name: str, workload: Workload, columns: Sequence[str], folder: Path) -> str:
    fields = ", ".join(f"{column} {workload.columns.get(column, 'BIGINT')}" for column in (*columns, "ms"))
    return (
        f"CREATE TABLE {name} ({fields}, ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS ts - INTERVAL '0.001' SECOND) "
        f"WITH ('connector' = 'filesystem', 'path' = '{folder.as_uri()}', 'format' = 'csv')"
    )


def settings(spec: FlinkSpec, work: str) -> dict[str, str]:
    """Flink's, of the cluster and of the job."""
    found = {
        "parallelism.default": str(spec.parallelism),
        "pipeline.object-reuse": "true",
        "state.backend.type": spec.backend,
        "rest.bind-port": "0",
        "metrics.fetcher.update-interval": "500",
        "taskmanager.memory.managed.size": "1g",
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
        "io.tmp.dirs": str(Path(work, "tmp")),
    }
    if spec.checkpoint_s is not None:
        found |= {
            "execution.checkpointing.interval": f"{round(spec.checkpoint_s * 1000)} ms",
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": Path(work, "checkpoints").as_uri(),
            "execution.checkpointing.incremental": str(spec.backend == "rocksdb").lower(),
        }
    return found


def launch(spec: FlinkSpec, results: str) -> dict[str, Any]:
    """Runs the query in a fresh process and reports on it; writes the files first where they are missing. `results` is the
    folder that gets the results."""
    write_text(spec.workload, spec.folder, spec.batches, spec.parallelism)
    use_java()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        given = settings(spec, work)
        Path(work, "tmp").mkdir()
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        java = {"env.java.opts.all": " ".join([f"-Xmx{spec.memory}", *opened])}
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in {**given, **java}.items()]
        Path(work, "config.yaml").write_text("".join(lines))
        Path(work, "log4j-cli.properties").write_text("rootLogger.level = OFF\n")
        told = {"statements": statements(spec, results), "settings": given, "conf": work, "limit_s": spec.limit_s}
        Path(work, "spec.json").write_text(json.dumps(told))
        command = [str(PYTHON), "-m", "bench.rivals.flink_worker", "--spec", str(Path(work, "spec.json"))]
        found = watched(command, spec.limit_s + START_S)
    if found["state"] not in ("FINISHED", "timeout"):
        raise SystemExit(f"Flink's job ended as {found['state']}: {found['error']}")
    check_plan(found["plan"], spec.workload)
    return {"spec": asdict(spec), **summary(found, spec.rows), "plan": found["plan"]}


def check_plan(plan: str, workload: Workload) -> None:
    """Refuses a plan in which a join is not an interval join: its state would grow without bounds."""
    executed = plan[plan.index("== Optimized Execution Plan ==") :]
    joins = Counter(re.findall(r"(\w*Join)\(", executed))
    if joins != {"IntervalJoin": len(workload.streams) - 1}:
        raise SystemExit(f"Flink did not make interval joins of {workload.shape}:\n{executed}")


def summary(found: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Figures of a run: over the whole of it, from when the sources run to its end, and over the part after half of the
    rows, when Java has compiled what it runs. Of a run that was cancelled they are about the rows that had passed by then.

    >>> found = {"state": "FINISHED", "began_s": 10.0, "ended_s": 20.0, "passed": [(11.0, 0), (16.0, 600), (20.5, 1000)],
    ...          "cpu_by_time": [(10.0, 5.0), (20.0, 24.0)], "peak_rss_bytes": 7, "checkpoints": 0, "state_bytes": 0}
    >>> figures = summary(found, 1000)
    >>> figures["rows_per_s"], figures["steady_rows_per_s"], figures["cpu_s_per_million_rows"]
    (100.0, 100.0, 19000.0)
    """
    whole = found["state"] == "FINISHED"
    done = rows if whole else found["passed"][-1][1]
    run_s = found["ended_s"] - found["began_s"]
    cpu_s = cpu_between(found["cpu_by_time"], found["began_s"], found["ended_s"])
    return {
        "whole": whole, "rows": done, "run_s": run_s, "rows_per_s": done / run_s,
        "steady_rows_per_s": _steady(found["passed"], done, found["ended_s"]),
        "cpu_s_per_million_rows": cpu_s / done * 1e6 if done else None,
        "peak_rss_bytes": found["peak_rss_bytes"],
        "state_bytes": found["state_bytes"] if found["checkpoints"] else None,
        "checkpoints": found["checkpoints"],
    }  # fmt: skip


def _steady(passed: Sequence[tuple[float, int]], rows: int, ended_s: float) -> float | None:
    """Rows per second after half of them have passed; None if no look fell into that part."""
    at, before = next(((time, count) for time, count in passed if rows / 2 <= count < rows), (ended_s, 0))
    return (rows - before) / (ended_s - at) if at < ended_s else None
