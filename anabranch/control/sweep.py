"""Deleting what nobody names.

Every attempt of a task writes files under names of its own, and only the attempt that a commit names has won. The files
of the others (failed, speculative, or zombies that finish long after their batch) are litter, never harm, because
nothing unnamed is ever read. That makes sweeping safe at any time but one: a file that was just written may be about to
be named. The grace period stands for that gap, and must exceed the longest time between a task's write and the commit
of its batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from anabranch.storage.filesystem import Filesystem


def sweep(filesystem: Filesystem, folder: str, named: Collection[str], grace_s: float) -> int:
    """Delete the files directly in `folder` that are not `named` and at least `grace_s` seconds old; return how many.

    `named` holds paths as in `Segment.file`, from the filesystem's root, not bare names. What writers that died left
    half-written goes too, by the same grace period.
    """
    kept = frozenset(named)
    prefix = f"{folder}/" if folder else ""
    swept = 0
    for name in filesystem.list(folder) + filesystem.unfinished(folder):
        path = prefix + name
        if path in kept:
            continue
        with contextlib.suppress(FileNotFoundError):  # a writer that finished, or another sweep, was faster
            if filesystem.age_s(path) >= grace_s:
                filesystem.delete(path)
                swept += 1
    return swept
