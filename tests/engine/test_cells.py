"""Routing: XXH64 as its author's library computes it, and the words that are hashed for every type."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.engine.cells import DECIMAL_PRIME, base_cells, member_mask, routing_words
from anabranch.engine.kernels.cells import SEED, coordinates, route_bytes, route_words
from anabranch.plan.expression import Call, Column
from anabranch.plan.grid import Dimension, Grid

WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
VALUES = st.binary(max_size=100) | st.integers(0, 70).map(lambda n: bytes(range(n)))


def words_hashed(words: list[int]) -> list[int]:
    out = np.empty(len(words), np.uint64)
    route_words(np.array(words, np.uint64), out)
    return out.tolist()


def bytes_hashed(values: list[bytes], before: bytes = b"") -> list[int]:
    data = np.frombuffer(before + b"".join(values) + b"!", np.uint8)
    offsets = np.cumsum([len(before), *map(len, values)]).astype(np.int32)
    out = np.empty(len(values), np.uint64)
    route_bytes(offsets, data.ctypes.data, out)
    return out.tolist()


@given(st.lists(WORDS, max_size=50))
@settings(deadline=None)
def test_words_are_hashed_as_eight_bytes(words: list[int]) -> None:
    assert words_hashed(words) == [xxhash.xxh64_intdigest(struct.pack("<Q", w), int(SEED)) for w in words]


@given(st.lists(VALUES, max_size=20), st.binary(max_size=3))
@example([b"", b"\0", b"a" * 31, b"a" * 32, b"a" * 33, b"a" * 64], b"")
@settings(deadline=None)
def test_bytes(values: list[bytes], before: bytes) -> None:
    assert bytes_hashed(values, before) == [xxhash.xxh64_intdigest(v, int(SEED)) for v in values]


def test_every_length() -> None:
    values = [bytes((7 * n + i) % 256 for i in range(n)) for n in range(140)]
    assert bytes_hashed(values) == [xxhash.xxh64_intdigest(v, int(SEED)) for v in values]


@given(st.lists(WORDS, max_size=50), st.integers(1, 100))
@settings(deadline=None)
def test_coordinates_are_never_negative(hashes: list[int], share: int) -> None:
    out = np.empty(len(hashes), np.int64)
    coordinates(np.array(hashes, np.uint64), share, out)
    signed = [h - 2**64 if h >= 2**63 else h for h in hashes]
    assert out.tolist() == [h % share for h in signed]


# The words of each type


def bits(number: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", number))[0])


def unsigned(number: int) -> int:
    return number % 2**64


CASES: list[tuple[pa.DataType, list[Any], list[int]]] = [
    (pa.int8(), [0, 1, -1, 127, -128], [0, 1, 2**64 - 1, 127, unsigned(-128)]),
    (pa.int16(), [-1, 2**15 - 1], [2**64 - 1, 2**15 - 1]),
    (pa.int32(), [-1, 2**31 - 1, -(2**31)], [2**64 - 1, 2**31 - 1, unsigned(-(2**31))]),
    (pa.int64(), [-1, 2**63 - 1, -(2**63)], [2**64 - 1, 2**63 - 1, 2**63]),
    (pa.bool_(), [True, False], [1, 0]),
    (pa.float64(), [1.5, 0.0, -0.0, float("nan"), -float("nan"), float("inf")],
     [bits(1.5), 0, 0, 0x7FF8 << 48, 0x7FF8 << 48, bits(float("inf"))]),
    (pa.float32(), [1.5, -0.0, float("nan"), 0.1], [bits(1.5), 0, 0x7FF8 << 48, bits(float(np.float32(0.1)))]),
    (pa.timestamp("us"), [0, -1, 10**15], [0, 2**64 - 1, 10**15]),
    (pa.date32(), [0, -1, 19000], [0, 2**64 - 1, 19000]),
    (pa.decimal128(10, 2), [Decimal("1.49"), Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")],
     [1, 2, unsigned(-2), 0]),
    (pa.decimal128(30, 4), [Decimal("99999999999999999999999999.4999"), Decimal("-1000000007.0000")],
     [(10**26 - 1) % DECIMAL_PRIME, 0]),
    (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38 - 1))],
     [(10**38 - 1) % DECIMAL_PRIME, unsigned(-((10**38 - 1) % DECIMAL_PRIME))]),
]  # fmt: skip


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int64() if type_.bit_width == 64 else pa.int32()).view(type_)
    return pa.array(values, type_)


@pytest.mark.parametrize(("type_", "values", "words"), CASES, ids=[str(c[0]) for c in CASES])
def test_words_of(type_: pa.DataType, values: list[Any], words: list[int]) -> None:
    column = array_of(values, type_)
    assert routing_words(column).tolist() == words
    with_null = array_of([values[-1], None, *values], type_)
    assert routing_words(with_null).tolist()[2:] == words, "NULLs do not disturb their neighbours"
    assert routing_words(with_null.slice(2)).tolist() == words, "slices start at their offset"
    assert routing_words(with_null.slice(1, 2)).tolist()[1:] == words[:1]
    assert routing_words(column.slice(0, 0)).tolist() == []


def test_equal_decimals_have_equal_words_in_any_width() -> None:
    """A class holds one type, but NULLs and rounding must not depend on how wide it is."""
    narrow = pa.array([Decimal("12.34"), Decimal("-7.50")], pa.decimal128(10, 2))
    assert routing_words(narrow).tolist() == routing_words(narrow.cast(pa.decimal128(30, 4))).tolist()


# Cells


TEXT = Column(pa.string(), "a", "s")
NARROW = Call(pa.int64(), "cast", (Column(pa.int32(), "a", "n"),))
GRID = Grid(
    (Dimension((TEXT, Column(pa.string(), "b", "s"))), Dimension((NARROW, Column(pa.int64(), "c", "n")))), (3, 4)
)


def row_cells(texts: list[str | None], numbers: list[int | None]) -> list[int]:
    columns = {"s": pa.array(texts, pa.string()), "n": pa.array(numbers, pa.int32())}
    return base_cells(GRID, "a", lambda c: columns[c.name], pa.array([0] * len(texts)), len(texts)).tolist()


def expected_cell(text: str, number: int) -> int:
    def signed(data: bytes) -> int:
        digest = xxhash.xxh64_intdigest(data, 42)
        return digest - 2**64 if digest >= 2**63 else digest

    return signed(text.encode()) % 3 * 4 + signed(struct.pack("<q", number)) % 4


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(-(2**31), 2**31 - 1)), max_size=20))
@settings(deadline=None)
def test_cells_of_rows(rows: list[tuple[str, int]]) -> None:
    assert row_cells([t for t, _ in rows], [n for _, n in rows]) == [expected_cell(*row) for row in rows]


def test_rows_with_null_have_a_cell_too() -> None:
    """They are of no use to an inner join, but their times move the watermark. Spark hashes NULL to its seed, 42: where a
    row is sent and where it is looked for must be the same."""
    cells = row_cells([None, "x", None], [1, None, None])
    (text, number), null_text, null_number = divmod(expected_cell("x", 1), 4), 42 % 3, 42 % 4
    assert cells == [4 * null_text + number, 4 * text + null_number, 4 * null_text + null_number]


def test_slices_of_texts() -> None:
    texts, numbers = pa.array(["ab", "cde", "", "f" * 40]), pa.array([1, 2, 3, 4], pa.int32())
    columns = {"s": texts.slice(1), "n": numbers.slice(1)}
    cells = base_cells(GRID, "a", lambda c: columns[c.name], pa.array([0] * 3), 3).tolist()
    assert cells == [expected_cell("cde", 2), expected_cell("", 3), expected_cell("f" * 40, 4)]


def test_no_rows() -> None:
    assert row_cells([], []) == []


def test_an_input_without_the_attribute_is_in_all_parts() -> None:
    columns = {"s": pa.array(["x", "y"])}
    in_cells = [
        member_mask(GRID, cell, "b", lambda c: columns[c.name], pa.array([0, 0]), 2).tolist() for cell in range(12)
    ]
    assert [sum(mask[row] for mask in in_cells) for row in range(2)] == [4, 4]
