"""Lengths of time: `10 SECONDS`, `1.5 hours`, in microseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal, InvalidOperation

from anabranch.errors import SessionError, did_you_mean
from anabranch.plan.query import FOREVER_US

UNITS_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
}

UNIT_HINT = "write a number and one of MICROSECONDS, MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS"

SHORT_UNITS = {
    "us": "MICROSECOND", "µs": "MICROSECOND", "ms": "MILLISECOND",
    "s": "SECOND", "sec": "SECOND", "secs": "SECOND",
    "m": "MINUTE", "min": "MINUTE", "mins": "MINUTE",
    "h": "HOUR", "hr": "HOUR", "hrs": "HOUR", "d": "DAY",
}  # fmt: skip
"""What may be written outside of SQL, too."""

GIVEN_HINT = 'write it like "5 seconds", "5s", "5 min" or "2h", or give a timedelta'

LONGEST_US = FOREVER_US // 16
"""No length may be above this (18,000 years), so that a time plus a length stays far from the end of int64."""


class BadDurationError(ValueError):
    """Not a length of time; the caller knows the place in the text."""


def unit_us(word: str) -> int | None:
    """The microseconds of a unit, in singular or plural, or None.

    >>> unit_us("seconds"), unit_us("Second"), unit_us("month")
    (1000000, 1000000, None)
    """
    upper = word.upper()
    return UNITS_US.get(upper) or UNITS_US.get(upper.removesuffix("S"))


def length_us(number: str, unit: str) -> int:
    """The microseconds of a number of units.

    >>> length_us("1.5", "milliseconds")
    1500
    """
    scale = unit_us(unit)
    if scale is None:
        raise BadDurationError(f"{unit} is not a unit of time")
    try:
        exact = Decimal(number) * scale
    except InvalidOperation:
        raise BadDurationError(f"{number} is not a number") from None
    if not exact.is_finite() or not 0 <= exact <= LONGEST_US:
        raise BadDurationError(f"{number} {unit} is out of range")
    if exact != int(exact):
        raise BadDurationError(f"{number} {unit} is not a whole number of microseconds")
    return int(exact)


def words_us(text: str) -> int:
    """The microseconds of a text such as `1 hour 30 minutes`.

    >>> words_us("1 hour 30 minutes")
    5400000000
    """
    words = text.split()
    if not words or len(words) % 2:
        raise BadDurationError(f"{text!r} is not a length of time")
    total = sum(length_us(number, unit) for number, unit in zip(words[::2], words[1::2], strict=True))
    if total > LONGEST_US:
        raise BadDurationError(f"{text!r} is out of range")
    return total


def parse_duration(given: object, what: str = "a length of time") -> int:
    """The microseconds of a length of time that was given outside of SQL: `5 seconds`, `5s`, `1 h 30 min`, a timedelta.
    `what` names it in errors.

    >>> parse_duration("5 seconds"), parse_duration("1h 30min") == parse_duration(timedelta(hours=1.5))
    (5000000, True)
    """
    if isinstance(given, timedelta):
        length_us = given // timedelta(microseconds=1)
        if 0 <= length_us <= LONGEST_US:
            return length_us
        raise SessionError(f"{what}: {given} is out of range: give a length of 0 or more, and of at most 18,000 years")
    if not isinstance(given, str):
        raise SessionError(f"{what}: {given!r} is no length of time: {GIVEN_HINT}")
    words = []
    for number, unit in _pairs(given, what):
        words += [number, unit if unit_us(unit) else SHORT_UNITS.get(unit.lower(), unit)]
    try:
        return words_us(" ".join(words))
    except BadDurationError as error:
        hint = did_you_mean(words[1], [*UNITS_US, *(f"{unit}S" for unit in UNITS_US)]).lower() if len(words) == 2 else ""
        raise SessionError(f"{what}: {error}: {hint or GIVEN_HINT}") from None


def _pairs(text: str, what: str) -> list[tuple[str, str]]:
    """The numbers of a text, each with its unit."""
    if re.match(r"\s*-", text):
        raise SessionError(f"{what}: {text!r} is negative: give a length of 0 or more")
    if not re.fullmatch(r"\s*(?:[0-9.]+\s*[^\W\d_]+\s*)+", text):
        raise SessionError(f"{what}: {text!r} is no length of time: {GIVEN_HINT}")
    return re.findall(r"([0-9.]+)\s*([^\W\d_]+)", text)
