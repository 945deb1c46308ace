"""Slices: how long rows are kept follows from who wants them, and nobody misses a row."""

from __future__ import annotations

from itertools import chain, pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine import bounds
from anabranch.engine.expressions import predicate_mask
from anabranch.engine.log import Log, Stored, decode, encode
from anabranch.engine.slices import (
    Keeping,
    Slice,
    Unwanted,
    bounds_of,
    coarse_windows,
    cut,
    lagging,
    limits_of,
    parts_of,
)
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Field, Stream
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.together import Together
from tests.support.workloads import Workload

STREAM = Stream("s", (Field("v", pa.int64()), Field("ts", pa.timestamp("us"))), "ts")
WINDOWS = st.lists(st.integers(1, 10**9) | st.just(FOREVER_US), min_size=1, max_size=40)


@given(WINDOWS)
def test_no_row_is_kept_shorter_than_it_is_wanted_and_few_much_longer(windows):
    found = bounds_of(windows)
    assert max(found) == max(windows)
    assert set(found) <= set(windows)
    assert len(found) <= bounds.MOST_SLICES
    assert all(longer >= bounds.SLICE_RATIO * shorter for shorter, longer in pairwise(found)), "each is worth its upkeep"
    for window_us in windows:
        slice_us = next(us for us in found if us >= window_us)
        is_full = len(found) == bounds.MOST_SLICES
        assert slice_us == window_us or slice_us < bounds.SLICE_RATIO * window_us or (is_full and slice_us == found[0])


@given(WINDOWS, st.lists(st.integers(-5, 2 * 10**9)))
def test_whatever_was_decided_no_row_is_kept_too_short(windows, told):
    found = limits_of(windows, told)
    assert found[-1] == max(windows)
    assert list(found) == sorted(set(found))
    assert set(found) - {max(windows)} == {us for us in told if 0 < us < max(windows)}
    assert limits_of(windows, None) == bounds_of(windows)


@given(st.sets(st.integers(1, 10**9), min_size=3, max_size=200), st.integers(2, 32))
def test_few_of_many_windows(windows, most):
    windows = tuple(sorted(windows))
    if len(windows) > most:
        found = coarse_windows(windows, most)
        assert len(set(found)) == most
        assert set(found) <= set(windows)
        assert (found[0], found[-1]) == (windows[0], windows[-1])


def stored_of(values: list[int], starts: list[int], slices: tuple[Slice, ...]) -> Stored:
    columns = [pa.array(values), pa.array(starts, pa.int64()).view(pa.timestamp("us"))]
    data = encode(pa.RecordBatch.from_arrays(columns, ["v", "ts"]))
    return Stored(data, decode(data), max(starts), slices=slices)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 50)), min_size=1, max_size=60), st.lists(st.integers(0, 130)))
