"""A run: a part of an index, immutable, in memory or mapped from a file."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import RunSegment
from anabranch.engine.kernels import runs as kernels
from anabranch.errors import DamagedStateError
from anabranch.plan.query import FOREVER_US

Words = npt.NDArray[np.uint64]
ALL_HASHES = 65536
"""Hash ranges are counted in 1/65536 of all hashes."""

SAMPLED = 64
"""So many rows tell when most rows of a run have ended. They stand in the order of their hashes, so any will do."""


@dataclass
class SortedRun:
    """Rows of the batches `first_batch … last_batch` whose hash lies in a range, sorted by hash.

    `lo, hi` is the part of its range in which the run is *visible*: where a larger run has taken over, it is not.
    """

    tier: int
    first_batch: int
    last_batch: int
    lo: int
    hi: int
    prefix_bits: int
    rows: int
    narrow: bool
    has_end: bool
    offset_bits: int
    base_start_us: int
    start_max_us: int
    end_max_us: int
    entries: npt.NDArray[np.uint64]
    directory: npt.NDArray[np.uint64]
    record: RunSegment | None = None
    keeps_alive: pa.Buffer | None = field(default=None, repr=False)
    _row: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    _overdue_us: int | None = field(default=None, repr=False)

    @property
    def words(self) -> int:
        return (2 if self.narrow else 3) + int(self.has_end)

    @property
    def bytes(self) -> int:
        return self.entries.nbytes + self.directory.nbytes

    def overdue_us(self, retention_us: int) -> int:
        """The time by which the run should have ended: three of four rows have, and as much time again has gone by as lies
        between the first and the last of these. A run that is still there is so for the sake of a few of its rows."""
        if self._overdue_us is None:
            ends = np.sort(self.ends(retention_us, -(-self.rows // SAMPLED))).tolist()
            usual = ends[3 * (len(ends) - 1) // 4]
            self._overdue_us = 2 * usual - ends[0]
        return self._overdue_us

    def ends(self, retention_us: int, step: int = 1) -> npt.NDArray[np.int64]:
        """When every row, or every so-manieth, ends."""
        entries = self.entries[::step]
        if self.has_end:
            return entries[:, -1].view(np.int64)
        return self._starts(entries) + retention_us

    def visible(self) -> npt.NDArray[np.uint64]:
        """The entries that lookups see."""
        parts = self.entries[:, 0] >> np.uint64(48)
        return self.entries[(parts >= self.lo) & (parts < self.hi)]

    def starts(self) -> npt.NDArray[np.int64]:
        """The starts of the rows that lookups see."""
        return self._starts(self.visible())

    def ids(self) -> npt.NDArray[np.int64]:
        """The ids of the rows that lookups see."""
        entries = self.visible()
        local = (entries[:, 1] >> np.uint64(32) if self.narrow else entries[:, 1]).astype(np.int64)
        return (self.first_batch + (local >> self.offset_bits) << 32) + (local & ((1 << self.offset_bits) - 1))

    def _starts(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        if self.narrow:
            return (entries[:, 1] & np.uint64(0xFFFFFFFF)).astype(np.int64) + self.base_start_us
        return entries[:, 2].view(np.int64)

    def without_ended(self, watermark_us: int, retention_us: int) -> SortedRun | None:
        """The run without the rows that have ended; None if all have."""
        ends = self.ends(retention_us)
        alive = ends > watermark_us
        if not alive.any():
            return None
        entries = self.entries[alive]
        return replace(
            self, rows=len(entries), start_max_us=int(self._starts(entries).max()), end_max_us=int(ends[alive].max()),
            entries=entries, directory=kernels.directory_of(entries, self.prefix_bits),
            record=None, keeps_alive=None, _row=None, _overdue_us=None,
        )  # fmt: skip

    def table_row(self) -> npt.NDArray[np.int64]:
        """How kernels see the run."""
        if self._row is None:
            self._row = self._table_row()
        self._row[kernels.LO] = self.lo
        self._row[kernels.HI] = self.hi
        return self._row

    def _table_row(self) -> npt.NDArray[np.int64]:
        row = [
            self.entries.ctypes.data, self.rows, self.directory.ctypes.data,
            (len(self.directory) // 2 - 1).bit_length() - 1, self.prefix_bits, self.lo, self.hi, self.words,
            int(self.narrow), int(self.has_end), self.first_batch, self.offset_bits, self.base_start_us,
            self.start_max_us,
        ]  # fmt: skip
        return np.array(row, np.int64)


def run_of_batch(batch: int, rows: Words, has_end: bool, retention_us: int = FOREVER_US) -> SortedRun:
    """The run of tier 0 that holds the sorted rows of one batch (at least one)."""
    starts = rows[:, 2].view(np.int64)
    base_start, start_max = int(starts.min()), int(starts.max())
    offset_max = int(rows[:, 1].max())
    narrow = start_max - base_start < 2**32 and offset_max < 2**32
    directory = kernels.directory_of(rows, 0)
    entries = kernels.compact(rows, narrow, has_end, base_start)
    if has_end:
        end_max = int(rows[:, 3].view(np.int64).max())
    else:
        end_max = FOREVER_US if retention_us == FOREVER_US else start_max + retention_us
    return SortedRun(
        tier=0, first_batch=batch, last_batch=batch, lo=0, hi=ALL_HASHES, prefix_bits=0, rows=len(rows), narrow=narrow,
        has_end=has_end, offset_bits=max(offset_max.bit_length(), 1), base_start_us=base_start, start_max_us=start_max,
        end_max_us=end_max,
        entries=entries, directory=directory,
    )  # fmt: skip


class _Scratch(threading.local):
    """Memory for merges to work in, used again and again: to get it from the system would cost more than the merge."""

    def __init__(self) -> None:
        self.arrays = (np.empty(0, np.uint64), np.empty(0, np.uint64))

    def of(self, words: int) -> tuple[Words, Words]:
        if len(self.arrays[0]) < words:
            self.arrays = (np.empty(words, np.uint64), np.empty(words, np.uint64))
        return self.arrays


_scratch = _Scratch()


def merge_runs(
    runs: list[SortedRun], tier: int, lo: int, hi: int, watermark_us: int, retention_us: int, has_end: bool
) -> SortedRun | None:
    """One run of what is alive of several in the hashes [lo, hi); None if nothing is. The range is 1/2^k of all hashes."""
    runs = sorted(runs, key=lambda r: r.first_batch)
    first, last = runs[0].first_batch, max(r.last_batch for r in runs)
    base_start, start_max = min(r.base_start_us for r in runs), max(r.start_max_us for r in runs)
    offset_bits = max(r.offset_bits for r in runs)
    narrow = start_max - base_start < 2**32 and (last - first).bit_length() + offset_bits <= 32
    all_alive = not has_end and (retention_us == FOREVER_US or base_start + retention_us > watermark_us)
    table, words = run_table(runs), (2 if narrow else 3) + int(has_end)
    bounds = kernels.visible_rows(table, lo, hi)
    scratch = _scratch.of((int((bounds[:, 1] - bounds[:, 0]).sum()) + 1) * words)
    layout = (words, narrow, has_end, first, np.uint64(offset_bits), base_start)
    entries = kernels.merge(table, bounds, watermark_us, retention_us, all_alive, layout, *scratch)
    if not len(entries):
        return None
    prefix_bits = (ALL_HASHES // (hi - lo)).bit_length() - 1
    return SortedRun(
        tier=tier, first_batch=first, last_batch=last, lo=lo, hi=hi, prefix_bits=prefix_bits, rows=len(entries),
        narrow=narrow, has_end=has_end, offset_bits=offset_bits, base_start_us=base_start, start_max_us=start_max,
        end_max_us=max(r.end_max_us for r in runs), entries=entries,
        directory=kernels.directory_of(entries, prefix_bits),
    )  # fmt: skip


def run_table(runs: list[SortedRun]) -> npt.NDArray[np.int64]:
    """The runs as kernels see them."""
    if not runs:
        return np.empty((0, kernels.TABLE_COLUMNS), np.int64)
    return np.stack([run.table_row() for run in runs])


def map_run(record: RunSegment, entries: pa.Buffer, directory: pa.Buffer) -> SortedRun:
    """A run whose memory is a mapped file; one whose record says something else of it is refused."""
    words = (2 if record.narrow else 3) + int(record.has_end)
    buckets = directory.size // 16 - 1
    if entries.size != 8 * words * record.rows or directory.size % 16 or buckets < 1 or buckets & (buckets - 1):
        raise DamagedStateError(
            f"{record.entries.file}: a run of {record.index} has {entries.size} bytes of entries and a directory of "
            f"{directory.size}, which do not fit the {record.rows} rows of its record"
        )
    return SortedRun(
        tier=record.tier, first_batch=record.first_batch, last_batch=record.last_batch, lo=record.lo, hi=record.hi,
        prefix_bits=record.prefix_bits, rows=record.rows, narrow=record.narrow, has_end=record.has_end,
        offset_bits=record.offset_bits, base_start_us=record.base_start_us,
        start_max_us=record.start_max_us, end_max_us=record.end_max_us,
        entries=np.frombuffer(entries, np.uint64).reshape(-1, words), directory=np.frombuffer(directory, np.uint64),
        record=record, keeps_alive=entries,
    )  # fmt: skip
