"""Where results go. Each sink says what it guarantees when a batch runs again.

A batch that failed anywhere is run again, with the same number and the same multiset of results. So a sink that remembers
numbers gets every result exactly once; one that does not may see a batch twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from anabranch.errors import AnabranchError
from anabranch.spark.task import STAGING
from anabranch.storage.filesystem import Filesystem, LocalFilesystem

Deliver = Callable[[DataFrame, int], None]
OWNER = "_anabranch"
"""The file in a parquet sink's folder that names the checkpoint whose results it holds."""


class UnsupportedSinkError(AnabranchError):
    """A sink that cannot take the results of this query."""


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

    def publish(self, files: Sequence[str], number: int) -> None:
        """Makes staged files visible, all at once (sinks with staging)."""


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

    def publish(self, files: Sequence[str], number: int) -> None:
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

    Tasks write their results to a hidden folder. When the batch is committed its files are gathered and the folder gets its
    name in one rename. If it is there already, an earlier run of the batch has been published: the same results.
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
        if found is not None and found != owner:
            raise UnsupportedSinkError(
                f"{self.path} holds the results of another run: results are told apart by the number of their batch; "
                "write to another folder, or go on with the checkpoint it belongs to"
            )
        os.makedirs(self.path, exist_ok=True)
        with open(mark, "w", encoding="utf-8") as file:
            file.write(owner + "\n")

    def staging(self) -> Filesystem | None:
        return LocalFilesystem(self.path)

    def deliver(self, results: DataFrame, number: int) -> None:
        raise AssertionError("tasks write the results")

    def publish(self, files: Sequence[str], number: int) -> None:
        target = os.path.join(self.path, f"batch={number}")
        if files and not os.path.exists(target):
            gathered = os.path.join(self.path, STAGING, f"publishing-{number}-{uuid.uuid4().hex[:8]}")
            os.makedirs(gathered)
            for file in files:
                os.rename(os.path.join(self.path, file), os.path.join(gathered, os.path.basename(file)))
            with contextlib.suppress(FileExistsError):
                os.rename(gathered, target)
        self._clear(number)

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


def parquet(path: str) -> ParquetSink:
    """Parquet files, exactly once."""
    return ParquetSink(path)


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
