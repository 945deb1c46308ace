"""Several requests at a time, where each waits for an answer."""

from __future__ import annotations

import threading

import pyarrow.fs as pafs
import pytest

from anabranch.storage.cache import CachedFilesystem
from anabranch.storage.filesystem import ArrowFilesystem, Filesystem, MemoryFilesystem
from anabranch.storage.several import AT_ONCE, for_each

REMOTE = ArrowFilesystem(pafs.LocalFileSystem())


@pytest.mark.parametrize("filesystem", [REMOTE, CachedFilesystem(REMOTE, "a checkpoint")])
def test_a_remote_store_is_asked_several_at_a_time(filesystem: Filesystem) -> None:
    """Each waits until as many are there as may be."""
    together, done = threading.Barrier(AT_ONCE, timeout=60.0), list[int]()

    def do(item: int) -> None:
        together.wait()
        done.append(item)

    for_each(filesystem, do, range(2 * AT_ONCE))
    assert sorted(done) == [*range(2 * AT_ONCE)]


def test_a_disk_is_asked_one_by_one_in_order() -> None:
    threads, done = set[str](), list[int]()

    def do(item: int) -> None:
        threads.add(threading.current_thread().name)
        done.append(item)

    for_each(MemoryFilesystem(), do, range(40))
    assert done == [*range(40)]
    assert threads == {threading.current_thread().name}


def test_what_fails_stops_no_other() -> None:
    done = list[int]()

    def do(item: int) -> None:
        if item % 10 == 3:
            raise OSError(f"the store is away for {item}")
        done.append(item)

    with pytest.raises(OSError, match="the store is away for 3"):
        for_each(REMOTE, do, range(40))
    assert sorted(done) == [n for n in range(40) if n % 10 != 3]
