"""The manifest of a slot: all that its state consists of, written by the task that made it, among its other data.

A manifest grows with the window: whole, that of a join of three streams over 600 batches has some 400 KB. So it is written
whole now and then, and in between as the difference from the last whole one: to read a state never takes more than two. The
driver passes on where a manifest lies and reads none, but when it looks for files that nobody names, at the start.

Example: batch 64 writes the manifest whole. Batch 65 drops the first log segment and adds one: its manifest has the place of
the one dropped, `(0,)`, the new segment, and where that of batch 64 lies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from anabranch.control.records import Manifest, SlotState
from anabranch.errors import DamagedStateError
from anabranch.storage.container import ContainerReader, Segment

WHOLE_EVERY = 64
"""So many batches share a whole manifest."""

Record = TypeVar("Record")

LISTS = ("logs", "runs", "views", "partials")


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """What became of a whole state: the places in its lists that are gone, and, as a state, what has come since."""

    gone: tuple[tuple[int, ...], ...]
    added: SlotState


class Whole:
    """A state that was written whole, as a base of differences. Records that are kept are known by identity."""

    def __init__(self, segment: Segment, state: SlotState, batch: int) -> None:
        self.segment, self.state, self.batch = segment, state, batch
        self._places = [{id(record): n for n, record in enumerate(getattr(state, name))} for name in LISTS]

    def difference(self, state: SlotState) -> Difference:
        """What became of it."""
        gone, added = [], {}
        for name, places in zip(LISTS, self._places, strict=True):
            records = getattr(state, name)
            kept = {id(record) for record in records} & places.keys()
            gone.append(tuple(n for known, n in places.items() if known not in kept))
            added[name] = tuple(record for record in records if id(record) not in kept)
        return Difference(tuple(gone), msgspec.structs.replace(state, **added))


def applied(base: SlotState, difference: Difference) -> SlotState:
    """What a state has become."""
    lists = {}
    for name, gone in zip(LISTS, difference.gone, strict=True):
        away = set(gone)
        rest = tuple(record for n, record in enumerate(getattr(base, name)) if n not in away)
        lists[name] = rest + getattr(difference.added, name)
    return msgspec.structs.replace(difference.added, **lists)


def read_manifest(manifest: Manifest, reader: ContainerReader) -> tuple[SlotState, Whole]:
    """A state, and the whole one that it was written as a difference from (or itself)."""
    if manifest.base is None:
        state = _decoded(manifest.own, reader, SlotState)
        return state, Whole(manifest.own, state, manifest.whole_batch)
    base = _decoded(manifest.base, reader, SlotState)
    whole = Whole(manifest.base, base, manifest.whole_batch)
    return applied(base, _decoded(manifest.own, reader, Difference)), whole


def _decoded(segment: Segment, reader: ContainerReader, type: type[Record]) -> Record:
    try:
        return msgspec.msgpack.decode(reader.segment(segment), type=type)
    except msgspec.DecodeError as error:
        raise DamagedStateError(
            f"{segment.file}: the manifest at byte {segment.offset} cannot be read: {error}"
        ) from None


def files_of(manifests: Iterable[Manifest | None], reader: ContainerReader) -> frozenset[str]:
    """All files that some states consist of, their manifests included."""
    found: set[str] = set()
    for manifest in manifests:
        if manifest is not None:
            state, whole = read_manifest(manifest, reader)
            found |= {*state.files(), manifest.own.file, whole.segment.file}
    return frozenset(found)
