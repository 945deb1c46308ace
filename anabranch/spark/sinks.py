"""Where results go. Each sink says what it guarantees when results are delivered again.

A batch whose delivery failed, or was not recorded, is delivered again, with the same number, the same token and the same
multiset of results. So a sink that remembers tokens gets every result exactly once; one that does not may see a batch twice.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from anabranch.control.sink_notes import SinkNote
from anabranch.errors import StateError, UnsupportedSinkError, known_names
from anabranch.show.rows import rows_text
from anabranch.spark.published import MARKER, OWNER, held_columns, is_mark_of, other_owner, other_results, read
from anabranch.spark.remote_parquet import RemoteParquetSink
from anabranch.spark.stage import STAGING, Takes
from anabranch.storage.filesystem import Filesystem, LocalFilesystem
from anabranch.storage.location import Place, located

__all__ = ["Sink", "arrow", "console", "memory", "parquet", "read", "table"]

Deliver = Callable[[DataFrame, int], None]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise AttributeError(f"anabranch.sinks has no {name}; {known_names(name, __all__)}")


class Sink(Protocol):
    """Takes the results of a query, batch by batch. A batch without results is not brought."""

    @property
    def guarantee(self) -> str:
        """What happens when a batch is delivered again."""

    @property
    def takes(self) -> Takes:
        """In which form results are brought."""

    def open(self, owner: str) -> None:
        """Called when a query starts, with the name of its checkpoint: refuses what holds the results of another."""

    def holds(self) -> pa.Schema | None:
        """The columns of the results that it holds; None if it holds none, or cannot tell."""

    def staging(self) -> Filesystem | None:
        """Where tasks write files (sinks that take files)."""

    def deliver(self, results: Any, number: int) -> None:
        """Takes the results of a batch as a DataFrame, or as a table or a reader of pyarrow's (sinks that take these)."""

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        """Makes staged files visible, all at once (sinks that take files). The token tells a batch that is delivered again
        from another of the same number."""


class Called:
    """What sinks have in common that are no files."""

    def open(self, owner: str) -> None:
        """Whatever the checkpoint."""

    def holds(self) -> pa.Schema | None:
        return None

    def staging(self) -> Filesystem | None:
        return None

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        raise AssertionError("it takes no files")


@dataclass(frozen=True)
class CallableSink(Called):
    """Calls a function with the results as a DataFrame and the number of the batch."""

    function: Deliver
    guarantee: str = "at least once, with the same number and the same multiset each time"
    name: str = ""
    """How errors call it; without a name, as the function is called."""
    takes = Takes.FRAME

    def __str__(self) -> str:
        return self.name or _called(self.function)

    def deliver(self, results: DataFrame, number: int) -> None:
        self.function(results, number)


@dataclass(frozen=True)
class ArrowSink(Called):
    """Calls a function with the results as an Arrow table and the number of the batch. No Spark job is run for it."""

    function: Callable[[pa.Table, int], None]
    guarantee: str = "at least once, with the same number and the same multiset each time"
    takes = Takes.ARROW

    def __str__(self) -> str:
        return _called(self.function)

    def deliver(self, results: pa.Table, number: int) -> None:
        self.function(results, number)


@dataclass(frozen=True)
class ConsoleSink(Called):
    """Prints the first rows of each batch, and how many there are. No more than these are kept meanwhile."""

    rows: int = 20
    query: str = ""
    guarantee: str = "at least once, with the same number and the same multiset each time"
    takes = Takes.PIECES

    def __str__(self) -> str:
        return "console"

    def deliver(self, results: pa.RecordBatchReader, number: int) -> None:
        first, count = list[pa.RecordBatch](), 0
        for piece in results:
            if count < self.rows:
                first.append(piece.slice(0, self.rows - count))
            count += piece.num_rows
        title = f"{self.query}, batch {number}" if self.query else f"batch {number}"
        shown = rows_text(pa.Table.from_batches(first, results.schema), count)
        # In one go: other queries print, too.
        print(f"{title}: {count:,} results\n{shown}\n\n", end="", flush=True)


