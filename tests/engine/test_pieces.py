"""Results leave in pieces of bounded size, in rows and in bytes; a user may bound how many there are; and an id that is not
that of a row is an error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.control.records import Manifest, SlotState
from anabranch.drive.kept import Kept
from anabranch.drive.local import SLOT, LocalRun
from anabranch.engine.aggregation import Partials, PartialTable
from anabranch.engine.arrival import Arrival
from anabranch.engine.columns import AddressTables, row_bytes
from anabranch.engine.log import Log
from anabranch.engine.store import Store
from anabranch.engine.view import View
from anabranch.errors import DamagedStateError, MissingRowError, StateError, TooManyResultsError, ValueTooLargeError
from anabranch.plan.migration import Strategy
from anabranch.plan.query import Derived, Query, Stream
from anabranch.sql import parse_script
from anabranch.storage.container import ContainerWriter
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.local_runs import files, state_of
from tests.support.small_pieces import SMALL, small_pieces

LARGEST_PEAK_MB = 700
SECOND_US = 1_000_000


def query_of(sql: str, columns: str = "k BIGINT, s STRING, ts TIMESTAMP") -> Query:
    streams = "".join(f"CREATE STREAM {s} ({columns}) TIME ts;" for s in "abc")
    return parse_script(f"{streams} CREATE QUERY q AS {sql}").queries[0].query


def rows_of(texts: list[str | None], time_us: int = 0) -> pa.Table:
    count = len(texts)
    times = pa.array([time_us] * count, pa.timestamp("us"))
    return pa.table({"k": pa.array([0] * count, pa.int64()), "s": pa.array(texts, pa.string()), "ts": times})


JOIN = "SELECT a.s, b.s AS t FROM a, b WHERE a.k = b.k WINDOW 9 SECONDS"


def results_of(query: Query, *batches: dict[str, pa.Table]) -> list[pa.RecordBatch]:
    """The pieces that batches give, and all of them."""
    run, found = LocalRun(query, MemoryFilesystem()), list[pa.RecordBatch]()
    for number, rows in enumerate(batches):
        step = run.step(number, rows, found.append)
        assert step.results.num_rows == 0, "what was taken is not kept"
    return found


# -- in rows and bytes -----------------------------------------------------------------------------------------------


@given(
    st.lists(st.text(max_size=40) | st.none(), max_size=9), st.lists(st.text(max_size=40), max_size=9), SMALL, SMALL
)
@settings(deadline=None, max_examples=60)
def test_pieces_are_no_larger_than_allowed(left: list[str | None], right: list[str], rows: int, size_bytes: int) -> None:
    """A piece of several rows keeps within both bounds; and all of them together are what there is to give."""
    query, given_rows = query_of(JOIN), {"a": rows_of(left), "b": rows_of(list(right))}
    with small_pieces(rows, size_bytes):
        found = results_of(query, given_rows)
    for piece in found:
        assert piece.num_rows <= rows
        assert piece.num_rows == 1 or sum(int(row_bytes(column).sum()) for column in piece.columns) <= size_bytes
    assert Counter(row for p in found for row in oracle.bag(pa.Table.from_batches([p])).elements()) == oracle.expected(
        query, [given_rows], {}
    )


def test_one_wide_value_does_not_make_all_pieces_small() -> None:
    """Rows are cut by the bytes that they have, not by those of the widest."""
    query, rows = query_of(JOIN), {"a": rows_of(["x" * 1000, *["y"] * 99]), "b": rows_of(["z"] * 10)}
    with small_pieces(10**6, 1000):
        found = [piece.num_rows for piece in results_of(query, rows)]
    assert sorted(found) == [*[1] * 10, *sorted(found)[10:]]
    assert len(found) <= 10 + 10 + 10, "ten wide results, and the others between them"


NESTED = {
    "list": (pa.list_(pa.string()), lambda text: [text, text[:2]]),
    "struct": (pa.struct([("p", pa.string()), ("q", pa.int64())]), lambda text: {"p": text, "q": 1}),
    "map": (pa.map_(pa.string(), pa.binary()), lambda text: [(text, b"x"), ("", None)]),
    "lists of lists": (pa.list_(pa.list_(pa.string())), lambda text: [[text], []]),
}


@pytest.mark.parametrize("name", list(NESTED))
def test_the_bytes_of_nested_values(name: str) -> None:
    type_, value = NESTED[name]
    values = [value("a" * n) for n in (0, 3, 50)]
    found = row_bytes(pa.array([*values, None, values[1]], type_))
    assert found[1] == found[4]
    assert found[2] - found[1] in (47, 2 * 47), "a longer text has more bytes"
    assert found[3] <= found[0]
    assert row_bytes(pa.array([*values, None, values[1]], type_).slice(1, 2)).tolist() == found[1:3].tolist()


def test_more_bytes_than_a_column_can_have() -> None:
    """2.2 GB of one string column in the results of a batch: each of 2200 rows meets a text of a million bytes."""
    text, rows = "x" * 10**6, rows_of([""] * 2200)
    found = 0

    def count(piece: pa.RecordBatch) -> None:
        nonlocal found
        found += int(row_bytes(piece.column(0)).sum())

    LocalRun(query_of(JOIN), MemoryFilesystem()).step(0, {"a": rows_of([text]), "b": rows}, count)
    assert found == 2200 * 10**6


@pytest.mark.parametrize("plan", ["((a b) c)", "(a b c)"])
def test_keys_and_predicates_of_many_bytes(plan: str) -> None:
    """Wide keys and wide operands of residual predicates are fetched a piece at a time, on inner steps and into views."""
    sql = "SELECT a.k, c.k AS l FROM a, b, c WHERE a.k = b.k AND b.s = c.s AND a.s || b.s <> c.s WINDOW 9 SECONDS"
    query, text = query_of(sql), "x" * 1000
    rows = {"a": rows_of([text] * 9), "b": rows_of([text] * 9), "c": rows_of([text] * 9)}
    with (
        mock.patch("anabranch.engine.columns.MOST_COLUMN_BYTES", 60_000),
        mock.patch("anabranch.engine.bounds.CHUNK_BYTES", 20_000),
        mock.patch("anabranch.engine.bounds.RESULT_BYTES", 20_000),
    ):
        run = LocalRun(query, MemoryFilesystem(), plan)
        assert run.step(0, rows).results.num_rows == 729


def test_a_fetch_that_does_not_fit_is_an_error_that_says_so() -> None:
    """It cannot happen as long as pieces are bounded."""
    with (
        mock.patch("anabranch.engine.columns.MOST_COLUMN_BYTES", 1000),
        pytest.raises(ValueTooLargeError, match=r"10 values of type string have 2000 bytes.*SUBSTRING"),
    ):
        results_of(query_of(JOIN), {"a": rows_of(["x" * 200]), "b": rows_of(["y"] * 10)})


def test_an_expression_that_makes_values_longer() -> None:
    """A piece whose results do not fit is halved; one result that does not is an error."""
    query, rows = query_of(JOIN.replace("a.s,", "a.s || b.s AS s,")), {"a": rows_of(["x"] * 4), "b": rows_of(["y"] * 4)}
    sizes: list[int] = []

    def evaluate(expr: Any, columns: Any, count: int, times: Any = None) -> pa.Array:
        sizes.append(count)
        if count > most:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return pa.array(["xy"] * count)

    with mock.patch("anabranch.engine.results.evaluate", evaluate):
        most = 3
        assert sum(piece.num_rows for piece in results_of(query, rows)) == 16
        assert max(sizes) == 16
        most = 0
        with pytest.raises(ValueTooLargeError, match="a single result"):
            results_of(query, rows)


def test_views_take_many_pieces() -> None:
    """What a view keeps of a batch comes piece by piece and is one segment; later rows find all of it."""
    query = query_of("SELECT a.s, b.s AS t, c.s AS u FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 9 SECONDS")
    texts = [[f"{alias}{i}" for i in range(12)] for alias in "abc"]
    first = {"a": rows_of(list(texts[0])), "b": rows_of(list(texts[1]))}
    then = {"c": rows_of(list(texts[2]), SECOND_US)}
    with small_pieces(5, 100):
        run, found = LocalRun(query, MemoryFilesystem(), "((a b) c)"), Counter[Any]()
        for number, rows in enumerate([first, then]):
            found += oracle.bag(run.step(number, rows).results)
    assert len(found) == 12**3
    assert found == oracle.expected(query, [first, then], {})


def test_instants_leave_in_pieces_too() -> None:
    """The watermark jumps over a thousand instants at which three groups have rows."""
    query = query_of("SELECT a.s, COUNT(*) AS n FROM a [RANGE 2000 SECONDS] GROUP BY a.s")
    rows = [{"a": rows_of(["x", "y", "z"])}, {"a": rows_of(["x"], 1000 * SECOND_US)}, {}]
    with mock.patch("anabranch.engine.bounds.RESULT_ROWS", 30):
        pieces = results_of(query, *rows)
    assert {p.num_rows for p in pieces} == {30}
    assert sum(p.num_rows for p in pieces) == 3000
    wide = [{"a": rows_of(["x" * 1000, "y", "z"])}, *rows[1:]]
    with mock.patch("anabranch.engine.bounds.RESULT_BYTES", 5000):
        assert max(p.num_rows for p in results_of(query, *wide)) < 30


@pytest.mark.parametrize(
    "above",
    ["SELECT g.n, COUNT(*) AS c FROM ({}) g GROUP BY g.n", "SELECT g.s, SUM(g.n) AS c FROM ({}) g GROUP BY g.s",
     "SELECT g.s FROM ({}) g WHERE g.n > 1"],
)  # fmt: skip
def test_groups_of_a_subquery_that_nobody_keeps_are_never_held_together(above: str) -> None:
    """The watermark jumps over 90 instants at which ten groups have rows; the block above takes them 30 at a time."""
    query = query_of(above.format("SELECT a.s, COUNT(*) AS n FROM a [RANGE 90 SECONDS] GROUP BY a.s"))
    came = list[int]()
    texts = [f"x{number}" for number in range(10)]
    batches = [{"a": rows_of([*texts, "x1"])}, {"a": rows_of(["x1"], 100 * SECOND_US)}, {}]
    take = Arrival.take

    def watched(self: Arrival, store: Store, source: Stream, rows: pa.Table, watermarks: Mapping[str, int]) -> None:
        came.extend([rows.num_rows] * isinstance(source, Derived))
        take(self, store, source, rows, watermarks)

    run, whole, found = LocalRun(query, MemoryFilesystem()), LocalRun(query, MemoryFilesystem()), Counter[Any]()
    for number, rows in enumerate(batches):
        with mock.patch("anabranch.engine.bounds.RESULT_ROWS", 30), mock.patch.object(Arrival, "take", watched):
            step = run.step(number, rows)
        found += oracle.bag(step.results)
        assert step.statistics.sources == whole.step(number, rows).statistics.sources
    assert found == oracle.expected(query, batches, {})
    assert (sum(came), max(came)) == (900, 30)


def test_many_parts_of_a_batch_are_folded_into_few_rows() -> None:
    """However often rows of a batch are folded, what is kept of them in between is as much as they fold to."""
    query = query_of("SELECT a.s, COUNT(*) AS n FROM a, b WHERE a.k = b.k GROUP BY a.s WINDOW 9 SECONDS")
    kept, merge = list[int](), PartialTable.merge

    def counting(table: PartialTable, several: Sequence[Partials]) -> Partials:
        kept.append(sum(len(p.firsts) for p in several))
        return merge(table, several)

    with small_pieces(20, 10**6), mock.patch.object(PartialTable, "merge", counting):
        LocalRun(query, MemoryFilesystem()).step(0, {"a": rows_of(list("xyz") * 10), "b": rows_of([""] * 100)})
    assert len(kept) > 10
    assert max(kept) < 30, "150 parts of 20 rows each have three groups: 450 rows, if they were kept to the end"


def peak_of(*arguments: str) -> dict[str, Any]:
    """What the benchmark of one key tells, run by itself: the peak of memory is that of a process."""
    command = [sys.executable, "-m", "bench.one_key", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["join", "inner step", "groups"])
def test_memory_does_not_follow_the_results(name: str) -> None:
    """4000 rows meet 4000: 16 million combined rows (36 million took 2.4 GB when they were held)."""
    told = peak_of("--rows", "4000", "--query", name)
    assert told["results"] == (16_000_000 if name == "join" else 0)
    assert told["peak MB"] < LARGEST_PEAK_MB


def test_a_batch_that_gives_far_too_much_ends_early() -> None:
    """10^5 rows would meet 10^5: the batch ends with the first result too many."""
    told = peak_of("--rows", "100000", "--most", "2000000")
    assert "more than 2000000 results" in told["error"]
    assert told["results"] <= 2_000_000
    assert told["peak MB"] < LARGEST_PEAK_MB


# -- how many --------------------------------------------------------------------------------------------------------


def test_more_results_than_allowed_are_an_error_of_the_batch() -> None:
    """Nothing is committed, and the run goes on from what was."""
    query, disk = query_of(JOIN), MemoryFilesystem()
    run = LocalRun(query, disk, results_per_batch=15)
    assert run.step(0, {"a": rows_of(["x"] * 4), "b": rows_of(["y"] * 3)}).results.num_rows == 12
    with pytest.raises(TooManyResultsError, match="query q gives more than 15 results in batch 1"):
        run.step(1, {"b": rows_of(["y"] * 4)})
    assert run.last_batch == 0
    again = LocalRun(query, disk, results_per_batch=16)
    assert again.step(1, {"b": rows_of(["y"] * 4)}).results.num_rows == 16


# -- ids that are those of no row ------------------------------------------------------------------------------------


def test_a_log_that_was_purged_too_early() -> None:
    """A row that is valid for another microsecond is gone from its log, and an index still names it."""
    sql = "SELECT a.s, b.s AS t FROM a, b WHERE a.k = b.k WINDOW 1 SECOND"
    last_us, purge = SECOND_US - 1, Log.purge
    run = LocalRun(query_of(sql), MemoryFilesystem())
    run.step(0, {"a": rows_of(["gone"])})
    run.step(1, {"a": rows_of(["kept"], last_us), "b": rows_of(["kept"], last_us)})
    with (
        mock.patch.object(Log, "purge", lambda log, ended_us: purge(log, lambda us: ended_us(us) + 1)),
        pytest.raises(MissingRowError, match=r"row 0 of batch 0 of a, which is not in the log: that batch is not there"),
    ):
        run.step(2, {"b": rows_of(["finds both"], last_us)})


def test_a_view_that_was_purged_too_early() -> None:
    sql = "SELECT a.s, b.s AS t, c.s AS u FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 1 SECOND"
    last_us, purge = SECOND_US - 1, View.purge
    run = LocalRun(query_of(sql), MemoryFilesystem(), "((a b) c)")
    run.step(0, {"a": rows_of(["gone"]), "b": rows_of(["gone"])})
    run.step(1, {name: rows_of(["kept"], last_us) for name in "abc"})
    with (
        mock.patch.object(View, "purge", lambda view, watermark_us: purge(view, watermark_us + 1)),
        pytest.raises(MissingRowError, match=r"row 0 of batch 0 of the view of .* where #0.k = #1.k"),
    ):
        run.step(2, {"c": rows_of(["finds both"], last_us)})


def test_rows_that_a_segment_does_not_have() -> None:
    """Batches before, between and behind those of a log, and offsets behind a segment's last row."""
    run = LocalRun(query_of(JOIN), MemoryFilesystem())
    for number in (0, 1, 2):
        run.step(number, {"a": rows_of(["x"] * 3)} if number != 1 else {})
    assert run.slot is not None
    log = run.slot.store.logs["a"]
    log.check(np.array([2, 2 << 32, 0], np.int64))
    for wrong in (3, 1 << 32, (2 << 32) + 3, 3 << 32, 10**6 << 32, (1 << 32) - 1, -1):
        with pytest.raises(MissingRowError):
            log.check(np.array([0, wrong], np.int64))
    with pytest.raises(MissingRowError):
        run.slot.store.logs["b"].check(np.array([0], np.int64))


