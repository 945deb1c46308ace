"""Which files a stream has: found under a path, and listed in the order in which they are read.

The list only grows, and is kept under the checkpoint: an offset of Spark's is a number of files of it. So a batch that runs
again reads the same files, and a file that appears with an old modification time is neither lost nor read twice. Files that
appear together are ordered by (modification time, path).

A file that somebody is still writing must not be listed: it would be another file when it is read. A parquet or Arrow file
is complete when its end is there; until then it waits, and is named as waiting. A text has no end: it is taken when it was
not changed for a while, or at once if its last line is complete.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote, urlsplit

import msgspec

from anabranch.control.lease import Lease, Unshared
from anabranch.control.ledger import Ledger
from anabranch.errors import DamagedStateError, FilesError, StateError
from anabranch.spark.file_formats import HAS_END, ends_whole
from anabranch.spark.waiting import waiting_of, write_waiting
from anabranch.storage.filesystem import Filesystem, LocalFilesystem
from anabranch.storage.location import Folder

UNFINISHED = (".tmp", ".crc", ".inprogress")
"""Files with these endings, and with names that begin with a dot or an underscore, are somebody's work in progress."""

SETTLE_S = 2.0
"""A file of text that was not changed for so long is taken as it is; clocks of filesystems may be this coarse."""

LIST_FAN_IN = 32
"""So many segments of the list of files are merged into one: the list has few files however long it gets."""

_MAGIC = re.compile(r"[*?\[]")


