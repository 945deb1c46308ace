"""Spark's own log of a query, kept with a checkpoint that Spark cannot write to.

Spark writes what it has planned and done (`metadata`, `offsets`, `commits`, `sources`) through Hadoop's filesystems, and the
PySpark of PyPI has none for object stores. So the log goes to a folder of the driver's machine, and a copy of what Spark
needs to go on goes with our records: before the commit of a batch, the *record* of its trigger is written, with the newest
entries of `offsets` and `commits` and the names of copies of what is in `sources`. When a query starts, the folder is made
anew from the newest record that is whole. Let c be the newest commit:

- a record is written before the commit that needs it, so there is one of c's trigger: Spark brings that, or the next;
- what Spark had planned after the newest record is in no commit, and is planned again.

So the folder is scratch, and a run can go on on another machine. An example: trigger 7 is planned, its record written, the
driver dies before the commit of trigger 7. The next driver, elsewhere, starts from that record: Spark finds `offsets/7`
without `commits/7`, and brings trigger 7 with the same rows.

Copies of `sources` (Spark's file source keeps the names of its files there) have names nobody uses twice, and are written
once. Names of records end in the epoch of the driver: what a driver writes that has lost its lease counts for nothing
(`anabranch.control.ledger`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anabranch.control.ledger import Ledger
from anabranch.errors import LocationError, StateError
from anabranch.storage.cache import is_ours
from anabranch.storage.filesystem import Filesystem, LocalFilesystem
from anabranch.storage.location import Folder, is_local, located
from anabranch.storage.record import damaged, seal, unseal

FILES, FOLDERS = ("metadata", ".metadata.crc"), ("offsets", "commits", "sources", "state")
"""What Spark has in the folder."""
RECORDS, COPIES = "spark/log", "spark/sources"
_COPY = re.compile("[0-9a-f]{32}")
ENTRIES = 2
"""Spark goes on from the newest entry of `offsets` and the one before it."""
COMPACT = ".compact"
"""The ending of an entry that has all earlier ones of its folder in it."""


class LogRecord(msgspec.Struct, frozen=True):
    """Spark's log as it is to be found by Spark that is to bring a trigger."""

    trigger: int
    files: dict[str, bytes]
    """Small files by their path."""
    copies: dict[str, str]
    """Files of `sources` by their path, and where their copies are."""


