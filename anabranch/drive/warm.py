"""Compiles the kernels before the first row needs them.

Compiled kernels are kept in the user's cache folder (`anabranch.storage.compiled`), so this takes long only once per machine
and version; workers then load what is there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalRun
from anabranch.engine.bounds import CHUNK_PAIRS
from anabranch.engine.kernels.cells import coordinates, route_bytes, route_words
from anabranch.engine.kernels.probing import beginning, probe, probe_ranges
from anabranch.engine.run import run_table
from anabranch.plan.expression import Call, Column
from anabranch.plan.query import Equality, Field, Input, Query, Stream, range_window
from anabranch.storage.filesystem import MemoryFilesystem


def warm_up() -> None:
    """Runs a small join that uses every kernel: integer and text keys, views, merges, all widths of columns."""
    types = {
        "k": pa.int64(), "s": pa.string(), "b": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(),
        "d": pa.decimal128(30, 2), "ts": pa.timestamp("us"),
    }  # fmt: skip
    fields = tuple(Field(name, type) for name, type in types.items())
    streams = [Stream(name, fields, "ts") for name in "abc"]

    def column(alias: str, name: str) -> Column:
        return Column(types[name], alias, name)

    query = Query(
        "warm_up",
        tuple(Input(s.name, s, range_window(100)) for s in streams),
        (
            Equality(column("a", "k"), column("b", "k")),
            Equality(column("b", "s"), column("c", "s")),
            Equality(column("b", "d"), column("c", "d")),
        ),
        (),
        tuple((f"{s}_{f.name}", column(s, f.name)) for s in "abc" for f in fields),
    )
    for plan in ("((a b) c)", "(a b c)"):
        run = LocalRun(query, MemoryFilesystem(), plan)
        for batch in range(20):
            rows = {
                "k": [1, 2, None], "s": ["x", "y", None], "b": [True, None, False], "i8": [1, None, 2],
                "i16": [1, None, 2], "i32": [1, None, 2], "d": [1, 2, None], "ts": [batch, batch, batch],
            }  # fmt: skip
            table = pa.table({name: pa.array(values, types[name]) for name, values in rows.items()})
            run.step(batch, dict.fromkeys("abc", table))
    _warm_ranges()
    _warm_reaches()
    _warm_cells()


def _warm_ranges() -> None:
    k = pa.int64()
    streams = [Stream(name, (Field("k", k), Field("ts", pa.timestamp("us"))), "ts") for name in "ab"]
    left, right = Column(k, "a", "k"), Column(k, "b", "k")
    less = Call(pa.bool_(), "lt", (left, right))
    query = Query("ranges", tuple(Input(s.name, s, range_window(100)) for s in streams), (), (less,), (("k", left),))
    run = LocalRun(query, MemoryFilesystem())
    for batch in range(2):
        run.step(
            batch, dict.fromkeys("ab", pa.table({"k": [1, 2], "ts": pa.array([batch, batch], pa.timestamp("us"))}))
        )


def _warm_reaches() -> None:
    """Probes whose rows do not look back as far as the window are compiled apart."""
    rows, given = np.zeros((0, 4), np.uint64), (run_table([]), 100, np.zeros(0, np.int64), 0, beginning(), CHUNK_PAIRS)
    probe(rows, *given)
    probe_ranges(rows, np.zeros(0, np.uint64), *given)


def _warm_cells() -> None:
    words, out, cells = np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.zeros(1, np.int64)
    route_words(words, out)
    text = pa.array(["a text that is longer than thirty-two bytes"])
    _, offsets, data = text.buffers()
    route_bytes(np.frombuffer(offsets, np.int32)[:2], data.address, out)
    coordinates(out, 2, cells)
