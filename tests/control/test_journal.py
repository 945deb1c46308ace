"""The journal: an entry that cannot be read stops nobody."""

from __future__ import annotations

import pytest

from anabranch.control.journal import DAMAGED, Journal
from anabranch.storage.filesystem import MemoryFilesystem
from anabranch.storage.record import seal

DAMAGES = {
    "empty": b"",
    "zeroed": bytes(200),
    "torn": seal("entry", b'{"at_s":1.0}')[:-3],
    "another program's": b"#!/bin/sh\n",
    "of another kind": seal("commit", b"{}"),
    "of another release": seal("entry", b'{"at_s":"noon"}'),
    "not JSON": seal("entry", b"noon"),
    "not text": seal("entry", b'{"at_s":1.0,"batch":1,"event":"\xff","text":""}'),
}


@pytest.fixture
def disk() -> MemoryFilesystem:
    disk = MemoryFilesystem()
    journal = Journal(disk, "q")
    for number, event in enumerate(["started", "migrating", "migrated", "ended"]):
        journal.note(number, event, f"entry {number}")
    return disk


def path(number: int) -> str:
    return f"journal/q/{number:020d}-{0:010d}"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_damaged_entry_is_told_and_passed_over(disk: MemoryFilesystem, number: int, damage: str) -> None:
    disk.put(path(number), [DAMAGES[damage]])
    journal = Journal(disk, "q")
    entries = journal.entries()
    expected = ["started", "migrating", "migrated", "ended"]
    expected[number] = DAMAGED
    assert [e.event for e in entries] == expected
    assert f"entry {number} cannot be read" in entries[number].text
    assert path(number) in entries[number].text
    assert (entries[number].batch, entries[number].at_s) == (
        (entries[number - 1].batch, entries[number - 1].at_s) if number else (-1, 0.0)
    )
    assert f"entry {number} cannot be read" in str(entries[number])
    journal.note(4, "resumed", "after all")
    assert [e.event for e in journal.entries()] == [*expected, "resumed"]


def test_a_deleted_entry_leaves_the_others(disk: MemoryFilesystem) -> None:
    disk.delete(path(1))
    journal = Journal(disk, "q")
    assert [e.event for e in journal.entries()] == ["started", "migrated", "ended"]
    journal.note(4, "resumed", "")
    assert [e.event for e in journal.entries()] == ["started", "migrated", "ended", "resumed"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_told_last(disk: MemoryFilesystem, damage: str) -> None:
    journal = Journal(disk, "q")
    for found in (journal.last_of("migrating", "migrated"), journal.last_of("migrated")):
        assert found is not None
        assert found.event == "migrated"
    assert journal.last_of("cancelled") is None
    disk.put(path(2), [DAMAGES[damage]])
    found = journal.last_of("migrating", "migrated")
    assert found is not None
    assert found.event == "migrating"
