"""A case of the benchmark, which runs in a process of its own, and what is found of it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from bench.many.queries import Asked, asked, digest, workload_of
from bench.processes import TreeCpu
from bench.workload import Workload

SHARED, SEPARATE, BY_HAND, SPARK, DUCKDB = WAYS = ("shared", "separate", "by hand", "Spark's own", "DuckDB loop")
ONLINE = "online"
"""Queries come and go."""
WARM = 6
"""Batches until windows are full and the first rows have ended."""
POLL_S, LOOK_S = 0.05, 3.0
"""How often is asked how far pipelines are, and whether they are still alive and what they have spent."""


@dataclass(frozen=True)
class Case:
    """Some of so many queries, in one way."""

    queries: int
    way: str
    rate_per_s: int
    measured: int
    folder: str
    plan: str | None = None
    warm_ups: int = 0
    cores: int = 2
    first: int = 0
    """The part of the queries that this process runs begins with this one …"""
    count: int | None = None
    """… and has so many of them, or all that follow."""
    variant: str = ""
    """Spark's own: the sink, parquet or noop. DuckDB loop: where rows are kept, tables or arrow."""

    @property
    def workload(self) -> Workload:
        return workload_of(self.rate_per_s)

    @property
    def batches(self) -> int:
        return WARM + self.measured

    @property
    def asked(self) -> list[Asked]:
        every = asked(self.queries)[self.first :]
        return every if self.count is None else every[: self.count]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.many_queries", "--case", json.dumps(asdict(self))]

    def link(self, batches: Iterable[int], folder: Path) -> None:
        """Some batches of the files, in another folder."""
        for stream in self.workload.streams:
            (folder / stream).mkdir(parents=True)
            for number in batches:
                name = f"{number:06d}.parquet"
                (folder / stream / name).symlink_to(Path(self.folder, stream, name).absolute())


def steady(case: Case, done: Callable[[], list[int]], look: Callable[[], object]) -> dict[str, Any]:
    """CPU seconds of the process tree and wall seconds of a batch: from when all pipelines have their windows full until one
    has done all batches. Where there are several pipelines, a batch is one of each. `done` tells how many batches each has
    done, `look` raises what one has failed with."""
    cpu = TreeCpu(os.getpid())

    def look_around() -> None:
        cpu.look()
        look()

    wait(lambda: min(done()) >= WARM, look)
    before, began, had = cpu.look(), time.perf_counter(), done()
    wait(lambda: max(done()) >= case.batches, look_around)
    after, ended, have = cpu.look(), time.perf_counter(), done()
    batches = (sum(have) - sum(had)) / len(have)
    if batches <= 0:
        raise SystemExit(f"a pipeline had done all {case.batches} batches before others were measured: more are needed")
    return {
        "pipelines": len(have), "batches": batches, "wall_s": (ended - began) / batches,
        "cpu_s": {kind: (after[kind] - before[kind]) / batches for kind in after},
    }  # fmt: skip


def wait(is_reached: Callable[[], bool], look: Callable[[], object]) -> None:
    looked = time.monotonic()
    while not is_reached():
        time.sleep(POLL_S)
        if time.monotonic() - looked > LOOK_S:
            look()
            looked = time.monotonic()


def told(folder: Path, queries: Iterable[Asked], read: Callable[[Path], pa.Table] | None = None) -> dict[str, list[int]]:
    """How many results each query has in the folder of its name, and their digests."""
    found: dict[str, list[int]] = {"counts": [], "digests": []}
    for query in queries:
        own = folder / query.name
        results = read(own) if read is not None else pads.dataset(own, format="parquet").to_table()
        found["counts"].append(len(results))
        found["digests"].append(digest([results]))
    return found
