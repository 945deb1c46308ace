"""Which rows of a batch count, and what is done to rows that do not look as declared."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.engine.accept import accept, conform
from anabranch.errors import SchemaMismatchError
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Field, Stream, Table

TIME = pa.timestamp("us")
STREAM = Stream("s", (Field("k", pa.int64()), Field("v", pa.string()), Field("ts", TIME)), "ts")
TABLE = Table("t", (Field("k", pa.int64()),))
ALL = ("k", "v", "ts")


def rows(times, keys=None):
    keys = list(range(len(times))) if keys is None else keys
    return pa.table(
        {"k": pa.array(keys, pa.int64()), "v": pa.array(map(str, keys), pa.string()), "ts": pa.array(times, TIME)}
    )


@given(
    st.lists(st.integers(-20, 20) | st.none(), max_size=30),
    st.sampled_from([BEGINNING_US, -20, -1, 0, 7, 21]),
    st.sampled_from([FOREVER_US, 20, 8, 0, -21]),
)
@example([], 0, FOREVER_US)
@example([None, None], 0, FOREVER_US)
@example([8, 3, 1, 9], 2, 8)
@settings(deadline=None)
def test_late_early_and_untimed_rows_are_turned_away_and_counted(times, watermark_us, early_after_us):
    accepted = accept(STREAM, rows(times), ALL, watermark_us, early_after_us)
    in_time = {i: t for i, t in enumerate(times) if t is not None and t <= early_after_us}
    kept = [i for i, t in in_time.items() if t >= watermark_us]
    assert accepted.rows.column("k").to_pylist() == kept
    assert accepted.rows.column("v").to_pylist() == [str(k) for k in kept]
    assert accepted.seen == len(times)
    assert accepted.untimed == times.count(None)
    assert accepted.early == len(times) - len(in_time) - accepted.untimed
    assert accepted.late == len(in_time) - len(kept)
    assert accepted.largest_time_us == max(in_time.values(), default=None), "early rows move no watermark"


def test_late_rows_move_the_watermark_too():
    accepted = accept(STREAM, rows([1, 5]), ALL, 6)
    assert (accepted.rows.num_rows, accepted.late, accepted.largest_time_us) == (0, 2, 5)


def test_a_row_at_the_watermark_is_in_time():
    assert accept(STREAM, rows([6]), ALL, 6).late == 0


def test_rows_of_a_table_have_no_time():
    accepted = accept(TABLE, pa.table({"k": [1, None]}), ("k",), 100)
    assert accepted.rows.column("k").to_pylist() == [1, None]
    assert (accepted.seen, accepted.late, accepted.untimed, accepted.largest_time_us) == (2, 0, 0, None)


@given(st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=4), st.integers(0, 3))
@settings(deadline=None)
def test_chunks_and_slices(chunks, skipped):
    """Tables of any number of chunks, and slices of them, become one batch."""
    table = pa.concat_tables([rows(times) for times in chunks] or [rows([])]).slice(skipped)
    accepted = accept(STREAM, table, ALL, 0)
    wanted = [r for r in table.to_pylist() if r["ts"].year >= 1970]
    assert isinstance(accepted.rows, pa.RecordBatch)
    assert accepted.rows.to_pylist() == wanted
    for batch in table.to_batches():
        assert accept(STREAM, batch, ALL, 0).rows.num_rows <= batch.num_rows


def test_a_table_without_chunks():
    table = pa.Table.from_batches([], pa.schema([(f.name, f.type) for f in STREAM.fields]))
    assert accept(STREAM, table, ALL, 0).rows.num_rows == 0


def test_only_the_named_columns_are_kept_in_their_order():
    batch = conform(STREAM, rows([1, 2]), ("ts", "k"))
    assert batch.schema == pa.schema([("ts", TIME), ("k", pa.int64())])


def test_columns_that_nobody_declared_are_ignored():
    table = rows([1]).append_column("extra", pa.array([1]))
    assert conform(STREAM, table, ALL).schema.names == list(ALL)


def test_no_columns_but_a_number_of_rows():
    assert conform(TABLE, pa.table({"k": [1, 2, 3]}), ()).num_rows == 3


@pytest.mark.parametrize(
    ("given_column", "wanted"),
    [
        (pa.array([1, 2], pa.int32()), [1, 2]),
        (pa.array([1, 2], pa.uint8()), [1, 2]),
        (pa.array([1.0, 2.0]), [1, 2]),
        (pa.array(["1", "2"]), [1, 2]),
        (pa.array([None, None]), [None, None]),
        (pa.array([1, 2]).dictionary_encode(), [1, 2]),
        (pa.chunked_array([[1], [2]], pa.int16()), [1, 2]),
    ],
    ids=lambda v: str(getattr(v, "type", "")),
)
def test_types_that_can_be_converted_are(given_column, wanted):
    batch = conform(TABLE, pa.table({"k": given_column}), ("k",))
    assert batch.column(0).type == pa.int64()
    assert batch.column(0).to_pylist() == wanted


@pytest.mark.parametrize(
    "given_column",
    [
        pa.array(["one"]),
        pa.array([1.5]),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
    ],
    ids=lambda v: str(v.type),
)
def test_types_that_cannot_be_converted_are_an_error(given_column):
    with pytest.raises(SchemaMismatchError, match=r"column k of t is .*, declared as int64"):
        conform(TABLE, pa.table({"k": given_column}), ("k",))


def test_times_in_other_units():
    millis = pa.table({"k": [1], "v": ["a"], "ts": pa.array([7], pa.timestamp("ms"))})
    assert accept(STREAM, millis, ALL, 0).largest_time_us == 7000
    nanos = pa.table({"k": [1], "v": ["a"], "ts": pa.array([1500], pa.timestamp("ns"))})
    with pytest.raises(SchemaMismatchError, match="ts of s"):
        accept(STREAM, nanos, ALL, 0)


def test_a_missing_column_is_an_error_that_lists_those_there_are():
    with pytest.raises(SchemaMismatchError, match=r"rows of s have no column ts \(timestamp\[us\]\); they have k, v"):
        accept(STREAM, rows([1]).drop_columns("ts"), ALL, 0)


def test_nested_columns_pass_through():
    nested = Stream("n", (Field("ts", TIME), Field("l", pa.list_(pa.struct([("a", pa.int64())])))), "ts")
    table = pa.table({"ts": pa.array([1, -1, 2], TIME), "l": pa.array([[{"a": 1}], [], None], nested.fields[1].type)})
    chunked = pa.concat_tables([table[:1], table[1:]])
    assert accept(nested, chunked, ("ts", "l"), 0).rows.column("l").to_pylist() == [[{"a": 1}], None]


def test_large_times_keep_their_microseconds():
    times = np.array([2**53 + 1, 2**53 + 2])
    accepted = accept(STREAM, rows(times.tolist()), ALL, 2**53 + 2)
    assert (accepted.late, accepted.largest_time_us) == (1, 2**53 + 2)
