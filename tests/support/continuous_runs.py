"""A continuous query without Spark, across restarts, against the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anabranch.drive.local import LocalRun
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.continuous import Continuous, Shape


def check(shape: Shape, stops: Sequence[int]) -> None:
    """Runs a query batch by batch, with new processes after some of them, and compares all results."""
    case = Continuous(shape)
    disk = MemoryFilesystem()
    tables = {name: rows for name, rows in case.tables.items() if name in {s.name for s in case.query.base_sources}}
    run = LocalRun(case.query, disk, tables=tables)
    found: oracle.Bag = Counter()
    for number in range(len(case.batches) + 1):
        rows = case.batches[number] if number < len(case.batches) else {}
        found += oracle.bag(run.step(number, rows).results)
        if number in stops:
            run = LocalRun(case.query, disk, tables=tables)
    wanted = oracle.expected(case.query, case.batches, tables)
    problem = oracle.difference(found, wanted)
    assert not problem, f"{case.sql}\n{problem}"
