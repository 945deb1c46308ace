"""Which files and records a checkpoint still needs: those of the newest commit, and of the one before it.

Who runs the newest batch again (`anabranch.drive.local` does, if it is handed in again) starts from the commit before it; so
what that one names stays until the batch after it is committed. Commits whose results have not arrived stay as records; the
state that they name does not.

An attempt reports the files that it dropped: the state that it began with needed them, the state that it left does not. Of
a commit these go when the commit after it is written. So nobody reads manifests while a query runs. Files of attempts that
lost are known by their names, which have the batch and the token of the attempt: only the token that won stays. What a
driver that died was about to delete is found at the next start, by the manifests (`sweep_unnamed`).

A slot in which no query has a cell any more drops all that it held.

Example: batch 7 merges the runs of batches 4 to 7, and no longer needs the file of batch 5, which held one of them. Commit 7
has it as dropped. When commit 8 is written, commits 7 and 8 are kept, and neither needs it: it goes.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from anabranch.control.ledger import DELIVERED, Ledger, deliveries_in
from anabranch.control.manifest import files_of
from anabranch.control.records import Commit, Control, Ended
from anabranch.control.sweep import batch_of, state_prefix, sweep
from anabranch.control.table_files import release_versions
from anabranch.errors import StateError
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.several import for_each

RELEASE_EVERY = 8
"""Files that no commit needs any more are deleted every so many batches."""

SWEEP_GRACE_S = 600.0
"""At start, files that no commit names are deleted when they are older than this: a slower attempt may still write them."""


Work = Callable[[], None]


def at_once(work: Work) -> None:
    """Does what is to be done."""
    work()


class Background:
    """Does one thing after the other in a thread of its own, which is there while there is something to do: nobody waits for
    files to be deleted. What fails, also with an error of a filesystem that a user has given, is left to the sweep at the
    next start."""

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._changing = threading.Lock()
        self._is_at_work = False

    def __call__(self, work: Work) -> None:
        with self._changing:
            self._waiting.append(work)
            if self._is_at_work:
                return
            self._is_at_work = True
        threading.Thread(target=self._work, name="anabranch-release", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self._waiting:
                    self._is_at_work = False
                    return
                work = self._waiting.popleft()
            with contextlib.suppress(Exception):  # filesystems in Python raise what they like
                work()


class Retention:
    """Lets go of what no commit needs any more, every so many batches. `do` has it done: at once, or in the background."""

    def __init__(
        self, filesystem: Filesystem, every: int = RELEASE_EVERY, do: Callable[[Work], None] = at_once
    ) -> None:
        self.filesystem, self.every, self._do = filesystem, every, do
        self._dropped: list[str] = []
        self._tokens: dict[int, dict[str, str]] = {}
        """For the latest batches the attempts that won, by slot."""

    def won(self, commit: Commit) -> None:
        """Notes whose files a batch's are."""
        self._tokens[commit.batch] = {
            slot: kept.token for slot, kept in commit.slots.items() if kept.manifest is not None
        }

    def first_kept(self, base: Commit | None, commit: Commit, kept_from: int | None = None) -> int | None:
        """The first commit that is kept, if others are let go of after a commit; `base` is the commit that its batch started
        from. Commits from `kept_from` on stay, whose results have not arrived yet."""
        if base is None or commit.batch % self.every:
            return None
        # The latest records stay: what they measured is shown beside what is predicted (`anabranch.show.measured`).
        return min(base.batch, commit.batch - self.every, commit.batch if kept_from is None else kept_from)

    def after(
        self,
        base: Commit | None,
        commit: Commit,
        commits: Ledger[Commit],
        controls: Ledger[Control],
        first: int | None,
        gone: Mapping[str, Ended],
    ) -> None:
        """After a commit; commits before the `first` one that is kept go, if there is one, and with them the records of what
        has arrived of queries that are gone."""
        self.won(commit)
        if base is None:
            return
        self._dropped += [path for slot in base.slots.values() for path in slot.dropped]
        if first is None:
            return
        dropped, self._dropped = self._dropped, []
        over = {number: tokens for number, tokens in self._tokens.items() if number < commit.batch - 1}
        self._tokens = {number: tokens for number, tokens in self._tokens.items() if number not in over}
        named = {path for each in (base, commit) for query in each.queries.values() for path in query.tables.values()}

        def release() -> None:
            for_each(self.filesystem, self._delete, dropped)
            slots = {slot for tokens in over.values() for slot in tokens}
            for_each(self.filesystem, partial(self._sweep_losers, over), slots)
            commits.prune(first)
            for name, ended in gone.items():  # not before its results are in no commit: they would be delivered again
                deliveries_in(self.filesystem, name).prune(ended.batch)
                self.filesystem.remove_empty(f"{DELIVERED}/{name}")
            controls.prune(base.batch)
            release_versions(self.filesystem, named, base.batch)

        self._do(release)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete(path)

    def _sweep_losers(self, over: Mapping[int, Mapping[str, str]], slot: str) -> None:
        """Deletes the files of attempts at a slot that lost, in batches that are over; the attempts that won are by batch
        and slot."""
        folder = f"state/{slot}"
        for name in self.filesystem.list(folder):
            number = batch_of(name)
            token = over.get(number, {}).get(slot) if number is not None else None
            if number is None or token is None:
                continue
            if not f"{folder}/{name}".startswith(f"{state_prefix(folder, number, token)}."):
                self._delete(f"{folder}/{name}")


def sweep_unnamed(
    filesystem: Filesystem, commits: Ledger[Commit], commit: Commit | None, grace_s: float = SWEEP_GRACE_S
) -> None:
    """Deletes state files that no commit names, before anything runs, also those of slots that there are no more. If there
    are commits that cannot tell any more what they need, nothing is deleted: whoever goes on may not need it, and a commit
    may be restored."""
    if commits.torn():
        return
    named: frozenset[str] = frozenset()
    if commit is not None:
        reader = ContainerReader(filesystem)
        named = files_of((slot.manifest for slot in commit.slots.values()), reader)
        if commit.batch - 1 in commits.numbers():
            try:
                before = commits.read(commit.batch - 1)
                named |= files_of((slot.manifest for slot in before.slots.values()), reader)
            except StateError:
                return
    for slot in filesystem.folders("state"):
        sweep(filesystem, f"state/{slot}", named, grace_s)
