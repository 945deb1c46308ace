"""Keys: equal hashes for equal keys, different ones for different keys, and `equal_keys` where a hash is not enough."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch.engine.keys import equal_keys, hash_keys, is_exact
from tests.support.key_values import NAN, VALUES, same

EXACT = [t for t in VALUES if t not in (pa.decimal128(19, 0), pa.decimal128(38, 10), pa.string(), pa.binary())]
TYPES = pytest.mark.parametrize("type_", list(VALUES), ids=str)


def hashes(values, type_):
    return hash_keys([pa.array(values, type_)], len(values)).tolist()


@TYPES
@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_hashes_are_equal_iff_values_are(type_, data):
    pool = data.draw(st.lists(VALUES[type_], min_size=1, max_size=5))
    left = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=20))
    right = data.draw(st.lists(st.sampled_from(pool) | VALUES[type_], min_size=len(left), max_size=len(left)))
    wanted = [same(a, b) for a, b in zip(left, right, strict=True)]
    # With 64 bits, values that happen to collide do not turn up here.
    assert [a == b for a, b in zip(hashes(left, type_), hashes(right, type_), strict=True)] == wanted
    assert equal_keys([pa.array(left, type_)], [pa.array(right, type_)]).tolist() == wanted


@TYPES
@given(data=st.data())
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_a_slice_has_the_hashes_of_its_rows(type_, data):
    values = data.draw(st.lists(VALUES[type_], min_size=4, max_size=20))
    array = pa.array(values, type_)
    whole, part = hash_keys([array], len(values)), hash_keys([array[2:-1]], len(values) - 3)
    assert part.tolist() == whole[2:-1].tolist()
    assert equal_keys([array[2:-1]], [pa.array(values[2:-1], type_)]).all()


@TYPES
def test_no_rows(type_):
    empty = pa.array([], type_)
    assert hash_keys([empty], 0).tolist() == []
    assert equal_keys([empty], [empty]).tolist() == []


@TYPES
def test_only_words_are_exact(type_):
    assert is_exact([type_]) == (type_ in EXACT)
    assert not is_exact([type_, type_])


def test_rows_without_a_key_all_match():
    assert is_exact([])
    assert len(set(hash_keys([], 5).tolist())) == 1


def test_every_nan_is_one_key():
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF8DEADBEEF0000], np.uint64)
    nans = pa.array(bits.view(np.float64))
    assert len(set(hash_keys([nans], 4).tolist())) == 1
    assert equal_keys([nans], [pa.array([NAN] * 4)]).all()
    bits32 = np.array([0x7FC00000, 0xFFC00000, 0x7F800001], np.uint32)
    assert len(set(hash_keys([pa.array(bits32.view(np.float32))], 3).tolist())) == 1


def test_zero_has_one_sign():
    for type_ in (pa.float32(), pa.float64()):
        assert len(set(hashes([0.0, -0.0], type_))) == 1
        assert equal_keys([pa.array([0.0], type_)], [pa.array([-0.0], type_)]).all()


@given(st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_composite_keys(data):
    """All columns count: keys are equal iff every column is, and then so are their hashes."""
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=4))
    rows = data.draw(st.integers(1, 12))
    left, right = [], []
    for type_ in types:
        pool = st.sampled_from(data.draw(st.lists(VALUES[type_], min_size=1, max_size=2)))
        left.append(data.draw(st.lists(pool, min_size=rows, max_size=rows)))
        right.append(data.draw(st.lists(pool, min_size=rows, max_size=rows)))
    wanted = [all(same(a[i], b[i]) for a, b in zip(left, right, strict=True)) for i in range(rows)]
    ours = [pa.array(v, t) for v, t in zip(left, types, strict=True)]
    theirs = [pa.array(v, t) for v, t in zip(right, types, strict=True)]
    assert equal_keys(ours, theirs).tolist() == wanted
    equal_hashes = hash_keys(ours, rows) == hash_keys(theirs, rows)
    assert all(equal_hashes[i] for i in range(rows) if wanted[i])


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3), st.booleans()), min_size=2, max_size=30, unique=True))
@example([(0, "", False), (0, "", True), (0, "\0", False), (1, "", False)])
@settings(deadline=None)
def test_different_composite_keys_have_different_hashes(keys):
    columns = [pa.array([k[place] for k in keys]) for place in range(3)]
    assert len(set(hash_keys(columns, len(keys)).tolist())) == len(keys)


def test_keys_of_two_columns_with_one_value_have_different_hashes():
    column = pa.array(range(100))
    assert len(set(hash_keys([column, column], 100).tolist())) == 100


def test_strings_do_not_run_into_each_other():
    first = hash_keys([pa.array(["ab", "a"]), pa.array(["c", "bc"])], 2)
    assert first[0] != first[1]
