"""Results on their way from a task to where they go: in files, which wait until their batch is committed and delivered.

A task writes one file for all queries whose results are read by whoever delivers them, `staged/<name>` in the folder of the
pipeline, and one for each query whose sink takes files as they are (parquet). Names are made of the batch, its token, the
slot and the attempt: a commit names the attempts that won, so it names these files as well.

A file of several queries is made of *pieces*, Arrow IPC streams, in the order in which results were found, and ends in a
list of them by query. So nothing of it is held in memory but a piece, and who reads one query's results reads no others'.

    header | piece | piece | … | list of pieces | its length, its checksum, MAGIC

Results of queries that run a join together come mixed. Those that go to files of their own wait on the local disk of the
task until all are found (`Spool`), for a file is written from its beginning to its end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import IO

import msgspec
import pyarrow as pa
import xxhash

from anabranch.engine import bounds
from anabranch.storage.container import ALIGNMENT_BYTES, HEADER
from anabranch.storage.filesystem import Filesystem, Part, byte_view
from anabranch.storage.record import damaged, require_magic

FOLDER = "staged"
END = b"anabranch end\n\0\0"

Result = tuple[str, pa.RecordBatch]
"""Some results, and the query that gives them."""

WriteResults = Callable[[str, Iterator[pa.RecordBatch]], int]
"""Writes the results of a query to a file of some name that its sink takes as it is; the bytes written, 0 if there were no
results."""


def staged_name(batch: int, token: str, slot: int, attempt: str) -> str:
    """What the files of an attempt are called that hold its results."""
    return f"{batch:010d}-{token}-{slot}-{attempt}"


def set_aside_of(stream: str) -> str:
    """Under what name the rows of a stream that could not be read are staged and delivered: no query can be called so.

    >>> set_aside_of("trades")
    'trades@set-aside'
    """
    return f"{stream}@set-aside"


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Where results lie in a file."""

    offset: int
    length: int
    checksum: int
    rows: int


@dataclass(frozen=True)
class Staging:
    """Where a task writes results to."""

    filesystem: Filesystem
    """That of the pipeline."""
    own_files: Mapping[str, WriteResults] = field(default_factory=dict)
    """For each query whose sink takes files, what writes them."""

    def stage(self, name: str, results: Iterable[Result], mixed: Collection[str] = ()) -> dict[str, int]:
        """Writes the results of a batch; those of queries that are not `mixed` with others come one query after another. The
        bytes that each query's take, if it has any."""
        found: dict[str, int] = {}
        with Spool() as spool:
            by_query = groupby(results, key=lambda result: result[0])
            for query, pieces in by_query:
                if query in self.own_files and query not in mixed:
                    if size := self.own_files[query](name, (piece for _, piece in pieces)):
                        found[query] = size
                    continue
                rest, written = self._spooled(chain(pieces, _flat(by_query)), spool), _Written()
                if (first := next(rest, None)) is not None:
                    self.filesystem.put(f"{FOLDER}/{name}", written.parts(chain([first], rest)))
                found |= written.sizes
            for query in spool.queries:
                if size := self.own_files[query](name, spool.read(query)):
                    found[query] = size
        return found

    def _spooled(self, results: Iterator[Result], spool: Spool) -> Iterator[Result]:
        """The results without those that go to files of their own: these wait."""
        for query, piece in results:
            if query in self.own_files:
                spool.add(query, piece)
            else:
                yield query, piece


def _flat(by_query: Iterator[tuple[str, Iterator[Result]]]) -> Iterator[Result]:
    for _, pieces in by_query:
        yield from pieces


