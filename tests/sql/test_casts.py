"""What CAST takes is what the engine can cast."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from anabranch.engine.casts import UnsupportedOperationError, cast
from anabranch.sql.types import SIMPLE_TYPES, castable, spell

TYPES = sorted({*SIMPLE_TYPES.values(), pa.decimal128(10, 2), pa.decimal128(38, 38), pa.list_(pa.int32())}, key=str)


@pytest.mark.parametrize(("source", "target"), list(product(TYPES, TYPES)), ids=spell)
def test_casts_of_the_language_are_those_of_the_engine(source: pa.DataType, target: pa.DataType) -> None:
    try:
        engine_can = cast(pa.nulls(1, source), target).type == target
    except UnsupportedOperationError:
        engine_can = False
    assert castable(source, target) == engine_can
