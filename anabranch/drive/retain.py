"""Which files and records a checkpoint still needs: those of the newest commit, and of the one before it.

The results of a batch may have to be computed once more for delivery, from the commit before its own; so what that one names
stays until the batch after it is committed.
"""

from __future__ import annotations

from anabranch.control.ledger import Ledger
from anabranch.control.records import Commit, Control, Delivered
from anabranch.control.sweep import sweep
from anabranch.control.table_files import release_versions
from anabranch.storage.filesystem import Filesystem

RELEASE_EVERY = 8
"""Files that no commit needs any more are deleted every so many batches."""

SWEEP_GRACE_S = 600.0
"""At start, files that no commit names are deleted when they are older than this: a slower attempt may still write them."""


def release(
    filesystem: Filesystem,
    commits: Ledger[Commit],
    controls: Ledger[Control],
    deliveries: Ledger[Delivered],
    slots: int,
    base: Commit | None,
    commit: Commit,
    every: int = RELEASE_EVERY,
) -> None:
    """Now and then: deletes what neither a commit nor the one that its batch started from names."""
    if base is None or commit.batch % every:
        return
    sweep_unnamed(filesystem, commits, slots, commit, grace_s=0.0, before=commit.batch)
    commits.prune(base.batch)
    controls.prune(base.batch)
    deliveries.prune(base.batch)
    release_versions(filesystem, {*base.tables.values(), *commit.tables.values()}, base.batch)


def sweep_unnamed(
    filesystem: Filesystem,
    commits: Ledger[Commit],
    slots: int,
    commit: Commit | None,
    grace_s: float = SWEEP_GRACE_S,
    before: int | None = None,
) -> None:
    """Deletes state files that no commit names. While a query runs, only those of batches that are over."""
    named: frozenset[str] = frozenset()
    if commit is not None:
        kept = [commit]
        if commit.batch - 1 in commits.numbers():
            kept.append(commits.read(commit.batch - 1))
        named = frozenset().union(*(c.files() for c in kept))
    for slot in range(slots):
        sweep(filesystem, f"state/{slot}", named, grace_s, before - 1 if before is not None else None)
