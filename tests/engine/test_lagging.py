"""Watermarks that lag: rows that nobody wants by them go, and are in few slices of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from anabranch.drive.local import LocalPipeline
from anabranch.engine import bounds
from anabranch.engine.slot import Slot
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.together import Together

SECOND_US, HUB, ROWS, WINDOW_S = 1_000_000, 12, 24, 3


def hub(count: int = HUB) -> list[Query]:
    """Queries that join a with a stream of their own each, and have a filter of their own on a."""
    columns = ", ".join(f"x{n} BIGINT" for n in range(count))
    create = "".join(f"CREATE STREAM {s} (k BIGINT, {columns}, ts TIMESTAMP) TIME ts;" for s in names(range(count)))
    join = "SELECT a.x{n}, b{n}.k FROM a, b{n} WHERE a.k = b{n}.k AND a.x{n} < 4"
    queries = "".join(f"CREATE QUERY q{n} AS {join.format(n=n)} WINDOW {WINDOW_S} SECONDS;" for n in range(count))
    return [declared.query for declared in parse_script(create + queries).queries]


def names(places: range) -> list[str]:
    return ["a", *(f"b{n}" for n in places)]


def rows(second: int, silent: Mapping[str, range], count: int = HUB) -> dict[str, pa.Table]:
    """Rows of all streams but those that are silent then."""
    rng, found = np.random.default_rng(second), {}
    for name in names(range(count)):
        made = ROWS if name == "a" else 3
        times = second * SECOND_US + np.sort(rng.integers(0, SECOND_US, made))
        columns = {"k": rng.integers(0, 5, made), **{f"x{n}": rng.integers(0, 10, made) for n in range(count)}}
        if second not in silent.get(name, ()):
            found[name] = pa.table({**columns, "ts": pa.array(times, pa.timestamp("us"))})
    return found


def run_of(queries: list[Query], silent: Mapping[str, range], batches: int) -> tuple[LocalPipeline, list[int]]:
    """A pipeline after some batches, and how many slices the segment of each had."""
    run, slices = LocalPipeline(queries, MemoryFilesystem()), []
    for number in range(batches):
        run.step(number, rows(number, silent, len(queries)))
        slices.append(len(slot_of(run).store.logs["a"].segments[number].slices))
    return run, slices


def slot_of(run: LocalPipeline) -> Slot:
    slot = run.slot()
    assert slot is not None
    return slot


def test_while_watermarks_go_together_nothing_is_cut_by_them() -> None:
    """Twelve queries with filters of their own want rows of a in thousands of ways."""
    run, slices = run_of(hub(), {}, 8)
    store = slot_of(run).store
    assert set(slices) == {1}
    assert max(len(index.spines) for index in store.indexes.values()) == 1
    assert store.logs["a"].rows <= (WINDOW_S + 2) * ROWS


def test_streams_that_fall_silent_one_after_the_other_cut_rows_into_few_slices() -> None:
    """All but one do. However many lag, a batch has few slices, an index has a spine for each watermark at most, and rows
    that only the one query wants whose streams go on go by its own watermark."""
    silent = {f"b{n}": range(n, 1_000) for n in range(1, HUB)}
    run, slices = run_of(hub(), silent, 60)
    store = slot_of(run).store
    assert 2 <= max(slices) <= bounds.MOST_LAGGING + 1
    assert max(len(index.spines) for index in store.indexes.values()) <= HUB + 1
    last = max(batch for batch in store.logs["a"].segments)
    for batch, stored in store.logs["a"]:
        if 40 < batch < last - WINDOW_S - 1:
            lagging = np.any([stored.rows[f"x{n}"].to_numpy() < 4 for n in range(1, HUB)], axis=0)
            assert lagging.all(), "others are gone"


def test_rows_that_came_before_a_watermark_lagged_do_not_pile_up() -> None:
    """A stream falls silent again and again. Each time rows of a few batches wait for it that nobody wants by its watermark,
    and when it goes on they go."""
    silent = {"b1": {second for start in range(5, 120, 20) for second in range(start, start + 15)}}
    queries, extra = hub(2), []
    run = LocalPipeline(queries, MemoryFilesystem())
    for number in range(120):
        steps = run.step(number, rows(number, silent, 2))  # type: ignore[arg-type]
        there = 0
        for _, stored in slot_of(run).store.logs["a"]:
            ends = stored.rows["ts"].cast(pa.int64()).to_numpy() + WINDOW_S * SECOND_US
            wanted = [(stored.rows[f"x{n}"].to_numpy() < 4) & (ends > steps[f"q{n}"].watermark_us) for n in range(2)]
            there += int((~np.any(wanted, axis=0)).sum())
        extra.append(there)
    assert max(extra) <= 2 * (WINDOW_S + 2) * ROWS
    assert max(extra[100:]) <= max(extra[:40])


def test_a_pipeline_that_starts_anew_cuts_rows_as_before() -> None:
    """What lags is told by what was committed, not by what a worker remembers; and results are those of each alone."""
    queries, silent = hub(3), {"b1": range(3, 1_000), "b2": range(9, 20)}
    whole, cut = {query.name: Counter() for query in queries}, list[list[list[tuple[int, str]]]]()
    batches = [rows(number, silent, 3) for number in range(30)]
    for restarts in ((), range(1, 30, 4)):
        run, found = Together(queries, pa.table({})), list[list[tuple[int, str]]]()
        for number, each in enumerate(batches):
            if number in restarts:
                run.restart()
            for name, own in run.step(each).items():
                whole[name] += own if restarts else Counter()
            found.append([each.keeping for each in run.slot.store.logs["a"].segments[number].slices])
        cut.append(found)
    assert cut[0] == cut[1]
    assert {each.unwanted_by for slices in cut[0] for each in slices} >= {"", "a, b1", "a, b1; a, b2"}  # type: ignore[attr-defined]
    for query in queries:
        read = {source.name for source in query.base_sources}
        own = [{name: table for name, table in each.items() if name in read} for each in batches]
        assert not (wrong := oracle.difference(whole[query.name], oracle.expected(query, own, {}))), wrong
