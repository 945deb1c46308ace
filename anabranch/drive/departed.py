"""What goes when queries have gone: their texts, notes and records, so that a checkpoint does not grow with queries that
come and go for ever.

While a pipeline runs, the text of a query goes when no commit that is kept names it (`TextsInUse`), also where the query was
altered; records of what was delivered go with the commits that had results (`anabranch.drive.retain`). What a driver that
died was about to delete is found at the next start: in the folder of a pipeline by its driver (`sweep_pipeline`), and above
the pipelines by the session (`sweep_checkpoint`), who alone has the checkpoint then.

Example: q is dropped with batch 12. Commits 8 to 16 are kept when batch 16 is committed: commit 11 has results of q, so q
stays in the records. When batch 24 is committed, commits 16 to 24 are kept, and nothing of q waits: q gets an entry in
`left/`, control record 25 does without q, and the text of q, the note of its sink and `delivered/q` are deleted. A query
called q may come again from then on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

from anabranch.control.journal import FOLDER as JOURNALS
from anabranch.control.journal import MOST_GONE, forget_journal
from anabranch.control.ledger import DELIVERED, Ledger, commits_in, controls_in
from anabranch.control.pipelines import (
    COMING,
    DROPPED,
    KnownPipeline,
    forget_dropped,
    known_pipelines,
    noted,
    read_coming,
)
from anabranch.control.query_texts import QueryText, QueryTexts
from anabranch.control.records import Commit
from anabranch.control.sink_notes import FOLDER as SINKS
from anabranch.control.sink_notes import forget_sink
from anabranch.errors import DamagedStateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.location import Folder


class TextsInUse:
    """The texts that the commits of a pipeline name: each is deleted when the last commit that names it is. One thread runs
    batches, while others have queries come."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[int, QueryTexts]] = {}
        """The last batch whose commit names a text, and where the text is."""
        self._changing = threading.Lock()

    def keep(self, texts: QueryTexts, text: QueryText) -> None:
        """Writes the text of a query that is to come: it stays, whoever named it before."""
        with self._changing:
            for digest in (text.digest, text.base):
                self._named.pop(digest, None)
            texts.keep(text)

    def name(self, batch: int, queries: Iterable[tuple[QueryTexts, QueryText]]) -> None:
        """Notes which texts a commit names: those of its queries, and those whose state these go on with."""
        with self._changing:
            for texts, text in queries:
                self._named[text.digest] = batch, texts
                if text.base:
                    self._named[text.base] = batch, texts

    def release(self, first: int) -> None:
        """Deletes the texts that no commit from a batch on names. What cannot be deleted is left to the next start."""
        with self._changing:
            over = [digest for digest, (batch, _) in self._named.items() if batch < first]
            for digest in over:
                texts = self._named.pop(digest)[1]
                with contextlib.suppress(OSError):
                    texts.forget(digest)


def sweep_pipeline(filesystem: Filesystem, commits: Ledger[Commit], newest: Commit) -> None:
    """Deletes notes and records of queries that have left a pipeline, before anything of it runs. Nothing is deleted while
    there is a commit that cannot be read: it may be restored."""
    if commits.torn():
        return
    asked = {*newest.queries, *noted(filesystem, COMING)}
    forget_dropped(filesystem, [name for name in noted(filesystem, DROPPED) if name not in asked])
    there = {*newest.queries, *newest.ended, *newest.set_aside}
    over = [name for name in filesystem.folders(DELIVERED) if name not in there]
    if not over:
        return
    kept = [commit for _, commit in commits.history()]
    for name in over:
        folder = f"{DELIVERED}/{name}"
        if not any(commit.staged(name) for commit in kept):
            for record in filesystem.list(folder):
                filesystem.delete(f"{folder}/{record}")
            filesystem.remove_empty(folder)


def sweep_checkpoint(checkpoint: Folder) -> None:
    """Deletes texts, notes and journals of queries that have gone from all pipelines, before anything runs."""
    known = known_pipelines(checkpoint)
    sweep_texts(QueryTexts(checkpoint), [checkpoint.below(each.name) for each in known])
    there = set[str]().union(*(each.names for each in known))
    for name in noted(checkpoint, SINKS):
        if name not in there:
            forget_sink(checkpoint, name)
    trim_journals(checkpoint, known)


def sweep_texts(texts: QueryTexts, pipelines: Sequence[Filesystem]) -> None:
    """Deletes the texts that no record of any pipeline names."""
    named = set[str]()
    for folder in pipelines:
        for records in (commits_in(folder).history(), controls_in(folder).whole()):
            named |= {own.text for _, record in records for own in record.queries.values()}
        named |= {note.text for note in read_coming(folder)}
    for digest in tuple(named):
        with contextlib.suppress(DamagedStateError):
            named.add(texts.read(digest).base)
    for digest in texts.digests():
        if digest not in named:
            texts.forget(digest)


def trim_journals(checkpoint: Folder, known: Sequence[KnownPipeline], most: int = MOST_GONE) -> None:
    """Deletes the journals of queries that are gone, but for those that left last."""
    there = set[str]().union(*(each.names for each in known))
    gone = [name for name in checkpoint.folders(JOURNALS) if name not in there]
    if len(gone) <= most:
        return
    left = [name for each in known for name in each.left]
    # One of which it is not known when it left has left long ago, or with the whole of its pipeline.
    latest = {name: place for place, name in enumerate(left)}
    for name in sorted(gone, key=lambda name: latest.get(name, -1))[:-most]:
        forget_journal(checkpoint, name)
