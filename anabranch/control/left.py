"""Which queries have left a pipeline, when nothing of theirs is on its way any more.

    <pipeline>/left/<n>

A commit names a query that has left (`Commit.ended`) for as long as results of it wait for its sink, or a commit that is
kept has results of it. Then the query goes out of the records, and what is left is an entry here: that it was dropped, which
a start must know that declares it. All entries stand in one record, the newest last; a new one supersedes the one before.
With queries that come and go for ever there are `MOST_LEFT` entries: older ones go, and a query that left before them is new
to a start that declares it. The entry of a query goes when a query of its name comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from anabranch.control.ledger import Ledger
from anabranch.control.records import Ended
from anabranch.storage.filesystem import Filesystem

FOLDER = "left"
MOST_LEFT = 1_024
"""So many queries that have left a pipeline are known by their names."""


class Left(msgspec.Struct, frozen=True):
    """The queries that have left a pipeline, and of which nothing is on its way."""

    queries: dict[str, Ended] = msgspec.field(default_factory=dict)
    """How each left, without the layout that it had, the newest last."""


class LeftQueries:
    """The entries of a pipeline.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> known = LeftQueries(MemoryFilesystem())
    >>> known.note({"q": Ended(7, "by request"), "p": Ended(8, "by request")})
    >>> known.forget(["q"])
    >>> list(known.queries)
    ['p']
    """

    def __init__(self, filesystem: Filesystem, epoch: int = 0, most: int = MOST_LEFT) -> None:
        self._ledger = Ledger(filesystem, FOLDER, "left", Left, epoch)
        self._most = most
        self._known: tuple[int, Mapping[str, Ended]] | None = None
        """The number of the newest record, and what it has."""

    @property
    def queries(self) -> Mapping[str, Ended]:
        """How each query left, the newest last."""
        return self._newest()[1]

    def note(self, left: Mapping[str, Ended]) -> None:
        """Adds queries that have left, or notes them anew."""
        there = {name: ended for name, ended in self.queries.items() if name not in left}
        found = {**there, **{name: Ended(e.batch, e.reason, command=e.command) for name, e in left.items()}}
        if found != self.queries:
            self._write(dict([*found.items()][-self._most :]))

    def forget(self, names: Iterable[str]) -> None:
        """Takes out queries that have come back."""
        back = frozenset(names)
        if back & self.queries.keys():
            self._write({name: ended for name, ended in self.queries.items() if name not in back})

    def _write(self, found: Mapping[str, Ended]) -> None:
        number = self._newest()[0] + 1
        self._ledger.write(number, Left(dict(found)))
        self._ledger.prune(number)
        self._known = number, found

    def _newest(self) -> tuple[int, Mapping[str, Ended]]:
        if self._known is None:
            latest = self._ledger.latest()
            self._known = (-1, {}) if latest is None else (latest[0], latest[1].queries)
        return self._known