def test_rows_of_batches_between_those_that_are_far_apart() -> None:
    """Batch 3 stands far before the others and is numbered anew: no other batch is taken for it, nor it for another."""
    tables = AddressTables(1)
    for batch, rows in ((3, 2), (9000, 5), (9001, 1), (9002, 4)):
        tables.set(batch, rows)
    tables.drop(9001)
    assert tables.base != 3, "batch 3 is a straggler"
    assert tables.first_outside(np.array([3 << 32, 3 << 32 | 1, 9000 << 32 | 4, 9002 << 32], np.int64)) == -1
    for batch, offset in ((3, 2), (2, 0), (4, 0), (tables.base, 0), (8999, 0), (9000, 5), (9001, 0), (9003, 0), (20_000, 0)):
        assert tables.first_outside(np.array([3 << 32, 9000 << 32, batch << 32 | offset, -1], np.int64)) == 2, batch


THREE = "SELECT a.s, b.s AS t, c.s AS u FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 60 SECONDS"


def with_more_rows(state: SlotState, kind: str) -> SlotState:
    """A state whose records tell of a row more than there is."""
    records = {"log": state.logs, "run": state.runs, "view": state.views}[kind]
    assert records
    changed = tuple(msgspec.structs.replace(record, rows=record.rows + 1) for record in records)
    return msgspec.structs.replace(state, **{f"{kind}s": changed})


