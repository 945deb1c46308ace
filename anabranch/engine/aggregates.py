"""One aggregate each: what a batch's rows fold to, what groups hold while rows enter and leave, and what comes out.

An aggregate *folds* the rows of a batch, numbered by who they belong to, into a few columns of partial values. These are
what is stored. Groups *take* partial values when their rows begin to count, and *drop* them when they end.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels import aggregation as kernels
from anabranch.engine.ordering import doubles, from_ordered_words, ordered_words, words_128
from anabranch.plan.query import Aggregate
from anabranch.plan.ranges import has_ordered_words

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Parts = dict[str, Any]
"""Partial values by column: numpy arrays, or Arrow's for values that have no fixed width."""


class Accumulator(Protocol):
    """The values of one aggregate for all groups."""

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        """The partial values of `count` parts that rows with these ids make."""

    def grow(self, groups: int) -> None:
        """Makes room for so many groups."""

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        """Rows of partial values begin to count for their groups, until `lasts`."""

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        """They end."""

    def value(self, groups: Ids, now: int) -> pa.Array:
        """What the aggregate is for some groups."""

    def parts(self, groups: Ids, now: int) -> Parts:
        """The same as partial values, to be taken by groups elsewhere."""


def accumulator(aggregate: Aggregate, argument: pa.DataType | None) -> Accumulator:
    """What computes an aggregate; for COUNT DISTINCT see `anabranch.engine.aggregation`."""
    if aggregate.function == "count":
        return Count()
    assert argument is not None
    if aggregate.function == "sum":
        return FloatSum() if pa.types.is_floating(argument) else ExactSum(aggregate.type)
    if aggregate.function == "stddev":
        return Deviation()
    kind = Extreme if has_ordered_words(argument) else RankedExtreme
    return kind(argument, aggregate.function == "max")


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _grown(array: Array, size: int, value: Any = 0) -> Array:
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
            ids = ids[_valid(values)]
        return {"n": np.bincount(ids, minlength=count).astype(np.int64)}

    def grow(self, groups: int) -> None:
        self.counts = _grown(self.counts, groups)

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        kernels.add_counts(self.counts, groups, parts["n"][rows], 1)

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        kernels.add_counts(self.counts, groups, parts["n"][rows], -1)

    def value(self, groups: Ids, now: int) -> pa.Array:
        return pa.array(self.counts[groups])

    def parts(self, groups: Ids, now: int) -> Parts:
        return {"n": self.counts[groups]}


class ExactSum(Count):
    """SUM of integers (they wrap) and decimals."""

    def __init__(self, type: pa.DataType) -> None:
        super().__init__()
        self.type = type
        self.low, self.high = np.zeros(0, np.uint64), np.zeros(0, np.int64)

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        assert values is not None
        low_words, high_words = words_128(values)
        mask = _valid(values)
        if not mask.all():
            ids, low_words, high_words = ids[mask], low_words[mask], high_words[mask]
        low, high = np.zeros(count, np.uint64), np.zeros(count, np.int64)
        kernels.add_wide(low, high, ids, low_words, high_words, 1)
        return {"n": np.bincount(ids, minlength=count).astype(np.int64), "low": low, "high": high}

    def grow(self, groups: int) -> None:
        super().grow(groups)
        self.low, self.high = _grown(self.low, groups), _grown(self.high, groups)

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        super().take(groups, parts, rows, lasts)
        kernels.add_wide(self.low, self.high, groups, parts["low"][rows], parts["high"][rows], 1)

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        super().drop(groups, parts, rows)
        kernels.add_wide(self.low, self.high, groups, parts["low"][rows], parts["high"][rows], -1)

    def parts(self, groups: Ids, now: int) -> Parts:
        return {**super().parts(groups, now), "low": self.low[groups], "high": self.high[groups]}

    def value(self, groups: Ids, now: int) -> pa.Array:
        missing = self.counts[groups] == 0
        low, high = self.low[groups], self.high[groups]
        if pa.types.is_decimal(self.type):
            words = np.empty(2 * len(groups), np.uint64)
            words[0::2], words[1::2] = low, high.view(np.uint64)
            sums = pa.Array.from_buffers(self.type, len(groups), [None, pa.py_buffer(words)])
            return pc.if_else(pa.array(missing), pa.scalar(None, self.type), sums) if missing.any() else sums
        return pa.array(low.view(np.int64), mask=missing).cast(self.type)


