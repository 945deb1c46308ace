"""Gathering equals its twins, from any address."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.kernels import gather as kernels
from anabranch.engine.kernels import reference

FIXED = {
    1: (kernels.gather_8, np.uint8),
    2: (kernels.gather_16, np.uint16),
    4: (kernels.gather_32, np.uint32),
    8: (kernels.gather_64, np.uint64),
    16: (kernels.gather_128, np.uint64),
}


class Placed:
    """Bytes of each batch, each beginning `shift` bytes behind an aligned address."""

    def __init__(self, segments: dict[int, bytes | None], base: int, shift: int = 0) -> None:
        self.addresses = np.zeros(max(segments, default=base) - base + 1, np.int64)
        self.buffers = []
        for batch, data in segments.items():
            if data is None:
                continue
            buffer = np.empty(len(data) + 16, np.uint8)
            first = -buffer.ctypes.data % 8 + shift
            buffer[first : first + len(data)] = np.frombuffer(data, np.uint8)
            self.buffers.append(buffer)
            self.addresses[batch - base] = buffer.ctypes.data + first


def gather_fixed(segments, base, ids, width, shift):
    kernel, dtype = FIXED[width]
    placed = Placed({b: b"".join(values) for b, values in segments.items()}, base, shift)
    out = np.empty(len(ids) * width // dtype().itemsize, dtype)
    kernel(placed.addresses, base, np.array(ids, np.int64), out)
    data = out.tobytes()
    return [data[at : at + width] for at in range(0, len(data), width)]


def gather_bits(segments, base, ids, shift):
    bitmaps = {
        b: None if bits is None else np.packbits(np.array(bits, bool), bitorder="little").tobytes()
        for b, bits in segments.items()
    }
    placed = Placed(bitmaps, base, shift)
    out = np.zeros((len(ids) + 7) // 8, np.uint8)
    zeros = kernels.gather_bits(placed.addresses, base, np.array(ids, np.int64), out)
    bits = np.unpackbits(out, bitorder="little").astype(bool)
    assert not bits[len(ids) :].any(), "bits behind the last row are not zero"
    return bits[: len(ids)].tolist(), zeros


def gather_bytes(segments, base, ids, shift, before=b""):
    """Offsets, total and bytes; in each segment the values lie behind `before`."""
    offsets = {
        b: np.cumsum([len(before), *map(len, values)]).astype(np.int32).tobytes() for b, values in segments.items()
    }
    placed_offsets = Placed(offsets, base, shift)
    placed_data = Placed({b: before + b"".join(values) for b, values in segments.items()}, base, shift)
    given_ids = np.array(ids, np.int64)
    out_offsets = np.empty(len(ids) + 1, np.int32)
    total = kernels.gather_offsets(placed_offsets.addresses, base, given_ids, out_offsets)
    out = np.empty(total, np.uint8)
    kernels.gather_bytes(placed_offsets.addresses, placed_data.addresses, base, given_ids, out_offsets, out)
    return out_offsets.tolist(), total, out.tobytes()


@st.composite
def segments_and_ids(draw, values):
    """Values by batch (with gaps between the batches), the first batch known, and ids of some of the rows."""
    batches = draw(st.lists(st.integers(0, 2000), min_size=1, max_size=4, unique=True))
    segments = {b: draw(values) for b in batches}
    base = draw(st.sampled_from([0, min(batches)]))
    known = [b << 32 | i for b in batches for i in range(len(segments[b]))]
    ids = draw(st.lists(st.sampled_from(known), max_size=60)) if known else []
    return segments, base, ids


@pytest.mark.parametrize("width", list(FIXED))
@given(data=st.data(), shift=st.integers(0, 7))
@settings(deadline=None, max_examples=60)
def test_fixed_widths_equal_their_twin(width, data, shift):
    values = st.lists(st.binary(min_size=width, max_size=width), max_size=12)
    segments, base, ids = data.draw(segments_and_ids(values))
    assert gather_fixed(segments, base, ids, width, shift) == reference.gather(segments, ids)


@given(segments_and_ids(st.lists(st.booleans(), max_size=40)), st.sets(st.integers(0, 3)), st.integers(0, 7))
@settings(deadline=None)
def test_gather_bits_equals_its_twin(case, without_nulls, shift):
    """Bitmaps at any address, some of them left out because all bits are one."""
    segments, base, ids = case
    bitmaps = {b: None if place in without_nulls else bits for place, (b, bits) in enumerate(segments.items())}
    assert gather_bits(bitmaps, base, ids, shift) == reference.gather_bits(bitmaps, ids)


texts = st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"\0\0a\0"])


@given(segments_and_ids(st.lists(texts, max_size=12)), st.integers(0, 7), st.binary(max_size=5))
@settings(deadline=None)
def test_variable_lengths_equal_their_twins(case, shift, before):
    segments, base, ids = case
    offsets, total, data = gather_bytes(segments, base, ids, shift, before)
    assert (offsets, total) == reference.gather_offsets(segments, ids)
    assert data == reference.gather_bytes(segments, ids)
    ends = {b: np.cumsum([len(before), *map(len, values)]).astype(np.int32).tobytes() for b, values in segments.items()}
    placed, lengths = Placed(ends, base, shift), np.empty(len(ids), np.int64)
    kernels.gather_lengths(placed.addresses, base, np.array(ids, np.int64), lengths)
    assert lengths.tolist() == reference.gather_lengths(segments, ids)


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, 4), min_size=1),
    st.lists(st.tuples(st.integers(-2, 25), st.integers(0, 5)), max_size=8),
)
@settings(deadline=None)
def test_first_outside_equals_its_twin(counts, places):
    """Batches before the first, behind the last and without rows; offsets behind the last row."""
    base, ids = min(counts), [batch << 32 | offset for batch, offset in places]
    table = np.zeros(max(counts) - base + 1, np.int64)
    for batch, rows in counts.items():
        table[batch - base] = rows
    assert kernels.first_outside(table, base, np.array(ids, np.int64)) == reference.first_outside(counts, ids)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_take_equals_its_twin(dtype, data):
    values = data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
    positions = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=30))
    found = kernels.take(np.array(values, dtype), np.array(positions, np.int64))
    assert found.dtype == dtype
    assert found.tolist() == reference.take(values, positions)


def test_large_offsets_of_rows_and_late_batches():
    """A row id has 31 bits for the batch; offsets use the whole lower word."""
    batch = 2**31 - 1
    segments = {batch: [bytes([i % 256]) for i in range(70_000)]}
    ids = [batch << 32 | i for i in (0, 255, 65_535, 69_999)]
    assert gather_fixed(segments, batch, ids, 1, 3) == reference.gather(segments, ids)
