"""The journal of a query: what was decided, when and why, one entry after the other, kept with the checkpoint.

Unlike commits, entries are never superseded or pruned; of queries that are gone the journals of the last `MOST_GONE` are
kept. Nothing is read back to decide anything: entries are for people. So an entry that cannot be read stops nobody: an entry
in its place says so. (What was told last is looked up once, at the start of a run, to tell what the run before could not
tell any more.)
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from html import escape
from typing import Any

import msgspec

from anabranch.control.ledger import Ledger
from anabranch.errors import SessionError, StateError
from anabranch.storage.filesystem import Filesystem

FOLDER = "journal"
MOST_RECENT = 20
DAMAGED = "damaged"
"""The event of an entry that stands for one that cannot be read."""


MOST_GONE = 64
"""The journals of so many queries that have gone are kept, of those that went last."""


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

    def __repr__(self) -> str:
        return f"<{self.event}, batch {self.batch}: {self.text}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.event)}</b>, batch {self.batch}: {escape(self.text)}</p>"


class Journal:
    """The entries of one query, below its name.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> journal = Journal(MemoryFilesystem(), "q")
    >>> journal.note(-1, "started", "a new checkpoint", plan="(a b)")
    >>> [(e.event, e.text, e.details) for e in journal.entries()]
    [('started', 'a new checkpoint', {'plan': '(a b)'})]
    """

    def __init__(self, filesystem: Filesystem, query: str) -> None:
        self._ledger = Ledger(filesystem, f"{FOLDER}/{query}", "entry", Entry)
        self._next: int | None = None
        self.recent: deque[Entry] = deque(maxlen=MOST_RECENT)
        """What was noted last by this object: who watches need not read it back."""

    def note(self, batch: int, event: str, text: str, **details: Any) -> None:
        """Adds an entry."""
        if self._next is None:
            self._next = max(self._ledger.numbers(), default=-1) + 1
        entry = Entry(time.time(), batch, event, text, details)
        self._ledger.write(self._next, entry)
        self._next += 1
        self.recent.append(entry)

    def entries(self, last: int | None = None, after: int = -1) -> list[Entry]:
        """The entries, oldest first: all, the last so many, or those after a number."""
        return [entry for _, entry in self.numbered(last, after)]

    def numbered(self, last: int | None = None, after: int = -1) -> list[tuple[int, Entry]]:
        """The same with the numbers of the entries."""
        found: list[Entry] = []
        numbers = [number for number in self._ledger.numbers() if number > after]
        numbers = numbers if last is None else numbers[max(0, len(numbers) - last) :]
        for number in numbers:
            try:
                found.append(self._ledger.read(number, self._ledger.epoch))
            except (StateError, OSError) as error:
                # Its time and batch are unknown: those of the entry before it are near.
                at_s, batch = (found[-1].at_s, found[-1].batch) if found else (0.0, -1)
                text = f"entry {number} cannot be read, others are not affected: {error}"
                found.append(Entry(at_s, batch, DAMAGED, text, {"number": number}))
        return list(zip(numbers, found, strict=True))

    def last_of(self, *events: str) -> Entry | None:
        """The newest entry of some events, as far as entries can be read."""
        for number in reversed(self._ledger.numbers()):
            with contextlib.suppress(StateError, OSError):
                entry = self._ledger.read(number, self._ledger.epoch)
                if entry.event in events:
                    return entry
        return None


def forget_journal(checkpoint: Filesystem, query: str) -> None:
    """Deletes the journal of a query that is gone."""
    folder = f"{FOLDER}/{query}"
    for name in checkpoint.list(folder):
        checkpoint.delete(f"{folder}/{name}")
    checkpoint.remove_empty(folder)


def journals_in(checkpoint: Filesystem) -> dict[str, Journal]:
    """The journals of the queries of a checkpoint, running or not."""
    found = {name: Journal(checkpoint, name) for name in checkpoint.folders(FOLDER)}
    if not found:
        raise SessionError(
            f"there is no checkpoint {checkpoint}: it holds no query's journal; name what was given as checkpoint"
        )
    return found
