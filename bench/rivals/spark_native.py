"""Spark's own stream-stream joins over the files of a workload: `python -m bench.rivals.spark_native --spec <json>`.

Every run is a fresh process on `local[cores]` that reads one file of each stream per batch until there are no more. The
joins are inner interval joins, left-deep in the order written, with a watermark of no delay on every stream. Two rows are
valid together iff `a.ts < b.ts + window` and `b.ts < a.ts + window`; a result so far carries the earliest and the latest
time of its rows, which is enough to test all pairs, and less state than all times. Each stream is cut down to the columns
the query needs before it is joined, the shuffle is not compressed, and there are as many partitions as cores.

What Spark 4.3 refuses, and what is done instead. An interval join on the output of another fails with
MULTIPLE_EVENT_TIME_COLUMNS, since that output has two columns with a watermark. Computing with these columns (a cast, or
`least` and `greatest`) drops the watermark, and Spark accepts the query; but then nothing bounds the rows of the
intermediate result, and their state is never purged. Two ways keep it bounded, both with exact results:

- `"times": "latest"` (the default, and the better one): the latest time of the intermediate result gets a watermark of its
  own. Spark refuses that too ("Redefining watermark is disallowed"), unless its setting `statefulOperator.allowMultiple`
  is off. It then uses one watermark for all operators, which is right here: a new intermediate result contains a new row,
  so its latest time is not late. Every join keeps its inputs for one window and a batch.
- `"times": "first"`: only the first stream's time keeps its watermark, and settings stay as they are. Spark then lets the
  watermark fall back by a window at every join, so the n-th join keeps its inputs for about n windows.

When all rows are in order both give exactly the results of one batch join; with three streams `latest` held a third fewer
rows in the second join. Spark derives how long to keep the intermediate result from `ts < earliest + window`, though it is
the latest time that has the watermark: that is on the safe side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from bench.data import write_files
from bench.processes import POLL_S, ROOT, kill_tree, tree_rss_bytes
from bench.workload import SHAPES, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORES = {
    "default": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
SINKS = ("parquet", "noop")
TIMES = ("latest", "first")


@dataclass(frozen=True)
class Spec:
    """One run. `timeout_s` counts from the start of the process; what was done by then is reported as partial."""

    shape: str
    rate_per_s: int
    window_s: float
    batch_s: float
    batches: int
    folder: str
    store: str = "default"
    sink: str = "parquet"
    cores: int = 2
    timeout_s: float = 600.0
    matches: float = 1.0
    wide: bool = False
    times: str = "latest"
    state_format: int | None = None
    memory: str = "8g"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("shape", self.shape, tuple(SHAPES)), ("store", self.store, tuple(STORES)),
            ("sink", self.sink, SINKS), ("times", self.times, TIMES),
        ):  # fmt: skip
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(allowed)}")

    @classmethod
    def from_json(cls, text: str) -> Spec:
        given = json.loads(text)
        unknown = set(given) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"unknown in a spec: {', '.join(sorted(unknown))}")
        return cls(**given)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def workload(self) -> Workload:
        return Workload(self.shape, self.rate_per_s, self.window_s, self.batch_s, self.matches, self.wide)

    @property
    def warm_batches(self) -> int:
        """Batches until a whole window is filled."""
        return round(self.window_s / self.batch_s) + 2


@dataclass(frozen=True)
class Step:
    """One stream of the left-deep cascade, and the join that brings it in."""

    stream: str
    columns: tuple[str, ...]
    """Of the stream. In the query `k1` of `a` is `a_k1`."""
    condition: str
    """When a row of the stream matches a result so far; empty for the first stream."""
    output: tuple[str, ...]
    """Of the join: what the query selects, or what later joins need."""
    watermark: str
    """The column of the output that gets a new watermark; empty if there is none."""


def cascade(workload: Workload, times: str = "latest") -> list[Step]:
    """The joins of a workload in the order written."""
    streams, edges = workload.streams, SHAPES[workload.shape]
    selected = [*workload.selected, *(("a.note", "a.w0", "a.w11") if workload.wide else ())]
    window = f"INTERVAL {workload.window_us} MICROSECONDS"
    steps = []
    for place, stream in enumerate(streams):
        joined = streams[: place + 1]
        own = [c for c in (*selected, *(c for edge in edges for c in edge)) if _stream(c) == stream]
        columns = (*_unique(c.split(".")[1] for c in own), "ts")
        later = [c for edge in edges if not _within(edge, joined) for c in edge]
        output = [_name(c) for c in _unique((*selected, *later)) if _stream(c) in joined]
        if not place:
            steps.append(Step(stream, columns, "", (*output, f"{stream}_ts"), ""))
            continue
        keys = [edge for edge in edges if _within(edge, joined) and not _within(edge, joined[:-1])]
        earliest, latest = ("earliest", "latest") if place > 1 else (f"{streams[0]}_ts",) * 2
        conditions = [f"{_name(left)} = {_name(right)}" for left, right in keys]
        conditions += [f"{stream}_ts < {earliest} + {window}", f"{latest} < {stream}_ts + {window}"]
        if times == "first" and place > 1:
            conditions.append(f"{streams[0]}_ts < {stream}_ts + {window}")
        watermark = ""
        if place == len(streams) - 1:
            output = [_name(c) for c in workload.selected] + (["a_note", "a_w0 + a_w11 AS w"] if workload.wide else [])
        else:
            output += [f"least({earliest}, {stream}_ts) AS earliest", f"greatest({latest}, {stream}_ts) AS latest"]
            if times == "first":
                output.append(f"{streams[0]}_ts")
            else:
                watermark = "latest"
        steps.append(Step(stream, columns, " AND ".join(conditions), tuple(output), watermark))
    return steps


def _stream(column: str) -> str:
    return column.split(".")[0]


def _name(column: str) -> str:
    return column.replace(".", "_")


def _within(edge: tuple[str, str], streams: Sequence[str]) -> bool:
    return all(_stream(c) in streams for c in edge)


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def settings(spec: Spec) -> dict[str, str]:
    """What differs from Spark's own settings."""
    found = {
        "spark.master": f"local[{spec.cores}]",
        "spark.driver.memory": spec.memory,
        "spark.sql.shuffle.partitions": str(spec.cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": STORES[spec.store],
        "spark.sql.streaming.fileSink.log.deletion": "false",
        "spark.sql.streaming.pollingDelay": "5ms",
        "spark.sql.parquet.compression.codec": "lz4_raw",
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if len(spec.workload.streams) > 2 and spec.times == "latest":
        found["spark.sql.streaming.statefulOperator.allowMultiple"] = "false"
    if spec.store == "rocksdb":
        found["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "true"
    if spec.state_format is not None:
        found["spark.sql.streaming.join.stateFormatVersion"] = str(spec.state_format)
    return found


def results_query(
    spark: SparkSession, spec: Spec, files_per_batch: int | None = 1, filters: Mapping[str, str] | None = None
) -> DataFrame:
    """The streaming DataFrame of the results. `filters` are predicates on the columns of single streams."""
    from pyspark.sql import functions as F

    workload = spec.workload
    schema = ", ".join(f"{name} {type}" for name, type in workload.columns.items())
    joined: DataFrame | None = None
    for step in cascade(workload, spec.times):
        source = spark.readStream.schema(schema)
        if files_per_batch is not None:
            source = source.option("maxFilesPerTrigger", files_per_batch)
        files = source.parquet(str(Path(spec.folder, step.stream))).where((filters or {}).get(step.stream, "true"))
        rows = files.select(*(F.col(c).alias(f"{step.stream}_{c}") for c in step.columns))
        rows = rows.withWatermark(f"{step.stream}_ts", "0 seconds")
        joined = rows if joined is None else joined.join(rows, F.expr(step.condition)).selectExpr(*step.output)
        if step.watermark:
            joined = joined.withWatermark(step.watermark, "0 seconds")
    assert joined is not None
    return joined


def work(spec: Spec, folder: Path) -> None:
    """Runs the query in this process, and leaves a line in `progress` for every batch."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

    ended = threading.Event()

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            with open(folder / "progress", "a") as file:
                file.write(json.dumps(json.loads(event.progress.json)) + "\n")

        def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
            ended.set()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    builder = SparkSession.builder.appName("spark_native").config("spark.local.dir", str(folder / "local"))
    for name, value in settings(spec).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.streams.addListener(Listener())
    writer = results_query(spark, spec).writeStream.outputMode("append").trigger(availableNow=True)
    writer = writer.format(spec.sink).option("checkpointLocation", str(folder / "checkpoint"))
    if spec.sink == "parquet":
        writer = writer.option("path", str(folder / "results"))
    writer.start().awaitTermination()
    ended.wait(30)
    spark.stop()


def _end_with_parent() -> None:
    """Nothing is left running if the launching process is killed; the JVM ends with this process."""
    parent = os.getppid()
    while os.getppid() == parent:
        sleep(1)
    os._exit(1)


def launch(spec: Spec) -> dict[str, Any]:
    """Runs the query in a fresh process and reports on it; writes the files first where they are missing.

    A run that takes too long is killed, and one that fails is not raised: `status` says so, and the other figures are
    those of the batches that were finished.
    """
    write_files(spec.workload, spec.folder, spec.batches)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "bench.rivals.spark_native", "--spec", spec.to_json(), "--work", name]
        status, peak, began = "ok", 0, perf_counter()
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
            try:
                while process.poll() is None:
                    peak = max(peak, sum(tree_rss_bytes(process.pid).values()))
                    if perf_counter() - began > spec.timeout_s:
                        status = "timeout"
                        break
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_S)
            finally:
                kill_tree(process)
        wall_s = perf_counter() - began
        error = None
        if status == "ok" and process.returncode:
            status, error = "failed", (folder / "log").read_text(errors="replace")[-4000:]
        progress = read_progress(folder, spec.sink)
        return {
            "spec": asdict(spec), "status": status, "error": error, "settings": settings(spec),
            **summary(progress, spec.warm_batches),
            "state_disk_bytes": folder_bytes(folder / "checkpoint" / "state"), "peak_rss_bytes": peak, "wall_s": wall_s,
            "progress": progress,
        }  # fmt: skip


def summary(progress: Sequence[Mapping[str, Any]], warm_batches: int) -> dict[str, Any]:
    """Figures over the batches with input; those of speed over the ones after a whole window is filled.

    >>> batch = {"batch": 3, "input_rows": 100, "seconds": 0.5, "results": 7, "state_rows": 10, "state_memory_bytes": 999}
    >>> found = summary([{**batch, "batch": n} for n in range(3)], warm_batches=1)
    >>> found["rows_per_s"], found["results"], found["measured_batches"]
    (200.0, 21, 2)
    """
    batches = [b for b in progress if b["input_rows"]]
    measured = [b for b in batches if b["batch"] >= warm_batches]
    last = batches[-1] if batches else {}
    return {
        "rows_per_s": statistics.median(b["input_rows"] / b["seconds"] for b in measured) if measured else None,
        "measured_batches": len(measured),
        "median_batch_s": statistics.median(b["seconds"] for b in measured) if measured else None,
        "worst_batch_s": max((b["seconds"] for b in measured), default=None),
        "batches": len(batches),
        "input_rows": sum(b["input_rows"] for b in batches),
        "results": sum(b["results"] for b in progress),
        "measured_results": sum(b["results"] for b in measured),
        "state_rows": last.get("state_rows"),
        "state_memory_bytes": last.get("state_memory_bytes"),
        "batches_s": sum(b["seconds"] for b in progress),
    }


def read_progress(folder: Path, sink: str) -> list[dict[str, Any]]:
    """What the query said about its batches."""
    path = folder / "progress"
    lines = path.read_text().splitlines() if path.exists() else []
    written = written_rows(folder / "results") if sink == "parquet" else {}
    found = []
    for event in map(json.loads, lines):
        states, number = event["stateOperators"], event["batchId"]
        found.append({
            "batch": number,
            "input_rows": event["numInputRows"],
            "seconds": event["durationMs"]["triggerExecution"] / 1000,
            "results": written.get(number, 0) if sink == "parquet" else max(0, event["sink"]["numOutputRows"]),
            "state_rows": sum(s["numRowsTotal"] for s in states),
            "state_memory_bytes": sum(s["memoryUsedBytes"] for s in states),
        })  # fmt: skip
    return found


def written_rows(folder: Path) -> dict[int, int]:
    """Rows in the committed files of a parquet sink, by batch. Some entries of the sink's log repeat all before them."""
    rows: dict[int, int] = {}
    seen: set[str] = set()
    entries = {int(p.name.split(".")[0]): p for p in (folder / "_spark_metadata").glob("[0-9]*")}
    for number, entry in sorted(entries.items()):
        paths = {json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]}
        rows[number] = sum(pq.read_metadata(unquote(urlparse(p).path)).num_rows for p in paths - seen)
        seen |= paths
    return rows


def folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", required=True, help="a JSON object; see Spec")
    parser.add_argument("--work", help="run the query in this process, with this folder for its files")
    given = parser.parse_args()
    spec = Spec.from_json(given.spec)
    if given.work:
        work(spec, Path(given.work))
    else:
        print(json.dumps(launch(spec)))


if __name__ == "__main__":
    main()
