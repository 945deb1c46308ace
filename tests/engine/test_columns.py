"""Columns of a log, fetched by row id: equal to pyarrow's take, for every type, over all segments."""

from __future__ import annotations

import gc
from datetime import date, datetime
from decimal import Decimal
from unittest.mock import sentinel

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.engine.columns import AddressTables, ColumnStore
from anabranch.engine.log import Log, Stored, decode, encode, starts_of
from anabranch.engine.slices import Slice
from anabranch.plan.query import BEGINNING_US, Field, Stream, Table

TIME = pa.timestamp("us")
SMALL = st.integers(-100, 100)
VALUES = {
    pa.int8(): SMALL,
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    TIME: st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    pa.decimal128(10, 2): SMALL.map(lambda i: Decimal(i) / 4),
    pa.decimal128(38, 0): st.integers(-(10**27), 10**27).map(Decimal),
    pa.string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
    pa.list_(pa.int64()): st.lists(SMALL | st.none(), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries({"a": SMALL, "b": st.text(max_size=3)}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(max_size=2), SMALL, max_size=2).map(lambda d: list(d.items())),
    pa.list_(pa.struct([("x", pa.list_(pa.string()))])): st.lists(
        st.fixed_dictionaries({"x": st.lists(st.text(max_size=2), max_size=2)}), max_size=2
    ),
    pa.null(): st.none(),
}  # fmt: skip
TYPES = pytest.mark.parametrize("type_", list(VALUES), ids=str)


def log_of(type_, source=None):
    source = source or Table("t", (Field("v", type_),))
    return Log(source, pa.schema([pa.field(f.name, f.type) for f in source.fields]))


def add(log, batch, *columns):
    """Appends a segment as a step does: through the bytes of its file."""
    data = encode(pa.RecordBatch.from_arrays(list(columns), schema=log.schema))
    rows = decode(data)
    start_max_us = int(starts_of(log.source, rows).max()) if rows.num_rows else BEGINNING_US
    log.add(batch, Stored(data, rows, start_max_us, slices=(Slice(8, rows.num_rows, start_max_us),)))


def expected(segments, ids, type_):
    """The same by pyarrow: a take from all segments put together."""
    firsts, count = {}, 0
    for batch, array in segments.items():
        firsts[batch], count = count, count + len(array)
    places = [firsts[i >> 32] + (i & 0xFFFFFFFF) for i in ids]
    return pa.concat_arrays([*segments.values(), pa.array([], type_)]).take(pa.array(places, pa.int64()))


@st.composite
def columns(draw, type_):
    """Arrays by batch, some with nulls, some empty; and ids of their rows, in any order, with repetitions."""
    batches = sorted(draw(st.sets(st.integers(0, 200), min_size=1, max_size=5)))
    segments = {}
    for batch in batches:
        values = VALUES[type_] | st.none() if draw(st.booleans()) else VALUES[type_]
        segments[batch] = pa.array(draw(st.lists(values, max_size=20)), type_)
    known = [b << 32 | i for b, array in segments.items() for i in range(len(array))]
    return segments, draw(st.lists(st.sampled_from(known), max_size=40)) if known else []


@TYPES
@given(data=st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_a_log_gathers_what_take_does(type_, data):
    segments, ids = data.draw(columns(type_))
    log = log_of(type_)
    for batch, array in segments.items():
        add(log, batch, array)
    found = log.column("v", np.array(ids, np.int64))
    found.validate(full=True)
    wanted = expected(segments, ids, type_)
    assert found.type == wanted.type
    assert found.equals(wanted)
    assert found.null_count == wanted.null_count


@TYPES
@given(data=st.data())
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_a_store_learns_segments_as_they_come(type_, data):
    segments, ids = data.draw(columns(type_))
    store, seen = ColumnStore(type_), {}
    for batch, array in segments.items():
        seen[batch] = decode(encode(pa.RecordBatch.from_arrays([array], ["v"]))).column(0)
        store.learn(batch, seen[batch])
        some = [i for i in ids if i >> 32 in seen]
        assert store.gather(np.array(some, np.int64), seen).equals(expected(segments, some, type_))


def test_nested_types_go_the_slow_way():
    fast = [str(t) for t in VALUES if ColumnStore(t).is_fast]
    assert not [t for t in fast if t.startswith(("list", "struct", "map", "null"))]
    assert len(fast) == 14


def test_nulls_that_come_late():
    """The first segments have no bitmap; a later one does."""
    log = log_of(pa.int64())
    add(log, 0, pa.array([1, 2]))
    assert log.column("v", np.array([1])).to_pylist() == [2]
    add(log, 1, pa.array([None, 3]))
    assert log.column("v", np.array([1, 1 << 32, 0, 1 << 32 | 1])).to_pylist() == [2, None, 1, 3]
    assert log.column("v", np.array([1, 0])).null_count == 0


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.list_(pa.int64())], ids=str)
def test_what_was_gathered_outlives_its_segments(type_):
    log = log_of(type_)
    values = {pa.int64(): 7, pa.string(): "text"}.get(type_, [1, 2])
    add(log, 0, pa.array([values] * 1000, type_))
    found = log.column("v", np.arange(1000))
    log.segments.clear()
    gc.collect()
    assert found.to_pylist() == [values] * 1000


# -- the log ---------------------------------------------------------------------------------------------------------

STREAM = Stream("s", (Field("v", pa.int64()), Field("w", pa.string()), Field("ts", TIME)), "ts")


def stream_rows(values, times):
    return pa.array(values, pa.int64()), pa.array([f"row {v}" for v in values]), pa.array(times, TIME)


