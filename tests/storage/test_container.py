from __future__ import annotations

import gc

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.storage.container import HEADER, ContainerReader, ContainerWriter, Segment
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem
from anabranch.storage.record import FORMAT_VERSION, seal
from tests.support.faulty import FaultyFilesystem


@pytest.fixture
def disk(tmp_path):
    return FaultyFilesystem(LocalFilesystem(str(tmp_path)))


def written(disk, *buffers, path="log/a"):
    writer = ContainerWriter(path)
    segments = [writer.add(buffer) for buffer in buffers]
    writer.write(disk)
    return segments


@given(st.lists(st.lists(st.binary(max_size=200), max_size=4), min_size=1, max_size=8))
def test_what_was_added_is_read(groups):
    disk, writer = MemoryFilesystem(), ContainerWriter("log/a")
    segments = [writer.add(group[0]) if len(group) == 1 else writer.add_many(group) for group in groups]
    writer.write(disk)
    reader = ContainerReader(disk)
    assert [reader.segment(segment).to_pybytes() for segment in segments] == [b"".join(group) for group in groups]
    assert all(segment.offset % 64 == 0 for segment in segments)
    assert disk.get("log/a").size == writer.size_bytes


def test_add_and_add_many_agree_on_the_checksum():
    array = np.arange(1000)
    one, many = ContainerWriter("a").add(array), ContainerWriter("a").add_many([array[:10], array[10:400], array[400:]])
    assert one == many


def test_arrays_of_every_kind_come_back_aligned(disk):
    arrays = [np.arange(3), np.empty(0), np.ones((2, 5)), np.array([1], dtype="datetime64[us]"), np.array([True])]
    segments = written(disk, *arrays, pa.py_buffer(b"arrow"))
    reader = ContainerReader(disk)
    for array, segment in zip(arrays, segments, strict=False):
        buffer = reader.segment(segment)
        assert buffer.address % 64 == 0
        assert np.array_equal(np.frombuffer(buffer, dtype=np.uint8), array.reshape(-1).view(np.uint8))
    assert reader.segment(segments[-1]).to_pybytes() == b"arrow"


def test_add_copies_nothing():
    array = np.zeros(1 << 16)
    writer = ContainerWriter("a")
    writer.add(array)
    assert np.shares_memory(np.frombuffer(writer._parts[-1]), array)


def test_segments_are_slices_of_one_mapping(disk):
    first, second = written(disk, bytes(100), bytes(100))
    reader = ContainerReader(disk)
    assert reader.segment(second).address - reader.segment(first).address == 128
    assert disk.operations == 2  # one put, one get


def test_nothing_added_nothing_written(disk):
    writer = ContainerWriter("log/a")
    writer.write(disk)
    assert writer.size_bytes == 0
    assert disk.puts == []


def test_only_empty_segments_make_a_file(disk):
    (segment,) = written(disk, b"")
    assert ContainerReader(disk).segment(segment).size == 0


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_segments_are_small_hashable_and_take_any_checksum(codec):
    segment = Segment("log/a", 64, 10, 2**64 - 1)
    assert codec.decode(codec.encode(segment), type=Segment) == segment
    assert codec.decode(codec.encode(segment)) == ["log/a", 64, 10, 2**64 - 1]
    assert len({segment, Segment("log/a", 64, 10, 2**64 - 1)}) == 1


def test_missing(disk):
    with pytest.raises(DamagedStateError, match="log/a: it is missing"):
        ContainerReader(disk).segment(Segment("log/a", 64, 1, 0))


def test_changed_in_any_byte_of_a_segment(disk):
    segments = written(disk, b"first", b"second")
    disk.corrupt("log/a", segments[1].offset + 3)
    reader = ContainerReader(disk)
    assert reader.segment(segments[0]).to_pybytes() == b"first"
    for _ in range(2):
        with pytest.raises(DamagedStateError, match="log/a: the checksum"):
            reader.segment(segments[1])


def test_every_prefix_is_damaged(disk):
    (segment,) = written(disk, b"content")
    whole = disk.get("log/a").to_pybytes()
    for length in range(len(whole)):
        disk.put("log/a", [whole[:length]])
        with pytest.raises(DamagedStateError, match="log/a"):
            ContainerReader(disk).segment(segment)


def test_segments_outside_the_file_are_refused(disk):
    (segment,) = written(disk, b"content")
    reader = ContainerReader(disk)
    for offset, length in [(0, 7), (64, 8), (-64, 1), (64, -1), (1 << 40, 0)]:
        with pytest.raises(DamagedStateError):
            reader.segment(Segment(segment.file, offset, length, segment.checksum))


OLDER = HEADER.replace(b" %d " % FORMAT_VERSION, b" 2 ") + b"x"


@pytest.mark.parametrize("content", [b"PAR1" * 50, seal("commit", bytes(200)), OLDER])
def test_foreign(disk, content):
    disk.put("log/a", [content])
    with pytest.raises(ForeignStateError, match="log/a"):
        ContainerReader(disk).segment(Segment("log/a", 64, 1, 0))


def test_verified_once_and_opened_once(disk, monkeypatch):
    (segment,) = written(disk, b"content")
    reader = ContainerReader(disk)
    reader.segment(segment)
    monkeypatch.setattr("anabranch.storage.container.xxhash", None)
    disk.delete("log/a")
    assert reader.segment(segment).to_pybytes() == b"content"


def test_forget_and_retain_close_but_leave_what_was_handed_out(disk):
    segments = [written(disk, name.encode(), path=f"log/{name}")[0] for name in "abc"]
    reader = ContainerReader(disk)
    buffers = [reader.segment(segment) for segment in segments]
    for segment in segments:
        disk.delete(segment.file)
    reader.retain({"log/a", "log/b", "log/never-opened"})
    reader.forget("log/b")
    reader.forget("log/b")
    gc.collect()
    assert [buffer.to_pybytes() for buffer in buffers] == [b"a", b"b", b"c"]
    assert reader.segment(segments[0]).to_pybytes() == b"a"
    for segment in segments[1:]:
        with pytest.raises(DamagedStateError, match="missing"):
            reader.segment(segment)
