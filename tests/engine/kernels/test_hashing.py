"""Hashes equal their twins, and keep the promise of `mix`: one word, one hash."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import hashing, reference

words = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
values = st.binary(max_size=40) | st.sampled_from([b"", b"\0", b"\0" * 8, b"\0" * 9, b"a" * 7, b"a" * 8, b"a" * 16])


def hash_words(given_words):
    out = np.empty(len(given_words), np.uint64)
    hashing.hash_words(np.array(given_words, np.uint64), out)
    return out.tolist()


def combine(given_words, hashes):
    out = np.array(hashes, np.uint64)
    hashing.combine(np.array(given_words, np.uint64), out)
    return out.tolist()


def hash_bytes(given_values, before=b""):
    """The values lie one after the other behind `before`, as in a slice of an Arrow array."""
    data = np.frombuffer(before + b"".join(given_values), np.uint8)
    offsets = np.cumsum([len(before), *map(len, given_values)]).astype(np.int32)
    out = np.empty(len(given_values), np.uint64)
    hashing.hash_bytes(offsets, data.ctypes.data, out)
    return out.tolist()


@given(st.lists(words, max_size=50))
@settings(deadline=None)
def test_hash_words_equals_its_twin(given_words):
    assert hash_words(given_words) == reference.hash_words(given_words)


@given(st.lists(st.tuples(words, words), max_size=50))
@settings(deadline=None)
def test_combine_equals_its_twin(pairs):
    given_words, hashes = [p[0] for p in pairs], [p[1] for p in pairs]
    assert combine(given_words, hashes) == reference.combine(given_words, hashes)


@given(st.lists(values, max_size=20), st.binary(max_size=3))
@example([b"", b"", b"\0"], b"")
@settings(deadline=None)
def test_hash_bytes_equals_its_twin(given_values, before):
    assert hash_bytes(given_values, before) == reference.hash_bytes(given_values)


def test_no_values_at_no_address():
    out = np.empty(2, np.uint64)
    hashing.hash_bytes(np.zeros(3, np.int32), 0, out)
    assert out.tolist() == reference.hash_bytes([b"", b""])


def test_zero_bytes_count():
    """Values that differ only by zero bytes at the end have different hashes."""
    lengths = [b"\0" * n for n in range(40)]
    assert len(set(hash_bytes(lengths))) == len(lengths)


def test_one_word_one_hash():
    many = np.arange(-5000, 5000).astype(np.uint64)
    out = np.empty(len(many), np.uint64)
    hashing.hash_words(many, out)
    assert len(np.unique(out)) == len(many)


def test_the_order_of_columns_counts():
    assert combine([2], hash_words([1])) != combine([1], hash_words([2]))


def test_keys_of_two_equal_columns_have_different_hashes():
    keys = list(range(100))
    assert len(set(combine(keys, hash_words(keys)))) == len(keys)


def test_hashes_spread_over_the_first_bits():
    """Directories and parts of merges take the first bits of a hash; small integers must fill them evenly."""
    out = np.empty(1 << 16, np.uint64)
    hashing.hash_words(np.arange(1 << 16).astype(np.uint64), out)
    counts = np.bincount((out >> np.uint64(56)).astype(np.int64), minlength=256)
    assert counts.min() > 150
    assert counts.max() < 370


@given(st.lists(st.lists(words, max_size=5), max_size=20), st.lists(words, max_size=3))
@settings(deadline=None)
def test_hash_lists_equals_its_twin(lists, before):
    offsets = np.cumsum([len(before), *map(len, lists)]).astype(np.int32)
    out = np.empty(len(lists), np.uint64)
    hashing.hash_lists(offsets, np.array([*before, *(word for each in lists for word in each)], np.uint64), out)
    assert out.tolist() == reference.hash_lists(lists)


@given(st.lists(words, max_size=50), words, words)
@settings(deadline=None)
def test_choose_equals_its_twin(hashes, salt, limit):
    out = np.empty(len(hashes), np.bool_)
    hashing.choose(np.array(hashes, np.uint64), np.uint64(salt), np.uint64(limit), out)
    assert out.tolist() == reference.choose(hashes, salt, limit)
