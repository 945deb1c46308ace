"""One aggregate each: what a batch's rows fold to, what groups hold while rows enter and leave, and what comes out.

An aggregate *folds* the rows of a batch, numbered by who they belong to, into a few columns of partial values. These are
what is stored. Groups *take* partial values when their rows begin to count, and *drop* them when they end.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels import aggregation as kernels
from anabranch.engine.ordering import from_ordered_words, ordered_words
from anabranch.engine.sums import Count, Deviation, ExactSum, FloatSum, Ids, Mean, Parts, grown, valid_rows
from anabranch.plan.query import PARTS, Aggregate
from anabranch.plan.ranges import has_ordered_words


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
    if aggregate.function == "avg":
        return Mean(aggregate.type)
    if aggregate.function == "sum":
        # Partial values that are added up again do not say what of: the result does.
        added = aggregate.type if argument == PARTS else argument
        return FloatSum(aggregate.type) if pa.types.is_floating(added) else ExactSum(aggregate.type)
    if aggregate.function == "stddev":
        return Deviation()
    kind = Extreme if has_ordered_words(argument) else RankedExtreme
    return kind(argument, aggregate.function == "max")


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
        kernels.least_of_each(ids, ~words if self.is_max else words, valid_rows(values), least, seen)
        return {"word": least, "n": seen}

    def grow(self, groups: int) -> None:
        self.heads, self.tails = grown(self.heads, groups, -1), grown(self.tails, groups, -1)

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
        self.word, self.last = grown(self.word, size), grown(self.last, size)
        self.before, self.after = grown(self.before, size), grown(self.after, size)
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
        kernels.least_of_each(ids, ~words if self.is_max else words, valid_rows(values), least, seen)
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
