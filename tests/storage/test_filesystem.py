from __future__ import annotations

import gc
import os
import pickle
import stat
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from anabranch.storage import filesystem as module
from anabranch.storage.filesystem import (
    ArrowFilesystem,
    LocalFilesystem,
    MemoryFilesystem,
    byte_view,
    make_private_folder,
)
from anabranch.storage.location import located

IMPLEMENTATIONS = {
    "local": lambda root: LocalFilesystem(f"{root}/deep/root"),
    "local-fsync": lambda root: LocalFilesystem(f"{root}/deep/root", fsync=True),
    "arrow-local": lambda root: ArrowFilesystem(pafs.LocalFileSystem(), f"{root}/deep/root"),
    "arrow-mmap": lambda root: ArrowFilesystem(pafs.LocalFileSystem(use_mmap=True), f"{root}/root/"),
    "arrow-subtree": lambda root: ArrowFilesystem(pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())),
    "arrow-mock": lambda root: ArrowFilesystem(pafs._MockFileSystem(datetime.now(UTC)), "root"),
    "memory": lambda root: MemoryFilesystem(),
}


@pytest.fixture(params=[*IMPLEMENTATIONS, "s3"])
def disk(request, tmp_path):
    if request.param == "s3":
        return located(request.getfixturevalue("bucket").uri("deep/root"))
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


def test_parts_of_an_iterator_are_written_as_they_come(disk, monkeypatch):
    """What is written is not kept for those that come after it; but for the first, on an object store."""
    monkeypatch.setattr(module, "GATHERED_BYTES", 0)
    given, alive = [], []

    def parts():
        for number in range(5):
            gc.collect()
            alive.append(sum(part() is not None for part in given))
            part = np.full(100_000, number, np.uint8)
            given.append(weakref.ref(part))
            yield part
            del part

    disk.put("f/g/h", parts())
    assert disk.get("f/g/h").to_pybytes() == b"".join(bytes([number]) * 100_000 for number in range(5))
    assert max(alive) <= 2


@pytest.mark.parametrize("error", [FileNotFoundError, KeyboardInterrupt])
def test_an_iterator_that_fails_leaves_nothing(disk, error):
    """Not even if its error looks like that of a folder that is not there."""

    def parts():
        yield b"before"
        raise error("something else")

    with pytest.raises(error, match="something else"):
        disk.put("f/a", parts())
    assert disk.list("f") == []
    assert disk.unfinished("f") == []


def test_an_iterator_that_fails_leaves_nothing_in_an_object_store(monkeypatch):
    """There is no temporary name there, and closing the stream completes what was written."""
    disk = IMPLEMENTATIONS["arrow-mock"](None)
    monkeypatch.setattr(module, "OBJECT_STORES", {"mock"})

    def parts():
        yield b"before"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        disk.put("f/a", parts())
    assert disk.list("f") == []


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


def test_folders_are_sorted_and_flat(disk):
    for path in ("f/b", "f/g/c", "f/a/d/e", "fa/d", "e"):
        disk.put(path, [b"x"])
    assert disk.folders("f") == ["a", "g"]
    assert disk.folders("") == ["f", "fa"]
    assert disk.folders("f/g") == []
    assert disk.folders("absent") == []


def test_size(disk):
    disk.put("f/a", [b"abc", b"de"])
    assert disk.size_bytes("f/a") == 5
    for path in ("f/b", "f"):
        if path != "f" or not isinstance(disk, LocalFilesystem):
            with pytest.raises(FileNotFoundError):
                disk.size_bytes(path)


