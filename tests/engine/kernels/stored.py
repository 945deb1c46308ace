"""Random runs as kernels see them, and the same runs as their twins see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from anabranch.engine.kernels import reference
from anabranch.engine.kernels import runs as kernels
from anabranch.engine.kernels.reference import ALL_HASHES, Entry
from anabranch.plan.query import BEGINNING_US, FOREVER_US

ANY_HASH = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**48 - 1, 2**48, 2**63, 2**64 - 2**48, 2**64 - 1])
WINDOWS = st.sampled_from([1, 7, 1000, 2**33, FOREVER_US])
WATERMARKS = st.sampled_from([BEGINNING_US, -(2**40), -3, 0, 5, 500, 2**41])
BASE_STARTS = (BEGINNING_US, -(2**40), -10, 0, 2**40)


@dataclass(frozen=True)
class Packed:
    """How the entries of a run are written."""

    narrow: bool
    has_end: bool
    base_batch: int
    offset_bits: int
    base_start: int

    def entries(self, words: Any) -> list[Entry]:
        """What rows of words mean."""
        return [
            reference.unpack(row, self.narrow, self.has_end, self.base_batch, self.offset_bits, self.base_start)
            for row in words.tolist()
        ]


class Stored:
    """A run in memory, as kernels read it."""

    def __init__(self, run: reference.PlainRun, packed: Packed, prefix_bits: int = 0) -> None:
        form = packed.narrow, packed.has_end, packed.base_batch, packed.offset_bits, packed.base_start
        words = [reference.pack(entry, *form) for entry in run.entries]
        width = (2 if packed.narrow else 3) + packed.has_end
        self.entries = np.array(words, np.uint64).reshape(-1, width)
        self.directory = np.array(reference.directory([e.hash for e in run.entries], prefix_bits), np.uint64)
        self.columns = {
            kernels.ENTRIES: self.entries.ctypes.data, kernels.ROWS: len(words),
            kernels.DIRECTORY: self.directory.ctypes.data, kernels.BITS: reference.directory_bits(len(words)),
            kernels.PREFIX_BITS: prefix_bits, kernels.LO: run.lo, kernels.HI: run.hi, kernels.WORDS: width,
            kernels.NARROW: int(packed.narrow), kernels.HAS_END: int(packed.has_end),
            kernels.BASE_BATCH: packed.base_batch, kernels.OFFSET_BITS: packed.offset_bits,
            kernels.BASE_START: packed.base_start,
            kernels.NEWEST_START: max((entry.start for entry in run.entries), default=0),
        }  # fmt: skip


def run_table(stored: list[Stored]) -> Any:
    """The table of runs that kernels take; the runs must outlive it."""
    table = np.zeros((len(stored), kernels.TABLE_COLUMNS), np.int64)
    for place, run in enumerate(stored):
        for column, value in run.columns.items():
            table[place, column] = value
    return table


@st.composite
def hash_pools(draw) -> list[int]:
    """Few hashes, some of them neighbours, so that rows meet and buckets hold different ones."""
    pool = draw(st.lists(ANY_HASH, min_size=1, max_size=6))
    return sorted({(h + step) % 2**64 for h in pool for step in draw(st.sampled_from([(0,), (0, 1), (0, 1, 2)]))})


def hash_ranges(bits: int, pool: list[int]) -> st.SearchStrategy[tuple[int, int]]:
    """A range of 1/2^bits of all hashes, mostly one that holds some of the pool."""
    width = ALL_HASHES >> bits
    return st.sampled_from([(h >> 48) // width * width for h in pool] + [0]).map(lambda lo: (lo, lo + width))


@st.composite
def runs(draw, pool: list[int], has_end: bool, max_rows: int = 80) -> tuple[reference.PlainRun, Stored]:
    """One run, both ways: narrow or wide, over all hashes or a part of them, wholly or partly visible."""
    prefix_bits = draw(st.sampled_from([0, 0, 2, 14]))
    lo, hi = draw(hash_ranges(prefix_bits, pool))
    inside = [h for h in pool if lo << 48 <= h < hi << 48]
    narrow = draw(st.booleans())
    offset_bits = draw(st.sampled_from([1, 8, 30])) if narrow else 32
    packed = Packed(
        narrow, has_end, draw(st.sampled_from([0, 3, 1000])), offset_bits, draw(st.sampled_from(BASE_STARTS))
    )
    offsets = st.integers(0, 2**offset_bits - 1)
    batches = st.integers(0, 3 if offset_bits <= 30 else 40)
    starts = st.integers(0, 30) | st.sampled_from([0, 2**32 - 1])
    if not narrow:
        starts |= st.sampled_from([BEGINNING_US, -1, 0, 2**40]).map(lambda s: s - packed.base_start)
    row = st.tuples(st.sampled_from(inside or [0]), batches, offsets, starts, st.integers(1, 40) | st.just(None))
    entries = [
        Entry(h, packed.base_batch + batch << 32 | offset, packed.base_start + start, _end(packed, start, length))
        for h, batch, offset, start, length in draw(st.lists(row, max_size=max_rows if inside else 0))
    ]
    entries.sort(key=lambda e: e.hash)
    # Larger runs take over from below, at times from above: what is left visible begins and ends between hashes.
    cuts = sorted(draw(st.lists(st.sampled_from([lo, hi, *((h >> 48) + step for h in inside for step in (0, 1))]),
                                min_size=2, max_size=2)))  # fmt: skip
    if not draw(st.booleans()) or cuts[0] == cuts[1]:
        cuts = [lo, hi]
    run = reference.PlainRun(tuple(entries), cuts[0], cuts[1])
    return run, Stored(run, packed, prefix_bits)


def _end(packed: Packed, start: int, length: int | None) -> int | None:
    if not packed.has_end:
        return None
    return FOREVER_US if length is None else packed.base_start + start + length


@st.composite
def states(draw) -> tuple[list[int], bool, list[reference.PlainRun], list[Stored]]:
    """The runs of one index: hashes to look up, whether entries have ends, and the runs both ways."""
    pool, has_end = draw(hash_pools()), draw(st.booleans())
    pairs = draw(st.lists(runs(pool, has_end), max_size=4))
    return pool, has_end, [p[0] for p in pairs], [p[1] for p in pairs]
