"""What becomes of new rows: which of them an index holds, and in which order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch.engine.arrival import order_keys


@pytest.mark.parametrize("is_ordered", [False, True])
def test_rows_whose_key_has_a_null_are_in_no_index(is_ordered: bool) -> None:
    """NULL meets nothing: the word under a NULL, 0 here as in the row before it, must not be found."""
    first, second = pa.array([0, None, 2, 3], pa.int64()), pa.array([5, 6, None, 8], pa.int64())
    positions, starts = np.arange(4), np.arange(4)
    ordered = order_keys(is_ordered, [first, second], positions, starts, starts + 10)
    assert sorted(ordered[:, 1].tolist()) == [0, 3]
