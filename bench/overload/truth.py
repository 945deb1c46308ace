"""What a run should have given, by DuckDB over the files that it read; and what it gave.

Rows of the streams are in order and lateness is 0, so no row is late: every row of a file that was read is accepted,
whatever the batches. A result arises in the batch that took in the last of its rows. It is fresh if no row of it is older by
that batch's clock than its freshness; results that are not are none that could be given. Results are told apart by the
numbers of their rows (`v`): one that is given twice, or that is none, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from bench.overload.hosted import OUT


@dataclass(frozen=True)
class Truth:
    """By batch: how many results there are, how many of them fresh, how many were given; and the oldest row in one."""

    exact: dict[int, int]
    fresh: dict[int, int]
    given: dict[int, int]
    oldest_s: float
    """Of all results that were given, by the clock of the batch that gave it."""
    stale: int
    """Results that were given although a row is older than the freshness."""
    wrong: int
    """Results that were given and are none, or were given again."""


def truth(
    folder: str,
    streams: str,
    edges: Sequence[tuple[str, str]],
    window_s: float,
    freshness_s: float,
    files: Mapping[int, Sequence[int]],
    clocks_us: Mapping[int, int],
) -> Truth:
    """`files` has for each batch how many files of each stream were read by its end, `clocks_us` its clock."""
    db = duckdb.connect()
    db.execute("SET threads = 2")
    for place, stream in enumerate(streams):
        batch_of = _batches(files, place)
        paths = sorted(Path(folder, stream).glob("*.parquet"))[: len(batch_of)]
        db.execute("CREATE OR REPLACE TABLE batch_of (file VARCHAR, batch INTEGER)")
        if not paths:
            raise SystemExit(f"no file of {stream} was read while the run lasted: run it alone on the machine")
        db.executemany("INSERT INTO batch_of VALUES (?, ?)", [(str(p), batch_of[n]) for n, p in enumerate(paths)])
        db.execute(
            f"CREATE TABLE {stream} AS SELECT k1, k2, v, epoch_us(ts) AS us, batch "
            "FROM read_parquet($paths, filename = true) r JOIN batch_of ON r.filename = batch_of.file",
            {"paths": [str(path) for path in paths]},
        )
    window_us, freshness_us = round(window_s * 1e6), round(freshness_s * 1e6)
    conditions = [f"{left} = {right}" for left, right in edges]
    pairs = [(x, y) for n, x in enumerate(streams) for y in streams[n + 1 :]]
    conditions += [f"abs({x}.us - {y}.us) < {window_us}" for x, y in pairs]
    batch = f"greatest({', '.join(f'{s}.batch' for s in streams)})"
    oldest = f"least({', '.join(f'{s}.us' for s in streams)})"
    ids = ", ".join(f"{s}.v AS {s}_v" for s in streams)
    db.execute(
        f"CREATE TABLE results AS SELECT {ids}, {batch} AS batch, {oldest} AS us FROM {', '.join(streams)} "
        f"WHERE {' AND '.join(conditions)}"
    )
    db.execute("CREATE TABLE clocks (batch INTEGER, us BIGINT)")
    if clocks_us:
        db.executemany("INSERT INTO clocks VALUES (?, ?)", [*clocks_us.items()])
    is_fresh = f"r.us >= c.us - {freshness_us}"
    db.execute(f"CREATE VIEW fresh AS SELECT r.* FROM results r JOIN clocks c USING (batch) WHERE {is_fresh}")
    shown = [p for p in Path(folder, OUT).glob("batch=*") if any(p.glob("*.parquet"))] if Path(folder, OUT).exists() else []
    columns = ", ".join(f"{s}_v" for s in streams)
    db.execute(f"CREATE TABLE given ({', '.join(f'{s}_v DOUBLE' for s in streams)}, batch INTEGER)")
    for each in shown:
        if (number := int(each.name.partition("=")[2])) not in files:
            continue
        db.execute(f"INSERT INTO given SELECT {columns}, {number} FROM read_parquet('{each}/*.parquet')")
    known = " AND ".join(f"g.{s}_v = r.{s}_v" for s in streams)
    joined = f"given g JOIN results r ON {known} JOIN clocks c ON c.batch = g.batch"
    count, right, oldest_us, stale = db.execute(
        f"SELECT (SELECT count(*) FROM given), count(DISTINCT ({', '.join(f'g.{s}_v' for s in streams)})), "
        f"max(c.us - r.us), count_if(NOT {is_fresh}) FROM {joined}"
    ).fetchone()  # type: ignore[misc]
    return Truth(
        _counted(db, "results"), _counted(db, "fresh"), _counted(db, "given"), (oldest_us or 0) / 1e6, stale, count - right
    )


def _batches(files: Mapping[int, Sequence[int]], place: int) -> list[int]:
    """The batch that took each file of a stream.

    >>> _batches({0: [2, 1], 2: [3, 3]}, 0), _batches({0: [2, 1], 2: [3, 3]}, 1)
    ([0, 0, 2], [0, 2, 2])
    """
    found: list[int] = []
    for batch, counts in sorted(files.items()):
        found += [batch] * (counts[place] - len(found))
    return found


def _counted(db: Any, table: str) -> dict[int, int]:
    return dict(db.execute(f"SELECT batch, count(*) FROM {table} GROUP BY batch").fetchall())
