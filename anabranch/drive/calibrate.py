"""What single operations cost on this machine: `anabranch calibrate` measures them in a few seconds and remembers them.

Small joins run on the engine with different windows, selectivities and plans. Every step reports its CPU and how many rows
it looked up, in how many runs, with how many matches; least squares give the price of each. Indexing, keeping views and
handing out results are timed on their own; what else a batch costs is the price of taking rows in.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

import numpy as np
import pyarrow as pa

from anabranch.control.records import Statistics, StepStatistics
from anabranch.cost.model import UnitCosts
from anabranch.drive.local import LocalRun
from anabranch.plan.expression import Column
from anabranch.plan.query import (
    GROUP,
    Aggregate,
    Equality,
    Field,
    Grouping,
    Input,
    Query,
    Stream,
    range_window,
)
from anabranch.storage.filesystem import LocalFilesystem

BATCH_ROWS = (1_000, 10_000)
BATCHES = 6

SLACK_BATCHES = 2.0
"""Rows are kept until the watermark has passed the end of the last row of their batch, and the watermark is a batch late."""
VIEW_SLACK_BATCHES = 1.5
"""Few combined rows live as long as the shortest window: their batch ends sooner."""


@dataclass(frozen=True)
class _Case:
    rows: int
    """Of each stream in a batch."""
    window: int
    """Batches."""
    matches: float
    plan: str


CASES = tuple(
    _Case(rows, window, matches, plan)
    for rows in BATCH_ROWS
    for window in (3, 16)
    for matches in (0.3, 2.0)
    for plan in ("(a b c)", "((a b) c)")
)


def calibrate(batches: int = BATCHES) -> UnitCosts:
    """Measures the unit costs; takes some seconds of one core."""
    probes: list[tuple[float, ...]] = []
    kept: list[tuple[float, ...]] = []
    taken: list[tuple[float, ...]] = []
    results, emit_s = 0, 0.0
    index_bytes: list[float] = []
    view_bytes: list[float] = []
    for case in CASES:
        has_view = case.plan != "(a b c)"
        indexes = 3 if has_view else 4
        for statistics, spent_s in _run(case, batches):
            probe_s = sum(s.cpu_ns for s in statistics.steps) / 1e9
            probes += [
                (s.probes, s.lookups - s.probes, s.matches, s.probes if _needs_key(s, case) else 0.0, 1.0, s.cpu_ns / 1e9)
                for s in statistics.steps if s.probes
            ]  # fmt: skip
            view_rows = sum(s.matches for s in statistics.steps if s.target in ("a", "b") and s.route in ("a", "b"))
            view_rows = view_rows if has_view else 0
            own = {name: ns / 1e9 for name, ns in statistics.cpu_ns.items()}
            keep_s = own.get("index", 0.0) + own.get("views", 0.0) + own.get("settle", 0.0)
            kept.append((case.rows * indexes, view_rows, indexes + (2 if has_view else 0), keep_s))
            results += statistics.results
            emit_s += own.get("emit", 0.0)
            rows = sum(s.rows for s in statistics.sources.values())
            taken.append((rows, 1.0, max(0.0, spent_s - probe_s - keep_s - own.get("emit", 0.0))))
            for state in statistics.states:
                if state.rows and state.kind == "index":
                    (view_bytes if state.inputs > 1 else index_bytes).append(state.bytes / state.rows)
    lookup, lookup_run, join, rekey, step = _positive(probes)
    insert, view_insert, upkeep = _positive(kept)
    accept, batch = _positive(taken)
    return UnitCosts(
        insert=insert, delete=0.0, join=join, lookup=lookup, lookup_run=lookup_run, rekey=rekey, view_insert=view_insert,
        accept=accept, result=emit_s / max(results, 1), fold=_fold_s(batches), step=step, upkeep=upkeep,
        batch=batch, counts_keys=True, index_bytes=float(np.median(index_bytes)), view_row_bytes=0.0, view_part_bytes=8.0,
        view_index_bytes=float(np.median(view_bytes)), keeps_segments=True, slack_s=SLACK_BATCHES,
        view_slack_s=VIEW_SLACK_BATCHES,
    )  # fmt: skip


def _needs_key(step: StepStatistics, case: _Case) -> bool:
    """Whether a step is the second lookup of its join: in `(a b c)` that of the stream at the other end."""
    return case.plan == "(a b c)" and (step.route, step.target) in {("a", "c"), ("b", "c"), ("c", "a")}


def _positive(measured: Sequence[Sequence[float]]) -> list[float]:
    """The prices of what was counted, from counts with the seconds that they took. Least squares with no negative price:
    what comes out negative is left out and the rest solved again. Every measurement counts by its share, so
    that large batches do not outweigh small ones."""
    counts, spent_s = np.array(measured, np.float64)[:, :-1], np.array(measured, np.float64)[:, -1]
    weights = 1 / np.maximum(spent_s, 1e-6)
    matrix, values = counts * weights[:, None], spent_s * weights
    scale = np.maximum(matrix.max(axis=0), 1e-300)
    used = list(range(matrix.shape[1]))
    while True:
        solved, *_ = np.linalg.lstsq(matrix[:, used] / scale[used], values, rcond=None)
        if (solved >= 0).all():
            break
        used.pop(int(np.argmin(solved)))
    found = np.zeros(matrix.shape[1])
    found[used] = solved / scale[used]
    return [float(price) for price in found]


def _fold_s(batches: int) -> float:
    """Seconds to fold a row into a group: a sum and a maximum of a hundred groups."""
    rows, rng = BATCH_ROWS[-1], np.random.default_rng(7)
    types = {"k": pa.int64(), "v": pa.float64(), "ts": pa.timestamp("us")}
    stream = Stream("a", tuple(Field(name, type) for name, type in types.items()), "ts")
    aggregates = (Aggregate("sum", 1, pa.float64()), Aggregate("max", 1, pa.float64()))
    selected = tuple((f"agg{i}", Column(pa.float64(), GROUP, f"agg{i}")) for i in range(2))
    query = Query(
        "calibration", (Input("a", stream, range_window(3_000_000)),), (), (),
        (("key0", Column(pa.int64(), "a", "k")), ("arg0", Column(pa.float64(), "a", "v"))), "",
        Grouping(1, aggregates, selected),
    )  # fmt: skip
    spent = []
    with tempfile.TemporaryDirectory() as folder:
        run = LocalRun(query, LocalFilesystem(folder))
        for batch in range(batches + 4):
            times = batch * 1_000_000 + np.arange(rows) * 1_000_000 // rows
            table = pa.table(
                {"k": rng.integers(0, 100, rows), "v": rng.random(rows), "ts": pa.array(times, types["ts"])}
            )
            counted = run.step(batch, {"a": table}).statistics.cpu_ns
            spent.append((counted.get("emit", 0) + counted.get("aggregate", 0)) / 1e9 / rows)
    return float(np.median(spent[4:]))


def _run(case: _Case, batches: int) -> list[tuple[Statistics, float]]:
    batch_rows = case.rows
    types = {"k": pa.int64(), "l": pa.int64(), "v": pa.float64(), "ts": pa.timestamp("us")}
    fields = tuple(Field(name, type) for name, type in types.items())
    streams = [Stream(name, fields, "ts") for name in "abc"]

    def column(alias: str, name: str) -> Column:
        return Column(types[name], alias, name)

    query = Query(
        "calibration", tuple(Input(s.name, s, range_window(case.window * 1_000_000)) for s in streams),
        (Equality(column("a", "k"), column("b", "k")), Equality(column("b", "l"), column("c", "l"))), (),
        tuple((f"{s}_v", column(s, "v")) for s in "abc"),
    )  # fmt: skip
    rng = np.random.default_rng(7)
    domain = max(1, int(batch_rows * case.window / case.matches))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = LocalRun(query, LocalFilesystem(folder), case.plan)
        for batch in range(case.window + 2 + batches):
            times = batch * 1_000_000 + np.arange(batch_rows) * 1_000_000 // batch_rows
            rows = {
                s: pa.table({
                    "k": rng.integers(0, domain, batch_rows), "l": rng.integers(0, domain, batch_rows),
                    "v": rng.random(batch_rows), "ts": pa.array(times, pa.timestamp("us")),
                })
                for s in "abc"
            }  # fmt: skip
            began = process_time()
            step = run.step(batch, rows)
            if batch >= case.window + 2:
                found.append((step.statistics, process_time() - began))
    return found
