"""The copy of Spark's own log, without Spark: whatever is lost, the folder is again as the newest commit needs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from anabranch.errors import LocationError, StateError
from anabranch.spark.spark_log import COPIES, RECORDS, OwnLog, SparkLog, spark_log_of
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem
from tests.support.cases import Part
from tests.support.faulty import Crash, Fault, FaultyFilesystem

RETAINED = 5
"""So many entries Spark keeps."""


class Spark:
    """Writes its log as Spark does: sources and offsets when a trigger is planned, commits when it is done."""

    def __init__(self, folder: Path, compacts: int = 4) -> None:
        self.folder, self.compacts = folder, compacts

    def write(self, path: str, content: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        (file.parent / f".{file.name}.crc").write_text("checksum")

    def planned(self) -> int:
        """The newest trigger that is planned."""
        offsets = self.folder / "offsets"
        return max((int(n) for n in os.listdir(offsets) if n.isdigit()), default=-1) if offsets.is_dir() else -1

    def next(self) -> int:
        """The trigger that it brings: the newest planned one again if it is not done."""
        newest = self.planned()
        if newest >= 0 and not (self.folder / "commits" / str(newest)).exists():
            return newest
        return newest + 1

    def plan(self, trigger: int, rows: str) -> None:
        if trigger == self.planned():
            return
        if not (self.folder / "metadata").exists():
            assert trigger == 0
            self.write("metadata", "id")
        name = f"{trigger}.compact" if trigger % self.compacts == self.compacts - 1 else str(trigger)
        self.write(f"sources/0/{name}", f"file {trigger} {rows}")
        if trigger == 0:
            self.write("sources/1/0", "where it began")
        self.write(f"offsets/{trigger}", f"{trigger} {rows}")
        for old in (self.folder / "offsets").glob("[0-9]*"):
            if int(old.name) < trigger - RETAINED:
                old.unlink()

    def done(self, trigger: int) -> None:
        self.write(f"commits/{trigger}", "v1")


def visible(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def run(disk: FaultyFilesystem, folder: Path, committed: dict[int, str], rows: str, until: int) -> None:
    """A driver: makes the folder anew, and runs triggers; `committed` is what our commits say was taken in."""
    log, spark = SparkLog(disk, str(folder), epoch=len(rows)), Spark(folder)
    log.restore()
    newest = max(committed, default=-1)
    assert spark.next() in (newest, newest + 1), "Spark brings what the newest commit does not follow"
    while (trigger := spark.next()) <= until:
        spark.plan(trigger, rows)
        taken = (folder / "offsets" / str(trigger)).read_text()
        if trigger in committed:
            assert committed[trigger] == taken, "Spark counts other rows than the commit took in"
        else:
            log.keep(trigger)
            disk.put("commit", [b"x"])
            committed[trigger] = taken
        spark.done(trigger)


def test_the_folder_is_lost_after_every_trigger(tmp_path: Path) -> None:
    disk, committed = FaultyFilesystem(MemoryFilesystem()), {}
    for trigger in range(14):
        run(disk, tmp_path / str(trigger), committed, "r" * (trigger + 1), trigger)
    assert sorted(committed) == list(range(14))


def test_the_folder_of_another_machine_is_not_believed(tmp_path: Path) -> None:
    """Machine A has planned trigger 3 and stops; B runs triggers 3 and 4; A goes on from there."""
    disk, committed = FaultyFilesystem(MemoryFilesystem()), {}
    run(disk, tmp_path / "a", committed, "a", 2)
    Spark(tmp_path / "a").plan(3, "planned by a")
    run(disk, tmp_path / "b", committed, "bb", 4)
    run(disk, tmp_path / "a", committed, "ccc", 6)
    assert committed[3] == "3 bb"
    assert committed[5] == "5 ccc"


@pytest.mark.parametrize("kind", ["lose", "tear", "crash_after"])
@pytest.mark.parametrize("keeps_folder", [False, True])
def test_every_crash_point(tmp_path: Path, kind: str, keeps_folder: bool, part: Part) -> None:
    """The driver dies in each put in turn: of a copy, of the record, of the commit that follows."""
    probe = FaultyFilesystem(MemoryFilesystem())
    run(probe, tmp_path / "probe", {}, "r", 8)
    for point in part.of(range(len(probe.puts))):
        folder = tmp_path / f"{point}"
        disk, committed = FaultyFilesystem(MemoryFilesystem(), {point: Fault(kind)}), {}
        with pytest.raises(Crash):
            run(disk, folder, committed, "r", 8)
        if disk.puts[-1] == "commit" and kind == "crash_after":
            trigger = max(committed, default=-1) + 1
            committed[trigger] = f"{trigger} r"
        if not keeps_folder:
            shutil.rmtree(folder)
        run(disk, folder, committed, "rr", 8)
        assert sorted(committed) == list(range(9))


def test_it_is_bounded(tmp_path: Path) -> None:
    disk, committed = FaultyFilesystem(MemoryFilesystem()), {}
    run(disk, tmp_path / "a", committed, "r", 40)
    assert len(disk.list(RECORDS)) == 2
    assert len(disk.list(COPIES)) <= 2 + 4
    left, foreign = "0" * 32, "notes.txt"
    for name in (left, foreign):
        disk.put(f"{COPIES}/{name}", [b"by a driver that died, or by somebody else"])
    run(disk, tmp_path / "b", committed, "rr", 41)
    assert left not in disk.list(COPIES)
    assert foreign in disk.list(COPIES)


def test_what_spark_has_is_there_again(tmp_path: Path) -> None:
    disk = FaultyFilesystem(MemoryFilesystem())
    run(disk, tmp_path / "a", {}, "r", 6)
    SparkLog(disk, str(tmp_path / "b")).restore()
    made = visible(tmp_path / "b")
    assert made.keys() == {"metadata", "offsets/5", "offsets/6", "commits/5", "sources/0/3.compact", "sources/0/4",
                           "sources/0/5", "sources/0/6", "sources/1/0"}  # fmt: skip
    assert made.items() <= visible(tmp_path / "a").items()


def test_the_driver_of_the_highest_epoch_counts(tmp_path: Path) -> None:
    """A driver that lost its lease long ago wakes up, and writes what it was about to write."""
    disk, committed = FaultyFilesystem(MemoryFilesystem()), {}
    run(disk, tmp_path / "a", committed, "r", 2)
    late = SparkLog(disk, str(tmp_path / "late"), epoch=1)
    late.restore()
    Spark(tmp_path / "late").done(2)
    Spark(tmp_path / "late").plan(3, "of the late one")
    run(disk, tmp_path / "b", committed, "rr", 3)
    late.keep(3)
    run(disk, tmp_path / "c", committed, "rrr", 5)
    assert committed[3] == "3 rr"


def test_what_a_record_names_stays_while_it_cannot_be_read(tmp_path: Path) -> None:
    """A bit of the newest record is flipped: the start is refused, for Spark brings a trigger that is over. A backup of the
    record is enough to go on."""
    disk, committed = FaultyFilesystem(MemoryFilesystem()), {}
    run(disk, tmp_path / "a", committed, "r", 4)
    newest = f"{RECORDS}/{disk.list(RECORDS)[-1]}"
    whole = disk.get(newest).to_pybytes()
    disk.corrupt(newest)
    with pytest.raises(AssertionError, match="does not follow"):
        run(disk, tmp_path / "b", committed, "rr", 6)
    disk.put(newest, [whole])
    run(disk, tmp_path / "c", committed, "rrr", 6)
    assert sorted(committed) == list(range(7))


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("precious")
    run(FaultyFilesystem(MemoryFilesystem()), tmp_path / "a", {}, "r", 2)
    SparkLog(MemoryFilesystem(), str(tmp_path / "a")).restore()
    assert visible(tmp_path / "a") == {"mine.txt": "precious"}


def test_an_entry_that_spark_did_not_write(tmp_path: Path) -> None:
    log = SparkLog(MemoryFilesystem(), str(tmp_path / "a"))
    log.restore()
    with pytest.raises(StateError, match="no entry of it"):
        log.keep(0)


def test_where_it_goes_and_whether_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the checkpoint if that is on this machine, else to a temporary folder; or to where it is asked for. What is in a
    folder of this machine that is not the checkpoint's is copied."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    here, remote = LocalFilesystem(f"{tmp_path}/state/pipeline-0"), MemoryFilesystem()

    def found(folder: Any, asked: str | None) -> tuple[type, str]:
        log = spark_log_of(folder, folder, asked, "pipeline-0", "a-checkpoint")
        return type(log), log.folder

    assert found(here, None) == (OwnLog, f"{tmp_path}/state/pipeline-0/spark")
    assert found(here, (tmp_path / "spark").as_uri()) == (SparkLog, f"{tmp_path}/spark/pipeline-0")
    assert found(remote, f"{tmp_path}/spark") == (SparkLog, f"{tmp_path}/spark/pipeline-0")
    assert found(remote, "hdfs://there/spark/") == (OwnLog, "hdfs://there/spark/pipeline-0")
    temporary = f"{tmp_path}/temporary/anabranch-spark-{os.getuid()}"
    assert found(remote, None) == (SparkLog, f"{temporary}/a-checkpoint/pipeline-0")
    os.chmod(temporary, 0o777)
    with pytest.raises(LocationError, match="is writable by others: name a spark_checkpoint"):
        found(remote, None)
