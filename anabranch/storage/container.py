"""Files that hold many binary arrays, so that a task writes one file for a batch instead of one for each array.

A container is a 64-byte header and then *segments*, each at a multiple of 64 bytes: a cache line, and what Arrow asks
of its buffers, so that a mapped segment can be used in place by numpy, numba and Arrow. There is no directory inside:
whoever wrote the segment holds a `Segment` that says where it is, and puts it into the record it commits. A container
that no record names therefore cannot be read by accident, and its format has nothing to evolve.

Names of containers are unique and their content never changes. So a reader may keep a file open as long as it likes
without asking whether it is still current, and has to check each segment only once: invalidation does not exist.
Checksums are computed while the data is still in the writer's caches, and catch what the medium did to it since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import xxhash

from anabranch.errors import ForeignStateError
from anabranch.storage.filesystem import Filesystem, Part, byte_view
from anabranch.storage.record import FORMAT_VERSION, damaged, require_magic

ALIGNMENT_BYTES = 64
HEADER = f"anabranch {FORMAT_VERSION} container\n".encode("ascii").ljust(ALIGNMENT_BYTES, b"\0")
"""Begins like a sealed record, so that a person who opens the file sees whose it is."""

_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Where one array lies: everything needed to read it, and to know that it is the one that was written.

    >>> msgspec.json.encode(Segment("log/a", 64, 8, 2**64 - 1))
    b'["log/a",64,8,18446744073709551615]'
    """

    file: str
    offset: int
    length: int
    checksum: int
    """xxh3_64 of the bytes, unsigned."""


class ContainerWriter:
    """Collects arrays and writes them as one file.

    Nothing is copied: the writer refers to what it was given, which the caller leaves unchanged until `write`.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk, writer = MemoryFilesystem(), ContainerWriter("log/a")
    >>> segment = writer.add(b"rows")
    >>> writer.write(disk)
    >>> ContainerReader(disk).segment(segment).to_pybytes()
    b'rows'
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._parts: list[Part] = []
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The length the file will have; 0 as long as nothing was added, for then there will be no file."""
        return self._size_bytes

    def add(self, buffer: Part) -> Segment:
        """Make a segment of one contiguous buffer or array; empty is fine."""
        view = byte_view(buffer)
        return self._append([view], view.nbytes, xxhash.xxh3_64_intdigest(view))

    def add_many(self, buffers: Iterable[Part]) -> Segment:
        """Make one segment of several buffers, laid end to end without alignment between them."""
        views = [byte_view(buffer) for buffer in buffers]
        digest = xxhash.xxh3_64()
        for view in views:
            digest.update(view)
        return self._append(views, sum(view.nbytes for view in views), digest.intdigest())

    def write(self, filesystem: Filesystem) -> None:
        """Write the file in one put, or no file if nothing was added."""
        if self._parts:
            filesystem.put(self.path, self._parts)

    def _append(self, views: list[memoryview], length: int, checksum: int) -> Segment:
        if not self._parts:
            self._parts.append(HEADER)
            self._size_bytes = len(HEADER)
        gap = -self._size_bytes % ALIGNMENT_BYTES
        if gap:
            self._parts.append(_PADDING[:gap])
        offset = self._size_bytes + gap
        self._parts.extend(views)
        self._size_bytes = offset + length
        return Segment(self.path, offset, length, checksum)


@dataclass
class _OpenFile:
    content: pa.Buffer
    verified: set[Segment] = field(default_factory=set)


class ContainerReader:
    """Hands out segments as slices of open files, each verified the first time it is asked for.

    A slice keeps its file mapped, so `forget` and `retain` never invalidate what was handed out; they only let go of
    the reader's own hold.
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._open: dict[str, _OpenFile] = {}

    def segment(self, ref: Segment) -> pa.Buffer:
        """Return the bytes of a segment without copying them.

        Raises DamagedStateError if the file is missing, too short or changed, ForeignStateError if it is not a
        container of this version.
        """
        file = self._open.get(ref.file)
        if file is None:
            file = self._open[ref.file] = _OpenFile(self._read(ref.file))
        if ref in file.verified:
            return file.content.slice(ref.offset, ref.length)
        end = ref.offset + ref.length
        if ref.offset < len(HEADER) or ref.length < 0 or end > file.content.size:
            raise damaged(ref.file, f"it has {file.content.size} bytes, a segment in it ends at byte {end}")
        piece = file.content.slice(ref.offset, ref.length)
        if xxhash.xxh3_64_intdigest(byte_view(piece)) != ref.checksum:
            raise damaged(ref.file, f"the checksum of bytes {ref.offset} to {end} does not match")
        file.verified.add(ref)
        return piece

    def forget(self, path: str) -> None:
        """Close one file, if it is open."""
        self._open.pop(path, None)

    def retain(self, paths: Collection[str]) -> None:
        """Close all files but these: what a commit no longer names will not be asked for again."""
        for path in self._open.keys() - set(paths):
            self.forget(path)

    def _read(self, path: str) -> pa.Buffer:
        try:
            content = self._filesystem.get(path)
        except FileNotFoundError:
            raise damaged(path, "it is missing although a record names it") from None
        header = content.slice(0, min(len(HEADER), content.size)).to_pybytes()
        require_magic(header, path)
        if len(header) < len(HEADER):
            raise damaged(path, f"it has only {len(header)} bytes")
        if header != HEADER:
            raise ForeignStateError(
                f"{path}: not a container of format version {FORMAT_VERSION}: "
                "use the release that wrote this checkpoint, or start with an empty one"
            )
        return content