class FloatSum(Count):
    """SUM of floats. What is not finite is counted, not added: it could not be taken back."""

    SPECIAL = ("nan", "plus", "minus")

    def __init__(self) -> None:
        super().__init__()
        self.hi, self.lo = np.zeros(0), np.zeros(0)
        self.special = {name: np.zeros(0, np.int64) for name in self.SPECIAL}

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        assert values is not None
        plain, mask = doubles(values), _valid(values)
        if not mask.all():
            ids, plain = ids[mask], plain[mask]
        parts: Parts = {"n": np.bincount(ids, minlength=count).astype(np.int64)}
        finite = np.isfinite(plain)
        for name in self.SPECIAL:
            parts[name] = np.zeros(count, np.int64)
        if not finite.all():
            for name, odd in zip(self.SPECIAL, (np.isnan(plain), plain == np.inf, plain == -np.inf), strict=True):
                parts[name] = np.bincount(ids[odd], minlength=count).astype(np.int64)
            ids, plain = ids[finite], plain[finite]
        parts["hi"], parts["lo"] = np.zeros(count), np.zeros(count)
        kernels.add_pairs(parts["hi"], parts["lo"], ids, plain, np.zeros(len(plain)), 1.0)
        return parts

    def grow(self, groups: int) -> None:
        super().grow(groups)
        self.hi, self.lo = _grown(self.hi, groups), _grown(self.lo, groups)
        self.special = {name: _grown(counts, groups) for name, counts in self.special.items()}

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        super().take(groups, parts, rows, lasts)
        self._add(groups, parts, rows, 1)

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        super().drop(groups, parts, rows)
        self._add(groups, parts, rows, -1)

    def _add(self, groups: Ids, parts: Parts, rows: Ids, sign: int) -> None:
        kernels.add_pairs(self.hi, self.lo, groups, parts["hi"][rows], parts["lo"][rows], float(sign))
        for name, counts in self.special.items():
            change = parts[name][rows]
            if change.any():
                kernels.add_counts(counts, groups, change, sign)

    def parts(self, groups: Ids, now: int) -> Parts:
        special = {name: counts[groups] for name, counts in self.special.items()}
        return {**super().parts(groups, now), **special, "hi": self.hi[groups], "lo": self.lo[groups]}

    def value(self, groups: Ids, now: int) -> pa.Array:
        return pa.array(self._sums(groups), mask=self.counts[groups] == 0)

    def _sums(self, groups: Ids) -> npt.NDArray[np.float64]:
        sums: npt.NDArray[np.float64] = self.hi[groups] + self.lo[groups]
        nan, plus, minus = (self.special[name][groups] > 0 for name in self.SPECIAL)
        sums[plus], sums[minus] = np.inf, -np.inf
        sums[nan | (plus & minus)] = np.nan
        return sums


class Deviation(FloatSum):
    """STDDEV: the standard deviation of a sample; NULL below two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.square_hi, self.square_lo = np.zeros(0), np.zeros(0)

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        assert values is not None
        parts = super().fold(ids, count, values)
        plain = doubles(values)
        usable = _valid(values) & np.isfinite(plain)
        if not usable.all():
            ids, plain = ids[usable], plain[usable]
        hi, lo = np.empty(len(plain)), np.empty(len(plain))
        kernels.squares(plain, hi, lo)
        parts["square_hi"], parts["square_lo"] = np.zeros(count), np.zeros(count)
        kernels.add_pairs(parts["square_hi"], parts["square_lo"], ids, hi, lo, 1.0)
        return parts

    def grow(self, groups: int) -> None:
        super().grow(groups)
        self.square_hi, self.square_lo = _grown(self.square_hi, groups), _grown(self.square_lo, groups)

    def _add(self, groups: Ids, parts: Parts, rows: Ids, sign: int) -> None:
        super()._add(groups, parts, rows, sign)
        kernels.add_pairs(
            self.square_hi, self.square_lo, groups, parts["square_hi"][rows], parts["square_lo"][rows], float(sign)
        )

    def parts(self, groups: Ids, now: int) -> Parts:
        squares = {"square_hi": self.square_hi[groups], "square_lo": self.square_lo[groups]}
        return {**super().parts(groups, now), **squares}

    def value(self, groups: Ids, now: int) -> pa.Array:
        counts, out = self.counts[groups], np.empty(len(groups))
        kernels.deviations(
            counts, self.hi[groups], self.lo[groups], self.square_hi[groups], self.square_lo[groups], out
        )
        odd = sum((self.special[name][groups] for name in self.SPECIAL), np.zeros(len(groups), np.int64)) > 0
        out[odd] = np.nan
        return pa.array(out, mask=counts < 2)


class Extreme:
    """MIN and MAX: values as 64-bit words in their order, for MAX reversed; groups keep them in staircases."""

    def __init__(self, type: pa.DataType, is_max: bool) -> None:
        self.type, self.is_max = type, is_max
        self.heads, self.tails = np.full(0, -1, np.int64), np.full(0, -1, np.int64)
        self.word, self.last = np.empty(0, np.uint64), np.empty(0, np.int64)
        self.before, self.after = np.empty(0, np.int64), np.empty(0, np.int64)
        self.free = np.array([-1, 0], np.int64)

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        assert values is not None
        words = ordered_words(values)
        least, seen = np.zeros(count, np.uint64), np.zeros(count, np.int64)
        kernels.least_of_each(ids, ~words if self.is_max else words, _valid(values), least, seen)
        return {"word": least, "n": seen}

    def grow(self, groups: int) -> None:
        self.heads, self.tails = _grown(self.heads, groups, -1), _grown(self.tails, groups, -1)

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        has_value = parts["n"][rows] > 0
        if not has_value.all():
            groups, rows, lasts = groups[has_value], rows[has_value], lasts[has_value]
        self._make_room(len(rows))
        kernels.climb(
            groups, parts["word"][rows], lasts, self.heads, self.tails, self.word, self.last, self.before, self.after,
            self.free,
        )  # fmt: skip

    def _make_room(self, more: int) -> None:
        if self.free[1] >= more:
            return
        old = len(self.word)
        size = max(2 * old, old + more, 1024)
        self.word, self.last = _grown(self.word, size), _grown(self.last, size)
        self.before, self.after = _grown(self.before, size), _grown(self.after, size)
        size = len(self.word)
        self.after[old:size] = np.arange(old + 1, size + 1)
        self.after[size - 1] = self.free[0]
        self.free[0] = old
        self.free[1] += size - old

    def drop(self, groups: Ids, parts: Parts, rows: Ids) -> None:
        """Nothing: steps know when they end."""

    def _least(self, groups: Ids, now: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """The words of the groups' values, and which have none."""
        found = np.empty(len(groups), np.int64)
        kernels.descend(groups, now, self.heads, self.tails, self.last, self.before, self.after, self.free, found)
        missing = found < 0
        return self.word[np.where(missing, 0, found)] if len(self.word) else np.zeros(len(groups), np.uint64), missing

    def parts(self, groups: Ids, now: int) -> Parts:
        words, missing = self._least(groups, now)
        return {"word": words, "n": (~missing).astype(np.int64)}

    def value(self, groups: Ids, now: int) -> pa.Array:
        words, missing = self._least(groups, now)
        return self._from_words(~words if self.is_max else words, missing)

    def _from_words(self, words: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_]) -> pa.Array:
        return from_ordered_words(words, missing, self.type)


