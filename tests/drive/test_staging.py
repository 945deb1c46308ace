"""Results on their way to files: mixed or one query after another, and never more than a piece in memory."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.drive.staging import Gathering, Spool, Staging, read_staged
from anabranch.engine import bounds
from anabranch.storage.filesystem import MemoryFilesystem


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


class OwnFiles(dict[str, list[int]]):
    """Sinks that take files: what was written for each."""

    def writer(self, query: str):  # type: ignore[no-untyped-def]
        def write(name: str, results: Iterator[pa.RecordBatch]) -> int:
            assert query not in self, "a file is written once"
            self[query] = [x for piece in results for x in piece.column("x").to_pylist()]
            return len(self[query])

        return write


@given(st.lists(st.tuples(st.sampled_from("pqrs"), st.lists(st.integers(0, 9), max_size=4)), max_size=30), st.booleans())
@settings(deadline=None)
def test_mixed_results_arrive_in_the_files_of_their_queries(found, is_small):
    """p and q have files of their own, r and s share one."""
    disk, own = MemoryFilesystem(), OwnFiles()
    staging = Staging(disk, {query: own.writer(query) for query in "pq"})
    with mock.patch.object(bounds, "RESULT_ROWS", 3 if is_small else 1 << 17):
        sizes = staging.stage("f", [(query, rows(*values)) for query, values in found], mixed="pqrs")
    for query in "pqrs":
        wanted = [x for name, values in found if name == query for x in values]
        if query in "pq":
            assert own.get(query, []) == wanted
            assert sizes.get(query, 0) == len(wanted)
            continue
        there = list(read_staged(disk, "f", query)) if query in sizes else []
        assert [x for piece in there for x in piece.column("x").to_pylist()] == wanted


def test_results_of_one_query_after_another_do_not_wait():
    own, disk, taken = OwnFiles(), MemoryFilesystem(), list[str]()

    def results() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield "p", rows(1)
        yield "p", rows(2)
        yield "r", rows(3)
        taken.append("written" if own == {"p": [1, 2]} else "not yet")

    with mock.patch.object(Spool, "add", side_effect=AssertionError("nothing waits")):
        Staging(disk, {"p": own.writer("p")}).stage("f", results())
    assert taken == ["written"]


def test_a_query_with_a_file_of_its_own_may_come_late():
    own = OwnFiles()
    Staging(MemoryFilesystem(), {"p": own.writer("p")}).stage("f", [("r", rows(1)), ("p", rows(2)), ("r", rows(3))])
    assert own == {"p": [2]}


def test_what_waits_is_bounded_by_a_piece_however_many_queries_there_are():
    waiting, most = Gathering(), 0
    with mock.patch.object(bounds, "RESULT_BYTES", 1000):
        for number in range(2_000):
            for _ in waiting.add(f"q{number % 300}", rows(1, 2, 3)):
                pass
            most = max(most, sum(size for _, size in waiting._sizes.values()))
            assert waiting._bytes == sum(size for _, size in waiting._sizes.values())
    assert most <= 1000
    assert sum(table.num_rows for _, table in waiting.rest()) <= 1000 / 8
    assert waiting._bytes == 0


def test_a_spool_is_gone_when_a_task_fails():
    spools = []

    def fail(name: str, results: Iterator[pa.RecordBatch]) -> int:
        next(results)
        raise OSError("the disk is full")

    class Kept(Spool):
        def __enter__(self) -> Spool:
            spools.append(self)
            return self

    with mock.patch("anabranch.drive.staging.Spool", Kept), pytest.raises(OSError, match="full"):
        Staging(MemoryFilesystem(), {"p": fail}).stage("f", [("p", rows(1)), ("r", rows(2))], mixed="pr")
    (spool,) = spools
    assert spool._file is not None
    assert spool._file.closed


class Watched(MemoryFilesystem):
    """Notes how much is fetched at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = list[int]()

    def get(self, path: str) -> pa.Buffer:
        self.fetched.append(self.size_bytes(path))
        return super().get(path)

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        self.fetched.append(length)
        return super().get(path).slice(offset, length)


def test_a_file_is_read_a_piece_at_a_time():
    """Where files cannot be mapped, who reads the results of a query fetches a piece of it after the other."""
    disk = Watched()
    with mock.patch.object(bounds, "RESULT_ROWS", 10):
        Staging(disk).stage("f", [(query, rows(*range(number, number + 10))) for number in range(50) for query in "qr"])
    size, found = disk.size_bytes("staged/f"), read_staged(disk, "f", "q")
    assert next(found).column("x").to_pylist() == [*range(10)]
    assert sum(disk.fetched) < size / 5
    assert sum(piece.num_rows for piece in found) == 490
    assert sum(disk.fetched) < size * 3 / 4, "the half that r has stays where it is, but for the list of pieces"
    assert max(disk.fetched) < size / 5
