"""Whether workers see what the driver sees.

A path means another folder on another machine. A checkpoint or an output folder of the driver's machine would be empty for
workers elsewhere: their first task would miss its control record, which looks like damage. So before the first batch a small
job looks, in as many tasks as reach all workers there are, for a file that the driver has just written. A worker that comes
later finds out in its first task (`require_seen`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from anabranch.errors import NotVisibleError
from anabranch.storage.filesystem import Filesystem

TASKS_PER_CORE = 2
"""Workers may be idle for a moment: with more tasks than cores, each gets one."""


@dataclass(frozen=True)
class Sign:
    """A file that whoever sees a folder finds there, and how it begins."""

    filesystem: Filesystem
    path: str
    content: str

    def why_not_seen(self) -> str | None:
        """Why the file is not seen from here; None if it is."""
        try:
            found = self.filesystem.get(self.path).to_pybytes()
        except FileNotFoundError:
            return f"it has no file {self.path!r} there"
        except Exception as error:
            return (str(error).splitlines() or [type(error).__name__])[0]
        return None if found.startswith(self.content.encode()) else f"its file {self.path!r} is another one there"


@dataclass(frozen=True)
class Look:
    """Looks for signs, in a task."""

    signs: Mapping[str, Sign]

    def __call__(self, rows: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        for folder, sign in self.signs.items():
            why = sign.why_not_seen()
            if why is not None:
                yield socket.gethostname(), folder, why


def require_visible(spark: SparkSession, signs: Mapping[str, Sign]) -> None:
    """Refuses to start if a worker does not see a folder that is seen from here (by its name, with what must be in it)."""
    context = spark.sparkContext
    master = context.master or "local"
    if master == "local" or master.startswith("local["):
        return
    signs = {folder: sign for folder, sign in signs.items() if sign.why_not_seen() is None}
    tasks = TASKS_PER_CORE * max(2, context.defaultParallelism)
    for host, folder, why in context.parallelize(range(tasks), tasks).mapPartitions(Look(signs)).collect():
        raise not_seen(folder, host, why)


def require_seen(filesystem: Filesystem) -> None:
    """Refuses a checkpoint that is not seen from here: called where a record is missing."""
    why = Sign(filesystem, "id", "").why_not_seen()
    if why is not None:
        raise not_seen(str(filesystem), socket.gethostname(), why)


def not_seen(folder: str, host: str, why: str) -> NotVisibleError:
    return NotVisibleError(
        f"a worker on {host} does not see {folder}: {why}; give a folder that all machines have mounted under this path, "
        "or a URI like s3://bucket/…"
    )