@settings(deadline=None, max_examples=60)
def test_a_log_keeps_what_is_wanted_and_its_ids(rows, times):
    """Rows are wanted for so long from their starts on; the log is purged at some times, in order."""
    limits_us = (5, 20, 60)
    kept_us, starts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    order, slices = cut(kept_us, limits_us, starts)
    order = np.arange(len(rows)) if order is None else order
    log = Log(STREAM, pa.schema([("v", pa.int64()), ("ts", pa.timestamp("us"))]))
    log.add(7, stored_of(order.tolist(), starts[order].tolist(), slices))
    id_of = {int(row): 7 << 32 | position for position, row in enumerate(order)}
    for now_us in sorted(times):
        log.purge(lambda keeping, now_us=now_us: now_us - keeping.retention_us)
        wanted = [row for row, (for_us, start_us) in enumerate(rows) if start_us + for_us > now_us]
        ids = np.array([id_of[row] for row in wanted], np.int64)
        assert log.inside(ids) is None, "what is wanted is there"
        assert log.column("v", ids).to_pylist() == wanted
        gone = np.array([id_of[row] for row in range(len(rows))], np.int64)
        there = log.inside(gone)
        assert log.rows == (len(rows) if there is None else int(there.sum()))
        assert log.bytes == sum(stored.data.size for _, stored in log)
        assert sum(log.slice_rows.values()) == log.rows
    log.purge(lambda keeping: 200)
    assert (log.rows, log.bytes, log.segments) == (0, 0, {})


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2), st.integers(0, 50)), min_size=1, max_size=60), st.data())
@settings(deadline=None, max_examples=60)
def test_a_log_keeps_what_is_wanted_by_each_watermark(rows, data):
    """Each row is wanted for so long by some of three watermarks, which go on by themselves. Whatever the order of slices
    was made by, nothing goes that is wanted; when all slices are over, nothing is left."""
    limits_us, streams = (5, 20, 60), ("a b", "a, b, c", "a, d")
    by = ("", "a, b, c", "a, b, c; a, d")
    kept_us, unwanted, starts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    now = {name: data.draw(st.integers(0, 60)) for name in streams}

    def over_us(keeping):
        return min([now[name] for name in streams if keeping.is_for(name)], default=10**6) - keeping.retention_us

    with patch.object(bounds, "MOST_APART", data.draw(st.sampled_from([3, 16]))):
        order, slices = cut(kept_us, limits_us, starts, Unwanted(by, unwanted), over_us)
    order = np.arange(len(rows)) if order is None else order
    assert len({each.keeping for each in slices}) == len(slices)
    assert [over_us(each.keeping) for each in slices] == sorted(over_us(each.keeping) for each in slices)
    log = Log(STREAM, pa.schema([("v", pa.int64()), ("ts", pa.timestamp("us"))]))
    log.add(7, stored_of(order.tolist(), starts[order].tolist(), slices))
    id_of = {int(row): 7 << 32 | position for position, row in enumerate(order)}
    for name in data.draw(st.lists(st.sampled_from(streams), max_size=8)):
        now[name] += data.draw(st.integers(0, 40))
        log.purge(over_us)
        least = [min(now[name] for name in streams if name not in by[place].split("; ")) for _, place, _ in rows]
        wanted = [row for row, (for_us, _, start_us) in enumerate(rows) if start_us + for_us > least[row]]
        ids = np.array([id_of[row] for row in wanted], np.int64)
        assert log.inside(ids) is None, "what is wanted is there"
        assert log.column("v", ids).to_pylist() == wanted
    now |= dict.fromkeys(streams, 200)
    log.purge(over_us)
    assert (log.rows, log.bytes, log.segments) == (0, 0, {})


def test_rows_that_one_watermark_waits_for_stand_before_the_others():
    """Rows that the part alone wants, for longer, go before those of a whole that is far behind."""
    now = {"a, b": 100, "a, b, c": 10}
    kept_us, places = np.array([5, 20, 20, 5]), np.array([0, 1, 1, 0])
    order, slices = cut(kept_us, (5, 20), np.zeros(4, np.int64), Unwanted(("", "a, b, c"), places),
                        lambda keeping: min(us for name, us in now.items() if keeping.is_for(name)) - keeping.retention_us)
    assert order is not None
    assert order.tolist() == [0, 3, 1, 2]
    assert [each.keeping for each in slices] == [Keeping(5), Keeping(20, "a, b, c")]


@given(st.lists(st.integers(-10**6, 10**6), min_size=1, max_size=40), st.integers(0, 10**6), st.integers(1, 10**5))
@settings(deadline=None, max_examples=60)
def test_watermarks_that_go_together_are_a_class(watermarks, ahead_us, window_us):
    """Those that do not lag are less than a stay behind, those of a class at most twice as far as each other, and there are
    few classes: the nearest are left out."""
    known, foremost_us = {f"s, t{n}": us for n, us in enumerate(watermarks)}, max(watermarks)
    found = lagging(known, foremost_us + ahead_us, window_us)
    behind = [[(foremost_us - known[streams]) / (ahead_us + window_us) for streams in several] for several in found]
    assert len(found) <= bounds.MOST_LAGGING
    assert all(max(each) < 2 * min(each) for each in behind)
    assert all(min(one) > max(other) for one, other in pairwise(behind))
    left = [(foremost_us - known[s]) / (ahead_us + window_us) for s in known.keys() - set(chain(*found))]
    if len(found) < bounds.MOST_LAGGING:
        assert max(left) < 1
    assert not found or max(left) < min(behind[-1])


def test_rows_of_an_index_by_slice():
    ordered = np.array([[9, 0, 0, 0], [10, 3, 0, 0], [11, 1, 0, 0], [12, 2, 0, 0]], np.uint64)
    slices = (Slice(60, 1, 0), Slice(20, 3, 0), Slice(5, 4, 0))
    found = {keeping.retention_us: rows[:, 1].tolist() for keeping, rows in parts_of(ordered, slices)}
    assert found == {60: [0], 20: [1, 2], 5: [3]}
    assert [keeping for keeping, _ in parts_of(ordered[:1], slices)] == [Keeping(60)]
    assert [keeping for keeping, _ in parts_of(ordered, slices[:1])] == [Keeping(60)]


