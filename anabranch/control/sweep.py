"""Deleting what nobody names.

Every attempt of a task writes files under names of its own, and only the attempt that a commit names has won. The files
of the others (failed, speculative, or zombies that finish long after their batch) are litter, never harm, because
nothing unnamed is ever read. That makes sweeping safe at any time but one: a file that was just written may be about to
be named. The grace period stands for that gap, and must exceed the longest time between a task's write and the commit
of its batch. A file that is not called like one of ours is somebody else's: it is passed over, however old.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection

from anabranch.storage.filesystem import Filesystem

BATCH_DIGITS = 10
"""State files are named by the batch that wrote them, with so many digits, and by the attempt: `0000000042-…`."""

_STATE_FILE = re.compile(rf"([0-9]{{{BATCH_DIGITS},}})-.+")


def state_prefix(folder: str, batch: int, attempt: str) -> str:
    """How the names of the state files of an attempt begin."""
    return f"{folder}/{batch:0{BATCH_DIGITS}d}-{attempt}"


def batch_of(name: str) -> int | None:
    """The batch that wrote a state file, by the file's name; None: it is not ours.

    >>> batch_of("0000000042-0-1f.log"), batch_of("notes.txt"), batch_of("42-notes")
    (42, None, None)
    """
    found = _STATE_FILE.fullmatch(name)
    return int(found[1]) if found is not None else None


def sweep(
    filesystem: Filesystem, folder: str, named: Collection[str], grace_s: float, before: int | None = None
) -> int:
    """Delete the state files directly in `folder` that are not `named` and at least `grace_s` seconds old; return how many.

    `named` holds paths as in `Segment.file`, from the filesystem's root, not bare names. With `before`, only files of
    earlier batches go; without, also what writers that died left half-written, by the same grace period.
    """
    kept = frozenset(named)
    prefix = f"{folder}/" if folder else ""
    names = [
        n for n in filesystem.list(folder) if (batch := batch_of(n)) is not None and (before is None or batch < before)
    ]
    if before is None:
        names += filesystem.unfinished(folder)
    swept = 0
    for name in names:
        path = prefix + name
        if path in kept:
            continue
        with contextlib.suppress(FileNotFoundError):  # a writer that finished, or another sweep, was faster
            if not grace_s or filesystem.age_s(path) >= grace_s:
                filesystem.delete(path)
                swept += 1
    return swept
