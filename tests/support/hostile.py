"""Values on which two systems are likely to differ, by type, as columns in which any two of them meet somewhere."""

from __future__ import annotations

import struct
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

DECIMAL = pa.decimal128(10, 2)
FLOATS = [0.0, -0.0, 1.5, -2.25, 2.5, float("nan"), float("inf"), float("-inf"), 3e38, 1e-45, 0.1]
HOSTILE: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{kind: [0, 1, -1, 7, 2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1))]
       for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.float32(): FLOATS,
    pa.float64(): [*FLOATS, 1.7976931348623157e308, 5e-324, 2.0**53 + 1],
    pa.string(): ["", " ", "  a ", "it's", '"', "a\0b", "\0", "é", "e\u0301", "🤦🏼‍♂️", "%_\\", "a%", "Z", "a" * 300, "\n\t",
                  "12", "1.5", "true", "2024-01-31", "ß", "İ"],
    pa.binary(): [b"", b"\0", b"\xff\xfe", b"it's", b"\\x41"],
    pa.date32(): [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(2000, 2, 29), date(1969, 12, 31)],
    pa.timestamp("us"): [datetime(1970, 1, 1), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
                         datetime(1969, 12, 31, 23, 59, 59, 999999), 2**63 - 1, -(2**63) + 1, 2**62],
    DECIMAL: [Decimal("0.00"), Decimal("-0.01"), Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("1.10")],
}  # fmt: skip


def column_of(kind: pa.DataType, count: int, seed: int) -> pa.Array:
    """Hostile values of a type, NULLs among them, in some order."""
    values = [*HOSTILE[kind], None]
    drawn = [values[n] for n in np.random.default_rng(seed).integers(0, len(values), count)]
    if not pa.types.is_timestamp(kind):
        return pa.array(drawn, kind)
    # The ends of its range are no times to Python.
    numbers = [v if v is None or isinstance(v, int) else pa.scalar(v, kind).cast(pa.int64()).as_py() for v in drawn]
    return pa.array(numbers, pa.int64()).cast(kind)


def bits(array: pa.Array) -> list[Any]:
    """Values to the bit; all NaNs are one."""
    if pa.types.is_floating(array.type):
        return [None if v is None else "nan" if v != v else struct.pack("d", v) for v in array.to_pylist()]
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return list(array.to_pylist())