SCRIPT = parse_script("""
    CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY short AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k WINDOW 1 SECOND;
    CREATE QUERY long AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k AND a.x < 5 WINDOW 60 SECONDS;
    CREATE QUERY other AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.x AND a.x < 3 WINDOW 10 SECONDS""")


def kept(names: str, batches: int = 30) -> tuple[int, int]:
    """The rows in the log of a, and in its indexes, when some of the queries have run for a while."""
    queries = [declared.query for declared in SCRIPT.queries if declared.query.name in names.split()]
    run = Together(queries, pa.table({}))
    for number in range(batches):
        ts = pa.array([number * 1_000_000 + n for n in range(100)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array(range(100)), "x": pa.array(range(100)), "ts": ts})
        run.step({"a": rows, "b": rows})
    slot = run.slot
    indexed = sum(index.rows for key, index in slot.store.indexes.items() if key.rows.source == "a")
    return slot.store.logs["a"].rows, indexed


def test_rows_that_only_short_windows_want_go_early():
    """Of a hundred rows of a batch five are wanted for a minute, the others for a second (State-Slice, the motivating
    example): a log with one slice would keep 3,000."""
    rows, indexed = kept("short long")
    assert rows == 2 * 100 + 28 * 5
    assert indexed < 1.5 * rows
    alone = kept("short")[0], kept("long")[0]
    assert rows <= sum(alone)


def check_theorem_4(workload: Workload) -> None:
    """With a slice for each window (Mem-Opt) no row is stored longer than somebody wants it, but for rows of its batch that
    are wanted as long: these go together. Whose a row is, is told by the oracle's watermarks and each query's filters."""
    run, batches = Together(workload.queries, pa.table({})), [workload.batch(n) for n in range(workload.batches)]
    windows: dict[str, set[int]] = {}
    for i in (i for query in workload.queries for i in query.inputs):
        windows.setdefault(i.source.name, set()).add(i.window.length_us)
    run.pipeline.driver.slices = {source: tuple(sorted(found)) for source, found in windows.items()}
    streams = {source.name: source for query in workload.queries for source in query.base_sources}
    watermarks = oracle.accepted([*batches, {}], [*streams.values()]).watermarks
    wanted: list[tuple[str, int, int, int]] = []
    for number, rows in enumerate([*batches, {}]):
        run.step(rows)
        now = BEGINNING_US if watermarks[number] is None else watermarks[number]
        for name in rows.keys() & streams.keys():
            times = [BEGINNING_US if us is None else us for us in oracle.times_us(rows[name], streams[name])]
            longest = np.where(np.array(times) >= max(now, BEGINNING_US + 1), wanted_us(workload, name, rows[name]), 0)
            for window_us in set(longest.tolist()) - {0}:
                there = np.array(times)[longest == window_us]
                wanted.append((name, window_us, int(there.max()), len(there)))
        for name in streams:
            most = sum(n for s, us, last, n in wanted if s == name and (us == FOREVER_US or last + us > now))
            log = run.slot.store.logs.get(name)
            assert log is None or log.rows <= most, (number, name)


def wanted_us(workload: Workload, name: str, rows: pa.Table) -> np.ndarray:
    """For how long some query wants each row of a stream; 0: none does."""
    found = np.zeros(len(rows), np.int64)
    for i in (i for query in workload.queries for i in query.inputs if i.source.name == name):
        mask = predicate_mask(i.filters, lambda c: rows.column(c.name).combine_chunks(), len(rows))
        np.maximum(found, i.window.length_us if mask is None else np.where(mask, i.window.length_us, 0), out=found)
    return found


test_theorem_4, test_theorem_4_long = properties(check_theorem_4, 30, 1_000, workload=kin())


def test_slices_are_those_of_all_who_read_a_stream():
    """Also of queries that do not share the join: three of a hundred rows are wanted for ten seconds by another one."""
    rows, _ = kept("short other")
    assert rows == 2 * 100 + 9 * 3


