"""Requests to a remote store, several at a time: each waits for an answer, and pyarrow has none for several files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anabranch.storage.cache import CachedFilesystem
from anabranch.storage.filesystem import ArrowFilesystem, Filesystem

AT_ONCE = 16
"""A slot drops some files in each batch, and a request takes tens of milliseconds: one by one they would fall behind from a
few dozens of slots on."""

T = TypeVar("T")


def for_each(filesystem: Filesystem, do: Callable[[T], None], items: Iterable[T]) -> None:
    """Does something for each item, several at a time where the filesystem is remote. If some fail, what is done for others
    is done, and one of the errors is raised."""
    listed = [*items]
    base = filesystem.inner if isinstance(filesystem, CachedFilesystem) else filesystem
    if not isinstance(base, ArrowFilesystem) or len(listed) < 2:
        for item in listed:
            do(item)
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(listed)), "anabranch-store") as threads:
        asked = [threads.submit(do, item) for item in listed]
    for each in asked:
        each.result()
