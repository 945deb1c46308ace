"""Results as parquet where folders cannot be renamed: on object stores.

Tasks write to `_staging/`. When the batch is committed, the store copies its files to `batch=<n>/<piece>.parquet`: names
that a repetition of the batch overwrites with the same, for files of all its tries sort alike: by slot, or by partition if a
job has put groups together. Pieces that the batch does not have (of a try that counts no more) are deleted, and then the
marker is written, with the token of the batch and the names of its files.

    _staging/0000000007-6f…-0-c4….parquet  ->  batch=7/00000.parquet
    _staging/0000000007-6f…-1-9a….parquet  ->  batch=7/00001.parquet
                                               batch=7/_published  {"token": "6f…", "files": ["00000.parquet", …]}

A reader that goes by the marker sees the batch whole, once. One that does not may see a part of it before the marker is
there, but never a result twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from anabranch.errors import StateError
from anabranch.spark.published import (
    BATCH_PREFIX,
    MARKER,
    OWNER,
    Published,
    batch_folder,
    held_columns,
    is_mark_of,
    other_owner,
    other_results,
    published_in,
)
from anabranch.spark.stage import STAGING, Takes
from anabranch.storage.filesystem import Filesystem


@dataclass(frozen=True)
class RemoteParquetSink:
    """One folder `batch=<n>` per batch, which counts when it has its marker."""

    folder: Filesystem
    guarantee: str = (
        "exactly once for readers that go by batch=<n>/_published, as ab.sinks.read does; others may see a part of the "
        "newest batch, never a result twice"
    )
    takes = Takes.FILES

    def __str__(self) -> str:
        return f"parquet in {self.folder}"

    def open(self, owner: str) -> None:
        """Marks the folder as this checkpoint's: batches are told apart by number, so two runs must not share it."""
        try:
            found = self.folder.get(OWNER).to_pybytes().decode("utf-8", "replace").strip()
        except FileNotFoundError:
            found = next((name for name in self.folder.folders("") if name.startswith(BATCH_PREFIX)), None)
        if not is_mark_of(found, owner):
            raise other_owner(str(self.folder))
        self.folder.put(OWNER, [f"{owner}\n".encode()])

    def holds(self) -> pa.Schema | None:
        return held_columns(self.folder)

    def staging(self) -> Filesystem | None:
        return self.folder

    def deliver(self, results: Any, number: int) -> None:
        raise AssertionError("tasks write the results")

    def publish(self, files: Sequence[str], number: int, token: str) -> None:
        if files and not self._is_published(number, token):
            target = batch_folder(number)
            names = [f"{piece:05d}.parquet" for piece in range(len(files))]
            for file, name in zip(sorted(files), names, strict=True):
                self._copy(file, f"{target}/{name}")
            for name in set(self.folder.list(target)) - set(names):
                self.folder.delete(f"{target}/{name}")
            self.folder.put(f"{target}/{MARKER}", [msgspec.json.encode(Published(token, names))])
        self._clear(number)

    def _is_published(self, number: int, token: str) -> bool:
        found = published_in(self.folder, batch_folder(number))
        if found is not None and found.token != token:
            raise other_results(f"{self.folder}/{batch_folder(number)}", found.token, token)
        return found is not None

    def _copy(self, staged: str, target: str) -> None:
        try:
            size = self.folder.size_bytes(staged)
            self.folder.copy(staged, target)
        except FileNotFoundError:
            raise StateError(
                f"{self.folder}/{staged}, which holds results that were not published yet, is missing: restore this file "
                "from a backup, or start with an empty checkpoint and another folder"
            ) from None
        if self.folder.size_bytes(target) != size:
            raise StateError(f"{self.folder}/{target} is not as long as {staged}, which was copied: start the query again")

    def _clear(self, number: int) -> None:
        """Deletes what attempts at this batch and earlier ones left behind."""
        for name in [*self.folder.list(STAGING), *self.folder.unfinished(STAGING)]:
            owner = name.split("-")[0]
            if owner.isdigit() and int(owner) <= number:
                self.folder.delete(f"{STAGING}/{name}")
