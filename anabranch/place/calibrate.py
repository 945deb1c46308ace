"""What a database takes (004, section 5.1): `anabranch calibrate --database NAME` measures it, and this remembers it.

Each figure is taken at several sizes, and is seconds for a row: what a statement takes beyond one that does nothing, by the
rows that it read. Of an embedded database, which scans rows where they lie, *in* is a scan, *out* what it hands back,
*group* a sum by key, *probe* an equality with few rows, *join* one with as many: what that takes beyond a probe is the price
of the rows that are kept. Of a server, which runs no blocks, there is the round trip, the
rows that come back, and a key looked up in a table with an index.

Figures stand beside those of the engine (`anabranch.cost.units`), a file for each database and machine. No setting of the
connection is in it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec
import numpy as np
import pyarrow as pa

from anabranch.cost.units import cache_path
from anabranch.errors import DatabaseError
from anabranch.place.cost import DatabaseCosts
from anabranch.place.databases.protocol import Server, Wanted
from anabranch.place.operators import Kind
from anabranch.plan.statement import Embedded

FORMAT = 3
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TIMES = 5
"""Each figure is the median of so many runs."""
KEYS = 1_000
"""Groups of the rows that are grouped, and joined."""
MOST_KEYS = 10_000_000
"""Keys to look up are chosen among so many rows of a table: enough for pages of all of it."""

NOTHING = "SELECT 1 AS x"
SCAN = "SELECT max(v) AS x FROM r"
OUT = "SELECT k, v FROM r"
GROUP = "SELECT k, sum(v) AS x FROM r GROUP BY k"
PROBE = "SELECT count(*) AS x FROM r JOIN s ON r.k = s.n"
JOIN = "SELECT count(*) AS x FROM r JOIN s ON r.n = s.n"


class Measured(msgspec.Struct, frozen=True):
    """What was measured of a database: seconds, and seconds for a row by the number of rows."""

    format: int
    host: str
    is_embedded: bool
    round_trip_s: float
    row_s: dict[str, dict[int, float]]
    """Of *in*, *out*, *group*, *probe*, *join*, *lookup*, as far as the database does that."""

    def per_row_s(self, what: str) -> float:
        """Over all sizes."""
        return median(self.row_s[what].values())

    def per_row_of_many_s(self, what: str) -> float:
        """At the largest size, which is that of windows. What few rows take is less than round trips differ by, so that
        their figure may be nothing at all, or ten times that of many."""
        sizes = self.row_s[what]
        return sizes[max(sizes)]

    def costs(self) -> DatabaseCosts | None:
        """What operators take there; None if it runs none."""
        if not {"in", "out", "group", "probe", "join"} <= self.row_s.keys():
            return None
        entering, probe = self.per_row_of_many_s("in"), self.per_row_of_many_s("probe")
        build = max(0.0, 2 * self.per_row_of_many_s("join") - probe)  # a join has a kept row for each that is looked up
        per_row_s = {
            Kind.SELECT: entering, Kind.PROJECT: entering, Kind.JOIN: probe,
            Kind.AGGREGATE: self.per_row_of_many_s("group"),
        }  # fmt: skip
        is_in_place = 0.0 if self.is_embedded else entering
        leaving = self.per_row_of_many_s("out")
        return DatabaseCosts(self.round_trip_s, is_in_place, leaving, per_row_s, self.is_embedded, build)


def measure_blocks(database: Embedded, sizes: Sequence[int] = SIZES, times: int = TIMES) -> Measured:
    """What an embedded database takes for parts of a block."""
    rng = np.random.default_rng(4)
    round_trip = _seconds(times, lambda: database.run(NOTHING, {}))
    found: dict[str, dict[int, float]] = {"in": {}, "out": {}, "group": {}, "probe": {}, "join": {}}
    few = pa.table({"n": np.arange(KEYS)})
    for size in sizes:
        rows = pa.table({"n": np.arange(size), "k": rng.integers(0, KEYS, size), "v": rng.random(size)})
        for what, sql, more in (
            ("in", SCAN, {}), ("out", OUT, {}), ("group", GROUP, {}), ("probe", PROBE, {"s": few}),
            ("join", JOIN, {"s": rows.select(["n"])}),
        ):  # fmt: skip
            relations = {"r": rows, **more}
            spent = _seconds(times, lambda sql=sql, relations=relations: database.run(sql, relations))  # type: ignore[misc]
            found[what][size] = max(0.0, spent - round_trip) / (2 * size if what == "join" else size)
    return Measured(FORMAT, socket.gethostname(), True, round_trip, found)


def measure_lookups(
    database: Server, table: str, key: str, sizes: Sequence[int] = SIZES, times: int = TIMES
) -> Measured:
    """What a server takes to look keys of a table up, and to read its rows: as many of them as it has, all columns."""
    types = dict(database.describe(table))
    if key not in types:
        raise DatabaseError(f"{table} has no column {key}: it has {', '.join(types)}")
    keys = database.read(table, ((key, types[key]),), most_rows=MOST_KEYS)
    known = keys.column(0).drop_null().unique()
    if not len(known):
        raise DatabaseError(f"{table} has no rows to look up: give one that has")
    wanted = Wanted(table, (key,), tuple(types.items()))

    def looked_up(size: int) -> Callable[[], pa.Table]:
        some = pa.table({key: known.take(np.linspace(0, len(known) - 1, size).astype(np.int64))})
        return lambda: database.lookup(wanted, some)

    def read(size: int) -> Callable[[], pa.Table]:
        return lambda: database.read(table, wanted.columns, most_rows=size)

    round_trip = _seconds(times, looked_up(1))
    found = {
        size: max(0.0, _seconds(times, looked_up(size)) - round_trip) / size
        for size in dict.fromkeys(min(size, len(known)) for size in sizes)
    }
    out = {
        size: max(0.0, _seconds(times, read(size)) - round_trip) / size
        for size in dict.fromkeys(min(size, len(keys)) for size in sizes)
    }
    return Measured(FORMAT, socket.gethostname(), False, round_trip, {"lookup": found, "out": out})


def _seconds(times: int, run: Callable[[], pa.Table]) -> float:
    """The median of some runs, after one that counts for nothing."""
    run()
    spent = []
    for _ in range(times):
        began = perf_counter()
        run()
        spent.append(perf_counter() - began)
    return median(spent)


def path_of(name: str) -> Path:
    """Where the costs of a database are remembered."""
    return cache_path().with_name(f"database-{name}-{socket.gethostname()}.json")


def remember(name: str, measured: Measured) -> Path:
    """Keeps what was measured for later runs on this machine."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(msgspec.json.encode(measured))
    unfinished.replace(path)
    return path


def remembered(name: str) -> Measured | None:
    """What was measured of a database on this machine; None if nothing was."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode(path_of(name).read_bytes(), type=Measured)
        if found.format == FORMAT:
            return found
    return None


def database_costs(name: str) -> DatabaseCosts | None:
    """What operators take in a database by what was measured on this machine; None if nothing was, or it runs none."""
    found = remembered(name)
    return None if found is None else found.costs()