def stream_log(batches, rows=3):
    """Batch b has the values 10·b, 10·b + 1, … at the times b, b, …"""
    log = log_of(None, STREAM)
    for batch in range(batches):
        add(log, batch, *stream_rows([10 * batch + i for i in range(rows)], [batch] * rows))
    return log


def all_ids(log):
    return np.array([b << 32 | i for b, s in log for i in range(s.rows.num_rows)], np.int64)


def test_a_segment_comes_back_from_its_bytes():
    rows = pa.RecordBatch.from_arrays(list(stream_rows([1, 2, 3], [5, 6, 7])), ["v", "w", "ts"])
    back = decode(encode(rows))
    assert back.equals(rows)
    assert decode(encode(rows.slice(1, 1))).equals(rows.slice(1, 1))
    assert all(column.offset == 0 for column in decode(encode(rows.slice(1, 1))).columns)


def test_starts():
    log = stream_log(3)
    assert log.times(np.array([2 << 32, (1 << 32) + 1, 2 << 32])).tolist() == [2, 1, 2]
    assert starts_of(log.source, log.segments[2].rows).tolist() == [2, 2, 2]
    table = Table("t", (Field("v", pa.int64()),))
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2])], ["v"])
    assert starts_of(table, rows).tolist() == [BEGINNING_US, BEGINNING_US]


def test_purge_drops_segments_whose_last_row_has_ended():
    log = stream_log(6)
    log.purge(lambda _: 12 - 10)
    assert [b for b, _ in log] == [3, 4, 5]
    assert log.rows == 9
    assert log.bytes == sum(s.data.size for _, s in log)
    log.purge(lambda _: BEGINNING_US)
    assert log.rows == 9


def test_tables_and_the_first_watermark_purge_nothing():
    log = log_of(pa.int64())
    add(log, 0, pa.array([1]))
    log.purge(lambda _: 2**62)
    assert log.rows == 1
    log = stream_log(2)
    log.purge(lambda _: BEGINNING_US)
    assert log.rows == 6


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=150))
@settings(deadline=None, max_examples=40)
def test_a_log_that_grows_and_is_purged(steps):
    """Addresses are forgotten with their segments, and tables of addresses move; the rows that are left stay the same."""
    log, watermark_us = log_of(None, STREAM), 0
    for batch, (forward, rows, look) in enumerate(steps):
        if rows:
            add(log, batch, *stream_rows([10 * batch + i for i in range(rows)], [batch] * rows))
        watermark_us = min(watermark_us + forward, batch + 1)
        log.purge(lambda _, us=watermark_us: us - 8)
        if look:
            ids = all_ids(log)
            values = [10 * int(i >> 32) + int(i & 0xFFFFFFFF) for i in ids]
            assert all(i >> 32 > watermark_us - 9 for i in ids)
            assert log.column("v", ids).to_pylist() == values
            assert log.column("w", ids[::-1]).to_pylist() == [f"row {v}" for v in values[::-1]]


def test_a_relocated_segment_is_read_where_it_is_now():
    log = stream_log(3)
    ids = all_ids(log)
    before = log.column("w", ids).to_pylist()
    for batch, stored in list(log):
        copy = pa.py_buffer(stored.data.to_pybytes())
        log.relocate(batch, copy, sentinel.record)
        del stored
    gc.collect()
    assert log.column("w", ids).to_pylist() == before
    assert log.segments[1].start_max_us == 1
    assert log.segments[1].record is sentinel.record


def addresses_in(tables, batches):
    """What kernels find for the first row of each batch, in every table."""
    ids = tables.renumbered(np.array(batches, np.int64) << 32)
    return tables.addresses[:, (ids >> 32) - tables.base].T.tolist()


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 30), st.booleans()), min_size=1, max_size=120))
@settings(deadline=None, max_examples=60)
def test_address_tables_against_a_dictionary(steps):
    """Batches come, closely or far apart, some for the second time, and any of them may go."""
    tables, model, batch = AddressTables(2), {}, 0
    for forward, gone, again in steps:
        batch += forward if forward > 2900 else forward % 2
        for known in [batch, *(list(model)[:1] if again else [])]:
            model[known] = [8 * len(model) + 8, known]
            tables.set(known, *model[known])
        if gone < len(model):
            del model[leaves := list(model)[gone]]
            tables.known.discard(leaves)
        assert addresses_in(tables, list(model)) == list(model.values())


@pytest.mark.parametrize("stays", [0, 5, 3000])
def test_address_tables_do_not_grow_with_the_number_of_batches(stays):
    """Each batch leaves after ten others, but for one, or one in a thousand."""
    tables = AddressTables(1)
    for batch in range(20_000):
        tables.set(batch, batch)
        if batch != stays and batch % 1000 != 7:
            tables.known.discard(batch - 10) if batch - 10 != stays and (batch - 10) % 1000 != 7 else None
        if stays <= batch:
            assert addresses_in(tables, [stays, batch]) == [[stays], [batch]]
    assert tables.addresses.shape[1] <= 4096


def test_a_segment_is_purged_when_its_rows_have_ended_whatever_others_do():
    log = log_of(None, STREAM)
    add(log, 0, *stream_rows([1, 2], [0, 10**15]))
    assert log.column("w", np.array([1])).to_pylist() == ["row 2"]
    for batch in range(1, 5000):
        add(log, batch, *stream_rows([batch], [batch]))
        log.purge(lambda _, us=batch: us - 3)
        assert len(log.segments) == 1 + min(3, batch)
        assert log.column("v", np.array([batch << 32, 1])).to_pylist() == [batch, 2]
    assert (log.rows, [b for b, _ in log]) == (5, [0, 4997, 4998, 4999])
    assert log._columns["v"].tables.addresses.shape[1] <= 4096
