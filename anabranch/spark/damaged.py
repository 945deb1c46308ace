"""Files that turned out damaged: marked beside the list of files, and left out of their batch from then on.

A truncated parquet file, a broken gzip: a file that holds no rows that could be told. Where what is bad is set aside, a
worker that meets one fails its task, and with it the batch, whatever other attempts have read of the file. Nothing of the
batch is committed then. The driver marks the file, durably, and only then has the batch run again, from the same control
record:

    batch 7 reads a, b, c    a task finds b damaged         the job fails, nothing is committed
                             mark b                         `files/<stream>/damaged/…` in the checkpoint
    batch 7 runs again       readers are told b             rows of a and c; b is told of as set aside
                             commit 7

If the driver dies before the mark is written, the next one finds b damaged again. If it dies after that, the next one's
readers find the mark when they plan the batch. Either way the batch that is committed has no row of b, although an attempt
that could read b may have been at work: who is told of a mark does not open the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from anabranch.control.ledger import Ledger
from anabranch.storage.filesystem import Filesystem

FOLDER = "damaged"

_RAISED = re.compile(r"FilesToMarkError: (\[.*\])\s*$", re.MULTILINE)


class Mark(msgspec.Struct, frozen=True):
    """A file that is left out, and why."""

    stream: str
    path: str
    reason: str
    batch: int = 0
    """The batch that the file is left out of."""


class Marks:
    """The marks of a stream, beside its list of files. `epoch` is that of the driver that writes."""

    def __init__(self, filesystem: Filesystem, epoch: int = 0) -> None:
        self._ledger = Ledger(filesystem, FOLDER, "damaged", Mark, epoch)

    def all(self) -> list[Mark]:
        """The marks. One that a crash has torn is none: its batch is not committed, and finds the file damaged again."""
        return [mark for _, mark in self._ledger.whole()]

    def add(self, mark: Mark) -> None:
        """Marks a file. Marks of earlier batches go: these are committed, by Spark too, and their files are never read
        again."""
        numbers = self._ledger.numbers()
        new = numbers[-1] + 1 if numbers else 0
        self._ledger.write(new, mark)
        self._ledger.prune(next((number for number, each in self._ledger.whole() if each.batch >= mark.batch), new))


def told_in(error: BaseException) -> list[Mark]:
    """The files that tasks found damaged, by the error of their job."""
    found: list[Mark] = []
    seen: BaseException | None = error
    while seen is not None:
        for text in _RAISED.findall(str(seen)):
            found += [mark for mark in _decoded(text) if mark not in found]
        seen = seen.__cause__
    return found


def encoded(marks: Iterable[Mark]) -> str:
    """Marks on one line.

    >>> told_in(ValueError("x\\nanabranch.errors.FilesToMarkError: " + encoded([Mark("s", "/a", "torn")]) + "\\n"))
    [Mark(stream='s', path='/a', reason='torn', batch=0)]
    """
    return msgspec.json.encode(list(marks)).decode()


def _decoded(text: str) -> list[Mark]:
    return msgspec.json.decode(text, type=list[Mark])


def reasons_in(text: str | None, stream: str) -> Mapping[str, str]:
    """The files of a stream that a task is told of, with the reasons."""
    return {mark.path: mark.reason for mark in _decoded(text) if mark.stream == stream} if text else {}