@pytest.mark.parametrize("kind", ["log", "run", "view"])
def test_records_that_do_not_fit_their_segments(kind: str) -> None:
    """What is derived is derived again, without a look behind the end of the segment; a log is the only truth there is."""
    query, disk = query_of(THREE), MemoryFilesystem()
    batches = [{s: rows_of([f"{s}{n}"], n * SECOND_US) for s in "abc"} for n in range(20)]
    run, found = LocalRun(query, disk, "((a b) c)"), Counter[Any]()
    for number, rows in enumerate(batches):
        if number == 19:
            assert run.commit is not None
            state, run = state_of(run), LocalRun(query, disk, "((a b) c)")
            attempt = msgspec.structs.replace(run.commit.slots[SLOT], manifest=written(disk, with_more_rows(state, kind)))
            commit = msgspec.structs.replace(run.commit, slots={SLOT: attempt})
            run.driver.standing = replace(run.driver.standing, commit=commit)
            if kind == "log":
                with pytest.raises(DamagedStateError, match="holds 1 rows of a in batch 0, and its record says 2"):
                    run.step(number, rows)
                return
        found += oracle.bag(run.step(number, rows).results)
    assert found == oracle.expected(query, batches, {})


def test_a_segment_that_begins_elsewhere_is_refused() -> None:
    """Its rows would get ids that others have."""
    run = LocalRun(query_of(THREE), MemoryFilesystem(), "((a b) c)")
    run.step(0, {s: rows_of([f"{s}0"], SECOND_US) for s in "abc"})
    assert run.slot is not None
    checkpoint, state = run.slot.checkpoint, state_of(run)
    moved = tuple(msgspec.structs.replace(log, first=1) for log in state.logs)
    with pytest.raises(StateError, match=r"rows of a in batch 0 begin at position 1 .* use the one that wrote"):
        checkpoint.attach(msgspec.structs.replace(state, logs=moved), {})


