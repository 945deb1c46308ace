"""Commands are files: taken up in order, answered once, and what is none is set aside."""

from __future__ import annotations

import pytest

from anabranch.control.commands import (
    ANSWERS,
    COMMANDS,
    MOST_ANSWERS,
    REFUSED,
    Answer,
    Command,
    answer,
    answer_to,
    give,
    given,
    tidy,
)
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.faulty import Crash, Fault, FaultyFilesystem


def test_commands_are_taken_up_in_order() -> None:
    disk = MemoryFilesystem()
    names = [give(disk, Command("drop", f"q{n}")) for n in range(5)]
    assert [(name, command.query) for name, command in given(disk)] == [(name, f"q{n}") for n, name in enumerate(names)]


def test_what_is_no_command_is_set_aside_and_told() -> None:
    disk, name = MemoryFilesystem(), "5-foreign"
    disk.put(f"{COMMANDS}/{name}", [b"rubbish"])
    waits = give(disk, Command("drop", "q"))
    assert [each for each, _ in given(disk)] == [waits]
    assert list(disk.list(COMMANDS)) == sorted([name, waits]), "looking changes nothing"
    tidy(disk)
    assert list(disk.list(COMMANDS)) == [waits]
    assert bytes(disk.get(f"{REFUSED}/{name}")) == b"rubbish"
    found = answer_to(disk, name)
    assert found is not None
    assert not found.is_done
    assert "5-foreign is no command, and was set aside in refused/" in found.text


@pytest.mark.parametrize("kind", ["lose", "tear", "crash_after"])
def test_a_driver_dies_when_it_answers(kind: str) -> None:
    """A command whose answer is whole is not carried out again; else it waits."""
    disk = MemoryFilesystem()
    name = give(disk, Command("drop", "q"))
    with pytest.raises(Crash):
        answer(FaultyFilesystem(disk, {0: Fault(kind)}), name, Answer(True, "done"))  # type: ignore[arg-type]
    tidy(disk)
    is_answered = kind == "crash_after"
    assert bool(given(disk)) is not is_answered
    assert (answer_to(disk, name) is not None) is is_answered
    assert bool(disk.list(COMMANDS)) is not is_answered, "a command that is answered is deleted"


def test_answers_do_not_grow_without_end() -> None:
    disk = MemoryFilesystem()
    for _ in range(MOST_ANSWERS + 3):
        answer(disk, give(disk, Command("drop", "q")), Answer(True, "done"))
        disk.put(f"{COMMANDS}/foreign", [b"rubbish"])
        tidy(disk)
    assert len(disk.list(ANSWERS)) == MOST_ANSWERS
    assert len(disk.list(REFUSED)) <= MOST_ANSWERS
