"""Values as 64-bit words that are in order as the values are: what MIN and MAX keep, and what ranges are looked up by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.kernels.runs import SORTED_WORDS, sort_by_hash
from anabranch.engine.run import Words
from anabranch.plan.ranges import Limit, Range

SIGN = np.uint64(1 << 63)
LEAST, LARGEST = -(2**63), 2**63 - 1
VALUE_BITS = 40
"""Of a word that has a hash and a value: enough for floats to a billionth, and for integers up to half a trillion."""
ROUNDED_OFF = np.uint64((1 << (64 - VALUE_BITS)) - 1)
TIME_BITS = 20
"""Microseconds have so many more: about a second is not told apart."""
EVERY_WORD = np.uint64(0), np.uint64(2**64 - 1)

Times = npt.NDArray[np.int64]


def ordered_words(values: pa.Array) -> npt.NDArray[np.uint64]:
    """Values as words that are in order as the values are (NaN above all numbers; whatever, for NULL)."""
    return _words(_plain(values))


def _plain(values: pa.Array) -> npt.NDArray[Any]:
    """Values as floats or integers of 64 bits."""
    return doubles(values) if pa.types.is_floating(values.type) else _whole(values)


def _words(plain: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    if plain.dtype == np.float64:
        plain = plain + 0.0
        plain[np.isnan(plain)] = np.nan
        bits = plain.view(np.uint64)
        words: npt.NDArray[np.uint64] = np.where(bits & SIGN, ~bits, bits | SIGN)
        return words
    return plain.view(np.uint64) ^ SIGN


def _whole(values: pa.Array) -> npt.NDArray[np.int64]:
    type = values.type
    if pa.types.is_decimal(type):
        return words_128(values)[0].view(np.int64)
    if pa.types.is_boolean(type):
        values = values.cast(pa.int8())
    elif not pa.types.is_integer(type):
        values = values.view({32: pa.int32(), 64: pa.int64()}[type.bit_width])
    plain = pc.fill_null(values, pa.scalar(0, values.type)) if values.null_count else values
    return np.ascontiguousarray(plain.to_numpy(zero_copy_only=False), np.int64)


def words_128(values: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Integers and decimals as 128-bit words (whatever, for NULL)."""
    if pa.types.is_decimal(values.type):
        words = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset : 2 * (values.offset + len(values))]
        return np.ascontiguousarray(words[0::2]), np.ascontiguousarray(words[1::2]).view(np.int64)
    plain = pc.fill_null(values, pa.scalar(0, values.type)) if values.null_count else values
    whole = np.ascontiguousarray(plain.to_numpy(zero_copy_only=False), np.int64)
    return whole.view(np.uint64), whole >> 63


def doubles(values: pa.Array) -> npt.NDArray[np.float64]:
    plain = pc.fill_null(values, pa.scalar(0.0, values.type)) if values.null_count else values
    return np.ascontiguousarray(plain.to_numpy(zero_copy_only=False), np.float64)


def from_ordered_words(words: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_], type: pa.DataType) -> pa.Array:
    """The values that words stand for."""
    if pa.types.is_floating(type):
        bits = np.where(words & SIGN, words ^ SIGN, ~words)
        return pa.array(bits.view(np.float64), mask=missing).cast(type)
    whole = (words ^ SIGN).view(np.int64)
    if pa.types.is_decimal(type):
        pairs = np.empty(2 * len(whole), np.int64)
        pairs[0::2], pairs[1::2] = whole, whole >> 63
        values = pa.Array.from_buffers(type, len(whole), [None, pa.py_buffer(pairs)])
        return pc.if_else(pa.array(missing), pa.scalar(None, type), values) if missing.any() else values
    if pa.types.is_boolean(type):
        return pa.array(whole != 0, mask=missing)
    if pa.types.is_integer(type):
        return pa.array(whole, mask=missing).cast(type)
    return pa.array(whole.astype(f"int{type.bit_width}"), mask=missing).view(type)


# -- ranges --------------------------------------------------------------------------------------------------------------


def limit_words(between: Range, bounds: Sequence[pa.Array], rows: int) -> tuple[Words, Words, npt.NDArray[np.bool_]]:
    """The least and the largest word of a range for each row, given the bounds of its limits, and which rows have no NULL
    among them."""
    lows, highs = np.full(rows, EVERY_WORD[0]), np.full(rows, EVERY_WORD[1])
    valid = np.ones(rows, np.bool_)
    for limit, values in zip(between.limits, bounds, strict=True):
        words = _words(_shifted(_plain(values), limit))
        if limit.is_strict:
            # The next word is that of the next value; there is none beyond the last.
            valid &= words != EVERY_WORD[0 if limit.is_upper else 1]
            words = words - np.uint64(1) if limit.is_upper else words + np.uint64(1)
        if limit.is_upper:
            np.minimum(highs, words, out=highs)
        else:
            np.maximum(lows, words, out=lows)
        if values.null_count:
            valid &= values.is_valid().to_numpy(zero_copy_only=False)
    return lows, highs, valid


def _shifted(plain: npt.NDArray[Any], limit: Limit) -> npt.NDArray[Any]:
    """Bounds of a term from those of the term with something added to it, never tighter than they are.

    Integers stop at the least and the largest one. For floats let fl be rounding, which is monotone: fl(x + c) >= b means
    x + c > b', the float before b, so x lies above the float before fl(b' - c).
    """
    for step in limit.steps:
        if plain.dtype == np.float64:
            outwards = np.inf if limit.is_upper else -np.inf
            with np.errstate(over="ignore"):
                plain = np.nextafter(np.nextafter(plain, outwards) - step, outwards)
        elif step >= 0:
            plain = np.maximum(plain, LEAST + int(step)) - int(step)
        else:
            plain = np.minimum(plain, LARGEST + int(step)) - int(step)
    return plain


def keyed_words(hashes: Words, words: Words, type: pa.DataType) -> Words:
    """Words by which rows are in order of the first bits of a hash, and among these of a value, whose ordered word is given:
    not of all of it, but never against its order."""
    if pa.types.is_floating(type):
        # Rounded up: so a round number is apart from all that is above it, zero most of all.
        narrow = (np.minimum(words, ~ROUNDED_OFF) + ROUNDED_OFF) >> np.uint64(64 - VALUE_BITS)
    else:
        whole = (words ^ SIGN).view(np.int64)
        if pa.types.is_timestamp(type):
            whole = whole >> TIME_BITS
        half = 1 << (VALUE_BITS - 1)
        narrow = (np.clip(whole, -half, half - 1) + half).view(np.uint64)
    return (hashes >> np.uint64(VALUE_BITS) << np.uint64(VALUE_BITS)) | narrow


def may_wrap(between: Range, least: int, largest: int) -> bool:
    """Whether among terms with words in [least, largest] there are integers that wrap when shifts are added."""
    return between.margin > 0 and (least < between.margin or largest > int(EVERY_WORD[1]) - between.margin)


def sort_by_word(words: Words, positions: Times, starts: Times, ends: Times) -> Words:
    """Rows in sorted form, by words that may lie close together: they are stretched over all 64 bits for sorting, as it
    takes their first bits to spread rows evenly. `positions` may be empty: then row i has position i."""
    if not len(words):
        return np.empty((0, SORTED_WORDS), np.uint64)
    least = words.min()
    unused = np.uint64(min(64 - int(words.max() - least).bit_length(), 63))
    rows: Words = sort_by_hash((words - least) << unused, positions, starts, ends)
    rows[:, 0] = (rows[:, 0] >> unused) + least
    return rows
