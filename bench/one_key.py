"""What a batch takes in which every row of a stream meets every row of another: `python -m bench.one_key --rows 100000`.

All rows have one key, so n rows of each stream give n² results. They leave in pieces of bounded size, and the peak of memory
is told: it should not follow the results. `--most` is `results_per_batch`.
"""

from __future__ import annotations

import argparse
import json
from time import process_time

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.errors import TooManyResultsError
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

QUERIES = {
    "join": ("SELECT a.x, b.x AS y, a.k FROM a, b WHERE a.k = b.k", "(a b)"),
    # The row of c meets nothing of what a and b are combined to, and neither is enough to know that.
    "inner step": ("SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND a.x + b.x = c.k", "(a b c)"),
    "groups": ("SELECT a.x, COUNT(*) AS n FROM a, b WHERE a.k = b.k GROUP BY a.x", "(a b)"),
}
"""What is asked, and by which plan."""


def query_of(name: str) -> Query:
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    return parse_script(f"{streams} CREATE QUERY q AS {QUERIES[name][0]} WINDOW 9 SECONDS").queries[0].query


def rows_of(count: int, key: int = 0) -> pa.Table:
    times = pa.array(np.zeros(count, np.int64), pa.timestamp("us"))
    return pa.table({"k": np.full(count, key), "x": np.arange(count), "ts": times})


def peak_mb() -> float:
    """The peak of this process. (`ru_maxrss` has that of the process that started it, too.)"""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6000, help="of each stream")
    parser.add_argument("--query", choices=list(QUERIES), default="join")
    parser.add_argument("--most", type=int, default=None, help="results_per_batch")
    given = parser.parse_args()
    counted = 0

    def count(piece: pa.RecordBatch) -> None:
        nonlocal counted
        counted += piece.num_rows

    query, plan = query_of(given.query), QUERIES[given.query][1]
    run = LocalRun(query, MemoryFilesystem(), plan, results_per_batch=given.most)
    rows, other = rows_of(given.rows), rows_of(1, key=-1)
    told, before_mb, began = "", peak_mb(), process_time()
    try:
        run.step(0, {"a": rows, "b": rows} | ({"c": other} if given.query == "inner step" else {}), count)
    except TooManyResultsError as error:
        told = str(error)
    found = {"results": counted, "before MB": before_mb, "peak MB": peak_mb(), "cpu s": process_time() - began}
    print(json.dumps({**found, "error": told}))


if __name__ == "__main__":
    main()
