"""Rows with equal keys get one number."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.engine.key_numbers import KeyNumbers

KEYS: list[tuple[pa.DataType, Any]] = [
    (pa.int16(), 0), (pa.int64(), 0), (pa.float32(), 0.0), (pa.float64(), 0.0), (pa.bool_(), False), (pa.string(), ""),
    (pa.binary(), b""), (pa.decimal128(9, 2), Decimal("0.00")), (pa.decimal128(38, 38), Decimal("0E-38")),
    (pa.date32(), date(1970, 1, 1)), (pa.timestamp("us"), datetime(1970, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "zero"), KEYS, ids=[str(t) for t, _ in KEYS])
def test_null_is_a_key_of_its_own(type_: pa.DataType, zero: Any) -> None:
    known = KeyNumbers([type_])
    ids = known.numbers([pa.array([zero, None, zero, None], type_)], 4)
    assert ids.tolist() == [0, 1, 0, 1]
    assert known.keys[0].to_pylist() == [zero, None]