def test_a_view_whose_bytes_do_not_fit_its_record_is_damaged() -> None:
    query = query_of(THREE)
    run = LocalRun(query, MemoryFilesystem(), "((a b) c)")
    for number in range(3):
        run.step(number, {s: rows_of([f"{s}{number}"], number * SECOND_US) for s in "abc"})
    assert run.slot is not None
    checkpoint = run.slot.checkpoint
    ((key, segments),) = checkpoint._views.items()
    record = segments[0]
    assert checkpoint._map_view(record, key).parts.shape == (2, record.rows)
    with pytest.raises(DamagedStateError, match=r"16 bytes of the view of .* do not fit the 2 rows of its record"):
        checkpoint._map_view(msgspec.structs.replace(record, rows=2), key)


def written(disk: MemoryFilesystem, state: SlotState) -> Manifest:
    """A manifest of a state, whole."""
    writer = ContainerWriter("state/0/0000000099-changed.log")
    own = writer.add(msgspec.msgpack.encode(state))
    writer.write(disk)
    return Manifest(own)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_rows_that_end_while_a_plan_changes_are_no_error(strategy: Strategy) -> None:
    """Views are recomputed while what they are made of ends."""
    sql = "SELECT a.s, b.s AS t, c.s AS u FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 3 SECONDS"
    query, batches = query_of(sql), [{s: rows_of([s], n * SECOND_US) for s in "abc"} for n in range(12)]
    run, found = LocalRun(query, MemoryFilesystem(), "((a b) c)"), Counter[Any]()
    for number, rows in enumerate(batches):
        if number == 4:
            run.migrate("(a (b c))", strategy)
        found += oracle.bag(run.step(number, rows).results)
    assert found == oracle.expected(query, batches, {})


