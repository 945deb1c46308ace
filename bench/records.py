"""What records cost: `python -m bench.records`, without Spark.

The state of a slot is told in its manifest, which grows with the batches that are alive, and with queries whose states
differ. A task writes one in every batch, and another worker may have to read it. The driver gets a report of every slot,
and writes a control and a commit record. Measured are CPU seconds and bytes of these records alone, not of rows and
indexes: of a task in the mean over 64 batches, in which its manifest is written whole once; of the driver for one batch,
with reports of so many slots, each as large as the one that was measured.
"""

from __future__ import annotations

import argparse
import statistics
from time import process_time
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from anabranch.balance.partition import choose_distribution
from anabranch.control.journal import Journal
from anabranch.control.lease import Unshared
from anabranch.control.manifest import WHOLE_EVERY, read_manifest
from anabranch.control.query_texts import QueryTexts
from anabranch.control.records import Attempt, Commit
from anabranch.drive.driver import Driver
from anabranch.drive.local import Steady
from anabranch.drive.steering import Steering
from anabranch.engine.checkpoint import Checkpoint, Files
from anabranch.engine.slot import Slot, Tenant, Times
from anabranch.plan.eager import Forms
from anabranch.plan.jtree import parse
from anabranch.plan.migration import Execution
from anabranch.plan.query import Query
from anabranch.share.canonical import Running, shared_joins
from anabranch.sql import parse_script
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;\n" for s in "abc")
ROWS = 20
SECOND_US = 1_000_000


def queries(count: int, window_s: int) -> list[Query]:
    """Joins of three streams over windows of different lengths, the first the longest; every other one has a filter."""
    made = []
    for number in range(count):
        window = f"[RANGE {max(1, window_s * (count - number) // count)} SECONDS]"
        select = f"SELECT a.x, b.x AS y, c.x AS z FROM a {window}, b {window}, c {window} WHERE a.k = b.k AND b.j = c.j"
        made.append(f"CREATE QUERY q{number} AS {select}{' AND a.x > 5' if number % 2 else ''};\n")
    return [declared.query for declared in parse_script(STREAMS + "".join(made)).queries]


def batch(number: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(number)
    found = {}
    for name in "abc":
        columns = {c: pa.array(rng.integers(0, 40, ROWS)) for c in "kjx"}
        times = np.sort(number * SECOND_US + rng.integers(0, SECOND_US, ROWS))
        found[name] = pa.table({**columns, "ts": pa.array(times, pa.timestamp("us"))})
    return found


class Measured(Checkpoint):
    """Tells apart what the manifest costs."""

    spent_s: list[float]
    sizes: list[int]

    def _save_manifest(self, files: Files, number: int, state: Any) -> Any:
        began = process_time()
        manifest = super()._save_manifest(files, number, state)
        self.spent_s.append(process_time() - began)
        self.sizes.append(manifest.own.length)
        return manifest


def task(count: int, window: int) -> tuple[dict[str, Any], Attempt]:
    """What a task spends on the manifest of its slot, once the windows are full; and a report of it."""
    disk, made = MemoryFilesystem(), queries(count, window)
    tenants = []
    for query in made:
        forms = Forms(query)
        tenants.append(Tenant(forms, Execution(parse("((a b) c)", forms.graphs[None]))))
    shared = shared_joins(Running(t.forms.written, t.execution, t.distribution) for t in tenants)
    slot = Slot(tenants, "state/0", disk, ContainerReader(disk), shared=shared)
    slot.checkpoint = measured = Measured(slot.store, "state/0", disk, slot.reader)
    reads_s: list[float] = []
    for number in range(window + 2 * WHOLE_EVERY):
        if number in (0, window + WHOLE_EVERY):
            reads_s, measured.spent_s, measured.sizes = [], [], []
        last_us = (number - 1) * SECOND_US
        times = {query.name: Times(last_us, last_us - SECOND_US) for query in made}
        for _ in slot.step(number, batch(number), times):
            pass
        manifest, dropped = slot.save(number, "attempt")
        slot.relocate()
        for path in dropped:
            disk.delete(path)
        began = process_time()
        read_manifest(manifest, ContainerReader(disk))
        reads_s.append(process_time() - began)
    row = {
        "window": window, "queries": count, "task: write ms": 1e3 * statistics.mean(measured.spent_s),
        "read ms": 1e3 * statistics.mean(reads_s), "KB mean": statistics.mean(measured.sizes) / 1e3,
        "KB whole": max(measured.sizes) / 1e3,
    }  # fmt: skip
    return row, Attempt(0, "0123456789ab", manifest, slot.statistics, dropped=tuple(sorted(dropped)))


class Counting(MemoryFilesystem):
    """Counts bytes of records."""

    written = 0

    def put(self, path: str, parts: Any) -> None:
        self.written += sum(memoryview(part).nbytes for part in parts)
        super().put(path, parts)


def driver(of_one: Attempt, slots: int, batches: int = 9) -> dict[str, Any]:
    """What the driver spends on a batch with so many reports: it reads them, commits, and lets go of files."""
    disk, notes = Counting(), MemoryFilesystem()
    steerings = []
    for query in queries(len(of_one.statistics), 60):
        execution = Execution(parse("((a b) c)", Forms(query).graphs[None]))
        journal, texts = Journal(notes, query.name), QueryTexts(disk)
        steerings.append(Steering(query, execution, choose_distribution(query, slots), Steady(), journal, texts))
    made = Driver(steerings, disk, {}, Unshared())
    cells = made.slots
    made.open()
    reports = [msgspec.json.encode(msgspec.structs.replace(of_one, slot=slot)) for slot in range(cells)]
    spent_s: list[float] = []
    base: Commit | None = None
    for number in range(batches):
        began, disk.written = process_time(), 0
        control = made.begin(number)
        attempts = [msgspec.json.decode(each, type=Attempt) for each in reports]
        commit = made.commit(control, attempts)
        made.after(base, commit)
        spent_s.append(process_time() - began)
        base = commit
    return {"slots": cells, "driver: s": statistics.median(spent_s), "MB": disk.written / 1e6,
            "MB of reports": sum(map(len, reports)) / 1e6}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default="60,600", help="in batches")
    parser.add_argument("--queries", default="1,12")
    parser.add_argument("--slots", default="4,100,1000")
    given = parser.parse_args()
    rows = []
    for window in map(int, given.windows.split(",")):
        for count in map(int, given.queries.split(",")):
            row, attempt = task(count, window)
            for slots in map(int, given.slots.split(",")):
                rows.append({**row, **driver(attempt, slots)})
                print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    print(report.table(rows))
    print(f"written to {report.write('records', rows)}")


if __name__ == "__main__":
    main()
