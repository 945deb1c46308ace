"""A DuckDB loop: rows of the longest window in memory, and for each batch all queries' joins of new rows with those before.

Rows come from the same files as everywhere, results go to parquet; encoding and writing them does not count. Nothing of the
state is durable. `bench.rivals.duckdb_loop` has two ways of keeping rows: both are run, and that with less CPU is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import FIRST_EVENT_US
from bench.many.case import WARM, Case, told
from bench.many.pipelines import Clock
from bench.many.queries import Asked
from bench.rivals.duckdb_loop import DuckDbLoop
from bench.workload import SECOND_US, Workload

KINDS = ("tables", "arrow")


class ManyLoop(DuckDbLoop):
    """One state for all queries."""

    def __init__(self, workload: Workload, queries: Sequence[Asked], kind: str, threads: int) -> None:
        super().__init__(workload, kind, threads)
        self.queries = queries

    def results(self, batch: Mapping[str, pa.Table]) -> Iterator[tuple[Asked, pa.Table]]:
        """Takes a batch: a stream's new rows are joined with all rows that came before them, so each result arises once."""
        for stream, rows in batch.items():
            if all(other in self._made for other in self.workload.streams if other != stream):
                for query in self.queries:
                    yield query, self._join(stream, rows, query.window_us, query.predicate)
            self._append(stream, rows)

    @property
    def state_bytes(self) -> int:
        if self.kind == "arrow":
            return sum(table.nbytes for kept in self.state.values() for table in kept)
        found = self.connection.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()
        assert found is not None
        return int(found[0])


def run(case: Case, work: Path) -> dict[str, Any]:
    """Runs a case in this process."""
    workload, clock = case.workload, Clock()
    loop = ManyLoop(workload, case.asked, case.variant, case.cores)
    for query in case.asked:
        (work / query.name).mkdir(parents=True)
    began_cpu_s, began_s = process_time(), perf_counter()
    for number in range(case.batches):
        if number == WARM:
            began_cpu_s, began_s = process_time(), perf_counter()
        batch = {stream: _read(Path(case.folder, stream, f"{number:06d}.parquet")) for stream in workload.streams}
        loop.expire(FIRST_EVENT_US + round(number * workload.batch_s * SECOND_US))
        for place, (query, results) in enumerate(loop.results(batch)):
            with clock.running(number):
                path = work / query.name / f"{number}-{place}.parquet"
                pq.write_table(results, path, compression="lz4", use_dictionary=False)
    cpu_s, wall_s = process_time() - began_cpu_s, perf_counter() - began_s
    return {
        "pipelines": 1, "batches": case.measured, "wall_s": wall_s / case.measured,
        "cpu_s": {"root": cpu_s / case.measured, "java": 0.0, "others": 0.0},
        "left_out_s": {"writing": clock.mean_s(range(WARM, case.batches))},
        "state_bytes": {"DuckDB's": loop.state_bytes}, "variant": case.variant, **told(work, case.asked),
    }  # fmt: skip


def _read(path: Path) -> pa.Table:
    """A file, with times as DuckDB adds intervals to them without an extension."""
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("ts")
    return rows.set_column(place, "ts", rows.column("ts").cast(pa.timestamp("us")))
