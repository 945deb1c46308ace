"""Which pipelines a checkpoint has, and which queries run in each.

    <checkpoint>/id, epochs/, lease/, pipelines, queries/<digest>, journal/<query>/
    <checkpoint>/pipeline-0/control/, commit/, state/<slot>/, staged/, delivered/<query>/, tables/, files/<stream>/, spark/,
        streams, dropped/<query>, coming/<query>, left/<n>

A query stays in the pipeline that it first ran in: its state is there. A new one gets a pipeline of its own, and reads its
streams from the beginning; one that is added while others run comes into theirs. Who is to come or to go is noted before it
is answered, until a commit says so: a driver that dies in between does not lose it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.left import LeftQueries
from anabranch.control.records import BY_REQUEST, Commit, Ended, Layout, QueryCommit
from anabranch.errors import DamagedStateError
from anabranch.plan.names import why_not_a_name
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.location import Folder
from anabranch.storage.record import seal, unseal

DROPPED, COMING, COUNT = "dropped", "coming", "pipelines"
T = TypeVar("T")
_NAME = re.compile(r"pipeline-([0-9]+)")


class ComingNote(msgspec.Struct, frozen=True):
    """A query that is to come in with the next batch, or to take the place of the one of its name."""

    name: str
    text: str
    """The digest of its text (`anabranch.control.query_texts`)."""
    plan: str | None = None
    """A plan that is pinned."""
    history: bool = False
    command: str = ""
    """The command that asked for it (`anabranch.control.commands`), if one did."""


class DroppedNote(msgspec.Struct, frozen=True):
    """A query that is to leave with the next batch."""

    name: str
    command: str = ""
    """The command that asked for it, if one did."""


@dataclass(frozen=True)
class KnownPipeline:
    """A pipeline that has run."""

    name: str
    layouts: Mapping[str, Layout]
    """Its queries, and how their rows are spread."""
    is_committed: bool
    """Whether a batch of it was ever committed: else nothing of it is worth keeping."""
    begun: Mapping[str, str] = field(default_factory=dict)
    """The queries of a first batch that has no commit, and the digests of what their state depends on."""
    ended: Mapping[str, Layout] = field(default_factory=dict)
    """The queries that have left it: results of theirs may still wait."""
    dropped: tuple[str, ...] = ()
    """Queries of its newest commit that were dropped since: no commit has said so yet."""
    commit: Commit | None = None
    """Its newest commit."""
    coming: Mapping[str, ComingNote] = field(default_factory=dict)
    """The queries that are to come, or to take the place of one: no commit has them yet."""
    left: Mapping[str, Ended] = field(default_factory=dict)
    """The queries that have left it, and of which nothing waits (`anabranch.control.left`)."""

    @property
    def left_out(self) -> list[str]:
        """The queries that a user had dropped: they stay so."""
        ended = {**self.left, **(self.commit.ended if self.commit is not None else {})}
        return [*self.dropped, *(name for name, each in ended.items() if each.reason == BY_REQUEST)]

    @property
    def names(self) -> set[str]:
        """The queries that run in it, are to come, or have left with results that may wait."""
        return {*self.layouts, *self.ended, *self.coming, *self.begun}

    def own(self, query: str) -> QueryCommit:
        """What its newest commit says of a query."""
        assert self.commit is not None, "it has no commit"
        return self.commit.queries[query]


def known_pipelines(checkpoint: Folder) -> list[KnownPipeline]:
    """The pipelines of a checkpoint, by their newest records."""
    found = []
    for name in pipeline_names(checkpoint):
        folder = checkpoint.below(name)
        latest = commits_in(folder).latest()
        if latest is not None:
            commit, gone = latest[1], read_dropped(folder)
            layouts = {n: q.layout for n, q in commit.queries.items() if n not in gone}
            ended = {n: e.layout for n, e in commit.ended.items()}
            ended |= {n: q.layout for n, q in commit.queries.items() if n in gone}
            dropped = tuple(n for n in commit.queries if n in gone)
            # One that was asked to come, and then to go, does not come.
            asked = [each for each in read_coming(folder) if each.name not in gone]
            coming = {each.name: each for each in asked if not _has_come(each, commit)}
            left = LeftQueries(folder).queries
            found.append(KnownPipeline(name, layouts, True, {}, ended, dropped, commit, coming, left))
        else:
            first = controls_in(folder).find(0)
            begun = {} if first is None else {n: query.identity for n, query in first.queries.items()}
            found.append(KnownPipeline(name, {}, False, begun))
    return found


def pipeline_names(checkpoint: Folder) -> list[str]:
    """The folders of pipelines, oldest first."""
    return sorted((name for name in checkpoint.folders("") if _NAME.fullmatch(name)), key=_number)


def write_dropped(filesystem: Filesystem, notes: Iterable[DroppedNote]) -> None:
    """Notes which queries of a pipeline are not to go on, until a commit does without them: in a file each, so that none is
    lost if the note of another is torn."""
    for note in notes:
        filesystem.put(f"{DROPPED}/{note.name}", [seal(DROPPED, msgspec.json.encode(note))])


def read_dropped(filesystem: Filesystem) -> dict[str, DroppedNote]:
    """The queries of a pipeline that are not to go on. Who was about to note another, and died, has told nobody.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> write_dropped(disk, [DroppedNote("q")])
    >>> read_dropped(disk)
    {'q': DroppedNote(name='q', command='')}
    """
    found = {}
    for name in noted(filesystem, DROPPED):
        with contextlib.suppress(DamagedStateError):
            note = _read(filesystem, f"{DROPPED}/{name}", DroppedNote, DROPPED)
            if note is not None and note.name == name:
                found[name] = note
    return found


def forget_dropped(filesystem: Filesystem, names: Iterable[str]) -> None:
    """Deletes the notes of queries that have left."""
    for name in names:
        filesystem.delete(f"{DROPPED}/{name}")


def write_coming(filesystem: Filesystem, note: ComingNote) -> None:
    """Notes a query that is to come."""
    filesystem.put(f"{COMING}/{note.name}", [seal(COMING, msgspec.json.encode(note))])


def read_coming(filesystem: Filesystem) -> list[ComingNote]:
    """The queries that are to come. Who was about to note another, and died, has told nobody.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> write_coming(disk, ComingNote("q", "3f", history=True))
    >>> [(note.name, note.history) for note in read_coming(disk)]
    [('q', True)]
    """
    found = []
    for name in noted(filesystem, COMING):
        with contextlib.suppress(DamagedStateError):
            note = _read(filesystem, f"{COMING}/{name}", ComingNote, COMING)
            found += [note] if note is not None and note.name == name else []
    return found


def forget_coming(filesystem: Filesystem, names: Iterable[str]) -> None:
    """Deletes the notes of queries that have come, or are not to come any more."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete(f"{COMING}/{name}")


def noted(filesystem: Filesystem, folder: str) -> list[str]:
    """The queries that a folder has notes of; a file that is not called like a query is somebody else's."""
    return [name for name in filesystem.list(folder) if why_not_a_name(name) is None]


def _has_come(note: ComingNote, commit: Commit) -> bool:
    own = commit.queries.get(note.name)
    return note.name in commit.ended or (own is not None and own.text == note.text)


def _read(filesystem: Filesystem, path: str, type: type[T], kind: str | None = None) -> T | None:
    try:
        content = filesystem.get(path)
    except FileNotFoundError:
        return None
    return msgspec.json.decode(unseal(kind or path, memoryview(content), path), type=type)


def new_name(checkpoint: Filesystem, known: Sequence[KnownPipeline]) -> str:
    """A name that no pipeline of a checkpoint has, or ever had: sinks know results by it.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> new_name(disk, []), new_name(disk, [])
    ('pipeline-0', 'pipeline-1')
    """
    used = max((_number(each.name) for each in known), default=-1)
    number = max(used + 1, _read(checkpoint, COUNT, int) or 0)
    checkpoint.put(COUNT, [seal(COUNT, msgspec.json.encode(number + 1))])
    return f"pipeline-{number}"


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None else -1
