from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.storage import cache as module
from anabranch.storage.cache import TRIM_TO, Cache, CachedFilesystem, default_folder
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem


class Counted(MemoryFilesystem):
    """A store that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def get(self, path: str) -> pa.Buffer:
        self.fetched.append(path)
        return super().get(path)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch):
    monkeypatch.setattr(module, "_disks", {})


def cached(inner, folder, most_bytes=1 << 20, name="s3://b/x") -> CachedFilesystem:
    return CachedFilesystem(inner, name, Cache(str(folder), most_bytes))


def another_process(disk: CachedFilesystem) -> CachedFilesystem:
    module._disks.clear()
    return CachedFilesystem(disk.inner, disk.name, disk.cache)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_what_was_fetched_is_not_fetched_again(folder):
    store = Counted()
    store.put("state/0/a", [b"rows"])
    for _ in range(3):
        assert another_process(cached(store, folder)).get("state/0/a").to_pybytes() == b"rows"
    assert store.fetched == ["state/0/a"]


def test_what_was_written_is_not_fetched(folder):
    store = Counted()
    cached(store, folder).put("state/0/a", [b"ro", np.frombuffer(b"ws", np.uint8)])
    assert another_process(cached(store, folder)).get("state/0/a").to_pybytes() == b"rows"
    assert store.fetched == []
    assert store.get("state/0/a").to_pybytes() == b"rows"


def test_parts_may_come_one_by_one(folder):
    disk = cached(Counted(), folder)
    disk.put("state/0/a", iter([b"ro", b"ws"]))
    assert disk.get("state/0/a").to_pybytes() == disk.inner.get("state/0/a").to_pybytes() == b"rows"


@pytest.mark.parametrize("path", ["commit/1", "tables/t.arrow", "id", "lease/x", "staten/a"])
def test_names_that_come_again_are_not_cached(folder, path):
    store = Counted()
    disk, other = cached(store, folder), cached(store, folder)
    disk.put(path, [b"old"])
    assert disk.get(path).to_pybytes() == b"old"
    other.inner.put(path, [b"new"])
    assert disk.get(path).to_pybytes() == b"new"


def test_checkpoints_do_not_see_each_others_files(folder):
    one, two = Counted(), Counted()
    cached(one, folder, name="s3://b/x").put("state/0/a", [b"1"])
    two.put("state/0/a", [b"2"])
    assert cached(two, folder, name="s3://b/y").get("state/0/a").to_pybytes() == b"2"


def test_entries_are_mapped_and_survive_their_deletion(folder):
    disk = cached(LocalFilesystem(str(folder.parent / "store")), folder, 64 << 20)
    disk.put("state/0/a", [np.arange(1 << 17)])
    before = pa.total_allocated_bytes()
    content = disk.get("state/0/a")
    assert pa.total_allocated_bytes() == before
    assert content.address % 64 == 0
    disk.delete("state/0/a")
    gc.collect()
    assert np.frombuffer(content, np.int64).sum() == (1 << 17) * ((1 << 17) - 1) // 2
    assert entries(folder) == []
    with pytest.raises(FileNotFoundError):
        disk.get("state/0/a")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "last", "zeros"])
def test_a_damaged_entry_is_fetched_again(folder, damage):
    store = Counted()
    disk = cached(store, folder)
    disk.put("state/0/a", [b"rows of some length"])
    (path,) = entries(folder)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[3] ^= 1
    elif damage == "last":
        content[-1] ^= 1
    elif damage == "zeros":
        content = bytearray(len(content))
    else:
        del content[0 if damage == "empty" else -5 :]
    path.write_bytes(content)
    for _ in range(2):
        assert disk.get("state/0/a").to_pybytes() == b"rows of some length"
    assert store.fetched == ["state/0/a"]


def test_a_write_that_fails_is_not_cached(folder, monkeypatch):
    store = Counted()
    disk = cached(store, folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "put", full)
    with pytest.raises(OSError, match="No space"):
        disk.put("state/0/a", [b"rows"])
    assert not folder.exists() or entries(folder) == []


def test_a_full_disk_is_no_cache(folder, monkeypatch):
    store = Counted()
    disk = cached(store, folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    disk.put("state/0/a", [b"rows"])
    assert [disk.get("state/0/a").to_pybytes() for _ in range(2)] == [b"rows", b"rows"]
    assert store.fetched == ["state/0/a"] * 2
    assert entries(folder) == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_is_not_used(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    disk = cached(Counted(), folder)
    disk.put("state/0/a", [b"rows"])
    assert disk.get("state/0/a").to_pybytes() == b"rows"
    assert entries(folder) == []


def test_a_link_is_not_used(folder):
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")
    disk = cached(Counted(), folder)
    disk.put("state/0/a", [b"rows"])
    assert disk.get("state/0/a").to_pybytes() == b"rows"
    assert entries(folder) == []


def test_the_folder_is_its_owners_alone(folder):
    cached(Counted(), folder).put("state/0/a", [b"rows"])
    (entry,) = entries(folder)
    assert folder.stat().st_mode & 0o077 == 0
    assert entry.stat().st_mode & 0o077 == 0


def test_it_has_a_bound_and_keeps_what_was_asked_for_last(folder):
    disk = cached(Counted(), folder, most_bytes=100_000)
    for number in range(200):
        disk.put(f"state/0/{number}", [bytes(1000)])
        for path in entries(folder):  # clocks of filesystems are coarse
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1))
        disk.get("state/0/0")
        assert sum(path.stat().st_size for path in entries(folder)) <= 100_000
    disk.get("state/0/199")
    assert disk.inner.fetched == []
    disk.get("state/0/5")
    assert disk.inner.fetched == ["state/0/5"]


def test_one_file_does_not_push_out_the_others(folder):
    disk = cached(Counted(), folder, most_bytes=100_000)
    disk.put("state/0/a", [b"rows"])
    disk.put("state/0/large", [bytes(90_000)])
    assert disk.get("state/0/large").size == 90_000
    disk.get("state/0/a")
    assert disk.inner.fetched == ["state/0/large"]


def test_none_at_all(folder):
    disk = cached(Counted(), folder, most_bytes=0)
    disk.put("state/0/a", [b"rows"])
    assert disk.get("state/0/a").to_pybytes() == b"rows"
    assert not folder.exists()


def test_what_dead_writers_left_goes(folder):
    disk = cached(Counted(), folder)
    disk.put("state/0/a", [b"rows"])
    old, young = folder / ".new-old", folder / ".new-young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (time.time() - 10_000,) * 2)
    another_process(disk).get("state/0/a")
    assert not old.exists()
    assert young.exists()


def _use(disk: CachedFilesystem, seed: int) -> int:
    rng, wrong = random.Random(seed), 0
    for _ in range(300):
        number = rng.randrange(60)
        wrong += disk.get(f"state/0/{number}").to_pybytes() != bytes([number]) * 1000
    return wrong


def test_processes_share_it(folder, tmp_path):
    """Each fetches, adds and trims at the same time as the others."""
    store = LocalFilesystem(str(tmp_path / "store"))
    for number in range(60):
        store.put(f"state/0/{number}", [bytes([number]) * 1000])
    disk = pickle.loads(pickle.dumps(cached(store, folder, most_bytes=30_000)))
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        assert sum(pool.map(_use, [disk] * 4, range(4))) == 0
    assert sum(path.stat().st_size for path in entries(folder)) <= 30_000
    assert not [path for path in entries(folder) if path.name.startswith(".")]


def test_the_default_folder_is_a_users_own():
    assert str(os.getuid()) in default_folder()
    assert TRIM_TO < 1
