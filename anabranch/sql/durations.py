"""Lengths of time: `10 SECONDS`, `1.5 hours`, in microseconds."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from anabranch.errors import SyntaxSqlError
from anabranch.plan.query import FOREVER_US
from anabranch.sql.text import SqlText

UNITS_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
}

UNIT_HINT = "write a number and one of MICROSECONDS, MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS"

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


def parse_duration(text: str) -> int:
    """The same for callers outside of SQL, with the errors of the language.

    >>> parse_duration("5 seconds")
    5000000
    """
    try:
        return words_us(text)
    except BadDurationError as error:
        raise SqlText(text).error(SyntaxSqlError, str(error), 0, UNIT_HINT) from None
