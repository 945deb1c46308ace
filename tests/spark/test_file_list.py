"""Which files there are, in which order, which of them wait to be complete; and the list that offsets count. No Spark."""

from __future__ import annotations

import gzip
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from anabranch.errors import DamagedStateError, StateError
from anabranch.spark import file_list
from anabranch.spark.file_list import FileList, FileListing
from anabranch.spark.waiting import Waiting, read_waiting
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.reading import (
    OLD,
    arrow_bytes,
    names,
    put,
)


def test_files_are_ordered_by_time_then_path(tmp_path: Path) -> None:
    put(tmp_path / "b.csv", modified=OLD)
    put(tmp_path / "a.csv", modified=OLD)
    put(tmp_path / "z.csv", modified=OLD - 5)
    assert names(FileListing(str(tmp_path), "csv").new(frozenset())) == ["z.csv", "a.csv", "b.csv"]


def test_work_in_progress_is_ignored(tmp_path: Path) -> None:
    for name in (".a.csv", "_a.csv", "a.csv.tmp", "a.crc", "a.csv.inprogress", "ok.csv"):
        put(tmp_path / name)
    assert names(FileListing(f"{tmp_path}/*", "csv").new(frozenset())) == ["ok.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["top.csv"]),
        ("*.csv", ["top.csv"]),
        ("top.csv", ["top.csv"]),
        ("day-*/*.csv", ["one.csv", "two.csv"]),
        ("day-?", ["one.csv", "two.csv"]),
        ("day-1/*", ["one.csv"]),
        ("*/deep/*.csv", ["three.csv"]),
        ("**/*.csv", ["one.csv", "three.csv", "top.csv", "two.csv"]),
        ("day-[2]/**/*.csv", ["three.csv", "two.csv"]),
        ("nothing/*.csv", []),
    ],
)
def test_globs(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    put(tmp_path / "top.csv")
    put(tmp_path / "day-1" / "one.csv")
    put(tmp_path / "day-2" / "two.csv")
    put(tmp_path / "day-2" / "deep" / "three.csv")
    put(tmp_path / "_temporary" / "four.csv")
    assert sorted(names(FileListing(f"{tmp_path}/{pattern}".rstrip("/"), "csv").new(frozenset()))) == expected


def test_a_folder_with_brackets_in_its_name_is_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "run[1]" / "a.csv")
    assert names(FileListing(str(tmp_path / "run[1]"), "csv").new(frozenset())) == ["a.csv"]
    assert names(FileListing(str(tmp_path / "run[1]" / "*.csv"), "csv").new(frozenset())) == ["a.csv"]


def test_an_unchanged_folder_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = put(tmp_path / "a.csv")
    listing = FileListing(str(tmp_path), "csv")
    known = {f.path for f in listing.new(frozenset())}
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda _: pytest.fail("listed again"))
        assert listing.new(known) == []
    put(tmp_path / "b.csv", modified=OLD + 1)
    assert names(listing.new(known)) == ["b.csv"]
    assert known == {str(first)}


def test_a_folder_that_changed_just_now_is_listed_again(tmp_path: Path) -> None:
    listing = FileListing(str(tmp_path), "csv")
    found: list[str] = []
    for n in range(20):
        (tmp_path / f"{n:02d}.csv").write_bytes(b"x\n")
        found += names(listing.new({str(tmp_path / name) for name in found}))
    assert found == [f"{n:02d}.csv" for n in range(20)]


def test_a_change_within_a_tick_of_the_filesystems_clock_is_found(tmp_path: Path) -> None:
    listing, now_ns = FileListing(str(tmp_path), "csv"), time.time_ns()
    found: list[str] = []
    for name in ("a.csv", "b.csv"):
        put(tmp_path / name)
        os.utime(tmp_path, ns=(now_ns, now_ns))
        found += names(listing.new({str(tmp_path / name) for name in found}))
    assert found == ["a.csv", "b.csv"]


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_a_file_without_its_end_is_not_there_yet(tmp_path: Path, kind: str) -> None:
    """However old it is, and wherever it is cut."""
    whole, path = arrow_bytes(kind), tmp_path / "a"
    listing = FileListing(str(tmp_path), "parquet" if kind == "parquet" else "arrow")
    for cut in sorted({*range(0, len(whole), 8), *range(len(whole) - 40, len(whole))}):
        put(path, whole[:cut], modified=OLD + cut)
        assert listing.new(frozenset()) == [], f"cut at {cut} of {len(whole)}"
        assert listing.waiting == {str(path): False}
    put(path, whole)
    assert names(listing.new(frozenset())) == ["a"]
    assert not listing.waiting


