"""Bad input at the engine: each kind its own error, and nothing on disk has changed when it is raised."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import STATE_FOLDER, LocalRun
from anabranch.engine.accept import conform
from anabranch.errors import (
    AnabranchError,
    DamagedStateError,
    ForeignStateError,
    PlanError,
    SchemaMismatchError,
    StateError,
    ValueTooLargeError,
)
from anabranch.plan.jtree import Join, Leaf, Plan
from anabranch.plan.query import Field, Query, Stream
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SCRIPT = """
CREATE STREAM trades (k BIGINT, name STRING, price DECIMAL(10,2), day DATE, tags ARRAY<BIGINT>, at STRUCT<x INT>,
                      unused STRING, ts TIMESTAMP) TIME ts LATENESS 5 SECONDS;
CREATE STREAM quotes (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE TABLE symbols (k BIGINT, name STRING);
"""
SELECT = """
SELECT t.name, t.price, t.day, t.tags, t.at, s.name AS symbol
FROM trades [RANGE 10 SECONDS] AS t, quotes [RANGE 10 SECONDS] AS q, symbols AS s WHERE t.k = q.k AND s.k = q.k
"""

TIME = pa.timestamp("us")
TRADES = pa.table({
    "k": pa.array([1]), "name": pa.array(["a"]), "price": pa.array(["1.00"]).cast(pa.decimal128(10, 2)),
    "day": pa.array([date(2024, 1, 31)]), "tags": pa.array([[1, 2]]),
    "at": pa.array([{"x": 1}], pa.struct({"x": pa.int32()})),
    "ts": pa.array([0], TIME),
})  # fmt: skip
QUOTES = pa.table({"k": [1], "ts": pa.array([0], TIME)})
SYMBOLS = {"symbols": pa.table({"k": [1], "name": ["one"]})}


def query(select: str = SELECT) -> Query:
    return parse_script(f"{SCRIPT}CREATE QUERY q AS {select}").queries[0].query


def contents(disk: MemoryFilesystem) -> dict[str, bytes]:
    return {path: content.to_pybytes() for path, (content, _) in disk._files.items()}


def with_column(rows: pa.Table, name: str, values: Any, type_: pa.DataType | None = None) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, type_))


# Rows

BAD_ROWS = {
    "a column is missing": ({"trades": TRADES.drop_columns("name")}, "rows of trades have no column name"),
    "a key is missing": ({"quotes": QUOTES.drop_columns("k")}, "rows of quotes have no column k"),
    "the event time is missing": ({"trades": TRADES.drop_columns("ts")}, "rows of trades have no column ts"),
    "no columns at all": ({"trades": pa.table({})}, "rows of trades have no column"),
    "a column stands twice": ({"quotes": QUOTES.append_column("k", pa.array([1]))}, "k"),
    "text where a number belongs": ({"trades": with_column(TRADES, "k", ["x"])}, "column k of trades is string"),
    "a fraction where an integer belongs": (
        {"quotes": with_column(QUOTES, "k", [1.5])},
        "column k of quotes is double",
    ),
    "a number beyond its type": ({"trades": with_column(TRADES, "k", [2**64 - 1], pa.uint64())}, "column k of trades"),
    "text that is no time": ({"quotes": with_column(QUOTES, "ts", ["noon"])}, "column ts of quotes is string"),
    "a list where a time belongs": ({"quotes": with_column(QUOTES, "ts", [[0]])}, "column ts of quotes"),
    "a number where a list belongs": ({"trades": with_column(TRADES, "tags", [1])}, "column tags of trades"),
    "another struct": ({"trades": with_column(TRADES, "at", [{"y": "z"}])}, "column at of trades"),
    "a struct where text belongs": ({"trades": with_column(TRADES, "name", [{"y": 1}])}, "column name of trades"),
    "a decimal with too many digits": (
        {"trades": with_column(TRADES, "price", ["123456789012.00"])},
        "column price of trades",
    ),
    "a stream the query does not read": ({"orders": QUOTES}, "does not read orders"),
}


@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_do_not_fit(name: str, first: bool) -> None:
    rows, message = BAD_ROWS[name]
    disk = MemoryFilesystem()
    run = LocalRun(query(), disk, tables=SYMBOLS)
    if not first:
        run.step(0, {"trades": TRADES})
    before = contents(disk)
    with pytest.raises(SchemaMismatchError, match=message):
        run.step(run.last_batch + 1, {"quotes": QUOTES, **rows})
    assert contents(disk) == before
    batches = [{"trades": TRADES, "quotes": QUOTES}] if first else [{"quotes": QUOTES}]
    assert run.step(run.last_batch + 1, batches[0]).results.num_rows == 1, "the run is of no use any more"


def test_rows_of_a_type_that_can_be_cast() -> None:
    trades = with_column(TRADES, "k", [1], pa.int8())
    trades = with_column(trades, "ts", [0], pa.timestamp("ms"))
    trades = with_column(trades, "name", ["a"], pa.large_string())
    run = LocalRun(query(), MemoryFilesystem(), tables=SYMBOLS)
    results = run.step(0, {"trades": trades, "quotes": QUOTES.to_batches()[0]}).results
    assert results.schema == query().output_schema
    assert results.num_rows == 1


def test_more_bytes_than_a_column_holds_in_a_batch() -> None:
    """Rows come in pieces, which are one from here on: 2.4 GB of strings are none. (The pages are never touched.)"""
    each, size = 800, 1_000_000
    values = pa.py_buffer(np.zeros(each * size, np.uint8))
    offsets = pa.py_buffer(np.arange(each + 1, dtype=np.int32) * size)
    piece = pa.Array.from_buffers(pa.string(), each, [None, offsets, values])
    stream = Stream("s", (Field("text", pa.string()),), "ts")
    rows = pa.table({"text": pa.chunked_array([piece] * 3)})
    with pytest.raises(ValueTooLargeError, match=r"column text of s has 2,4[0-9,]+ bytes .* 2 GiB: have smaller batches"):
        conform(stream, rows, ("text",))
    assert conform(stream, rows.slice(0, each), ("text",)).num_rows == each


def test_columns_that_the_query_does_not_need_may_be_missing() -> None:
    assert "unused" not in TRADES.schema.names
    run = LocalRun(query(), MemoryFilesystem(), tables=SYMBOLS)
    assert run.step(0, {"trades": TRADES, "quotes": QUOTES}).results.num_rows == 1


# Stored tables


def test_a_table_that_was_not_handed_in() -> None:
    disk = MemoryFilesystem()
    with pytest.raises(StateError, match="reads table symbols"):
        LocalRun(query(), disk)
    assert not contents(disk)


def test_a_table_that_does_not_fit() -> None:
    disk = MemoryFilesystem()
    with pytest.raises(SchemaMismatchError, match="symbols"):
        LocalRun(query(), disk, tables={"symbols": pa.table({"k": [1]})}).step(0, {})
    assert not contents(disk)


# Batches


@pytest.mark.parametrize(("done", "batch"), [(0, 1), (0, -1), (0, 7), (3, 0), (3, 1), (3, 4), (3, -1)])
def test_batch_numbers_without_gaps(done: int, batch: int) -> None:
    disk = MemoryFilesystem()
    run = LocalRun(query(), disk, tables=SYMBOLS)
    for number in range(done):
        run.step(number, {"trades": TRADES})
    before = contents(disk)
    with pytest.raises(StateError, match=f"batch {batch} cannot follow batch {done - 1}: hand in batch {done}"):
        run.step(batch, {"quotes": QUOTES})
    assert contents(disk) == before
    assert run.step(done, {"trades": TRADES, "quotes": QUOTES}).results.num_rows == done + 1


# Plans

BAD_PLANS: dict[str, str | Plan] = {
    "an input is missing": "(t q)",
    "an input too many": "(t q s x)",
    "an input stands twice": "((t q) (s t))",
    "names of sources, not of inputs": "(trades quotes symbols)",
    "a join of one": "((t) q s)",
    "unbalanced": "((t q) s",
    "nothing": " ",
    "a probe order that lacks an input": "(t q s){t: q}",
    "a probe order of a stranger": "(t q s){x: q s}",
    "as a value: an input is missing": Join((Leaf("t"), Leaf("q")), ((1,), (0,))),
    "as a value: only one input": Leaf("t"),
    "as a value: an input too many": Join((Leaf("t"), Leaf("q"), Leaf("s"), Leaf("x")), tuple(
        tuple(j for j in range(4) if j != i) for i in range(4))),
    "as a value: a stranger": Join((Leaf("t"), Leaf("q"), Leaf("x")), ((1, 2), (0, 2), (0, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PLANS)
def test_plans_that_do_not_fit(name: str) -> None:
    disk = MemoryFilesystem()
    with pytest.raises(PlanError):
        LocalRun(query(), disk, BAD_PLANS[name], SYMBOLS)
    assert not contents(disk)


@pytest.mark.parametrize(
    ("inputs", "orders"),
    [
        ((Leaf("t"),), ((),)),
        ((Leaf("t"), Leaf("t")), ((1,), (0,))),
        ((Leaf("t"), Leaf("q")), ((1,),)),
        ((Leaf("t"), Leaf("q")), ((0,), (1,))),
        ((Leaf("t"), Leaf("q"), Leaf("s")), ((1, 1), (0, 2), (0, 1))),
    ],
)
def test_joins_that_cannot_be(inputs: tuple[Plan, ...], orders: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(PlanError):
        Join(inputs, orders)


# State that cannot be used


def used_checkpoint() -> MemoryFilesystem:
    disk = MemoryFilesystem()
    run = LocalRun(query(), disk, tables=SYMBOLS)
    for number in range(3):
        run.step(number, {"trades": TRADES, "quotes": QUOTES})
    return disk


OTHER_QUERIES = {
    "another window": SELECT.replace("10 SECONDS", "11 SECONDS", 1),
    "another predicate": SELECT.replace("s.k = q.k", "s.k = t.k"),
    "another filter": f"{SELECT} AND t.name = 'a'",
    "a column that is not stored": SELECT.replace("t.name, ", "t.unused, "),
    "other streams": "SELECT a.k FROM quotes [NOW] AS a, quotes [NOW] AS b WHERE a.k = b.k",
}


@pytest.mark.parametrize("name", OTHER_QUERIES)
def test_a_checkpoint_of_another_query(name: str) -> None:
    disk = used_checkpoint()
    before = contents(disk)
    with pytest.raises(ForeignStateError, match="another query"):
        LocalRun(query(OTHER_QUERIES[name]), disk, tables=SYMBOLS, sweep_grace_s=0.0)
    assert contents(disk) == before


def test_a_checkpoint_of_another_program() -> None:
    disk = used_checkpoint()
    for name in disk.list("commit"):
        disk.put(f"commit/{name}", [b'{"made by": "somebody else"}'])
    before = contents(disk)
    with pytest.raises(ForeignStateError, match="not a file of anabranch"):
        LocalRun(query(), disk, tables=SYMBOLS, sweep_grace_s=0.0)
    assert contents(disk) == before


def test_commits_that_are_all_damaged() -> None:
    disk = used_checkpoint()
    for name in disk.list("commit"):
        disk.put(f"commit/{name}", [b""])
    before = contents(disk)
    with pytest.raises(DamagedStateError, match="commit/"):
        LocalRun(query(), disk, tables=SYMBOLS, sweep_grace_s=0.0)
    assert contents(disk) == before


def test_a_log_that_is_gone() -> None:
    disk = used_checkpoint()
    logs = [name for name in disk.list(STATE_FOLDER) if ".log" in name]
    disk.delete(f"{STATE_FOLDER}/{logs[0]}")
    before = contents(disk)
    with pytest.raises(DamagedStateError, match=logs[0]):
        LocalRun(query(), disk, tables=SYMBOLS).step(3, {"quotes": QUOTES})
    records = ("control/", "delivered/")  # the batch may be begun, and that of before have arrived
    assert {path: content for path, content in contents(disk).items() if not path.startswith(records)} == {
        path: content for path, content in before.items() if not path.startswith(records)
    }


def test_every_error_tells_a_user_what_to_do() -> None:
    for error in (PlanError, SchemaMismatchError, StateError, DamagedStateError, ForeignStateError):
        assert issubclass(error, AnabranchError)
