"""Slow twins of all kernels in plain Python: read this first to understand the kernels.

A twin says what its kernel computes, on lists and integers and without a thought for speed; property tests hold each
kernel to it. Where a kernel reads addresses, its twin takes the values that lie there; where a kernel reads a table of
runs, its twin takes a list of `PlainRun`; where a kernel fills an array, its twin returns a list.

Hashes are integers in [0, 2^64), times are signed 64-bit microseconds, a row id is `batch << 32 | offset`. In an index by
order a word that is in order as its term takes the place of the hash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeVar

WORD = 2**64
LOW = 2**32 - 1
FOREVER_US = 2**63 - 1
ALL_HASHES = 65536
"""Hash ranges [lo, hi) are counted in 1/65536 of all hashes."""

T = TypeVar("T")


# -- hashing -------------------------------------------------------------------------------------------------------------

M1, M2, GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """A bijection on 64 bits."""
    x ^= x >> 30
    x = x * M1 % WORD
    x ^= x >> 27
    x = x * M2 % WORD
    return x ^ (x >> 31)


def hash_words(words: Sequence[int]) -> list[int]:
    """The hash of each 64-bit word."""
    return [mix((word + GOLDEN) % WORD) for word in words]


def combine(words: Sequence[int], hashes: Sequence[int]) -> list[int]:
    """The hashes so far, with those of a further column folded in."""
    return [mix((so_far * M1 + hashed) % WORD) for so_far, hashed in zip(hashes, hash_words(words), strict=True)]


def hash_bytes(values: Sequence[bytes]) -> list[int]:
    """The hash of each variable-length value: its length, whole words of eight bytes, then what is left, zero-padded."""
    hashes = []
    for value in values:
        h = mix((len(value) + GOLDEN) % WORD)
        whole = len(value) // 8 * 8
        for at in range(0, whole, 8):
            h = mix(((h ^ int.from_bytes(value[at : at + 8], "little")) * M2 + GOLDEN) % WORD)
        hashes.append(mix(((h ^ int.from_bytes(value[whole:], "little")) * M1 + GOLDEN) % WORD))
    return hashes


def hash_lists(lists: Sequence[Sequence[int]]) -> list[int]:
    """The hash of each list, by the words of its elements: its length, then each in turn."""
    hashes = []
    for words in lists:
        h = mix((len(words) + GOLDEN) % WORD)
        for word in words:
            h = mix(((h ^ word) * M2 + GOLDEN) % WORD)
        hashes.append(h)
    return hashes


def choose(hashes: Sequence[int], salt: int, limit: int) -> list[bool]:
    """Which rows are chosen: those whose hash, mixed with a salt, is below a limit."""
    return [mix(((h ^ salt) * M1 + GOLDEN) % WORD) < limit for h in hashes]


# -- rows and runs -------------------------------------------------------------------------------------------------------


class SortedRow(NamedTuple):
    """A row of the batch at hand; `position` says where it stands in the batch."""

    hash: int
    position: int
    start: int
    end: int


class Entry(NamedTuple):
    """A stored row. Rows of a source have no end of their own (None): it follows from a window."""

    hash: int
    id: int
    start: int
    end: int | None = None

    def end_under(self, window_us: int) -> int:
        if self.end is not None:
            return self.end
        return FOREVER_US if window_us == FOREVER_US else self.start + window_us

    def is_within(self, lo: int, hi: int) -> bool:
        return lo << 48 <= self.hash < hi << 48


@dataclass(frozen=True)
class PlainRun:
    """Entries in the order of their hashes, of which those with hashes in [lo, hi) are visible."""

    entries: tuple[Entry, ...]
    lo: int = 0
    hi: int = ALL_HASHES

    def visible(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.is_within(self.lo, self.hi)]


def directory_bits(rows: int) -> int:
    """How many bits of a hash choose its bucket: as few as leave eight rows to a bucket, and at most 26."""
    return next((bits for bits in range(26) if 8 * 2**bits >= rows), 26)


def directory(hashes: Sequence[int], prefix_bits: int) -> list[int]:
    """Two words for each bucket, and two more with the number of entries where another bucket would begin.

    All hashes agree in their first `prefix_bits` bits; the next ones are the bucket, then come six bits of suffix and five
    of mark. The first word of a bucket says which suffixes occur in it, the second which marks and where it begins.
    """
    bits = directory_bits(len(hashes))
    split = [
        (rest >> 11, rest >> 5 & 63, rest & 31) for h in hashes for rest in [(h << prefix_bits) % WORD >> (53 - bits)]
    ]
    words = []
    for b in range(2**bits + 1):
        suffixes = {suffix for bucket, suffix, _ in split if bucket == b}
        marks = {mark for bucket, _, mark in split if bucket == b}
        first = sum(bucket < b for bucket, _, _ in split)
        words += [sum(1 << s for s in suffixes), sum(1 << m for m in marks) << 32 | first]
    return words


def sort_by_hash(
    hashes: Sequence[int], positions: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> list[SortedRow]:
    """The rows in the order of their hashes, equal ones as they came. Without positions, row i has position i."""
    rows = [SortedRow(h, positions[i] if len(positions) else i, starts[i], ends[i]) for i, h in enumerate(hashes)]
    return sorted(rows, key=lambda row: row.hash)


def pack(
    entry: Entry, narrow: bool, has_end: bool, base_batch: int, offset_bits: int, base_start: int
) -> tuple[int, ...]:
    """The words of an entry in a run: its id relative to the run's first batch, its end only in runs that have it."""
    local = ((entry.id >> 32) - base_batch) << offset_bits | (entry.id & LOW)
    if narrow:
        words: tuple[int, ...] = (entry.hash, local << 32 | (entry.start - base_start))
    else:
        words = (entry.hash, local, entry.start % WORD)
    if has_end:
        assert entry.end is not None
        words += (entry.end % WORD,)
    assert all(0 <= word < WORD for word in words), "the entry does not fit the form"
    return words