def test_a_segment_that_was_cut_is_written_anew_and_read_again():
    queries = [declared.query for declared in SCRIPT.queries]
    run = Together(queries, pa.table({}))
    for number in range(8):
        ts = pa.array([number * 1_000_000 + n for n in range(100)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array(range(100)), "x": pa.array(range(100)), "ts": ts})
        run.step({"a": rows, "b": rows})
        if number == 5:
            before = {batch: stored.rows.num_rows for batch, stored in run.slot.store.logs["a"]}
            run.restart()
    after = {batch: stored.rows.num_rows for batch, stored in run.slot.store.logs["a"]}
    assert before == {0: 5, 1: 5, 2: 5, 3: 5, 4: 100, 5: 100}
    assert after == {0: 5, 1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 100, 7: 100}
    manifest, _ = run.slot.save(8, "again")
    named = {each.batch: each.rows for each in run.slot.checkpoint.read(manifest).logs if each.source == "a"}
    assert named == after, "what is gone is not on disk either"


def test_views_are_recomputed_from_segments_that_were_cut():
    """All have joined at once for some batches; then they keep a view, which is derived from what is left of the logs."""
    joined = "FROM a, b, c WHERE a.k = b.k AND b.k = c.k"
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    script += f"CREATE QUERY q0 AS SELECT a.x, b.x AS y, c.x AS z {joined} AND a.x < 60 WINDOW 1 SECOND;"
    script += f"CREATE QUERY q1 AS SELECT a.x, b.x AS y, c.x AS z {joined} AND a.x < 5 AND b.x < 30 WINDOW 60 SECONDS;"
    # Another one keeps rows that no member of the join wants.
    script += "CREATE QUERY other AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.x AND a.x >= 60 WINDOW 2 SECONDS"
    queries = [declared.query for declared in parse_script(script).queries]
    together, alone = Together(queries, pa.table({})), [Together([query], pa.table({})) for query in queries]
    joining = queries[:2]
    for run in (together, *alone):
        for query in [query for query in run.queries if query in joining]:
            run.pipeline.change(query.name, "(a b c)")
    for number in range(9):
        if number == 6:
            assert {stored.rows.num_rows for _, stored in together.slot.store.logs["a"]} == {5, 45, 100}
            for query in joining:
                together.pipeline.change(query.name, "((a b) c)")
        ts = pa.array([number * 1_000_000 + n for n in range(100)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array([n % 40 for n in range(100)]), "x": pa.array(range(100)), "ts": ts})
        found = together.step(dict.fromkeys("abc", rows))
        for run, query in zip(alone, queries, strict=True):
            assert run.step(dict.fromkeys("abc", rows))[query.name] == found[query.name], (number, query.name)
    assert len(together.slot.sharing) == 2


def test_a_view_is_recomputed_for_a_member_that_comes_back():
    """q2 runs by itself for some batches; the view that the others keep meanwhile has nothing of what only q2 wants."""
    joined = "FROM a, b, c WHERE a.k = b.k AND b.k = c.k"
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    wheres = ("a.x < 5 WINDOW 60 SECONDS", "a.x < 3 WINDOW 30 SECONDS", "a.x >= 5 WINDOW 10 SECONDS")
    for number, where in enumerate(wheres):
        script += f"CREATE QUERY q{number} AS SELECT a.x, b.x AS y, c.x AS z {joined} AND {where};"
    queries = [declared.query for declared in parse_script(script).queries]
    together, alone = Together(queries, pa.table({})), [Together([query], pa.table({})) for query in queries]
    for number in range(10):
        if number in (3, 7):
            together.pipeline.change("q2", "(a b c)" if number == 3 else "((a b) c)")
        ts = pa.array([number * 1_000_000 + n for n in range(12)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array([n % 5 for n in range(12)]), "x": pa.array(range(12)), "ts": ts})
        found = together.step(dict.fromkeys("abc", rows))
        assert len(together.slot.sharing) == (2 if 3 <= number < 7 else 3)
        for run, query in zip(alone, queries, strict=True):
            assert run.step(dict.fromkeys("abc", rows))[query.name] == found[query.name], (number, query.name)


def test_runs_that_span_batches_which_are_over():
    """Runs of several batches are merged while rows of the short slice live: what is gone from the log is not looked up."""
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    for number, where in enumerate((" WINDOW 2 SECONDS", " AND a.x < 2 WINDOW 60 SECONDS")):
        script += f"CREATE QUERY q{number} AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k{where};"
    queries = [declared.query for declared in parse_script(script).queries]
    together, alone = Together(queries, pa.table({})), [Together([query], pa.table({})) for query in queries]
    for number in range(70):
        ts = pa.array([number * 100_000 + n for n in range(10)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array([(n + number) % 7 for n in range(10)]), "x": pa.array(range(10)), "ts": ts})
        found = together.step({"a": rows, "b": rows})
        for run, query in zip(alone, queries, strict=True):
            assert run.step({"a": rows, "b": rows})[query.name] == found[query.name], (number, query.name)
    (index,) = [index for key, index in together.slot.store.indexes.items() if key.rows.source == "a"]
    spans = {keeping.retention_us: max(run.last_batch - run.first_batch for run in spine.runs)
             for keeping, spine in index.spines.items()}  # fmt: skip
    assert spans[2_000_000] >= 3
    assert sorted(spans) == [2_000_000, 60_000_000]


