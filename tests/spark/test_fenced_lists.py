"""The list of files of a stream under drivers that sleep through their lease and wake up when others have gone on: an offset
that was committed counts the same files for ever. No Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st

from anabranch.control.lease import MARKS, Holder, Marked, Unshared
from anabranch.errors import AnabranchError, CheckpointBusyError
from anabranch.spark import file_list
from anabranch.spark.file_list import FileList, FoundFile
from anabranch.storage.filesystem import Filesystem, MemoryFilesystem
from tests.support.faulty import Crash, MortalFilesystem, Sleep
from tests.support.scenarios import properties
from tests.support.simulation import Below, Taken


class Folder:
    """A folder that files come to, in any order of their times."""

    def __init__(self, seed: int = 0) -> None:
        self.files: list[FoundFile] = []
        self.waiting: dict[str, bool] = {}
        self._random = random.Random(seed)

    def come(self, modified_ns: int | None = None) -> None:
        number, drawn = len(self.files), self._random.randrange(100)
        self.files.append(FoundFile(f"/in/{number}", drawn if modified_ns is None else modified_ns, number))

    def new(self, known: Any) -> list[FoundFile]:
        return sorted((f for f in self.files if f.path not in known), key=lambda f: (f.modified_ns, f.path))


def list_of(folder: Folder, disk: Any, epoch: int) -> FileList:
    return FileList(folder, Below(disk, "files/s"), Marked(disk, epoch))  # type: ignore[arg-type]


def mark(disk: Filesystem, epoch: int) -> None:
    disk.put(f"{MARKS}/{epoch:010d}", [b""])


def test_a_driver_that_was_superseded_leaves_the_list_alone() -> None:
    disk, folder = MemoryFilesystem(), Folder()
    mark(disk, 1)
    folder.come()
    old = list_of(folder, disk, 1)
    assert old.discover() == 1
    mark(disk, 2)
    new = list_of(folder, disk, 2)
    for _ in range(2):
        folder.come()
        new.discover()
        folder.come()
        with pytest.raises(CheckpointBusyError, match=r"another run has taken .* \(epoch 1\)"):
            old.discover()
    assert list_of(folder, disk, 2).between(0, 3) == new.between(0, 3)


def test_what_it_was_about_to_write_does_not_count() -> None:
    late = 0
    for operation in range(1, 12):
        disk, folder, new = MemoryFilesystem(), Folder(), []
        mark(disk, 1)
        folder.come()
        list_of(folder, disk, 1).discover()

        def meanwhile(disk: Any = disk, folder: Folder = folder, new: list[FileList] = new) -> None:
            mark(disk, 2)
            new.append(list_of(folder, disk, 2))
            for _ in range(4):
                folder.come()
                new[0].discover()

        with suppress(AnabranchError):  # its segments may have gone while it reads them
            old = list_of(folder, Sleep(disk, operation, meanwhile), 1)
            folder.come()
            old.discover()
            late += 1 if new else 0
        for taken in new:
            assert list_of(folder, disk, 3).between(0, len(taken)) == taken.between(0, len(taken)), operation
    assert late, "no driver has written late"


def test_a_late_segment_within_a_merged_one_does_not_count() -> None:
    disk, folder = MemoryFilesystem(), Folder()
    folder.come()
    (old := FileList(folder, disk, Unshared(1))).discover()  # type: ignore[arg-type]
    new = FileList(folder, disk, Unshared(2))  # type: ignore[arg-type]
    for _ in range(2):
        folder.come()
        new.discover()
    assert disk.list("found") == [f"{0:020d}-{2:010d}"], "they are merged"
    for _ in range(3):
        folder.come()
    old.discover()
    assert FileList(folder, disk, Unshared(3)).between(0, 3) == new.between(0, 3)  # type: ignore[arg-type]
    assert len(FileList(folder, disk, Unshared(3))) == 3  # type: ignore[arg-type]


def test_of_three_drivers_the_last_one_counts() -> None:
    """Two of them have looked for marks before there were later ones, and write when the third has read the list."""
    disk, folder = MemoryFilesystem(), Folder()
    first, second, third, fourth = (
        lambda epoch=epoch: FileList(folder, Below(disk, "s"), Unshared(epoch))  # type: ignore[arg-type]
        for epoch in (1, 2, 3, 4)
    )
    folder.come(50)
    (old := first()).discover()
    newer = second()
    folder.come(40)
    old.discover()
    newest = third()
    folder.come(30)
    newer.discover()
    assert fourth().between(0, len(newest)) == newest.between(0, len(newest))


def check_sleeping_lists(seed: int, triggers: int, operation: int, lives: Sequence[tuple[int, bool, int]]) -> None:
    disk, folder, count = MemoryFilesystem(), Folder(seed), random.Random(seed)
    committed: list[FoundFile] = []
    """The files of batches that count."""

    def live(seen: Any, triggers: int) -> None:
        holder = Taken(seen)
        holder.acquire()
        try:
            files = FileList(folder, Below(seen, "files/s"), holder.marked)  # type: ignore[arg-type]
            for _ in range(triggers):
                assert files.between(0, len(committed)) == committed
                for _ in range(count.choice([1, 1, 1, 4])):
                    folder.come()
                end = files.discover()
                Holder.require_held(holder)
                committed.extend(files.between(len(committed), end))
        finally:
            holder.die()

    def meanwhile() -> None:
        for dies_at, is_done, some in lives:
            with suppress(Crash):
                live(MortalFilesystem(disk, {dies_at: is_done}), some)

    with suppress(AnabranchError):
        live(Sleep(disk, operation, meanwhile), triggers)
    live(disk, 3)
    assert sorted(f.size_bytes for f in committed) == [*range(len(folder.files))]


test_sleeping_lists, test_sleeping_lists_long = properties(
    check_sleeping_lists, 60, 3000, seed=st.integers(0, 1000), triggers=st.integers(1, 8), operation=st.integers(1, 90),
    lives=st.lists(st.tuples(st.integers(1, 80), st.booleans(), st.integers(0, 6)), min_size=1, max_size=3),
)  # fmt: skip


@pytest.fixture(autouse=True)
def merged_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "LIST_FAN_IN", 3)