class RankedExtreme(Extreme):
    """MIN and MAX of what does not fit a word: strings, bytes, long decimals. The word of a value is its rank among all
    values there are; when new ones come, words are moved."""

    def __init__(self, type: pa.DataType, is_max: bool) -> None:
        super().__init__(type, is_max)
        self.values = pa.array([], type)

    def fold(self, ids: Ids, count: int, values: pa.Array | None) -> Parts:
        assert values is not None
        known = _sorted(pc.drop_null(pc.unique(values)))
        words = _ranks(values, known)
        least, seen = np.zeros(count, np.uint64), np.zeros(count, np.int64)
        kernels.least_of_each(ids, ~words if self.is_max else words, _valid(values), least, seen)
        places = (~least if self.is_max else least).view(np.int64)
        return {"n": seen, "value": known.take(pa.array(places, mask=seen == 0))}

    def take(self, groups: Ids, parts: Parts, rows: Ids, lasts: Ids) -> None:
        values = parts["value"].take(pa.array(rows))
        self._learn(values)
        words = _ranks(values, self.values)
        words = ~words if self.is_max else words
        places = np.arange(len(rows))
        super().take(groups, {"n": parts["n"][rows], "word": words}, places, lasts)

    def parts(self, groups: Ids, now: int) -> Parts:
        words, missing = self._least(groups, now)
        values = self._from_words(~words if self.is_max else words, missing)
        return {"n": (~missing).astype(np.int64), "value": values}

    def _learn(self, values: pa.Array) -> None:
        """Makes room among the ranks for new values."""
        fresh = pc.drop_null(pc.unique(values))
        fresh = fresh.filter(pc.invert(pc.is_in(fresh, self.values))) if len(self.values) else fresh
        if not len(fresh):
            return
        known = _sorted(pa.concat_arrays([self.values, fresh]))
        if len(self.values) and len(self.word):
            moved = _ranks(self.values, known)
            words = ~self.word if self.is_max else self.word
            # Free nodes have any word.
            words = moved[np.minimum(words, np.uint64(len(moved) - 1)).astype(np.int64)]
            self.word = ~words if self.is_max else words
        self.values = known

    def _from_words(self, words: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_]) -> pa.Array:
        return self.values.take(pa.array(np.where(missing, 0, words.view(np.int64)), mask=missing))


def _sorted(values: pa.Array) -> pa.Array:
    return values.take(pc.sort_indices(values))


def _ranks(values: pa.Array, known: pa.Array) -> npt.NDArray[np.uint64]:
    """The places of values among sorted ones (0 for NULL)."""
    places = pc.fill_null(pc.index_in(values, known), 0)
    return np.asarray(places.to_numpy(zero_copy_only=False), np.uint64)
