"""Lengths of time and windows, as a user would write them."""

from __future__ import annotations

from datetime import UTC, datetime

from anabranch.plan.query import Input, Stream

_UNITS_US = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))


def length_text(length_us: int) -> str:
    """A length of time in the largest unit that fits.

    >>> length_text(90_000_000), length_text(1_000_000), length_text(1500), length_text(1)
    ('90 seconds', '1 second', '1500 microseconds', '1 microsecond')
    """
    unit, size = next(((unit, size) for unit, size in _UNITS_US if length_us % size == 0), ("microsecond", 1))
    count = length_us // size
    return f"{count} {unit}{'s' if count != 1 else ''}"


def instant_text(us: int) -> str:
    """An event time.

    >>> instant_text(1_500_000)
    '1970-01-01 00:00:01.500000 UTC'
    """
    return f"{datetime.fromtimestamp(us / 1e6, UTC).replace(microsecond=us % 1_000_000, tzinfo=None)} UTC"


def window_text(i: Input) -> str:
    """The window of an input.

    >>> from anabranch.plan.query import Table, range_window
    >>> window_text(Input("a", Table("t", ()), range_window(90_000_000)))
    'RANGE 90 SECONDS'
    """
    fresh = f" FRESHNESS {length_text(i.freshness_us).upper()}" if i.freshness_us is not None else ""
    if i.window.kind != "range":
        return (i.window.kind.upper() if isinstance(i.source, Stream) else "STORED") + fresh
    return f"RANGE {length_text(i.window.length_us).upper()}{fresh}"
