"""Hashes of whole rows: equal iff the rows are, whatever the order of rows and columns; and what is chosen by them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import reference
from anabranch.engine.row_hash import ALL_HASHES, NULL, chosen, combined_hash, hash_rows, salt_for, value_words
from anabranch.engine.shedding import Dropped, Shedding
from anabranch.plan.query import Stream
from tests.support.key_values import VALUES, same

NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(0, 3), max_size=3),
    pa.list_(pa.list_(pa.string())): st.lists(st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2), max_size=2),
    pa.struct([("a", pa.float64()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": st.none() | st.floats(), "b": st.none() | st.lists(st.text(max_size=2), max_size=2)}
    ),
    pa.map_(pa.string(), pa.int32()): st.lists(
        st.tuples(st.text(max_size=2), st.none() | st.integers(0, 3)), max_size=3, unique_by=lambda entry: entry[0]
    ),
}  # fmt: skip
TYPES = {**VALUES, **NESTED}


def alike(left: Any, right: Any) -> bool:
    """Equality as rows mean it, within values too."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return all(alike(left[name], right[name]) for name in left)
    if left is None or right is None:
        return left is right
    return same(left, right)


def slow_words(array: pa.Array) -> list[int]:
    """The words of values, one by one, for types whose twin is short."""
    if pa.types.is_list(array.type):
        lists = [slow_words(pa.array(each or [], array.type.value_type)) for each in array.to_pylist()]
        found = reference.hash_lists(lists)
    elif pa.types.is_struct(array.type):
        found = [0] * len(array)
        for field in array.type:
            inner = pa.array([(row or {}).get(field.name) for row in array.to_pylist()], field.type)
            found = reference.combine(slow_words(inner), found)
    elif pa.types.is_string(array.type):
        found = reference.hash_bytes([(text or "").encode() for text in array.to_pylist()])
    elif pa.types.is_floating(array.type):
        numbers = [math.nan if v is None or v != v else v + 0.0 for v in array.to_pylist()]
        found = np.array(numbers, np.float64).view(np.uint64).tolist()
    else:
        found = [(value or 0) % ALL_HASHES for value in array.to_pylist()]
    return [NULL if value is None else word for value, word in zip(array.to_pylist(), found, strict=True)]


@pytest.mark.parametrize("type_", [pa.int64(), pa.int32(), pa.string(), pa.float64(), *list(NESTED)[:3]], ids=str)
@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_words_equal_their_twin(type_: pa.DataType, data: st.DataObject) -> None:
    array = pa.array(data.draw(st.lists(st.none() | TYPES[type_], max_size=10)), type_)
    assert value_words(array).tolist() == slow_words(array)