class Spool:
    """Results of several queries that wait for their turn, in a local file that is gone with the task. In memory is only
    what goes into the file next."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._pieces: dict[str, list[tuple[int, int]]] = {}
        self._waiting = Gathering()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def queries(self) -> list[str]:
        """The queries that have results here, once all were added."""
        self._write(self._waiting.rest())
        return list(self._pieces)

    def add(self, query: str, piece: pa.RecordBatch) -> None:
        self._write(self._waiting.add(query, piece))

    def _write(self, found: Iterable[tuple[str, pa.Table]]) -> None:
        for query, rows in found:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="anabranch-")  # noqa: SIM115 (closed at the end)
            encoded = _encoded(rows)
            self._pieces.setdefault(query, []).append((self._file.tell(), encoded.size))
            self._file.write(byte_view(encoded))

    def read(self, query: str) -> Iterator[pa.RecordBatch]:
        """The results of a query, as they were added."""
        assert self._file is not None
        for offset, size in self._pieces[query]:
            self._file.seek(offset)
            yield from pa.ipc.open_stream(self._file.read(size))


class _Written:
    """A file of results in the making."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Piece]] = {}

    @property
    def sizes(self) -> dict[str, int]:
        return {query: sum(piece.length for piece in pieces) for query, pieces in self.pieces.items()}

    def parts(self, results: Iterable[Result]) -> Iterator[Part]:
        """The file, piece by piece."""
        yield HEADER
        offset = len(HEADER)
        for query, rows in gathered_by_query(results):
            encoded = _encoded(rows)
            yield encoded
            checksum = xxhash.xxh3_64_intdigest(byte_view(encoded))
            self.pieces.setdefault(query, []).append(Piece(offset, encoded.size, checksum, rows.num_rows))
            # Arrow wants its buffers aligned.
            gap = -encoded.size % ALIGNMENT_BYTES
            yield bytes(gap)
            offset += encoded.size + gap
        listed = msgspec.msgpack.encode(self.pieces)
        yield listed
        yield len(listed).to_bytes(8, "little") + xxhash.xxh3_64_digest(listed) + END


class Gathering:
    """Results of several queries on their way: small pieces of one query go together. What waits of all queries is not more
    than a piece, so it is bounded however many queries there are."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """The rows and the bytes that wait of each query."""
        self._bytes = 0

    def add(self, query: str, piece: pa.RecordBatch) -> Iterator[tuple[str, pa.Table]]:
        """Takes a piece, and gives what is enough to go on."""
        self._waiting.setdefault(query, []).append(piece)
        rows, size = self._sizes.get(query, (0, 0))
        self._sizes[query], self._bytes = (rows + piece.num_rows, size + piece.nbytes), self._bytes + piece.nbytes
        if self._bytes >= bounds.RESULT_BYTES:
            yield from self.rest()
        elif self._sizes[query][0] >= bounds.RESULT_ROWS:
            yield query, self._taken(query)

    def rest(self) -> Iterator[tuple[str, pa.Table]]:
        """What is left."""
        for query in list(self._waiting):
            yield query, self._taken(query)

    def _taken(self, query: str) -> pa.Table:
        self._bytes -= self._sizes.pop(query)[1]
        return pa.Table.from_batches(self._waiting.pop(query))


def gathered_by_query(results: Iterable[Result]) -> Iterator[tuple[str, pa.Table]]:
    """Results of several queries in pieces."""
    waiting = Gathering()
    for query, piece in results:
        yield from waiting.add(query, piece)
    yield from waiting.rest()


def gathered(results: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Results in pieces: small ones go together, none is larger than a piece and what had gathered before it."""
    return (rows for _, rows in gathered_by_query(("", piece) for piece in results))


def _encoded(rows: pa.Table) -> pa.Buffer:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return stream.getvalue()


def read_staged(filesystem: Filesystem, name: str, query: str) -> Iterator[pa.RecordBatch]:
    """The results of a query in a file, as they were found. One piece is fetched after the other."""
    path = f"{FOLDER}/{name}"
    try:
        for piece in _listed(filesystem, path).get(query, []):
            found = filesystem.get_part(path, piece.offset, piece.length)
            if xxhash.xxh3_64_intdigest(byte_view(found)) != piece.checksum:
                end = piece.offset + piece.length
                raise damaged(path, f"the checksum of bytes {piece.offset} to {end} does not match")
            yield from pa.ipc.open_stream(found)
    except FileNotFoundError:
        raise damaged(path, "it holds results that were not delivered yet, and is missing") from None


def _listed(filesystem: Filesystem, path: str) -> dict[str, list[Piece]]:
    size, tail_size = filesystem.size_bytes(path), 8 + 8 + len(END)
    require_magic(filesystem.get_part(path, 0, min(len(HEADER), size)).to_pybytes(), path)
    if size < len(HEADER) + tail_size:
        raise damaged(path, f"it has only {size} bytes")
    tail = filesystem.get_part(path, size - tail_size, tail_size).to_pybytes()
    length = int.from_bytes(tail[:8], "little")
    if not tail.endswith(END) or length > size - len(HEADER) - tail_size:
        raise damaged(path, "it has no end")
    listed = filesystem.get_part(path, size - tail_size - length, length).to_pybytes()
    if xxhash.xxh3_64_digest(listed) != tail[8:16]:
        raise damaged(path, "the checksum of its list of pieces does not match")
    return msgspec.msgpack.decode(listed, type=dict[str, list[Piece]])
