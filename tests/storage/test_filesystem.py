from __future__ import annotations

import gc
import os
import pickle
import time
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from anabranch.storage import filesystem as module
from anabranch.storage.filesystem import ArrowFilesystem, LocalFilesystem, MemoryFilesystem, byte_view

IMPLEMENTATIONS = {
    "local": lambda root: LocalFilesystem(f"{root}/deep/root"),
    "local-fsync": lambda root: LocalFilesystem(f"{root}/deep/root", fsync=True),
    "arrow-local": lambda root: ArrowFilesystem(pafs.LocalFileSystem(), f"{root}/deep/root"),
    "arrow-mmap": lambda root: ArrowFilesystem(pafs.LocalFileSystem(use_mmap=True), f"{root}/root/"),
    "arrow-subtree": lambda root: ArrowFilesystem(pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())),
    "arrow-mock": lambda root: ArrowFilesystem(pafs._MockFileSystem(datetime.now(UTC)), "root"),
    "memory": lambda root: MemoryFilesystem(),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def disk(request, tmp_path):
    return IMPLEMENTATIONS[request.param](tmp_path)


@pytest.fixture(params=[name for name in IMPLEMENTATIONS if name not in ("arrow-mock", "memory")])
def disk_with_folder(request, tmp_path):
    return IMPLEMENTATIONS[request.param](tmp_path), tmp_path


def temporaries(root):
    return [path for path in root.rglob("*") if path.name.startswith(module.UNFINISHED_PREFIX)]


def test_put_concatenates_every_kind_of_part(disk):
    times = np.array([1, 2], dtype="datetime64[us]")
    square = np.arange(6, dtype=np.int32).reshape(2, 3)
    parts = [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], pa.py_buffer(b"d"), times, square, np.array([True, False])]
    disk.put("f/g/h", parts)
    assert disk.get("f/g/h").to_pybytes() == b"abcd" + times.tobytes() + square.tobytes() + b"\x01\x00"


@pytest.mark.parametrize("parts", [[], [b""], [b"", np.empty((0, 3)), pa.py_buffer(b""), memoryview(b"")]])
def test_empty_file(disk, parts):
    disk.put("f/a", parts)
    content = disk.get("f/a")
    assert content.size == 0
    assert content.to_pybytes() == b""
    assert disk.list("f") == ["a"]


def test_parts_that_are_not_contiguous_are_refused_and_leave_nothing(disk):
    with pytest.raises(ValueError, match="not contiguous"):
        disk.put("f/a", [b"before", np.arange(10)[::2]])
    assert disk.list("f") == []
    assert disk.unfinished("f") == []


def test_get_of_nothing(disk):
    with pytest.raises(FileNotFoundError):
        disk.get("a")
    with pytest.raises(FileNotFoundError):
        disk.get("no/folder/a")


def test_put_replaces_and_what_was_read_before_stays(disk):
    disk.put("f/a", [b"old" * 5000])
    before = disk.get("f/a")
    disk.put("f/a", [b"new"])
    assert disk.get("f/a").to_pybytes() == b"new"
    assert before.to_pybytes() == b"old" * 5000


def test_what_was_read_survives_delete(disk):
    disk.put("a", [np.arange(10_000)])
    array = np.frombuffer(disk.get("a"), dtype=np.int64)
    disk.delete("a")
    gc.collect()
    assert array.sum() == 10_000 * 9_999 // 2


def test_list_is_sorted_and_flat(disk):
    for path in ("f/b", "f/a", "f/g/c", "fa/d", "e"):
        disk.put(path, [b"x"])
    assert disk.list("f") == ["a", "b"]
    assert disk.list("f/g") == ["c"]
    assert disk.list("") == ["e"]
    assert disk.list("absent") == []
    assert disk.unfinished("absent") == []


def test_endings_do_not_compress(disk):
    disk.put("a.gz", [b"plain"])
    assert disk.get("a.gz").to_pybytes() == b"plain"


def test_delete(disk):
    disk.put("f/a", [b"x"])
    disk.delete("f/a")
    disk.delete("f/a")
    disk.delete("no/folder/a")
    assert disk.list("f") == []


