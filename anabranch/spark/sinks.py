"""Where results go. Each sink says what it guarantees when results are delivered again.

A batch whose delivery failed, or was not recorded, is delivered again, with the same number, the same token and the same
multiset of results. So a sink that remembers tokens gets every result exactly once; one that does not may see a batch twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from anabranch.errors import StateError
from anabranch.spark.published import MARKER, OWNER, UnsupportedSinkError, is_mark_of, other_owner, other_results, read
from anabranch.spark.remote_parquet import RemoteParquetSink
from anabranch.spark.stage import STAGING
from anabranch.storage.filesystem import Filesystem, LocalFilesystem
from anabranch.storage.location import Place, located

__all__ = [
    "OWNER", "CallableSink", "Deliver", "MemorySink", "ParquetSink", "RemoteParquetSink", "Sink", "UnsupportedSinkError",
    "as_sink", "console", "memory", "parquet", "read", "table",
]  # fmt: skip

Deliver = Callable[[DataFrame, int], None]


class Sink(Protocol):
    """Takes the results of one batch, numbered by the trigger that brought its rows."""

    @property
    def guarantee(self) -> str:
        """What happens when a batch runs again."""

    def open(self, owner: str) -> None:
        """Called when a query starts, with the name of its checkpoint: refuses what holds the results of another."""

    def staging(self) -> Filesystem | None:
        """Where tasks write results themselves; None: they are handed over as a DataFrame."""

    def deliver(self, results: DataFrame, number: int) -> None:
        """Takes a DataFrame (sinks without staging)."""

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        """Makes staged files visible, all at once (sinks with staging). The token tells a batch that is delivered again from
        another of the same number."""


@dataclass(frozen=True)
class CallableSink:
    """Calls a function with the results and the number of the batch."""

    function: Deliver
    guarantee: str = "at least once, with the same number and the same multiset each time"

    def open(self, owner: str) -> None:
        pass

    def staging(self) -> Filesystem | None:
        return None

    def deliver(self, results: DataFrame, number: int) -> None:
        self.function(results, number)

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        raise AssertionError("nothing is staged")


@dataclass(frozen=True)
class MemorySink(CallableSink):
    """Keeps results in the driver, by batch: a batch that runs again replaces what it gave before."""

    function: Deliver = field(init=False, repr=False)
    batches: dict[int, pa.Table] = field(default_factory=dict)
    guarantee: str = "exactly once, as long as the driver lives"

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", self._keep)

    def _keep(self, results: DataFrame, number: int) -> None:
        self.batches[number] = results.toArrow()

    def table(self) -> pa.Table:
        """All results so far."""
        return pa.concat_tables([self.batches[n] for n in sorted(self.batches)]) if self.batches else pa.table({})


@dataclass(frozen=True)
class ParquetSink:
    """One folder `batch=<n>` per batch, which appears whole.

    Tasks write their results to a hidden folder. When the batch is committed its files are gathered beside a marker with the
    token of the batch and the names of the files, and the folder gets its name in one rename. If a folder of that name is
    there already and has the token, the batch was published before: the same results. One with another token is an error.
    """

    path: str
    guarantee: str = "exactly once"

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

    def staging(self) -> Filesystem | None:
        return LocalFilesystem(self.path, shared=True)  # results are for whom the folder and the umask let in

    def deliver(self, results: DataFrame, number: int) -> None:
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


def console(rows: int = 20) -> CallableSink:
    """Prints up to so many rows of each batch."""

    def show(results: DataFrame, number: int) -> None:
        print(f"batch {number}")
        results.show(rows, truncate=False)

    return CallableSink(show)


def table(name: str) -> CallableSink:
    """Appends to a table of the catalog."""

    def append(results: DataFrame, number: int) -> None:
        results.write.mode("append").saveAsTable(name)

    return CallableSink(append)


def as_sink(sink: Sink | Deliver) -> Sink:
    """A sink, or a function made one."""
    return sink if hasattr(sink, "guarantee") else CallableSink(sink)  # type: ignore[return-value]
