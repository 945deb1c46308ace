"""The journal of a query: what was decided, when and why, one entry after the other, kept with the checkpoint.

Unlike commits, entries are never superseded or pruned, and nothing is read back to decide anything: they are for people.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from anabranch.control.ledger import Ledger
from anabranch.storage.filesystem import Filesystem


class Entry(msgspec.Struct, frozen=True):
    """One decision or event."""

    at_s: float
    """Seconds since the epoch, by the driver's clock."""
    batch: int
    """The last batch that was committed before it; -1 before the first."""
    event: str
    text: str
    """The reason, in a sentence."""
    details: dict[str, Any] = msgspec.field(default_factory=dict)

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.at_s))
        return f"{clock} UTC  batch {self.batch:>6}  {self.event:<10} {self.text}"


class Journal:
    """The entries of one query.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> journal = Journal(MemoryFilesystem())
    >>> journal.note(-1, "started", "a new checkpoint", plan="(a b)")
    >>> [(e.event, e.text, e.details) for e in journal.entries()]
    [('started', 'a new checkpoint', {'plan': '(a b)'})]
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._ledger = Ledger(filesystem, "journal", "entry", Entry)
        self._next: int | None = None

    def note(self, batch: int, event: str, text: str, **details: Any) -> None:
        """Adds an entry."""
        if self._next is None:
            self._next = max(self._ledger.numbers(), default=-1) + 1
        self._ledger.write(self._next, Entry(time.time(), batch, event, text, details))
        self._next += 1

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return [self._ledger.read(number) for number in self._ledger.numbers()]
