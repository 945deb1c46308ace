"""`anabranch add`, `alter` and `drop`: queries come, change and go while a run goes on. The run is asked by a file in its
checkpoint, and answers by another (`anabranch.control.commands`)."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from anabranch.cli.arguments import length, read_file
from anabranch.cli.waits import saying
from anabranch.errors import CommandError, StateError

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands
    from anabranch.control.commands import Answer, Command
    from anabranch.storage.location import Folder

LOOK_S = 0.1
"""How often an answer is looked for."""
SQL_FILE = ".sql"


def add(commands: Commands) -> None:
    adds = commands.add_parser("add", help="have a query come into a run that goes on")
    _common(adds, "the name of the new query")
    adds.add_argument("sql", help=f"SELECT …, or a file that ends in {SQL_FILE} with that")
    adds.add_argument("--output", help="path or URI of a folder for its results, as parquet (default: the run prints them)")
    adds.add_argument("--plan", help="a pinned plan, like '((a b) c)'")
    adds.add_argument(
        "--history", action="store_true", help="also combinations of new rows with rows that came before, if these are kept"
    )
    adds.set_defaults(command=_add)
    alter = commands.add_parser("alter", help="have a query of a run that goes on be another one")
    _common(alter, "the name of the query")
    alter.add_argument("sql", help=f"SELECT …, or a file that ends in {SQL_FILE} with that")
    alter.set_defaults(command=_alter)
    drop = commands.add_parser("drop", help="have a query leave, of a run that goes on or of the next one")
    _common(drop, "the name of the query")
    drop.set_defaults(command=_drop)


def _common(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("query", help=name)
    parser.add_argument("--checkpoint", default="checkpoint", help="path or URI where state is kept (default: %(default)s)")
    parser.add_argument(
        "--wait", type=length, default="1 minute", help="how long to wait for the answer of the run (default: %(default)s)"
    )


def _add(given: argparse.Namespace) -> int:
    from anabranch.control.commands import Command

    output = given.output or ""
    if output and "://" not in output:
        output = os.path.abspath(output)  # the run has a working directory of its own
    return _asked(given, Command("add", given.query, _sql(given.sql), output, given.plan, given.history))


def _alter(given: argparse.Namespace) -> int:
    from anabranch.control.commands import Command

    return _asked(given, Command("alter", given.query, _sql(given.sql)))


def _drop(given: argparse.Namespace) -> int:
    from anabranch.control.commands import Command

    return _asked(given, Command("drop", given.query))


def _sql(text: str) -> str:
    return read_file(text) if text.endswith(SQL_FILE) else text


def _asked(given: argparse.Namespace, command: Command) -> int:
    """Asks the run that has the checkpoint, and tells what it answers."""
    from anabranch.control.commands import give
    from anabranch.control.lease import in_use_by
    from anabranch.control.pipelines import pipeline_names
    from anabranch.sql import parse_duration
    from anabranch.storage.location import located

    checkpoint = located(given.checkpoint)
    if not pipeline_names(checkpoint):
        raise CommandError(f"nothing has run in the checkpoint {checkpoint}: name the one of the run with --checkpoint")
    is_running = in_use_by(checkpoint) is not None
    if not is_running and command.do != "drop":
        raise CommandError(f"no run has the checkpoint {checkpoint}: start one with anabranch run first")
    name = give(checkpoint, command)
    if not is_running:
        print(f"no run has the checkpoint {checkpoint}: {command.query} is dropped when the next one starts")
        return 0
    with saying("waiting for the run to answer"):
        answer = _answer(checkpoint, name, parse_duration(given.wait) / 1e6)
    if answer is None:
        raise StateError(f"the run has not answered within {given.wait}; the command waits, and is taken up when it does")
    if not answer.is_done:
        raise CommandError(answer.text)
    print(answer.text)
    return 0


def _answer(checkpoint: Folder, name: str, patience_s: float) -> Answer | None:
    from anabranch.control.commands import answer_to

    deadline = time.monotonic() + patience_s
    while (found := answer_to(checkpoint, name)) is None and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found