def unpack(
    words: Sequence[int], narrow: bool, has_end: bool, base_batch: int, offset_bits: int, base_start: int
) -> Entry:
    """The entry that `pack` made the words of."""
    local = words[1] >> 32 if narrow else words[1]
    start = (words[1] & LOW) + base_start if narrow else signed(words[2])
    batch, offset = base_batch + (local >> offset_bits), local & (2**offset_bits - 1)
    return Entry(words[0], batch << 32 | offset, start, signed(words[-1]) if has_end else None)


def signed(word: int) -> int:
    """The signed number with these 64 bits."""
    return word - WORD if word >= WORD // 2 else word


def compact(rows: Sequence[SortedRow], narrow: bool, has_end: bool, base_start: int) -> list[tuple[int, ...]]:
    """Rows of one batch as entries of a run that begins with this batch: their ids are their positions."""
    return [pack(Entry(row.hash, row.position, row.start, row.end), narrow, has_end, 0, 32, base_start) for row in rows]


# -- merging and probing -------------------------------------------------------------------------------------------------


def merge(runs: Sequence[PlainRun], lo: int, hi: int, watermark_us: int, window_us: int, has_end: bool) -> list[Entry]:
    """The visible entries with hashes in [lo, hi) that end after the watermark, in the order of their hashes; equal ones
    in the order of the runs. With `has_end` the merged entries keep their ends."""
    alive = [
        entry
        for run in runs
        for entry in run.visible()
        if entry.is_within(lo, hi) and entry.end_under(window_us) > watermark_us
    ]
    alive.sort(key=lambda entry: entry.hash)
    return [entry if has_end else entry._replace(end=None) for entry in alive]


class Match(NamedTuple):
    """A row and an entry that it found, and when both are valid."""

    position: int
    id: int
    start: int
    end: int


