"""State files on this machine's disk, so that each is fetched from a remote checkpoint at most once per machine.

A worker takes over a slot that another worker of the same machine had a batch ago (in every other batch, about), and then
asks for the files that the other has just written. State files have names that nobody uses twice and never change. So a file
that was fetched or written once is good for ever: an entry is there or it is not, and the store is not asked.

An entry is the content and then its checksum (xxh3_128). It is written under a temporary name and renamed, so that processes
can share the folder without a lock; a damaged one is passed over and fetched again. A cache that cannot be written (a full
disk, a folder of somebody else) is no cache: the run goes on without it.

The folder has at most about `most_bytes`: a process that has added a part of that looks at the whole folder and deletes what
nobody asked for longest. A deleted file that is still mapped stays readable.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from anabranch.storage.filesystem import Filesystem, Names, Part, byte_view, write_all

CACHED_FOLDERS = ("state/",)
"""What is cached: files whose names are unique for ever. Tables and records are not, their names come again."""

MOST_BYTES = 4 << 30
"""What the cache of a machine may hold, unless something else is set."""

TRIM_TO = 0.75
"""Down to this part of the bound the oldest entries are deleted."""

TRIM_EVERY = 1 / 32
"""A process looks at the folder when it has added this part of the bound: with up to eight processes, the bound holds."""

LONGEST_WRITE_S = 3600.0
"""A temporary file that is older was left by a process that died."""

_CHECKSUM_BYTES = 16
_TEMPORARY = ".new-"


@dataclass(frozen=True)
class Cache:
    """Where a machine caches state files, and how many bytes of them. The folder is made on each machine that runs a worker;
    by default one of this user's own among the temporary files. 0 bytes: none."""

    folder: str | None = None
    most_bytes: int = MOST_BYTES


class DiskCache:
    """The entries of one folder, as a process sees them."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._added_bytes = 0
        self._is_usable = most_bytes > 0 and is_ours(folder)
        if self._is_usable:
            self.trim()

    def get(self, name: str) -> pa.Buffer | None:
        """An entry, mapped; None if it is not there or damaged."""
        path = f"{self.folder}/{name}"
        try:
            with pa.memory_map(path, "r") as file:
                whole = file.read_buffer()
            os.utime(path)
        except OSError:
            return None
        content = whole.slice(0, max(0, whole.size - _CHECKSUM_BYTES))
        if xxhash.xxh3_128_digest(byte_view(content)) != whole.slice(content.size).to_pybytes():
            self.drop(name)
            return None
        return content

    def put(self, name: str, parts: Sequence[Part]) -> None:
        """Adds an entry, if that can be done."""
        views, digest = [byte_view(part) for part in parts], xxhash.xxh3_128()
        size = sum(view.nbytes for view in views)
        if not self._is_usable or size > self.most_bytes * (1 - TRIM_TO):
            return
        for view in views:
            digest.update(view)
        temporary = f"{self.folder}/{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                write_all(descriptor, [*views, memoryview(digest.digest())])
            finally:
                os.close(descriptor)
            os.rename(temporary, f"{self.folder}/{name}")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        self._added_bytes += size
        if self._added_bytes > self.most_bytes * TRIM_EVERY:
            self.trim()

    def drop(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{name}")

    def trim(self) -> None:
        """Deletes the entries that nobody asked for longest, if there is too much."""
        self._added_bytes = 0
        found: list[tuple[float, int, str]] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, entry.name))
        total = sum(size for _, size, _ in found)
        for modified_s, size, name in sorted(found):
            is_unfinished = name.startswith(_TEMPORARY)
            is_left = is_unfinished and time.time() - modified_s > LONGEST_WRITE_S
            if is_left or (total > self.most_bytes * TRIM_TO and not is_unfinished):
                self.drop(name)
                total -= size


@dataclass(frozen=True)
class CachedFilesystem:
    """A remote filesystem whose state files are kept on this machine too; in a worker, on the worker's machine.

    `name` tells the checkpoint from others in the folder.
    """

    inner: Filesystem
    name: str
    cache: Cache = field(default_factory=Cache)

    def __str__(self) -> str:
        return str(self.inner)

    def put(self, path: str, parts: Iterable[Part]) -> None:
        if not path.startswith(CACHED_FOLDERS):
            self.inner.put(path, parts)
            return
        views = [byte_view(part) for part in parts]
        self.inner.put(path, views)
        self._disk.put(self._entry(path), views)

    def get(self, path: str) -> pa.Buffer:
        if not path.startswith(CACHED_FOLDERS):
            return self.inner.get(path)
        disk, entry = self._disk, self._entry(path)
        found = disk.get(entry)
        if found is None:
            content = self.inner.get(path)
            disk.put(entry, [content])
            found = disk.get(entry)  # mapped, it need not stay in memory
            return content if found is None else found
        return found

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        if path.startswith(CACHED_FOLDERS):
            return self.get(path).slice(offset, length)
        return self.inner.get_part(path, offset, length)

    def delete(self, path: str) -> None:
        self.inner.delete(path)
        if path.startswith(CACHED_FOLDERS):
            self._disk.drop(self._entry(path))

    def list(self, directory: str) -> Names:
        return self.inner.list(directory)

    def folders(self, directory: str) -> Names:
        return self.inner.folders(directory)

    def unfinished(self, directory: str) -> Names:
        return self.inner.unfinished(directory)

    def remove_empty(self, directory: str) -> None:
        self.inner.remove_empty(directory)

    def age_s(self, path: str) -> float:
        return self.inner.age_s(path)

    def size_bytes(self, path: str) -> int:
        return self.inner.size_bytes(path)

    def copy(self, path: str, target: str) -> None:
        self.inner.copy(path, target)

    def _entry(self, path: str) -> str:
        return xxhash.xxh3_128_hexdigest(f"{self.name}\0{path}".encode())

    @property
    def _disk(self) -> DiskCache:
        folder = self.cache.folder or default_folder()
        key = (folder, self.cache.most_bytes)
        if key not in _disks:
            _disks[key] = DiskCache(*key)
        return _disks[key]


_disks: dict[tuple[str, int], DiskCache] = {}
"""One for each folder in a process, which counts what the process adds."""


def default_folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"anabranch-cache-{os.getuid()}")


def is_ours(folder: str) -> bool:
    """Makes the folder; whether nobody else can write to it. What others could write would be taken for state."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    except OSError:
        return False
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not others_write