def test_a_row_finds_what_is_as_old_as_the_windows_of_those_who_want_it():
    """To the microsecond: the row of a is wanted by the query with 5 s alone, and the rows of b are kept for 60 s."""
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    for number, where in enumerate((" WINDOW 5 SECONDS", " AND a.x < 5 WINDOW 60 SECONDS")):
        script += f"CREATE QUERY q{number} AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k{where};"
    run = Together([declared.query for declared in parse_script(script).queries], pa.table({}))

    def rows(x: int, *times_us: int) -> pa.Table:
        count = len(times_us)
        return pa.table({"k": [1] * count, "x": [x] * count, "ts": pa.array(times_us, pa.timestamp("us"))})

    run.step({"b": rows(1, 5_000_000, 5_000_001, 5_000_002)})
    found = run.step({"a": rows(50, 10_000_000)})
    assert len(run.slot.sharing) == 2
    assert {name: sum(bag.values()) for name, bag in found.items()} == {"q0": 2, "q1": 0}
    found = run.step({"a": rows(3, 10_000_000), "b": rows(2, 14_999_999, 15_000_000)})
    assert {name: sum(bag.values()) for name, bag in found.items()} == {"q0": 2 + 1 + 1, "q1": 5}


def test_rows_are_cut_as_the_control_record_says():
    """From a batch on rows are cut in another way. Those that are there keep their slices until these end; a driver that is
    started anew, and a batch that runs again, cut as before."""
    queries = [declared.query for declared in SCRIPT.queries if declared.query.name != "other"]
    run = Together(queries, pa.table({}))

    def step(number: int) -> None:
        ts = pa.array([number * 1_000_000 + n for n in range(100)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array(range(100)), "x": pa.array(range(100)), "ts": ts})
        run.step({"a": rows, "b": rows})

    def slices() -> dict[int, list[int]]:
        return {batch: [each.retention_us for each in stored.slices] for batch, stored in run.slot.store.logs["a"]}

    step(0)
    assert slices() == {0: [60_000_000, 1_000_000]}, "the rule"
    run.pipeline.driver.slices = {"a": (60_000_000,)}
    step(1)
    assert slices() == {0: [60_000_000, 1_000_000], 1: [60_000_000]}, "nothing is rewritten"
    run.restart()
    step(2)
    control = run.pipeline.controls.read(2)
    assert control.slices == {"a": (60_000_000,)}
    assert slices()[2] == [60_000_000]
    run.pipeline.driver.slices = {"a": (1_000_000, 7_000_000)}
    for number in range(3, 9):
        step(number)
    assert slices()[8] == [60_000_000, 1_000_000], "no row is wanted for 7 s"
    rows = {batch: stored.rows.num_rows for batch, stored in run.slot.store.logs["a"]}
    assert rows == {0: 5, 1: 100, 2: 100, 3: 5, 4: 5, 5: 5, 6: 5, 7: 100, 8: 100}
    counted = run.pipeline.driver.newest.queries["long"].statistics.sources["a"]
    assert counted.wanted_rows == {1_000_000: 95, 60_000_000: 5}
    assert counted.slice_rows == {1_000_000: 190, 60_000_000: 235}
    assert run.pipeline.driver.newest.queries["short"].statistics.sources["a"].wanted_rows == {}, "told once"


def test_rows_are_cut_as_decided_when_who_reads_them_has_changed():
    run = Together([declared.query for declared in SCRIPT.queries], pa.table({}))
    run.pipeline.driver.slices = {"a": (60_000_000,)}
    for number in range(3):
        if number == 2:
            run.pipeline.drop("other")
            run.queries = [query for query in run.queries if query.name != "other"]
        ts = pa.array([number * 1_000_000 + n for n in range(100)], pa.timestamp("us"))
        rows = pa.table({"k": pa.array(range(100)), "x": pa.array(range(100)), "ts": ts})
        run.step({"a": rows, "b": rows})
        stored = run.slot.store.logs["a"].segments[number]
        assert [each.retention_us for each in stored.slices] == [60_000_000]
