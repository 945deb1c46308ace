"""COUNT, SUM, AVG and STDDEV: what is added when rows begin to count, and taken back when they end.

Whatever could not be taken back is counted apart: infinities, NaN, large floats (`kernels.sums`), and how often a sum of
decimals has left its 128 bits. These are the *rare* partial values. They are there all together, or not at all if all of
them are 0, as they mostly are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels import sums as kernels
from anabranch.engine.ordering import doubles, words_128
from anabranch.plan.query import PARTS

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Parts = dict[str, Any]
"""Partial values by column: numpy arrays, or Arrow's for values that have no fixed width."""

WORD_BYTES = 8
SAFE_DIGITS = 29
"""A sum of up to so many digits is of values with ten less: 2^63 of these are below 2^127."""
NOTHING = np.zeros(0)


def valid_rows(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are not NULL."""
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def grown(array: Array, size: int, value: Any = 0) -> Array:
    """The array with room for `size` values."""
    if size <= len(array):
        return array
    larger = np.full(max(size, 2 * len(array), 1024), value, array.dtype)
    larger[: len(array)] = array
    return larger


class Count:
    """COUNT(*), COUNT(x)."""

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.int64)

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        if values is not None and values.null_count:
            ids = ids[valid_rows(values)]
        return {"n": np.bincount(ids, minlength=count).astype(np.int64)}

    def grow(self, groups: int) -> None:
        self.counts = grown(self.counts, groups)

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        kernels.add_counts(self.counts, groups, parts["n"][rows], 1)

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        kernels.add_counts(self.counts, groups, parts["n"][rows], -1)

    def value(self, groups: Ids, now: int) -> pa.Array:
        return pa.array(self.counts[groups])

    def parts(self, groups: Ids, now: int) -> Parts:
        return {"n": self.counts[groups]}


class Sum(Count):
    """What sums of all types have in common. Their arguments may be partial values (`PARTS`), and so may their results."""

    RARE: tuple[str, ...] = ()

    def __init__(self, type: pa.DataType) -> None:
        super().__init__()
        self.type = type

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        assert values is not None
        if values.type == PARTS:
            return self._fold_again(ids, count, values)
        if values.null_count:
            mask = valid_rows(values)
            ids, values = ids[mask], values.filter(pa.array(mask))
        return self._fold(ids, count, values)

    def _fold(self, ids: Ids, count: int, values: pa.Array) -> Parts:
        """The partial values that values make, none of them NULL."""
        raise NotImplementedError

    def _fold_again(self, ids: Ids, count: int, values: pa.Array) -> Parts:
        again = self._new()
        again.grow(count)
        rows = np.arange(len(ids))
        again.take(ids, unpacked(values, again.parts(rows[:0], 0), self.RARE), rows, rows)
        return without_zeros(again.parts(np.arange(count), 0), self.RARE)

    def _new(self) -> Sum:
        return type(self)(self.type)

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        super().take(groups, parts, rows, lasts)
        self._add(groups, parts, rows, 1)

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        super().drop(groups, parts, rows)
        self._add(groups, parts, rows, -1)

    def _add(self, groups: Ids, parts: Parts, rows: Ids, sign: int) -> None:
        raise NotImplementedError

    def value(self, groups: Ids, now: int) -> pa.Array:
        return packed(self.parts(groups, now), self.RARE) if self.type == PARTS else self._value(groups)

    def _value(self, groups: Ids) -> pa.Array:
        raise NotImplementedError


class ExactSum(Sum):
    """SUM of integers (they wrap) and of decimals (NULL if there are more digits than the type has)."""

    RARE = ("wraps",)

    def __init__(self, type: pa.DataType) -> None:
        super().__init__(type)
        self.may_wrap = type == PARTS or (pa.types.is_decimal(type) and type.precision > SAFE_DIGITS)
        self.low, self.high, self.wraps = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)

    def _fold(self, ids: Ids, count: int, values: pa.Array) -> Parts:
        words = words_128(values)
        low, high, wraps = np.zeros(count, np.uint64), np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._add_words((low, high, wraps), ids, *words, 1)
        parts = {"n": np.bincount(ids, minlength=count).astype(np.int64), "low": low, "high": high, "wraps": wraps}
        return without_zeros(parts, self.RARE)

    def grow(self, groups: int) -> None:
        super().grow(groups)
        self.low, self.high, self.wraps = (grown(words, groups) for words in (self.low, self.high, self.wraps))

    def _add(self, groups: Ids, parts: Parts, rows: Ids, sign: int) -> None:
        totals = self.low, self.high, self.wraps
        self._add_words(totals, groups, parts["low"][rows], parts["high"][rows], sign)
        if "wraps" in parts:
            kernels.add_counts(self.wraps, groups, parts["wraps"][rows], sign)

    def _add_words(self, totals: tuple[Array, Array, Array], ids: Ids, low: Array, high: Array, sign: int) -> None:
        if self.may_wrap:
            kernels.add_wider(*totals, ids, low, high, sign)
        else:
            kernels.add_wide(*totals[:2], ids, low, high, sign)

    def parts(self, groups: Ids, now: int) -> Parts:
        words = {"low": self.low[groups], "high": self.high[groups], "wraps": self.wraps[groups]}
        return {**super().parts(groups, now), **words}

    def _value(self, groups: Ids) -> pa.Array:
        missing = self.counts[groups] == 0
        low, high = self.low[groups], self.high[groups]
        if not pa.types.is_decimal(self.type):
            return pa.array(low.view(np.int64), mask=missing).cast(self.type)
        if self.may_wrap:
            missing |= self.wraps[groups] != 0
        missing |= _too_long(low, high, self.type.precision)
        words = np.empty(2 * len(groups), np.uint64)
        words[0::2], words[1::2] = low, high.view(np.uint64)
        totals = pa.Array.from_buffers(self.type, len(groups), [None, pa.py_buffer(words)])
        return pc.if_else(pa.array(missing), pa.scalar(None, self.type), totals) if missing.any() else totals


def _too_long(low: npt.NDArray[np.uint64], high: npt.NDArray[np.int64], digits: int) -> npt.NDArray[np.bool_]:
    """Which 128-bit integers have more digits."""
    above_high, above_low = divmod(10**digits, 1 << 64)
    below_high, below_low = divmod(-(10**digits), 1 << 64)
    if len(high) and below_high < high.min() and high.max() < above_high:
        return np.zeros(len(high), np.bool_)
    too_large = (high > above_high) | ((high == above_high) & (low >= np.uint64(above_low)))
    too_small = (high < below_high) | ((high == below_high) & (low <= np.uint64(below_low)))
    found: npt.NDArray[np.bool_] = too_large | too_small
    return found


class FloatSum(Sum):
    """SUM of floats: ±infinity where it is out of range."""

    PAIRS: tuple[tuple[str, str], ...] = (("hi", "lo"),)
    ODD = ("nan", "plus", "minus")
    RARE: tuple[str, ...] = (*ODD, "large", "large_hi", "large_lo")

    def __init__(self, type: pa.DataType = pa.float64()) -> None:  # noqa: B008
        super().__init__(type)
        self.sums = {name: np.zeros(0) for pair in self.PAIRS for name in pair}
        self.rare: Parts = {}
        """Counts and sums of what is rare, once there was any."""

    def _fold(self, ids: Ids, count: int, values: pa.Array) -> Parts:
        plain = doubles(values)
        n, hi, lo = np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
        rare: Parts = {}
        if kernels.fold_doubles(ids, plain, n, hi, lo):
            small = np.abs(plain) < kernels.LARGE
            rare = self._rare_of(ids[~small], plain[~small], count)
            ids, plain = ids[small], plain[small]
        return {"n": n, "hi": hi, "lo": lo, **self._further(ids, plain, count), **rare}

    def _rare_of(self, ids: Ids, plain: npt.NDArray[np.float64], count: int) -> Parts:
        kinds = np.isnan(plain), plain == np.inf, plain == -np.inf
        rare: Parts = {
            name: np.bincount(ids[which], minlength=count).astype(np.int64)
            for name, which in zip(self.ODD, kinds, strict=True)
        }
        large = np.isfinite(plain)
        ids, plain = ids[large], plain[large] * kernels.DOWN
        rare["large"] = np.bincount(ids, minlength=count).astype(np.int64)
        large_sums = _folded(ids, count, plain, np.zeros(len(plain)), "hi", "lo") | self._further(ids, plain, count)
        return rare | {f"large_{name}": values for name, values in large_sums.items()}

    def _further(self, ids: Ids, plain: npt.NDArray[np.float64], count: int) -> Parts:
        """Further sums over the same values."""
        return {}

    def grow(self, groups: int) -> None:
        super().grow(groups)
        self.sums = {name: grown(values, groups) for name, values in self.sums.items()}
        self.rare = {name: grown(values, groups) for name, values in self.rare.items()}

    def _add(self, groups: Ids, parts: Parts, rows: Ids, sign: int) -> None:
        for hi, lo in self.PAIRS:
            kernels.add_pairs(
                self.counts, self.sums[hi], self.sums[lo], groups, rows, parts[hi], parts[lo], float(sign)
            )
        if "large" not in parts:
            return
        if not self.rare:
            self.rare = self._no_rare(len(self.counts))
        for name in (*self.ODD, "large"):
            kernels.add_counts(self.rare[name], groups, parts[name][rows], sign)
        for hi, lo in ((f"large_{hi}", f"large_{lo}") for hi, lo in self.PAIRS):
            kernels.add_pairs(
                self.rare["large"], self.rare[hi], self.rare[lo], groups, rows, parts[hi], parts[lo], float(sign)
            )

    def _no_rare(self, groups: int) -> Parts:
        counted = (*self.ODD, "large")
        return {name: np.zeros(groups, np.int64 if name in counted else np.float64) for name in self.RARE}

    def parts(self, groups: Ids, now: int) -> Parts:
        sums = {name: values[groups] for name, values in self.sums.items()}
        rare = {name: values[groups] for name, values in self.rare.items()} or self._no_rare(len(groups))
        return {**super().parts(groups, now), **sums, **rare}

    def _value(self, groups: Ids) -> pa.Array:
        totals = self._finite(groups)
        if self.rare:
            nan, plus, minus = (self.rare[name][groups] > 0 for name in self.ODD)
            totals[plus], totals[minus] = np.inf, -np.inf
            totals[nan | (plus & minus)] = np.nan
        return pa.array(totals, mask=self.counts[groups] == 0)

    def _finite(self, groups: Ids) -> npt.NDArray[np.float64]:
        """The values of groups that have neither infinities nor NaN."""
        out = np.empty(len(groups))
        kernels.sums(groups, self.sums["hi"], self.sums["lo"], *self._large("hi", "lo"), out)
        return out

    def _large(self, *names: str) -> tuple[npt.NDArray[np.float64], ...]:
        return tuple(self.rare.get(f"large_{name}", NOTHING) for name in names)


class Mean(FloatSum):
    """AVG: the double that is nearest to the mean, also where the sum is out of range."""

    def _finite(self, groups: Ids) -> npt.NDArray[np.float64]:
        out = np.empty(len(groups))
        kernels.means(groups, self.counts, self.sums["hi"], self.sums["lo"], *self._large("hi", "lo"), out)
        return out


class Deviation(FloatSum):
    """STDDEV: the standard deviation of a sample; NULL below two rows, NaN if not all are finite."""

    PAIRS = (("hi", "lo"), ("square_hi", "square_lo"))
    RARE = (*FloatSum.RARE, "large_square_hi", "large_square_lo")

    def _further(self, ids: Ids, plain: npt.NDArray[np.float64], count: int) -> Parts:
        hi, lo = np.empty(len(plain)), np.empty(len(plain))
        kernels.squares(plain, hi, lo)
        return _folded(ids, count, hi, lo, "square_hi", "square_lo")

    def _value(self, groups: Ids) -> pa.Array:
        counts, out = self.counts[groups], np.empty(len(groups))
        names = [name for pair in self.PAIRS for name in pair]
        kernels.deviations(groups, self.counts, *(self.sums[n] for n in names), *self._large(*names), out)
        for name in self.ODD if self.rare else ():
            out[self.rare[name][groups] > 0] = np.nan
        return pa.array(out, mask=counts < 2)


def _folded(
    ids: Ids, count: int, value_hi: npt.NDArray[np.float64], value_lo: npt.NDArray[np.float64], hi: str, lo: str
) -> Parts:
    parts = {hi: np.zeros(count), lo: np.zeros(count)}
    kernels.fold_pairs(ids, value_hi, value_lo, parts[hi], parts[lo])
    return parts


# -- partial values on their way -----------------------------------------------------------------------------------------


def without_zeros(parts: Parts, rare: tuple[str, ...]) -> Parts:
    """Partial values without the rare ones, if these are all 0."""
    if any(parts[name].any() for name in rare):
        return parts
    return {name: values for name, values in parts.items() if name not in rare}


def packed(parts: Parts, rare: tuple[str, ...]) -> pa.Array:
    """Partial values as one column of bytes: their words, one after the other; the rare ones, which are the last, only where
    one of them is not 0."""
    words = np.column_stack([values.view(np.int64) for values in parts.values()])
    common = words.shape[1] - len(rare)
    is_rare = words[:, common:].any(axis=1)
    if not is_rare.any():
        words, lengths = np.ascontiguousarray(words[:, :common]), np.full(len(words), common)
    else:
        lengths = np.where(is_rare, words.shape[1], common)
        words = words[np.arange(words.shape[1]) < lengths[:, None]]
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths * WORD_BYTES, out=offsets[1:])
    return pa.Array.from_buffers(PARTS, len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(words)])


def unpacked(values: pa.Array, like: Parts, rare: tuple[str, ...]) -> Parts:
    """The reverse. `like` has the names and types of the partial values."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]].view(np.int64)
    lengths, width, common = np.diff(offsets) // WORD_BYTES, len(like), len(like) - len(rare)
    names = list(like)
    if (lengths == common).all():
        words, names = data.reshape(-1, common), names[:common]
    else:
        words = np.zeros((len(values), width), np.int64)
        words[np.arange(width) < lengths[:, None]] = data
    return {name: np.ascontiguousarray(words[:, i]).view(like[name].dtype) for i, name in enumerate(names)}