def test_an_end_that_describes_nothing_is_no_end(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", b"PAR1....PAR1")
    put(tmp_path / "b.parquet", b"PAR1" + bytes(20) + b"PAR1")
    listing = FileListing(str(tmp_path), "parquet")
    assert listing.new(frozenset()) == []
    assert len(listing.waiting) == 2


def test_what_waits_is_looked_at_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def ends_whole(path: str, format: str, size_bytes: int) -> bool:
        looked.append(os.path.basename(path))
        return False

    monkeypatch.setattr(file_list, "ends_whole", ends_whole)
    put(tmp_path / "young.parquet", modified=time.time() + 1)
    put(tmp_path / "old.parquet")
    monkeypatch.setattr(file_list, "SETTLE_S", 1000 - 10)
    listing = FileListing(str(tmp_path), "parquet")
    for _ in range(3):
        assert listing.new(frozenset()) == []
        assert len(listing.waiting) == 2
    assert Counter(looked) == {"young.parquet": 3, "old.parquet": 1}
    put(tmp_path / "old.parquet", b"more")
    listing.new(frozenset())
    assert Counter(looked)["old.parquet"] == 2
    (tmp_path / "old.parquet").unlink()
    listing.new(frozenset())
    assert list(listing.waiting) == [str(tmp_path / "young.parquet")]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_text_that_shows_no_end_is_taken_when_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = put(tmp_path / name, gzip.compress(b"x\n") if name.endswith("gz") else b"x", modified=time.time())
    monkeypatch.setattr(file_list, "SETTLE_S", 500.0)
    listing = FileListing(str(tmp_path), "csv")
    assert listing.new(frozenset()) == []
    assert listing.waiting == {str(path): True}
    os.utime(path, (OLD, OLD))
    assert names(listing.new(frozenset())) == [name]


def test_files_that_are_being_written_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that nobody has touched for a while."""
    put(tmp_path / "torn.parquet", b"PAR1")
    path = put(tmp_path / "young.parquet", b"PAR1", modified=time.time() + 1)
    monkeypatch.setattr(file_list, "SETTLE_S", 500.0)
    naps: list[float] = []

    def finish(nap_s: float) -> None:
        naps.append(nap_s)
        if len(naps) == 3:
            put(path, arrow_bytes("parquet"), modified=time.time())

    monkeypatch.setattr(file_list.time, "sleep", finish)
    listing = FileListing(str(tmp_path), "parquet")
    assert names(listing.settled(frozenset())) == ["young.parquet"]
    assert len(naps) == 3
    assert list(listing.waiting) == [str(tmp_path / "torn.parquet")]


def test_what_waits_is_named_beside_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LocalFilesystem(str(tmp_path / "log"))
    assert not read_waiting(log)
    torn = [put(tmp_path / "data" / f"{n:02d}.parquet", b"PAR1") for n in range(12)]
    files = FileList(FileListing(str(tmp_path / "data"), "parquet"), log.root)
    assert files.discover() == 0
    assert read_waiting(log) == Waiting(12, [str(p) for p in torn[:10]])
    assert str(read_waiting(log)).startswith(f"12 files wait to be complete: {torn[0]}, ")
    assert str(read_waiting(log)).endswith("09.parquet and 2 more")
    with monkeypatch.context() as patch:
        patch.setattr(LocalFilesystem, "put", lambda *_: pytest.fail("nothing has changed"))
        assert files.discover() == 0
    for path in torn:
        put(path, arrow_bytes("parquet"))
    assert files.discover(wait=True) == 12
    assert not read_waiting(log)
    (tmp_path / "log" / "waiting").write_bytes(b"torn")
    assert not read_waiting(log)
    assert FileList(files.listing, log.root).discover() == 12
    assert not read_waiting(log)


def test_the_list_survives_a_restart_and_takes_late_files_once(tmp_path: Path) -> None:
    data, log = tmp_path / "data", str(tmp_path / "log")
    put(data / "m.csv")
    put(data / "n.csv", modified=OLD + 5)
    files = FileList(FileListing(str(data), "csv"), log)
    assert files.discover() == 2
    put(data / "older.csv", modified=OLD - 500)
    assert files.discover() == 3
    put(data / "a.csv", modified=OLD - 900)
    again = FileList(FileListing(str(data), "csv"), log)
    assert len(again) == 3
    assert again.discover() == 4
    assert names(again.between(0, 4)) == ["m.csv", "n.csv", "older.csv", "a.csv"]
    assert again.discover() == 4


def test_the_list_is_merged_and_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "LIST_FAN_IN", 3)
    data, log = tmp_path / "data", tmp_path / "log"
    data.mkdir()
    files = FileList(FileListing(str(data), "csv"), str(log))
    for n in range(30):
        put(data / f"{n:02d}.csv", modified=OLD + n)
        files.discover()
        assert names(FileList(files.listing, str(log)).between(0, n + 1)) == [f"{m:02d}.csv" for m in range(n + 1)]
    assert len(os.listdir(log / "found")) < 7
    # What a crash between merging and deleting leaves behind.
    segment = sorted((log / "found").iterdir())[0]
    (log / "found" / f"{1:020d}-{0:010d}").write_bytes(segment.read_bytes())
    assert len(FileList(files.listing, str(log))) == 30


def test_a_list_that_does_not_fit_the_checkpoint_is_refused(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    for n in range(2):
        put(data / f"{n}.csv")
        files = FileList(FileListing(str(data), "csv"), str(log))
        files.discover()
    with pytest.raises(StateError, match=r"counts 3 files, the list in .* has 2"):
        files.between(0, 3)
    (log / "found" / f"{0:020d}-{0:010d}").unlink()
    with pytest.raises(DamagedStateError, match="missing"):
        FileList(FileListing(str(data), "csv"), str(log))