def test_parts_of_a_file(disk):
    disk.put("f/a", [b"abc", b"defg"])
    assert [disk.get_part("f/a", *part).to_pybytes() for part in ((0, 7), (2, 3), (6, 1), (3, 0))] == [
        b"abcdefg", b"cde", b"g", b""
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        disk.get_part("f/b", 0, 1)


def test_copies_replace(disk):
    disk.put("f/a", [b"new"])
    disk.put("g/b", [b"old, and longer"])
    disk.copy("f/a", "g/b")
    disk.copy("f/a", "h/i/c")
    assert disk.get("g/b").to_pybytes() == disk.get("h/i/c").to_pybytes() == disk.get("f/a").to_pybytes() == b"new"
    with pytest.raises(FileNotFoundError):
        disk.copy("f/none", "g/b")
    assert disk.get("g/b").to_pybytes() == b"new"


@pytest.mark.long
def test_more_objects_than_one_answer_lists_long(bucket):
    """S3 lists a thousand objects at a time."""
    disk, names = located(bucket.uri("x")), [f"{n:05d}" for n in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: disk.put(f"f/{name}", []), names))
    assert disk.list("f") == names


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


def failing(after_bytes):
    yield bytes(after_bytes)
    raise ValueError("the part after it cannot be had")


@pytest.mark.parametrize("size", [10, module.GATHERED_BYTES + 1])
def test_a_write_that_fails_leaves_no_torn_object(bucket, size):
    """pyarrow completes an object whose writer fails: a reader would take it for the whole."""
    disk = located(bucket.uri("x"))
    with pytest.raises(ValueError, match="cannot be had"):
        disk.put("f/a", failing(size))
    assert disk.list("f") == []
    with pytest.raises(FileNotFoundError):
        disk.get("f/a")


def test_a_small_write_that_fails_leaves_the_old_object(bucket):
    disk = located(bucket.uri("x"))
    disk.put("a", [b"old"])
    with pytest.raises(ValueError, match="cannot be had"):
        disk.put("a", failing(10))
    assert disk.get("a").to_pybytes() == b"old"


def test_large_objects(bucket):
    """Longer than what is gathered, and than a part of an upload."""
    disk, block = located(bucket.uri("x")), np.arange(1 << 20)
    disk.put("a", [block, b"and", block, block, b"odd"])
    expected = block.tobytes() + b"and" + 2 * block.tobytes() + b"odd"
    assert disk.get("a").to_pybytes() == expected
    assert disk.size_bytes("a") == len(expected)


def test_an_object_store_travels_to_workers(bucket):
    disk = located(bucket.uri("x"))
    disk.put("f/a", [b"x"])
    assert pickle.loads(pickle.dumps(disk)).get("f/a").to_pybytes() == b"x"
    assert pickle.loads(pickle.dumps(disk.below("f"))).get("a").to_pybytes() == b"x"


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


# Who may read


def modes(root):
    """Permissions of all files and folders below a folder, and its own."""
    found = {"": stat.S_IMODE(os.stat(root).st_mode)}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = stat.S_IMODE(os.stat(path).st_mode)
    return found


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_are_for_their_owner_alone(tmp_path, umask):
    disk = LocalFilesystem(f"{tmp_path}/above/root")
    for _ in range(2):
        disk.put("a", [b"x"])
        disk.put("deep/er/b", [b"x"])
    assert modes(tmp_path / "above" / "root") == {
        "": 0o700, "a": 0o600, "deep": 0o700, "deep/er": 0o700, "deep/er/b": 0o600
    }  # fmt: skip
    assert modes(tmp_path / "above")[""] == 0o777 & ~umask


def test_shared_files_follow_the_umask(tmp_path, umask):
    LocalFilesystem(f"{tmp_path}/root", shared=True).put("deep/a", [b"x"])
    folder, file = 0o777 & ~umask, 0o666 & ~umask
    assert modes(tmp_path / "root") == {"": folder, "deep": folder, "deep/a": file}


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "root").mkdir(mode=0o755)
    os.chmod(tmp_path / "root", 0o755)
    LocalFilesystem(f"{tmp_path}/root").put("a", [b"x"])
    make_private_folder(str(tmp_path / "root"))
    assert modes(tmp_path / "root") == {"": 0o755, "a": 0o600}
