"""Batches of results in parquet folders: which are published, and of which files they consist.

`batch=<n>/_published` names the token of the batch and its files. Where folders can be renamed, a folder appears with its
marker and all its files. Where they cannot (object stores), files come first and the marker last: until the marker is there,
the batch is not. `read` goes by the markers everywhere.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from anabranch.errors import UnsupportedSinkError
from anabranch.storage.filesystem import Filesystem, LocalFilesystem
from anabranch.storage.location import Folder, Place, located

MARKER = "_published"
"""The file in the folder of a batch with its token and the names of its files."""
OWNER = "_anabranch"
"""The file in a parquet sink's folder that names the checkpoint whose results it holds."""
BATCH_PREFIX = "batch="


class Published(msgspec.Struct, frozen=True):
    """A batch that is whole."""

    token: str
    files: list[str]


def batch_folder(number: int) -> str:
    return f"{BATCH_PREFIX}{number}"


def published_in(filesystem: Filesystem, folder: str) -> Published | None:
    """What the marker of a batch says; None if there is none that is whole."""
    try:
        return msgspec.json.decode(memoryview(filesystem.get(f"{folder}/{MARKER}")), type=Published)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def other_results(folder: str, found: str | None, token: str) -> UnsupportedSinkError:
    """A batch is there, and is not the one that is to be published."""
    return UnsupportedSinkError(
        f"{folder} holds other results than those of this batch (token {found}, not {token}): the folder does not belong to "
        "this checkpoint as it is; move the folder away, or restore the checkpoint it belongs to"
    )


def is_mark_of(found: str | None, owner: str) -> bool:
    """Whether a folder is marked as a checkpoint's, or not at all. A mark that was torn while it was written is the
    beginning of one.

    >>> is_mark_of("6f0c", "6f0c"), is_mark_of("6f", "6f0c"), is_mark_of("77", "6f0c"), is_mark_of("batch=3", "6f0c")
    (True, True, False, False)
    """
    return found is None or owner.startswith(found)


def other_owner(place: str) -> UnsupportedSinkError:
    return UnsupportedSinkError(
        f"{place} holds the results of another run: results are told apart by the number of their batch; "
        "write to another folder, or go on with the checkpoint it belongs to"
    )


def held_columns(folder: Filesystem) -> pa.Schema | None:
    """The columns of the newest batch that is published; None if there is none."""
    for number in reversed(_numbers(folder)):
        if (found := published_in(folder, batch_folder(number))) is not None and found.files:
            return pq.read_schema(pa.BufferReader(folder.get(f"{batch_folder(number)}/{found.files[0]}")))
    return None


def _numbers(folder: Filesystem) -> list[int]:
    """The batches of which there are folders."""
    numbers = (n.removeprefix(BATCH_PREFIX) for n in folder.folders("") if n.startswith(BATCH_PREFIX))
    return sorted(int(number) for number in numbers if number.isdigit())


def read(place: Place) -> pads.Dataset:
    """The results that a parquet sink has published, as a dataset of pyarrow's, with the number of the batch in `batch`.

    `read("s3://bucket/results").to_table()` has whole batches only, and each once, wherever they are kept.
    """
    folder = located(place)
    filesystem, root = _pyarrow(folder)
    paths = []
    for number in _numbers(folder):
        found = published_in(folder, batch_folder(number))
        paths += [f"{root}/{batch_folder(number)}/{name}" for name in found.files] if found is not None else []
    if not paths:
        return pads.dataset(pa.table({}))
    by_batch = pads.HivePartitioning(pa.schema({"batch": pa.int64()}))
    return pads.dataset(paths, filesystem=filesystem, format="parquet", partitioning=by_batch, partition_base_dir=root)


def _pyarrow(folder: Folder) -> tuple[pafs.FileSystem, str]:
    if isinstance(folder, LocalFilesystem):
        return pafs.LocalFileSystem(), folder.root
    return folder.filesystem, folder.root.rstrip("/")
