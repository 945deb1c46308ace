"""A folder of numbered records, of which the highest whole one is the truth.

`commit/00000000000000000042` is the whole commit of batch 42: there is no pointer file that could disagree with it, and
listing the folder finds the newest because names sort like numbers. Writing a number again supersedes it; that is how a
batch that is run again replaces the result of its earlier run.

What `latest` may pass over follows from who writes. Records are written one after the other by one writer, which goes
on only after a write has returned. So a crash can leave at most one torn record, and it is the newest: it was never
acknowledged and the batch will be run again. Anything else that cannot be read was acknowledged once, results may have
been delivered on its strength, and to fall back behind it in silence would repeat or lose them: that is an error.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from anabranch.control.records import Commit, Control
from anabranch.errors import DamagedStateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import damaged, seal, unseal

DIGITS = 20
"""Wide enough for any unsigned 64-bit number, so that names sort like numbers."""

T = TypeVar("T", bound=msgspec.Struct)


class Ledger(Generic[T]):
    """Numbered records of one type in one folder.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> class Commit(msgspec.Struct):
    ...     batch: int
    >>> ledger = Ledger(MemoryFilesystem(), folder="commit", kind="commit", type=Commit)
    >>> ledger.write(0, Commit(batch=0))
    >>> ledger.latest()
    (0, Commit(batch=0))
    """

    def __init__(self, filesystem: Filesystem, folder: str, kind: str, type: type[T]) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._kind = kind
        self._decoder = msgspec.json.Decoder(type)

    def path(self, number: int) -> str:
        """Return where the record of a number is, or would be."""
        if not 0 <= number < 10**DIGITS:
            raise ValueError(f"a record cannot have the number {number}")
        return f"{self._folder}/{number:0{DIGITS}d}"

    def write(self, number: int, record: T) -> None:
        """Write a record whole; one of the same number is superseded."""
        self._filesystem.put(self.path(number), [seal(self._kind, msgspec.json.encode(record))])

    def read(self, number: int) -> T:
        """Return the record of a number; DamagedStateError if it is absent, torn, changed or of another type."""
        return self._decode(number, self._payload(number))

    def latest(self) -> tuple[int, T] | None:
        """Return the newest record that is whole, with its number; none if nothing was ever acknowledged.

        A torn newest record is passed over (see above), unless it has nothing below it and is not number 0: then the
        records below it were pruned, so that it had been acknowledged. ForeignStateError is never passed over.
        """
        numbers = self.numbers()
        if not numbers:
            return None
        newest = numbers[-1]
        try:
            payload = self._payload(newest)
        except DamagedStateError:
            if newest == 0:
                return None
            if len(numbers) == 1:
                raise
            newest = numbers[-2]
            payload = self._payload(newest)
        return newest, self._decode(newest, payload)

    def numbers(self) -> list[int]:
        """Return all numbers there are records of, whole or not, ascending; files with other names are not ours."""
        names = self._filesystem.list(self._folder)
        return [int(name) for name in names if len(name) == DIGITS and name.isascii() and name.isdigit()]

    def prune(self, keep_from: int) -> None:
        """Delete the records below a number, oldest first, so that a crash in between leaves no gap.

        Keep at least one whole record below the newest as long as the newest may be written again.
        """
        for number in self.numbers():
            if number < keep_from:
                self._filesystem.delete(self.path(number))

    def _payload(self, number: int) -> bytes:
        path = self.path(number)
        try:
            data = self._filesystem.get(path)
        except FileNotFoundError:
            raise damaged(path, "it is missing") from None
        return unseal(self._kind, memoryview(data), path)

    def _decode(self, number: int, payload: bytes) -> T:
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            what = f"it is whole, but not a {self._kind} of this release ({error})"
            raise damaged(self.path(number), what) from error


def controls_in(filesystem: Filesystem) -> Ledger[Control]:
    """What the batches of a checkpoint started from."""
    return Ledger(filesystem, "control", "control", Control)


def commits_in(filesystem: Filesystem) -> Ledger[Commit]:
    """What the batches of a checkpoint left behind."""
    return Ledger(filesystem, "commit", "commit", Commit)