@pytest.mark.parametrize("type_", list(TYPES), ids=str)
@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_hashes_are_equal_iff_values_are(type_: pa.DataType, data: st.DataObject) -> None:
    pool = st.sampled_from(data.draw(st.lists(st.none() | TYPES[type_], min_size=1, max_size=5)))
    left = pa.array(data.draw(st.lists(pool, min_size=2, max_size=12)), type_)
    right = pa.array(data.draw(st.lists(pool, min_size=len(left), max_size=len(left))), type_)
    wanted = [alike(a, b) for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)]
    assert (value_words(left) == value_words(right)).tolist() == wanted
    assert value_words(left[1:]).tolist() == value_words(left)[1:].tolist(), "a slice has the hashes of its rows"
    assert value_words(pa.array(left.to_pylist(), type_)).tolist() == value_words(left).tolist()


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_order_does_not_matter(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    count = data.draw(st.integers(1, 8))
    columns = [pa.array(data.draw(st.lists(st.none() | TYPES[t], min_size=count, max_size=count)), t) for t in types]
    rows = pa.table({f"c{place}": column for place, column in enumerate(columns)})
    order = data.draw(st.permutations(range(count)))
    other = rows.select(data.draw(st.permutations(rows.schema.names))).take(order)
    assert hash_rows(other).tolist() == hash_rows(rows)[list(order)].tolist()
    chunked = pa.concat_tables([rows.slice(0, count // 2), rows.slice(count // 2)])
    assert hash_rows(chunked).tolist() == hash_rows(rows).tolist()


def test_every_column_counts() -> None:
    one, other = pa.table({"a": [1, 1], "b": [1, 2]}), pa.table({"a": [1, 2], "b": [1, 1]})
    found = [*hash_rows(one).tolist(), *hash_rows(other).tolist()]
    assert len(set(found)) == 3, "values do not change places between columns"


def test_what_others_lay_out_otherwise_is_hashed_alike() -> None:
    texts = pa.array(["a", None, "bc", "a"])
    for type_ in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert value_words(texts.cast(type_)).tolist() == value_words(texts).tolist()
    pairs = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2))
    assert value_words(pairs).tolist() == value_words(pa.array(pairs.to_pylist(), pa.list_(pa.int64()))).tolist()


# What is chosen by them


def test_shares_are_met_and_nested() -> None:
    hashes = hash_rows(pa.table({"k": range(40_000)}))
    masks = {share: chosen(hashes, share, salt_for(7, "x")) for share in (0.0, 0.1, 0.5, 0.9, 1.0)}
    for share, mask in masks.items():
        assert abs(mask.mean() - share) < 0.01
    for less, more in zip(list(masks.values())[:-1], list(masks.values())[1:], strict=True):
        assert not (less & ~more).any(), "who is in a smaller share is in a larger one"


def test_choices_by_other_salts_are_independent() -> None:
    hashes = hash_rows(pa.table({"k": range(40_000)}))
    one, other = (chosen(hashes, 0.5, salt_for(7, purpose)) for purpose in ("probe a", "shed a"))
    assert abs((one & other).mean() - 0.25) < 0.01
    several = [chosen(hashes, 0.5, salt_for(salt, "probe a")) for salt in range(8)]
    assert abs(np.mean([(a & b).mean() for a in several for b in several if a is not b]) - 0.25) < 0.005


def test_a_combination_depends_on_all_parts() -> None:
    a, b = hash_rows(pa.table({"k": [1, 1, 2]})), hash_rows(pa.table({"k": [1, 2, 1]}))
    assert len(set(combined_hash([a, b]).tolist())) == 3


STREAM = Stream("s", (), "ts")


def stream_rows(count: int) -> pa.Table:
    times = [None if n % 7 == 0 else n for n in range(count)]
    return pa.table({"k": [n % 50 for n in range(count)], "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us"))})


@given(share=st.floats(0, 1), salt=st.integers(0, 2**63 - 1), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_shedding_depends_on_rows_alone(share: float, salt: int, seed: int) -> None:
    rows = stream_rows(300)
    kept, dropped = Shedding({"s": share}, salt).shed(STREAM, rows)
    assert kept.num_rows + dropped.rows == 300
    again, _ = Shedding({"s": share}, salt).shed(STREAM, rows.take(np.random.default_rng(seed).permutation(300)))
    assert Counter(map(str, again.to_pylist())) == Counter(map(str, kept.to_pylist()))
    away = Counter(map(str, rows.to_pylist())) - Counter(map(str, kept.to_pylist()))
    times = [row["ts"] for row in rows.to_pylist() if str(row) in away and row["ts"] is not None]
    largest = max(pa.array(times, pa.timestamp("us")).cast(pa.int64()).to_pylist(), default=None)
    assert dropped.largest_time_us == largest


def test_rows_that_are_too_early_are_shed_and_move_nothing() -> None:
    stream = Stream("s", (), "ts", ahead_us=10)
    for rows in (stream_rows(300), stream_rows(300).to_batches()[0]):
        kept, dropped = Shedding({"s": 0.0}, 1, planned_us=100).shed(stream, rows)
        assert (kept.num_rows, dropped) == (0, Dropped(300, 110))
    assert dropped + Dropped(2, None) + Dropped(1, 111) == Dropped(303, 111)


def test_streams_that_are_not_shed_are_not_looked_at() -> None:
    rows = stream_rows(3)
    for shedding in (Shedding(), Shedding({"t": 0.5}), Shedding({"s": 1.0})):
        assert shedding.shed(STREAM, rows) == (rows, Dropped())
