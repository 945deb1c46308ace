"""The few operations on files that durable state needs, on a local disk, on anything pyarrow reaches, and in memory.

The surface is small because each guarantee must hold on every implementation: a file is put whole or not at all (where
the medium can promise it; where it cannot, checksums in `record` and `container` notice), is never changed in place,
and is read whole. There is no append, no lock and no rename: object stores have none of them, and state whose files are
immutable and uniquely named needs none.

Paths are relative to the root, with forward slashes, on every platform. `LocalFilesystem` needs POSIX (`writev`, and
renaming over a file that is still mapped); elsewhere use `ArrowFilesystem`. Both can be pickled, to travel to workers.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

Part: TypeAlias = bytes | bytearray | memoryview | pa.Buffer | npt.NDArray[Any]
"""Anything contiguous that can be written without being copied first."""

Names: TypeAlias = list[str]  # the classes below have a method called list, which would hide the type

UNFINISHED_PREFIX = ".put-"
"""How the temporary names of `put` begin; no other file may be called so."""

PARTS_PER_CALL = 1024
"""Linux takes at most this many buffers (IOV_MAX) in one `writev`."""

STREAM_BUFFER_BYTES = 1 << 20
"""Smaller parts are gathered into writes of this size on pyarrow filesystems; larger ones pass through uncopied."""

GATHERED_BYTES = 8 << 20
"""On object stores, parts up to this many bytes are at hand before the object is begun: if one of them cannot be had, the
object that is there stays as it was. All records are smaller."""

OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
"""Filesystems (by pyarrow's type name) without folders and without a cheap rename; an object appears when closed."""


OWNER_ALONE_FILE, OWNER_ALONE_FOLDER = 0o600, 0o700
"""Modes of what holds rows of users: nobody else may read or list it."""


class Filesystem(Protocol):
    """What the rest of the package may ask of a medium."""

    def put(self, path: str, parts: Iterable[Part]) -> None:
        """Write a whole file, the concatenation of `parts`; folders are made, a file already there is replaced. Parts that
        come from an iterator are written one by one as it gives them; if it fails there is no file."""

    def get(self, path: str) -> pa.Buffer:
        """Return the whole file, mapped rather than read where possible; FileNotFoundError if there is none."""

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        """Return so many bytes of a file that has them, mapped rather than read where possible; no more of it is fetched.
        FileNotFoundError if there is none."""

    def list(self, directory: str) -> Names:
        """Return the sorted names of the files directly in a directory; none if it does not exist."""

    def folders(self, directory: str) -> Names:
        """Return the sorted names of the folders directly in a directory, which hold files themselves or in folders."""

    def unfinished(self, directory: str) -> Names:
        """Return the names of what puts that never ended left in a directory; only the sweep wants to see them."""

    def delete(self, path: str) -> None:
        """Remove a file; no error if there is none. Buffers that `get` returned stay readable."""

    def remove_empty(self, directory: str) -> None:
        """Remove a directory that holds nothing; no error if it holds something, or there is none."""

    def age_s(self, path: str) -> float:
        """Return the seconds since the file was written; FileNotFoundError if there is none."""

    def size_bytes(self, path: str) -> int:
        """Return how long the file is; FileNotFoundError if there is none."""

    def copy(self, path: str, target: str) -> None:
        """Copy a file within the medium, by the medium itself where it can; a file already there is replaced."""


def byte_view(part: Part) -> memoryview:
    """See any contiguous part as plain bytes, without copying it.

    Arrays go through numpy because times do not export the buffer protocol; parts that are not contiguous are refused
    rather than copied in silence.

    >>> byte_view(np.array([1, 2], dtype="<i2")).tobytes()
    b'\\x01\\x00\\x02\\x00'
    """
    if isinstance(part, np.ndarray):
        if not part.flags.c_contiguous:
            raise ValueError(f"an array of shape {part.shape} is not contiguous: copy it before storing it")
        return part.reshape(-1).view(np.uint8).data
    view = memoryview(part)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _temporary_beside(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{UNFINISHED_PREFIX}{uuid.uuid4().hex}"


class _Folders:
    """The two ways to look at a folder in which `put` leaves temporary names if it is killed."""

    def list(self, directory: str) -> Names:
        return [name for name in self._files(directory) if not name.startswith(UNFINISHED_PREFIX)]

    def unfinished(self, directory: str) -> Names:
        return [name for name in self._files(directory) if name.startswith(UNFINISHED_PREFIX)]

    def _files(self, directory: str) -> Names:
        raise NotImplementedError


@dataclass(frozen=True)
class LocalFilesystem(_Folders):
    """A folder of this machine, or one that is mounted.

    With `fsync` a put survives a power cut once it has returned; without, it survives a killed process. The default is
    without: the log is written for every batch, and sources can be read again from the last whole commit.

    State holds rows of users: files and folders that are made at the root and below are for their owner alone, whatever the
    umask, unless they are `shared`. Folders that are there already, and those above the root, are left as they are.
    """

    root: str
    fsync: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", os.path.abspath(self.root))

    def __str__(self) -> str:
        return self.root

    def below(self, name: str) -> LocalFilesystem:
        """The same for a folder in this one."""
        return replace(self, root=f"{self.root}/{name}")

    def put(self, path: str, parts: Iterable[Part]) -> None:
        target = self._absolute(path)
        temporary = _temporary_beside(target)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(temporary, flags, self._file_mode)
        except FileNotFoundError:
            self._make_folders(os.path.dirname(target))
            descriptor = os.open(temporary, flags, self._file_mode)
        try:
            try:
                for together in [parts] if isinstance(parts, Sequence) else ([part] for part in parts):
                    write_all(descriptor, [byte_view(part) for part in together])
                if self.fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if self.fsync:
            self._sync_folders(os.path.dirname(target))

    def get(self, path: str) -> pa.Buffer:
        with pa.memory_map(self._absolute(path), "r") as file:
            return file.read_buffer()

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self.get(path).slice(offset, length)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._absolute(path))

    def remove_empty(self, directory: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self._absolute(directory))

    def age_s(self, path: str) -> float:
        return max(0.0, time.time() - os.stat(self._absolute(path)).st_mtime)

    def size_bytes(self, path: str) -> int:
        return os.stat(self._absolute(path)).st_size

    def copy(self, path: str, target: str) -> None:
        self.put(target, [self.get(path)])

    def folders(self, directory: str) -> Names:
        try:
            with os.scandir(self._absolute(directory)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def _absolute(self, path: str) -> str:
        return f"{self.root}/{path}"

    @property
    def _file_mode(self) -> int:
        return 0o666 if self.shared else OWNER_ALONE_FILE

    def _make_folders(self, folder: str) -> None:
        if self.shared:
            os.makedirs(folder, exist_ok=True)
            return
        missing = []
        while folder.startswith(self.root) and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for new in reversed(missing):
            make_private_folder(new)

    def _files(self, directory: str) -> Names:
        try:
            with os.scandir(self._absolute(directory)) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    def _sync_folders(self, folder: str) -> None:
        """Make the new name durable, and the names of folders that may be new, up to the root."""
        synced = ""
        while len(folder) >= len(self.root) and folder != synced:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            synced, folder = folder, os.path.dirname(folder)


def make_private_folder(path: str) -> None:
    """Makes a folder for its owner alone, and those above it as usual; one that is there stays as it is."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, OWNER_ALONE_FOLDER)


def write_all(descriptor: int, views: list[memoryview]) -> None:
    """Hand the kernel all parts in few calls; a call may take less than offered (2 GiB at most): go on from there."""
    views = [view for view in views if view.nbytes]
    first = 0
    while first < len(views):
        written = os.writev(descriptor, views[first : first + PARTS_PER_CALL])
        while first < len(views) and written >= views[first].nbytes:
            written -= views[first].nbytes
            first += 1
        if written:
            views[first] = views[first][written:]


@dataclass(frozen=True)
class ArrowFilesystem(_Folders):
    """Any `pyarrow.fs.FileSystem`: S3, GCS, Azure, HDFS, or fsspec through pyarrow's wrapper.

    Filesystems with folders get a temporary name and a rename. Object stores are written under the final name at once,
    because there an object appears only when its stream is closed; a writer that dies before leaves nothing. A writer that
    *fails* closes the stream all the same (pyarrow has no other end of it), and what it has written so far appears: such a
    torn object is deleted. Whoever reads checks what is read, for the deletion may fail too.
    """

    filesystem: pafs.FileSystem
    root: str = ""

    def __str__(self) -> str:
        base, path = base_of(self.filesystem, self.root)
        return f"{base.type_name}://{path}"

    def below(self, name: str) -> ArrowFilesystem:
        """The same for a folder in this one."""
        return replace(self, root=self._absolute(name))

    def put(self, path: str, parts: Iterable[Part]) -> None:
        target = self._absolute(path)
        if self.is_object_store:
            self._put_object(target, parts)
            return
        temporary = _temporary_beside(target)
        try:
            self._write(temporary, parts)
            self.filesystem.move(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise

    def get(self, path: str) -> pa.Buffer:
        with self.filesystem.open_input_file(self._absolute(path)) as file:
            return file.read_buffer()

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        with self.filesystem.open_input_file(self._absolute(path)) as file:
            file.seek(offset)
            return file.read_buffer(length)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._absolute(path))

    def remove_empty(self, directory: str) -> None:
        """Stores have no empty directories; elsewhere pyarrow would remove one with what is put into it meanwhile."""

    def age_s(self, path: str) -> float:
        info = self.filesystem.get_file_info(self._absolute(path))
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(path)
        if info.mtime_ns is None:
            return 0.0  # a store that does not tell: always too young to sweep
        return max(0.0, time.time() - int(info.mtime_ns) / 1e9)

    def size_bytes(self, path: str) -> int:
        info = self.filesystem.get_file_info(self._absolute(path))
        if not info.is_file:
            raise FileNotFoundError(path)
        return int(info.size)

    def copy(self, path: str, target: str) -> None:
        if not self.is_object_store:
            self.put(target, [self.get(path)])
            return
        try:
            self.filesystem.copy_file(self._absolute(path), self._absolute(target))
        except OSError:
            self.size_bytes(path)  # stores have their own ways to say that there is no such object
            raise

    def folders(self, directory: str) -> Names:
        selector = pafs.FileSelector(self._absolute(directory), allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    @property
    def is_object_store(self) -> bool:
        """Whether there is no rename."""
        return base_of(self.filesystem, self.root)[0].type_name in OBJECT_STORES

    def _absolute(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}".rstrip("/") if self.root else path

    def _put_object(self, target: str, parts: Iterable[Part]) -> None:
        rest, gathered, size = iter(parts), [], 0
        for part in rest:
            gathered.append(byte_view(part))
            size += gathered[-1].nbytes
            if size > GATHERED_BYTES:
                break
        try:
            self._write(target, chain(gathered, rest))
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(target)
            raise

    def _write(self, path: str, parts: Iterable[Part]) -> None:
        with self._opened(path) as stream:
            for part in parts:
                stream.write(byte_view(part))

    def _opened(self, path: str) -> pa.NativeFile:
        """A new file; its folder is made if there is none."""
        # compression is named because pyarrow's default would compress files by their ending
        settings = {"compression": None, "buffer_size": STREAM_BUFFER_BYTES}
        try:
            return self.filesystem.open_output_stream(path, **settings)
        except FileNotFoundError:
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            return self.filesystem.open_output_stream(path, **settings)

    def _files(self, directory: str) -> Names:
        selector = pafs.FileSelector(self._absolute(directory), allow_not_found=True)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector) if info.is_file)


def base_of(filesystem: pafs.FileSystem, path: str) -> tuple[pafs.FileSystem, str]:
    """A filesystem that is no part of another, and the path in it."""
    while isinstance(filesystem, pafs.SubTreeFileSystem):
        path = f"{filesystem.base_path.rstrip('/')}/{path}".rstrip("/")
        filesystem = filesystem.base_fs
    return filesystem, path


class MemoryFilesystem:
    """A dictionary, for tests and simulations; its clock can be the simulation's."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._files: dict[str, tuple[pa.Buffer, float]] = {}

    def copied(self) -> MemoryFilesystem:
        """Another one with the same files."""
        other = MemoryFilesystem(self._clock)
        other._files = dict(self._files)
        return other

    def put(self, path: str, parts: Iterable[Part]) -> None:
        stream = pa.BufferOutputStream()
        for part in parts:
            stream.write(byte_view(part))
        self._files[path] = (stream.getvalue().slice(), self._clock())  # a slice of a buffer is read-only

    def get(self, path: str) -> pa.Buffer:
        return self._entry(path)[0]

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        return self.get(path).slice(offset, length)

    def list(self, directory: str) -> Names:
        folder = f"{directory}/" if directory else ""
        names = (path.removeprefix(folder) for path in tuple(self._files) if path.startswith(folder))
        return sorted(name for name in names if "/" not in name)

    def folders(self, directory: str) -> Names:
        folder = f"{directory}/" if directory else ""
        names = (path.removeprefix(folder) for path in tuple(self._files) if path.startswith(folder))
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def unfinished(self, directory: str) -> Names:
        return []

    def delete(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_empty(self, directory: str) -> None:
        """A directory is what its files are called."""

    def age_s(self, path: str) -> float:
        return max(0.0, self._clock() - self._entry(path)[1])

    def size_bytes(self, path: str) -> int:
        return int(self._entry(path)[0].size)

    def copy(self, path: str, target: str) -> None:
        self.put(target, [self.get(path)])

    def _entry(self, path: str) -> tuple[pa.Buffer, float]:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(path) from None
