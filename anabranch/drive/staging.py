"""Results on their way from a task to where they go: in files, which wait until their batch is committed and delivered.

A task writes one file for all queries whose results are read by whoever delivers them, `staged/<name>` in the folder of the
pipeline, and one for each query whose sink takes files as they are (parquet). Names are made of the batch, its token, the
slot and the attempt: a commit names the attempts that won, so it names these files as well.

A file of several queries is made of *pieces*, Arrow IPC streams, in the order in which results were found, and ends in a
list of them by query. So nothing of it is held in memory but a piece, and who reads one query's results reads no others'.

    header | piece | piece | … | list of pieces | its length, its checksum, MAGIC
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby

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

    def stage(self, name: str, results: Iterable[Result]) -> dict[str, int]:
        """Writes the results of a batch, those of one query after those of another and of queries with files of their own
        first. The bytes that each query's take, if it has any."""
        found: dict[str, int] = {}
        by_query = groupby(results, key=lambda result: result[0])
        for query, pieces in by_query:
            if query not in self.own_files:
                rest, written = chain(pieces, self._others(by_query)), _Written()
                if (first := next(rest, None)) is not None:
                    self.filesystem.put(f"{FOLDER}/{name}", written.parts(chain([first], rest)))
                return found | written.sizes
            if size := self.own_files[query](name, (piece for _, piece in pieces)):
                found[query] = size
        return found

    def _others(self, by_query: Iterator[tuple[str, Iterator[Result]]]) -> Iterator[Result]:
        for query, pieces in by_query:
            assert query not in self.own_files, f"results of {query}, which has a file of its own, come too late"
            yield from pieces


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
        for query, found in groupby(results, key=lambda result: result[0]):
            for rows in gathered(piece for _, piece in found):
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


def gathered(results: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Results in pieces: small ones go together, none is larger than a piece and what had gathered before it."""
    waiting: list[pa.RecordBatch] = []
    for piece in results:
        waiting.append(piece)
        rows, size = sum(p.num_rows for p in waiting), sum(p.nbytes for p in waiting)
        if rows >= bounds.RESULT_ROWS or size >= bounds.RESULT_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _encoded(rows: pa.Table) -> pa.Buffer:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return stream.getvalue()


def read_staged(filesystem: Filesystem, name: str, query: str) -> Iterator[pa.RecordBatch]:
    """The results of a query in a file, as they were found."""
    path = f"{FOLDER}/{name}"
    content = _content(filesystem, path)
    for piece in _listed(content, path).get(query, []):
        found = content.slice(piece.offset, piece.length)
        if xxhash.xxh3_64_intdigest(byte_view(found)) != piece.checksum:
            end = piece.offset + piece.length
            raise damaged(path, f"the checksum of bytes {piece.offset} to {end} does not match")
        yield from pa.ipc.open_stream(found)


def _content(filesystem: Filesystem, path: str) -> pa.Buffer:
    try:
        return filesystem.get(path)
    except FileNotFoundError:
        raise damaged(path, "it holds results that were not delivered yet, and is missing") from None


def _listed(content: pa.Buffer, path: str) -> dict[str, list[Piece]]:
    require_magic(content.slice(0, min(len(HEADER), content.size)).to_pybytes(), path)
    tail_size = 8 + 8 + len(END)
    if content.size < len(HEADER) + tail_size:
        raise damaged(path, f"it has only {content.size} bytes")
    tail = content.slice(content.size - tail_size, tail_size).to_pybytes()
    length = int.from_bytes(tail[:8], "little")
    if not tail.endswith(END) or length > content.size - len(HEADER) - tail_size:
        raise damaged(path, "it has no end")
    listed = content.slice(content.size - tail_size - length, length).to_pybytes()
    if xxhash.xxh3_64_digest(listed) != tail[8:16]:
        raise damaged(path, "the checksum of its list of pieces does not match")
    return msgspec.msgpack.decode(listed, type=dict[str, list[Piece]])