def probe(
    rows: Sequence[SortedRow], runs: Sequence[PlainRun], window_us: int, reaches_us: Sequence[int] = ()
) -> tuple[list[Match], int]:
    """All pairs of a row and a visible entry with the same hash and intersecting validity, within what the row reaches; and
    the number of lookups: one for each row and each run that has entries and is visible at the row's hash."""
    matches, lookups = [], 0
    for run in runs:
        by_hash: dict[int, list[Entry]] = {}
        for entry in run.visible():
            by_hash.setdefault(entry.hash, []).append(entry)
        for place, row in enumerate(rows):
            lookups += bool(run.entries) and run.lo << 48 <= row.hash < run.hi << 48
            for entry in by_hash.get(row.hash, []):
                start, end = max(row.start, entry.start), min(row.end, entry.end_under(window_us))
                if start < end and (not reaches_us or start - entry.start < reaches_us[place]):
                    matches.append(Match(row.position, entry.id, start, end))
    return matches, lookups


def probe_ranges(
    rows: Sequence[SortedRow], highs: Sequence[int], runs: Sequence[PlainRun], window_us: int, reaches_us: Sequence[int] = ()
) -> tuple[list[Match], int]:
    """All pairs of a row and a visible entry that lies between the row's word and its `highs`, both included, with
    intersecting validity, within what the row reaches; and the number of lookups: one for each row and each run that shows
    anything."""
    matches, lookups = [], 0
    for run in runs:
        shown = run.visible()
        lookups += len(rows) if shown else 0
        for place, (row, high) in enumerate(zip(rows, highs, strict=True)):
            for entry in shown:
                start, end = max(row.start, entry.start), min(row.end, entry.end_under(window_us))
                is_near = not reaches_us or start - entry.start < reaches_us[place]
                if row.hash <= entry.hash <= high and start < end and is_near:
                    matches.append(Match(row.position, entry.id, start, end))
    return matches, lookups


# -- gathering -----------------------------------------------------------------------------------------------------------


def gather(segments: Mapping[int, Sequence[T]], ids: Sequence[int]) -> list[T]:
    """The values of the rows with these ids; `segments` has the values of each batch. The twin of `gather_8` to
    `gather_128`."""
    return [segments[row_id >> 32][row_id & LOW] for row_id in ids]


def gather_bits(segments: Mapping[int, Sequence[bool] | None], ids: Sequence[int]) -> tuple[list[bool], int]:
    """The bits of the rows, and how many are zero; None stands for a bitmap of ones."""
    bits = []
    for row_id in ids:
        bitmap = segments[row_id >> 32]
        bits.append(bitmap is None or bitmap[row_id & LOW])
    return bits, bits.count(False)


def gather_offsets(segments: Mapping[int, Sequence[bytes]], ids: Sequence[int]) -> tuple[list[int], int]:
    """Where each of the values will begin when they lie one after the other, where the last will end, and that again."""
    offsets = [0]
    for value in gather(segments, ids):
        offsets.append(offsets[-1] + len(value))
    return offsets, offsets[-1]


def gather_lengths(segments: Mapping[int, Sequence[bytes]], ids: Sequence[int]) -> list[int]:
    """How many bytes each of the values has."""
    return [len(value) for value in gather(segments, ids)]


def first_outside(counts: Mapping[int, int], ids: Sequence[int]) -> int:
    """The first of the rows that is in no segment, -1 if all are; `counts` has the number of rows of each segment."""
    return next((i for i, row_id in enumerate(ids) if row_id & LOW >= counts.get(row_id >> 32, 0)), -1)


def inside(counts: Mapping[int, int], ids: Sequence[int]) -> list[bool]:
    """Whether each id is that of a row of a segment."""
    return [row_id & LOW < counts.get(row_id >> 32, 0) for row_id in ids]


def gather_bytes(segments: Mapping[int, Sequence[bytes]], ids: Sequence[int]) -> bytes:
    """The variable-length values, one after the other."""
    return b"".join(gather(segments, ids))


def take(values: Sequence[T], positions: Sequence[int]) -> list[T]:
    """The values at some positions."""
    return [values[position] for position in positions]


# -- sums ----------------------------------------------------------------------------------------------------------------


def wide(low: int, high: int, wraps: int) -> int:
    """The integer that the words of a 128-bit sum stand for."""
    return low + high * WORD + wraps * WORD * WORD


def total(values: Sequence[float]) -> float:
    """The double nearest to the sum of finite values; infinite if that is out of range.

    >>> total([1e308, 1e308]), total([1e308, 1e308, -1e308])
    (inf, 1e+308)
    """
    return _nearest(sum(map(Fraction, values), Fraction(0)))


