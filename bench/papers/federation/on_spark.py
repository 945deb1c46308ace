"""CQ1 to CQ6 on Spark: the placement that the optimizer chooses, all in the engine, and all in the database.

Each run is a process of its own over files, a batch each (`bench.operators`). Windows are filled first, and all instants of
the filling are asked for: there is no passing over, so that the rate is not the highest of `measured`. Measured is how
long batches of ten seconds take by Spark's clock.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import report
from bench.data import FIRST_EVENT_US
from bench.operators import write_file
from bench.papers.federation.measured import calibrated, chosen_at
from bench.papers.federation.placements import ENGINE, WORDS, Placement, placements
from bench.papers.federation.plug_rows import PlugRows
from bench.papers.federation.queries import CQ

BATCH_S = 10


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rates: Sequence[int] = (10_000,)
    names: Sequence[str] = tuple(CQ)
    filling_s: Sequence[int] = (60, 60, 60, 60, 60, BATCH_S, BATCH_S)
    batches: int = 6


QUICK = Sizes((200,), filling_s=(20,), batches=2)


def on_spark(sizes: Sizes) -> list[dict[str, Any]]:
    """Seconds of a batch of each query and way."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, calibrated((1_000, 100_000, 1_000_000)):
        for rate in sizes.rates:
            path = Path(folder) / str(rate)
            write(path, rate, sizes)
            for name in sizes.names:
                for way, placement in ways(name, rate):
                    assert placement.sql is not None, "a user can ask for it"
                    spec = {"name": name, "way": "reader", "sql": placement.sql, "stream": "plugs", "folder": str(path),
                            "warm": len(sizes.filling_s)}  # fmt: skip
                    done = report.in_fresh_process("bench.operators", "--spec", json.dumps(spec))
                    spent = statistics.median(done["batch_s"])
                    found.append({"query": name, "rate": rate, "way": way, "in DuckDB": placement.name,
                                  "seconds a batch": spent, "least": min(done["batch_s"]), "most": max(done["batch_s"]),
                                  "rows/s worked off": rate * BATCH_S / spent, "results": done["results"]})  # fmt: skip
                    print(report.table(found[-1:]).splitlines()[-1], flush=True)
    return found


def ways(name: str, rate: int) -> list[tuple[str, Placement]]:
    """What is compared; the chosen one is told as such if it is one of the others."""
    known, (blocks, _) = placements(name), chosen_at(name, rate)
    chosen = next(each for each in known if each.blocks == blocks and each.sql is not None)
    found = {"engine": next(each for each in known if each.name == ENGINE)}
    if chosen.name != ENGINE:
        found["chosen"] = chosen
    found["database"] = next(each for each in known if each.name == WORDS)
    return [(f"{way}, chosen" if each is chosen and way != "chosen" else way, each) for way, each in found.items()]


def write(folder: Path, rate: int, sizes: Sizes) -> None:
    """A file per batch."""
    source, second = PlugRows(rate), 0
    folder.mkdir(parents=True)
    for number, seconds in enumerate((*sizes.filling_s, *[BATCH_S] * sizes.batches)):
        rows = source.rows(second, seconds)
        times = pc.add(rows.column("ts").cast(pa.int64()), FIRST_EVENT_US).cast(pa.timestamp("us", "UTC"))
        write_file(folder / f"{number:06d}.parquet", rows.set_column(4, "ts", times), number)
        second += seconds