class SparkLog:
    """The folder that Spark writes to, and its copy in a checkpoint."""

    def __init__(self, filesystem: Filesystem, folder: str, epoch: int = 0) -> None:
        self.filesystem, self.folder = filesystem, folder
        self._records = Ledger(filesystem, RECORDS, "spark", LogRecord, epoch)
        self._kept: LogRecord | None = None
        self._named: set[str] = set()
        """Copies that the last two records name."""

    def open(self) -> str:
        """The folder for Spark, as URI, made anew."""
        self.restore()
        return Path(self.folder).as_uri()

    def restore(self) -> int | None:
        """Makes the folder anew from the newest record; the trigger that Spark planned last then, None if there was none."""
        self._clear()
        newest = self._records.latest()
        self._kept = newest[1] if newest is not None else None
        if self._kept is not None:
            for path, content in self._kept.files.items():
                self._write(path, content)
            for path, copy in self._kept.copies.items():
                self._write(path, self._copy(copy))
        self._sweep()
        return None if self._kept is None else self._kept.trigger

    def keep(self, trigger: int) -> None:
        """Writes the record of a trigger, to be called before the commit of its batch."""
        if self._kept is not None and self._kept.trigger == trigger:
            return  # Spark has brought it again, or it is a closing step
        if not os.path.exists(f"{self.folder}/offsets/{trigger}"):
            raise StateError(
                f"Spark runs trigger {trigger}, and {self.folder}/offsets has no entry of it: name a spark_checkpoint that "
                "nobody else uses"
            )
        files = {path: self._read(path) for path in self._small(trigger)}
        before = self._kept.copies if self._kept is not None else {}
        copies = {path: before.get(path) or self._put_copy(path) for path in self._sources()}
        record = LogRecord(trigger, files, copies)
        self._records.write(trigger, record)
        older, self._kept = self._kept, record
        if older is not None:
            self._prune(older, record)

    def _clear(self) -> None:
        """Empties the folder of what Spark has there; what else somebody keeps in it stays."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if name in FOLDERS:
                shutil.rmtree(path)
            elif name in FILES:
                os.unlink(path)

    def _small(self, trigger: int) -> Iterator[str]:
        yield "metadata"
        for kind in ("offsets", "commits"):
            for number in range(max(0, trigger - ENTRIES + 1), trigger + 1):
                if os.path.exists(f"{self.folder}/{kind}/{number}"):
                    yield f"{kind}/{number}"

    def _sources(self) -> Iterator[str]:
        """What is in `sources`, but for entries that a later one has in it."""
        top = f"{self.folder}/sources"
        for folder, _, names in os.walk(top):
            numbers = {name: int(name.removesuffix(COMPACT)) for name in names if name.removesuffix(COMPACT).isdigit()}
            first = max((number for name, number in numbers.items() if name.endswith(COMPACT)), default=0)
            for name in names:
                if not name.startswith(".") and numbers.get(name, first) >= first:
                    yield os.path.relpath(os.path.join(folder, name), self.folder)

    def _prune(self, older: LogRecord, newest: LogRecord) -> None:
        """Deletes records before the last two, and copies that these do not name."""
        self._records.prune(older.trigger)
        kept = {*older.copies.values(), *newest.copies.values()}
        for copy in self._named - kept:
            self.filesystem.delete(f"{COPIES}/{copy}")
        self._named = kept

    def _sweep(self) -> None:
        """Deletes copies that the newest record does not name: those of drivers that died before they wrote one. Nothing is
        deleted while there is a record that cannot be read: it may be restored."""
        kept = self._kept
        self._named = set(kept.copies.values()) if kept is not None else set()
        if self._records.torn():
            return
        if kept is not None:
            self._records.prune(kept.trigger)
        copies = [name for name in self.filesystem.list(COPIES) if _COPY.fullmatch(name)]
        for name in [*copies, *self.filesystem.unfinished(COPIES)]:
            if name not in self._named:
                self.filesystem.delete(f"{COPIES}/{name}")

    def _copy(self, name: str) -> bytes:
        path = f"{COPIES}/{name}"
        try:
            return unseal("source", memoryview(self.filesystem.get(path)), path)
        except FileNotFoundError:
            raise damaged(path, "it is missing although a record names it") from None

    def _put_copy(self, path: str) -> str:
        name = uuid.uuid4().hex
        self.filesystem.put(f"{COPIES}/{name}", [seal("source", self._read(path))])
        return name

    def _read(self, path: str) -> bytes:
        with open(f"{self.folder}/{path}", "rb") as file:
            return file.read()

    def _write(self, path: str, content: bytes) -> None:
        os.makedirs(os.path.dirname(f"{self.folder}/{path}"), exist_ok=True)
        with open(f"{self.folder}/{path}", "wb") as file:
            file.write(content)


class OwnLog:
    """Spark writes to where its log stays: nothing is copied."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self) -> str:
        return self.folder

    def keep(self, trigger: int) -> None:
        pass


def spark_log_of(
    folder: Folder, filesystem: Filesystem, spark_checkpoint: str | None, pipeline: str, checkpoint_id: str, epoch: int = 0
) -> SparkLog | OwnLog:
    """Where Spark's log of a pipeline goes, and whether a copy of it is kept with the checkpoint.

    It is not if Spark can write to where the rest is, or to a URI that it was given: a copy is for folders of this machine.
    """
    if spark_checkpoint is None:
        if isinstance(folder, LocalFilesystem):
            return OwnLog(f"{folder.root}/spark")
        scratch = os.path.join(tempfile.gettempdir(), f"anabranch-spark-{os.getuid()}")
        if not is_ours(scratch):
            raise LocationError(f"{scratch} is writable by others: name a spark_checkpoint, a folder of your own")
        return SparkLog(filesystem, os.path.join(scratch, checkpoint_id, pipeline), epoch)
    if not is_local(spark_checkpoint):
        return OwnLog(f"{spark_checkpoint.rstrip('/')}/{pipeline}")
    return SparkLog(filesystem, LocalFilesystem(str(located(spark_checkpoint))).below(pipeline).root, epoch)
