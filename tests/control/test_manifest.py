"""Manifests: whole ones, and differences from them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.control.manifest import Whole, applied, files_of, read_manifest
from anabranch.control.records import LogSegment, Manifest, PartialSegment, RunSegment, SlotState, ViewSegment
from anabranch.errors import DamagedStateError
from anabranch.storage.container import ContainerReader, ContainerWriter, Segment
from anabranch.storage.filesystem import MemoryFilesystem


def log(number: int) -> LogSegment:
    return LogSegment("s", number, 10, number, Segment(f"state/0/{number}.log", 64, 10, 1))


def run(number: int) -> RunSegment:
    at = Segment(f"state/0/{number}.index", 64, 10, 1)
    return RunSegment("i", 1, number, number, 0, 65536, 0, 10, True, False, 8, 0, 0, 0, at, at)


def state(logs: list[LogSegment], runs: list[RunSegment]) -> SlotState:
    views = tuple(ViewSegment("v", each.batch, 1, 1, each.data) for each in logs[::2])
    partials = tuple(PartialSegment("q", "keys", each.batch, 1, 1, each.data) for each in logs[::3])
    return SlotState(
        tuple(logs), tuple(runs), views, ("v",), partials, predicates=((), ("x",)), versions={"q": {"t": 3}}
    )


def put(disk: MemoryFilesystem, name: str, content: object) -> Segment:
    writer = ContainerWriter(f"state/0/{name}")
    segment = writer.add(msgspec.msgpack.encode(content))
    writer.write(disk)
    return segment


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_difference_says_what_became_of_a_state(data: st.DataObject) -> None:
    """Segments come and go in any order; whoever reads the difference and the whole one has the state again."""
    logs, runs = (
        [log(n) for n in range(data.draw(st.integers(0, 9)))],
        [run(n) for n in range(data.draw(st.integers(0, 9)))],
    )
    base = state(logs, runs)
    disk = MemoryFilesystem()
    whole = Whole(put(disk, "whole", base), base, 7)
    kept = [[each for each in each_kind if data.draw(st.booleans())] for each_kind in (logs, runs)]
    now = state([*kept[0], *(log(n) for n in range(20, 22))], [*kept[1], run(30)])
    now = msgspec.structs.replace(now, views=tuple(v for v in base.views if data.draw(st.booleans())), kept_views=())
    difference = whole.difference(now)
    assert len(difference.added.logs) == 2, "what is kept is not told again"
    assert len(difference.added.runs) == 1
    found, known = read_manifest(Manifest(put(disk, "own", difference), whole.segment, 7), ContainerReader(disk))
    for name in ("logs", "runs", "views", "partials"):
        assert sorted(getattr(found, name), key=str) == sorted(getattr(now, name), key=str), name
    assert (found.kept_views, found.predicates, found.versions) == (now.kept_views, now.predicates, now.versions)
    assert known.state == base
    again = known.difference(found)
    assert not again.added.views, "read again, what is kept is known by identity"
    assert applied(known.state, again) == found


def test_all_files_of_a_state() -> None:
    disk, now = MemoryFilesystem(), state([log(1), log(2)], [run(5)])
    whole = Whole(put(disk, "whole", now), now, 0)
    own = put(disk, "own", whole.difference(now))
    found = files_of([Manifest(own, whole.segment), None], ContainerReader(disk))
    assert found == {f"state/0/{name}" for name in ("1.log", "2.log", "5.index", "own", "whole")}


def test_what_is_no_manifest_is_told() -> None:
    disk = MemoryFilesystem()
    with pytest.raises(DamagedStateError, match="state/0/odd: the manifest at byte 64 cannot be read"):
        read_manifest(Manifest(put(disk, "odd", {"logs": 3})), ContainerReader(disk))
    whole = put(disk, "whole", SlotState())
    with pytest.raises(DamagedStateError, match="the manifest at byte 64"):
        read_manifest(Manifest(put(disk, "own", SlotState()), whole), ContainerReader(disk))