def mean(values: Sequence[float]) -> float:
    """The double nearest to the mean of finite values."""
    return _nearest(sum(map(Fraction, values), Fraction(0)) / len(values))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample of finite values, to about 100 bits."""
    middle = sum(map(Fraction, values), Fraction(0)) / len(values)
    variance = sum(((Fraction(v) - middle) ** 2 for v in values), Fraction(0)) / (len(values) - 1)
    least_bits = 2400
    return _nearest(Fraction(math.isqrt(int(variance * 4**least_bits)), 2**least_bits))


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


# -- lineage -------------------------------------------------------------------------------------------------------------


def add_bit(words: Sequence[int], place: int, mask: Sequence[bool]) -> list[int]:
    """The words with a bit set in those for which the mask is true."""
    return [word | 1 << place if is_set else word for word, is_set in zip(words, mask, strict=True)]


def number_rows(rows: Sequence[T]) -> tuple[list[int], list[int]]:
    """A number for each row, equal for equal rows, in order of appearance; and the first row of each number."""
    firsts: dict[T, int] = {}
    for place, row in enumerate(rows):
        firsts.setdefault(row, place)
    numbers = {row: number for number, row in enumerate(firsts)}
    return [numbers[row] for row in rows], list(firsts.values())


def intersect(table: Mapping[tuple[int, int], int], left: Sequence[int], right: Sequence[int]) -> tuple[list[int], int]:
    """What a table has for each pair, -1 if it has nothing; and for how many it has nothing."""
    found = [table.get(pair, -1) for pair in zip(left, right, strict=True)]
    return found, found.count(-1)


def age_slices(ages: Sequence[int], limits: Sequence[int]) -> list[int]:
    """For each age how many limits it has reached."""
    return [sum(limit <= age for limit in limits) for age in ages]


def order_by_number(numbers: Sequence[int]) -> list[int]:
    """The places of rows in the order of their numbers, those of one number as they stood."""
    return sorted(range(len(numbers)), key=lambda place: numbers[place])


def expand(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The places of several ranges, one after the other."""
    return [place for begin, end in ranges for place in range(begin, end)]


def has_members(sets: Sequence[int]) -> list[bool]:
    """For each set whether it has a member."""
    return [bits != 0 for bits in sets]


def members_of(sets: Sequence[int], members: int) -> list[list[int]]:
    """For each member the places of the sets that it is in. The twin of `count_members` and `list_members`."""
    return [[place for place, bits in enumerate(sets) if bits >> member & 1] for member in range(members)]


# -- sums by row ---------------------------------------------------------------------------------------------------------


def add_up(places: Sequence[int], weights: Sequence[float], sums: Sequence[float]) -> list[float]:
    """The sums so far, with each weight added to that at its place."""
    found = list(sums)
    for place, weight in zip(places, weights, strict=True):
        found[place] += weight
    return found


RowSums = Mapping[int, tuple[float, float]]
"""The two sums of each row id; rows of batches that have none do not stand in it."""


def kept_shares(ids: Sequence[int], shares: Mapping[int, float]) -> list[float]:
    """The share of its rows that the batch of each row id kept."""
    return [shares.get(id >> 32, 1.0) for id in ids]


def add_to_rows(ids: Sequence[int], weights: Sequence[float], sums: RowSums) -> tuple[RowSums, list[int]]:
    """The sums with each weight added to the first one of its row; and the places of rows where that was 0 before."""
    found, touched = dict(sums), []
    for place, (id, weight) in enumerate(zip(ids, weights, strict=True)):
        if id in found and weight:
            first, second = found[id]
            found[id] = (first + weight, second)
            if first == 0:
                touched.append(place)
    return found, touched


def fold_rows(ids: Sequence[int], sums: RowSums) -> tuple[RowSums, list[float], list[float]]:
    """The sums of rows with the first one added to the second; and what both were before."""
    folded = {id: (0.0, sum(sums[id])) for id in ids}
    return {**sums, **folded}, [sums[id][0] for id in ids], [sums[id][1] for id in ids]
