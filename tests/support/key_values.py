"""Values of all types that keys may have, drawn at random."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

NAN = math.nan


def integers(bits):
    edge = 2 ** (bits - 1)
    return st.integers(-edge, edge - 1) | st.sampled_from([0, 1, -1, edge - 1, -edge])


def decimals(precision, scale):
    top = 10**precision - 1
    # Digits moved by hand: the context of the decimal module would round 38 of them.
    return (st.integers(-top, top) | st.sampled_from([0, -1, 1, top, -top])).map(
        lambda digits: Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))
    )


VALUES = {
    pa.int8(): integers(8),
    pa.int16(): integers(16),
    pa.int32(): integers(32),
    pa.int64(): integers(64),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, NAN, math.inf]),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, NAN, math.inf, 5e-324]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us"): st.datetimes(datetime(1, 1, 2), datetime(9999, 1, 1)),
    pa.duration("us"): st.timedeltas(timedelta(-1000), timedelta(1000)),
    pa.decimal128(4, 2): decimals(4, 2),
    pa.decimal128(18, 0): decimals(18, 0),
    pa.decimal128(19, 0): decimals(19, 0),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.string(): st.text(max_size=20) | st.sampled_from(["", "a", "\0", "é", "a" * 8, "a" * 9]),
    pa.binary(): st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"\0\0", b"\0" * 8]),
}


def same(left, right):
    """Equality as joins mean it: NaN equals NaN, and 0.0 equals -0.0."""
    return left == right or (isinstance(left, float) and isinstance(right, float) and left != left and right != right)
