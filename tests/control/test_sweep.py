from __future__ import annotations

import os
import time

import pytest

from anabranch.control.sweep import sweep
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def disk(clock):
    disk = MemoryFilesystem(clock)
    for number in range(4):
        clock.now = float(number)
        disk.put(f"log/{number}", [b"x"])
    return disk


def test_deletes_what_is_unnamed_and_old(disk, clock):
    clock.now = 10.0
    assert sweep(disk, "log", {"log/0", "log/absent"}, grace_s=8.0) == 2
    assert disk.list("log") == ["0", "3"]
    assert sweep(disk, "log", {"log/0"}, grace_s=8.0) == 0


def test_nobody_named_and_no_grace(disk):
    assert sweep(disk, "log", [], grace_s=0.0) == 4
    assert sweep(disk, "absent", [], grace_s=0.0) == 0


def test_other_folders_are_left_alone(disk):
    disk.put("log/deeper/a", [b"x"])
    disk.put("logs/a", [b"x"])
    disk.put("a", [b"x"])
    sweep(disk, "log", [], grace_s=0.0)
    assert (disk.list("log/deeper"), disk.list("logs"), disk.list("")) == (["a"], ["a"], ["a"])
    assert sweep(disk, "", {"a"}, grace_s=0.0) == 0


def test_a_file_that_vanishes_meanwhile(disk, monkeypatch):
    monkeypatch.setattr(disk, "list", lambda directory: ["0", "gone", "1"])
    assert sweep(disk, "log", [], grace_s=0.0) == 2


def test_what_killed_writers_left(tmp_path):
    disk = LocalFilesystem(str(tmp_path))
    disk.put("log/a", [b"x"])
    for name, age_s in ((".put-old", 1000), (".put-young", 0)):
        path = tmp_path / "log" / name
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert sweep(disk, "log", {"log/a"}, grace_s=100.0) == 1
    assert sorted(os.listdir(tmp_path / "log")) == [".put-young", "a"]