def test_sets_of_predicates_that_no_segment_has_are_forgotten() -> None:
    """Queries with other filters may come and go for ever: sets of filters that nobody has any more do not stay."""
    sql = "SELECT a.s, b.s AS t FROM a, b WHERE a.k = b.k AND a.s <> 'x' WINDOW 2 SECONDS"
    query, disk = query_of(sql), MemoryFilesystem()
    run, found = LocalRun(query, disk), Counter[Any]()
    batches = [{s: rows_of([s, "x"], n * SECOND_US) for s in "ab"} for n in range(5)]
    for number, rows in enumerate(batches):
        if number == 2:
            assert run.slot is not None
            before = run.slot.checkpoint._predicates
            before |= {frozenset({f"filter {n}"}): len(before) + n for n in range(9)}
        if number == 4:
            run = LocalRun(query, disk)
        found += oracle.bag(run.step(number, rows).results)
    assert len(state_of(run).predicates) == 2
    assert found == oracle.expected(query, batches, {})


def test_a_slot_that_changes_hands_names_files_that_are_there() -> None:
    """A worker that catches up with what another has written has runs of its own, whose files may be gone."""
    query, disk = query_of("SELECT a.s, b.s AS t FROM a [UNBOUNDED], b [NOW] WHERE a.k = b.k"), MemoryFilesystem()
    run, workers = LocalRun(query, disk, release_every=1, sweep_grace_s=0.0), [Kept(), Kept()]
    for number in range(24):
        run.worker = workers[number % 5 > 2]
        run.step(number, {s: rows_of([f"{s}{number}"] * 3, number * SECOND_US) for s in "ab"})
        assert run.slot is not None
        assert state_of(run).files() <= files(disk), number
