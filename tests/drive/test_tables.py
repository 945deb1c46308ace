"""Stored tables that change: rows meet the table as it was read for their batch."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline, LocalRun
from anabranch.sql import parse_script
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, MemoryFilesystem
from tests.support.faulty import Crash, Fault, FaultyFilesystem

SECONDS = 8
CREATE = """CREATE STREAM s (k BIGINT, n BIGINT, ts TIMESTAMP) TIME ts;
CREATE TABLE t (k BIGINT, version BIGINT); CREATE TABLE `t-5` (k BIGINT, version BIGINT);"""
JOIN = "SELECT a.n, t.version FROM s [RANGE 3 SECONDS] a, t, s [NOW] b WHERE a.k = t.k AND a.k = b.k AND a.n = b.n"
EVERY_US = 2_000_000


class Versions:
    """A table that is another one each time it is read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self) -> pa.Table:
        self.read.append(len(self.read))
        return version(self.read[-1])


def version(number: int) -> pa.Table:
    return pa.table({"k": [1, 2, 3], "version": [number] * 3})


def rows(second: int) -> dict[str, pa.Table]:
    """A row of each key, half a second apart."""
    times = pa.array([second * 1_000_000, second * 1_000_000 + 500_000], pa.timestamp("us"))
    return {"s": pa.table({"k": [1, 2], "n": [2 * second, 2 * second + 1], "ts": times})}


def run_of(sql: str, disk: Filesystem, versions: Versions, plan: str | None = None, **more: pa.Table) -> LocalRun:
    query = parse_script(f"{CREATE} CREATE QUERY q AS {sql}").queries[0].query
    tables = {"t": versions(), **more}
    return LocalRun(query, disk, plan, tables, slots=2, refresh={"t": (EVERY_US, versions)}, sweep_grace_s=0.0)


def stepped(run: LocalRun, seconds: int = SECONDS) -> list[dict[str, int]]:
    """What the seconds from where the run stands give."""
    first = run.last_batch + 1
    found = [run.step(number, rows(number)).results for number in range(first, first + seconds)]
    return sorted((row for table in found for row in table.to_pylist()), key=lambda row: row["n"])


@pytest.mark.parametrize("plan", ["(a t b)", "((a t) b)", "((a b) t)"])
def test_rows_meet_the_table_of_their_time(plan: str) -> None:
    """The watermark of a batch is the latest time before it: it has gone on by two seconds in batches 3, 5 and 7."""
    versions = Versions()
    found = stepped(run_of(JOIN, MemoryFilesystem(), versions, plan))
    assert [row["n"] for row in found] == list(range(2 * SECONDS)), "every row has met one version"
    assert [row["version"] for row in found] == [0] * 6 + [1] * 4 + [2] * 4 + [3] * 2


def test_a_query_that_is_altered_meets_the_table_as_it_is_then() -> None:
    """It takes in all its tables with its first batch, the fifth; the next reading is two seconds later."""
    versions, found = Versions(), list[dict[str, int]]()
    first, then = (
        parse_script(f"{CREATE} CREATE QUERY q AS {sql}").queries[0].query for sql in (JOIN, f"{JOIN} AND a.n > 0")
    )
    changing = {"t": (EVERY_US, versions)}
    pipeline = LocalPipeline([first], MemoryFilesystem(), tables={"t": versions()}, slots=2, refresh=changing)
    for second in range(SECONDS):
        if second == 4:
            pipeline.add(then)
        found += pipeline.step(second, rows(second))["q"].results.to_pylist()
    found.sort(key=lambda row: row["n"])
    assert [row["n"] for row in found] == list(range(2 * SECONDS)), "every row has met one version"
    assert [row["version"] for row in found] == [0] * 6 + [1] * 2 + [2] * 4 + [3] * 4


def test_a_reading_that_is_torn_is_made_again() -> None:
    """The driver dies while it writes what it has read for batch 3, which it has not begun yet."""
    probe = FaultyFilesystem(MemoryFilesystem())
    stepped(run_of(JOIN, probe, Versions()))
    fault = probe.puts.index("tables/t@3.arrow")
    disk, versions = FaultyFilesystem(MemoryFilesystem(), {fault: Fault("tear")}), Versions()
    run = run_of(JOIN, disk, versions)
    found = stepped(run, 3)
    with pytest.raises(Crash):
        run.step(3, rows(3))
    found += stepped(run_of(JOIN, disk, versions), SECONDS - 3)
    assert [row["n"] for row in sorted(found, key=lambda row: row["n"])] == list(range(2 * SECONDS))


def test_a_table_is_not_a_reading_of_another() -> None:
    """What batch 5 reads of `t` is not the table `t-5`."""
    disk, versions = MemoryFilesystem(), Versions()
    sql = "SELECT s.n, t.version, u.version AS other FROM s [NOW], t, `t-5` u WHERE s.k = t.k AND s.k = u.k"
    found = stepped(run_of(sql, disk, versions, **{"t-5": version(77)}))
    assert [row["n"] for row in found] == list(range(2 * SECONDS))
    assert {row["other"] for row in found} == {77}
    assert {row["version"] for row in found} == set(versions.read)
    assert "t-5.arrow" in disk.list("tables")


def test_files_of_others_beside_ours_stay(tmp_path: Path) -> None:
    """State that is over is swept every eighth batch, and at each start."""
    foreign = [tmp_path / at for at in ("state/0/notes.txt", "state/0/7-x", "tables/t-0.arrow")]
    for seconds in (SECONDS, 0):
        run = run_of(JOIN, LocalFilesystem(str(tmp_path)), Versions())
        stepped(run, seconds)
        run.step(run.last_batch + 1, {})
        for path in foreign:
            path.write_bytes(b"mine")
            if path != foreign[0]:
                os.utime(path, (1000, 1000))
    assert [path.read_bytes() for path in foreign] == [b"mine"] * 3
    assert sorted(os.listdir(tmp_path / "tables")) == ["t-0.arrow", "t.arrow", "t@7.arrow"], "old readings are deleted"
