from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.control.table_files import get_table, put_table
from anabranch.engine.log import encode
from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.storage.filesystem import MemoryFilesystem

ROWS = pa.table({"k": list(range(1000)), "name": [f"name {i}" for i in range(1000)]})
PATH = "tables/t.arrow"


@pytest.fixture
def disk() -> MemoryFilesystem:
    disk = MemoryFilesystem()
    put_table(disk, PATH, encode(ROWS.to_batches()[0]))
    return disk


def test_round_trip(disk):
    assert get_table(disk, PATH) == ROWS
    put_table(disk, "tables/none.arrow", encode(ROWS.to_batches()[0].slice(0, 0)))
    assert get_table(disk, "tables/none.arrow") == ROWS.slice(0, 0)


@pytest.mark.parametrize("keep", [0, 5, 30, 500, -100, -1])
def test_a_torn_table_is_noticed(disk, keep):
    """Arrow reads a stream that was cut between two batches as if it were whole."""
    disk.put(PATH, [disk.get(PATH).to_pybytes()[:keep]])
    with pytest.raises(DamagedStateError, match=r"tables/t.arrow"):
        get_table(disk, PATH)


def test_a_flipped_bit_is_noticed(disk):
    content = bytearray(disk.get(PATH).to_pybytes())
    content[len(content) // 2] ^= 4
    disk.put(PATH, [content])
    with pytest.raises(DamagedStateError, match="checksum"):
        get_table(disk, PATH)


def test_missing_or_another(disk):
    with pytest.raises(DamagedStateError, match="missing"):
        get_table(disk, "tables/u.arrow")
    disk.put(PATH, [encode(ROWS.to_batches()[0])])
    with pytest.raises(ForeignStateError):
        get_table(disk, PATH)
