from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.storage.filesystem import Filesystem, LocalFilesystem, MemoryFilesystem
from tests.support.faulty import Crash, Fault, FaultyFilesystem


@pytest.fixture(params=[lambda path: MemoryFilesystem(), LocalFilesystem], ids=["memory", "local"])
def inner(request: pytest.FixtureRequest, tmp_path) -> Filesystem:
    make: Callable[[str], Filesystem] = request.param
    return make(str(tmp_path))


def content(disk: Filesystem, path: str) -> bytes:
    return disk.get(path).to_pybytes()


def test_no_plan_no_fault(inner):
    disk = FaultyFilesystem(inner)
    disk.put("f/a", [b"1", b"2"])
    assert content(disk, "f/a") == b"12"
    assert disk.list("f") == ["a"]
    assert disk.unfinished("f") == []
    assert disk.age_s("f/a") < 60
    disk.delete("f/a")
    assert disk.list("f") == []
    assert disk.puts == ["f/a"]


def test_lose_leaves_what_was_there(inner):
    disk = FaultyFilesystem(inner, {0: Fault("lose"), 2: Fault("lose")})
    with pytest.raises(Crash):
        disk.put("a", [b"1"])
    assert disk.list("") == []
    disk.put("a", [b"2"])
    with pytest.raises(Crash):
        disk.put("a", [b"3"])
    assert content(disk, "a") == b"2"


@pytest.mark.parametrize(("keep", "left"), [(None, b"abc"), (0, b""), (1, b"a"), (6, b"abcdef")])
def test_tear_leaves_a_prefix(inner, keep, left):
    disk = FaultyFilesystem(inner, {0: Fault("tear", keep=keep)})
    with pytest.raises(Crash):
        disk.put("a", [b"abcd", b"ef"])
    assert content(disk, "a") == left


def test_crash_after_leaves_all(inner):
    disk = FaultyFilesystem(inner, {0: Fault("crash_after")})
    with pytest.raises(Crash):
        disk.put("a", [b"1"])
    assert content(disk, "a") == b"1"


def test_delay_hides_from_exactly_the_operations_it_says(inner):
    disk = FaultyFilesystem(inner, {0: Fault("delay", after=2)})
    disk.put("a", [b"1"])
    with pytest.raises(FileNotFoundError):
        disk.get("a")
    assert disk.list("") == []
    assert content(disk, "a") == b"1"


def test_delay_ends_with_settle(inner):
    disk = FaultyFilesystem(inner, {0: Fault("delay", after=100)})
    disk.put("a", [b"1"])
    disk.settle()
    assert content(disk, "a") == b"1"


def test_repeat_overwrites_what_came_after(inner):
    disk = FaultyFilesystem(inner, {0: Fault("repeat", after=2)})
    disk.put("a", [b"old"])
    disk.put("a", [b"new"])
    assert content(disk, "a") == b"new"
    assert content(disk, "a") == b"old"
    disk.put("a", [b"newer"])
    disk.settle()
    assert content(disk, "a") == b"newer"


def test_pending_bytes_are_those_of_the_put(inner):
    disk = FaultyFilesystem(inner, {0: Fault("delay")})
    array = bytearray(b"1")
    disk.put("a", [array])
    array[0] = ord("2")
    disk.settle()
    assert content(disk, "a") == b"1"


def test_corrupt_flips_one_byte(inner):
    disk = FaultyFilesystem(inner)
    disk.put("a", [b"\x00\x01\x02"])
    disk.corrupt("a", 1)
    assert content(disk, "a") == b"\x00\xfe\x02"
    disk.corrupt("a")
    assert content(disk, "a") == b"\x00\xfe\xfd"
    assert disk.puts == ["a"]