@dataclass(frozen=True)
class MemorySink(Called):
    """Keeps results in the driver, by batch: a batch that is delivered again replaces what it gave before."""

    batches: dict[int, pa.Table] = field(default_factory=dict)
    guarantee: str = "exactly once, as long as the driver lives"
    takes = Takes.ARROW

    def __str__(self) -> str:
        return "memory"

    def holds(self) -> pa.Schema | None:
        return self.batches[max(self.batches)].schema if self.batches else None

    def deliver(self, results: pa.Table, number: int) -> None:
        self.batches[number] = results

    def table(self) -> pa.Table:
        """All results so far. Where a query was started with other columns meanwhile, those that a result lacks are NULL."""
        batches = [self.batches[number] for number in sorted(self.batches)]
        return pa.concat_tables(batches, promote_options="default") if batches else pa.table({})


@dataclass(frozen=True)
class ParquetSink:
    """One folder `batch=<n>` per batch, which appears whole.

    Tasks write their results to a hidden folder. When the batch is committed its files are gathered beside a marker with the
    token of the batch and the names of the files, and the folder gets its name in one rename. If a folder of that name is
    there already and has the token, the batch was published before: the same results. One with another token is an error.
    """

    path: str
    guarantee: str = "exactly once"
    takes = Takes.FILES

    def __str__(self) -> str:
        return f"parquet in {self.path}"

    def open(self, owner: str) -> None:
        """Marks the folder as this checkpoint's: batches are told apart by number, so two runs must not share it."""
        mark = os.path.join(self.path, OWNER)
        found = None
        if os.path.exists(mark):
            with open(mark, encoding="utf-8") as file:
                found = file.read().strip()
        elif os.path.isdir(self.path):
            found = next((name for name in os.listdir(self.path) if name.startswith("batch=")), None)
        if not is_mark_of(found, owner):
            raise other_owner(self.path)
        os.makedirs(self.path, exist_ok=True)
        with open(mark, "w", encoding="utf-8") as file:
            file.write(owner + "\n")

    def holds(self) -> pa.Schema | None:
        return held_columns(LocalFilesystem(self.path))

    def staging(self) -> Filesystem | None:
        return LocalFilesystem(self.path, shared=True)  # results are for whom the folder and the umask let in

    def deliver(self, results: Any, number: int) -> None:
        raise AssertionError("tasks write the results")

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        target = os.path.join(self.path, f"batch={number}")
        if files and not self._is_published(target, token):
            gathered = os.path.join(self.path, STAGING, f"publishing-{number}-{token}")
            os.makedirs(gathered, exist_ok=True)
            names = {os.path.basename(file) for file in files}
            # An earlier try may have moved some of them already, or files of an attempt that counts no more.
            for name in set(os.listdir(gathered)) - names:
                os.unlink(os.path.join(gathered, name))
            for file in files:
                staged, moved = os.path.join(self.path, file), os.path.join(gathered, os.path.basename(file))
                if not os.path.exists(moved):
                    self._move(staged, moved)
            with open(os.path.join(gathered, MARKER), "w", encoding="utf-8") as marker:
                json.dump({"token": token, "files": sorted(names)}, marker)
            os.rename(gathered, target)
        self._clear(number)

    def _is_published(self, target: str, token: str) -> bool:
        if not os.path.isdir(target):
            return False
        found, marker = None, os.path.join(target, MARKER)
        with contextlib.suppress(FileNotFoundError, ValueError), open(marker, encoding="utf-8") as file:
            found = json.load(file).get("token")
        if found != token:
            raise other_results(target, found, token)
        return True

    def _move(self, staged: str, moved: str) -> None:
        try:
            os.rename(staged, moved)
        except FileNotFoundError:
            raise StateError(
                f"{staged}, which holds results that were not published yet, is missing: restore this file from a backup, "
                "or start with an empty checkpoint and another folder"
            ) from None

    def _clear(self, number: int) -> None:
        """Deletes what attempts at this batch and earlier ones left behind."""
        folder = os.path.join(self.path, STAGING)
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            owner = name.removeprefix("publishing-").split("-")[0]
            if owner.isdigit() and int(owner) <= number:
                path = os.path.join(folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def memory() -> MemorySink:
    """Results stay in the driver; read them with `sink.table()`."""
    return MemorySink()


def parquet(place: Place) -> Sink:
    """Parquet files, exactly once: in a folder, or on an object store (a URI, or a filesystem of pyarrow's with a path). On
    a store `read` sees whole batches; readers that do not go by the marker may see a part of the newest."""
    folder = located(place)
    return ParquetSink(folder.root) if isinstance(folder, LocalFilesystem) else RemoteParquetSink(folder)


def arrow(function: Callable[[pa.Table, int], None]) -> ArrowSink:
    """Calls a function with the results of a batch as a table of pyarrow's, in the driver, and the number of the batch. It
    may be called from another thread than the one that started the session."""
    return ArrowSink(function)


def console(rows: int = 20, query: str = "") -> ConsoleSink:
    """Prints up to so many rows of each batch, under the name of a query."""
    return ConsoleSink(rows, query)


def table(name: str) -> CallableSink:
    """Appends to a table of the catalog."""

    def append(results: DataFrame, number: int) -> None:
        results.write.mode("append").saveAsTable(name)

    return CallableSink(append, name=f"table {name}")


def keeps_results(sink: Sink) -> bool:
    """Whether results lie beside those that came before, so that all must have the same columns. A function and the console
    get each batch by itself."""
    is_kept = isinstance(sink, MemorySink) or note_of(sink).kind == "table"
    return is_kept or sink.staging() is not None or sink.holds() is not None


def note_of(sink: Sink) -> SinkNote:
    """A sink as the checkpoint notes it."""
    if isinstance(sink, ParquetSink):
        return SinkNote("parquet", os.path.abspath(sink.path))
    if isinstance(sink, RemoteParquetSink):
        return SinkNote("store", str(sink.folder))  # how it is reached is not written down: that may be a secret
    name = getattr(sink, "name", "")
    if isinstance(sink, ConsoleSink):
        return SinkNote("console")
    if isinstance(sink, CallableSink) and name.startswith("table "):
        return SinkNote("table", name.removeprefix("table "))
    return SinkNote("function")


def from_note(note: SinkNote, query: str) -> Sink | None:
    """The sink that a note tells of; None if that is not enough to make it."""
    if note.kind == "parquet":
        return parquet(note.place)
    if note.kind == "table":
        return table(note.place)
    return console(query=query) if note.kind == "console" else None


_PARTS = ("guarantee", "takes", "open", "staging", "deliver", "publish")
"""What makes something a sink."""

_MAKERS = (arrow, console, memory, parquet, table)


def as_sink(sink: Any, query: str) -> Sink:
    """A sink, or a function made one; anything else is refused."""
    if not isinstance(sink, type) and all(hasattr(sink, part) for part in _PARTS):
        return sink  # type: ignore[no-any-return]
    if any(sink is made for made in _MAKERS):
        example = {parquet: "'results'", table: "'results'", arrow: "f"}.get(sink, "")
        raise _refused(query, f"sinks.{sink.__name__} makes a sink: call it, sinks.{sink.__name__}({example})")
    if isinstance(sink, str | os.PathLike):
        shown = os.fspath(sink)
        raise _refused(query, f"{shown!r} is a path: write sinks.parquet({shown!r})")
    if isinstance(sink, type) or not callable(sink):
        ways = ", ".join(f"sinks.{made.__name__}" for made in _MAKERS)
        raise _refused(query, f"{sink!r:.60} is no sink: give what one of {ways} makes, or a function of results and batch")
    try:
        inspect.signature(sink).bind(None, 0)
    except TypeError:
        taken = f"{_called(sink)} takes ({', '.join(inspect.signature(sink).parameters)})"
        raise _refused(query, f"{taken}, and is called with the results and the number of the batch") from None
    except ValueError:
        pass  # one of C, which does not say what it takes
    return CallableSink(sink)


def _refused(query: str, why: str) -> UnsupportedSinkError:
    return UnsupportedSinkError(f"the sink of query {query}: {why}")


def _called(function: Any) -> str:
    """How a function is called where it was written."""
    return f"the function {getattr(function, '__name__', type(function).__name__)}"