class FoundFile(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was found."""

    path: str
    modified_ns: int
    size_bytes: int


@dataclass(frozen=True)
class Skipped:
    """Files that a user has asked to leave out: by their path, or by the last parts of it."""

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(not name.strip("/.") for name in self.names):
            raise FilesError("the name of a file to skip is missing: give its path, or the last parts of it")

    def __contains__(self, path: object) -> bool:
        """
        >>> "/data/day-1/x.csv" in Skipped(("day-1/x.csv",)), "/data/day-11/x.csv" in Skipped(("1/x.csv",))
        (True, False)
        """
        names = map(os.path.normpath, self.names)
        return any(path == n if os.path.isabs(n) else str(path).endswith(f"/{n}") for n in names)


def _in_order(file: FoundFile) -> tuple[int, str]:
    return file.modified_ns, file.path


class FileListing:
    """Finds the files under a path or glob (`*`, `?`, `[…]` within a name, `**` for any folders between).

    A folder that has not changed since it was last listed is not listed again, and a known file is not looked at: asking
    costs a `stat` for each folder.
    """

    def __init__(self, path: str, format: str, skip: Sequence[str] = ()) -> None:
        self.format, self.skipped = format, Skipped(tuple(skip))
        self.start, self._pattern = _start_and_pattern(path)
        self._quiet: dict[tuple[str, tuple[str, ...]], tuple[int, list[tuple[str, tuple[str, ...]]]]] = {}
        self.waiting: dict[str, bool] = {}
        """The files that the last listing left out because they do not look complete; whether each was changed just now."""
        self._torn: dict[str, FoundFile] = {}
        """Files that were not complete when they were last looked at: they are looked at again when they change."""

    def new(self, known: AbstractSet[str]) -> list[FoundFile]:
        """The files that are not known, in order. What is returned once must be known the next time."""
        found: dict[str, FoundFile] = {}
        self.waiting = {}
        self._list(self.start, self._pattern, known, found)
        self._torn = {path: file for path, file in self._torn.items() if path in self.waiting}
        return sorted(found.values(), key=_in_order)

    def settled(self, known: AbstractSet[str]) -> list[FoundFile]:
        """The files that are not known, after those that are being written have had their time."""
        deadline = time.monotonic() + 2 * SETTLE_S
        found = self.new(known)
        while any(self.waiting.values()) and time.monotonic() < deadline:
            time.sleep(SETTLE_S / 40)
            found += self.new(known | {f.path for f in found})
        return sorted(found, key=_in_order)

    def _list(
        self, folder: str, pattern: tuple[str, ...], known: AbstractSet[str], found: dict[str, FoundFile]
    ) -> None:
        try:
            modified_ns = os.stat(folder).st_mtime_ns
            quiet = self._quiet.get((folder, pattern))
            if quiet is not None and quiet[0] == modified_ns:
                inner = quiet[1]
            else:
                inner = self._list_changed(folder, pattern, modified_ns, known, found)
        except (FileNotFoundError, NotADirectoryError):
            return
        for subfolder, rest in inner:
            self._list(subfolder, rest, known, found)

    def _list_changed(
        self,
        folder: str,
        pattern: tuple[str, ...],
        modified_ns: int,
        known: AbstractSet[str],
        found: dict[str, FoundFile],
    ) -> list[tuple[str, tuple[str, ...]]]:
        began, waiting = time.time(), len(self.waiting)
        name_pattern, rest = (pattern[0], pattern[1:]) if pattern else ("*", ())
        inner = [(folder, rest)] if name_pattern == "**" else []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.path in known or entry.path in found or _is_unfinished(entry.name):
                    continue
                if name_pattern == "**":
                    if entry.is_dir():
                        inner.append((entry.path, pattern))
                elif fnmatchcase(entry.name, name_pattern):
                    if entry.is_dir():
                        if pattern:
                            inner.append((entry.path, rest))
                    elif not rest and (file := self._look_at(entry)) is not None:
                        found[entry.path] = file
        # A change within the same tick of the filesystem's clock would not show: such a folder is listed again.
        if began - modified_ns / 1e9 > SETTLE_S and len(self.waiting) == waiting:
            self._quiet[folder, pattern] = (modified_ns, inner)
        else:
            self._quiet.pop((folder, pattern), None)
        return inner

    def _look_at(self, entry: os.DirEntry[str]) -> FoundFile | None:
        if entry.path in self.skipped:
            return None
        try:
            status = entry.stat()
            file = FoundFile(entry.path, status.st_mtime_ns, status.st_size)
            is_young = abs(time.time() - status.st_mtime) < SETTLE_S
            if not (is_young or self.format in HAS_END) or self._is_whole(file, is_young):
                return file
        except FileNotFoundError:
            return None
        self.waiting[file.path] = is_young
        return None

    def _is_whole(self, file: FoundFile, is_young: bool) -> bool:
        # A change within the same tick of the filesystem's clock would not show: a young file is looked at each time.
        if not is_young and self._torn.get(file.path) == file:
            return False
        if ends_whole(file.path, self.format, file.size_bytes):
            return True
        self._torn[file.path] = file
        return False


def _is_unfinished(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(UNFINISHED)


def _start_and_pattern(path: str) -> tuple[str, tuple[str, ...]]:
    """The folder where listing begins, and patterns for what follows; none for all files of the folder.

    >>> _start_and_pattern("/data/day-*/trades/*.parquet")
    ('/data', ('day-*', 'trades', '*.parquet'))
    """
    if os.path.isdir(path):
        return path, ()
    folder, name = os.path.split(path)
    pattern = [name if _MAGIC.search(name) else name.replace("[", "[[]")]
    while _MAGIC.search(folder) and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
        pattern.insert(0, name)
    return folder, tuple(pattern)


class ListSegment(msgspec.Struct):
    """A part of the list of files. `level` counts how often it was merged."""

    level: int
    files: list[FoundFile]


@dataclass(frozen=True)
class Lists:
    """Where the readers of a pipeline keep their lists of files, and the lease that they write under."""

    folder: Folder
    lease: Lease


class FileList:
    """The files of a stream in the order in which they are read: a list that only grows, kept in a folder.

    A segment is numbered by the place of its first file. When there are many of one level they are merged: the merged one
    is written in the place of the first of them, then the others are deleted; those that a crash leaves behind lie within
    the merged one and give nothing.

    Names of segments end in the epoch of the driver. A driver that has lost its lease sees the mark of a later one before it
    writes, and stops. It may have looked just before the mark was there, and write one segment late, which never counts: a
    driver that goes on from a list writes the last segment once more under its own epoch, and a segment does not count if
    one of its number, or of a smaller one, has a higher epoch.

        driver 1    0-1: a, b    2-1: c                                looks, sleeps …     3-1: e
        driver 2                             reads a, b, c   2-2: c   3-2: d
        driver 3                                                                          reads a, b, c, d   3-3: d
    """

    def __init__(self, listing: FileListing, log_path: str | Filesystem, lease: Lease | None = None) -> None:
        self.listing, self._lease = listing, lease or Unshared()
        self._filesystem = LocalFilesystem(log_path) if isinstance(log_path, str) else log_path
        self._ledger = Ledger(self._filesystem, "found", "files", ListSegment, self._lease.epoch)
        self._log_path = log_path
        self._files: list[FoundFile] = []
        self._segments: list[tuple[int, int]] = []
        newest = self._read()
        self._known = {f.path for f in self._files}
        if self._segments and newest < self._lease.epoch:
            number, level = self._segments[-1]
            self._write(number, ListSegment(level, self._files[number:]))

    def _read(self) -> int:
        """Reads the segments that count; the epoch of the last one."""
        newest = 0
        for number, written in self._ledger.written().items():
            if not (epochs := [epoch for epoch in written if epoch >= newest]):
                continue
            if number > len(self._files):
                raise DamagedStateError(f"{self._ledger.path(number, epochs[0])}: the part of the list before it is missing")
            newest = self._ledger.whole_of(number, epochs)
            segment = self._ledger.read(number, newest)
            if more := segment.files[len(self._files) - number :]:
                self._segments.append((number, segment.level))
                self._files += more
        return newest

    def _write(self, number: int, segment: ListSegment) -> None:
        self._lease.require_held()
        self._ledger.write(number, segment)

    def __len__(self) -> int:
        return len(self._files)

    def discover(self, wait: bool = False) -> int:
        """Appends the files that are new; returns how many there are. With `wait`, unfinished ones are waited for."""
        new = self.listing.settled(self._known) if wait else self.listing.new(self._known)
        write_waiting(self._filesystem, waiting_of(self.listing.waiting))
        if new:
            self._write(len(self._files), ListSegment(0, new))
            self._segments.append((len(self._files), 0))
            self._files += new
            self._known.update(f.path for f in new)
            self._merge()
        return len(self._files)

    def between(self, start: int, end: int) -> list[FoundFile]:
        self.require(end)
        return self._files[start:end]

    def require(self, count: int) -> None:
        if count > len(self._files):
            raise StateError(
                f"Spark's checkpoint counts {count} files, the list in {self._log_path} has {len(self._files)}: "
                "parts of the checkpoint do not belong together; restore all of it, or start with an empty one"
            )

    def _merge(self) -> None:
        while len(last := self._segments[-LIST_FAN_IN:]) == LIST_FAN_IN and len({level for _, level in last}) == 1:
            first, level = last[0]
            self._write(first, ListSegment(level + 1, self._files[first:]))
            for number, epochs in self._ledger.written().items():
                for epoch in epochs:
                    if number >= first and epoch <= self._ledger.epoch and (number, epoch) != (first, self._ledger.epoch):
                        self._ledger.drop(number, epoch)
            self._segments[-LIST_FAN_IN:] = [(first, level + 1)]


def local_path(path: str) -> str:
    """An absolute path of this machine.

    >>> local_path("file:///data/a%20b/*.csv")
    '/data/a b/*.csv'
    """
    scheme = urlsplit(path).scheme if ":/" in path else ""
    if scheme == "file":
        path = unquote(urlsplit(path).path)
    elif scheme:
        raise FilesError(f"{path}: files are read from local or mounted folders; use spark.readStream for {scheme}")
    return os.path.abspath(path)
