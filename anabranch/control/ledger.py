"""A folder of numbered records, of which the newest whole one is the truth.

`commit/00000000000000000042-0000000003` is the whole commit of batch 42, written by the driver of epoch 3: there is no
pointer file that could disagree with it, and listing the folder finds the newest because names sort like numbers. Each
driver that takes the checkpoint's lease has a higher epoch than those before it (`anabranch.control.lease`). A record that
a driver writes supersedes those of the same number with lower epochs, so that what a driver writes which was thought dead,
and has lost the lease, never counts beside it:

- of one number the highest epoch counts that is whole;
- a record does not count if a smaller number has a higher epoch: its writer had lost the lease when it wrote it.

What `latest` may pass over follows from who writes. Records are written one after the other by one writer, which goes
on only after a write has returned. So a crash can leave at most one torn record, and it is the newest: it was never
acknowledged and the batch will be run again. Anything else that cannot be read was acknowledged once, results may have
been delivered on its strength, and to fall back behind it in silence would repeat or lose them: that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from anabranch.control.records import Commit, Control, Delivered
from anabranch.errors import DamagedStateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import damaged, seal, unseal

DIGITS = 20
"""Wide enough for any unsigned 64-bit number, so that names sort like numbers."""
EPOCH_DIGITS = 10
CONTROL, COMMIT = "control", "commit"
"""The folders of what batches start from, and of what they left behind."""
DELIVERED = "delivered"
"""The folder of what has arrived, by query."""

_NAME = re.compile(rf"([0-9]{{{DIGITS}}})-([0-9]{{{EPOCH_DIGITS}}})")

T = TypeVar("T", bound=msgspec.Struct)


class Ledger(Generic[T]):
    """Numbered records of one type in one folder; `epoch` is that of who writes.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> class Commit(msgspec.Struct):
    ...     batch: int
    >>> disk = MemoryFilesystem()
    >>> ledger = Ledger(disk, folder="commit", kind="commit", type=Commit, epoch=1)
    >>> ledger.write(0, Commit(batch=0))
    >>> ledger.latest()
    (0, Commit(batch=0))
    >>> ledger.path(0)
    'commit/00000000000000000000-0000000001'
    """

    def __init__(self, filesystem: Filesystem, folder: str, kind: str, type: type[T], epoch: int = 0) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._kind = kind
        self._decoder = msgspec.json.Decoder(type)
        self.epoch = epoch

    def path(self, number: int, epoch: int | None = None) -> str:
        """Return where the record of a number is, or would be."""
        if not 0 <= number < 10**DIGITS:
            raise ValueError(f"a record cannot have the number {number}")
        return f"{self._folder}/{number:0{DIGITS}d}-{self.epoch if epoch is None else epoch:0{EPOCH_DIGITS}d}"

    def path_of(self, number: int) -> str:
        """Return where the record of a number is that was written with the highest epoch."""
        return self.path(number, max(self._epochs(number), default=None))

    def write(self, number: int, record: T) -> None:
        """Write a record whole; others of the same number, of this epoch and of lower ones, are superseded."""
        self._filesystem.put(self.path(number), [seal(self._kind, msgspec.json.encode(record))])

    def read(self, number: int, epoch: int | None = None) -> T:
        """Return the record of a number, of the highest epoch that is whole unless one is named; DamagedStateError if it is
        absent, torn, changed or of another type."""
        return self._decode(self.path(number, epoch)) if epoch is not None else self._read(number, self._epochs(number))

    def _read(self, number: int, found: list[int]) -> T:
        """The record of a number, of the highest of some epochs that is whole."""
        return self._decode(self.path(number, self.whole_of(number, found) if found else None))

    def whole_of(self, number: int, epochs: Sequence[int]) -> int:
        """Of some epochs, highest first, the first whose record of a number is whole; the last if none is."""
        return next((epoch for epoch in epochs[:-1] if self._is_whole(self.path(number, epoch))), epochs[-1])

    def find(self, number: int) -> T | None:
        """Return the record of a number if there is one that is whole."""
        return self._find(number, self._epochs(number))

    def _find(self, number: int, epochs: list[int]) -> T | None:
        try:
            return self._read(number, epochs)
        except DamagedStateError:
            if any(self._is_whole(self.path(number, epoch)) for epoch in epochs):
                raise
            return None

    def whole(self, after: int = -1) -> Iterator[tuple[int, T]]:
        """The records that are whole, with their numbers, ascending: those after a number. There may be many, while results
        wait for a sink, so the folder is listed once."""
        for number, epochs in _by_number(self._counting()).items():
            record = self._find(number, epochs) if number > after else None
            if record is not None:
                yield number, record

    def latest(self) -> tuple[int, T] | None:
        """Return the newest record that is whole, with its number; none if nothing was ever acknowledged.

        A torn newest record is passed over (see above), unless it has nothing below it and is not number 0: then the
        records below it were pruned, so that it had been acknowledged. ForeignStateError is never passed over.
        """
        numbers = self.numbers()
        if not numbers:
            return None
        newest = numbers[-1]
        if not any(self._is_whole(self.path(newest, epoch)) for epoch in self._epochs(newest)):
            if newest == 0:
                return None
            if len(numbers) > 1:
                newest = numbers[-2]
        return newest, self.read(newest)

    def history(self, after: int = -1) -> Iterator[tuple[int, T]]:
        """Give the records after a number with their numbers, oldest first, up to the newest that is whole.

        One of them that is missing or damaged was acknowledged (see above): that is an error, and never passed over. Which
        there were before the first that is there cannot be told: those were pruned.
        """
        found, newest = _by_number(self._counting()), self.latest()  # there may be thousands: the folder is listed once
        if newest is not None:
            for number in range(max(after + 1, min(found)), newest[0]):
                yield number, self._read(number, found.get(number, []))
            if newest[0] > after:
                yield newest

    def torn(self, after: int = -1) -> list[str]:
        """Return the paths of the records after a number that are not whole."""
        paths = [self.path(number, epoch) for number, epoch in self._counting() if number > after]
        return [path for path in paths if not self._is_whole(path)]

    def numbers(self) -> list[int]:
        """Return all numbers there are records of, whole or not, ascending; files with other names are not ours."""
        return sorted({number for number, _ in self._counting()})

    def require_not_after(self, epoch: int) -> None:
        """Refuse records of a later epoch than that of who is about to write: theirs would count for more."""
        later = [(number, other) for number, other in self._written() if other > epoch]
        if later:
            path = self.path(*later[-1])
            raise damaged(path, f"it is of epoch {later[-1][1]}, and the lease has only come to {epoch}")

    def prune(self, keep_from: int) -> None:
        """Delete the records below a number, oldest first, so that a crash in between leaves no gap.

        Keep at least one whole record below the newest as long as the newest may be written again.
        """
        for number, epoch in self._written():
            if number < keep_from:
                self._filesystem.delete(self.path(number, epoch))

    def drop(self, number: int, epoch: int | None = None) -> None:
        """Delete a record; one that was written under this epoch unless another is named."""
        self._filesystem.delete(self.path(number, epoch))

    def drop_superseded(self) -> None:
        """Delete records of which a higher epoch has one that is whole: each driver may have left one."""
        for number, epochs in self.written().items():
            above = epochs[:-1]  # of one epoch alone nothing is superseded
            whole = next((epoch for epoch in above if self._is_whole(self.path(number, epoch))), None)
            for epoch in epochs:
                if whole is not None and epoch < whole:
                    self._filesystem.delete(self.path(number, epoch))

    def written(self) -> dict[int, list[int]]:
        """The epochs of each number, highest first, of all records, whether they count or not; numbers ascend."""
        return _by_number(self._written())

    def _written(self) -> list[tuple[int, int]]:
        """The numbers and epochs of all records."""
        return named_epochs(self._filesystem.list(self._folder))

    def _counting(self) -> list[tuple[int, int]]:
        """Those that were not written by a driver that had lost the lease."""
        counting: list[tuple[int, int]] = []
        highest_below, number_before, highest = 0, -1, 0
        for number, epoch in self._written():
            if number != number_before:
                highest_below, number_before = highest, number
            if epoch >= highest_below:
                counting.append((number, epoch))
                highest = max(highest, epoch)
        return counting

    def _epochs(self, number: int) -> list[int]:
        """The epochs that have a record of a number, highest first."""
        return _by_number(self._counting()).get(number, [])

    def _is_whole(self, path: str) -> bool:
        try:
            self._payload(path)
        except DamagedStateError:
            return False
        return True

    def _payload(self, path: str) -> bytes:
        try:
            data = self._filesystem.get(path)
        except FileNotFoundError:
            raise damaged(path, "it is missing") from None
        return unseal(self._kind, memoryview(data), path)

    def _decode(self, path: str) -> T:
        try:
            return self._decoder.decode(self._payload(path))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"it is whole, but not a {self._kind} of this release ({error})"
            raise damaged(path, what) from error


def _by_number(records: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The epochs of each number, highest first, of numbers and epochs that ascend."""
    found: dict[int, list[int]] = {}
    for number, epoch in records:
        found.setdefault(number, []).insert(0, epoch)
    return found


def named_epochs(names: Iterable[str]) -> list[tuple[int, int]]:
    """The numbers and epochs in the names of records, ascending.

    >>> named_epochs(["README", "00000000000000000007-0000000002"])
    [(7, 2)]
    """
    found = (_NAME.fullmatch(name) for name in names)
    return sorted((int(match[1]), int(match[2])) for match in found if match is not None)


def controls_in(filesystem: Filesystem, epoch: int = 0) -> Ledger[Control]:
    """What the batches of a pipeline started from."""
    return Ledger(filesystem, CONTROL, "control", Control, epoch)


def commits_in(filesystem: Filesystem, epoch: int = 0) -> Ledger[Commit]:
    """What the batches of a pipeline left behind."""
    return Ledger(filesystem, COMMIT, "commit", Commit, epoch)


def deliveries_in(filesystem: Filesystem, query: str, epoch: int = 0) -> Ledger[Delivered]:
    """The batches of a pipeline whose results of a query have arrived."""
    return Ledger(filesystem, f"{DELIVERED}/{query}", "delivered", Delivered, epoch)
