from __future__ import annotations

import os
import time

import pytest

from anabranch.control.sweep import state_prefix, sweep
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def log(batch):
    return f"{state_prefix('log', batch, 'a1')}.rows"


def names(*batches):
    return [log(batch).removeprefix("log/") for batch in batches]


@pytest.fixture
def disk(clock):
    disk = MemoryFilesystem(clock)
    for number in range(4):
        clock.now = float(number)
        disk.put(log(number), [b"x"])
    return disk


def test_deletes_what_is_unnamed_and_old(disk, clock):
    clock.now = 10.0
    assert sweep(disk, "log", {log(0), "log/absent"}, grace_s=8.0) == 2
    assert disk.list("log") == names(0, 3)
    assert sweep(disk, "log", {log(0)}, grace_s=8.0) == 0


def test_nobody_named_and_no_grace(disk):
    assert sweep(disk, "log", [], grace_s=0.0) == 4
    assert sweep(disk, "absent", [], grace_s=0.0) == 0


def test_only_files_of_earlier_batches(disk):
    assert sweep(disk, "log", {log(1)}, grace_s=0.0, before=3) == 2
    assert disk.list("log") == names(1, 3)


@pytest.mark.parametrize("before", [None, 100])
def test_files_that_are_not_ours_stay(disk, clock, before):
    clock.now = 1e6
    foreign = ["README", "7-notes.txt", "abc-0.log", "0000000001", "٠٠٠٠٠٠٠٠٠١-x.log"]
    for name in foreign:
        disk.put(f"log/{name}", [b"x"])
    assert sweep(disk, "log", [], grace_s=0.0, before=before) == 4
    assert disk.list("log") == sorted(foreign)


def test_other_folders_are_left_alone(disk):
    (name,) = names(1)
    for folder in ("log/deeper/", "logs/", ""):
        disk.put(folder + name, [b"x"])
    sweep(disk, "log", [], grace_s=0.0)
    assert (disk.list("log/deeper"), disk.list("logs"), disk.list("")) == ([name], [name], [name])
    assert sweep(disk, "", {name}, grace_s=0.0) == 0


def test_a_file_that_vanishes_meanwhile(disk, monkeypatch):
    monkeypatch.setattr(disk, "list", lambda directory: names(0, 9, 1))
    assert sweep(disk, "log", [], grace_s=0.001) == 2


def test_what_killed_writers_left(tmp_path):
    disk = LocalFilesystem(str(tmp_path))
    disk.put(log(0), [b"x"])
    for name, age_s in ((".put-old", 1000), (".put-young", 0)):
        path = tmp_path / "log" / name
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert sweep(disk, "log", {log(0)}, grace_s=100.0) == 1
    assert sorted(os.listdir(tmp_path / "log")) == [".put-young", *names(0)]