def test_age(disk):
    disk.put("f/a", [b"x"])
    assert 0 <= disk.age_s("f/a") < 60
    with pytest.raises(FileNotFoundError):
        disk.age_s("f/b")


def test_age_of_an_old_file(disk_with_folder):
    disk, folder = disk_with_folder
    disk.put("f/a", [b"x"])
    (path,) = folder.rglob("a")
    os.utime(path, (time.time() - 1000, time.time() - 1000))
    assert 990 < disk.age_s("f/a") < 1100


def test_memory_takes_the_clock_of_a_simulation():
    now = [0.0]
    disk = MemoryFilesystem(clock=lambda: now[0])
    disk.put("a", [b"x"])
    now[0] = 7.5
    assert disk.age_s("a") == 7.5


def test_temporary_names_are_hidden_but_found(disk_with_folder):
    disk, folder = disk_with_folder
    disk.put("f/a", [b"x"])
    (path,) = folder.rglob("a")
    (path.parent / ".put-killed").write_bytes(b"half")
    assert disk.list("f") == ["a"]
    assert disk.unfinished("f") == [".put-killed"]
    disk.delete("f/.put-killed")
    assert disk.unfinished("f") == []


def test_a_put_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    disk = LocalFilesystem(str(tmp_path))
    disk.put("a", [b"old"])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space"):
        disk.put("a", [b"new"])
    assert disk.get("a").to_pybytes() == b"old"
    assert temporaries(tmp_path) == []


def test_more_parts_than_one_call_takes(disk):
    parts = [np.full(i % 7, i, dtype=np.int64) for i in range(5000)]
    disk.put("a", parts)
    assert disk.get("a").to_pybytes() == b"".join(part.tobytes() for part in parts)


def test_calls_that_write_less_than_offered(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "writev", lambda descriptor, views: os.write(descriptor, b"".join(views)[:5]))
    disk = LocalFilesystem(str(tmp_path))
    disk.put("a", [b"abc", b"", b"defghijk", b"l", b"m", b"n" * 12])
    assert disk.get("a").to_pybytes() == b"abcdefghijklm" + b"n" * 12


def test_local_files_are_mapped_read_only(tmp_path):
    disk = LocalFilesystem(str(tmp_path))
    disk.put("a", [np.arange(1 << 17)])
    before = pa.total_allocated_bytes()
    content = disk.get("a")
    assert pa.total_allocated_bytes() == before
    assert not np.frombuffer(content, dtype=np.int64).flags.writeable
    assert content.address % 4096 == 0


def test_getting_keeps_no_descriptor(tmp_path):
    disk = LocalFilesystem(str(tmp_path))
    disk.put("a", [b"x"])
    disk.get("a")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    held = [disk.get("a") for _ in range(50)]
    after = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert len(held) == 50
    assert after == before


def test_root_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    disk = LocalFilesystem("root")
    disk.put("a", [b"x"])
    monkeypatch.chdir("/")
    assert disk.get("a").to_pybytes() == b"x"


def test_they_travel_to_workers(disk_with_folder):
    disk, _ = disk_with_folder
    disk.put("a", [b"x"])
    assert pickle.loads(pickle.dumps(disk)).get("a").to_pybytes() == b"x"


def test_object_stores_are_written_without_a_rename(monkeypatch):
    store = pafs._MockFileSystem(datetime.now(UTC))
    monkeypatch.setattr(module, "OBJECT_STORES", frozenset({store.type_name}))
    store.create_dir("bucket")
    disk = ArrowFilesystem(pafs.SubTreeFileSystem("bucket", store))
    monkeypatch.setattr(module, "_temporary_beside", None)
    disk.put("a", [b"x"])
    assert disk.get("a").to_pybytes() == b"x"


def test_byte_view_shares_memory():
    array = np.arange(4)
    view = byte_view(array)
    array[0] = 255
    assert view[0] == 255
    assert view.nbytes == 32
    assert byte_view(pa.py_buffer(array)).nbytes == 32
    assert byte_view(np.float64(1.0).reshape(())).nbytes == 8
