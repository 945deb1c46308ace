"""What is asked of a run from outside: a command is a file in the checkpoint, and so is its answer.

    <checkpoint>/commands/<id>, answers/<id>

Whoever holds the checkpoint takes commands up between batches, in the order in which they were given, and answers each once:
the answer is written before the command is deleted. So a command whose driver died is taken up by the next one, and one that
was answered already is not carried out a second time. A file that is no command is set aside under `refused/`, and told.
"""

from __future__ import annotations

import contextlib
import time
import uuid

import msgspec

from anabranch.errors import AnabranchError, DamagedStateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

COMMANDS, ANSWERS, REFUSED = "commands", "answers", "refused"
MOST_ANSWERS = 256
"""Older answers than so many go: whoever asked has long read them."""


class Command(msgspec.Struct, frozen=True):
    """What is asked."""

    do: str
    """`add`, `alter` or `drop`."""
    query: str
    sql: str = ""
    output: str = ""
    """The folder for results of a query that is added; none: they are printed."""
    plan: str | None = None
    history: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What came of it."""

    is_done: bool
    text: str


def give(checkpoint: Filesystem, command: Command) -> str:
    """Writes a command; its id."""
    # Ids sort as they were given, whoever gave them.
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    checkpoint.put(f"{COMMANDS}/{name}", [seal("command", msgspec.json.encode(command))])
    return name


def given(checkpoint: Filesystem) -> list[tuple[str, Command]]:
    """The commands that wait, in order. Nothing is changed."""
    return [(name, found) for name, found in _waiting(checkpoint) if isinstance(found, Command)]


def tidy(checkpoint: Filesystem) -> None:
    """Sets aside what is no command, and deletes commands whose driver died when it had answered them."""
    for name in checkpoint.list(COMMANDS):
        if answer_to(checkpoint, name) is not None:
            _delete(checkpoint, name)
    for name, found in _waiting(checkpoint):
        if not isinstance(found, Command):
            path = f"{COMMANDS}/{name}"
            checkpoint.put(f"{REFUSED}/{name}", [checkpoint.get(path)])
            answer(checkpoint, name, Answer(False, f"{path} is no command, and was set aside in {REFUSED}/: {found}"))
            for old in sorted(checkpoint.list(REFUSED))[:-MOST_ANSWERS]:
                checkpoint.delete(f"{REFUSED}/{old}")


def _waiting(checkpoint: Filesystem) -> list[tuple[str, Command | Exception]]:
    """What has no answer yet, in order: commands, or why something is none."""
    found: list[tuple[str, Command | Exception]] = []
    for name in sorted(checkpoint.list(COMMANDS)):
        if answer_to(checkpoint, name) is not None:
            continue
        path = f"{COMMANDS}/{name}"
        with contextlib.suppress(FileNotFoundError):
            try:
                text = unseal("command", memoryview(checkpoint.get(path)), path)
                found.append((name, msgspec.json.decode(text, type=Command)))
            except (AnabranchError, msgspec.DecodeError) as error:
                found.append((name, error))
    return found


def answer(checkpoint: Filesystem, name: str, found: Answer) -> None:
    """Answers a command, which is gone then."""
    checkpoint.put(f"{ANSWERS}/{name}", [seal("answer", msgspec.json.encode(found))])
    _delete(checkpoint, name)
    for old in sorted(checkpoint.list(ANSWERS))[:-MOST_ANSWERS]:
        with contextlib.suppress(FileNotFoundError):
            checkpoint.delete(f"{ANSWERS}/{old}")


def answer_to(checkpoint: Filesystem, name: str) -> Answer | None:
    """The answer to a command, if there is one.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> name = give(disk, Command("drop", "q"))
    >>> [(each.do, each.query) for _, each in given(disk)], answer_to(disk, name)
    ([('drop', 'q')], None)
    >>> answer(disk, name, Answer(True, "q leaves with the next batch"))
    >>> given(disk), answer_to(disk, name)
    ([], Answer(is_done=True, text='q leaves with the next batch'))
    """
    path = f"{ANSWERS}/{name}"
    with contextlib.suppress(FileNotFoundError, DamagedStateError):
        return msgspec.json.decode(unseal("answer", memoryview(checkpoint.get(path)), path), type=Answer)
    return None


def _delete(checkpoint: Filesystem, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        checkpoint.delete(f"{COMMANDS}/{name}")
